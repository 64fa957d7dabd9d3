"""Pairs of source and target sentences in memory."""

import itertools
import logging
from collections.abc import Iterable, Iterator

from keras_tfm.text.checks import check
from keras_tfm.text.files import is_unicode

_log = logging.getLogger(__name__)


class Pairs:
    """Sentence pairs in memory, without those that have an empty side.

    A pair with an empty or blank side is dropped, counted in `report`, and
    logged as a warning. The order stays.

    Args:
        source: list of strings, the sentences to translate.
        target: list of strings of the same length, their translations.
        name: string. The name of these pairs in reports, such as a file name.

    Attributes:
        source: list of strings.
        target: list of strings of the same length.
        dropped: dictionary of counts: `"empty source"`, `"empty target"`,
            `"both empty"`.
        report: string, one line: pairs read, dropped and kept.

    Raises:
        ValueError: a side is one string, or holds something other than strings
            or a lone surrogate; the sides differ in length; or no pair is left.

    Example:
        ```python
        from keras_tfm import text

        pairs = text.Pairs(["one", "two", ""], ["eins", "zwei", "drei"])
        print(len(pairs), list(pairs))
        print(pairs.report)
        ```
    """

    def __init__(
        self, source: Iterable[str], target: Iterable[str], name: str = "pairs"
    ):
        sides = {"source": list(source), "target": list(target)}
        for side, texts in sides.items():
            faulty = [t for t in texts if not isinstance(t, str) or not is_unicode(t)]
            check(
                not faulty,
                f"{name}: `{side}` must hold strings without lone surrogates",
                "Fix or remove the pairs.",
                count=len(faulty),
                first=faulty[:1],
            )
        count = len(sides["source"])
        check(
            len(sides["target"]) == count
            and not isinstance(source, str)
            and not isinstance(target, str),
            f"{name}: `source` and `target` must be lists of the same length",
            "Align the two sides again.",
            source=count,
            target=len(sides["target"]),
        )
        has_text = [
            tuple(bool(text.strip()) for text in pair)
            for pair in zip(*sides.values(), strict=True)
        ]
        self.source, self.target = (
            list(itertools.compress(texts, map(all, has_text)))
            for texts in sides.values()
        )
        self.dropped = {
            "empty source": has_text.count((False, True)),
            "empty target": has_text.count((True, False)),
            "both empty": has_text.count((False, False)),
        }
        reasons = (f"{n:,} {reason}" for reason, n in self.dropped.items() if n)
        total = count - len(self)
        self.report = f"{name}: {count:,} pairs read, {total:,} dropped"
        self.report += f" ({', '.join(reasons)})" if total else ""
        self.report += f", {len(self):,} kept"
        if not len(self):
            raise ValueError(
                f"No pair has text on both sides; got {self.report}. Check the "
                "columns, and that the file was written completely."
            )
        if total:
            _log.warning(self.report)

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return zip(self.source, self.target, strict=True)

    def __repr__(self) -> str:
        return f"<Pairs: {self.report}>"
