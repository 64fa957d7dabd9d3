"""A linear model of the n-grams of a sequence, hashed into one matrix."""

from typing import Any

import keras
from keras import ops

from keras_tfm.layers.checks import check_mask_rank, check_sizes
from keras_tfm.layers.quantization import layer_config
from keras_tfm.types import Initializer, Shape, Tensor

MIN_BUCKETS, MAX_BUCKETS = 3, 2**20
MAX_PRODUCT = 2**31 - 1  # of two int32


@keras.saving.register_keras_serializable(package="keras_tfm")
class NGramBag(keras.layers.Layer):
    """Sums the vectors of the different n-grams of a sequence of token ids.

    Each n-gram, of one to `max_n` tokens, is hashed to a row of one matrix W:
    `y = sum W[hash(n-gram)] / sqrt(count) + b`. With the classes as units it is
    a linear classifier, for instance beside a network. Neither the order of the
    n-grams nor their frequency matters: for the sentiment of texts presence is
    better than counts (Wang and Manning 2012).
    Different n-grams may share a row.

    Args:
        units: int >= 1, C, dimension of the result.
        max_n: int >= 1, tokens of the longest n-grams.
        num_buckets: int in [3, 1048576]. The matrix has as many rows as the
            largest prime up to it. Modulo a power of two, only the lowest bits
            of a hash would count.
        kernel_initializer: Keras initializer of the matrix.
        **kwargs: arguments of `keras.layers.Layer`.

    Call arguments:
        token_ids: int `(B, S)`.
        padding_mask: bool `(B, S)`, True where a token is real; None if all
            are. An n-gram with padding does not count.

    Returns:
        float `(B, C)`; the bias for a sequence without real tokens.

    Raises:
        ValueError: an argument is out of its range, or a shape of another rank.

    Source: hashing: Weinberger et al. 2009, https://arxiv.org/abs/0902.2206;
    bags of n-grams: Joulin et al. 2017, https://arxiv.org/abs/1607.01759;
    presence: Wang and Manning 2012, https://aclanthology.org/P12-2018

    Example:
        ```python
        import numpy as np
        from keras_tfm import layers

        bag = layers.NGramBag(units=2, max_n=2)
        print(bag(np.array([[5, 8, 6, 0]])).shape)  # (1, 2)
        ```
    """

    def __init__(
        self,
        units: int,
        max_n: int = 3,
        num_buckets: int = 2**18,
        kernel_initializer: Initializer = "zeros",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_sizes(units=units, max_n=max_n)
        if num_buckets not in range(MIN_BUCKETS, MAX_BUCKETS + 1):
            raise ValueError(
                f"`num_buckets` must be an int from {MIN_BUCKETS} to {MAX_BUCKETS:,}; "
                f"got num_buckets={num_buckets}."
            )
        self.units, self.max_n, self.num_buckets = units, max_n, int(num_buckets)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.num_rows = _largest_prime(self.num_buckets)
        # Factor of the polynomial hash. Factor times row fits into int32; it is
        # far from 0 modulo the rows, else neighboring ids would share many.
        limit = min(MAX_PRODUCT // self.num_rows, int(0.618 * self.num_rows))
        self.factor = _largest_prime(max(limit, 2))
        self.supports_masking = True

    def build(self, token_ids_shape: Shape, padding_mask_shape: Shape = None) -> None:
        self.kernel = self.add_weight(
            name="kernel",
            shape=(self.num_rows, self.units),
            initializer=self.kernel_initializer,
        )
        self.bias = self.add_weight(
            name="bias", shape=(self.units,), initializer="zeros"
        )

    def call(self, token_ids: Tensor, padding_mask: Tensor = None) -> Tensor:
        kernel = ops.cast(self.kernel, self.compute_dtype)
        total, count = 0, 0
        for rows, is_real in self.rows(token_ids, padding_mask):
            is_counted = ops.expand_dims(is_real, -1)  # LiteRT cannot index bools.
            vectors = ops.where(is_counted, ops.take(kernel, rows, axis=0), 0)
            total = total + ops.sum(ops.cast(vectors, "float32"), axis=1)
            count = count + ops.sum(ops.cast(is_real, "float32"), axis=1)
        count = ops.maximum(count, 1)[:, None]  # (B, 1)
        total = ops.cast(total / ops.sqrt(count), self.compute_dtype)
        return total + ops.cast(self.bias, self.compute_dtype)

    def rows(
        self, token_ids: Tensor, padding_mask: Tensor = None
    ) -> list[tuple[Tensor, Tensor]]:
        """Computes the row of the matrix of each n-gram.

        Args:
            token_ids: int `(B, S)`.
            padding_mask: bool `(B, S)` or None.

        Returns:
            for each n from 1 to `max_n` a pair: int32 `(B, S)`, the rows of the
            n-grams in increasing order, and bool `(B, S)`, True for the first
            of equal rows of n-grams without padding.
        """
        _check_rank(token_ids)
        check_mask_rank("padding_mask", padding_mask, (2,))
        ids = ops.cast(token_ids, "int32") % self.num_rows
        if padding_mask is None:
            padding_mask = ops.ones_like(ids, "bool")
        is_token = ops.cast(padding_mask, "bool")
        hashes, is_real, result = ids, is_token, [self._distinct(ids, is_token)]
        for _ in range(2, self.max_n + 1):
            # The hash of the n - 1 tokens before, and this token
            hashes = _delayed(hashes) * self.factor % self.num_rows
            hashes = (hashes + ids) % self.num_rows
            is_real = _delayed(is_real) & is_token
            result.append(self._distinct(hashes, is_real))
        return result

    def _distinct(self, rows, is_real):
        """Rows in increasing order, and which of them count."""
        rows = ops.sort(ops.where(is_real, rows, self.num_rows), axis=1)
        is_first = rows != _delayed(rows + 1) - 1  # before the first row is -1
        is_counted = is_first & (rows < self.num_rows)
        return ops.where(is_counted, rows, 0), is_counted

    def compute_mask(self, inputs: Tensor, previous_mask: Tensor) -> None:
        return None  # The axis of positions is gone.

    def compute_output_shape(
        self, token_ids_shape: Shape, padding_mask_shape: Shape = None
    ) -> Shape:
        return (token_ids_shape[0], self.units)

    def compute_output_spec(
        self, token_ids: Tensor, padding_mask: Tensor = None
    ) -> Tensor:
        _check_rank(token_ids)
        shape = self.compute_output_shape(token_ids.shape)
        return keras.KerasTensor(shape, self.compute_dtype)

    def get_config(self) -> dict:
        return {**super().get_config(), **layer_config(self, NGramBag)}


def _check_rank(token_ids: Tensor) -> None:
    if len(token_ids.shape) != 2:
        raise ValueError(
            "`token_ids` must have shape (batch, length); got "
            f"shape={tuple(token_ids.shape)}."
        )


def _delayed(x: Tensor) -> Tensor:
    """Moves `(B, S)` to the right by one; the first column is 0 or False."""
    first = ops.zeros_like(x[:, :1])
    return ops.concatenate([first, x[:, :-1]], axis=1)


def _largest_prime(limit: int) -> int:
    """Returns the largest prime up to a limit of at least 2."""
    for number in range(limit, 1, -1):
        if all(number % divisor for divisor in range(2, int(number**0.5) + 1)):
            return number
    raise ValueError(f"`limit` must be at least 2; got {limit}.")
