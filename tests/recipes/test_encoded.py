"""`keras-tfm encode`, and a translation run on what it writes."""

import json
import pathlib

import numpy as np
import pytest

from keras_tfm import pipelines, text
from keras_tfm.cli import main
from keras_tfm.recipes import encoded, multilingual, translation
from tests.recipes.animals import flags_for, write_tsv

pytestmark = pytest.mark.backend("torch")
ENCODED = {"vocabulary_size": None, "held_out": 1_000}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """An encoded folder, and the file that it was made from."""
    folder = tmp_path_factory.mktemp("corpus")
    file = write_tsv(folder / "animals.tsv")
    command = ["encode", str(file), "--out", str(folder / "corpus")]
    command += ["--vocabulary-size", "300", "--held-out", "40"]
    command += ["--source-language", "en", "--target-language", "de"]
    assert main(command) == 0
    return folder / "corpus", file, command


def test_encode_writes_a_corpus_with_held_out_pairs(corpus, capfd):
    folder, file, command = corpus
    encoded_corpus = text.EncodedCorpus(folder)
    rows = [tuple(line.split("\t")) for line in file.read_text("utf-8").splitlines()]
    held_out = [*encoded_corpus.validation, *encoded_corpus.test]
    assert set(held_out) < set(rows) and len(encoded_corpus.test) == 40
    assert len(encoded_corpus) <= len(rows) - len(held_out)
    assert main(command) == 0
    assert "Complete already." in capfd.readouterr().out
    assert main([*command, "--seed", "3"]) == 1
    assert "--out must not exist; got" in capfd.readouterr().err


def test_encode_rejects_flags_that_exclude_each_other(corpus, tmp_path, capfd):
    file, out = str(corpus[1]), str(tmp_path / "out")
    for flags, message in (
        ([], "give one of them; got None and None"),
        (["--vocabulary", "v", "--vocabulary-size", "300"], "give one of them"),
        (["--vocabulary-size", "300", "--target-vocabulary", "v"], "needs --vocabul"),
        (["--vocabulary-size", "300", "--source-language", "en"], "set together"),
        (["--vocabulary", "missing.model"], "must be a file; got 'missing.model'"),
        (
            ["--vocabulary-size", "300", "--test", f"{file},{file},{file}"],
            "--test must be a file, or two separated by a comma",
        ),
    ):
        assert main(["encode", file, "--out", out, *flags]) == 1
        assert message in capfd.readouterr().err
    assert not list(tmp_path.iterdir())


def test_encode_takes_parallel_files_and_test_sets(corpus, tmp_path):
    folder, file, _ = corpus
    rows = [line.split("\t") for line in file.read_text("utf-8").splitlines()]
    for suffix, side in zip(("en", "de"), zip(*rows, strict=True), strict=True):
        (tmp_path / f"train.{suffix}").write_text("\n".join(side), "utf-8")
        (tmp_path / f"test.{suffix}").write_text("\n".join(side[:30]), "utf-8")
    names = {
        s: [str(tmp_path / f"{s}.{x}") for x in ("en", "de")] for s in ("train", "test")
    }
    command = ["encode", *names["train"], "--out", str(tmp_path / "corpus")]
    command += ["--vocabulary", str(folder / "vocabulary.model"), "--held-out", "20"]
    assert main([*command, "--test", ",".join(names["test"])]) == 0
    actual = text.EncodedCorpus(tmp_path / "corpus")
    assert list(map(list, actual.test)) == rows[:30]
    assert len(actual.validation) <= 20 and actual.languages == (None, None)


def test_encode_reads_test_sets_by_the_columns_of_the_corpus(corpus, tmp_path):
    folder, file, _ = corpus
    lines = [f"x\t{line}\n" for line in file.read_text("utf-8").splitlines()]
    train, test = tmp_path / "train.tsv", tmp_path / "test.tsv"
    train.write_text("".join(lines), "utf-8")
    test.write_text("".join(lines[:30]), "utf-8")
    command = ["encode", str(train), "--out", str(tmp_path / "corpus")]
    command += ["--vocabulary", str(folder / "vocabulary.model"), "--held-out", "20"]
    command += ["--source-column", "1", "--target-column", "2", "--test", str(test)]
    assert main(command) == 0
    actual = text.EncodedCorpus(tmp_path / "corpus").test
    assert [f"x\t{source}\t{target}\n" for source, target in actual] == lines[:30]


def test_a_run_on_an_encoded_corpus_is_that_on_its_text(corpus, tmp_path):
    folder, _, _ = corpus
    flags = flags_for(folder, tmp_path / "run", **ENCODED, epochs=1)
    result = translation.main(flags)
    out = pathlib.Path(flags.out)
    assert result["pairs"] == len(text.EncodedCorpus(folder))
    assert result["test_pairs"] == 40 and result["flags"]["vocabulary_size"] is None
    stored = json.loads((out / "flags.json").read_text())
    translator = pipelines.Translator.load(out / "model")
    assert translator.vocabulary.model == text.EncodedCorpus(folder).vocabulary.model
    # The same command resumes the run, another corpus does not.
    assert translation.main(flags)["bleu"] == result["bleu"]
    weighted = flags_for(
        folder, tmp_path / "run", **ENCODED, epochs=1, data_weights=(2.0,)
    )
    with pytest.raises(ValueError, match="holds a run with other flags"):
        translation.main(weighted)
    assert stored["text_sha256"] and np.isfinite(result["bleu"])


def test_flags_that_need_text_or_another_corpus_raise(corpus, tmp_path):
    folder, file, _ = corpus
    assert encoded.is_encoded_data(f"{file},{folder}")
    for changes, message in (
        ({"subword_sampling": 0.1}, "--subword-sampling needs text"),
        ({"concatenation_rate": 0.1}, "--concatenation-rate needs text"),
        ({"vocabulary_size": 500}, "--vocabulary-size is a choice of `keras-tfm enc"),
        ({"target": "fr"}, "--source and --target must be en and de"),
        ({"data_weights": (1.0, 2.0)}, "`weights` must be None, or one number"),
    ):
        flags = flags_for(folder, tmp_path, **ENCODED | changes)
        with pytest.raises(ValueError, match=message):
            multilingual.load_corpus(flags)
    with pytest.raises(ValueError, match="--data-weights needs folders of"):
        translation.main(flags_for(file, tmp_path / "run", data_weights=(2.0,)))
