"""What is wrong with a corpus: each fault planted, and found."""

import pytest

from keras_tfm.cli import main
from keras_tfm.text import Vocabulary

pytestmark = pytest.mark.backend("torch")  # no backend does anything here
SOURCE = [
    "the",
    "small",
    "garden",
    "old",
    "house",
    "boat",
    "man",
    "and",
    "woman",
    "behind",
    "in",
    "front",
    "of",
    "with",
]
TARGET = [
    "der",
    "kleine",
    "Garten",
    "alte",
    "Haus",
    "Boot",
    "Mann",
    "und",
    "Frau",
    "hinter",
    "vor",
    "mit",
    "dem",
    "ein",
]


def sentence(words, number):
    return " ".join(words[(number * step) % len(words)] for step in (1, 2, 3, 5, 7, 11))


PAIRS = [(sentence(SOURCE, n), sentence(TARGET, n) + f" {n}") for n in range(60)]
PAIRS = [(f"{source} {n}", target) for n, (source, target) in enumerate(PAIRS)]


def tell(tmp_path, capfd, pairs, *options):
    """The status of a command, and how many pairs it found for each fault."""
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"{s}\t{t}\n" for s, t in pairs), encoding="utf-8")
    status = main(["doctor", str(file), *options])
    out = capfd.readouterr().out.splitlines()
    counts = [line.rpartition(": ") for line in out if line.endswith("%)")]
    return status, {name: int(rest.split()[0]) for name, _, rest in counts}, out


PLANTED = {
    "a side is empty": [("a garden", "")],
    "both sides are the same": [
        ("The small garden there.", "the small  garden there.")
    ],
    "the pair stands there before": [PAIRS[7]],
    "lengths differ unusually": [("the small garden behind the old house", "Haus")],
    "the sides look swapped": [PAIRS[3][::-1]],
    "characters that are no text": [("a house", "ein Haus\ufffd"), ("a\x07", "ein")],
}


@pytest.mark.parametrize("fault", PLANTED)
def test_each_fault_is_found(fault, tmp_path, capfd):
    before = tell(tmp_path, capfd, PAIRS)[1]
    assert set(before.values()) == {0}
    pairs = [*PAIRS[:20], *PLANTED[fault], *PAIRS[20:]]
    status, found, out = tell(tmp_path, capfd, pairs, "--strict")
    assert found.pop(fault) == len(PLANTED[fault])
    others = set(found) - {"the source stands there before with another target"}
    assert not any(found[name] for name in others if name != "both sides are the same")
    assert status == 1
    assert any(line.strip().startswith("line 2") for line in out)


def test_another_translation_is_no_fault(tmp_path, capfd):
    pairs = [*PAIRS, (PAIRS[0][0], "etwas anderes als zuvor gesagt")]
    status, found, _ = tell(tmp_path, capfd, pairs, "--strict")
    assert found["the source stands there before with another target"] == 1
    assert status == 0


def test_lines_of_the_test_are_found_in_training(tmp_path, capfd):
    (tmp_path / "test.txt").write_text(PAIRS[5][0].upper() + "\nunseen\n\n")
    (tmp_path / "out.txt").write_text("nichts\n\n")
    options = ["--test-source", str(tmp_path / "test.txt")]
    options += ["--test-target", str(tmp_path / "out.txt")]
    status, found, out = tell(tmp_path, capfd, PAIRS, *options)
    assert found["the source is in the test"] == 1
    assert found["the target is in the test"] == 0
    assert status == 0 and out[0] == "60 pairs"


def test_a_vocabulary_is_looked_for_first(tmp_path, capfd):
    assert main(["doctor", str(tmp_path / "no.en"), "--vocabulary", "no"]) == 1
    assert "Received: 'no', which is none. That of a run" in capfd.readouterr().err


def test_a_vocabulary_is_tried(tmp_path, capfd):
    vocabulary = Vocabulary.train([s for s, _ in PAIRS], size=320, exact=False)
    vocabulary.save(tmp_path / "v.model")
    options = ["--vocabulary", str(tmp_path / "v.model"), "--max-length", "12"]
    _, _, out = tell(tmp_path, capfd, [*PAIRS, ("\u65e5\u672c", "\u65e5")], *options)
    source, target = out[-2:]
    longest = max(map(len, vocabulary.encode([s for s, _ in PAIRS])))
    assert f"at most {longest}" in source
    assert "spelled in bytes" in target and " 0.00% spelled" not in target


def test_no_pairs_are_a_fault(tmp_path, capfd):
    (tmp_path / "empty").write_text("")
    assert main(["doctor", str(tmp_path / "empty")]) == 1
    assert "is empty" in capfd.readouterr().err
