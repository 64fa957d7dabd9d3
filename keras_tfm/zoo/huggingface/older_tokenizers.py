"""Files of tokenizers before `tokenizer.json`, as its content."""

import pathlib
from typing import Any

from keras_tfm.zoo.config_file import read_json, reading
from keras_tfm.zoo.huggingface.tokenizer_files import (
    CAMEMBERT,
    FAIRSEQ,
    from_fairseq,
    special_entries,
    with_special_tokens,
)
from keras_tfm.zoo.sentencepiece_models import read_model

SENTENCEPIECE_FILES = ("sentencepiece.bpe.model", "spiece.model")
SENTENCEPIECE_FILES += ("sentencepiece.model",)
BERT_ROLES = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]"}
BERT_ROLES |= {"sep_token": "[SEP]", "mask_token": "[MASK]"}


def read(tokenizer: Any) -> dict[str, Any]:
    """Makes a `tokenizer.json` of older files.

    Args:
        tokenizer: `TokenizerFolder`.

    Returns:
        dict; empty without such files.

    Raises:
        ValueError: a file is damaged.
    """
    vocab, merges = (tokenizer.folder / n for n in ("vocab.txt", "merges.txt"))
    if vocab.is_file():
        with reading(vocab, "a vocabulary of WordPiece"):
            return _word_piece(tokenizer, vocab.read_text("utf-8"))
    if merges.is_file() and (tokenizer.folder / "vocab.json").is_file():
        with reading(merges, "merges of a byte-level vocabulary"):
            return _byte_level(tokenizer, merges.read_text("utf-8"))
    name = str(tokenizer.settings.get("tokenizer_class") or tokenizer.model_type)
    name = name.lower().replace("-", "")
    for start, first in (("xlmroberta", FAIRSEQ), ("camembert", CAMEMBERT)):
        model = read_sentencepiece(tokenizer.folder) if name.startswith(start) else None
        if model is not None:
            with reading(tokenizer.folder, "a tokenizer of fairseq"):
                return from_fairseq(model, first)
    return {}


def read_sentencepiece(folder: pathlib.Path) -> Any:
    """Reads the SentencePiece model of a folder.

    Args:
        folder: path.

    Returns:
        `ModelProto`; None without a file of it.
    """
    files = (folder / name for name in SENTENCEPIECE_FILES)
    file = next((file for file in files if file.is_file()), None)
    return None if file is None else read_model(file)


def _word_piece(tokenizer, text):
    lower = tokenizer.settings.get("do_lower_case", True)
    vocab = {token: i for i, token in enumerate(text.rstrip("\n").split("\n"))}
    names = {role: tokenizer.name_of(role, name) for role, name in BERT_ROLES.items()}
    content = {
        "version": "1.0",
        "added_tokens": special_entries(vocab, names.values()),
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": tokenizer.settings.get(
                "tokenize_chinese_chars", True
            ),
            "strip_accents": tokenizer.settings.get("strip_accents"),
            "lowercase": lower,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": names["unk_token"],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocab,
        },
    }
    by_id = {number: token for token, number in vocab.items()}
    first, last = vocab[names["cls_token"]], vocab[names["sep_token"]]
    return with_special_tokens(
        content, lambda ids: [by_id[i] for i in ids], [first], [last], [last]
    )


def _byte_level(tokenizer, text):
    vocab = read_json(tokenizer.folder / "vocab.json")
    lines = text.split("\n")
    merges = [line.split(" ") for line in lines if line and line[:9] != "#version:"]
    space = {"add_prefix_space": bool(tokenizer.settings.get("add_prefix_space"))}
    byte_level = {"type": "ByteLevel", "trim_offsets": True, **space}
    content = {
        "version": "1.0",
        "added_tokens": special_entries(vocab, tokenizer.special_names),
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "unk_token": None,
            "vocab": vocab,
            "merges": merges,
        },
    }
    first, last = (tokenizer.name_of(role) for role in ("cls_token", "sep_token"))
    if first in vocab and last in vocab:  # of RoBERTa and BART, not of GPT-2
        content["post_processor"] = {
            "type": "RobertaProcessing",
            "sep": [last, vocab[last]],
            "cls": [first, vocab[first]],
            "trim_offsets": True,
            **space,
        }
    return content
