"""More training pairs: concatenated ones, and unpunctuated ones."""

import random

from keras_tfm.text import Pairs

# Languages that put no spaces between words.
WITHOUT_SPACES = ("ja", "km", "lo", "my", "th", "zh")
WITHOUT_SPACES += ("cmn", "jpn", "khm", "lao", "mya", "tha", "yue", "zho")
FINAL_PUNCTUATION = ".!?\u2026\u3002\uff01\uff1f"
SPACES = " \u00a0\u202f"
OPENING_PUNCTUATION = "\u00bf\u00a1"  # Spanish


def is_spaceless(language: str) -> bool:
    """Returns whether a language puts no spaces between words.

    Args:
        language: str, a code such as `"zh_Hans"`.

    Example:
        ```python
        from keras_tfm.recipes import augmentation

        assert augmentation.is_spaceless("zh_Hans")
        ```
    """
    return language.replace("-", "_").split("_")[0].lower() in WITHOUT_SPACES


def concatenate(
    pairs: Pairs, count: int, seed: int, separators: tuple[str, str] = (" ", " ")
) -> Pairs:
    """Makes long pairs: each concatenates two to four drawn pairs.

    A model of short sentences omits much of long texts.

    Args:
        pairs: `Pairs`, at least four.
        count: int >= 1. Pairs to make.
        seed: int.
        separators: pair of str, between sources and between targets.

    Returns:
        `Pairs`, `count` of them.

    Raises:
        ValueError: there are fewer than four pairs.

    Source: Kondo et al. 2021, section 3,
    https://aclanthology.org/2021.naacl-srw.18

    Example:
        ```python
        from keras_tfm import text
        from keras_tfm.recipes import augmentation

        pairs = text.Pairs(list("abcd"), list("ABCD"))
        [(source, target)] = augmentation.concatenate(pairs, 1, seed=0)
        assert source.upper() == target and " " in source
        ```
    """
    rows = list(pairs)
    if len(rows) < 4:
        raise ValueError(f"`pairs` must hold at least 4 pairs; got {len(rows)}.")
    draw = random.Random(seed)
    samples = (draw.sample(rows, draw.randint(2, 4)) for _ in range(count))
    sides = zip(*(zip(*sample, strict=True) for sample in samples), strict=True)
    return Pairs(
        *(
            [separator.join(sentences) for sentences in side]
            for separator, side in zip(separators, sides, strict=True)
        )
    )


def unpunctuate(pairs: Pairs, count: int, seed: int) -> list[tuple[str, str]]:
    """Makes pairs without final punctuation, as people type them.

    Of four pairs one has its source in lower case, and one has both sides in
    capitals. A model that was trained on punctuated sentences only repeats
    itself where the final punctuation is missing.

    Args:
        pairs: `Pairs`.
        count: int >= 1. Pairs to make, at most one of each punctuated pair.
        seed: int.

    Returns:
        list of pairs of str; empty if no pair is punctuated on both sides.

    Source: Belinkov and Bisk 2018, section 6, https://arxiv.org/abs/1711.02173

    Example:
        ```python
        from keras_tfm import text
        from keras_tfm.recipes import augmentation

        pairs = text.Pairs(["Come in!"], ["Herein!"])
        [pair] = augmentation.unpunctuate(pairs, 1, seed=0)
        assert pair == ("Come in", "Herein")
        ```
    """
    draw, rows = random.Random(seed), []
    punctuated = [pair for pair in pairs if all(side != _strip(side) for side in pair)]
    sample = draw.sample(punctuated, min(count, len(punctuated)))
    for number, pair in enumerate(sample):
        source, target = map(_strip, pair)
        if number % 4 == 1:
            source = source.lower()
        if number % 4 == 3:
            source, target = source.upper(), target.upper()
        if source and target:
            rows.append((source, target))
    return rows


def _strip(sentence):
    """Strips the final punctuation of a sentence."""
    stripped = sentence.rstrip(SPACES + FINAL_PUNCTUATION)
    if stripped == sentence:
        return sentence
    return stripped.lstrip(OPENING_PUNCTUATION)
