"""Rows of a file that cannot be read: counted, listed by line, skipped."""

import dataclasses
import logging
from collections.abc import Iterable, Iterator
from typing import Any

from keras_tfm.text.checks import check

MAX_BAD_RATE = 0.05  # of the rows of a file, unless a caller says otherwise
MAX_LINES = 10  # line numbers that a report lists for each kind of fault

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Fault:
    """Why a row cannot be read. Readers yield it in place of the row.

    Attributes:
        kind: str, the same for all rows with this fault.
        detail: str. What the reader expects, and what the row has.
        fix: str, a sentence.
        ends_file: bool. Nothing after it can be read, or trusted.
    """

    kind: str
    detail: str
    fix: str = "Fix or remove the row."
    ends_file: bool = False

    def error(self, name: str, line: int) -> ValueError:
        """Returns an exception that names the file and the line."""
        return ValueError(f"{name}, line {line}: {self.detail}. {self.fix}")


class ReadingReport:
    """Counts the rows of a file that cannot be read.

    Args:
        name: str. The file.
        max_bad_rate: float from 0 to 1. Fraction of rows that may have a fault;
            0 raises at the first one. None never raises.

    Attributes:
        rows: int, rows until now, those with a fault included.
        counts: dict from the kind of a fault to its number of rows.
        notes: list of str, such as the header of the file.
        sides: names of both sides of pairs, or None where the file has none.

    Raises:
        ValueError: `max_bad_rate` is out of its range.
    """

    def __init__(self, name: str, max_bad_rate: float | None = MAX_BAD_RATE):
        check(
            max_bad_rate is None or 0 <= max_bad_rate <= 1,
            "`max_bad_rate` must be from 0 to 1",
            max_bad_rate=max_bad_rate,
        )
        self.name, self.max_bad_rate = name, max_bad_rate
        self.rows = 0
        self.counts: dict[str, int] = {}
        self.notes: list[str] = []
        self.sides: tuple[str, str] | None = None
        self._faults: dict[str, list[tuple[int, Fault]]] = {}

    def readable(
        self, rows: Iterable[tuple[int, Any | Fault]]
    ) -> Iterator[tuple[int, Any]]:
        """Yields the rows without a fault, each with its line, and counts all.

        Raises:
            ValueError: a fault ends the file, or more rows have faults than
                `max_bad_rate` allows.
        """
        for line, row in rows:
            is_fault = isinstance(row, Fault)
            self.rows += not is_fault or not row.ends_file
            if is_fault:
                self._add(line, row)
            else:
                yield line, row
        if self.max_bad_rate is not None:
            bad = sum(self.counts.values())
            if bad > self.max_bad_rate * self.rows:
                fixes = {faults[0][1].fix: None for faults in self._faults.values()}
                raise ValueError(
                    f"{self}. At most {self.max_bad_rate:.2%} are skipped. "
                    f"{' '.join(fixes)} Or increase `max_bad_rate`."
                )

    def _add(self, line: int, fault: Fault):
        self.counts[fault.kind] = self.counts.get(fault.kind, 0) + 1
        faults = self._faults.setdefault(fault.kind, [])
        if len(faults) < MAX_LINES:
            faults.append((line, fault))
        if self.max_bad_rate is not None and (fault.ends_file or not self.max_bad_rate):
            raise fault.error(self.name, line)

    def descriptions(self) -> list[str]:
        """Describes each kind of fault: rows, first ten lines, first detail."""
        texts = []
        for kind, faults in self._faults.items():
            count, (first, fault) = self.counts[kind], faults[0]
            ending = ", ..." if count > len(faults) else ""
            lines = ", ".join(str(line) for line, _ in faults)
            places = f" in lines {lines}{ending}" if count > 1 else ""
            texts.append(f"{kind}: {count:,}{places}; line {first}: {fault.detail}")
        return texts

    def __str__(self) -> str:
        bad = sum(self.counts.values())
        faults = ". ".join(self.descriptions())
        return f"{self.name}: {bad:,} of {self.rows:,} rows cannot be read. {faults}"

    def log(self) -> None:
        """Logs the notes and the faults as warnings."""
        for note in self.notes:
            _log.warning(f"{self.name}: {note}")
        if self.counts:
            _log.warning(f"{self}. These rows are skipped.")
