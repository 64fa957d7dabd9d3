"""Several models that decide together."""

import math
from collections.abc import Sequence

from keras import ops

from keras_tfm.decode.protocol import max_positions
from keras_tfm.decode.shortlist import is_repeated


class Ensemble:
    """Models of one target vocabulary, whose probabilities are averaged.

    It has what a search asks of a model, and stands in its place.

    Args:
        models: list of models such as `Transformer`.
        weights: list of floats above 0, or None for equal ones.

    Raises:
        ValueError: no model, vocabularies of different sizes, or weights that
            are not one above 0 for each model.

    Source: Sutskever et al. 2014, section 3.6. https://arxiv.org/abs/1409.3215
    """

    def __init__(self, models: Sequence, weights: Sequence[float] | None = None):
        self.models = list(models)
        weights = [1.0] * len(self.models) if weights is None else list(weights)
        fits = len(weights) == len(self.models) and all(
            w > 0 and math.isfinite(w) for w in weights
        )
        if not self.models or not fits:
            raise ValueError(
                "An ensemble has a model at least, and each a finite weight above 0. "
                f"Received: {len(self.models)} models, weights={weights}."
            )
        for name in ("vocabulary_size", "target_vocabulary_size"):
            sizes = [getattr(model, name, None) for model in self.models]
            if len(set(sizes)) > 1:
                raise ValueError(
                    "The models of an ensemble have one vocabulary. Received: "
                    f"{name}={sizes}. Train them with one vocabulary."
                )
            setattr(self, name, sizes[0])
        self.logarithms = [math.log(w / sum(weights)) for w in weights]
        self.max_positions = min(
            filter(None, map(max_positions, self.models)), default=None
        )
        options = [set(getattr(model, "begin_options", ())) for model in self.models]
        self.begin_options = set.intersection(*options)
        if all(hasattr(model, "extend") for model in self.models):
            self.extend = self._extend
        if all(hasattr(model, "logits_after") for model in self.models):
            self.logits_after = self._logits_after

    @property
    def variables(self):
        """The variables of all models."""
        return [v for model in self.models for v in getattr(model, "variables", [])]

    def __call__(self, inputs):
        """Gives log-probabilities of each next token.

        Args:
            inputs: what each model takes, a dictionary of ids.

        Returns:
            float32 `(B, T, V)`.
        """
        return self._together([model(inputs) for model in self.models])

    def begin(self, source_ids, max_length, beam_size=1, **options):
        """Begins with every model.

        Args:
            source_ids: integer `(B, S)`.
            max_length: int >= 1, in tokens.
            beam_size: int >= 1, K.
            **options: of the models.

        Returns:
            The cache: those of the models, their `"beams"` together, and the
            mean of their `"attention"`, if they have it.
        """
        cache = _joined(
            [m.begin(source_ids, max_length, beam_size, **options) for m in self.models]
        )
        if "candidates" in options:
            cache["again"] = is_repeated(options["candidates"])[:, None]
        return cache

    def step(self, ids, index, cache):
        """Advances every model by one token.

        Args:
            ids: integer `(B, K)`.
            index: scalar int tensor.
            cache: of `begin` or `step`.

        Returns:
            float32 `(B, K, V)` log-probabilities, and the new cache.
        """
        steps = [
            model.step(ids, index, own)
            for model, own in zip(self.models, _apart(cache), strict=True)
        ]
        logits, caches = zip(*steps, strict=True)
        joined = _joined(caches)
        if "again" in cache:  # what fills a shortlist up has no probability
            joined["again"] = again = cache["again"]
            logits = [ops.where(again, -float("inf"), one) for one in logits]
        return self._together(logits), joined

    def _extend(self, cache, max_length):
        caches = zip(self.models, _apart(cache), strict=True)
        joined = _joined([model.extend(own, max_length) for model, own in caches])
        return {**joined, "again": cache["again"]} if "again" in cache else joined

    def _logits_after(self, source_ids, target_ids):
        """As of `CausalLM`, where all are such."""
        models = self.models
        return self._together([m.logits_after(source_ids, target_ids) for m in models])

    def _together(self, logits):
        gains = [
            ops.log_softmax(ops.cast(one, "float32"), axis=-1) + logarithm
            for one, logarithm in zip(logits, self.logarithms, strict=True)
        ]
        return ops.logsumexp(ops.stack(gains), axis=0)


def _joined(caches):
    cache = {
        "beams": [cache.get("beams", {}) for cache in caches],
        "models": [
            {k: v for k, v in cache.items() if k != "beams"} for cache in caches
        ],
    }
    if all("attention" in own for own in caches):
        each = [ops.cast(own["attention"], "float32") for own in caches]
        cache["attention"] = ops.mean(ops.stack(each), axis=0)
    return cache


def _apart(cache):
    pairs = zip(cache["models"], cache["beams"], strict=True)
    return [{**own, "beams": beams} if beams else own for own, beams in pairs]
