"""Scores of a translator on a test set, with 95% intervals."""

import math
import pathlib
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import sacrebleu
import sacrebleu.significance
from sacrebleu.metrics.base import Metric, Score

from keras_tfm import pipelines, text
from keras_tfm.recipes import corpora
from keras_tfm.training import processes

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


class SegmentScores(Metric):
    """A metric of sacrebleu whose scores of segments are computed before.

    The score of a system is their mean. sacrebleu has no public way to add a
    metric to its bootstrap: the methods that it calls are implemented here.

    Args:
        name: str, of the metric.
        model: str, shown in the signature.
        scores: list of pairs of a system's translations and their scores.

    Example:
        ```python
        # requires: sacrebleu
        from keras_tfm.recipes.translation_scores import SegmentScores

        texts = ["Ja.", "Nein."]
        metric = SegmentScores("COMET", "a/model", [(texts, [0.5, 1.0])])
        print(metric.corpus_score(texts, [texts]))  # COMET = 0.75
        ```
    """

    def __init__(
        self, name: str, model: str, scores: list[tuple[list[str], list[float]]]
    ):
        super().__init__()
        self.name, self.model, self.num_refs = name, model, 1
        self._scores = {tuple(texts): values for texts, values in scores}

    def get_signature(self) -> Any:
        signature = super().get_signature()
        signature.update("model", self.model)
        return signature

    def _extract_corpus_statistics(self, hypotheses, references):
        return [[score, 1.0] for score in self._scores[tuple(hypotheses)]]

    def _aggregate_and_compute(self, statistics):
        return self._compute_score_from_stats(np.sum(statistics, axis=0))

    def _compute_score_from_stats(self, statistics):
        total, count = map(float, statistics)
        return Score(self.name, total / count)

    def _compute_segment_statistics(self, hypothesis, ref_kwargs):
        # sacrebleu declares it abstract; the scores are known without it.
        raise NotImplementedError

    _preprocess_segment: Any = _compute_segment_statistics
    _extract_reference_info: Any = _compute_segment_statistics


def evaluate(
    flags: "translation.Flags",
    translator: pipelines.Translator,
    corpus: corpora.Corpus,
    out: pathlib.Path,
) -> dict:
    """Translates the test sets, scores them, and prints some translations.

    Args:
        flags: `translation.Flags`.
        translator: `pipelines.Translator`.
        corpus: `corpora.Corpus`.
        out: run folder; `translations.tsv` is written there, and for each
            further test set a file such as `translations_test_2017.tsv`.

    Returns:
        dict of JSON values: scores, signatures, lengths, seconds. If there are
        further test sets, `"more_tests"` has theirs by name.
    """
    result = _evaluate(flags, translator, corpus.test, out / "translations.tsv")
    scores = {}
    for name, pairs in corpus.more_tests.items():
        print(f"\n{name}, {len(pairs):,} pairs")
        file = out / f"translations_{name}.tsv"
        scores[name] = _evaluate(flags, translator, pairs, file, num_printed=0)
    return result | ({"more_tests": scores} if scores else {})


def _evaluate(flags, translator, pairs, file, num_printed=NUM_TRANSLATIONS):
    sources, references = pairs.source, pairs.target
    start = time.perf_counter()
    results = processes.map_parts(
        lambda part: [
            (result.text, bool(result.truncated))
            for result in translator.translate(part, progress=sys.stdout.isatty())
        ],
        sources,
    )
    seconds = time.perf_counter() - start
    translations = [result for result, _ in results]
    truncated = sum(is_truncated for _, is_truncated in results)
    if processes.is_first_process():
        write_translations(file, sources, references, translations)
    if num_printed:
        print("\nUnseen sentences:")
    order = np.random.default_rng(flags.seed).permutation(len(sources))
    for i in order[:num_printed]:
        print(f"  source       {sources[i]}")
        print(f"  translation  {translations[i]}")
        print(f"  reference    {references[i]}\n")
    scores = score(translations, references, flags.bleu_tokenize)
    if truncated:
        print(f"Translations truncated at their maximum length: {truncated}")
    exact = 100 * float(np.mean(np.equal(translations, references)))
    return scores | {
        "exact_percent": round(exact, 2),
        "translations_truncated": truncated,
        "test_pairs": len(sources),
        "translating_seconds": round(seconds, 1),
    }


def perplexity(translator: pipelines.Translator, pairs: text.Pairs) -> dict[str, float]:
    """Computes and prints the perplexity of the references.

    Args:
        translator: `pipelines.Translator`.
        pairs: `text.Pairs`, the validation set. Pairs with an empty side, or a
            reference of more tokens than the model has positions, do not count.

    Returns:
        dict of JSON values: perplexity per subword token, ends of sentences
        included, without label smoothing.
    """
    longest = translator.decoder.max_positions or math.inf
    lengths = map(len, translator.target_vocabulary.encode(pairs.target))
    rows = zip(pairs.source, pairs.target, lengths, strict=True)
    scored = processes.map_parts(
        lambda part: [result.token_scores for result in translator.score(part)],
        [(source, target) for source, target, length in rows if length < longest],
    )
    scores = np.concatenate([np.zeros(0), *scored])  # -inf without a source
    value = math.exp(-np.mean(scores[np.isfinite(scores)]))
    print(f"Validation perplexity per subword token: {value:.3f}")
    return {"validation_perplexity": round(value, 4)}


def score(translations: list[str], references: list[str], tokenize: str) -> dict:
    """Computes and prints BLEU and chrF.

    Args:
        translations: list of str.
        references: list of str, one for each.
        tokenize: str, tokenizer of sacrebleu.

    Returns:
        dict of JSON values.
    """
    bleu_and_chrf = metrics(tokenize)
    scores = print_scores(bleu_and_chrf, translations, [references])
    values = {}
    for (name, metric), result in zip(bleu_and_chrf.items(), scores, strict=True):
        key = name.lower()
        values[key] = round(float(result.score), 2)
        values[f"{key}_half_width_95"] = round(float(result._ci), 2)
        values[f"{key}_signature"] = str(metric.get_signature())
    return values | {
        "reference_length": scores[0].ref_len,
        "translation_length": scores[0].sys_len,
    }


def metrics(tokenize: str, ter: bool = False) -> dict[str, Any]:
    """Returns the metrics of sacrebleu by name, BLEU first.

    Args:
        tokenize: str, tokenizer of sacrebleu for BLEU.
        ter: bool. Add TER.

    Raises:
        ValueError: there is no such tokenizer.
    """
    if tokenize not in sacrebleu.BLEU.TOKENIZERS:
        raise ValueError(
            f"`tokenize` must be one of {', '.join(sacrebleu.BLEU.TOKENIZERS)}; got "
            f"{tokenize!r}."
        )
    chosen = {"BLEU": sacrebleu.BLEU(tokenize=tokenize, force=True), "chrF": CHRF()}
    return chosen | ({"TER": sacrebleu.TER()} if ter else {})


def print_scores(
    metrics: dict[str, Any], translations: list[str], references: list[list[str]]
) -> list:
    """Prints each score of a system with its 95% interval.

    Args:
        metrics: dict, of `metrics`.
        translations: list of str.
        references: for each translator a list of str, one for each translation.

    Returns:
        list of the scores of sacrebleu.
    """
    scores = []
    for name, metric in metrics.items():
        result = metric.corpus_score(translations, references, n_bootstrap=1000)
        # sacrebleu has no public name for the half-width of the interval.
        digits = _digits(metric)
        print(
            f"{name:4} {result.score:.{digits}f} ± {result._ci:.{digits}f} (95%, "
            "bootstrap)"
        )
        if name == "BLEU":
            print(f"     {result}")
        print(f"     {metric.get_signature()}")
        scores.append(result)
    return scores


def print_comparison(
    metrics: dict[str, Any],
    systems: dict[str, list[str]],
    references: list[list[str]],
) -> None:
    """Prints whether a system differs from a baseline, by paired bootstrap.

    Args:
        metrics: dict, of `metrics`.
        systems: dict from the names of two systems, baseline first, to their
            translations.
        references: see `print_scores`.

    Source: Koehn 2004, section 3, https://aclanthology.org/W04-3250
    """
    test = sacrebleu.significance.PairedTest(
        list(systems.items()), metrics, references, test_type="bs"
    )
    _, table = test()
    baseline, system = systems
    print(f"\nPaired bootstrap, 1,000 resamples: {system} against {baseline}")
    rows = list(table.items())[1:]  # without that of the names
    for metric, (name, (first, second)) in zip(metrics.values(), rows, strict=True):
        digits = _digits(metric)
        print(
            f"{name:4} {first.score:.{digits}f} -> {second.score:.{digits}f} "
            f"({second.score - first.score:+.{digits}f}), p = {second.p_value:.4f}"
        )


def _digits(metric):
    """Returns the decimals of a score: of 100, or of 1."""
    return 4 if isinstance(metric, SegmentScores) else 2


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
