"""Vocabulary: encoding and decoding, sizes, files, subword sampling."""

import collections
import io
import os
import subprocess
import sys
import timeit

import keras
import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_tfm.text import Vocabulary, learning
from keras_tfm.text.learning import training_lines
from keras_tfm.text.vocabulary import MAX_SINGLE

pytestmark = pytest.mark.backend("torch")  # no backend is involved

TEXTS = ["a small house", "the small garden", "a house in the garden"] * 20


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def small(request):
    return Vocabulary.train(
        TEXTS, size=276, model_type=request.param, normalization="identity"
    )


def test_the_first_tokens_are_padding_unknown_start_end(small):
    assert small.size == len(small) == 276
    assert repr(small) == "<Vocabulary: 276 tokens>"
    assert (small.pad_id, small.unknown_id) == (0, 1)
    assert (small.start_id, small.end_id) == (2, 3)
    assert small.tokens([0, 1, 2, 3]) == ["<pad>", "<unk>", "<s>", "</s>"]
    assert small.tokens([4, 259, 276, -1]) == ["<0x00>", "<0xFF>", "<276>", "<-1>"]


@pytest.mark.parametrize("normalization", ["identity", "nmt_nfkc_cf"])
def test_a_language_tag_is_one_token(small, normalization):
    tagged = Vocabulary.train(
        TEXTS, size=278, normalization=normalization, languages=["de", "zh_Hans"]
    )
    assert tagged.tokens([3, 4, 5, 6]) == ["</s>", "<2de>", "<2zh_Hans>", "<0x00>"]
    assert list(tagged.languages) == ["de", "zh_Hans"] and small.languages == {}
    [plain, whole] = tagged.encode(["a house", "<2zh_Hans> a house"])
    assert whole == tagged.languages["zh_Hans"] + plain and whole[-len(plain) - 1] == 5
    rebuilt = Vocabulary(tagged.model)
    assert rebuilt.languages == tagged.languages
    for code in ("", "de>", "Deutsch Alt", "\u00fc"):
        with pytest.raises(ValueError, match="must be a code of letters"):
            Vocabulary.train(TEXTS, size=280, languages=[code])
    with pytest.raises(ValueError, match="must differ.*'de', 'de'"):
        Vocabulary.train(TEXTS, size=280, languages=["de", "de"])
    with pytest.raises(TypeError, match="one string: 'de'"):
        Vocabulary.train(TEXTS, size=280, languages="de")


@settings(max_examples=200)
@given(
    words=st.lists(st.text(st.characters(exclude_categories=["C", "Z"])), max_size=8)
)
def test_any_text_is_decoded_unchanged_and_has_no_unknown_token(small, words):
    text = " ".join(filter(None, words)).replace("\u2581", "_")
    [ids] = small.encode([text])
    assert small.decode([ids]) == [text]
    assert not {0, 1, 2, 3} & set(ids)


def test_decoding_stops_at_the_end_and_skips_special_and_unknown_ids(small):
    [ids] = small.encode(["a small house"])
    rows = [[2, *ids, 3, *ids], [0, *ids, 276, -1, 10**6, 0], [3, *ids], []]
    assert small.decode(rows) == ["a small house"] * 2 + ["", ""]


def test_decoding_accepts_arrays_and_tensors(small):
    ids = np.array(small.encode(["a house", "a house"]), "int32")
    assert small.decode(ids) == ["a house"] * 2
    assert small.decode(keras.ops.convert_to_tensor(ids)) == ["a house"] * 2
    with pytest.raises(TypeError, match="the ids of one sentence"):
        small.decode(ids[0])
    with pytest.raises(TypeError, match="one string: 'a house'"):
        small.encode("a house")


@pytest.mark.parametrize("size", [-1, 1, 100, 261])
def test_a_size_without_room_for_a_character_is_rejected(size):
    with pytest.raises(ValueError, match=f"`size` must hold 4 special .* size={size}"):
        Vocabulary.train(TEXTS, size=size)


@pytest.mark.parametrize("words", [3, 1_001, 30_000])
def test_training_splits_a_long_repetitive_line_into_segments(words):
    line = " ".join(["good", "film", "bad "][i % 3] for i in range(words))
    segments = list(training_lines([line]))
    assert max(len(segment.split(" ")) for segment in segments) <= 1_000
    assert " ".join(segments) == line
    longer = Vocabulary.train([line + " worse"], size=2_000, exact=False)
    assert longer.decode(longer.encode(["bad film"])) == ["bad film"]


def test_normalization_is_an_option():
    texts = ["ﬁne Ａ"] * 9
    vocabulary = Vocabulary.train(texts, size=266)
    assert vocabulary.decode(vocabulary.encode(["ﬁne Ａ"])) == ["fine A"]
    with pytest.raises(ValueError, match="`normalization` must be one of.*'nfd'"):
        Vocabulary.train(texts, normalization="nfd")
    with pytest.raises(ValueError, match="`model_type` must be one of.*'word'"):
        Vocabulary.train(texts, model_type="word")


def test_files_and_texts_give_the_same_vocabulary(tmp_path):
    path = tmp_path / "a.en"
    path.write_text("\n".join(TEXTS))
    from_texts = Vocabulary.train(TEXTS, size=276)
    assert Vocabulary.train(path, size=276).model == from_texts.model
    assert Vocabulary.train([path], size=276).model == from_texts.model
    # In a list of texts, a path is one short text.
    with pytest.raises(ValueError, match="the largest possible is"):
        Vocabulary.train([str(path)], size=8000)


def test_digits_can_be_separate_tokens():
    texts = ["1989", "in 1989"] * 20
    joined_digits = Vocabulary.train(texts, size=269, model_type="bpe")
    separate_digits = Vocabulary.train(
        texts, size=269, model_type="bpe", split_digits=True
    )
    assert len(joined_digits.encode(["1989"])[0]) < 4
    assert len(separate_digits.encode(["1989"])[0]) >= 4


def test_training_uses_lines_of_any_length():
    texts = ["a"] * 20 + ["zyx " * 5_000, "w\u2585w \0w"]
    vocabulary = Vocabulary.train(
        texts, size=267, model_type="bpe", character_coverage=1.0
    )
    assert len(vocabulary.encode(["zyx"])[0]) < 4
    assert vocabulary.encode(["w"])[0][-1] >= 260  # not a byte token


@pytest.mark.parametrize("coverage", [1.0, 0.9995])
def test_a_rare_character_has_a_token_only_with_full_coverage(coverage):
    texts = ["abcd"] * 1000 + ["z"]
    vocabulary = Vocabulary.train(
        texts, size=266, exact=False, character_coverage=coverage
    )
    assert (vocabulary.encode(["z"])[0][-1] >= 260) == (coverage == 1)
    assert vocabulary.decode(vocabulary.encode(["z"])) == ["z"]
    with pytest.raises(ValueError, match="`character_coverage` must be from 0.98"):
        Vocabulary.train(texts, size=265, character_coverage=0)


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
@pytest.mark.parametrize("as_iterator", [True, False])
def test_rare_characters_never_make_a_size_impossible(caplog, model_type, as_iterator):
    # More different characters than a vocabulary of 300 can hold.
    texts = ["ab abc"] * 50 + [chr(0x4E00 + n) * (1 + n // 20) for n in range(400)]
    vocabulary = Vocabulary.train(
        iter(texts) if as_iterator else texts, size=300, model_type=model_type
    )
    assert vocabulary.size == 300
    rows = vocabulary.encode(["a", chr(0x4E00 + 399), chr(0x4E00)])
    assert [row[-1] >= 260 for row in rows] == [True, True, False]
    assert vocabulary.decode(vocabulary.encode(texts[-3:])) == texts[-3:]
    assert "leaves no token for 364 of 404 characters" in caplog.text


def test_rare_characters_fit_beside_language_tags(caplog):
    texts = [f"<2fr> {chr(0x4E00 + n // 3)} <2de>" for n in range(900)]
    for size in (264, 275, 290):
        vocabulary = Vocabulary.train(texts, size=size, languages=["fr", "de"])
        assert vocabulary.size == size
        [ids] = vocabulary.encode(["<2fr> \u4e00"])
        assert ids[: len(vocabulary.languages["fr"])] == vocabulary.languages["fr"]
    assert len(caplog.messages) == 3


def test_max_texts_draws_texts_by_seed():
    texts = [f"{chr(ord('a') + n % 26)}{n}" for n in range(2000)]
    options = {"size": 300, "max_texts": 300, "exact": False}
    first, repeated, another_seed, whole = (
        Vocabulary.train(texts, **options, seed=1),
        Vocabulary.train(iter(texts), **options, seed=1),
        Vocabulary.train(texts, **options, seed=2),
        Vocabulary.train(texts, **options | {"max_texts": 2000}),
    )
    assert first.model == repeated.model != another_seed.model
    assert whole.model == Vocabulary.train(texts, size=300, exact=False).model
    # Not the first texts: each has the same probability.
    draws = [sample for s in range(60) for sample in learning._sample("abcdef", 2, s)]
    assert min(collections.Counter(draws).values()) > 8 and len(set(draws)) == 6
    with pytest.raises(ValueError, match="`max_texts` must be at least 1"):
        Vocabulary.train(texts, max_texts=0)


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_an_impossible_size_raises_and_the_limits_in_the_error_work(model_type):
    with pytest.raises(
        ValueError, match=r"size=8000, the largest possible is \d+"
    ) as e:
        Vocabulary.train(TEXTS, size=8000, model_type=model_type)
    largest = int(str(e.value).split("possible is ")[1].split(".")[0])
    assert Vocabulary.train(TEXTS, largest, model_type).size == largest
    with pytest.raises(ValueError, match=r"256 bytes.*a character; got size=200"):
        Vocabulary.train(TEXTS, size=200, model_type=model_type)
    smallest = 262
    assert Vocabulary.train(TEXTS, smallest, model_type).size == smallest


def test_texts_of_another_type_raise(tmp_path):
    with pytest.raises(ValueError, match="must hold a text that is not blank"):
        Vocabulary.train(["", " "])
    with pytest.raises(TypeError, match="one string: 'a.en'.*pathlib.Path"):
        Vocabulary.train("a.en")
    with pytest.raises(TypeError, match="strings or paths; got 3 of type int"):
        Vocabulary.train(["a", 3])
    bad = tmp_path / "bad.en"
    bad.write_bytes(b"one\n\xff\n")
    with pytest.raises(ValueError, match="bad.en, line 2: byte 1"):
        Vocabulary.train(bad)


def test_training_and_loading_print_nothing(capfd, tmp_path):
    Vocabulary.train(TEXTS, size=276).save(tmp_path / "a.model")
    Vocabulary.load(tmp_path / "a.model")
    assert capfd.readouterr() == ("", "")


def test_a_saved_vocabulary_is_loaded_unchanged(small, tmp_path):
    path = tmp_path / "a.model"
    path.write_text("an older file")
    small.save(path)
    loaded = Vocabulary.load(str(path))
    assert loaded.model == small.model
    assert loaded.encode(TEXTS) == small.encode(TEXTS)
    assert os.listdir(tmp_path) == ["a.model"]


def test_a_failed_save_keeps_the_older_file(small, tmp_path, monkeypatch):
    path = tmp_path / "a.model"
    path.write_text("an older file")

    def fails(source, target):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="disk full"):
        small.save(path)
    assert path.read_text() == "an older file"
    assert os.listdir(tmp_path) == ["a.model"]


def test_a_foreign_or_damaged_file_raises(small, tmp_path):
    path = tmp_path / "a.model"
    for content in (small.model[:1000], b"junk", b""):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="a.model cannot be .*as a SentencePiece"):
            Vocabulary.load(path)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS),
        model_prefix=str(tmp_path / "b"),
        vocab_size=20,
        minloglevel=2,
    )
    with pytest.raises(ValueError, match=r"got ids=\[-1, 0, 1, 2\].*Vocabulary.train"):
        Vocabulary.load(tmp_path / "b.model")
    with pytest.raises(ValueError, match="use `Vocabulary.load` for a file"):
        Vocabulary("a.model")


def test_sampling_differs_by_seed(small, request):
    # With BPE at 0.1, one seed in a hundred drops no merge of these sentences.
    alpha = {"unigram": 0.1, "bpe": 0.5}[request.node.callspec.params["small"]]
    usual = small.encode(TEXTS)
    first = small.encode_sampled(TEXTS, alpha, seed=1)
    assert first != usual
    assert first == small.encode_sampled(TEXTS, alpha, seed=1)
    assert first != small.encode_sampled(TEXTS, alpha, seed=2)
    assert small.decode(first) == TEXTS


def test_another_process_draws_the_same_samples(small, tmp_path):
    # SentencePiece's own sampling differs in each process.
    small.save(tmp_path / "small.model")
    script = (
        "import sys; from keras_tfm.text import Vocabulary; "
        "vocabulary = Vocabulary.load(sys.argv[1]); "
        "print(vocabulary.encode_sampled(sys.argv[2:], 0.3, seed=5))"
    )
    arguments = [sys.executable, "-c", script, str(tmp_path / "small.model")]
    result = subprocess.run(
        [*arguments, *TEXTS], check=True, capture_output=True, text=True
    )
    assert result.stdout.strip() == str(small.encode_sampled(TEXTS, 0.3, seed=5))


def test_sampling_without_randomness_equals_encoding(small, request):
    # With a large exponent, only the most probable segmentation is drawn.
    alpha = {"unigram": 200.0, "bpe": 0.0}[request.node.callspec.params["small"]]
    texts = [
        *TEXTS,
        "",
        "  two  spaces ",
        "gr\u00f6\u00dfer \u5317\u4eac \U0001f600",
        "a\u2581b",
    ]
    assert small.encode_sampled(texts, alpha, seed=0) == small.encode(texts)


# Words with many segmentations.
RELATED = ["garden gardens warden wardens harden ward ardent den dens art"] * 20


def test_unigram_samples_follow_their_probabilities():
    vocabulary = Vocabulary.train(RELATED, size=290, exact=False)
    processor = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.model)
    score = {
        processor.id_to_piece(i): processor.get_score(i)
        for i in range(260, vocabulary.size)
    }

    def segmentations(text):
        if not text:
            yield (), 0.0
        for length in range(1, len(text) + 1):
            if text[:length] in score:
                for rest, total in segmentations(text[length:]):
                    yield (text[:length], *rest), total + score[text[:length]]

    paths = dict(segmentations("\u2581garden"))
    alpha, count = 0.3, 4000
    weights = np.exp(alpha * np.array([*paths.values()]))
    expected = count * weights / weights.sum()
    rows = vocabulary.encode_sampled(["garden"] * count, alpha, seed=0)
    counts = collections.Counter(tuple(vocabulary.tokens(row)) for row in rows)
    actual = np.array([counts[path] for path in paths])
    assert actual.sum() == count and len(paths) > 2
    deviation = (actual - expected) / np.sqrt(expected * (1 - expected / count))
    assert np.abs(deviation).max() < 4


def test_bpe_dropout_has_the_distribution_of_sentencepiece():
    vocabulary = Vocabulary.train(RELATED, size=290, model_type="bpe", exact=False)
    processor = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.model)
    count, alpha = 4000, 0.3
    texts = ["garden"] * count
    sentencepiece_rows = processor.encode(
        texts, enable_sampling=True, alpha=alpha, nbest_size=-1
    )
    expected = collections.Counter(map(tuple, sentencepiece_rows))
    rows = vocabulary.encode_sampled(texts, alpha, seed=0)
    actual = collections.Counter(map(tuple, rows))
    assert len(expected) > 3
    for row in expected | actual:
        deviation = np.sqrt(expected[row] + actual[row])
        assert abs(expected[row] - actual[row]) < 6 * deviation, vocabulary.tokens(row)


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_sampling_keeps_symbols_that_a_user_has_defined(model_type):
    """A model of another program, without byte fallback."""
    file = io.BytesIO()
    symbols = ["<br", "<sep>", "<br/>"]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([f"{text} <sep> <br/>" for text in TEXTS] * 5),
        model_writer=file,
        vocab_size=60,
        hard_vocab_limit=False,
        model_type=model_type,
        user_defined_symbols=symbols,
        minloglevel=2,
        **{"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3},
    )
    vocabulary = Vocabulary(file.getvalue())
    text = f"{TEXTS[0]}<sep>{TEXTS[1]} <br/>"
    for seed in range(5):
        [ids] = vocabulary.encode_sampled([text], 0.3, seed)
        assert [t for t in vocabulary.tokens(ids) if t in symbols] == symbols[1:]
        assert vocabulary.unknown_id not in ids
        assert vocabulary.decode([ids]) == vocabulary.decode(vocabulary.encode([text]))


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_sampling_keeps_language_tags(model_type):
    vocabulary = Vocabulary.train(
        TEXTS, size=278, model_type=model_type, languages=["de", "fr"]
    )
    [ids] = vocabulary.encode_sampled(["<2fr> a small garden"], 0.3, seed=3)
    tag = vocabulary.languages["fr"]
    assert ids[: len(tag)] == tag
    assert vocabulary.decode([ids]) == vocabulary.decode(
        vocabulary.encode(["<2fr> a small garden"])
    )


def test_the_tensorflow_tokenizer_has_the_same_ids(small):
    pytest.importorskip("tensorflow_text", reason="tensorflow-text is not installed")
    texts = [*TEXTS[:3], "größer 北京 \U0001f600", "", "  two  spaces "]
    ids = small.tensorflow_tokenizer().tokenize(texts).to_list()
    assert ids == small.encode(texts)


def test_without_tensorflow_text_the_error_names_the_extra(small, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_text", None)
    with pytest.raises(ImportError, match=r"keras-tfm\[tensorflow\].*Windows"):
        small.tensorflow_tokenizer()


def test_a_vocabulary_is_called_with_one_text_or_several(vocabulary):
    [ids] = vocabulary.encode(["a house"])
    assert vocabulary("a house") == ids
    assert vocabulary(["a house", "a house"]) == [ids, ids]
    assert len(vocabulary) == vocabulary.size
    assert repr(vocabulary) == f"<Vocabulary: {vocabulary.size:,} tokens>"


def test_a_text_is_encoded_and_decoded_without_threads_of_its_own(small):
    texts = ["a small house", "", "caf\u00e9 \0 \U0001f389"]
    many = small.encode(texts * MAX_SINGLE)
    assert small.encode(texts) * MAX_SINGLE == many
    assert small.decode(small.encode(texts)) == small.decode(many)[:3]
    processor, [ids] = small._processor, small.encode(texts[:1])
    pairs = [
        (lambda: small.encode(texts[:1]), lambda: processor.encode(texts[0])),
        (lambda: small.decode([ids]), lambda: processor.decode(ids)),
    ]
    for checked, direct in pairs:  # a thread takes a hundred times as long
        assert min(timeit.repeat(checked, number=50)) < 15 * min(
            timeit.repeat(direct, number=50)
        )
