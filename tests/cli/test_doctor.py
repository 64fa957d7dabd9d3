"""The corpus check finds each fault that a test adds."""

import pytest

from keras_tfm.cli import main
from keras_tfm.text import Vocabulary

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
