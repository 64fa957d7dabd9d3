"""What a translator does with text, apart from decoding."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

from keras_tfm.decode.options import Options
from keras_tfm.pipelines.lexicon import Lexicon
from keras_tfm.pipelines.names import Names
from keras_tfm.pipelines.sentences import split_sentences
from keras_tfm.pipelines.span_patterns import ALL, NOTHING, patterns_of
from keras_tfm.zoo.imported import TEXT_STEPS

# Names that models copy: of a corpus of everyday sentences, and of all others.
STAND_INS = ("Tom", "John", "Bill", "Lisa", "Boston")

# Not in a JSON file: functions, and words, which have files of their own.
UNSAVED = ("splitter", "known_words", "lexicon")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextConfig:
    """Holds the arguments of `Translator` that concern text and batches.

    Attributes:
        batch_size: int >= 1, the most sentences decoded at once.
        batch_tokens: int >= 1, the most source tokens, with padding, decoded
            at once.
        split_tokens: int >= 1, in source tokens. A longer line is split after
            sentences, into segments of at most `split_tokens` tokens, unless a
            sentence alone is longer. A model omits parts of a text that is
            longer than its training examples: about 24 suits a model trained on
            single sentences.
        max_source_length: int >= 1, in tokens with prefix and suffix; at most
            the number of learned positions. A longer sentence is split between
            words. A prompt of a language model is not split, but rejected.
        source_prefix: ints, ids before each source, such as a language tag.
        source_suffix: ints, ids after each source, such as the end token.
        target_prefix: ints that each translation begins with, such as a
            language tag.
        splitter: function from a line to the list of its sentences, unchanged
            and in order. It is not saved, and a SavedModel needs the default.
        protect: str, or list of str: what a translation keeps unchanged. Kinds
            are `"url"`, `"email"`, `"placeholder"` (`{name}`, `%d`, `${x}`),
            `"code"` in backticks, `"emoji"`, `"tag"` (`#tag`, `@name`),
            `"html"` (tags), `"markdown"` (its marks, also of lists and tables),
            `"unknown"` (what the vocabulary cannot spell), `"all"` of them, and
            `"none"`. Other str are regular expressions. True is `"all"`.
        stand_ins: list of str: names that the model copies, and reads in place
            of protected text.
        match_numbers: bool. If the digits of a translation differ from those of
            its source, another hypothesis is taken whose digits agree.
        known_words: list of str, words that the model was trained to translate.
            Any other word with a capital is a name: if a translation lacks it,
            another hypothesis is taken that has it. Without `known_words`,
            names are not checked.
        lexicon: `Lexicon` of words that the model knows badly, or None. If a
            translation lacks a word of it, another hypothesis is taken that has
            the word, or a wrong word is replaced.
        lower_capitals: bool. Lowercase a text in capitals before it is
            translated, and write its translation in capitals. Lowercase single
            words in capitals, such as "I NEVER said so", but not acronyms.
        add_final_mark: bool. Translate a text without final punctuation as if
            it had a punctuation mark at its end.
        avoid_loops: bool. If a translation repeats a phrase several times in a
            row and its source does not, the segment is decoded again without a
            repeated sequence of four tokens.
        final_mark_words: int >= 1. `add_final_mark` leaves a text of fewer
            words as it is.

    Raises:
        ValueError: a size is below 1, a regular expression is wrong, or a value
            has another type.

    Example:
        ```python
        from keras_tfm.pipelines import Translator

        config = Translator.from_preset("en-de", batch_size=8).config
        assert config.batch_size == 8 and config.source_prefix == ()
        ```
    """

    batch_size: int = 64
    batch_tokens: int = 2048
    split_tokens: int = 128
    max_source_length: int = 1024
    source_prefix: Sequence[int] = ()
    source_suffix: Sequence[int] = ()
    target_prefix: Sequence[int] = ()
    splitter: Callable[[str], list[str]] = split_sentences
    protect: bool | str | Sequence[str] = ()
    stand_ins: Sequence[str] = STAND_INS
    match_numbers: bool = False
    known_words: Sequence[str] = dataclasses.field(default=(), repr=False)
    lexicon: Lexicon | None = dataclasses.field(default=None, repr=False)
    lower_capitals: bool = False
    add_final_mark: bool = False
    avoid_loops: bool = False
    final_mark_words: int = 1

    def __post_init__(self):
        if self.protect in (True, False):
            object.__setattr__(self, "protect", ALL if self.protect else NOTHING)
        kinds = {int: _count, bool: _flag, Sequence[int]: _token_ids}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in ("splitter", "lexicon"):
                continue
            kind = kinds.get(field.type, _strings)
            object.__setattr__(self, field.name, kind(field.name, value))
        protect = () if NOTHING in self.protect else self.protect
        object.__setattr__(self, "protect", protect)
        patterns_of(protect)  # raises if one is wrong
        if not callable(self.splitter):
            raise ValueError(
                "`splitter` must be a function from a text to its sentences; got "
                f"{self.splitter!r}."
            )
        if not isinstance(self.lexicon, Lexicon | None):
            raise ValueError(
                f"`lexicon` must be a `Lexicon` or None; got {self.lexicon!r:.80}. "
                "`Lexicon.load` reads a file."
            )
        special = len(self.source_prefix) + len(self.source_suffix)
        if self.max_source_length <= special:
            raise ValueError(
                "`max_source_length` must exceed the tokens of `source_prefix` and "
                f"`source_suffix`; got max_source_length={self.max_source_length} "
                f"with {special} of them."
            )

    @property
    def max_text_tokens(self) -> int:
        """The most tokens of a segment, without prefix and suffix."""
        special = len(self.source_prefix) + len(self.source_suffix)
        return self.max_source_length - special

    def without_affixes(self, ids: list[int]) -> list[int]:
        """Returns the ids of a source without its prefix and suffix.

        Args:
            ids: list of int, as the model reads them.
        """
        begin, end = len(self.source_prefix), len(self.source_suffix)
        return ids[begin : len(ids) - end]

    @property
    def has_steps(self) -> bool:
        """Whether text is changed before it is encoded."""
        return any(getattr(self, name) for name in TEXT_STEPS)

    @functools.cached_property
    def names(self) -> Names:
        """The `Names` that recognizes names by `known_words`."""
        return Names(self.known_words)

    @property
    def segment_tokens(self) -> tuple[int, int]:
        """The limits of `Segmenter.split`."""
        return min(self.split_tokens, self.max_text_tokens), self.max_text_tokens

    def check_source(self, number: int, ids: Sequence[int]) -> None:
        """Raises a ValueError if a source has too many tokens.

        Args:
            number: int, index of the text, for the error.
            ids: ints, with prefix and suffix.
        """
        if len(ids) > self.max_source_length:
            raise ValueError(
                f"Text {number} must have at most max_source_length="
                f"{self.max_source_length} tokens; got {len(ids)}. Split it into "
                "sentences."
            )

    def saved(self) -> dict[str, Any]:
        """Returns the fields of a JSON file: all but `UNSAVED`."""
        plain = dataclasses.replace(
            self, splitter=split_sentences, known_words=(), lexicon=None
        )
        fields = dataclasses.asdict(plain)
        return {name: fields[name] for name in fields if name not in UNSAVED}

    @classmethod
    def field_names(cls) -> tuple[str, ...]:
        """Returns the names of all fields."""
        return tuple(field.name for field in dataclasses.fields(cls))


def split_changes(changes: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Separates options of decoding from arguments that concern text.

    Args:
        changes: dict of fields of `decode.Options` and `TextConfig`.

    Returns:
        dict of the former, and dict of the latter.

    Raises:
        TypeError: a name is neither; the error suggests the nearest.
    """
    names = TextConfig.field_names()
    Options.check_names(changes, names)
    text = {name: value for name, value in changes.items() if name in names}
    options = {name: changes[name] for name in changes if name not in names}
    return options, text


def _count(name, value):
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise ValueError(f"`{name}` must be an integer of at least 1; got {value!r}.")
    return int(value)


def _flag(name, value):
    if not isinstance(value, bool):
        raise ValueError(f"`{name}` must be True or False; got {value!r}.")
    return value


def _strings(name, value):
    strings = (value,) if isinstance(value, str) else value
    is_list = isinstance(strings, Sequence) and not isinstance(strings, bytes)
    if not is_list or not all(isinstance(s, str) and s for s in strings):
        raise ValueError(f"`{name}` must be a str or a list of str; got {value!r}.")
    return tuple(strings)


def _token_ids(name, value):
    ids = tuple(value) if isinstance(value, Sequence) else None
    if ids is None or not all(isinstance(i, Integral) and i > 0 for i in ids):
        raise ValueError(
            f"`{name}` must be a list of token ids above 0; got {value!r:.200}."
        )
    return tuple(map(int, ids))
