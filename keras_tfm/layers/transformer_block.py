"""What encoder and decoder blocks share: options, sublayers, residual."""

import inspect
from typing import Any

import keras

from keras_tfm.layers.checks import check_rates
from keras_tfm.layers.feed_forward import FeedForward
from keras_tfm.layers.multi_head_attention import MultiHeadAttention
from keras_tfm.layers.normalization import normalization_layer
from keras_tfm.layers.position_factory import RelativePositionsLike, relative_positions
from keras_tfm.layers.quantization import layer_config
from keras_tfm.layers.weights import KernelLayer, nth_seed
from keras_tfm.types import Activation, Shape, Tensor


class TransformerBlock(KernelLayer):
    """Holds options and residual of encoder and decoder blocks; base class.

    Each layer has a residual. Post-norm, the paper's, is `norm(x + layer(x))`;
    pre-norm is `x + layer(norm(x))`, with one more norm at the end of a stack.

    Args:
        intermediate_dim: int >= 1, F, inside the feed-forward network.
        num_heads: int >= 1, H.
        key_dim: int or None, d_k. None: D / H.
        value_dim: int or None, d_v. None: `key_dim`.
        dropout: float in [0, 1), of what is added to a residual.
        attention_dropout: float in [0, 1), of the attention weights.
        activation_dropout: float in [0, 1), inside the feed-forward network.
        activation: Keras activation of the feed-forward network.
        gated: bool. Gated linear unit in the feed-forward network.
        normalize_first: bool. Pre-norm.
        normalization: `"layer_norm"`, `"rms_norm"` or `"batch_norm"`, see
            `normalization_layer`.
        epsilon: float > 0, of the normalizations.
        use_bias: bool. Projections add a bias.
        score: `"scaled_dot"`, `"dot"`, `"multiplicative"` or `"additive"`, see
            `AttentionScore`.
        num_key_value_heads: int or None, G, see `MultiHeadAttention`.
        positions: `"rotary"`, `"alibi"`, `"t5"`, `"shaw"`, or a layer of
            `RelativePositions`, inside self-attention; None for none.
        seed: int or None. The dropouts of a block get seeds from `seed` on.
        **kwargs: initializers, regularizers and constraints, see
            `layers.weights.KernelLayer`; arguments of `keras.layers.Layer`.
    """

    bidirectional = True  # Keys after the query are attended to.

    def __init__(
        self,
        intermediate_dim: int,
        num_heads: int,
        *,
        key_dim: int | None = None,
        value_dim: int | None = None,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        activation_dropout: float = 0.0,
        activation: Activation = "relu",
        gated: bool = False,
        normalize_first: bool = False,
        normalization: str = "layer_norm",
        epsilon: float = 1e-5,
        use_bias: bool = True,
        score: str = "scaled_dot",
        num_key_value_heads: int | None = None,
        positions: RelativePositionsLike = None,
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_rates(dropout=dropout, attention_dropout=attention_dropout)
        check_rates(activation_dropout=activation_dropout)
        self.intermediate_dim = intermediate_dim
        self.num_heads, self.num_key_value_heads = num_heads, num_key_value_heads
        self.key_dim, self.value_dim = key_dim, value_dim
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.activation_dropout = activation_dropout
        self.activation = keras.activations.get(activation)
        self.gated = gated
        self.normalize_first = normalize_first
        self.normalization, self.epsilon = normalization, epsilon
        self.use_bias = use_bias
        self.score = score
        self.positions = relative_positions(
            positions, self.bidirectional, dtype=self.dtype_policy
        )
        self.seed = seed
        self.supports_masking = True
        self.dropout_layer = keras.layers.Dropout(
            dropout, seed=seed, dtype=self.dtype_policy
        )
        self._add_sequence_layer()
        self.feed_forward = FeedForward(
            intermediate_dim,
            activation,
            gated,
            activation_dropout,
            use_bias,
            nth_seed(seed, 1),
            name="feed_forward",
            **self.weight_options(),
        )
        self.feed_forward_norm = self._norm("feed_forward_norm")

    def compute_output_shape(self, x_shape: Shape) -> Shape:
        return tuple(x_shape)

    def get_config(self) -> dict:
        return {**super().get_config(), **layer_config(self, TransformerBlock)}

    def _add_sequence_layer(self):
        """Adds the layer through which a position sees the others."""
        self.self_attention = self._attention(
            "self_attention", nth_seed(self.seed, 2), self.positions
        )
        self.self_attention_norm = self._norm("self_attention_norm")

    def _attention(self, name, seed, positions=None):
        return MultiHeadAttention(
            self.num_heads,
            self.key_dim,
            self.value_dim,
            dropout=self.attention_dropout,
            score=self.score,
            num_key_value_heads=self.num_key_value_heads,
            positions=positions,
            use_bias=self.use_bias,
            seed=seed,
            name=name,
            **self.weight_options(),
        )

    def _norm(self, name):
        return normalization_layer(
            self.normalization, self.epsilon, name=name, dtype=self.dtype_policy
        )

    def _normalize(self, norm, x, real_mask, training):
        if self.normalization != "batch_norm":
            return norm(x)
        # Statistics of real positions alone. Not by `__call__`, which hands an
        # explicit mask on as an implicit one.
        return norm.call(x, training=training, mask=real_mask)

    def _residual(self, sublayer, norm, x, real_mask, **arguments):
        """Adds `sublayer(x)` to x, with the normalization before or after.

        Args:
            sublayer: layer whose first argument is x. It returns a tensor, or a
                tuple that begins with one.
            norm: the normalization.
            x: float `(B, T, D)`.
            real_mask: bool `(B, T)` or None, True where x is real.
            **arguments: further arguments of the sublayer, `training` among
                them.

        Returns:
            float `(B, T, D)`, and a list of the sublayer's further results.
        """
        training = arguments["training"]
        inner = x
        if self.normalize_first:
            inner = self._normalize(norm, x, real_mask, training)
        output, *extras = as_tuple(sublayer(inner, **arguments))  # (B, T, D)
        x = x + self.dropout_layer(output, training=training)
        if not self.normalize_first:
            x = self._normalize(norm, x, real_mask, training)
        return x, extras


# Options that models pass on to all their blocks; documented there.
BLOCK_OPTIONS = tuple(
    name
    for name, parameter in inspect.signature(TransformerBlock).parameters.items()
    if parameter.kind != parameter.VAR_KEYWORD and name not in ("positions", "seed")
)


def symbol_like(x: Tensor) -> keras.KerasTensor:
    """Returns a symbol of the shape and dtype of a tensor."""
    return keras.KerasTensor(x.shape, x.dtype)


def as_tuple(results: Any) -> tuple:
    """Returns results as a tuple, which one result alone is not."""
    return results if isinstance(results, tuple) else (results,)
