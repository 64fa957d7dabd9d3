"""Token embeddings with positions, and logits from the tied matrix."""

import math
from typing import Any

import keras
from keras import backend, ops

from keras_tfm.layers.checks import (
    INTEGERS,
    call_arguments,
    check_choice,
    check_rates,
    check_sizes,
)
from keras_tfm.layers.host_values import host_values
from keras_tfm.layers.keras_internals import is_placeholder, set_keras_mask
from keras_tfm.layers.masks import padding_mask
from keras_tfm.layers.normalization import normalization_layer
from keras_tfm.layers.positions import LearnedPositions, SinusoidalPositions
from keras_tfm.layers.quantization import layer_config, settle_policies
from keras_tfm.layers.weights import EmbeddingLayer
from keras_tfm.types import Shape, Tensor

MAX_ROWS_TRANSPOSED = 64  # vectors; with more, the plain product is faster
# Up to this vocabulary a float dtype holds every id exactly.
LARGEST_ID = {"float16": 2**11, "bfloat16": 2**8, "float32": 2**24, "float64": 2**53}


@keras.saving.register_keras_serializable(package="keras_tfm")
class TokenAndPositionEmbedding(EmbeddingLayer):
    """Embeds token ids and adds position encodings.

    The same layer computes logits with its embedding matrix, `as_logits`, so
    that one layer can serve source, target and output (the paper's three-way
    tying), target and output, or one of them. Two layers with positions of
    their own may be tied as well, see `tie_embeddings`.

    With fixed positions the matrix is drawn with variance 1/D and the vectors
    are multiplied by sqrt(D), so that token and position have equal variance
    and logits start at variance 1. Learned positions start as small as the
    matrix, and nothing is multiplied.

    Arguments after the first are passed by name: KerasHub's layer of this name
    has them in another order.

    In training the lookup hands a dense gradient to the optimizer on every
    backend: with TensorFlow's sparse one, Adam is another algorithm.

    Args:
        vocabulary_size: int >= 1, V: ids run from 0 to V - 1.
        embedding_dim: int >= 1, D.
        sequence_length: int or None, in tokens, of the longest sequence. Only
            learned positions have one, and need it.
        positions: `"sinusoidal"`, `"learned"`, a layer of positions such as
            `SinusoidalPositions("halves")`, or None for none.
        scale: bool or None. Multiply by sqrt(D); None: where positions are
            fixed.
        normalization: `"layer_norm"`, `"rms_norm"` or None: of the sum, as in
            BERT and BART. No `"batch_norm"`, which would count padding here.
        epsilon: float > 0, of the normalization.
        dropout: float in [0, 1). Rate at which output channels are dropped.
        logits_bias: bool. `as_logits` adds a learned bias.
        mask_zero: bool. Attach an implicit Keras mask to the output that is
            False where the id is 0.
        seed: int or None, of the dropout.
        **kwargs: `embeddings_initializer` (None: a normal distribution of
            standard deviation D ** -0.5), `embeddings_regularizer` and
            `embeddings_constraint`, as in `keras.layers.Embedding`; arguments
            of `keras.layers.Layer`.

    Call arguments:
        inputs: integer ids `(B, T)`, or floats that are whole numbers, which
            `keras.Sequential` makes of ids; with `reverse` float vectors
            `(..., D)`.
        offset: int, or int tensor, scalar or `(B,)`, in tokens. Position of
            `inputs[:, 0]`.
        reverse: bool. Project vectors to logits, as `as_logits` does.

    Returns:
        float `(B, T, D)`; with `reverse` `(..., V)`.

    Raises:
        ValueError: ids of another rank or dtype, ids outside the vocabulary
            where they are known (not in a compiled function, nor on an
            accelerator), vectors of another dimension, a size below 1, unknown
            `positions`, learned ones without `sequence_length` or others with
            it, or an odd D with sinusoids.

    Source: Vaswani et al. 2017, sections 3.4, 3.5 and 5.4.
    https://arxiv.org/abs/1706.03762; tying: Press and Wolf 2017.

    Example:
        ```python
        import numpy as np
        from keras_tfm import layers

        embedding = layers.TokenAndPositionEmbedding(1000, embedding_dim=16)
        x = embedding(np.array([[5, 3, 0]]))  # (1, 3, 16)
        print(embedding.as_logits(x).shape)  # (1, 3, 1000)
        ```
    """

    def __init__(
        self,
        vocabulary_size: int,
        *,
        embedding_dim: int,
        sequence_length: int | None = None,
        positions: str | dict | keras.layers.Layer | None = "sinusoidal",
        scale: bool | None = None,
        normalization: str | None = None,
        epsilon: float = 1e-5,
        dropout: float = 0.0,
        logits_bias: bool = False,
        mask_zero: bool = False,
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_sizes(vocabulary_size=vocabulary_size, embedding_dim=embedding_dim)
        check_rates(dropout=dropout)
        if isinstance(positions, dict):  # from a config
            positions = keras.saving.deserialize_keras_object(positions)
        self.vocabulary_size, self.embedding_dim = vocabulary_size, embedding_dim
        self.sequence_length = sequence_length
        self.positions = positions
        self.scale = scale
        self.normalization, self.epsilon = normalization, epsilon
        self.dropout = dropout
        self.logits_bias = logits_bias
        self.mask_zero = mask_zero
        self.seed = seed
        self.autocast = False  # A half-precision id would be another id.
        self.token_embedding = keras.layers.ReversibleEmbedding(
            vocabulary_size,
            embedding_dim,
            embeddings_initializer=self.embeddings_initializer
            or keras.initializers.RandomNormal(stddev=embedding_dim**-0.5),
            embeddings_regularizer=self.embeddings_regularizer,
            embeddings_constraint=self.embeddings_constraint,
            # Without it a model with a policy of its own gets float32 logits.
            reverse_dtype=self.compute_dtype,
            dtype=self.dtype_policy,
            name="token_embedding",
        )
        # The implicit mask of hidden vectors ends at the logits.
        self.token_embedding.supports_masking = True
        self.position_layer = _position_layer(self)
        # Tokens start with variance 1/D; fixed waves do not depend on D.
        is_fixed = not isinstance(self.position_layer, LearnedPositions)
        is_scaled = is_fixed if scale is None else scale
        self.factor = math.sqrt(embedding_dim) if is_scaled else 1.0
        self.norm = None
        if normalization is not None:
            check_choice("normalization", normalization, ("layer_norm", "rms_norm"))
            self.norm = normalization_layer(
                normalization, epsilon, dtype=self.dtype_policy, name="norm"
            )
        self.dropout_layer = keras.layers.Dropout(
            dropout, seed=seed, dtype=self.dtype_policy
        )

    def build(self, inputs_shape: Shape) -> None:
        # Not of `inputs_shape`: the first call may be in reverse.
        vectors_shape = (None, None, self.embedding_dim)
        if not self.token_embedding.built:
            self.token_embedding.build((None, None))
        if self.logits_bias:
            self.bias = self.add_weight(
                name="bias", shape=(self.vocabulary_size,), initializer="zeros"
            )
        if self.norm is not None:
            self.norm.build(vectors_shape)
        if self.position_layer is not None and not self.position_layer.built:
            self.position_layer.build(vectors_shape)
        settle_policies(self)

    def call(
        self,
        inputs: Tensor,
        offset: Tensor = 0,
        reverse: bool = False,
        training: bool | None = None,
    ) -> Tensor:
        self._check_inputs(inputs, reverse)
        if reverse:
            logits = self._project(ops.cast(inputs, self.compute_dtype), training)
            logits = ops.cast(logits, self.compute_dtype)  # float32 from int8
            if self.logits_bias:
                logits = logits + ops.cast(self.bias, logits.dtype)
            return logits
        self._check_values(inputs, offset)
        ids = ops.cast(inputs, "int32")  # (B, T)
        x = self._look_up(ids, training)  # (B, T, D)
        if self.position_layer is not None:
            x = self.position_layer(x, offset=offset)
        if self.norm is not None:
            x = self.norm(x)
        x = self.dropout_layer(x, training=training)
        if self.mask_zero:
            set_keras_mask(x, padding_mask(ids))
        return x

    def as_logits(self, hidden: Tensor) -> Tensor:
        """Projects vectors to logits with the transposed embedding matrix.

        Args:
            hidden: float `(..., D)`.

        Returns:
            float `(..., V)`, in the layer's compute dtype, without an implicit
            mask.
        """
        return self(hidden, reverse=True)

    def tie_embeddings(self, source: "TokenAndPositionEmbedding") -> None:
        """Uses the embedding matrix of another layer from now on.

        Args:
            source: `TokenAndPositionEmbedding` of the same sizes.

        Raises:
            ValueError: other sizes, or this layer is built already.
        """
        sizes = (self.vocabulary_size, self.embedding_dim)
        source_sizes = (source.vocabulary_size, source.embedding_dim)
        if self.built or sizes != source_sizes:
            raise ValueError(
                "`source` must have the sizes of this embedding, and this one must "
                f"not be built yet; got sizes {source_sizes} for {sizes}, "
                f"built={self.built}. Call `tie_embeddings` before the first call."
            )
        # Keras would save the weights of a sublayer that is not deleted.
        del self.token_embedding
        self.token_embedding = source.token_embedding

    @property
    def embeddings(self) -> keras.Variable:
        """The embedding matrix, `(V, D)`."""
        return self.token_embedding.embeddings

    def compute_mask(self, inputs: Tensor, previous_mask: Tensor = None) -> Tensor:
        # Keras does not say here whether the call was in reverse. The call has
        # attached the mask of float ids itself.
        is_ids = backend.standardize_dtype(inputs.dtype) in INTEGERS
        return padding_mask(inputs) if self.mask_zero and is_ids else None

    def compute_output_shape(self, inputs_shape: Shape, reverse: bool = False) -> Shape:
        if reverse:
            return (*inputs_shape[:-1], self.vocabulary_size)
        return (*inputs_shape, self.embedding_dim)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Tensor:
        inputs, offset, reverse, _ = call_arguments(self, args, kwargs).values()
        self._check_inputs(inputs, reverse)
        shape = self.compute_output_shape(inputs.shape, reverse)
        output = keras.KerasTensor(shape, self.compute_dtype)
        if reverse or self.position_layer is None:
            return output
        return self.position_layer.compute_output_spec(output, offset=offset)

    def get_config(self) -> dict:
        config = layer_config(self, TokenAndPositionEmbedding)
        return {**super().get_config(), **config}

    def _check_inputs(self, inputs: Tensor, reverse: bool) -> None:
        shape, dtype = tuple(inputs.shape), backend.standardize_dtype(inputs.dtype)
        if not reverse:
            # `keras.Sequential` converts ids to the layer's compute dtype.
            is_exact = self.vocabulary_size <= LARGEST_ID.get(dtype, 0)
            is_exact = is_exact or dtype in INTEGERS or is_placeholder(inputs)
            if len(shape) != 2 or not is_exact:
                raise ValueError(
                    "`inputs` must be integers of shape (batch, length); got dtype="
                    f"{dtype}, shape={shape}. Begin a `keras.Sequential` of half "
                    'precision with `keras.Input((None,), dtype="int32")`.'
                )
            return
        dim = shape[-1] if shape else 0  # None where unknown
        if dtype in INTEGERS or dim not in (self.embedding_dim, None):
            raise ValueError(
                "`inputs` to project to logits must be floats of dimension "
                f"{self.embedding_dim}; got dtype={dtype}, shape={shape}."
            )

    def _check_values(self, inputs: Tensor, offset: Tensor) -> None:
        """Checks that ids are of the vocabulary, where they are known."""
        # A decoding step, whose offset is a tensor, has the ids of the search.
        values = host_values(inputs) if isinstance(offset, int) else None
        if values is None or not values.size:
            return
        low, high = values.min(), values.max()
        is_whole = values.dtype.kind in "iu" or not (values % 1).any()
        if low < 0 or high >= self.vocabulary_size or not is_whole:
            raise ValueError(
                f"`inputs` must be ids of a vocabulary of {self.vocabulary_size:,} "
                f"tokens, from 0 to {self.vocabulary_size - 1}; got numbers from {low} "
                f"to {high}. Use the vocabulary that the model was made for."
            )

    def _project(self, hidden: Tensor, training: bool) -> Tensor:
        """Computes `(..., V)` from `(..., D)`, without a bias."""
        sizes = hidden.shape[:-1]
        is_small = all(isinstance(size, int) for size in sizes)
        is_small = is_small and math.prod(sizes) <= MAX_ROWS_TRANSPOSED
        is_float32 = self.compute_dtype == "float32"
        is_float32 = is_float32 and self.token_embedding.quantization_mode is None
        # PyTorch prepacks the right-hand matrix; on JAX both orders are equally
        # fast.
        on_tensorflow = backend.backend() == "tensorflow"
        if training or not (is_small and is_float32 and on_tensorflow):
            return self.token_embedding(hidden, reverse=True)
        # A matrix product reads its left side faster where the right is small:
        # a greedy step of 32 rows takes 0.85 of the time on TensorFlow.
        flat = ops.reshape(hidden, (-1, self.embedding_dim))
        embeddings = ops.cast(self.embeddings, self.compute_dtype)
        # (V, D) times (D, B T), and back to (B T, V)
        logits = ops.transpose(ops.matmul(embeddings, ops.transpose(flat)))
        return ops.reshape(logits, (*sizes, self.vocabulary_size))

    def _look_up(self, ids: Tensor, training: bool) -> Tensor:
        if training and self.token_embedding.quantization_mode is None:
            # The product before the lookup is what makes TensorFlow's gradient
            # dense. Outside training it would cost V * D products a call.
            embeddings = ops.cast(self.embeddings, self.compute_dtype)
            embeddings = ops.multiply(embeddings, self.factor)
            return ops.take(embeddings, ids, axis=0)
        x = self.token_embedding(ids)  # (B, T, D)
        return x if self.factor == 1.0 else x * ops.cast(self.factor, x.dtype)


def _position_layer(embedding: TokenAndPositionEmbedding) -> keras.layers.Layer | None:
    """Returns the layer of positions that an embedding adds, or None."""
    positions, policy = embedding.positions, embedding.dtype_policy
    if positions is None or isinstance(positions, keras.layers.Layer):
        return positions
    check_choice("positions", positions, ("sinusoidal", "learned"))
    if positions == "sinusoidal":
        if embedding.sequence_length is not None:
            raise ValueError(
                "`sequence_length` must be None unless positions='learned'; got "
                f"sequence_length={embedding.sequence_length}. Leave it out, or set "
                "positions='learned', as in KerasHub's layer of this name."
            )
        return SinusoidalPositions(dtype=policy, name="positions")
    stddev = embedding.embedding_dim**-0.5
    initializer = keras.initializers.RandomNormal(stddev=stddev)
    return LearnedPositions(
        embedding.sequence_length,
        initializer=initializer,
        dtype=policy,
        name="positions",
    )
