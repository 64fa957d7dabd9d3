"""Segmentation: sentences, abbreviations, limits, whitespace."""

import re

import pytest

from keras_tfm.pipelines import Segmenter, split_sentences
from keras_tfm.pipelines.protection import Span, cut_edges
from keras_tfm.text import TokenizersVocabulary
from tests.pipelines.random_translators import hostile
from tests.pipelines.sentence_cases import CASES, cases

pytestmark = pytest.mark.backend("torch")


@pytest.mark.parametrize("language", sorted(CASES))
def test_sentences_end_where_they_do(language):
    for case_language, text, sentences in cases():
        if case_language == language:
            assert split_sentences(text) == sentences


def test_a_run_of_marks_takes_linear_time():
    for text in ("!" * 100_000, "a." * 50_000, ". " * 50_000, "»" * 100_000):
        assert "".join(split_sentences(text)) == text.replace(" ", "")


def test_a_run_of_spaces_takes_linear_time():
    spaces, spans = " " * 100_000, {"\U000f0000": Span("", "emoji")}
    sentences = ["So it is.", "1 etc.", "1"]
    assert split_sentences(spaces.join(sentences)) == sentences
    text = f"\U000f0000So it is.{spaces}So{spaces}"
    assert cut_edges(text, spans)[2:] == [text[1:-100_000], spaces, ""]


def test_a_vocabulary_of_wordpiece_has_word_starts():
    vocabulary = TokenizersVocabulary.train(["a small house. and a boat"] * 3, 60)
    assert not Segmenter(vocabulary).starts.all()


def test_a_splitter_can_be_replaced(translator):
    text = "a house; a boat; an old man"
    with_semicolons = translator.replace(
        splitter=lambda line: re.findall("[^;]+;?", line), split_tokens=1
    )
    [source] = with_semicolons.encode([text])
    ids = [segment.ids for segment in source.segments]
    texts = translator.vocabulary.decode(ids)
    assert [text.strip() for text in texts] == ["a house;", "a boat;", "an old man"]
    assert [segment.separator for segment in source.segments] == ["", " ", " "]


@pytest.mark.parametrize("result", [None, ["a"], ["boat", "a house"], [1], "abc"])
def test_a_splitter_must_return_the_sentences_of_the_text(translator, result):
    translator = translator.replace(splitter=lambda line: result, split_tokens=1)
    with pytest.raises(ValueError, match="`splitter` must return .* in order; got"):
        translator.encode(["a house. boat"])


def test_a_long_text_is_split_after_its_sentences(translator):
    sentences = ["a house and a boat.", "an old man!", 'the small "boat".']
    longest = max(map(len, translator.vocabulary.encode(sentences)))
    short = translator.replace(split_tokens=longest)
    translation = short(" ".join(sentences))
    assert translation == " ".join(translator(sentences))
    assert translation != translator(" ".join(sentences))


def test_a_long_sentence_is_split_between_words(translator):
    text = "a garden " * 40
    [source] = translator.encode([text])
    rows = [segment.ids for segment in source.segments]
    [ids] = translator.vocabulary.encode([text])
    assert [token for row in rows for token in row] == ids
    assert {len(row) for row in rows[:-1]} <= set(range(50, 61))
    assert source.trailing == " " and len(rows) > 2


@pytest.mark.parametrize("limits", [(1, 3), (5, 9), (50, 60)])
def test_no_token_is_lost_and_no_segment_is_too_long(translator, limits):
    texts = hostile()
    segmenter, encode = translator.segmenter, translator.vocabulary.encode
    for source in segmenter.segment(texts, *limits):
        assert all(0 < len(segment.ids) <= limits[1] for segment in source.segments)
        lines = source.text.replace("\x00", "\ufffd").splitlines()
        tokens = sum(len(row) for row in encode([line.strip() for line in lines]))
        if "\x85" not in source.text and "\u2028" not in source.text:
            assert sum(len(segment.ids) for segment in source.segments) >= tokens - 2
    for ids in encode(texts):
        ends = [0] + [end for _, end, _ in segmenter.split([("", ids)], *limits)]
        assert ends[-1] == len(ids) and ends[:-1] == sorted(set(ends[:-1]))
