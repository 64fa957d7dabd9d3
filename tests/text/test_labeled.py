"""LabeledDataset: files of every format, splits of every class."""

import collections
import gzip
import json
import logging

import numpy as np
import pytest

from keras_tfm.text import LabeledDataset, read_labeled, split

pytestmark = pytest.mark.backend("torch")  # no backend is involved

TEXTS = ["a fine film", "a bad film", "so so", "what a mess", "a joy", "dull"]
LABELS = ["pos", "neg", "neg", "neg", "pos", "neg"]


@pytest.fixture
def write(tmp_path):
    """Returns a function that writes a file and returns its path."""

    def write_file(name, text, encoding="utf-8"):
        path = tmp_path / name
        path.write_bytes(text.encode(encoding))
        return path

    return write_file


def make_dataset(counts, several=False):
    """Makes `counts` texts of each class, in shuffled order."""
    labels = [name for name, count in counts.items() for _ in range(count)]
    labels = np.random.default_rng(0).permutation(labels).tolist()
    texts = [f"text number {index}" for index in range(len(labels))]
    return LabeledDataset(texts, [[name] for name in labels] if several else labels)


def test_labels_become_indices_of_the_sorted_classes():
    examples = LabeledDataset(TEXTS, LABELS, name="films")
    assert len(examples) == 6 and examples.classes == ["neg", "pos"]
    assert examples.counts == {"neg": 4, "pos": 2}
    assert not examples.paired and not examples.multi_label
    encoded = examples.encoded_labels()
    assert encoded.dtype == "int32" and encoded.tolist() == [1, 0, 0, 0, 1, 0]
    assert examples.report == (
        "films: 6 texts, 2 classes (neg 4, pos 2); 0 rows repeat a text, "
        "0 texts have different labels"
    )
    assert list(examples)[0] == ("a fine film", "pos")
    reordered = LabeledDataset(TEXTS, LABELS, classes=["pos", "neg"])
    assert reordered.classes == ["neg", "pos"]  # classes are sorted


def test_several_labels_become_rows_of_zeros_and_ones():
    labels = [["b", "a"], ["a"], [], ["c", "c"], ["b"], ["a", "c"]]
    examples = LabeledDataset(TEXTS, labels)
    assert examples.multi_label and examples.classes == ["a", "b", "c"]
    assert examples.labels[0] == ["a", "b"]
    encoded = examples.encoded_labels()
    assert encoded.dtype == "float32"
    assert encoded.tolist() == [
        [1, 1, 0],
        [1, 0, 0],
        [0, 0, 0],
        [0, 0, 1],
        [0, 1, 0],
        [1, 0, 1],
    ]
    # One class, which each text has or not.
    assert LabeledDataset(TEXTS, [["yes"], []] * 3).classes == ["yes"]


def test_repeated_texts_are_counted_and_conflicts_logged(caplog):
    with caplog.at_level(logging.WARNING):
        agreeing = LabeledDataset([*TEXTS, "dull"], [*LABELS, "neg"])
    assert (agreeing.duplicates, agreeing.conflicts) == (1, 0)
    assert not caplog.messages
    with caplog.at_level(logging.WARNING):
        examples = LabeledDataset([*TEXTS, "dull", "dull"], [*LABELS, "pos", "neg"])
    assert len(examples) == 8  # no row is dropped
    assert (examples.duplicates, examples.conflicts) == (2, 1)
    assert caplog.messages == [examples.report]
    assert "2 rows repeat a text, 1 texts have different labels" in examples.report


@pytest.mark.parametrize(
    ("texts", "labels", "options", "message"),
    [
        (TEXTS, LABELS[:5], {}, "the same length; got texts=6, labels=5"),
        ([], [], {}, "got texts=0, labels=0"),
        ("a film", ["pos"], {}, "must be two lists"),
        (TEXTS, ["pos"] * 6, {}, "2 classes or more.*classes=.'pos'."),
        (TEXTS, [[]] * 6, {}, "1 classes or more"),
        (
            ["a", " \t", "b"],
            LABELS[:3],
            {},
            "texts, index 1: the text must .*not empty",
        ),
        (["a", "b\ud800"], LABELS[:2], {}, "index 1: the text must .*lone surrogate"),
        ([1, 2], LABELS[:2], {}, "index 0: the text must be a pair of strings.*text=1"),
        (["a", ("b", "c")], LABELS[:2], {}, "index 1: the text must be a string"),
        ([("a", "b"), ("c",)], LABELS[:2], {}, "index 1: the text must be a pair"),
        (TEXTS, [*LABELS[:5], " "], {}, "texts, index 5: the label must .*not empty"),
        (TEXTS, [*LABELS[:5], "\ud800"], {}, "index 5: the label must .*surrogate"),
        (["a", "b"], ["pos", 1], {}, "index 1: the label must be a string.*label=1"),
        (["a", "b"], [["pos"], "neg"], {}, "index 1: the label must be a list"),
        (
            TEXTS,
            [*LABELS[:4], "mixed", "mixed"],
            {"classes": ["pos", "neg"]},
            "classes., .'neg', 'pos'.; 2 are not; got first=.*4, 'mixed'",
        ),
        (
            TEXTS,
            LABELS,
            {"classes": ["pos", "neg", "odd"]},
            "each class needs an example; got missing=.'odd'.",
        ),
        (TEXTS, LABELS, {"classes": ["neg", "pos", "neg"]}, "all different"),
    ],
)
def test_faulty_texts_or_labels_raise(texts, labels, options, message):
    with pytest.raises(ValueError, match=message):
        LabeledDataset(texts, labels, **options)


def test_an_evaluation_may_lack_a_class():
    small = LabeledDataset(TEXTS, LABELS, ["pos", "neg", "odd"], allow_missing=True)
    assert small.counts["odd"] == 0 and small.encoded_labels().max() == 2
    assert "odd 0" in small.report


def test_swapped_texts_and_labels_raise():
    with pytest.raises(ValueError, match="6 rows have 6 different labels.* swapped?"):
        LabeledDataset(LABELS, TEXTS)
    repeated = [*TEXTS, "dull"]  # one label is repeated
    with pytest.raises(ValueError, match="swapped.*Name the other columns"):
        LabeledDataset([*LABELS, "neg"], repeated)
    with pytest.raises(ValueError, match="first_text='pos', first_label='a fine film'"):
        LabeledDataset(LABELS, TEXTS)
    with pytest.raises(ValueError, match="swapped"):  # a column of numbers
        LabeledDataset(TEXTS, [str(index) for index in range(6)])
    # Long labels are valid if texts share them, or with explicit classes.
    assert LabeledDataset(["ox", "oak", "elm"], ["an animal", "a plant", "a plant"])
    assert LabeledDataset(TEXTS[:3], ["a", "b", "c"], classes=["a", "b", "c"])


def test_labels_that_differ_in_almost_every_row_raise():
    texts = [f"text {number}" for number in range(40)]
    labels = [f"user {number % 30}" for number in range(40)]
    with pytest.raises(ValueError, match="40 rows have 30 different labels"):
        LabeledDataset(texts, labels)
    explicit = LabeledDataset(texts, labels, classes=sorted(set(labels)))
    assert len(explicit.classes) == 30
    several = [[f"tag {n % 30}", f"tag {n % 7}"] for n in range(40)]
    # A row may have several new labels.
    assert len(LabeledDataset(texts, several).classes) == 30
    assert (
        len(LabeledDataset(texts, [f"user {n % 20}" for n in range(40)]).classes) == 20
    )


def test_blank_lines_are_skipped(write):
    for name, content in (
        ("a.csv", "text,label\n\nfine,good\ndull,bad\n\n"),
        ("a.tsv", "text\tlabel\nfine\tgood\n\ndull\tbad\n\n"),
        (
            "a.jsonl",
            '{"text": "fine", "label": "good"}\n\n{"text": "dull", "label": "bad"}\n\n',
        ),
    ):
        actual = read_labeled(write(name, content))
        assert list(actual) == [("fine", "good"), ("dull", "bad")]


def test_a_header_with_columns_by_number_is_skipped(write, caplog):
    file = write("a.csv", "text,label\nfine,good\ndull,bad\n")
    assert read_labeled(file, text=0, label=1).texts == ["fine", "dull"]
    assert "line 1 is a header, ['text', 'label']" in caplog.text


def test_bad_rows_are_counted_listed_and_skipped_up_to_a_rate(write, caplog):
    rows = [f"film {n},{'good' if n % 2 else 'bad'}" for n in range(100)]
    rows[10:13] = [",good", "film,", "no label"]
    file = write("a.csv", "\n".join(["text,label", *rows]))
    assert len(read_labeled(file)) == 97
    assert "3 of 100 rows cannot be read" in caplog.text
    assert "no text or no label: 2 in lines 12, 13; line 12: the text" in caplog.text
    with pytest.raises(ValueError, match="3 of 100 .*line 14: .*`max_bad_rate`"):
        read_labeled(file, max_bad_rate=0.02)


def test_every_format_has_the_same_rows(write):
    rows = list(zip(TEXTS, LABELS, strict=True))
    objects = "".join(json.dumps({"label": b, "text": a}) + "\n" for a, b in rows)
    paths = [
        write("a.tsv", "text\tlabel\n" + "".join(f"{a}\t{b}\n" for a, b in rows)),
        write("a.csv", "label,text\r\n" + "".join(f"{b},{a}\r\n" for a, b in rows)),
        write("a.jsonl", objects),
    ]
    compressed = write("b.jsonl.gz", "")
    compressed.write_bytes(gzip.compress(objects.encode()))
    for path in [*paths, compressed]:
        assert list(read_labeled(path)) == rows
        assert read_labeled(path).name == str(path)
    first = write("a.txt", "".join(f"{b} {a}\n" for a, b in rows))
    assert list(read_labeled(first, format="label_first")) == rows
    bare = write("bare.tsv", "".join(f"{b}\t9\t{a}\n" for a, b in rows))
    assert list(read_labeled(bare, text=2, label=0)) == rows


def test_csv_quoting_follows_rfc_4180(write):
    path = write("a.csv", 'label,text\npos,"so, ""good"""\nneg,"two\nlines"\n')
    assert read_labeled(path).texts == ['so, "good"', "two\nlines"]
    path = write("a.tsv", 'text\tlabel\n"so\tpos\nno"\tneg\n')
    assert read_labeled(path).texts == ['"so', 'no"']  # TSV has no quoting


def test_columns_are_concatenated_or_paired(write):
    path = write("news.csv", '"1","Title","Body, more"\n"2","Other","Text"\n')
    examples = read_labeled(path, text=[1, 2], label=0)
    assert examples.texts == ["Title Body, more", "Other Text"]
    paired = read_labeled(path, text=1, label=0, text_pair=2)
    assert paired.texts == [("Title", "Body, more"), ("Other", "Text")]
    assert paired.paired and "2 pairs of texts" in paired.report
    names = write("pairs.tsv", "q\ta\tlabel\nwhy\tso\tyes\nwho\tme\tno\n")
    actual = read_labeled(names, text="q", text_pair="a").texts
    assert actual == [("why", "so"), ("who", "me")]


def test_several_labels_are_read_by_a_separator_or_from_lists(write):
    path = write("a.tsv", "text\tlabel\nx y\tb; a\nz z\t\nu u\ta\nv v\tb\n")
    examples = read_labeled(path, label_separator=";")
    assert examples.labels == [["a", "b"], [], ["a"], ["b"]]
    objects = [{"text": "x y", "label": [2, "a"]}, {"text": "z z", "label": []}]
    lines = "\n".join(map(json.dumps, objects))
    assert read_labeled(write("a.jsonl", lines)).labels == [["2", "a"], []]
    mixed = lines + '\n{"text": "w", "label": "a"}'
    with pytest.raises(ValueError, match="line 3: labels must be lists in all rows"):
        read_labeled(write("a.jsonl", mixed))


def test_integers_and_booleans_in_json_are_labels(write):
    path = write("a.jsonl", '{"text": "x", "label": 0}\n{"text": "y", "label": 12}')
    assert read_labeled(path).labels == ["0", "12"]
    path = write(
        "a.jsonl", '{"text": "x", "label": true}\n{"text": "y", "label": false}'
    )
    assert read_labeled(path).classes == ["false", "true"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tsv", "sentence\tlabel\na\tb\n", "line 1: expected one column 'text'"),
        ("a.tsv", "sentence\tlabel\na\tb\n", r"got columns=\['sentence', 'label'\]"),
        ("a.tsv", "text\tlabel\tlabel\na\tb\tc\n", "expected one column 'label'"),
        (
            "a.tsv",
            "text\tlabel\na\tpos\nb\ttab\tneg\n",
            "expected 2 columns, got 3",
        ),
        ("a.csv", "text,label\na,pos\nb\n", "line 3: expected 2 columns, got 1"),
        ("a.csv", 'text,label\na,x\n"b"c,y\n', r"line 3: the row cannot.*double"),
        ("a.csv", 'text,label\na,x\n"b,y\nc,z\n', "line 3: the .* up to line 4"),
        ("a.tsv", "text\tlabel\na\tpos\n \tneg\n", "line 3: the text .*not empty"),
        ("a.tsv", "text\tlabel\na\tpos\nb\t\n", "line 3: the label .*not empty"),
        ("a.jsonl", '{"text": "a", "kind": "b"}', "1: expected one column 'label'"),
        ("a.jsonl", '{"text": 3, "label": "b"}', "line 1: a text must be a string"),
        ("a.jsonl", '{"text": "a", "label": 0.5}', "1: a label must be a string.*0.5"),
        ("a.jsonl", '["a", "b"]', "line 1: expected a JSON object"),
        ("a.jsonl", "a\n", "line 1: expected one JSON object per line"),
        ("a.jsonl", "[" * 200_000, "line 1: expected one JSON object per line"),
        ("a.jsonl", '{"text": "\\ud800", "label": "b"}', "line 1: .* lone surrogate"),
        ("a.csv", "", "a.csv is empty"),
        ("a.tsv", "text\tlabel\n", "got texts=0, labels=0"),
        ("a.txt", "x y\n", "`format` must be one of .*format='txt'"),
    ],
)
def test_a_faulty_file_raises_with_the_line(write, name, text, message):
    with pytest.raises(ValueError, match=message):
        read_labeled(write(name, text))


def test_a_missing_or_latin1_file_raises(write):
    with pytest.raises(ValueError, match="line 2: byte 2 of the line"):
        read_labeled(write("a.csv", "text,label\nc\u00e9,b\n", encoding="latin1"))
    with pytest.raises(FileNotFoundError, match="none.csv"):
        read_labeled("none.csv")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text": 0, "label": 2}, "expected one column 2; got columns="),
        ({"text": -1}, "expected one column -1"),
        ({"format": "jsonl", "text": 0}, "no JSON"),
        ({"format": "xml"}, "`format` must be one of.*format='xml'"),
        ({"text": "label", "label": "text"}, "swapped"),
    ],
)
def test_wrong_columns_raise(write, options, message):
    path = write("a.tsv", "text\tlabel\na\tpos\nb\tneg\nc\tneg\n")
    with pytest.raises(ValueError, match=message):
        read_labeled(path, **options)


def test_splits_have_each_example_once_and_the_fractions_of_each_class():
    whole = make_dataset({"a": 500, "b": 100, "c": 30})
    splits = split(whole, seed=1)
    rows = collections.Counter(row for subset in splits for row in subset)
    assert rows == collections.Counter(whole)
    assert [subset.counts for subset in splits] == [
        {"a": 400, "b": 80, "c": 24},
        {"a": 50, "b": 10, "c": 3},
        {"a": 50, "b": 10, "c": 3},
    ]
    order = {text: index for index, text in enumerate(whole.texts)}
    indices = [order[text] for text in splits[0].texts]
    assert indices == sorted(indices)
    assert [len(subset) for subset in split(whole, (0.5, 0.5))] == [315, 315]
    assert splits[1].name == "texts, split 2 of 3"


def test_seeds_differ_and_repeat():
    whole = make_dataset({"a": 50, "b": 50})
    test_texts = [split(whole, seed=seed)[2].texts for seed in (1, 1, 2)]
    assert test_texts[0] == test_texts[1] != test_texts[2]
    assert test_texts[0] != whole.texts[-10:]  # not simply the last rows


def test_rows_that_repeat_a_text_stay_in_one_split(caplog):
    texts = [f"text {index % 60}" for index in range(200)]
    labels = ["a" if index % 3 else "b" for index in range(200)]
    labels[60] = "a"  # a text that has label b otherwise
    splits = split(LabeledDataset(texts, labels), (0.6, 0.2, 0.2))
    texts_of_splits = [set(subset.texts) for subset in splits]
    assert (
        sum(map(len, texts_of_splits)) == 60 and len(set.union(*texts_of_splits)) == 60
    )
    assert sum(map(len, splits)) == 200
    for subset, size in zip(splits, (120, 40, 40), strict=True):
        assert abs(len(subset) - size) <= 8
    assert "have different labels" in caplog.text


def test_small_classes_are_in_every_split_or_raise():
    splits = split(make_dataset({"a": 200, "b": 3, "c": 5}))
    assert [subset.counts["b"] for subset in splits] == [1, 1, 1]
    assert [subset.counts["c"] for subset in splits] == [3, 1, 1]
    with pytest.raises(ValueError, match=r"\[[01], [01], [01]\] of the 2 texts of 'b'"):
        split(make_dataset({"a": 200, "b": 2}))
    missing = LabeledDataset(TEXTS, LABELS, ["pos", "neg", "odd"], allow_missing=True)
    assert split(missing, (0.5, 0.5))[0].classes == ["neg", "odd", "pos"]


def test_texts_with_several_labels_are_split_by_each_label():
    draw = np.random.default_rng(3)
    probabilities = {"a": 0.5, "b": 0.3, "rare": 0.03}
    labels = [
        [c for c in probabilities if draw.random() < probabilities[c]]
        for _ in range(1000)
    ]
    whole = LabeledDataset([f"text number {index}" for index in range(1000)], labels)
    splits = split(whole)
    for subset, fraction in zip(splits, (0.8, 0.1, 0.1), strict=True):
        assert abs(len(subset) - 1000 * fraction) <= 4
        for name, count in whole.counts.items():
            assert abs(subset.counts[name] - fraction * count) <= 3


@pytest.mark.parametrize(
    "fractions", [(0.8, 0.1), (1.0,), (1.2, -0.2), (0.5, 0.5, 0.0)]
)
def test_fractions_that_do_not_sum_to_1_raise(fractions):
    with pytest.raises(ValueError, match="above 0 that sum to 1; got fractions="):
        split(LabeledDataset(TEXTS, LABELS), fractions)


def test_a_seed_below_0_is_rejected_by_a_split():
    with pytest.raises(ValueError, match="`seed` must be 0 or more; got seed=-1"):
        split(LabeledDataset(TEXTS, LABELS), seed=-1)


def test_published_files_are_read_completely(data):
    dev = read_labeled(data / "sst2/dev.tsv.gz", text="sentence")
    assert (len(dev), dev.counts) == (872, {"0": 428, "1": 444})
    questions = read_labeled(data / "trec/train.txt.gz", format="label_first")
    assert (len(questions), len(questions.classes)) == (5452, 6)
    assert questions.texts[0].startswith("How did serfdom develop")
    news = read_labeled(data / "ag_news/train_28k.csv.gz", text=[1, 2], label=0)
    assert (len(news), news.classes) == (28_314, ["1", "2", "3", "4"])
    with pytest.raises(ValueError, match="swapped"):
        read_labeled(data / "sst2/dev.tsv.gz", text="label", label="sentence")
    with pytest.raises(ValueError, match="swapped"):
        read_labeled(data / "imdb/train.tsv.gz", text=0, label=3)
