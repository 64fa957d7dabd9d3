"""Encoded corpora: the batches of the text, resumable writing, clear errors."""

import collections
import itertools

import numpy as np
import pytest

from keras_tfm.text import (
    Batches,
    EncodedCorpus,
    Pairs,
    SpecialTokens,
    Vocabulary,
    encode_corpus,
    encoding,
)
from keras_tfm.text.encoding import CorpusWriter, draw_held_out, find_corpus
from tests.text.conftest import sentences

pytestmark = pytest.mark.backend("torch")  # NumPy alone
FILES = ("ids.bin", "starts.bin", "lengths.bin", "metadata.json", "vocabulary.model")


@pytest.fixture(scope="module")
def folder(pairs, vocabulary, tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoded") / "corpus"
    encode_corpus(pairs, folder, vocabulary, languages=("en", "de"))
    return folder


def assert_equal_batches(first, second, num_steps):
    assert first.report == second.report and first.buckets == second.buckets
    for step in range(num_steps):
        (inputs, labels), expected = first.batch(step), second.batch(step)
        np.testing.assert_array_equal(labels, expected[1])
        for name, ids in inputs.items():
            assert ids.dtype == expected[0][name].dtype == "int32"
            np.testing.assert_array_equal(ids, expected[0][name])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_target_length": 15, "max_source_length": 9},
        {"max_target_length": 15, "too_long": "truncate"},
        {"special_tokens": SpecialTokens((7, 8), (3,), (9,)), "shuffle": False},
    ],
    ids=["plain", "drop", "truncate", "special"],
)
def test_the_batches_of_two_epochs_are_those_of_the_text(
    pairs, vocabulary, folder, options
):
    corpus = EncodedCorpus(folder)
    assert len(corpus) == len(pairs) and corpus.languages == ("en", "de")
    options = {"batch_tokens": 300, "seed": 2} | options
    encoded = Batches(corpus, corpus.vocabulary, **options)
    batches = Batches(pairs, vocabulary, **options)
    assert_equal_batches(encoded, batches, 2 * batches.steps_per_epoch)


def test_the_sides_can_have_different_vocabularies(pairs, vocabulary, tmp_path):
    target_vocabulary = Vocabulary.train(pairs.target, size=300, model_type="bpe")
    corpus = encode_corpus(pairs, tmp_path / "corpus", vocabulary, target_vocabulary)
    options = {"batch_tokens": 500}
    vocabularies = (corpus.vocabulary, corpus.target_vocabulary)
    assert vocabularies[1].model == target_vocabulary.model
    encoded = Batches(corpus, *vocabularies, **options)
    batches = Batches(pairs, vocabulary, target_vocabulary, **options)
    assert_equal_batches(encoded, batches, batches.steps_per_epoch)


@pytest.fixture(scope="module")
def two_folders(pairs, vocabulary, folder, tmp_path_factory):
    second_pairs = Pairs(*sentences(140, seed=5))
    second = tmp_path_factory.mktemp("encoded") / "second"
    encode_corpus(second_pairs, second, vocabulary, languages=("en", "de"))
    return [folder, second], second_pairs


def test_several_folders_are_one_corpus(pairs, vocabulary, two_folders):
    folders, second_pairs = two_folders
    corpus = EncodedCorpus(folders)
    all_pairs = Pairs(
        [*pairs.source, *second_pairs.source], [*pairs.target, *second_pairs.target]
    )
    options = {"batch_tokens": 400, "max_source_length": 25}
    encoded = Batches(corpus, vocabulary, **options)
    batches = Batches(all_pairs, vocabulary, **options)
    assert_equal_batches(encoded, batches, batches.steps_per_epoch)
    assert corpus.report.count("\n") == 1 and "140 pairs" in corpus.report


def rows_of(batches, epoch):
    """Counts the sources of an epoch."""
    steps = batches.steps_per_epoch
    counts = collections.Counter()
    for step in range(epoch * steps, (epoch + 1) * steps):
        for row in batches.batch(step)[0]["source_ids"].tolist():
            counts[tuple(i for i in row if i)] += 1
    counts.pop((), None)
    return counts


def test_weights_say_how_often_an_epoch_has_each_pair(vocabulary, two_folders):
    folders, second_pairs = two_folders
    corpus = EncodedCorpus(folders, weights=[0.3, 2])
    batches = Batches(corpus, vocabulary, batch_tokens=400, num_buckets=3)
    epochs = [rows_of(batches, epoch) for epoch in range(4)]
    twice = collections.Counter(map(tuple, vocabulary.encode(second_pairs.source)))
    first = set(map(tuple, vocabulary.encode([])))  # of the other folder
    for counts in epochs:
        assert all(counts[row] >= 2 * count for row, count in twice.items())
        rest = counts - collections.Counter({row: 2 * n for row, n in twice.items()})
        assert 150 <= rest.total() <= 153  # each bucket is rounded up
        assert set(rest) != first
        first = set(rest)
    assert batches.batch(3)[1].tolist() == batches.batch(3)[1].tolist()
    evenly = Batches(EncodedCorpus(folders, [1, 1]), vocabulary, batch_tokens=400)
    assert rows_of(evenly, 0) == rows_of(
        Batches(EncodedCorpus(folders), vocabulary, batch_tokens=400), 0
    )
    with pytest.raises(ValueError, match="`weights` must be None, or one number"):
        EncodedCorpus(folders, weights=[1])


def content(folder):
    return {name: (folder / name).read_bytes() for name in FILES}


def write(folder, pairs, vocabulary, identity="files"):
    with CorpusWriter(folder, identity) as writer:
        writer.save_vocabularies(lambda: (vocabulary, vocabulary))
        writer.save_held_out(dict)
        writer.write(pairs)
        return writer.finish(("en", "de"))


@pytest.mark.parametrize("stop", [0, 63, 64, 200, 500])
def test_a_stopped_writer_resumes(pairs, vocabulary, tmp_path, monkeypatch, stop):
    monkeypatch.setattr(encoding, "CHUNK_PAIRS", 64)
    write(tmp_path / "whole", pairs, vocabulary)

    def stopping():
        yield from itertools.islice(pairs, stop)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "stopped", stopping(), vocabulary)
    assert not (tmp_path / "stopped").exists()
    part = tmp_path / "stopped.part"
    for name in ("ids.bin", "starts.bin", "lengths.bin"):  # killed in a chunk
        with (part / name).open("ab") as file:
            file.write(b"torn")
    with CorpusWriter(tmp_path / "stopped", "files") as writer:
        assert writer.num_read == stop // 64 * 64
    with pytest.raises(ValueError, match="must belong to the same files and flags"):
        CorpusWriter(tmp_path / "stopped", "other files")
    write(tmp_path / "stopped", pairs, vocabulary)
    assert content(tmp_path / "stopped") == content(tmp_path / "whole")
    assert not part.exists() and find_corpus(tmp_path / "stopped", "files")
    assert find_corpus(tmp_path / "stopped", "other files") is None


def test_only_one_process_writes_a_folder(tmp_path):
    pytest.importorskip("fcntl")
    with (
        CorpusWriter(tmp_path / "corpus"),
        pytest.raises(ValueError, match="is being written by another process"),
    ):
        CorpusWriter(tmp_path / "corpus")


def test_pairs_without_tokens_and_those_of_held_out_pairs_are_dropped(
    pairs, vocabulary, tmp_path
):
    sets = draw_held_out(pairs, 20, seed=1)
    repeated = draw_held_out(iter(pairs), 20, seed=1)
    assert list(sets["test"]) == list(repeated["test"]) and len(sets["test"]) == 20
    rows = [*pairs, ("", "x"), ("x", " ")]
    corpus = encode_corpus(rows, tmp_path / "corpus", vocabulary, held_out=sets)
    assert list(corpus.test) == list(sets["test"])
    assert list(corpus.validation) == list(sets["validation"])
    held_out = [*sets["validation"], *sets["test"]]
    sides = [set(side) for side in zip(*held_out, strict=True)]
    remaining = [(s, t) for s, t in pairs if s not in sides[0] and t not in sides[1]]
    assert len(corpus) == len(remaining)
    dropped = len(pairs) - len(remaining)
    assert f"2 a side without tokens, {dropped} a side held out" in corpus.report
    assert not sides[0] & {s for s, _ in remaining}
    with pytest.raises(ValueError, match="`held_out` must leave at least half"):
        draw_held_out(pairs, 200)


def test_other_vocabularies_and_sampling_raise(pairs, folder):
    corpus = EncodedCorpus(folder)
    unrelated = Vocabulary.train(pairs.source, size=290)
    with pytest.raises(
        ValueError, match=r"`vocabulary` must be the one .*corpus was encoded with"
    ):
        Batches(corpus, unrelated)
    with pytest.raises(ValueError, match="`target_vocabulary` must be the one"):
        Batches(corpus, corpus.vocabulary, unrelated)
    with pytest.raises(ValueError, match="`subword_sampling` must be None with an enc"):
        Batches(corpus, corpus.vocabulary, subword_sampling=0.1)


def test_damaged_and_missing_folders_raise(pairs, vocabulary, folder, tmp_path):
    with pytest.raises(FileNotFoundError, match="has no metadata.json. Write one with"):
        EncodedCorpus(tmp_path)
    with pytest.raises(FileExistsError, match="`folder` must not exist; got"):
        encode_corpus(pairs, folder, vocabulary)
    with pytest.raises(FileNotFoundError, match="must be in an existing folder"):
        encode_corpus(pairs, tmp_path / "missing" / "corpus", vocabulary)
    with pytest.raises(ValueError, match="`pairs` must hold a pair with text"):
        encode_corpus([("", "")], tmp_path / "empty", vocabulary)
    damaged = tmp_path / "damaged"
    encode_corpus(pairs, damaged, vocabulary)
    ids = damaged / "ids.bin"
    ids.write_bytes(ids.read_bytes()[:-2])
    with pytest.raises(ValueError, match=r"ids.bin must have .* bytes, by .*bytes="):
        EncodedCorpus(damaged)
    with pytest.raises(ValueError, match="must be encoded with the same languages"):
        EncodedCorpus([folder, write_other(pairs, vocabulary, tmp_path / "other")])


@pytest.mark.parametrize(
    ("name", "index", "value"),
    [
        ("ids.bin", 3, 60_000),
        ("starts.bin", 3, 2**63),
        ("starts.bin", 3, 2),
        ("starts.bin", -1, 10**9),
        ("lengths.bin", 4, 60_000),
        ("lengths.bin", -1, 1),
    ],
)
def test_numbers_that_do_not_fit_are_rejected(
    name, index, value, pairs, vocabulary, tmp_path
):
    encode_corpus(pairs, tmp_path / "corpus", vocabulary)
    file = tmp_path / "corpus" / name
    numbers = np.fromfile(file, "uint64" if name == "starts.bin" else "uint16")
    numbers[index] = value
    numbers.tofile(file)
    corpus = EncodedCorpus(tmp_path / "corpus")
    with pytest.raises(ValueError, match="corpus: the files ids.bin, starts.bin and l"):
        corpus.tokens(0).rows(np.arange(len(corpus)), 99)


def test_a_part_that_lost_bytes_or_names_other_folders_is_rejected(
    pairs, vocabulary, tmp_path
):
    with CorpusWriter(tmp_path / "corpus", "files") as writer:
        writer.save_vocabularies(lambda: (vocabulary, vocabulary))
        writer.save_held_out(dict)
        writer.write(itertools.islice(pairs, 9))
    progress = tmp_path / "corpus.part" / "progress.json"
    content = progress.read_text()
    progress.write_text(content.replace("vocabulary.model", "../other.model"))
    with pytest.raises(ValueError, match="must name vocabularies in its folder; got"):
        CorpusWriter(tmp_path / "corpus", "files")
    progress.write_text(content)
    ids = tmp_path / "corpus.part" / "ids.bin"
    ids.write_bytes(ids.read_bytes()[:-2])
    with pytest.raises(ValueError, match="progress.json must fit the files beside it"):
        CorpusWriter(tmp_path / "corpus", "files")


def write_other(pairs, vocabulary, folder):
    encode_corpus(pairs, folder, vocabulary, languages=("en", "fr"))
    return folder
