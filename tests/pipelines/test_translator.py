"""From sentence to sentence: order, empty text, saving, and the SavedModel."""

import asyncio
import os
import pathlib
import subprocess

import numpy as np
import pytest

import keras_tfm
from keras_tfm.decode import Options, Shortlist
from keras_tfm.decode.inputs import padded_rows
from keras_tfm.export import saved_model
from keras_tfm.models import RecurrentSeq2Seq
from keras_tfm.pipelines import SharedTranslator, Translator
from keras_tfm.pipelines.segmentation import Pieces
from keras_tfm.runtime import Decoder
from keras_tfm.text import TokenizersVocabulary, Vocabulary
from tests.decode.conftest import draw_transformer, redraw
from tests.export.saved import in_c, names_of, serve, text_operations
from tests.layers.quantized import QUANTIZED, quantize
from tests.runtime.conftest import count_compilations

TEXTS = [
    "the small garden behind the old house",
    "a house",
    "",
    "an old man in a small boat",
    "the boat",
    "a garden and a house and a boat and a man",
    " ",
    "old",
    "Ünknown, zß!",
]
MAX_LENGTH = 16  # one stretch of a search, so one program a shape
FAST = {
    "max_decoding_length": MAX_LENGTH,
    "jit_compile": False,
    # No bytes either: random weights would say little else.
    "suppress_ids": [0, 1, 2, *range(4, 260)],
}
SETTINGS = {
    "beam_size": 2,
    "length_penalty": 0.7,
    "batch_size": 4,
    "batch_tokens": 2000,
    "split_tokens": 50,
    "max_source_length": 60,
    "length_penalty_form": "gnmt",
    "source_prefix": [],
    "source_suffix": [],
    "target_prefix": [],
    **FAST,
}
MARKS = {"source_prefix": [270], "source_suffix": [3, 271], "target_prefix": [265]}


def as_ids(rows):
    return padded_rows(rows, max(map(len, rows)))


@pytest.fixture(scope="module")
def vocabulary():
    return Vocabulary.train([text for text in TEXTS if text.isascii()] * 20, size=280)


@pytest.fixture(scope="module")
def target_vocabulary():
    return Vocabulary.train(["un uomo, una barca e un giardino"] * 20, size=276)


@pytest.fixture(scope="module")
def translator(vocabulary, target_vocabulary):
    # Three rows more than pieces, as where a table is padded to a round size.
    model = draw_transformer(
        seed=6,  # says many things, and ends some of them
        vocabulary_size=vocabulary.size + 3,
        target_vocabulary_size=target_vocabulary.size + 3,
    )
    # Compiled, as after training: what is saved must not carry the optimizer.
    model.compile("adam", "sparse_categorical_crossentropy")
    return Translator(model, vocabulary, target_vocabulary, **SETTINGS)


@pytest.fixture(scope="module")
def translations(translator):
    return translator(TEXTS)


def test_a_list_comes_back_in_its_order(translator, translations):
    assert [type(text) for text in translations] == [str] * len(TEXTS)
    assert translations == [translator(text) for text in TEXTS]
    assert translator(text for text in TEXTS[:2]) == translations[:2]
    assert translator(np.array(TEXTS[:2])) == translations[:2]
    assert len(set(translations)) >= 6  # so that a wrong order is seen


def test_nothing_in_nothing_out(translator):
    assert translator("") == ""
    assert translator(" \n") == " \n"
    assert translator([]) == []
    assert translator(["", ""]) == ["", ""]


@pytest.mark.backend("torch")
def test_progress_is_shown_when_asked_for(translator, translations, capsys):
    assert translator(TEXTS) == translations
    assert capsys.readouterr().out == ""
    assert translator(TEXTS, progress=True) == translations
    assert "7/7" in capsys.readouterr().out


@pytest.mark.backend("torch")
def test_any_number_of_texts_is_translated_in_windows(translator, translations):
    read = []

    def lines():
        for text in TEXTS:
            read.append(text)
            yield text

    found = translator.bulk(lines(), window=4)
    first = next(found)
    assert len(read) == 4
    assert [first, *found] == translations
    cut = translator.cut
    translator(TEXTS)
    assert cut == translator.cut > 0
    assert list(translator.bulk([])) == []
    with pytest.raises(ValueError, match="`window` must be 1 or more. Received: 0"):
        next(translator.bulk(TEXTS, window=0))


def test_what_is_no_text_is_refused(translator):
    with pytest.raises(TypeError, match=r"str or a list of str.*\['NoneType', 'int'\]"):
        translator(["a house", None, 3])
    with pytest.raises(TypeError, match=r"Received: \['bytes'\]. Decode bytes"):
        translator(b"a house")
    with pytest.raises(TypeError, match=r"Received: \['int'\]"):
        translator(3)
    for ask in (translator, translator.translate):
        with pytest.raises(ValueError, match="Text 1 has half of a surrogate pair"):
            ask(["a house", "a \ud800"])
    with pytest.raises(ValueError, match="half of a surrogate pair"):
        translator.translate("a house", target_prefix="\udc00")


def test_a_prefix_leaves_room_in_the_text_it_is_of(translator):
    texts = ["a house.", "old\nan old man", "a boat"]
    with pytest.raises(ValueError, match="Text 2: a prefix must leave room.*of 16"):
        translator.translate(texts, target_prefix=[None, "un", "uomo " * 60])
    found = translator.translate(texts, target_prefix=[None, "giardino", None])
    plain = translator(texts)
    assert [found[i].text for i in (0, 2)] == [plain[0], plain[2]]
    (first, second), (_, other) = (
        text.split("\n") for text in (found[1].text, plain[1])
    )
    assert first.startswith("giardino") and second == other
    assert not plain[1].startswith("giardino")


def test_half_a_letter_is_not_streamed(translator, monkeypatch):
    ids = translator.target_vocabulary.encode(["un \N{GREEK SMALL LETTER OMEGA}"])[0]
    assert len(translator.target_vocabulary.decode([ids[:-1]])[0].split()) == 2

    def said(self, rows, forced):
        yield from np.array([[*ids, 3]]).T

    monkeypatch.setattr(Decoder, "stream", said)
    found = list(translator.stream("a house"))
    assert found[-1] == "un \N{GREEK SMALL LETTER OMEGA}"
    assert not any("\ufffd" in one for one in found) and len(found) == len(ids) + 2


def test_the_ends_are_those_of_the_vocabulary():
    """Of which padding is 0 as here, and the others stand in another order."""

    class Letters:
        start_id, end_id, unknown_id, size = 1, 2, 3, 9

        def encode(self, texts):
            return [[4 + "abcde".index(letter) for letter in text] for text in texts]

        def decode(self, rows):
            kept = (i for i in rows[0] if i > 3)
            return ["".join("abcde"[i - 4] for i in kept)]

        def tokens(self, ids):
            return ["abcde"[i - 4] if i > 3 else f"<{i}>" for i in ids]

        def starts(self, ids):
            return [True] * len(ids)

    model = draw_transformer(seed=1, vocabulary_size=9)
    options = {"max_decoding_length": MAX_LENGTH, "jit_compile": False}
    translator = Translator(model, Letters(), **options)
    assert translator.search.options.suppressed_ids == {0, 1, 3}
    plain = Decoder(
        model, Options(start_id=1, end_id=2, unk_id=3, beam_size=4, **options)
    )
    assert plain.suppressed == {0, 1, 3}
    assert Decoder(model, Options(**options)).suppressed == {0, 1, 2}


def test_lines_are_translated_one_by_one_and_their_blanks_kept(translator):
    one, other = translator(["a house", "an old man"])
    text = "\n  a house\t\r\n\n\tan old man \n"
    assert translator(text) == f"\n  {one}\t\r\n\n\t{other} \n"
    assert translator([text, "a house"])[1] == one


@pytest.mark.backend("torch")
def test_a_long_text_is_cut_after_its_sentences(
    translator, vocabulary, target_vocabulary
):
    sentences = ["a house and a boat.", "an old man!", 'the small "boat".']
    settings = {**SETTINGS, "split_tokens": max(map(len, vocabulary.encode(sentences)))}
    short = Translator(translator.model, vocabulary, target_vocabulary, **settings)
    found = short(" ".join(sentences))
    assert found == " ".join(translator(sentences))
    assert found != translator(" ".join(sentences))
    # Without an end it is cut between words, and no token is lost.
    rows, [(parts, after, first)] = short.rows_of(["a garden " * 40])
    assert [token for row in rows for token in row] == vocabulary.encode(
        ["a garden " * 40]
    )[0]
    assert {len(row) for row in rows[:-1]} <= set(range(50, 61))
    assert (after, first) == (" ", 0) and len(parts) > 2


def test_translate_gives_hypotheses_with_scores_and_attention(translator, translations):
    found = translator.translate(TEXTS)
    assert [str(one) for one in found] == translations
    assert [one.source for one in found] == TEXTS
    ids = as_ids(translator.vocabulary.encode(TEXTS[:2]))
    np.testing.assert_allclose(
        [one.score for one in found[:2]], translator.search(ids).scores[:, 0], atol=1e-5
    )
    assert found[2].score == -np.inf and found[2].text == ""
    several = translator.translate(
        TEXTS[0], num_hypotheses=2, return_attention=True, target_prefix="un"
    )
    assert len({one.text for one in several.hypotheses}) == 2
    assert several.text.startswith("un")
    for one in several.hypotheses:
        assert one.attention.shape == (len(one.tokens), len(several.source_tokens))
        np.testing.assert_allclose(one.attention.sum(-1), 1.0, atol=1e-4)
    assert several.score >= several.hypotheses[1].score
    assert found[0].hypotheses[0].attention is None
    bare = translator.translate([TEXTS[0]], return_scores=False)[0]
    assert (bare.text, bare.score) == (translations[0], None)
    assert translator.translate([]) == []
    with pytest.raises(ValueError, match="1 prefixes for 2 texts"):
        translator.translate(TEXTS[:2], target_prefix=["un"])
    with pytest.raises(ValueError, match="num_hypotheses=3, beam_size=2"):
        translator.translate(TEXTS[:2], num_hypotheses=3)


def test_the_parts_of_a_text_make_one_translation(translator):
    first, second = translator.translate(["a house", "old"])
    both = translator.translate("a house\n\nold", return_attention=True)
    assert both.text == f"{first.text}\n\n{second.text}"
    best, alone = both.hypotheses[0], [one.hypotheses[0] for one in (first, second)]
    sizes = [len(one.tokens) for one in alone]
    assert sizes[0] != sizes[1]
    wanted = np.average([first.score, second.score], weights=sizes)
    assert best.score == pytest.approx(wanted, abs=1e-5)
    assert best.tokens == alone[0].tokens + alone[1].tokens
    assert best.attention.shape == (sum(sizes), len(both.source_tokens))
    width = len(first.source_tokens)
    assert not best.attention[: sizes[0], width:].any()
    assert not best.attention[sizes[0] :, :width].any()
    assert best.attention.any(axis=1).all()
    assert best.finished == all(one.finished for one in alone)


def test_a_notebook_shows_a_translation(translator):
    found = translator.translate("a <b>house", return_attention=True)
    page = found._repr_html_()
    assert "a &lt;b&gt;house" in page and "<b>" not in page
    assert page.count("data:image/png;base64,") == 1
    assert "img" not in translator.translate("a house")._repr_html_()
    assert "img" not in translator.translate("", return_attention=True)._repr_html_()


def test_a_given_translation_is_scored(translator, vocabulary, target_vocabulary):
    pairs = [("a house", "una barca"), ("an old man in a boat", "un uomo"), ("", "un")]
    found = translator.score(pairs)
    row, ids = (
        vocabulary.encode(["a house"]),
        target_vocabulary.encode(["una barca"])[0],
    )
    wanted = translator.search.score(np.array(row), [[*ids, 3]])
    assert found[0].score == pytest.approx(float(wanted.scores[0, 0]), abs=1e-5)
    assert found[0].tokens[-1] == "</s>"
    gains = wanted.token_scores[0, 0, : len(ids) + 1]
    np.testing.assert_allclose(found[0].token_scores, gains, atol=1e-5)
    assert found[2].score == -np.inf
    best = translator.translate("a house").hypotheses[0]
    if best.finished:
        assert translator.score([("a house", best.text)])[0].score <= best.score + 1e-4
    with pytest.raises(TypeError, match="Received: 'a house' of type str, pair 0"):
        translator.score(["a house"])


@pytest.mark.backend("torch")
@pytest.mark.parametrize("counts", [True, False])
def test_a_prefix_counts_as_where_it_translates(translator, counts):
    both = translator.vocabulary, translator.target_vocabulary
    prefix = both[1].encode(["una"])[0]
    options = {"target_prefix": prefix, "score_prefix": counts}
    options |= {"suppress_ids": (), "disable_unk": False}
    marked = Translator(translator.model, *both, beam_size=2, **options)
    [row] = marked.rows_of(["a house"])[0]
    found = marked.search([row], [prefix])
    ids = found.ids[0, 0, : found.lengths[0, 0]].tolist()
    scored = marked.search.score([row], [ids], [len(prefix)])
    np.testing.assert_allclose(scored.scores, found.scores[:, :1], atol=1e-5)
    plain = marked.search.score([row], [ids])
    assert (abs(plain.scores - found.scores[:, :1]) > 0.01).all() != counts
    # The command's way to it: of the text.
    pair = ("a house", both[1].decode([ids[len(prefix) :]])[0])
    [found] = marked.score([pair])
    assert (found.token_scores[0] == 0) != counts


def test_what_is_no_pair_is_refused(translator, vocabulary, target_vocabulary):
    with pytest.raises(
        ValueError, match=r"Text 1 has \d+ tokens; max_source_length=60"
    ):
        translator.score([("a", "un"), ("a house " * 40, "un")])
    settings = {"positions": "learned", "sequence_length": 20}
    sizes = (vocabulary.size, target_vocabulary.size)
    model = draw_transformer(
        vocabulary_size=sizes[0], target_vocabulary_size=sizes[1], **settings
    )
    short = Translator(model, vocabulary, target_vocabulary, **FAST)
    with pytest.raises(ValueError, match=r"Translation 1 has \d+ .* positions for 20"):
        short.score([("a house", "un"), ("a", "un uomo " * 20)])


def test_constraints_are_lists_of_phrases(translator):
    found = translator.translate(
        ["a house", "", "old"], constraints=[["un", "e"], ["e"], None]
    )
    assert "un" in found[0].text and "e" in found[0].text
    assert found[1].text == "" and found[1].score == -np.inf
    assert found[2].text == translator("old")
    with pytest.raises(TypeError, match="list of phrases. Received: 'giardino'"):
        translator.translate("a house", constraints="giardino")
    with pytest.raises(ValueError, match="1 for 2 texts"):
        translator.translate(TEXTS[:2], constraints=[["e"]])


def test_fewer_beams_give_fewer_hypotheses(translator, vocabulary, target_vocabulary):
    both = (vocabulary, target_vocabulary)
    settings = {**SETTINGS, "num_hypotheses": 2}
    several = Translator(translator.model, *both, **settings)  # as imported ones are
    assert len(several.translate("a house").hypotheses) == 2
    greedy = several.translate("a house", beam_size=1)
    assert len(greedy.hypotheses) == 1
    assert several.translate("a house", beam_size=1) == greedy
    assert len(several._searches) == 1
    for number in range(12):
        several._search_with({"min_decoding_length": number})
    assert len(several._searches) == 8
    with pytest.raises(ValueError, match="num_hypotheses=2, beam_size=1"):
        several.translate("a house", beam_size=1, num_hypotheses=2)


def test_a_run_of_blanks_costs_no_more_than_its_length(translator):
    text = "a house" + " " * 300_000 + "."
    assert translator(text) == translator("a house .")


def test_warming_up_compiles_what_calls_need(translator, monkeypatch):
    wanted, new = translator("a house"), count_compilations(monkeypatch)
    both = (translator.vocabulary, translator.target_vocabulary)
    fresh = Translator(translator.model, *both, **SETTINGS)
    fresh.warm_up((4,))
    assert new
    new.clear()
    assert fresh("a house") == wanted and not new
    fresh("a house " * 30)
    assert new


def test_scores_take_few_programs(translator, monkeypatch):
    new = count_compilations(monkeypatch)
    both = (translator.vocabulary, translator.target_vocabulary)
    fresh = Translator(translator.model, *both, **SETTINGS)
    pairs = [("a house " * n, "ein Haus") for n in (1, 1, 2, 2, 1, 1, 2)]
    found = fresh.score(pairs)
    assert new == ["_score"]
    for pair, score in zip(pairs, found, strict=True):
        [alone] = translator.score([pair])
        assert score.score == pytest.approx(alone.score, abs=1e-5)


def test_a_vocabulary_without_marks_of_words_has_starts():
    pieces = Pieces(TokenizersVocabulary.train(["a small house. and a boat"] * 3, 60))
    assert pieces.starts.any() and pieces.ends.any()


@pytest.mark.backend("torch")
def test_a_dot_behind_an_abbreviation_ends_no_sentence():
    folder = pathlib.Path(keras_tfm.__file__).parent / "presets" / "en-de"
    vocabulary = Vocabulary.load(folder / "sentencepiece.model")
    sentences = [
        "Dr. Smith and Mrs. J. Doe came on the 3. of May.",
        "So do I.",
        "It is, z. B., St. John and Mr. President!",
        "Tom left .",
        "I saw it.",
        "He is here.",
    ]
    [ids] = vocabulary.encode([" ".join(sentences)])
    cuts, blanks = Pieces(vocabulary).cut(ids, 1, 100)
    parts = vocabulary.decode([ids[begin:end] for begin, end in cuts])
    assert [part.strip() for part in parts] == sentences
    assert blanks == [False] + 5 * [True]


@pytest.mark.backend("torch")
def test_what_is_no_setting_is_refused_with_what_is_near(translator):
    with pytest.raises(TypeError, match=r"'prefix'\]. Nearest: .*target_prefix\."):
        translator.translate(TEXTS, prefix="un")
    with pytest.raises(TypeError, match=r"'x9'\]. There are: beam_size, constraints"):
        translator.translate(TEXTS, x9=1)
    both = (translator.model, translator.vocabulary, translator.target_vocabulary)
    with pytest.raises(TypeError, match=r"'beamsize'\]. Nearest: beam_size\."):
        Translator(*both, beamsize=3)


@pytest.mark.backend("torch")
def test_a_seed_draws_the_same_again(translator):
    drawn = {"beam_size": 1, "sampling_topk": 0, "sampling_temperature": 2.0}
    one, again, other = (
        [str(found) for found in translator.translate(TEXTS, seed=seed, **drawn)]
        for seed in (1, 1, 2)
    )
    assert one == again != other
    [alone] = translator.translate(TEXTS[:1], seed=1, **drawn)
    assert str(translator.translate(TEXTS[0], seed=1, **drawn)) == str(alone)


def test_settings_that_cannot_work_are_refused(
    translator, vocabulary, target_vocabulary
):
    both = (vocabulary, target_vocabulary)
    small = draw_transformer(vocabulary_size=vocabulary.size - 1)
    with pytest.raises(ValueError, match="280 pieces, vocabulary_size=279. Load the"):
        Translator(small, vocabulary)
    with pytest.raises(ValueError, match="at least one sentence.*batch_size=0"):
        Translator(translator.model, *both, batch_size=0)
    with pytest.raises(ValueError, match="max_source_length=2 with 2 marks"):
        Translator(translator.model, *both, max_source_length=2, source_suffix=[3, 4])
    with pytest.raises(ValueError, match="num_hypotheses=3, beam_size=2"):
        Translator(translator.model, *both, beam_size=2, num_hypotheses=3)


@pytest.mark.backend("torch")
def test_two_vocabularies_each_have_their_side(
    translator, vocabulary, target_vocabulary
):
    with pytest.raises(ValueError, match="280 pieces, target_vocabulary_size=279"):
        Translator(translator.model, vocabulary)
    [best] = translator.search(np.array(vocabulary.encode(["a house"]))).ids[:, 0]
    assert [translator("a house")] == target_vocabulary.decode([best])
    assert [translator("a house")] != vocabulary.decode([best])


def test_marks_stand_around_each_text(translator, vocabulary, target_vocabulary):
    marked = Translator(
        translator.model, vocabulary, target_vocabulary, **{**SETTINGS, **MARKS}
    )
    texts = ["a house", "", "old"]
    rows = [[270, *row, 3, 271] for row in vocabulary.encode(texts)]
    found = [translator.search([row], [[265]]).ids[0, :1] for row in (rows[0], rows[2])]
    wanted = [target_vocabulary.decode(ids)[0] for ids in found]
    assert marked(texts) == [wanted[0], "", wanted[1]]
    [score] = marked.score([("a house", "un uomo")])
    target = [265, *target_vocabulary.encode(["un uomo"])[0], 3]
    alone = translator.search.score(as_ids(rows[:1]), [target])
    assert score.score == pytest.approx(float(alone.scores[0, 0]), abs=1e-5)
    assert found[0][0, 0] == 265 and wanted[0] != translator("a house")


def test_a_saved_translator_translates_the_same(translator, translations, tmp_path):
    translator.save(tmp_path / "new" / "folder")
    loaded = Translator.load(tmp_path / "new" / "folder")
    assert loaded.settings == SETTINGS
    assert loaded(TEXTS) == translations
    greedy = Translator.load(tmp_path / "new" / "folder", beam_size=1)
    assert greedy.settings == {**SETTINGS, "beam_size": 1}
    assert not getattr(loaded.model, "optimizer", None)
    assert translator.model.optimizer is not None  # of the one that was saved


@pytest.mark.backend("torch")
def test_a_shortlist_goes_with_its_translator(translator, tmp_path):
    sizes = translator.model.vocabulary_size, translator.model.target_vocabulary_size
    draw = np.random.default_rng(0)
    best = draw.integers(260, sizes[1], (sizes[0], 4))
    shortlist = Shortlist(best, np.arange(sizes[1])[::-1], frequent=0, each=1)
    both = translator.vocabulary, translator.target_vocabulary
    listed = Translator(translator.model, *both, shortlist=shortlist, **SETTINGS)
    said = listed(TEXTS[0])
    listed.save(tmp_path)
    again = Translator.load(tmp_path)
    assert again.shortlist.each == 1
    assert again(TEXTS[0]) == said
    again.shortlist = None
    again.save(tmp_path)
    assert Translator.load(tmp_path).shortlist is None
    assert listed.search.shortlist is shortlist
    assert listed._search_of().shortlist is None  # what an export searches with


@pytest.mark.backend("torch")
def test_settings_of_any_kind_of_number_are_saved(translator, tmp_path):
    both = translator.vocabulary, translator.target_vocabulary
    settings = {
        "beam_size": np.int64(2),
        "length_penalty": np.float32(0.5),
        "suppress_ids": range(3),
        "jit_compile": False,
    }
    for suppressed in (range(3), {0, 1, 2}, np.arange(3)):
        settings["suppress_ids"] = suppressed
        Translator(translator.model, *both, **settings).save(tmp_path)
        loaded = Translator.load(tmp_path).settings
        assert loaded["suppress_ids"] == [0, 1, 2]
        assert (loaded["beam_size"], loaded["length_penalty"]) == (2, 0.5)


def changed(translator, change):
    """A translator of the same weights with LoRA, or in int8."""
    model = type(translator.model).from_config(translator.model.get_config())
    model.set_weights(translator.model.get_weights())
    if change == "lora":
        model.enable_lora(2)
        for weight in model.trainable_weights:
            weight.assign(np.full(weight.shape, 0.3))
    else:
        quantize(model)
    both = translator.vocabulary, translator.target_vocabulary
    return Translator(model, *both, **SETTINGS)


@pytest.mark.backend("torch")  # files are the same elsewhere
@QUANTIZED
@pytest.mark.parametrize("change", ["lora", "int8"])
def test_a_changed_model_is_saved_as_it_is(translator, change, tmp_path):
    other = changed(translator, change)
    ids = as_ids(translator.vocabulary.encode(TEXTS[3:6]))
    wanted = other.search(ids)
    assert np.abs(wanted.scores - translator.search(ids).scores).max() > 1e-4
    other.save(tmp_path)
    loaded = Translator.load(tmp_path)
    loaded.save(tmp_path)  # over itself
    for found in (loaded.search(ids), Translator.load(tmp_path).search(ids)):
        np.testing.assert_array_equal(found.ids, wanted.ids)
        np.testing.assert_allclose(found.scores, wanted.scores, atol=1e-4)


def test_what_cannot_be_saved_leaves_the_folder_as_it_was(translator, tmp_path):
    translator.save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    both = translator.vocabulary, translator.target_vocabulary
    other = Translator(translator.model, *both, **FAST)
    other.settings["strange"] = object()
    with pytest.raises(TypeError, match="which has no object"):
        other.save(tmp_path)
    other = Translator(draw_transformer(vocabulary_size=300), *both, **FAST)
    other.model.get_config = lambda: {"vocabulary_size": -1}
    with pytest.raises((TypeError, ValueError, KeyError)):
        other.save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert len(before) == 4


@pytest.mark.backend("torch")
def test_what_was_cut_before_its_end_is_counted(translator):
    real = [text for text in TEXTS if text.strip()]
    alone = [translator.search(np.array(translator.rows_of([one])[0])) for one in real]
    ends = [translator.target_vocabulary.end_id in found.ids[0, 0] for found in alone]
    translator(TEXTS)
    assert translator.cut == ends.count(False)
    assert 0 < translator.cut < len(real)
    translator("")
    assert translator.cut == 0


def test_a_damaged_model_is_named(translator, tmp_path):
    translator.save(tmp_path)
    file = tmp_path / "model.keras"
    content = file.read_bytes()
    torn = bytearray(content)
    torn[len(content) // 3 : len(content) // 2] = b"\0" * (
        len(content) // 2 - len(content) // 3
    )
    for damaged in (content[:-100], b"", bytes(torn)):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match="model.keras' is damaged"):
            Translator.load(tmp_path)
    file.write_bytes(content)
    for damaged, words in (("", "is no JSON"), ("[1]", "an object is wanted")):
        (tmp_path / "search.json").write_text(damaged)
        with pytest.raises(ValueError, match=f"search.json.*{words}"):
            Translator.load(tmp_path)


def test_a_folder_without_a_translator_is_named(translator, tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"'model.keras', 'source.model'.*missi"
    ):
        Translator.load(tmp_path)
    translator.save(tmp_path)
    (tmp_path / "target.model").unlink()
    with pytest.raises(FileNotFoundError, match=r"\['target.model'\] missing. Name a"):
        Translator.load(tmp_path)


def hostile():
    """Texts that nobody sends, and somebody does."""
    rng = np.random.default_rng(0)
    letters = [chr(i) for i in range(1, 32)] + list(
        " .!?\"')]\u3002\uff01\u2581ab\U0001f600"
    )
    letters += [
        "\u05d0",
        "\u200f",
        "\u0301",
        "\ufeff",
        "\u2028",
        "\x7f",
        "\x85",
        "\x00",
    ]
    drawn = ["".join(rng.choice(letters, size)) for size in range(1, 60)]
    return [
        *drawn,
        "",
        " ",
        "\n",
        "\r\n\r\n",
        " \t a house \n\n an old man. ",
        "a house.\nan old man\n",
        "<s> a </s> <pad> <0x41>",
        "\u05d1\u05d9\u05ea \u05d5\u05d2\u05df",
        "a" * 300,
        "a house. " * 30,
        "a house of a. b. and 5. garden. " * 10,
        'the "small" boat." ' * 12,
        "a garden and a house " * 30,
        "\u3002".join(["a house"] * 20),
    ]


@pytest.fixture(scope="module")
def exported(translator, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    translator.export(folder, version=3)
    return folder / "3"


@pytest.mark.backend("tensorflow")
def test_the_savedmodel_says_what_the_translator_says(
    translator, translations, exported
):
    texts = hostile()
    asked = [TEXTS, TEXTS[3:4], ["", ""], texts]
    asked = [("serving_default", some) for some in asked]
    asked += [("n_best", TEXTS), ("n_best", ["", ""]), ("encode", TEXTS[:4])]
    every, one, nothing, odd, many, none, states = serve(exported, *asked)
    assert every["translation"] == translations
    assert one["translation"] == translations[3:4]
    assert nothing == {
        "translation": ["", ""],
        "score": [-np.inf] * 2,
        "finished": [True] * 2,
    }
    wanted = translator.translate(texts)
    assert odd["translation"] == [str(one) for one in wanted]
    np.testing.assert_allclose(odd["score"], [one.score for one in wanted], atol=1e-4)
    assert odd["finished"] == [one.hypotheses[0].finished for one in wanted]
    assert odd["finished"].count(False) > 3
    translator(TEXTS)
    assert every["finished"].count(False) == translator.cut > 0
    wanted = translator.translate(TEXTS, num_hypotheses=2)
    for said, scores, one in zip(
        many["translations"], many["scores"], wanted, strict=True
    ):
        if one.source_tokens:
            assert said == [each.text for each in one.hypotheses]
            known = [each.score for each in one.hypotheses]
            np.testing.assert_allclose(scores, known, atol=1e-4)
    assert none["translations"] == [["", ""]] * 2
    ids = as_ids(translator.vocabulary.encode(TEXTS[:4]))
    assert states["ids"] == ids.tolist()
    np.testing.assert_allclose(
        states["states"], translator.model.encode(ids), atol=1e-4
    )
    warm = exported / "assets.extra" / "tf_serving_warmup_requests"
    import tensorflow as tf

    [alone, pair] = tf.data.TFRecordDataset(os.fspath(warm)).as_numpy_iterator()
    assert b"serving_default" in alone and b"one two three" in pair


@pytest.mark.backend("tensorflow")
def test_a_compiled_savedmodel_says_the_same(translator, translations, tmp_path):
    import tensorflow as tf

    shapes = [(8, 24), (2, 12)]
    translator.export(tmp_path, version=1, jit_compile=True, shapes=shapes)
    graph = (tmp_path / "1" / "saved_model.pb").read_bytes()
    assert b"_XlaMustCompile" in graph
    long = "a house " * 20  # of a part that fits in no shape
    asked = [TEXTS[3:4], ["the"] * 2, TEXTS, TEXTS[:8], ["", ""], [long], ["a", long]]
    found = serve(tmp_path / "1", *(("serving_default", texts) for texts in asked))
    for texts, answer in zip(asked, found, strict=True):
        wanted = translator.translate(texts)
        assert answer["translation"] == [str(one) for one in wanted]
        np.testing.assert_allclose(
            answer["score"], [one.score for one in wanted], atol=1e-4
        )
    # What TensorFlow Serving asks first is of every shape, filled.
    first = saved_model._Reader(translator, shapes).first_texts()
    marks = sum(map(len, translator.source_marks))
    for (rows, most), texts in zip(sorted(shapes), first, strict=True):
        sizes = {len(row) for row in translator.vocabulary.encode(texts)}
        assert len(texts) == rows and most - 2 < max(sizes) + marks <= most
    warm = tmp_path / "1" / "assets.extra" / "tf_serving_warmup_requests"
    records = tf.data.TFRecordDataset(os.fspath(warm)).as_numpy_iterator()
    for record, texts in zip(records, first, strict=True):
        assert record.count(texts[0].encode()) == len(texts)
    with pytest.raises(ValueError, match=r"from 1. Received: shapes=\[\[8, 0\]\]"):
        translator.export(tmp_path, jit_compile=True, shapes=[(8, 0)])


@pytest.mark.backend("tensorflow")
def test_a_program_in_c_translates_with_sessions(translator, exported, tmp_path):
    program = in_c(tmp_path)
    texts = [text for text in [*TEXTS, *hostile()] if not {"\n", "\x00"} & set(text)]
    done = subprocess.run(
        [program, exported, text_operations(), *names_of(exported)],
        input="".join(f"{text}\n" for text in texts).encode() + b"a \xff house\n",
        capture_output=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    wanted = translator([*texts, "a \ufffd house"])  # as of what is no UTF-8
    assert done.stdout.decode() == "".join(f"{text}\n" for text in wanted)


@pytest.mark.backend("tensorflow")
def test_the_savedmodel_keeps_the_limits(vocabulary, tmp_path):
    model = draw_transformer(
        vocabulary_size=vocabulary.size, positions="learned", sequence_length=30
    )
    endless = {**FAST, "suppress_ids": [*FAST["suppress_ids"], 3]}
    del endless["max_decoding_length"]
    settings = {**endless, **MARKS, "max_source_length": 40}
    translator = Translator(model, vocabulary, **settings)
    texts = ["a house", "an old man in a small boat", "a"]
    rows = [[270, *row, 3, 271] for row in vocabulary.encode(texts)]
    best = translator.search(as_ids(rows), [[265]] * 3)
    wanted = vocabulary.decode(best.ids[:, 0])
    limits = [2 * len(row) + 16 for row in rows]
    assert best.lengths[:, 0].tolist() == [min(limit, 30) for limit in limits]
    assert min(limits) < 30 < max(limits)
    translator.export(tmp_path)
    import tensorflow as tf

    loaded = tf.saved_model.load(os.fspath(tmp_path)).signatures["serving_default"]
    found = loaded(text=tf.constant([*texts, ""]))
    assert [text.decode() for text in found["translation"].numpy()] == [*wanted, ""]
    assert found["finished"].numpy().tolist() == [False] * 3 + [True]
    long = "a house " * 40
    rows, _ = translator.rows_of([long])
    assert 24 < max(map(len, rows)) <= 30
    found = loaded(text=tf.constant(["the", long]))["translation"].numpy()
    assert [text.decode() for text in found] == translator(["the", long])
    # For 32 tokens there are no positions.
    translator.export(tmp_path, jit_compile=True, shapes=[(1, 32)])


@pytest.mark.backend("torch")
def test_what_json_does_not_know_is_not_saved(translator, tmp_path):
    both = translator.vocabulary, translator.target_vocabulary
    given = {"processors": [lambda x, history: x], **SETTINGS}
    other = Translator(translator.model, *both, **given)
    with pytest.raises(TypeError, match="JSON, which has no function.*`processors`"):
        other.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


@pytest.mark.backend("tensorflow")
@pytest.mark.parametrize("kind", ["t5", "recurrent"])
def test_models_of_other_kinds_are_exported(kind, vocabulary, tmp_path):
    import tensorflow as tf

    if kind == "t5":  # relative positions, of as many slots as there are then
        model = draw_transformer(vocabulary_size=vocabulary.size, positions="t5")
    else:  # states, which need no room
        model = RecurrentSeq2Seq(
            vocabulary.size, embedding_dim=16, units=16, dropout=0.0
        )
        redraw(model, 3)
    translator = Translator(model, vocabulary, **SETTINGS)
    wanted = translator.translate(TEXTS)
    lengths = [len(one.hypotheses[0].tokens) for one in wanted]
    assert max(lengths) > 2 * saved_model.STRETCH
    translator.export(tmp_path)
    loaded = tf.saved_model.load(os.fspath(tmp_path)).signatures["serving_default"]
    found = loaded(text=tf.constant(TEXTS))
    said = [text.decode() for text in found["translation"].numpy()]
    assert said == [str(one) for one in wanted]
    scores = [one.score for one in wanted]
    np.testing.assert_allclose(found["score"], scores, atol=1e-4)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_hypotheses": 0}, "num_hypotheses=0"),
        ({"num_hypotheses": 99}, "num_hypotheses=99, beam_size="),
        ({"version": -1}, "whole number from 0. Received: -1"),
    ],
)
def test_an_export_of_nothing_that_there_is_is_refused(
    wrong, message, translator, tmp_path
):
    with pytest.raises(ValueError, match=message):
        translator.export(tmp_path / "export", **wrong)
    assert not (tmp_path / "export").exists()


def test_an_export_replaces_an_export_and_nothing_else(translator, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="notes.txt.*Name another folder"):
        translator.export(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.backend("jax", "torch")
def test_other_backends_export_in_one_call(translator, translations, tmp_path):
    # Another process is told by JSON what NumPy counts.
    counts = {"version": np.int64(3), "num_hypotheses": np.int64(2)}
    translator.export(tmp_path / "exported", **counts)
    [found] = serve(tmp_path / "exported" / "3", ("serving_default", TEXTS))
    assert found["translation"] == translations


@pytest.mark.backend("jax", "torch")
def test_how_products_are_taken_is_not_saved(translator, tmp_path):
    narrow = Translator(
        translator.model,
        translator.vocabulary,
        translator.target_vocabulary,
        matmul_precision="bfloat16",
    )
    narrow.save(tmp_path / "narrow")
    assert narrow.search.options.matmul_precision == "bfloat16"
    assert (
        Translator.load(tmp_path / "narrow").search.options.matmul_precision
        == "float32"
    )


@pytest.mark.backend("torch", "jax")
def test_what_many_ask_at_once_is_translated_as_alone(translator, translations):
    shared = SharedTranslator(translator, batch_size=4)

    async def ask():
        some = [TEXTS[i : i + 3] for i in range(0, len(TEXTS), 3)]
        return await asyncio.gather(*map(shared.translate, some))

    found = [one for some in asyncio.run(ask()) for one in some]
    assert [one.text for one in found] == translations
    [alone] = translator.translate(TEXTS[:1])
    assert found[0].score == pytest.approx(alone.score, abs=1e-5)
    assert found[0].source_tokens == alone.source_tokens
    with pytest.raises(TimeoutError):
        asyncio.run(shared.translate(TEXTS, seconds=1e-9))
    shared.close()
    with pytest.raises(RuntimeError, match="closed"):
        asyncio.run(shared.translate(TEXTS[:1]))
    other = Translator(
        translator.model,
        translator.vocabulary,
        translator.target_vocabulary,
        sampling_topk=3,
        beam_size=1,
    )
    assert not SharedTranslator.supports(other)
