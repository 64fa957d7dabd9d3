"""Translation: order, whitespace, scores, prefixes, constraints, options."""

import asyncio
import gc
import threading

import numpy as np
import pytest

from keras_tfm.decode import Options
from keras_tfm.pipelines import Hypothesis, SharedTranslator, TextConfig, Translator
from keras_tfm.pipelines.decoding import DecoderCache
from keras_tfm.pipelines.translation import merge_equal
from keras_tfm.runtime import Decoder
from tests.decode.conftest import draw_transformer
from tests.pipelines.random_translators import (
    AFFIXES,
    CHANGES,
    FAST,
    MAX_LENGTH,
    TEXTS,
    as_ids,
    rows_of,
)
from tests.runtime.conftest import count_compilations

torch_only = pytest.mark.backend("torch")  # nothing here depends on the backend


def decode_texts(decoder, texts, vocabulary):
    return decoder(as_ids(vocabulary.encode(texts)))


@pytest.mark.slow("tensorflow")
def test_a_list_comes_back_in_its_order(translator, translations):
    assert [type(text) for text in translations] == [str] * len(TEXTS)
    assert translations == [translator(text) for text in TEXTS]
    assert translator(text for text in TEXTS[:2]) == translations[:2]
    assert translator(np.array(TEXTS[:2])) == translations[:2]
    assert len(set(translations)) >= 6  # so that a wrong order is detected


@torch_only
def test_empty_texts_stay_empty(translator):
    for texts in ("", " \n", [], ["", ""]):
        assert translator(texts) == texts


@torch_only
def test_progress_is_shown_on_request(translator, translations, capsys):
    assert translator(TEXTS) == translations
    assert capsys.readouterr().out == ""
    assert translator(TEXTS, progress=True) == translations
    assert "7/7" in capsys.readouterr().out


@torch_only
def test_bulk_reads_and_translates_in_windows(translator, translations):
    lines_read = []

    def lines():
        for text in TEXTS:
            lines_read.append(text)
            yield text

    results = translator.bulk(lines(), window=4)
    first = next(results)
    assert len(lines_read) == 4
    assert [first.text, *(result.text for result in results)] == translations
    assert list(translator.bulk([])) == []


@pytest.mark.parametrize(
    ("texts", "error", "message"),
    [
        (["a", None, 3], TypeError, r"str or a list of str; got \['NoneType', 'int'\]"),
        (b"a house", TypeError, r"got \['bytes'\]. Decode bytes"),
        (3, TypeError, r"got \['int'\]"),
        ({"a": 1}, TypeError, r"got \['dict'\]"),
        (["a house", "a \ud800"], ValueError, "Text 1 has a lone surrogate"),
    ],
)
@torch_only
def test_values_that_are_not_text_are_rejected(translator, texts, error, message):
    for call in (translator, translator.translate):
        with pytest.raises(error, match=message):
            call(texts)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda t: next(t.bulk(TEXTS, window=0)), ValueError, "at least 1; got 0"),
        (lambda t: next(t.bulk("a")), TypeError, "iterable of str; got one str"),
        (
            lambda t: t.translate("a", target_prefix="\udc00"),
            ValueError,
            "lone surrogate",
        ),
        (
            lambda t: t.translate(["a", "b"], target_prefix=["un"]),
            ValueError,
            "1 prefixes for 2 texts",
        ),
        (
            lambda t: t.translate(["a.", "b\nc"], target_prefix=[None, "uomo " * 60]),
            ValueError,
            r"`target_prefix` of text 1 must be shorter.* limit of 16",
        ),
        (
            lambda t: t.translate("a", num_hypotheses=3),
            ValueError,
            "beam_size=2, num_hypotheses=3",
        ),
        (
            lambda t: t.translate("a", beam_size=1, num_hypotheses=2),
            ValueError,
            "beam_size=1, num_hypotheses=2",
        ),
        (
            lambda t: t.translate("a", constraints="giardino"),
            TypeError,
            "list of phrases; got 'giardino'",
        ),
        (
            lambda t: t.translate(["a", "b"], constraints=[["e"]]),
            ValueError,
            "1 for 2 texts",
        ),
        (lambda t: t.translate("a", prefix="un"), TypeError, "'target_prefix'"),
        (lambda t: t.translate("a", num_beams=2), TypeError, "'beam_size'"),
        (lambda t: t.replace(batchsize=2), TypeError, "'batch_size'"),
        (lambda t: Translator.load("?", beamsize=3), TypeError, "'beam_size'"),
        (lambda t: t.score(["a house"]), TypeError, "'a house' of type str, pair 0"),
        (
            lambda t: t.score([("a", "un"), ("a house " * 40, "un")]),
            ValueError,
            r"Text 1 must have at most max_source_length=60 tokens; got \d+",
        ),
        (lambda t: t.replace(batch_size=0), ValueError, "`batch_size`.*got 0"),
        (lambda t: t.replace(batch_tokens=2.5), ValueError, "`batch_tokens`.*got 2.5"),
        (lambda t: t.replace(source_prefix="a"), ValueError, "`source_prefix`.*'a'"),
        (lambda t: t.replace(source_prefix=[0]), ValueError, "`source_prefix`.*above"),
        (
            lambda t: t.replace(source_suffix=[10**6]),
            ValueError,
            "`source_suffix` must hold ids .* got .1000000.",
        ),
        (
            lambda t: t.replace(max_source_length=2, source_suffix=[3, 4]),
            ValueError,
            "max_source_length=2 with 2 of them",
        ),
        (
            lambda t: Translator(t.model, t.vocabulary),
            ValueError,
            "280 tokens, target_vocabulary_size=279",
        ),
        (
            lambda t: Translator(draw_transformer(vocabulary_size=279), t.vocabulary),
            ValueError,
            "280 tokens, vocabulary_size=279. Load the",
        ),
    ],
)
@torch_only
def test_invalid_arguments_are_rejected(translator, call, error, message):
    with pytest.raises(error, match=message):
        call(translator)


@torch_only
def test_a_target_prefix_begins_only_its_text(translator):
    texts = ["a house.", "old\nan old man", "a boat"]
    results = translator.translate(texts, target_prefix=[None, "giardino", None])
    plain = translator(texts)
    assert [results[i].text for i in (0, 2)] == [plain[0], plain[2]]
    first, second = results[1].text.split("\n")
    assert first.startswith("giardino") and second == plain[1].split("\n")[1]
    assert not plain[1].startswith("giardino")


@torch_only
def test_the_last_streamed_text_is_the_greedy_translation(translator):
    text = "a house\n old man\n"
    *states, last = translator.stream(text)
    assert len(states) > 2
    assert last == translator.translate(text, beam_size=1).text


@torch_only
def test_bytes_of_a_character_are_not_streamed_alone(translator, monkeypatch):
    omega = "un \N{GREEK SMALL LETTER OMEGA}"
    ids = translator.target_vocabulary.encode([omega])[0]
    assert len(translator.target_vocabulary.decode([ids[:-1]])[0].split()) == 2

    def stream(self, rows, prefixes):
        yield from np.array([[*ids, 3]]).T

    monkeypatch.setattr(Decoder, "stream", stream)
    texts = list(translator.stream("a house"))
    assert texts[-1] == omega
    assert not any("\ufffd" in text for text in texts) and len(texts) == len(ids) + 2


@torch_only
def test_special_ids_are_those_of_the_target_vocabulary():
    class Letters:
        start_id, end_id, unknown_id, size = 1, 2, 3, 9

        def tokens(self, ids):
            return ["abcde"[i - 4] if i > 3 else f"<{i}>" for i in ids]

    model = draw_transformer(seed=1, vocabulary_size=9)
    options = Options(max_decoding_length=MAX_LENGTH, jit_compile=False)
    translator = Translator(model, Letters(), options=options)
    ids = translator.decoder.options
    assert (ids.start_id, ids.end_id, ids.unk_id) == (1, 2, 3)
    assert ids.suppressed_ids == {0, 1, 3}
    assert options.suppressed_ids == {0, 1, 2}


@torch_only
def test_lines_are_translated_one_by_one_and_whitespace_stays(translator):
    house, man = translator(["a house", "an old man"])
    text = "\n  a house\t\r\n\n\tan old man \n"
    assert translator(text) == f"\n  {house}\t\r\n\n\t{man} \n"
    assert translator([text, "a house"])[1] == house


def test_translate_returns_scores_and_attention(translator, translations):
    results = translator.translate(TEXTS)
    assert [str(result) for result in results] == translations
    assert [result.source for result in results] == TEXTS
    scores = decode_texts(translator.decoder, TEXTS[:2], translator.vocabulary).scores
    np.testing.assert_allclose(
        [result.score for result in results[:2]], scores[:, 0], atol=1e-5
    )
    assert (results[2].score, results[2].text) == (-np.inf, "")
    assert results[0].hypotheses[0].attention is None
    n_best = translator.translate(
        TEXTS[0], num_hypotheses=2, return_attention=True, target_prefix="un"
    )
    assert len({hypothesis.text for hypothesis in n_best.hypotheses}) == 2
    assert n_best.text.startswith("un")
    assert n_best.score >= n_best.hypotheses[1].score
    for hypothesis in n_best.hypotheses:
        shape = (len(hypothesis.tokens), len(n_best.source_tokens))
        assert hypothesis.attention.shape == shape
        np.testing.assert_allclose(hypothesis.attention.sum(-1), 1.0, atol=1e-4)
    [unscored] = translator.translate(TEXTS[:1], return_scores=False)
    assert (unscored.text, unscored.score) == (translations[0], None)
    assert translator.translate([]) == []


@torch_only
def test_the_segments_of_a_text_make_one_translation(translator):
    first, second = translator.translate(["a house", "old"])
    combined = translator.translate("a house\n\nold", return_attention=True)
    assert combined.text == f"{first.text}\n\n{second.text}"
    best, separate = combined.hypotheses[0], [t.hypotheses[0] for t in (first, second)]
    sizes = [len(hypothesis.tokens) for hypothesis in separate]
    assert sizes[0] != sizes[1]
    score = np.average([first.score, second.score], weights=sizes)
    assert best.score == pytest.approx(score, abs=1e-5)
    assert best.tokens == separate[0].tokens + separate[1].tokens
    assert best.attention.shape == (sum(sizes), len(combined.source_tokens))
    width = len(first.source_tokens)
    assert not best.attention[: sizes[0], width:].any()
    assert not best.attention[sizes[0] :, :width].any()
    assert best.attention.any(axis=1).all()
    assert combined.truncated == (first.truncated or second.truncated)


@torch_only
def test_truncated_translations_are_those_without_an_end_token(translator):
    texts = [text for text in TEXTS if text.strip()]
    end = translator.target_vocabulary.end_id
    separate = [translator.decoder(rows_of(translator, [text])) for text in texts]
    truncated = [end not in hypotheses.ids[0, 0] for hypotheses in separate]
    assert [t.truncated for t in translator.translate(texts)] == truncated
    assert 0 < sum(truncated) < len(texts)
    assert not translator.translate("").truncated


@torch_only
def test_a_notebook_shows_a_translation(translator):
    page = translator.translate("a <b>house", return_attention=True)._repr_html_()
    assert "a &lt;b&gt;house" in page and "<b>" not in page
    assert page.count("data:image/png;base64,") == 1
    assert "img" not in translator.translate("a house")._repr_html_()
    assert "img" not in translator.translate("", return_attention=True)._repr_html_()


def test_the_score_of_a_translation_is_that_of_the_decoder(translator):
    pairs = [("a house", "una barca"), ("an old man in a boat", "un uomo"), ("", "un")]
    first, _, empty = translator.score(pairs)
    [row] = translator.vocabulary.encode(["a house"])
    [ids] = translator.target_vocabulary.encode(["una barca"])
    expected = translator.decoder.score(np.array([row]), [[*ids, 3]])
    assert first.score == pytest.approx(float(expected.scores[0, 0]), abs=1e-5)
    assert first.tokens[-1] == "</s>"
    token_scores = expected.token_scores[0, 0, : len(ids) + 1]
    np.testing.assert_allclose(first.token_scores, token_scores, atol=1e-5)
    assert empty.score == -np.inf
    assert translator.score([]) == []
    best = translator.translate("a house").hypotheses[0]
    if not best.truncated:
        assert translator.score([("a house", best.text)])[0].score <= best.score + 1e-4


@torch_only
@pytest.mark.parametrize("counts", [True, False])
def test_a_prefix_is_scored_as_in_a_translation(translator, counts):
    [prefix] = translator.target_vocabulary.encode(["una"])
    tagged = Translator(
        translator.model,
        translator.vocabulary,
        translator.target_vocabulary,
        Options(beam_size=2, score_prefix=counts, suppress_ids=(), disable_unk=False),
        target_prefix=prefix,
    )
    [row] = rows_of(tagged, ["a house"])
    hypotheses = tagged.decoder([row], [prefix])
    ids = hypotheses.ids[0, 0, : hypotheses.lengths[0, 0]].tolist()
    scores = tagged.decoder.score([row], [ids], [len(prefix)])
    np.testing.assert_allclose(scores.scores, hypotheses.scores[:, :1], atol=1e-5)
    plain = tagged.decoder.score([row], [ids])
    assert (abs(plain.scores - hypotheses.scores[:, :1]) > 0.01).all() != counts
    text = translator.target_vocabulary.decode([ids[len(prefix) :]])[0]
    [scores] = tagged.score([("a house", text)])
    assert (scores.token_scores[0] == 0) != counts


@torch_only
def test_a_translation_beyond_the_positions_is_not_scored(translator):
    vocabularies = translator.vocabulary, translator.target_vocabulary
    model = draw_transformer(
        vocabulary_size=vocabularies[0].size,
        target_vocabulary_size=vocabularies[1].size,
        positions="learned",
        sequence_length=20,
    )
    short = Translator(model, *vocabularies).replace(**FAST)
    assert short.config.max_source_length == 20
    with pytest.raises(
        ValueError, match=r"Translation 1 must have at most 20 .* got \d+"
    ):
        short.score([("a house", "un"), ("a", "un uomo " * 20)])


@torch_only
def test_constraints_are_in_the_translation(translator):
    first, empty, free = translator.translate(
        ["a house", "", "old"], constraints=[["un", "e"], ["e"], None]
    )
    assert "un" in first.text and "e" in first.text
    assert (empty.text, empty.score) == ("", -np.inf)
    assert free.text == translator("old")


@torch_only
def test_of_equal_texts_the_best_is_kept():
    scored = [("a", -2.0), ("b", -1.5), ("c", -3.0), ("a", -1.0), ("c", -4.0)]
    hypotheses = [Hypothesis(*pair, [], None, False) for pair in scored]
    merged = [(h.text, h.score) for h in merge_equal(hypotheses)]
    assert merged == [("a", -1.0), ("b", -1.5), ("c", -3.0)]
    unscored = [hypothesis._replace(score=None) for hypothesis in hypotheses]
    assert [h.text for h in merge_equal(unscored)] == ["a", "b", "c"]


@torch_only
def test_fewer_beams_give_fewer_hypotheses(translator):
    several = translator.replace(num_hypotheses=2)  # as in imported models
    assert len(several.translate("a house").hypotheses) == 2
    greedy = several.translate("a house", beam_size=1)
    assert len(greedy.hypotheses) == 1
    assert several.translate("a house", beam_size=1) == greedy


@torch_only
def test_the_decoder_of_one_call_is_built_once_and_cached(translator):
    assert translator.replace().decoder is translator.decoder
    decoders = DecoderCache(translator.decoder)
    results, start = [], threading.Barrier(8)

    def ask():
        start.wait()
        results.append(decoders.get({"beam_size": 1}))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(decoder) for decoder in results}) == len(decoders) == 1
    for number in range(12):
        decoders.get({"min_decoding_length": number, "max_decoding_length": [2, 9]})
    assert len(decoders) == 8
    assert decoders.get({"beam_size": 1}) is not results[0]


@torch_only
def test_replace_shares_the_model_and_leaves_the_original(translator):
    replaced = translator.replace(batch_size=1, beam_size=1)
    assert replaced.model is translator.model
    assert replaced.segmenter is translator.segmenter
    assert (replaced.config.batch_size, replaced.decoder.options.beam_size) == (1, 1)
    assert (translator.config.batch_size, translator.decoder.options.beam_size) == (
        4,
        2,
    )
    assert (
        Translator(
            translator.model, translator.vocabulary, translator.target_vocabulary
        )
        .replace(**translator.changes())
        .changes()
        == translator.changes()
    )
    assert translator.changes() == {
        **CHANGES,
        "suppress_ids": tuple(CHANGES["suppress_ids"]),
    }
    # Those for the options of calls are shared, too.
    options = {"num_hypotheses": 1}
    decoder = translator._decoders.get(options)
    assert translator.replace(batch_size=1)._decoders.get(options) is decoder
    assert replaced._decoders.get(options) is not decoder
    with pytest.raises(AttributeError):
        translator.config.batch_size = 2
    assert TextConfig(source_prefix=[3]).source_prefix == (3,)


@torch_only
def test_a_run_of_spaces_takes_linear_time(translator):
    text = "a house" + " " * 300_000 + "."
    assert translator(text) == translator("a house .")


@pytest.mark.slow("tensorflow")
def test_after_warm_up_a_call_compiles_nothing(translator, monkeypatch):
    expected, compilations = translator("a house"), count_compilations(monkeypatch)
    fresh = translator.replace(length_penalty=0.7)  # other options, so another decoder
    fresh.warm_up((4,))
    assert compilations
    compilations.clear()
    assert fresh("a house") == expected and not compilations
    fresh("a house " * 30)
    assert compilations


def test_scores_need_few_compiled_functions(translator, monkeypatch):
    compilations = count_compilations(monkeypatch)
    fresh = translator.replace(length_penalty=0.7)
    pairs = [("a house " * n, "ein Haus") for n in (1, 1, 2, 2, 1, 1, 2)]
    results = fresh.score(pairs)
    assert len(compilations) == 1
    for pair, result in zip(pairs, results, strict=True):
        [expected] = translator.score([pair])
        assert result.score == pytest.approx(expected.score, abs=1e-5)


@torch_only
def test_equal_seeds_sample_the_same_translations(translator):
    sampling = {"beam_size": 1, "sampling_topk": 0, "sampling_temperature": 2.0}
    first, same_seed, other_seed = (
        [str(result) for result in translator.translate(TEXTS, seed=seed, **sampling)]
        for seed in (1, 1, 2)
    )
    assert first == same_seed != other_seed
    [single] = translator.translate(TEXTS[:1], seed=1, **sampling)
    assert str(translator.translate(TEXTS[0], seed=1, **sampling)) == str(single)


@torch_only
def test_each_side_uses_its_own_vocabulary(translator):
    hypotheses = decode_texts(translator.decoder, ["a house"], translator.vocabulary)
    [best] = hypotheses.ids[:, 0]
    assert [translator("a house")] == translator.target_vocabulary.decode([best])
    assert [translator("a house")] != translator.vocabulary.decode([best])


@torch_only
def test_prefix_and_suffix_are_added_to_each_text(translator):
    tagged = translator.replace(**AFFIXES)
    decode = translator.target_vocabulary.decode
    texts = ["a house", "", "old"]
    rows = [[270, *row, 3, 271] for row in translator.vocabulary.encode(texts)]
    best = [translator.decoder([row], [[265]]).ids[0, :1] for row in rows[::2]]
    expected = [decode(ids)[0] for ids in best]
    assert tagged(texts) == [expected[0], "", expected[1]]
    [score] = tagged.score([("a house", "un uomo")])
    target = [265, *translator.target_vocabulary.encode(["un uomo"])[0], 3]
    expected_score = translator.decoder.score(as_ids(rows[:1]), [target])
    assert score.score == pytest.approx(float(expected_score.scores[0, 0]), abs=1e-5)
    assert best[0][0, 0] == 265 and expected[0] != translator("a house")


@torch_only
def test_a_translation_beyond_the_timeout_raises(translator):
    with pytest.raises(TimeoutError, match="`timeout`.*9 texts"):
        translator.translate(TEXTS, timeout=1e-9)


@pytest.mark.backend("torch")
def test_a_canceled_request_logs_no_error(translator):
    shared, faults = SharedTranslator(translator, batch_size=4), []

    async def cancel():
        asyncio.get_running_loop().set_exception_handler(lambda _, f: faults.append(f))
        work = asyncio.ensure_future(shared.translate(TEXTS, timeout=60))
        await asyncio.sleep(0.01)
        work.cancel()
        await asyncio.wait([work])
        gc.collect()  # asyncio reports lost exceptions then

    asyncio.run(cancel())
    shared.close()
    assert not faults


@pytest.mark.backend("torch", "jax")
def test_concurrent_requests_get_the_same_translations(translator, translations):
    shared = SharedTranslator(translator, batch_size=4)

    async def ask():
        requests = [TEXTS[i : i + 3] for i in range(0, len(TEXTS), 3)]
        return await asyncio.gather(*map(shared.translate, requests))

    results = [result for answer in asyncio.run(ask()) for result in answer]
    assert [result.text for result in results] == translations
    [expected] = translator.translate(TEXTS[:1])
    assert results[0].score == pytest.approx(expected.score, abs=1e-5)
    assert results[0].source_tokens == expected.source_tokens
    with pytest.raises(TimeoutError):
        asyncio.run(shared.translate(TEXTS, timeout=1e-9))
    shared.close()
    with pytest.raises(RuntimeError, match="closed"):
        asyncio.run(shared.translate(TEXTS[:1]))
    assert not SharedTranslator.supports(
        translator.replace(sampling_topk=3, beam_size=1)
    )
