"""What a translator says of a text."""

import base64
import html
import io
from typing import NamedTuple

import numpy as np


class Hypothesis(NamedTuple):
    """One translation of a text.

    Attributes:
        text: str.
        score: float: log-probability over the length penalty, minus infinity
            where there is no text; of a text in parts the mean of theirs,
            weighted by their tokens; None where scores were not asked for.
        tokens: list of T str, its pieces, with the end.
        attention: float32 `(T, S)`, how much each piece attended to each of the
            source; between parts none; None where it was not asked for.
        finished: bool: not cut at its limit of tokens.
    """

    text: str
    score: float | None
    tokens: list[str]
    attention: np.ndarray | None
    finished: bool


class Translation(NamedTuple):
    """A text and its translations, the best first.

    Of a text in parts the n-th joins the n-th best of each, so that the first
    is what a call gives; scores of such may stand in another order.

    Printed, it is the best; a notebook shows all, and the attention of the
    best if it was asked for.

    Attributes:
        source: str, the text.
        source_tokens: list of S str, its pieces with their marks.
        hypotheses: list of `Hypothesis`.
    """

    source: str
    source_tokens: list[str]
    hypotheses: list[Hypothesis]

    @property
    def text(self) -> str:
        """The best translation."""
        return self.hypotheses[0].text

    @property
    def score(self) -> float | None:
        """The score of the best, see `Hypothesis`."""
        return self.hypotheses[0].score

    def __str__(self):
        return self.text

    def _repr_html_(self):
        rows = [f"<tr><td></td><td><i>{html.escape(self.source)}</i></td></tr>"]
        for one in self.hypotheses:
            score = "" if one.score is None else f"{one.score:.2f}"
            rows.append(f"<tr><td>{score}</td><td>{html.escape(one.text)}</td></tr>")
        table = f'<table dir="auto">{"".join(rows)}</table>'
        return table + self._picture()

    def _picture(self):
        best = self.hypotheses[0]
        if best.attention is None or not best.attention.size:
            return ""
        from keras_tfm import plot

        figure = plot.attention_map(best.attention, self.source_tokens, best.tokens)
        image = io.BytesIO()
        figure.savefig(image, format="png", bbox_inches="tight")
        content = base64.b64encode(image.getvalue()).decode()
        return f'<img alt="attention" src="data:image/png;base64,{content}">'


class Score(NamedTuple):
    """How likely a translator finds a translation that is given.

    Attributes:
        score: float, as of a `Hypothesis`.
        tokens: list of T str, its pieces, with the end.
        token_scores: list of T float: the log-probability of each.
    """

    score: float
    tokens: list[str]
    token_scores: list[float]
