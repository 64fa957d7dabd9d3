"""The model of a server: what has come while it worked is its next batch."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from keras_tfm.serving.loading import load
from keras_tfm.serving.translator import Translator

FAULTS = (ValueError, TypeError)  # of what was asked, not of the server


class Asked(NamedTuple):
    """What one request asks of the model.

    Attributes:
        texts: list of str.
        prefixes: list of str or None, what each translation begins with.
        full: bool. All hypotheses, and attention: another program.
    """

    texts: list[str]
    prefixes: list[str | None] | None = None
    full: bool = False


class Worker:
    """A loaded model that answers batches of requests.

    Args:
        name: str, of a preset or a folder, see `Translator.from_preset`.
        source_language, target_language: str or None, likewise.
        **settings: of `Translator`.

    Attributes:
        model: `Translator` or `Classifier`.
        kind: `"translation"` or `"classification"`.

    Raises:
        ValueError, FileNotFoundError: there is no such model.
    """

    def __init__(self, name, source_language=None, target_language=None, **settings):
        self.model = load(name, source_language, target_language, **settings)
        translates = isinstance(self.model, Translator)
        self.kind = "translation" if translates else "classification"

    def warm_up(self):
        """Compiles what texts of usual lengths need."""
        if self.kind == "translation":
            self.model.warm_up()
            self.answers([Asked(["a"], None, True)])
            list(self.stream("a"))
        else:
            self.answers([Asked(["a"])])

    def describe(self) -> dict:
        """Tells what the model is, in values that JSON has."""
        found = {"kind": self.kind}
        if self.kind == "translation":
            return {**found, "hypotheses": self.model.settings["beam_size"]}
        return {**found, "classes": self.model.classes}

    def answers(self, asked) -> list:
        """Answers requests together.

        Args:
            asked: list of `Asked`.

        Returns:
            A list of dicts that JSON has for each, one for each of its texts;
            or the error of what was asked.
        """
        found = [None] * len(asked)
        for full in (False, True):
            places = [i for i, one in enumerate(asked) if one.full == full]
            if not places:
                continue
            try:
                answers = self._together([asked[i] for i in places], full)
            except FAULTS:  # of one of them, which the others do not pay for
                answers = [self._alone(asked[i]) for i in places]
            for place, answer in zip(places, answers, strict=True):
                found[place] = answer
        return found

    def stream(self, text, target_prefix=None) -> Iterator[str]:
        """Translates greedily, see `Translator.stream`.

        Args:
            text: str.
            target_prefix: str or None.
        """
        return self.model.stream(text, target_prefix)

    def _alone(self, one):
        try:
            return self._together([one], one.full)[0]
        except FAULTS as error:
            return error

    def _together(self, asked, full):
        texts = [text for one in asked for text in one.texts]
        if self.kind == "translation":
            nothing = [None] * max((len(one.texts) for one in asked), default=0)
            prefixes = [
                prefix
                for one in asked
                for prefix in (one.prefixes or nothing[: len(one.texts)])
            ]
            answers = self._translations(texts, prefixes, full)
        else:
            answers = [_labelled(one) for one in self.model(texts)]
        answers = iter(answers)
        return [[next(answers) for _ in one.texts] for one in asked]

    def _translations(self, texts, prefixes, full):
        asked = {}
        if full:
            count = self.model.settings["beam_size"]
            asked = {"return_attention": True, "num_hypotheses": count}
        if not any(prefixes):
            prefixes = None
        found = self.model.translate(texts, prefixes, **asked)
        return [_translated(one) for one in found]


def _translated(found):
    return {
        "source_tokens": found.source_tokens,
        "hypotheses": [
            {
                "text": one.text,
                "score": one.score if np.isfinite(one.score) else None,
                "finished": one.finished,
                "tokens": one.tokens,
                "attention": _numbers(one.attention),
            }
            for one in found.hypotheses
        ],
    }


def _numbers(attention):
    return None if attention is None else np.round(attention, 4).tolist()


def _labelled(found):
    names = sorted(found.probabilities, key=found.probabilities.get, reverse=True)
    return {
        "label": found.label,
        "probabilities": {name: float(found.probabilities[name]) for name in names},
        "truncated": found.truncated,
    }
