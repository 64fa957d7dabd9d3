"""SentencePiece models of other programs, renumbered to the ids here."""

import base64
import os
import pathlib
from collections.abc import Collection
from typing import Any

from keras_tfm.file_reading import reading
from keras_tfm.text import Vocabulary

SPECIAL_TOKENS = ("<pad>", "<unk>", "<s>", "</s>")  # ids 0 to 3
SIDE_MODELS = ("source.spm", "target.spm")  # files of two vocabularies
SPACE = "\u2581"  # stands for the space in subword tokens
# Normalizers of `tokenizer.json` that SentencePiece applies by itself.
WHITESPACE_STEPS = ("Replace", "Strip")


def read_model(source: bytes | str | os.PathLike, name: str = "`model`") -> Any:
    """Reads a SentencePiece model.

    Args:
        source: bytes; or path of a file, which is then named in errors.
        name: str. What to name in errors.

    Returns:
        `ModelProto` message of protobuf.

    Raises:
        ImportError: `protobuf` is not installed.
        ValueError: the content is not a SentencePiece model.
    """
    if not isinstance(source, bytes):
        source, name = pathlib.Path(source).read_bytes(), os.fspath(source)
    with reading(name, "a SentencePiece model"):
        return _messages().ModelProto.FromString(source)


def tokens_of(model: Any) -> list[str]:
    """Returns the tokens of a SentencePiece model in the order of their ids.

    Args:
        model: of `read_model`.
    """
    return [piece.piece for piece in model.pieces]


def renumbered(
    model: Any,
    tokens: list[str],
    control: Collection[str] = (),
) -> Vocabulary:
    """Numbers the tokens of a SentencePiece model anew.

    Scores stay, so text is segmented as before; tokens that the network lacks
    are left out.

    Args:
        model: of `read_model`; it is changed.
        tokens: list of str: the token of each id from 4 on.
        control: those of `tokens` that stand for no text, besides Marian's
            tags of target languages.

    Returns:
        `Vocabulary`. Tokens that the model lacks, such as those of the other
        language's file, are never produced from text, except for characters
        that would have no token otherwise.
    """
    kinds = type(model).SentencePiece
    pieces = {
        piece.piece: piece
        for piece in model.pieces
        if piece.type not in (kinds.UNKNOWN, kinds.CONTROL)
    }
    for token in {*control, *filter(is_target_tag, tokens)}:
        pieces[token] = kinds(piece=token, type=kinds.CONTROL)
    renumbered = [kinds(piece=token, type=kinds.CONTROL) for token in SPECIAL_TOKENS]
    renumbered[1].type = kinds.UNKNOWN
    characters = set().union(*pieces)
    lowest = min((piece.score for piece in pieces.values()), default=0.0)
    for token in tokens:
        if token in pieces:
            renumbered.append(pieces[token])
        elif len(token) == 1 and token not in characters:
            renumbered.append(kinds(piece=token, type=kinds.NORMAL, score=lowest))
        else:
            renumbered.append(kinds(piece=token, type=kinds.UNUSED))
    del model.pieces[:]
    model.pieces.extend(renumbered)
    trainer = model.trainer_spec
    trainer.pad_id, trainer.unk_id, trainer.bos_id, trainer.eos_id = range(4)
    trainer.pad_piece, trainer.unk_piece = SPECIAL_TOKENS[:2]
    trainer.bos_piece, trainer.eos_piece = SPECIAL_TOKENS[2:]
    trainer.vocab_size = len(renumbered)
    # SentencePiece requires all byte tokens or none.
    num_bytes = sum(piece.type == kinds.BYTE for piece in renumbered)
    trainer.byte_fallback = num_bytes == 256
    return Vocabulary(model.SerializeToString())


def is_target_tag(token: str) -> bool:
    """Returns whether a token is Marian's language tag, such as `>>de<<`.

    Args:
        token: str.
    """
    return len(token) > 4 and token.startswith(">>") and token.endswith("<<")


def target_languages(tokens: list[str]) -> dict[str, int] | None:
    """Finds Marian's tags of target languages.

    Args:
        tokens: list of str: the token of each id from 4 on.

    Returns:
        dict from languages to ids; None where there is none.
    """
    numbered = enumerate(tokens, len(SPECIAL_TOKENS))
    return {t[2:-2]: i for i, t in numbered if is_target_tag(t)} or None


def from_tokenizer_json(content: dict[str, Any], file: str) -> Any:
    """Rebuilds the SentencePiece model that a `tokenizer.json` was made of.

    Args:
        content: dict, the file's content: a unigram or BPE vocabulary in which
            a character stands for the space.
        file: path, named in errors.

    Returns:
        `ModelProto` message of protobuf, without the added tokens; None where
        SentencePiece would segment text differently.

    Raises:
        ImportError: `protobuf` is not installed.
        ValueError: the file is damaged.
    """
    with reading(file, "a tokenizer with scores or merges"):
        model = content["model"]
        normalizers = _steps(content.get("normalizer"), "normalizers")
        pre_tokenizers = _steps(content.get("pre_tokenizer"), "pretokenizers")
        spaces = [step for step in pre_tokenizers if step["type"] == "Metaspace"]
        spaces += [
            step
            for step in normalizers
            if step["type"] == "Prepend" and step["prepend"] == SPACE
        ]
        kinds = {step["type"] for step in normalizers}
        supported = {"Precompiled", "Prepend", *WHITESPACE_STEPS}
        if model.get("type") not in ("Unigram", "BPE") or not spaces:
            return None
        if not kinds <= supported:
            return None
        message = _messages().ModelProto()
        normalizer = message.normalizer_spec
        for step in normalizers:
            if step["type"] == "Precompiled":
                charsmap = base64.b64decode(step["precompiled_charsmap"])
                normalizer.precompiled_charsmap = charsmap
        splits = any(step["type"] == "WhitespaceSplit" for step in pre_tokenizers)
        normalizer.remove_extra_whitespaces = splits or not kinds.isdisjoint(
            WHITESPACE_STEPS
        )
        normalizer.add_dummy_prefix = spaces[0].get(
            "prepend_scheme", "always"
        ) != "never" and spaces[0].get("add_prefix_space", True)
        added = {token["content"] for token in content.get("added_tokens", [])}
        _add_pieces(message, model, added)
        return message


def _add_pieces(message, model, added):
    unigram = model["type"] == "Unigram"
    trainer, kinds = message.trainer_spec, type(message).SentencePiece
    trainer.model_type = trainer.UNIGRAM if unigram else trainer.BPE
    scores = dict(model["vocab"]) if unigram else _ranks(model)
    unknown = model["vocab"][model["unk_id"]][0] if unigram else model["unk_token"]
    message.pieces.add(piece=unknown, type=kinds.UNKNOWN)
    for token, score in scores.items():
        if token not in added and token != unknown:
            is_byte = model.get("byte_fallback") and token.startswith("<0x")
            kind = kinds.BYTE if is_byte else kinds.NORMAL
            message.pieces.add(piece=token, score=score, type=kind)


def _steps(step, key):
    """Flattens nested sequences of normalizers or pre-tokenizers."""
    if step is None:
        return []
    if step["type"] != "Sequence":
        return [step]
    return [flat for nested in step[key] for flat in _steps(nested, key)]


def _ranks(model):
    """Scores the tokens of a BPE: the earlier a merge, the higher."""
    scores = {}
    for rank, pair in enumerate(model["merges"]):
        token = "".join(pair if isinstance(pair, list) else pair.split(" "))
        scores.setdefault(token, -float(rank))
    lowest = len(model["merges"])
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    return {t: scores.get(t, -float(lowest + i)) for i, t in enumerate(tokens)}


def _messages():
    try:
        from sentencepiece import sentencepiece_model_pb2 as messages
    except ImportError as error:
        raise ImportError(
            "Reading the vocabulary of a translation model needs the library "
            f"protobuf, which cannot be imported ({error}). Install `keras-tfm[zoo]`."
        ) from error
    return messages
