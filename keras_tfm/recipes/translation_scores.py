"""Scores of a translator on a test set: BLEU and chrF with 95% intervals."""

import pathlib
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import sacrebleu

from keras_tfm import pipelines
from keras_tfm.recipes import corpora

if TYPE_CHECKING:  # which imports this module
    from keras_tfm.recipes import translation

NUM_TRANSLATIONS = 8  # translations that a run prints


class CHRF(sacrebleu.CHRF):
    """chrF whose bootstrap accepts samples without any match.

    sacrebleu returns a Python float for these and a NumPy float for others, and
    raises a TypeError in the mean of both.
    """

    def _compute_f_score(self, statistics):
        return float(super()._compute_f_score(statistics))


def evaluate(
    flags: "translation.Flags",
    translator: pipelines.Translator,
    corpus: corpora.Corpus,
    out: pathlib.Path,
) -> dict:
    """Translates the test set, scores it, and prints some translations.

    Args:
        flags: `translation.Flags`.
        translator: `pipelines.Translator`.
        corpus: `corpora.Corpus`.
        out: run folder; `translations.tsv` is written there.

    Returns:
        dict of JSON values: scores, signatures, lengths, seconds.
    """
    sources, references = corpus.test.source, corpus.test.target
    start = time.perf_counter()
    results = translator.translate(sources, progress=sys.stdout.isatty())
    seconds = time.perf_counter() - start
    translations = [result.text for result in results]
    truncated = sum(result.truncated for result in results)
    write_translations(out / "translations.tsv", sources, references, translations)
    print("\nUnseen sentences:")
    order = np.random.default_rng(flags.seed).permutation(len(sources))
    for i in order[:NUM_TRANSLATIONS]:
        print(f"  source       {sources[i]}")
        print(f"  translation  {translations[i]}")
        print(f"  reference    {references[i]}\n")
    scores = score(translations, references, flags.bleu_tokenize)
    if truncated:
        print(f"{truncated} translations were truncated at their maximum length")
    exact = 100 * float(np.mean(np.equal(translations, references)))
    return scores | {
        "exact_percent": round(exact, 2),
        "translations_truncated": truncated,
        "test_pairs": len(sources),
        "translating_seconds": round(seconds, 1),
    }


def score(translations: list[str], references: list[str], tokenize: str) -> dict:
    """Computes and prints BLEU and chrF.

    Args:
        translations: list of str.
        references: list of str, one for each.
        tokenize: str, tokenizer of sacrebleu.

    Returns:
        dict of JSON values.
    """
    bleu, chrf = sacrebleu.BLEU(tokenize=tokenize, force=True), CHRF()
    bleu_score, chrf_score = (
        metric.corpus_score(translations, [references], n_bootstrap=1000)
        for metric in (bleu, chrf)
    )
    half_width = bleu_score._ci  # sacrebleu has no public name for it
    print(f"BLEU {bleu_score.score:.2f} ± {half_width:.2f} (95%, bootstrap)")
    print(f"     {bleu_score}\n     {bleu.get_signature()}")
    print(f"chrF {chrf_score.score:.2f} ± {chrf_score._ci:.2f}")
    return {
        "bleu": round(float(bleu_score.score), 2),
        "bleu_half_width_95": round(float(half_width), 2),
        "bleu_signature": str(bleu.get_signature()),
        "chrf": round(float(chrf_score.score), 2),
        "chrf_half_width_95": round(float(chrf_score._ci), 2),
        "chrf_signature": str(chrf.get_signature()),
        "reference_length": bleu_score.ref_len,
        "translation_length": bleu_score.sys_len,
    }


def write_translations(
    file: pathlib.Path,
    sources: Iterable[str],
    references: Iterable[str],
    translations: Iterable[str],
) -> None:
    """Writes a TSV of sources, references and translations."""
    rows = zip(sources, references, translations, strict=True)
    lines = ["source\treference\ttranslation"]
    # A sentence of a JSONL file may contain tabs and line breaks.
    lines += ["\t".join(" ".join(side.split()) for side in row) for row in rows]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
