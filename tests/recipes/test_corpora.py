"""Corpora are read, downloaded with a checksum, and split without leaks."""

import functools
import gzip
import hashlib
import http.server
import json
import threading

import pytest

from keras_tfm.recipes import augmentation, corpora, downloads, phrases
from keras_tfm.text import Pairs

pytestmark = pytest.mark.backend("tensorflow")  # data only: one backend is enough
COUNT = 60


@pytest.fixture
def local_data(data, monkeypatch):
    """Real text in the folder that KERAS_TFM_DATA names."""
    monkeypatch.setenv("KERAS_TFM_DATA", str(data))
    return data


@pytest.fixture
def publisher(tmp_path, monkeypatch):
    """A local server that publishes `multi30k`, and an empty cache.

    `publisher.requests` lists the requested paths.
    """
    import pooch

    folder = tmp_path / "published"
    write_multi30k(folder)

    class Handler(http.server.SimpleHTTPRequestHandler):
        def send_head(self):
            publisher.requests.append(self.path)
            return super().send_head()

        def log_message(self, *args):
            pass

    handler = functools.partial(Handler, directory=str(folder))
    publisher = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    publisher.requests, publisher.folder = [], folder
    publisher.cache = tmp_path / "cache"
    thread = threading.Thread(target=publisher.serve_forever, args=[0.02], daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{publisher.server_port}/"
    monkeypatch.delenv("KERAS_TFM_DATA", raising=False)
    monkeypatch.setitem(downloads.URLS, "multi30k", address)
    sums = {
        path.relative_to(folder).as_posix(): checksum(path.read_bytes())
        for path in folder.rglob("*.*")
    }
    monkeypatch.setattr(downloads, "checksums", lambda corpus: sums)
    monkeypatch.setattr(pooch, "os_cache", lambda name: publisher.cache / name)
    yield publisher
    publisher.shutdown()
    publisher.server_close()
    thread.join(timeout=10)


def checksum(content):
    return hashlib.sha256(content).hexdigest()


def write_multi30k(folder):
    """Writes files with the published names and a few lines each."""
    for split in corpora.MULTI30K_SPLITS:
        for language in corpora.MULTI30K_LANGUAGES:
            text = "".join(f"{split} {language} {n}\n" for n in range(3)).encode()
            for form, pattern in corpora.MULTI30K_FILES.items():
                path = folder / pattern.format(split=split, language=language)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(gzip.compress(text) if form == "raw" else text)


def cached_files(cache):
    return sorted(path.name for path in cache.rglob("*") if path.is_file())


# Named corpora from the network.


@pytest.mark.parametrize("form", ["raw", "tokenized"])
def test_multi30k_is_downloaded_once(publisher, form):
    corpus = corpora.load("multi30k", "en", "fr", multi30k_format=form)
    assert list(corpus.train) == [(f"train en {n}", f"train fr {n}") for n in range(3)]
    assert corpus.validation.source[0] == "val en 0"
    assert corpus.test.target[2] == "test_2016_flickr fr 2"
    assert len(publisher.requests) == 6 == len(cached_files(publisher.cache))
    reversed_corpus = corpora.load("multi30k", "fr", "en", multi30k_format=form)
    assert reversed_corpus.train.target == corpus.train.source
    assert len(publisher.requests) == 6


def test_a_file_with_another_checksum_is_rejected(publisher):
    changed = publisher.folder / "tok/train.lc.norm.tok.de"
    changed.write_bytes(b"another text\n")
    with pytest.raises(
        ValueError, match=r"train.lc.norm.tok.de has another checksum than exp"
    ):
        corpora.load("multi30k", "de", "en")
    assert cached_files(publisher.cache) == []


def test_a_missing_download_raises_a_connection_error(publisher):
    (publisher.folder / "raw/train.de.gz").unlink()
    with pytest.raises(
        ConnectionError, match=r"(?s)404.*set KERAS_TFM_DATA to the folder"
    ):
        corpora.load("multi30k", "de", "en", multi30k_format="raw")
    assert cached_files(publisher.cache) == []


def test_an_interrupted_download_leaves_no_partial_file(publisher, monkeypatch):
    # The header promises more bytes than arrive, as in a broken connection.
    handler = publisher.RequestHandlerClass.func
    send = handler.send_header

    def promise_more(self, name, value):
        send(self, name, "5000" if name == "Content-Length" else value)

    monkeypatch.setattr(handler, "send_header", promise_more)
    with pytest.raises(ConnectionError, match="could not be downloaded"):
        corpora.load("multi30k", "de", "en", multi30k_format="raw")
    assert cached_files(publisher.cache) == []


def test_a_damaged_file_is_downloaded_again(publisher):
    corpora.load("multi30k", "en", "de")
    (damaged,) = publisher.cache.rglob("train.lc.norm.tok.de")
    damaged.write_bytes(b"half a li")
    corpus = corpora.load("multi30k", "en", "de")
    assert corpus.train.target[0] == "train de 0"
    assert len(publisher.requests) == 7


def test_local_files_are_not_downloaded(publisher, tmp_path, monkeypatch):
    write_multi30k(tmp_path / "at hand" / "multi30k")
    monkeypatch.setenv("KERAS_TFM_DATA", str(tmp_path / "at hand"))
    assert len(corpora.load("multi30k", "en", "de").train) == 3
    assert publisher.requests == []
    (tmp_path / "at hand/multi30k/tok/val.lc.norm.tok.de").unlink()
    assert len(corpora.load("multi30k", "en", "de").train) == 3
    assert publisher.requests == ["/tok/val.lc.norm.tok.de"]


def test_later_test_sets_of_multi30k_are_read_where_they_are(
    publisher, tmp_path, monkeypatch
):
    folder = tmp_path / "at hand" / "multi30k"
    write_multi30k(folder)
    for language in ("en", "de"):
        path = folder / f"tok/test_2017_mscoco.lc.norm.tok.{language}"
        path.write_text(f"coco {language}\n")
    (folder / "tok/test_2018_flickr.lc.norm.tok.en").write_text("one side\n")
    monkeypatch.setenv("KERAS_TFM_DATA", str(tmp_path / "at hand"))
    corpus = corpora.load("multi30k", "en", "de")
    assert list(corpus.more_tests["test_2017_mscoco"]) == [("coco en", "coco de")]
    assert list(corpus.tests) == ["test", "test_2017_mscoco"]
    assert corpora.load("multi30k", "en", "fr").more_tests == {}
    assert publisher.requests == []


def test_the_checksums_name_every_file_of_multi30k():
    expected = {
        pattern.format(split=split, language=language)
        for pattern in corpora.MULTI30K_FILES.values()
        for split in corpora.MULTI30K_SPLITS
        for language in corpora.MULTI30K_LANGUAGES
    }
    sums = downloads.checksums("multi30k")
    assert set(sums) == expected
    assert all(len(sum_) == 64 and int(sum_, 16) for sum_ in sums.values())


# Named corpora from local files.


def test_the_checksums_are_those_of_the_real_files(local_data):
    for path, expected in downloads.checksums("multi30k").items():
        actual = downloads.find("multi30k", path)
        data = actual.read_bytes()
        content = gzip.decompress(data) if actual.name != path[4:] else data
        assert checksum(content) == expected, path


@pytest.mark.parametrize(("target", "tokens"), [("de", 12_103), ("fr", 13_988)])
def test_multi30k_has_the_published_reference_length(local_data, target, tokens):
    corpus = corpora.load("multi30k", "en", target)
    assert [len(p) for p in (corpus.train, corpus.validation, corpus.test)] == [
        29_000,
        1_014,
        1_000,
    ]
    assert sum(len(line.split()) for line in corpus.test.target) == tokens


@pytest.mark.parametrize(("source", "target"), [("en", "it"), ("it", "en")])
def test_held_out_sides_of_tatoeba_are_not_trained_on(local_data, source, target):
    corpus = corpora.load("tatoeba", source, target)
    english = corpus.train.source if source == "en" else corpus.train.target
    assert "How is the weather here in winter?" in english
    assert (len(corpus.validation), len(corpus.test)) == (1_000, 750)
    for split in (corpus.validation, corpus.test):
        assert not set(split.source) & set(corpus.train.source)
        assert not set(split.target) & set(corpus.train.target)
    dropped = 14_638 - 1_000 - len(corpus.train)
    assert f"{dropped:,} more that share a side" in corpus.notes[0]


def test_the_error_explains_where_to_get_tatoeba(monkeypatch, tmp_path):
    monkeypatch.delenv("KERAS_TFM_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match=r"(?s)is unset.*manythings.org"):
        corpora.load("tatoeba", "en", "it")
    monkeypatch.setenv("KERAS_TFM_DATA", str(tmp_path))
    with pytest.raises(
        FileNotFoundError, match=r"tatoeba/eng-ita.tsv.gz was not found in "
    ):
        corpora.load("tatoeba", "it", "en")
    monkeypatch.setenv("KERAS_TFM_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(NotADirectoryError, match="must be a folder of corpora"):
        corpora.load("tatoeba", "en", "it")


def test_phrases_can_be_reversed(monkeypatch):
    small = functools.partial(phrases.phrases, size=2_000, validation=50, test=50)
    monkeypatch.setattr(phrases, "phrases", small)
    forward, backward = (
        corpora.load("phrases", *languages)
        for languages in (("en", "it"), ("it", "en"))
    )
    assert len(forward.train) == 1_900 and forward.notes == []
    assert backward.train.source == forward.train.target
    assert backward.test.target == forward.test.source


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("phrases", "de", "fr"), "Make one of them 'en'"),
        (("phrases", "de", "de"), "different languages; got 'de' twice"),
        (("multi30k", "en", "cs"), "languages de, en, fr .* target='cs'"),
        (
            ("multi30k", "en", "de", "bpe"),
            "formats raw, tokenized; got .*multi30k_format='bpe'",
        ),
        (("tatoeba", "en", "ja"), "English with one of de, es, fr, it"),
        (("tatoeba", "de", "fr"), "English with one of de, es, fr, it"),
        (("multi30", "en", "de"), "missing: multi30.. Did you mean 'multi30k'?"),
        (("a.en,b.de", "en", "de"), "missing: a.en, b.de"),
    ],
)
def test_unavailable_corpora_and_languages_are_rejected(arguments, message):
    with pytest.raises(ValueError, match=message):
        corpora.load(*arguments)


# Folders and files of the user.


def rows(count=COUNT):
    return [(f"one {n}", f"eins {n}") for n in range(count)]


def write_sides(folder, split, pairs):
    for side, language in enumerate(("en", "de")):
        text = "".join(pair[side] + "\n" for pair in pairs).encode()
        compressed = language == "de"  # one plain, one compressed
        path = folder / f"{split}.{language}{'.gz' if compressed else ''}"
        path.write_bytes(gzip.compress(text) if compressed else text)


def test_a_folder_has_three_splits(tmp_path):
    write_sides(tmp_path, "train", rows())
    write_sides(tmp_path, "valid", [("two", "zwei")])
    write_sides(tmp_path, "test", [("three", "drei"), ("one 7", "noch eins")])
    corpus = corpora.load(str(tmp_path), "de", "en")
    assert list(corpus.train) == [(german, english) for english, german in rows()]
    assert list(corpus.validation) == [("zwei", "two")]
    assert corpus.notes == []
    reversed_corpus = corpora.load(tmp_path, "en", "de")
    assert reversed_corpus.notes == ["1 of 2 test sources are in the training set too."]


def test_missing_splits_are_drawn_from_training(tmp_path):
    write_sides(tmp_path, "train", rows())
    corpus = corpora.load(str(tmp_path), held_out=10)
    sizes = [len(p) for p in (corpus.train, corpus.validation, corpus.test)]
    assert sizes == [COUNT - 20, 10, 10]
    all_pairs = [*corpus.train, *corpus.validation, *corpus.test]
    assert sorted(all_pairs) == sorted(rows())
    assert len(corpus.notes) == 2 and "drawn by seed 0" in corpus.notes[0]
    same_seed = corpora.load(str(tmp_path), held_out=10)
    other_seed = corpora.load(str(tmp_path), held_out=10, seed=1)
    assert list(same_seed.test) == list(corpus.test) != list(other_seed.test)


def test_a_folder_may_have_further_test_sets(tmp_path):
    for split in ("train", "val", "test", "test_b", "test_a", "testing"):
        for language in ("en", "de"):
            (tmp_path / f"{split}.{language}").write_text(f"{split} {language}\n")
    (tmp_path / "test_fr.fr").write_text("une\n")
    (tmp_path / "test_c.tsv").write_text("en\tde\nc en\tc de\n")
    (tmp_path / "more.tsv").write_text("test_b en\ta pair\nof its\town\n")
    corpus = corpora.load(tmp_path, additional=str(tmp_path / "more.tsv"))
    assert {name: pairs.target for name, pairs in corpus.more_tests.items()} == {
        "test_a": ["test_a de"],
        "test_b": ["test_b de"],
        "test_c": ["c de"],
    }
    assert corpus.train.source == ["train en", "of its"]
    assert ("test_a en", "test_a de") in corpus.held_out


def test_a_folder_that_lacks_a_side_is_rejected(tmp_path):
    write_sides(tmp_path, "train", rows())
    (tmp_path / "val.en").write_text("one\n")
    with pytest.raises(FileNotFoundError, match=r"must hold val.de, plain or .gz"):
        corpora.load(str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"must hold train.fr, plain or .gz"):
        corpora.load(str(tmp_path), "en", "fr")
    with pytest.raises(FileNotFoundError, match=r"must hold train.fr, .*got train"):
        corpora.load(str(tmp_path), "fr", "it")


def test_sides_with_different_names_are_rejected(tmp_path):
    write_sides(tmp_path, "train", rows())
    (tmp_path / "val.en").write_text("one\n")
    (tmp_path / "dev.de").write_text("zwei\n")
    with pytest.raises(ValueError, match="under one name; got val, dev. Keep one"):
        corpora.load(str(tmp_path))
    (tmp_path / "val.en").unlink()
    with pytest.raises(FileNotFoundError, match=r"must hold dev.en, plain or .gz"):
        corpora.load(str(tmp_path))


@pytest.mark.parametrize("compressed", [True, False])
def test_a_local_file_may_be_plain_or_compressed(compressed, tmp_path, monkeypatch):
    (tmp_path / "tatoeba").mkdir()
    monkeypatch.setenv("KERAS_TFM_DATA", str(tmp_path))
    path = tmp_path / "tatoeba" / ("a.tsv.gz" if compressed else "a.tsv")
    path.write_bytes(b"")
    for name in ("a.tsv", "a.tsv.gz"):
        assert corpora.downloads.find("tatoeba", name) == path


def test_tsv_jsonl_and_two_files_give_the_same_corpus(tmp_path):
    write_sides(tmp_path, "all", rows())
    tsv, jsonl = tmp_path / "pairs.tsv.gz", tmp_path / "pairs.jsonl"
    lines = "".join(f"{number}\t{en}\t{de}\n" for number, (en, de) in enumerate(rows()))
    tsv.write_bytes(gzip.compress(lines.encode()))
    jsonl.write_text("".join(json.dumps({"en": e, "de": d}) + "\n" for e, d in rows()))
    options = {"held_out": 5, "seed": 2}
    two_files = [str(tmp_path / "all.en"), str(tmp_path / "all.de.gz")]
    actual = [
        corpora.load(str(tsv), source_column=1, target_column=2, **options),
        corpora.load(str(jsonl), **options),
        corpora.load(two_files, **options),
        corpora.load(",".join(two_files), **options),
    ]
    assert len(actual[0].train) == COUNT - 10
    assert all(list(corpus.train) == list(actual[0].train) for corpus in actual)
    assert all(list(corpus.test) == list(actual[0].test) for corpus in actual)


def test_faulty_rows_of_a_file_are_skipped_up_to_a_rate(tmp_path, caplog):
    path = tmp_path / "pairs.csv"
    lines = ["German;English", *(f"{de};{en}" for en, de in rows())]
    path.write_text("\n".join([*lines[:9], "no separator", *lines[9:]]))
    corpus = corpora.load(path, held_out=5)
    assert len(corpus.train) == COUNT - 10
    assert {*corpus.train} < {*rows()}
    assert "line 1 is a header; the sides are 'English' and 'German'" in caplog.text
    assert f"1 of {COUNT + 1} rows" in caplog.text and "line 10: " in caplog.text
    with pytest.raises(ValueError, match="line 10: .*increase `max_bad_rate`"):
        corpora.load(path, held_out=5, max_bad_rate=0.01)


def test_a_folder_may_have_one_file_for_both_languages(tmp_path):
    lines = [json.dumps({"source": en, "target": de}) for en, de in rows()]
    (tmp_path / "train.jsonl").write_text("\n".join(lines[:40]))
    (tmp_path / "valid.jsonl").write_text("\n".join(lines[40:50]))
    write_sides(tmp_path, "test", rows()[50:])
    corpus = corpora.load(str(tmp_path))
    assert [*corpus.train, *corpus.validation, *corpus.test] == rows()


# The split of training and held-out pairs.


def test_held_out_sides_do_not_occur_in_training():
    pairs = [(f"s{n % 40}", f"t{n % 50}") for n in range(200)] * 2
    source, target = map(list, zip(*pairs, strict=True))
    held_out, rest, dropped = corpora.hold_out(Pairs(source, target), 4, seed=0)
    assert len(held_out) == 4 == len(set(held_out))
    assert not set(held_out.source) & set(rest.source)
    assert not set(held_out.target) & set(rest.target)
    assert len(rest) + dropped == len(pairs) - 2 * 4 and dropped > 8


def test_a_repeated_pair_is_drawn_once():
    pairs = Pairs(*map(list, zip(*rows() * 10, strict=True)))
    held_out, rest, dropped = corpora.hold_out(pairs, COUNT // 2, seed=0)
    assert len(set(held_out)) == COUNT // 2
    assert len(rest) == 10 * COUNT // 2 and dropped == 0


@pytest.mark.parametrize("count", [0, 31])
def test_holding_out_more_than_half_is_rejected(count):
    pairs = Pairs(*map(list, zip(*rows(), strict=True)))
    with pytest.raises(ValueError, match=f"held_out={count} of 60 distinct pairs"):
        corpora.hold_out(pairs, count, seed=0)


def test_an_empty_training_set_is_rejected():
    pairs = Pairs(["same"] * 9, [f"other {n}" for n in range(9)])
    with pytest.raises(ValueError, match="leaves no pair to train on"):
        corpora.hold_out(pairs, 1, seed=0)


def test_additional_pairs_are_added_except_held_out_ones(tmp_path):
    rows = [(f"one {i}", f"eins {i}") for i in range(40)]
    write_tsv(tmp_path / "own.tsv", rows)
    file = str(tmp_path / "own.tsv")
    plain = corpora.load(file, held_out=5)
    source, target = plain.test.source[0], plain.validation.target[0]
    additional = [("two", "zwei"), (source, "drei"), ("four", target), ("two", "zwo")]
    write_tsv(tmp_path / "more.tsv", additional)
    corpus = corpora.load(file, held_out=5, additional=str(tmp_path / "more.tsv"))
    assert list(corpus.train) == [*plain.train, ("two", "zwei"), ("two", "zwo")]
    assert list(corpus.validation) == list(plain.validation)
    assert list(corpus.test) == list(plain.test)
    assert (
        "2 training pairs come from" in corpus.notes[-1]
        and "; 2 more that share" in corpus.notes[-1]
    )
    (tmp_path / "more.en").write_text("two\n")
    (tmp_path / "more.de").write_text("zwei\n")
    sides = f"{tmp_path / 'more.en'},{tmp_path / 'more.de'}"
    corpus = corpora.load(file, held_out=5, additional=sides)
    assert list(corpus.train) == [*plain.train, ("two", "zwei")]


def test_columns_are_for_a_file(tmp_path):
    write_tsv(tmp_path / "own.tsv", rows())
    file = str(tmp_path / "own.tsv")
    for data in ("phrases", str(tmp_path), f"{file},{file}"):
        with pytest.raises(ValueError, match="are for a file with both .*'en'"):
            corpora.load(data, source_column="en", target_column="de")


def test_missing_additional_pairs_are_rejected(tmp_path):
    with pytest.raises(ValueError, match="missing: .*none.tsv"):
        corpora.load("phrases", additional=str(tmp_path / "none.tsv"))


def test_held_out_pairs_are_not_trained_on_in_another_language():
    def corpus(source, train, validation, test):
        splits = [
            Pairs([f"{source} {n}" for n in split], list(split))
            for split in (train, validation, test)
        ]
        return corpora.Corpus(source, source, "en", *splits, "", "", ["drawn"])

    first = corpus("de", "abcdef", "gh", "ij")
    second = corpus("fr", "aghijk", "lb", "mc")
    first_result, second_result = corpora.separate([first, second])
    assert first_result.train.target == list("adef")
    assert second_result.train.target == list("ak")
    assert first_result.train.source == [f"de {n}" for n in "adef"]
    assert first_result.notes[0] == "de-en: drawn"
    assert first_result.notes[1].startswith("de-en: 4 training pairs; 2 ")
    for original, separated in ((first, first_result), (second, second_result)):
        assert list(separated.test) == list(original.test)
        assert list(separated.validation) == list(original.validation)
    # The sources too: two languages may share a word.
    third = corpus("de", "xyz", "i", "p")
    assert corpora.separate([first, third])[1].train.target == list("xyz")
    third.train.source[1] = "de j"
    assert corpora.separate([first, third])[1].train.target == list("xz")
    with pytest.raises(ValueError, match="No training pair of it-en is left"):
        corpora.separate([first, corpus("it", "ghij", "k", "l")])


def test_concatenated_pairs_consist_of_whole_pairs():
    pairs = Pairs([f"s{i}" for i in range(9)], [f"t{i}" for i in range(9)])
    concatenated = augmentation.concatenate(pairs, 50, seed=1)
    assert len(concatenated) == 50
    for source, target in concatenated:
        numbers = [word[1:] for word in source.split(" ")]
        assert [f"t{number}" for number in numbers] == target.split(" ")
        assert 2 <= len({*numbers}) == len(numbers) <= 4
    without_spaces = augmentation.concatenate(pairs, 50, seed=1, separators=(" ", ""))
    assert without_spaces.source == concatenated.source
    assert without_spaces.target == [
        line.replace(" ", "") for line in concatenated.target
    ]
    assert list(augmentation.concatenate(pairs, 50, seed=2)) != list(concatenated)
    with pytest.raises(ValueError, match="at least 4 pairs; got 3"):
        augmentation.concatenate(Pairs(["a", "b", "c"], ["d", "e", "f"]), 1, seed=0)


def test_punctuation_augmentation_removes_final_punctuation():
    rows = [(f"Is it {i}?", f"¿Son {i}?") for i in range(8)]
    rows += [("No mark", "Sin marca."), ("Where", "Dónde"), ("?", "¿?")]
    pairs = Pairs(*map(list, zip(*rows, strict=True)))
    augmented = augmentation.unpunctuate(pairs, 100, seed=1)
    kinds = {"Is it {}": [], "is it {}": [], "IS IT {}": []}
    for source, target in augmented:
        number = source.split()[-1]
        form = source.replace(number, "{}")
        kinds[form].append(number)
        expected = f"Son {number}"
        assert target == (expected.upper() if form == "IS IT {}" else expected)
    assert sorted(sum(kinds.values(), [])) == list("01234567")  # each once
    assert all(kinds.values())
    assert len(augmentation.unpunctuate(pairs, 3, seed=1)) <= 3
    assert augmentation.unpunctuate(pairs, 100, seed=1) == augmented
    assert augmentation.unpunctuate(Pairs(["a"], ["b."]), 5, seed=1) == []
    french = Pairs(["What… now?!"], ["Et alors\u202f?\u00a0!"])
    assert augmentation.unpunctuate(french, 1, 0) == [("What… now", "Et alors")]


def write_tsv(path, pairs):
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
