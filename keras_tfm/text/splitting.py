"""Parts of labelled texts: for training, for choices, for a test."""

import collections
from collections.abc import Sequence

import numpy as np

from keras_tfm.text.labeled import LabeledDataset, names_of


def split(
    labelled: LabeledDataset, shares: Sequence[float] = (0.8, 0.1, 0.1), seed: int = 0
) -> list[LabeledDataset]:
    """Divides texts at random, each class in the same shares.

    Rows of one and the same text go to one part, so that none that was trained
    on is asked again. Each part keeps the order of the rows.

    Args:
        labelled: `LabeledDataset`.
        shares: list of floats above 0 that sum to 1, one for each part.
        seed: int from 0. The same seed gives the same parts.

    Returns:
        list of `LabeledDataset`, with the classes of the whole.

    Raises:
        ValueError: the shares are no shares, or a part would have no example of
            a class.

    Source: for several labels a text, Sechidis et al. 2011, algorithm 1.
    https://doi.org/10.1007/978-3-642-23808-6_10
    """
    shares = list(shares)
    if len(shares) < 2 or min(shares) <= 0 or abs(sum(shares) - 1) > 1e-6 or seed < 0:
        raise ValueError(
            "Two shares or more, all above 0, must sum to 1, and `seed` be 0 or more. "
            f"Received: shares={tuple(shares)}, which sum to {sum(shares):g}, and "
            f"seed={seed}."
        )
    parts = _part_of_rows(labelled, shares, seed)
    held = [collections.Counter() for _ in shares]
    for label, part in zip(labelled.labels, parts, strict=True):
        held[part].update(names_of(label))
    for each, count in labelled.counts.items():
        if count and not all(part[each] for part in held):
            raise ValueError(
                f"{labelled.name}: each part needs an example of each class. Received "
                f"{count:,} texts of {each!r}, which fall to the {len(shares)} parts "
                f"as {[part[each] for part in held]}. Add texts of that class, leave "
                "it out, or split into fewer parts."
            )
    chosen = [np.flatnonzero(parts == part) for part in range(len(shares))]
    return [
        LabeledDataset(
            [labelled.texts[row] for row in rows],
            [labelled.labels[row] for row in rows],
            labelled.classes,
            allow_missing=True,  # only those that the whole lacks as well
            name=f"{labelled.name}, part {number} of {len(shares)}",
        )
        for number, rows in enumerate(chosen, start=1)
    ]


def _part_of_rows(
    labelled: LabeledDataset, shares: list[float], seed: int
) -> np.ndarray:
    """Gives each row its part: the rarest class first, where it is due most."""
    rows_of = collections.defaultdict(list)
    for row, text in enumerate(labelled.texts):
        rows_of[text].append(row)
    groups = list(rows_of.values())
    # None is the class of the texts that have no label.
    classes_of = [
        collections.Counter(
            each for row in rows for each in names_of(labelled.labels[row]) or [None]
        )
        for rows in groups
    ]
    left = collections.Counter()
    groups_of = collections.defaultdict(list)
    for group in np.random.default_rng(seed).permutation(len(groups)):
        left.update(classes_of[group])
        for each in classes_of[group]:
            groups_of[each].append(group)
    due = {each: _due(count, shares) for each, count in left.items()}
    due_rows = np.array(shares) * len(labelled)
    parts = np.full(len(labelled), -1)
    while left:
        rarest = min(left, key=lambda each: (left[each], each or ""))
        for group in groups_of[rarest]:
            rows = groups[group]
            if parts[rows[0]] >= 0:
                continue
            part = max(
                range(len(shares)), key=lambda p: (due[rarest][p], due_rows[p], -p)
            )
            parts[rows] = part
            due_rows[part] -= len(rows)
            for each, count in classes_of[group].items():
                due[each][part] -= count
                left[each] -= count
        del left[rarest]
    return parts


def _due(count: int, shares: list[float]) -> np.ndarray:
    """Shares out a class: one example at least to each part, if there are."""
    due = np.maximum(np.array(shares) * count, 1.0)
    largest = int(np.argmax(shares))
    due[largest] = max(1.0, count - (due.sum() - due[largest]))
    return due
