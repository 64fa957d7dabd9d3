"""The equations of the layers in NumPy float64, and weights drawn for them.

Written from the papers, not from the code. Weights are named by their path
below the layer: `{"query/kernel": array, ...}`.
"""

import numpy as np
from keras import ops


def draw(*shape, seed=1):
    """Draws float32 values of standard deviation 1."""
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def draw_weights(layer, seed=0):
    """Sets weights drawn by NumPy, the same on every backend."""
    rng, values = np.random.default_rng(seed), []
    for weight in layer.weights:
        rows = max(1, int(np.prod(weight.shape[:-1])))
        value = rng.normal(size=weight.shape)
        value *= 0.3 if len(weight.shape) == 1 else rows**-0.5
        value += weight.path.endswith(("gamma", "scale"))
        if weight.path.endswith("variance"):
            value = 0.5 + abs(value)
        values.append(value)
    layer.set_weights([value.astype("float32") for value in values])
    return layer


def weights_of(layer):
    """Maps the path of each weight below `layer` to its value in float64."""
    return {
        weight.path.split("/", 1)[1]: numpy(weight).astype("float64")
        for weight in layer.weights
    }


def below(weights, folder):
    """Selects the weights of one sublayer."""
    start = folder + "/"
    return {k.removeprefix(start): v for k, v in weights.items() if k.startswith(start)}


def numpy(x):
    """Converts a tensor of any backend and float dtype to a NumPy array."""
    half = ops.dtype(x) == "bfloat16"
    return np.array(ops.convert_to_numpy(ops.cast(x, "float32") if half else x))


def softmax(x):
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def attention(w, query, value=None, key=None, mask=None):
    """Vaswani et al. 2017, section 3.2: the output, and the weights.

    A score with a matrix follows Luong et al. 2015, "general"; one with a
    vector follows Bahdanau et al. 2015, appendix A.1.2. Query heads share key
    and value heads as in Ainslie et al. 2023, figure 2.
    """
    value = query if value is None else value
    key = value if key is None else key

    def project(name, x):
        return np.einsum("btd,dhk->bthk", x, w[name + "/kernel"]) + w.get(
            name + "/bias", 0
        )

    queries, keys = project("query", query), project("key", key)
    values = project("value", value)
    times = queries.shape[2] // keys.shape[2]
    keys, values = (np.repeat(x, times, axis=2) for x in (keys, values))
    if "score/kernel" in w:
        queries = np.einsum("bthd,hdk->bthk", queries, w["score/kernel"])
        scores = np.einsum("bthk,bshk->bhts", queries, keys)
    elif "score/vector" in w:
        sums = np.tanh(queries[:, :, None] + keys[:, None])
        scores = np.einsum("btshk,hk->bhts", sums, w["score/vector"][..., 0])
    else:
        scores = np.einsum("bthk,bshk->bhts", queries, keys) / keys.shape[-1] ** 0.5
    if mask is not None:
        mask = mask[:, None] if mask.ndim == 3 else mask
        scores = np.where(mask, scores, -1e300)
    scores = softmax(scores)
    if mask is not None:
        scores = np.where(mask.any(-1, keepdims=True), scores, 0)
    attended = np.einsum("bhts,bshv->bthv", scores, values)
    output = np.einsum("bthv,hve->bte", attended, w["attention_output/kernel"])
    return output + w.get("attention_output/bias", 0), scores


def causal(length):
    """Row t is True in columns 0 to t."""
    return np.array([[s <= t for s in range(length)] for t in range(length)])[None]


def relu(x):
    return np.maximum(x, 0)


def silu(x):
    return x / (1 + np.exp(-x))


def feed_forward(w, x, activation=relu):
    """Vaswani et al. 2017, section 3.3; gated: Shazeer 2020, section 2."""
    inner = x @ w["inner/kernel"] + w.get("inner/bias", 0)
    if "gate/kernel" in w:
        inner = activation(x @ w["gate/kernel"] + w.get("gate/bias", 0)) * inner
    else:
        inner = activation(inner)
    return inner @ w["output/kernel"] + w.get("output/bias", 0)


def normalize(w, x, epsilon, real=None):
    """Layer normalization; without a `beta`, RMS normalization.

    Batch normalization if there are moving averages; with `real`, it uses the
    mean and variance of these positions, as in training (Ioffe and Szegedy
    2015, algorithm 1).
    """
    if "moving_mean" in w:
        mean, variance = w["moving_mean"], w["moving_variance"]
        if real is not None:
            mean, variance = x[real].mean(0), x[real].var(0)
        return (x - mean) / np.sqrt(variance + epsilon) * w["gamma"] + w["beta"]
    if "beta" not in w:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * w["scale"]
    centered = x - x.mean(-1, keepdims=True)
    spread = np.sqrt((centered**2).mean(-1, keepdims=True) + epsilon)
    return centered / spread * w["gamma"] + w["beta"]


def block(w, x, memory=None, mask=None, memory_mask=None, first=False, **settings):
    """An encoder block, or with `memory` a decoder block.

    Args:
        w: weights of the block.
        x: `(B, T, D)`.
        memory: `(B, S, D')`, or None.
        mask: of self-attention, or None.
        memory_mask: of cross-attention, or None.
        first: bool. Pre-norm.
        **settings: `epsilon`, `activation`, `real` of `normalize`.
    """
    epsilon, real = settings.get("epsilon", 1e-5), settings.get("real")
    activation = settings.get("activation", relu)

    def residual(name, x, layer):
        norm = below(w, name + "_norm")
        if first:
            return x + layer(normalize(norm, x, epsilon, real))
        return normalize(norm, x + layer(x), epsilon, real)

    def attend(name, value, mask):
        return lambda x: attention(below(w, name), x, value, mask=mask)[0]

    x = residual("self_attention", x, attend("self_attention", None, mask))
    if memory is not None:
        cross = attend("cross_attention", memory, memory_mask)
        x = residual("cross_attention", x, cross)
    feed = below(w, "feed_forward")
    return residual("feed_forward", x, lambda x: feed_forward(feed, x, activation))


def score(w, kind, query, key):
    """Luong et al. 2015, section 3.1; Bahdanau et al. 2015, appendix A.1.2.

    Args:
        w: weights of `Attention`.
        kind: string. Name of the score.
        query: `(B, T, D)`.
        key: `(B, S, D'')`.
    """
    if kind == "additive":
        query, key = query @ w["query/kernel"], key @ w["key/kernel"]
        sums = query[:, :, None] + key[:, None]  # (B, T, S, units)
        return np.tanh(sums) @ w["score/vector"][0, :, 0]
    if kind == "multiplicative":
        query = query @ w["score/kernel"][0]
    scores = np.einsum("btd,bsd->bts", query, key)
    return scores / query.shape[-1] ** 0.5 if kind == "scaled_dot" else scores


def weighted(scores, value, mask=None):
    """The mean of the values by the softmax of the scores, and the weights."""
    if mask is None:
        mask = np.ones(scores.shape, bool)
    weights = softmax(np.where(mask, scores, -1e300))
    weights = np.where(mask.any(-1, keepdims=True), weights, 0)
    return weights @ value, weights
