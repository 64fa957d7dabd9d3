"""A SentencePiece model is rebuilt from `tokenizer.json`."""

import copy

import pytest

from keras_tfm.text import Vocabulary
from keras_tfm.zoo.huggingface.tokenizer_files import from_sentencepiece
from keras_tfm.zoo.sentencepiece_models import from_tokenizer_json, read_model

pytestmark = pytest.mark.backend("torch")  # no backend is used
TEXTS = ["a house, an  old house", "the horses of a house", "A Ｈorse…"]


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def vocabulary(request):
    return Vocabulary.train(
        TEXTS * 9, size=310, model_type=request.param, exact=False, languages=["de"]
    )


@pytest.fixture(scope="module")
def whole(vocabulary):
    return from_sentencepiece(vocabulary)


def test_subwords_and_normalization_are_rebuilt(vocabulary, whole):
    expected, actual = read_model(vocabulary.model), from_tokenizer_json(whole, "it")
    for name in ("remove_extra_whitespaces", "add_dummy_prefix"):
        assert getattr(actual.normalizer_spec, name)
        assert getattr(expected.normalizer_spec, name)
    charsmap = expected.normalizer_spec.precompiled_charsmap
    assert actual.normalizer_spec.precompiled_charsmap == charsmap != b""
    assert actual.trainer_spec.model_type == expected.trainer_spec.model_type
    names = [piece.piece for piece in actual.pieces]
    assert sorted(names) == sorted({piece.piece for piece in expected.pieces})
    kinds = {piece.piece: piece.type for piece in actual.pieces}
    assert kinds["<0x41>"] == expected.pieces[0x41 + 6].type  # a byte
    assert kinds["<unk>"] == expected.pieces[1].type


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("model", "type"), "WordPiece"),
        (("pre_tokenizer",), {"type": "ByteLevel"}),
        (("pre_tokenizer",), None),
        (("normalizer",), {"type": "Lowercase"}),
        (("normalizer",), {"type": "Sequence", "normalizers": [{"type": "NFD"}]}),
    ],
)
def test_unsupported_segmentations_return_none(whole, keys, value):
    assert from_tokenizer_json(replace_value(whole, keys, value), "it") is None


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("model",), None),
        (("model", "vocab"), 7),
        (("model", "vocab"), [["a"], ["b"]]),
        (("model", "vocab"), {"a": "b", "c": 1}),
        (("added_tokens",), [7]),
        (("normalizer",), {"type": "Precompiled", "precompiled_charsmap": "A"}),
        (("normalizer",), {"type": "Sequence"}),
        (("pre_tokenizer",), {"prepend_scheme": "always"}),
    ],
)
def test_a_damaged_file_is_rejected(whole, keys, value):
    with pytest.raises(ValueError, match="it cannot be read as a tokenizer.*damaged"):
        from_tokenizer_json(replace_value(whole, keys, value), "it")


def replace_value(whole, keys, value):
    result = copy.deepcopy(whole)
    inner = result
    for name in keys[:-1]:
        inner = inner[name]
    inner[keys[-1]] = value
    return result
