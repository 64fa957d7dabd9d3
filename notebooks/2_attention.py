# %% [markdown]
# # Attention
#
# [![Open in Colab][badge]][colab] There, first run
# `%pip install "keras-tfm[recipes] @ git+https://github.com/keras-tfm/keras-tfm"`.
#
# [badge]: https://colab.research.google.com/assets/colab-badge.svg
# [colab]: https://colab.research.google.com/github/keras-tfm/keras-tfm/blob/main/notebooks/2_attention.ipynb
#
# **You will see** attention without any weights, the role of word order, four
# attention scores, why the dot product is divided by the square root of its
# dimension, heads, attention as a soft dictionary, and masks.
#
# **Takes** 20 seconds.
#
# **Follows** Vaswani et al. 2017, *Attention Is All You Need*, section 3.2,
# <https://arxiv.org/abs/1706.03762>. The other scores are from Bahdanau et al.
# 2015, <https://arxiv.org/abs/1409.0473>, and Luong et al. 2015, section 3.1,
# <https://arxiv.org/abs/1508.04025>. The sentences, the softmax of four numbers
# and the film genres are from lecture notes. The shapes of heads follow *The
# Annotated Transformer*, <https://nlp.seas.harvard.edu/annotated-transformer/>,
# and the masked heads Y. Tamura, *Positional encoding, residual connections,
# padding masks*, 2021,
# <https://data-science-blog.com/blog/2021/04/22/positional-encoding-residual-connections-padding-masks-all-the-details-of-transformer-model/>.

# %%
# %matplotlib inline
import numpy as np
from keras import ops

from keras_tfm import layers, plot
from keras_tfm.plot import figures

rng = np.random.default_rng(0)
np.set_printoptions(precision=3, suppress=True)


def numpy(tensor):
    """Converts a tensor of any backend to an array."""
    return ops.convert_to_numpy(tensor).astype("float64")


def softmax(scores):
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


# %% [markdown]
# ## Self-attention without weights
#
# Each word has a vector. Each word is compared with all words by a dot product.
# The softmax turns these scores into weights that sum to one. The new vector of
# a word is the mean of all vectors with these weights. Nothing is learned yet:
#
# $$\mathrm{Attention}(Q, K, V)
# = \mathrm{softmax}\!\left(\frac{Q K^\top}{\sqrt{d_k}}\right) V,
# \qquad Q = K = V = X$$

# %%
sentence = "YOUR CAT IS A LOVELY CAT"
words = sentence.split()
width = 16
vectors = {word: 0.8 * rng.normal(size=width) for word in dict.fromkeys(words)}
x = np.array([[vectors[word] for word in words]])  # (B, T, D)

attention = layers.Attention()
outputs, weights = map(numpy, attention(x, return_attention_scores=True))

by_hand = softmax(x[0] @ x[0].T / np.sqrt(width))  # (T, T)
np.testing.assert_allclose(weights[0], by_hand, atol=1e-6)
np.testing.assert_allclose(outputs[0], by_hand @ x[0], atol=1e-5)
print(weights[0])
assert weights.shape == (1, 6, 6)
np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-6)
assert attention.count_params() == 0

# %%
plot.attention_map(weights[0], words, words, numbers=True)

# %% [markdown]
# A row shows the attention weights of a word. Each word attends most to the
# most similar word, which is itself. CAT attends equally to both CATs.
#
# The same numbers as a graph: queries are on the right, values on the left, and
# a line is as thick as its weight. Two equally thick lines run from each CAT to
# both CATs; the thin lines are what the other words contribute.

# %%
plot.attention_lines(weights[0], words, words)

# %%
for row, word in zip(weights[0], words, strict=True):
    assert words[row.argmax()] == word
np.testing.assert_allclose(weights[0, :, 1], weights[0, :, 5])

# %% [markdown]
# The lecture notes print a matrix of other numbers for these words. The layer
# computes any matrix whose rows are positive numbers that sum to one: a row is
# the softmax of its logarithms.

# %%
drawn = np.random.default_rng(0).dirichlet(np.full(6, 5.0), size=6)
keys = np.eye(6)[None]
queries = np.log(drawn)[None] * np.sqrt(6)  # so that QK' / √6 = log(drawn)
_, computed = layers.Attention()(queries, keys, return_attention_scores=True)
print(numpy(computed)[0].round(3))
np.testing.assert_allclose(numpy(computed)[0], drawn, atol=1e-5)

# %% [markdown]
# But $Q = K = X$ does not give every such matrix. The scores
# $X X^\top$ are symmetric, so for three words $i$, $j$, $k$ the weights of
# the round trip are the same in both directions:
# $w_{ij} w_{jk} w_{ki} = w_{ji} w_{kj} w_{ik}$. This holds for the weights of
# the six words, and not for the matrix that we drew. A layer with learned
# projections of queries and keys has no such limit.


# %%
def directions(w):
    """Computes the product of the round trip YOUR, CAT, IS, and the reverse."""
    return w[0, 1] * w[1, 2] * w[2, 0], w[1, 0] * w[2, 1] * w[0, 2]


np.testing.assert_allclose(*directions(weights[0]), rtol=1e-3)
print("drawn: {:.4f} and {:.4f}".format(*directions(drawn)))
assert abs(np.log(np.divide(*directions(drawn)))) > 0.1

# %% [markdown]
# ## Attention ignores order
#
# The same words in another order give the same vectors in that order: attention
# processes a set. Both CATs get the same vector, whatever their neighbors are.
# (An erratum: the lecture notes call this permutation *invariant*. Attention is
# permutation *equivariant*: the outputs are permuted like the inputs. Only a
# mean of all outputs would be invariant.)

# %%
order = rng.permutation(6)
print(*(words[i] for i in order))
np.testing.assert_allclose(numpy(attention(x[:, order])), outputs[:, order], atol=1e-5)
np.testing.assert_allclose(outputs[0, 1], outputs[0, 5], atol=1e-6)

# %% [markdown]
# When positions are added to the vectors, order matters.

# %%
positions = layers.SinusoidalPositions()
positioned = numpy(attention(positions(x)))
permuted = numpy(attention(positions(x[:, order])))
assert np.abs(permuted - positioned[:, order]).max() > 0.2
assert np.abs(positioned[0, 1] - positioned[0, 5]).max() > 0.2

# %% [markdown]
# ## Softmax
#
# $$\mathrm{softmax}(s)_i = \frac{e^{s_i}}{\sum_j e^{s_j}}$$
#
# This is the layer's own softmax on four numbers. The lecture notes print
# 0.004, 0.013, 0.264 and 0.717. These numbers are truncated after three digits,
# not rounded. Rounded, they are 0.005, 0.013, 0.264 and 0.718.

# %%
probabilities = numpy(layers.masks.masked_softmax(np.array([1.0, 2.0, 5.0, 6.0])))
print(np.array2string(probabilities, precision=5))
np.testing.assert_allclose(
    probabilities, softmax(np.array([1.0, 2.0, 5.0, 6.0])), rtol=1e-5
)
np.testing.assert_array_equal(np.floor(probabilities * 1000), [4, 13, 264, 717])
np.testing.assert_array_equal(np.round(probabilities, 3), [0.005, 0.013, 0.264, 0.718])

# %% [markdown]
# The exponential makes every score positive and turns a difference of scores
# into a ratio: the step from 5 to 6 multiplies the weight by $e = 2.72$, and so
# does the step from 1 to 2. The logarithm leads back: $\log w_i$ is the score
# minus a constant, and $-\log w_i$ is the loss of a model that should have
# chosen $i$. It grows without bound as the weight falls to 0.

# %%
logs = np.log(probabilities)
np.testing.assert_allclose(logs - logs[0], [0, 1, 4, 5], atol=1e-5)
figure = plot.figure((7, 3))
left, right = figure.subplots(1, 2)
s, w = np.linspace(0, 6.2, 60), np.linspace(0.002, 1, 200)
plot.curves({"$e^s$": (s, np.exp(s))}, "score $s$", "$e^s$", left, "exponential")
plot.curves({"loss": (w, -np.log(w))}, "weight $w$", "$-\\log w$", right, "logarithm")
scores = np.array([1.0, 2.0, 5.0, 6.0])
left.plot(scores, np.exp(scores), "o", color=figures.COLORS[1])
right.plot(probabilities, -logs, "o", color=figures.COLORS[1])
for ax in (left, right):
    ax.get_legend().remove()
figure

# %% [markdown]
# ## Four attention scores
#
# A score measures how well key $k$ matches query $q$.
#
# | score | formula | weights |
# |---|---|---|
# | dot | $q^\top k$ | |
# | scaled dot | $q^\top k / \sqrt{d_k}$ | |
# | multiplicative | $q^\top W k$ | $W$ |
# | additive | $v^\top \tanh(W_q q + W_k k)$ | $W_q, W_k, v$ |
#
# We apply all four to the vectors of the same six words:

# %%
results = {}
for score in ("dot", "scaled_dot", "multiplicative", "additive"):
    layer = layers.Attention(score)
    layer.build(x.shape)
    initial_weights = [0.3 * rng.normal(size=w.shape) for w in layer.weights]
    layer.set_weights(initial_weights)
    results[score] = layer, numpy(layer(x, return_attention_scores=True)[1])[0]

q = k = x[0]  # (T, D)
multiplicative, additive = results["multiplicative"][0], results["additive"][0]
matrix = numpy(multiplicative.score_layer.kernel)[0]  # (D, D)
to_query, to_key = numpy(additive.query_dense.kernel), numpy(additive.key_dense.kernel)
vector = numpy(additive.score_layer.vector)[0, :, 0]  # (D,)
formulas = {
    "dot": q @ k.T,
    "scaled_dot": q @ k.T / np.sqrt(width),
    "multiplicative": q @ matrix @ k.T,
    "additive": np.tanh((q @ to_query)[:, None] + (k @ to_key)[None]) @ vector,
}
for score, (layer, attention_weights) in results.items():
    np.testing.assert_allclose(attention_weights, softmax(formulas[score]), atol=1e-5)
    print(f"{score:15}{layer.count_params():4} weights")

# %%
figure = plot.figure((7.0, 7.6))
axes = figure.subplots(2, 2).flat
for ax, (score, (_, attention_weights)) in zip(axes, results.items(), strict=True):
    title = score.replace("_", " ")
    plot.attention_map(attention_weights, words, words, ax=ax, title=title, vmax=1.0)
figure

# %% [markdown]
# Without the scale, nearly all weight of a row goes to one word, or to the two
# CATs. With separate matrices, the query and the key of a word differ, and a
# word can attend to others more than to itself.

# %%
is_same_word = np.array(words)[:, None] == words
same_word_sums = {
    score: (row_weights * is_same_word).sum(axis=1)
    for score, (_, row_weights) in results.items()
}
for score, sums in same_word_sums.items():
    print(f"{score:15}{sums}")
assert (same_word_sums["dot"] > 0.9).all()
assert (same_word_sums["scaled_dot"] < 0.9).all()
assert (same_word_sums["multiplicative"] < 0.5).any()
assert (same_word_sums["additive"] < 0.5).any()

# %% [markdown]
# ## Why the root of d_k
#
# Take two vectors whose $2 d_k$ channels are independent, with mean 0 and
# variance 1. Their dot product has variance $d_k$:
#
# $$\mathrm{Var}(q^\top k) = \sum_{c=1}^{d_k} \mathrm{Var}(q_c k_c) = d_k,
# \qquad \mathrm{Var}\!\left(\frac{q^\top k}{\sqrt{d_k}}\right) = 1$$
#
# The larger the scores are, the more weight the softmax gives to the largest
# one, and the smaller is its response to a small change. Training depends on
# this response. The gradient of the softmax is
#
# $$\frac{\partial w_i}{\partial s_j} = w_i (\delta_{ij} - w_j).$$
#
# We draw 1,000 times a query and 8 keys, for each dimension. The size of the
# gradient matrix is its Frobenius norm, the root of the sum of its squares:


# %%
def jacobian(weights):
    """Returns the gradient of softmax, `(..., S, S)`, at weights `(..., S)`."""
    return weights[..., None] * (np.eye(weights.shape[-1]) - weights[..., None, :])


scores = rng.normal(size=8)
step = 1e-6 * np.eye(8)
differences = (softmax(scores + step) - softmax(scores - step)) / 2e-6
np.testing.assert_allclose(jacobian(softmax(scores)), differences.T, atol=1e-8)

# %%
widths = (4, 16, 64, 256, 1024)
kinds = ("dot", "scaled_dot")
variance, largest, gradient = ({kind: [] for kind in kinds} for _ in range(3))
print("                d_k  variance  largest weight  gradient")
for kind in kinds:
    for d_k in widths:
        queries = rng.normal(size=(1000, 1, 1, d_k))
        keys = rng.normal(size=(1000, 1, d_k, 8))
        scores = numpy(layers.AttentionScore(kind)(queries, keys))[:, 0, 0]  # (1000, 8)
        softmax_weights = softmax(scores)
        variance[kind].append(scores.var())
        largest[kind].append(softmax_weights.max(axis=1).mean())
        gradient[kind].append(
            np.linalg.norm(jacobian(softmax_weights), axis=(1, 2)).mean()
        )
        row = (values[kind][-1] for values in (variance, largest, gradient))
        print("{:12}{:7}{:10.2f}{:16.2f}{:10.3f}".format(kind, d_k, *row))

np.testing.assert_allclose(variance["dot"], widths, rtol=0.1)
np.testing.assert_allclose(variance["scaled_dot"], 1, rtol=0.1)
assert (np.diff(largest["dot"]) > 0).all() and largest["dot"][-1] > 0.9
assert (np.diff(gradient["dot"]) < 0).all()
assert gradient["dot"][0] > 5 * gradient["dot"][-1]
assert np.ptp(largest["scaled_dot"]) < 0.05
assert np.ptp(gradient["scaled_dot"]) < 0.03

# %%
norms = {"dot": gradient["dot"], "scaled dot": gradient["scaled_dot"]}
figure = plot.gradient_norms(norms, title="gradient of the softmax")
figure.axes[0].set(xlabel="$d_k$", yscale="linear", ylim=(0, 0.4))
figure.axes[0].set_xticks(range(1, 6), widths)
figure

# %% [markdown]
# ## Multi-head attention
#
# A single weighted mean can represent one kind of relation. $H$ heads each have
# a matrix for queries, keys and values, and attend in their own $d_k = d / H$
# channels. A last matrix mixes their outputs:
#
# $$\mathrm{head}_h
# = \mathrm{Attention}(X W^Q_h, X W^K_h, X W^V_h), \qquad
# \mathrm{MultiHead}(X)
# = [\mathrm{head}_1 ; \ldots ; \mathrm{head}_H]\, W^O$$
#
# The layer also adds a bias after each of the four products, which the paper
# omits (`use_bias=False`).

# %%
heads, d_k = 4, width // 4
multi_head = layers.MultiHeadAttention(heads)
multi_head.build(x.shape)
multi_head.set_weights([0.4 * rng.normal(size=w.shape) for w in multi_head.weights])
outputs, weights = map(numpy, multi_head(x, return_attention_scores=True))

w_q, b_q, w_k, b_k, w_v, b_v, w_o, b_o = map(numpy, multi_head.weights)
head_outputs = []
for h in range(heads):
    q, k, v = (x[0] @ w[:, h] + b[h] for w, b in ((w_q, b_q), (w_k, b_k), (w_v, b_v)))
    head_weights = softmax(q @ k.T / np.sqrt(d_k))
    np.testing.assert_allclose(weights[0, h], head_weights, atol=1e-5)
    head_outputs.append(head_weights @ v)  # (T, d_v)
expected = np.concatenate(head_outputs, axis=-1) @ w_o.reshape(width, width) + b_o
np.testing.assert_allclose(outputs[0], expected, atol=1e-4)
assert weights.shape == (1, heads, 6, 6)
np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-5)
for h in range(1, heads):
    assert np.abs(weights[0, h] - weights[0, 0]).max() > 0.2
plot.attention_heads(weights[0], words, words)

# %% [markdown]
# Each head attends to other words. (The weights are random; training decides
# what a head looks for.)
#
# The way of the vectors through a layer of two heads, for a model of dimension
# 16. Blue is the first head, orange the second. Each has its own three
# matrices and its own attention; only $W^O$ mixes them:

# %%
two_heads = layers.MultiHeadAttention(2)
two_heads.build(x.shape)
plot.multi_head(two_heads)

# %% [markdown]
# The four small query matrices lie side by side in one large matrix. A single
# product of dimension $H d_k$, split into heads afterwards, gives the same
# result. Several heads therefore have no more weights than one head of full
# dimension.

# %%
one_large = (x[0] @ w_q.reshape(width, heads * d_k)).reshape(6, heads, d_k)
many_small = np.stack([x[0] @ w_q[:, h] for h in range(heads)], axis=1)
np.testing.assert_allclose(one_large, many_small)
by_layer = numpy(multi_head.query_dense(x))[0] - b_q
np.testing.assert_allclose(by_layer, one_large, atol=1e-5)
single = layers.MultiHeadAttention(1)
single.build(x.shape)
assert single.count_params() == multi_head.count_params() == 4 * (width**2 + width)

# %% [markdown]
# The split is a reshape and a transpose, and changes no number. Below are the
# queries of three words, with $H = 2$ and $d_k = 2$. After the product, a row
# has the channels of both heads side by side. At the end, each head is a matrix
# of its own with one row for each word, and the product $Q K^\top$ of all
# heads is one batched product.

# %%
three_words = x[0, :3] @ rng.normal(size=(width, 4)) / 4  # (L, H d_k)
by_word = three_words.reshape(3, 2, 2)  # (L, H, d_k)
by_head = by_word.transpose(1, 0, 2)  # (H, L, d_k)
np.testing.assert_array_equal(by_head[1], three_words[:, 2:])
plot.head_shapes(by_word)

# %% [markdown]
# ## Query, key and value: a soft dictionary
#
# A dictionary returns the value of the one key that equals the query. Attention
# returns the mean of all values, weighted by how well each key matches. Here a
# key describes the content of a genre, and a value is a film.

# %%
films = {
    "romance": "Titanic",
    "action": "The Dark Knight",
    "science fiction": "Inception",
    "horror": "The Shining",
    "comedy": "The Intern",
}
#                   love, fights, machines, fear, jokes
genres = np.array(
    [
        [9, 1, 0, 1, 2],
        [2, 9, 3, 2, 1],
        [1, 3, 9, 3, 1],
        [1, 3, 1, 9, 0],
        [3, 0, 1, 0, 9],
    ]
)
keys = genres / np.linalg.norm(genres, axis=1, keepdims=True)
values = np.eye(5)  # a channel for each film
interests = {
    "love": [1, 0, 0, 0, 0],
    "love and jokes": [1, 0, 0, 0, 1],
    "fear among machines": [0, 0, 1, 1, 0],
}
queries = np.array(list(interests.values()))
queries = queries / np.linalg.norm(queries, axis=1, keepdims=True)

lookup = layers.Attention("dot")
soft = numpy(lookup(4 * queries[None], values[None], keys[None]))[0]
best = [[list(films)[i] for i in row.argsort()[::-1][:2]] for row in soft]
assert films[best[0][0]] == "Titanic"
assert set(best[1]) == {"romance", "comedy"}
assert set(best[2]) == {"horror", "science fiction"}
names = [f"{film} ({genre})" for genre, film in films.items()]
plot.attention_map(
    soft, names, list(interests), xlabel="film (its key)", ylabel="query"
)

# %% [markdown]
# The larger the norm of the query (4 above), the closer the weights are to a
# hard choice. If the queries are the keys themselves, with a large norm, the
# soft dictionary becomes the hard one.

# %%
for norm in (1, 4, 16):
    film_weights = numpy(lookup(norm * keys[None], values[None], keys[None]))[0]
    print(f"norm {norm:3}: weight of the right film {np.diag(film_weights).mean():.2f}")
hard = numpy(lookup(200 * keys[None], values[None], keys[None]))[0]
np.testing.assert_allclose(hard, np.eye(5), atol=1e-6)
for genre, row in zip(films, hard, strict=True):
    assert list(films.values())[row.argmax()] == films[genre]

# %% [markdown]
# ## Attention masks
#
# A decoder generates from left to right: position $t$ may attend to itself and
# to earlier positions, so the mask is a lower triangle. Shorter sentences of a
# batch are padded with id 0, which no query may attend to. A mask is True where
# a query (row) may attend to a key (column). Elsewhere the score becomes
# $-\infty$ and the weight 0:
#
# $$w = \mathrm{softmax}(s + m), \qquad
# m_{t,j} = \begin{cases} 0 & \text{allowed} \\ -\infty & \text{not}
# \end{cases}$$

# %%
sentence = "Anthony Hopkins admired Michael Bay as a great director ."
words = sentence.split()
tokens = [*words, "(pad)", "(pad)"]
ids = np.array([[*range(1, 11), 0, 0]])
look_ahead = layers.masks.causal_mask(12)  # (T, T)
padding = layers.masks.padding_mask(ids)  # (B, S)
combined = layers.masks.combine(
    padding_mask=padding, causal_mask=look_ahead
)  # (B, T, S)

np.testing.assert_array_equal(ops.convert_to_numpy(look_ahead), np.tri(12))
np.testing.assert_array_equal(ops.convert_to_numpy(padding), ids != 0)
np.testing.assert_array_equal(
    ops.convert_to_numpy(combined)[0], np.tri(12) * (ids != 0)
)
figure = plot.figure((7.4, 7.8))
masks = {
    "look-ahead": look_ahead,
    "padding": np.repeat(ids != 0, 12, axis=0),
    "both": combined[0],
}
*panels, empty = figure.subplots(2, 2).flat
for ax, (name, mask) in zip(panels, masks.items(), strict=True):
    plot.mask(mask, tokens, tokens, ax=ax, title=name)
empty.set_axis_off()
figure

# %%
x = 0.6 * rng.normal(size=(1, 12, width))
mask_options = {"padding_mask": padding, "use_causal_mask": True}
outputs, weights = map(
    numpy, attention(x, **mask_options, return_attention_scores=True)
)
scores = np.where(np.tri(12) * (ids != 0), x[0] @ x[0].T / np.sqrt(width), -np.inf)
np.testing.assert_allclose(weights[0], softmax(scores), atol=1e-6)
assert (weights[0][np.triu_indices(12, 1)] == 0).all()
assert (weights[0][:, 10:] == 0).all()
np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-6)
plot.attention_map(weights[0, :10, :10], words, words)

# %% [markdown]
# The upper triangle is empty, and each row still sums to 1. It is the softmax
# over the past alone: the first word can attend only to itself. Each head of a
# layer has the same mask, and distributes its weight within the triangle in its
# own way:

# %%
causal_heads = layers.MultiHeadAttention(4)
causal_heads.build(x.shape)
causal_heads.set_weights([0.5 * rng.normal(size=w.shape) for w in causal_heads.weights])
head_weights = numpy(
    causal_heads(x, **mask_options, return_attention_scores=True)[1]
)  # (B, H, T, T)
assert (head_weights[0][:, *np.triu_indices(12, 1)] == 0).all()
np.testing.assert_allclose(head_weights.sum(axis=-1), 1, atol=1e-5)
plot.attention_heads(head_weights[0, :, :10, :10], words, words)

# %% [markdown]
# The triangle weighs the values. The first output is the first value; the
# second is a mean of two; and so on. With the first five words and three
# channels:

# %%
triangle, some_values = weights[0, :5, :5], x[0, :5, :3]
np.testing.assert_allclose(triangle @ some_values, outputs[0, :5, :3], atol=1e-5)
np.testing.assert_allclose(outputs[0, 0], x[0, 0], atol=1e-6)
plot.equation(
    {"weights": triangle, "values": some_values, "outputs": outputs[0, :5, :3]},
    signs="×=",
    rows=words[:5],
)

# %% [markdown]
# The future therefore cannot change the past: other words after `Bay` leave all
# outputs up to `Bay` unchanged. Padding changes nothing either: without it, the
# ten words give the same outputs.

# %%
changed_input = x.copy()
changed_input[:, 5:] += 1.0
changed_outputs = numpy(attention(changed_input, **mask_options))
np.testing.assert_allclose(changed_outputs[:, :5], outputs[:, :5], atol=1e-6)
assert np.abs(changed_outputs[:, 5:] - outputs[:, 5:]).max() > 0.2

unpadded_outputs = numpy(attention(x[:, :10], use_causal_mask=True))
np.testing.assert_allclose(unpadded_outputs, outputs[:, :10], atol=1e-5)
