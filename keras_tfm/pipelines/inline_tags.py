"""Puts the inline tags of a text around the words of its translation."""

import dataclasses
import html
import re
from collections.abc import Sequence

from keras_tfm.pipelines.alignment import Alignment
from keras_tfm.pipelines.markup import BLANK, Unit, plain_text
from keras_tfm.pipelines.protection import find_spans

MARKERS = range(0xF0000, 0xFFFFE)  # characters of private use
_CORE = re.compile(r"\w(?:.*\w)?", re.DOTALL)


@dataclasses.dataclass(eq=False)
class Node:
    """An inline element, or what stands between two words.

    Attributes:
        opening, closing: str, tags; of content that stays as it is `opening`
            has all.
        begin, end: int, of its text in the source, later in the translation.
        marker: str, the character that stands for it in the text; or none.
        is_spaced: bool. It stands between spaces.
        children: list of `Node`.
        words: range, its words in the translation.
    """

    opening: str = ""
    closing: str = ""
    begin: int = 0
    end: int = 0
    marker: str = ""
    is_spaced: bool = False
    children: list["Node"] = dataclasses.field(default_factory=list)
    words: range = range(0)


class TaggedText:
    """A text with inline tags, to translate without and to tag again.

    Args:
        unit: `Unit` with `is_text`.
        patterns: of `span_patterns.patterns_of`, what the translator protects:
            no tag stands inside it; and content that stays as it is becomes a
            character of private use. Without patterns it is left out, and
            stands between the words that it stood between.

    Attributes:
        text: str, without tags and without whitespace at its ends.
        root: `Node` of the whole text.
        has_tags: bool.
    """

    def __init__(self, unit: Unit, patterns: Sequence[tuple[str, re.Pattern]] = ()):
        self.patterns, self.uses_markers = patterns, bool(patterns)
        self.root, text = self._parse(unit)
        self.text = text.strip(BLANK)
        self.leading = text[: len(text) - len(text.lstrip(BLANK))]
        self.trailing = text[len(self.leading) + len(self.text) :]
        self.has_tags = bool(self.root.children)

    def _parse(self, unit):
        root, text, index = Node(), "", 0
        stack = [root]
        free = (chr(code) for code in MARKERS if not _holds(unit, chr(code)))
        while index < len(unit.tokens):
            token, partner = unit.tokens[index], unit.partners[index]
            if token.kind == "text":
                part = plain_text(token.raw, unit.keeps_space)
                if not unit.keeps_space and text.endswith(" "):
                    part = part.removeprefix(" ")
                text += part
            elif token.kind == "end":
                stack.pop().end = len(text)
            else:
                node = Node(token.raw, begin=len(text), end=len(text))
                stack[-1].children.append(node)
                content = unit.tokens[index + 1 : partner]
                if token.kind == "reference" and self.uses_markers:
                    node.marker = next(free)
                    text += node.marker
                elif token.kind != "start":
                    following = "".join(
                        t.raw for t in unit.tokens[index + 1 : index + 2]
                    )
                    node.is_spaced = text[-1:].isspace() and following[:1].isspace()
                elif token.translate is False or not _has_text(content):
                    if self.uses_markers and _has_text(content):
                        node.marker = next(free)
                        text += node.marker
                    node.is_spaced = _has_text(content)
                    raws = [t.raw for t in unit.tokens[index : partner + 1]]
                    node.opening, index = "".join(raws), partner
                else:
                    node.closing = unit.tokens[partner].raw
                    stack.append(node)
            index += 1
        root.end = len(text)
        return root, text

    def tag(self, translation: str, alignment: Alignment | None) -> str:
        """Returns a translation with the tags.

        Args:
            translation: str, of `text`.
            alignment: of `Hypothesis`; or None, as if word for word.
        """
        source, sources = _words(self.text, self.patterns)
        target, targets = _words(translation, self.patterns)
        if alignment is None:
            scale = len(targets) / max(1, len(sources))
            alignment = [(i, int(i * scale)) for i in range(len(sources))]
        last = (len(sources) - 1, len(targets) - 1)
        links = {(min(i, last[0]), min(j, last[1])) for i, j in alignment}
        links = links if min(last) >= 0 else set()
        links |= _same_markers(self.text, translation)
        links = {(sources[i], targets[j]) for i, j in links}
        placing = _Placing(source, target, links, len(self.leading), translation)
        placing.place(self.root)
        body = _render(self.root, translation)
        return (
            html.escape(self.leading, False) + body + html.escape(self.trailing, False)
        )


def _holds(unit, char):
    return any(char in token.raw for token in unit.tokens)


def _has_text(tokens):
    kinds = ("text", "reference")
    return any(token.kind in kinds and token.raw.strip() for token in tokens)


def _words(text, patterns):
    """The words, each with its begin, end, and those of its core; and the index
    in this list of each word that `split` returns.

    The core is without punctuation at its ends, if any is left, but with what
    is protected. Words inside one protected span are one.
    """
    words: list[tuple[int, int, int, int]] = []
    indices = []
    spans = [span[:2] for span in find_spans(text, patterns)] if patterns else []
    spans.reverse()  # the next one is the last
    for match in re.finditer(r"\S+", text):
        begin, end = match.span()
        core = _CORE.search(match[0])
        inner = (begin + core.start(), begin + core.end()) if core else (begin, end)
        while spans and spans[-1][1] <= begin:
            spans.pop()
        if words and spans and spans[-1][0] < words[-1][1]:
            first = words.pop()
            begin, inner = first[0], (first[2], inner[1])
        for span in reversed(spans):
            if span[0] >= end:
                break
            left, right = max(span[0], begin), min(span[1], end)
            inner = min(inner[0], left), max(inner[1], right)
        words.append((begin, end, *inner))
        indices.append(len(words) - 1)
    return words, indices


def _same_markers(source, target):
    """Links between words with the same character of private use."""
    places: dict[str, int] = {}
    for i, word in enumerate(source.split()):
        places |= {char: i for char in word if ord(char) in MARKERS}
    return {
        (places[char], j)
        for j, word in enumerate(target.split())
        for char in word
        if char in places
    }


class _Placing:
    """Finds the words of each element in the translation."""

    def __init__(self, source, target, links, offset, translation):
        self.source, self.target, self.offset = source, target, offset
        self.translation = translation
        self.links: Sequence[set] = [set() for _ in target]  # of target words
        self.targets: Sequence[list] = [[] for _ in source]
        for i, j in sorted(links):
            self.links[j].add(i)
            self.targets[i].append(j)

    def place(self, root):
        """Sets the words and places of a tree; children stay inside parents."""
        root.begin, root.end = 0, len(self.translation)
        root.words = range(len(self.target))
        stack = [root]
        while stack:
            parent = stack.pop()
            free = [True] * len(parent.words)
            for node in parent.children:
                if node.closing:
                    self._place_element(node, parent, free)
            for node in parent.children:
                if not node.closing:
                    self._place_point(node, parent)
            parent.children.sort(key=lambda node: (node.begin, node.end))
            stack += [node for node in parent.children if node.closing]

    def _place_element(self, node, parent, free):
        begin, end = node.begin - self.offset, node.end - self.offset
        inside = {
            i for i, (_, _, b, e) in enumerate(self.source) if b < end and begin < e
        } or {i for i, (b, e, _, _) in enumerate(self.source) if b < end and begin < e}
        gains = [
            len(self.links[j] & inside) / max(1, len(self.links[j])) - 0.4
            if free[j - parent.words.start]
            else None
            for j in parent.words
        ]
        first, last = _best_run(gains)
        if first is None:  # no word is left
            node.begin = node.end = parent.end
            return
        for j in range(first, last + 1):
            free[j] = False
        node.words = range(first + parent.words.start, last + 1 + parent.words.start)
        head, tail = self.target[node.words[0]], self.target[node.words[-1]]
        # Punctuation at the ends is inside if it was.
        with_head = with_tail = False
        if inside:
            with_head = (
                begin <= self.source[min(inside)][0] < self.source[min(inside)][2]
            )
            with_tail = end >= self.source[max(inside)][1] > self.source[max(inside)][3]
        node.begin = max(parent.begin, head[0] if with_head else head[2])
        node.end = min(parent.end, tail[1] if with_tail else tail[3])
        node.begin = min(node.begin, node.end)

    def _place_point(self, node, parent):
        if node.marker and node.marker in self.translation:
            node.begin = node.end = -1  # `_render` replaces the marker
            return
        index = node.begin - self.offset
        earlier = [i for i, word in enumerate(self.source) if word[1] <= index]
        later = [i for i, word in enumerate(self.source) if word[1] > index]
        is_after_word = bool(earlier) and self.source[earlier[-1]][1] == index
        place = self._edge(earlier[-1:], -1) if is_after_word else None
        if place is None:
            place = self._edge(later[:1], 0)
        if place is None:
            place = parent.end
        place = min(max(place, parent.begin), parent.end)
        for sibling in parent.children:
            if sibling.closing and sibling.begin < place < sibling.end:
                place = sibling.end if is_after_word else sibling.begin
        node.begin = node.end = place

    def _edge(self, words, side):
        """Where the words that are linked to a source word begin or end."""
        linked = [j for i in words for j in self.targets[i]]
        if not linked:
            return None
        return self.target[max(linked)][1] if side else self.target[min(linked)][0]


def _best_run(gains):
    """The first and last index of the neighbors with the largest sum."""
    best, first, last, total, begin = -1e9, None, None, 0.0, 0
    for index, gain in enumerate(gains):
        if gain is None:
            total, begin = 0.0, index + 1
            continue
        if total < 0:
            total, begin = 0.0, index
        total += gain
        if total > best:
            best, first, last = total, begin, index
    return first, last


def _render(root, text):
    """The text with the tags of a tree; markers become what they stand for."""
    parts, markers = [], {}
    stack = [(root, iter(root.children))]
    position = root.begin
    while stack:
        node, children = stack[-1]
        child = next(children, None)
        if child is None:
            parts += [html.escape(text[position : node.end], False), node.closing]
            position = node.end
            stack.pop()
        elif child.begin < 0:
            markers[child.marker] = child.opening
        else:
            parts += [html.escape(text[position : child.begin], False), child.opening]
            position = child.begin
            if child.is_spaced:
                is_after_space = not text[:position] or text[position - 1].isspace()
                parts.insert(-1, "" if is_after_space else " ")
                parts.append(
                    "" if text[position : position + 1] in ("", *BLANK) else " "
                )
            stack.append((child, iter(child.children)))
    result = "".join(parts)
    for marker, raw in markers.items():
        first, _, rest = result.partition(marker)
        result = first + raw + rest.replace(marker, "")
    return result
