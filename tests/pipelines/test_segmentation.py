"""Segmentation: sentences, abbreviations, limits, whitespace."""

import pathlib

import pytest

import keras_tfm
from keras_tfm.pipelines import SentenceSplitter
from keras_tfm.text import TokenizersVocabulary, Vocabulary
from tests.pipelines.random_translators import hostile

pytestmark = pytest.mark.backend("torch")
FOLDER = pathlib.Path(keras_tfm.__file__).parent / "presets" / "en-de"


@pytest.fixture(scope="module")
def english():
    return Vocabulary.load(FOLDER / "sentencepiece.model")


def test_a_dot_after_an_abbreviation_ends_no_sentence(english):
    sentences = [
        "Dr. Smith and Mrs. J. Doe came on the 3. of May.",
        "So do I.",
        "It is, z. B., St. John and Mr. President!",
        "Tom left .",
        "I saw it.",
        "He is here.",
    ]
    [ids] = english.encode([" ".join(sentences)])
    segments = SentenceSplitter(english).split(ids, 1, 100)
    texts = english.decode([ids[begin:end] for begin, end, _ in segments])
    assert [text.strip() for text in texts] == sentences
    assert [space for _, _, space in segments] == [False] + 5 * [True]


def test_a_vocabulary_of_wordpiece_has_word_starts_and_ends():
    vocabulary = TokenizersVocabulary.train(["a small house. and a boat"] * 3, 60)
    splitter = SentenceSplitter(vocabulary)
    assert splitter.starts.any() and splitter.ends.any()


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
    splitter, encode = translator.splitter, translator.vocabulary.encode
    for source in splitter.segment(texts, *limits):
        assert all(0 < len(segment.ids) <= limits[1] for segment in source.segments)
        lines = source.text.replace("\x00", "\ufffd").splitlines()
        tokens = sum(len(row) for row in encode([line.strip() for line in lines]))
        if "\x85" not in source.text and "\u2028" not in source.text:
            assert sum(len(segment.ids) for segment in source.segments) >= tokens - 2
    for ids in encode(texts):
        ends = [0] + [end for _, end, _ in splitter.split(ids, *limits)]
        assert ends[-1] == len(ids) and ends[:-1] == sorted(set(ends[:-1]))
