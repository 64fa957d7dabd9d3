"""The YAML of Marian: configurations and vocabularies."""

import functools
import json
import pathlib

from keras_tfm.file_reading import Config, reading

YAML_SUFFIXES = (".yml", ".yaml", ".json")


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


def read_token_list(file: pathlib.Path) -> dict[int, str]:
    """Reads a vocabulary of `.yml` or `.json`, or of plain text.

    A line of YAML has a token and its id; PyYAML would take tokens such as no
    and 012 for a bool and a number. The id of a line of plain text is its
    number, from 0.

    Args:
        file: path.

    Returns:
        dict from ids to tokens.

    Raises:
        ImportError: PyYAML is not installed.
        ValueError: a line has another form, or an id or token exists twice.
    """
    with reading(file, "a vocabulary of Marian"):
        text = file.read_text(encoding="utf-8-sig")
        lines = [line.rstrip("\r") for line in text.split("\n")]
        if file.suffix not in YAML_SUFFIXES:
            lines = lines[:-1] if not lines[-1] else lines
            pairs = list(enumerate(lines))
            if "" in lines:
                raise ValueError(f"line {lines.index('') + 1} is empty")
        elif text.lstrip().startswith("{"):
            pairs = [(int(i), token) for token, i in json.loads(text).items()]
        else:
            pairs = _yaml_pairs(lines)
        tokens = dict(pairs)
        if len(set(tokens.values())) < len(pairs):
            raise ValueError("a token exists twice")
        return tokens


def _yaml_pairs(lines):
    """Lists the id and token of each line."""
    pairs, numbers, long_token = [], set(), ""
    for number, line in enumerate(lines, 1):
        # Tokens have no spaces, so this is a comment.
        if not line or line in ("---", "...") or line.startswith("# "):
            continue
        if line.startswith("? "):  # a long token; its id is in the next line
            long_token = line[2:]
            continue
        token, _, index = line.partition(" #")[0].rpartition(":")
        token = long_token or token
        try:
            index = int(index)
            token = _unquoted(token)
        except ValueError:
            raise ValueError(
                f"line {number} must be a token and its id; got {line[:60]!r}"
            ) from None
        if index in numbers:
            raise ValueError(f"line {number}: the id {index} exists twice")
        numbers.add(index)
        pairs.append((index, token))
        long_token = ""
    return pairs


def _unquoted(token):
    if token[:1] == "'":
        if len(token) < 2 or token[-1] != "'":
            raise ValueError("a quote is missing")
        return token[1:-1].replace("''", "'")
    if token[:1] != '"':
        return token
    # YAML would take these characters for line breaks.
    for character, escape in (("\x85", "N"), ("\u2028", "L"), ("\u2029", "P")):
        token = token.replace(character, f"\\{escape}")
    yaml = _yaml()
    try:
        return yaml.load(token, yaml.BaseLoader)  # noqa: S506
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def _yaml():
    try:
        import yaml
    except ImportError as error:
        raise ImportError(
            "Reading configurations in YAML needs the library PyYAML, which cannot be "
            f"imported ({error}). Install `keras-tfm[zoo]`."
        ) from error
    return yaml
