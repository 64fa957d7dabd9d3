"""Labelled texts: files as they are, splits that keep what they promise."""

import collections
import gzip
import json
import logging
import re

import numpy as np
import pytest

from keras_tfm.text import LabeledDataset, read_labeled, split

pytestmark = pytest.mark.backend("torch")  # of no backend: once is enough

TEXTS = ["a fine film", "a bad film", "so so", "what a mess", "a joy", "dull"]
LABELS = ["pos", "neg", "neg", "neg", "pos", "neg"]


@pytest.fixture
def write(tmp_path):
    """Writes text to a file in an empty folder, gives its path."""

    def write_file(name, text, encoding="utf-8"):
        path = tmp_path / name
        path.write_bytes(text.encode(encoding))
        return path

    return write_file


def many(counts, several=False):
    """Makes texts of the given number for each class, in mixed order."""
    labels = [each for each, count in counts.items() for _ in range(count)]
    labels = np.random.default_rng(0).permutation(labels).tolist()
    texts = [f"text number {index}" for index in range(len(labels))]
    return LabeledDataset(texts, [[each] for each in labels] if several else labels)


def test_labels_become_places_in_the_sorted_classes():
    labelled = LabeledDataset(TEXTS, LABELS, name="films")
    assert len(labelled) == 6 and labelled.classes == ["neg", "pos"]
    assert labelled.counts == {"neg": 4, "pos": 2}
    assert not labelled.paired and not labelled.multi_label
    encoded = labelled.encoded_labels()
    assert encoded.dtype == "int32" and encoded.tolist() == [1, 0, 0, 0, 1, 0]
    assert labelled.report == (
        "films: 6 texts, 2 classes (neg 4, pos 2); 0 rows repeat a text, "
        "0 texts have different labels"
    )
    assert list(labelled)[0] == ("a fine film", "pos")
    other = LabeledDataset(TEXTS, LABELS, classes=["pos", "neg"])
    assert other.classes == ["neg", "pos"]  # the order given has no meaning


def test_several_labels_become_rows_of_zeros_and_ones():
    labels = [["b", "a"], ["a"], [], ["c", "c"], ["b"], ["a", "c"]]
    labelled = LabeledDataset(TEXTS, labels)
    assert labelled.multi_label and labelled.classes == ["a", "b", "c"]
    assert labelled.labels[0] == ["a", "b"]
    encoded = labelled.encoded_labels()
    assert encoded.dtype == "float32"
    assert encoded.tolist() == [
        [1, 1, 0],
        [1, 0, 0],
        [0, 0, 0],
        [0, 0, 1],
        [0, 1, 0],
        [1, 0, 1],
    ]
    assert LabeledDataset(TEXTS, [["yes"], []] * 3).classes == ["yes"]  # holds or not


def test_repeated_texts_are_counted_and_contradictions_said(caplog):
    with caplog.at_level(logging.WARNING):
        agreeing = LabeledDataset([*TEXTS, "dull"], [*LABELS, "neg"])
    assert (agreeing.duplicates, agreeing.conflicts) == (1, 0)
    assert not caplog.messages
    with caplog.at_level(logging.WARNING):
        labelled = LabeledDataset([*TEXTS, "dull", "dull"], [*LABELS, "pos", "neg"])
    assert len(labelled) == 8  # none is refused
    assert (labelled.duplicates, labelled.conflicts) == (2, 1)
    assert caplog.messages == [labelled.report]
    assert "2 rows repeat a text, 1 texts have different labels" in labelled.report


def test_labels_that_cannot_be_right_are_refused():
    for texts, labels, options, words in (
        (TEXTS, LABELS[:5], {}, "6 texts and 5 labels. Align"),
        ([], [], {}, "0 texts and 0 labels"),
        (TEXTS, ["pos"] * 6, {}, "2 classes at least.*classes=['pos'] on 6 texts"),
        (TEXTS, [[]] * 6, {}, "1 classes at least"),
        (["a", " \t", "b"], LABELS[:3], {}, "texts, index 1: the text is empty"),
        (["a", "b\ud800"], LABELS[:2], {}, "index 1: the text holds half of a char"),
        (TEXTS, [*LABELS[:5], " "], {}, "texts, index 5: the label is empty"),
        (TEXTS, [*LABELS[:5], "\ud800"], {}, "index 5: the label holds half of a"),
        (
            TEXTS,
            [*LABELS[:4], "mixed", "mixed"],
            {"classes": ["pos", "neg"]},
            "classes ['neg', 'pos']. Received at index 4: 'mixed'; 2 such labels",
        ),
        (
            TEXTS,
            LABELS,
            {"classes": ["pos", "neg", "odd"]},
            "each class needs an example. Received none of ['odd'] among 6 texts",
        ),
        (TEXTS, LABELS, {"classes": ["neg", "pos", "neg"]}, "twice: ['neg']"),
    ):
        pattern = re.escape(words).replace(r"\.\*", ".*")
        with pytest.raises(ValueError, match=pattern):
            LabeledDataset(texts, labels, **options)
    small = LabeledDataset(TEXTS, LABELS, ["pos", "neg", "odd"], allow_missing=True)
    assert small.counts["odd"] == 0 and small.encoded_labels().max() == 2
    assert "odd 0" in small.report


def test_what_is_no_text_or_label_is_refused():
    for texts, labels, words in (
        ("a film", ["pos"], "`texts` must be a list. Received one string: 'a film'"),
        ([1, 2], LABELS[:2], "index 0: a pair of strings is wanted.*Received: 1"),
        (["a", ("b", "c")], LABELS[:2], "index 1: a string is wanted"),
        ([("a", "b"), ("c",)], LABELS[:2], "index 1: a pair of strings"),
        (["a", "b"], ["pos", 1], "index 1: a string is wanted.*1 of type int"),
        (["a", "b"], [["pos"], "neg"], "index 1: a list of strings is wanted"),
    ):
        with pytest.raises(TypeError, match=words):
            LabeledDataset(texts, labels)


def test_swapped_texts_and_labels_are_found():
    with pytest.raises(ValueError, match="6 different labels on 6 .* swapped?"):
        LabeledDataset(LABELS, TEXTS)
    repeated = [*TEXTS, "dull"]  # not every label is another one
    with pytest.raises(ValueError, match="swapped.*Name the other columns"):
        LabeledDataset([*LABELS, "neg"], repeated)
    with pytest.raises(ValueError, match="the text 'pos' with the label 'a fine film'"):
        LabeledDataset(LABELS, TEXTS)
    with pytest.raises(ValueError, match="swapped"):  # a column of numbers
        LabeledDataset(TEXTS, [str(index) for index in range(6)])
    # Long labels are right where texts share them, all where it is said.
    assert LabeledDataset(["ox", "oak", "elm"], ["an animal", "a plant", "a plant"])
    assert LabeledDataset(TEXTS[:3], ["a", "b", "c"], classes=["a", "b", "c"])


def test_names_of_rows_are_no_classes():
    texts = [f"text {number}" for number in range(40)]
    labels = [f"user {number % 30}" for number in range(40)]
    with pytest.raises(ValueError, match="30 different labels on 40 rows"):
        LabeledDataset(texts, labels)
    given = LabeledDataset(texts, labels, classes=sorted(set(labels)))
    assert len(given.classes) == 30
    several = [[f"tag {n % 30}", f"tag {n % 7}"] for n in range(40)]
    assert len(LabeledDataset(texts, several).classes) == 30  # a row may bring several
    assert (
        len(LabeledDataset(texts, [f"user {n % 20}" for n in range(40)]).classes) == 20
    )


def test_blank_lines_are_no_rows(write):
    for name, content in (
        ("a.csv", "text,label\n\nfine,good\ndull,bad\n\n"),
        ("a.tsv", "text\tlabel\nfine\tgood\n\ndull\tbad\n\n"),
        (
            "a.jsonl",
            '{"text": "fine", "label": "good"}\n\n{"text": "dull", "label": "bad"}\n\n',
        ),
    ):
        found = read_labeled(write(name, content))
        assert list(found) == [("fine", "good"), ("dull", "bad")]


def test_names_of_columns_are_no_row(write):
    file = write("a.csv", "text,label\nfine,good\ndull,bad\n")
    with pytest.raises(ValueError, match="Received .'text', 'label'., the names of"):
        read_labeled(file, text=0, label=1)


def test_every_format_gives_the_same_rows(write):
    rows = list(zip(TEXTS, LABELS, strict=True))
    objects = "".join(json.dumps({"label": b, "text": a}) + "\n" for a, b in rows)
    paths = [
        write("a.tsv", "text\tlabel\n" + "".join(f"{a}\t{b}\n" for a, b in rows)),
        write("a.csv", "label,text\r\n" + "".join(f"{b},{a}\r\n" for a, b in rows)),
        write("a.jsonl", objects),
    ]
    packed = write("b.jsonl.gz", "")
    packed.write_bytes(gzip.compress(objects.encode()))
    for path in [*paths, packed]:
        assert list(read_labeled(path)) == rows
        assert read_labeled(path).name == str(path)
    first = write("a.txt", "".join(f"{b} {a}\n" for a, b in rows))
    assert list(read_labeled(first, format="label_first")) == rows
    bare = write("bare.tsv", "".join(f"{b}\t9\t{a}\n" for a, b in rows))
    assert list(read_labeled(bare, text=2, label=0)) == rows


def test_csv_quoting_is_that_of_the_standard(write):
    path = write("a.csv", 'label,text\npos,"so, ""good"""\nneg,"two\nlines"\n')
    assert read_labeled(path).texts == ['so, "good"', "two\nlines"]
    path = write("a.tsv", 'text\tlabel\n"so\tpos\nno"\tneg\n')
    assert read_labeled(path).texts == ['"so', 'no"']  # a TSV has none


def test_columns_are_joined_and_pairs_made(write):
    path = write("news.csv", '"1","Title","Body, more"\n"2","Other","Text"\n')
    labelled = read_labeled(path, text=[1, 2], label=0)
    assert labelled.texts == ["Title Body, more", "Other Text"]
    paired = read_labeled(path, text=1, label=0, text_pair=2)
    assert paired.texts == [("Title", "Body, more"), ("Other", "Text")]
    assert paired.paired and "2 pairs of texts" in paired.report
    names = write("pairs.tsv", "q\ta\tlabel\nwhy\tso\tyes\nwho\tme\tno\n")
    found = read_labeled(names, text="q", text_pair="a").texts
    assert found == [("why", "so"), ("who", "me")]


def test_several_labels_are_read_by_a_separator_or_from_lists(write):
    path = write("a.tsv", "text\tlabel\nx y\tb; a\nz z\t\nu u\ta\nv v\tb\n")
    labelled = read_labeled(path, label_separator=";")
    assert labelled.labels == [["a", "b"], [], ["a"], ["b"]]
    objects = [{"text": "x y", "label": [2, "a"]}, {"text": "z z", "label": []}]
    lines = "\n".join(map(json.dumps, objects))
    assert read_labeled(write("a.jsonl", lines)).labels == [["2", "a"], []]
    with pytest.raises(ValueError, match="line 1: a list of labels needs no separ"):
        read_labeled(write("a.jsonl", lines), label_separator=",")
    mixed = lines + '\n{"text": "w", "label": "a"}'
    with pytest.raises(ValueError, match="line 3: labels must be lists in all rows"):
        read_labeled(write("a.jsonl", mixed))


def test_numbers_and_truth_in_json_are_labels(write):
    path = write("a.jsonl", '{"text": "x", "label": 0}\n{"text": "y", "label": 12}')
    assert read_labeled(path).labels == ["0", "12"]
    path = write(
        "a.jsonl", '{"text": "x", "label": true}\n{"text": "y", "label": false}'
    )
    assert read_labeled(path).classes == ["false", "true"]
    path = write("a.jsonl", '{"text": "x", "label": 0.5}')
    with pytest.raises(ValueError, match="line 1: a label is a string.*0.5"):
        read_labeled(path)


def test_faults_of_a_file_are_named_with_their_line(write):
    for name, text, words in (
        ("a.tsv", "sentence\tlabel\na\tb\n", "line 1: a column 'text'.*the columns"),
        ("a.tsv", "sentence\tlabel\na\tb\n", r"\['sentence', 'label'\]"),
        ("a.tsv", "text\tlabel\tlabel\na\tb\tc\n", "one column 'label' is wanted"),
        ("a.tsv", "text\tlabel\na\tpos\nb\ttab\tneg\n", "line 3: 2 columns.*ceived 3"),
        ("a.csv", "text,label\na,pos\nb\n", "line 3: 2 columns are wanted.*Received 1"),
        ("a.csv", 'text,label\na,x\n"b"c,y\n', r"line 3: this row cannot.*doubled"),
        ("a.csv", 'text,label\na,x\n"b,y\nc,z\n', "line 3: this .* up to line 4"),
        ("a.tsv", "text\tlabel\na\tpos\n \tneg\n", "line 3: the text is empty"),
        ("a.tsv", "text\tlabel\na\tpos\nb\t\n", "line 3: the label is empty"),
        ("a.jsonl", '{"text": "a", "kind": "b"}', r"1: a column 'label'.*'kind'\]"),
        ("a.jsonl", '{"text": 3, "label": "b"}', "a string is wanted under 'text'"),
        ("a.jsonl", '["a", "b"]', "line 1: a JSON object is wanted"),
        ("a.jsonl", "a\n", "line 1: one JSON object a line.*is no JSON"),
        ("a.jsonl", "[" * 200_000, "line 1: one JSON object a line.*is no JSON"),
        ("a.jsonl", '{"text": "\\ud800", "label": "b"}', "line 1: the text holds half"),
        ("a.csv", "", "a.csv is empty"),
        ("a.tsv", "text\tlabel\n", "0 texts and 0 labels"),
        ("a.txt", "x y\n", "`format` must be one of .*Received: 'txt'. Give `format`"),
    ):
        with pytest.raises(ValueError, match=words):
            read_labeled(write(name, text))
    with pytest.raises(ValueError, match="line 2: byte 2 of the line"):
        read_labeled(write("a.csv", "text,label\ncé,b\n", encoding="latin1"))
    with pytest.raises(FileNotFoundError, match="none.csv"):
        read_labeled("none.csv")
    bare = write("a.tsv", "a\tb\n")
    with pytest.raises(ValueError, match="a column 2 is wanted. Received 2 columns"):
        read_labeled(bare, text=0, label=2)
    with pytest.raises(ValueError, match="'odd'; 1 such labels.*train with that"):
        read_labeled(write("a.tsv", "a\tpos\nb\todd\n"), 0, 1, classes=["pos", "neg"])


def test_options_that_contradict_each_other_are_refused(write):
    path = write("a.tsv", "text\tlabel\na\tpos\nb\tneg\n")
    for options, words in (
        ({"format": "label_first", "text": 1}, "label first has one label"),
        ({"format": "label_first", "label_separator": ","}, "label first has one"),
        ({"format": "jsonl", "text": 0}, "have names, not numbers.*text=[0]"),
        ({"label": "text"}, "a column is named once"),
        ({"text_pair": "text"}, "a column is named once.*text_pair=['text']"),
        ({"label": ["label", "kind"]}, "one column of labels"),
        ({"text": []}, "one of text at least"),
        ({"text": -1}, "counted from 0"),
        ({"label_separator": ""}, "one character at least.*label_separator=''"),
        ({"format": "xml"}, "`format` must be one of.*Received: 'xml'"),
    ):
        pattern = re.escape(words).replace(r"\.\*", ".*")
        with pytest.raises(ValueError, match=pattern):
            read_labeled(path, **options)


def test_parts_hold_each_row_once_in_the_shares_of_each_class():
    whole = many({"a": 500, "b": 100, "c": 30})
    parts = split(whole, seed=1)
    rows = collections.Counter(row for part in parts for row in part)
    assert rows == collections.Counter(whole)
    assert [part.counts for part in parts] == [
        {"a": 400, "b": 80, "c": 24},
        {"a": 50, "b": 10, "c": 3},
        {"a": 50, "b": 10, "c": 3},
    ]
    order = {text: index for index, text in enumerate(whole.texts)}
    places = [order[text] for text in parts[0].texts]
    assert places == sorted(places)
    assert [len(part) for part in split(whole, (0.5, 0.5))] == [315, 315]
    assert parts[1].name == "texts, part 2 of 3"


def test_a_seed_makes_a_split_and_another_seed_another():
    whole = many({"a": 50, "b": 50})
    held = [split(whole, seed=seed)[2].texts for seed in (1, 1, 2)]
    assert held[0] == held[1] != held[2]
    assert held[0] != whole.texts[-10:]  # nor are they the last rows


def test_one_text_stays_in_one_part(caplog):
    texts = [f"text {index % 60}" for index in range(200)]
    labels = ["a" if index % 3 else "b" for index in range(200)]
    labels[60] = "a"  # a text of three b's
    parts = split(LabeledDataset(texts, labels), (0.6, 0.2, 0.2))
    held = [set(part.texts) for part in parts]
    assert sum(map(len, held)) == 60 and len(set.union(*held)) == 60
    assert sum(map(len, parts)) == 200
    for part, rows in zip(parts, (120, 40, 40), strict=True):
        assert abs(len(part) - rows) <= 8
    assert "have different labels" in caplog.text


def test_small_classes_reach_every_part_or_are_refused():
    parts = split(many({"a": 200, "b": 3, "c": 5}))
    assert [part.counts["b"] for part in parts] == [1, 1, 1]
    assert [part.counts["c"] for part in parts] == [3, 1, 1]
    with pytest.raises(ValueError, match=r"2 texts of 'b'.*3 parts as \[[01], [01], "):
        split(many({"a": 200, "b": 2}))
    missing = LabeledDataset(TEXTS, LABELS, ["pos", "neg", "odd"], allow_missing=True)
    assert split(missing, (0.5, 0.5))[0].classes == ["neg", "odd", "pos"]


def test_texts_of_several_labels_are_split_by_each_of_them():
    draw = np.random.default_rng(3)
    shares = {"a": 0.5, "b": 0.3, "rare": 0.03}
    labels = [[c for c in shares if draw.random() < shares[c]] for _ in range(1000)]
    whole = LabeledDataset([f"text number {index}" for index in range(1000)], labels)
    parts = split(whole)
    for part, share in zip(parts, (0.8, 0.1, 0.1), strict=True):
        assert abs(len(part) - 1000 * share) <= 4
        for each, count in whole.counts.items():
            assert abs(part.counts[each] - share * count) <= 3


def test_shares_that_are_none_are_refused():
    for shares in ((0.8, 0.1), (1.0,), (1.2, -0.2), (0.5, 0.5, 0.0)):
        with pytest.raises(ValueError, match="must sum to 1.*which sum to"):
            split(LabeledDataset(TEXTS, LABELS), shares)
    with pytest.raises(ValueError, match="seed=-1"):
        split(LabeledDataset(TEXTS, LABELS), seed=-1)


def test_the_published_files_are_read_whole(data):
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
