"""Files of pairs: contents, and errors that name file and line."""

import gzip
import io

import pytest

from keras_tfm.text import read_pairs
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
    with pytest.raises(ValueError, match="a.en has 3 lines, .*a.de has 1. Align"):
        read_pairs(source, target)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_byte_order_mark_says_how_to_decode(tmp_path, encoding, suffix):
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    content = (mark + "größer\r\n\n\u4e0a\u2028\n").encode(encoding)
    path = write(tmp_path / f"a{suffix}", content)
    assert list(iterate_lines(path)) == ["größer", "", "\u4e0a\u2028"]
    assert list(iterate_lines(io.BytesIO(content))) == ["größer", "", "\u4e0a\u2028"]


def test_damaged_utf16_raises(tmp_path):
    path = write(tmp_path / "a", "one\ntwo".encode("utf-16")[:-1])
    with pytest.raises(ValueError, match="a, line 2: .*not valid UTF-16 .truncated"):
        list(iterate_lines(path))
    path = write(tmp_path / "b", "one\ntwo\ud800".encode("utf-16", "surrogatepass"))
    with pytest.raises(ValueError, match="b, line 2: .*ud800"):
        list(iterate_lines(path))


def test_invalid_utf8_raises_with_its_line(tmp_path):
    good = write(tmp_path / "a.en", "one\ntwo\n")
    bad = write(tmp_path / "a.de.gz", "eins\ngr\xfcn\n".encode("latin1"))
    with pytest.raises(ValueError, match=r"line 2: a.de.gz: byte 3 .*0xfc.*iconv"):
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
        with pytest.raises(ValueError, match=f"{name}, line .* is damaged or"):
            list(iterate_lines(tmp_path / name))
