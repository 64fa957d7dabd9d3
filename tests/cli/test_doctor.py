"""The corpus check finds each fault that a test adds."""

import gzip
import json
import os

import pytest

from keras_tfm.cli import main
from keras_tfm.recipes import user_files
from keras_tfm.text import Vocabulary, read_pairs

pytestmark = pytest.mark.backend("torch")  # no backend is used
SOURCE = "the small garden old house boat man and woman behind in front of with"
TARGET = "der kleine Garten alte Haus Boot Mann und Frau hinter vor mit dem ein"


def sentence(words, number):
    words = words.split()
    return " ".join(words[(number * step) % len(words)] for step in (1, 2, 3, 5, 7, 11))


PAIRS = [
    (f"{sentence(SOURCE, n)} {n}", f"{sentence(TARGET, n)} {n}") for n in range(60)
]


def check(tmp_path, capfd, pairs, *flags):
    """Returns the status, the count of each fault, and the printed lines."""
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"{s}\t{t}\n" for s, t in pairs), encoding="utf-8")
    status = main(["doctor", str(file), *flags])
    out = capfd.readouterr().out.splitlines()
    counts = [line.rpartition(": ") for line in out if line.endswith("%)")]
    return status, {name: int(rest.split()[0]) for name, _, rest in counts}, out


FAULTS = {
    "a side is empty": [("a garden", "")],
    "both sides are equal": [("The small garden there.", "the small  garden there.")],
    "the pair is a repetition": [PAIRS[7]],
    "the lengths differ unusually": [("the small garden behind the old house", "Haus")],
    "the sides look swapped": [PAIRS[3][::-1]],
    "characters that are not text": [("a house", "ein Haus\ufffd"), ("a\x07", "ein")],
}
AMBIGUOUS = "the source has another target in an earlier pair"


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found(fault, tmp_path, capfd):
    clean = check(tmp_path, capfd, PAIRS)[1]
    assert set(clean.values()) == {0}
    pairs = [*PAIRS[:20], *FAULTS[fault], *PAIRS[20:]]
    status, counts, out = check(tmp_path, capfd, pairs, "--strict")
    assert counts.pop(fault) == len(FAULTS[fault])
    del counts[AMBIGUOUS]
    assert not any(counts[name] for name in counts if name != "both sides are equal")
    assert status == 1
    assert any(line.strip().startswith("line 2") for line in out)


def test_another_translation_is_not_a_fault(tmp_path, capfd):
    pairs = [*PAIRS, (PAIRS[0][0], "etwas anderes als zuvor gesagt")]
    status, counts, _ = check(tmp_path, capfd, pairs, "--strict")
    assert counts[AMBIGUOUS] == 1
    assert status == 0


def test_sentences_of_the_test_set_are_found_in_training(tmp_path, capfd):
    (tmp_path / "test.txt").write_text(PAIRS[5][0].upper() + "\nunseen\n\n")
    (tmp_path / "out.txt").write_text("nichts\n\n")
    flags = ["--test-source", str(tmp_path / "test.txt")]
    flags += ["--test-target", str(tmp_path / "out.txt")]
    status, counts, out = check(tmp_path, capfd, PAIRS, *flags)
    assert counts["the source is in the test set"] == 1
    assert counts["the target is in the test set"] == 0
    assert status == 0 and out[0] == "60 pairs"


def test_a_missing_vocabulary_is_reported_first(tmp_path, capfd):
    assert main(["doctor", str(tmp_path / "no.en"), "--vocabulary", "no"]) == 1
    assert "--vocabulary must be a file; got 'no'" in capfd.readouterr().err


def test_the_tokens_of_a_vocabulary_are_counted(tmp_path, capfd):
    vocabulary = Vocabulary.train([s for s, _ in PAIRS], size=320, exact=False)
    vocabulary.save(tmp_path / "v.model")
    flags = ["--vocabulary", str(tmp_path / "v.model"), "--max-length", "12"]
    _, _, out = check(tmp_path, capfd, [*PAIRS, ("\u65e5\u672c", "\u65e5")], *flags)
    source, target = out[-2:]
    longest = max(map(len, vocabulary.encode([s for s, _ in PAIRS])))
    assert f"at most {longest}" in source
    assert target.endswith("% bytes") and " 0.00% bytes" not in target


def test_a_corpus_without_pairs_is_rejected(tmp_path, capfd):
    (tmp_path / "empty").write_text("")
    assert main(["doctor", str(tmp_path / "empty")]) == 1
    assert "empty" in capfd.readouterr().err


def test_bad_rows_are_counted_and_never_end_the_diagnosis(tmp_path, capfd):
    lines = [f"{source}\t{target}".encode() for source, target in PAIRS]
    lines[5:5] = [b"no tab", b"", b"\xff\tx", b"a\0\tb", b"no tab again"]
    file = tmp_path / "pairs.tsv"
    file.write_bytes(b"English\tGerman\n" + b"\n".join(lines))
    status = main(["doctor", str(file), "--strict"])
    out = capfd.readouterr().out
    assert status == 1 and out.startswith("61 pairs\n")
    assert "line 1 is a header; the sides are 'English' and 'German'." in out
    assert "cannot be read, too few columns: 2 in lines 7, 11; line 7: expected" in out
    assert "cannot be read, not UTF-8: 1; line 9: byte 1 of the line" in out
    assert "cannot be read, NUL characters: 1; line 10" in out
    assert "a side is empty: 1 (1.64%)\n    line 8: '' | ''" in out


def write_form(folder, name, pairs):
    """Writes pairs in the form of a file's extension."""
    if name == "two files":
        files = [folder / "a.en", folder / "a.de"]
        for file, side in zip(files, zip(*pairs, strict=True), strict=True):
            file.write_text("\n".join(side))
        return [*map(str, files)]
    if ".jsonl" in name:
        rows = [json.dumps({"id": "1", "en": s, "de": t}) for s, t in pairs]
    elif ".csv" in name:
        rows = ["en;de", *(f'"{s}";{t}' for s, t in pairs)]
    else:
        units = (
            f"<tu><tuv lang='en'><seg>{s}</seg></tuv><tuv lang='de'><seg>{t}</seg>"
            "</tuv></tu>"
            for s, t in pairs
        )
        rows = ["<tmx><body>", *units, "</body></tmx>"]
    (folder / name).write_bytes(gzip.compress("\n".join(rows).encode("utf-16")))
    return [str(folder / name)]


@pytest.mark.parametrize("name", ["two files", "a.jsonl.gz", "a.csv.gz", "a.tmx.gz"])
def test_every_format_is_checked_and_cleaned(tmp_path, capfd, name):
    pairs = [*PAIRS[:30], *PAIRS[7:9], ("one", ""), *PAIRS[30:]]
    output = tmp_path / "clean.tsv.gz"
    files = write_form(tmp_path, name, pairs)
    assert main(["doctor", *files, "--output", str(output)]) == 0
    out = capfd.readouterr().out
    assert "the pair is a repetition: 2 (" in out and "a side is empty: 1 (" in out
    assert out.splitlines()[-1] == f"{output}: 60 pairs without a fault"
    assert list(read_pairs(output)) == PAIRS
    if name != "two files":
        columns = ["--source-column", "de", "--target-column", "en"]
        assert main(["doctor", *files, *columns, "--output", str(output)]) == 0
        assert list(read_pairs(output)) == [pair[::-1] for pair in PAIRS]


def test_a_damaged_file_is_checked_up_to_the_damage(tmp_path, capfd):
    text = "".join(f"{s}\t{t}\n" for s, t in PAIRS) * 50
    file = tmp_path / "pairs.tsv.gz"
    file.write_bytes(gzip.compress(text.encode())[:-30])
    assert main(["doctor", str(file)]) == 0
    out = capfd.readouterr().out
    assert "damaged gzip data: 1; line" in out and not out.startswith("0 pairs")
    (tmp_path / "a.en").write_text("one\ntwo\n")
    (tmp_path / "a.de").write_text("eins\n")
    assert main(["doctor", str(tmp_path / "a.en"), str(tmp_path / "a.de")]) == 0
    assert "a.en has 2 lines, a.de has 1" in capfd.readouterr().out


def test_a_file_without_a_readable_row_is_reported(tmp_path, capfd):
    (tmp_path / "a.tsv").write_text("no tab\n" * 12)
    assert main(["doctor", str(tmp_path / "a.tsv"), "--strict"]) == 1
    out = capfd.readouterr().out
    assert out.startswith("0 pairs\n") and "too few columns: 12 in lines 1, 2" in out


def test_changes_of_the_normalization_are_listed(tmp_path, capfd):
    pairs = [("\u00bd cup of H\u2082O\u2026", "\u0645\u06cc\u200c\u062e\u200c")] * 2
    _, _, out = check(tmp_path, capfd, [*PAIRS, *pairs])
    assert "source: nmt_nfkc changes 6 characters" in out
    assert "    U+2026 HORIZONTAL ELLIPSIS becomes '...': 2" in out
    assert "target: nmt_nfkc changes 4 characters" in out
    assert "    U+200C ZERO WIDTH NON-JOINER becomes ' ': 4" in out
    _, _, out = check(tmp_path, capfd, pairs, "--normalization", "identity")
    assert "target: identity changes 0 characters" in out


@pytest.fixture
def folder(tmp_path):
    """A folder of a corpus, with files and a folder that hold no pairs."""
    folder = tmp_path / "data"
    (folder / "more").mkdir(parents=True)
    pairs = [*PAIRS[:50], PAIRS[7], ("one", ""), PAIRS[55]]
    for side, name in enumerate(("train.en", "train.de.gz")):
        content = "\n".join(pair[side] for pair in pairs).encode()
        content = gzip.compress(content) if name.endswith(".gz") else content
        (folder / name).write_bytes(content)
    rows = ["id\tde\ten", *(f"{n}\t{t}\t{s}" for n, (s, t) in enumerate(PAIRS[50:]))]
    (folder / "test.tsv").write_text("\n".join([*rows, "no tab"]))
    (folder / "train.fr").write_text("un\n")
    (folder / "README").write_text("A corpus.")
    (folder / "notes.txt").write_text("no tab\n" * 3)
    (folder / "image.png").write_bytes(bytes(range(256)))
    (folder / "empty.csv").write_text("")
    (folder / "broken.tmx.gz").write_bytes(b"no gzip")
    (folder / "config.json").write_text('{\n "a": 1\n}')
    return folder


WITHOUT_PAIRS = {
    "README": "no parallel file in another language",
    "broken.tmx.gz": "damaged gzip data: 1; line 1: the gzip data is damaged",
    "config.json": "not JSON: 3 in lines 1, 2, 3; line 1",
    "empty.csv": "is empty, expected at least one line",
    "image.png": "no parallel file",
    "more": "a folder, which is not searched",
    "notes.txt": "The line is one column. Separate columns by tabs",
    "train.fr": "a third language; --source-column and --target-column choose two",
}


def test_each_corpus_of_a_folder_is_checked_and_cleaned(folder, tmp_path, capfd):
    clean = tmp_path / "clean"
    languages = ["--source-column", "en", "--target-column", "de"]
    command = ["doctor", str(folder), *languages, "--output", str(clean), "--strict"]
    assert main(command) == 1
    test, train, ending = capfd.readouterr().out.split("\n\n")
    assert train.startswith("train.en, train.de.gz:\n53 pairs\n")
    assert "the pair is a repetition: 1 (1.89%)\n    line 51: " in train
    assert "the source is in test.tsv: 1 (1.89%)\n    line 53: " in train
    assert train.endswith(f"{clean}/train.tsv: 50 pairs without a fault")
    assert test.startswith("test.tsv:\n10 pairs\nline 1 is a header;")
    assert "too few columns: 1; line 12" in test and "is in test.tsv" not in test
    title, *rows = ending.strip().splitlines()
    assert title == "2 corpora, and 8 other files without pairs"
    reasons = {row.strip().partition(": ")[0]: row for row in rows}
    assert reasons.keys() == WITHOUT_PAIRS.keys()
    assert all(WITHOUT_PAIRS[name] in row for name, row in reasons.items())
    for source, target, step in (("en", "de", 1), ("de", "en", -1)):
        train, _, test = user_files.read_folder(clean, source, target, 0.0)
        assert list(train) == [pair[::step] for pair in PAIRS[:50]]
        assert list(test) == [pair[::step] for pair in PAIRS[50:]]
    assert main(["doctor", str(folder)]) == 0
    assert "train.de.gz, train.en:\n53 pairs\n" in capfd.readouterr().out


def test_folders_that_cannot_be_checked_are_rejected(folder, tmp_path, capfd):
    def error_of(*arguments):
        assert main(["doctor", *map(str, arguments)]) == 1
        return capfd.readouterr().err

    assert "one folder, or two parallel files" in error_of(folder, folder / "train.en")
    error = error_of(folder, "--output", tmp_path / "clean.tsv")
    assert "--output must be a folder for" in error
    assert "--output must be a folder" in error_of(
        folder, "--output", folder / "README"
    )
    assert "must not be what is read" in error_of(folder, "--output", folder)
    error = error_of(folder / "more")
    assert "FILE must be a corpus, or a folder with" in error and "an empty" in error
    (folder / "flags.json").write_text('{"data": "a.en,a.de"}')
    error = error_of(folder)
    assert "It is the folder of a run; its corpus is 'a.en,a.de'" in error
    (folder / "more" / "notes.txt").write_text("no tab\n")
    assert "has pairs that can be read" in error_of(folder / "more")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--output", "clean.csv"], "--output must be a file that ends in .tsv or "),
        (["--output", "{file}"], "--output must not be what is read"),
        (["--output", "{file}.none/a.tsv"], "--output must be in an existing folder"),
        (["--normalization", "nfd"], "--normalization must be one of"),
        (["--source-column", "en"], "must be set together"),
        (["--source-column", "x", "--target-column", "y"], "one column 'x'"),
    ],
)
def test_flags_that_cannot_be_followed_are_rejected(tmp_path, capfd, flags, message):
    file = tmp_path / "a.tsv"
    file.write_text("one\teins\n")
    flags = [flag.replace("{file}", str(file)) for flag in flags]
    assert main(["doctor", str(file), *flags]) == 1
    assert message in capfd.readouterr().err


def test_names_and_texts_that_a_terminal_cannot_show_are_escaped(
    tmp_path, monkeypatch, capfd
):
    name = os.fsdecode(b"\xff.tsv")  # of another system's encoding
    content = "".join(f"{s}\t{t}\n" for s, t in [*PAIRS, ("Gr\u00fc\u00dfe", "")])
    (tmp_path / name).write_text(content, encoding="utf-8")
    for encoding, title in (("utf-8", "\\udcff.tsv"), ("ascii", "Gr\\xfc\\xdfe")):
        with open(tmp_path / "out", "w", encoding=encoding) as stdout:
            monkeypatch.setattr("sys.stdout", stdout)
            assert main(["doctor", str(tmp_path)]) == 0, capfd.readouterr().err
        assert title in (tmp_path / "out").read_text(encoding)
