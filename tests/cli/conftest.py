"""A saved translator, its input, and helpers that run commands."""

import io
import sys

import pytest

from keras_tfm import decode
from keras_tfm.pipelines import Translator
from keras_tfm.text import Vocabulary
from tests.decode.conftest import draw_transformer

LINES = [
    "an old man in a small boat",
    "a house",
    "",
    "the garden in front of the house",
    "a small boat",
    "  blanks around it ",
    "the boat.",
    "a man",
]
OPTIONS = {"beam_size": 2, "max_decoding_length": 12}
PROGRAM = "import sys; from keras_tfm.cli import main; sys.exit(main())"


@pytest.fixture(scope="session")
def vocabulary():
    return Vocabulary.train([line for line in LINES if line] * 20, size=280)


@pytest.fixture(scope="session")
def translator(vocabulary):
    model = draw_transformer(seed=6, vocabulary_size=vocabulary.size)
    return Translator(model, vocabulary, options=decode.Options(**OPTIONS))


@pytest.fixture(scope="session")
def folder(translator, tmp_path_factory):
    folder = tmp_path_factory.mktemp("translator")
    translator.save(folder)
    return str(folder)


@pytest.fixture
def source(tmp_path):
    file = tmp_path / "source.txt"
    file.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return str(file)


@pytest.fixture
def type_in(monkeypatch):
    """Returns a function that makes bytes the standard input."""

    def type_in(content):
        stream = io.TextIOWrapper(io.BytesIO(content))
        monkeypatch.setattr(sys, "stdin", stream)

    return type_in


def printed(capfd):
    """Returns what a command has printed, line by line."""
    return capfd.readouterr().out.split("\n")[:-1]
