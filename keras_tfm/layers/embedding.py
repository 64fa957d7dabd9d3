"""From token ids to vectors, and from vectors back to logits."""

import math

import keras
from keras import backend, ops

from keras_tfm.layers.dropout import check_shares
from keras_tfm.layers.masks import INTEGERS, are_integers, padding_mask
from keras_tfm.layers.normalization import normalization_layer
from keras_tfm.layers.positions import LearnedPositions, SinusoidalPositions
from keras_tfm.layers.quantization import dtype_config, settle_policies

FEW_ROWS = 64  # of vectors to project


@keras.saving.register_keras_serializable(package="keras_tfm")
class TokenAndPositionEmbedding(keras.layers.Layer):
    """Turns token ids into vectors that also say where the token stands.

    The same layer gives the output projection that is tied to its table,
    `as_logits`, so that one layer can serve source, target and output (the
    paper's three-way tying), target and output, or one of them. Two that have
    positions of their own may share a table, see `share_table`.

    Where positions are fixed, the table is drawn with variance 1/D and the
    vectors are multiplied by sqrt(D), so that a token is as loud as its
    position and logits start at variance 1. Learned positions start as small
    as the table, and nothing is multiplied.

    In training the lookup hands a dense gradient to the optimizer on every
    backend: with TensorFlow's sparse one, Adam is another algorithm.

    Args:
        vocabulary_size: int >= 1, V: ids run from 0 to V - 1.
        embedding_dim: int >= 1, D.
        sequence_length: int, in tokens. Needed by learned positions only.
        positions: `"sinusoidal"`, `"learned"`, a layer of positions such as
            `SinusoidalPositions("halves")`, or None for none.
        scale: bool or None. Multiply by sqrt(D); None: where positions are
            fixed.
        normalization: `"layer_norm"`, `"rms_norm"` or None: of the sum, as
            BERT and BART have it.
        epsilon: float > 0, of the normalisation.
        dropout: float in [0, 1). Share of channels dropped from what comes out.
        logits_bias: bool. `as_logits` adds a learned bias.
        mask_zero: bool. Give the output an implicit Keras mask that is False
            where the id is 0.
        embeddings_initializer: Keras initializer of the table, or None for a
            normal distribution of standard deviation D ** -0.5.
        **kwargs: of `keras.layers.Layer`.

    Call arguments:
        inputs: integer ids `(B, T)`; with `reverse` float vectors `(..., D)`.
        offset: int, or int tensor, scalar or `(B,)`, in tokens. Position of
            `inputs[:, 0]`.
        reverse: bool. Project vectors to logits, as `as_logits` does.

    Returns:
        float `(B, T, D)`; with `reverse` `(..., V)`.

    Raises:
        ValueError: ids of another rank or dtype, vectors of another width, a
            size below 1, unknown `positions`, learned ones without
            `sequence_length`, or an odd width with sinusoids.

    Source: Vaswani et al. 2017, sections 3.4, 3.5 and 5.4.
    https://arxiv.org/abs/1706.03762; tying: Press and Wolf 2017.
    """

    def __init__(
        self,
        vocabulary_size,
        embedding_dim,
        sequence_length=None,
        positions="sinusoidal",
        scale=None,
        normalization=None,
        epsilon=1e-5,
        dropout=0.0,
        logits_bias=False,
        mask_zero=False,
        embeddings_initializer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if vocabulary_size < 1 or embedding_dim < 1:
            raise ValueError(
                "A table of embeddings has at least one row and one column. "
                f"Received: vocabulary_size={vocabulary_size}, "
                f"embedding_dim={embedding_dim}."
            )
        self.vocabulary_size = vocabulary_size
        self.embedding_dim = embedding_dim
        self.sequence_length = sequence_length
        self.positions = positions
        self.scale = scale
        self.normalization = normalization
        self.epsilon = epsilon
        check_shares(dropout=dropout)
        self.dropout = dropout
        self.logits_bias = logits_bias
        self.mask_zero = mask_zero
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.token_embedding = keras.layers.ReversibleEmbedding(
            vocabulary_size,
            embedding_dim,
            embeddings_initializer=self.embeddings_initializer
            or keras.initializers.RandomNormal(stddev=embedding_dim**-0.5),
            # Else a model with a policy of its own gets float32 logits.
            reverse_dtype=self.compute_dtype,
            dtype=self.dtype_policy,
            name="token_embedding",
        )
        # A mask that hidden vectors carry ends at the logits, and rightly so.
        self.token_embedding.supports_masking = True
        self.position_layer = self._position_layer()
        fixed = not isinstance(self.position_layer, LearnedPositions)
        scaled = fixed if scale is None else scale
        self.factor = math.sqrt(embedding_dim) if scaled else 1.0
        self.norm = None
        if normalization == "batch_norm":
            raise ValueError(
                "Statistics of a batch would count padding here. Received: "
                "normalization='batch_norm'. Take 'layer_norm' or 'rms_norm'."
            )
        if normalization is not None:
            self.norm = normalization_layer(
                normalization, epsilon, dtype=self.dtype_policy, name="norm"
            )
        self.dropout_layer = keras.layers.Dropout(dropout, dtype=self.dtype_policy)

    def build(self, inputs_shape):
        # The first call may be in reverse: its shape says nothing of ids.
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

    def call(self, inputs, offset=0, reverse=False, training=False):
        self._check(inputs, reverse)
        if reverse:
            hidden = ops.cast(inputs, self.compute_dtype)
            if self._has_few_rows(hidden) and not training:
                logits = self._project_few(hidden)
            else:
                logits = self.token_embedding(hidden, reverse=True)
            logits = ops.cast(logits, self.compute_dtype)  # int8 gives float32
            if self.logits_bias:
                logits = logits + ops.cast(self.bias, logits.dtype)
            return logits
        x = self._lookup(inputs, training)
        if self.position_layer is not None:
            x = self.position_layer(x, offset=offset)
        if self.norm is not None:
            x = self.norm(x)
        return self.dropout_layer(x, training=training)

    def as_logits(self, hidden):
        """Projects vectors to logits by the transposed table.

        Args:
            hidden: float `(..., D)`.

        Returns:
            float `(..., V)`, in the layer's compute dtype, without an implicit
            mask.
        """
        return self(hidden, reverse=True)

    def share_table(self, other):
        """Takes the table of another embedding in place of its own.

        Args:
            other: `TokenAndPositionEmbedding` of the same sizes.

        Raises:
            ValueError: other sizes, or this one is built already.
        """
        sizes = (self.vocabulary_size, self.embedding_dim)
        if self.built or sizes != (other.vocabulary_size, other.embedding_dim):
            raise ValueError(
                "Embeddings of one size share a table before they are built. "
                f"Received: {sizes}, built={self.built}; and "
                f"{(other.vocabulary_size, other.embedding_dim)}."
            )
        del self.token_embedding
        self.token_embedding = other.token_embedding

    @property
    def embeddings(self):
        """The table, `(V, D)`."""
        return self.token_embedding.embeddings

    def compute_mask(self, inputs, previous_mask=None):
        # A mask that vectors carry ends at the logits.
        is_ids = backend.standardize_dtype(inputs.dtype) in INTEGERS
        return padding_mask(inputs) if self.mask_zero and is_ids else None

    def compute_output_shape(self, inputs_shape, reverse=False):
        if reverse:
            return (*inputs_shape[:-1], self.vocabulary_size)
        return (*inputs_shape, self.embedding_dim)

    def compute_output_spec(self, inputs, offset=0, reverse=False, training=False):
        self._check(inputs, reverse)
        shape = self.compute_output_shape(inputs.shape, reverse)
        output = keras.KerasTensor(shape, self.compute_dtype)
        if reverse or self.position_layer is None:
            return output
        return self.position_layer.compute_output_spec(output, offset=offset)

    def get_config(self):
        positions = self.positions
        if isinstance(positions, keras.layers.Layer):
            positions = keras.saving.serialize_keras_object(positions)
            # Built by this layer and not before it, it has its path again.
            positions.pop("build_config", None)
        initializer = self.embeddings_initializer
        return {
            **super().get_config(),
            "dtype": dtype_config(self),
            "vocabulary_size": self.vocabulary_size,
            "embedding_dim": self.embedding_dim,
            "sequence_length": self.sequence_length,
            "positions": positions,
            "scale": self.scale,
            "normalization": self.normalization,
            "epsilon": self.epsilon,
            "logits_bias": self.logits_bias,
            "dropout": self.dropout,
            "mask_zero": self.mask_zero,
            "embeddings_initializer": initializer
            and keras.initializers.serialize(initializer),
        }

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        if isinstance(config["positions"], dict):
            config["positions"] = keras.saving.deserialize_keras_object(
                config["positions"]
            )
        return cls(**config)

    def _check(self, inputs, reverse):
        shape, dtype = tuple(inputs.shape), backend.standardize_dtype(inputs.dtype)
        width = shape[-1] if shape else 0  # None is not known yet
        wrong = dtype in INTEGERS or width not in (self.embedding_dim, None)
        if reverse and wrong:
            raise ValueError(
                f"Vectors to project are floats of width {self.embedding_dim}. "
                f"Received: shape={shape}, dtype={dtype}."
            )
        if not reverse and (len(shape) != 2 or not are_integers(inputs)):
            raise ValueError(
                "Token ids must be integers of shape (batch, length). "
                f"Received: shape={shape}, dtype={dtype}."
            )

    def _position_layer(self):
        if self.positions is None or isinstance(self.positions, keras.layers.Layer):
            return self.positions
        if self.positions == "sinusoidal":
            return SinusoidalPositions(dtype=self.dtype_policy, name="positions")
        if self.positions == "learned":
            return LearnedPositions(
                self.sequence_length,
                initializer=keras.initializers.RandomNormal(
                    stddev=self.embedding_dim**-0.5
                ),
                dtype=self.dtype_policy,
                name="positions",
            )
        raise ValueError(
            "`positions` is 'sinusoidal', 'learned', a layer of positions, or "
            f"None. Received: {self.positions!r}."
        )

    def _has_few_rows(self, hidden):
        sizes = hidden.shape[:-1]
        known = all(isinstance(size, int) for size in sizes)
        plain = self.token_embedding.quantization_mode is None
        plain = plain and self.compute_dtype == "float32"
        # A search on PyTorch packs the table, if it stands on the right; on JAX
        # it is as fast there.
        plain = plain and backend.backend() == "tensorflow"
        return plain and known and math.prod(sizes) <= FEW_ROWS

    def _project_few(self, hidden):
        """As the table times the vectors, not the vectors times the table.

        With few of them a matrix product reads its left side faster: a greedy
        step of 32 rows takes 0.85 of the time on TensorFlow.
        """
        flat = ops.reshape(hidden, (-1, self.embedding_dim))
        table = ops.cast(self.embeddings, self.compute_dtype)
        logits = ops.transpose(ops.matmul(table, ops.transpose(flat)))
        return ops.reshape(logits, (*hidden.shape[:-1], self.vocabulary_size))

    def _lookup(self, ids, training):
        ids = ops.cast(ids, "int32")
        if training and self.token_embedding.quantization_mode is None:
            # The product before the lookup is what makes TensorFlow's gradient
            # dense. Outside training it would cost V * D products a call.
            table = ops.multiply(self.embeddings, self.factor)
            return ops.cast(ops.take(table, ids, axis=0), self.compute_dtype)
        x = self.token_embedding(ids)
        return x if self.factor == 1.0 else x * ops.cast(self.factor, x.dtype)
