"""Options of a search do what the parts that they stand for do."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfm import decode, runtime
from keras_tfm.decode.logits_processors import suppress

END = 3


class Fixed:
    """Always has the same logits, and notes what it is asked to score."""

    def __init__(self, logits, at=None):
        self.logits = np.asarray(logits, "float32")
        self.at, self.asked = at, []

    def begin(self, source_ids, max_length, beam_size):
        return {}

    def step(self, ids, index, cache):
        shape = (*ops.shape(ids), len(self.logits))
        return ops.broadcast_to(ops.convert_to_tensor(self.logits), shape), cache

    def __call__(self, inputs):
        ids = inputs["target_ids"]
        self.asked.append(ids)
        logits = self.step(ids, 0, {})[0]
        if self.at is None:
            return logits
        here = ops.equal(ops.arange(ids.shape[1]), self.at)[:, None]
        return ops.where(here, float("nan"), logits)


def said(logits, max_length=6, seed=None, **options):
    """What a search says first, without padding."""
    options = {"max_decoding_length": max_length, "jit_compile": False, **options}
    ids = runtime.Decoder(Fixed(logits), decode.Options(**options))(
        [[5]], seed=seed
    ).ids[0, 0]
    return ids[ids > 0].tolist()


# Of tokens 0 to 6 the fourth is best, then 5, 6, and the end.
FALLING = [-9, -9, -9, 2.7, 3, 2.9, 2.8]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, [4, 4, 4, 4, 4, 4]),
        ({"no_repeat_ngram_size": 2}, [4, 4, 5, 4, 6, 4]),
        ({"suppress_sequences": [[4, 4]]}, [4, 5, 4, 5, 4, 5]),
        ({"repetition_penalty": 3.0}, [4, 5, 6, END]),
        ({"suppress_ids": (0, 2, 4)}, [5, 5, 5, 5, 5, 5]),
    ],
)
def test_processors_of_a_search_have_its_options(options, wanted):
    assert said(FALLING, **options) == wanted


def test_a_shortest_length_of_two_is_two():
    ends = [-9, -9, -9, 3, 2.9, -9]
    assert said(ends) == [END]
    assert said(ends, min_decoding_length=2) == [4, 4, END]


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
def test_each_option_of_sampling_alone_narrows_a_draw(option):
    options = {"sampling_topk": 0, **option}
    assert said([-9, -9, -9, -9, 0.8, 0.4, 0.4, 0.4], seed=1, **options) == [4] * 6


def test_the_likeliest_are_drawn_from_and_all_of_them():
    flat = [-9, -9, -9, -9, 1, 1.1, 0.9, 0.9]
    drawn = said(flat, 50, seed=2, sampling_topk=2)
    assert set(drawn) == {4, 5}
    everything = said(flat, 50, seed=2, sampling_topk=0)
    assert set(everything) >= {4, 5, 6, 7}


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
    decoder = runtime.Decoder(Fixed(FALLING), options)
    with pytest.raises(ValueError, match="got (40|59) for a model with 7 logits"):
        decoder([[5]])


def test_options_may_come_from_generators():
    ids, sequences = [0, 1, 2], [[4], [5]]
    options = {"max_decoding_length": 3, "jit_compile": False, "disable_unk": False}
    search = runtime.Decoder(
        Fixed(FALLING),
        decode.Options(
            suppress_ids=(i for i in ids),
            suppress_sequences=((i for i in each) for each in sequences),
            logits_processors=(each for each in [suppress([6])]),
            **options,
        ),
    )
    assert search.options.suppressed_ids == {*ids}
    assert len(search.options.logits_processors) == 1
    assert search([[5]]).ids[0, 0].tolist() == [3, 0, 0]


def test_what_is_impossible_is_never_drawn():
    """Where a sum goes up and down by a last place, as XLA's may."""
    from keras_tfm.decode.sampling import _draw

    shares = np.array([0.25, 0, 0, 0.5, 0, 0.25], "float32")
    uneven = np.array([0.25, 0.25, 0.25 - 2**-26, 0.75, 0.75, 1.0], "float32")
    given = ops.convert_to_tensor(uneven)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ops, "cumsum", lambda x, axis: given)
        for noise in [0.0, 0.9999999, *(0.25 + np.arange(20) * 2**-25)]:
            noise = ops.convert_to_tensor(np.array([noise], "float32"))
            with np.errstate(divide="ignore"):
                choices = ops.convert_to_tensor(np.log(shares))
            [token] = ops.convert_to_numpy(_draw(choices, noise))
            assert shares[token] > 0


def test_without_a_seed_draws_differ_and_rows_always_do():
    options = {"max_decoding_length": 8, "jit_compile": False}
    flat = [-9, -9, -9, -9, 1, 1, 1, 1]
    search = runtime.Decoder(Fixed(flat), decode.Options(sampling_topk=0, **options))
    rows = [[5]] * 4
    one, other = search(rows), search(rows)
    assert one.ids.tolist() != other.ids.tolist()
    same = search(rows, seed=1).ids[:, 0]
    assert len({tuple(row) for row in same.tolist()}) == 4
    assert search(rows, seed=1).ids[:, 0].tolist() == same.tolist()


def test_a_score_begins_with_the_start_of_the_search():
    model = Fixed(FALLING)
    search = runtime.Decoder(
        model, decode.Options(start_id=6, max_decoding_length=4, jit_compile=False)
    )
    scored = search.score([[5]], [[4, 5]])
    if keras.backend.backend() == "torch":  # elsewhere it is traced
        assert ops.convert_to_numpy(model.asked[-1])[0, :2].tolist() == [6, 4]
    logits = np.array(FALLING)
    gains = logits - np.log(np.exp(logits).sum())
    actual = scored.token_scores[0, 0, :2]
    np.testing.assert_allclose(actual, gains[[4, 5]], atol=1e-5)


def test_nan_in_a_score_counts_where_a_target_is_and_is_named_there():
    options = {"max_decoding_length": 4, "jit_compile": False}
    search = runtime.Decoder(Fixed(FALLING, at=1), decode.Options(**options))
    assert np.isfinite(search.score([[5]], [[4]]).scores).all()
    with pytest.raises(FloatingPointError, match="at step 1 of row 1"):
        search.score([[5], [5]], [[4], [4, 5]])


@pytest.mark.parametrize("sizes", [(2, 4), (4, 1), (1, 8)])
def test_rows_prefixes_and_phrases_may_come_in_any_order_of_length(sizes):
    """The longest last too, and a prefix that fills what it is padded to."""
    draw = np.random.default_rng(1)
    rows = [draw.integers(4, 9, size).tolist() for size in sizes]
    options = {"max_decoding_length": 16, "jit_compile": False}
    flat = np.linspace(1, 0, 10)
    actual = runtime.Decoder(Fixed(flat), decode.Options(**options))(
        rows, target_prefix=rows
    )
    for ids, row in zip(actual.ids[:, 0], rows, strict=True):
        assert ids[: len(row)].tolist() == row
    beam = runtime.Decoder(Fixed(flat), decode.Options(beam_size=4, **options))
    actual = beam(rows, constraints=[rows, rows])
    for ids in actual.ids[:, 0].tolist():
        for row in rows:
            places = range(len(ids) - len(row) + 1)
            assert any(ids[i : i + len(row)] == row for i in places)


NAN = float("nan")


@pytest.mark.backend("torch")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_size": 0}, "`beam_size` must be an integer of at least 1; got 0"),
        ({"num_hypotheses": 0}, "`num_hypotheses` must be an integer of at least 1"),
        ({"num_hypotheses": 2}, "got beam_size=1, num_hypotheses=2. Increase"),
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


def test_what_samples_is_not_decoded_in_a_program_nor_streamed():
    search = runtime.Decoder(
        Fixed(FALLING), decode.Options(sampling_topk=0, max_decoding_length=4)
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
def test_requests_of_another_form_are_rejected(arguments, message):
    options = decode.Options(max_decoding_length=4, beam_size=2)
    with pytest.raises(ValueError, match=message):
        runtime.Decoder(Fixed(FALLING), options)(*arguments)


@pytest.mark.backend("torch")
@pytest.mark.parametrize("options", [{"beam_size": 1}, {"sampling_topk": 0}], ids=str)
def test_constraints_need_a_beam(options):
    decoder = runtime.Decoder(Fixed(FALLING), decode.Options(**options))
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
def test_a_prefix_that_does_not_count_is_no_part_of_the_score(options):
    rows, prefix = [[5], [6]], [[6], [5, 6]]
    options = dict(options)
    given = {name: options.pop(name, None) for name in ("constraints", "seed")}
    options = {
        "max_decoding_length": 5,
        "suppress_ids": (0, 1, 2),
        "return_token_scores": True,
        "jit_compile": False,
        **options,
    }
    # What is forced has its share among all; what may be chosen, among those.
    logits = np.array([3, 3, 3, *FALLING[3:]])
    own = logits - np.log(np.exp(logits[3:]).sum())
    given_own = logits - np.log(np.exp(logits).sum())
    for counts in (True, False):
        search = runtime.Decoder(
            Fixed(logits), decode.Options(score_prefix=counts, **options)
        )
        actual = search(rows, target_prefix=prefix, **given)
        for row, forced in enumerate(prefix):
            for ids, scores, score, length in zip(
                actual.ids[row],
                actual.token_scores[row],
                actual.scores[row],
                actual.lengths[row],
                strict=True,
            ):
                expected = np.where(ids > 0, own[ids], 0.0)
                assert list(ids[: len(forced)]) == forced
                expected[: len(forced)] = given_own[forced] if counts else 0.0
                np.testing.assert_allclose(scores, expected, atol=1e-5)
                assert score == pytest.approx(expected.sum() / length, abs=1e-5)
