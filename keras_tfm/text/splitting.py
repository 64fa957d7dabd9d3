"""Splits of labeled texts: train, validation, test."""

import collections
from collections.abc import Sequence

import numpy as np

from keras_tfm.text.checks import check
from keras_tfm.text.labeled import LabeledDataset, members


def split(
    examples: LabeledDataset,
    fractions: Sequence[float] = (0.8, 0.1, 0.1),
    seed: int = 0,
) -> list[LabeledDataset]:
    """Splits texts at random, each class in the same fractions.

    Rows with the same text go to one split, so that no text of the training
    split occurs in another. Each split keeps the order of the rows.

    Args:
        examples: `LabeledDataset`.
        fractions: list of floats above 0 that sum to 1, one for each split.
        seed: int from 0. The same seed returns the same splits.

    Returns:
        list of `LabeledDataset`, with all classes of `examples`.

    Raises:
        ValueError: the fractions are not valid, the seed is below 0, or a split
            would have no example of a class.

    Source: for several labels per text, Sechidis et al. 2011, algorithm 1.
    https://doi.org/10.1007/978-3-642-23808-6_10

    Example:
        ```python
        from keras_tfm import text

        texts = [f"text {number}" for number in range(40)]
        examples = text.LabeledDataset(texts, ["a", "b"] * 20)
        train, validation, test = text.split(examples)
        print(len(train), len(validation), len(test))
        ```
    """
    fractions = list(fractions)
    check(
        len(fractions) > 1 and min(fractions) > 0 and abs(sum(fractions) - 1) < 1e-6,
        "`fractions` must be two or more numbers above 0 that sum to 1",
        fractions=fractions,
    )
    check(seed >= 0, "`seed` must be 0 or more", seed=seed)
    split_of = _split_of_rows(examples, fractions, seed)  # (N,)
    counts = [collections.Counter() for _ in fractions]
    for label, number in zip(examples.labels, split_of, strict=True):
        counts[number].update(members(label))
    for member, total in examples.counts.items():
        check(
            not total or all(count[member] for count in counts),
            f"{examples.name}: each split needs an example of each class; the "
            f"splits have {[c[member] for c in counts]} of the {total:,} texts of "
            f"{member!r}",
            "Add texts of that class, leave it out, or use fewer splits.",
            fractions=fractions,
        )
    rows_of_splits = [np.flatnonzero(split_of == n) for n in range(len(fractions))]
    return [
        LabeledDataset(
            [examples.texts[row] for row in rows],
            [examples.labels[row] for row in rows],
            examples.classes,
            allow_missing=True,  # classes that `examples` lacks as well
            name=f"{examples.name}, split {number} of {len(fractions)}",
        )
        for number, rows in enumerate(rows_of_splits, start=1)
    ]


def _split_of_rows(examples, fractions, seed) -> np.ndarray:
    """Assigns rows: the rarest class first, to the split that lacks it most."""
    rows_of_text = collections.defaultdict(list)
    for row, text in enumerate(examples.texts):
        rows_of_text[text].append(row)
    groups = list(rows_of_text.values())
    # None is the class of texts without a label.
    counts_of = [
        collections.Counter(
            member for row in rows for member in members(examples.labels[row]) or [None]
        )
        for rows in groups
    ]
    remaining = collections.Counter()
    groups_of = collections.defaultdict(list)
    for group in np.random.default_rng(seed).permutation(len(groups)):
        remaining.update(counts_of[group])
        for member in counts_of[group]:
            groups_of[member].append(group)
    quota = {member: _quota(count, fractions) for member, count in remaining.items()}
    row_quota = np.array(fractions) * len(examples)
    split_of = np.full(len(examples), -1)
    while remaining:
        rarest = min(remaining, key=lambda member: (remaining[member], member or ""))
        for group in groups_of[rarest]:
            rows = groups[group]
            if split_of[rows[0]] >= 0:
                continue
            number = max(
                range(len(fractions)),
                key=lambda n: (quota[rarest][n], row_quota[n], -n),
            )
            split_of[rows] = number
            row_quota[number] -= len(rows)
            for member, count in counts_of[group].items():
                quota[member][number] -= count
                remaining[member] -= count
        del remaining[rarest]
    return split_of


def _quota(count: int, fractions: list[float]) -> np.ndarray:
    """Divides the texts of a class; each split gets one, if possible."""
    quota = np.maximum(np.array(fractions) * count, 1.0)
    largest = int(np.argmax(fractions))
    quota[largest] = max(1.0, count - (quota.sum() - quota[largest]))
    return quota
