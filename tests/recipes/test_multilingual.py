"""One model for several languages, and augmented training pairs."""

import collections
import dataclasses
import gzip

import pytest

from keras_tfm import pipelines
from keras_tfm.recipes import (
    augmentation,
    multilingual,
    translation,
    translation_defaults,
)
from tests.recipes.animals import flags_for, write_folder, write_tsv

pytestmark = pytest.mark.backend("torch")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("animals"))


def multilingual_flags(folder, out, **changes):
    values = {"epochs": 6, "average_last": 1, "evaluate_every": 6}
    return flags_for(folder, out, **values, vocabulary_size=310, **changes)


def first_words(texts):
    return {text.split()[0] for text in texts}


@pytest.mark.slow
def test_one_model_translates_into_several_languages(folder, tmp_path):
    flags = multilingual_flags(
        folder, tmp_path / "run", additional_targets=("nl",), concatenation_rate=0.1
    )
    corpus = multilingual.load_corpus(flags)
    count, concatenated = 320, 32
    assert len(corpus.train) == 2 * (count + concatenated)
    first, second = corpus.train.source[0], corpus.train.source[count]
    assert first.startswith("<2de> I ") and second == first.replace("de", "nl")
    assert all(source.count("<2") == 1 for source in corpus.train.source)
    held_out = corpus.validation.source + corpus.test.source
    assert not any("<" in sentence for sentence in held_out)
    translation.main(flags)
    translator = pipelines.Translator.from_preset(flags.out)
    translations = translator(corpus.test.source)
    lines = (tmp_path / "run" / "translations.tsv").read_text("utf-8").splitlines()
    assert translations == [line.split("\t")[2] for line in lines[1:]]
    assert first_words(translations) == {"Ich"}
    dutch = pipelines.Translator.from_preset(flags.out, target_language="nl")
    assert first_words(dutch(corpus.test.source)) == {"Ik"}
    # A run that is fine-tuned from it needs the same tags.
    vocabulary = translator.vocabulary
    multilingual.check_tags(flags, vocabulary)
    single = dataclasses.replace(flags, additional_targets=())
    with pytest.raises(ValueError, match="languages among de, nl.*got none"):
        multilingual.check_tags(single, vocabulary)
    untagged = dataclasses.replace(flags, additional_targets=("nl", "fr"))
    with pytest.raises(ValueError, match=r"of \['de', 'nl'\] and none of \['fr'\]"):
        multilingual.check_tags(untagged, vocabulary)


def test_one_model_translates_from_several_languages(folder, tmp_path):
    flags = multilingual_flags(
        folder,
        tmp_path / "run",
        source="de",
        target="en",
        additional_sources=("nl",),
    )
    corpus = multilingual.load_corpus(flags)
    assert len(corpus.train) == 640 and "<" not in " ".join(corpus.train.source)
    assert first_words(corpus.train.source) == {"Ich", "Ik"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": "animals.tsv"}, "a named corpus or a folder.*got 'animals.tsv'"),
        ({"additional_sources": ("it",)}, "exclude each other.*Train two models"),
        ({"additional_targets": ("de",)}, "named once; got en, de, de"),
        ({"additional_targets": ("f r",)}, "'f r'"),
        ({"sampling_temperature": 0.5}, "at least 1; got 0.5"),
        (
            {"sampling_temperature": 5.0, "additional_targets": ()},
            "needs --additional-sources or --additional-targets; got 5.0",
        ),
    ],
)
def test_languages_that_the_corpus_lacks_are_rejected(folder, changes, message):
    values = {"data": str(folder), "additional_targets": ("fr",), **changes}
    with pytest.raises(ValueError, match=message):
        translation_defaults.check(translation.Flags(**values))


def test_pairs_of_small_languages_are_repeated(tmp_path, monkeypatch):
    for code, count in (("deu", 500), ("ita", 65)):
        for suffix, numbers in (("", range(count)), (".test", range(900, 903))):
            rows = [f"I have {n} cats.\tx {code} {n} y.\n" for n in numbers]
            path = tmp_path / "tatoeba" / f"eng-{code}{suffix}.tsv.gz"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(gzip.compress("".join(rows).encode()))
    monkeypatch.setenv("KERAS_TFM_DATA", str(tmp_path))
    flags = translation.Flags(
        data="tatoeba",
        target="de",
        additional_targets=("it",),
        held_out=5,
        concatenation_rate=0.1,
    )
    plain = multilingual.load_corpus(flags)
    tempered = dataclasses.replace(flags, sampling_temperature=2.0)
    corpus = multilingual.load_corpus(tempered)
    assert list(corpus.train)[: len(plain.train)] == list(plain.train)

    def counts(corpus):
        italian = [pair for pair in corpus.train if pair[0].startswith("<2it>")]
        return len(corpus.train) - len(italian), collections.Counter(italian)

    german, italian = counts(corpus)
    single_german, single_italian = counts(plain)
    times = (single_german / len(single_italian)) ** 0.5
    assert german == single_german and set(italian) == set(single_italian)
    assert italian.total() == round(times * len(single_italian))
    assert {int(times), int(times) + 1} == set(italian.values())
    assert f"en-it: each pair occurs {times:.1f} times." in corpus.notes


def test_concatenated_pairs_are_added_after_the_others(tmp_path):
    flags = flags_for(write_tsv(tmp_path / "animals.tsv"), tmp_path / "run")
    plain = multilingual.load_corpus(flags)
    changed = dataclasses.replace(flags, concatenation_rate=0.1)
    corpus = multilingual.load_corpus(changed)
    count = round(0.1 * len(plain.train))
    assert list(corpus.train)[:-count] == list(plain.train)
    assert list(corpus.test) == list(plain.test)
    assert list(corpus.validation) == list(plain.validation)
    assert f"{count:,} pairs concatenate two to four pairs." in corpus.notes
    assert augmentation.is_spaceless("zh_Hans")
    assert not augmentation.is_spaceless("de")


def test_unpunctuated_pairs_are_not_in_the_held_out_sets(tmp_path):
    rows = [f"I have {n} cats.\tIch habe {n} Katzen.\n" for n in range(100, 180)]
    rows += [f"I have {n} cats\tIch habe {n} Katzen!\n" for n in range(140, 180)]
    file = tmp_path / "punctuated.tsv"
    file.write_text("".join(rows), encoding="utf-8")
    flags = flags_for(file, tmp_path / "run", unpunctuated_rate=1.0)
    plain = multilingual.load_corpus(dataclasses.replace(flags, unpunctuated_rate=0.0))
    corpus = multilingual.load_corpus(flags)
    added = list(corpus.train)[len(plain.train) :]
    assert list(corpus.train)[: len(plain.train)] == list(plain.train)
    assert f"{len(added):,} pairs have no final punctuation." in corpus.notes
    assert len(added) > 20
    assert not any("." in sentence for pair in added for sentence in pair)
    held_out = {*corpus.test.source, *corpus.validation.source}
    assert held_out.isdisjoint(source for source, _ in added)
    stripped = {s.rstrip(".") for s in plain.train.source if s.endswith(".")}
    assert held_out & stripped  # without the check some would have been added
