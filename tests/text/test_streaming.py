"""Streaming: batches of text that does not fit into memory."""

import collections
import functools
import logging
import sys

import numpy as np
import pytest

from keras_tfm.text import Pairs, SpecialTokens, iterate_pairs, stream
from keras_tfm.text import streaming as streaming_module

pytestmark = pytest.mark.backend("torch")  # no backend is involved
tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed")


def contents(batches):
    """Counts the pairs in batches, as tuples of source, target and labels."""
    counts = collections.Counter()
    for inputs, labels in batches:
        rows = (inputs["source_ids"], inputs["target_ids"], labels)
        for row in zip(*map(np.asarray, rows), strict=True):
            counts[tuple(tuple(side[side != 0].tolist()) for side in row)] += 1
    counts.pop(((), (), ()), None)  # empty examples
    return counts


def expected_counts(pairs, vocabulary):
    """Counts the pairs, encoded without batching."""
    targets = vocabulary.encode(pairs.target)
    return collections.Counter(
        (tuple(source), (2, *target), (*target, 3))
        for source, target in zip(vocabulary.encode(pairs.source), targets, strict=True)
    )


def as_dataset(pairs):
    return tf.data.Dataset.from_tensor_slices((pairs.source, pairs.target))


def as_function(pairs):
    return functools.partial(iter, list(pairs))


@pytest.mark.parametrize("reader", [as_dataset, as_function])
def test_one_pass_has_every_pair_once(pairs, vocabulary, reader):
    batches = stream(reader(pairs), vocabulary, batch_tokens=500)
    actual = list(batches)
    assert contents(actual) == expected_counts(pairs, vocabulary)
    shapes = {inputs["source_ids"].shape + labels.shape for inputs, labels in actual}
    assert 2 <= len(shapes) <= 8
    for rows, _, _, length in shapes:
        assert rows == 500 // length


def test_files_can_be_streamed(pairs, vocabulary, tmp_path):
    paths = tmp_path / "a.en", tmp_path / "a.de"
    for path, side in zip(paths, (pairs.source, pairs.target), strict=True):
        path.write_text("\n".join(side))
    table = tmp_path / "a.tsv"
    table.write_text("\n".join(map("\t".join, pairs)))
    for files in (paths, functools.partial(iterate_pairs, table)):
        assert contents(stream(files, vocabulary)) == expected_counts(pairs, vocabulary)


def test_passes_differ_and_two_iterations_are_equal(pairs, vocabulary):
    def read(seed):
        dataset = stream(
            as_dataset(pairs),
            vocabulary,
            batch_tokens=50 * 64,  # ten batches of 50 a pass
            num_buckets=1,
            max_source_length=64,
            max_target_length=64,
            seed=seed,
            repeat=True,
        )
        actual = [[labels for _, labels in dataset.take(20)] for _ in range(2)]
        return np.array(actual)

    first, repeated = read(0)
    assert np.array_equal(first, repeated)
    assert not np.array_equal(first[:10], first[10:])
    assert np.array_equal(
        np.sort(first[:10, :, 0], None), np.sort(first[10:, :, 0], None)
    )
    assert not np.array_equal(first, read(1)[0])


def test_a_stream_ends_after_a_pass_and_the_next_is_in_another_order(pairs, vocabulary):
    special = SpecialTokens(source_suffix=(vocabulary.end_id,))
    dataset = stream(as_function(pairs), vocabulary, special_tokens=special)
    passes = []
    for _ in range(2):
        batches = [inputs["source_ids"].numpy() for inputs, _ in dataset]
        rows = [[i for i in row if i] for ids in batches for row in ids.tolist()]
        passes.append([row for row in rows if row])
    assert passes[0] != passes[1] and sorted(passes[0]) == sorted(passes[1])
    assert {row[-1] for row in passes[0]} == {vocabulary.end_id}


def test_without_a_buffer_the_order_is_unchanged(pairs, vocabulary):
    actual = stream(
        as_dataset(pairs),
        vocabulary,
        num_buckets=1,
        max_source_length=64,
        max_target_length=64,
        shuffle_buffer=0,
    )
    source = np.concatenate([inputs["source_ids"] for inputs, _ in actual])
    assert vocabulary.decode(source)[: len(pairs)] == pairs.source


@pytest.mark.parametrize("too_long, verb", [("drop", "dropped"), ("truncate", None)])
def test_drops_are_counted_and_logged_at_the_end_of_a_pass(
    pairs, vocabulary, caplog, too_long, verb
):
    source = [*pairs.source, "\u200b", "ba"]
    target = [*pairs.target, "baba", " "]
    dataset = stream(
        tf.data.Dataset.from_tensor_slices((source, target)),
        vocabulary,
        max_source_length=12,
        max_target_length=30,
        too_long=too_long,
    )
    rows = list(expected_counts(pairs, vocabulary).elements())
    fitting = [row for row in rows if len(row[0]) <= 12 and len(row[2]) <= 30]
    expected = collections.Counter(
        fitting if verb else [(s[:12], t[:30], y[:30]) for s, t, y in rows]
    )
    with caplog.at_level(logging.WARNING):
        next(iter(dataset))  # an interrupted iteration logs nothing
        assert contents(dataset) == expected
    assert caplog.messages[-1] == (
        "502 pairs read; dropped for a side without tokens: 2; "
        f"{verb or 'truncated'} for their length: {500 - len(fitting)}."
    )


def test_a_stream_resumes_at_any_step(pairs, vocabulary):
    def read(first_step, repeat):
        dataset = stream(
            as_function(pairs),
            vocabulary,
            batch_tokens=500,
            repeat=repeat,
            first_step=first_step,
        )
        return [labels.numpy() for _, labels in dataset.take(60)]

    whole = read(0, True)
    for actual, expected in zip(read(7, True), whole[7:], strict=False):
        np.testing.assert_array_equal(actual, expected)
    one_pass = read(0, False)
    assert 20 < len(one_pass) < 60 and len(read(7, False)) == len(one_pass) - 7
    with pytest.raises(ValueError, match="`first_step` must be 0 or more"):
        read(-1, True)
    with pytest.raises(ValueError, match="`seed` must be 0 or more; got seed=-1"):
        stream(as_function(pairs), vocabulary, seed=-1)


def test_batches_are_filled_up_to_a_multiple(pairs, vocabulary):
    options = {"batch_tokens": 500}
    plain = list(stream(as_function(pairs), vocabulary, **options))
    filled = list(stream(as_function(pairs), vocabulary, **options, rows_multiple=8))
    assert {len(labels) % 8 for _, labels in plain} != {0}
    for (_, expected), (_, actual) in zip(plain, filled, strict=True):
        assert len(actual) == -(-len(expected) // 8) * 8
        np.testing.assert_array_equal(actual[: len(expected)], expected)
        assert not np.any(actual[len(expected) :])


def test_parts_have_their_own_pairs_in_batches_of_one_shape(pairs, vocabulary):
    rows = list(pairs)
    parts = [
        list(
            stream(
                as_function(pairs),
                vocabulary,
                batch_tokens=500,
                repeat=True,
                part=(index, 3),
                rows_multiple=6,
            ).take(60)
        )
        for index in range(3)
    ]
    shapes = [[labels.shape for _, labels in batches] for batches in parts]
    assert shapes[0] == shapes[1] == shapes[2] and len(set(shapes[0])) >= 3
    assert all(rows % 2 == 0 for rows, _ in shapes[0])
    for index, batches in enumerate(parts):
        actual = contents(batches)
        share = expected_counts(Pairs(*zip(*rows[index::3], strict=True)), vocabulary)
        assert actual.total() > 3 * len(rows) / 3 and set(actual) <= set(share)
        assert len(set(share) - set(actual)) < 10  # others wait for their bucket
        real = sum(int(np.count_nonzero(labels[:, 0])) for _, labels in batches)
        assert real > 0.9 * sum(len(labels) for _, labels in batches)
    with pytest.raises(ValueError, match="`repeat` must be True with more than one"):
        stream(as_function(pairs), vocabulary, part=(0, 2))


def test_faults_in_the_first_pairs_raise_at_once(pairs, vocabulary, tmp_path):
    paths = tmp_path / "a.en", tmp_path / "a.de"
    paths[0].write_text("one\ntwo\n")
    paths[1].write_text("eins\n")
    with pytest.raises(ValueError, match="a.en has 2 lines, a.de has 1"):
        stream(paths, vocabulary)
    with pytest.raises(ValueError, match="strings in UTF-8; got .*xff.* at index 1"):
        stream(
            tf.data.Dataset.from_tensor_slices(([b"a", b"\xff"], [b"a", b"b"])),
            vocabulary,
        )
    short = tf.data.Dataset.from_tensors(("ba be bi", "baba"))
    with pytest.raises(
        ValueError, match="begin with pairs that fit .1, 256.*too_long=1"
    ):
        stream(short, vocabulary, max_source_length=1)
    with pytest.raises(ValueError, match="has 256 tokens; got batch_tokens=200"):
        stream(as_dataset(pairs), vocabulary, batch_tokens=200)


def test_later_faults_raise_with_the_same_message(vocabulary, tmp_path, monkeypatch):
    monkeypatch.setattr(streaming_module, "_SAMPLE", 10)
    paths = tmp_path / "a.en", tmp_path / "a.de"
    paths[0].write_bytes(b"ba\n" * 3000 + b"\xff\n")
    paths[1].write_bytes(b"baba\n" * 3001)
    with pytest.raises(tf.errors.InvalidArgumentError, match="line 3001: a.en: byte 1"):
        list(stream(paths, vocabulary))
    texts = [b"ba"] * 3000 + [b"\xff"]
    dataset = tf.data.Dataset.from_tensor_slices((texts, texts))
    with pytest.raises(tf.errors.InvalidArgumentError, match="strings in UTF-8"):
        list(stream(dataset, vocabulary))


def test_pairs_of_another_type_raise(pairs, vocabulary):
    with pytest.raises(ValueError, match="strings in UTF-8; got .*0.* at index 0"):
        stream(tf.data.Dataset.range(3), vocabulary)
    with pytest.raises(ValueError, match="Text in memory goes to `Batches`"):
        stream(pairs, vocabulary)


def test_without_tensorflow_the_error_names_the_extra(pairs, vocabulary, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(ImportError, match=r"keras-tfm\[tensorflow\].*Batches.batch"):
        stream(as_function(pairs), vocabulary)
