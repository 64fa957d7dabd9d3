"""Pairs of every format of file: sides, headers, and faults by line."""

import gzip
import json
import logging

import pytest

from keras_tfm.text import iterate_pairs, read_pairs

pytestmark = pytest.mark.backend("torch")  # no backend is involved
PAIRS = [("one, two", "eins; zwei"), ('a "cat"', "eine Katze"), ("three", "drei")]
TMX = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en"/><body>
{}</body></tmx>
"""
TEXT = '<tuv xml:lang="{}"><seg>{}</seg></tuv>'
UNIT = f"<tu>{TEXT}{TEXT}</tu>\n"


def tmx(pairs, source="en-US", target="DE"):
    return TMX.format("".join(UNIT.format(source, s, target, t) for s, t in pairs))


def csv(pairs, separator=","):
    rows = [[f'"{side.replace(chr(34), 2 * chr(34))}"' for side in p] for p in pairs]
    return "\n".join(map(separator.join, rows))


def jsonl(pairs, source="en", target="de"):
    return "\n".join(json.dumps({source: s, target: t}) for s, t in pairs)


def nested(pairs):
    items = ({"translation": {"de": t, "en": s}, "id": "7"} for s, t in pairs)
    return "\n".join(map(json.dumps, items))


def tsv(pairs):
    return "\n".join(map("\t".join, pairs))


def write(path, content, encoding="utf-8"):
    data = content if isinstance(content, bytes) else content.encode(encoding)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


FORMS = {
    "a.tsv": tsv(PAIRS),
    "a.txt": tsv(PAIRS),  # an unknown name is that of a table with tabs
    "b.tsv": "english\tGerman\n" + tsv(PAIRS),
    "c.tsv": "id\tde\ten\n" + tsv(("7", t, s) for s, t in PAIRS),
    "a.csv": csv(PAIRS),
    "b.csv": csv([("Source", "Target"), *PAIRS], ";"),
    "c.csv": csv([("de_DE", "en_US"), *[p[::-1] for p in PAIRS]], "\t"),
    "a.jsonl": jsonl(PAIRS),
    "b.jsonl": jsonl(PAIRS, "source", "target"),
    "c.jsonl": jsonl(PAIRS, "src", "tgt"),
    "d.json": nested(PAIRS),
    "a.tmx": tmx(PAIRS),
    "b.tmx": tmx([p[::-1] for p in PAIRS], "deu", "eng"),
}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("name", FORMS)
def test_every_format_gives_the_same_pairs(tmp_path, name, suffix, encoding):
    content = FORMS[name]
    if name.endswith("tmx") and encoding == "utf-16":
        content = content.replace('"UTF-8"', '"UTF-16"')
    path = write(tmp_path / f"{name}{suffix}", content, encoding)
    assert list(read_pairs(path, languages=("en", "de"))) == PAIRS
    assert list(iterate_pairs(path, languages=("en", "de"))) == PAIRS


@pytest.mark.parametrize("name", [name for name in FORMS if name != "c.tsv"])
def test_without_languages_the_order_of_names_decides(tmp_path, name):
    pairs = list(read_pairs(write(tmp_path / name, FORMS[name])))
    is_reversed = name in ("c.csv", "d.json", "b.tmx")
    assert pairs == ([p[::-1] for p in PAIRS] if is_reversed else PAIRS)


@pytest.mark.parametrize(
    ("header", "languages", "expected"),
    [
        ("en\tde", ("en", "de"), True),
        ("English\tItaliano", ("en", "it"), True),
        ("eng_Latn\tdeu_Latn", ("en", "de"), True),
        ("source text\ttarget text", ("en", "de"), True),
        ("German\ttranslation", ("de", "en"), True),
        ("en\txx", ("en", "xx"), True),
        ("en\tde", None, True),
        ("It\tEs", ("en", "de"), False),  # words that are codes of others
        ("No\tNo", ("en", "it"), False),
        ("Text\tText", ("en", "de"), False),
        ("in-between\tis-land", None, False),
        ("a house\tein Haus", ("en", "de"), False),
    ],
)
def test_a_header_is_recognized_and_reported(
    tmp_path, caplog, header, languages, expected
):
    path = write(tmp_path / "a.tsv", f"{header}\n{tsv(PAIRS)}\n")
    pairs = read_pairs(path, languages=languages)
    assert (len(pairs) == 3) == expected
    assert any("line 1 is a header" in text for text in caplog.messages) == expected
    assert len(list(iterate_pairs(path, header=False))) == 4


def test_columns_are_named_or_counted(tmp_path):
    path = write(tmp_path / "a.tsv", 'id\ten\tde\n1\t"one\teins\n2\ttwo\tzwei\n')
    expected = [('"one', "eins"), ("two", "zwei")]
    for columns in (("en", "de"), (1, 2), (1, "de")):
        options = dict(zip(("source_column", "target_column"), columns, strict=True))
        assert list(read_pairs(path, **options)) == expected
    keys = write(tmp_path / "a.jsonl", '{"q": "one", "answer": "eins", "en": "x"}')
    options = {"source_column": "q", "target_column": "answer"}
    assert list(read_pairs(keys, **options)) == [("one", "eins")]
    memory = write(tmp_path / "a.tmx", tmx(PAIRS))
    options = {"source_column": "de", "target_column": "EN"}
    assert list(read_pairs(memory, **options)) == [p[::-1] for p in PAIRS]


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("a.tsv", "en\tde\n1\t2", {"source_column": "en"}, "must be set together"),
        ("a.tsv", "en\tit\n1\t2", {"languages": ("en", "de")}, "name one column for"),
        ("a.tsv", "en\tde\n", {"source_column": "x", "target_column": "de"}, "'x'"),
        ("a.tsv", "1\t2\n", {"source_column": 0, "target_column": -1}, "from 0"),
        ("a.tsv", "1\tone\t2\teins\n", {}, "first two of 4 columns must be text"),
        ("a.tsv", "one\neins\n", {}, r"line 1: expected 2 columns or more, got 1"),
        ("a.csv", "one;eins;x", {"format": "xls"}, "`format` must be one of"),
        ("a.jsonl", '{"en": "one", "it": "uno"}', {"languages": ("en", "de")}, "'de'"),
        ("a.tmx", tmx(PAIRS), {"languages": ("en", "fr")}, "'fr', got en-US, DE"),
        ("a.jsonl", '{"a": "1", "b": "2"}', {}, "expected 'source' and 'target'"),
        ("a.tsv", "a\tb", {"max_bad_rate": 2}, "`max_bad_rate` must be from 0 to 1"),
    ],
)
def test_sides_that_cannot_be_told_raise(tmp_path, name, content, options, message):
    with pytest.raises(ValueError, match=message):
        read_pairs(write(tmp_path / name, content), **options)


GOOD = [f'{{"en": "one {n}", "de": "eins {n}"}}' for n in range(40)]
BAD_OBJECTS = {
    '{"en": "three"}': "expected 'en' and 'de', got en",
    '{"en": "three", "de": 3}': "expected two strings .*3",
    '["three", "drei"]': "expected a JSON object",
    '{"en": ': "got no JSON",
    "[" * 200_000: "got no JSON",
    '{"en": ' + "9" * 5000 + "}": "got no JSON",
    r'{"en": "\ud83d", "de": "drei"}': "lone surrogates",
    r'{"en": "a\u0000", "de": "drei"}': "NUL|u0000|x00",
}


@pytest.mark.parametrize("bad", BAD_OBJECTS)
def test_a_bad_object_is_skipped_or_raises_with_its_line(tmp_path, caplog, bad):
    path = write(tmp_path / "a.jsonl", "\n".join([*GOOD[:20], bad, "", *GOOD[20:]]))
    options = {"languages": ("en", "de")}
    pairs = read_pairs(path, **options)
    assert len(pairs) == 40
    [message] = caplog.messages
    assert "1 of 41 rows cannot be read" in message and "line 21: " in message
    with pytest.raises(ValueError, match=f"a.jsonl, line 21: .*({BAD_OBJECTS[bad]})"):
        list(iterate_pairs(path, **options))
    with pytest.raises(ValueError, match=r"1 of 41 .*At most 1.00% .*`max_bad_rate`"):
        read_pairs(path, max_bad_rate=0.01, **options)


def test_faults_are_counted_by_kind_and_ten_lines_are_listed(tmp_path, caplog):
    rows = [b"a\tb"] * 100
    for index in range(20, 34):
        rows[index] = b"no tab"
    rows[50:52] = [b"gr\xfcn\tgreen", b"\xff\tx"]
    path = write(tmp_path / "a.tsv", b"\n".join(rows))
    assert len(read_pairs(path, max_bad_rate=0.2)) == 84
    [message] = caplog.messages
    assert "16 of 100 rows" in message
    lines = ", ".join(map(str, range(21, 31)))
    assert f"too few columns: 14 in lines {lines}, ...; line 21: expected" in message
    assert "not UTF-8: 2 in lines 51, 52; line 51: byte 3 of the line" in message
    with pytest.raises(ValueError, match="16 of 100 rows .*At most 5.00%"):
        read_pairs(path)


def test_a_blank_row_is_a_pair_without_text(tmp_path, caplog):
    path = write(tmp_path / "a.tsv", "\n\na\tb\n\n\t\nc\td\n")
    with caplog.at_level(logging.WARNING):
        assert list(read_pairs(path)) == [("a", "b"), ("c", "d")]
    assert "4 both empty" in caplog.text


def test_wrong_quotes_of_a_csv_cost_one_row(tmp_path, caplog):
    rows = [f'"one, {n}",eins' for n in range(60)]
    rows[10] = '"open,eins'  # swallows all that follows
    rows[30] = '"b"c,eins'
    rows[40] = '"two\nlines","zwei ""Zeilen"""'
    path = write(tmp_path / "a.csv", "\n".join(rows))
    pairs = list(read_pairs(path))
    assert len(pairs) == 58 and pairs[-1] == ("one, 59", "eins")
    assert ("two\nlines", 'zwei "Zeilen"') in pairs
    assert "wrong quotes: 2 in lines 11, 31" in caplog.text
    last = write(tmp_path / "b.csv", "\n".join([*rows[:10], '"open,eins', "a,b"]))
    assert list(read_pairs(last, max_bad_rate=0.1))[-1] == ("a", "b")


def test_parallel_files_lose_the_pairs_of_bad_lines(tmp_path, caplog):
    source = write(tmp_path / "a.en", b"\n".join([b"a"] * 30 + [b"gr\xfcn"] + [b"c"]))
    target = write(tmp_path / "a.de", "\n".join(["b"] * 31 + ["d"]))
    pairs = list(read_pairs(source, target))
    assert len(pairs) == 31 and pairs[-1] == ("c", "d")
    assert "a.en: byte 3 of the line" in caplog.text
    target.write_text("b\n" * 10)
    with pytest.raises(ValueError, match="a.de has 10"):
        read_pairs(source, target, max_bad_rate=1)


def test_utf16_without_a_mark_is_named(tmp_path):
    path = write(tmp_path / "a.tsv", tsv(PAIRS), "utf-16-le")
    with pytest.raises(ValueError, match=r"NUL characters.*"):
        read_pairs(path)


def test_a_tmx_keeps_text_and_leaves_out_codes(tmp_path):
    text = "Press\n  <bpt i='1'>&lt;b></bpt>the <hi>red</hi> &amp; "
    text += "<ph>x<sub>y</sub></ph>key"
    path = write(tmp_path / "a.tmx", tmx([(text, "Taste"), ("a", "")]))
    rows = list(iterate_pairs(path))
    assert rows == [("Press the red & key", "Taste"), ("a", "")]


def test_entities_of_a_tmx_are_not_expanded(tmp_path):
    bomb = '<!DOCTYPE tmx [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>'
    content = tmx([("&b;", "x")]).replace('<!DOCTYPE tmx SYSTEM "tmx14.dtd">', bomb)
    with pytest.raises(ValueError, match="line 2: .*declares the entity 'a'"):
        read_pairs(write(tmp_path / "a.tmx", content))
    path = write(tmp_path / "b.tmx", tmx([*PAIRS, ("a&nbsp;b", "x"), *PAIRS]))
    assert list(read_pairs(path, max_bad_rate=0.2)) == PAIRS + PAIRS


def test_a_damaged_tmx_raises_and_names_the_line(tmp_path):
    path = write(tmp_path / "a.tmx", tmx(PAIRS)[:-30])
    with pytest.raises(ValueError, match="a.tmx, line .*cannot be parsed.*export"):
        read_pairs(path, max_bad_rate=1)
    path = tmp_path / "a.tmx.gz"
    path.write_bytes(gzip.compress(tmx(PAIRS * 99).encode())[:-9])
    with pytest.raises(ValueError, match="gzip data is damaged or truncated"):
        read_pairs(path)
