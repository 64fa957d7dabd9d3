"""The YAML of Marian: configurations and vocabularies."""

import functools
import pathlib

from keras_tfm.zoo.config_file import Config, reading


def read_yaml(content: bytes, file: pathlib.Path) -> Config:
    """Reads a configuration: a mapping to numbers, strings and lists of these.

    Args:
        content: bytes.
        file: path, named in errors.

    Returns:
        `Config`.

    Raises:
        ImportError: PyYAML is not installed.
        ValueError: the content is no such mapping.
    """
    yaml = _yaml()
    with reading(file, "YAML"):
        values = yaml.load(content.decode("utf-8"), _loader_without_aliases(yaml))
        nested = (list, dict)
        is_flat = isinstance(values, dict) and not any(
            isinstance(item, nested)
            for value in values.values()
            for item in (value if isinstance(value, list) else [value])
        )
        if not is_flat:
            raise ValueError("expected a mapping to plain values")
        return Config(values, file)


@functools.cache
def _loader_without_aliases(yaml):
    """A few hundred bytes of aliases of aliases can expand to any size."""

    def _compose_node(loader, parent, index):
        if loader.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it refers to parts of itself")
        return yaml.SafeLoader.compose_node(loader, parent, index)

    return type("Loader", (yaml.SafeLoader,), {"compose_node": _compose_node})


def read_yaml_vocabulary(file: pathlib.Path) -> dict[int, str]:
    """Reads a vocabulary with a token and its id in each line.

    PyYAML would take tokens such as no and 012 for a bool and a number.

    Args:
        file: path.

    Returns:
        dict from ids to tokens.

    Raises:
        ImportError: PyYAML is not installed.
        ValueError: a line has another form, or an id or token exists twice.
    """
    tokens, long_token, yaml = {}, "", _yaml()
    with reading(file, "a vocabulary of Marian"):
        lines = file.read_text(encoding="utf-8").split("\n")
        for number, line in enumerate(lines, 1):
            line = line.rstrip("\r")
            if not line or line in ("---", "..."):
                continue
            if line.startswith("? "):  # a long token; its id is in the next line
                long_token = line[2:]
                continue
            token, _, index = line.rpartition(":")
            token = long_token or token
            try:
                index = int(index)
                if token[:1] in ("'", '"'):
                    token = yaml.load(token, yaml.BaseLoader)  # noqa: S506
            except (ValueError, yaml.YAMLError):
                raise ValueError(
                    f"line {number} must be a token and its id; got {line[:60]!r}"
                ) from None
            if index in tokens:
                raise ValueError(f"line {number}: the id {index} exists twice")
            tokens[index], long_token = token, ""
        if len(set(tokens.values())) < len(tokens):
            raise ValueError("a token exists twice")
        return tokens


def _yaml():
    try:
        import yaml
    except ImportError as error:
        raise ImportError(
            "Reading configurations of Marian needs the library PyYAML, which cannot "
            f"be imported ({error}). Install `keras-tfm[zoo]`."
        ) from error
    return yaml
