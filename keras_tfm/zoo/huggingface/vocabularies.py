"""Vocabularies of transformers, with the ids of the models here."""

import json
import re
from typing import Any

import keras

from keras_tfm.file_reading import read_ids, read_json
from keras_tfm.text import MosesVocabulary, TokenizersVocabulary
from keras_tfm.text.moses_vocabulary import KEY as MOSES
from keras_tfm.zoo import sentencepiece_models
from keras_tfm.zoo.huggingface.renumbered_tokenizer import (
    PADDING,
    from_tokens,
    renumbered,
    with_user_tokens,
)
from keras_tfm.zoo.huggingface.tokenizer_folder import LANGUAGE_TAG
from keras_tfm.zoo.sentencepiece_models import SPECIAL_TOKENS, read_model

TARGET_TAG = re.compile(r"<2([A-Za-z0-9_-]+)>")  # of MADLAD-400, a T5
MULTILINGUAL_TOKENIZERS = ("M2M100", "MBart", "Nllb")


def encoder_vocabulary(
    checkpoint: Any, encoder: keras.Model
) -> TokenizersVocabulary | None:
    """Reads the tokens of an encoder, whose ids stay.

    Args:
        checkpoint: `Checkpoint`.
        encoder: `Encoder`.

    Returns:
        `TokenizersVocabulary`; None if the folder has none.

    Raises:
        ValueError: a file is damaged, or of another model.
    """
    content, folder = checkpoint.tokenizer.content, checkpoint.folder
    if not content:
        return None
    with checkpoint.tokenizer.reading():
        content = with_user_tokens(content, checkpoint.tokenizer)
        number = checkpoint.tokenizer.id_of("pad_token")
        if "pad_token" in checkpoint.tokenizer.settings and number is not None:
            name = checkpoint.tokenizer.name_of("pad_token")
            content["padding"] = {**PADDING, "pad_id": number, "pad_token": name}
        vocabulary = TokenizersVocabulary(json.dumps(content))
    if vocabulary.size > encoder.vocabulary_size:
        raise ValueError(
            f"{folder}: the tokenizer must have at most {encoder.vocabulary_size} "
            f"tokens, `vocab_size` of the model; got {vocabulary.size}. Download both "
            "from one model."
        )
    pad_id = encoder.config["pad_id"]
    if vocabulary.pad_id != pad_id:
        raise ValueError(
            f"{folder}: the padding id must be that of the model, pad_id={pad_id}; got "
            f"{vocabulary.pad_id}. Pass pad_id={vocabulary.pad_id} if the model was "
            "trained with it."
        )
    return vocabulary


def vocabulary_of(checkpoint: Any, model: keras.Model) -> dict[str, Any]:
    """Reads the vocabulary of a T5: subwords of SentencePiece or of bytes.

    Args:
        checkpoint: `Checkpoint`.
        model: Keras model.

    Returns:
        dict of fields of `Imported`.
    """
    if not checkpoint.tokenizer.is_byte_level:
        return multilingual_vocabulary(checkpoint)
    affixes = _source_affixes(checkpoint)
    return {**byte_level_vocabulary(checkpoint), "options": affixes}


def multilingual_vocabulary(checkpoint: Any) -> dict[str, Any]:
    """Reads the vocabulary of M2M100, NLLB, mBART, Pegasus, T5 or mT5.

    The folder has a SentencePiece model, or a `tokenizer.json` that holds as
    much; and, for the ids of subwords and language tags, the latter too, or
    `vocab.json` and `special_tokens_map.json`.

    Args:
        checkpoint: `Checkpoint`.

    Returns:
        dict of fields of `Imported`.

    Raises:
        ImportError: `protobuf` is not installed.
        ValueError: a file is damaged, or of another model.
    """
    config, permutation = checkpoint.config, checkpoint.permutation
    vocabulary, languages, tag_position = None, {}, "prefix"
    tokenizer = checkpoint.tokenizer
    if tokenizer.sentencepiece is not None:
        by_id = tokenizer.tokens
        subwords = set(sentencepiece_models.tokens_of(tokenizer.sentencepiece))
        vocab = {token: number for number, token in by_id.items()}
        _check_special(checkpoint.folder, vocab, tokenizer, permutation)
        languages = _languages(checkpoint, subwords)
        # A start token that decoding does not start with is an ordinary token.
        names = {i: f"<{i}>" if t in SPECIAL_TOKENS else t for i, t in by_id.items()}
        tokens = [names.get(int(i), f"<{i}>") for i in permutation.order[4:]]
        if tokenizer.user_added:
            vocabulary = _with_added_tokens(checkpoint)
        else:
            control = {*tokens} - subwords
            vocabulary = sentencepiece_models.renumbered(
                tokenizer.sentencepiece, tokens, control
            )
        tag_position = _tag_position(checkpoint, languages)
    fields = {
        "vocabulary": vocabulary,
        "languages": languages or None,
        "tag_position": tag_position,
    }
    if vocabulary is not None and not languages:
        _check_is_not_multilingual(checkpoint.folder)
        fields["options"] = _source_affixes(checkpoint)
    is_suffix, start = tag_position == "suffix", "decoder_start_token_id"
    if checkpoint.model_type == "mbart" and is_suffix and start not in config:
        raise ValueError(
            f"{config.file} must have `{start}`, the id of the target language's tag."
        )
    return fields


def _with_added_tokens(checkpoint):
    """Makes a vocabulary that cuts added tokens out as transformers does.

    SentencePiece alone would segment the text beside them differently.
    """
    tokenizer, permutation = checkpoint.tokenizer, checkpoint.permutation
    content = tokenizer.content or from_tokens(
        tokenizer.sentencepiece, tokenizer.tokens, tokenizer
    )
    content = with_user_tokens(content, tokenizer)
    size, end_id = checkpoint.config["vocab_size"], checkpoint.config["eos_token_id"]
    return renumbered(content, permutation, size, end_id)


def _languages(checkpoint, subwords):
    """Returns the id here of each language's tag."""
    languages, is_t5 = {}, checkpoint.model_type.endswith("t5")
    for number, token in checkpoint.tokenizer.tokens.items():
        match = TARGET_TAG.fullmatch(token) if is_t5 else None
        if match is None and token not in subwords:
            match = LANGUAGE_TAG.fullmatch(token)
        if match:
            language = next(filter(None, match.groups()))
            languages[language] = checkpoint.permutation.to_ours(number)
    return languages


def _tag_position(checkpoint, languages):
    if checkpoint.model_type.endswith("t5"):
        return "target"
    settings = checkpoint.tokenizer.settings
    is_mbart25 = checkpoint.model_type == "mbart" and 0 < len(languages) <= 25
    is_mbart25 |= settings.get("tokenizer_class", "").startswith("MBartT")
    return "suffix" if is_mbart25 or settings.get("legacy_behaviour") else "prefix"


def _check_special(file, vocab, tokenizer, permutation):
    """Checks that the special tokens have the ids that the config says."""
    ids = {"pad_token": permutation.order[0], "eos_token": permutation.order[3]}
    expected = {tokenizer.name_of(role): int(i) for role, i in ids.items() if i >= 0}
    special = {name: vocab.get(name, i) for name, i in expected.items()}
    last, size = max(vocab.values(), default=-1), int(permutation.order.max()) + 1
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


def _source_affixes(checkpoint):
    """Reads what a `tokenizer.json` puts around a source."""
    template = checkpoint.tokenizer.content.get("post_processor") or {}
    to_ours = checkpoint.permutation.to_ours
    if template.get("type") == "RobertaProcessing":
        return {
            "source_prefix": [to_ours(template["cls"][1])],
            "source_suffix": [to_ours(template["sep"][1])],
        }
    if template.get("type") != "TemplateProcessing":
        return {}
    affixes, side = {"source_prefix": [], "source_suffix": []}, "source_prefix"
    for part in template["single"]:
        if "Sequence" in part:
            side = "source_suffix"
            continue
        token = template["special_tokens"][part["SpecialToken"]["id"]]
        affixes[side] += [to_ours(number) for number in token["ids"]]
    return affixes


def byte_level_vocabulary(checkpoint: Any) -> dict[str, Any]:
    """Reads the byte-level vocabulary of BART, GPT-2 or CodeT5.

    Args:
        checkpoint: `Checkpoint`.

    Returns:
        dict of fields of `Imported`.

    Raises:
        ImportError: `tokenizers` is not installed.
        ValueError: the file is damaged, or of another model.
    """
    permutation = checkpoint.permutation
    content, size = checkpoint.tokenizer.content, checkpoint.config["vocab_size"]
    if not content:
        return {"vocabulary": None}
    with checkpoint.tokenizer.reading():
        content = with_user_tokens(content, checkpoint.tokenizer)
        end_id = checkpoint.config.get("eos_token_id")
        return {"vocabulary": renumbered(content, permutation, size, end_id)}


def marian_vocabulary(checkpoint: Any) -> dict[str, Any]:
    """Reads the two SentencePiece models of Marian.

    The folder has `source.spm`, `target.spm` and `vocab.json`; and
    `target_vocab.json` where source and target have embeddings of their own.

    Args:
        checkpoint: `Checkpoint`.

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
    tokenizer, vocabs = checkpoint.tokenizer, [checkpoint.tokenizer.target_ids]
    user_added = {token: tokenizer.added[token] for token in tokenizer.user_added}
    vocabs.insert(0, read_ids(files[2]) | user_added)
    if checkpoint.permutation is checkpoint.target_permutation or not vocabs[1]:
        vocabs[1] = vocabs[0]
    permutations = checkpoint.permutation, checkpoint.target_permutation
    sides = []
    for file, vocab, permutation in zip(files, vocabs, permutations, strict=False):
        _check_special(folder, vocab, tokenizer, permutation)
        by_id = {number: token for token, number in vocab.items()}
        tokens = [by_id.get(int(i), f"<{i}>") for i in permutation.order[4:]]
        if user_added:
            content = from_tokens(read_model(file), by_id, tokenizer)
            content = with_user_tokens(content, tokenizer)
            end_id, size = vocab[tokenizer.name_of("eos_token")], max(by_id) + 1
            vocabulary = renumbered(content, permutation, size, end_id)
        else:
            vocabulary = sentencepiece_models.renumbered(read_model(file), tokens)
        sides.append((vocabulary, sentencepiece_models.target_languages(tokens)))
    return {
        "vocabulary": sides[0][0],
        "target_vocabulary": sides[1][0],
        "languages": sides[0][1],
        "tag_position": "target",
    }


def moses_vocabularies(checkpoint: Any) -> dict[str, Any]:
    """Reads the two vocabularies of FSMT, and its merges.

    Args:
        checkpoint: `Checkpoint`.

    Returns:
        dict of fields of `Imported`.

    Raises:
        ImportError: `sacremoses` or `tokenizers` is not installed.
        ValueError: a file is damaged, or of another model.
    """
    folder, tokenizer = checkpoint.folder, checkpoint.tokenizer
    file = folder / "merges.txt"
    if not file.is_file():
        return {"vocabulary": None}
    lines = file.read_text(encoding="utf-8").splitlines()
    content = {
        "merges": [line.split()[:2] for line in lines if line],
        "lower_case": bool(tokenizer.settings.get("do_lower_case", False)),
    }
    languages = tokenizer.settings.get("langs") or checkpoint.config["langs"]
    source_ids = {token: number for number, token in tokenizer.tokens.items()}
    vocabs = source_ids, tokenizer.target_ids
    permutations = checkpoint.permutation, checkpoint.target_permutation
    sides = []
    for language, vocab, permutation in zip(
        languages, vocabs, permutations, strict=True
    ):
        _check_special(folder, vocab, tokenizer, permutation)
        by_id = {number: token for token, number in vocab.items()}
        tokens = [by_id.get(int(i), f"<{i}>") for i in permutation.order[4:]]
        content |= {"language": language, "tokens": [*SPECIAL_TOKENS, *tokens]}
        sides.append(MosesVocabulary(json.dumps({MOSES: content})))
    return {"vocabulary": sides[0], "target_vocabulary": sides[1]}
