# %% [markdown]
# # Embedding and positions
#
# [![Open in Colab][badge]][colab] There, first run
# `%pip install "keras-tfm[recipes] @ git+https://github.com/keras-tfm/keras-tfm"`.
#
# [badge]: https://colab.research.google.com/assets/colab-badge.svg
# [colab]: https://colab.research.google.com/github/keras-tfm/keras-tfm/blob/main/notebooks/1_embedding_and_positions.ipynb
#
# **You will see** how ids become vectors, why the vectors are multiplied by the
# square root of their dimension, what sine and cosine waves encode about a
# position, which other position encodings exist, and where words lie after
# training.
#
# **Takes** 20 seconds.
#
# **Follows** Vaswani et al. 2017, *Attention Is All You Need*, sections 3.4 and
# 3.5, <https://arxiv.org/abs/1706.03762>; A. Kazemnejad, *Transformer
# Architecture: The Positional Encoding*, 2019,
# <https://kazemnejad.com/blog/transformer_architecture_positional_encoding/>;
# the pages on the Transformer at <https://kikaben.com>; J. Alammar, *The
# Illustrated Transformer*,
# <https://jalammar.github.io/illustrated-transformer/>; for the rotating hands,
# Y. Tamura, *Positional encoding, residual connections, padding masks*, 2021,
# <https://data-science-blog.com/blog/2021/04/22/positional-encoding-residual-connections-padding-masks-all-the-details-of-transformer-model/>;
# and lecture notes, which provide the ids and the small table of position
# signals.

# %%
# %matplotlib inline
import tempfile

import keras
import numpy as np
from IPython.display import Image, display
from keras import ops

from keras_tfm import layers, models, plot, training
from keras_tfm.plot import figures

rng = np.random.default_rng(0)
np.set_printoptions(precision=5, suppress=True)


def numpy(tensor):
    """Converts a tensor of any backend to an array."""
    return ops.convert_to_numpy(tensor).astype("float64")


# %% [markdown]
# ## Embedding: a lookup is a matrix product
#
# Take a vocabulary of five words and an embedding matrix $E$ with a row for
# each word. A sentence is a list of ids; its vectors are rows of the matrix.
# The product of one-hot vectors and the matrix gives the same vectors:
#
# $$x_t = E_{\mathrm{id}_t} = \mathrm{onehot}(\mathrm{id}_t)\, E$$
#
# The lookup reads a few rows. The product would multiply mostly zeros.

# %%
vocabulary = ["love", "they", "really", "we", "cats"]
ids = np.array([[3, 2, 0, 4]])
print(*(vocabulary[i] for i in ids[0]))

embedding = layers.TokenAndPositionEmbedding(
    5, embedding_dim=3, positions=None, scale=False
)
embedding.build(ids.shape)
table = rng.normal(size=(5, 3)).astype("float32")
embedding.set_weights([table])
lookup_vectors = numpy(embedding(ids))[0]  # (T, D)

one_hot = np.eye(5)[ids[0]]  # (T, V)
print(one_hot)
print(one_hot @ table)
np.testing.assert_allclose(lookup_vectors, one_hot @ table, rtol=1e-6)

# %% [markdown]
# ## Why embeddings are scaled by √d
#
# The embedding matrix is initialized with variance $1/d$, so that a row has a
# length of about 1. The same matrix, transposed, then gives logits of variance
# 1 at the end of the model. A position signal of $d/2$ pairs of sine and cosine
# has the length
#
# $$\lVert p_t \rVert = \sqrt{\textstyle\sum_{i<d/2} \sin^2 + \cos^2}
# = \sqrt{d/2}.$$
#
# At $d = 512$ the vector of a position is 16 times as long as the vector of a
# word. Section 3.4 multiplies the word vectors by $\sqrt d$. The vector of a
# word is then longer, by a factor of $\sqrt 2$.

# %%
width, length = 512, 50
table = (rng.normal(size=(1000, width)) * width**-0.5).astype("float32")
signal = numpy(layers.SinusoidalPositions().signal(length, 0, width))


def embed(ids, **options):
    """Looks up ids in the embedding matrix above."""
    layer = layers.TokenAndPositionEmbedding(1000, embedding_dim=width, **options)
    layer.build((1, length))
    layer.set_weights([table])
    return numpy(layer(np.array([ids])))[0]


words = embed(range(length), positions=None, scale=False)
scaled = embed(range(length), positions=None, scale=True)
np.testing.assert_allclose(scaled, np.sqrt(width) * words, rtol=1e-6)
lengths = {"word": words, "position": signal, "word, scaled": scaled}
for name, vectors in lengths.items():
    print(f"{name:13}{np.linalg.norm(vectors, axis=1).mean():6.2f}")
np.testing.assert_allclose(np.linalg.norm(signal, axis=1), np.sqrt(width / 2))
np.testing.assert_allclose(np.linalg.norm(words, axis=1), 1, atol=0.15)
logits = rng.normal(size=(100, width)) @ table.T
assert 0.9 < logits.var() < 1.1

# %% [markdown]
# This is why the scale matters: word 7 stands at positions 5 and 45, and word 8
# at position 6. Without the scale, the vector of word 7 is more similar to its
# neighbor, another word, than to word 7 further on. With the scale, it is the
# other way round.


# %%
def cosine(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


sentence = [7 if t in (5, 45) else 8 if t == 6 else 0 for t in range(length)]
for scale in (False, True):
    x = embed(sentence, scale=scale)
    same_word, next_position = cosine(x[5], x[45]), cosine(x[5], x[6])
    print(f"scale={scale!s:6} same word {same_word:.2f}, neighbor {next_position:.2f}")
    assert (same_word > next_position) == scale

# %% [markdown]
# ## Why the index is no position signal
#
# The simplest signal of position $t$ is the number $t$ itself. It has no upper
# bound: at position 50 it is fifty times as large as the numbers of a scaled
# word vector, which have variance 1. Divided by the length, $t / T$, it stays
# between 0 and 1. But then the same distance has another value in each
# sentence: the step from a word to the next is 0.2 in five words and 0.02 in
# fifty, so no matrix can learn what "the word before" is.

# %%
steps = {T: np.diff(np.arange(T) / T) for T in (5, 50)}
print(*(f"{T} words: steps of {step[0]:.2f}" for T, step in steps.items()), sep="\n")
for T, step in steps.items():
    np.testing.assert_allclose(step, 1 / T)
assert np.arange(length).max() > 10 * np.abs(scaled).max()

figure = plot.figure((7, 3))
left, right = figure.subplots(1, 2)
t = np.arange(length)
channel = {"index $t$": (t, t), "a channel of the words": (t, scaled[:, 0])}
plot.curves(channel, "position $t$", "value", ax=left, title="index: too large")
values = {f"{T} words": (np.arange(T), np.arange(T) / T) for T in (5, 50)}
plot.curves(values, "position $t$", "$t / T$", ax=right, title="t / T: no fixed step")
figure

# %% [markdown]
# Position signals should therefore be bounded, differ from position to
# position, and have steps that are the same in each sentence.

# %% [markdown]
# ## Sinusoidal positions
#
# Each pair of channels $2i, 2i + 1$ is a wave, and each wave is slower than the
# one before:
#
# $$p_{t,2i} = \sin(t\,\omega_i), \qquad p_{t,2i+1} = \cos(t\,\omega_i),
# \qquad \omega_i = 10000^{-2i/d}$$
#
# For $d = 4$ and the first five positions:

# %%
t, i, d = np.arange(5), np.arange(2), 4
omega = 10_000.0 ** (-2 * i / d)
by_hand = np.empty((5, d))
by_hand[:, 0::2] = np.sin(t[:, None] * omega)
by_hand[:, 1::2] = np.cos(t[:, None] * omega)

positions = layers.SinusoidalPositions()
small = numpy(positions.signal(5, 0, d))
print(np.round(small, 5))
np.testing.assert_allclose(small, by_hand, atol=1e-6)
printed_in_the_notes = [
    [0, 1, 0, 1],
    [0.84147, 0.5403, 0.01, 0.99995],
    [0.9093, -0.41615, 0.02, 0.9998],
    [0.14112, -0.98999, 0.03, 0.99955],
    [-0.7568, -0.65364, 0.03999, 0.9992],
]
np.testing.assert_array_equal(np.round(small, 5), printed_in_the_notes)
plot.positions(small, title="d = 4", numbers=True)

# %% [markdown]
# A row is a position, from $-1$ in blue to 1 in red. The first pair of channels
# changes from row to row. The second pair is a hundred times slower: its sine
# is still near 0, and its cosine near 1.
#
# The layer adds this signal to its input. With zeros as input, it returns the
# signal itself. With the four words from above, each row of the sum is a word
# at its position:

# %%
np.testing.assert_array_equal(numpy(positions(np.zeros((1, 5, 4))))[0], small)

word_vectors = rng.normal(size=(1, 4, 4)).astype("float32")
model_input = numpy(positions(word_vectors))[0]
np.testing.assert_allclose(model_input, word_vectors[0] + small[:4], atol=1e-6)
plot.equation(
    {
        "words $x_t$": word_vectors[0],
        "positions $p_t$": small[:4],
        "input": model_input,
    },
    signs="+=",
    rows=[vocabulary[i] for i in ids[0]],
    vmax=2.5,
)

# %% [markdown]
# The figure shows $d = 256$ and 50 positions. Each row is a position. The first
# channels change from row to row; the last channels hardly change. The slowest
# wave has a length of $2\pi \cdot 10000^{254/256}$ positions, about 58,500.

# %%
signal = numpy(positions.signal(50, 0, 256))
omega = 10_000.0 ** (-2 * np.arange(128) / 256)
print("length of the fastest and the slowest wave:", 2 * np.pi / omega[[0, -1]])
assert 58_000 < 2 * np.pi / omega[-1] < 59_000
assert np.abs(signal).max() <= 1
assert np.abs(np.diff(signal[:, 0])).max() > 0.9  # the first channel
assert np.abs(np.diff(signal[:, -2:], axis=0)).max() < 2e-4  # the last two
plot.positions(signal, title="d = 256")

# %% [markdown]
# The paper's $d = 512$, for 20 positions. The waves of the right half are so
# slow that they look constant in a sentence of 20 words.

# %%
twenty = numpy(positions.signal(20, 0, 512))
assert np.ptp(twenty[:, 256:], axis=0).max() < 0.2 < np.ptp(twenty[:, 0])
plot.positions(twenty, title="d = 512")

# %% [markdown]
# The next figure shows $d = 8$ and 100 positions. The four waves are $2\pi$
# times 1, 10, 100 and 1000 positions long, just as the digits of a number
# change every 1, 10, 100 and 1000 steps. No two rows are equal.

# %%
signal = numpy(positions.signal(100, 0, 8))
omega = 10_000.0 ** (-2 * np.arange(4) / 8)
np.testing.assert_allclose(2 * np.pi / omega, 2 * np.pi * np.array([1, 10, 100, 1000]))
distances = np.linalg.norm(signal[:, None] - signal, axis=-1) + 9 * np.eye(100)
print(f"the nearest two rows are {distances.min():.2f} apart")
assert distances.min() > 0.1
plot.positions(signal, title="d = 8")

# %% [markdown]
# The same as curves: the four sines, from position 0 to 99. The blue wave goes
# round sixteen times, the next one once and a half. The third and the fourth
# have only begun to rise; they tell positions far apart from each other.

# %%
waves = plot.figure((5.8, 4.2))
for i, ax in enumerate(waves.subplots(4, 1, sharex=True)):
    name = f"channel {2 * i}"
    ax.plot(signal[:, 2 * i], color=figures.COLORS[i])
    figures.style_axes(ax, grid="y")
    ax.set(ylim=(-1.15, 1.15), yticks=(-1, 0, 1))
    figures.set_labels(ax, None, "position" if i == 3 else None, name)
waves

# %% [markdown]
# ## Rotating hands
#
# The sine and cosine of an angle are a point on a circle. Each pair of channels
# is therefore a rotating hand. As in the lecture notes, $(\sin, \cos)$ is the
# point $(x, y)$: at position 0 all hands point up, and they turn clockwise. The
# first hand goes round in 6.3 positions; each of the others is ten times slower
# than the one before. Darker dots are later
# positions, and the orange hand shows the last one. (44 positions are almost
# exactly seven turns of the first hand, so its dots nearly coincide.)

# %%
np.testing.assert_allclose(signal[:, 0::2] ** 2 + signal[:, 1::2] ** 2, 1, atol=1e-6)
plot.position_rings(signal)

# %% [markdown]
# At $d = 256$ there are 128 hands. The figure shows the pairs 0, 10, 30 and 60
# at 50 positions. A neighboring pair is only 1.07 times slower; the sixtieth
# has turned by 37 degrees after 50 positions.

# %%
wide = numpy(positions.signal(50, 0, 256))
degrees = np.degrees(49 * 10_000.0 ** (-2 * 60 / 256))
assert 37 < degrees < 38 and 1.07 < 10_000 ** (2 / 256) < 1.08
np.testing.assert_allclose(wide[-1, 120], np.sin(np.radians(degrees)), atol=1e-5)
plot.position_rings(wide, pairs=(0, 10, 30, 60))

# %% [markdown]
# The animation shows the first three pairs for $d = 8$, from position 0 to 22.

# %%
with tempfile.TemporaryDirectory() as folder:
    plot.animate_rings(signal[:23], f"{folder}/rings.gif", pairs=(0, 1, 2))
    display(Image(f"{folder}/rings.gif"))

# %% [markdown]
# ## A step is a rotation
#
# From position $t$ to $t + \varphi$ each hand turns by the same angle, wherever
# it starts. The rotation matrix depends on the pair $k$ and the distance
# $\varphi$, but not on $t$:
#
# $$M(k, \varphi) = \begin{pmatrix}
# \cos \omega_k\varphi & \sin \omega_k\varphi \\
# -\sin \omega_k\varphi & \cos \omega_k\varphi \end{pmatrix}, \qquad
# \begin{pmatrix} p_{t+\varphi,2k} \\ p_{t+\varphi,2k+1} \end{pmatrix}
# = M(k, \varphi) \begin{pmatrix} p_{t,2k} \\ p_{t,2k+1} \end{pmatrix}$$

# %%
pairs = signal.reshape(100, 4, 2)  # (T, D/2, 2)
for phi in (1, 7, 50):
    cos, sin = np.cos(omega * phi), np.sin(omega * phi)
    matrices = np.array([[cos, sin], [-sin, cos]])  # (2, 2, D/2)
    rotated = np.einsum("ijk,tkj->tki", matrices, pairs).reshape(100, 8)
    # For all t from 0 to 99 and all pairs:
    expected = numpy(positions.signal(100, phi, 8))
    np.testing.assert_allclose(rotated, expected, atol=1e-5)

# %% [markdown]
# For all channels together these matrices stand on the diagonal of one large
# matrix, and all other numbers are 0. For $d = 4$ and $\varphi = 1$:

# %%
block_diagonal = np.zeros((4, 4))
for k, rate in enumerate(10_000.0 ** (-2 * np.arange(2) / 4)):
    cos, sin = np.cos(rate), np.sin(rate)
    pair = slice(2 * k, 2 * k + 2)
    block_diagonal[pair, pair] = [[cos, sin], [-sin, cos]]
np.testing.assert_allclose(block_diagonal @ small[2], small[3], atol=1e-6)
plot.equation(
    {"$M(1)$": block_diagonal, "$p_2$": small[2][:, None], "$p_3$": small[3][:, None]},
    signs="×=",
    vmax=1.0,
)

# %% [markdown]
# A rotation needs the sine and the cosine. Which matrix $M$ maps $p_t$ best to
# $p_{t+\varphi}$, for all $t$ at once, if there are only sines, or only
# cosines? Least squares finds it. With both, the error is 0. With one of the
# two, most of the signal cannot be predicted: the sine alone does not tell
# whether its wave is rising or falling.

# %%
parts = {"sine and cosine": slice(None), "only sine": slice(0, None, 2)}
parts["only cosine"] = slice(1, None, 2)
shifts, errors = np.arange(1, 41), {}
for name, part in parts.items():
    rows = signal[:, part]  # (T, D) or (T, D/2)
    errors[name] = []
    for phi in shifts:
        start, end = rows[:-phi], rows[phi:]
        matrix = np.linalg.lstsq(start, end, rcond=None)[0]
        error = np.linalg.norm(start @ matrix - end) / np.linalg.norm(end)
        errors[name].append(error)
print({name: f"{max(values):.2g}" for name, values in errors.items()})
assert max(errors["sine and cosine"]) < 1e-5
assert min(max(errors["only sine"]), max(errors["only cosine"])) > 0.3
points = {name: (shifts, values) for name, values in errors.items()}
plot.curves(points, r"distance $\varphi$", "relative error of the best matrix")

# %% [markdown]
# An attention head multiplies its queries by a matrix, so it can learn to
# attend a fixed number of words back. Here all queries are rotated by
# $M(k, -1)$, and each query matches the previous position best.

# %%
cos, sin = np.cos(-omega), np.sin(-omega)
matrices = np.array([[cos, sin], [-sin, cos]])
queries = np.einsum("ijk,tkj->tki", matrices, pairs).reshape(100, 8)
best = (queries @ signal.T).argmax(axis=1)
np.testing.assert_array_equal(best[1:], np.arange(99))

# %% [markdown]
# ## Similarity of two positions
#
# The dot product of two signals depends only on their distance:
#
# $$p_t \cdot p_{t+\varphi} = \sum_k \cos(\omega_k \varphi)$$
#
# It is the same to the left and to the right, it is largest for a position with
# itself, and it decreases with the distance. It does not decrease at every
# single step, since the fastest waves leave a ripple, but it does when it is
# averaged over six neighbors, which is one turn of the fastest wave.
#
# (An erratum: the lecture notes print the product of one pair as
# $\sin^2 \omega t \cos \omega\varphi + \cos^2 \omega t \sin \omega\varphi$. The
# last factor must be $\cos \omega\varphi$ too; only then is the sum
# $\cos \omega\varphi$, without $t$.)

# %%
signal = numpy(positions.signal(50, 0, 256))
omega = 10_000.0 ** (-2 * np.arange(128) / 256)
products = signal @ signal.T  # (T, T)
by_distance = np.cos(omega * np.arange(50)[:, None]).sum(axis=1)
np.testing.assert_allclose(products[0], by_distance, atol=1e-3)
np.testing.assert_allclose(products[1:, 1:], products[:-1, :-1], atol=1e-3)
for phi in (1, 7, 20):  # to the left as to the right
    t = np.arange(20, 30)
    np.testing.assert_allclose(products[t, t + phi], products[t, t - phi], atol=1e-3)
np.testing.assert_allclose(np.diag(products), 128, atol=1e-3)
smoothed = np.convolve(by_distance, np.ones(6) / 6, mode="valid")
assert (np.diff(smoothed) < 0).all()
assert not (np.diff(by_distance) < 0).all()
plot.position_products(signal)

# %% [markdown]
# ## Order of channels: interleaved or in halves
#
# The paper alternates sine and cosine; tensor2tensor, fairseq and Marian put
# all sines first. The two layouts differ only in the order of the channels. Dot
# products stay the same, and a matrix with its rows in the same order gives the
# same result. A trained model needs the layout it was trained with; a new model
# can use either.
#
# (By default, `"halves"` also spaces its waves slightly wider, as those
# programs do. `reach_max_period=False` uses the waves of the paper.)

# %%
halves = layers.SinusoidalPositions("halves", reach_max_period=False)
in_halves = numpy(halves.signal(50, 0, 256))
order = np.r_[0:256:2, 1:256:2]
np.testing.assert_allclose(in_halves, signal[:, order], atol=1e-6)
wider = numpy(layers.SinusoidalPositions("halves").signal(50, 0, 256))
assert np.abs(wider - in_halves).max() > 0.05
np.testing.assert_allclose(in_halves @ in_halves.T, products, atol=1e-3)
matrix = rng.normal(size=(256, 256))
np.testing.assert_allclose(in_halves @ matrix[order], signal @ matrix, atol=1e-4)
plot.positions(in_halves, title="d = 256, in halves")

# %% [markdown]
# ## Positions: added or concatenated
#
# Concatenation keeps word and position separate and learns how to mix them,
# with $2d^2$ weights:
#
# $$[x_t ; p_t]\, W = x_t W_x + p_t W_p$$
#
# The paper adds them. That is the case $W_x = W_p = I$, and it needs no
# weights.

# %%
x = rng.normal(size=(1, 50, 256)).astype("float32")
concat_layer = layers.SinusoidalPositions(combine="concat")
concat_layer.build(x.shape)
[weights] = concat_layer.get_weights()  # (2 D, D)
expected = x @ weights[:256] + signal @ weights[256:]
np.testing.assert_allclose(numpy(concat_layer(x)), expected, atol=1e-4)
assert concat_layer.count_params() == 2 * 256**2

concat_layer.set_weights([np.vstack([np.eye(256), np.eye(256)])])
sum_layer = layers.SinusoidalPositions()
np.testing.assert_allclose(numpy(concat_layer(x)), numpy(sum_layer(x)), atol=1e-5)
assert sum_layer.count_params() == 0

# %% [markdown]
# After the addition, word and position can still be separated. The dot product
# of two sums has four terms:
#
# $$(x_t + p_t) \cdot (x_s + p_s)
# = x_t \cdot x_s + x_t \cdot p_s + p_t \cdot x_s + p_t \cdot p_s$$
#
# In high dimensions unrelated vectors are nearly orthogonal: a word and a
# position, or two different words. Only the products of a word with itself and
# of positions with each other are large:

# %%
words, signal = scaled, numpy(positions.signal(length, 0, width))
terms = {
    "word, word": words @ words.T,
    "word, position": words @ signal.T,
    "position, word": signal @ words.T,
    "position, position": signal @ signal.T,
}
whole = (words + signal) @ (words + signal).T
np.testing.assert_allclose(sum(terms.values()), whole, atol=1e-6)
is_different = words @ words.T < 0.5 * np.diag(words @ words.T)  # two different words
print("root mean square of the products")
print(f"{'':20}   one word      two")
for name, term in terms.items():
    one_word, two_words = (
        np.sqrt(np.mean(term[mask] ** 2)) for mask in (~is_different, is_different)
    )
    print(f"{name:20}{one_word:11.0f}{two_words:9.0f}")
    assert (one_word > 50) == (name in ("word, word", "position, position"))
    assert (two_words > 50) == (name == "position, position")

# %% [markdown]
# ## Learned positions
#
# A matrix with a row for each position, trained with the rest of the model,
# performed nearly as well in the paper (table 3, row E). But before training it
# contains no information about distance, it adds weights, and it has a maximum
# length, while sinusoids extend to any length.

# %%
learned_positions = layers.LearnedPositions(sequence_length=50)
learned_positions.build((1, 50, 512))
[table] = learned_positions.get_weights()
for name, rows in {"sinusoidal": signal, "learned": table}.items():
    near, far = cosine(rows[20], rows[21]), cosine(rows[20], rows[40])
    print(f"{name:12}to the next {near:5.2f}, 20 further {far:5.2f}")
    assert (near > far + 0.3) == (name == "sinusoidal")

assert learned_positions.count_params() == 50 * 512
longer = np.zeros((1, 51, 512))
assert layers.SinusoidalPositions()(longer).shape == (1, 51, 512)
message = ""
try:
    learned_positions(longer)
except ValueError as error:
    message = str(error)
assert "at least the length of the sequence" in message

# %% [markdown]
# ## Word vectors after training
#
# Word vectors are initialized at random. A model that is trained to predict the
# next word moves words that occur in the same contexts close together, since
# they need the same predictions. The data are 2,000 sentences from five
# patterns; the model is a language model of one layer:

# %%
groups = {
    "animals": ["cat", "dog", "horse", "cow", "sheep", "goat", "duck", "mouse"],
    "colors": ["red", "blue", "green", "black", "white", "brown", "gray", "yellow"],
    "numbers": ["two", "three", "four", "five", "six", "seven", "eight", "nine"],
}
patterns = [
    "the {animals} is {colors}",
    "a {colors} {animals} sleeps",
    "my {animals} is {numbers} years old",
    "we saw {numbers} {colors} birds",
    "i have {numbers} apples",
]
sentences = [
    rng.choice(patterns).format(**{name: rng.choice(groups[name]) for name in groups})
    for _ in range(2000)
]
print(*sentences[:4], sep="\n")

# %%
words = ["(pad)", "(start)", *sorted({word for s in sentences for word in s.split()})]
ids = np.zeros((2000, 7), "int32")
for row, sentence in zip(ids, sentences, strict=True):
    numbers = [1, *map(words.index, sentence.split())]
    row[: len(numbers)] = numbers

model = models.CausalLM(
    len(words),
    num_layers=1,
    embedding_dim=32,
    intermediate_dim=64,
    num_heads=2,
    dropout=0.0,
    positions="sinusoidal",
)
for weight in model.weights:  # from NumPy, so all backends start equal
    if weight.path.endswith(("kernel", "embeddings")):
        weight.assign(rng.normal(size=weight.shape) * 32**-0.5)

# %% [markdown]
# The table shows the mean cosine of two words of the same group and of two
# words of different groups, and the fraction of words whose nearest word
# belongs to their group.

# %%
group_words = [word for members in groups.values() for word in members]
group = np.repeat(list(groups), 8)
same_group = (group[:, None] == group) & ~np.eye(24, dtype=bool)
different_group = group[:, None] != group


def vectors():
    return numpy(model.embedding.embeddings)[
        [words.index(word) for word in group_words]
    ]


def closeness():
    unit = vectors() / np.linalg.norm(vectors(), axis=1, keepdims=True)
    cosines = unit @ unit.T
    nearest = (cosines - 2 * np.eye(24)).argmax(axis=1)
    return (
        cosines[same_group].mean(),
        cosines[different_group].mean(),
        (group[nearest] == group).mean(),
    )


before_training = closeness()
model.compile(keras.optimizers.Adam(5e-3), training.SmoothedCrossentropy())
model.fit(
    {"token_ids": ids[:, :-1]},
    ids[:, 1:],
    batch_size=50,
    epochs=3,
    shuffle=False,
    verbose=0,
)
after_training = closeness()
for name, (inside, between, near) in {
    "before": before_training,
    "after": after_training,
}.items():
    print(f"{name:7} inside {inside:5.2f}, between {between:5.2f}, nearest {near:4.0%}")
assert abs(before_training[0] - before_training[1]) < 0.1
assert after_training[0] > after_training[1] + 0.3
assert after_training[2] > 0.9

# %% [markdown]
# t-SNE (van der Maaten and Hinton 2008,
# <https://jmlr.org/papers/v9/vandermaaten08a.html>) projects the 32 channels of
# each word onto a plane and keeps neighbors close to each other. Only the
# neighborhoods are meaningful; the axes, the sizes of the groups and the gaps
# between them are not.

# %%
plot.embeddings(vectors(), group_words, group, title="t-SNE of the trained vectors")
