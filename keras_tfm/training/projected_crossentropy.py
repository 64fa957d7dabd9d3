"""Cross-entropy computed from hidden states, without the tensor of logits."""

from typing import NoReturn

import keras
from keras import ops

from keras_tfm.training.keras_internals import get_keras_mask
from keras_tfm.training.losses import (
    check_label_smoothing,
    check_shapes,
    check_tokens_per_batch,
    token_weights,
    with_common_divisor,
)
from keras_tfm.types import Tensor


@keras.saving.register_keras_serializable(package="keras_tfm")
class ProjectedCrossentropy(keras.losses.Loss):
    """Computes `SmoothedCrossentropy` from hidden states and tied embeddings.

    The model returns hidden states `(B, T, D)` and this loss multiplies them by
    the embedding matrix, a chunk of tokens at a time, so that logits of shape
    `(B, T, V)` never exist. Value and gradients are those of
    `SmoothedCrossentropy` on `hidden @ embeddings.T`, and a bias if there is
    one; both are trained through the loss. Metrics of the model get hidden
    states too, so metrics of logits do not fit.

    The products are in the compute dtype of `embedding`, as in the layer; all
    sums are float32.

    A loss read from a file would have a matrix that nothing else uses, so it
    cannot be deserialized: load the model with `compile=False` and compile it
    again.

    Args:
        embedding: built Keras layer whose `embeddings` is the `(V, D)` matrix
            of the output projection. It must belong to the model (else its
            variable is not trained). With `logits_bias` its `bias` is added.
        label_smoothing: float in `[0, 1)`. Probability spread evenly over all
            V ids, the label among them.
        pad_id: int. Label of the positions that do not count.
        chunk_tokens: int, 1 or more. Tokens whose logits exist at a time: the
            memory is `chunk_tokens * V` numbers.
        tokens_per_batch: float or None, as in `SmoothedCrossentropy`.
        name: string. Name of the loss.

    Call arguments:
        y_true: int `(B, T)`, the labels.
        y_pred: float `(B, T, D)`, the hidden states.
        sample_weight: float `(B,)` or `(B, T)`, or `None`.

    Returns:
        float32 scalar, in nats a token.

    Raises:
        TypeError: `embedding` has no `embeddings`.
        ValueError: an argument is out of range, labels and hidden states do
            not fit, or hidden states and embeddings differ in dimension.

    Example:
        ```python
        import keras
        import numpy as np
        from keras_tfm import training

        embedding = keras.layers.Embedding(4, 2, embeddings_initializer="zeros")
        embedding.build()
        loss = training.ProjectedCrossentropy(embedding)
        labels, hidden = np.array([[2, 0]]), np.ones((1, 2, 2), "float32")
        value = keras.ops.convert_to_numpy(loss(labels, hidden))
        print(value)  # log(4) = 1.386; 0 is padding
        ```
    """

    def __init__(
        self,
        embedding: keras.layers.Layer,
        label_smoothing: float = 0.0,
        pad_id: int = 0,
        chunk_tokens: int = 1024,
        tokens_per_batch: float | None = None,
        name: str = "projected_crossentropy",
    ):
        super().__init__(name=name, reduction="sum_over_batch_size", dtype="float32")
        check_label_smoothing(label_smoothing)
        if not hasattr(embedding, "embeddings"):
            raise TypeError(
                "`embedding` must be a built layer with `embeddings`; got "
                f"embedding={embedding!r}, which has none. Pass the layer that the "
                "model ties its output to."
            )
        if chunk_tokens < 1:
            raise ValueError(
                f"`chunk_tokens` must be at least 1; got chunk_tokens={chunk_tokens}. "
                "1024 suits most models."
            )
        self.embedding = embedding
        self.label_smoothing = label_smoothing
        self.pad_id = pad_id
        check_tokens_per_batch(tokens_per_batch)
        self.chunk_tokens = chunk_tokens
        self.tokens_per_batch = tokens_per_batch

    def __call__(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor = None
    ) -> Tensor:
        mask = get_keras_mask(y_pred)
        labels, y_pred = map(ops.convert_to_tensor, (y_true, y_pred))
        check_shapes(labels, y_pred)
        weights = token_weights(labels, self.pad_id, sample_weight, mask)
        # In a tuple the hidden states have no implicit mask, which Keras would
        # apply to the mean.
        loss = super().__call__((labels, weights), (y_pred,))
        return with_common_divisor(loss, weights, self.tokens_per_batch)

    def call(self, y_true: tuple, y_pred: tuple) -> Tensor:
        (labels, weights), (hidden,) = y_true, y_pred
        embeddings = ops.convert_to_tensor(self.embedding.embeddings)
        if hidden.shape[-1] != embeddings.shape[-1]:
            raise ValueError(
                "Hidden states must have the dimension of the embeddings; got hidden "
                f"states {tuple(hidden.shape)}, embeddings {tuple(embeddings.shape)}. "
                "Pass the model's output before its projection to logits."
            )
        hidden = ops.reshape(hidden, (-1, hidden.shape[-1]))
        embeddings = ops.cast(embeddings, "float32")
        if getattr(self.embedding, "logits_bias", False):
            # A bias is the weight of a channel that is always 1: (V, D + 1).
            bias = ops.cast(ops.convert_to_tensor(self.embedding.bias), "float32")
            embeddings = ops.concatenate([embeddings, bias[:, None]], axis=-1)
            hidden = ops.concatenate([hidden, ops.ones_like(hidden[:, :1])], axis=-1)
        loss = _projected_crossentropy(
            ops.reshape(ops.cast(labels, "int32"), (-1,)),
            hidden,
            embeddings,
            ops.reshape(weights, (-1,)),
            self.label_smoothing,
            self.chunk_tokens,
            self.embedding.compute_dtype,
        )
        # One axis, so that Keras still divides by the number of replicas.
        return ops.reshape(loss, (1,))

    def get_config(self) -> dict:
        return {
            "label_smoothing": self.label_smoothing,
            "pad_id": self.pad_id,
            "chunk_tokens": self.chunk_tokens,
            "tokens_per_batch": self.tokens_per_batch,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: dict) -> NoReturn:
        raise ValueError(
            "A ProjectedCrossentropy cannot be read from a file, since it needs the "
            f"embedding layer of a model in memory; got config={config}. Load the "
            "model with compile=False, then compile it with "
            "ProjectedCrossentropy(embedding=...) of its layer."
        )


def _projected_crossentropy(
    labels, hidden, embeddings, weights, label_smoothing, chunk_tokens, dtype
):
    """Averages the weighted cross-entropy of `hidden @ embeddings.T`.

    The logits of `chunk_tokens` tokens exist at a time. Their gradient is
    computed in the same pass, so a training step has three matrix products of
    N * V * D, as without chunks. Without a gradient there are the same three
    (JAX drops the two that are not needed).

    `logsumexp` and the label's logit are computed from the same logits, so that
    in half precision too the loss is not below 0. The mean of all logits is the
    product of a hidden state with the mean row.

    Args:
        labels: int `(N,)`. A label outside `0 .. V - 1` that has a weight
            makes the loss NaN.
        hidden: float32 `(N, D)`.
        embeddings: float32 `(V, D)`.
        weights: float32 `(N,)`.
        label_smoothing: float in `[0, 1)`.
        chunk_tokens: int, 1 or more. Memory is `chunk_tokens * V` numbers.
        dtype: string. Dtype of the matrix products; sums are float32.

    Returns:
        float32 scalar: `sum(w * l) / sum(w)`, 0 where all weights are 0.

    Source: the gradient in the forward pass is that of Hsu et al. 2024,
    Liger Kernel, section 3.2. https://arxiv.org/abs/2410.10989
    """
    size = embeddings.shape[0]
    in_vocabulary = ops.logical_and(labels >= 0, labels < size)
    labels = ops.clip(labels, 0, size - 1)
    counts = ops.not_equal(weights, 0.0)
    hidden = ops.where(counts[:, None], hidden, 0.0)
    # The mean is the same at any scale, but a product in float16 is not.
    weights = ops.divide_no_nan(weights, ops.max(ops.abs(weights)))
    total_weight = ops.sum(weights)

    @ops.custom_gradient
    def mean_loss(hidden, embeddings):
        certain = 1.0 - label_smoothing
        loss, hidden_gradient, embeddings_gradient = _sum_chunks(
            labels, hidden, embeddings, weights, certain, chunk_tokens, dtype
        )
        weighted = hidden * weights[:, None]  # (N, D)
        target = certain * ops.take(embeddings, labels, axis=0)
        at_labels = ops.segment_sum(certain * weighted, labels, num_segments=size)
        embeddings_gradient = embeddings_gradient - at_labels
        if label_smoothing:
            mean = label_smoothing * ops.mean(embeddings, axis=0)
            loss = loss - ops.sum(ops.matmul(weighted, mean))
            target = target + mean
            spread = (label_smoothing / size) * ops.sum(weighted, axis=0)
            embeddings_gradient = embeddings_gradient - spread
        hidden_gradient = hidden_gradient - target * weights[:, None]

        def gradient(*args, upstream=None):
            # PyTorch passes the inputs and upstream=, the others upstream.
            upstream = args[0] if upstream is None else upstream
            scale = ops.divide_no_nan(upstream, total_weight)
            return hidden_gradient * scale, embeddings_gradient * scale

        return ops.divide_no_nan(loss, total_weight), gradient

    loss = mean_loss(hidden, embeddings)
    unknown = ops.any(ops.logical_and(counts, ops.logical_not(in_vocabulary)))
    return ops.where(unknown, float("nan"), loss)


def _sum_chunks(labels, hidden, embeddings, weights, certain, chunk_tokens, dtype):
    """Sums `logsumexp - certain * z[label]`, the terms that need logits.

    Args:
        labels: int `(N,)`, from 0 to V - 1.
        hidden: float32 `(N, D)`.
        embeddings: float32 `(V, D)`.
        weights: float32 `(N,)`.
        certain: float. Probability on the label itself.
        chunk_tokens: int. At most this many rows of logits at a time.
        dtype: string. Dtype of the matrix products.

    Returns:
        float32 scalar, the weighted sum; and the gradients `(N, D)` and
        `(V, D)` of its first term.
    """
    tokens, dim = ops.shape(hidden)[0], hidden.shape[-1]
    chunks = (tokens + chunk_tokens - 1) // chunk_tokens
    rows = (tokens + chunks - 1) // chunks  # in a chunk; all chunks have as many
    padding = chunks * rows - tokens
    hidden = ops.reshape(ops.pad(hidden, [[0, padding], [0, 0]]), (-1, rows, dim))
    weights = ops.reshape(ops.pad(weights, [[0, padding]]), (-1, rows, 1))
    labels = ops.reshape(ops.pad(labels, [[0, padding]]), (-1, rows, 1))
    matrix = ops.cast(embeddings, dtype)  # (V, D)
    transposed = ops.transpose(matrix)

    def add_chunk(index, sums):
        loss, hidden_gradient, embeddings_gradient = sums
        states, weight = hidden[index], weights[index]
        logits = ops.cast(ops.matmul(ops.cast(states, dtype), transposed), "float32")
        normalizer = ops.logsumexp(logits, axis=-1, keepdims=True)
        at_label = ops.take_along_axis(logits, labels[index], axis=-1)
        probabilities = ops.cast(ops.exp(logits - normalizer), dtype)  # (rows, V)
        # Weighting (rows, D) is cheaper than weighting (rows, V).
        hidden_part = ops.cast(ops.matmul(probabilities, matrix), "float32") * weight
        embeddings_part = ops.matmul(
            ops.transpose(probabilities), ops.cast(states * weight, dtype)
        )
        return (
            loss + ops.sum((normalizer - certain * at_label) * weight),
            ops.slice_update(hidden_gradient, (index, 0, 0), hidden_part[None]),
            embeddings_gradient + ops.cast(embeddings_part, "float32"),
        )

    start = ops.zeros(()), ops.zeros_like(hidden), ops.zeros_like(embeddings)
    loss, hidden_gradient, embeddings_gradient = ops.fori_loop(
        0, chunks, add_chunk, start
    )
    return loss, ops.reshape(hidden_gradient, (-1, dim))[:tokens], embeddings_gradient
