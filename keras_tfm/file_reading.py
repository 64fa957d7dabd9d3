"""Guards the reading of any file, and reads small files of JSON."""

import contextlib
import json
import math
import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

REQUIRED: Any = object()
KINDS = {int: "an integer", str: "a string", list: "a list", dict: "an object"}


@contextlib.contextmanager
def reading(
    file: str | os.PathLike,
    content: str,
    fix: str = "It may be damaged: copy, download or write it again.",
    names: Iterable[str] = (),
) -> Iterator[None]:
    """Turns whatever fails inside into a `ValueError` that names the file.

    A damaged or hostile file fails in ways that no list of exceptions foresees:
    zip, protobuf, HDF5, YAML and NumPy raise a dozen types. `MemoryError`
    passes, and so do the errors of a file or library that is absent, and a
    `ValueError` that names the file, or a file in it, already.

    Args:
        file: path of the file or folder that is read.
        content: str. What the file holds, for the error.
        fix: str, sentences that say what to do.
        names: str, where `file` is a folder: its files that may be at fault.

    Raises:
        ValueError: anything failed inside.

    Example:
        ```python
        from keras_tfm.file_reading import reading

        try:
            with reading("vocab.json", "a vocabulary"):
                {}["<pad>"]
        except ValueError as error:
            print(error)  # vocab.json cannot be read as a vocabulary: ...
        ```
    """
    try:
        yield
    except (MemoryError, FileNotFoundError, ImportError):
        raise
    except BaseException as error:
        # A panic of Rust, as of tokenizers, is no `Exception`.
        is_panic = type(error).__name__ == "PanicException"
        if not isinstance(error, Exception) and not is_panic:
            raise
        place, text, names = os.fspath(file), str(error), ", ".join(names)
        is_clear = type(error) is ValueError
        # With names, those in the folder; without, also those beside the file.
        folder = place if names else os.path.dirname(place)
        paths = [f"{place} ("] if names else [place]
        paths += [f"{folder}{os.sep}"] if folder else []
        if is_clear and any(path in text for path in paths):
            raise
        received = text if is_clear else f"{type(error).__name__}: {text}"
        received = received.removeprefix(f"{place}: ").rstrip(".")
        raise ValueError(
            f"{place}{f' ({names})' if names else ''} cannot be read as {content}: "
            f"{received:.600}. {fix}"
        ) from error


def read_json(file: pathlib.Path, kind: type = dict) -> Any:
    """Reads a JSON object or list.

    Args:
        file: `pathlib.Path`.
        kind: dict or list.

    Returns:
        dict or list; empty where the file does not exist.

    Raises:
        ValueError: the file is not JSON, or of another kind.

    Example:
        ```python
        import pathlib
        from keras_tfm.file_reading import read_json

        print(read_json(pathlib.Path("no-such-file.json")))  # {}
        ```
    """
    if not file.is_file():
        return kind()
    with reading(file, "JSON"):
        content = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(content, kind):
            raise ValueError(f"{file} must hold {KINDS[kind]}; got {content!r:.40}.")
        return content


class Config(dict):
    """The values of a configuration file, checked for type where they are used.

    Null values are left out.

    Args:
        values: dict.
        file: path of the file, named in errors.

    Example:
        ```python
        from keras_tfm.file_reading import Config

        config = Config({"d_model": 512, "dropout": None}, "config.json")
        print(config.integer("d_model"))  # 512
        print(config.number("dropout", 0.1))  # 0.1
        ```
    """

    def __init__(self, values: dict, file: str | os.PathLike):
        super().__init__({k: v for k, v in values.items() if v is not None})
        self.file = file

    def __missing__(self, name: str) -> NoReturn:
        raise ValueError(
            f"{self.file} must have {name!r}; it has {sorted(self)[:40]}. Download it "
            "again."
        )

    def integer(self, name: str, default: Any = REQUIRED) -> int:
        """Returns an integer; bools are rejected.

        Args:
            name: str.
            default: returned where the value is absent.
        """
        return self.typed(name, int, default)

    def natural(self, name: str) -> int:
        """Returns an integer of 0 or more.

        Args:
            name: str.

        Raises:
            ValueError: the value is another, or absent.
        """
        if (value := self.integer(name)) < 0:
            raise ValueError(
                f"{self.file}: `{name}` must not be below 0; got {value}. Download "
                "the file again."
            )
        return value

    def naturals(self, name: str, keys: Iterable[str]) -> dict[str, int]:
        """Returns an object of integers of 0 or more.

        Args:
            name: str.
            keys: str, those that it must have.

        Raises:
            ValueError: a value is another, or absent.
        """
        values = Config(self.typed(name, dict), self.file)
        return {key: values.natural(key) for key in keys}

    def number(self, name: str, default: Any = REQUIRED) -> float:
        """Returns a finite number; bools are rejected.

        Args:
            name: str.
            default: returned where the value is absent.
        """
        return self.typed(name, (int, float), default, "a number")

    def string(self, name: str, default: Any = REQUIRED) -> str:
        """Returns a string.

        Args:
            name: str.
            default: returned where the value is absent.
        """
        return self.typed(name, str, default)

    def typed(
        self,
        name: str,
        kind: type | tuple[type, ...],
        default: Any = REQUIRED,
        expected: str | None = None,
    ) -> Any:
        """Returns a value of one type.

        Args:
            name: str.
            kind: type, or tuple of types.
            default: returned where the value is absent.
            expected: str, the name of the type in an error; or None.

        Raises:
            ValueError: the value is of another type, not finite, or absent and
                without a default.
        """
        if name not in self and default is not REQUIRED:
            return default
        value = self[name]
        fits = isinstance(value, kind) and not isinstance(value, bool)
        if not fits or (isinstance(value, float) and not math.isfinite(value)):
            raise ValueError(
                f"{self.file}: `{name}` must be {expected or KINDS[kind]}; got "
                f"{value!r:.60}. Download the file again."
            )
        return value


def read_ids(file: pathlib.Path) -> dict[str, int]:
    """Reads a JSON object of token ids.

    Args:
        file: `pathlib.Path`.

    Returns:
        dict from tokens to ids; empty where the file does not exist.

    Raises:
        ValueError: the file is not JSON, an id is no integer, or two tokens
            have the same id.

    Example:
        ```python
        import pathlib
        from keras_tfm.file_reading import read_ids

        print(read_ids(pathlib.Path("no-such-vocab.json")))  # {}
        ```
    """
    ids = Config(read_json(file), file)
    for token in ids:
        ids.integer(token)
    by_id = {number: token for token, number in ids.items()}
    for token, number in ids.items():
        if by_id[number] != token:
            raise ValueError(
                f"{file} must give each token an id of its own; got {number} for "
                f"{token!r:.60} and {by_id[number]!r:.60}. Download it again."
            )
    return dict(ids)
