"""Scores of targets, ensembles, and minimum Bayes risk."""

import numpy as np
import pytest
from keras import ops

from keras_tfm import decode, runtime
from tests.decode.conftest import draw_transformer
from tests.decode.languages import log_softmax
from tests.models.test_causal_lm import small

END = 3
OPTIONS = {"max_decoding_length": 8, "jit_compile": False}
SOURCES = np.array([[5, 6, 7, 8], [9, 4, 0, 0], [0, 0, 0, 0]], "int32")


@pytest.fixture(scope="module")
def other_models():
    return draw_transformer(seed=5), draw_transformer(seed=6, num_layers=1)


def test_score_agrees_with_decoding(transformer, form="gnmt"):
    options = {"length_penalty": 0.6, "length_penalty_form": form, **OPTIONS}
    search = runtime.Decoder(
        transformer,
        decode.Options(
            beam_size=3,
            num_hypotheses=3,
            return_token_scores=True,
            suppress_ids=(),
            disable_unk=False,
            **options,
        ),
    )
    actual = search(SOURCES)
    for n in range(3):
        lengths = actual.lengths[:2, n]
        targets = [actual.ids[i, n, :size].tolist() for i, size in enumerate(lengths)]
        scored = search.score(SOURCES[:2], targets)
        np.testing.assert_allclose(scored.scores[:, 0], actual.scores[:2, n], atol=1e-5)
        assert scored.lengths[:, 0].tolist() == lengths.tolist()
        for i, size in enumerate(lengths):
            assert scored.ids[i, 0, :size].tolist() == targets[i]
            np.testing.assert_allclose(
                scored.token_scores[i, 0, :size],
                actual.token_scores[i, n, :size],
                atol=1e-5,
            )
            assert not scored.token_scores[i, 0, size:].any()


@pytest.mark.backend("torch")
@pytest.mark.parametrize("counts", [True, False])
def test_prefix_lengths_exclude_tokens_from_the_score(transformer, counts):
    search = runtime.Decoder(
        transformer, decode.Options(score_prefix=counts, **OPTIONS)
    )
    targets = [[5, 6, END], [7], []]
    actual = search.score(SOURCES[:3], targets, [2, 0, 0])
    assert (actual.token_scores[0, 0, :2] == 0).all() != counts
    assert actual.token_scores[0, 0, 2] < 0 and actual.token_scores[1, 0, 0] < 0
    for prefix_lengths in (
        2,
        [2],
        [1, 2],
        [1.5, 0, 0],
        [-1, 0, 0],
        [4, 0, 0],
        [0, 0, 1],
    ):
        with pytest.raises(
            ValueError, match="`prefix_lengths` must be one number of tokens"
        ):
            search.score(SOURCES[:3], targets, prefix_lengths)


def test_an_empty_source_or_target_has_no_score(transformer):
    scored = runtime.Decoder(transformer, decode.Options(**OPTIONS)).score(
        SOURCES, [[5, END], [], [6]]
    )
    assert np.isfinite(scored.scores[:, 0]).tolist() == [True, False, False]
    assert scored.lengths[:, 0].tolist() == [2, 0, 0]
    empty = runtime.Decoder(transformer, decode.Options(**OPTIONS)).score(
        SOURCES[:0], []
    )
    assert empty.scores.shape == (0, 1)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ([[5]], "`target_ids` must hold one item .* got 1 for 3 sources"),
        ([[5], [0, 5], []], r"got \[0\] at index 1"),
        ([[5], [], [14]], r"got \[14\] at index 2, vocabulary_size=14"),
    ],
)
def test_targets_outside_the_vocabulary_are_rejected(targets, message, transformer):
    with pytest.raises(ValueError, match=message):
        runtime.Decoder(transformer, decode.Options(**OPTIONS)).score(SOURCES, targets)


@pytest.mark.backend("torch")
def test_an_ensemble_averages_probabilities(transformer, other_models, beam_size=3):
    models, weights = [transformer, *other_models], [1, 2, 3]
    ensemble = decode.Ensemble(models, weights)
    options = {"suppress_ids": (), "disable_unk": False}
    search = runtime.Decoder(
        ensemble,
        decode.Options(
            beam_size=beam_size,
            return_token_scores=True,
            return_attention=True,
            **options,
            **OPTIONS,
        ),
    )
    actual = search(SOURCES)
    for row in range(2):
        size = actual.lengths[row, 0]
        ids = actual.ids[row, 0, :size].tolist()
        inputs = {
            "source_ids": ops.convert_to_tensor(SOURCES[row : row + 1]),
            "target_ids": ops.convert_to_tensor([[2, *ids[:-1]]]),
        }
        probabilities = sum(
            w * np.exp(log_softmax(ops.convert_to_numpy(m(inputs))[0]))
            for m, w in zip(models, weights, strict=True)
        )
        expected = np.log(probabilities / 6)[np.arange(size), ids]
        np.testing.assert_allclose(
            actual.token_scores[row, 0, :size], expected, atol=1e-4
        )
        maps = [m.attention_maps(**inputs)["cross"][-1] for m in models]
        maps = [
            ops.convert_to_numpy(attention_map)[0].mean(0) for attention_map in maps
        ]
        expected = np.mean(maps, axis=0)
        attention = actual.attention[row, 0, :size, :4]
        np.testing.assert_allclose(attention, expected[:, :4], atol=1e-4)
    assert len(ensemble.variables) == sum(len(m.variables) for m in models)
    scored = search.score(SOURCES[:1], [actual.ids[0, 0, : actual.lengths[0, 0]]])
    np.testing.assert_allclose(scored.scores[0], actual.scores[0], atol=1e-5)
    alone = runtime.Decoder(
        other_models[0], decode.Options(beam_size=beam_size, **options, **OPTIONS)
    )(SOURCES)
    assert actual.ids.tolist() != alone.ids.tolist()


@pytest.mark.backend("torch")
def test_an_ensemble_extends_its_cache(transformer, other_models):
    options = {"suppress_ids": (0, 1, 2, END), "jit_compile": False}
    search = runtime.Decoder(
        decode.Ensemble([transformer, other_models[0]]),
        decode.Options(max_decoding_length=20, **options),
    )
    assert search(SOURCES[:1]).lengths.tolist() == [[20]]


def test_an_ensemble_has_the_fewest_positions_of_its_models(transformer):
    short = draw_transformer(positions="learned", sequence_length=9)
    long = draw_transformer(positions="learned", sequence_length=12)
    search = runtime.Decoder(decode.Ensemble([long, transformer, short]))
    assert search.max_positions == 9


@pytest.mark.parametrize(
    ("models", "weights", "message"),
    [
        (0, None, "finite number above 0.* got 0 models"),
        (2, [1.0], r"got 2 models, weights=\[1.0\]"),
        (2, [1.0, 0.0], r"weights=\[1.0, 0.0\]"),
        (2, [1.0, np.inf], r"finite number.*weights=\[1.0, inf\]"),
    ],
)
def test_bad_ensembles_are_rejected(models, weights, message, transformer):
    with pytest.raises(ValueError, match=message):
        decode.Ensemble([transformer] * models, weights)


def test_models_of_different_vocabularies_are_rejected(transformer):
    larger = draw_transformer(vocabulary_size=15)
    with pytest.raises(ValueError, match=r"one vocabulary.*vocabulary_size=\[14, 15\]"):
        decode.Ensemble([transformer, larger])


def test_minimum_bayes_risk_maximizes_the_mean_utility():
    def utility(candidate, reference):
        return -abs(len(candidate) - len(reference))

    samples = ["a", "aaaa", "aaa", "aaaaaaaaa", "aaa"]
    chosen = decode.minimum_bayes_risk(samples, utility)
    assert chosen == ("aaa", 2, pytest.approx(-(2 + 1 + 0 + 6 + 0) / 5))


def test_by_default_the_utility_is_chrf():
    metrics = pytest.importorskip("sacrebleu.metrics")
    samples = ["a red dog runs", "a red dog ran", "the cat", "a red dog runs fast"]
    expected = [
        np.mean([metrics.CHRF().sentence_score(c, [r]).score for r in samples])
        for c in samples
    ]
    chosen = decode.minimum_bayes_risk(samples)
    assert chosen.index == int(np.argmax(expected)) != 2
    assert chosen.utility == pytest.approx(max(expected))
    with pytest.raises(ValueError, match="`candidates` must be a list"):
        decode.minimum_bayes_risk([])
    with pytest.raises(ValueError, match="list of one text or more; got 'hallo'"):
        decode.minimum_bayes_risk("hallo")


def test_the_score_of_an_empty_batch_is_empty(transformer):
    search = runtime.Decoder(transformer, decode.Options(beam_size=2, num_hypotheses=2))
    actual = search.score(np.zeros((0, 5), "int32"), [])
    assert [x.shape for x in actual[:4]] == [(0, 1, 16), (0, 1), (0, 1), (0, 1, 16)]


@pytest.mark.backend("torch")
def test_an_ensemble_of_language_models_stops_at_the_last_position():
    settings = {"positions": "learned", "sequence_length": 12}
    models = [small(seed, **settings) for seed in (1, 2)]
    ensemble, prompt = decode.Ensemble(models), [[2, 4, 5, 6, 7]]
    options = {"max_decoding_length": 12, "suppress_ids": [0, 2, 3]}
    actual = runtime.Decoder(ensemble, decode.Options(**options, jit_compile=False))(
        prompt
    )
    alone = runtime.Decoder(models[0], decode.Options(**options, jit_compile=False))(
        prompt
    )
    assert actual.lengths.tolist() == alone.lengths.tolist() == [[8]]  # 12 + 1 - 5
    scored = runtime.Decoder(ensemble, decode.Options(jit_compile=False)).score(
        prompt, [[4, 5, 3]]
    )
    logits = [
        model.logits_after(np.array(prompt), np.array([[2, 4, 5]])) for model in models
    ]
    probabilities = [ops.convert_to_numpy(ops.softmax(x)) for x in logits]
    expected = np.log(np.mean(probabilities, axis=0))[0, [0, 1, 2], [4, 5, 3]]
    np.testing.assert_allclose(scored.token_scores[0, 0, :3], expected, atol=1e-5)
