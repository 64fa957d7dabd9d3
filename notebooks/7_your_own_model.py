# %% [markdown]
# # Your own model
#
# **You will see** the layers in two models that know nothing of text: one of
# sets, whose order means nothing, and a forecaster of series, whose order is
# all; what each of them learns to look at; and that both are ordinary Keras
# models, saved and loaded as such.
#
# **Takes** 30 seconds.
#
# **Follows** Vaswani et al. 2017, *Attention Is All You Need*, sections 3.2 and
# 3.5, <https://arxiv.org/abs/1706.03762>; for sets Lee et al. 2019, *Set
# Transformer*, sections 3.1 and 3.2, <https://arxiv.org/abs/1810.00825>,
# without their inducing points.

# %%
# %matplotlib inline
import tempfile

import keras
import numpy as np
from keras import ops
from matplotlib.figure import Figure

from keras_tfm import layers, plot

np.set_printoptions(precision=3, suppress=True)
rng = np.random.default_rng(0)


def numpy(tensor):
    """Any backend's tensor as an array."""
    return ops.convert_to_numpy(tensor)


# %% [markdown]
# ## A set has no order
#
# Attention adds up what it finds, and a sum has no order. So a block of the
# encoder, $f$, gives to permuted vectors the permuted vectors, and a query
# that pools them, $g$, gives the same:
#
# $$f(Px) = P f(x), \qquad g(Px) = g(x)$$
#
# where $P$ permutes the vectors. Only positions would tell one order from
# another.

# %%
x = rng.normal(size=(1, 7, 16)).astype("float32")
order = rng.permutation(7)
keras.utils.set_random_seed(1)
block = layers.TransformerEncoder(intermediate_dim=32, num_heads=4)
pooling = layers.AttentionPooling()
positions = layers.SinusoidalPositions()

heard = numpy(block(x))
np.testing.assert_allclose(numpy(block(x[:, order])), heard[:, order], atol=1e-5)
pooled = numpy(pooling(heard))
np.testing.assert_allclose(numpy(pooling(heard[:, order])), pooled, atol=1e-5)

told = numpy(pooling(block(positions(x))))
other = numpy(pooling(block(positions(x[:, order]))))
print("positions change the result by", np.abs(told - other).max())
assert np.abs(told - other).max() > 0.01

# %% [markdown]
# ## A model of sets
#
# A set of 3 to 10 numbers comes in any order; the model is to say which is the
# largest and which the smallest. Smaller sets are padded, and a mask says what
# is real, True where it is. Two queries at the end, one for each answer, see
# the set as a whole.


# %%
def sets(count):
    """Padded sets `(B, 10, 1)`, their masks `(B, 10)`, and both answers."""
    numbers = rng.normal(size=(count, 10)).astype("float32")
    real = np.arange(10) < rng.integers(3, 11, (count, 1))
    smallest = np.where(real, numbers, np.inf).min(axis=1)
    largest = np.where(real, numbers, -np.inf).max(axis=1)
    answers = np.stack([largest, smallest], axis=1)
    return np.where(real, numbers, 0)[..., None], real, answers


def falling(peak, steps):
    """Adam, whose learning rate falls to zero by the last step."""
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
model.compile(falling(3e-3, steps=8 * 40), "mse")
model.fit([x, mask], y, batch_size=50, epochs=8, verbose=0)

x, mask, y = test_sets = sets(500)
found = model.predict([x, mask], verbose=0)
error, spread = np.mean((found - y) ** 2), y.var(axis=0).mean()
print(f"error {error:.3f}, of the mean alone {spread:.3f}")
assert error < 0.3 * spread

# %% [markdown]
# The order changes nothing in the trained model, and neither does more padding,
# whatever stands in it:

# %%
order = rng.permutation(10)
permuted = model.predict([x[:, order], mask[:, order]], verbose=0)
np.testing.assert_allclose(permuted, found, atol=1e-4)
more = np.pad(x, ((0, 0), (0, 5), (0, 0)), constant_values=9)
more_mask = np.pad(mask, ((0, 0), (0, 5)))
np.testing.assert_allclose(
    model.predict([more, more_mask], verbose=0), found, atol=1e-4
)

# %% [markdown]
# Nobody told the queries where to look. One has most of its weight on the
# largest number, the other on the smallest, or near them. Which is which is not
# given: the query that answers with the largest may look at the smallest, since
# the block below has carried what it knows from number to number.

# %%
alpha = weights.predict([x, mask], verbose=0)  # (B, 2, 10)
largest = np.where(mask, x[..., 0], -np.inf).argmax(axis=1)
smallest = np.where(mask, x[..., 0], np.inf).argmin(axis=1)
first, second = alpha.argmax(axis=2).T
looks = [np.mean(first == largest) + np.mean(second == smallest)]
looks += [np.mean(first == smallest) + np.mean(second == largest)]
print(f"largest weight at largest or smallest number: {max(looks) / 2:.0%} of the sets")
assert max(looks) / 2 > 0.8

gaps = np.diff(np.sort(x[..., 0], axis=1), axis=1).min(axis=1)
row = int(np.argmax(np.where(mask.all(axis=1), gaps, 0)))  # of ten that lie apart
order = np.argsort(x[row, :, 0])
plot.attention_map(
    alpha[row][:, order],
    [f"{n:.2f}" for n in x[row, order, 0]],
    ["first query", "second query"],
    xlabel="elements of the set",
    ylabel=None,
)

# %% [markdown]
# ## A forecaster
#
# Each series has a pattern of its own that comes again every 12 steps, under
# noise $\epsilon$ of deviation $\sigma = 0.3$. Four rounds are seen, the fifth
# is to be forecast:
#
# $$x_t = p_{t \bmod 12} + \epsilon_t$$
#
# To take the last round as the forecast costs $2\sigma^2$, the noise of both.
# The mean of the four costs $\sigma^2(1 + \tfrac14)$, near the least that can
# be: the noise to come cannot be known.

# %%
PERIOD, ROUNDS, NOISE = 12, 4, 0.3


def series(count):
    """What is seen, `(B, 48, 1)`, and what comes next, `(B, 12)`."""
    x = np.tile(rng.normal(size=(count, PERIOD)), (1, ROUNDS + 1))
    x = (x + NOISE * rng.normal(size=x.shape)).astype("float32")
    return x[:, :-PERIOD, None], x[:, -PERIOD:]


seen, to_come = series(500)
rounds = seen.reshape(-1, ROUNDS, PERIOD)
last = np.mean((rounds[:, -1] - to_come) ** 2)
mean = np.mean((rounds.mean(axis=1) - to_come) ** 2)
print(f"last round {last:.3f}, expected {2 * NOISE**2:.3f}")
print(f"mean of the rounds {mean:.3f}, expected {NOISE**2 * (1 + 1 / ROUNDS):.3f}")
np.testing.assert_allclose(last, 2 * NOISE**2, rtol=0.1)
np.testing.assert_allclose(mean, NOISE**2 * (1 + 1 / ROUNDS), rtol=0.1)

# %% [markdown]
# The model is not told that there is a period: that twelve steps are to come
# says nothing of it. Each number becomes a vector and gets the signal of its
# position; then twelve queries, one for each step to come, take what they want.
# The score of query $q_h$ and vector $x_t$ is the multiplicative one,
# $q_h^\top W x_t$.

# %%
keras.utils.set_random_seed(1)
inputs = keras.Input((ROUNDS * PERIOD, 1))
h = keras.layers.Dense(32)(inputs)
h = layers.SinusoidalPositions()(h)
ask = layers.AttentionPooling(num_queries=PERIOD, score="multiplicative")
vectors = keras.Model(inputs, h)
h, weights = ask(h, return_attention_scores=True)
outputs = keras.layers.Dense(1)(h)  # (B, 12, 1)
forecaster = keras.Model(inputs, outputs[..., 0])
weights = keras.Model(inputs, weights)

[W] = numpy(ask.attention.score_layer.kernel)  # of the one head
scores = numpy(ask.queries) @ W @ numpy(vectors(seen[:1]))[0].T  # (12, 48)
by_hand = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
np.testing.assert_allclose(numpy(weights(seen[:1]))[0], by_hand, atol=1e-5)

x, y = series(2000)
forecaster.compile(falling(1e-2, steps=20 * 40), "mse")
forecaster.fit(x, y, batch_size=50, epochs=20, verbose=0)
forecast = forecaster.predict(seen, verbose=0)
error = np.mean((forecast - to_come) ** 2)
print(f"model {error:.3f}, last round {last:.3f}, mean of the rounds {mean:.3f}")
assert error < 0.95 * last

# %%
figure = Figure(figsize=(9, 3), layout="constrained")
ax = figure.add_subplot()
t = np.arange((ROUNDS + 1) * PERIOD)
ax.plot(t[:-PERIOD], seen[0, :, 0], color="#66737f", label="seen")
ax.plot(t[-PERIOD:], to_come[0], color="#66737f", linestyle="--", label="to come")
ax.plot(t[-PERIOD:], forecast[0], color="#0072b2", marker="o", label="forecast")
ax.set(xlabel="step", ylabel="value")
ax.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
figure

# %% [markdown]
# What it has learned to look at: places 12, 24, 36 or 48 steps before. Nobody
# told it the period; its queries are of twelve fixed places, and would not know
# a longer series. A mean of the four rounds with weights $w_r$ errs by
# $\sigma^2 (1 + \sum_r w_r^2)$: $2 \sigma^2$ with one round,
# $\tfrac54 \sigma^2$ with four alike. Here the weights are means over 500
# series, brought to a sum of one over the rounds. A step that listens to one or
# two rounds where it could hear four pays for that, and so the model stays
# above the mean of the rounds: by a fifth in this run.

# %%
alpha = weights.predict(seen, verbose=0).mean(axis=0)  # (12, 48)
same_place = np.arange(ROUNDS * PERIOD) % PERIOD == np.arange(PERIOD)[:, None]
share = alpha[same_place].sum() / PERIOD
print(f"weight at the same place of a round: {share:.2f}, even spread {1 / PERIOD:.2f}")
assert share > 0.5

w = alpha[same_place].reshape(PERIOD, ROUNDS)
w = w / w.sum(axis=1, keepdims=True)
by_weights = NOISE**2 * (1 + (w**2).sum(axis=1))
measured = ((forecast - to_come) ** 2).mean(axis=0)
print("error of each step, by its weights", by_weights, "measured", measured, sep="\n")
assert np.corrcoef(by_weights, measured)[0, 1] > 0.5
assert mean < error < last

# %%
rows = [f"step {48 + step}" for step in range(PERIOD)]
figure = plot.attention_map(
    alpha,
    list(map(str, range(48))),
    rows,
    xlabel="steps seen",
    ylabel="steps to forecast",
    label="weight, mean of 500 series",
)
for start in (12, 24, 36):  # of a round
    figure.axes[0].axvline(start - 0.5, color="#d55e00", linewidth=1.2)
figure

# %% [markdown]
# ## Saved and loaded
#
# As any Keras model. Weights, settings and layers come back, and so does what
# it says.

# %%
with tempfile.TemporaryDirectory() as folder:
    forecaster.save(f"{folder}/forecaster.keras")
    loaded = keras.saving.load_model(f"{folder}/forecaster.keras")
    model.save(f"{folder}/sets.keras")
    of_sets = keras.saving.load_model(f"{folder}/sets.keras")
np.testing.assert_allclose(loaded.predict(seen, verbose=0), forecast, atol=1e-5)
again = of_sets.predict([*test_sets[:2]], verbose=0)
np.testing.assert_allclose(again, found, atol=1e-5)
print(f"{of_sets.count_params():,} and {loaded.count_params():,} parameters")
