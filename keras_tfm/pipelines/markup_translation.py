"""Translates HTML and XML."""

import html
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from keras_tfm.decode.protocol import Capabilities
from keras_tfm.pipelines import markup
from keras_tfm.pipelines.finishing import time_left
from keras_tfm.pipelines.inline_tags import TaggedText
from keras_tfm.pipelines.pivoting import PivotTranslator
from keras_tfm.pipelines.span_patterns import patterns_of
from keras_tfm.pipelines.texts import check_texts

if TYPE_CHECKING:
    from keras_tfm.pipelines.glossary import GlossaryTranslator
    from keras_tfm.pipelines.translator import Translator

FORMATS = ("html", "xml")


def translate_markup(
    translator: "Translator | PivotTranslator | GlossaryTranslator",
    texts: str | Iterable[str],
    format: str = "html",
    attributes: Collection[str] = (),
    **options: Any,
) -> str | list[str]:
    """Translates documents or fragments of HTML or XML.

    Word alignment places inline tags, such as `<b>`, around the translations of
    the words that they enclosed. Each tag occurs once, inside the same tags as
    in the source. Block tags separate texts. Comments, scripts, styles, code,
    elements with `translate="no"`, and attributes that `attributes` does not
    name stay as they are. HTML need not be well-formed: a tag without a partner
    separates texts.

    Args:
        translator: `Translator`, `PivotTranslator` or `GlossaryTranslator`.
        texts: str, or list of str.
        format: `"html"` or `"xml"`.
        attributes: strs, attributes whose quoted values are translated, too,
            such as `("alt", "title", "placeholder")`.
        **options: see `Translator.translate`.

    Returns:
        str, or list of str in the order of the texts.

    Raises:
        ValueError: `format` is unknown, or a text is not well-formed XML.
        TypeError: `texts` is not text.

    Source: Zenkel et al. 2021, section 3. https://arxiv.org/abs/2104.07844

    Example:
        ```python
        from keras_tfm.pipelines import Translator, translate_markup

        translator = Translator.from_preset("en-de")
        html = translate_markup(translator, "<p>Good <b>morning</b>!</p>")
        assert html == "<p>Guten <b>Morgen</b>!</p>"
        ```
    """
    if format not in FORMATS:
        raise ValueError(f"`format` must be one of {FORMATS}; got {format!r}.")
    if isinstance(texts, str):
        return translate_markup(translator, [texts], format, attributes, **options)[0]
    left = time_left(options.pop("timeout", None))
    if isinstance(translator, PivotTranslator):
        for part in (translator.first, translator.second):
            texts = translate_markup(
                part, texts, format, attributes, timeout=left(), **options
            )
        return texts
    documents, is_xml = check_texts(texts), format == "xml"
    if is_xml:
        for text in documents:
            markup.check_xml(text)
    protect = getattr(translator.config, "protect", ())
    patterns = patterns_of(protect) if protect else ()
    token_lists = [markup.tokenize(text, is_xml) for text in documents]
    if attributes:
        _translate_attributes(
            translator, token_lists, frozenset(attributes), left, options, is_xml
        )
    # Each document is a list of strings and of texts to translate.
    contents = [
        [
            TaggedText(unit, patterns)
            if unit.is_text and _has_letters(unit)
            else "".join(token.raw for token in unit.tokens)
            for unit in markup.units(tokens, is_xml)
        ]
        for tokens in token_lists
    ]
    tagged = [
        part for content in contents for part in content if not isinstance(part, str)
    ]
    translated = _translate(translator, tagged, left, options)
    return [
        "".join(part if isinstance(part, str) else translated[part] for part in content)
        for content in contents
    ]


def _translate_attributes(translator, token_lists, names, left, options, is_xml):
    """Replaces tokens by those with translated values."""
    places = [
        (tokens, *place)
        for tokens in token_lists
        for place in markup.attribute_values(tokens, names)
    ]
    if is_xml:  # a reference would be lost
        places = [
            (tokens, n, begin, end)
            for tokens, n, begin, end in places
            if not markup.REFERENCE.search(tokens[n].raw, begin, end)
        ]
    sources = [tokens[n].raw[begin:end] for tokens, n, begin, end in places]
    sources = list(map(html.unescape, sources))
    results = translator.translate(sources, timeout=left(), **options)
    # From the last, since the others keep their places then.
    for (tokens, n, begin, end), result in reversed(
        list(zip(places, results, strict=True))
    ):
        raw = tokens[n].raw
        value = html.escape(result.text)
        tokens[n] = tokens[n]._replace(raw=raw[:begin] + value + raw[end:])


def _has_letters(unit):
    texts = (markup.plain_text(t.raw, True) for t in unit.tokens if t.kind == "text")
    return any(char.isalpha() for text in texts for char in text)


def _translate(translator, tagged, left, options):
    """The translation of each `TaggedText`; tags need attention."""
    result = {}
    has_attention = (
        "return_attention" in Capabilities.of(translator.model).begin_options
    )
    for has_tags in (False, True):
        group = [part for part in tagged if part.has_tags == has_tags]
        aligned = {"return_attention": True} if has_tags and has_attention else {}
        texts, aligned = [part.text for part in group], {**options, **aligned}
        translations = translator.translate(texts, timeout=left(), **aligned)
        for part, translation in zip(group, translations, strict=True):
            best = translation.hypotheses[0]
            result[part] = part.tag(best.text, best.alignment)
    return result
