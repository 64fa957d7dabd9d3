"""Text around the model: protection, numbers, capitals, final marks."""

import re
import time
import unicodedata

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from keras_tfm.decode import Hypotheses
from keras_tfm.pipelines import TextConfig, Translator, letter_case
from keras_tfm.pipelines.digits import numbers_differ
from keras_tfm.pipelines.letter_case import without_final_mark
from keras_tfm.pipelines.loops import has_loop
from keras_tfm.pipelines.placing import (
    BETWEEN,
    CLOSING,
    OPENING,
    join_elements,
    place,
    role_of,
)
from keras_tfm.pipelines.protection import (
    MAX_SPANS,
    Edit,
    apply,
    cut_edges,
    expand,
    find_spans,
    hide,
    hide_numbers,
)
from keras_tfm.pipelines.span_patterns import MARKER, patterns_of
from keras_tfm.pipelines.spelling import MAX_RARE, Spelling

pytestmark = pytest.mark.backend("torch")  # text, which no backend changes
STEPS = {
    "protect": ["all", "ACME-[0-9]+"],
    "stand_ins": ["uomo", "barca", "giardino"],  # words of the target vocabulary
    "match_numbers": True,
    "lower_capitals": True,
    "add_final_mark": True,
    "avoid_loops": True,
}
SPANS = [
    *("https://example.com/a?b=1", "www.example.org", "me@example.com", "ACME-17"),
    *("{name}", "%d", "%(user)s", "${x}", "{{y}}", "`a b`", "#fun", "@anna"),
    *("\U0001f600", "\U0001f44b\U0001f3fd", "\U0001f1e9\U0001f1ea", "\u2764\ufe0f"),
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    *("3\ufe0f\u20e3", "\U000f0000", "C:\\a\\b.txt", "/usr/bin/env"),
    *("<b>", "</b>", "<br/>", '<a href="x y">', "<h1 id=a>"),
]


@pytest.fixture(scope="module")
def careful(translator):
    return translator.replace(**STEPS, max_decoding_length=6)


@pytest.fixture(scope="module")
def preset():
    return Translator.from_preset("en-de")


@pytest.mark.parametrize("span", SPANS)
def test_each_kind_of_span_is_recognized(span):
    patterns = patterns_of(STEPS["protect"])
    text, spans = hide(f"See {span}, or not.", patterns)
    assert [protected.text for protected in spans.values()] == [span]
    assert expand(text, spans) == f"See {span}, or not."


@pytest.mark.parametrize(
    "text",
    [
        *("5% sale", "50%discount", "a@b", "C#", "see: that", "{a b}", "10 % der"),
        *("x <3y", "5*3", "5 * 3", "a < b > c", "if a <b and c> d", "-5 degrees"),
        *("3. Mai 2020", "and/or", "1/2/3", "drive C: is", "well-known"),
    ],
)
def test_plain_text_is_not_protected(text):
    assert hide(text, patterns_of(["all"])) == (text, {})


def test_marks_of_lists_and_markdown_are_recognized():
    text = "# Title\n- one\n* *two*\n1. **three**, four\n2. a\n\u2013 Hi\n> 3) b"
    _, spans = hide(text, patterns_of(["all"]))
    marks = ["#", "-", "*", "*", "*", "1.", "**", "**", "2.", "\u2013", ">"]
    assert [span.text.strip() for span in spans.values()] == marks
    assert {span.kind for span in spans.values()} == {"markup"}
    text = "| a | b |\n|---|---|\n***\n[x](https://a.org/b)<p>c</p>&amp;<!-- d -->"
    _, spans = hide(text, patterns_of(["all"]))
    blocks = [span.text for span in spans.values() if span.kind == "block"]
    assert blocks == ["|", "|", "|", "|---|---|", "***", "<p>", "</p>"]
    inline = [span.text for span in spans.values() if span.kind == "markup"]
    assert inline == ["[", "](https://a.org/b)", "&amp;", "<!-- d -->"]


def test_markup_keeps_its_order_and_its_spaces():
    text, spans = hide("<i>a</i> <b>b c</b>, (<u>d</u>) <br> e", patterns_of(["all"]))
    roles = {m: role_of(m, text, span.text) for m, span in spans.items()}
    pairs = [OPENING, CLOSING]
    assert list(roles.values()) == [*pairs, *pairs, *pairs, BETWEEN]
    source = re.sub(MARKER, "", text)
    offsets = {m: len(re.sub(MARKER, "", text[: text.index(m)])) for m in spans}
    for target in ("a b c, d e", "x", "v w x, y. z z z", ""):
        edits = place(offsets, source, target, None, roles)
        result = expand(apply(target, edits), spans)
        assert re.findall("<.+?>", result) == [span.text for span in spans.values()]
        assert re.sub("<.+?>| ", "", result) == target.replace(" ", "")
    result = expand(
        apply("a b c, d e", place(offsets, source, "a b c, d e", None, roles)), spans
    )
    assert result.startswith("<i>a</i> <b>b")


def test_tags_of_blocks_separate_texts():
    text = "<ul><li>one</li><li>two <b>b</b></li></ul> three<br>four"
    hidden, spans = hide(text, patterns_of(["all"]))
    parts = [expand(part, spans) for part in cut_edges(hidden, spans)]
    assert parts[::2] == ["", "one", "two <b>b", "three", "four"]
    assert "".join(parts) == text


def test_what_a_vocabulary_cannot_spell_is_kept_in_whole_words(preset):
    text = "Q&A, snake_case, \u20b9500-\u20b9600, \u732b, x & y \u2192 z"
    patterns = preset.segmenter.spelling.patterns_of(["all"], [text])
    _, spans = hide(text, patterns)
    assert [(span.text, span.kind) for span in spans.values()] == [
        ("Q&A", "name"),
        ("snake_case", "name"),
        ("\u20b9500-\u20b9600", "number"),
        ("\u732b", "name"),
        ("\u2192", "markup"),
    ]


def test_signs_that_a_vocabulary_writes_otherwise_are_kept(preset):
    text = "Acme\u2122, 20 m\u00b2, x\u00b2, H\u2082O, 21 \u2103, \u2460, \ufb01 \uff21"
    patterns = preset.segmenter.spelling.patterns_of(["all"], [text])
    _, spans = hide(text, patterns)
    assert [(span.text, span.kind) for span in spans.values()] == [
        ("Acme\u2122", "name"),
        ("20 m\u00b2", "number"),
        ("x\u00b2", "name"),
        ("H\u2082O", "name"),
        ("21 \u2103", "number"),
        ("\u2460", "name"),
    ]


def test_words_with_marks_of_markdown_inside_stay():
    text = "un***believ***able and **very**important **news** 2**3 a*b"
    _, spans = hide(text, patterns_of(["all"]))
    words = [span.text for span in spans.values() if span.kind == "name"]
    assert words == ["un***believ***able", "**very**important", "2**3"]


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_decomposed_accents_are_read_as_composed_ones(preset, form):
    def normalized(text):
        return unicodedata.normalize(form, text)

    text = normalized(
        "Jos\u00e9 Ram\u00edrez met Ren\u00e9e \U0001f600 at the caf\u00e9."
    )
    expected = "Jos\u00e9 Ram\u00edrez traf Ren\u00e9e \U0001f600 im Caf\u00e9."
    result = preset.translate(text, return_attention=True)
    assert (result.source, result.text) == (text, expected)
    span = normalized("/Jos\u00e9/\u00e9.txt")
    assert preset(normalized("Der \u00c9: ") + span).endswith(span)  # as it was
    hidden, spans = hide(normalized("\u00e9 #caf\u00e9 \u00e9"), patterns_of(["all"]))
    assert (hidden[0], hidden[-1], len(hidden)) == ("\u00e9", "\u00e9", 5)
    assert [span.text for span in spans.values()] == [normalized("#caf\u00e9")]


def test_an_element_stays_around_its_only_span():
    text, spans = hide(
        "a <i><b>{x}</b></i>{y} **{z}** <u>c {v}</u>", patterns_of(["all"])
    )
    markers = {span.text: marker for marker, span in spans.items()}
    for copied in ("{x}", "{y}"), ("{z}",), ():
        edits = [Edit(0, 0, markers[name]) for name in copied]
        names = [markers[name] for name in copied]
        offsets = {m: n for n, m in enumerate(spans) if m not in names}
        results, remaining = join_elements(text, spans, edits, offsets)
        pieces = [expand(edit.text, spans) for edit in results]
        pieces += [expand(key, spans) for key in remaining]
        assert sorted(pieces) == sorted(
            ["<i><b>{x}</b></i>", "{y}", "**{z}**", "<u>", "{v}", "</u>"]
        )


def test_more_spans_than_there_are_markers_stay_text():
    text = "<b>a</b> " * 40_000
    hidden, spans = hide(text, patterns_of(["all"]))
    assert len(spans) == MAX_SPANS and expand(hidden, spans) == text


def test_a_colon_at_the_end_is_cut_off_and_none_inside():
    text, spans = hide("**Note:** he said: go:", patterns_of(["all"]))
    parts = [expand(part, spans) for part in cut_edges(text, spans, cuts_colon=True)]
    assert parts[::2] == ["", "Note", "he said: go", ""]
    assert parts[1::2] == ["**", ":** ", ":"]


@hypothesis.settings(max_examples=60)
@hypothesis.given(
    strategies.lists(
        strategies.sampled_from(
            [*SPANS, "a house", "THE BOAT", "old 374", ".", "! ", ",", "\n", "uomo", ""]
        ),
        max_size=7,
    ),
    strategies.sampled_from(["", " ", " ", " "]),
    strategies.integers(0, 2**32 - 1),
)
def test_no_nonsense_of_a_model_loses_doubles_or_changes_a_span(
    careful, parts, space, seed
):
    text, rng = space.join(parts), np.random.default_rng(seed)
    [source] = careful.encode([text])
    # Two hypotheses of random words, stand-ins among them, with attention.
    decoded = [
        Hypotheses(
            rng.integers(260, careful.target_vocabulary.size, (1, 2, 6)),
            rng.normal(size=(1, 2)),
            rng.integers(0, 7, (1, 2)),
            attention=rng.random((1, 2, 6, len(segment.ids))) if seed % 2 else None,
        )
        for segment in source.segments
    ]
    [result] = careful.assemble([source], decoded, merge=False, fixed=[0])
    _, spans = hide(text, patterns_of(STEPS["protect"]))
    # Neighbors are one span, and may get other neighbors.
    pieces = [piece for span in spans.values() for piece in span.text.split()]
    for output in result.hypotheses:
        for piece in pieces:
            count = sum(span.text.count(piece) for span in spans.values())
            # More only where what is no span makes one with its neighbor.
            limit = max(count, text.count(piece))
            assert count <= output.text.count(piece) <= limit


def test_beams_lists_and_streams_keep_spans(careful):
    text = "a house of 374 {name} \U0001f600 and https://a.org"
    result = careful.translate(text, num_hypotheses=2, return_attention=True)
    for output in result.hypotheses:
        for span in ("{name}", "\U0001f600", "https://a.org"):
            assert output.text.count(span) == 1
        assert output.attention.shape == (
            len(output.tokens),
            len(result.source_tokens),
        )
    assert result.number_mismatch is (not re.search(r"\b374\b", result.text))
    *_, last = careful.stream(text)
    assert last == careful.translate(text, beam_size=1).text


def test_nothing_but_spans_is_not_translated(careful):
    for text in ("https://a.org", " \U0001f600\n{x}, %d!", "NATO"):
        [source] = careful.encode([text])
        assert not source.segments
        assert careful(text) == text


@pytest.mark.parametrize("sign", ["\u20b9", "=", "<b>", "\U0001f600,"])
def test_long_runs_of_signs_get_no_space(preset, sign):
    run = sign * 500
    for text in (run, f"Look at {run} now.", f"Look {run}\n{run}now"):
        [source] = preset.encode([text])
        parts = [segment.steps.source for segment in source.segments]
        assert source.join(parts) == text


BESIDE = ["x", "_", "7", ")", "q\u0308", "\u0939\u093f", "\u338f", "\U0001f600", "`c`"]
BESIDE += ["\x01", "\x0b", "\x1c", "\x7f", "\xad", "\u200b", "\u200d", "\ufeff"]
# The names that stand for spans, one of them in another form.
NAMES = "Tom, John, Bill, Lisa and \uff22oston saw it, and T\xadomo. "


@pytest.mark.parametrize("beside", BESIDE)
def test_spans_of_several_sentences_stay_where_they_are(preset, beside):
    def words_before(text):
        return [
            (span[0], re.findall("[a-z]{3,}", text[: span.start()])[-1])
            for span in re.finditer(r"\{\w\}", text)
        ]

    for first, second in ((beside, beside), (beside, ""), ("", beside)):
        text = f"We saw the{first}{{a}}{second}near the old river in winter. {NAMES}"
        text += "Then we met {b} in the garden of the house, and it was {c} again."
        [source] = preset.encode([text])
        assert len(source.segments) > 1
        whole = source.join([part.steps.source for part in source.segments])
        assert words_before(whole) == words_before(text)
        assert all(name in whole for name in ("Tom", "John", "Bill", "Lisa"))


def test_steps_are_off_unless_asked_for(translator, careful, tmp_path):
    assert not translator.config.has_steps and careful.config.has_steps
    [source] = translator.encode(["SEE https://a.org"])
    assert source.segments[0].steps is None
    changes = careful.changes()
    assert {name: changes[name] for name in STEPS} == {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in STEPS.items()
    }
    careful.save(tmp_path)
    assert Translator.load(tmp_path).config == careful.config


def test_capitals_that_have_no_token_are_lowered():
    translator = Translator.from_preset("es-en")
    spelling = translator.segmenter.spelling
    assert spelling.unknown(["MA\u00d1ANA, \u0416"]) == ["\u0416"]
    text = "Estar\u00e9 all\u00ed MA\u00d1ANA, \u0416\u0423\u041a."
    assert spelling.lower_unknown(text) == text.replace("MA\u00d1ANA", "ma\u00f1ana")
    assert spelling.lower_unknown("OPEN, \u00a1HOLA!") == "OPEN, \u00a1HOLA!"
    assert translator("Estar\u00e9 all\u00ed MA\u00d1ANA.") == "I'll be there tomorrow."
    assert "BIRTHDAY" in translator("\u00a1FELIZ CUMPLEA\u00d1OS, ABUELA!")


class NoVocabulary:
    """A vocabulary that can spell nothing."""

    def encode(self, texts):
        return [[0] for _ in texts]

    def tokens(self, ids):
        return ["<unk>" for _ in ids]


def test_hundreds_of_thousands_of_known_characters_take_no_time():
    spelling = Spelling(NoVocabulary())
    spelling.unknown(["".join(map(chr, range(0x20000, 0x50000)))])
    begin = time.process_time()
    for _ in range(100):  # segments
        assert spelling.lower_unknown("a text") == "a text"
    assert time.process_time() - begin < 0.5


def test_thousands_of_rare_characters_take_linear_time():
    text = " ".join(map(chr, range(0x100000, 0x100000 + 20_000)))
    begin = time.process_time()
    patterns = Spelling(NoVocabulary()).patterns_of(["unknown"], [text, "\u4e00"])
    spans = find_spans(text, patterns)
    assert time.process_time() - begin < 1
    assert spans[0] == (0, 1, "markup") and len(spans) == MAX_RARE
    assert find_spans("a \u4e00", patterns) == [(2, 3, "name")]


def test_single_words_in_capitals_are_lowered_but_not_acronyms(preset):
    vocabulary = preset.vocabulary
    text = "STOP, I NEVER said NATO or JSON: a_VERY_b, VERY1."
    lowered = "Stop, I never said NATO or JSON: a_VERY_b, VERY1."
    assert letter_case.lower_emphasis(text, vocabulary) == lowered
    assert letter_case.lower_emphasis("plain text", vocabulary) == "plain text"
    assert preset("I NEVER said that.") == preset("I never said that.")
    [source] = preset.encode(["I NEVER said that."])
    assert source.segments[0].steps.model_text == "I never said that."
    assert preset("NEVER AGAIN!").isupper()


@pytest.mark.parametrize("step", ["match_numbers", "lower_capitals", "avoid_loops"])
def test_characters_of_private_use_need_no_protection(translator, step):
    changes = {step: True, "stand_ins": STEPS["stand_ins"], "max_decoding_length": 6}
    text = "a house \U000f0000 and \U000ffffd a boat"
    answer = translator.replace(**changes)(text)
    private = sorted(char for char in answer if char > "\U000effff")
    assert private == ["\U000f0000", "\U000ffffd"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"protect": ["("]}, r"`protect` must hold kinds.*got '\('"),
        ({"protect": [3]}, "`protect` must be a str or a list of str"),
        ({"match_numbers": 1}, "`match_numbers` must be True or False; got 1"),
    ],
)
def test_wrong_options_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        TextConfig(**changes)


def test_few_words_may_stay_without_a_final_mark(careful):
    careful = careful.replace(final_mark_words=3)
    [source] = careful.encode(["a boat\nan old boat"])
    assert [segment.steps.final_mark for segment in source.segments] == ["", "."]


def test_protection_has_short_forms():
    assert TextConfig(protect=True).protect == ("all",)
    assert TextConfig(protect="url").protect == ("url",)
    for nothing in (False, "none", [], ["none", "url"]):
        assert TextConfig(protect=nothing).protect == ()


@pytest.mark.parametrize(
    ("source", "target", "differ"),
    [
        ("1,234.5", "1.234,5", False),
        ("1 000 km", "1,000 km", False),
        ("at 10:30", "um 10.30 Uhr", False),
        ("2024-01-05", "05.01.2024", False),
        ("3 cats", "drei Katzen", False),
        ("100", "hundert", False),
        ("twenty-five", "25", False),
        ("dreihundertvierundsiebzig", "374", False),
        ("374", "373", True),
        ("374", "trois cents", True),
        ("No one has 374.", "Niemand hat 373.", True),
        ("at 5", "um 5 und 6", True),
        ("5 million 300", "300", True),
        ("229 sur 408 172", "229 of 408, 172", True),
        ("229 de 408.172", "229,408,172", True),
    ],
)
def test_numbers_agree_across_languages(source, target, differ):
    assert numbers_differ(source, target) == differ


def test_a_number_with_separators_is_hidden_as_one():
    text = "Le 3/4/2019, 229 sur 408 172, 1.234,50 € et 5 000 000."
    hidden, spans = hide_numbers(text, {})
    numbers = [span.text for span in spans.values()]
    assert numbers == ["3/4/2019", "229", "408 172", "1.234,50", "5 000 000"]
    assert expand(hidden, spans) == text


def test_a_hypothesis_with_the_right_numbers_is_taken(preset):
    sources = preset.encode(["I have 607 books."])
    [ids] = preset.target_vocabulary.encode(["Ich habe 67 B\u00fccher."])
    wrong = Hypotheses(np.array([[ids]]), np.zeros((1, 1)), np.array([[len(ids)]]))
    [unrepaired] = preset.assemble(sources, [wrong], fixed=[0])
    assert "67" in unrepaired.text and unrepaired.number_mismatch
    [repaired] = preset.assemble(sources, [wrong])
    assert "607" in repaired.text and not repaired.number_mismatch


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Niemand Niemand Niemand", True),
        ("of the big dog, the big dog and the big dog", False),
        ("the big dog the big dog, The big dog", True),
        ("wonderderderder", True),
        ("\u597d\u7684\u597d\u7684\u597d\u7684\u597d\u7684", True),
        ("Ja, ja, das ist gut. 1111111111111 ........ -----", False),
        ("1.000.000.000 Euro, 10 000 000 000 Tonnen um 10:10:10 Uhr", False),
        ("Zimmer 1, Zimmer 1, Zimmer 1", True),
    ],
)
def test_loops_are_words_or_signs_in_a_row(text, expected):
    assert has_loop(text) == expected


def test_a_translation_that_repeats_itself_is_decoded_again(preset):
    def decoded(text):
        [ids] = preset.target_vocabulary.encode([text])
        return Hypotheses(np.array([[ids]]), np.zeros((1, 1)), np.array([[len(ids)]]))

    wrong = decoded("Der Hund Hund Hund Hund Hund.")
    sources = preset.encode(["The dog is big."])
    [repaired] = preset.assemble(sources, [wrong])
    assert repaired.text == "Der Hund ist gro\u00df."
    assert repaired.hypotheses[0].text == repaired.text
    [unchanged] = preset.replace(avoid_loops=False).assemble(sources, [wrong])
    assert unchanged.text == "Der Hund Hund Hund Hund Hund."
    sources = preset.encode(["Dog dog dog dog dog."])
    [unchanged] = preset.assemble(sources, [wrong])  # as its source does
    assert unchanged.text == "Der Hund Hund Hund Hund Hund."


def test_sampled_texts_are_not_decoded_again(preset):
    options = {"beam_size": 1, "sampling_topk": 0, "sampling_temperature": 1.5}
    options |= {"num_hypotheses": 3, "seed": 0}
    text = "Anna Smith paid 12345 euros to Zbigniew in 1987."
    first, second = (preset.translate(text, **options) for _ in range(2))
    assert len(first.hypotheses) == 3
    assert [h.text for h in first.hypotheses] == [h.text for h in second.hypotheses]


def test_a_text_without_a_likely_token_is_left_as_it_is(preset):
    [source] = preset.encode(["I have 607 books."])
    nothing = np.zeros((1, 1, 1), "int32")
    never = Hypotheses(nothing, np.full((1, 1), -np.inf), np.zeros((1, 1), "int32"))
    assert preset.assemble([source], [never])[0].text == ""


def test_fewer_hypotheses_finish_with_little_patience(preset):
    text = "The numbers are 1, 22, 333, 4444, 55555, 666666, 7777777."
    impatient = preset.replace(patience=0.5)
    assert impatient(text)
    assert impatient.replace(beam_size=2)(text)


def test_numbers_that_still_differ_are_marked(careful):
    careful = careful.replace(protect="none")  # the vocabulary has no digits
    [source] = careful.encode(["a house of 374"])
    ids = np.full((1, 1, 3), 265)
    decoded = [Hypotheses(ids, np.zeros((1, 1)), np.array([[3]]))]
    assert careful.assemble([source], decoded, fixed=[0])[0].number_mismatch is True
    without = careful.replace(match_numbers=False)
    assert without.assemble([source], decoded)[0].number_mismatch is False


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Acme\u2122 phone is new.", "Das Acme\u2122 Telefon ist neu."),
        (
            "Click <b>{button}</b> to continue.",
            "Klicken Sie <b>{button}</b>, um fortzufahren.",
        ),
        ("Good morning \U0001f600", "Guten Morgen \U0001f600"),
        ("\U0001f600 Good morning!", "\U0001f600 Guten Morgen!"),
        ("I love you \u2764\ufe0f so much.", "Ich liebe dich \u2764\ufe0f so sehr."),
        (
            "You can reach me at info@shop.de at any time.",
            "Du kannst mich jederzeit bei info@shop.de erreichen.",
        ),
        ("Do you know https://a.org?", "Kennen Sie https://a.org?"),
        ("{author} wrote this book.", "{author} hat dieses Buch geschrieben."),
        ("It will take about %d minutes.", "Es wird etwa %d Minuten dauern."),
        ("WHERE IS THE STATION?", "WO IST DER BAHNHOF?"),
        ("NATO", "NATO"),
        ("Yes", "Ja"),
        ("No", "Nein"),
        ("I need a doctor", "Ich brauche einen Arzt"),
        ("Hello\n\U0001f44d\nGood night", "Hallo\n\U0001f44d\nGute Nacht"),
        ("The infor\xadma\xadtion is impor\xadtant.", "Die Information ist wichtig."),
        ("I am old.\xad", "Ich bin alt."),
        ("Good morning.\vHow are you?", "Guten Morgen. Wie geht es dir?"),
        ("I am old.\x85How are you?\v", "Ich bin alt. Wie geht es dir?\v"),
        ("`a\xadb` is here.", "`a\xadb` ist hier."),
    ],
)
def test_a_preset_translates_what_is_not_prose(preset, text, expected):
    assert preset(text) == expected


def test_alignments_count_the_words_of_protected_text(preset):
    text = "I see \U0001f600 the {a} {b} house! Visit https://a.org"
    result = preset.translate(text, return_attention=True)
    sources, targets = text.split(), result.text.split()
    links = result.hypotheses[0].alignment
    pairs = {(sources[i], targets[j]) for i, j in links}
    identical = {("\U0001f600",) * 2, ("{a}",) * 2, ("https://a.org",) * 2}
    assert pairs >= {*identical, ("house!", "Haus!")}


@pytest.mark.parametrize("run", ["[", "[a](", "<!--", "<script ", "1,", "?."])
def test_long_runs_take_linear_time(run, careful):
    """Quadratic time, as of `<!--.*?-->`, would be 100 times as much."""
    patterns = careful.segmenter.spelling.patterns_of(("all", "unknown"), ["\u263a"])

    def seconds(count):
        text, begin = run * (count // len(run)) + "\u263aa", time.process_time()
        hide(text, patterns)
        without_final_mark(text)
        return time.process_time() - begin

    seconds(4_000)
    assert seconds(40_000) < 30 * max(seconds(4_000), 0.02)
