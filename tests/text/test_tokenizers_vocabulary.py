"""Vocabularies of the library `tokenizers`, trained here and read."""

import json
import pathlib

import numpy as np
import pytest

from keras_tfm.text import (
    LabelBatches,
    LabeledDataset,
    TokenizersVocabulary,
    Vocabulary,
    load_vocabulary,
)

pytestmark = pytest.mark.backend("tensorflow", "torch")
TEXTS = ["The cat sat on the mat.", "Cats, café and mats!", "A cat; a mat."] * 3


@pytest.fixture(scope="module")
def word_piece():
    return TokenizersVocabulary.train(TEXTS, size=70)


@pytest.fixture(scope="module")
def byte_level():
    """As RoBERTa's: byte-level BPE, two marks between texts, padding 1."""
    import tokenizers as library

    made = library.Tokenizer(library.models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(TEXTS, trainer)
    made.post_processor = library.processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    made.enable_truncation(4)
    made.enable_padding(length=8)
    return TokenizersVocabulary(made.to_str())


def test_word_piece_cuts_as_bert_does(word_piece):
    special = [word_piece.pad_id, word_piece.unknown_id, word_piece.start_id]
    special += [word_piece.end_id, word_piece.mask_id]
    assert special == [0, 1, 2, 3, 4] and word_piece.separator_ids == (3,)
    [ids] = word_piece.encode(["CATS, matted é 7"])
    pieces = word_piece.tokens(ids)
    assert pieces[:2] == ["cats", ","] and pieces[2] == "mat"
    assert pieces[-2:] == ["e", "[UNK]"]  # without its accent; never seen
    assert word_piece.decode([ids])[0].startswith("cats, mat")


def test_marks_are_read_off_the_tokenizer(byte_level):
    marks = (byte_level.start_id, byte_level.separator_ids, byte_level.end_id)
    assert marks == (0, (2, 2), 2)
    special = (byte_level.pad_id, byte_level.unknown_id, byte_level.mask_id)
    assert special == (1, 3, 4)


def test_what_the_file_says_of_cutting_and_padding_is_left_out(byte_level):
    [long, short] = byte_level.encode(["the cat sat on the mat. " * 4, "a"])
    assert len(long) > 20 and len(short) == 1


@pytest.mark.parametrize("kind", ["word_piece", "byte_level", "sentencepiece"])
def test_pieces_are_put_together_to_words(kind, request):
    if kind == "sentencepiece":
        vocabulary = Vocabulary.train(TEXTS, size=290, exact=False)
    else:
        vocabulary = request.getfixturevalue(kind)
    [ids] = vocabulary.encode(["the sats sat"])
    numbers, words = vocabulary.word_indices(ids), vocabulary.words(ids)
    assert words == ["the", "sats", "sat"]
    assert len(numbers) == len(ids) > 3 and sorted(set(numbers)) == [0, 1, 2]
    assert numbers == sorted(numbers)
    [unknown] = vocabulary.encode(["the \u0416"])
    assert vocabulary.words(unknown)[1] == (
        "[UNK]" if kind == "word_piece" else "\u0416"
    )
    assert vocabulary.words([]) == vocabulary.word_indices([]) == []


def test_a_saved_vocabulary_is_told_apart_and_cuts_alike(word_piece, tmp_path):
    word_piece.save(tmp_path / "one")
    again = load_vocabulary(tmp_path / "one")
    assert isinstance(again, TokenizersVocabulary)
    assert again.encode(TEXTS) == word_piece.encode(TEXTS)
    other = Vocabulary.train(TEXTS, size=290, exact=False)
    other.save(tmp_path / "two")
    assert isinstance(load_vocabulary(tmp_path / "two"), Vocabulary)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def test_rows_of_pairs_are_the_tokenizers_own(byte_level, word_piece):
    """What stands before, between and after texts, and their segments."""
    texts = [("the cat", "a mat."), ("cats", "the cat sat on")]
    for vocabulary in (byte_level, word_piece):
        tokenizer = vocabulary._tokenizer
        batches = LabelBatches(
            LabeledDataset(texts, ["x", "y"]), vocabulary, num_buckets=1
        )
        inputs, labels = batches.ordered_batch(0)
        for ids, segments, label in zip(
            inputs["token_ids"], inputs["segment_ids"], labels, strict=True
        ):
            wanted = tokenizer.encode(*texts[label])
            count = len(wanted.ids)
            assert ids[:count].tolist() == wanted.ids
            assert (ids[count:] == vocabulary.pad_id).all()
            if vocabulary is word_piece:
                assert segments[:count].tolist() == wanted.type_ids


def test_segments_are_given_where_they_are_asked_for(word_piece):
    single = LabeledDataset(["the cat", "a mat"], ["x", "y"])
    inputs, _ = LabelBatches(single, word_piece, segments=True).ordered_batch(0)
    np.testing.assert_array_equal(inputs["segment_ids"], 0)
    paired = LabeledDataset([("the cat", "a mat")] * 2, ["x", "y"])
    inputs, _ = LabelBatches(paired, word_piece, segments=False).ordered_batch(0)
    assert list(inputs) == ["token_ids"]


def test_what_is_no_tokenizer_of_encoders_is_refused(word_piece, tmp_path):
    with pytest.raises(ValueError, match="no tokenizer of the library"):
        TokenizersVocabulary("{}")
    with pytest.raises(TypeError, match="Received: bytes. .*load"):
        TokenizersVocabulary(b"{}")
    plain = {**json.loads(word_piece.model), "post_processor": None}
    with pytest.raises(ValueError, match="One token is wanted before.*post-processor"):
        TokenizersVocabulary(json.dumps(plain))
    with pytest.raises(ValueError, match="learned from text. Received: none"):
        TokenizersVocabulary.train(["", " "])
    file = tmp_path / "broken.json"
    file.write_text("{")
    with pytest.raises(ValueError, match="broken.json: `model` is no tokenizer"):
        TokenizersVocabulary.load(file)
    with pytest.raises(TypeError, match="list of strings. Received one string"):
        word_piece.encode("the cat")
    with pytest.raises(ValueError, match="other ways.*WordPiece"):
        LabelBatches(
            LabeledDataset(["the cat", "a mat"], ["x", "y"]),
            word_piece,
            subword_sampling=0.1,
        )


def test_fewer_pieces_are_taken_where_the_text_has_no_more():
    with pytest.raises(ValueError, match="too small for so many pieces"):
        Vocabulary.train(TEXTS, size=5_000)
    for kind in ("unigram", "bpe"):
        few = Vocabulary.train(TEXTS, size=5_000, model_type=kind, exact=False)
        assert 270 < few.size < 400


def test_a_file_of_lines_is_text_too(tmp_path):
    file = pathlib.Path(tmp_path, "texts.txt")
    file.write_text("\n".join(TEXTS))
    from_file = TokenizersVocabulary.train(file, size=70)
    assert from_file.encode(TEXTS) == TokenizersVocabulary.train(TEXTS, size=70).encode(
        TEXTS
    )
