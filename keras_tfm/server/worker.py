"""The model of a server: what has come while it worked is its next batch."""

import inspect
from collections.abc import Iterator
from typing import NamedTuple

import keras
import numpy as np

from keras_tfm.pipelines.loading import load
from keras_tfm.pipelines.shared import SharedTranslator
from keras_tfm.pipelines.translator import GREEDY, Translator

WARM = (32, 64, 128)  # tokens: a longer text is cut into sentences
FAULTS = (ValueError, TypeError)  # of what was asked, not of the server


class TooLong(ValueError):
    """More than the server takes."""


class Asked(NamedTuple):
    """What one request asks of the model.

    Attributes:
        texts: list of str.
        prefixes: list of str or None, what each translation begins with.
        full: bool. All hypotheses.
        attention: bool. What each piece looked at, too.
        weight: int >= 1. As how many texts of a batch it counts.
    """

    texts: list[str]
    prefixes: list[str | None] | None = None
    full: bool = False
    attention: bool = False
    weight: int = 1

    @property
    def kind(self):
        """What is decoded together: of another kind are other programs."""
        return self.full, self.attention, any(self.prefixes or ())


class Worker:
    """A loaded model that answers batches of requests.

    Args:
        name: str, of a preset or a folder, see `Translator.from_preset`.
        source_language, target_language: str or None, likewise.
        attention_tokens: int >= 1, of a text whose attention is asked for:
            there are as many numbers as source tokens times target tokens.
        batch_size: int >= 1, texts that a translator decodes at once.
        seconds: float > 0 or None: what takes longer is given up.
        **settings: of `Translator`.

    Attributes:
        model: `Translator` or `Classifier`.
        kind: `"translation"` or `"classification"`.

    Raises:
        ValueError, FileNotFoundError: there is no such model, or it labels
            pairs of texts, which no request has.
    """

    def __init__(
        self,
        name,
        source_language=None,
        target_language=None,
        attention_tokens=400,
        batch_size=32,
        seconds=None,
        **settings,
    ):
        self.attention_tokens, self.seconds = attention_tokens, seconds
        # Two threads decode half of them each; on PyTorch one decodes all.
        threads = 1 if keras.config.backend() == "torch" else 2
        usual = {
            "batch_size": -(-batch_size // threads),
            # As many of any usual length: other numbers are other programs.
            "batch_tokens": batch_size * 2 * max(WARM),
            "few_buckets": True,
        }
        self.model = load(name, source_language, target_language, usual, **settings)
        self._alone = self.model
        translates = isinstance(self.model, Translator)
        if translates and keras.config.backend() != "torch":
            # What few ask for gets programs of one text alone.
            self._alone = self.model.replace(batch_size=1)
        self._shared = None
        if translates and batch_size > 1 and SharedTranslator.supports(self.model):
            self._shared = SharedTranslator(self.model, batch_size)
        self.kind = "translation" if translates else "classification"
        if not translates and self.model.paired:
            raise ValueError(
                "A server labels texts. Received: a classifier of pairs of texts. "
                "Export it for TensorFlow Serving."
            )

    def warm_up(self, lengths=WARM):
        """Compiles what texts of usual lengths need, so that none waits for it.

        Alternatives, attention and streams, which fewer ask for, are compiled
        for the first two lengths.

        Args:
            lengths: ints >= 1, in tokens, rising. None: all is compiled when it
                is first needed, while others wait.

        Raises:
            ValueError, TypeError: of what the model says of a text.
        """
        self._together([Asked(["a"])])
        if self.kind != "translation" or not lengths:
            return
        if self._shared is not None:
            self._shared.warm_up(lengths)
        else:
            self.model.warm_up(lengths)
        does = self.describe()
        some = [self._asking(True, False)]
        some += [self._asking(True, True)] if does["attention"] else []
        some += [GREEDY] if does["streams"] else []
        for search in some:
            self._alone.warm_up(lengths[:2], **search)

    def describe(self) -> dict:
        """Tells what the model is, in values that JSON has."""
        found = {"kind": self.kind}
        if self.kind == "translation":
            begin = inspect.signature(self.model.model.begin).parameters
            return {
                **found,
                "hypotheses": self.model.decoder.options.beam_size,
                "attention": "return_attention" in begin,
                "streams": not self.model.decoder.options.samples,
            }
        return {**found, "classes": self.model.classes}

    def answers(self, asked) -> list:
        """Answers requests together.

        Args:
            asked: list of `Asked`.

        Returns:
            A list of dicts that JSON has for each, one for each of its texts;
            or the error of what was asked; or a `TimeoutError`.
        """
        found = [None] * len(asked)
        for kind in sorted({one.kind for one in asked}):
            places = [i for i, one in enumerate(asked) if one.kind == kind]
            try:
                answers = self._together([asked[i] for i in places])
            except TimeoutError as error:
                answers = [error] * len(places)
            except FAULTS:  # of one of them, which the others do not pay for
                answers = [self._by_itself(asked[i]) for i in places]
            for place, answer in zip(places, answers, strict=True):
                found[place] = answer
        return found

    def shares(self, one) -> bool:
        """Tells whether a request may be answered beside others.

        Args:
            one: `Asked`.
        """
        return self._shared is not None and one.kind == (False, False, False)

    async def share(self, one) -> list:
        """Answers a request while others are answered, see `answers`.

        Args:
            one: `Asked`, which `shares` takes.
        """
        try:
            found = await self._shared.translate(one.texts, self.seconds)
        except (*FAULTS, TimeoutError) as error:
            return error
        return [_translated(one) for one in found]

    def stream(self, text, target_prefix=None) -> Iterator[str]:
        """Translates greedily, see `Translator.stream`.

        Args:
            text: str.
            target_prefix: str or None.
        """
        return self.model.stream(text, target_prefix)

    def _by_itself(self, one):
        try:
            return self._together([one])[0]
        except (*FAULTS, TimeoutError) as error:
            return error

    def _together(self, asked):
        """Answers requests of one kind."""
        full, attention, _ = asked[0].kind
        texts = [text for one in asked for text in one.texts]
        if self.kind == "translation":
            nothing = [None] * max((len(one.texts) for one in asked), default=0)
            prefixes = [
                prefix
                for one in asked
                for prefix in (one.prefixes or nothing[: len(one.texts)])
            ]
            answers = self._translations(texts, prefixes, full, attention)
        else:
            answers = [_labelled(one) for one in self.model(texts)]
        answers = iter(answers)
        return [[next(answers) for _ in one.texts] for one in asked]

    def _translations(self, texts, prefixes, full, attention):
        if attention:
            self._check_lengths(texts)
        if not any(prefixes):
            prefixes = None
        translator = self._alone if full or prefixes else self.model
        asked = self._asking(full, attention)
        found = translator.translate(texts, prefixes, timeout=self.seconds, **asked)
        return [_translated(one) for one in found]

    def _asking(self, full, attention):
        """Settings of a search, as of `Translator.translate`."""
        asked = {"num_hypotheses": self.model.decoder.options.beam_size} if full else {}
        return {**asked, "return_attention": True} if attention else asked

    def _check_lengths(self, texts):
        longest = max(map(len, self.model.vocabulary.encode(texts)), default=0)
        if longest > self.attention_tokens:
            raise TooLong(
                f"Attention is told of texts of {self.attention_tokens} tokens at "
                f"most. Received: {longest}. Ask for the translation alone."
            )


def _translated(found):
    return {
        "source_tokens": found.source_tokens,
        "hypotheses": [
            {
                "text": one.text,
                "score": one.score if np.isfinite(one.score) else None,
                "truncated": one.truncated,
                "tokens": one.tokens,
                "attention": _numbers(one.attention),
            }
            for one in found.hypotheses
        ],
    }


def _numbers(attention):
    return (
        None if attention is None else np.round(attention.astype("float64"), 4).tolist()
    )


def _labelled(found):
    names = sorted(found.probabilities, key=found.probabilities.get, reverse=True)
    return {
        "label": found.label,
        "probabilities": {name: float(found.probabilities[name]) for name in names},
        "truncated": found.truncated,
    }
