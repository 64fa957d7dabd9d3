"""Two translators as one: names, scores, alignments, detected languages."""

import concurrent.futures
import sys
import time

import pytest

from keras_tfm.pipelines import (
    AutoTranslator,
    Hypothesis,
    PivotTranslator,
    Translation,
    Translator,
    load,
    translate_markup,
)
from keras_tfm.pipelines.pivoting import (
    auto_target,
    check_name,
    load_pair,
    pivot_names,
)

pytestmark = pytest.mark.backend("torch")


@pytest.fixture(scope="module")
def pivot():
    return PivotTranslator.from_preset("de-fr")


def test_pairs_of_presets_have_names(tmp_path, monkeypatch):
    assert pivot_names("de-fr") == ("de-en", "en-fr")
    assert pivot_names("it-de") == ("it-en", "en-de")
    for name in ("en-de", "de-xx", "de-de", "de", "auto-fr", tmp_path, None):
        assert pivot_names(name) is None
    (tmp_path / "de-fr").mkdir()
    monkeypatch.chdir(tmp_path)
    assert pivot_names("de-fr") is None  # a folder
    assert (auto_target("auto-fr"), auto_target("en-fr")) == ("fr", None)
    with pytest.raises(ValueError, match="`name` must be a pair .*; got 'de-xx'"):
        PivotTranslator.from_preset("de-xx")


def test_a_pivot_translates_twice(pivot):
    texts = ["Wo ist der Bahnhof?", "", "Guten Morgen!\n\nIch habe einen Hund."]
    expected = pivot.second(pivot.first(texts))
    assert pivot(texts) == expected and pivot(texts[0]) == expected[0]
    results = pivot.translate(texts, return_attention=True)
    assert [result.text for result in results] == expected
    assert [result.source for result in results] == texts
    best = results[0].hypotheses[0]
    assert {i for i, _ in best.alignment} <= set(range(4)) and best.alignment
    assert [str(result) for result in pivot.bulk(iter(texts), 2)] == expected
    with pytest.raises(TypeError, match="iterable of str; got one str"):
        next(pivot.bulk("One text."))
    [result] = pivot.translate(texts[:1], ["Mais où"], num_pivots=2)
    assert result.text.startswith("Mais où")
    assert [*pivot.stream("Guten Morgen!")][-1].startswith("Bonjour")
    with pytest.raises(ValueError, match="`constraints` belong to one language"):
        pivot.translate(texts, constraints=[["a"]] * 3)


@pytest.mark.parametrize("mismatches", [(True, False), (False, True)])
def test_numbers_that_either_translator_changes_are_reported(mismatches):
    class Changing:
        def __init__(self, number_mismatch):
            self.hypothesis = Hypothesis("2", -1.0, [], None, False, None)
            self.hypothesis = self.hypothesis._replace(number_mismatch=number_mismatch)

        def translate(self, texts, *_, **options):
            return [Translation(text, [], [self.hypothesis]) for text in texts]

    pivot = PivotTranslator(*map(Changing, mismatches))
    assert pivot.translate("1").number_mismatch


@pytest.mark.slow
def test_several_pivots_are_compared_by_the_sum_of_both_scores(pivot):
    text = "Wo ist der Bahnhof?"
    result = pivot.translate(text, num_pivots=3, num_hypotheses=2)
    scores = [hypothesis.score for hypothesis in result.hypotheses]
    assert len(scores) == 2 and scores == sorted(scores, reverse=True)
    firsts = pivot.first.translate(text, num_hypotheses=3).hypotheses
    sums = [
        first.score + second.score
        for first in firsts
        for second in pivot.second.translate(first.text, num_hypotheses=2).hypotheses
    ]
    assert scores[0] == pytest.approx(max(sums), abs=1e-4)


def test_markup_passes_through_both(pivot):
    answer = translate_markup(pivot, "<p>Wo ist der <b>Bahnhof</b>?</p>")
    assert answer.startswith("<p>") and answer.count("<b>") == 1


def test_both_translators_have_one_timeout_together(pivot, monkeypatch):
    timeouts, translate = [], Translator.translate

    def noted(self, texts, *arguments, timeout=None, **options):
        timeouts.append(timeout)
        return translate(self, texts, *arguments, timeout=timeout, **options)

    monkeypatch.setattr(Translator, "translate", noted)
    pivot.translate("Ja.", timeout=99)
    translate_markup(pivot, "<p>Wo ist <b>er</b>?</p>", timeout=98)
    assert len(timeouts) == 6 and timeouts[0] < 99 and timeouts[2] < 98
    assert timeouts == sorted(set(timeouts), reverse=True)
    with pytest.raises(TimeoutError):
        pivot.stream("Wo ist er?", timeout=1e-9)


def test_texts_are_translated_from_their_languages(pivot):
    pytest.importorskip("py3langid")
    translator = load_pair("auto-fr")
    with pytest.raises(ValueError, match="`target_prefix` works with one language"):
        translator.translate("a", target_prefix="b")
    texts = ["Wo ist er?", "Elle est ici.", "Where is he?"]
    assert translator.detect(texts) == ["de", "fr", "en"]
    german, french, english = translator(texts)
    assert (german, french) == (pivot(texts[0]), texts[1])
    assert english == pivot.second(texts[2])
    assert translator(texts[1]) == texts[1]
    for text, expected in zip(texts, (german, french, english), strict=True):
        assert [*translator.replace(beam_size=1).stream(text)][-1] == (
            expected if text == french else [*translator.stream(text)][-1]
        )
    assert translator.translator("de").second is translator.translator("en")
    with pytest.raises(ValueError, match="`target_prefix` works with one language"):
        translator.stream(texts[0], "a")
    greedy = translator.replace(beam_size=1).translator("de").second
    assert greedy.model is translator.translator("en").model
    assert greedy.decoder.options.beam_size == 1


def test_threads_that_ask_at_once_load_a_translator_once(monkeypatch):
    pytest.importorskip("py3langid")
    loaded = []

    def from_preset(name, **changes):
        loaded.append(name)
        time.sleep(0.2)  # the other thread asks meanwhile
        return object()

    monkeypatch.setattr(Translator, "from_preset", from_preset)
    translator = AutoTranslator("de", ["en"])
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        first, second = threads.map(translator.translator, ["en", "en"])
    assert first is second and loaded == ["en-de"]


def test_any_name_of_a_translator_is_checked_and_loaded():
    pytest.importorskip("py3langid")
    assert load("de-fr").first.config.source_prefix == ()
    assert repr(load("auto-de", beam_size=2)).endswith("to de>")
    for name in ("de-fr", "auto-fr", "en-de"):
        check_name(name)
    for name in ("auto-xx", "de-xx"):
        with pytest.raises(ValueError, match=f"`name` must be .*; got {name!r}"):
            check_name(name)
    with pytest.raises(ValueError, match="`target` must be .* de, .*; got 'xx'"):
        load("auto-xx")


def test_unknown_languages_and_a_missing_package_are_explained(monkeypatch):
    with pytest.raises(
        ValueError, match="`sources` must be .* to 'de'.*got \\['xx'\\]"
    ):
        AutoTranslator("de", ["en", "xx"])
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    with pytest.raises(ImportError, match=r"Install `keras-tfm\[detect\]`"):
        load_pair("auto-fr")
