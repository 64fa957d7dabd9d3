"""Commands on files that go wrong end in a sentence, or name what they skip."""

import bz2
import os

import pytest

from keras_tfm.cli import evaluate, main, score, translate
from keras_tfm.recipes import classification, translation

pytestmark = pytest.mark.backend("torch")  # files are read, whatever the backend
PAIRS = "".join(f"a house {n}\tein Haus {n}\n" for n in range(40))
LABELED = "text\tlabel\n" + "".join(f"house {n}\t{'ab'[n % 2]}\n" for n in range(40))
# The content of a file, and what each command prints: of its last line on
# standard error, or "" where it succeeds. The first is for all others.
ALL = ("doctor", "score", "evaluate", "translate", "objects", "train", "classes")
CASES = {
    "missing.tsv": (None, {"train": "(missing: ", "classes": "missing", "": "is not"}),
    "folder.tsv": (
        "",
        {
            "doctor": "FILE must be a corpus, or a folder with",
            "train": "an empty folder",
            "classes": "folder",
            "": "must be a text file",
        },
    ),
    "empty.tsv": (
        b"",
        {"translate": "", "objects": "", "": "is empty, expected at least one line"},
    ),
    "column.tsv": (
        b"a house\n" * 20,
        {
            "doctor": "",
            "translate": "",
            "objects": "None of the first 20 lines has an answer",
            "classes": "The line is one column",
            "": "Separate columns by tabs",
        },
    ),
    "binary.tsv": (
        bytes(range(128, 256)) + b"\n" + bytes(range(256)),
        {"doctor": "", "score": "3 lines have no answer", "translate": "2 lines have"}
        | {"objects": "3 lines have", "classes": "one column", "": "iconv"},
    ),
    "no_mark.tsv": (
        PAIRS.encode("utf-16-le"),
        {"doctor": "", "": "If this is UTF-16, convert it with `iconv -f utf-16le"},
    ),
    "some.tsv": (
        PAIRS.encode() + b"\xff\tx\nno tab\n",
        {
            "score": "2 lines have no answer, and are empty lines in the output",
            "translate": "1 lines have no answer, and are empty",
            "objects": "None of the first 42 lines",
            "classes": "expected one column",
            "": "",
        },
    ),
    "packed.tsv.bz2": (
        bz2.compress(PAIRS.encode()),
        {"doctor": "", "classes": ".tsv", "": "got bzip2 data. Decompress it"},
    ),
    "broken.tmx": (
        b"<html/>",
        {
            "doctor": "",
            "translate": "",
            "objects": "1 lines have no answer",
            "classes": "must be one of",
            "": "expected units <tu>, got none in <html>",
        },
    ),
    "names.csv": (
        b"text,text,label\na,b,c\n",
        {"doctor": "", "score": "", "evaluate": "", "translate": ""}
        | {"objects": "2 lines", "train": "held-out", "classes": "one column 'text'"},
    ),
    "labels.csv": (
        LABELED.replace("\t", ";").encode() + b"one;two;three\n\xff;a\n",
        {"classes": "", "objects": "None of", "score": "1 lines", "translate": "1 l"}
        | {"evaluate": "", "doctor": "", "train": ""},
    ),
}


@pytest.fixture
def run(folder, translator, tmp_path, monkeypatch, capfd):
    """Returns a function that runs a command on a file, without training."""
    pytest.importorskip("sacrebleu")
    for module in (evaluate, score, translate):
        monkeypatch.setattr(module, "load_translator", lambda *_, **__: translator)
    for recipe in (classification, translation):
        monkeypatch.setattr(recipe, "train", lambda *_: {})
    out = str(tmp_path / "out")
    commands = {
        "doctor": ["doctor"],
        "score": ["score", folder],
        "evaluate": ["evaluate", folder],
        "translate": ["translate", folder],
        "objects": ["translate", folder, "--format", "jsonl"],
        "train": ["train", "translation", "--held-out", "3", "--out", out, "--data"],
        "classes": ["train", "classification", "--out", out, "--data"],
    }

    def run(name, file):
        try:
            status = main([*commands[name], str(file)])
            error = ""
        except SystemExit as end:  # of a recipe, which Python prints
            status, error = 1, str(end.code)
        errors = [*capfd.readouterr().err.splitlines(), *error.splitlines()]
        return status, errors[-1] if errors else ""

    return run


@pytest.mark.parametrize("name", CASES)
def test_each_command_ends_in_a_sentence_or_counts(name, run, tmp_path):
    content, expected = CASES[name]
    file = tmp_path / name
    if content == "":
        file.mkdir()
    elif content is not None:
        file.write_bytes(content)
    results = {command: run(command, file) for command in ALL}
    for command, (status, error) in results.items():
        message = expected.get(command, expected.get(""))
        assert (status, message in error) == (int(message != ""), True), (
            command,
            status,
            error,
        )
        assert "Traceback" not in error


def test_a_file_that_may_not_be_read_is_named(run, tmp_path, monkeypatch):
    file = tmp_path / "secret.tsv"
    file.write_text(PAIRS)
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may read everything
    for command in ALL[:5]:
        status, error = run(command, file)
        assert status == 1 and "FILE must be readable" in error and "chmod" in error
