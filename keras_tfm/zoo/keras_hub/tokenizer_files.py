"""Vocabularies as the tokenizer files of KerasHub."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_tfm.text import TokenizersVocabulary, Vocabulary
from keras_tfm.zoo import sentencepiece_models
from keras_tfm.zoo.huggingface.tokenizer_files import FAIRSEQ
from keras_tfm.zoo.keras_hub.architectures import Architecture
from keras_tfm.zoo.keras_hub.tokenizers import (
    ASSETS,
    BYTE_LEVEL,
    CONFIG,
    MERGES,
    SENTENCEPIECE,
    WORD_PIECE,
)

# Tokens stand in files, and yet the config must name them.
NO_MODEL, NO_TOKENS = {"proto": None}, {"vocabulary": None}
NAMES = [CONFIG]
NAMES += [f"{ASSETS}/{n}" for n in (WORD_PIECE, BYTE_LEVEL, MERGES, SENTENCEPIECE)]
SPECIAL = {
    "WordPiece": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
    "RobertaTokenizer": ["<s>", "</s>", "<pad>", "<mask>"],
    "BartTokenizer": ["<s>", "</s>", "<pad>"],
    "GPT2Tokenizer": ["<|endoftext|>"],
}
# What each architecture tokenizes text with.
TYPES = {"bert": "WordPiece", "distil_bert": "WordPiece", "t5": "SentencePiece"}
TYPES |= {"xlm_roberta": "Unigram"} | dict.fromkeys(("roberta", "gpt2", "bart"), "BPE")


def type_of(vocabulary: Vocabulary | TokenizersVocabulary | None) -> str | None:
    """Returns `"WordPiece"`, `"BPE"`, `"Unigram"` or `"SentencePiece"`.

    Args:
        vocabulary: `Vocabulary`, `TokenizersVocabulary` or None.
    """
    if isinstance(vocabulary, TokenizersVocabulary):
        return json.loads(vocabulary.model)["model"]["type"]
    return None if vocabulary is None else "SentencePiece"


def files(
    vocabulary: Vocabulary | TokenizersVocabulary,
    architecture: Architecture,
    rows: np.ndarray,
) -> tuple[dict[str, Any], Mapping[str, str | bytes]]:
    """Makes the config and the assets of a tokenizer.

    Args:
        vocabulary: `Vocabulary` or `TokenizersVocabulary`.
        architecture: `Architecture`.
        rows: int array, the id here of each id in the preset.

    Returns:
        The config, and dict from paths to contents.

    Raises:
        ValueError: KerasHub has no such tokenizer.
    """
    kind, expected = type_of(vocabulary), TYPES[architecture.package]
    if kind != expected:
        raise ValueError(
            f"`vocabulary` must be of type {expected} for a {architecture.title} of "
            f"KerasHub; got {kind}. Write the model without a vocabulary."
        )
    if kind == "SentencePiece":
        return NO_MODEL, {
            f"{ASSETS}/{SENTENCEPIECE}": _without_unused(vocabulary, rows)
        }
    content = json.loads(vocabulary.model)
    if kind == "Unigram":
        return NO_MODEL, {f"{ASSETS}/{SENTENCEPIECE}": _xlm_roberta(content)}
    numbers = {int(row): number for number, row in enumerate(rows)}
    vocab = content["model"]["vocab"]
    vocab = {t: numbers[i] for t, i in vocab.items() if i in numbers}
    name = f"{architecture.title}Tokenizer"
    _check_special(SPECIAL.get(kind) or SPECIAL[name], vocab)
    if kind == "WordPiece":
        return _word_piece(content, vocab)
    merges = [
        m if isinstance(m, str) else " ".join(m) for m in content["model"]["merges"]
    ]
    space = (content.get("pre_tokenizer") or {}).get("add_prefix_space", False)
    return {**NO_TOKENS, "merges": None, "add_prefix_space": space}, {
        f"{ASSETS}/{BYTE_LEVEL}": json.dumps(vocab),
        f"{ASSETS}/{MERGES}": "".join(f"{merge}\n" for merge in merges),
    }


def _check_special(special, vocab):
    missing = [token for token in special if token not in vocab]
    if missing:
        raise ValueError(
            f"`vocabulary` must have the special tokens {special} for KerasHub; got "
            f"none of {missing}. Write the model without a vocabulary."
        )


def _word_piece(content, vocab):
    tokens = sorted(vocab, key=vocab.get)
    if sorted(vocab.values()) != list(range(len(vocab))):
        raise ValueError("`vocabulary` must have a token for each of its ids.")
    normalizer = content.get("normalizer") or {}
    lowercase = bool(normalizer.get("lowercase", False))
    strip_accents = normalizer.get("strip_accents")
    config = {
        **NO_TOKENS,
        "lowercase": lowercase,
        "strip_accents": lowercase if strip_accents is None else strip_accents,
        "suffix_indicator": content["model"]["continuing_subword_prefix"],
        "oov_token": content["model"]["unk_token"],
    }
    return config, {f"{ASSETS}/{WORD_PIECE}": "".join(f"{t}\n" for t in tokens)}


def _without_unused(vocabulary, rows):
    """Takes tokens that are never generated out of the model."""
    model = sentencepiece_models.read_model(vocabulary.model)
    pieces = [model.pieces[int(row)] for row in rows if row < len(model.pieces)]
    names = [piece.piece for piece in pieces]
    _check_special(["<pad>", "<unk>", "</s>"], names)
    trainer = model.trainer_spec
    ids = [names.index(token) for token in ("<pad>", "<unk>", "</s>")]
    trainer.pad_id, trainer.unk_id, trainer.eos_id = ids
    trainer.bos_id = names.index("<s>") if "<s>" in names else -1
    trainer.vocab_size = len(pieces)
    del model.pieces[:]
    model.pieces.extend(pieces)
    return model.SerializeToString()


def _xlm_roberta(content):
    """Rebuilds the SentencePiece model, with its own special ids."""
    vocab = [token for token, _ in content["model"]["vocab"]]
    if tuple(vocab[:4]) != FAIRSEQ or vocab[-1] != "<mask>":
        raise ValueError(
            f"`vocabulary` must begin with {FAIRSEQ} and end with <mask> for an XLM-R "
            f"of KerasHub; got {vocab[:4]} and {vocab[-1]!r}."
        )
    model = sentencepiece_models.from_tokenizer_json(content, "`vocabulary`")
    if model is None:
        raise ValueError("`vocabulary` must be a unigram model of SentencePiece.")
    kinds = type(model).SentencePiece
    pieces = list(model.pieces)[1:]  # without the unknown token
    if [piece.piece for piece in pieces] != vocab[4:-1]:
        raise ValueError("`vocabulary` must have no added tokens in its middle.")
    del model.pieces[:]
    model.pieces.add(piece="<unk>", type=kinds.UNKNOWN)
    for token in ("<s>", "</s>"):
        model.pieces.add(piece=token, type=kinds.CONTROL)
    model.pieces.extend(pieces)
    trainer = model.trainer_spec
    trainer.unk_id, trainer.bos_id, trainer.eos_id, trainer.pad_id = 0, 1, 2, -1
    trainer.vocab_size = len(model.pieces)
    return model.SerializeToString()
