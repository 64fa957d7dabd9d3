"""Text classification: an encoder, pooled and projected."""

from typing import Unpack

import keras
from keras import ops

from keras_tfm.layers.checks import check_choice, check_rates
from keras_tfm.layers.masks import padding_mask
from keras_tfm.layers.ngram_bag import NGramBag
from keras_tfm.layers.pooling import POOLINGS, AttentionPooling, Pooling
from keras_tfm.models import configured_model
from keras_tfm.models.encoder import Encoder
from keras_tfm.types import Tensor

HALF_PRECISION = ("float16", "bfloat16")


@keras.saving.register_keras_serializable(package="keras_tfm")
class SequenceClassifier(configured_model.ConfiguredModel):
    """Computes the logits of the labels of a text, or of a pair of texts.

    A plain functional `keras.Model` from the inputs of its encoder to float
    `(B, C)`: compile it with a cross-entropy `from_logits`, over classes where
    a text has one label, binary where it may have several.

    Args:
        encoder: `Encoder`. Trained together with its head.
        num_classes: int >= 1, C; 2 or more unless `multi_label`.
        pooling: `"attention"`, a learned query attends to the vectors;
            `"mean"`, `"max"`, or `"first"`, the vector of the first token.
        hidden_dim: int or None. Dimension of a layer between the pooled vector
            and the logits; None for no layer.
        hidden_activation: Keras activation of that layer.
        dropout: float in [0, 1), before the last projection.
        multi_label: bool. A text may have any number of the labels.
        max_ngram: int >= 0, in tokens: the length of the longest n-gram of a
            linear model whose logits are added, see `layers.NGramBag`. 0 for
            none.
        ngram_buckets: int in [3, 1048576], rows of its matrix at most.
        **options: `name`, `dtype`, `trainable` of a Keras model.

    Raises:
        ValueError: `num_classes` or `max_ngram` is too small, or `pooling` is
            unknown.
        TypeError: an option has an unknown name.

    Example:
        ```python
        import numpy as np
        from keras_tfm import models

        encoder = models.encoder_small(100)
        model = models.SequenceClassifier(encoder, num_classes=2)
        logits = model({"token_ids": np.array([[2, 8, 6, 3]])})
        print(model.probabilities(logits).shape)  # (1, 2)
        ```

    Source: attention: Yang et al. 2016, section 2.2; first: Devlin et al. 2019,
    section 3, https://arxiv.org/abs/1810.04805
    """

    def __init__(
        self,
        encoder: Encoder,
        num_classes: int,
        pooling: str = "attention",
        hidden_dim: int | None = None,
        hidden_activation: str = "tanh",
        dropout: float = 0.1,
        multi_label: bool = False,
        max_ngram: int = 0,
        ngram_buckets: int = 2**18,
        **options: Unpack[configured_model.KerasOptions],
    ):
        _check_counts(num_classes, multi_label, max_ngram)
        check_choice("pooling", pooling, ("attention", *POOLINGS))
        check_rates(dropout=dropout)
        policy, keras_options = configured_model.take_policy(
            options, encoder.dtype_policy
        )
        pooling_layer = _pooling_layer(pooling, dtype=policy, name="pooling")
        hidden_dense = ngram_bag = None
        if hidden_dim is not None:
            hidden_dense = keras.layers.Dense(
                hidden_dim, activation=hidden_activation, dtype=policy, name="hidden"
            )
        dropout_layer = keras.layers.Dropout(dropout, dtype=policy, name="head_dropout")
        # Half precision would round close logits to the same number.
        logits_dtype = "float32" if policy.compute_dtype in HALF_PRECISION else policy
        output_dense = keras.layers.Dense(
            num_classes, dtype=logits_dtype, name="logits"
        )

        inputs = configured_model.inputs_like(encoder)
        mask = padding_mask(inputs["token_ids"], encoder.pad_id)
        pooled = pooling_layer(encoder(inputs), padding_mask=mask)  # (B, D)
        if hidden_dense is not None:
            pooled = hidden_dense(pooled)  # (B, hidden_dim)
        logits = output_dense(dropout_layer(pooled))  # (B, C)
        if max_ngram:
            ngram_bag = NGramBag(
                num_classes, max_ngram, ngram_buckets, dtype="float32", name="ngrams"
            )
            logits = logits + ngram_bag(inputs["token_ids"], padding_mask=mask)
        config = {
            "encoder": encoder,
            "num_classes": num_classes,
            "pooling": pooling,
            "hidden_dim": hidden_dim,
            "hidden_activation": hidden_activation,
            "dropout": dropout,
            "multi_label": multi_label,
            "max_ngram": max_ngram,
            "ngram_buckets": ngram_buckets,
        }
        super().__init__(inputs, logits, config, policy, keras_options)
        self.encoder, self.pooling_layer = encoder, pooling_layer
        self.hidden_dense, self.ngram_bag = hidden_dense, ngram_bag
        self.output_dense = output_dense
        self.num_classes, self.multi_label = num_classes, multi_label

    def probabilities(self, logits: Tensor) -> Tensor:
        """Converts logits to probabilities.

        Args:
            logits: float `(B, C)`.

        Returns:
            float32 `(B, C)`: one for each label with `multi_label`, else a
            distribution over the labels.
        """
        logits = ops.cast(logits, "float32")  # half precision rounds close ones
        if self.multi_label:
            return ops.sigmoid(logits)
        return ops.softmax(logits, axis=-1)

    def pooling_weights(self, inputs: dict[str, Tensor]) -> Tensor:
        """Computes the weight of each token in the pooled vector.

        Args:
            inputs: dict of integers `(B, S)`, the inputs of the model.

        Returns:
            float `(B, S)`, which sum to 1 over the tokens that are no padding.

        Raises:
            ValueError: `pooling` is not `"attention"`.
        """
        if self.config["pooling"] != "attention":
            raise ValueError(
                "`pooling_weights` needs pooling='attention'; got "
                f"pooling={self.config['pooling']!r}."
            )
        _, weights = self.pooling_layer(
            self.encoder(inputs),
            padding_mask=padding_mask(inputs["token_ids"], self.encoder.pad_id),
            return_attention_scores=True,
        )
        return weights


def _pooling_layer(pooling, **options):
    if pooling == "attention":
        return AttentionPooling(**options)
    return Pooling(pooling, **options)


def _check_counts(num_classes, multi_label, max_ngram):
    if max_ngram < 0:
        raise ValueError(f"`max_ngram` must be at least 0; got max_ngram={max_ngram}.")
    if num_classes < (1 if multi_label else 2):
        raise ValueError(
            "`num_classes` must be at least 2, or 1 with `multi_label=True`; got "
            f"num_classes={num_classes}, multi_label={multi_label}."
        )
