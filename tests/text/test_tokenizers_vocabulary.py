"""Vocabularies of the library `tokenizers`, trained and loaded."""

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

pytestmark = pytest.mark.backend("torch")  # no backend is involved
TEXTS = ["The cat sat on the mat.", "Cats, café and mats!", "A cat; a mat."] * 3


@pytest.fixture(scope="module")
def word_piece():
    return TokenizersVocabulary.train(TEXTS, size=70)


@pytest.fixture(scope="module")
def byte_level():
    """Byte-level BPE as in RoBERTa: two separators, padding 1."""
    import tokenizers as library

    tokenizer = library.Tokenizer(library.models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.post_processor = library.processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0)
    )
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=8)
    return TokenizersVocabulary(tokenizer.to_str())


def test_word_piece_tokenizes_as_bert_does(word_piece):
    special = [word_piece.pad_id, word_piece.unknown_id, word_piece.start_id]
    special += [word_piece.end_id, word_piece.mask_id]
    assert special == [0, 1, 2, 3, 4] and word_piece.separator_ids == (3,)
    [ids] = word_piece.encode(["CATS, matted é 7"])
    tokens = word_piece.tokens(ids)
    assert tokens[:2] == ["cats", ","] and tokens[2] == "mat"
    assert tokens[-2:] == ["e", "[UNK]"]  # without its accent; unknown
    assert word_piece.decode([ids])[0].startswith("cats, mat")


def test_special_ids_come_from_the_tokenizer(byte_level):
    special_ids = (byte_level.start_id, byte_level.separator_ids, byte_level.end_id)
    assert special_ids == (0, (2, 2), 2)
    special = (byte_level.pad_id, byte_level.unknown_id, byte_level.mask_id)
    assert special == (1, 3, 4)


def test_truncation_and_padding_of_the_file_are_disabled(byte_level):
    [long, short] = byte_level.encode(["the cat sat on the mat. " * 4, "a"])
    assert len(long) > 20 and len(short) == 1


@pytest.mark.parametrize("kind", ["word_piece", "byte_level", "sentencepiece"])
def test_tokens_are_joined_to_words(kind, request):
    if kind == "sentencepiece":
        vocabulary = Vocabulary.train(TEXTS, size=290, exact=False)
    else:
        vocabulary = request.getfixturevalue(kind)
    [ids] = vocabulary.encode(["the sats sat"])
    indices, words = vocabulary.word_indices(ids), vocabulary.words(ids)
    assert words == ["the", "sats", "sat"]
    assert len(indices) == len(ids) > 3 and sorted(set(indices)) == [0, 1, 2]
    assert indices == sorted(indices)
    [unknown] = vocabulary.encode(["the \u0416"])
    assert vocabulary.words(unknown)[1] == (
        "[UNK]" if kind == "word_piece" else "\u0416"
    )
    assert vocabulary.words([]) == vocabulary.word_indices([]) == []


def test_a_saved_vocabulary_is_loaded_with_its_class(word_piece, tmp_path):
    word_piece.save(tmp_path / "one")
    loaded = load_vocabulary(tmp_path / "one")
    assert isinstance(loaded, TokenizersVocabulary)
    assert loaded.encode(TEXTS) == word_piece.encode(TEXTS)
    sentencepiece_vocabulary = Vocabulary.train(TEXTS, size=290, exact=False)
    sentencepiece_vocabulary.save(tmp_path / "two")
    assert isinstance(load_vocabulary(tmp_path / "two"), Vocabulary)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def test_encoded_pairs_equal_those_of_the_library(byte_level, word_piece):
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
            expected = tokenizer.encode(*texts[label])
            count = len(expected.ids)
            assert ids[:count].tolist() == expected.ids
            assert (ids[count:] == vocabulary.pad_id).all()
            if vocabulary is word_piece:
                assert segments[:count].tolist() == expected.type_ids


def test_segments_can_be_requested_or_left_out(word_piece):
    single = LabeledDataset(["the cat", "a mat"], ["x", "y"])
    inputs, _ = LabelBatches(single, word_piece, segments=True).ordered_batch(0)
    np.testing.assert_array_equal(inputs["segment_ids"], 0)
    paired = LabeledDataset([("the cat", "a mat")] * 2, ["x", "y"])
    inputs, _ = LabelBatches(paired, word_piece, segments=False).ordered_batch(0)
    assert list(inputs) == ["token_ids"]


def test_a_tokenizer_without_special_tokens_raises(word_piece, tmp_path):
    plain = {**json.loads(word_piece.model), "post_processor": None}
    for model, message in (
        ("{}", "as a tokenizer of the library"),
        (b"{}", "Pass the text of a `tokenizer.json`"),
        (json.dumps(plain), "one token before and one after.*post-processor"),
    ):
        with pytest.raises(ValueError, match=message):
            TokenizersVocabulary(model)
    file = tmp_path / "broken.json"
    file.write_text("{")
    with pytest.raises(ValueError, match="broken.json cannot be read as a voc"):
        TokenizersVocabulary.load(file)


def test_texts_of_another_type_raise(word_piece):
    with pytest.raises(ValueError, match="`texts` must hold text"):
        TokenizersVocabulary.train(["", " "])
    with pytest.raises(TypeError, match="list of strings; got one string"):
        word_piece.encode("the cat")
    examples = LabeledDataset(["the cat", "a mat"], ["x", "y"])
    with pytest.raises(ValueError, match="needs a SentencePiece vocabulary"):
        LabelBatches(examples, word_piece, subword_sampling=0.1)


def test_an_inexact_size_allows_fewer_tokens():
    with pytest.raises(ValueError, match="too large for the text"):
        Vocabulary.train(TEXTS, size=5_000)
    for kind in ("unigram", "bpe"):
        vocabulary = Vocabulary.train(TEXTS, size=5_000, model_type=kind, exact=False)
        assert 270 < vocabulary.size < 400


def test_training_reads_the_lines_of_a_file(tmp_path):
    file = pathlib.Path(tmp_path, "texts.txt")
    file.write_text("\n".join(TEXTS))
    from_file = TokenizersVocabulary.train(file, size=70)
    assert from_file.encode(TEXTS) == TokenizersVocabulary.train(TEXTS, size=70).encode(
        TEXTS
    )


def test_a_text_that_spells_special_tokens_is_text():
    vocabulary = TokenizersVocabulary.train(["fine film [ ] pad sep cls mask unk"] * 9)
    text = "fine [PAD] film [SEP] [CLS] [MASK] [UNK]"
    [ids] = vocabulary.encode([text])
    special = {*vocabulary.special_ids, vocabulary.unknown_id, vocabulary.mask_id}
    assert not special & {*ids}
    assert vocabulary.tokens(ids)[1:4] == ["[", "pad", "]"]
