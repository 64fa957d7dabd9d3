"""Files of pairs that go wrong: each gives its pairs, or one sentence."""

import bz2
import gzip
import io
import json
import lzma
import os
import re
import time
import zipfile

import pytest

from keras_tfm.text import csv_jsonl, files, iterate_pairs, read_pairs
from keras_tfm.text import tmx as tmx_files

pytestmark = pytest.mark.backend("torch")  # no backend is involved
PAIRS = [(f"a house {n}", f"ein Haus {n}") for n in range(40)]
TSV = "\n".join(map("\t".join, PAIRS))
OBJECTS = [{"en": source, "de": target} for source, target in PAIRS]
SIDE = '<tuv xml:lang="{}"><seg>{}</seg></tuv>'


def zipped(text):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.tsv", text)
    return file.getvalue()


def objects(change):
    return "\n".join(json.dumps(change(item)) for item in OBJECTS)


def tmx(sides="", **changes):
    units = (SIDE.format("en", s) + SIDE.format("de", t) + sides for s, t in PAIRS)
    body = "".join(f"<tu>{unit}</tu>" for unit in units)
    text = f'<?xml version="1.0"?><tmx version="1.4"><body>{body}</body></tmx>'
    for old, new in changes.get("replace", ()):
        text = text.replace(old, new)
    return text


PREFIXED = [
    (f"{start}{tag}", f"{start}t:{tag}")
    for start in ("<", "</")
    for tag in ("tmx", "body", "tu>", "tuv", "seg")
]
PREFIXED += [("<t:tmx", '<t:tmx xmlns:t="http://www.lisa.org/tmx14"')]
# The number of pairs, or what the error says: expected, got, how to fix.
CASES = {
    "nothing.tsv": ("", "is empty, expected at least one line.*Check that"),
    "nothing.tsv.gz": (gzip.compress(b""), "is empty, expected at least one line"),
    "no_bytes.tsv.gz": (b"", "is empty, expected at least one line"),
    "mark.tsv": (b"\xef\xbb\xbf", "No pair has text on both sides.*Check the columns"),
    "mark16.tsv": (b"\xff\xfe", "is empty, expected at least one line"),
    "blank.tsv": ("\n\t\n  \n", "No pair .* 3 pairs read, 3 dropped .3 both empty"),
    "header.csv": ("en,de", "No pair has text .* 0 pairs read"),
    "column.tsv": ("a house\n" * 40, "expected 2 columns or more, got 1.*by tabs"),
    "pipe.csv": (TSV.replace("\t", "|"), "expected 2 columns or more, got 1.*commas"),
    "bytes.tsv": (bytes(range(256)) * 40, "NUL characters: 1.*not UTF-8: 40"),
    "nul.tsv": (b"\0" * 5000, "NUL characters: 1"),
    "latin1.tsv": (TSV.replace("a", "é").encode("latin1"), "iconv -f latin1"),
    "no_mark.tsv": (TSV.encode("utf-16-le"), "NUL characters.*iconv -f utf-16le"),
    "long.tsv": (f"{TSV}\n{'a ' * 5_000_000}\tb\n{TSV}", 81),
    "windows.tsv": (TSV.replace("\n", "\r\n"), 40),
    "marks.tsv": (f"\ufeff{TSV}\n\ufeff{TSV}", 80),
    "packed.tsv": (gzip.compress(TSV.encode()), 40),
    "packed.tmx": (gzip.compress(tmx().encode()), 40),
    "plain.tsv.gz": (TSV, "gzip data is damaged.*Download or compress"),
    "twice.tsv.gz": (gzip.compress(gzip.compress(b"a\tb")), "text, got gzip data"),
    "a.tsv.bz2": (bz2.compress(TSV.encode()), "expected text, got bzip2 data. Decompr"),
    "a.tsv.xz": (lzma.compress(TSV.encode()), "expected text, got xz data. Decompress"),
    "a.xlsx": (zipped(TSV), "expected text, got a zip archive.*export its content"),
    "a.tmx": (zipped(tmx()), "expected text, got a zip archive"),
    "a.jsonl": (b"%PDF-1.7 ...", "expected text, got a PDF"),
    "names.tsv": ("en\ten\tde\n1\t2\t3", "header must name one column for.*Check"),
    "ids.tsv": ("1\ta\tb\n2\tc\td", "first two of 3 columns must be text.*choose"),
    "tabs.csv": (f"en\tde\n{TSV}", 40),
    "trailing.tsv": (TSV.replace("\n", "\t\n"), 40),
    "quotes.csv": ('"a,b\n' * 40, "cannot be parsed.*double quotes"),
    "null.jsonl": (objects(lambda item: item | {"en": None}), "two strings.*None"),
    "nulls.jsonl": ('{"en": null, "de": null}\n' + objects(dict), 40),
    "number.jsonl": (objects(lambda item: item | {"de": 3}), "two strings.*3"),
    "nested.jsonl": (objects(lambda item: item | {"de": {"a": 3}}), "two strings"),
    "empty.jsonl": ('{"translation": null}\n' * 40, "expected 'source' and 'target'"),
    "twice.jsonl": (objects(dict).replace('"de"', '"en"'), "name occurs twice: 'en'"),
    "array.json": (json.dumps(OBJECTS), "expected a JSON object.*jq"),
    "indented.json": (json.dumps(OBJECTS, indent=1), "one JSON object per line.*jq"),
    "three.tmx": (tmx(SIDE.format("fr", "une maison")), 40),
    "variants.tmx": (tmx(SIDE.format("en-GB", "a hut")), 40),
    "default.tmx": (tmx(replace=[("<tmx", '<tmx xmlns="http://x"')]), 40),
    "prefixed.tmx": (tmx(replace=PREFIXED), 40),
    "upper.tmx": (tmx(replace=[("tu", "TU"), ("seg", "SEG")]), 40),
    "side.tmx": (tmx(replace=[('"de"', '"en"')]), "expected .*, got en"),
    "page.tmx": ("<html><p/></html>", "expected units <tu>, got none in <html>"),
    "none.tmx": ("<tmx><body/></tmx>", "expected units <tu>.*Check that it is a TMX"),
    "text.tmx": (TSV, "the TMX cannot be parsed"),
    "charset.tmx": (
        tmx(replace=[('"1.0"?>', '"1.0" encoding="klingon"?>')]),
        "unknown encoding: klingon",
    ),
    "latin1.tmx": (
        tmx(replace=[('"1.0"?>', '"1.0" encoding="latin1"?>'), ("Haus", "Gehäuse")]),
        40,
    ),
}


def read(path, **options):
    """Returns the number of pairs, or the error."""
    try:
        return len(read_pairs(path, **options))
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("name", CASES)
def test_a_file_gives_pairs_or_one_sentence(tmp_path, name):
    content, expected = CASES[name]
    encoding = "latin1" if name == "latin1.tmx" else "utf-8"
    path = tmp_path / name
    path.write_bytes(
        content if isinstance(content, bytes) else content.encode(encoding)
    )
    result = read(path)
    if isinstance(expected, int):
        assert result == expected
    else:
        assert re.search(expected, result, re.S), result
        assert name in result and len(result) < 1_200


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("quotes.csv", "en,de\n" + 'a",""",\n' * 40_000),  # each opens a quote
        (
            "names.jsonl",
            "{" + ",".join(f'"{n % 99_999}":1' for n in range(10**5)) + "}",
        ),
    ],
)
def test_the_time_to_reject_a_file_is_linear(tmp_path, name, content):
    path = tmp_path / name
    path.write_text(content)
    start = time.process_time()
    assert re.search("cannot be read|cannot be parsed|name occurs twice", read(path))
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("line.tsv", "a\tb" * 9_000),
        ("wide.tsv", ("a\tb" * 9_000).encode("utf-16")),
        ("line.jsonl", '{"en": "' + "a" * 30_000),
        ("row.csv", 'en,de\n"' + "a\n" * 20_000),
        ("text.tmx", "<tmx><tu><tuv><seg>" + "a" * 30_000),
        ("tag.tmx", "<tmx><tu " + "a" * 30_000),
    ],
)
def test_a_line_without_an_end_is_not_read_into_memory(
    tmp_path, monkeypatch, name, content
):
    for module in (files, csv_jsonl, tmx_files):
        monkeypatch.setattr(module, "MAX_LINE", 10_000)
        monkeypatch.setattr(module, "_CHUNK", 1_000, raising=False)
    path = tmp_path / f"{name}.gz"
    content = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(content))
    expected = "at most 10,000 bytes in a .*Check that"
    if name == "row.csv":  # the lines after the quote are read as rows
        expected = r"line 2: the row cannot be parsed up to line 50\d\d"
    assert re.search(expected, read(path)), read(path)


def test_compressed_standard_input_is_named():
    stream = io.BytesIO(gzip.compress(TSV.encode()))
    with pytest.raises(ValueError, match="standard input, line 1: .*, got gzip data"):
        list(iterate_pairs(stream))


def test_what_is_no_file_raises_before_it_is_read(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe.tsv")
    (tmp_path / "loop.tsv").symlink_to(tmp_path / "loop.tsv")
    for name in ("none.tsv", "pipe.tsv", "loop.tsv", "."):
        with pytest.raises(
            FileNotFoundError, match="must be a text file; got '.*Check"
        ):
            read_pairs(tmp_path / name)
    (tmp_path / "a.tsv").write_text(TSV)

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    # The tests may run as root, who reads everything.
    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(PermissionError, match="`path` must be readable; got .*chmod"):
        read_pairs(tmp_path / "a.tsv")
