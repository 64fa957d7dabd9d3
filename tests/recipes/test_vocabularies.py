"""The vocabulary of a run: normalization and coverage are flags."""

import pytest

from keras_tfm.recipes import (
    classification,
    classification_defaults,
    corpora,
    labeled_corpora,
    language_model,
    tokenization,
    translation_defaults,
)
from keras_tfm.text import LabeledDataset, Pairs
from tests.recipes.animals import flags_for

pytestmark = pytest.mark.backend("torch")  # no backend is involved

PERSIAN = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 \u00bd"


def complete_flags(folder, **changes):
    flags = flags_for("x.tsv", folder, **changes)
    return translation_defaults.complete(flags, num_pairs=30)


@pytest.fixture
def corpus():
    pairs = Pairs([f"I want {n}" for n in range(30)], [PERSIAN] * 30)
    return corpora.Corpus("toy", "en", "fa", pairs, pairs, pairs, "", "", [])


@pytest.mark.parametrize("normalization", ["identity", "nfkc", None])
def test_characters_that_the_normalization_changes_are_printed(
    corpus, tmp_path, capsys, normalization
):
    flags = complete_flags(tmp_path, normalization=normalization)
    vocabulary = tokenization.make(flags, corpus, tmp_path).source
    [decoded] = vocabulary.decode(vocabulary.encode([PERSIAN]))
    out = capsys.readouterr().out
    assert (decoded == PERSIAN) == (normalization == "identity") == (not out)
    assert ("\u200c" in decoded) == (normalization is not None)
    assert ("U+200C ZERO WIDTH NON-JOINER becomes ' ': 30" in out) == (
        normalization is None
    )
    if normalization != "identity":
        assert "U+00BD VULGAR FRACTION ONE HALF becomes '1\u20442': 30" in out
        assert "--normalization identity keeps them" in out


def test_the_coverage_of_characters_is_a_flag(corpus, tmp_path):
    corpus.train.target[:] = [PERSIAN * 9] * 29 + ["\u6f22"]
    has_token = []
    for coverage in (None, 1.0):
        flags = complete_flags(tmp_path, character_coverage=coverage)
        vocabulary = tokenization.make(flags, corpus, tmp_path).source
        has_token.append(vocabulary.encode(["\u6f22"])[0][-1] >= 260)
    assert has_token == [False, True]


def encode_and_decode(name, folder, texts, **changes):
    """Trains the vocabulary of a recipe; returns a text as it reads it."""
    flags = {"out": str(folder), "vocabulary_size": 400, **changes}
    if name == "classification":
        flags = classification.Flags(data="x.tsv", **flags)
        classification_defaults.check(flags)
        data = LabeledDataset(texts, ["a", "b"] * (len(texts) // 2))
        corpus = labeled_corpora.LabeledCorpus("x", data, data, data, "", "", [])
        vocabulary = classification.make_vocabulary(flags, corpus, folder)
    else:
        flags = language_model.Flags(**flags)
        language_model.check(flags)
        vocabulary = language_model.make_vocabulary(flags, texts, folder)
    return vocabulary, vocabulary.decode(vocabulary.encode(["Ab \u00bd"]))[0]


@pytest.mark.parametrize("name", ["classification", "language_model"])
def test_other_recipes_have_the_same_flags(name, tmp_path):
    texts = [f"Ab \u00bd {n}" for n in range(29)] + ["\u6f22"]
    vocabulary, default = encode_and_decode(name, tmp_path, texts)
    half = "1\u20442"
    assert default == (f"ab {half}" if name == "classification" else f"Ab {half}")
    for normalization, expected in (
        ("identity", "Ab \u00bd"),
        ("nfkc_cf", "ab " + half),
    ):
        changes = {"normalization": normalization}
        assert encode_and_decode(name, tmp_path, texts, **changes)[1] == expected
    texts = [PERSIAN * 9] * 29 + ["\u6f22"]
    has_token = []
    for coverage in (None, 1.0):
        changes = {"character_coverage": coverage}
        vocabulary, _ = encode_and_decode(name, tmp_path, texts, **changes)
        has_token.append(vocabulary.encode(["\u6f22"])[0][-1] >= 260)
    assert has_token == [False, True]
    with pytest.raises(ValueError, match="--character-coverage must be from 0.98"):
        encode_and_decode(name, tmp_path, texts, character_coverage=0.5)


@pytest.mark.parametrize("name", ["subword_model", "normalization"])
def test_a_vocabulary_of_the_parent_has_no_flags(tmp_path, name):
    value = {"subword_model": "bpe", "normalization": "identity"}[name]
    changes = {"size": None, "num_layers": None, "vocabulary_size": None, name: value}
    flags = flags_for("x.tsv", tmp_path, init_from="en-de", **changes)
    with pytest.raises(ValueError, match="needs --vocabulary-size with --from; got '"):
        translation_defaults.check(flags)
