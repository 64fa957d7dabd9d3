"""CausalLM: its formula, prompts and decoding."""

import json

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfm import decode, runtime
from keras_tfm.layers import SinusoidalPositions
from keras_tfm.models import CausalLM
from tests.layers import formulas
from tests.layers.formulas import below, causal, draw_weights, numpy

V = 13
IDS = np.array([[2, 8, 6, 11, 4, 9], [2, 10, 5, 7, 0, 0]], "int32")
PROMPTS = np.array([[2, 8, 6, 0], [2, 0, 0, 0], [2, 5, 9, 4]], "int32")
KINDS = {
    "rotary": {},
    "learned": {"positions": "learned", "sequence_length": 12, "tie": False},
    "t5": {"positions": "t5", "num_key_value_heads": 1, "normalize_first": False},
}


def small(seed=0, **settings):
    sizes = {"embedding_dim": 8, "intermediate_dim": 12, "num_heads": 2}
    settings = {"num_layers": 2, "dropout": 0.0, **sizes, **settings}
    return draw_weights(CausalLM(V, **settings), seed)


def logits_of(model, ids):
    return numpy(model({"token_ids": np.asarray(ids, "int32")}))


def logits_of_text(model, tokens):
    """Returns `(T, V)` of one text, padded: JAX compiles for each length."""
    ids = np.zeros((1, 12), "int32")
    ids[0, : len(tokens)] = tokens
    return logits_of(model, ids)[0, : len(tokens)].astype("float64")


def test_the_network_computes_the_papers_formula():
    model = small(positions=None, activation="relu")
    w = {w.path: numpy(w).astype("float64") for w in model.weights}
    embeddings = w["embedding/token_embedding/embeddings"]
    x = embeddings[IDS] * 8**0.5
    mask = causal(6) & (IDS != 0)[:, None]
    for i in range(2):
        x = formulas.block(below(w, f"decoder_{i}"), x, mask=mask, first=True)
    expected = formulas.normalize(below(w, "decoder_norm"), x, 1e-5) @ embeddings.T
    np.testing.assert_allclose(logits_of(model, IDS), expected, atol=5e-5)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("rotary", marks=pytest.mark.slow("jax")),
        "learned",
        pytest.param("t5", marks=pytest.mark.slow("jax")),
    ],
)
def test_cached_steps_after_prompts_equal_the_call(kind):
    """For prompts of several lengths in one batch, and a cache that grows."""
    model = small(**KINDS[kind])
    rng = np.random.default_rng(1)
    beams, length = 2, 5
    cache = model.begin(ops.convert_to_tensor(PROMPTS), 2, beams)
    tokens = rng.integers(3, V, (3, beams, length)).astype("int32")
    ids, actual = np.full((3, beams), 1, "int32"), []  # the first ids are not read
    for t in range(length):
        if t in (2, 4):
            cache = model.extend(cache, t + 2)
        index = ops.convert_to_tensor(t, "int32") if t % 2 else t
        logits, cache = model.step(ids, index, cache)
        actual.append(numpy(logits))
        ids = tokens[:, :, t]
    for row, prompt in enumerate(PROMPTS):
        prompt = prompt[prompt != 0]
        for beam in range(beams):
            whole = [*prompt, *tokens[row, beam, :-1]]
            expected = logits_of_text(model, whole)[len(prompt) - 1 :]
            beam_logits = [logits[row, beam] for logits in actual]
            np.testing.assert_allclose(beam_logits, expected, atol=2e-5)


@pytest.mark.backend("torch")
def test_beam_search_equals_enumeration():
    model = small()
    settings = {"num_hypotheses": 3, "max_decoding_length": 2, "disable_unk": False}
    search = runtime.Decoder(model, decode.Options(beam_size=30, **settings))
    actual = search(PROMPTS)
    for row, prompt in enumerate(PROMPTS):
        prompt = [int(token) for token in prompt if token]
        scored = enumerate_continuations(model, prompt)
        best = sorted(scored, key=scored.get, reverse=True)[:3]
        ids = [tuple(int(t) for t in hypothesis if t) for hypothesis in actual.ids[row]]
        assert ids == best
        np.testing.assert_allclose(
            actual.scores[row], [scored[hypothesis] for hypothesis in best], atol=1e-4
        )


def enumerate_continuations(model, prompt, end=3):
    """Mean log-probabilities of all continuations of one or two tokens."""

    def log_probabilities(continuation):
        logits = logits_of_text(model, [*prompt, *continuation])[-1]
        logits[[0, 2]] = -np.inf  # padding and start are never generated
        return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()

    first = log_probabilities([])
    scored = {(end,): first[end]}
    for token in (1, *range(4, V)):
        second = log_probabilities([token])
        for next_token in (1, *range(3, V)):
            scored[token, next_token] = (first[token] + second[next_token]) / 2
    return scored


@pytest.mark.slow("tensorflow", "jax")
def test_greedy_search_and_scores_agree():
    model = small()
    search = runtime.Decoder(model, decode.Options(beam_size=1, max_decoding_length=6))
    actual = search(PROMPTS)
    for row, prompt in enumerate(PROMPTS):
        prompt_ids = [int(token) for token in prompt if token]
        expected, log_probabilities = [], []
        while len(expected) < 6 and (not expected or expected[-1] != 3):
            logits = logits_of_text(model, prompt_ids + expected)[-1]
            log_probabilities.append(logits - np.log(np.exp(logits).sum()))
            expected.append(3 + int(np.argmax(logits[3:])))
        assert [int(t) for t in actual.ids[row, 0] if t] == expected
        scored = search.score([prompt_ids], [expected])
        expected = [
            log_probability[token]
            for log_probability, token in zip(log_probabilities, expected, strict=True)
        ]
        np.testing.assert_allclose(
            scored.token_scores[0, 0, : len(expected)], expected, atol=1e-4
        )
    targets = [[int(t) for t in row[0] if t] for row in actual.ids]
    together = search.score(PROMPTS, targets)
    for row, prompt in enumerate(PROMPTS):
        alone = search.score([[int(t) for t in prompt if t]], [targets[row]])
        np.testing.assert_allclose(alone.scores[0], together.scores[row], atol=1e-5)


def test_learned_positions_limit_prompt_and_continuation():
    model = small(**{**KINDS["learned"], "sequence_length": 6})
    search = runtime.Decoder(
        model, decode.Options(beam_size=1, max_decoding_length=6, min_decoding_length=5)
    )
    actual = search(PROMPTS)
    np.testing.assert_array_equal(actual.lengths[:, 0] <= [4, 6, 3], True)
    assert actual.lengths[1, 0] >= 5
    whole = [int(t) for t in [*PROMPTS[2], *actual.ids[2, 0]] if t]
    assert len(whole) == 7  # the last token needs no position
    assert int(np.argmax(logits_of(model, [whole[:-1]])[0, -1])) == whole[-1]
    with pytest.raises(ValueError, match="sequence_length=6 for 7 tokens"):
        search(np.array([[2, 5, 5, 5, 5, 5, 5]]))


def test_a_target_is_scored_if_learned_positions_cover_it():
    """Lengths of compiled functions are rounded up, beyond these positions."""
    model = small(**KINDS["learned"])
    search = runtime.Decoder(model, decode.Options(beam_size=1, max_decoding_length=6))
    target = [5, 9, 4, 3]
    prompt = [int(t) for t in PROMPTS[0] if t]
    scored = search.score([prompt], [target])
    for i, token in enumerate(target):
        logits = logits_of_text(model, prompt + target[:i])[-1]
        expected = logits[token] - np.log(np.exp(logits).sum())
        assert scored.token_scores[0, 0, i] == pytest.approx(expected, abs=1e-4)
    assert search.score([prompt], [[5] * 10]).lengths[0, 0] == 10
    with pytest.raises(
        ValueError, match="got 11 tokens for a source of 3 at index 1, max"
    ):
        search.score([[2], prompt], [[5], [5] * 11])


def test_prompts_with_leading_padding_are_rejected():
    search = runtime.Decoder(
        small(), decode.Options(beam_size=1, max_decoding_length=6)
    )
    with pytest.raises(
        ValueError, match="padded with 0 at the end; got a row with 0 before"
    ):
        search(np.array([[0, 0, 2, 5]]))


def test_t5_positions_have_buckets_for_the_past_only():
    model = small(**KINDS["t5"])
    assert not any(block.positions.bidirectional for block in model.blocks)


def test_a_model_without_blocks_is_rejected():
    with pytest.raises(
        ValueError, match="`num_layers` must be at least 1; got num_layers=0"
    ):
        small(num_layers=0)


@pytest.mark.backend("torch")
def test_bulk_decoding_equals_a_batch():
    search = runtime.Decoder(
        small(), decode.Options(beam_size=3, max_decoding_length=5)
    )
    whole = search(PROMPTS)
    prompts = [[int(token) for token in row if token] for row in PROMPTS]
    actual = dict(search.bulk(prompts))
    for row in range(3):
        length = actual[row].ids.shape[-1]
        np.testing.assert_array_equal(actual[row].ids[0], whole.ids[row, :, :length])
        np.testing.assert_allclose(actual[row].scores[0], whole.scores[row], atol=1e-5)


@pytest.mark.parametrize(
    "positions", [lambda: "shaw", lambda: SinusoidalPositions("halves")]
)
def test_a_saved_model_has_the_same_config_and_logits(positions, tmp_path):
    model = small(
        positions=positions(), tie=False, activation=keras.activations.silu, name="lm"
    )
    path = str(tmp_path / "model.keras")
    model.save(path)
    loaded = keras.models.load_model(path)
    np.testing.assert_allclose(logits_of(loaded, IDS), logits_of(model, IDS), atol=1e-6)
    config = json.loads(json.dumps(model.get_config()))
    assert json.loads(json.dumps(loaded.get_config())) == config
    assert loaded.name == "lm"


@pytest.mark.backend("torch")
def test_training_learns_a_text():
    from keras_tfm import training

    model = small(num_layers=1)
    model.compile(keras.optimizers.Adam(0.05), training.SmoothedCrossentropy())
    text = np.array([[2, 5, 6, 7, 8, 3]] * 4, "int32")
    inputs, labels = {"token_ids": text[:, :-1]}, text[:, 1:]
    model.fit(inputs, labels, epochs=25, verbose=0)
    search = runtime.Decoder(model, decode.Options(beam_size=1, max_decoding_length=6))
    actual = search([[2, 5, 6], [2]])
    assert [int(t) for t in actual.ids[0, 0] if t] == [7, 8, 3]
    assert [int(t) for t in actual.ids[1, 0] if t] == [5, 6, 7, 8, 3]


def test_mixed_precision_decodes_with_float32_logits():
    actual = []
    for model in (small(num_layers=1), small(num_layers=1, dtype="mixed_bfloat16")):
        cache = model.begin(ops.convert_to_tensor(PROMPTS), 2)
        logits, _ = model.step(np.full((3, 1), 2, "int32"), 0, cache)
        assert ops.dtype(logits) == "float32"
        actual.append(numpy(logits))
    np.testing.assert_allclose(*actual, atol=0.1)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_attention_to_the_prompt_is_that_of_the_last_block(beam_size):
    model = small(num_layers=1)
    options = {"max_decoding_length": 5, "suppress_ids": (0,), "start_id": 2}
    search = runtime.Decoder(
        model, decode.Options(beam_size=beam_size, return_attention=True, **options)
    )
    actual = search(PROMPTS)
    for row, prompt in enumerate(PROMPTS):
        prompt_length, length = np.count_nonzero(prompt), actual.lengths[row, 0]
        text = [*prompt[:prompt_length], *actual.ids[row, 0, : length - 1]]
        ids = np.zeros((1, 12), "int32")
        ids[0, : len(text)] = text
        _, scores = model.blocks[0](
            model.embedding(ids), padding_mask=ids != 0, return_attention_scores=True
        )
        expected = numpy(scores).mean(axis=1)[
            0, prompt_length - 1 : len(text), : len(prompt)
        ]
        expected[:, prompt_length:] = 0
        attention = actual.attention[row, 0, :length]
        np.testing.assert_allclose(attention, expected, atol=1e-5)


@pytest.mark.backend("torch")
def test_shortlist_and_coverage_penalty_work():
    model = small(tie=False, logits_bias=True)
    rows = [row[row != 0].tolist() for row in PROMPTS]
    options = {"beam_size": 3, "max_decoding_length": 4}
    full_shortlist = decode.Shortlist(np.tile(np.arange(4, V), (V, 1)), np.arange(V))
    expected = runtime.Decoder(model, decode.Options(**options))(rows)
    actual = runtime.Decoder(
        model, decode.Options(shortlist=full_shortlist, **options)
    )(rows)
    assert actual.ids.tolist() == expected.ids.tolist()
    np.testing.assert_allclose(actual.scores, expected.scores, atol=1e-5)
    candidates = ops.convert_to_tensor([range(3, 9)] * 3, "int32")
    full_logits, shortlist_logits = (
        numpy(model.step(PROMPTS[:, :2], 0, cache)[0])
        for cache in (
            model.begin(PROMPTS, 4, 2, candidates=None),
            model.begin(PROMPTS, 4, 2, candidates=candidates),
        )
    )
    np.testing.assert_allclose(shortlist_logits, full_logits[..., 3:9], atol=1e-5)
    covered = runtime.Decoder(model, decode.Options(coverage_penalty=0.2, **options))(
        rows
    )
    assert np.isfinite(covered.scores).all()
    assert (covered.scores != expected.scores).any()
