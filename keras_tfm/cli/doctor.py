"""`keras-tfm doctor`."""

import collections
import math
import pathlib
import re
import unicodedata

import numpy as np

from keras_tfm.cli import lines
from keras_tfm.text.tokenizers_vocabulary import load_vocabulary

# A pair whose lengths differ by so many times what is usual in this corpus.
UNUSUAL = 3.0
# By so many nats its words are likelier on the other sides: swapped.
SURE = 8.0
AMBIGUOUS = "the source stands there before with another target"
# Controls, private use, and what stands for bytes that were no text.
NO_TEXT = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\ue000-\uf8ff\ufffd]")
SHORTEST = 20  # letters of a copy or of a pair that is judged by its length


def run(command):
    """Reads a corpus and tells what is wrong with it.

    Args:
        command: `options.Doctor`.

    Returns:
        int: 1 where there is a fault and the command is strict.
    """
    vocabulary = None if command.vocabulary is None else _loaded(command.vocabulary)
    files = [command.source, *filter(None, [command.target])]
    pairs = list(lines.pairs(files))
    if not pairs:
        raise ValueError(f"There are no pairs to read in {files}.")
    faults = {
        "a side is empty": empty(pairs),
        "both sides are the same": copies(pairs),
        "the pair stands there before": repeated(pairs),
        AMBIGUOUS: ambiguous(pairs),
        "lengths differ unusually": uneven(pairs),
        "the sides look swapped": swapped(pairs),
        "characters that are no text": broken(pairs),
    }
    for side, name in enumerate(("source", "target")):
        test = getattr(command, f"test_{name}")
        if test is not None:
            kept = {folded(line) for line in lines.read([test]) if line.strip()}
            faults[f"the {name} is in the test"] = [
                n for n, pair in enumerate(pairs) if folded(pair[side]) in kept
            ]
    print(f"{len(pairs):,} pairs")
    for title, numbers in faults.items():
        share = 100 * len(numbers) / len(pairs)
        print(f"{title}: {len(numbers):,} ({share:.2f}%)")
        for number in numbers[: command.examples]:
            source, target = (_short(side) for side in pairs[number])
            print(f"    line {number + 1}: {source!r} | {target!r}")
    if vocabulary is not None:
        _tell_of_vocabulary(pairs, vocabulary, command)
    del faults[AMBIGUOUS]  # no fault: a text has many translations
    return int(command.strict and any(faults.values()))


def empty(pairs):
    """Lists pairs of which a side is blank.

    Args:
        pairs: list of pairs of str.

    Returns:
        list of int, from 0, as of those that follow.
    """
    return [n for n, pair in enumerate(pairs) if not all(s.strip() for s in pair)]


def copies(pairs):
    """Lists pairs that are not translated.

    Args:
        pairs: list of pairs of str.
    """
    return [
        n
        for n, (source, target) in enumerate(pairs)
        if len(source) >= SHORTEST and folded(source) == folded(target)
    ]


def repeated(pairs):
    """Lists pairs that stand there before.

    Args:
        pairs: list of pairs of str.
    """
    seen, found = set(), []
    for number, pair in enumerate(pairs):
        if pair in seen:
            found.append(number)
        seen.add(pair)
    return found


def ambiguous(pairs):
    """Lists pairs whose source stands there before, with another target.

    Args:
        pairs: list of pairs of str.
    """
    seen, found = {}, []
    for number, (source, target) in enumerate(pairs):
        if source.strip() and seen.setdefault(source, target) != target:
            found.append(number)
    return found


def uneven(pairs):
    """Lists pairs whose lengths differ by far more than is usual here.

    Args:
        pairs: list of pairs of str.
    """
    lengths = np.array([[len(side.strip()) for side in pair] for pair in pairs])
    judged = (lengths > 0).all(axis=1) & (lengths.max(axis=1) >= SHORTEST)
    if not judged.any():
        return []
    ratios = np.log(np.maximum(lengths[:, 0], 1) / np.maximum(lengths[:, 1], 1))
    usual = np.median(ratios[judged])
    odd = judged & (np.abs(ratios - usual) > math.log(UNUSUAL))
    return np.flatnonzero(odd).tolist()


def swapped(pairs):
    """Lists pairs whose words are those of the other sides.

    Args:
        pairs: list of pairs of str.
    """
    counts = [collections.Counter(), collections.Counter()]
    for pair in pairs:
        for count, side in zip(counts, pair, strict=True):
            count.update(folded(side).split())
    size = len(set(counts[0]) | set(counts[1]))
    totals = [count.total() + size for count in counts]

    def gain(word):
        """How much likelier it is as source than as target, in nats."""
        first, second = (
            math.log((count[word] + 1) / total)
            for count, total in zip(counts, totals, strict=True)
        )
        return first - second

    gains = {word: gain(word) for word in set(counts[0]) | set(counts[1])}
    sides = ((folded(source), folded(target)) for source, target in pairs)
    return [
        number
        for number, (source, target) in enumerate(sides)
        if source != target
        and sum(gains[w] for w in target.split())
        - sum(gains[w] for w in source.split())
        > SURE
    ]


def broken(pairs):
    """Lists pairs with signs of a wrong encoding, or control characters.

    Args:
        pairs: list of pairs of str.
    """
    return [n for n, pair in enumerate(pairs) if any(map(NO_TEXT.search, pair))]


def folded(text):
    """Gives a text without what two writings of it may differ in.

    Args:
        text: str.
    """
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _loaded(name):
    if not pathlib.Path(name).is_file():
        raise FileNotFoundError(
            f"A vocabulary is a file. Received: {name!r}, which is none. That of a run "
            "is `vocabulary.model`, of a preset `sentencepiece.model` in its folder."
        )
    return load_vocabulary(name)


def _tell_of_vocabulary(pairs, vocabulary, command):
    for side, name in enumerate(("source", "target")):
        texts = [pair[side] for pair in pairs]
        rows = vocabulary.encode(texts)
        sizes = np.array([len(row) for row in rows])
        words = max(1, sum(len(text.split()) for text in texts))
        tokens = max(1, int(sizes.sum()))
        unknown = sum(row.count(vocabulary.unknown_id) for row in rows)
        spelled = sum(
            piece.startswith("<0x") for row in rows for piece in vocabulary.tokens(row)
        )
        longer = int((sizes > command.max_length).sum())
        print(
            f"{name}: {tokens / words:.2f} tokens a word, at most {sizes.max():,} in a "
            f"text, {longer:,} texts of more than {command.max_length} tokens; "
            f"{100 * unknown / tokens:.2f}% unknown, {100 * spelled / tokens:.2f}% "
            "spelled in bytes"
        )


def _short(text):
    return text if len(text) <= 60 else text[:57] + "..."
