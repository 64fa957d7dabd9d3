"""Labels for texts: an encoder, pooled and projected."""

import keras
from keras import ops

from keras_tfm.layers.checks import check_rates
from keras_tfm.layers.pooling import POOLINGS, AttentionPooling, Pooling
from keras_tfm.layers.quantization import dtype_config, settle_policies
from keras_tfm.models import stacks


@keras.saving.register_keras_serializable(package="keras_tfm")
class SequenceClassifier(keras.Model):
    """Gives the logits of the labels of a text, or of a pair of texts.

    A plain functional `keras.Model` from the inputs of its encoder to float
    `(B, C)`: compile it with a cross-entropy `from_logits`, over classes where
    a text has one label, binary where it may have several.

    Args:
        encoder: `Encoder`. Trained together with what stands on it.
        num_classes: int >= 1, C; 2 or more unless `multi_label`.
        pooling: `"attention"`, a learned query attends to the vectors;
            `"mean"`, `"max"`, or `"first"`, the vector of the first token.
        hidden_dim: int or None. A layer between the pooled vector and the
            logits; None for none.
        hidden_activation: Keras activation of that layer.
        dropout: float in [0, 1), before the last projection.
        multi_label: bool. Any number of the labels may hold at once.
        **kwargs: `name`, `dtype`, `trainable` of a Keras model.

    Raises:
        ValueError: too few classes, or an unknown pooling.

    Source: attention: Yang et al. 2016, section 2.2; first: Devlin et al. 2019,
    section 3, https://arxiv.org/abs/1810.04805
    """

    def __init__(
        self,
        encoder,
        num_classes,
        pooling="attention",
        hidden_dim=None,
        hidden_activation="tanh",
        dropout=0.1,
        multi_label=False,
        **kwargs,
    ):
        if num_classes < (1 if multi_label else 2):
            raise ValueError(
                "One of two classes or more is chosen. Received: "
                f"num_classes={num_classes}, multi_label={multi_label}. With "
                "`multi_label=True` a single class may hold or not."
            )
        if pooling not in ("attention", *POOLINGS):
            raise ValueError(
                f"`pooling` is 'attention' or one of {POOLINGS}. Received: {pooling!r}."
            )
        check_rates(dropout=dropout)
        policy = stacks.policy_of(kwargs, encoder.dtype_policy)
        made = {"dtype": policy}
        pooling_layer = AttentionPooling(**made, name="pooling")
        if pooling != "attention":
            pooling_layer = Pooling(pooling, **made, name="pooling")
        hidden_dense = None
        if hidden_dim is not None:
            hidden_dense = keras.layers.Dense(
                hidden_dim, activation=hidden_activation, **made, name="hidden"
            )
        dropout_layer = keras.layers.Dropout(dropout, **made, name="head_dropout")
        # In half precision near logits would be the same.
        precise = policy.compute_dtype in ("float16", "bfloat16")
        output_dense = keras.layers.Dense(
            num_classes, dtype="float32" if precise else policy, name="logits"
        )

        inputs = stacks.inputs_of(encoder)
        mask = ops.not_equal(inputs["token_ids"], encoder.pad_id)
        pooled = pooling_layer(encoder(inputs), padding_mask=mask)
        if hidden_dense is not None:
            pooled = hidden_dense(pooled)
        logits = output_dense(dropout_layer(pooled))
        super().__init__(inputs=inputs, outputs=logits, **kwargs)
        settle_policies(self)
        self.dtype_policy = policy  # `compile` scales the loss of mixed_float16.
        self.encoder, self.pooling_layer = encoder, pooling_layer
        self.hidden_dense, self.output_dense = hidden_dense, output_dense
        self.num_classes, self.pooling = num_classes, pooling
        self.hidden_dim, self.multi_label = hidden_dim, multi_label
        self.hidden_activation = keras.activations.get(hidden_activation)
        self.dropout = dropout

    def probabilities(self, logits):
        """Turns logits to probabilities.

        Args:
            logits: float `(B, C)`.

        Returns:
            float32 `(B, C)`: of each label by itself with `multi_label`, else
            summing to one.
        """
        logits = ops.cast(logits, "float32")
        if self.multi_label:
            return ops.sigmoid(logits)
        return ops.softmax(logits, axis=-1)

    def pooling_weights(self, inputs):
        """Tells which tokens the pooled vector is made of.

        Args:
            inputs: dict of integers `(B, S)`, as of the model.

        Returns:
            float `(B, S)`, which sum to one over real tokens.

        Raises:
            ValueError: the pooling is not by attention.
        """
        if self.pooling != "attention":
            raise ValueError(
                "Only pooling by attention weighs tokens. Received: "
                f"pooling={self.pooling!r}."
            )
        _, weights = self.pooling_layer(
            self.encoder(inputs),
            padding_mask=ops.not_equal(inputs["token_ids"], self.encoder.pad_id),
            return_attention_scores=True,
        )
        return weights

    def get_config(self):
        return {
            "encoder": keras.saving.serialize_keras_object(self.encoder),
            "num_classes": self.num_classes,
            "pooling": self.pooling,
            "hidden_dim": self.hidden_dim,
            "hidden_activation": keras.activations.serialize(self.hidden_activation),
            "dropout": self.dropout,
            "multi_label": self.multi_label,
            "name": self.name,
            "trainable": self.trainable,
            "dtype": dtype_config(self),
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        config["encoder"] = keras.saving.deserialize_keras_object(
            config["encoder"], custom_objects=custom_objects
        )
        return cls(**config)
