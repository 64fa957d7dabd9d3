"""Vocabularies as the tokenizer files of transformers."""

import base64
import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from keras_tfm.text import TokenizersVocabulary, Vocabulary
from keras_tfm.zoo.sentencepiece_models import SPACE, read_model

NEVER_SCORE = -1e9  # of a token that no text is segmented into
NO_FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
# Tokens of fairseq in the place of the first of a SentencePiece model: of XLM-R
# in that of three, of CamemBERT in that of one.
FAIRSEQ = ("<s>", "<pad>", "</s>", "<unk>")
CAMEMBERT = ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED")


def files(
    vocabulary: Vocabulary | TokenizersVocabulary,
    target_vocabulary: Vocabulary | None,
    options: dict[str, Any],
    config: dict[str, Any],
) -> dict[str, str | bytes]:
    """Makes the files of a tokenizer.

    Args:
        vocabulary: `Vocabulary` or `TokenizersVocabulary`.
        target_vocabulary: `Vocabulary` of the target, or None.
        options: dict with `source_prefix` and `source_suffix`, of a model that
            generates.
        config: dict, the config of the model.

    Returns:
        dict from names of files to contents.

    Raises:
        ValueError: transformers has no such tokenizer.
    """
    max_length = config["max_position_embeddings"]
    is_encoder = not config.get("is_encoder_decoder", False)
    prefix, suffix = (
        list(options.get(f"source_{n}", ())) for n in ("prefix", "suffix")
    )
    if target_vocabulary and target_vocabulary.model != vocabulary.model:
        affixes = prefix, suffix
        return _marian_files(vocabulary, target_vocabulary, affixes, max_length)
    separator = ()
    if is_encoder:
        prefix, suffix = [vocabulary.start_id], [vocabulary.end_id]
        separator = vocabulary.separator_ids
    if isinstance(vocabulary, TokenizersVocabulary):
        content = json.loads(vocabulary.model)
    else:
        content = from_sentencepiece(vocabulary)
    content = with_special_tokens(content, vocabulary.tokens, prefix, suffix, separator)
    segments = config.get("type_vocab_size", 1) > 1
    tokenizer_config = _tokenizer_config(vocabulary, max_length, is_encoder, segments)
    return {
        "tokenizer.json": json.dumps(content, ensure_ascii=False),
        "tokenizer_config.json": json.dumps(
            tokenizer_config, indent=2, ensure_ascii=False
        ),
    }


def from_sentencepiece(vocabulary: Vocabulary) -> dict[str, Any]:
    """Turns a SentencePiece model into a `tokenizer.json` of the same ids.

    Args:
        vocabulary: `Vocabulary`, unigram or BPE.

    Returns:
        dict, without special tokens around a text.

    Raises:
        ImportError: `protobuf` is not installed.
        ValueError: the vocabulary is of words or characters.
    """
    return from_model(read_model(vocabulary.model), vocabulary.unknown_id)


def from_fairseq(model: Any, first: tuple[str, ...] = FAIRSEQ) -> dict[str, Any]:
    """Makes the `tokenizer.json` of an XLM-R or a CamemBERT.

    Args:
        model: of `sentencepiece_models.read_model`, unigram.
        first: `FAIRSEQ` or `CAMEMBERT`.

    Returns:
        dict, with `<s>` before a text, `</s>` after it and two between texts.

    Raises:
        ValueError: the model is not unigram.
    """
    content = from_model(model, 0)
    if content["model"]["type"] != "Unigram":
        raise ValueError("the SentencePiece model of an XLM-R must be unigram")
    subwords = content["model"]["vocab"][3 if first == FAIRSEQ else 1 :]
    vocab = [*([token, NEVER_SCORE] for token in first), *subwords]
    vocab.append(["<mask>", NEVER_SCORE])
    content["model"] |= {"vocab": vocab, "unk_id": first.index("<unk>")}
    names = [token for token, _ in vocab]
    ids = {token: number for number, token in enumerate(names)}
    content["added_tokens"] = special_entries(ids, [*first, "<s>", "</s>", "<mask>"])
    start, end = [ids["<s>"]], [ids["</s>"]]
    return with_special_tokens(
        content, lambda ids: [names[i] for i in ids], start, end, end * 2
    )


def special_entries(ids: dict[str, int], tokens: Iterable[str]) -> list[dict[str, Any]]:
    """Lists special tokens as the `added_tokens` of a `tokenizer.json`.

    Args:
        ids: dict from tokens to ids.
        tokens: strings; those without an id are left out.
    """
    return [
        {"id": ids[token], "content": token, **NO_FLAGS, "special": True}
        for token in sorted({*tokens} & set(ids), key=ids.get)
    ]


def from_model(model: Any, unknown_id: int) -> dict[str, Any]:
    """Turns a SentencePiece model into a `tokenizer.json` of the same ids.

    Args:
        model: of `sentencepiece_models.read_model`, unigram or BPE.
        unknown_id: int.

    Returns:
        dict, without special tokens around a text.

    Raises:
        ValueError: the model is of words or characters.
    """
    normalizers = []
    if charsmap := model.normalizer_spec.precompiled_charsmap:
        charsmap = base64.b64encode(charsmap).decode()
        precompiled = {"type": "Precompiled", "precompiled_charsmap": charsmap}
        normalizers.append(precompiled)
    if model.normalizer_spec.remove_extra_whitespaces:
        # `Strip` of tokenizers would remove all that Unicode calls a space.
        normalizers.append(_replace({"Regex": r"\A +| +\z"}, ""))
        normalizers.append(_replace({"Regex": " {2,}"}, " "))
    decoders = [
        _replace({"String": SPACE}, " "),
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": _pre_tokenizer(model),
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _tokenizer_model(model, unknown_id),
    }


def _pre_tokenizer(model):
    steps = [
        {
            "type": "Metaspace",
            "replacement": SPACE,
            "prepend_scheme": "always",
            "split": False,
        }
    ]
    if pattern := _special_looking(model):
        split = {"type": "Split", "pattern": {"Regex": pattern}, "invert": False}
        steps.append(split | {"behavior": "Isolated"})
    return {"type": "Sequence", "pretokenizers": steps}


def _special_looking(model):
    """Finds where to split texts that have the name of a special token.

    Unigram of tokenizers prefers any token to unknown characters: with no token
    for ">" a text "<s>" would become the start. A split inside prevents that.
    """
    if model.trainer_spec.model_type != model.trainer_spec.UNIGRAM:
        return ""
    kinds = type(model).SentencePiece
    textual = (kinds.NORMAL, kinds.USER_DEFINED)
    textual_pieces = {piece.piece for piece in model.pieces if piece.type in textual}
    parts = []
    for name in (piece.piece for piece in model.pieces if piece.type not in textual):
        position = next(
            (i for i, c in enumerate(name) if c not in textual_pieces), None
        )
        if position is not None:
            prefix, suffix = map(re.escape, (name[:position], name[position + 1 :]))
            behind = f"(?<={prefix})" if prefix else ""
            parts.append(f"{behind}{re.escape(name[position])}(?={suffix})")
    return "|".join(parts)


def _tokenizer_model(model, unknown_id):
    trainer, kinds = model.trainer_spec, type(model).SentencePiece
    textual = (kinds.NORMAL, kinds.USER_DEFINED)
    if trainer.model_type == trainer.UNIGRAM:
        # A special token has the same name as a text may have.
        return {
            "type": "Unigram",
            "unk_id": unknown_id,
            "vocab": [
                [p.piece, p.score if p.type in textual else NEVER_SCORE]
                for p in model.pieces
            ],
            "byte_fallback": trainer.byte_fallback,
        }
    if trainer.model_type == trainer.BPE:
        scores = {p.piece: p.score for p in model.pieces if p.type in textual}
        return {
            "type": "BPE",
            "unk_token": model.pieces[unknown_id].piece,
            "fuse_unk": True,
            "byte_fallback": trainer.byte_fallback,
            "vocab": {piece.piece: i for i, piece in enumerate(model.pieces)},
            "merges": _merges(scores),
        }
    raise ValueError(
        "`vocabulary` must be unigram or BPE for transformers; got model_type "
        f"{trainer.model_type}. Write the model without a vocabulary."
    )


def _replace(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


def _merges(scores):
    """Lists pairs of tokens in the order in which BPE merges them."""
    merges = []
    for token, score in scores.items():
        pairs = [(token[:i], token[i:]) for i in range(1, len(token))]
        merges += [(-score, *p) for p in pairs if p[0] in scores and p[1] in scores]
    return [list(pair) for _, *pair in sorted(merges, key=lambda merge: merge[0])]


def with_special_tokens(
    content: dict[str, Any],
    tokens: Callable[[list[int]], list[str]],
    prefix: list[int],
    suffix: list[int],
    separator: list[int] | tuple[int, ...] = (),
) -> dict[str, Any]:
    """Puts special tokens around each text.

    Args:
        content: dict, a `tokenizer.json`.
        tokens: function from a list of ids to their tokens.
        prefix: list of int, ids before a text.
        suffix: list of int, ids after it, and after the second of two.
        separator: list of int, ids after the first of two.

    Returns:
        dict with another post-processor.
    """
    special = {}

    def _part(ids, segment):
        names = tokens(list(ids))
        for number, name in zip(ids, names, strict=True):
            special[name] = {"id": name, "ids": [number], "tokens": [name]}
        return [{"SpecialToken": {"id": name, "type_id": segment}} for name in names]

    first, second = (
        {"Sequence": {"id": side, "type_id": segment}}
        for segment, side in enumerate("AB")
    )
    single = [*_part(prefix, 0), first, *_part(suffix, 0)]
    pair = [*_part(prefix, 0), first, *_part(separator, 0), second, *_part(suffix, 1)]
    template = {"single": single, "pair": pair, "special_tokens": special}
    return {**content, "post_processor": {"type": "TemplateProcessing", **template}}


def _tokenizer_config(vocabulary, max_length, is_encoder, segments):
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    if not segments:
        inputs.remove("token_type_ids")
    special = {
        "pad_token": vocabulary.pad_id,
        "unk_token": vocabulary.unknown_id,
        "cls_token" if is_encoder else "bos_token": vocabulary.start_id,
        "sep_token" if is_encoder else "eos_token": vocabulary.end_id,
    }
    if is_encoder and vocabulary.mask_id not in (None, vocabulary.unknown_id):
        special["mask_token"] = vocabulary.mask_id
    tokens = vocabulary.tokens(list(special.values()))
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "model_input_names": inputs,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # a text that looks like one is text
        **dict(zip(special, tokens, strict=True)),
    }


def _marian_files(source, target, affixes, max_length):
    """Two SentencePiece models over the same ids."""
    tokens, target_tokens = (side.tokens(range(side.size)) for side in (source, target))
    if tokens != target_tokens or affixes != ([], [source.end_id]):
        raise ValueError(
            "`target_vocabulary` must have the ids of `vocabulary`, and `options` only "
            "the end token after a source, since transformers has Marian's tokenizer "
            f"for this; got {source.size} and {target.size} tokens, source_prefix="
            f"{affixes[0]}, source_suffix={affixes[1]}. Write the model without "
            "vocabularies."
        )
    vocab = {token: number for number, token in enumerate(tokens)}
    special = zip(
        ("pad_token", "unk_token", "eos_token"), source.tokens([0, 1, 3]), strict=True
    )
    tokenizer_config = {
        "tokenizer_class": "MarianTokenizer",
        "model_max_length": max_length,
        **dict(special),
    }
    return {
        "source.spm": source.model,
        "target.spm": target.model,
        "vocab.json": json.dumps(vocab, ensure_ascii=False),
        "tokenizer_config.json": json.dumps(tokenizer_config, indent=2),
    }
