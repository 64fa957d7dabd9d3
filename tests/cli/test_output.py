"""Output files of a command are complete, resumed, locked and never lost."""

import os

import pytest

from keras_tfm.cli import lines, output
from keras_tfm.cli.output import Output

pytestmark = pytest.mark.backend("torch")  # no backend is used


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
        ('{"source": null}', "'{\"source\": null}'"),
        ('{"source": "\\ud800"}', "ud800"),
        ('{"source": "a", "constraints": ["b", 3]}', "constraints="),
        ('{"source": "a", "target-prefix": "b"}', "the unknown name 'target-prefix'"),
        ('{"source": "a", "id": "\\ud800x"}', "an 'id' that JSON cannot hold"),
        ('{"source": "a", "id": 1e999}', "an 'id' that JSON cannot hold"),
        ('{"source": "a", "id": {"a": [1e999]}}', "an 'id' that JSON cannot hold"),
    ],
)
def test_an_invalid_object_is_rejected_with_its_line(line, problem):
    optional = {"target_prefix": str, "constraints": list}
    objects = lines.objects(['{"source": "a"}', line], ["source"], optional)
    assert next(objects) == {"source": "a"}
    with pytest.raises(ValueError, match="Line 2 must be a JSON object") as error:
        next(objects)
    assert problem in str(error.value)


@pytest.mark.parametrize("line", ["no", "NaN", '{"source": NaN}', "[" * 100_000])
def test_the_error_names_a_line_that_is_not_json(line):
    with pytest.raises(ValueError, match="Line 5 is not valid JSON"):
        next(lines.objects([line], ["source"], {}, first=5))


def test_answers_before_a_rejected_item_are_returned():
    def double(items):
        if 3 in items:
            raise ValueError("three")
        return [2 * item for item in items]

    answers = lines.answers(double, [1, 2, 3, 4], first=11)
    assert [next(answers), next(answers)] == [2, 4]
    with pytest.raises(ValueError, match="Line 13: three"):
        next(answers)
