"""A model goes on with another vocabulary, and keeps what it knows of it."""

import keras
import numpy as np
import pytest

from keras_tfm import models, text
from keras_tfm.recipes import fine_tuning

BEFORE = ["the house is old", "the horse is bold", "old houses", "bold horses"]
NOW = ["das haus ist alt", "the house is old", "ßü der hut", "alte häuser"]
SHAPE = {"num_layers": 1, "embedding_dim": 8, "intermediate_dim": 16, "num_heads": 2}


@pytest.fixture(scope="module")
def vocabularies():
    options = {"size": 310, "model_type": "bpe", "exact": False}
    return tuple(text.Vocabulary.train(each * 9, **options) for each in (BEFORE, NOW))


def names(vocabulary):
    return vocabulary.tokens(range(vocabulary.size))


def test_pieces_are_spelled_in_those_of_another(vocabularies):
    before, now = vocabularies
    spelled = dict(zip(names(now), fine_tuning.spell(before, now), strict=True))
    ids = {name: row for row, name in enumerate(names(before))}
    for name, actual in spelled.items():
        if name in ids:
            assert actual == [ids[name]]
    assert spelled["ß"] == spelled["ä"] == []
    for name in set(spelled) - set(ids):
        known = [letter for letter in name if letter in ids]
        assert "".join(before.tokens(spelled[name])) == "".join(known)
    assert spelled["<0xC3>"] == [ids["<0xC3>"]] and spelled["</s>"] == [3]


def test_the_longest_piece_from_the_left_is_taken():
    before = text.Vocabulary.train(["a ab abc b c"] * 9, size=268, exact=False)
    has = {"▁abc", "▁ab", "▁a"} & set(names(before))
    now = text.Vocabulary.train(["abcb abcb"] * 9, size=266, exact=False)
    assert has and "▁abcb" in names(now)
    actual = fine_tuning.spell(before, now)[names(now).index("▁abcb")]
    assert before.tokens(actual)[0] == max(has, key=len)


@pytest.mark.parametrize("options", [{}, {"tie": "target", "logits_bias": True}])
def test_weights_and_shared_pieces_are_kept(vocabularies, options):
    before, now = vocabularies
    model = models.Transformer(before.size, **SHAPE, **options)
    if options:
        model.target_embedding.bias.assign(np.arange(before.size, dtype="float32"))
    fresh, shared = fine_tuning.with_vocabulary(model, before, now, dropout=0.3)
    assert fresh.vocabulary_size == fresh.target_vocabulary_size == now.size
    assert fresh.config["dropout"] == 0.3 and model.config["dropout"] == 0.1
    both = set(names(before)) & set(names(now))
    assert shared == pytest.approx(len(both) / now.size) and 0.5 < shared < 1
    kept = [names(before).index(name) for name in sorted(both)]
    moved = [names(now).index(name) for name in sorted(both)]
    for old, new in zip(
        fine_tuning.token_variables(model),
        fine_tuning.token_variables(fresh),
        strict=True,
    ):
        old, new = map(keras.ops.convert_to_numpy, (old, new))
        np.testing.assert_array_equal(new[moved], old[kept])
        row = names(now).index("▁haus")
        spelling = fine_tuning.spell(before, now)[row]
        assert len(spelling) > 1
        np.testing.assert_allclose(new[row], old[spelling].mean(axis=0), rtol=1e-6)
    # A sentence of both gets the same states: every other weight is there too.
    sentence = "the house is old"
    ids = [np.array(each.encode([sentence])) for each in vocabularies]
    pieces = [each.tokens(row[0]) for each, row in zip(vocabularies, ids, strict=True)]
    row = [names(before).index(name) for name in pieces[1] if name in both]
    there = [names(now).index(name) for name in pieces[1] if name in both]
    assert len(row) > 2
    states = [
        keras.ops.convert_to_numpy(each.encode(np.array([actual])))
        for each, actual in ((model, row), (fresh, there))
    ]
    np.testing.assert_allclose(states[0], states[1], atol=1e-6)


def test_a_projection_of_its_own_is_refused(vocabularies):
    before, now = vocabularies
    model = models.Transformer(before.size, **SHAPE, tie="inputs")
    with pytest.raises(ValueError, match="tied embeddings.*tie='inputs'"):
        fine_tuning.with_vocabulary(model, before, now)


def test_a_piece_of_unknown_characters_begins_as_in_a_new_model(vocabularies):
    before, now = vocabularies
    model = models.Transformer(before.size, **SHAPE)
    model.target_embedding.embeddings.assign(np.full((before.size, 8), 7.0, "float32"))
    fresh, _ = fine_tuning.with_vocabulary(model, before, now)
    table = keras.ops.convert_to_numpy(fresh.target_embedding.embeddings)
    new = table[names(now).index("ß")]
    assert np.abs(new).max() < 3 and new.std() > 0
    assert np.all(table[names(now).index("▁haus")] == 7.0)
