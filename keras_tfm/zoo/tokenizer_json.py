"""Vocabularies as the files of a tokenizer of transformers."""

import base64
import json

from keras_tfm.text.vocabulary import WORD_START
from keras_tfm.zoo.sentencepiece_model import read_model

NEVER = -1e9  # the score of a piece that no text is cut into


def of_sentencepiece(vocabulary) -> dict:
    """Turns a SentencePiece model to a `tokenizer.json` of the same ids.

    Args:
        vocabulary: `Vocabulary`, unigram or BPE.

    Returns:
        dict without the marks around a text, see `marked`.

    Raises:
        ImportError: `protobuf` is not installed.
        ValueError: it cuts text by words or characters.
    """
    model = read_model(vocabulary.model)
    trainer, kinds = model.trainer_spec, type(model).SentencePiece
    text = (kinds.NORMAL, kinds.USER_DEFINED)
    if trainer.model_type == trainer.UNIGRAM:
        # What is no text of its own has the same name as a text may have.
        scores = [p.score if p.type in text else NEVER for p in model.pieces]
        named = zip(model.pieces, scores, strict=True)
        made = {
            "type": "Unigram",
            "unk_id": vocabulary.unknown_id,
            "vocab": [[piece.piece, score] for piece, score in named],
            "byte_fallback": trainer.byte_fallback,
        }
    elif trainer.model_type == trainer.BPE:
        made = {
            "type": "BPE",
            "unk_token": model.pieces[vocabulary.unknown_id].piece,
            "fuse_unk": True,
            "byte_fallback": trainer.byte_fallback,
            "vocab": {piece.piece: i for i, piece in enumerate(model.pieces)},
            "merges": _merges([p for p in model.pieces if p.type in text]),
        }
    else:
        raise ValueError(
            "Unigram and BPE vocabularies are written for transformers. Received: "
            f"model_type {trainer.model_type}. Write the model without a vocabulary."
        )
    normalizers = []
    if charsmap := model.normalizer_spec.precompiled_charsmap:
        charsmap = base64.b64encode(charsmap).decode()
        one = {"type": "Precompiled", "precompiled_charsmap": charsmap}
        normalizers.append(one)
    if model.normalizer_spec.remove_extra_whitespaces:
        # Their own stripping takes all that Unicode calls a space.
        ends = _replaced({"Regex": r"\A +| +\z"}, "")
        normalizers += [ends, _replaced({"Regex": " {2,}"}, " ")]
    decoders = [_replaced({"String": WORD_START}, " ")]
    decoders += [{"type": "ByteFallback"}, {"type": "Fuse"}]
    decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": {
            "type": "Metaspace",
            "replacement": WORD_START,
            "prepend_scheme": "always",
            "split": False,
        },
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": made,
    }


def _replaced(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


def _merges(known):
    """Pairs of pieces in the order in which BPE joins them."""
    scores = {piece.piece: piece.score for piece in known}
    found = []
    for name, score in scores.items():
        cuts = [(name[:i], name[i:]) for i in range(1, len(name))]
        cuts = [pair for pair in cuts if pair[0] in scores and pair[1] in scores]
        found += [(-score, *pair) for pair in cuts]
    return [list(pair) for _, *pair in sorted(found, key=lambda one: one[0])]


def marked(whole, names, before, after, between=()) -> dict:
    """Puts marks around each text.

    Args:
        whole: dict, a `tokenizer.json`.
        names: function from a list of ids to the names of their pieces.
        before: list of int, ids before a text.
        after: list of int, ids after it, and after the second of two.
        between: list of int, ids after the first of two.

    Returns:
        dict with another post-processor.
    """
    special = {}

    def part(ids, segment):
        given = list(zip(names(ids), ids, strict=True))
        special.update({n: {"id": n, "ids": [i], "tokens": [n]} for n, i in given})
        return [{"SpecialToken": {"id": n, "type_id": segment}} for n, _ in given]

    first, second = (
        {"Sequence": {"id": side, "type_id": segment}}
        for segment, side in enumerate("AB")
    )
    single = [*part(before, 0), first, *part(after, 0)]
    pair = [*part(before, 0), first, *part(between, 0), second, *part(after, 1)]
    return {
        **whole,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": pair,
            "special_tokens": special,
        },
    }


def settings(vocabulary, max_length, encoder, segments=False) -> dict:
    """Gives the `tokenizer_config.json` of a vocabulary.

    Args:
        vocabulary: `Vocabulary` or `TokenizersVocabulary`.
        max_length: int, in tokens.
        encoder: bool. Start and end are those of an encoder of texts.
        segments: bool. The model is told which of two texts a token is of.
    """
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    if not segments:
        inputs.remove("token_type_ids")
    marks = {
        "pad_token": vocabulary.pad_id,
        "unk_token": vocabulary.unknown_id,
        "cls_token" if encoder else "bos_token": vocabulary.start_id,
        "sep_token" if encoder else "eos_token": vocabulary.end_id,
    }
    if encoder and vocabulary.mask_id not in (None, vocabulary.unknown_id):
        marks["mask_token"] = vocabulary.mask_id
    names = vocabulary.tokens(list(marks.values()))
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "model_input_names": inputs,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # what looks like one in a text is text
        **dict(zip(marks, names, strict=True)),
    }


def marian(source, target, search, max_length) -> dict:
    """Gives the files of a tokenizer of Marian: two ways to cut, one table.

    Args:
        source: `Vocabulary`.
        target: `Vocabulary` with the same pieces at the same ids.
        search: dict, settings of `pipelines.Translator`.
        max_length: int, in tokens.

    Returns:
        dict from names of files to str or bytes.

    Raises:
        ValueError: the ids mean different pieces, or a source is to have other
            marks than the end after it.
    """
    tables = [side.tokens(range(side.size)) for side in (source, target)]
    marks = [list(search.get(f"source_{name}", ())) for name in ("prefix", "suffix")]
    if tables[0] != tables[1] or marks != [[], [source.end_id]]:
        raise ValueError(
            "Where the target is cut in another way, transformers has Marian's "
            "tokenizer: the same ids on both sides, and the end after a source. "
            f"Received: {source.size} and {target.size} pieces, source_prefix="
            f"{marks[0]}, source_suffix={marks[1]}. Write the model without "
            "vocabularies."
        )
    numbers = {piece: number for number, piece in enumerate(tables[0])}
    return {
        "source.spm": source.model,
        "target.spm": target.model,
        "vocab.json": json.dumps(numbers, ensure_ascii=False),
        "tokenizer_config.json": json.dumps(
            {
                "tokenizer_class": "MarianTokenizer",
                "model_max_length": max_length,
                **dict(
                    zip(
                        ("pad_token", "unk_token", "eos_token"),
                        source.tokens([0, 1, 3]),
                        strict=True,
                    )
                ),
            },
            indent=2,
        ),
    }
