"""Files of tokenizers before `tokenizer.json`, as its content."""

import pathlib
from collections.abc import Iterable
from typing import Any

from keras_tfm.file_reading import read_ids, reading
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
            with tokenizer.reading():
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


def word_piece(
    vocab: dict[str, int],
    special: Iterable[str],
    unknown: str,
    prefix: str = "##",
    **normalizer: bool | None,
) -> dict[str, Any]:
    """Makes the `tokenizer.json` of BERT's WordPiece.

    Args:
        vocab: dict from tokens to ids.
        special: strings, special tokens.
        unknown: str, the unknown token.
        prefix: str, before a token that continues a word.
        **normalizer: options of `BertNormalizer`, over `clean_text=True` and
            `handle_chinese_chars=True`.

    Returns:
        dict, without special tokens around a text.
    """
    defaults = {"clean_text": True, "handle_chinese_chars": True}
    return {
        "version": "1.0",
        "added_tokens": special_entries(vocab, special),
        "normalizer": {"type": "BertNormalizer", **defaults, **normalizer},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": prefix, "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": unknown,
            "continuing_subword_prefix": prefix,
            "max_input_chars_per_word": 100,
            "vocab": vocab,
        },
    }


def byte_level(
    vocab: dict[str, int],
    merges: str,
    special: Iterable[str],
    add_prefix_space: bool,
    unknown: str | None = None,
) -> dict[str, Any]:
    """Makes the `tokenizer.json` of a byte-level BPE.

    Args:
        vocab: dict from tokens to ids.
        merges: str, the content of `merges.txt`.
        special: strings, special tokens.
        add_prefix_space: bool. A text begins with a space.
        unknown: str or None, the unknown token.

    Returns:
        dict, without special tokens around a text.
    """
    lines = (line for line in merges.split("\n") if line[:9] != "#version:")
    step = {"type": "ByteLevel", "trim_offsets": True}
    step |= {"add_prefix_space": add_prefix_space}
    return {
        "version": "1.0",
        "added_tokens": special_entries(vocab, special),
        "normalizer": None,
        "pre_tokenizer": step,
        "post_processor": None,
        "decoder": step,
        "model": {
            "type": "BPE",
            "unk_token": unknown,
            "vocab": vocab,
            "merges": [line.strip().split(" ") for line in lines if line.strip()],
        },
    }


def _word_piece(tokenizer, text):
    settings = tokenizer.settings
    vocab = {token: i for i, token in enumerate(text.rstrip("\n").split("\n"))}
    names = {role: tokenizer.name_of(role, name) for role, name in BERT_ROLES.items()}
    content = word_piece(
        vocab,
        names.values(),
        names["unk_token"],
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )
    by_id = {number: token for token, number in vocab.items()}
    first, last = vocab[names["cls_token"]], vocab[names["sep_token"]]
    return with_special_tokens(
        content, lambda ids: [by_id[i] for i in ids], [first], [last], [last]
    )


def _byte_level(tokenizer, text):
    vocab = read_ids(tokenizer.folder / "vocab.json")
    space = bool(tokenizer.settings.get("add_prefix_space"))
    content = byte_level(vocab, text, tokenizer.special_names, space)
    first, last = (tokenizer.name_of(role) for role in ("cls_token", "sep_token"))
    if first in vocab and last in vocab:  # of RoBERTa and BART, not of GPT-2
        content["post_processor"] = {
            "type": "RobertaProcessing",
            "sep": [last, vocab[last]],
            "cls": [first, vocab[first]],
            "trim_offsets": True,
            "add_prefix_space": space,
        }
    return content
