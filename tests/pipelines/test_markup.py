"""HTML and XML: nothing is lost, and tags stay well-formed."""

import random
import time
import types
import xml.etree.ElementTree as ElementTree
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keras_tfm.pipelines import Hypothesis, Translation, Translator, translate_markup
from keras_tfm.pipelines.markup import tokenize, units

pytestmark = pytest.mark.backend("torch")


class Babbler:
    """Translates to nonsense with nonsensical alignments."""

    begin_options = ("return_attention",)

    def begin(self):
        """Never called."""

    step = begin

    def __init__(self, protect=()):
        self.model, self.config = self, types.SimpleNamespace(protect=protect)
        self.texts = []

    def translate(self, texts, **options):
        self.texts += texts
        draw = random.Random(len(texts))
        translations = []
        for text in texts:
            words = [word for word in text.split() if draw.random() < 0.7]
            words = [*words, *draw.choices(["la,", "(bla)", "&", "<da>", "."], k=3)]
            draw.shuffle(words)
            count = len(text.split())
            links = [(draw.randrange(count + 2), draw.randrange(9)) for _ in range(6)]
            hypothesis = Hypothesis(" ".join(words), 0.0, [], None, False, links)
            translations.append(Translation(text, [], [hypothesis]))
        return translations


WORDS = st.sampled_from(
    ["a ", "house", " boat.", "&amp; ", "(old) ", "\n", "", "é", "&lt;b"]
)
LEAVES = WORDS | st.sampled_from(
    [
        *("<img src='a>b'/>", "<br/>", "<!-- <b> -->", "<i/>", "<?x y?>"),
        '<span translate="no">Keep <b>me</b> &amp; go</span>',
        '<p translate="no">Keep <b>me</b> &amp; go</p>',
    ]
)
NAMES = st.sampled_from(["b", "i", "span", "a", "p", "div", "td"])
TREES = st.recursive(
    LEAVES,
    lambda children: st.builds(
        lambda name, parts: f'<{name} x="1">{"".join(parts)}</{name}>',
        NAMES,
        st.lists(children, max_size=4),
    ),
    max_leaves=12,
)


@settings(max_examples=40)
@given(st.lists(TREES, max_size=3).map("".join), st.sampled_from(["html", "xml"]))
@example("<b>a</b><i></i><b> <i>house</i> </b>", "html")
@example("<b>.</b> a<b>!</b>", "html")
def test_tags_stay_once_and_well_formed(text, format):
    for protect in ((), ("all",)):
        answer = translate_markup(Babbler(protect), text, format)
        tree, expected = (ElementTree.fromstring(f"<r>{t}</r>") for t in (answer, text))
        assert Counter(e.tag for e in tree.iter()) == Counter(
            e.tag for e in expected.iter()
        )
        content = 'translate="no">Keep <b>me</b> &amp; go</'
        assert answer.count(content) == text.count(content)
        if protect:  # the translator decides where a protected element stands
            continue
        parents, expected_parents = (
            Counter((p.tag, c.tag) for p in t.iter() for c in p)
            for t in (tree, expected)
        )
        assert parents == expected_parents


@given(st.text(st.sampled_from('<>/&;!-"= ab]['), max_size=60))
@example("<b")
@example("a < b and <b")
@example("<!-- a")
@example("</b><p>a<i>b</p>c</i><![CDATA[x]]>&amp;&#x41;&bad")
@example("<script>if (a<b) </p></script>x")
def test_no_character_of_broken_markup_is_lost(text):
    for is_xml in (False, True):
        tokens = tokenize(text, is_xml)
        assert "".join(token.raw for token in tokens) == text
        pieces = [token for unit in units(tokens, is_xml) for token in unit.tokens]
        assert pieces == tokens
    translate_markup(Babbler(), text)


def test_what_is_no_prose_is_not_translated():
    text = (
        "<!DOCTYPE html><title>Home</title><style>p > b {color: red}</style>"
        "<script>if (a < b) say('hello')</script><p>Hello,\n  <b>you</b>&nbsp;two</p>"
        "<p translate=no>Stay <i>here</i><b translate=yes>Go</b></p><!-- note -->"
        "<pre>one\n two</pre><p>1 + 2</p><p>Use <code>x</code> <br>Then"
    )
    babbler = Babbler()
    answer = translate_markup(babbler, text)
    expected = ["Home", "one\n two", "Then", "Hello, you\xa0two", "Use"]
    assert sorted(map(str.strip, babbler.texts)) == sorted(expected)
    for part in ("<style>p > b {color: red}</style>", "<p>1 + 2</p>", "<!-- note -->"):
        assert part in answer
    assert "<script>if (a < b) say('hello')</script>" in answer
    assert "<code>x</code>" in answer and "Stay <i>here</i>" in answer


ODD_XML = """<?xml version="1.0"?>
<!DOCTYPE \u00fc [<!-- ]> --><!ENTITY co "<b>A</b> ]>"> <?x ]> ?>
<!ENTITY my_co 'B Corp'>]><\u00fc _x='a &gt; "b"'><_a>Ask &co; and <b>&my_co;</b></_a>
<![CDATA[ if (a[b[0]] > 1) go ]]><?php echo $a->b; ?><A><a>Go</a></A><br>on</br
></\u00fc>"""


def test_xml_is_read_by_the_rules_of_xml():
    tokens = tokenize(ODD_XML, is_xml=True)
    assert "".join(token.raw for token in tokens) == ODD_XML
    texts = [t.raw.strip() for t in tokens if t.kind == "text" and t.raw.strip()]
    assert texts == ["Ask", "and", "Go", "on"]
    references = [token.raw for token in tokens if token.kind == "reference"]
    assert references == ["&co;", "&my_co;"]
    for protect in ((), ("all",)):
        babbler = Babbler(protect)
        answer = translate_markup(babbler, ODD_XML, "xml")
        tags, expected = (
            Counter(e.tag for e in ElementTree.fromstring(text).iter())
            for text in (answer, ODD_XML)
        )
        assert tags == expected
        entities = ("&co;", "&my_co;") if not protect else ()
        for part in (*entities, *(t.raw for t in tokens if t.kind == "other")):
            assert answer.count(part) == 1
        assert not any("&" in text or "if" in text for text in babbler.texts)
    text = '<!DOCTYPE r [<!ENTITY co "A">]><r alt="&co; b"><i alt="c">d</i></r>'
    answer = translate_markup(Babbler(), text, "xml", ("alt",))
    assert 'alt="&co; b"' in answer and 'alt="c"' not in answer


def test_a_protected_element_stands_where_the_translator_puts_it():
    class Copier(Babbler):
        def translate(self, texts, **options):
            hypotheses = [Hypothesis(t[::-1], 0.0, [], None, False) for t in texts]
            return [Translation("", [], [h]) for h in hypotheses]

    text = "ab <code>x</code> cd <kbd>y</kbd>"
    answer = translate_markup(Copier(), text)
    assert answer.split() == ["dc", "<code>x</code>", "ba", "<kbd>y</kbd>"]
    answer = translate_markup(Copier(("all",)), text)
    assert answer == "<kbd>y</kbd> dc <code>x</code> ba"


@pytest.mark.parametrize(
    "span", ["{p1}", "{{ p 1 }}", "%d", "https://a.org/b/", "`a b c`", "me@a.org"]
)
def test_no_tag_stands_inside_what_is_protected(span):
    draw = random.Random(span)

    class Copier(Babbler):
        def translate(self, texts, **options):
            links = [(draw.randrange(9), draw.randrange(9)) for _ in range(9)]
            hypotheses = [Hypothesis(t, 0.0, [], None, False, links) for t in texts]
            return [Translation("", [], [h]) for h in hypotheses]

    for text in (
        f"<b>one</b> <i>two</i> {span}, <u>three</u>",
        f"<b>one ({span}) two</b> three",
        f"<b>one</b> <i>{span}</i>. <u>two</u>",
    ):
        for _ in range(9):
            answer = translate_markup(Copier(("all",)), text)
            assert span in answer and answer.count("</") == text.count("</")


def test_attributes_are_translated_if_they_are_named():
    class Upper(Babbler):
        def translate(self, texts, **options):
            hypotheses = [Hypothesis(t.upper(), 0.0, [], None, False) for t in texts]
            return [Translation("", [], [h]) for h in hypotheses]

    rest = '<p translate="no"><img alt="g"></p><input placeholder="h" alt=i>'
    text = "<p title=\"a &quot;b&quot;\">x <img alt='c & d' id=\"alt='e'\" "
    text += 'title="f"> y</p>'
    answer = translate_markup(Upper(), text + rest, attributes=("alt", "title"))
    expected = "<p title=\"A &quot;B&quot;\">X <img alt='C &amp; D' id=\"alt='e'\" "
    assert answer == expected + 'title="F"> Y</p>' + rest
    assert 'title="f"' in translate_markup(Upper(), text)


def test_many_nested_and_many_unclosed_tags_take_linear_time():
    for text in (
        "<b>" * 1_000 + "a" + "</b>" * 1_000,
        "<b>a" * 1_000,
        "<b></i>" * 1_000,
    ):
        answer = translate_markup(Babbler(), text)
        assert answer.count("<b>") == text.count("<b>")


@pytest.mark.parametrize("run", ["<a ", "<a b=", '<a "', "<a/", "</a "])
def test_incomplete_tags_take_linear_time(run):
    """Quadratic time would be 100 times as much."""

    def seconds(count):
        text, begin = "<p>a</p>" + run * (count // len(run)), time.process_time()
        tokens = tokenize(text)
        assert [token.raw for token in tokens[:3]] == ["<p>", "a", "</p>"]
        assert "".join(token.raw for token in tokens) == text
        return time.process_time() - begin

    seconds(4_000)
    assert seconds(40_000) < 30 * max(seconds(4_000), 0.02)


def test_invalid_markup_is_rejected():
    with pytest.raises(ValueError, match="`texts` must be well-formed XML; got '<b>"):
        translate_markup(Babbler(), "<b>a", "xml")
    with pytest.raises(ValueError, match="`format` must be one of .*; got 'rtf'"):
        translate_markup(Babbler(), "a", "rtf")


def test_a_preset_keeps_tags_around_their_words():
    translator = Translator.from_preset("en-de")
    texts = {
        "<b>Hello</b>, how are you?": "<b>Hallo</b>, ",
        "<p>Good <b>morning</b>!</p>": "<p>Guten <b>Morgen</b>!</p>",
        "<ul><li>Where is the <em>station</em>?": "<li>Wo ist der <em>Bahnhof</em>?",
        "<p>She must have <b>forgotten</b> the meeting.": " <b>vergessen</b> haben",
    }
    answers = translate_markup(translator, list(texts))
    for answer, part in zip(answers, texts.values(), strict=True):
        assert part in answer
