"""Cross-entropy taken from hidden states, without the tensor of logits."""

import keras
from keras import ops
from keras.src.backend import get_keras_mask  # JAX hides the attribute

from keras_tfm.training.losses import check_label_smoothing, check_shapes, token_weights


def projected_crossentropy(
    labels,
    hidden,
    embeddings,
    weights,
    label_smoothing=0.0,
    chunk_tokens=1024,
    dtype="float32",
):
    """Weighted mean of the cross-entropy of `hidden @ embeddings.T`.

    The logits of `chunk_tokens` tokens exist at a time. Their gradient is
    taken in the same pass, so a training step does three matrix products of
    N * V * D, as it does without chunks. The same three are done where no
    gradient is wanted (JAX drops the two that are not needed).

    Only `logsumexp` and the label's logit are of the logits, and of the same
    ones, so that in half precision too the loss is not below 0. The mean of
    all logits is the product of a hidden state with the mean row.

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
    known = ops.logical_and(labels >= 0, labels < size)
    labels = ops.clip(labels, 0, size - 1)
    counts = ops.not_equal(weights, 0.0)
    hidden = ops.where(counts[:, None], hidden, 0.0)
    # The mean is the same at any scale, but a product in float16 is not.
    weights = ops.divide_no_nan(weights, ops.max(ops.abs(weights)))
    total_weight = ops.sum(weights)

    @ops.custom_gradient
    def mean_loss(hidden, embeddings):
        certain = 1.0 - label_smoothing
        loss, for_hidden, for_embeddings = from_logits(
            labels, hidden, embeddings, weights, certain, chunk_tokens, dtype
        )
        weighted = hidden * weights[:, None]  # (N, D)
        target = certain * ops.take(embeddings, labels, axis=0)
        by_label = ops.segment_sum(certain * weighted, labels, num_segments=size)
        for_embeddings = for_embeddings - by_label
        if label_smoothing:
            mean = label_smoothing * ops.mean(embeddings, axis=0)
            loss = loss - ops.sum(ops.matmul(weighted, mean))
            target = target + mean
            spread = (label_smoothing / size) * ops.sum(weighted, axis=0)
            for_embeddings = for_embeddings - spread
        for_hidden = for_hidden - target * weights[:, None]

        def gradient(*args, upstream=None):
            # PyTorch passes the inputs and upstream=, the others upstream.
            upstream = args[0] if upstream is None else upstream
            scale = ops.divide_no_nan(upstream, total_weight)
            return for_hidden * scale, for_embeddings * scale

        return ops.divide_no_nan(loss, total_weight), gradient

    loss = mean_loss(hidden, embeddings)
    unknown = ops.any(ops.logical_and(counts, ops.logical_not(known)))
    return ops.where(unknown, float("nan"), loss)


def from_logits(labels, hidden, embeddings, weights, certain, chunk_tokens, dtype):
    """Sums what of the loss needs the logits: `logsumexp - certain * z[label]`.

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
    tokens, width = ops.shape(hidden)[0], hidden.shape[-1]
    chunks = (tokens + chunk_tokens - 1) // chunk_tokens
    rows = (tokens + chunks - 1) // chunks  # of a chunk; all chunks are even
    padding = chunks * rows - tokens
    hidden = ops.reshape(ops.pad(hidden, [[0, padding], [0, 0]]), (-1, rows, width))
    weights = ops.reshape(ops.pad(weights, [[0, padding]]), (-1, rows, 1))
    labels = ops.reshape(ops.pad(labels, [[0, padding]]), (-1, rows, 1))
    matrix = ops.cast(embeddings, dtype)
    transposed = ops.transpose(matrix)

    def add_chunk(index, sums):
        loss, for_hidden, for_embeddings = sums
        states, weight = hidden[index], weights[index]
        logits = ops.cast(ops.matmul(ops.cast(states, dtype), transposed), "float32")
        normalizer = ops.logsumexp(logits, axis=-1, keepdims=True)
        at_label = ops.take_along_axis(logits, labels[index], axis=-1)
        shares = ops.cast(ops.exp(logits - normalizer), dtype)  # (rows, V)
        # The weights go onto the narrow side of the products.
        to_hidden = ops.cast(ops.matmul(shares, matrix), "float32") * weight
        to_embeddings = ops.matmul(
            ops.transpose(shares), ops.cast(states * weight, dtype)
        )
        return (
            loss + ops.sum((normalizer - certain * at_label) * weight),
            ops.slice_update(for_hidden, (index, 0, 0), to_hidden[None]),
            for_embeddings + ops.cast(to_embeddings, "float32"),
        )

    start = ops.zeros(()), ops.zeros_like(hidden), ops.zeros_like(embeddings)
    loss, for_hidden, for_embeddings = ops.fori_loop(0, chunks, add_chunk, start)
    return loss, ops.reshape(for_hidden, (-1, width))[:tokens], for_embeddings


@keras.saving.register_keras_serializable(package="keras_tfm")
class ProjectedCrossentropy(keras.losses.Loss):
    """`SmoothedCrossentropy` of a tied output projection, from hidden states.

    The model returns hidden states `(B, T, D)` and this loss multiplies them by
    the embedding matrix itself, some tokens at a time, so that logits of shape
    `(B, T, V)` never exist. Value and gradients are those of
    `SmoothedCrossentropy` on `hidden @ embeddings.T`, and a bias if there is
    one; both are trained through the loss. Metrics of the model get hidden
    states too, so metrics of logits do not fit.

    The products are done in the compute dtype of `embedding`, so that mixed
    precision is what it is in the layer; all sums are float32.

    A loss read from a file would have a matrix of its own that nothing else
    uses. Reading one back is therefore refused: load the model with
    `compile=False` and compile it again.

    Args:
        embedding: built Keras layer whose `embeddings` is the `(V, D)` matrix
            of the output projection, and a part of the model (else its
            variable is not trained). With `logits_bias` its `bias` is added.
        label_smoothing: float in `[0, 1)`. Probability spread evenly over all
            V ids, the label among them.
        pad_id: int. Label of the positions that do not count.
        chunk_tokens: int, 1 or more. Tokens whose logits exist at a time: the
            memory is `chunk_tokens * V` numbers.
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
            not fit, or the hidden states are not as wide as the embeddings.
    """

    def __init__(
        self,
        embedding,
        label_smoothing=0.0,
        pad_id=0,
        chunk_tokens=1024,
        name="projected_crossentropy",
    ):
        super().__init__(name=name, reduction="sum_over_batch_size", dtype="float32")
        check_label_smoothing(label_smoothing)
        if not hasattr(embedding, "embeddings"):
            raise TypeError(
                "The loss reads the output matrix from an embedding layer's "
                f"`embeddings`. Received: embedding={embedding!r}, which has none. "
                "Give the built layer that the model ties its output to."
            )
        if chunk_tokens < 1:
            raise ValueError(
                "A chunk holds 1 token or more. Received: "
                f"chunk_tokens={chunk_tokens}. 1024 suits most models."
            )
        self.embedding = embedding
        self.label_smoothing = label_smoothing
        self.pad_id = pad_id
        self.chunk_tokens = chunk_tokens

    def __call__(self, y_true, y_pred, sample_weight=None):
        mask = get_keras_mask(y_pred)
        labels = ops.convert_to_tensor(y_true)
        check_shapes(labels, y_pred)
        weights = token_weights(labels, self.pad_id, sample_weight, mask)
        # In a tuple the hidden states keep no implicit mask, which Keras would
        # apply to the finished mean.
        return super().__call__((labels, weights), (y_pred,))

    def call(self, y_true, y_pred):
        (labels, weights), (hidden,) = y_true, y_pred
        embeddings = ops.convert_to_tensor(self.embedding.embeddings)
        if hidden.shape[-1] != embeddings.shape[-1]:
            raise ValueError(
                "Hidden states are multiplied by the embeddings, so both have one "
                f"width. Received: hidden states {tuple(hidden.shape)}, embeddings "
                f"{tuple(embeddings.shape)}. Give the model's output before its "
                "projection to logits."
            )
        hidden = ops.reshape(hidden, (-1, hidden.shape[-1]))
        embeddings = ops.cast(embeddings, "float32")
        if getattr(self.embedding, "logits_bias", False):
            # A bias is the weight of a channel that is always 1.
            bias = ops.cast(ops.convert_to_tensor(self.embedding.bias), "float32")
            embeddings = ops.concatenate([embeddings, bias[:, None]], axis=-1)
            hidden = ops.concatenate([hidden, ops.ones_like(hidden[:, :1])], axis=-1)
        loss = projected_crossentropy(
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

    def get_config(self):
        return {
            "label_smoothing": self.label_smoothing,
            "pad_id": self.pad_id,
            "chunk_tokens": self.chunk_tokens,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config):
        raise ValueError(
            "A ProjectedCrossentropy belongs to the embedding layer of a model in "
            f"memory and cannot be read from a file. Received: config={config}. "
            "Load the model with compile=False, then compile it with "
            "ProjectedCrossentropy(embedding=...) of its own layer."
        )
