"""`keras-tfm evaluate`."""

import sys
import time

from keras_tfm.cli import lines
from keras_tfm.cli.translate import translator_of


def run(command):
    """Translates a test set and compares.

    Args:
        command: `options.Evaluate`.
    """
    try:
        from sacrebleu.metrics import BLEU, CHRF
    except ImportError as error:
        raise ImportError(
            "Translations are compared by the library sacrebleu, which cannot be "
            f"imported here ({error}). Install `keras-tfm[recipes]`."
        ) from error
    lines.check_output(command.output, command.files)
    both = list(lines.pairs(command.files))
    if not both:
        raise ValueError(
            "A test set has a pair of lines at least. Received: none. Name files with "
            "sources and their translations."
        )
    # Before a file is begun: what names nothing leaves none.
    translator = translator_of(
        command,
        beam_size=command.beam_size,
        matmul_precision=command.matmul_precision,
    )
    output = lines.Output(command.output) if command.output else None
    begun = time.monotonic()
    found = translator([source for source, _ in both], progress=False)
    seconds = time.monotonic() - begun
    if output is not None:
        output.write_all(found, False)
    wanted = [[target for _, target in both]]
    for metric in (BLEU(), CHRF()):
        try:
            score = metric.corpus_score(found, wanted, n_bootstrap=1000)
        except TypeError:  # of few lines it draws some without any match
            score = metric.corpus_score(found, wanted)
        print(score.format(signature=str(metric.get_signature()), width=2))
    print(
        f"{len(both):,} lines in {seconds:.1f} s, with compiling; {translator.cut} "
        "cut at their limit"
    )
    sys.stdout.flush()
