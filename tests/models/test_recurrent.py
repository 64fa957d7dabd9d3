"""RecurrentSeq2Seq: the formula, `call` and cached steps agree."""

import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_tfm import runtime
from keras_tfm.decode.search_state import reorder_cache
from keras_tfm.models import RecurrentSeq2Seq
from keras_tfm.models.recurrent import RecurrentDecoder, RecurrentEncoder
from keras_tfm.training import ProjectedCrossentropy, SmoothedCrossentropy
from tests.layers.formulas import draw_weights, numpy
from tests.models.recurrent_formula import (
    KINDS,
    LENGTHS,
    ROOT,
    D,
    U,
    all_kinds,
    begin_cache,
    logits_of,
    model_of,
    network,
    run_step,
    small,
    with_drawn_weights,
)
from tests.models.small import BATCH, LABELS, SOURCE, TARGET, V


@all_kinds
def test_the_network_computes_the_papers_formula(kind):
    model = model_of(kind, 2) if kind == "gru additive" else model_of(kind)
    actual = logits_of(model)
    for row, length in enumerate(LENGTHS):  # the formula has no padding
        expected, _ = network(model, SOURCE[row, :length], TARGET[row])
        np.testing.assert_allclose(actual[row], expected, atol=2e-5)
    assert actual.std() > 0.1


def test_attention_maps_are_those_of_the_formula():
    model = model_of("lstm multiplicative")
    compiled_maps = runtime.compiled(model.attention_maps, model, jit_compile=False)
    maps = compiled_maps(ops.convert_to_tensor(SOURCE), ops.convert_to_tensor(TARGET))
    assert (maps["encoder"], maps["decoder"], len(maps["cross"])) == ([], [], 1)
    cross = numpy(maps["cross"][0])
    assert cross.shape == (2, 1, 5, 4)
    for row, length in enumerate(LENGTHS):
        _, expected = network(model, SOURCE[row, :length], TARGET[row])
        np.testing.assert_allclose(cross[row, 0, :, :length], expected, atol=1e-5)
        assert (cross[row, 0, :, length:] == 0).all()
    assert cross[0].std() > 0.01


@pytest.mark.backend("torch")
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_encoder_parity_with_pytorch(cell):
    import torch

    encoder = RecurrentEncoder(U, num_layers=2, cell=cell)
    encoder.build((None, None, D))
    draw_weights(encoder)
    modules = {"gru": torch.nn.GRU, "lstm": torch.nn.LSTM}
    module = modules[cell](D, U, 2, bidirectional=True, batch_first=True)

    def reordered(weight):
        """Keras puts the update gate of a GRU first, PyTorch the reset gate."""
        if cell == "lstm":
            return weight
        z, r, n = np.split(weight, 3, axis=-1)
        return np.concatenate([r, z, n], axis=-1)

    state = {}
    for suffix, layers in (("", "forward_layers"), ("_reverse", "backward_layers")):
        for i, layer in enumerate(getattr(encoder, layers)):
            kernel, recurrent, bias = (reordered(numpy(w)) for w in layer.weights)
            biases = bias if cell == "gru" else (bias, np.zeros_like(bias))
            state |= {
                f"weight_ih_l{i}{suffix}": kernel.T,
                f"weight_hh_l{i}{suffix}": recurrent.T,
                f"bias_ih_l{i}{suffix}": biases[0],
                f"bias_hh_l{i}{suffix}": biases[1],
            }
    module.load_state_dict({k: torch.tensor(v.copy()) for k, v in state.items()})
    x = np.random.default_rng(3).normal(size=(2, 4, D)).astype("float32")
    packed_sequence = torch.nn.utils.rnn.pack_padded_sequence(
        torch.tensor(x), torch.tensor(LENGTHS), batch_first=True
    )
    expected, _ = torch.nn.utils.rnn.pad_packed_sequence(
        module(packed_sequence)[0], True
    )
    actual = numpy(encoder(x, ops.convert_to_tensor(SOURCE != 0)))
    for row, length in enumerate(LENGTHS):
        expected_row = expected[row, :length].detach().numpy()
        np.testing.assert_allclose(actual[row, :length], expected_row, atol=1e-6)


@all_kinds
@settings(max_examples=2)
@given(seed=st.integers(0, 999))
def test_cached_steps_equal_the_call(kind, seed):
    """At every position, and for beams that are reordered."""
    rng, (rows, beams, length) = np.random.default_rng(seed), (2, 3, 5)
    model = model_of(kind)
    cache = begin_cache(model, beams=beams)
    histories = np.full((rows, beams, 1), 2, "int32")
    actual = []
    for t in range(length):
        logits, cache = run_step(model, histories[:, :, -1], t, cache)
        actual.append(numpy(logits))
        parents = rng.integers(0, beams, (rows, beams)).astype("int32")
        actual = [np.take_along_axis(x, parents[..., None], 1) for x in actual]
        cache = reorder_cache(cache, ops.convert_to_tensor(parents))
        cache = model.extend(cache, length + t)
        histories = np.take_along_axis(histories, parents[..., None], 1)
        ids = rng.integers(3, V, (rows, beams, 1)).astype("int32")
        histories = np.concatenate([histories, ids], axis=-1)
    targets = histories[:, :, :length].reshape(rows * beams, length)
    expected = logits_of(model, np.repeat(SOURCE, beams, axis=0), targets)
    actual = np.stack(actual, axis=2).reshape(expected.shape)
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_the_future_padding_and_batch_order_do_not_change_logits():
    model = model_of("gru additive")
    whole = logits_of(model)
    later = TARGET.copy()
    later[:, 3:] = 9
    changed = logits_of(model, target=later)
    np.testing.assert_allclose(changed[:, :3], whole[:, :3], atol=1e-5)
    assert abs(changed[:, 3:] - whole[:, 3:]).max() > 0.01  # it can fail
    reversed_batch = logits_of(model, SOURCE[::-1].copy(), TARGET[::-1].copy())
    np.testing.assert_allclose(reversed_batch[::-1], whole, atol=1e-5)
    wider = np.pad(SOURCE, [[0, 0], [0, 3]])
    np.testing.assert_allclose(logits_of(model, wider), whole, atol=1e-5)


def test_a_sequence_of_padding_does_not_produce_nan():
    source, target = SOURCE.copy(), TARGET.copy()
    source[1] = target[1] = 0
    logits = logits_of(model_of("gru additive"), source, target)
    assert np.isfinite(logits).all()
    expected = logits_of(model_of("gru additive"))
    np.testing.assert_allclose(logits[0], expected[0], atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "count"), [("gru additive", 2), ("lstm multiplicative", 4)]
)
def test_the_encoder_output_is_not_repeated_for_the_beams(kind, count):
    cache = begin_cache(model_of(kind), beams=3)
    keys, values = cache["memory"]
    assert tuple(keys.shape) == (2, U, 4)
    assert tuple(values.shape) == (2, 4, 2 * U)
    states = keras.tree.flatten(cache["beams"])
    assert [tuple(x.shape) for x in states] == [(2, 3, U)] * count
    assert tuple(cache["attention"].shape) == (2, 3, 4)


@pytest.mark.backend("torch")
def test_tie_sets_the_number_of_embedding_matrices():
    counts = {}
    for tie in ("all", "target", None):
        size = None if tie == "all" else 15
        model = small(tie=tie, target_vocabulary_size=size)
        shapes = [tuple(weight.shape) for weight in model.weights]
        sizes = ((V, D), (15, D), (D, 15))
        counts[tie] = [shapes.count(shape) for shape in sizes]
        assert model.target_vocabulary_size == (V if tie == "all" else 15)
    assert counts == {"all": [1, 0, 0], "target": [1, 1, 0], None: [1, 1, 1]}
    cache = model.begin(ops.convert_to_tensor(SOURCE), 4)
    candidates = ops.convert_to_tensor([[3, 5, 14]] * 2, "int32")
    short = model.begin(ops.convert_to_tensor(SOURCE), 4, candidates=candidates)
    logits, candidate_logits = (
        model.step(TARGET[:, :1], 0, state)[0] for state in (cache, short)
    )
    assert logits.shape == (2, 1, 15)
    expected = numpy(logits)[..., [3, 5, 14]]
    np.testing.assert_allclose(numpy(candidate_logits), expected, atol=1e-5)


def test_encoder_and_decoder_may_differ_in_depth():
    model = small(num_layers=(3, 1), tie="target")
    assert (model.encoder.num_layers, model.decoder.num_layers) == (3, 1)
    assert len(model.encoder.backward_layers) == 3


ALL_OPTIONS = {
    "num_layers": (1, 2),
    "embedding_dim": D,
    "units": U,
    "cell": "lstm",
    "attention": "multiplicative",
    "target_vocabulary_size": 15,
    "tie": None,
    "dropout": 0.2,
    "name": "translator",
}


def test_a_saved_model_has_the_same_config_and_logits(tmp_path):
    model = with_drawn_weights(RecurrentSeq2Seq(V, **ALL_OPTIONS))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded) is RecurrentSeq2Seq
    np.testing.assert_allclose(logits_of(loaded), logits_of(model), atol=1e-6)
    config = json.loads(json.dumps(model.get_config()))
    assert json.loads(json.dumps(loaded.get_config())) == config
    assert {name: config[name] for name in ALL_OPTIONS} == {
        **ALL_OPTIONS,
        "num_layers": [1, 2],
    }
    for layer in (model.encoder, model.decoder):
        layer_config = layer.get_config()
        assert type(layer).from_config(layer_config).get_config() == layer_config
    hidden = model.hidden_model()
    hidden.save(tmp_path / "hidden.keras")
    loaded = keras.models.load_model(tmp_path / "hidden.keras")
    assert loaded.outputs[0].shape == (None, None, D)
    for actual, expected in zip(
        loaded.get_weights(), hidden.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.backend("torch")
def test_dropout_is_applied_in_training_only():
    model = small(dropout=0.5)
    for layer in (model.source_embedding, model.encoder, model.decoder):
        assert layer.dropout_layer.rate == 0.5
    train_call = runtime.compiled(
        lambda batch: model(batch, training=True), model, jit_compile=False
    )
    trained = numpy(train_call(keras.tree.map_structure(ops.convert_to_tensor, BATCH)))
    expected = logits_of(model_of("gru additive", 1))  # the same weights
    assert abs(trained - expected).max() > 0.1
    step, _ = run_step(model, TARGET[:, :1], 0, begin_cache(model))
    np.testing.assert_allclose(numpy(step)[:, 0], expected[:, 0], atol=1e-5)


@pytest.mark.backend("torch")
def test_dropout_is_applied_between_layers(monkeypatch):
    model, calls = small(dropout=0.5, num_layers=3), []
    for layer in (model.encoder, model.decoder):
        monkeypatch.setattr(
            layer.dropout_layer, "call", lambda x, training: calls.append(training) or x
        )
    model(BATCH, training=True)
    assert calls == [True] * (2 + 3)  # the decoder has dropout on its output too
    calls.clear()
    model(BATCH)
    assert len(calls) == 5 and not any(calls)


@pytest.mark.backend("torch")
def test_training_learns_to_reverse_a_sequence():
    """Trains the hidden model, as the recipe does."""
    model = small(tie="target", dropout=0.05)
    network = model.hidden_model()
    network.compile(
        keras.optimizers.Adam(0.02), ProjectedCrossentropy(model.target_embedding)
    )
    hidden = network.predict_on_batch(BATCH)
    assert hidden.shape == (2, 5, D)
    actual = numpy(model.as_logits(ops.convert_to_tensor(hidden)))
    np.testing.assert_allclose(actual, logits_of(model), atol=1e-5)
    initial = model.get_weights()
    rng, losses = np.random.default_rng(0), []
    for _ in range(40):
        source = rng.integers(4, 8, (16, 4)).astype("int32")
        labels = source[:, ::-1]
        target = np.hstack([np.full((16, 1), 2, "int32"), labels[:, :-1]])
        batch = {"source_ids": source, "target_ids": target}
        network.reset_metrics()
        losses.append(float(network.train_on_batch(batch, labels)))
    assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:5])
    unchanged = [
        weight.path
        for weight, initial_value in zip(model.weights, initial, strict=True)
        if np.array_equal(numpy(weight), initial_value)
    ]
    assert unchanged == []  # every weight has a gradient


@pytest.mark.slow("tensorflow")
@pytest.mark.parametrize(
    ("policy", "kind"),
    [
        ("mixed_float16", "gru additive"),
        pytest.param(
            "mixed_bfloat16",
            "lstm multiplicative",
            marks=pytest.mark.backend("torch"),  # the fastest backend for it
        ),
    ],
)
def test_half_precision_computes_close_logits_and_trains(policy, kind):
    model = small(dtype=policy, **KINDS[kind])
    expected = logits_of(model_of(kind, 1))
    assert keras.backend.standardize_dtype(model.outputs[0].dtype) == policy[6:]
    np.testing.assert_allclose(logits_of(model), expected, atol=0.1)
    assert all(weight.dtype == "float32" for weight in model.weights)
    step, cache = run_step(model, TARGET[:, :1], 0, begin_cache(model))
    assert keras.backend.standardize_dtype(step.dtype) == "float32"
    states = keras.tree.flatten(cache["beams"])
    assert {keras.backend.standardize_dtype(x.dtype) for x in states} == {policy[6:]}
    np.testing.assert_allclose(numpy(step)[:, 0], expected[:, 0], atol=0.1)
    if kind != "gru additive":
        return
    model.compile("sgd", SmoothedCrossentropy())
    scaled = type(model.optimizer).__name__ == "LossScaleOptimizer"
    assert scaled
    assert np.isfinite(float(model.train_on_batch(BATCH, LABELS)))
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


OTHER_BACKEND = """
import json, sys
import keras
import numpy as np
import keras_tfm.models
whole = keras.models.load_model(sys.argv[1] + "/model.keras")
model = type(whole).from_config(whole.get_config())
model.load_weights(sys.argv[1] + "/model.weights.h5")
for actual, expected in zip(model.get_weights(), whole.get_weights(), strict=True):
    np.testing.assert_array_equal(actual, expected)
batch = {name: np.array(ids, "int32") for name, ids in json.loads(sys.argv[2]).items()}
print(json.dumps(keras.ops.convert_to_numpy(model(batch)).tolist()))
"""


@pytest.mark.backend("torch")
def test_a_saved_file_has_the_same_logits_on_another_backend(tmp_path):
    pytest.importorskip("tensorflow")
    model = small(num_layers=(1, 2), attention="additive", cell="lstm")
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    batch = json.dumps({name: ids.tolist() for name, ids in BATCH.items()})
    process = subprocess.run(
        [sys.executable, "-c", OTHER_BACKEND, str(tmp_path), batch],
        env={**os.environ, "KERAS_BACKEND": "tensorflow", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    actual = json.loads(process.stdout.splitlines()[-1])
    np.testing.assert_allclose(actual, logits_of(model), atol=1e-5)


def test_wrong_arguments_are_rejected():
    sizes = {"embedding_dim": D, "units": U}
    for arguments, message in [
        ({"cell": "rnn"}, r"`cell` must be one of \['gru', 'lstm'\]; got cell='rnn'"),
        (
            {"attention": "dot"},
            "`attention` must be one of .*'additive'.*got attention='dot'",
        ),
        ({"tie": "both"}, "`tie` must be one of .*got tie='both'"),
        ({"target_vocabulary_size": 15}, "two vocabularies; got tie='all'.*13.*15"),
        ({"units": 0}, "`units` must be at least 1; got units=0"),
        ({"num_layers": 0}, "`num_layers` must be at least 1; got num_layers=0"),
    ]:
        with pytest.raises(ValueError, match=message):
            RecurrentSeq2Seq(V, **{**sizes, **arguments})
    with pytest.raises(ValueError, match="got 5 channels, units=6"):
        RecurrentDecoder(U).build((None, None, D), (None, None, 5))
