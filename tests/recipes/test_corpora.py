"""Corpora: read from a folder, fetched once with a checksum, split fairly."""

import functools
import gzip
import hashlib
import http.server
import json
import threading

import pytest

from keras_tfm.recipes import augmentation, corpora, downloads, phrases
from keras_tfm.text import Pairs

pytestmark = pytest.mark.backend("tensorflow")  # data only: once is enough
COUNT = 60


@pytest.fixture
def at_hand(data, monkeypatch):
    """Real text, in the folder that KERAS_TFM_DATA names."""
    monkeypatch.setenv("KERAS_TFM_DATA", str(data))
    return data


@pytest.fixture
def publisher(tmp_path, monkeypatch):
    """A server that publishes `multi30k`, on this machine, with an empty cache.

    `publisher.requests` lists what was asked of it.
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
    """Writes files named as the publisher names them, a few lines each."""
    for part in corpora.MULTI30K_SPLITS:
        for language in corpora.MULTI30K_LANGUAGES:
            text = "".join(f"{part} {language} {n}\n" for n in range(3)).encode()
            for form, pattern in corpora.MULTI30K_FILES.items():
                path = folder / pattern.format(split=part, language=language)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(gzip.compress(text) if form == "raw" else text)


def kept_in(cache):
    return sorted(path.name for path in cache.rglob("*") if path.is_file())


# Named corpora, from the network.


@pytest.mark.parametrize("form", ["raw", "tokenized"])
def test_multi30k_is_fetched_once(publisher, form):
    corpus = corpora.load("multi30k", "en", "fr", multi30k_format=form)
    assert list(corpus.train) == [(f"train en {n}", f"train fr {n}") for n in range(3)]
    assert corpus.validation.source[0] == "val en 0"
    assert corpus.test.target[2] == "test_2016_flickr fr 2"
    assert len(publisher.requests) == 6 == len(kept_in(publisher.cache))
    again = corpora.load("multi30k", "fr", "en", multi30k_format=form)
    assert again.train.target == corpus.train.source
    assert len(publisher.requests) == 6


def test_another_file_than_the_published_one_is_refused(publisher):
    changed = publisher.folder / "tok/train.lc.norm.tok.de"
    changed.write_bytes(b"another text\n")
    with pytest.raises(
        ValueError, match=r"train.lc.norm.tok.de has another checksum than exp"
    ):
        corpora.load("multi30k", "de", "en")
    assert kept_in(publisher.cache) == []


def test_a_file_that_cannot_be_fetched_is_told_from_a_wrong_one(publisher):
    (publisher.folder / "raw/train.de.gz").unlink()
    with pytest.raises(
        ConnectionError, match=r"(?s)404.*set KERAS_TFM_DATA to the folder"
    ):
        corpora.load("multi30k", "de", "en", multi30k_format="raw")
    assert kept_in(publisher.cache) == []


def test_a_cut_connection_leaves_nothing_half(publisher, monkeypatch):
    # The header promises more than comes, as when a connection breaks.
    handler = publisher.RequestHandlerClass.func
    send = handler.send_header

    def promise_more(self, name, value):
        send(self, name, "5000" if name == "Content-Length" else value)

    monkeypatch.setattr(handler, "send_header", promise_more)
    with pytest.raises(ConnectionError, match="could not be downloaded"):
        corpora.load("multi30k", "de", "en", multi30k_format="raw")
    assert kept_in(publisher.cache) == []


def test_a_damaged_cache_is_fetched_again(publisher):
    corpora.load("multi30k", "en", "de")
    (damaged,) = publisher.cache.rglob("train.lc.norm.tok.de")
    damaged.write_bytes(b"half a li")
    corpus = corpora.load("multi30k", "en", "de")
    assert corpus.train.target[0] == "train de 0"
    assert len(publisher.requests) == 7


def test_a_folder_at_hand_spares_the_network(publisher, tmp_path, monkeypatch):
    write_multi30k(tmp_path / "at hand" / "multi30k")
    monkeypatch.setenv("KERAS_TFM_DATA", str(tmp_path / "at hand"))
    assert len(corpora.load("multi30k", "en", "de").train) == 3
    assert publisher.requests == []
    (tmp_path / "at hand/multi30k/tok/val.lc.norm.tok.de").unlink()
    assert len(corpora.load("multi30k", "en", "de").train) == 3
    assert publisher.requests == ["/tok/val.lc.norm.tok.de"]


def test_the_checksums_name_every_file_of_multi30k():
    expected = {
        pattern.format(split=part, language=language)
        for pattern in corpora.MULTI30K_FILES.values()
        for part in corpora.MULTI30K_SPLITS
        for language in corpora.MULTI30K_LANGUAGES
    }
    sums = downloads.checksums("multi30k")
    assert set(sums) == expected
    assert all(len(sum_) == 64 and int(sum_, 16) for sum_ in sums.values())


# Named corpora, from files at hand.


def test_the_checksums_are_those_of_the_real_files(at_hand):
    for path, expected in downloads.checksums("multi30k").items():
        actual = downloads.find("multi30k", path)
        packed = actual.read_bytes()
        content = gzip.decompress(packed) if actual.name != path[4:] else packed
        assert checksum(content) == expected, path


@pytest.mark.parametrize(("target", "tokens"), [("de", 12_103), ("fr", 13_988)])
def test_multi30k_has_the_published_reference_length(at_hand, target, tokens):
    corpus = corpora.load("multi30k", "en", target)
    assert [len(p) for p in (corpus.train, corpus.validation, corpus.test)] == [
        29_000,
        1_014,
        1_000,
    ]
    assert sum(len(line.split()) for line in corpus.test.target) == tokens


@pytest.mark.parametrize(("source", "target"), [("en", "it"), ("it", "en")])
def test_tatoeba_holds_out_both_sides(at_hand, source, target):
    corpus = corpora.load("tatoeba", source, target)
    english = corpus.train.source if source == "en" else corpus.train.target
    assert "How is the weather here in winter?" in english
    assert (len(corpus.validation), len(corpus.test)) == (1_000, 750)
    for part in (corpus.validation, corpus.test):
        assert not set(part.source) & set(corpus.train.source)
        assert not set(part.target) & set(corpus.train.target)
    dropped = 14_638 - 1_000 - len(corpus.train)
    assert f"{dropped:,} more that share a side" in corpus.notes[0]


def test_without_a_folder_tatoeba_says_where_to_get_it(monkeypatch, tmp_path):
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


def test_phrases_go_both_ways(monkeypatch):
    small = functools.partial(phrases.phrases, size=2_000, validation=50, test=50)
    monkeypatch.setattr(phrases, "phrases", small)
    there, back = (
        corpora.load("phrases", *way) for way in (("en", "it"), ("it", "en"))
    )
    assert len(there.train) == 1_900 and there.notes == []
    assert back.train.source == there.train.target
    assert back.test.target == there.test.source


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
def test_what_is_not_offered_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        corpora.load(*arguments)


# Folders and files of the user's own.


def rows(count=COUNT):
    return [(f"one {n}", f"eins {n}") for n in range(count)]


def write_sides(folder, part, pairs):
    for side, language in enumerate(("en", "de")):
        text = "".join(pair[side] + "\n" for pair in pairs).encode()
        packed = language == "de"  # one plain, one packed
        path = folder / f"{part}.{language}{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(text) if packed else text)


def test_a_folder_has_its_parts(tmp_path):
    write_sides(tmp_path, "train", rows())
    write_sides(tmp_path, "valid", [("two", "zwei")])
    write_sides(tmp_path, "test", [("three", "drei"), ("one 7", "noch eins")])
    corpus = corpora.load(str(tmp_path), "de", "en")
    assert list(corpus.train) == [(german, english) for english, german in rows()]
    assert list(corpus.validation) == [("zwei", "two")]
    assert corpus.notes == []
    other_way = corpora.load(tmp_path, "en", "de")
    assert other_way.notes == ["1 of 2 test sources are in the training set too."]


def test_missing_parts_are_drawn_from_training(tmp_path):
    write_sides(tmp_path, "train", rows())
    corpus = corpora.load(str(tmp_path), held_out=10)
    sizes = [len(p) for p in (corpus.train, corpus.validation, corpus.test)]
    assert sizes == [COUNT - 20, 10, 10]
    every = [*corpus.train, *corpus.validation, *corpus.test]
    assert sorted(every) == sorted(rows())
    assert len(corpus.notes) == 2 and "drawn by seed 0" in corpus.notes[0]
    same = corpora.load(str(tmp_path), held_out=10)
    other = corpora.load(str(tmp_path), held_out=10, seed=1)
    assert list(same.test) == list(corpus.test) != list(other.test)


def test_a_folder_that_lacks_a_side_is_refused(tmp_path):
    write_sides(tmp_path, "train", rows())
    (tmp_path / "val.en").write_text("one\n")
    with pytest.raises(FileNotFoundError, match=r"must hold val.de, plain or .gz"):
        corpora.load(str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"must hold train.fr, plain or .gz"):
        corpora.load(str(tmp_path), "en", "fr")
    with pytest.raises(FileNotFoundError, match=r"must hold train.fr, .*got train"):
        corpora.load(str(tmp_path), "fr", "it")


def test_sides_of_different_names_are_no_part(tmp_path):
    write_sides(tmp_path, "train", rows())
    (tmp_path / "val.en").write_text("one\n")
    (tmp_path / "dev.de").write_text("zwei\n")
    with pytest.raises(ValueError, match="under one name; got val, dev. Keep one"):
        corpora.load(str(tmp_path))
    (tmp_path / "val.en").unlink()
    with pytest.raises(FileNotFoundError, match=r"must hold dev.en, plain or .gz"):
        corpora.load(str(tmp_path))


@pytest.mark.parametrize("packed", [True, False])
def test_a_file_at_hand_may_be_plain_or_packed(packed, tmp_path, monkeypatch):
    (tmp_path / "tatoeba").mkdir()
    monkeypatch.setenv("KERAS_TFM_DATA", str(tmp_path))
    path = tmp_path / "tatoeba" / ("a.tsv.gz" if packed else "a.tsv")
    path.write_bytes(b"")
    for name in ("a.tsv", "a.tsv.gz"):
        assert corpora.downloads.find("tatoeba", name) == path


def test_tsv_jsonl_and_two_files_give_the_same(tmp_path):
    write_sides(tmp_path, "all", rows())
    tsv, jsonl = tmp_path / "pairs.tsv.gz", tmp_path / "pairs.jsonl"
    table = "".join(f"{number}\t{en}\t{de}\n" for number, (en, de) in enumerate(rows()))
    tsv.write_bytes(gzip.compress(table.encode()))
    jsonl.write_text("".join(json.dumps({"en": e, "de": d}) + "\n" for e, d in rows()))
    options = {"held_out": 5, "seed": 2}
    two = [str(tmp_path / "all.en"), str(tmp_path / "all.de.gz")]
    actual = [
        corpora.load(str(tsv), fields=(1, 2), **options),
        corpora.load(str(jsonl), **options),
        corpora.load(two, **options),
        corpora.load(",".join(two), **options),
    ]
    assert len(actual[0].train) == COUNT - 10
    assert all(list(corpus.train) == list(actual[0].train) for corpus in actual)
    assert all(list(corpus.test) == list(actual[0].test) for corpus in actual)


def test_a_file_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("one,eins\n")
    with pytest.raises(ValueError, match=r"must be .tsv or .jsonl, plain or .gz; got"):
        corpora.load(path)


# The cut between training and held-out pairs.


def test_repeats_and_shared_sides_stay_on_one_side_of_the_cut():
    pairs = [(f"s{n % 40}", f"t{n % 50}") for n in range(200)] * 2
    source, target = map(list, zip(*pairs, strict=True))
    drawn, rest, dropped = corpora.hold_out(Pairs(source, target), 4, seed=0)
    assert len(drawn) == 4 == len(set(drawn))
    assert not set(drawn.source) & set(rest.source)
    assert not set(drawn.target) & set(rest.target)
    assert len(rest) + dropped == len(pairs) - 2 * 4 and dropped > 8


def test_a_pair_that_stands_ten_times_is_drawn_once():
    pairs = Pairs(*map(list, zip(*rows() * 10, strict=True)))
    drawn, rest, dropped = corpora.hold_out(pairs, COUNT // 2, seed=0)
    assert len(set(drawn)) == COUNT // 2
    assert len(rest) == 10 * COUNT // 2 and dropped == 0


@pytest.mark.parametrize("count", [0, 31])
def test_more_than_half_is_not_held_out(count):
    pairs = Pairs(*map(list, zip(*rows(), strict=True)))
    with pytest.raises(ValueError, match=f"held_out={count} of 60 distinct pairs"):
        corpora.hold_out(pairs, count, seed=0)


def test_nothing_left_to_train_on_is_refused():
    pairs = Pairs(["same"] * 9, [f"other {n}" for n in range(9)])
    with pytest.raises(ValueError, match="leaves no pair to train on"):
        corpora.hold_out(pairs, 1, seed=0)


def test_additional_pairs_are_trained_on_but_for_what_is_held_out(tmp_path):
    rows = [(f"one {i}", f"eins {i}") for i in range(40)]
    write_tsv(tmp_path / "own.tsv", rows)
    own = str(tmp_path / "own.tsv")
    plain = corpora.load(own, held_out=5)
    source, target = plain.test.source[0], plain.validation.target[0]
    more = [("two", "zwei"), (source, "drei"), ("four", target), ("two", "zwo")]
    write_tsv(tmp_path / "more.tsv", more)
    corpus = corpora.load(own, held_out=5, additional=str(tmp_path / "more.tsv"))
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
    corpus = corpora.load(own, held_out=5, additional=sides)
    assert list(corpus.train) == [*plain.train, ("two", "zwei")]


def test_additional_pairs_that_are_not_there_are_refused(tmp_path):
    with pytest.raises(ValueError, match="missing: .*none.tsv"):
        corpora.load("phrases", additional=str(tmp_path / "none.tsv"))


def test_what_one_language_holds_out_is_not_trained_on_with_another():
    def corpus(source, train, validation, test):
        parts = [
            Pairs([f"{source} {n}" for n in part], list(part))
            for part in (train, validation, test)
        ]
        return corpora.Corpus(source, source, "en", *parts, "", "", ["drawn"])

    first = corpus("de", "abcdef", "gh", "ij")
    second = corpus("fr", "aghijk", "lb", "mc")
    one, other = corpora.separate([first, second])
    assert one.train.target == list("adef") and other.train.target == list("ak")
    assert one.train.source == [f"de {n}" for n in "adef"]
    assert one.notes[0] == "de-en: drawn"
    assert one.notes[1].startswith("de-en: 4 training pairs; 2 ")
    for before, after in ((first, one), (second, other)):
        assert list(after.test) == list(before.test)
        assert list(after.validation) == list(before.validation)
    # The sources too: two languages may share a word.
    third = corpus("de", "xyz", "i", "p")
    assert corpora.separate([first, third])[1].train.target == list("xyz")
    third.train.source[1] = "de j"
    assert corpora.separate([first, third])[1].train.target == list("xz")
    with pytest.raises(ValueError, match="No training pair of it-en is left"):
        corpora.separate([first, corpus("it", "ghij", "k", "l")])


def test_joined_pairs_are_whole_pairs_in_a_row():
    pairs = Pairs([f"s{i}" for i in range(9)], [f"t{i}" for i in range(9)])
    joined = augmentation.concatenate(pairs, 50, seed=1)
    assert len(joined) == 50
    for source, target in joined:
        numbers = [word[1:] for word in source.split(" ")]
        assert [f"t{number}" for number in numbers] == target.split(" ")
        assert 2 <= len({*numbers}) == len(numbers) <= 4
    again = augmentation.concatenate(pairs, 50, seed=1, separators=(" ", ""))
    assert again.source == joined.source
    assert again.target == [line.replace(" ", "") for line in joined.target]
    assert list(augmentation.concatenate(pairs, 50, seed=2)) != list(joined)
    with pytest.raises(ValueError, match="at least 4 pairs; got 3"):
        augmentation.concatenate(Pairs(["a", "b", "c"], ["d", "e", "f"]), 1, seed=0)


def test_pairs_as_people_type_them_have_no_mark_at_their_end():
    rows = [(f"Is it {i}?", f"¿Son {i}?") for i in range(8)]
    rows += [("No mark", "Sin marca."), ("Where", "Dónde"), ("?", "¿?")]
    pairs = Pairs(*map(list, zip(*rows, strict=True)))
    made = augmentation.unpunctuate(pairs, 100, seed=1)
    kinds = {"Is it {}": [], "is it {}": [], "IS IT {}": []}
    for source, target in made:
        number = source.split()[-1]
        form = source.replace(number, "{}")
        kinds[form].append(number)
        expected = f"Son {number}"
        assert target == (expected.upper() if form == "IS IT {}" else expected)
    assert sorted(sum(kinds.values(), [])) == list("01234567")  # each once
    assert all(kinds.values())
    assert len(augmentation.unpunctuate(pairs, 3, seed=1)) <= 3
    assert augmentation.unpunctuate(pairs, 100, seed=1) == made
    assert augmentation.unpunctuate(Pairs(["a"], ["b."]), 5, seed=1) == []
    french = Pairs(["What… now?!"], ["Et alors\u202f?\u00a0!"])
    assert augmentation.unpunctuate(french, 1, 0) == [("What… now", "Et alors")]


def write_tsv(path, pairs):
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
