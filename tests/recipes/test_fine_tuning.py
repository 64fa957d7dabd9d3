"""A model is fine-tuned with another vocabulary and keeps shared tokens."""

import keras
import numpy as np
import pytest

from keras_tfm import models, text
from keras_tfm.recipes import fine_tuning

OLD_TEXTS = ["the house is old", "the horse is bold", "old houses", "bold horses"]
NEW_TEXTS = ["das haus ist alt", "the house is old", "ßü der hut", "alte häuser"]
SHAPE = {"num_layers": 1, "embedding_dim": 8, "intermediate_dim": 16, "num_heads": 2}


@pytest.fixture(scope="module")
def vocabularies():
    options = {"size": 310, "model_type": "bpe", "exact": False}
    return tuple(
        text.Vocabulary.train(texts * 9, **options) for texts in (OLD_TEXTS, NEW_TEXTS)
    )


def names(vocabulary):
    return vocabulary.tokens(range(vocabulary.size))


def test_tokens_are_spelled_with_tokens_of_the_old_vocabulary(vocabularies):
    old, new = vocabularies
    spelled = dict(zip(names(new), fine_tuning.spell(old, new), strict=True))
    ids = {name: row for row, name in enumerate(names(old))}
    for name, actual in spelled.items():
        if name in ids:
            assert actual == [ids[name]]
    assert spelled["ß"] == spelled["ä"] == []
    for name in set(spelled) - set(ids):
        known_letters = [letter for letter in name if letter in ids]
        assert "".join(old.tokens(spelled[name])) == "".join(known_letters)
    assert spelled["<0xC3>"] == [ids["<0xC3>"]] and spelled["</s>"] == [3]


def test_the_longest_token_from_the_left_is_used():
    old = text.Vocabulary.train(["a ab abc b c"] * 9, size=268, exact=False)
    candidates = {"▁abc", "▁ab", "▁a"} & set(names(old))
    new = text.Vocabulary.train(["abcb abcb"] * 9, size=266, exact=False)
    assert candidates and "▁abcb" in names(new)
    actual = fine_tuning.spell(old, new)[names(new).index("▁abcb")]
    assert old.tokens(actual)[0] == max(candidates, key=len)


@pytest.mark.parametrize("options", [{}, {"tie": "target", "logits_bias": True}])
def test_weights_and_shared_tokens_are_kept(vocabularies, options):
    old, new = vocabularies
    model = models.Transformer(old.size, **SHAPE, **options)
    if options:
        model.target_embedding.bias.assign(np.arange(old.size, dtype="float32"))
    fresh, shared = fine_tuning.with_vocabulary(model, old, new, dropout=0.3)
    assert fresh.vocabulary_size == fresh.target_vocabulary_size == new.size
    assert fresh.config["dropout"] == 0.3 and model.config["dropout"] == 0.1
    shared_names = set(names(old)) & set(names(new))
    assert shared == pytest.approx(len(shared_names) / new.size) and 0.5 < shared < 1
    old_ids = [names(old).index(name) for name in sorted(shared_names)]
    new_ids = [names(new).index(name) for name in sorted(shared_names)]
    for old_matrix, new_matrix in zip(
        fine_tuning.token_variables(model),
        fine_tuning.token_variables(fresh),
        strict=True,
    ):
        old_matrix = keras.ops.convert_to_numpy(old_matrix)
        new_matrix = keras.ops.convert_to_numpy(new_matrix)
        np.testing.assert_array_equal(new_matrix[new_ids], old_matrix[old_ids])
        row = names(new).index("▁haus")
        spelling = fine_tuning.spell(old, new)[row]
        assert len(spelling) > 1
        np.testing.assert_allclose(
            new_matrix[row], old_matrix[spelling].mean(axis=0), rtol=1e-6
        )
    # A sentence of shared tokens has the same states: other weights are equal.
    sentence = "the house is old"
    ids = [np.array(vocabulary.encode([sentence])) for vocabulary in vocabularies]
    tokens = [
        vocabulary.tokens(row[0])
        for vocabulary, row in zip(vocabularies, ids, strict=True)
    ]
    old_row = [names(old).index(name) for name in tokens[1] if name in shared_names]
    new_row = [names(new).index(name) for name in tokens[1] if name in shared_names]
    assert len(old_row) > 2
    states = [
        keras.ops.convert_to_numpy(network.encode(np.array([ids])))
        for network, ids in ((model, old_row), (fresh, new_row))
    ]
    np.testing.assert_allclose(states[0], states[1], atol=1e-6)


def test_an_untied_projection_is_rejected(vocabularies):
    old, new = vocabularies
    model = models.Transformer(old.size, **SHAPE, tie="inputs")
    with pytest.raises(ValueError, match="tied embeddings.*tie='inputs'"):
        fine_tuning.with_vocabulary(model, old, new)


def test_a_token_of_unknown_characters_is_initialized_randomly(vocabularies):
    old, new = vocabularies
    model = models.Transformer(old.size, **SHAPE)
    model.target_embedding.embeddings.assign(np.full((old.size, 8), 7.0, "float32"))
    fresh, _ = fine_tuning.with_vocabulary(model, old, new)
    matrix = keras.ops.convert_to_numpy(fresh.target_embedding.embeddings)
    row = matrix[names(new).index("ß")]
    assert np.abs(row).max() < 3 and row.std() > 0
    assert np.all(matrix[names(new).index("▁haus")] == 7.0)
