"""`keras-tfm evaluate`."""

import sys
import time

from keras_tfm.cli import lines, output
from keras_tfm.cli.options import Evaluate
from keras_tfm.cli.translate import load_translator


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
    output.check(flags.output, flags.files)
    pairs = list(lines.pairs(flags.files))
    if not pairs:
        raise ValueError(
            "FILE must hold at least one pair of a source and a reference; got none."
        )
    sources, references = map(list, zip(*pairs, strict=True))
    translator = load_translator(
        flags, beam_size=flags.beam_size, matmul_precision=flags.matmul_precision
    )
    # After the model is loaded: a misspelled name leaves no file.
    file = output.Output(flags.output) if flags.output else None
    start = time.monotonic()
    results = translator.translate(sources)
    seconds = time.monotonic() - start
    translations = [result.text for result in results]
    if file is not None:
        file.write_all(translations, False)
    translation_scores.score(translations, references, "13a")
    truncated = sum(result.truncated for result in results)
    print(
        f"{len(pairs):,} lines in {seconds:.1f} s, compilation included; {truncated} "
        "translations truncated"
    )
    sys.stdout.flush()
