"""`keras-tfm translate --cluster` without a cluster: flags, files, worker."""

import json

import pytest

from keras_tfm.cli import main, options, ray_cluster
from keras_tfm.cli.cluster_translation import JOB, Worker
from tests.cli.conftest import LINES

pytestmark = pytest.mark.backend("torch")  # the files are the same on every backend


@pytest.fixture
def no_ray(monkeypatch):
    """Makes it an error to connect to a cluster."""
    message = "nothing is left to do, or the flags are wrong"
    monkeypatch.setattr(ray_cluster, "connect", lambda *_: pytest.fail(message))


def refuse(capfd, *arguments):
    """Returns the error of a command that fails."""
    assert main(["translate", *map(str, arguments)]) == 1
    return capfd.readouterr().err


def test_flags_and_files_are_checked_before_ray_starts(
    folder, source, tmp_path, capfd, no_ray
):
    out = tmp_path / "out"
    on_cluster = [folder, source, "--cluster", "auto"]
    assert "--workers needs --cluster; got 2" in refuse(capfd, folder, "--workers", 2)
    assert "--output must be a folder with" in refuse(capfd, *on_cluster)
    on_cluster += ["--output", out]
    assert "--workers must be at least 1; got 0" in refuse(
        capfd, *on_cluster, "--workers", 0
    )
    message = "--gpus-per-worker must be a fraction below 1, or a whole number; got 1.5"
    assert message in refuse(capfd, *on_cluster, "--gpus-per-worker", 1.5)
    message = "FILE must name files with --cluster; got standard input"
    assert message in refuse(capfd, folder, "--cluster", "auto", "--output", out)
    message = "FILE must be files of different names"
    assert message in refuse(capfd, folder, source, *on_cluster[1:])
    assert "which is not a file" in refuse(
        capfd, folder, tmp_path / "part-*", *on_cluster[2:]
    )
    assert not out.exists()
    out.mkdir()
    (out / "other").write_text("text")
    assert "which holds other files" in refuse(capfd, *on_cluster)
    assert "Name a folder." in refuse(capfd, *on_cluster[:-1], out / "other")


def test_a_finished_folder_belongs_to_its_command(
    folder, source, tmp_path, capfd, monkeypatch
):
    def stop(*_):
        raise ConnectionError("no cluster")

    monkeypatch.setattr(ray_cluster, "connect", stop)
    out = tmp_path / "out"
    command = [folder, source, "--cluster", "auto", "--output", out]
    assert "no cluster" in refuse(capfd, *command)
    assert [file.name for file in out.iterdir()] == [JOB]
    assert "the output of another model" in refuse(capfd, *command, "--beam-size", 1)
    (out / "source.txt").write_text("finished\n")
    # More workers do not make another job.
    assert main(["translate", *map(str, command), "--workers", "3"]) == 0
    assert "0 of 1 files to translate" in capfd.readouterr().err


def test_a_worker_writes_whole_files_and_returns_errors(
    folder, translator, source, tmp_path
):
    flags = options.Translate(folder, cluster="auto", workers=2)
    worker = Worker(vars(flags))
    task = {"output": str(tmp_path / "out"), "identity": json.dumps({"model": 1})}
    bad = tmp_path / "bad.gz"
    bad.write_bytes(b"not compressed")
    result = worker({**task, "file": str(bad)})
    assert (
        "the gzip data is damaged" in result["error"]
        and not (tmp_path / "out").exists()
    )
    (tmp_path / "out.part").unlink()
    result = worker({**task, "file": source})
    assert (result["lines"], result["error"]) == (len(LINES), "")
    assert "translations were truncated" in result["messages"]
    expected = "".join(text.replace("\n", " ") + "\n" for text in translator(LINES))
    assert (tmp_path / "out").read_text() == expected
    absent = Worker(vars(options.Translate("absent")))
    assert "got 'absent'" in absent({**task, "file": source})["error"]
