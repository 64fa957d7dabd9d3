"""One model for several languages: their corpora, and tags of target languages.

Source: Johnson et al. 2017, https://arxiv.org/abs/1611.04558
"""

import dataclasses
import math
import pathlib
import random
from typing import TYPE_CHECKING

from keras_tfm import text
from keras_tfm.recipes import corpora, encoded, mixture, user_files

if TYPE_CHECKING:  # which imports this module
    from keras_tfm.recipes import translation


def load_corpus(flags: "translation.Flags") -> corpora.Corpus:
    """Reads the corpora of all language pairs, with their augmentation.

    Args:
        flags: `translation.Flags`.

    Returns:
        `corpora.Corpus`, whose training set has the pairs of all languages, and
        whose validation and test sets are those of `--source` and `--target`.
    """
    if encoded.is_encoded_data(flags.data):
        return encoded.load_corpus(flags)
    main_pair = (flags.source, flags.target)
    language_pairs = [main_pair]
    language_pairs += [(code, flags.target) for code in flags.additional_sources]
    language_pairs += [(flags.source, code) for code in flags.additional_targets]
    loaded = [
        corpora.load(
            flags.data,
            *languages,
            multi30k_format=flags.multi30k_format,
            source_column=user_files.parse_column(flags.source_column),
            target_column=user_files.parse_column(flags.target_column),
            max_bad_rate=flags.max_bad_rate,
            held_out=flags.held_out,
            seed=flags.seed,
            additional=flags.additional_data if languages == main_pair else None,
        )
        for languages in language_pairs
    ]
    if len(loaded) > 1:
        loaded = corpora.separate(loaded)
    held_out = {
        sentence for corpus in loaded for pair in corpus.held_out for sentence in pair
    }
    rows: list[tuple[str, str]] = []
    repeated: list[tuple[str, str]] = []
    added: dict[str, list] = {}
    notes = [note for corpus in loaded for note in corpus.notes]
    largest = max(len(corpus.train) for corpus in loaded)
    for corpus in loaded:
        language_rows = list(tag(flags, corpus.train, corpus.target))
        rows += language_rows
        for kind, addition in mixture.make(flags, corpus, held_out).items():
            rows_of_kind = added.setdefault(kind, [])
            if addition.rows:
                pairs = text.Pairs(*map(list, zip(*addition.rows, strict=True)))
                tagged = list(tag(flags, pairs, corpus.target))
                rows_of_kind += tagged
                language_rows += tagged
            prefix = f"{corpus.source}-{corpus.target}: " if loaded[1:] else ""
            notes += [prefix + note for note in addition.notes]
        exponent = 1 - 1 / flags.sampling_temperature
        times = (largest / len(corpus.train)) ** exponent
        if times > 1:
            repeated += _repeat(language_rows, times - 1, flags.seed)
            notes.append(
                f"{corpus.source}-{corpus.target}: each pair occurs {times:.1f} times."
            )
    rows += [pair for rows_of_kind in added.values() for pair in rows_of_kind]
    rows += repeated
    train = text.Pairs(*map(list, zip(*rows, strict=True)))
    terms = mixture.combine_licenses(flags, loaded[0].license)
    return dataclasses.replace(loaded[0], train=train, notes=notes, license=terms)


def _repeat(rows, times, seed):
    """Repeats rows a number of times, which may have a fraction."""
    rest = round((times - int(times)) * len(rows))
    return rows * int(times) + random.Random(seed).sample(rows, rest)


def tag(flags: "translation.Flags", pairs: text.Pairs, language: str) -> text.Pairs:
    """Puts the tag of the target language, if any, before each source."""
    if not flags.additional_targets:
        return pairs
    prefix = text.language_tag(language)
    return text.Pairs([f"{prefix} {source}" for source in pairs.source], pairs.target)


def tagged_languages(flags: "translation.Flags") -> tuple[str, ...]:
    """Returns the target languages that have tags: none for a single target."""
    targets = flags.additional_targets
    return (flags.target, *targets) if targets else ()


def tag_ids(flags: "translation.Flags", vocabulary: text.Vocabulary) -> list[int]:
    """Returns the token ids before a source translated to `--target`."""
    return vocabulary.languages[flags.target] if flags.additional_targets else []


def check_tags(flags: "translation.Flags", vocabulary: text.Vocabulary) -> None:
    """Rejects a model to fine-tune whose tags are not those of the run.

    Raises:
        ValueError: it has tags and the run none, or it lacks a tag.
    """
    tags = vocabulary.languages
    if tags and not flags.additional_targets:
        raise ValueError(
            f"--additional-targets must name languages among {', '.join(tags)}, since "
            f"the model of --from {flags.init_from!r} has tags of these; got none."
        )
    missing = [code for code in tagged_languages(flags) if code not in tags]
    if missing:
        raise ValueError(
            f"--additional-targets: the model of --from {flags.init_from!r} has tags "
            f"of {sorted(tags)} and none of {missing}. Train one with "
            "--additional-targets from scratch."
        )


def check_languages(flags: "translation.Flags") -> None:
    """Rejects additional languages that the data cannot have.

    Raises:
        ValueError: both sides have additional languages, the data is a file, a
            language is named twice, or the temperature is below 1.
    """
    if not 1 <= flags.sampling_temperature < math.inf:
        raise ValueError(
            "--sampling-temperature must be finite and at least 1; got "
            f"{flags.sampling_temperature}. 1 repeats nothing."
        )
    sources, targets = flags.additional_sources, flags.additional_targets
    if sources and targets:
        raise ValueError(
            "--additional-sources and --additional-targets exclude each other; got "
            f"{' '.join(sources)} and {' '.join(targets)}. Train two models."
        )
    if flags.data not in corpora.NAMES and not pathlib.Path(flags.data).is_dir():
        raise ValueError(
            "--data must be a named corpus or a folder when there are additional "
            f"languages; got {flags.data!r}."
        )
    languages = (flags.source, flags.target, *sources, *targets)
    if len(set(languages)) < len(languages):
        raise ValueError(
            f"Each language must be named once; got {', '.join(languages)}."
        )
    for language in targets:
        text.language_tag(language)  # raises for a code that cannot be a tag
