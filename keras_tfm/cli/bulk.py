"""Answers lines, pairs or JSON objects in order, and names those it cannot."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from keras_tfm.cli.lines import Item
from keras_tfm.recipes.flags import with_flags
from keras_tfm.text.files import chunks
from keras_tfm.text.reading import Fault

# If so many items, the first ones of a job, have no answer, the job stops: the
# model, a flag or the file is wrong rather than its lines.
TOO_MANY = 10


class Job:
    """Answers items. One without an answer is reported; the others come.

    The report is a line on standard error; in the output it is an empty line,
    or a JSON object with `"error"`.

    Args:
        answer: function from a list of contents to a list of results. It must
            reject bad contents before it starts to work.
        write: function of an item and its result, which returns a line.
        flags: of the command: `window`, items that are answered at a time, and
            `format`, `"text"` or `"jsonl"`.

    Attributes:
        num_rejected: int, items without an answer.
    """

    def __init__(self, answer: Callable, write: Callable, flags: Any):
        self.answer, self.write, self.flags = answer, write, flags
        self.num_rejected = 0

    def __call__(self, items: Iterable[Item], first: int = 1) -> Iterator[str]:
        """Yields a line for each item.

        Args:
            items: iterable of `Item`.
            first: int, the number of the first item; above 1 in a job that
                resumes.

        Raises:
            ValueError: a file is damaged, or none of the first items has an
                answer.
        """
        may_stop = first == 1
        for chunk in chunks(items, self.flags.window):
            readable = [item for item in chunk if not isinstance(item.content, Fault)]
            results = iter(self._results(readable))
            errors = {}
            lines = []
            for number, item in enumerate(chunk):
                result = item.content
                if not isinstance(result, Fault):
                    result = next(results)
                if isinstance(result, Fault | Exception):
                    errors[number] = result = self._message(item, result)
                    lines.append(self._rejected(item, result))
                else:
                    lines.append(self.write(item, result))
            if may_stop and len(errors) == len(chunk) >= TOO_MANY:
                raise ValueError(
                    f"{errors[0]} None of the first {len(chunk):,} lines has an answer."
                )
            may_stop = False
            for error in errors.values():
                print(f"keras-tfm: {error}", file=sys.stderr)
            self.num_rejected += len(errors)
            yield from lines

    def check(self) -> None:
        """Raises if items had no answer, when all others are written.

        Raises:
            ValueError: as described.
        """
        if self.num_rejected:
            is_text = self.flags.format == "text"
            place = "empty lines" if is_text else 'objects with "error"'
            raise ValueError(
                f"{self.num_rejected:,} lines have no answer, and are {place} in the "
                "output; all others are written."
            )

    def _results(self, items):
        """Returns a result, or an exception, for each item."""
        try:
            return list(self.answer([item.content for item in items])) if items else []
        except (ValueError, TypeError) as error:
            if len(items) == 1:
                return [error]
        half = len(items) // 2
        return self._results(items[:half]) + self._results(items[half:])

    def _rejected(self, item, message):
        if self.flags.format == "text":
            return ""
        return json.dumps({**item.id, "error": message}, ensure_ascii=False)

    def _message(self, item, error):
        if isinstance(error, Fault):
            error = str(error.error(item.file, item.line))
        else:
            error = f"{item.file}, line {item.line:,}: {error}"
        return with_flags(error, self.flags)
