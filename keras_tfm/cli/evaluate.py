"""`keras-tfm evaluate`."""

import difflib
import sys
import time

from keras_tfm.cli import lines, output
from keras_tfm.cli.options import Evaluate
from keras_tfm.cli.translate import languages_of, load_translator, speed_options
from keras_tfm.pipelines import pretrained
from keras_tfm.pipelines.comet import Comet
from keras_tfm.text.files import iterate_lines


def run(flags: Evaluate) -> None:
    """Translates a test set and scores the translations.

    Args:
        flags: `options.Evaluate`.
    """
    try:
        from keras_tfm.recipes import translation_scores
    except ImportError as error:
        raise ImportError(
            f"`keras-tfm evaluate` needs sacrebleu, which cannot be imported "
            f"({error}). Install `keras-tfm[recipes]`."
        ) from error
    if flags.output is not None:
        output.check_name(flags.output)
        output.check(flags.output, [*(flags.files or ["-"]), flags.compare])
    sources, references = _test_set(flags)
    baseline = _other_system(flags.compare, len(sources)) if flags.compare else None
    metrics = translation_scores.metrics(flags.tokenize, flags.ter)
    if flags.comet_encoder and not flags.comet:
        raise ValueError(
            "`comet_encoder` needs `comet`, the checkpoint that it belongs to; got "
            f"comet_encoder={flags.comet_encoder!r} alone."
        )
    comet = Comet.load(flags.comet, flags.comet_encoder) if flags.comet else None
    translator = load_translator(
        flags, beam_size=flags.beam_size, **speed_options(flags)
    )
    # After the model is loaded: a misspelled name leaves no file.
    file = output.Output(flags.output) if flags.output else None
    start = time.monotonic()
    results = translator.translate(sources)
    seconds = time.monotonic() - start
    translations = [result.text for result in results]
    if file is not None:
        file.write_all(translations, False)
    systems = [(flags.model, translations)]
    systems += [(flags.compare, baseline)] if baseline is not None else []
    if comet is not None:
        scores = _comet_scores(comet, sources, systems, references)
        metrics["COMET"] = translation_scores.SegmentScores(
            "COMET", flags.comet, scores
        )
    translation_scores.print_scores(metrics, translations, references)
    if baseline is not None:
        translation_scores.print_comparison(
            metrics, dict(reversed(systems)), references
        )
    truncated = sum(result.truncated for result in results)
    print(
        f"{len(sources):,} lines in {seconds:.1f} s, compilation included; {truncated} "
        "translations truncated"
    )
    sys.stdout.flush()


def _comet_scores(comet, sources, systems, references):
    """Scores the translations of each system against the first references."""
    if len(references) > 1:
        print(f"COMET compares with the first of {len(references)} references.")
    count, scores = len(systems), []
    # One call, since it encodes each different text once.
    results = comet.score(
        sources * count,
        [text for _, translations in systems for text in translations],
        references[0] * count,
    )
    for number, (name, translations) in enumerate(systems):
        part = slice(number * len(sources), (number + 1) * len(sources))
        scores.append((translations, results.scores[part]))
        if truncated := sum(results.truncated[part]):
            print(
                f"COMET read only the first {comet.max_length} tokens of a text in "
                f"{truncated:,} of {len(sources):,} segments of {name}."
            )
    return scores


def _test_set(flags):
    """Returns the sources, and for each translator a list of references."""
    if flags.test is not None:
        return _public_test_set(flags)
    report, rows = lines.pairs(
        flags.files, flags, languages_of(flags), max_bad_rate=flags.max_bad_rate
    )
    pairs = [pair for _, pair in report.readable(rows)]
    report.log()
    if not pairs:
        raise ValueError(
            "FILE must hold at least one pair of a source and a reference; got none."
        )
    sources, references = map(list, zip(*pairs, strict=True))
    return sources, [references]


def _public_test_set(flags):
    """Reads a test set of sacrebleu, which downloads it once."""
    from sacrebleu.dataset import DATASETS

    pair = flags.language_pair or "-".join(pretrained.languages_of(flags.model))
    if flags.files:
        raise ValueError(f"`test` replaces FILE; got test={flags.test!r} and files.")
    if flags.test not in DATASETS:
        nearest = difflib.get_close_matches(flags.test, DATASETS, n=3)
        raise ValueError(
            f"`test` must be a test set of sacrebleu; got {flags.test!r}. "
            + (f"Did you mean {' or '.join(nearest)}?" if nearest else "")
        )
    dataset = DATASETS[flags.test]
    if pair not in dataset.langpairs:
        raise ValueError(
            f"`language_pair` must be one of {', '.join(sorted(dataset.langpairs))} "
            f"for {flags.test}; got {pair!r}."
        )
    files = [dataset.get_source_file(pair), *dataset.get_reference_files(pair)]
    sources, *references = [list(iterate_lines(file)) for file in files]
    return sources, references


def _other_system(path, count):
    """Reads the translations of another system, one per line."""
    [path] = lines.check_files([path], "--compare")
    translations = list(iterate_lines(lines.source(path), allow_empty=True))
    if len(translations) != count:
        raise ValueError(
            "--compare must hold one translation for each source; got "
            f"{len(translations):,} lines in {path!r} for {count:,} sources."
        )
    return translations
