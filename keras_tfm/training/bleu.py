"""BLEU and chrF of a validation set, at the end of epochs."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import keras

from keras_tfm.training import processes


class Bleu(keras.callbacks.Callback):
    """Translates a validation set after an epoch and scores it with sacrebleu.

    BLEU and chrF of the detokenized translations go into the logs of the
    epoch, as `val_bleu` and `val_chrf`, from 0 to 100. Callbacks after this
    one in the list see them, so put it before `EarlyStopping(monitor=
    "val_bleu", mode="max")`, `ModelCheckpoint`, `TensorBoard` and `CSVLogger`;
    Keras' progress bar and `History` always come last. In an epoch without an
    evaluation the logs repeat the last scores: count that in the `patience` of
    a monitor. Before the first evaluation they have none: pass the monitor
    `start_from_epoch=every_epochs - 1`.

    Args:
        source: list of strings, the sentences to translate.
        references: list of strings, their reference translations, not
            tokenized.
        translate: callable, from a list of strings to the list of their
            translations, detokenized, made with the model's current weights. Of
            several processes that train together each translates a part, with a
            copy of the model on its own devices: see `local_devices`.
        every_epochs: int, 1 or more. Score after each so many epochs, and
            after the last epoch of `fit`.
        tokenize: string, a tokenizer of sacrebleu. `"13a"` is the usual one;
            `"none"` for text that is tokenized already.
        lowercase: bool. Ignore case.
        prefix: string before `bleu` and `chrf` in the logs.
        examples: int, 0 or more. Print so many sentences with their translation
            and reference each time, spread evenly over the set.

    Attributes:
        signature: str or None, sacrebleu's description of the last BLEU.
        chrf_signature: str or None, the same of chrF.
        translations: list of str or None, the last translations.

    Raises:
        ValueError: the lists are empty or of different length, `every_epochs`
            or `examples` is out of range, `tokenize` is unknown, or `translate`
            returns another number of strings than it got.
        ImportError: sacrebleu is not installed.

    Example:
        ```python
        # requires: sacrebleu
        import keras
        import numpy as np
        from keras_tfm import training

        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        source, references = ["ein Haus"], ["A house."]
        bleu = training.Bleu(source, references, lambda texts: references)
        x = np.ones((4, 2))
        history = model.fit(x, x[:, :1], callbacks=[bleu], verbose=0)
        print(history.history["val_chrf"])  # [100.0]
        ```

    Source: Post 2018, A Call for Clarity in Reporting BLEU Scores.
    https://aclanthology.org/W18-6319
    """

    def __init__(
        self,
        source: Sequence[str],
        references: Sequence[str],
        translate: Callable[[list[str]], Sequence[str]],
        every_epochs: int = 1,
        tokenize: str = "13a",
        lowercase: bool = False,
        prefix: str = "val_",
        examples: int = 0,
    ):
        super().__init__()
        _check_texts(source, references)
        if every_epochs < 1 or examples < 0:
            raise ValueError(
                "`every_epochs` must be at least 1 and `examples` at least 0; got "
                f"every_epochs={every_epochs}, examples={examples}."
            )
        self.source = list(source)
        self.references = list(references)
        self.translate = translate
        self.every_epochs = every_epochs
        self.prefix = prefix
        self.examples = min(examples, len(self.source))
        self.signature = None
        self.chrf_signature = None
        self.translations = None
        self.scores = {}  # what the last evaluation put into the logs
        self._bleu, self._chrf = _sacrebleu_metrics(tokenize, lowercase)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        is_last = epoch + 1 == (self.params or {}).get("epochs")
        if is_last or (epoch + 1) % self.every_epochs == 0:
            self._evaluate()
        if logs is not None:
            logs.update(self.scores)

    def _evaluate(self):
        translations = processes.map_parts(self._translate, self.source)
        bleu = self._bleu.corpus_score(translations, [self.references]).score
        chrf = self._chrf.corpus_score(translations, [self.references]).score
        self.signature = str(self._bleu.get_signature())
        self.chrf_signature = str(self._chrf.get_signature())
        self.translations = translations
        self.scores = {f"{self.prefix}bleu": bleu, f"{self.prefix}chrf": chrf}
        for number in range(self.examples):
            index = number * len(self.source) // self.examples
            sys.stdout.write(
                f"\nsource      {self.source[index]}"
                f"\ntranslation {translations[index]}"
                f"\nreference   {self.references[index]}\n"
            )

    def _translate(self, source):
        translations = list(self.translate(source))
        if len(translations) != len(source):
            raise ValueError(
                "`translate` must return one string for each sentence; got "
                f"{len(translations)} strings for {len(source)} sentences."
            )
        return translations


def _check_texts(source: Sequence[str], references: Sequence[str]) -> None:
    for name, texts in (("source", source), ("references", references)):
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise ValueError(
                f"`{name}` must be a list of strings, one for each sentence; got "
                f"{name}={texts!r:.80}."
            )
    if len(source) != len(references) or not source:
        raise ValueError(
            "`source` and `references` must have the same length, at least 1; got "
            f"{len(source)} sentences, {len(references)} references. Read both from "
            "files of the same set."
        )


def _sacrebleu_metrics(tokenize: str, lowercase: bool) -> tuple[Any, Any]:
    """Makes sacrebleu's BLEU and chrF."""
    try:
        from sacrebleu.metrics import BLEU, CHRF
    except ImportError as error:
        raise ImportError(
            "`Bleu` needs sacrebleu, which is not installed. "
            "Run: pip install 'keras-tfm[recipes]'"
        ) from error
    if tokenize not in BLEU.TOKENIZERS:
        raise ValueError(
            f"`tokenize` must be one of {', '.join(sorted(BLEU.TOKENIZERS))}; got "
            f"tokenize={tokenize!r}."
        )
    return BLEU(tokenize=tokenize, lowercase=lowercase), CHRF(lowercase=lowercase)
