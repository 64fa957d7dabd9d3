"""Splits HTML and XML into texts to translate and what stays as it is."""

import html
import html.parser
import itertools
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Collection, Sequence
from typing import NamedTuple

_INLINE = """
a abbr acronym b bdi bdo big cite code data del dfn em font i img input ins kbd
label mark q s samp small span strike strong sub sup time tt u var wbr
"""
_VOID = "area base br col embed hr img input link meta param source track wbr"
_UNTRANSLATED = "code kbd samp var script style noscript template svg math"
INLINE, VOID = frozenset(_INLINE.split()), frozenset(_VOID.split())
UNTRANSLATED = frozenset(_UNTRANSLATED.split())
_ATTRIBUTE = re.compile(r"""\s([^\s=>"'/]+)\s*=\s*("[^"]*"|'[^']*'|[^\s>"']+)""")
_TAG_BEGIN = re.compile("<(?=[a-zA-Z/])")
BLANK = " \t\n\r\f"
# In XML. To an entity other than the five that all documents have:
REFERENCE = re.compile(r"(&(?!(?:amp|lt|gt|quot|apos);)[^\s&;<#]+;)")
_XML_TAG = re.compile(r"""<(/?)([^\s<>/="'&!?]+)(?:[^<>"']|"[^<"]*"|'[^<']*')*>""")
_SECTIONS = (("<!--", "-->"), ("<![CDATA[", "]]>"), ("<?", "?>"))
_DECLARATION = re.compile(r""""[^"]*"|'[^']*'|[][<>]""")


class Token(NamedTuple):
    """A tag, a text between tags, or anything else of a document.

    Attributes:
        kind: `"text"`, `"start"`, `"end"`, `"empty"` (a tag without content),
            `"reference"` (to an entity that an XML document declares), or
            `"other"`, such as a comment.
        raw: str, as in the document.
        name: str, the element of a tag, in lower case; in XML as it is.
        translate: bool or None, by the attribute `translate`, or False for such
            as `code` and `script`.
    """

    kind: str
    raw: str
    name: str = ""
    translate: bool | None = None


class Unit(NamedTuple):
    """Tokens that are translated as one text, or that stay as they are.

    Attributes:
        tokens: list of `Token`.
        partners: for each token the index of the tag that closes or opens its
            element; its own index for other tokens.
        is_text: bool. False: stays as it is.
        keeps_space: bool. Line breaks are part of the text, as in `pre`.
    """

    tokens: Sequence[Token]
    partners: Sequence[int]
    is_text: bool
    keeps_space: bool = False


class _Parser(html.parser.HTMLParser):
    """Notes where each token of a document begins."""

    def __init__(self):
        super().__init__(convert_charrefs=False)
        self.begins = []

    def _note(self, kind, name="", attributes=()):
        attributes = dict(attributes)
        translate = _translate_of(attributes)
        if translate is None and name in UNTRANSLATED:
            translate = False
        self.begins.append((self.getpos(), (kind, name, translate)))

    def handle_starttag(self, tag, attrs):
        self._note("empty" if tag in VOID else "start", tag, attrs)

    def handle_startendtag(self, tag, attrs):
        self._note("empty", tag, attrs)

    def handle_endtag(self, tag):
        self._note("other" if tag in VOID else "end", tag)

    def handle_data(self, data):
        self._note("text")

    def handle_entityref(self, name):
        self._note("text")

    def handle_charref(self, name):
        self._note("text")

    def handle_comment(self, data):
        self._note("other")

    def handle_decl(self, decl):
        self._note("other")

    def handle_pi(self, data):
        self._note("other")

    def unknown_decl(self, data):
        self._note("other")

    def parse_marked_section(self, i, report=1):
        # The parser of Python raises an AssertionError of "<![;".
        if self.rawdata.startswith("<![CDATA[", i):
            return super().parse_marked_section(i, report)
        return self.parse_bogus_comment(i, report)


def _translate_of(attributes):
    """What attributes say about translation: True, False, or None."""
    value = attributes.get("translate")
    if "notranslate" in (attributes.get("class") or "").split():
        return False
    return {None: None, "no": False}.get(value, True)


def tokenize(text: str, is_xml: bool = False) -> list[Token]:
    """Splits a document into tokens, whose `raw` make the document again.

    Args:
        text: str, well-formed or not.
        is_xml: bool.
    """
    if is_xml:
        return _tokenize_xml(text)
    # After the last ">" no tag is complete, and the parser takes quadratic time
    # to find that out. It gives positions only, so it may read other letters.
    end = text.rfind(">") + 1
    parser = _Parser()
    parser.feed(text[:end] + _TAG_BEGIN.sub("-", text[end:]))
    parser.close()
    lines = list(
        itertools.accumulate((len(s) + 1 for s in text.split("\n")), initial=0)
    )
    begins = [lines[line - 1] + column for (line, column), _ in parser.begins]
    parts = [("other", "", None), *(content for _, content in parser.begins)]
    tokens: list[Token] = []
    for begin, end, (kind, name, translate) in zip(
        [0, *begins], [*begins, len(text)], parts, strict=True
    ):
        raw = text[begin:end]
        if tokens and kind == tokens[-1].kind == "text":
            tokens[-1] = tokens[-1]._replace(raw=tokens[-1].raw + raw)
        elif raw:
            tokens.append(Token(kind, raw, name, translate))
    return tokens


def _tokenize_xml(text):
    """As `tokenize`. A parser of HTML has other names, and other ends of
    declarations, instructions and CDATA sections."""
    tokens, begin, position = [], 0, 0

    def add_text(end):
        for number, raw in enumerate(REFERENCE.split(text[begin:end])):
            if raw:
                tokens.append(Token("reference" if number % 2 else "text", raw))

    while (position := text.find("<", position)) >= 0:
        end = _end_of_other(text, position)
        tag = None if end else _XML_TAG.match(text, position)
        if tag is None and not end:  # not well-formed
            position += 1
            continue
        add_text(position)
        if tag is None:
            tokens.append(Token("other", text[position:end]))
        else:
            attributes = {m[1]: m[2].strip("\"'") for m in _ATTRIBUTE.finditer(tag[0])}
            kind = "empty" if tag[0].endswith("/>") else "start"
            kind = "end" if tag[1] else kind
            tokens.append(Token(kind, tag[0], tag[2], _translate_of(attributes)))
        begin = position = position + len(tokens[-1].raw)
    add_text(len(text))
    return tokens


def _end_of_other(text, begin):
    """Where a comment, a CDATA section, an instruction or a declaration ends
    that begins at an index; 0 if none begins there."""
    if not text.startswith("<!DOCTYPE", begin):
        return _end_of_section(text, begin)
    position, is_inside = begin + 1, False  # inside brackets
    while match := _DECLARATION.search(text, position):
        position = match.end()
        if match[0] == ">" and not is_inside:
            return position
        if match[0] in "[]":
            is_inside = match[0] == "["
        elif match[0] == "<":
            position = _end_of_section(text, match.start()) or position
    return len(text)


def _end_of_section(text, begin):
    """As `_end_of_other`, without declarations."""
    for opening, closing in _SECTIONS:
        if text.startswith(opening, begin):
            end = text.find(closing, begin + len(opening))
            return len(text) if end < 0 else end + len(closing)
    return 0


def check_xml(text: str) -> None:
    """Raises a ValueError if a text is not well-formed XML, whole or a part."""
    try:
        ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        try:
            ElementTree.fromstring(f"<r>{text}</r>")
        except ElementTree.ParseError:
            raise ValueError(
                f"`texts` must be well-formed XML; got {text!r:.80} ({error}). Correct "
                'it, or use format="html".'
            ) from error


def units(tokens: Sequence[Token], is_xml: bool = False) -> list[Unit]:
    """Groups tokens into texts, at the tags of block elements.

    Inline are the elements of `INLINE`, in XML those beside text, if they begin
    and end between the same two blocks. A tag without partner is a block.

    Args:
        tokens: of `tokenize`.
        is_xml: bool.
    """
    partners = _partners(tokens)
    is_block = _blocks(tokens, partners, is_xml)
    result: list[Unit] = []
    begin, modes = 0, [(True, False)]  # (translated, keeps space) of open elements
    for index in range(len(tokens) + 1):
        if index < len(tokens) and not is_block[index]:
            continue
        run = tokens[begin:index]
        local = [partner - begin for partner in partners[begin:index]]
        is_text = modes[-1][0] and any(t.kind == "text" for t in run)
        if run:
            result.append(Unit(run, local, is_text, modes[-1][1]))
        if index == len(tokens):
            break
        token, begin = tokens[index], index + 1
        result.append(Unit([token], [0], False))
        if token.kind == "start" and partners[index] != index:
            modes.append(_mode(token, modes[-1]))
        elif token.kind == "end" and partners[index] != index:
            modes.pop()
    return result


def _mode(token, mode):
    translated, keeps_space = mode
    if token.translate is not None:
        translated = token.translate
    return translated, keeps_space or token.name in ("pre", "textarea")


def _partners(tokens):
    partners, stack = list(range(len(tokens))), []
    counts: dict[str, int] = {}  # of open elements
    for index, token in enumerate(tokens):
        if token.kind == "start":
            stack.append(index)
            counts[token.name] = counts.get(token.name, 0) + 1
        elif token.kind == "end" and counts.get(token.name):
            while True:  # elements that are not closed have no partner
                start = stack.pop()
                counts[tokens[start].name] -= 1
                if tokens[start].name == token.name:
                    break
            partners[start], partners[index] = index, start
    return partners


def _blocks(tokens, partners, is_xml):
    """Whether each token is between two texts rather than inside one."""
    beside_text = _beside_text(tokens, partners) if is_xml else None
    is_block = []
    for index, token in enumerate(tokens):
        is_tag = token.kind in ("start", "end", "empty")
        is_inline = beside_text[index] if is_xml else token.name in INLINE
        has_partner = token.kind == "empty" or partners[index] != index
        is_block.append(is_tag and not (is_inline and has_partner))
    counts = [0, *itertools.accumulate(is_block)]
    for index, partner in enumerate(partners):  # inline, but around a block
        if index < partner and counts[partner] - counts[index]:
            is_block[index] = is_block[partner] = True
    return is_block


def _beside_text(tokens, partners):
    """Whether the parent of each tag has text of its own, or is beside some."""
    result, parents, has_text = [False] * len(tokens), [], {-1: False}
    stack = [-1]
    for index, token in enumerate(tokens):
        if token.kind == "end" and partners[index] != index:
            stack.pop()
        parents.append(stack[-1])
        if token.kind in ("text", "reference") and token.raw.strip():
            has_text[stack[-1]] = True
        if token.kind == "start" and partners[index] != index:
            stack.append(index)
            has_text[index] = False
    for index, parent in enumerate(parents):
        result[index] = has_text[parent] or (parent >= 0 and result[parent])
    return result


def attribute_values(
    tokens: Sequence[Token], names: Collection[str]
) -> list[tuple[int, int, int]]:
    """Finds quoted values of attributes, where content is translated.

    Args:
        tokens: of `tokenize`.
        names: strs, attributes in lower case.

    Returns:
        list of the index of a token, and where a value begins and ends in it.
    """
    values, modes, partners = [], [(True, False)], _partners(tokens)
    for index, token in enumerate(tokens):
        has_partner = partners[index] != index
        if token.kind == "end" and has_partner:
            modes.pop()
        if token.kind in ("start", "empty"):
            mode = _mode(token, modes[-1])
            if token.kind == "start" and has_partner:
                modes.append(mode)
            if mode[0]:
                for match in _ATTRIBUTE.finditer(token.raw):
                    if match[1].lower() in names and match[2][0] in "\"'":
                        values.append((index, match.start(2) + 1, match.end(2) - 1))
    return values


def plain_text(raw: str, keeps_space: bool) -> str:
    """Returns the text that a browser shows of a text token."""
    text = html.unescape(raw)
    return text if keeps_space else re.sub(f"[{BLANK}]+", " ", text)
