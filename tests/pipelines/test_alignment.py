"""Word alignments: words of tokens, both directions, segments, error rates."""

import pathlib

import numpy as np
import pytest

from keras_tfm.pipelines import Translator
from keras_tfm.pipelines.alignment import (
    align_words,
    join_alignments,
    realign,
    token_words,
)

pytestmark = pytest.mark.backend("torch")
GOLD = pathlib.Path(__file__).with_name("aligned.txt")


@pytest.fixture(scope="module")
def preset():
    return Translator.from_preset("en-de", return_attention=True)


def test_tokens_belong_to_words(preset):
    vocabulary = preset.vocabulary
    [ids] = vocabulary.encode(["Unbelievably good, Zoë!"])
    words = token_words(vocabulary, [*ids, vocabulary.end_id])
    assert words[-1] == -1 and words[:-1] == sorted(words[:-1])
    assert set(words[:-1]) == {0, 1, 2} and len(ids) > 3


def test_words_are_linked_in_both_directions():
    # The last of 3 source words has two tokens; tag and end have no word.
    source, target = [-1, 0, 1, 2, 2], [0, 1, 1, -1]
    attention = np.array(
        [
            [0.9, 0.1, 0.0, 0.0, 0.0],
            [0.0, 0.1, 0.3, 0.3, 0.3],
            [0.0, 0.1, 0.3, 0.3, 0.3],
            [0.0, 0.0, 0.0, 0.0, 1.0],
        ]
    )
    assert align_words(attention, source, target) == [(0, 0), (1, 1), (2, 1)]
    assert align_words(attention, [-1] * 5, target) == []


def test_segments_are_joined_at_spaces_and_inside_words():
    alignments = [[(0, 1)], [(0, 0)], [(0, 0), (1, 0)]]
    sides = (["a", "b", "c d"], ["x y", "z", "w"])
    links = join_alignments(alignments, sides, ["", "\n", " "])
    assert links == [(0, 1), (1, 2), (2, 3), (3, 3)]
    links = join_alignments(alignments, sides, ["", "", ""])
    assert links == [(0, 1), (1, 1)]


def test_long_spans_have_few_links():
    # A span of 5,000 words would have 25 million links to its copy.
    words = {0: range(2), 1: range(2, 5), "span": range(5, 1_005)}
    links = realign([(0, 1), ("span", "span"), (0, "span"), (2, 0)], words, words)
    assert {(i, j) for i in range(2) for j in range(2, 5)} < set(links)
    assert {(n, n) for n in range(5, 1_005)} < set(links)
    assert {j for i, j in links if i < 2} == {*range(2, 1_005)}
    assert len(links) == 6 + 1_000 + 1_000


def test_words_of_every_line_are_linked(preset):
    text = "  Good morning!\n\nWhere is the station? "
    [hypothesis] = preset.translate(text).hypotheses
    assert hypothesis.text == "  Guten Morgen!\n\nWo ist der Bahnhof? "
    assert hypothesis.alignment == [(n, n) for n in range(6)]
    assert preset.translate("").hypotheses[0].alignment is None


@pytest.mark.slow
@pytest.mark.parametrize(("name", "limit"), [("en-de", 0.10), ("de-en", 0.09)])
def test_alignments_of_presets_are_those_by_hand(name, limit):
    translator = Translator.from_preset(name, return_attention=True)
    common = total = 0
    for line in GOLD.read_text("utf-8").splitlines():
        *texts, links = line.split(" ||| ")
        gold = {tuple(map(int, link.split("-"))) for link in links.split()}
        if name == "de-en":
            texts, gold = texts[::-1], {(j, i) for i, j in gold}
        source, target = texts
        [hypothesis] = translator.translate(source, target_prefix=target).hypotheses
        count = len(target.split())
        links = {link for link in hypothesis.alignment if link[1] < count}
        common, total = common + len(links & gold), total + len(links) + len(gold)
    assert 1 - 2 * common / total < limit


def test_language_tags_are_no_words():
    translator = Translator.from_preset("en-it", return_attention=True)
    result = translator.translate("Where is the station?")
    assert result.text == "Dov'\u00e8 la stazione?"
    assert (3, 2) in result.hypotheses[0].alignment
    assert result.hypotheses[0].alignment[0] == (0, 0)
