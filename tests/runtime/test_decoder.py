"""Decoder with a Transformer: exact, and independent of batching."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfm import decode, runtime
from tests.decode.conftest import VOCABULARY_SIZE, draw_transformer, redraw
from tests.decode.languages import assert_hypotheses, log_softmax, reference_beam_search

MAX_LENGTH = 6
ROWS = 5
REAL = [0, 1, 2, 4]
SUPPRESSED = (0, 1, 2)
START = 2
OPTIONS = {"max_decoding_length": MAX_LENGTH, "jit_compile": False}
BEAM = {"beam_size": 3, "num_hypotheses": 3, "length_penalty": 0.6, **OPTIONS}


def draw_sources(seed=1, rows=ROWS, length=8):
    """Draws padded source ids; the last sequence but one is empty."""
    draw = np.random.default_rng(seed)
    ids = draw.integers(4, VOCABULARY_SIZE, (rows, length)).astype("int32")
    lengths = draw.integers(1, length + 1, rows)
    lengths[-2] = 0
    ids[np.arange(length)[None] >= lengths[:, None]] = 0
    return ids


@pytest.fixture(scope="module")
def greedy(transformer):
    return runtime.Decoder(transformer, decode.Options(**OPTIONS))


@pytest.fixture(scope="module")
def beam(transformer):
    return runtime.Decoder(transformer, decode.Options(**BEAM))


@pytest.fixture(scope="module")
def uncached_log_probs(transformer):
    """Returns log-probabilities of a source by calls on whole histories."""

    def call(source_ids, target_ids):
        return transformer({"source_ids": source_ids, "target_ids": target_ids})

    compiled_call = runtime.compiled(call, transformer, jit_compile=False)

    def for_source(source):
        def next_log_probs(histories):
            count, length = len(histories), len(histories[0])
            target_ids = np.zeros((8, MAX_LENGTH), "int32")  # one shape for all
            target_ids[:, 0] = START
            target_ids[:count, 1 : length + 1] = histories
            source_ids = np.repeat(source[None], 8, axis=0)
            logits = ops.convert_to_numpy(
                compiled_call(
                    ops.convert_to_tensor(source_ids), ops.convert_to_tensor(target_ids)
                )
            )
            return log_softmax(logits[:count, length], SUPPRESSED)

        return next_log_probs

    return for_source


def assert_same(actual, expected, tolerance=1e-5):
    assert actual.ids.tolist() == expected.ids.tolist()
    assert actual.lengths.tolist() == expected.lengths.tolist()
    np.testing.assert_allclose(actual.scores, expected.scores, atol=tolerance)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_cached_decoding_equals_the_reference_search_without_a_cache(
    beam_size, greedy, beam, uncached_log_probs
):
    sources = draw_sources()
    search = greedy if beam_size == 1 else beam
    actual = search(sources)
    assert all(isinstance(x, np.ndarray) for x in actual[:3])
    for row, source in enumerate(sources):
        expected = []
        if source.any():
            penalty = {1: 1.0, 3: 0.6}[beam_size]
            expected = reference_beam_search(
                uncached_log_probs(source), MAX_LENGTH, beam_size, beam_size, penalty
            )
        assert_hypotheses(actual, row, expected, tolerance=1e-4)
    # These weights distinguish searches: the best hypotheses all differ.
    best = [tuple(ids) for ids in actual.ids[:, 0]]
    assert len(set(best)) == ROWS
    assert 0 < (actual.lengths[:, 0] < MAX_LENGTH).sum() - 1 < ROWS - 1


@pytest.mark.parametrize("name", ["greedy", "beam"])
def test_other_sources_of_a_batch_do_not_change_the_output(name, request):
    search = request.getfixturevalue(name)
    sources = draw_sources()
    together = search(sources)
    order = np.array([2, 0, 4, 3, 1])
    permuted = search(sources[order])
    assert_same(permuted, decode.Hypotheses(*(x[order] for x in together[:3])))
    for row in (0, 3):
        batch = draw_sources(seed=9)
        batch[row] = sources[row]
        actual = search(batch)
        assert_same(
            decode.Hypotheses(*(x[row] for x in actual[:3])),
            decode.Hypotheses(*(x[row] for x in together[:3])),
        )
        assert actual.ids.tolist() != together.ids.tolist()


@pytest.mark.backend("torch")
@pytest.mark.parametrize("beam_size", [1, 3])
def test_the_maximum_length_depends_on_each_source(beam_size, transformer):
    endless = runtime.Decoder(
        transformer,
        decode.Options(
            beam_size=beam_size, suppress_ids=(0, 1, 2, 3), jit_compile=False
        ),
    )
    short, long = np.full((1, 3), 5), np.full((1, 9), 6)
    together = endless(np.concatenate([np.pad(short, ((0, 0), (0, 6))), long]))
    assert together.lengths[:, 0].tolist() == [2 * 3 + 16, 2 * 9 + 16]
    alone = endless(short)
    length = alone.ids.shape[-1]
    np.testing.assert_array_equal(alone.ids[0], together.ids[0, :, :length])
    assert not together.ids[0, :, length:].any()
    np.testing.assert_allclose(alone.scores[0], together.scores[0], atol=1e-5)


def test_padding_does_not_change_the_output(beam):
    sources = draw_sources()
    padded = np.pad(sources, ((0, 0), (0, 5)))  # padded to 16
    assert_same(beam(padded), beam(sources))


def test_lengths_are_rounded_up_so_that_few_functions_are_compiled(caplog):
    class Recorder:
        shapes = []

        def begin(self, source_ids, max_length, beam_size):
            self.shapes.append((source_ids.shape[1], max_length))
            return {}

        def step(self, ids, index, cache):
            return ops.one_hot(ops.full_like(ids, 3), 5), cache

    search = runtime.Decoder(Recorder(), decode.Options(jit_compile=False))
    for length in (0, 1, 8, 9, 33, 1024, 1025):
        actual = search(np.full((2, length), 4))
        assert actual.ids[:, 0, 0].tolist() == [3, 3] if length else [0, 0]
    compiled = list(dict.fromkeys(Recorder.shapes))
    assert [length for length, _ in compiled] == [16, 64, 1024, 1025]
    assert all(max_length == 2 * length + 16 for length, max_length in compiled)
    assert not caplog.records  # TensorFlow would warn of many shapes


@pytest.mark.backend("tensorflow")  # other backends know all shapes
def test_every_option_works_with_unknown_shapes(transformer):
    import tensorflow as tf

    options = {
        "repetition_penalty": 1.3,
        "no_repeat_ngram_size": 2,
        "min_decoding_length": 2,
        "suppress_sequences": [[5, 6]],
        "coverage_penalty": 0.2,
        "return_token_scores": True,
        "return_attention": True,
    }
    search = runtime.Decoder(
        transformer,
        decode.Options(beam_size=4, num_beam_groups=2, **options, **OPTIONS),
    )
    signature = [tf.TensorSpec([None, None], tf.int32)]
    decode_function = tf.function(
        search.decode, input_signature=signature, autograph=False
    )
    sources = draw_sources()
    actual, expected = decode_function(sources), search(sources)
    assert actual.ids.numpy().tolist() == expected.ids.tolist()
    np.testing.assert_allclose(actual.scores, expected.scores, atol=1e-5)
    np.testing.assert_allclose(actual.attention, expected.attention, atol=1e-5)


class WithoutExtend:
    """A model without `extend`, whose cache has its full length at once."""

    def __init__(self, model):
        self.begin, self.step = model.begin, model.step
        self.begin_options = model.begin_options


@pytest.mark.parametrize(
    "beam_size", [pytest.param(1, marks=pytest.mark.slow("tensorflow", "jax")), 4]
)
@pytest.mark.parametrize(
    "kind",
    [
        "usual",
        "relative",
        pytest.param("full length", marks=pytest.mark.slow("tensorflow", "jax")),
        pytest.param("ensemble", marks=pytest.mark.slow("tensorflow", "jax")),
    ],
)
def test_the_cache_can_be_extended_between_steps(kind, beam_size, transformer):
    model = {
        "usual": lambda: transformer,
        "relative": lambda: draw_transformer(positions="t5"),
        "full length": lambda: WithoutExtend(transformer),
        "ensemble": lambda: decode.Ensemble([transformer, draw_transformer(seed=2)]),
    }[kind]()
    options = {"return_token_scores": True, "return_attention": kind != "ensemble"}
    search = runtime.Decoder(
        model, decode.Options(beam_size=beam_size, **options, **OPTIONS)
    )
    sources = ops.convert_to_tensor(draw_sources())
    state = search.begin_decoding(sources, [5], max_length=2)
    for last in range(2, MAX_LENGTH + 1, 2):
        state = search.decode_until(search.extend(state, last), last)
        capacity = state.capacity
        assert capacity == (MAX_LENGTH if kind == "full length" else last)
    assert ops.convert_to_numpy(state.is_done).all()
    actual, expected = search.hypotheses(state), search.decode(sources, [5])
    for actual_value, expected_value in zip(actual, expected, strict=True):
        assert (actual_value is None) == (expected_value is None)
        if actual_value is not None:
            pair = (
                ops.convert_to_numpy(actual_value),
                ops.convert_to_numpy(expected_value),
            )
            np.testing.assert_allclose(*pair, atol=1e-5)


@pytest.mark.slow("tensorflow")
def test_learned_positions_limit_the_length_of_decoding():
    model = draw_transformer(positions="learned", sequence_length=11)
    sources = draw_sources(length=10)
    actual = runtime.Decoder(model, decode.Options(jit_compile=False))(
        sources
    )  # 10 rounds to 16
    assert actual.ids.shape == (ROWS, 1, 11)
    with pytest.raises(ValueError, match="max_decoding_length=12, sequence_length=11"):
        runtime.Decoder(model, decode.Options(max_decoding_length=12))


@pytest.mark.backend("torch")
def test_the_maximum_length_may_be_a_factor_of_the_source_length(transformer):
    options = {"suppress_ids": (0, 2, 3), "jit_compile": False}
    search = runtime.Decoder(
        transformer, decode.Options(max_decoding_length=(3, 1), **options)
    )
    sources = np.array([[5, 6, 7], [5, 0, 0]], "int32")
    assert search(sources).lengths[:, 0].tolist() == [10, 4]
    search = runtime.Decoder(
        transformer, decode.Options(max_decoding_length=(1, 0), **options)
    )
    assert search(sources).lengths[:, 0].tolist() == [3, 1]


def with_prefix(next_log_probs, prefix):
    """Forces the first tokens of hypotheses."""

    def with_forced_tokens(histories):
        log_probs = next_log_probs(histories)
        for history, row in zip(histories, log_probs, strict=True):
            if len(history) < len(prefix):
                row[np.arange(VOCABULARY_SIZE) != prefix[len(history)]] = -np.inf
        return log_probs

    return with_forced_tokens


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_prefix_is_scored_by_the_model(beam_size, transformer, uncached_log_probs):
    options = {"num_hypotheses": beam_size, "return_token_scores": True, **OPTIONS}
    search = runtime.Decoder(
        transformer, decode.Options(beam_size=beam_size, **options)
    )
    sources = draw_sources()
    prefixes = [[], [7, 8], [9], [5], [4, 4, 1]]
    actual = search(sources, target_prefix=prefixes)
    for row in REAL:
        prefix = prefixes[row]
        next_log_probs = with_prefix(uncached_log_probs(sources[row]), prefix)
        best = actual.ids[row, 0].tolist()
        assert best[: len(prefix)] == prefix
        if 1 in prefix:
            continue  # a suppressed token
        ids = [
            tuple(ids)
            for _, ids in reference_beam_search(
                next_log_probs, MAX_LENGTH, beam_size, beam_size
            )
        ]
        for i, tokens in enumerate(ids):
            assert tuple(actual.ids[row, i, : actual.lengths[row, i]]) == tokens
        mean = actual.token_scores[row].sum(-1) / actual.lengths[row]
        np.testing.assert_allclose(actual.scores[row], mean, atol=1e-5)


def test_a_seed_determines_the_samples(transformer):
    search = runtime.Decoder(
        transformer,
        decode.Options(
            num_hypotheses=3, sampling_topk=0, sampling_temperature=2, **OPTIONS
        ),
    )
    sources = draw_sources()
    first, repeated, different = (search(sources, seed=seed) for seed in (1, 1, 2))
    assert first.ids.shape == (ROWS, 3, MAX_LENGTH)
    assert_same(first, repeated)
    assert first.ids.tolist() != different.ids.tolist()
    assert not np.isin(first.ids, (1, 2)).any()
    assert (np.diff(first.scores[REAL], axis=-1) <= 0).all()
    assert len({tuple(ids) for ids in first.ids[0]}) == 3
    narrow = runtime.Decoder(
        transformer, decode.Options(sampling_topk=0, sampling_topp=1e-6, **OPTIONS)
    )
    likeliest = runtime.Decoder(transformer, decode.Options(**OPTIONS))(sources)
    assert narrow(sources, seed=3).ids.tolist() == likeliest.ids.tolist()


class Broken:
    """Returns NaN at the third step if the source is 6."""

    def begin(self, source_ids, max_length, beam_size):
        return {"bad": ops.equal(source_ids[:, :1], 6)}

    def step(self, ids, index, cache):
        logits = ops.one_hot(ops.full_like(ids, 4), 7)
        bad = ops.logical_and(cache["bad"], ops.equal(index, 2))
        first = ops.equal(ops.arange(7), 5)
        bad = ops.logical_and(bad[:, :, None], first)
        return ops.where(bad, float("nan"), logits), cache


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"beam_size": 2},
        {"num_hypotheses": 2, "return_alternatives": True, "suppress_ids": [0]},
    ],
    ids=str,
)
def test_nan_logits_are_reported_with_their_step(options):
    search = runtime.Decoder(Broken(), decode.Options(jit_compile=False, **options))
    assert search(np.array([[5], [4]])).lengths[:, 0].tolist() == [18, 18]
    with pytest.raises(FloatingPointError, match="at step 2 of row 1 .1 of 3 rows"):
        search(np.array([[5], [6], [4]]))


@pytest.mark.backend("torch")
def test_logits_define_the_vocabulary_size_of_a_model_without_one():
    search = runtime.Decoder(
        Broken(), decode.Options(suppress_ids=[0, 99], jit_compile=False)
    )
    with pytest.raises(ValueError, match="got 99 for a model with 7 logits"):
        search([[5]])


@pytest.mark.parametrize(
    "kind", [{}, {"beam_size": 2}, {"beam_size": 2, "num_beam_groups": 2}], ids=str
)
def test_nan_is_reported_from_xla_functions_too(kind):
    class Broken:
        def begin(self, source_ids, max_length, beam_size):
            return {"memory": source_ids}

        def step(self, ids, index, cache):
            zero = ops.cast(0 * ops.max(cache["memory"]), "float32")
            logits = ops.one_hot(ops.full_like(ids, 4), 12)
            return logits + zero / zero, cache  # a negative NaN on some CPUs

    search = runtime.Decoder(Broken(), decode.Options(max_decoding_length=5, **kind))
    with pytest.raises(FloatingPointError, match="at step 0 of row 0 .2 of 2 rows"):
        search([[5, 6, 7], [8]])


@pytest.mark.parametrize(
    ("fault", "options", "message"),
    [
        ("logits", {}, r"shape \(B, K, V\).*got \(2, 12\) for .* \(2, 2\)"),
        ("cache", {}, "a cache of the structure that it receives; got another"),
        (None, {"return_attention": True}, r"has 'attention'.*cache with \['memory'\]"),
        (None, {"coverage_penalty": 0.2}, r"has 'attention'.*cache with \['memory'\]"),
    ],
)
def test_a_step_with_wrong_results_is_rejected(fault, options, message):
    class FaultyModel:
        begin_options = ("return_attention",)

        def begin(self, source_ids, max_length, beam_size, **options):
            return {"memory": source_ids}

        def step(self, ids, index, cache):
            logits = ops.one_hot(ops.full_like(ids, 4), 12)
            logits = logits[:, 0] if fault == "logits" else logits
            return logits, {} if fault == "cache" else cache

    search = runtime.Decoder(
        FaultyModel(), decode.Options(beam_size=2, max_decoding_length=5, **options)
    )
    with pytest.raises(ValueError, match=message):
        search([[5, 6, 7], [8]])


class AttentiveModel:
    """Generates 4 or 5 and ends; only 5 attends to the second token."""

    vocabulary_size = target_vocabulary_size = 8
    begin_options = ("return_attention",)

    def __init__(self, dtype="float32"):
        self.dtype = dtype
        logits = np.full((8, 8), -20.0, "float32")
        logits[2, 4], logits[2, 5] = 1.1, 1
        logits[4, 3] = logits[5, 3] = 5
        weights = np.tile([1.0, 0.0], (8, 1))
        weights[5] = 0.5, 0.5
        self.logits, self.weights = logits, weights.astype(dtype)

    def begin(self, source_ids, max_length, beam_size, return_attention=False):
        size, length = ops.shape(source_ids)
        attention = ops.zeros((size, beam_size, length), self.dtype)
        return {"attention": attention, "beams": {"first": attention[:, :, 0]}}

    def step(self, ids, index, cache):
        weights = ops.take(ops.convert_to_tensor(self.weights), ids, axis=0)
        num_padding = cache["attention"].shape[-1] - 2
        weights = ops.pad(weights, [[0, 0], [0, 0], [0, num_padding]])
        logits = ops.take(ops.convert_to_tensor(self.logits), ids, axis=0)
        return logits, {**cache, "attention": weights}


@pytest.mark.slow("tensorflow")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_source_token_without_attention_is_not_treated_as_padding(dtype):
    options = {"beam_size": 2, "num_hypotheses": 2, "length_penalty": 0}
    search = runtime.Decoder(
        AttentiveModel(dtype),
        decode.Options(coverage_penalty=0.2, max_decoding_length=4, **options),
    )
    actual = search([[6, 7]])
    assert actual.ids[0, :, :2].tolist() == [[5, 3], [4, 3]]
    plain = runtime.Decoder(
        AttentiveModel(dtype), decode.Options(max_decoding_length=4, **options)
    )([[6, 7]])
    assert plain.ids[0, :, :2].tolist() == [[4, 3], [5, 3]]
    # The second source token has an attention weight of 0.5, or of 0.
    penalties = 0.2 * np.log([0.5, 1e-9])
    np.testing.assert_allclose(
        actual.scores[0], plain.scores[0, ::-1] + penalties, atol=1e-3
    )


class HiddenAttention(AttentiveModel):
    """The same model, whose cache has no attention."""

    def begin(self, *arguments, **options):
        cache = super().begin(*arguments, **options)
        return {"memory": cache["attention"][:, :1], "beams": cache["beams"]}

    def step(self, ids, index, cache):
        inner_cache = {"attention": cache["memory"], "beams": cache["beams"]}
        return super().step(ids, index, inner_cache)[0], cache


@pytest.mark.slow("tensorflow")
@pytest.mark.parametrize("is_ensemble", [False, True])
def test_a_model_that_always_has_attention_is_decoded_in_bulk(is_ensemble):
    model = (
        decode.Ensemble([AttentiveModel(), HiddenAttention()])
        if is_ensemble
        else AttentiveModel()
    )
    search = runtime.Decoder(model, decode.Options(beam_size=2, max_decoding_length=4))
    rows = [[6, 7]] * 5
    actual = dict(search.bulk(rows, batch_size=2, compile_lengths=True))
    for i, expected in enumerate(search(rows).ids):
        assert actual[i].ids[0].tolist() == expected.tolist()


def test_an_empty_batch_has_an_empty_result(beam):
    actual = beam(np.zeros((0, 8), "int32"))
    shapes = [x.shape for x in actual[:3]]
    assert shapes == [(0, 3, MAX_LENGTH), (0, 3), (0, 3)]


def test_a_decoder_follows_the_weights(greedy):
    model, sources = draw_transformer(seed=4), draw_sources()
    search = runtime.Decoder(model, decode.Options(**{**OPTIONS, "jit_compile": True}))
    initial = search(sources)
    # A search between updates does not disturb training.
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    targets = np.full((ROWS, MAX_LENGTH), 5, "int32")
    for _ in range(2):
        model.train_on_batch({"source_ids": sources, "target_ids": targets}, targets)
        trained = search(sources)
    assert np.abs(trained.scores[REAL] - initial.scores[REAL]).max() > 1e-3
    # With the weights of another model, the output is that of the other model.
    redraw(model, seed=1)
    assert_same(search(sources), greedy(sources), tolerance=1e-4)


@pytest.mark.slow("tensorflow", "jax")
@pytest.mark.parametrize("change", ["lora", "int8"])
def test_a_decoder_follows_a_change_of_variables(change):
    model, sources = draw_transformer(seed=4), draw_sources()
    search = runtime.Decoder(model, decode.Options(**OPTIONS))
    initial = search(sources)
    if change == "lora":
        model.enable_lora(2)
        for variable in model.trainable_variables:
            variable.assign(variable + 0.1)
    else:
        model.quantize("int8")
    changed = search(sources)
    assert np.abs(changed.scores[REAL] - initial.scores[REAL]).max() > 1e-3
    assert_same(changed, runtime.Decoder(model, decode.Options(**OPTIONS))(sources))


@pytest.mark.slow("tensorflow")
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_has_close_scores(dtype, beam, transformer):
    half = draw_transformer(dtype=dtype)
    half.set_weights(transformer.get_weights())
    sources = draw_sources()
    actual, expected = (
        runtime.Decoder(half, decode.Options(**BEAM))(sources),
        beam(sources),
    )
    assert actual.scores.dtype == "float32"
    assert (actual.ids < VOCABULARY_SIZE).all()
    np.testing.assert_allclose(actual.scores, expected.scores, atol=0.15)
    assert np.abs(actual.scores[REAL] - expected.scores[REAL]).max() > 0  # can fail
    assert actual.scores[3].tolist() == [-np.inf] * 3


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (
            np.zeros((8,), "int32"),
            r"shape \(batch, length\); got shape=\(8,\), dtype=int32",
        ),
        (np.zeros((1, 8, 1), "int32"), r"shape=\(1, 8, 1\)"),
        (np.zeros((1, 8), "float32"), "dtype=float32"),
        (np.full((1, 8), 14), "from 0 to 14, vocabulary_size=14. Use the vocabulary"),
        (np.full((1, 8), -1), "from -1 to 0"),
    ],
)
def test_sources_outside_the_vocabulary_are_rejected(greedy, sources, message):
    with pytest.raises(ValueError, match=message):
        greedy(sources)


@pytest.mark.backend("torch")
def test_lists_of_ids_are_padded(transformer):
    search = runtime.Decoder(transformer, decode.Options(max_decoding_length=4))
    rows = [[5, 6, 7], [8], []]
    actual = search(rows)
    padded = np.array([[5, 6, 7], [8, 0, 0], [0, 0, 0]])
    assert_same(actual, search(padded))
    assert search([]).ids.shape[0] == 0
    ids = actual.ids[:, 0]
    targets = [row[row > 0].tolist() for row in ids]
    assert_same(
        search.score(rows, np.pad(ids, [[0, 0], [0, 3]])), search.score(rows, targets)
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"suppress_sequences": [[5, 999]]},
            r"must hold ids of the target vocabulary; got \[999\]",
        ),
    ],
)
def test_tokens_outside_the_vocabulary_are_rejected(options, message, transformer):
    with pytest.raises(ValueError, match=message):
        runtime.Decoder(transformer, decode.Options(**options))


def test_a_model_without_begin_is_rejected():
    with pytest.raises(ValueError, match="`begin` and `step`.*got int"):
        runtime.Decoder(5)


@pytest.mark.slow("tensorflow")
def test_a_logits_processor_must_keep_the_shape(transformer):
    for process, shape in ((lambda x, _: x[..., :5], "5"), (lambda x, _: None, "None")):
        search = runtime.Decoder(
            transformer, decode.Options(logits_processors=[process])
        )
        with pytest.raises(ValueError, match=f"of the shape that it receives.*{shape}"):
            search([[5]])


@pytest.mark.slow("tensorflow")
def test_a_trace_has_the_beams_of_each_step(beam, greedy):
    source = draw_sources()[:1]
    steps = list(beam.trace(source))
    previous = {()}
    for length, step in enumerate(steps, start=1):
        beams = [*step.live, *step.finished]
        assert all(len(ids) == length for ids, _ in beams)
        assert {tuple(ids[:-1]) for ids, _ in beams} <= previous
        for hypotheses in (step.live, step.finished):
            scores = [score for _, score in hypotheses]
            assert scores == sorted(scores, reverse=True) and len(hypotheses) <= 3
        previous = {tuple(ids) for ids, _ in step.live}
    ended = {tuple(ids): score for step in steps for ids, score in step.finished}
    actual = beam(source)
    for ids, score, length in zip(
        actual.ids[0], actual.scores[0], actual.lengths[0], strict=True
    ):
        assert ended[tuple(ids[:length].tolist())] == pytest.approx(score, abs=1e-5)
    assert len(ended) >= 3 and len(steps) > 1
    with pytest.raises(ValueError, match="`source_ids` must be one source; got 5"):
        beam.trace(draw_sources())
    with pytest.raises(
        ValueError, match="`trace` needs beam search .* got beam_size=1"
    ):
        greedy.trace(source)


@pytest.mark.slow("tensorflow")
def test_a_compiled_function_may_have_arguments_with_a_default(transformer):
    def call(inputs, scale=2.0):
        return scale * transformer(inputs)

    inputs = {"source_ids": draw_sources(), "target_ids": draw_sources(seed=2)}
    inputs = {name: ops.convert_to_tensor(ids) for name, ids in inputs.items()}
    actual = runtime.compiled(call, transformer, jit_compile=False)(inputs)
    expected = ops.convert_to_numpy(call(inputs))
    np.testing.assert_allclose(ops.convert_to_numpy(actual), expected, atol=1e-4)


@pytest.mark.backend("torch")
def test_decoders_say_what_they_are(transformer):
    decoder = runtime.Decoder(
        transformer, decode.Options(beam_size=4, min_decoding_length=2)
    )
    expected = "<Decoder: Transformer, Options(beam_size=4, min_decoding_length=2)>"
    assert repr(decoder) == expected
    assert repr(decode.Options()) == "Options()"
    ensemble = decode.Ensemble([transformer, transformer])
    assert repr(ensemble) == "<Ensemble: ['Transformer', 'Transformer']>"
    with runtime.ContinuousDecoder(decoder, batch_size=2, inter_threads=1) as shared:
        assert repr(shared) == f"<ContinuousDecoder: 2 slots, {expected}>"
    shortlist = decode.Shortlist([[1, 2], [0, 1]], [0, 1, 2])
    assert repr(shortlist) == "<Shortlist: 2 translations of 2 tokens>"
