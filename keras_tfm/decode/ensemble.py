"""Several models that decode together."""

import math
from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_tfm.decode.protocol import Capabilities
from keras_tfm.decode.shortlist import is_repeated
from keras_tfm.types import Tensor


class Ensemble:
    """Averages the probabilities of models with one target vocabulary.

    It is a `Decodable` itself, and stands in the place of a model.

    Args:
        models: list of models such as `Transformer`.
        weights: list of floats above 0, or None for equal ones.

    Raises:
        ValueError: no model, vocabularies of different sizes, or weights that
            are not one above 0 for each model.

    Source: Sutskever et al. 2014, section 3.6. https://arxiv.org/abs/1409.3215

    Example:
        ```python
        from keras_tfm import decode, models

        sizes = {"num_layers": 1, "embedding_dim": 8, "num_heads": 2}
        pair = [models.Transformer(20, **sizes) for _ in range(2)]
        ensemble = decode.Ensemble(pair, weights=[0.7, 0.3])
        assert ensemble.target_vocabulary_size == 20
        ```
    """

    def __init__(self, models: Sequence, weights: Sequence[float] | None = None):
        self.models = list(models)
        weights = [1.0] * len(self.models) if weights is None else list(weights)
        is_positive = all(w > 0 and math.isfinite(w) for w in weights)
        if not self.models or len(weights) != len(self.models) or not is_positive:
            raise ValueError(
                "`weights` must be a finite number above 0 for each of one model or "
                f"more; got {len(self.models)} models, weights={weights}."
            )
        capabilities = [Capabilities.of(model) for model in self.models]
        for name in ("vocabulary_size", "target_vocabulary_size"):
            sizes = [getattr(x, name) for x in capabilities]
            if len(set(sizes)) > 1:
                raise ValueError(
                    f"`models` must have one vocabulary; got {name}={sizes}."
                )
            setattr(self, name, sizes[0])
        limits = [x.max_positions for x in capabilities if x.max_positions]
        self.max_positions = min(limits, default=None)
        self.begin_options = frozenset.intersection(
            *(x.begin_options for x in capabilities)
        )
        self.log_weights = [math.log(w / sum(weights)) for w in weights]
        # Only what all models can do; `Capabilities` looks for these methods.
        if all(x.can_extend for x in capabilities):
            self.extend = self._extend
        if all(x.continues_source for x in capabilities):
            self.logits_after = self._logits_after

    def __repr__(self) -> str:
        return f"<Ensemble: {[type(model).__name__ for model in self.models]}>"

    @property
    def variables(self) -> list:
        """The variables of all models."""
        return [v for model in self.models for v in getattr(model, "variables", [])]

    def __call__(self, inputs: dict[str, Tensor]) -> Tensor:
        """Returns log-probabilities of each next token.

        Args:
            inputs: what each model takes, a dictionary of ids.

        Returns:
            float32 `(B, T, V)`.
        """
        return self._averaged([model(inputs) for model in self.models])

    def begin(
        self, source_ids: Tensor, max_length: Any, beam_size: int = 1, **options: Any
    ) -> dict:
        """Begins with every model.

        Args:
            source_ids: integer `(B, S)`.
            max_length: int >= 1, in tokens.
            beam_size: int >= 1, K.
            **options: arguments of the models' `begin`.

        Returns:
            The cache: those of the models, their `"beams"` together, and the
            mean of their `"attention"`, if they all have it.
        """
        cache = _merged_cache(
            [m.begin(source_ids, max_length, beam_size, **options) for m in self.models]
        )
        if "candidates" in options:
            cache["is_repeated"] = is_repeated(options["candidates"])[:, None]
        return cache

    def step(self, ids: Tensor, index: Tensor, cache: dict) -> tuple[Tensor, dict]:
        """Advances every model by one token.

        Args:
            ids: integer `(B, K)`.
            index: scalar int tensor.
            cache: from `begin` or `step`.

        Returns:
            float32 `(B, K, V)` log-probabilities, and the new cache.
        """
        steps = [
            model.step(ids, index, model_cache)
            for model, model_cache in zip(
                self.models, _model_caches(cache), strict=True
            )
        ]
        logits, caches = zip(*steps, strict=True)
        new_cache = _merged_cache(caches)
        if "is_repeated" in cache:  # Fillers of a shortlist have no probability.
            new_cache["is_repeated"] = repeated = cache["is_repeated"]
            logits = [ops.where(repeated, -float("inf"), x) for x in logits]
        return self._averaged(logits), new_cache

    def _extend(self, cache, max_length):
        new_cache = _merged_cache(
            [
                model.extend(model_cache, max_length)
                for model, model_cache in zip(
                    self.models, _model_caches(cache), strict=True
                )
            ]
        )
        if "is_repeated" in cache:
            new_cache["is_repeated"] = cache["is_repeated"]
        return new_cache

    def _logits_after(self, source_ids, target_ids):
        return self._averaged(
            [model.logits_after(source_ids, target_ids) for model in self.models]
        )

    def _averaged(self, logits):
        # The log of a weighted mean of probabilities, each (B, K, V).
        log_probs = [
            ops.log_softmax(ops.cast(x, "float32"), axis=-1) + log_weight
            for x, log_weight in zip(logits, self.log_weights, strict=True)
        ]
        return ops.logsumexp(ops.stack(log_probs), axis=0)


def _merged_cache(caches):
    # Under "beams", since a search reorders that entry.
    cache = {
        "beams": [cache.get("beams", {}) for cache in caches],
        "models": [
            {name: x for name, x in cache.items() if name != "beams"}
            for cache in caches
        ],
    }
    if all("attention" in x for x in caches):
        attention = [ops.cast(x["attention"], "float32") for x in caches]
        cache["attention"] = ops.mean(ops.stack(attention), axis=0)
    return cache


def _model_caches(cache):
    """Returns the cache of each model."""
    return [
        {**rest, "beams": beams} if beams else rest
        for rest, beams in zip(cache["models"], cache["beams"], strict=True)
    ]
