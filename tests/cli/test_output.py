"""Output files of a command are complete, resumed, locked and never lost."""

import dataclasses
import json
import os

import pytest

from keras_tfm.cli import lines, output
from keras_tfm.cli.bulk import Job
from keras_tfm.cli.output import Output
from keras_tfm.text.reading import Fault

pytestmark = pytest.mark.backend("torch")  # no backend is used
VALID = '{"source": "a", "id": 7}'


def test_a_partial_file_belongs_to_one_process_and_one_command(tmp_path):
    first = Output(tmp_path / "out", {"a": 1})
    with pytest.raises(ValueError, match="written by another process"):
        Output(tmp_path / "out", {"a": 1})
    first.write_all(["one", "two\nlines"], False)
    assert (tmp_path / "out").read_text() == "one\ntwo lines\n"
    with pytest.raises(FileNotFoundError, match="an existing folder.*Create '"):
        Output(tmp_path / "nowhere" / "out")
    # A partial file of another program is not overwritten.
    (tmp_path / "out.part").write_text("old\n")
    for identity in (None, {"a": 1}):
        with pytest.raises(
            ValueError, match="which names the command that wrote it. Remove"
        ):
            Output(tmp_path / "out", identity)
    assert (tmp_path / "out.part").read_text() == "old\n"
    # A partial file without an identity is overwritten.
    (tmp_path / "out.part.json").write_text("null")
    Output(tmp_path / "out").write_all(["new"], False)
    assert (tmp_path / "out").read_text() == "new\n"
    # What a command has written that can resume is not.
    Output(tmp_path / "out", {"a": 1})._file.close()
    (tmp_path / "out.part").write_text("one\ntw")
    for identity in (None, {"a": 2}):
        with pytest.raises(ValueError, match="belongs to another model"):
            Output(tmp_path / "out", identity)
    resumed = Output(tmp_path / "out", {"a": 1})
    assert resumed.num_written == 1
    resumed._file.close()


def test_an_output_is_a_file_or_a_link_to_one(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        mode = (tmp_path / name).stat().st_mode
        with pytest.raises(ValueError, match=f"must be a file.*{name}'.*or a device"):
            Output(tmp_path / name, {"a": 1})
        assert (tmp_path / name).stat().st_mode == mode
    (tmp_path / "target").write_text("old\n")
    (tmp_path / "link").symlink_to("target")
    (tmp_path / "new").symlink_to("folder/made")
    for name, target in (("link", "target"), ("new", "folder/made")):
        Output(tmp_path / name).write_all(["text"], False)
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / target).read_text() == "text\n"
    assert not list(tmp_path.rglob("*.part*"))


def test_an_output_is_not_the_redirected_standard_output(tmp_path, monkeypatch):
    with open(tmp_path / "log", "a") as stdout:
        monkeypatch.setattr("sys.stdout", stdout)
        with pytest.raises(ValueError, match="log'.*leave it out for standard output"):
            Output(tmp_path / "log")


@pytest.mark.parametrize("name", ["file", "folder"])
def test_what_may_not_be_written_to_is_named(name, tmp_path, monkeypatch):
    place = tmp_path / "file" if name == "file" else tmp_path
    (tmp_path / "file").write_text("old\n")
    # Root may write everywhere.
    monkeypatch.setattr(os, "access", lambda path, _: path != place)
    with pytest.raises(PermissionError, match=f"--output.*not write to '{place}'"):
        Output(tmp_path / "file")
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_no_output_is_an_input(tmp_path, monkeypatch):
    file, link = tmp_path / "text", tmp_path / "link"
    file.write_text("a\n")
    os.link(file, link)
    for names in (["-", str(link)], [None, str(file)]):
        with pytest.raises(ValueError, match=f"--x must not be .* got '{file}' for"):
            output.check(str(file), names, "--x")
    with open(file) as stdin, open(link, "a") as stdout:
        monkeypatch.setattr("sys.stdin", stdin)
        monkeypatch.setattr("sys.stdout", stdout)
        for path, name in ((str(file), "-"), (None, str(file)), (None, "-")):
            with pytest.raises(ValueError, match="must not be an input file"):
                output.check(path, [name])
        output.check(str(tmp_path / "new"), ["-", str(file), None])
    with open(os.devnull, "r+") as device:  # a terminal is both, too
        monkeypatch.setattr("sys.stdin", device)
        monkeypatch.setattr("sys.stdout", device)
        output.check(None, ["-"])


def test_an_output_is_not_called_compressed(tmp_path):
    with pytest.raises(ValueError, match=r"--output must not end in \.gz, since"):
        Output(tmp_path / "out.gz")
    assert not list(tmp_path.iterdir())


def test_fingerprints_change_with_content(tmp_path):
    file = tmp_path / "text"
    file.write_text("a")
    first = output.fingerprints(file)
    assert output.fingerprints(file) == first
    os.utime(file, (1, 1))  # the same size, written at another time
    assert output.fingerprints(file) != first


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"source": 3}', "'{\"source\": 3}'"),
        ('{"source": 3, "id": 3}', '\'{"source": 3, "id": 3}\''),
        ('["a"]', "'[\"a\"]'"),
        ('{"source": null}', "'{\"source\": null}'"),
        ('{"source": "\\ud800"}', "ud800"),
        ('{"source": "a", "constraints": ["b", 3]}', "constraints="),
        ('{"source": "a", "target-prefix": "b"}', "the unknown name 'target-prefix'"),
        ('{"source": "a", "id": "\\ud800x"}', "an 'id' that JSON cannot hold"),
        ('{"source": "a", "id": 1e999}', "an 'id' that JSON cannot hold"),
        ('{"source": "a", "id": {"a": [1e999]}}', "an 'id' that JSON cannot hold"),
    ],
)
def test_an_invalid_object_is_a_fault(line, problem):
    optional = {"target_prefix": str, "constraints": list}
    items = [lines.Item("f", n, text) for n, text in enumerate((VALID, line), 1)]
    valid, invalid = lines.objects(items, ["source"], optional)
    assert valid == lines.Item("f", 1, {"source": "a", "id": 7}, {"id": 7})
    assert "expected a JSON object with 'source', 'id' (any)" in invalid.content.detail
    assert problem in invalid.content.detail
    assert invalid.id == ({"id": 3} if '"id": 3' in line else {})


@pytest.mark.parametrize("line", ["no", "NaN", '{"source": NaN}', "[" * 100_000, ""])
def test_a_line_that_is_not_json_is_a_fault(line):
    [item] = lines.objects([lines.Item("f", 5, line)], ["source"], {})
    assert item.content.kind == "not JSON" and (item.file, item.line) == ("f", 5)


@dataclasses.dataclass
class Flags:
    window: int
    format: str = "text"


def double(numbers):
    if any(number % 5 == 0 for number in numbers):
        raise ValueError("a multiple of 5")
    return [2 * number for number in numbers]


def numbered(numbers):
    """Returns items; 7 cannot be read."""
    fault = Fault("seven", "expected no 7, got 7")
    return [lines.Item("f", n, fault if n == 7 else n, {"id": n}) for n in numbers]


@pytest.mark.parametrize("window", [1, 3, 100])
def test_items_without_an_answer_are_named_and_the_others_answered(window, capsys):
    job = Job(double, lambda item, result: f"{item.line}: {result}", Flags(window))
    texts = list(job(numbered(range(4, 13))))
    assert texts == ["4: 8", "", "6: 12", "", "8: 16", "9: 18", "", "11: 22", "12: 24"]
    errors = capsys.readouterr().err.splitlines()
    assert errors == [
        "keras-tfm: f, line 5: a multiple of 5",
        "keras-tfm: f, line 7: expected no 7, got 7. Fix or remove the row.",
        "keras-tfm: f, line 10: a multiple of 5",
    ]
    with pytest.raises(ValueError, match="^3 lines have no answer, and are empty"):
        job.check()
    job = Job(double, lambda item, result: json.dumps(result), Flags(window, "jsonl"))
    texts = list(map(json.loads, job(numbered(range(4, 7)))))
    assert texts == [8, {"id": 5, "error": "f, line 5: a multiple of 5"}, 12]


def test_a_job_whose_first_lines_have_no_answer_stops(capsys):
    job = Job(double, lambda item, result: "", Flags(40))
    with pytest.raises(ValueError, match="line 5: a .* None of the first 12 lines has"):
        list(job(numbered(range(5, 65, 5))))
    assert list(job(numbered(range(5, 65, 5)), first=2)) == [""] * 12
    assert list(job(numbered([5, 7]))) == [""] * 2
    assert len(capsys.readouterr().err.splitlines()) == 14


def test_a_damaged_file_ends_a_job_after_the_items_before():
    rows = [(1, 4), (2, Fault("damaged", "expected gzip", "Copy it.", ends_file=True))]
    texts = Job(double, lambda item, result: str(result), Flags(9))(
        lines.items("f", rows)
    )
    assert next(texts) == "8"
    with pytest.raises(ValueError, match="f, line 2: expected gzip. Copy it."):
        next(texts)
