"""`score` and `evaluate` read pairs as training does."""

import gzip
import json
import pathlib

import numpy as np
import pytest

from keras_tfm.cli import main
from keras_tfm.pipelines import pretrained
from tests.cli.conftest import printed

pytestmark = pytest.mark.backend("torch")  # files are read, whatever the backend
PAIRS = [("a house", "the boat"), ("an old man", "a garden"), ("a man", "the man")]
FORMS = {
    "a.tsv": "English\tGerman\n" + "".join(f"{s}\t{t}\n" for s, t in PAIRS),
    "a.csv": "de;id;en\n" + "".join(f'"{t}";7;{s}\n' for s, t in PAIRS),
    "a.jsonl": "\n".join(json.dumps({"de": t, "en": s}) for s, t in PAIRS),
    "a.tmx": "<tmx><body>"
    + "".join(
        f"<tu><tuv lang='en'><seg>{s}</seg></tuv>"
        f"<tuv lang='de'><seg>{t}</seg></tuv></tu>"
        for s, t in PAIRS
    )
    + "</body></tmx>",
}


@pytest.mark.parametrize("name", FORMS)
def test_pairs_are_read_from_every_format(
    name, folder, translator, tmp_path, capfd, monkeypatch
):
    pytest.importorskip("sacrebleu")
    monkeypatch.setattr(pretrained, "languages_of", lambda _: ("en", "de"))
    file = tmp_path / f"{name}.gz"
    file.write_bytes(gzip.compress(FORMS[name].encode("utf-16")))
    assert main(["score", folder, str(file)]) == 0
    scores = [float(line) for line in printed(capfd)]
    expected = [result.score for result in translator.score(PAIRS)]
    np.testing.assert_allclose(scores, expected, atol=1e-4)
    output = tmp_path / "out.txt"
    assert main(["evaluate", folder, str(file), "--output", str(output)]) == 0
    assert "3 lines in " in capfd.readouterr().out
    assert output.read_text().splitlines() == translator([s for s, _ in PAIRS])
    columns = ["German", "English"] if name == "a.tsv" else ["de", "en"]
    columns = ["--source-column", columns[0], "--target-column", columns[1]]
    assert main(["score", folder, str(file), *columns]) == 0
    scores = [float(line) for line in printed(capfd)]
    expected = [result.score for result in translator.score(p[::-1] for p in PAIRS)]
    np.testing.assert_allclose(scores, expected, atol=1e-4)
    if name == "a.jsonl":
        assert main(["score", folder, str(file), *columns, "--format", "jsonl"]) == 1
        assert "--source-column or --target-column too" in capfd.readouterr().err


def test_files_in_the_wrong_order_are_rejected(tmp_path, capfd):
    pytest.importorskip("sacrebleu")
    files = [str(tmp_path / name) for name in ("test.de.gz", "test.en")]
    for file in files:
        pathlib.Path(file).write_text("a house\n")
    assert main(["evaluate", "en-de", *files]) == 1
    error = capfd.readouterr().err
    assert "FILE must be the sources (en), then the translations (de)" in error


def test_pairs_that_cannot_be_read_are_counted_and_listed(folder, tmp_path, capfd):
    pytest.importorskip("sacrebleu")
    file = tmp_path / "a.tsv"
    rows = [b"a house\tthe boat"] * 40
    rows[5:5] = [b"no tab"] * 12 + [b"\xff\tx"]
    file.write_bytes(b"\n".join(rows))
    assert main(["evaluate", folder, str(file)]) == 1
    error = capfd.readouterr().err
    places = ", ".join(map(str, range(6, 16)))
    assert f"too few columns: 12 in lines {places}, ...; line 6: expected 2" in error
    assert "not UTF-8: 1; line 18" in error and "Or increase --max-bad-rate" in error
    assert main(["evaluate", folder, str(file), "--max-bad-rate", "0.5"]) == 0
    assert "40 lines in " in capfd.readouterr().out
    assert main(["score", folder, str(file)]) == 1
    out, error = capfd.readouterr()
    assert [bool(line) for line in out.splitlines()] == [1] * 5 + [0] * 13 + [1] * 35
    assert f"{file}, line 18: byte 1 of the line (0xff)" in error
    assert "13 lines have no answer" in error
