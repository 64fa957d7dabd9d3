"""The vocabularies of Marian: SentencePiece models, or lists beside them."""

import os
import pathlib
from collections.abc import Sequence

from keras_tfm.file_reading import reading
from keras_tfm.text import Vocabulary
from keras_tfm.zoo import sentencepiece_models
from keras_tfm.zoo.marian.yaml_file import YAML_SUFFIXES, read_token_list
from keras_tfm.zoo.sentencepiece_models import SIDE_MODELS, SPECIAL_TOKENS, read_model
from keras_tfm.zoo.token_permutation import TokenPermutation

# Special tokens, and the ids and names that they have in YAML of Nematus.
SPECIAL = {"<unk>": (1, "UNK"), "</s>": (0, "eos")}
SIDE_NAMES = (("src", "trg"), ("source", "target"))  # parts of the names of files
PATTERNS = ("*vocab*.yml", "*vocab*.yaml", "*vocab*.json", "*vocab*.txt")


def vocabulary_files(folder: pathlib.Path, names: list[str]) -> list[pathlib.Path]:
    """Returns the files of the vocabularies of source and target.

    Args:
        folder: path.
        names: list of str, one or two files, or none to look for them.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: nothing tells which of two is of the source.
    """
    files = [folder / name for name in names] or _find_files(folder)
    files = files * 2 if len(files) == 1 else files
    if len(files) != 2 or not all(file.is_file() for file in files):
        raise FileNotFoundError(
            f"Expected vocabularies of source and target in {os.fspath(folder)!r}; got "
            f"{[file.name for file in files]}."
        )
    return files


def read_tokens(file: pathlib.Path, size: int) -> dict[int, str]:
    """Reads the token of each id.

    Args:
        file: path.
        size: int, V of the model.

    Returns:
        dict from ids to tokens.

    Raises:
        ImportError: PyYAML or `protobuf` is not installed.
        ValueError: the file is damaged, or of another model.
    """
    if file.suffix == ".spm":
        tokens = dict(enumerate(sentencepiece_models.tokens_of(read_model(file))))
    else:
        tokens = read_token_list(file)
    last = max(tokens, default=-1)
    if last >= size:
        raise ValueError(
            f"{file} must be a vocabulary of this model, with ids below {size}; got "
            f"ids up to {last}. Download both from one model."
        )
    return tokens


def special_ids(file: pathlib.Path, tokens: dict[int, str]) -> tuple[int, int]:
    """Returns the ids of the unknown token and of the end.

    Args:
        file: path.
        tokens: dict, of `read_tokens`.

    Raises:
        ValueError: there is no such token.
    """
    ids = {token: number for number, token in tokens.items()}
    for token, (number, old_name) in SPECIAL.items():
        is_old = file.suffix in YAML_SUFFIXES and tokens.get(number) == old_name
        ids.setdefault(token, number if is_old else -1)
    if min(ids[token] for token in SPECIAL) < 0:
        raise ValueError(
            f"{file} must be a vocabulary of this model, with the tokens "
            f"{list(SPECIAL)}; got {[tokens.get(i) for i in range(4)]} as the first."
        )
    return ids["<unk>"], ids["</s>"]


def load_vocabularies(
    folder: pathlib.Path,
    files: list[pathlib.Path],
    tokens_by_id: Sequence[dict[int, str]],
    permutations: Sequence[TokenPermutation],
) -> tuple[tuple[list[str], list[str]], list[Vocabulary | None]]:
    """Makes the vocabularies that segment text, with the ids here.

    Args:
        folder: path.
        files: pair of paths, of `vocabulary_files`.
        tokens_by_id: pair of dicts, of `read_tokens`.
        permutations: pair of `TokenPermutation`, source and target.

    Returns:
        Pair of lists of tokens by id; and the `Vocabulary` of source and
        target, or None where there is none or the target's is the source's.

    Raises:
        ImportError: `protobuf` is not installed.
        ValueError: a file is damaged, or of another model.
    """
    source, target = map(_tokens, files, tokens_by_id, permutations)
    tokens = (source, target)
    models = [
        file if file.suffix == ".spm" else folder / name
        for file, name in zip(files, SIDE_MODELS, strict=True)
    ]
    vocabularies: list[Vocabulary | None] = [None, None]
    if all(model.is_file() for model in models):
        for side, (model, names) in enumerate(zip(models, tokens, strict=True)):
            used = dict.fromkeys([model.name, files[side].name])
            with reading(folder, "a vocabulary of this model", names=used):
                vocabularies[side] = sentencepiece_models.renumbered(
                    read_model(model), names[4:]
                )
    if models[0] == models[1]:
        vocabularies[1] = None
    return tokens, vocabularies


def _find_files(folder):
    files = [p for p in sorted(folder.glob("*.spm")) if p.name not in SIDE_MODELS]
    for pattern in PATTERNS:
        files = files or sorted(folder.glob(pattern))
    if len(files) != 2:
        return files
    for first, second in (files, files[::-1]):
        for source, target in SIDE_NAMES:
            if source in first.name and target in second.name:
                return [first, second]
    raise ValueError(
        f"{folder}: a configuration, or src and trg in the names, must tell the "
        f"vocabulary of the source; got {[file.name for file in files]}."
    )


def _tokens(file, by_id, permutation):
    """Returns the token of each id here."""
    with reading(file, "a vocabulary of this model"):
        order = permutation.order[4:]
        return [*SPECIAL_TOKENS, *(by_id.get(int(i), f"<{i}>") for i in order)]
