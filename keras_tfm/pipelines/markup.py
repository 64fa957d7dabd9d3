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
BLANK = " \t\n\r\f"


class Token(NamedTuple):
    """A tag, a text between tags, or anything else of a document.

    Attributes:
        kind: `"text"`, `"start"`, `"end"`, `"empty"` (a tag without content) or
            `"other"`, such as a comment.
        raw: str, as in the document.
        name: str, the element of a tag, in lower case.
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

    def __init__(self, is_xml):
        super().__init__(convert_charrefs=False)
        self.is_xml, self.begins = is_xml, []

    def set_cdata_mode(self, *args, **options):
        if not self.is_xml:  # no element of XML has unescaped content
            super().set_cdata_mode(*args, **options)

    def _note(self, kind, name="", attributes=()):
        value = dict(attributes).get("translate")
        translate = {None: None, "no": False}.get(value, True)
        if "notranslate" in (dict(attributes).get("class") or "").split():
            translate = False
        if translate is None and name in UNTRANSLATED and not self.is_xml:
            translate = False
        self.begins.append((self.getpos(), (kind, name, translate)))

    def handle_starttag(self, tag, attrs):
        is_void = tag in VOID and not self.is_xml
        self._note("empty" if is_void else "start", tag, attrs)

    def handle_startendtag(self, tag, attrs):
        self._note("empty", tag, attrs)

    def handle_endtag(self, tag):
        is_void = tag in VOID and not self.is_xml
        self._note("other" if is_void else "end", tag)

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


def tokenize(text: str, is_xml: bool = False) -> list[Token]:
    """Splits a document into tokens, whose `raw` make the document again.

    Args:
        text: str, well-formed or not.
        is_xml: bool.
    """
    parser = _Parser(is_xml)
    parser.feed(text)
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
        if token.kind == "text" and token.raw.strip():
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
