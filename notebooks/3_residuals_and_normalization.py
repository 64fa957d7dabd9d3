# %% [markdown]
# # Residuals and normalization
#
# [![Open in Colab][badge]][colab] There, first run
# `%pip install "keras-tfm[recipes] @ git+https://github.com/keras-tfm/keras-tfm"`.
#
# [badge]: https://colab.research.google.com/assets/colab-badge.svg
# [colab]: https://colab.research.google.com/github/keras-tfm/keras-tfm/blob/main/notebooks/3_residuals_and_normalization.ipynb
#
# **You will see** layer norm by hand, how padding affects batch norm but not
# layer norm, what happens to gradients and to positions in a deep stack without
# residuals, and why post-norm needs a warm-up while pre-norm does not.
#
# **Takes** 40 seconds on PyTorch, and a minute more on TensorFlow and JAX,
# which compile.
#
# **Follows** Vaswani et al. 2017, *Attention Is All You Need*, sections 3.1 and
# 5.3, <https://arxiv.org/abs/1706.03762>; lecture notes; layer norm: Ba et al.
# 2016, section 3, <https://arxiv.org/abs/1607.06450>; residuals: He et al.
# 2016, section 3.1, <https://arxiv.org/abs/1512.03385>, and, for attention,
# Dong et al. 2021, <https://arxiv.org/abs/2103.03404>; pre-norm: Xiong et al.
# 2020, section 3, <https://arxiv.org/abs/2002.04745>. Other normalizations that
# the notes mention: PowerNorm, a batch norm for texts, Shen et al. 2020,
# <https://arxiv.org/abs/2003.07845>; AdaNorm, a layer norm without learned
# scale, Xu et al. 2019, <https://arxiv.org/abs/1911.07013>; batch norm in
# Transformers of images, Yao et al. 2021,
# <https://openaccess.thecvf.com/content/ICCV2021W/NeurArch/html/Yao_Leveraging_Batch_Normalization_for_Vision_Transformers_ICCVW_2021_paper.html>.
# The three schedules follow *The Annotated Transformer*,
# <https://nlp.seas.harvard.edu/annotated-transformer/>.

# %%
# %matplotlib inline
import keras
import numpy as np
from keras import ops

from keras_tfm import layers, models, plot, training
from keras_tfm.layers.normalization import normalization_layer

rng = np.random.default_rng(0)
np.set_printoptions(precision=3, suppress=True)


def numpy(tensor):
    """Converts a tensor of any backend to an array."""
    return ops.convert_to_numpy(tensor).astype("float64")


# %% [markdown]
# ## Layer norm by hand
#
# Layer norm normalizes each vector to mean 0 and variance 1 over its own $d$
# channels. Then it applies a learned scale and shift for each channel, which
# are initialized with 1 and 0:
#
# $$\mu = \frac1d \sum_c x_c, \qquad
# \sigma^2 = \frac1d \sum_c (x_c - \mu)^2, \qquad
# \mathrm{LN}(x)_c
# = \gamma_c\, \frac{x_c - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta_c$$

# %%
x = np.array([[[1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0], [-5.0, 0.0, 5.0, 0.0]]])
mean = x.mean(axis=-1, keepdims=True)
variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
by_hand = (x - mean) / np.sqrt(variance + 1e-5)

layer_norm = normalization_layer("layer_norm", epsilon=1e-5)
normalized = numpy(layer_norm(x))
print(normalized[0])
np.testing.assert_allclose(normalized, by_hand, atol=1e-5)
np.testing.assert_allclose(normalized.mean(axis=-1), 0, atol=1e-5)
np.testing.assert_allclose(normalized.var(axis=-1), 1, atol=1e-4)

gamma, beta = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.0, 0.0, 1.0, 1.0])
layer_norm.set_weights([gamma, beta])
np.testing.assert_allclose(numpy(layer_norm(x)), gamma * by_hand + beta, atol=1e-4)

# %% [markdown]
# The first two rows are equal: the result depends neither on the size of a
# vector nor on a constant that is added to all of its channels.

# %%
np.testing.assert_allclose(normalized[0, 0], normalized[0, 1], atol=1e-4)
layer_norm.set_weights([np.ones(4), np.zeros(4)])
np.testing.assert_allclose(numpy(layer_norm(7 * x + 3)), normalized, atol=1e-4)

# %% [markdown]
# A widely copied version, that of the [Annotated
# Transformer](https://nlp.seas.harvard.edu/annotated-transformer/), divides by
# $d - 1$ under the root and adds $\epsilon$ outside of it. That is a different
# function; here the factor is $\sqrt{3/4} = 0.866$.

# %%
copied = (x - mean) / (x.std(axis=-1, ddof=1, keepdims=True) + 1e-6)
np.testing.assert_allclose(copied, np.sqrt(3 / 4) * by_hand, atol=1e-4)

# %% [markdown]
# ## Layer norm, batch norm and padding
#
# Batch norm computes the mean and variance of each channel over all positions
# of the batch:
#
# $$\mu_c = \frac{1}{BT} \sum_{b,t} x_{b,t,c}, \qquad
# \mathrm{BN}(x)_{b,t,c}
# = \gamma_c\, \frac{x_{b,t,c} - \mu_c}{\sqrt{\sigma_c^2 + \epsilon}}
# + \beta_c,$$
#
# Here $\sigma_c^2$ is the mean of $(x_{b,t,c} - \mu_c)^2$ over the same
# positions. The batch has two sentences, of 3 and of 6 words. The first is
# padded, and batch norm counts the zeros like words.

# %%
real = np.array([[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]], dtype=bool)  # (B, T)
x = (2.0 + rng.normal(size=(2, 6, 8))) * real[..., None]
batch_norm = normalization_layer("batch_norm", epsilon=1e-5)
by_batch = numpy(batch_norm(x, training=True))
by_hand = (x - x.mean(axis=(0, 1))) / np.sqrt(x.var(axis=(0, 1)) + 1e-5)
np.testing.assert_allclose(by_batch, by_hand, atol=1e-4)
print("mean of the real words after batch norm:", by_batch[real].mean().round(2))
assert by_batch[real].mean() > 0.3

layer_norm = normalization_layer("layer_norm", epsilon=1e-5)
by_layer = numpy(layer_norm(x))
np.testing.assert_allclose(by_layer[real].mean(axis=-1), 0, atol=1e-5)

figure = plot.figure((8, 3.4))
panels = {"x": x, "layer norm": by_layer, "batch norm": by_batch}
words = [f"word {t + 1}" if real[b, t] else "padding" for b in (0, 1) for t in range(6)]
axes = figure.subplots(1, 3)
for ax, (name, values) in zip(axes, panels.items(), strict=True):
    rows = values.reshape(12, 8)
    plot.positions(rows, ax=ax, title=name, vmax=4.0, label="value")
    ax.axhline(5.5, color="black", linewidth=1.5)  # between the sentences
    ax.set_yticks(range(12), words if ax is axes[0] else [])
    ax.set_ylabel("")
figure

# %% [markdown]
# The first sentence is above the line. Layer norm leaves its padding at 0.
# After batch norm, padding has larger absolute values than words on average. A
# sentence alone, without padding or with more padding, gets other values from
# batch norm, and the same values from layer norm:

# %%
unpadded, padded_further = x[:1, :3], np.pad(x[:1], ((0, 0), (0, 6), (0, 0)))
for norm, is_same in ((layer_norm, True), (batch_norm, False)):
    short, long = (
        numpy(norm(inputs, training=True))[0, :3]
        for inputs in (unpadded, padded_further)
    )
    assert np.allclose(short, long, atol=1e-4) == is_same
assert (by_layer[~real] == 0).all()
assert np.abs(by_batch[~real]).mean() > np.abs(by_batch[real]).mean()

# %% [markdown]
# A mask fixes that: Keras' batch norm and the blocks of this library count real
# positions only. One problem remains: in training, the output of a sentence
# depends on the other sentences of its batch. At inference batch norm uses
# running means instead, so other sentences have no effect. But the model then
# computes another function than in training. A batch has its own means, and the
# running means follow slowly; after these few batches they have hardly moved
# from their initial values, 0 and 1.

# %%
masked_outputs = numpy(batch_norm(x, training=True, mask=real))
np.testing.assert_allclose(masked_outputs[real].mean(axis=0), 0, atol=1e-5)
other_batch = np.stack([x[0], 3 * x[1]])
other_outputs = numpy(batch_norm(other_batch, training=True, mask=real))
assert np.abs(other_outputs[0, :3] - masked_outputs[0, :3]).max() > 0.3
inference_outputs, other_inference = (
    numpy(batch_norm(batch, mask=real))[0] for batch in (x, other_batch)
)
np.testing.assert_array_equal(inference_outputs, other_inference)
assert np.abs(inference_outputs[:3] - masked_outputs[0, :3]).max() > 0.3

for kind, is_same in (("layer_norm", True), ("batch_norm", False)):
    block = layers.TransformerEncoder(16, 2, normalization=kind)
    outputs = numpy(block(x, padding_mask=real, training=True))[0, :3]
    longer_x = np.pad(x, ((0, 0), (0, 4), (0, 0)))
    longer_real = np.pad(real, ((0, 0), (0, 4)))
    padded = numpy(block(longer_x, padding_mask=longer_real, training=True))[0, :3]
    np.testing.assert_allclose(padded, outputs, atol=1e-4)  # padding has no effect
    other_outputs = numpy(block(other_batch, padding_mask=real, training=True))[0, :3]
    # Another sentence has an effect in batch norm only.
    assert np.allclose(other_outputs, outputs, atol=1e-4) == is_same

# %% [markdown]
# ## Residual connections
#
# A residual connection adds the input of a layer to its output. The gradient
# then passes through a sum, and the term $I$ remains, whatever $f$ does:
#
# $$y = x + f(x), \qquad
# \frac{\partial y}{\partial x} = I + \frac{\partial f}{\partial x}$$
#
# We check this with finite differences, for a layer of four channels:


# %%
def jacobian(f, at, step=1e-2):
    """Computes the change of each output with each input, `(out, in)`."""
    steps = step * np.eye(len(at))  # a row for each input
    shifted = (
        ops.convert_to_tensor(at + offset, "float32") for offset in (steps, -steps)
    )
    above, below = (numpy(f(inputs)) for inputs in shifted)
    return (above - below).T / (2 * step)


orthogonal = keras.initializers.Orthogonal(seed=0)
dense = keras.layers.Dense(4, activation="tanh", kernel_initializer=orthogonal)
layer_jacobian = jacobian(dense, np.full(4, 0.1))
residual_jacobian = jacobian(lambda x: x + dense(x), np.full(4, 0.1))
print("of the layer", layer_jacobian, "with the residual", residual_jacobian, sep="\n")
np.testing.assert_allclose(residual_jacobian, np.eye(4) + layer_jacobian, atol=1e-3)

# %% [markdown]
# How much does that matter? A ReLU has the derivative 0 wherever its input is
# negative. With random weights this is true for half of its units, and for each
# word they are different units. The figure shows 16 of 1024 units; the blue
# ones let a gradient pass:

# %%
inner = rng.normal(size=(8, 64)) @ rng.normal(size=(64, 1024)) / 8  # (T, F)
is_active = inner > 0
print(f"units with a gradient: {is_active.mean():.2f}")
assert 0.45 < is_active.mean() < 0.55
first_units = is_active[:, :16]
plot.mask(first_units, xlabel="unit (blue: has a gradient)", ylabel="word")

# %% [markdown]
# Half of the squared gradient is lost at each layer, so its norm falls by
# $\sqrt 2$ per layer. We pass a gradient back through $n$ layers of a matrix
# and a ReLU, with and without residuals. With them, the factor $1/\sqrt{1.5}$
# stands for a normalization, which undoes the growth of the sum:

# %%
depths = np.arange(13)
backward = {"no residuals": [], "residuals": []}
for name, norms in backward.items():
    g = rng.normal(size=(100, 256))
    start = np.linalg.norm(g)
    for _ in depths:
        norms.append(np.linalg.norm(g) / start)
        is_active = rng.normal(size=g.shape) > 0
        through = (g * is_active) @ rng.normal(size=(256, 256)) / 16
        g = through if name == "no residuals" else (g + through) / np.sqrt(1.5)
np.testing.assert_allclose(backward["no residuals"], 2 ** (-depths / 2), rtol=0.2)
np.testing.assert_allclose(backward["residuals"], 1, rtol=0.2)
points = {name: (depths, norms) for name, norms in backward.items()}
figure = plot.curves(points, "layers passed", "norm of the gradient")
figure.axes[0].set_yscale("log")
figure

# %% [markdown]
# This is the usual explanation. A stack of attention layers has another effect,
# which appears at a smaller depth, here at six layers: without residuals, the
# vectors of a sentence become more similar from layer to layer.
#
# We compare four variants of a layer, attention or feed-forward, in a stack:

# %%
variants = {
    "pre-norm": lambda x, layer, norm: x + layer(norm(x)),
    "post-norm": lambda x, layer, norm: norm(x + layer(x)),
    "no residuals": lambda x, layer, norm: layer(norm(x)),
    "no normalization": lambda x, layer, norm: x + layer(x),
}
x = rng.normal(size=(32, 6, 64)).astype("float32")  # (B, T, D)
y = rng.normal(size=(32, 6, 64)).astype("float32")

for variant, normalize_first in (("pre-norm", True), ("post-norm", False)):
    block = layers.TransformerEncoder(64, 2, normalize_first=normalize_first)
    outputs = numpy(block(x))
    tensor = ops.convert_to_tensor(x)
    after_attention = variants[variant](
        tensor, block.self_attention, block.self_attention_norm
    )
    expected = numpy(
        variants[variant](after_attention, block.feed_forward, block.feed_forward_norm)
    )
    np.testing.assert_allclose(outputs, expected, atol=1e-5)

# %% [markdown]
# The stacks consist of such layers, with weights from NumPy. One step of
# gradient descent with momentum, starting from a momentum of 0, stores the
# gradient in the momentum:
#
# $$m \leftarrow 0.9\, m - \eta \nabla, \qquad m_0 = 0,\ \eta = 1
# \quad\Rightarrow\quad m_1 = -\nabla$$


# %%
def stack(depth, variant):
    """Stacks attention and a feed-forward network `depth` times."""
    inputs = x = keras.Input((6, 64))
    for _ in range(depth):
        for layer in (layers.MultiHeadAttention(2), layers.FeedForward(64)):
            x = variants[variant](x, layer, normalization_layer("layer_norm", 1e-5))
    if variant in ("pre-norm", "no residuals"):
        x = normalization_layer("layer_norm", 1e-5)(x)
    return keras.Model(inputs, x)


def draw(model, width, seed=0):
    """Draws every matrix with variance 1 / width, from NumPy."""
    rng = np.random.default_rng(seed)
    for weight in model.weights:
        if weight.path.endswith(("kernel", "embeddings")):
            weight.assign(rng.normal(size=weight.shape) * width**-0.5)


# %%
def gradient_norms(model):
    """Maps the path of each weight to the norm of its gradient."""
    momentum = keras.optimizers.SGD(1.0, momentum=0.9)
    momentum.build(model.trainable_weights)  # else some backends compile twice
    model.compile(momentum, "mse")
    model.train_on_batch(x, y)
    pairs = zip(model.trainable_weights, momentum.momentums, strict=True)
    return {weight.path: np.linalg.norm(numpy(gradient)) for weight, gradient in pairs}


def similarity(vectors):
    """Computes the mean cosine of the words of a sentence, `(B, T, D)`."""
    unit = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return (unit @ unit.transpose(0, 2, 1))[:, ~np.eye(6, dtype=bool)].mean()


def layers_of_type(model, layer_type):
    """Lists the layers of a stack that have the class `layer_type`."""
    return [layer for layer in model.layers if isinstance(layer, layer_type)]


# %%
query_norms, output_norms, similarities = {}, {}, {}
for variant in variants:
    for depth in (2, 4, 6, 8) if variant in ("pre-norm", "post-norm") else (2, 6):
        model = stack(depth, variant)
        draw(model, 64)
        similarities[variant, depth] = similarity(numpy(model(x)))
        norms = gradient_norms(model)
        query_norms[variant, depth] = [
            norms[layer.query_dense.kernel.path]
            for layer in layers_of_type(model, layers.MultiHeadAttention)
        ]
        output_norms[variant, depth] = [
            norms[layer.output_dense.kernel.path]
            for layer in layers_of_type(model, layers.FeedForward)
        ]

# %% [markdown]
# The figure shows how training would change the queries: the gradient of $W^Q$
# at each of six layers, before the first step.

# %%
norms = {variant: query_norms[variant, 6] for variant in variants}
figure = plot.figure((7.4, 3.2))
left, right = figure.subplots(1, 2)
plot.gradient_norms(norms, ax=left, title="gradient of the queries")
with_both = {name: norms[name] for name in ("pre-norm", "post-norm")}
plot.gradient_norms(with_both, ax=right, title="the two, enlarged")
figure

# %% [markdown]
# * Without residuals the gradient vanishes above the fourth layer. Attention
#   computes means, so all words of a sentence become similar (Dong et al. call
#   this rank collapse). If all keys are equal, a query has no effect. Lower
#   layers still have gradients: the information is lost on the way up, not on
#   the way down.
# * With residuals but without normalization, each layer adds to its input, and
#   gradients grow with the depth: more than a hundred times from 2 layers to 6.
# * Pre-norm has residuals and normalization, and its gradients stay within an
#   order of magnitude.
# * Post-norm has residuals and normalization, too. At six layers its words are
#   more similar (0.92) than those of pre-norm (0.61). At this depth its
#   gradients hardly differ from those of pre-norm.

# %%
print(f"{'':18}{'alike at 2':>12}{'at 6':>8}{'gradient at 2':>16}{'at 6':>10}")
for variant in variants:
    top = query_norms[variant, 2][-1], query_norms[variant, 6][-1]
    cosines = similarities[variant, 2], similarities[variant, 6]
    row = "{:12.2f}{:8.2f}{:16.0e}{:10.0e}".format(*cosines, *top)
    print(f"{variant:18}{row}")
assert similarities["no residuals", 6] > 0.99
assert similarities["pre-norm", 6] < 0.9
assert max(query_norms["no residuals", 6][4:]) < 1e-5
assert min(query_norms["no residuals", 6][:2]) > 1e-2
assert min(query_norms["pre-norm", 6] + query_norms["post-norm", 6]) > 1e-3
assert min(query_norms["no residuals", 2]) > 1e-3
assert max(query_norms["no normalization", 6]) > 100 * max(
    query_norms["no normalization", 2]
)
assert max(query_norms["pre-norm", 6]) < 10 * min(query_norms["pre-norm", 6])
assert (
    similarities["pre-norm", 6]
    < similarities["post-norm", 6]
    < similarities["no residuals", 6]
)
assert 0.5 < query_norms["post-norm", 6][-1] / query_norms["pre-norm", 6][-1] < 2

# %% [markdown]
# ## Residual connections carry the position
#
# Positions are added once, before the first block. Do the upper blocks still
# know them? We send random words with positions through six random blocks, and
# predict the position from the vectors after each block by a linear function.
# $R^2$ is the fraction of the variance of the position that it predicts, on
# sentences it was not fitted to:


# %%
def position_r2(vectors):
    """Fits a linear function on half of the sentences, and tests the rest."""
    count, length, width = vectors.shape
    inputs = np.concatenate([vectors, np.ones((count, length, 1))], axis=-1)
    inputs = inputs.reshape(2, -1, width + 1)
    t = np.tile(np.arange(length), count // 2)
    solution = np.linalg.lstsq(inputs[0], t, rcond=1e-6)[0]
    return 1 - np.mean((inputs[1] @ solution - t) ** 2) / np.var(t)


words = rng.normal(size=(1000, 64))[rng.integers(1000, size=(200, 20))]
positioned = words + numpy(layers.SinusoidalPositions().signal(20, 0, 64))
r2 = {}
for variant in ("pre-norm", "post-norm", "no residuals"):
    vectors = ops.convert_to_tensor(positioned.astype("float32"))
    weights = np.random.default_rng(1)
    r2[variant] = [position_r2(numpy(vectors))]
    for _ in range(6):
        for layer in (layers.MultiHeadAttention(4), layers.FeedForward(256)):
            layer.build(vectors.shape)
            for weight in layer.weights:
                if weight.path.endswith("kernel"):
                    fan_in = 256 if weight.shape[0] == 256 else 64
                    weight.assign(weights.normal(size=weight.shape) * fan_in**-0.5)
            norm = normalization_layer("layer_norm", 1e-5)
            vectors = variants[variant](vectors, layer, norm)
        r2[variant].append(position_r2(numpy(vectors)))
    print(f"{variant:14}", *(f"{value:5.2f}" for value in r2[variant]))
assert min(r2["pre-norm"]) > 0.5 and min(r2["post-norm"]) > 0.3
assert max(r2["no residuals"][2:]) < 0.1
points = {name: (range(7), values) for name, values in r2.items()}
plot.curves(points, "blocks", "$R^2$ of the position")

# %% [markdown]
# Without residuals the position is lost after two blocks. With residuals it is
# still there after six: the sum carries it past every block. In post-norm it
# fades: each normalization scales the sum down, so the part that came from the
# input becomes smaller.
#
# ## Pre-norm and post-norm
#
# $$\text{post-norm:}\quad x_{l+1} = \mathrm{LN}(x_l + f(x_l)), \qquad
# \text{pre-norm:}\quad x_{l+1} = x_l + f(\mathrm{LN}(x_l))$$
#
# The paper uses post-norm. The figure shows both blocks. In pre-norm a line
# runs from the bottom to the top with nothing on it but sums; in post-norm
# every sum is normalized.

# %%
blocks = {}
for variant, normalize_first in (("post-norm", False), ("pre-norm", True)):
    blocks[variant] = layers.TransformerEncoder(
        2048, 8, normalize_first=normalize_first
    )
    blocks[variant].build((None, None, 512))
plot.blocks(blocks)

# %% [markdown]
# Xiong et al. showed (theorem 1) how the gradient at
# the top of a stack depends on the depth $L$ before the first step. In a
# post-norm stack its bound is the same at any depth. In a pre-norm stack it
# falls as $1 / \sqrt L$, since the sum has more terms. We measure the gradient
# of the last matrix of the top feed-forward network:

# %%
depths = np.array([2, 4, 6, 8])
norms = {
    variant: np.array([output_norms[variant, depth][-1] for depth in depths])
    for variant in ("pre-norm", "post-norm")
}
expected = {"pre-norm": np.sqrt(2 / depths), "post-norm": np.ones(4)}
print("times that of 2 layers, at    ", *(f"{depth:6}" for depth in depths))
for variant, measured in norms.items():
    ratios = measured / measured[0]
    print(f"{variant:21} measured", *(f"{ratio:6.2f}" for ratio in ratios))
    print(f"{'':22} theorem", *(f"{ratio:6.2f}" for ratio in expected[variant]))
    np.testing.assert_allclose(ratios, expected[variant], atol=0.2)
assert (norms["post-norm"] > norms["pre-norm"]).all()
assert norms["post-norm"][-1] > 1.5 * norms["pre-norm"][-1]

# %%
curves = {variant: (depths, values) for variant, values in norms.items()}
curves["as $1/\\sqrt{L}$"] = depths, norms["pre-norm"][0] * expected["pre-norm"]
figure = plot.curves(curves, "layers of the stack, L", "norm of the gradient")
figure.axes[0].set(ylim=(0, None), xticks=depths)
figure

# %% [markdown]
# ## Learning rate with and without warm-up
#
# A deep post-norm stack thus begins with gradients as large as those of a
# shallow one, in directions that are not yet meaningful. Adam normalizes their
# size, but in its first steps it divides by a mean of very few values (Liu,
# Jiang et al. 2020, <https://arxiv.org/abs/1908.03265>). In addition, the
# output of a post-norm stack changes more with the same change of its weights
# (Liu, Liu et al. 2020, <https://arxiv.org/abs/2004.08249>). The paper's
# learning rate therefore begins small (section 5.3): it rises linearly for the
# first $w$ steps and then falls with the inverse square root. At step $n$ it is
#
# $$\eta_n = \eta_{\max} \cdot
# \min\!\left(\frac{n}{w}, \sqrt{\frac{w}{n}}\right).$$
#
# Without warm-up the learning rate is at its peak from the start. The peak
# here, 0.02, is high, so that a few steps are enough for training to fail.

# %%
peak, warmup, steps = 0.02, 30, 60
schedules = {
    "warm-up": training.InverseSquareRoot(peak, warmup),
    "no warm-up": training.InverseSquareRoot(peak, warmup, peak),
}
for n in (1, 15, 30, 60):
    expected_rate = peak * min(n / warmup, np.sqrt(warmup / n))
    np.testing.assert_allclose(
        float(schedules["warm-up"](n - 1)), expected_rate, rtol=1e-5
    )
assert abs(float(schedules["no warm-up"](0)) - peak) < 1e-8
figure = plot.learning_rates(schedules, steps)
figure.axes[0].lines[1].set_linestyle("--")  # equal after the warm-up
figure

# %% [markdown]
# The peak of the paper follows from the dimension and from the warm-up:
# $\eta_{\max} = (d\, w)^{-1/2}$, which is $7 \cdot 10^{-4}$ at $d = 512$ and
# $w = 4000$. A longer warm-up has a lower peak, and all schedules of one
# dimension fall along the same curve. A smaller model takes larger steps.

# %%
paper = {}
for d, w in ((512, 4000), (512, 8000), (256, 4000)):
    paper[f"d = {d}, warm-up {w}"] = training.Noam(d, w)
np.testing.assert_allclose(
    float(paper["d = 512, warm-up 4000"](3999)), 6.99e-4, rtol=1e-3
)
plot.learning_rates(paper, 20_000)

# %% [markdown]
# The task is simple: a word-for-word translation of seven words. The model is
# an encoder of four blocks, pre-norm or post-norm, with either schedule. A
# random guess has a loss of $\ln 7 = 1.95$.


# %%
def make_encoder(normalize_first):
    """Makes an encoder of four blocks, pre-norm or post-norm, with logits."""
    encoder = models.Encoder(
        8,
        num_layers=4,
        embedding_dim=32,
        intermediate_dim=64,
        num_heads=2,
        dropout=0.0,
        normalize_first=normalize_first,
    )
    model = keras.Model(encoder.input, keras.layers.Dense(8)(encoder.output))
    draw(model, 32)
    return model


# %% [markdown]
# How much does the output change when noise of a hundredth of its size is added
# to every matrix?

# %%
source = rng.integers(1, 8, size=(320, 6)).astype("int32")
target = np.array([0, 4, 7, 1, 6, 2, 5, 3])[source]
relative_changes = {}
for variant, normalize_first in (("post-norm", False), ("pre-norm", True)):
    model, noise = make_encoder(normalize_first), np.random.default_rng(1)
    outputs = numpy(model({"token_ids": source}))
    for weight in model.weights:
        if weight.path.endswith(("kernel", "embeddings")):
            size = 0.01 * 32**-0.5
            weight.assign(weight + size * noise.normal(size=weight.shape))
    change = numpy(model({"token_ids": source})) - outputs
    relative_changes[variant] = np.linalg.norm(change) / np.linalg.norm(outputs)
    print(f"{variant:10} {relative_changes[variant]:.3f} of the output's own size")
assert relative_changes["post-norm"] > 1.3 * relative_changes["pre-norm"]

# %%
losses = {}
for variant, normalize_first in (("post-norm", False), ("pre-norm", True)):
    losses[variant] = {}
    for name, schedule in schedules.items():
        model = make_encoder(normalize_first)
        model.compile(keras.optimizers.Adam(schedule), training.SmoothedCrossentropy())
        model.optimizer.build(model.trainable_weights)
        history = model.fit(
            {"token_ids": source},
            target,
            batch_size=32,
            epochs=steps // 10,
            shuffle=False,
            verbose=0,
        )
        losses[variant][name] = history.history["loss"]

# %%
print("mean loss of each ten steps")
figure = plot.figure((7.4, 3.4))
for ax, variant in zip(figure.subplots(1, 2, sharey=True), losses, strict=True):
    for name, values in losses[variant].items():
        print(f"{variant}, {name:12}", *(f"{value:6.2f}" for value in values))
    curves = {n: (range(10, steps + 1, 10), v) for n, v in losses[variant].items()}
    plot.curves(curves, "step", "mean loss of the last ten steps", ax=ax, title=variant)
    plot.reference_line(ax, np.log(7), "a guess, ln 7")
figure

# %% [markdown]
# Post-norm without warm-up stays at the loss of a guess; with warm-up it
# learns. Pre-norm learns with and without warm-up.

# %%
assert losses["post-norm"]["no warm-up"][-1] > 0.9 * np.log(7)
assert losses["post-norm"]["warm-up"][-1] < 0.3
assert max(values[-1] for values in losses["pre-norm"].values()) < 0.3
