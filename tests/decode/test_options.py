"""Options of a search have the effect of the functions behind them."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfm import decode, runtime
from keras_tfm.decode.logits_processors import suppress

END = 3


class FixedModel:
    """Always returns the same logits, and records the targets it scores."""

    def __init__(self, logits, nan_at=None):
        self.logits = np.asarray(logits, "float32")
        self.nan_at, self.targets = nan_at, []

    def begin(self, source_ids, max_length, beam_size):
        return {}

    def step(self, ids, index, cache):
        shape = (*ops.shape(ids), len(self.logits))
        return ops.broadcast_to(ops.convert_to_tensor(self.logits), shape), cache

    def __call__(self, inputs):
        ids = inputs["target_ids"]
        self.targets.append(ids)
        logits = self.step(ids, 0, {})[0]
        if self.nan_at is None:
            return logits
        is_nan = ops.equal(ops.arange(ids.shape[1]), self.nan_at)[:, None]
        return ops.where(is_nan, float("nan"), logits)


def decode_first(logits, max_length=6, seed=None, **options):
    """Returns the first hypothesis of a search, without padding."""
    options = {"max_decoding_length": max_length, "jit_compile": False, **options}
    ids = runtime.Decoder(FixedModel(logits), decode.Options(**options))(
        [[5]], seed=seed
    ).ids[0, 0]
    return ids[ids > 0].tolist()


# Of tokens 0 to 6, the best is 4, then 5, 6, and the end, 3.
FALLING = [-9, -9, -9, 2.7, 3, 2.9, 2.8]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [4, 4, 4, 4, 4, 4]),
        ({"no_repeat_ngram_size": 2}, [4, 4, 5, 4, 6, 4]),
        ({"suppress_sequences": [[4, 4]]}, [4, 5, 4, 5, 4, 5]),
        ({"repetition_penalty": 3.0}, [4, 5, 6, END]),
        ({"suppress_ids": (0, 2, 4)}, [5, 5, 5, 5, 5, 5]),
    ],
)
def test_logits_processors_of_a_search_follow_its_options(options, expected):
    assert decode_first(FALLING, **options) == expected


def test_min_decoding_length_delays_the_end():
    ends = [-9, -9, -9, 3, 2.9, -9]
    assert decode_first(ends) == [END]
    assert decode_first(ends, min_decoding_length=2) == [4, 4, END]


@pytest.mark.parametrize(
    "option",
    [
        {"sampling_minp": 0.99},
        {"sampling_epsilon": 0.3},
        {"sampling_topp": 0.2},
        {"sampling_temperature": 1e-3},
        {"sampling_topk": 1},
    ],
)
def test_each_sampling_option_alone_limits_the_candidates(option):
    options = {"sampling_topk": 0, **option}
    assert (
        decode_first([-9, -9, -9, -9, 0.8, 0.4, 0.4, 0.4], seed=1, **options) == [4] * 6
    )


def test_top_k_limits_the_candidates_and_0_allows_all():
    flat = [-9, -9, -9, -9, 1, 1.1, 0.9, 0.9]
    sampled = decode_first(flat, 50, seed=2, sampling_topk=2)
    assert set(sampled) == {4, 5}
    unlimited = decode_first(flat, 50, seed=2, sampling_topk=0)
    assert set(unlimited) >= {4, 5, 6, 7}


@pytest.mark.parametrize(
    "options",
    [
        {"suppress_ids": [0, 2, 40]},
        {"suppress_ids": [0, 2, *range(40, 60)]},
        {"suppress_ids": [0, 2, 40], "sampling_topk": 0},
        {"suppress_ids": [0, 2, 40], "beam_size": 4, "num_beam_groups": 2},
        {"suppress_sequences": [[5, 40]]},
        {"logits_processors": (suppress([40]),)},
    ],
    ids="-".join,
)
def test_a_suppressed_token_without_a_logit_is_rejected(options):
    options = decode.Options(max_decoding_length=2, **options)
    decoder = runtime.Decoder(FixedModel(FALLING), options)
    with pytest.raises(ValueError, match="got (40|59) for a model with 7 logits"):
        decoder([[5]])


def test_options_may_come_from_generators():
    ids, sequences = [0, 1, 2], [[4], [5]]
    options = {"max_decoding_length": 3, "jit_compile": False, "disable_unk": False}
    search = runtime.Decoder(
        FixedModel(FALLING),
        decode.Options(
            suppress_ids=(i for i in ids),
            suppress_sequences=((i for i in sequence) for sequence in sequences),
            logits_processors=(process for process in [suppress([6])]),
            **options,
        ),
    )
    assert search.options.suppressed_ids == {*ids}
    assert len(search.options.logits_processors) == 1
    assert search([[5]]).ids[0, 0].tolist() == [3, 0, 0]


def test_impossible_tokens_are_never_drawn():
    """Cumulative sums of XLA may be off by one unit in the last place."""
    from keras_tfm.decode.sampling import _draw

    probabilities = np.array([0.25, 0, 0, 0.5, 0, 0.25], "float32")
    rounded_sums = np.array([0.25, 0.25, 0.25 - 2**-26, 0.75, 0.75, 1.0], "float32")
    cumulated = ops.convert_to_tensor(rounded_sums)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ops, "cumsum", lambda x, axis: cumulated)
        for noise in [0.0, 0.9999999, *(0.25 + np.arange(20) * 2**-25)]:
            noise = ops.convert_to_tensor(np.array([noise], "float32"))
            with np.errstate(divide="ignore"):
                choices = ops.convert_to_tensor(np.log(probabilities))
            [token] = ops.convert_to_numpy(_draw(choices, noise))
            assert probabilities[token] > 0


def test_draws_differ_between_rows_and_without_a_seed_between_calls():
    options = {"max_decoding_length": 8, "jit_compile": False}
    flat = [-9, -9, -9, -9, 1, 1, 1, 1]
    search = runtime.Decoder(
        FixedModel(flat), decode.Options(sampling_topk=0, **options)
    )
    rows = [[5]] * 4
    first, second = search(rows), search(rows)
    assert first.ids.tolist() != second.ids.tolist()
    seeded = search(rows, seed=1).ids[:, 0]
    assert len({tuple(row) for row in seeded.tolist()}) == 4
    assert search(rows, seed=1).ids[:, 0].tolist() == seeded.tolist()


def test_scored_targets_begin_with_the_start_token_of_the_options():
    model = FixedModel(FALLING)
    search = runtime.Decoder(
        model, decode.Options(start_id=6, max_decoding_length=4, jit_compile=False)
    )
    scored = search.score([[5]], [[4, 5]])
    if keras.backend.backend() == "torch":  # elsewhere it is traced
        assert ops.convert_to_numpy(model.targets[-1])[0, :2].tolist() == [6, 4]
    logits = np.array(FALLING)
    log_probs = logits - np.log(np.exp(logits).sum())
    actual = scored.token_scores[0, 0, :2]
    np.testing.assert_allclose(actual, log_probs[[4, 5]], atol=1e-5)


def test_nan_in_a_score_is_reported_with_its_step_unless_it_is_padding():
    options = {"max_decoding_length": 4, "jit_compile": False}
    search = runtime.Decoder(FixedModel(FALLING, nan_at=1), decode.Options(**options))
    assert np.isfinite(search.score([[5]], [[4]]).scores).all()
    with pytest.raises(FloatingPointError, match="at step 1 of row 1"):
        search.score([[5], [5]], [[4], [4, 5]])


@pytest.mark.parametrize("sizes", [(2, 4), (4, 1), (1, 8)])
def test_sources_prefixes_and_phrases_may_have_any_order_of_length(sizes):
    """Also with the longest last, and a prefix that needs no padding."""
    draw = np.random.default_rng(1)
    rows = [draw.integers(4, 9, size).tolist() for size in sizes]
    options = {"max_decoding_length": 16, "jit_compile": False}
    flat = np.linspace(1, 0, 10)
    actual = runtime.Decoder(FixedModel(flat), decode.Options(**options))(
        rows, target_prefix=rows
    )
    for ids, row in zip(actual.ids[:, 0], rows, strict=True):
        assert ids[: len(row)].tolist() == row
    beam = runtime.Decoder(FixedModel(flat), decode.Options(beam_size=4, **options))
    actual = beam(rows, constraints=[rows, rows])
    for ids in actual.ids[:, 0].tolist():
        for row in rows:
            starts = range(len(ids) - len(row) + 1)
            assert any(ids[i : i + len(row)] == row for i in starts)


NAN = float("nan")


@pytest.mark.backend("torch")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_size": 0}, "`beam_size` must be an integer of at least 1; got 0"),
        ({"num_hypotheses": 0}, "`num_hypotheses` must be an integer of at least 1"),
        ({"num_hypotheses": 2}, "got beam_size=1, num_hypotheses=2. Increase"),
        (
            {"beam_size": 4, "num_hypotheses": 3, "patience": 0.5},
            "at most `beam_size . patience`.*got num_hypotheses=3",
        ),
        (
            {"beam_size": 4, "early_stopping": True, "late_stopping": True},
            "`early_stopping` and `late_stopping` exclude each other",
        ),
        ({"num_beam_groups": 0}, "`num_beam_groups` must be an integer of at least 1"),
        ({"num_beam_groups": 2}, "`num_beam_groups` must divide `beam_size`"),
        ({"diversity_penalty": -1}, "`diversity_penalty` must be .* at least 0"),
        ({"diversity_penalty": 0.5}, "requires `num_beam_groups` > 1"),
        ({"coverage_penalty": -1}, "`coverage_penalty` must be .* at least 0; got -1"),
        ({"patience": 0.0}, "`patience` must be .* greater than 0; got 0.0"),
        ({"patience": NAN}, "`patience` must be a finite number .* got nan"),
        ({"length_penalty": -0.5}, "`length_penalty` must be .* got -0.5"),
        ({"length_penalty": NAN}, "`length_penalty` must be a finite .* got nan"),
        ({"length_penalty_form": "wu"}, "'mean' or 'gnmt'; got 'wu'"),
        ({"repetition_penalty": 0}, "`repetition_penalty` must be .* greater than 0"),
        ({"no_repeat_ngram_size": -1}, "`no_repeat_ngram_size` must be an integer"),
        ({"max_decoding_length": 0}, "`max_decoding_length` must be .* got 0"),
        ({"max_decoding_length": (0, 0)}, r"`max_decoding_length` .* got \(0, 0\)"),
        ({"max_decoding_length": 2.5}, "`max_decoding_length` must be .* got 2.5"),
        ({"min_decoding_length": -1}, "`min_decoding_length` must be .* got -1"),
        (
            {"max_decoding_length": 4, "min_decoding_length": 4},
            "less than `max_decoding_length`; got min_decoding_length=4",
        ),
        ({"num_hypotheses": 2.0}, "`num_hypotheses` must be an integer .* got 2.0"),
        ({"coverage_penalty": np.inf}, "`coverage_penalty` must be a finite number"),
        ({"suppress_ids": 5}, "`suppress_ids` must hold .* got 5"),
        ({"suppress_sequences": [5, 6]}, "`suppress_sequences` must hold .* got 5"),
        ({"start_id": 0}, "`start_id` must be .* since 0 is padding; got 0"),
        ({"sampling_topk": 0, "return_alternatives": True}, "needs beam search"),
        ({"end_id": 2}, "different tokens; got start_id=2, end_id=2"),
        ({"suppress_ids": [7.5]}, r"`suppress_ids` must hold token ids .* \[7.5\]"),
        ({"suppress_ids": [1, -2]}, r"ids of at least 0; got \[-2\]"),
        ({"suppress_sequences": [[]]}, "`suppress_sequences` must hold .* 1 or more"),
        ({"sampling_topk": -1}, "`sampling_topk` must be an integer of at least 0"),
        ({"sampling_topk": 0, "beam_size": 2}, "`beam_size` needs beam search"),
        (
            {"sampling_topk": 0, "coverage_penalty": 0.2},
            "`coverage_penalty` needs beam",
        ),
        (
            {"sampling_topk": 5, "sampling_temperature": 0},
            "`sampling_temperature` must",
        ),
        (
            {"sampling_topk": 0, "sampling_topp": 0.0},
            "`sampling_topp` must be .* than 0",
        ),
        (
            {"sampling_topk": 0, "sampling_minp": 1.5},
            "`sampling_minp` must be at most 1",
        ),
        ({"sampling_topk": 0, "sampling_epsilon": 1.0}, "must be less than 1; got 1.0"),
        ({"sampling_temperature": 2.0}, "no effect without sampling.*sampling_topk=0"),
        ({"sampling_minp": 0.1}, "no effect without sampling"),
        ({"sampling_epsilon": 0.1}, "no effect without sampling"),
        ({"beam_size": "3"}, "`beam_size` must be an integer .* got '3'"),
        ({"beam_size": True}, "`beam_size` must be an integer .* got True"),
        ({"length_penalty": True}, "`length_penalty` must be .* got True"),
        ({"unk_id": -1}, "`unk_id` must be a token id of at least 1.* got -1"),
        ({"unk_id": 3}, "`unk_id` must not be the end token.* got unk_id=3, end_id=3"),
        ({"disable_unk": "no"}, "`disable_unk` must be True or False; got 'no'"),
        ({"shortlist": "lex.gz"}, "`shortlist` must be a .* got 'lex.gz'"),
        ({"logits_processors": 3}, "`logits_processors` must be a list .* got 3"),
        ({"logits_processors": "ab"}, "`logits_processors` must be .* got 'ab'"),
        ({"matmul_precision": "int4"}, "'bfloat16' or 'int8'; got 'int4'"),
    ],
)
def test_options_out_of_range_are_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        decode.Options(**options)


@pytest.mark.backend("torch")
def test_an_unknown_option_is_rejected_with_the_nearest_name():
    with pytest.raises(TypeError, match="'beam_size'"):
        decode.Options().replace(num_beams=4)
    with pytest.raises(TypeError, match="'sampling_temperature'"):
        decode.Options.check_names(["temperature"])


def test_sampling_supports_neither_decode_nor_stream():
    search = runtime.Decoder(
        FixedModel(FALLING), decode.Options(sampling_topk=0, max_decoding_length=4)
    )
    with pytest.raises(ValueError, match="`sampling_topk` is not supported"):
        search.decode(ops.convert_to_tensor([[5]]))
    with pytest.raises(ValueError, match="`stream` needs greedy search"):
        search.stream([[5]])


@pytest.mark.backend("torch")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["a b"],), "`source_ids` must hold lists of token ids.*got 'a b' at index 0"),
        (([5, 6],), "`source_ids` must hold lists .* got 5 at index 0"),
        (([np.array([5.5])],), "`source_ids` must hold lists"),
        (([[5, 0, 6]],), r"padded with 0 at the end; got \[0\] at index 0"),
        (([[5]], 7), "`target_prefix` must hold lists of token ids; got 7"),
        (([[5]], [[5.5]]), r"`target_prefix` must hold .* got \[5.5\] at index 0"),
        (([[5]], [None]), "`target_prefix` must hold .* got None at index 0"),
        (([[5]], np.array([[5.5]])), "`target_prefix` must hold lists"),
        (([[5]], [[5], [6]]), "`target_prefix` must hold one item .* got 2 for 1"),
        (([[5]], [[END]]), r"`target_prefix` .* apart from \[3\].* got \[3\]"),
        (([[5]], [[5] * 4]), "got 4 tokens at index 0, and a limit of 4"),
        (([[5]], None, 5), "`constraints` must hold one list .* got 5"),
        (([[5]], None, [5]), r"`constraints\[0\]` must hold lists .* got 5"),
        (([[5]], None, [[5]]), r"`constraints\[0\]` must hold .* got 5 at index 0"),
        (([[5]], None, [[[]]]), "phrases of 1 token or more"),
        (([[5]], None, [[[5] * 4]]), "shorter than the limit .* a limit of 4"),
        (([[5]], None, [[[2, 5]]]), r"`constraints\[0\]` must hold ids .* got \[2\]"),
        (([[5]], None, [[], []]), "one list of phrases .* for 1 sources"),
    ],
)
def test_malformed_requests_are_rejected(arguments, message):
    options = decode.Options(max_decoding_length=4, beam_size=2)
    with pytest.raises(ValueError, match=message):
        runtime.Decoder(FixedModel(FALLING), options)(*arguments)


@pytest.mark.backend("torch")
@pytest.mark.parametrize("options", [{"beam_size": 1}, {"sampling_topk": 0}], ids=str)
def test_constraints_need_beam_search(options):
    decoder = runtime.Decoder(FixedModel(FALLING), decode.Options(**options))
    with pytest.raises(ValueError, match="`constraints` need beam search"):
        decoder([[5]], constraints=[[[5]]])


def test_the_first_of_equal_candidates_is_chosen():
    assert decode.minimum_bayes_risk(["b", "a"], lambda c, r: 0.0).index == 0


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"beam_size": 4, "num_hypotheses": 2},
        {"beam_size": 4, "num_hypotheses": 2, "constraints": [[[6, 5]], []]},
        {"beam_size": 4, "num_beam_groups": 2, "diversity_penalty": 0.7},
        {"num_hypotheses": 3, "sampling_topk": 0, "seed": 0},
    ],
    ids=["greedy", "beam", "phrases", "groups", "sampling"],
)
def test_score_prefix_decides_if_a_prefix_counts_in_the_score(options):
    rows, prefix = [[5], [6]], [[6], [5, 6]]
    options = dict(options)
    call_options = {name: options.pop(name, None) for name in ("constraints", "seed")}
    options = {
        "max_decoding_length": 5,
        "suppress_ids": (0, 1, 2),
        "return_token_scores": True,
        "jit_compile": False,
        **options,
    }
    # A forced token is normalized over all tokens, others over allowed tokens.
    logits = np.array([3, 3, 3, *FALLING[3:]])
    allowed_log_probs = logits - np.log(np.exp(logits[3:]).sum())
    log_probs = logits - np.log(np.exp(logits).sum())
    for counts in (True, False):
        search = runtime.Decoder(
            FixedModel(logits), decode.Options(score_prefix=counts, **options)
        )
        actual = search(rows, target_prefix=prefix, **call_options)
        for row, forced in enumerate(prefix):
            for ids, scores, score, length in zip(
                actual.ids[row],
                actual.token_scores[row],
                actual.scores[row],
                actual.lengths[row],
                strict=True,
            ):
                expected = np.where(ids > 0, allowed_log_probs[ids], 0.0)
                assert list(ids[: len(forced)]) == forced
                expected[: len(forced)] = log_probs[forced] if counts else 0.0
                np.testing.assert_allclose(scores, expected, atol=1e-5)
                assert score == pytest.approx(expected.sum() / length, abs=1e-5)


@pytest.mark.backend("torch")
def test_replacing_a_beam_by_sampling_keeps_the_number_of_hypotheses():
    options = decode.Options(beam_size=4, num_hypotheses=4)
    assert options.replace(beam_size=1, sampling_topk=10).num_hypotheses == 4
    assert options.replace(beam_size=2).num_hypotheses == 2
