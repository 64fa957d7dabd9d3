# %% [markdown]
# # Your own model
#
# [![Open in Colab][badge]][colab] There, first run
# `%pip install "keras-tfm[recipes] @ git+https://github.com/keras-tfm/keras-tfm"`.
#
# [badge]: https://colab.research.google.com/assets/colab-badge.svg
# [colab]: https://colab.research.google.com/github/keras-tfm/keras-tfm/blob/main/notebooks/7_your_own_model.ipynb
#
# **You will see** the layers in two models without text: a model of sets, whose
# order has no meaning, and a forecaster of series, whose order is essential;
# what each of them learns to attend to; and that both are ordinary Keras
# models, which you can save and load as usual.
#
# **Takes** 30 seconds.
#
# **Follows** Vaswani et al. 2017, *Attention Is All You Need*, sections 3.2 and
# 3.5, <https://arxiv.org/abs/1706.03762>; for sets, Lee et al. 2019, *Set
# Transformer*, sections 3.1 and 3.2, <https://arxiv.org/abs/1810.00825>,
# without their inducing points. Learned queries that read a set are also the
# object queries of DETR, Carion et al. 2020,
# <https://arxiv.org/abs/2005.12872>.

# %%
# %matplotlib inline
import tempfile

import keras
import numpy as np
from keras import ops

from keras_tfm import layers, plot
from keras_tfm.plot import figures

np.set_printoptions(precision=3, suppress=True)
rng = np.random.default_rng(0)


def numpy(tensor):
    """Converts a tensor of any backend to an array."""
    return ops.convert_to_numpy(tensor)


# %% [markdown]
# ## Attention ignores the order of a set
#
# Attention computes a weighted sum, and a sum has no order. If the input
# vectors are permuted, an encoder block $f$ returns the permuted outputs, and a
# query that pools them, $g$, returns the same output:
#
# $$f(Px) = P f(x), \qquad g(Px) = g(x)$$
#
# where $P$ permutes the vectors. Only positions distinguish one order from
# another.

# %%
x = rng.normal(size=(1, 7, 16)).astype("float32")
order = rng.permutation(7)
keras.utils.set_random_seed(1)
block = layers.TransformerEncoder(intermediate_dim=32, num_heads=4)
pooling = layers.AttentionPooling()
positions = layers.SinusoidalPositions()

block_outputs = numpy(block(x))
np.testing.assert_allclose(
    numpy(block(x[:, order])), block_outputs[:, order], atol=1e-5
)
pooled = numpy(pooling(block_outputs))
np.testing.assert_allclose(numpy(pooling(block_outputs[:, order])), pooled, atol=1e-5)

positioned = numpy(pooling(block(positions(x))))
permuted = numpy(pooling(block(positions(x[:, order]))))
print("positions change the result by", np.abs(positioned - permuted).max())
assert np.abs(positioned - permuted).max() > 0.01

# %% [markdown]
# ## A model of sets
#
# A set contains 3 to 10 numbers in any order. The model predicts the largest
# and the smallest one. Smaller sets are padded, and a mask is True at the
# elements of the set. Two queries at the end, one for each answer, attend to
# the whole set.


# %%
def sets(count):
    """Draws padded sets `(B, 10, 1)`, masks `(B, 10)`, and both answers."""
    numbers = rng.normal(size=(count, 10)).astype("float32")
    real = np.arange(10) < rng.integers(3, 11, (count, 1))
    smallest = np.where(real, numbers, np.inf).min(axis=1)
    largest = np.where(real, numbers, -np.inf).max(axis=1)
    answers = np.stack([largest, smallest], axis=1)
    return np.where(real, numbers, 0)[..., None], real, answers


def decaying_adam(peak, steps):
    """Returns Adam with a learning rate that falls to 0 by the last step."""
    return keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(peak, steps))


numbers = keras.Input((None, 1))
real = keras.Input((None,), dtype="bool")
h = keras.layers.Dense(32, activation="relu")(numbers)
h = layers.TransformerEncoder(intermediate_dim=64, num_heads=4)(h, padding_mask=real)
h, weights = layers.AttentionPooling(num_queries=2, score="multiplicative")(
    h, padding_mask=real, return_attention_scores=True
)
outputs = keras.layers.Dense(1)(h)  # (B, 2, 1)
model = keras.Model([numbers, real], outputs[..., 0])
weights = keras.Model([numbers, real], weights)

x, mask, y = sets(2000)
model.compile(decaying_adam(3e-3, steps=8 * 40), "mse")
model.fit([x, mask], y, batch_size=50, epochs=8, verbose=0)

x, mask, y = test_sets = sets(500)
predictions = model.predict([x, mask], verbose=0)
error, spread = np.mean((predictions - y) ** 2), y.var(axis=0).mean()
print(f"error {error:.3f}, of the mean alone {spread:.3f}")
assert error < 0.3 * spread

# %% [markdown]
# The order does not change the output of the trained model. Additional padding
# does not change it either, whatever values it contains:

# %%
order = rng.permutation(10)
permuted = model.predict([x[:, order], mask[:, order]], verbose=0)
np.testing.assert_allclose(permuted, predictions, atol=1e-4)
padded = np.pad(x, ((0, 0), (0, 5), (0, 0)), constant_values=9)
padded_mask = np.pad(mask, ((0, 0), (0, 5)))
np.testing.assert_allclose(
    model.predict([padded, padded_mask], verbose=0), predictions, atol=1e-4
)

# %% [markdown]
# The queries were not told where to look. One query has most of its weight on
# or near the largest number, the other on or near the smallest. The assignment
# is not fixed: the query that predicts the largest number may attend to the
# smallest, since the block below has carried information from number to number.

# %%
alpha = weights.predict([x, mask], verbose=0)  # (B, 2, 10)
largest = np.where(mask, x[..., 0], -np.inf).argmax(axis=1)
smallest = np.where(mask, x[..., 0], np.inf).argmin(axis=1)
first, second = alpha.argmax(axis=2).T
agreements = [np.mean(first == largest) + np.mean(second == smallest)]
agreements += [np.mean(first == smallest) + np.mean(second == largest)]
agreement = max(agreements) / 2
print(f"largest weight at largest or smallest number: {agreement:.0%} of the sets")
assert agreement > 0.8

gaps = np.diff(np.sort(x[..., 0], axis=1), axis=1).min(axis=1)
row = int(np.argmax(np.where(mask.all(axis=1), gaps, 0)))  # ten well separated
order = np.argsort(x[row, :, 0])
plot.attention_map(
    alpha[row][:, order],
    [f"{n:.2f}" for n in x[row, order, 0]],
    ["first query", "second query"],
    xlabel="elements of the set",
    ylabel=None,
)

# %% [markdown]
# ## A forecaster of series
#
# Each series has its own pattern that repeats every 12 steps, with noise
# $\epsilon$ of standard deviation $\sigma = 0.3$. The model sees four rounds of
# the pattern and forecasts the fifth:
#
# $$x_t = p_{t \bmod 12} + \epsilon_t$$
#
# A forecast that repeats the last round has an error of $2\sigma^2$, the noise
# of both rounds. The mean of the four rounds has $\sigma^2(1 + \tfrac14)$. That
# is close to the minimum, since future noise cannot be predicted.

# %%
PERIOD, ROUNDS, NOISE = 12, 4, 0.3


def series(count):
    """Draws past steps, `(B, 48, 1)`, and future steps, `(B, 12)`."""
    x = np.tile(rng.normal(size=(count, PERIOD)), (1, ROUNDS + 1))
    x = (x + NOISE * rng.normal(size=x.shape)).astype("float32")
    return x[:, :-PERIOD, None], x[:, -PERIOD:]


past, future = series(500)
rounds = past.reshape(-1, ROUNDS, PERIOD)
last = np.mean((rounds[:, -1] - future) ** 2)
mean = np.mean((rounds.mean(axis=1) - future) ** 2)
print(f"last round {last:.3f}, expected {2 * NOISE**2:.3f}")
print(f"mean of the rounds {mean:.3f}, expected {NOISE**2 * (1 + 1 / ROUNDS):.3f}")
np.testing.assert_allclose(last, 2 * NOISE**2, rtol=0.1)
np.testing.assert_allclose(mean, NOISE**2 * (1 + 1 / ROUNDS), rtol=0.1)

# %% [markdown]
# The model is not told that there is a period; the number of steps to forecast,
# twelve, does not reveal it. Each number becomes a vector, and the signal of
# its position is added. Then twelve queries, one for each future step, attend
# to these vectors. The score of query $q_h$ and vector $x_t$ is the
# multiplicative one, $q_h^\top W x_t$.

# %%
keras.utils.set_random_seed(1)
inputs = keras.Input((ROUNDS * PERIOD, 1))
h = keras.layers.Dense(32)(inputs)
h = layers.SinusoidalPositions()(h)
query_pooling = layers.AttentionPooling(num_queries=PERIOD, score="multiplicative")
vectors = keras.Model(inputs, h)
h, weights = query_pooling(h, return_attention_scores=True)
outputs = keras.layers.Dense(1)(h)  # (B, 12, 1)
forecaster = keras.Model(inputs, outputs[..., 0])
weights = keras.Model(inputs, weights)

[W] = numpy(query_pooling.attention.score_layer.kernel)  # of the only head
scores = numpy(query_pooling.queries) @ W @ numpy(vectors(past[:1]))[0].T  # (12, 48)
by_hand = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
np.testing.assert_allclose(numpy(weights(past[:1]))[0], by_hand, atol=1e-5)

x, y = series(2000)
forecaster.compile(decaying_adam(1e-2, steps=20 * 40), "mse")
forecaster.fit(x, y, batch_size=50, epochs=20, verbose=0)
forecast = forecaster.predict(past, verbose=0)
error = np.mean((forecast - future) ** 2)
print(f"model {error:.3f}, last round {last:.3f}, mean of the rounds {mean:.3f}")
assert error < 0.95 * last

# %%
figure = plot.figure((7, 3))
ax = figure.add_subplot()
t = np.arange((ROUNDS + 1) * PERIOD)
gray, blue = figures.QUIET, figures.COLORS[0]
ax.plot(t[:-PERIOD], past[0, :, 0], color=gray, label="seen")
ax.plot(t[-PERIOD:], future[0], color=gray, linestyle="--", label="to come")
ax.plot(t[-PERIOD:], forecast[0], color=blue, marker="o", label="forecast")
figures.style_axes(ax, grid="y")
figures.set_labels(ax, None, "step", "value")
ax.legend(frameon=False, fontsize=9, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
figure

# %% [markdown]
# The model has learned to attend to the positions 12, 24, 36 or 48 steps
# earlier. It was not told the period. Its queries belong to twelve fixed
# positions and would not fit a longer series. A mean of the four rounds with
# weights $w_r$ has an error of $\sigma^2 (1 + \sum_r w_r^2)$: $2 \sigma^2$ with
# one round, and $\tfrac54 \sigma^2$ with four equal weights. Here the weights
# are means over 500 series, normalized to a sum of one over the rounds. A step
# that attends to one or two of the four rounds has a larger error. The model
# therefore stays above the mean of the rounds, by a fifth in this run.

# %%
alpha = weights.predict(past, verbose=0).mean(axis=0)  # (12, 48)
same_phase = np.arange(ROUNDS * PERIOD) % PERIOD == np.arange(PERIOD)[:, None]
fraction = alpha[same_phase].sum() / PERIOD
print(
    f"weight at the same place of a round: {fraction:.2f}, even spread {1 / PERIOD:.2f}"
)
assert fraction > 0.5

w = alpha[same_phase].reshape(PERIOD, ROUNDS)
w = w / w.sum(axis=1, keepdims=True)
by_weights = NOISE**2 * (1 + (w**2).sum(axis=1))
measured = ((forecast - future) ** 2).mean(axis=0)
print("error of each step, by its weights", by_weights, "measured", measured, sep="\n")
assert np.corrcoef(by_weights, measured)[0, 1] > 0.5
assert mean < error < last

# %%
# One map for each round of steps seen, the same 12 steps to forecast in each.
figure = plot.figure((6.2, 6.4))
maps = figure.subplots(2, 2)
for number, ax in enumerate(maps.ravel()):
    steps = range(PERIOD * number, PERIOD * (number + 1))
    plot.attention_map(
        alpha[:, steps],
        list(map(str, steps)),
        list(map(str, range(48, 60))),
        ax,
        f"round {number + 1}",
        vmax=alpha.max(),
        label="weight",
        xlabel="steps seen",
        ylabel="steps to forecast" if number % 2 == 0 else None,
    )
figure

# %% [markdown]
# ## Save and load
#
# Both models are saved and loaded like any Keras model. Weights, config and
# layers are restored, and the predictions are the same.

# %%
with tempfile.TemporaryDirectory() as folder:
    forecaster.save(f"{folder}/forecaster.keras")
    loaded_forecaster = keras.saving.load_model(f"{folder}/forecaster.keras")
    model.save(f"{folder}/sets.keras")
    loaded_set_model = keras.saving.load_model(f"{folder}/sets.keras")
np.testing.assert_allclose(
    loaded_forecaster.predict(past, verbose=0), forecast, atol=1e-5
)
reloaded_predictions = loaded_set_model.predict([*test_sets[:2]], verbose=0)
np.testing.assert_allclose(reloaded_predictions, predictions, atol=1e-5)
sizes = loaded_set_model.count_params(), loaded_forecaster.count_params()
print("{:,} and {:,} parameters".format(*sizes))
