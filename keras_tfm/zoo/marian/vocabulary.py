"""The vocabularies of Marian: SentencePiece models, or YAML beside them."""

import os
import pathlib
from collections.abc import Sequence

from keras_tfm.text import Vocabulary
from keras_tfm.zoo import sentencepiece_models
from keras_tfm.zoo.config_file import reading
from keras_tfm.zoo.marian.yaml_file import read_yaml_vocabulary
from keras_tfm.zoo.sentencepiece_models import SIDE_MODELS, SPECIAL_TOKENS, read_model
from keras_tfm.zoo.token_permutation import TokenPermutation

SPECIAL = {0: "</s>", 1: "<unk>"}  # by the ids in Marian
SIDE_NAMES = (("src", "trg"), ("source", "target"))  # parts of the names of files


def load_vocabularies(
    folder: pathlib.Path, names: list[str], permutations: Sequence[TokenPermutation]
) -> tuple[tuple[list[str], list[str]], list[Vocabulary | None], bool]:
    """Reads which token each id is, and what segments text into them.

    Args:
        folder: path.
        names: list of str, one or two files, or none to look for them.
        permutations: pair of `TokenPermutation`, source and target.

    Returns:
        Pair of lists of tokens by id; the `Vocabulary` of source and target, or
        None where there is none or the target's is the source's; and whether
        both sides have one file.

    Raises:
        FileNotFoundError: a file is missing.
        ImportError: PyYAML or `protobuf` is not installed.
        ValueError: a file is damaged, or of another model.
    """
    files = [folder / name for name in names] or _find_files(folder)
    files = files * 2 if len(files) == 1 else files
    if len(files) != 2 or not all(file.is_file() for file in files):
        raise FileNotFoundError(
            f"Expected vocabularies of source and target in {os.fspath(folder)!r}; got "
            f"{[file.name for file in files]}."
        )
    source, target = map(_read_tokens, files, permutations)
    tokens = (source, target)
    models = [
        file if file.suffix == ".spm" else folder / name
        for file, name in zip(files, SIDE_MODELS, strict=True)
    ]
    vocabularies: list[Vocabulary | None] = [None, None]
    if all(model.is_file() for model in models):
        vocabularies = [
            sentencepiece_models.renumbered(read_model(model), names[4:])
            for model, names in zip(models, tokens, strict=True)
        ]
    if models[0] == models[1]:
        vocabularies[1] = None
    return tokens, vocabularies, files[0] == files[1]


def _find_files(folder):
    files = [p for p in sorted(folder.glob("*.spm")) if p.name not in SIDE_MODELS]
    files = files or sorted(folder.glob("*vocab*.yml"))
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


def _read_tokens(file, permutation):
    """Returns the token of each id here."""
    if file.suffix == ".spm":
        tokens = dict(enumerate(sentencepiece_models.tokens_of(read_model(file))))
    else:
        tokens = read_yaml_vocabulary(file)
    with reading(file, "a vocabulary of this model"):
        special = {number: tokens.get(number) for number in SPECIAL}
        size, last = int(permutation.order.max()) + 1, max(tokens)
        if special != SPECIAL or last >= size:
            raise ValueError(f"ids up to {last} of {size}, got {special}")
        order = permutation.order[4:]
        return [*SPECIAL_TOKENS, *(tokens.get(int(i), f"<{i}>") for i in order)]
