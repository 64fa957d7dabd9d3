"""Vocabularies of transformers, with the ids of the models here."""

import json
import pathlib
import re
from typing import Any

import keras

from keras_tfm.text import TokenizersVocabulary
from keras_tfm.zoo import sentencepiece_models
from keras_tfm.zoo.config_file import read_json, reading
from keras_tfm.zoo.huggingface.tokenizer_files import with_special_tokens
from keras_tfm.zoo.sentencepiece_models import SPECIAL_TOKENS, read_model

SENTENCEPIECE_FILES = ("sentencepiece.bpe.model", "spiece.model")
SENTENCEPIECE_FILES += ("sentencepiece.model",)
# Language tags of M2M100, and of mBART and NLLB.
LANGUAGE_TAG = re.compile(r"__([a-z]{2,3})__|([a-z]{2,3}_(?:[A-Z]{2}|[A-Z][a-z]{3}))")
NUM_SENTINELS = 100  # tokens of T5 after its subwords, for masked spans
MULTILINGUAL_TOKENIZERS = ("M2M100", "MBart", "Nllb")


def encoder_vocabulary(
    folder: pathlib.Path, encoder: keras.Model
) -> TokenizersVocabulary | None:
    """Reads the `tokenizer.json` of an encoder, whose ids stay.

    Args:
        folder: path.
        encoder: `Encoder`.

    Returns:
        `TokenizersVocabulary`; None if there is no such file.

    Raises:
        ValueError: the file is damaged, or of another model.
    """
    file = folder / "tokenizer.json"
    if not file.is_file():
        return None
    vocabulary = TokenizersVocabulary.load(file)
    if vocabulary.size > encoder.vocabulary_size:
        raise ValueError(
            f"{file} must have at most {encoder.vocabulary_size} tokens, `vocab_size` "
            f"of the model; got {vocabulary.size}. Download both from one model."
        )
    pad_id = encoder.config["pad_id"]
    if vocabulary.pad_id != pad_id:
        raise ValueError(
            f"{file}: the padding id must be that of the model, pad_id={pad_id}; got "
            f"{vocabulary.pad_id}. Pass pad_id={vocabulary.pad_id} if the model was "
            "trained with it."
        )
    return vocabulary


def multilingual_vocabulary(checkpoint: Any, model: keras.Model) -> dict[str, Any]:
    """Reads the vocabulary of M2M100, NLLB, mBART, T5 or mT5.

    The folder has a SentencePiece model, or a `tokenizer.json` that holds as
    much; and, for the ids of subwords and language tags, the latter too, or
    `vocab.json` and `special_tokens_map.json`.

    Args:
        checkpoint: `Checkpoint`.
        model: Keras model.

    Returns:
        dict of fields of `Imported`.

    Raises:
        ImportError: `protobuf` is not installed.
        ValueError: a file is damaged, or of another model.
    """
    folder, config = checkpoint.folder, checkpoint.config
    permutation = checkpoint.permutation
    vocabulary, languages, tag_position = None, {}, "prefix"
    sentencepiece = _sentencepiece_model(folder)
    if sentencepiece is not None:
        subwords = sentencepiece_models.tokens_of(sentencepiece)
        by_id, subwords = _tokens_by_id(checkpoint, subwords), set(subwords)
        _check_special(folder, {t: i for i, t in by_id.items()}, checkpoint)
        for number, token in by_id.items():
            match = None if token in subwords else LANGUAGE_TAG.fullmatch(token)
            if match:
                language = match[1] or match[2]
                languages[language] = permutation.to_ours(number)
        # A start token that decoding does not start with is an ordinary token.
        names = {i: f"<{i}>" if t in SPECIAL_TOKENS else t for i, t in by_id.items()}
        tokens = [names.get(int(i), f"<{i}>") for i in permutation.order[4:]]
        control = [token for token in tokens if token not in subwords]
        vocabulary = sentencepiece_models.renumbered(sentencepiece, tokens, control)
        tag_position = _tag_position(checkpoint, languages)
    fields = {
        "vocabulary": vocabulary,
        "languages": languages or None,
        "tag_position": tag_position,
    }
    if vocabulary is not None and not languages:
        _check_is_not_multilingual(folder)
        fields["options"] = _source_affixes(folder, permutation)
    is_suffix, start = tag_position == "suffix", "decoder_start_token_id"
    if checkpoint.model_type == "mbart" and is_suffix and start not in config:
        raise ValueError(
            f"{config.file} must have `{start}`, the id of the target language's tag."
        )
    return fields


def _sentencepiece_model(folder):
    for name in SENTENCEPIECE_FILES:
        if (folder / name).is_file():
            return read_model(folder / name)
    file = folder / "tokenizer.json"
    content = read_json(file)
    if not content:
        return None
    return sentencepiece_models.from_tokenizer_json(content, str(file))


def _tokens_by_id(checkpoint, subwords):
    folder = checkpoint.folder
    content = read_json(folder / "tokenizer.json")
    if content:
        vocab = content.get("model", {}).get("vocab", {})
        if isinstance(vocab, list):  # of pairs of a token and its score
            vocab = {token: number for number, (token, _) in enumerate(vocab)}
        added = {t["content"]: t["id"] for t in content.get("added_tokens", [])}
        return {number: token for token, number in {**vocab, **added}.items()}
    if checkpoint.model_type in ("t5", "mt5"):  # mT5's file has the sentinels
        has_sentinels = any("extra_id" in token for token in subwords)
        numbers = reversed(range(0 if has_sentinels else NUM_SENTINELS))
        return dict(enumerate([*subwords, *(f"<extra_id_{i}>" for i in numbers)]))
    tags, vocab = _language_tags(folder), read_json(folder / "vocab.json")
    if vocab:
        by_id = {number: token for token, number in vocab.items()}
    else:  # fairseq puts its own four first
        by_id = dict(enumerate(["<s>", "<pad>", "</s>", "<unk>", *subwords[3:]]))
        tags = [*tags, "<mask>"] if tags else []
    return by_id | dict(enumerate(tags, len(by_id)))


def _language_tags(folder):
    """Returns the language tags in the order of their ids."""
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        for key in ("additional_special_tokens", "extra_special_tokens"):
            tokens = read_json(folder / file).get(key) or []
            tokens = [t if isinstance(t, str) else t["content"] for t in tokens]
            tags = [token for token in tokens if LANGUAGE_TAG.fullmatch(token)]
            if tags:
                return tags
    return []


def _tag_position(checkpoint, languages):
    settings = read_json(checkpoint.folder / "tokenizer_config.json")
    is_mbart25 = checkpoint.model_type == "mbart" and 0 < len(languages) <= 25
    is_mbart25 |= settings.get("tokenizer_class", "").startswith("MBartT")
    return "suffix" if is_mbart25 or settings.get("legacy_behaviour") else "prefix"


def _check_special(file, vocab, checkpoint):
    """Checks that the special tokens have the ids that the config says."""
    config = checkpoint.config
    expected = {
        "<pad>": config["pad_token_id"],
        "<unk>": checkpoint.permutation.unknown_id,
        "</s>": config["eos_token_id"],
    }
    special = {token: vocab.get(token) for token in expected}
    last, size = max(vocab.values(), default=-1), config["vocab_size"]
    if special != expected or last >= size:
        raise ValueError(
            f"{file}: the vocabulary must fit the model; expected {expected} and ids "
            f"below {size}, got {special} and ids up to {last}."
        )


def _check_is_not_multilingual(folder):
    name = read_json(folder / "tokenizer_config.json").get("tokenizer_class", "")
    if str(name).startswith(MULTILINGUAL_TOKENIZERS):
        raise ValueError(
            f"{folder}: a {name} needs language tags. Download `tokenizer.json`, "
            "`special_tokens_map.json` and `tokenizer_config.json` too."
        )


def _source_affixes(folder, permutation):
    """Reads what a `tokenizer.json` puts around a source."""
    content = read_json(folder / "tokenizer.json")
    template = content.get("post_processor") or {}
    if template.get("type") != "TemplateProcessing":
        return {}
    affixes, side = {"source_prefix": [], "source_suffix": []}, "source_prefix"
    for part in template["single"]:
        if "Sequence" in part:
            side = "source_suffix"
            continue
        token = template["special_tokens"][part["SpecialToken"]["id"]]
        affixes[side] += [permutation.to_ours(number) for number in token["ids"]]
    return affixes


def byte_level_vocabulary(checkpoint: Any, model: keras.Model) -> dict[str, Any]:
    """Reads the byte-level vocabulary of BART or GPT-2 from `tokenizer.json`.

    Args:
        checkpoint: `Checkpoint`.
        model: Keras model.

    Returns:
        dict of fields of `Imported`.

    Raises:
        ImportError: `tokenizers` is not installed.
        ValueError: the file is damaged, or of another model.
    """
    file, permutation = checkpoint.folder / "tokenizer.json", checkpoint.permutation
    content, size = read_json(file), checkpoint.config["vocab_size"]
    if not content:
        return {"vocabulary": None}
    with reading(file, "a byte-level tokenizer"):
        added = content.get("added_tokens", [])
        special = {token["content"] for token in added}
        # Some have a mask token that the network has no row for.
        added = [token for token in added if token["id"] < size]
        vocab = dict(content["model"]["vocab"])
        beyond = [t for t, i in vocab.items() if i >= size and t not in special]
        vocab = {token: number for token, number in vocab.items() if number < size}
        vocab |= {token["content"]: token["id"] for token in added}
        end_id = checkpoint.config["eos_token_id"]
        end = next((token for token, number in vocab.items() if number == end_id), None)
        if end is None or beyond:
            raise ValueError(
                f"ids must be below vocab_size={size}, and eos_token_id={end_id} must "
                f"name a token; got {len(beyond)} larger ids, and the end token {end!r}"
            )
        vocab = {token: permutation.to_ours(number) for token, number in vocab.items()}
        # Rows that the checkpoint lacks, or has twice, or without a name.
        unnamed = sorted(set(range(permutation.size)) - set(vocab.values()))
        names = {i: f"<{i}>" if i or "<pad>" in vocab else "<pad>" for i in unnamed}
        if set(names.values()) & set(vocab):
            raise ValueError(f"the tokens {list(names.values())[:4]} must not exist")
        vocab |= {name: number for number, name in names.items()}
        for token in added:
            token["id"] = vocab[token["content"]]
        content["added_tokens"] = sorted(added, key=lambda token: token["id"])
        content["model"]["vocab"] = vocab
        by_id = {number: token for token, number in vocab.items()}
        start_id, end_id = permutation.start_id, permutation.end_id
        by_id[end_id] = end

        def _tokens(ids):
            return [by_id[i] for i in ids]

        affixes = [start_id], [end_id], [end_id]
        content = with_special_tokens(content, _tokens, *affixes)
        return {"vocabulary": TokenizersVocabulary(json.dumps(content))}


def marian_vocabulary(checkpoint: Any, model: keras.Model) -> dict[str, Any]:
    """Reads the two SentencePiece models of Marian, which share their ids.

    The folder has `source.spm`, `target.spm` and `vocab.json`; and
    `target_vocab.json` where source and target have embeddings of their own.

    Args:
        checkpoint: `Checkpoint`.
        model: Keras model.

    Returns:
        dict of fields of `Imported`.

    Raises:
        FileNotFoundError: one of the files is missing.
        ImportError: `protobuf` is not installed.
        ValueError: a file is damaged, or of another model.
    """
    folder = checkpoint.folder
    files = [folder / name for name in ("source.spm", "target.spm", "vocab.json")]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise FileNotFoundError(
            f"{folder}: a vocabulary of Marian is three files; {missing} missing. "
            "Download them again."
        )
    vocab_files = {"source": files[2], "target": files[2]}
    is_shared = checkpoint.config.get("share_encoder_decoder_embeddings", True)
    if not is_shared and (folder / "target_vocab.json").is_file():
        vocab_files["target"] = folder / "target_vocab.json"
    tokens = {
        side: _marian_tokens(file, checkpoint) for side, file in vocab_files.items()
    }
    source, target = (
        sentencepiece_models.renumbered(read_model(file), tokens[side])
        for side, file in zip(tokens, files[:2], strict=True)
    )
    return {
        "vocabulary": source,
        "target_vocabulary": target,
        "languages": sentencepiece_models.target_languages(tokens["source"]),
        "tag_position": "target",
    }


def _marian_tokens(file, checkpoint) -> list[str]:
    """Returns the token of each id from 4 on."""
    vocab = read_json(file)
    _check_special(file, vocab, checkpoint)
    by_id = {number: token for token, number in vocab.items()}
    return [by_id.get(int(i), f"<{i}>") for i in checkpoint.permutation.order[4:]]
