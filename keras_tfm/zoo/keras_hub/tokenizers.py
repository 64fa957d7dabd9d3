"""Tokenizers of KerasHub as vocabularies here."""

import contextlib
import json
import pathlib
from typing import Any, NamedTuple

from keras_tfm.file_reading import Config, read_ids, read_json, reading
from keras_tfm.text import TokenizersVocabulary, Vocabulary
from keras_tfm.zoo import sentencepiece_models
from keras_tfm.zoo.huggingface import older_tokenizers
from keras_tfm.zoo.huggingface.renumbered_tokenizer import renumbered
from keras_tfm.zoo.huggingface.tokenizer_files import (
    from_fairseq,
    with_special_tokens,
)
from keras_tfm.zoo.token_permutation import TokenPermutation

CONFIG = "tokenizer.json"
ASSETS = "assets/tokenizer"
WORD_PIECE, MERGES = "vocabulary.txt", "merges.txt"
BYTE_LEVEL, SENTENCEPIECE = "vocabulary.json", "vocabulary.spm"
SPECIAL_BYTE_LEVEL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>", "<|endoftext|>")


class Tokenizer(NamedTuple):
    """What a preset has of a tokenizer.

    Attributes:
        config: `Config` of `tokenizer.json`.
        folder: path of the assets.
        ids: dict from tokens to ids.
        sentencepiece: `ModelProto` message, or None.
    """

    config: Config
    folder: pathlib.Path
    ids: dict[str, int]
    sentencepiece: Any = None

    def reading(self) -> contextlib.AbstractContextManager[None]:
        """Returns a guard whose error names the files that are here."""
        names = sorted(path.name for path in self.folder.iterdir())
        names.append(f"../../{CONFIG}")
        return reading(self.folder, "a tokenizer of KerasHub", names=names)


def read_tokenizer(folder: pathlib.Path) -> Tokenizer | None:
    """Reads the tokenizer of a preset.

    Args:
        folder: path of the preset.

    Returns:
        `Tokenizer`; None if the preset has none.

    Raises:
        FileNotFoundError: the assets are missing.
        ImportError: `protobuf` is not installed.
        ValueError: a file is damaged.
    """
    file, assets = folder / CONFIG, folder / ASSETS
    if not file.is_file():
        return None
    config = Config(Config(read_json(file), file).typed("config", dict), file)
    if (assets / BYTE_LEVEL).is_file():
        return Tokenizer(config, assets, read_ids(assets / BYTE_LEVEL))
    if (assets / WORD_PIECE).is_file():
        with reading(assets / WORD_PIECE, "a list of tokens"):
            lines = (assets / WORD_PIECE).read_text(encoding="utf-8").split("\n")
        tokens = lines[:-1] if lines[-1] == "" else lines
        return Tokenizer(config, assets, {t: i for i, t in enumerate(tokens)})
    if (assets / SENTENCEPIECE).is_file():
        model = sentencepiece_models.read_model(assets / SENTENCEPIECE)
        tokens = sentencepiece_models.tokens_of(model)
        return Tokenizer(config, assets, {t: i for i, t in enumerate(tokens)}, model)
    raise FileNotFoundError(
        f"{file} needs the files of its vocabulary in {ASSETS!r}; none of "
        f"{[WORD_PIECE, BYTE_LEVEL, SENTENCEPIECE]} is there. Download all files."
    )


def encoder_vocabulary(tokenizer: Tokenizer) -> TokenizersVocabulary:
    """Makes the vocabulary of an encoder, whose ids stay.

    Args:
        tokenizer: `Tokenizer`.

    Raises:
        ImportError: `tokenizers` is not installed.
        ValueError: a file is damaged, or a token is missing.
    """
    with tokenizer.reading():
        if tokenizer.sentencepiece is not None:
            content = from_fairseq(tokenizer.sentencepiece)
        elif (tokenizer.folder / MERGES).is_file():
            ids = tokenizer.ids
            content = _special(_byte_level(tokenizer), ids["<s>"], ids["</s>"], 2)
        else:
            content = _word_piece(tokenizer)
        return TokenizersVocabulary(json.dumps(content))


def generator_vocabulary(
    tokenizer: Tokenizer, permutation: TokenPermutation
) -> TokenizersVocabulary | Vocabulary:
    """Makes the vocabulary of a model that generates, with its ids.

    Args:
        tokenizer: `Tokenizer`.
        permutation: `TokenPermutation`.

    Raises:
        ImportError: `tokenizers` or `protobuf` is not installed.
        ValueError: a file is damaged, or of another model.
    """
    with tokenizer.reading():
        if tokenizer.sentencepiece is None:
            end, size = int(permutation.order[permutation.end_id]), _size(permutation)
            content = _byte_level(tokenizer)
            return renumbered(content, permutation, size, end)
        by_id = {number: token for token, number in tokenizer.ids.items()}
        special = sentencepiece_models.SPECIAL_TOKENS
        names = {i: f"<{i}>" if t in special else t for i, t in by_id.items()}
        tokens = [names.get(int(i), f"<{i}>") for i in permutation.order[4:]]
        control = [token for token in tokens if token not in tokenizer.ids]
        model = tokenizer.sentencepiece
        return sentencepiece_models.renumbered(model, tokens, control)


def _size(permutation):
    """V of the checkpoint."""
    return int(permutation.order.max()) + 1


def _word_piece(tokenizer):
    config, ids = tokenizer.config, tokenizer.ids
    content = older_tokenizers.word_piece(
        ids,
        (),
        config.string("oov_token", "[UNK]"),
        config.string("suffix_indicator", "##"),
        lowercase=bool(config.get("lowercase", False)),
        strip_accents=bool(config.get("strip_accents", False)),
    )
    return _special(content, ids["[CLS]"], ids["[SEP]"], 1)


def _byte_level(tokenizer):
    return older_tokenizers.byte_level(
        tokenizer.ids,
        (tokenizer.folder / MERGES).read_text(encoding="utf-8"),
        SPECIAL_BYTE_LEVEL,
        bool(tokenizer.config.get("add_prefix_space", False)),
        "<unk>" if "<unk>" in tokenizer.ids else None,
    )


def _special(content, start, end, num_separators):
    """Puts start and end around a text, and separators between two."""
    by_id = {number: t for t, number in content["model"]["vocab"].items()}
    return with_special_tokens(
        content,
        lambda ids: [by_id[number] for number in ids],
        [start],
        [end],
        [end] * num_separators,
    )
