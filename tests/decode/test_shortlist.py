"""Shortlists: the target tokens that a source can produce."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfm import decode, runtime
from keras_tfm.decode import Shortlist
from tests.decode.conftest import draw_transformer
from tests.runtime.test_bulk import as_ids, assert_same

SIZE, START, END = 150, 2, 3
OPTIONS = {"max_decoding_length": 7, "jit_compile": False, "disable_unk": False}


@pytest.fixture(scope="module")
def wide():
    """A model whose vocabulary is larger than a shortlist."""
    return draw_transformer(vocabulary_size=SIZE)


@pytest.fixture(scope="module")
def wide_tied():
    return draw_transformer(vocabulary_size=SIZE, tie="target", logits_bias=True)


def draw_shortlist(**options):
    draw = np.random.default_rng(3)
    translations = draw.integers(4, SIZE, (SIZE, 8))
    order = np.concatenate([np.arange(4), 4 + draw.permutation(SIZE - 4)])
    return Shortlist(translations, order, **{"frequent": 5, "best": 2, **options})


def draw_rows(count=5, seed=0):
    draw = np.random.default_rng(seed)
    return [draw.integers(4, SIZE, n).tolist() for n in draw.integers(1, 8, count)]


SEARCHES = {
    "beam": {"beam_size": 3, "num_hypotheses": 2, "return_token_scores": True},
    "groups": {"beam_size": 4, "num_beam_groups": 2, "diversity_penalty": 0.7},
    "general": {
        "beam_size": 2,
        "min_decoding_length": 3,
        "no_repeat_ngram_size": 2,
        "repetition_penalty": 1.3,
    },
    "sampled": {"sampling_topk": 20, "sampling_topp": 0.9, "num_hypotheses": 2},
}


@pytest.mark.backend("torch")
@pytest.mark.parametrize("options", SEARCHES.values(), ids=SEARCHES)
def test_a_shortlist_of_all_tokens_changes_nothing(options, wide):
    without = runtime.Decoder(wide, decode.Options(**OPTIONS, **options))
    with_shortlist = runtime.Decoder(
        wide, decode.Options(shortlist=draw_shortlist(best=SIZE), **OPTIONS, **options)
    )
    ids = as_ids(draw_rows())
    actual, expected = with_shortlist(ids, seed=1), without(ids, seed=1)
    assert_same(actual, expected)
    if expected.token_scores is not None:
        np.testing.assert_allclose(
            actual.token_scores, expected.token_scores, atol=1e-5
        )


def allow_only(candidates):
    """Makes a processor that allows only the candidates `(B, C)` of a row."""
    bias = np.full((len(candidates), 1, SIZE), -np.inf, "float32")
    for row, allowed in zip(bias, candidates, strict=True):
        row[:, allowed] = 0.0
    return lambda logits, history: logits + ops.convert_to_tensor(bias)


@pytest.mark.slow("tensorflow", "jax")
@pytest.mark.parametrize(("beam_size", "model"), [(1, "wide"), (3, "wide_tied")])
def test_a_shortlist_makes_other_tokens_impossible(beam_size, model, request):
    model, shortlist = request.getfixturevalue(model), draw_shortlist()
    suppressed = (0, START, 50, 51, 52)
    options = {"beam_size": beam_size, "suppress_ids": suppressed, **OPTIONS}
    # Padded as in a search, since the number of candidates depends on it.
    ids = as_ids(draw_rows(), 16)
    candidates = shortlist.rows(ids, 4, suppressed=suppressed)
    assert candidates.shape[1] == 64
    whole = runtime.Decoder(
        model, decode.Options(logits_processors=[allow_only(candidates)], **options)
    )
    expected = whole(ids)
    assert_same(
        runtime.Decoder(model, decode.Options(shortlist=shortlist, **options))(ids),
        expected,
    )
    free = runtime.Decoder(model, decode.Options(**options))(ids)
    assert free.ids.tolist() != expected.ids.tolist()  # it can fail


@pytest.mark.backend("torch")
def test_other_sources_of_a_batch_do_not_change_the_output(wide):
    search = runtime.Decoder(
        wide, decode.Options(beam_size=2, shortlist=draw_shortlist(), **OPTIONS)
    )
    rows = draw_rows(11)
    together = dict(search.bulk(rows, batch_size=4))
    for i, row in enumerate(rows):
        assert_same(together[i], search(as_ids([row])))
    # Neither does their length.
    actual = search([rows[0], [5, 6, 7, 4] * 10, [7]])
    alone = decode.Hypotheses(*(x[:1] for x in actual[:3]))
    assert_same(alone, search([rows[0]]))


@pytest.mark.backend("torch")
def test_prefixes_and_phrases_may_have_tokens_outside_the_shortlist(wide):
    shortlist, row = draw_shortlist(), [5, 6, 7]
    candidates = shortlist.rows(as_ids([row], 16), 4)[0]
    # The last, since in a longer shortlist the first ids equal their indices.
    foreign = [token for token in range(4, SIZE) if token not in candidates][-3:]
    search = runtime.Decoder(
        wide, decode.Options(beam_size=4, shortlist=shortlist, **OPTIONS)
    )
    actual = search(as_ids([row]), target_prefix=[foreign[:2]])
    assert actual.ids[0, 0, :2].tolist() == foreign[:2]
    assert np.isfinite(actual.scores).all()
    actual = search(as_ids([row]), constraints=[[foreign[:2], foreign[2:]]])
    ids = actual.ids[0, 0].tolist()
    assert foreign[2] in ids
    assert ids[ids.index(foreign[0]) + 1] == foreign[1]
    stream = runtime.Decoder(wide, decode.Options(shortlist=shortlist, **OPTIONS))
    tokens = list(stream.stream(as_ids([row]), target_prefix=[foreign]))
    assert [int(step_ids[0]) for step_ids in tokens][:3] == foreign


@pytest.mark.backend("torch")
def test_alternatives_are_from_the_shortlist(wide):
    shortlist, row = draw_shortlist(), [5, 6, 7]
    options = {"num_hypotheses": 3, "return_alternatives": True, **OPTIONS}
    actual = runtime.Decoder(
        wide, decode.Options(beam_size=4, shortlist=shortlist, **options)
    )(as_ids([row]))
    candidates = shortlist.rows(as_ids([row], 16), 4)[0]
    assert np.isin(actual.ids[0, :, 0], candidates).all()
    assert len(set(actual.ids[0, :, 0].tolist())) == 3


@pytest.mark.backend("torch")
def test_an_ensemble_accepts_a_shortlist(wide):
    second = draw_transformer(seed=2, vocabulary_size=SIZE)
    ensemble = decode.Ensemble([wide, second])
    shortlist, ids = draw_shortlist(best=SIZE), as_ids(draw_rows())
    expected = runtime.Decoder(ensemble, decode.Options(beam_size=2, **OPTIONS))(ids)
    assert_same(
        runtime.Decoder(
            ensemble, decode.Options(beam_size=2, shortlist=shortlist, **OPTIONS)
        )(ids),
        expected,
    )


@pytest.mark.slow("tensorflow")
def test_other_sources_do_not_change_the_output_of_an_ensemble(wide):
    ensemble = decode.Ensemble([wide, draw_transformer(seed=2, vocabulary_size=SIZE)])
    search = runtime.Decoder(
        ensemble,
        decode.Options(beam_size=2, shortlist=draw_shortlist(best=2), **OPTIONS),
    )
    row, long = [5, 6, 7, 8], [9] * 30 + list(range(10, 40))
    alone, together = search([row]), search([row, long])
    assert together.ids[:1].tolist() == alone.ids.tolist()
    np.testing.assert_allclose(together.scores[:1], alone.scores, atol=1e-5)


def test_candidates_are_frequent_tokens_translations_and_forced_tokens():
    shortlist = draw_shortlist(frequent=9, best=1)
    ids, forced = as_ids([[7, 9, 7], []], 16), [[140], []]
    rows = shortlist.rows(ids, 4, forced)
    assert rows.shape == (2, 64)
    assert (np.diff(rows, axis=1) > 0).all()
    for row in rows:
        assert set(range(4)) | set(shortlist.order[:9].tolist()) <= set(row.tolist())
    best = shortlist.translations[[7, 9]].ravel()
    assert {140, *best.tolist()} <= set(rows[0].tolist())
    # Free places are filled with the next frequent tokens.
    assert rows[1].tolist() == sorted(shortlist.order[:64].tolist())
    banned = shortlist.order[:20].tolist()
    rows = shortlist.rows(ids, 4, suppressed=banned)
    assert set(rows.ravel().tolist()) & set(banned) == {0, 1, 2, 3}


def test_best_translations_of_all_tokens_come_before_further_ones():
    translations = np.zeros((200, 32), "int32")
    translations[4:] = 1000 + np.arange(196)[:, None] * 32 + np.arange(32)
    shortlist = Shortlist(translations, np.arange(10_000), frequent=0, best=2)
    ids = np.arange(4, 104)[None]
    row = shortlist.rows(ids, 4)[0]
    assert len(row) == 256  # 4 and 200, rounded up
    assert set(translations[4:104, :2].ravel().tolist()) <= set(row.tolist())
    third = set(translations[4:104, 2].tolist()) & set(row.tolist())
    assert len(third) == 256 - 4 - 200


def test_with_a_shared_vocabulary_source_tokens_are_candidates():
    shortlist = draw_shortlist(shared=True, best=1)
    ids = as_ids([[148, 149]], 16)
    assert {148, 149} <= set(shortlist.rows(ids, 4)[0].tolist())


def test_from_pairs_learns_translations():
    draw = np.random.default_rng(0)
    translation = 4 + draw.permutation(40)  # of 4 to 43
    pairs = []
    for _ in range(400):
        source = draw.integers(4, 44, draw.integers(2, 8))
        target = draw.permutation(translation[source - 4])
        pairs.append((source.tolist(), [45, *target]))  # 45 has no source token
    shortlist = Shortlist.from_pairs(pairs, 50, 46)
    assert shortlist.translations.shape == (50, 32)
    assert shortlist.translations[4:44, 0].tolist() == translation.tolist()
    assert not shortlist.translations[44:].any()
    assert shortlist.order[0] == 45
    from_reversed = Shortlist.from_pairs(reversed(pairs), 50, 46)
    assert (from_reversed.order == shortlist.order).all()


def test_one_iteration_of_model_1_has_the_expected_translations():
    """One step of expectation maximization, as in Brown et al. 1993."""
    pairs = [([4], [5]), ([4, 6], [5, 7])]
    actual = Shortlist.from_pairs(pairs, 8, iterations=1).translations
    # Of 4: 5 has 1/2 of one pair and 1/3 of the other, 7 has 1/3.
    assert actual[4, :3].tolist() == [5, 7, 0]
    # Of 6: both have 1/3, and the lower id is first.
    assert actual[6, :3].tolist() == [5, 7, 0]
    converged = Shortlist.from_pairs(pairs, 8, iterations=5).translations
    assert converged[6, :2].tolist() == [7, 5]


def test_model_1_follows_the_equations_of_the_paper():
    """Equations 10, 11 and 14 of Brown et al. 1993, token by token."""
    draw = np.random.default_rng(5)
    lengths = draw.integers(1, 5, (60, 2))
    # Some words are frequent, so that counts and probabilities differ.
    pairs = [(8 * draw.random((2, 4)) ** 2 + 4).astype(int).tolist() for _ in lengths]
    pairs = [(f[:m], e[:n]) for (f, e), (m, n) in zip(pairs, lengths, strict=True)]
    probabilities = {}
    for source, target in pairs:
        probabilities.update(
            dict.fromkeys(((f, e) for f in {0, *source} for e in target), 1.0)
        )
    for _ in range(4):
        counts = dict.fromkeys(probabilities, 0.0)
        for source, target in pairs:
            for e in target:
                total = sum(probabilities[f, e] for f in {0, *source})
                for f in {0, *source}:
                    counts[f, e] += probabilities[f, e] / total
        totals = dict.fromkeys((f for f, _ in counts), 0.0)
        for (f, _), count in counts.items():
            totals[f] += count
        probabilities = {(f, e): count / totals[f] for (f, e), count in counts.items()}
    actual = Shortlist.from_pairs(pairs, 12, iterations=4).translations
    for f in range(4, 12):
        translations = [
            (-round(p, 12), e) for (word, e), p in probabilities.items() if word == f
        ]
        assert actual[f][actual[f] > 0].tolist() == [
            e for _, e in sorted(translations)
        ], f


def test_a_saved_shortlist_is_loaded_unchanged(tmp_path):
    shortlist = draw_shortlist(frequent=3, best=5, shared=True)
    shortlist.save(tmp_path / "shortlist.npz")
    loaded = Shortlist.load(tmp_path / "shortlist.npz")
    assert (loaded.frequent, loaded.best, loaded.shared) == (3, 5, True)
    ids = as_ids(draw_rows(), 16)
    assert loaded.rows(ids, 4).tolist() == shortlist.rows(ids, 4).tolist()


def test_lexical_tables_of_marian_are_read(tmp_path):
    path = tmp_path / "lex.s2t"
    lines = ["haus house 0.7", "heim house 0.2", "NULL house 0.1", "der the 0.6"]
    path.write_text("\n".join([*lines, "die the 0.3", "weg way 0.9"]) + "\n")
    tokens = ["<pad>", "<unk>", "<s>", "</s>", "the", "house"]
    target = [*tokens[:4], "die", "haus", "der", "heim"]
    shortlist = Shortlist.read(path, tokens, target, best=3)
    assert shortlist.translations[5, :3].tolist() == [5, 7, 0]
    assert shortlist.translations[4, :3].tolist() == [6, 4, 0]
    assert shortlist.order.tolist() == list(range(8))
    assert shortlist.best == 3
    with pytest.raises(
        ValueError, match="vocabularies that the file was made with; got no line"
    ):
        Shortlist.read(path, target, tokens)
    path.write_text("haus house 0.7\nhaus house\n")
    with pytest.raises(ValueError, match="got 'haus house' in line 2 of"):
        Shortlist.read(path, tokens, target)


@pytest.mark.parametrize(
    ("make_shortlist", "message"),
    [
        (lambda: draw_shortlist(best=0), "got frequent=5, best=0"),
        (lambda: draw_shortlist(frequent=-1), "got frequent=-1"),
        (lambda: Shortlist([[1]], [0, 1, 1]), "each target id once"),
        (lambda: Shortlist([[7]], [0, 1]), "ids from 0 to 7, and a target vocab"),
        (lambda: Shortlist.from_pairs([([], [4])], 8), "got none"),
        (lambda: Shortlist.from_pairs([([4], [8])], 8), "target ids from 8 to 8"),
        (lambda: Shortlist.from_pairs([([9], [4])], 8), "source ids from 9 to 9"),
        (lambda: Shortlist.from_pairs([([0], [4])], 8), "source ids from 0 to 0"),
        (lambda: Shortlist([[0]] * 20, range(14), shared=True), "20 source ids, 14 "),
    ],
)
def test_invalid_shortlists_are_rejected(make_shortlist, message):
    with pytest.raises(ValueError, match=message):
        make_shortlist()


def test_a_shortlist_of_other_vocabularies_is_rejected(wide, transformer):
    shortlist = draw_shortlist()
    with pytest.raises(ValueError, match="got 150 tokens, target_vocabulary_size=14"):
        runtime.Decoder(transformer, decode.Options(shortlist=shortlist, **OPTIONS))
    small = Shortlist(np.zeros((4, 2)), np.arange(SIZE))
    with pytest.raises(ValueError, match="source id 9, and a shortlist of 4"):
        runtime.Decoder(wide, decode.Options(shortlist=small, **OPTIONS))(as_ids([[9]]))


def test_a_token_both_forced_and_suppressed_is_rejected(wide):
    options = {"shortlist": draw_shortlist(), "suppress_ids": (0, 99), **OPTIONS}
    decoder = runtime.Decoder(wide, decode.Options(**options))
    with pytest.raises(ValueError, match=r"not hold suppressed tokens.*\[99\]"):
        decoder(as_ids([[5]]), target_prefix=[[99]])


@pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="quantizing is slow, and all the same"
)
@pytest.mark.filterwarnings("ignore:The use of `x.T`")  # of Keras
def test_tied_embeddings_may_be_int8():
    model = draw_transformer(vocabulary_size=SIZE, tie="all", embedding_dim=16)
    model.quantize("int8")
    ids = as_ids(draw_rows())
    expected = runtime.Decoder(model, decode.Options(beam_size=2, **OPTIONS))(ids)
    shortlist = draw_shortlist(best=SIZE)
    actual = runtime.Decoder(
        model, decode.Options(beam_size=2, shortlist=shortlist, **OPTIONS)
    )(ids)
    assert actual.lengths.tolist() == expected.lengths.tolist()
    np.testing.assert_allclose(actual.scores, expected.scores, atol=2e-2)
    model = draw_transformer(vocabulary_size=SIZE)
    model.quantize("int8")
    search = runtime.Decoder(model, decode.Options(shortlist=shortlist, **OPTIONS))
    with pytest.raises(ValueError, match="projection in int8"):
        search(ids)


@pytest.mark.parametrize("beam_size", [1, 2])
def test_an_empty_batch_has_an_empty_result(wide, beam_size):
    search = runtime.Decoder(
        wide, decode.Options(beam_size=beam_size, shortlist=draw_shortlist(), **OPTIONS)
    )
    assert search(np.zeros((0, 5), "int32")).ids.shape == (0, 1, 7)
