"""The vocabulary of a translation run: normalization and coverage are flags."""

import pytest

from keras_tfm.recipes import corpora, tokenization, translation_defaults
from keras_tfm.text import Pairs
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
