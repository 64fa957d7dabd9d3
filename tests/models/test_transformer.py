"""Transformer: the formula, `call` and cached steps agree."""

import json

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_tfm.decode.search_state import reorder_cache
from keras_tfm.layers import LearnedPositions, SinusoidalPositions, T5Positions
from keras_tfm.models import Transformer
from keras_tfm.training import SmoothedCrossentropy
from tests.layers import formulas
from tests.layers.formulas import below, causal, numpy, weights_of
from tests.layers.quantized import QUANTIZED, quantize
from tests.layers.test_positions import paper
from tests.models.small import BATCH, LABELS, SOURCE, TARGET, V, small

KINDS = {
    "post-norm": {},
    "pre-norm": {"normalize_first": True},
    "gated pre-RMS": {
        "normalize_first": True,
        "normalization": "rms_norm",
        "gated": True,
        "activation": "silu",
        "use_bias": False,
        "tie": "target",
    },
    "learned": {
        "positions": "learned",
        "sequence_length": 6,
        "tie": None,
        "logits_bias": True,
    },
    "BART's": {
        "positions": "learned",
        "sequence_length": 6,
        "scale_embedding": True,
        "normalize_embedding": True,
        "logits_bias": True,
    },
    "rotary, one head of keys": {"positions": "rotary", "num_key_value_heads": 1},
    "batch norm": {"normalize_first": True, "normalization": "batch_norm"},
    "shaw, additive": {"positions": "shaw", "score": "additive"},
    "small heads": {"key_dim": 3, "value_dim": 2, "num_layers": (2, 1)},
    "SSRU": {"decoder_recurrence": "ssru"},
}


def logits_of(model, source=SOURCE, target=TARGET):
    return numpy(model({"source_ids": source, "target_ids": target}))


@pytest.mark.parametrize("kind", ["post-norm", "pre-norm"])
def test_the_network_computes_the_papers_formula(kind):
    model = small(**KINDS[kind])
    # Paths of weights do not start with the name of the model.
    w = {w.path: numpy(w).astype("float64") for w in model.weights}
    first = model.config["normalize_first"]
    mask = (SOURCE != 0)[:, None]

    def embed(ids):
        embeddings = w["embedding/token_embedding/embeddings"]
        return embeddings[ids] * np.sqrt(8) + paper(ids.shape[1], 8)

    def final_norm(stack, x):
        return formulas.normalize(below(w, f"{stack}_norm"), x, 1e-5) if first else x

    memory = embed(SOURCE)
    for i in range(1):
        weights = below(w, f"encoder_{i}")
        memory = formulas.block(weights, memory, mask=mask, first=first)
    memory, x = final_norm("encoder", memory), embed(TARGET)
    for i in range(2):
        masks = {"mask": causal(5) & (TARGET != 0)[:, None], "memory_mask": mask}
        x = formulas.block(below(w, f"decoder_{i}"), x, memory, first=first, **masks)
    expected = final_norm("decoder", x) @ w["embedding/token_embedding/embeddings"].T
    np.testing.assert_allclose(logits_of(model), expected, atol=5e-5)


@pytest.mark.parametrize(
    ("tie", "matrices", "projections"),
    [("all", 1, 0), ("target", 2, 0), ("inputs", 1, 1), (None, 2, 1)],
)
def test_tie_sets_the_number_of_embedding_matrices(tie, matrices, projections):
    model = small(tie=tie)
    shapes = [tuple(weight.shape) for weight in model.weights]
    assert shapes.count((V, 8)) == matrices  # no other dimension is V
    assert shapes.count((8, V)) == projections


def test_tied_embeddings_have_separate_positions_and_norms():
    model = small(**KINDS["BART's"])
    source, target = model.source_embedding, model.target_embedding
    assert source.embeddings is target.embeddings
    assert source.position_layer.embeddings is not target.position_layer.embeddings
    assert source.norm.gamma is not target.norm.gamma
    assert not source.logits_bias and target.bias.shape == (V,)
    shapes = [tuple(weight.shape) for weight in model.weights]
    assert (shapes.count((V, 8)), shapes.count((V,)), shapes.count((6, 8))) == (1, 1, 2)


def test_source_and_target_vocabularies_may_differ_in_size():
    for tie in ("target", None):
        model = small(tie=tie, target_vocabulary_size=15)
        assert logits_of(model).shape == (2, 5, 15)
        assert model.target_vocabulary_size == 15
        assert model.source_embedding.vocabulary_size == V
    assert small().target_vocabulary_size == V


def test_encoder_and_decoder_may_differ_in_depth():
    model = small(num_layers=(3, 1))
    assert (len(model.encoder_blocks), len(model.decoder_blocks)) == (3, 1)
    model = small(num_layers=np.int64(2))  # as in a grid of options
    assert (len(model.encoder_blocks), len(model.decoder_blocks)) == (2, 2)


def test_the_future_padding_and_batch_order_do_not_change_logits():
    model = small()
    whole = logits_of(model)
    later = TARGET.copy()
    later[:, 3:] = 9
    changed = logits_of(model, target=later)
    np.testing.assert_allclose(changed[:, :3], whole[:, :3], atol=1e-5)
    assert abs(changed[:, 3:] - whole[:, 3:]).max() > 0.01  # it can fail
    reversed_batch = logits_of(model, SOURCE[::-1].copy(), TARGET[::-1].copy())
    np.testing.assert_allclose(reversed_batch[::-1], whole, atol=1e-5)
    alone = logits_of(model, SOURCE[1:, :2], TARGET[1:, :3])
    np.testing.assert_allclose(alone, whole[1:, :3], atol=1e-5)


def test_a_sequence_of_padding_does_not_produce_nan():
    model = small()
    source, target = SOURCE.copy(), TARGET.copy()
    source[1] = target[1] = 0
    logits = logits_of(model, source, target)
    assert np.isfinite(logits).all()
    np.testing.assert_allclose(logits[0], logits_of(model)[0], atol=1e-5)
    model.compile("sgd", SmoothedCrossentropy())
    labels = LABELS * np.array([[1], [0]], "int32")
    model.train_on_batch({"source_ids": source, "target_ids": target}, labels)
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


@pytest.mark.parametrize("kind", KINDS)
def test_cached_steps_equal_the_call(kind):
    model = small(**KINDS[kind])
    expected, cache = logits_of(model), model.begin(ops.convert_to_tensor(SOURCE), 6)
    for t in range(3):  # where neither target is padded
        index = ops.convert_to_tensor(t, "int32") if t else t
        logits, cache = model.step(TARGET[:, t : t + 1], index, cache)
        np.testing.assert_allclose(numpy(logits)[:, 0], expected[:, t], atol=1e-5)


@pytest.mark.slow("tensorflow", "jax")
@pytest.mark.parametrize("kind", ["pre-norm", "rotary, one head of keys", "SSRU"])
@settings(max_examples=3)
@given(seed=st.integers(0, 999))
def test_reordered_beams_keep_their_past(kind, seed):
    """Hypotheses get the logits of their own tokens after any reordering."""
    rng, (rows, beams, length) = np.random.default_rng(seed), (2, 3, 4)
    model = MODELS.get(kind) or MODELS.setdefault(kind, small(**KINDS[kind]))
    cache = model.begin(ops.convert_to_tensor(SOURCE), length, beams)
    histories = np.full((rows, beams, 1), 2, "int32")
    actual = []
    for t in range(length):
        logits, cache = model.step(histories[:, :, -1], t, cache)
        actual.append(numpy(logits))
        parents = rng.integers(0, beams, (rows, beams)).astype("int32")
        actual = [np.take_along_axis(x, parents[..., None], 1) for x in actual]
        cache = reorder_cache(cache, parents)
        histories = np.take_along_axis(histories, parents[..., None], 1)
        ids = rng.integers(3, V, (rows, beams, 1)).astype("int32")
        histories = np.concatenate([histories, ids], axis=-1)
    targets = histories[:, :, :length].reshape(rows * beams, length)
    expected = logits_of(model, np.repeat(SOURCE, beams, axis=0), targets)
    actual = np.stack(actual, axis=2).reshape(expected.shape)
    np.testing.assert_allclose(actual, expected, atol=1e-5)


MODELS = {}  # made once for all examples


def test_the_encoder_output_is_not_repeated_for_the_beams():
    model = small()
    cache = model.begin(ops.convert_to_tensor(SOURCE), max_length=6, beam_size=3)
    for keys, values in cache["memory"]:
        assert tuple(keys.shape) == tuple(values.shape) == (2, 2, 4, 4)
    assert [tuple(keys.shape) for keys, _ in cache["past"]] == [(2, 2, 4, 18)] * 2
    assert tuple(cache["beams"]["ancestors"].shape) == (2, 3, 18)


def test_attention_maps_have_a_tensor_for_each_layer_and_sum_to_one():
    model = small(num_layers=(2, 3))
    maps = model.attention_maps(
        ops.convert_to_tensor(SOURCE), ops.convert_to_tensor(TARGET)
    )
    shapes = {"encoder": (2, 2, 4, 4), "decoder": (2, 2, 5, 5), "cross": (2, 2, 5, 4)}
    for name, depth in [("encoder", 2), ("decoder", 3), ("cross", 3)]:
        assert len(maps[name]) == depth
        for weights in map(numpy, maps[name]):
            assert weights.shape == shapes[name]
            np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    cross, decoder = numpy(maps["cross"][1]), numpy(maps["decoder"][1])
    assert (cross[1, :, :, 2:] == 0).all()  # source padding
    assert (np.triu(decoder[0, 0], 1) == 0).all()  # the future


@pytest.mark.parametrize("kind", ["pre-norm", "learned"])
def test_attention_maps_are_those_of_the_call(kind):
    """Cross-attention of the first block equals that of the formula."""
    model = small(**KINDS[kind])
    maps = model.attention_maps(
        ops.convert_to_tensor(SOURCE), ops.convert_to_tensor(TARGET)
    )
    memory = numpy(model.encode(ops.convert_to_tensor(SOURCE)))
    w = below(weights_of(model.decoder_blocks[0]), "cross_attention")
    x = numpy(model.target_embedding(TARGET))
    block = weights_of(model.decoder_blocks[0])
    self_attention, norm = (
        below(block, "self_attention"),
        below(block, "self_attention_norm"),
    )
    mask = causal(5) & (TARGET != 0)[:, None]
    if model.config["normalize_first"]:
        x = (
            x
            + formulas.attention(
                self_attention, formulas.normalize(norm, x, 1e-5), mask=mask
            )[0]
        )
        x = formulas.normalize(below(block, "cross_attention_norm"), x, 1e-5)
    else:
        x = formulas.normalize(
            norm, x + formulas.attention(self_attention, x, mask=mask)[0], 1e-5
        )
    _, expected = formulas.attention(w, x, memory, mask=(SOURCE != 0)[:, None])
    np.testing.assert_allclose(numpy(maps["cross"][0]), expected, atol=1e-5)


def test_a_recurrent_decoder_has_states_and_no_self_attention_maps():
    model = small(**KINDS["SSRU"])
    cache = model.begin(ops.convert_to_tensor(SOURCE), 6, 3, return_attention=True)
    assert [tuple(x.shape) for x in cache["beams"]["states"]] == [(2, 3, 8)] * 2
    assert "past" not in cache and model.extend(cache, 9) is cache
    ids = ops.convert_to_tensor(np.full((2, 3), 2, "int32"))
    _, cache = model.step(ids, 0, cache)
    assert tuple(cache["attention"].shape) == (2, 3, 4)
    maps = model.attention_maps(SOURCE, TARGET)
    assert maps["decoder"] == [] and len(maps["cross"]) == 2
    np.testing.assert_allclose(
        numpy(cache["attention"])[:, 0],
        numpy(maps["cross"][1]).mean(1)[:, 0],
        atol=1e-5,
    )
    model.enable_lora(2)
    assert len(model.trainable_weights) == (1 + 2) * 2 * 2


def test_the_hidden_model_shares_every_layer():
    model = small(tie=None)
    hidden = model.hidden_model()
    vectors = hidden(BATCH)
    assert vectors.shape == (2, 5, 8)
    actual = numpy(model.as_logits(vectors))
    np.testing.assert_allclose(actual, logits_of(model), atol=1e-5)
    model.set_weights([weight * 0.5 for weight in model.get_weights()])
    assert abs(numpy(hidden(BATCH)) - numpy(vectors)).max() > 0.01
    assert len(hidden.weights) == len(model.weights) - 1  # the projection


ALL_OPTIONS = {
    "target_vocabulary_size": 15,
    "num_layers": (1, 2),
    "embedding_dim": 8,
    "intermediate_dim": 12,
    "num_heads": 2,
    "key_dim": 3,
    "value_dim": 5,
    "tie": None,
    "sequence_length": 9,
    "scale_embedding": True,
    "normalize_embedding": True,
    "logits_bias": True,
    "dropout": 0.2,
    "attention_dropout": 0.3,
    "activation_dropout": 0.4,
    "activation": keras.activations.silu,
    "gated": True,
    "normalize_first": True,
    "normalization": "rms_norm",
    "epsilon": 1e-3,
    "use_bias": False,
    "score": "multiplicative",
    "num_key_value_heads": 1,
    "name": "translator",
}


def test_a_saved_recurrent_decoder_computes_the_same_logits(tmp_path):
    model = small(**KINDS["SSRU"])
    path = str(tmp_path / "model.keras")
    model.save(path)
    loaded = keras.models.load_model(path)
    np.testing.assert_allclose(logits_of(loaded), logits_of(model), atol=1e-6)
    assert loaded.config["decoder_recurrence"] == "ssru"


@pytest.mark.parametrize(
    "positions",
    [
        lambda: "learned",
        lambda: SinusoidalPositions("halves", combine="concat"),
        lambda: T5Positions(4, 8),
    ],
    ids=["name", "layer", "shared inside attention"],
)
def test_a_saved_model_has_the_same_config_and_logits(positions, tmp_path):
    model = Transformer(V, positions=positions(), **ALL_OPTIONS)
    path = str(tmp_path / "model.keras")
    model.save(path)
    loaded = keras.models.load_model(path)
    np.testing.assert_allclose(logits_of(loaded), logits_of(model), atol=1e-6)
    config = json.loads(json.dumps(model.get_config()))
    assert json.loads(json.dumps(loaded.get_config())) == config
    assert loaded.name == "translator"
    assert loaded.config["attention_dropout"] == 0.3
    assert [b.activation_dropout for b in loaded.decoder_blocks] == [0.4] * 2
    cache = loaded.begin(ops.convert_to_tensor(SOURCE), 9)
    logits, _ = loaded.step(TARGET[:, :1], 0, cache)
    np.testing.assert_allclose(numpy(logits)[:, 0], logits_of(model)[:, 0], atol=1e-5)


@pytest.mark.backend("torch")
@pytest.mark.parametrize(("rank", "message"), [(0, "at least 1"), (2.5, "an integer")])
def test_a_wrong_rank_of_lora_is_rejected_and_freezes_nothing(rank, message):
    model = small()
    with pytest.raises(ValueError, match=f"`rank` must be {message}; got rank={rank}"):
        model.enable_lora(rank)
    assert len(model.trainable_weights) == len(model.weights)


@pytest.mark.backend("torch")
def test_lora_trains_only_its_factors():
    model = small()
    initial = [weight.copy() for weight in model.get_weights()]
    initial_logits, frozen = logits_of(model), list(model.weights)
    model.enable_lora(2)
    np.testing.assert_allclose(logits_of(model), initial_logits, atol=1e-6)
    # Encoder 1 block, decoder 2 with 2 attentions: query and value, 2 factors.
    assert len(model.trainable_weights) == (1 + 2 * 2) * 2 * 2
    assert all("lora" in weight.path for weight in model.trainable_weights)
    model.compile(keras.optimizers.SGD(1.0), SmoothedCrossentropy())
    model.train_on_batch(BATCH, LABELS)
    for weight, initial_value in zip(frozen, initial, strict=True):
        np.testing.assert_array_equal(numpy(weight), initial_value)
    assert abs(logits_of(model) - initial_logits).max() > 1e-4


@QUANTIZED
def test_an_int8_model_computes_close_logits_and_is_saved(tmp_path):
    positions = SinusoidalPositions("halves", combine="concat")
    model = small(tie=None, num_layers=1, positions=positions)
    expected = logits_of(model)
    quantize(model)
    dtypes = {weight.dtype for weight in model.weights}
    assert "int8" in dtypes
    actual = logits_of(model)
    np.testing.assert_allclose(actual, expected, atol=0.1)
    assert abs(actual - expected).max() > 1e-6
    path = str(tmp_path / "int8.keras")
    model.save(path)
    loaded = keras.models.load_model(path)
    assert {weight.dtype for weight in loaded.weights} == dtypes
    np.testing.assert_allclose(logits_of(loaded), actual, atol=1e-6)
    cache = loaded.begin(ops.convert_to_tensor(SOURCE), 4)
    logits, _ = loaded.step(TARGET[:, :1], 0, cache)
    np.testing.assert_allclose(numpy(logits)[:, 0], actual[:, 0], atol=1e-2)


@QUANTIZED
def test_a_tied_int8_model_runs():
    model = small(num_layers=1)
    expected = logits_of(model)
    quantize(model)
    np.testing.assert_allclose(logits_of(model), expected, atol=0.2)


@pytest.mark.slow("tensorflow", "jax")
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision_trains(policy):
    reference = small(num_layers=1)
    model = small(num_layers=1, dtype=policy)
    logits = model(BATCH)
    assert keras.backend.standardize_dtype(logits.dtype) == policy[6:]
    np.testing.assert_allclose(numpy(logits), logits_of(reference), atol=0.2)
    assert all(weight.dtype == "float32" for weight in model.weights)
    model.compile("sgd", SmoothedCrossentropy())
    scaled = type(model.optimizer).__name__ == "LossScaleOptimizer"
    assert scaled == (policy == "mixed_float16")
    initial = model.get_weights()[0].copy()
    loss = model.train_on_batch(BATCH, LABELS)
    assert np.isfinite(np.asarray(loss)).all()
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    assert (model.get_weights()[0] != initial).any() or scaled
    cache = model.begin(ops.convert_to_tensor(SOURCE), 4)
    step, _ = model.step(TARGET[:, :1], 0, cache)
    np.testing.assert_allclose(numpy(step)[:, 0], numpy(model(BATCH))[:, 0], atol=0.1)


@pytest.mark.parametrize("tie", ["all", None])
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_decodes_with_float32_logits(policy, tie):
    model = small(num_layers=1, tie=tie, logits_bias=True, dtype=policy)
    candidates = ops.convert_to_tensor([range(3, 9)] * len(SOURCE), "int32")
    cache = model.begin(ops.convert_to_tensor(SOURCE), 4)
    short = model.begin(ops.convert_to_tensor(SOURCE), 4, candidates=candidates)
    logits, _ = model.step(TARGET[:, :1], 0, cache)
    candidate_logits, _ = model.step(TARGET[:, :1], 0, short)
    for actual in (logits, candidate_logits):
        assert keras.backend.standardize_dtype(actual.dtype) == "float32"
        rounded = ops.cast(ops.cast(actual, policy[6:]), "float32")
        assert abs(numpy(actual) - numpy(rounded)).max() > 0
    expected = numpy(logits)[..., 3:9]
    np.testing.assert_allclose(numpy(candidate_logits), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("settings", [{}, {"positions": "t5"}])
def test_read_length_does_not_change_the_logits_of_a_step(settings):
    model, length = small(**settings), SOURCE.shape[1]
    source = ops.convert_to_tensor(np.pad(SOURCE, ((0, 0), (0, 5))))
    caches = [
        model.begin(source, 4, 2, return_attention=True, read_length=read)
        for read in (None, length)
    ]
    shapes = [keras.tree.map_structure(lambda x: tuple(x.shape), c) for c in caches]
    assert shapes[0] == shapes[1]
    ids = ops.convert_to_tensor([[2, 5]] * len(SOURCE), "int32")
    (expected, whole), (actual, shortened) = (
        model.step(ids, 0, cache) for cache in caches
    )
    np.testing.assert_allclose(numpy(actual), numpy(expected), atol=1e-5)
    maps = (numpy(cache["attention"]) for cache in (shortened, whole))
    np.testing.assert_allclose(*maps, atol=1e-6)
    assert not numpy(shortened["memory"][0][1])[:, :, length:].any()
    assert numpy(whole["memory"][0][1])[:, :, length:].any()


def test_only_mixed_unquantized_models_decode_with_float32_logits():
    model = small(num_layers=1, dtype="bfloat16")
    cache = model.begin(ops.convert_to_tensor(SOURCE), 4)
    assert ops.dtype(model.step(TARGET[:, :1], 0, cache)[0]) == "bfloat16"
    model = small(num_layers=1, tie=None, dtype="mixed_bfloat16")
    quantize(model)
    cache = model.begin(ops.convert_to_tensor(SOURCE), 4)
    step, _ = model.step(TARGET[:, :1], 0, cache)
    np.testing.assert_allclose(numpy(step)[:, 0], numpy(model(BATCH))[:, 0], atol=0.2)


@pytest.mark.backend("tensorflow")
def test_an_exported_model_accepts_any_batch_and_length(tmp_path):
    import tensorflow as tf

    model = small()
    model.export(str(tmp_path / "model"), verbose=False)
    exported = tf.saved_model.load(str(tmp_path / "model"))
    for batch_size, source_length, target_length in [(2, 4, 5), (1, 2, 3)]:
        batch = {
            "source_ids": tf.constant(SOURCE[:batch_size, :source_length]),
            "target_ids": tf.constant(TARGET[:batch_size, :target_length]),
        }
        np.testing.assert_allclose(
            exported.serve(batch).numpy(), numpy(model(batch)), atol=1e-5
        )


def test_a_position_layer_is_copied_for_each_embedding():
    model = small(tie=None, positions=LearnedPositions(7, initializer="ones"))
    source = model.source_embedding.position_layer
    target = model.target_embedding.position_layer
    assert source is not target
    assert source.sequence_length == target.sequence_length == 7


def test_a_position_layer_with_weights_is_rejected():
    positions = LearnedPositions(7)
    positions.build((None, None, 8))
    with pytest.raises(ValueError, match="which has weights. Pass a new layer"):
        small(positions=positions)


def test_lengths_beyond_learned_positions_are_rejected():
    model = small(positions="learned", sequence_length=4)
    with pytest.raises(ValueError, match="sequence_length=4 for 5 tokens"):
        model.begin(ops.convert_to_tensor(SOURCE), max_length=5)
    with pytest.raises(ValueError, match="sequence_length=4 for 8 tokens"):
        model.begin(np.concatenate([SOURCE, SOURCE], axis=1), max_length=4)
    with pytest.raises(ValueError, match="sequence_length=4 for 5 tokens"):
        logits_of(model)


@pytest.mark.backend("torch")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tie": "both"}, r"`tie` must be one of .*'all'.*'both'"),
        ({"target_vocabulary_size": 15}, "got tie='all'.*13.*15.*joint vocabulary"),
        ({"num_heads": 3}, "`num_heads` must divide .*num_heads=3 for dimension 8"),
        ({"embedding_dim": 9, "num_heads": 3}, "must be even.*even `embedding_dim`"),
        ({"positions": "learned"}, "sequence_length=None"),
        ({"normalization": "batch"}, "`normalization` must be one of"),
        ({"decoder_recurrence": "gru"}, "'ssru'.; got decoder_recurrence='gru'"),
        (
            {"decoder_recurrence": "ssru", "positions": "rotary"},
            "'rotary', decoder_recurrence='ssru'",
        ),
    ],
)
def test_wrong_arguments_are_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        small(**options)
