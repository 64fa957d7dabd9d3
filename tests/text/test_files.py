"""Files of pairs: contents, and errors that name file and line."""

import gzip
import json

import pytest

from keras_tfm.text import read_pairs, read_pairs_jsonl, read_pairs_tsv
from keras_tfm.text.files import iterate_lines

pytestmark = pytest.mark.backend("torch")  # no backend is involved


def write(path, content):
    content = content if isinstance(content, bytes) else content.encode()
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wb") as file:
        file.write(content)
    return path


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_parallel_files_are_read_plain_and_compressed(tmp_path, suffix):
    source = write(tmp_path / f"a.en{suffix}", "one\ntwo\n")
    target = write(tmp_path / f"a.de{suffix}", "eins\nzwei")
    pairs = read_pairs(source, str(target))
    assert list(pairs) == [("one", "eins"), ("two", "zwei")]


def test_only_a_newline_ends_a_line(tmp_path):
    path = write(tmp_path / "a", "\ufeffa\u2028b\r\nc\x0cd\re\n\nf")
    assert list(iterate_lines(path)) == ["a\u2028b", "c\x0cd\re", "", "f"]


def test_files_of_different_length_raise(tmp_path):
    source = write(tmp_path / "a.en", "one\ntwo\nthree\n")
    target = write(tmp_path / "a.de", "eins\n")
    with pytest.raises(ValueError, match="a.en='3 lines', .*a.de='1 lines'"):
        read_pairs(source, target)


def test_invalid_utf8_raises_with_its_line(tmp_path):
    good = write(tmp_path / "a.en", "one\ntwo\n")
    bad = write(tmp_path / "a.de.gz", "eins\ngr\xfcn\n".encode("latin1"))
    with pytest.raises(ValueError, match=r"a.de.gz, line 2: byte 3 .*0xfc.*iconv"):
        read_pairs(good, bad)


def test_a_file_without_text_raises(tmp_path):
    good = write(tmp_path / "a.en", "one\n")
    with pytest.raises(
        ValueError, match="a.de.gz is empty, expected at least one line"
    ):
        read_pairs(good, write(tmp_path / "a.de.gz", ""))
    with pytest.raises(ValueError, match="No pair has text.*1 empty target.*0 kept"):
        read_pairs(good, write(tmp_path / "a.de", " \t\n"))
    with pytest.raises(FileNotFoundError, match="none', which is no file"):
        read_pairs(good, tmp_path / "none")


def test_damaged_gzip_raises(tmp_path):
    data = gzip.compress(b"one\n" * 10_000)
    for name, content in (("cut.gz", data[:-20]), ("text.gz", b"one\n")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"{name}, after line .* is damaged or"):
            list(iterate_lines(tmp_path / name))


def test_a_tsv_is_read_by_number_and_by_header(tmp_path):
    path = write(tmp_path / "a.tsv.gz", 'id\ten\tde\n1\t"one\teins\n2\ttwo\tzwei\n')
    by_name = read_pairs_tsv(path, "en", "de")
    assert list(by_name) == [('"one', "eins"), ("two", "zwei")]
    assert list(read_pairs_tsv(path, 2, "en")) == [
        ("eins", '"one'),
        ("zwei", "two"),
    ]
    assert list(read_pairs_tsv(path, 1, 2))[0] == ("en", "de")


def test_a_missing_column_raises_with_its_line(tmp_path):
    path = write(tmp_path / "a.tsv", "one\teins\ntwo\n")
    with pytest.raises(
        ValueError, match="a.tsv, line 2: expected 2 columns; got columns=1"
    ):
        read_pairs_tsv(path)
    with pytest.raises(
        ValueError, match=r"line 1: expected one column 'fr'.*'one', 'eins'"
    ):
        read_pairs_tsv(path, "one", "fr")
    with pytest.raises(ValueError, match="expected one column -1"):
        read_pairs_tsv(path, 0, -1)


def test_json_lines_are_read_and_errors_name_the_line(tmp_path):
    rows = [{"en": "one\n", "de": "eins"}, {"en": "two", "de": "zwei"}]
    lines = "\n".join(map(json.dumps, rows))
    path = write(tmp_path / "a.jsonl.gz", lines)
    assert list(read_pairs_jsonl(path, "en", "de")) == [
        ("one\n", "eins"),
        ("two", "zwei"),
    ]
    for bad, words in (
        ('{"en": "three"}', "expected one column 'de'"),
        ('{"en": "three", "de": 3}', "expected two strings .*3"),
        ('["three", "drei"]', "expected a JSON object"),
        ('{"en": ', "a line that is no JSON"),
        ("[" * 200_000, "a line that is no JSON"),
        ('{"en": ' + "9" * 5000 + "}", "a line that is no JSON"),
        (r'{"en": "\ud83d", "de": "drei"}', "lone surrogates"),
    ):
        path = write(tmp_path / "b.jsonl", f"{lines}\n{bad}\n")
        with pytest.raises(ValueError, match=f"b.jsonl, line 3: .*{words}"):
            read_pairs_jsonl(path, "en", "de")
