"""BLEU and chrF of a validation set, at the end of epochs."""

import sys

import keras


class Bleu(keras.callbacks.Callback):
    """Translates a validation set after an epoch and scores it by sacrebleu.

    BLEU and chrF of the detokenised translations go into the logs of the
    epoch, as `val_bleu` and `val_chrf`, from 0 to 100. Callbacks after this
    one in the list see them, so put it before `EarlyStopping(monitor=
    "val_bleu", mode="max")`, `ModelCheckpoint`, `TensorBoard` and `CSVLogger`;
    Keras' progress bar and `History` come last of themselves. In an epoch
    without an evaluation the logs hold the last values again: count that in
    the `patience` of a monitor. Before the first evaluation they hold none:
    give it `start_from_epoch=every - 1`.

    `signature` and `chrf_signature` hold sacrebleu's description of the two
    scores, `translations` the last translations, once an epoch was scored.

    Args:
        source: list of strings, the sentences to translate.
        references: list of strings, their right translations, not tokenised.
        translate: callable, from a list of strings to the list of their
            translations, detokenised, made with the model's present weights.
        every: int, 1 or more, in epochs. Score every `every`-th epoch, and
            the last of the `epochs` of `fit`.
        tokenize: string, a tokenizer of sacrebleu. `"13a"` is the usual one;
            `"none"` for text that is tokenised already.
        lowercase: bool. Ignore case.
        prefix: string before `bleu` and `chrf` in the logs.
        examples: int, 0 or more. Print this many sentences with their
            translation and reference each time, taken evenly from the set.

    Raises:
        ValueError: the lists are empty or of different length, `every` or
            `examples` is out of range, `tokenize` is unknown, or `translate`
            returns another number of strings than it was given.
        ImportError: sacrebleu is not installed.

    Source: Post 2018, A Call for Clarity in Reporting BLEU Scores.
    https://aclanthology.org/W18-6319
    """

    def __init__(
        self,
        source,
        references,
        translate,
        every=1,
        tokenize="13a",
        lowercase=False,
        prefix="val_",
        examples=0,
    ):
        super().__init__()
        check_texts(source, references)
        if every < 1 or examples < 0:
            raise ValueError(
                "Scores are taken every 1 or more epochs and 0 or more examples are "
                f"shown. Received: every={every}, examples={examples}."
            )
        self.source = list(source)
        self.references = list(references)
        self.translate = translate
        self.every = every
        self.prefix = prefix
        self.examples = min(examples, len(self.source))
        self.signature = None
        self.chrf_signature = None
        self.translations = None
        self.scores = {}  # what the last evaluation put into the logs
        self._bleu, self._chrf = sacrebleu_metrics(tokenize, lowercase)

    def on_epoch_end(self, epoch, logs=None):
        last = epoch + 1 == (self.params or {}).get("epochs")
        if last or (epoch + 1) % self.every == 0:
            self._evaluate()
        if logs is not None:
            logs.update(self.scores)

    def _evaluate(self):
        translations = list(self.translate(list(self.source)))
        if len(translations) != len(self.source):
            raise ValueError(
                "`translate` returns one string for each sentence. Received: "
                f"{len(translations)} strings for {len(self.source)} sentences."
            )
        bleu = self._bleu.corpus_score(translations, [self.references]).score
        chrf = self._chrf.corpus_score(translations, [self.references]).score
        self.signature = str(self._bleu.get_signature())
        self.chrf_signature = str(self._chrf.get_signature())
        self.translations = translations
        self.scores = {f"{self.prefix}bleu": bleu, f"{self.prefix}chrf": chrf}
        self._show_examples()

    def _show_examples(self):
        count = len(self.source)
        for number in range(self.examples):
            row = number * count // self.examples
            sys.stdout.write(
                f"\nsource      {self.source[row]}"
                f"\ntranslation {self.translations[row]}"
                f"\nreference   {self.references[row]}\n"
            )


def check_texts(source, references):
    """Raises ValueError unless every sentence has its one reference."""
    for name, texts in (("source", source), ("references", references)):
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise ValueError(
                f"`{name}` is a list of strings, one for each sentence. Received: "
                f"{name}={texts!r:.80}."
            )
    if len(source) != len(references) or not source:
        raise ValueError(
            "Each sentence to translate has one reference, and there is at least "
            f"one. Received: {len(source)} sentences, {len(references)} references. "
            "Read both from files of the same set."
        )


def sacrebleu_metrics(tokenize, lowercase):
    """Makes sacrebleu's BLEU and chrF.

    Args:
        tokenize: string, a tokenizer of sacrebleu.
        lowercase: bool. Ignore case.

    Returns:
        `sacrebleu.metrics.BLEU` and `sacrebleu.metrics.CHRF`.

    Raises:
        ImportError: sacrebleu is not installed.
        ValueError: `tokenize` is unknown.
    """
    try:
        from sacrebleu.metrics import BLEU, CHRF
    except ImportError as error:
        raise ImportError(
            "BLEU is computed by sacrebleu, which is not installed. "
            "Run: pip install 'keras-tfm[recipes]'"
        ) from error
    if tokenize not in BLEU.TOKENIZERS:
        raise ValueError(
            f"sacrebleu has the tokenizers {', '.join(sorted(BLEU.TOKENIZERS))}. "
            f"Received: tokenize={tokenize!r}."
        )
    return BLEU(tokenize=tokenize, lowercase=lowercase), CHRF(lowercase=lowercase)
