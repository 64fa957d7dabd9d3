"""Italian training pairs: the tool that makes some, and the written ones."""

import pytest

from tools import everyday, italian_pairs

pytestmark = pytest.mark.backend("torch")  # no computation: one is enough

WRITTEN_PAIRS = everyday.ROOT / "tools" / "everyday_italian.tsv"


def test_sentences_with_words_that_apertium_does_not_know_are_dropped():
    sources = ["Tom sings.", "Tom sings.", "A stapler.", "He went."]
    translations = ["¿*Tom canta?", "*Tom canta.", "Una *grapadora.", "@andar."]
    assert italian_pairs.known_pairs(sources, translations) == [
        ("Tom sings.", "Tom canta?"),
        ("Tom sings.", "Tom canta."),
    ]


def test_pairs_of_words_include_both_ends():
    assert italian_pairs.word_pairs(["L’acqua è\nfredda."]) == {
        ("<s>", "l'"),
        ("l'", "acqua"),
        ("acqua", "è"),
        ("è", "fredda"),
        ("fredda", "."),
        (".", "</s>"),
    }


def test_sources_of_doubtful_targets_are_marked_and_bad_targets_dropped():
    attested = italian_pairs.word_pairs(["Maria canta bene.", "La stagione è bella."])
    pairs = [
        ("Tom sings well.", "Tom canta bene."),
        ("He sings well.", "Lui canta bene."),
        ("Six new words in a row.", "Sei parole nuove in fila una."),
        ("The station is pretty.", "La stagione è bella."),
        ("The season is pretty.", "La stagione è bella."),
        ("He sings well.", "Canta así bene."),
        ("Of my father.", "Del mio padre."),
    ]
    assert list(italian_pairs.fluent(pairs, attested)) == [
        pairs[0],
        ("~ He sings well.", "Lui canta bene."),
        ("The season is pretty.", "La stagione è bella."),
        ("~ Of my father.", "Di mio padre."),
    ]


def letters(text):
    return "".join(filter(str.isalnum, text.casefold()))


def test_written_pairs_have_no_everyday_input():
    lines = WRITTEN_PAIRS.read_text(encoding="utf-8").splitlines()
    header, *pairs = [line.split("\t") for line in lines]
    assert header == ["en", "it"] and len(pairs) > 14_000
    assert all(len(pair) == 2 and all(map(str.strip, pair)) for pair in pairs)
    for column, direction in enumerate(("en-it", "it-en")):
        cases = everyday.read_cases(everyday.FOLDER / f"{direction}.tsv")
        inputs = {letters(case.source) for case in cases} - {""}
        assert not inputs & {letters(pair[column]) for pair in pairs}
