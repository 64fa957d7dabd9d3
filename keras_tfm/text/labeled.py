"""Texts with labels in memory, from lists or files."""

import collections
import logging
from collections.abc import Iterable, Iterator

import numpy as np

from keras_tfm.text.csv_jsonl import (
    column_list,
    format_of,
    iterate_records,
    refuse_options,
)
from keras_tfm.text.files import is_unicode

_log = logging.getLogger(__name__)


class LabeledDataset:
    """Texts, or pairs of texts, and the labels that were given to them.

    All is kept as it came, in order; a label of a text that is listed twice
    counts once. What cannot be right is refused, and texts that stand there
    more than once with different labels are counted and said.

    Args:
        texts: list of N strings, or of N pairs of strings.
        labels: list of N strings; or of N lists of strings, where a text may
            have several labels or none.
        classes: list of strings, the labels that there are; None for those
            found. Its order has no meaning. Where it is given, labels are no
            longer suspected of being texts.
        allow_missing: bool. True takes a class of `classes` without an example,
            as a small evaluation set may have it, and says it in the report.
        name: string. What errors and the report call these texts.

    Attributes:
        texts: list of N strings, or of N tuples of two.
        labels: list of N strings, or of N sorted lists of strings.
        classes: sorted list of C strings. Class c is `classes[c]`.
        multi_label: bool. The labels are lists.
        paired: bool. The texts are pairs.
        counts: dictionary from class to its number of texts.
        duplicates: int, rows whose very text stands in a row before.
        conflicts: int, different texts that stand there with different labels.
        report: string: texts, classes and their counts, duplicates.

    Raises:
        TypeError: a text or label is something else than the above.
        ValueError: a text or label is empty, texts and labels differ in number
            or look swapped, a label is not in `classes`, a class has no
            example, or there is one class only (two labels at least are wanted
            unless `multi_label`).
    """

    def __init__(
        self,
        texts: Iterable,
        labels: Iterable,
        classes: Iterable[str] | None = None,
        allow_missing: bool = False,
        name: str = "texts",
    ):
        self.name = str(name)
        self.texts, self.labels = _as_list(texts, "texts"), _as_list(labels, "labels")
        if len(self.texts) != len(self.labels) or not self.texts:
            raise ValueError(
                f"{name}: each text needs its label, and one text at least is wanted. "
                f"Received: {len(self.texts):,} texts and {len(self.labels):,} labels. "
                "Align the two lists again."
            )
        self.paired = not isinstance(self.texts[0], str)
        self.multi_label = not isinstance(self.labels[0], str)
        self.texts = [
            _checked_text(text, self.paired, f"{name}, index {index}")
            for index, text in enumerate(self.texts)
        ]
        self.labels = [
            _checked_label(label, self.multi_label, f"{name}, index {index}")
            for index, label in enumerate(self.labels)
        ]
        found = collections.Counter(
            one for label in self.labels for one in names_of(label)
        )
        if classes is None:
            self._refuse_swapped(found)
        self.classes = sorted(found) if classes is None else _class_list(classes)
        self.counts = {each: found[each] for each in self.classes}
        self._refuse_classes(allow_missing)
        labels_of = collections.defaultdict(set)
        for text, label in zip(self.texts, self.labels, strict=True):
            labels_of[text].add(tuple(names_of(label)))
        self.duplicates = len(self.texts) - len(labels_of)
        self.conflicts = sum(len(each) > 1 for each in labels_of.values())
        counts = ", ".join(f"{each} {self.counts[each]:,}" for each in self.classes)
        self.report = (
            f"{name}: {len(self):,} {'pairs of ' * self.paired}texts, "
            f"{len(self.classes):,} classes ({counts}); {self.duplicates:,} rows "
            f"repeat a text, {self.conflicts:,} texts have different labels"
        )
        if self.conflicts:
            _log.warning(self.report)

    def __len__(self) -> int:
        return len(self.texts)

    def __iter__(self) -> Iterator[tuple]:
        return zip(self.texts, self.labels, strict=True)

    def encoded_labels(self) -> np.ndarray:
        """Gives the labels as numbers, places in `classes`.

        Returns:
            int32 `(N,)`; float32 `(N, C)` of 0 and 1 with `multi_label`.
        """
        place = {each: index for index, each in enumerate(self.classes)}
        if not self.multi_label:
            return np.array([place[label] for label in self.labels], "int32")
        encoded = np.zeros((len(self), len(self.classes)), "float32")
        for row, label in zip(encoded, self.labels, strict=True):
            row[[place[each] for each in label]] = 1.0
        return encoded

    def _refuse_swapped(self, found: collections.Counter):
        texts = [" ".join(_sides(text)) for text in self.texts]
        labels = [" ".join(names_of(label)) for label in self.labels]
        # A row may bring several labels, so that as many as rows can be right.
        every_row = len(found) >= len(texts) + self.multi_label > 2
        # Of one label a row: names of rows, or numbers that are no classes.
        most = len(texts) >= 20 and 2 * len(found) > len(texts)
        every_row |= most and not self.multi_label
        longer = sum(map(len, labels)) > sum(map(len, texts))
        if every_row or (longer and len(set(labels)) > len(set(texts))):
            text, label = texts[0][:60], labels[0][:60]
            raise ValueError(
                f"{self.name}: labels are wanted that several texts share. Received "
                f"{len(found):,} different labels on {len(texts):,} rows, on average "
                f"{sum(map(len, labels)) / len(labels):.0f} characters of label and "
                f"{sum(map(len, texts)) / len(texts):.0f} of text; first the text "
                f"{text!r} with the label {label!r}. Are texts and labels swapped? "
                "Name the other columns; or, if this is right, give `classes`."
            )

    def _refuse_classes(self, allow_missing: bool):
        known = set(self.classes)
        unknown = [
            (index, each)
            for index, label in enumerate(self.labels)
            for each in names_of(label)
            if each not in known
        ]
        if unknown:
            raise ValueError(
                f"{self.name}: labels must be of the classes {self.classes}. Received "
                f"at index {unknown[0][0]}: {unknown[0][1]!r}; {len(unknown):,} such "
                "labels in all. Mend them, or train with that class."
            )
        if len(self.classes) < 2 - self.multi_label:
            raise ValueError(
                f"{self.name}: {2 - self.multi_label} classes at least are wanted. "
                f"Received: classes={self.classes} on {len(self):,} texts. Add texts "
                "of another class, or name the right column of labels."
            )
        missing = [each for each, count in self.counts.items() if not count]
        if missing and not allow_missing:
            raise ValueError(
                f"{self.name}: each class needs an example. Received none of {missing} "
                f"among {len(self):,} texts. Add some, leave the class out, or, for "
                "an evaluation, take `allow_missing=True`."
            )


def read_labeled(
    path,
    text="text",
    label="label",
    text_pair=None,
    label_separator: str | None = None,
    format: str | None = None,
    classes: Iterable[str] | None = None,
    allow_missing: bool = False,
) -> LabeledDataset:
    """Reads texts and their labels from columns of a file.

    In a `.tsv` quotes have no meaning: a field is what stands between two tabs.
    In a `.csv` a field in quotes may hold commas, line ends and doubled quotes
    (RFC 4180). A `.jsonl` has one JSON object a line, whose label may be a
    string, a whole number, true or false, or a list of these. Space around a
    label is not part of it.

    Args:
        path: string or path of a UTF-8 file, plain or `.gz`.
        text: string, int, or list of these. The column of the text; several
            are joined with a space. A name makes the first line a header,
            numbers count columns from 0 in a file without one.
        label: string or int. The column of the label.
        text_pair: string, int, list of these or None. The column of a second
            text, which makes the texts pairs.
        label_separator: string or None. What stands between the labels of a
            text that may have several, or none where the field is empty.
        format: `"tsv"`, `"csv"`, `"jsonl"` or `"label_first"`, where each line
            is the label, a space and the text; None goes by the file's name.
        classes: as of `LabeledDataset`.
        allow_missing: as of `LabeledDataset`.

    Raises:
        FileNotFoundError: the file is missing.
        ValueError: the file is empty or not UTF-8; its format is not known or
            does not go with the columns; it lacks a column, a line has too few
            or too many, broken quoting, an empty text or no label; or
            `LabeledDataset` refuses what was read.
    """
    columns = [column_list(text), column_list(label), column_list(text_pair)]
    format = format_of(path, format)
    refuse_options(columns, format, label_separator)
    texts, labels = [], []
    for place, first, given, second in iterate_records(path, format, columns):
        if isinstance(given, str) and label_separator is not None:
            given = [each for each in given.split(label_separator) if each.strip()]
        elif label_separator is not None:
            raise ValueError(
                f"{place}: a list of labels needs no separator. Received: {given!r} "
                f"and label_separator={label_separator!r}. Leave it out."
            )
        sides = first if second is None else (first, second)
        several = isinstance(given, list)
        if labels and several != isinstance(labels[0], list):
            raise ValueError(
                f"{place}: labels must be lists in all rows or in none. Received: "
                f"{given!r}, after {labels[-1]!r}. Write lists everywhere."
            )
        texts.append(_checked_text(sides, second is not None, place))
        labels.append(_checked_label(given, several, place))
    return LabeledDataset(texts, labels, classes, allow_missing, str(path))


def _as_list(values, side: str) -> list:
    if isinstance(values, str):
        raise TypeError(
            f"`{side}` must be a list. Received one string: {values[:40]!r}. To read "
            "a file use `read_labeled`."
        )
    return list(values)


def _class_list(classes) -> list[str]:
    classes = [
        _checked_label(each, False, "`classes`")
        for each in _as_list(classes, "classes")
    ]
    repeated = [each for each, n in collections.Counter(classes).items() if n > 1]
    if repeated:
        raise ValueError(
            f"`classes` must name each class once. Received twice: {repeated}. "
            "Remove the second."
        )
    return sorted(classes)


def _checked_text(text, paired: bool, place: str):
    sides = (text,) if isinstance(text, str) else text
    fits = isinstance(sides, tuple | list) and len(sides) == 1 + paired
    if not fits or not all(isinstance(side, str) for side in sides):
        raise TypeError(
            f"{place}: {'a pair of strings' if paired else 'a string'} is wanted, as "
            f"the first text is one. Received: {text!r}. Give all texts alike."
        )
    for side in sides:
        if not side.strip():
            raise ValueError(
                f"{place}: the text is empty, and nothing can be learned from it. "
                f"Received: {text!r}. Fill or remove the row."
            )
        if not is_unicode(side):
            raise ValueError(
                f"{place}: the text holds half of a character (a lone surrogate). "
                f"Received: {side[:80]!r}. Mend or remove the row."
            )
    return tuple(sides) if paired else text


def _checked_label(label, several: bool, place: str):
    names = label if several else [label]
    if not isinstance(names, tuple | list | set | frozenset) or not all(
        isinstance(each, str) for each in names
    ):
        raise TypeError(
            f"{place}: {'a list of strings' if several else 'a string'} is wanted as "
            f"label. Received: {label!r} of type {type(label).__name__}. Give all "
            "labels alike, numbers as strings."
        )
    names = [each.strip() for each in names]
    if not all(names):
        raise ValueError(
            f"{place}: the label is empty. Received: {label!r}. Fill or remove the row."
        )
    if not all(map(is_unicode, names)):
        raise ValueError(
            f"{place}: the label holds half of a character (a lone surrogate). "
            f"Received: {label!r:.80}. Mend or remove the row."
        )
    return sorted(set(names)) if several else names[0]


def names_of(label) -> list[str]:
    """Lists the classes that a label names: itself, or its members."""
    return [label] if isinstance(label, str) else label


def _sides(text) -> tuple[str, ...]:
    return (text,) if isinstance(text, str) else text
