"""Texts with labels in memory, from lists or files."""

import collections
import logging
import os
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from keras_tfm.text.checks import check
from keras_tfm.text.csv_jsonl import format_of, iterate_columns, label_text
from keras_tfm.text.files import is_unicode
from keras_tfm.text.reading import MAX_BAD_RATE, Fault, ReadingReport

_LISTS = (list, tuple, set, frozenset)
_log = logging.getLogger(__name__)


class LabeledDataset:
    """Texts, or pairs of texts, and their labels.

    The order stays; a label that a text has twice counts once. Texts that occur
    several times with different labels are counted and logged.

    Args:
        texts: list of N strings, or of N pairs of strings.
        labels: list of N strings; or of N lists of strings, where a text may
            have several labels or none.
        classes: list of strings, all labels that are possible; None for those
            in `labels`. Its order has no meaning. With it, texts and labels are
            not checked for being swapped.
        allow_missing: bool. True accepts a class of `classes` without an
            example, which a small evaluation set may have.
        name: string. The name of these texts in errors and reports.

    Attributes:
        texts: list of N strings, or of N tuples of two.
        labels: list of N strings, or of N sorted lists of strings.
        classes: sorted list of C strings. Class c is `classes[c]`.
        multi_label: bool. The labels are lists.
        paired: bool. The texts are pairs.
        counts: dictionary from class to its number of texts.
        duplicates: int, rows whose text occurs in an earlier row.
        conflicts: int, different texts that occur with different labels.
        report: string: texts, classes and their counts, duplicates.

    Raises:
        ValueError: a text or label is empty or has another type than the first,
            texts and labels differ in number or look swapped, a label is not in
            `classes`, a class has no example, or there is one class only
            (allowed if `multi_label`).

    Example:
        ```python
        from keras_tfm import text

        films = text.LabeledDataset(["a joy", "dull", "good"], ["+", "-", "+"])
        print(films.report)
        print(films.classes, films.encoded_labels())
        ```
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
        self.texts, self.labels = list(texts), list(labels)
        check(
            0 < len(self.texts) == len(self.labels) and not isinstance(texts, str),
            f"{name}: `texts` and `labels` must be two lists of the same length",
            texts=len(self.texts),
            labels=len(self.labels),
        )
        self.paired = not isinstance(self.texts[0], str)
        self.multi_label = not isinstance(self.labels[0], str)
        for index, (text, label) in enumerate(self):
            try:
                self.texts[index] = _checked_text(text, self.paired)
                self.labels[index] = _checked_label(label, self.multi_label)
            except ValueError as error:
                raise ValueError(f"{name}, index {index}: {error}") from error
        counts = collections.Counter(x for label in self.labels for x in members(label))
        if classes is None:
            self._check_swapped(counts)
        self.classes = sorted(counts if classes is None else classes)
        self._check_classes(counts, allow_missing)
        self.counts = {member: counts[member] for member in self.classes}
        labels_of = collections.defaultdict(set)
        for text, label in self:
            labels_of[text].add(tuple(members(label)))
        self.duplicates = len(self) - len(labels_of)
        self.conflicts = sum(len(labels) > 1 for labels in labels_of.values())
        table = ", ".join(f"{member} {n:,}" for member, n in self.counts.items())
        self.report = (
            f"{name}: {len(self):,} {'pairs of ' * self.paired}texts, "
            f"{len(self.classes):,} classes ({table}); {self.duplicates:,} rows "
            f"repeat a text, {self.conflicts:,} texts have different labels"
        )
        if self.conflicts:
            _log.warning(self.report)

    def __len__(self) -> int:
        return len(self.texts)

    def __iter__(self) -> Iterator[tuple]:
        return zip(self.texts, self.labels, strict=True)

    def __repr__(self) -> str:
        return f"<LabeledDataset: {self.report[:200]}>"

    def encoded_labels(self) -> np.ndarray:
        """Returns the labels as indices into `classes`.

        Returns:
            int32 `(N,)`; float32 `(N, C)` of 0 and 1 with `multi_label`.
        """
        index_of = {member: index for index, member in enumerate(self.classes)}
        if not self.multi_label:
            return np.array([index_of[label] for label in self.labels], "int32")
        encoded = np.zeros((len(self), len(self.classes)), "float32")
        for row, label in zip(encoded, self.labels, strict=True):
            row[[index_of[member] for member in label]] = 1.0
        return encoded

    def _check_swapped(self, counts):
        """Raises where the labels look like texts or like names of rows."""
        texts = [" ".join([x] if isinstance(x, str) else x) for x in self.texts]
        labels = [" ".join(members(label)) for label in self.labels]
        rows, num_labels = len(texts), len(counts)
        # With several labels per row there may rightly be as many as rows.
        too_many = num_labels >= rows + self.multi_label > 2
        if not self.multi_label and rows >= 20:
            too_many |= 2 * num_labels > rows
        label_size, text_size = sum(map(len, labels)), sum(map(len, texts))
        longer = label_size > text_size and len(set(labels)) > len(set(texts))
        check(
            not too_many and not longer,
            f"{self.name}: several texts must share a label; {rows:,} rows have "
            f"{num_labels:,} different labels, of {label_size / rows:.0f} characters "
            f"on average, and texts of {text_size / rows:.0f}",
            "Are texts and labels swapped? Name the other columns; or, if this is "
            "right, pass `classes`.",
            first_text=texts[0][:60],
            first_label=labels[0][:60],
        )

    def _check_classes(self, counts, allow_missing):
        classes = set(self.classes)
        check(
            len(self.classes) == len(classes) >= 2 - self.multi_label,
            f"{self.name}: there must be {2 - self.multi_label} classes or more, all "
            "different",
            "Add texts of another class, or name the right column of labels.",
            classes=self.classes,
        )
        unknown = [(i, x) for i, x in enumerate(self.labels) if {*members(x)} - classes]
        check(
            not unknown,
            f"{self.name}: labels must be among `classes`, {self.classes}; "
            f"{len(unknown):,} are not",
            "Fix the labels, or train with these classes.",
            first=unknown[:1],
        )
        missing = [member for member in self.classes if not counts[member]]
        check(
            allow_missing or not missing,
            f"{self.name}: each class needs an example",
            "Add texts, or, for an evaluation, pass `allow_missing=True`.",
            missing=missing,
        )


def read_labeled(
    path: str | os.PathLike,
    text: str | int | Sequence[str | int] = "text",
    label: str | int = "label",
    text_pair: str | int | Sequence[str | int] | None = None,
    label_separator: str | None = None,
    format: str | None = None,
    classes: Iterable[str] | None = None,
    allow_missing: bool = False,
    max_bad_rate: float = MAX_BAD_RATE,
) -> LabeledDataset:
    """Reads texts and their labels from columns of a file.

    In a `.tsv` quotes have no meaning: a field is everything between two tabs.
    In a `.csv` a field in quotes may hold commas, line endings and doubled
    quotes (RFC 4180). A `.jsonl` has one JSON object per line, whose label may
    be a string, an integer, a boolean, or a list of these. Whitespace around a
    label is removed. Rows that cannot be read are logged as a warning.

    Args:
        path: string or path of a UTF-8 file, plain or `.gz`; or of UTF-16 with
            a byte order mark.
        text: string, int, or list of these. The column of the text; several
            are joined with a space. A name makes the first line a header,
            numbers count columns from 0 in a file without one.
        label: string or int. The column of the label.
        text_pair: string, int, list of these or None. The column of a second
            text, which makes the texts pairs.
        label_separator: string or None. It separates the labels of a text that
            may have several, or none where the field is empty.
        format: `"tsv"`, `"csv"`, `"jsonl"` or `"label_first"`, where each line
            is the label, a space and the text; None goes by the file's name.
        classes: as in `LabeledDataset`.
        allow_missing: as in `LabeledDataset`.
        max_bad_rate: float from 0 to 1. Fraction of rows that may have a fault
            and are skipped: not UTF-8, too few or too many columns, wrong
            quotes, an empty text or no label.

    Raises:
        FileNotFoundError: the file is missing.
        ValueError: the file is empty or truncated, its format is unknown, it
            lacks a column, too many rows cannot be read, or `LabeledDataset`
            raises.

    Example:
        ```python
        import pathlib
        import tempfile

        from keras_tfm import text

        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "reviews.csv")
            file.write_text("review,stars\\na joy,5\\ndull,1\\nfine,5\\n")
            print(text.read_labeled(file, text="review", label="stars").report)
        ```
    """
    format = format_of(path, format)
    first, second = _columns(text), _columns(text_pair)
    if format == "label_first":
        first, second = ["text"], []
    report = ReadingReport(str(path), max_bad_rate)
    rows = iterate_columns(path, format, [*first, *second, label], report)
    texts, labels = [], []

    def examples():
        for line, row in rows:
            if not isinstance(row, Fault):
                try:
                    row = _example(row, len(first), bool(second), label_separator)
                    _check_kind(row[1], labels)
                except ValueError as error:
                    row = Fault("no text or no label", str(error).rstrip("."))
            yield line, row

    for _, (item, value) in report.readable(examples()):
        texts.append(item)
        labels.append(value)
    report.log()
    return LabeledDataset(texts, labels, classes, allow_missing, str(path))


def members(label: str | list[str]) -> list[str]:
    """Returns the classes of a label: itself, or its items."""
    return [label] if isinstance(label, str) else label


def _columns(columns) -> list:
    if columns is None:
        return []
    return [columns] if isinstance(columns, str | int) else list(columns)


def _example(row, num_columns: int, paired: bool, label_separator: str | None):
    """Returns the text and the label of a row."""
    *values, value = row
    check(
        all(isinstance(item, str) for item in values),
        "a text must be a string",
        values=values,
    )
    value = label_text(value)
    if label_separator is not None and isinstance(value, str):
        value = [name for name in value.split(label_separator) if name.strip()]
    sides = (" ".join(values[:num_columns]), " ".join(values[num_columns:]))
    text = _checked_text(sides if paired else sides[0], paired)
    return text, _checked_label(value, not isinstance(value, str))


def _check_kind(label, labels):
    check(
        not labels or isinstance(label, str) == isinstance(labels[0], str),
        "labels must be lists in all rows or in none",
        label=label,
    )


def _checked_text(text, paired: bool):
    sides = tuple(text) if isinstance(text, tuple | list) else (text,)
    expected = "a pair of strings" if paired else "a string"
    check(
        len(sides) == 1 + paired and all(map(_is_content, sides)),
        f"the text must be {expected}, not empty, without a lone surrogate",
        text=text,
    )
    return sides if paired else text


def _checked_label(label, is_list: bool):
    names = list(label) if isinstance(label, _LISTS) else [label]
    expected = "a list of strings" if is_list else "a string"
    check(
        isinstance(label, _LISTS) == is_list and all(map(_is_content, names)),
        f"the label must be {expected}, not empty, without a lone surrogate",
        label=label,
    )
    names = [name.strip() for name in names]
    return sorted(set(names)) if is_list else names[0]


def _is_content(value) -> bool:
    return isinstance(value, str) and bool(value.strip()) and is_unicode(value)
