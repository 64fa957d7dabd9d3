"""From the last hidden states to logits."""

import keras
from keras import ops

from keras_tfm.layers.embedding import TokenAndPositionEmbedding
from keras_tfm.types import Tensor


class OutputProjection:
    """Projects hidden states to logits, with the layers of a model.

    With a mixed policy the logits of decoding are float32: near 20 a bfloat16
    is a multiple of 1/8, too coarse to distinguish likely tokens.

    Args:
        embedding: `TokenAndPositionEmbedding` of the target.
        dense: `keras.layers.Dense`; or None where the embedding matrix of the
            target projects (tied embeddings).

    Call arguments:
        hidden: float `(..., D)`.

    Returns:
        float `(..., V)`.

    Example:
        ```python
        import numpy as np
        from keras_tfm import layers
        from keras_tfm.models.output_projection import OutputProjection

        embedding = layers.TokenAndPositionEmbedding(100, embedding_dim=16)
        hidden = embedding(np.array([[5, 9, 4]]))
        print(OutputProjection(embedding, None)(hidden).shape)  # (1, 3, 100)
        ```
    """

    def __init__(
        self, embedding: TokenAndPositionEmbedding, dense: keras.layers.Dense | None
    ):
        self.embedding = embedding
        self.dense = dense

    def __call__(self, hidden: Tensor) -> Tensor:
        if self.dense is None:
            return self.embedding.as_logits(hidden)
        return self.dense(hidden)

    @property
    def bias(self) -> keras.Variable | None:
        """The variable `(V,)` that is added to the logits, or None."""
        if self.dense is not None:
            return self.dense.bias
        return self.embedding.bias if self.embedding.logits_bias else None

    def step_logits(self, hidden: Tensor, columns: tuple | None = None) -> Tensor:
        """Projects the hidden states of a decoding step to logits.

        Args:
            hidden: float `(B, K, D)`.
            columns: from `columns_of`; or None for all tokens.

        Returns:
            float `(B, K, V)`, or `(B, K, C)`.
        """
        if columns is not None:
            kernel, *bias = columns  # (B, D, C) and (B, 1, C)
            # (B, K, D) @ (B, D, C): each row has its own candidates.
            logits = ops.matmul(ops.cast(hidden, kernel.dtype), kernel)
            return logits + bias[0] if bias else logits
        if not self._in_float32:
            return self(hidden)
        if self.dense is None:
            matrix = ops.convert_to_tensor(self.embedding.embeddings)
            kernel = ops.transpose(matrix)  # (D, V)
        else:
            kernel = self.dense.kernel  # (D, V)
        logits = ops.matmul(ops.cast(hidden, "float32"), kernel)
        return logits if self.bias is None else logits + self.bias

    def columns_of(self, candidates: Tensor) -> tuple[Tensor, ...]:
        """Gathers the columns of the projection that belong to some tokens.

        Args:
            candidates: int32 `(B, C)`.

        Returns:
            Tuple of float `(B, D, C)`; and, where there is a bias, `(B, 1, C)`.

        Raises:
            ValueError: the `Dense` layer is quantized.
        """
        dense = self.dense
        if dense is None:
            if self._in_float32:
                matrix = ops.convert_to_tensor(self.embedding.embeddings)
                rows = ops.take(matrix, candidates, axis=0)  # (B, C, D)
            else:
                # A quantized matrix has its own lookup.
                rows = self.embedding.token_embedding(candidates)
            kernel = ops.transpose(rows, (0, 2, 1))  # (B, C, D) to (B, D, C)
        elif dense.quantization_mode is not None:
            raise ValueError(
                "`shortlist` needs a tied or a float projection; got a projection in "
                f"{dense.quantization_mode}. Decode without a shortlist, or tie the "
                "projection."
            )
        else:
            dtype = "float32" if self._in_float32 else dense.compute_dtype
            columns = ops.take(ops.cast(dense.kernel, dtype), candidates, axis=1)
            kernel = ops.transpose(columns, (1, 0, 2))  # (D, B, C) to (B, D, C)
        if self.bias is None:
            return (kernel,)
        bias = ops.take(ops.cast(self.bias, kernel.dtype), candidates, axis=0)
        return kernel, bias[:, None]  # (B, 1, C)

    @property
    def _in_float32(self):
        """Whether logits are float32 though the rest is in half precision."""
        layer = self.embedding.token_embedding if self.dense is None else self.dense
        mixed = layer.compute_dtype != layer.variable_dtype == "float32"
        return mixed and layer.quantization_mode is None
