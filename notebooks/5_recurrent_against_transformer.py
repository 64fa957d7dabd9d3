# %% [markdown]
# # Recurrent against Transformer
#
# **You will see** how far a gradient reaches back in either, what that does to
# learning, what a step of training costs by length, how much each keeps while
# it writes, and which learns more of the same task in the same time, which is
# not always the Transformer.
#
# **Takes** a minute.
#
# **Follows** Vaswani et al. 2017, *Attention Is All You Need*, section 4 and
# table 1, <https://arxiv.org/abs/1706.03762>; Bahdanau et al. 2015, *Neural
# Machine Translation by Jointly Learning to Align and Translate*,
# <https://arxiv.org/abs/1409.0473>; on gradients Pascanu et al. 2013, section
# 2, <https://arxiv.org/abs/1211.5063>.

# %%
# %matplotlib inline
import time

import keras
import numpy as np
from keras import ops
from matplotlib.figure import Figure

from keras_tfm import layers, models, plot, training

rng = np.random.default_rng(0)


def numpy(tensor):
    """Any backend's tensor as an array."""
    return ops.convert_to_numpy(tensor)


# %% [markdown]
# ## Two models
#
# Both are from ids to logits, both have an encoder and a decoder with attention
# to it, and both are trained and searched alike. A recurrent one hears its past
# through a state that each step makes anew of the last; a Transformer hears all
# of it at once:
#
# $$h_t = f(h_{t-1}, x_t) \qquad\qquad h_t = f(x_1, \dots, x_n)$$
#
# | for each layer (table 1) | operations | one after another | longest path |
# |---|---|---|---|
# | self-attention | $n^2 d$ | $1$ | $1$ |
# | recurrent | $n d^2$ | $n$ | $n$ |
#
# for $n$ tokens of $d$ channels. The recurrent encoder here is two such chains,
# one that reads forwards and one that reads backwards, as that of Bahdanau et
# al.

# %%
VOCABULARY, WIDTH = 20, 32


def recurrent(cell="gru", width=WIDTH):
    keras.utils.set_random_seed(1)
    return models.RecurrentSeq2Seq(
        VOCABULARY,
        embedding_dim=width,
        units=width,
        cell=cell,
        attention="multiplicative",
        dropout=0.0,
    )


def transformer(num_layers=2, width=WIDTH):
    keras.utils.set_random_seed(1)
    return models.Transformer(
        VOCABULARY,
        num_layers=num_layers,
        embedding_dim=width,
        intermediate_dim=2 * width,
        num_heads=4,
        dropout=0.0,
    )


for model in (recurrent(), transformer()):
    print(f"{type(model).__name__:18}{model.count_params():,} parameters")

# %% [markdown]
# ## How far a gradient reaches
#
# What the last position learns of the first token passes through all steps
# between. In a recurrent encoder that is a product of as many matrices, and
# unless each keeps lengths it vanishes, or explodes:
#
# $$\frac{\partial h_n}{\partial x_1}
# = \frac{\partial h_n}{\partial h_{n-1}} \cdots
# \frac{\partial h_2}{\partial h_1} \frac{\partial h_1}{\partial x_1}$$
#
# In a Transformer the last position attends to the first in one step.
#
# To measure it on any backend: the first token is the only one of its id, and
# its vector in the table is set to zero. The loss is $u \cdot h_n$, $u$ random.
# After one step of gradient descent with rate 1 that vector is
# $-\,\partial (u \cdot h_n) / \partial x_1$, the sum of it over eight
# sequences, each with a $u$ of its own.

# %%
FIRST, LENGTHS = 1, [2, 8, 24, 64]


def gradients(outputs, model, more_inputs=()):
    """Norms of the gradient of `outputs` by the vector of the first token."""
    network = keras.Model([ids, *more_inputs], outputs)
    network.compile(keras.optimizers.SGD(1.0), loss=lambda u, h: ops.sum(u * h))
    table = model.source_embedding.weights[0]
    values = numpy(table).copy()
    values[FIRST] = 0
    table.assign(values)
    weights, norms = network.get_weights(), []
    for length in LENGTHS:
        network.set_weights(weights)
        tokens = rng.integers(4, VOCABULARY, (8, length))
        tokens[:, 0] = FIRST
        u = rng.normal(size=(8, *outputs.shape[1:])).astype("float32")
        start = [np.full((8, 1), 2)] * len(more_inputs)
        network.train_on_batch([tokens, *start], u)
        norms.append(np.linalg.norm(numpy(table)[FIRST]))
    return np.array(norms) / norms[0]  # against that at length 2


# %%
ids = keras.Input((None,), dtype="int32")
reach = {}
for name, model in [
    ("GRU", recurrent("gru")),
    ("Transformer", transformer()),
    ("LSTM", recurrent("lstm")),
]:
    reach[name] = gradients(model.encode(ids)[:, -1], model)

# %% [markdown]
# The whole recurrent model has short ways back: its decoder attends to all
# states of the encoder, the first among them, and begins with the last state of
# the backward cells, which stands at the first token. From the encoder's state
# at that place, and from the first hidden state of either decoder:

# %%
model = recurrent()
reach["GRU, first state"] = gradients(model.encode(ids)[:, 0], model)
start = keras.Input((1,), dtype="int32")
for name, model in [("GRU", recurrent()), ("Transformer", transformer())]:
    hidden = model.hidden_model()({"source_ids": ids, "target_ids": start})
    decoded = gradients(hidden[:, 0], model, [start])
    reach[f"{name} and its decoder"] = decoded
print(f"{'':28}" + "".join(f"{length:>10}" for length in LENGTHS))
for name, norms in reach.items():
    print(f"{name:28}" + "".join(f"{norm:10.1e}" for norm in norms))

assert min(reach["GRU, first state"]) > 0.5
assert reach["GRU"][-1] < reach["LSTM"][-1] < 1e-2
assert reach["Transformer"][-1] > 100 * reach["LSTM"][-1]
assert reach["GRU and its decoder"][-1] > 1000 * reach["GRU"][-1]
curves = {name: (LENGTHS, norms) for name, norms in reach.items()}
figure = Figure(figsize=(8.5, 3.8), layout="constrained")
axes = figure.add_subplot()
plot.curves(curves, "length, tokens", "gradient, against length 2", ax=axes)
axes.set_yscale("log")
figure

# %% [markdown]
# All of them before training. That of the Transformer falls too, but about as
# $1/n$:
# an untrained query spreads its attention over all $n$ tokens, the first being
# one of them, and can learn to do otherwise. That of a chain falls by a factor
# at each step. The gates of an LSTM are there to learn to keep what matters;
# the figure says how hard it is to begin. The state at the first place has no
# chain between, and the decoder, which begins with it, takes that way around.

# %%
n = np.array(LENGTHS)
power = np.polyfit(np.log(n), np.log(reach["Transformer"]), 1)[0]
print(f"Transformer, as n to the power of {power:.2f}")
assert -1.3 < power < -0.7
for name in ("GRU", "LSTM"):
    factors = (reach[name][2:] / reach[name][1:-1]) ** (1 / np.diff(n)[1:])
    print(f"{name}, factor at each step, 8 to 24 and 24 to 64:", factors.round(3))
    np.testing.assert_allclose(factors[0], factors[1], rtol=0.1)

# %% [markdown]
# ## What that does to learning
#
# A token of eight that come nowhere else stands first, others follow, and the
# last position is to say which it was. The same sequences, the same 60 steps,
# the same rate for both; guessing is right in one of eight.


# %%
def sequences(length):
    """Those to train on, and 200 to test with."""
    tokens = rng.integers(4, 12, (60 * 64 + 200, length))
    tokens[:, 0] = rng.integers(12, 20, len(tokens))
    return tokens


def memory_of_first(model, tokens):
    """The share that is right after training, of the last 200 sequences."""
    first = tokens[:, 0] - 12
    network = keras.Model(ids, keras.layers.Dense(8)(model.encode(ids)[:, -1]))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    network.compile(keras.optimizers.Adam(5e-3), loss)
    network.fit(tokens[:-200], first[:-200], batch_size=64, verbose=0)
    found = network.predict(tokens[-200:], batch_size=200, verbose=0)
    return np.mean(found.argmax(axis=-1) == first[-200:])


for length in (8, 64):
    tokens = sequences(length)
    right = {
        "GRU": memory_of_first(recurrent(), tokens),
        "Transformer": memory_of_first(transformer(), tokens),
    }
    print(f"length {length:3}", *(f"{name} {x:.2f}" for name, x in right.items()))
    assert right["Transformer"] > 0.9
    assert (right["GRU"] > 0.5) == (length == 8)

# %% [markdown]
# ## What a step costs by length
#
# One training step of either encoder, 16 sequences, best of three, on the
# machine that this ran on. What the table above counts is steps that must wait
# for each other; how long they take is another matter. Where a recurrence is
# compiled to one loop and the processor has few cores, it may well be the
# faster; where each of its steps is a call from Python, or the machine could do
# thousands of things at once, it waits.


# %%
def milliseconds(model, length):
    """The shortest of three steps of training, after one to warm up."""
    network = keras.Model(ids, model.encode(ids))
    network.compile("sgd", "mse")
    tokens = rng.integers(4, VOCABULARY, (16, length))
    wanted, times = numpy(network(tokens)), []
    for _ in range(4):
        begin = time.perf_counter()
        network.train_on_batch(tokens, wanted)
        times.append(time.perf_counter() - begin)
    return 1000 * min(times[1:])


lengths = [16, 64, 256]
taken = {
    "GRU, both directions": [milliseconds(recurrent(), length) for length in lengths],
    "Transformer, 2 layers": [milliseconds(transformer(), n) for n in lengths],
}
for name, times in taken.items():
    print(f"{name:28}", *(f"{x:7.1f} ms" for x in times))
curves = {name: (lengths, times) for name, times in taken.items()}
figure = plot.curves(curves, "length, tokens", "milliseconds a step")
figure.axes[0].set_ylim(0)
figure

# %% [markdown]
# ## What each keeps while it writes
#
# The other side of it. A recurrent decoder keeps its state, of one size; a
# Transformer keeps keys and values of all that was written: $2 N d$ numbers
# for each token, in $N$ layers. Here the room for them is made at once, for the
# most that may be written:


# %%
def kept(model, length):
    """Numbers of the cache for what is written, `length` tokens at most."""
    cache = model.begin(np.full((1, 5), 4, "int32"), max_length=length)
    own = cache["past"] if "past" in cache else cache["beams"]["states"]
    return sum(int(np.prod(x.shape)) for x in keras.tree.flatten(own))


for length in (16, 64, 256):
    sizes = kept(recurrent(), length), kept(transformer(), length)
    print(f"length {length:3}: recurrent {sizes[0]:3}, Transformer {sizes[1]:6,}")
    assert sizes == (WIDTH, 2 * 2 * WIDTH * length)

# %% [markdown]
# ## The same task, the same time
#
# Sequences of 3 to 8 tokens are to be written backwards. Three models of about
# as many parameters: a recurrent one whose decoder gets the last states of the
# encoder and nothing else, one with attention, and a Transformer. Adam, with a
# rate that rises over 40 steps for all three: the notebook on normalisation
# shows what a Transformer does without.


# %%
def backwards(count):
    """Source ids, target ids and labels."""
    lengths = rng.integers(3, 9, (count, 1))
    place = np.arange(9)
    tokens = np.where(place < lengths, rng.integers(4, 14, (count, 9)), 0)
    turned = np.take_along_axis(tokens, np.maximum(lengths - 1 - place, 0), axis=1)
    labels = np.where(place < lengths, turned, np.where(place == lengths, 3, 0))
    before = np.concatenate([np.full((count, 1), 2), turned[:, :-1]], axis=1)
    target = np.where(place <= lengths, before, 0)
    return {"source_ids": tokens[:, :8], "target_ids": target}, labels


test_inputs, test_labels = backwards(300)
print(test_inputs["source_ids"][0], test_labels[0])


# %%
def last_states_only(width=90):
    """Both directions, as the other; between encoder and decoder one vector."""
    keras.utils.set_random_seed(1)
    source = keras.Input((None,), dtype="int32", name="source_ids")
    target = keras.Input((None,), dtype="int32", name="target_ids")
    table = layers.TokenAndPositionEmbedding(VOCABULARY, width, positions=None)
    mask = layers.masks.padding_mask(source)
    both = keras.layers.Bidirectional(keras.layers.GRU(width // 2))
    state = keras.layers.Dense(width, activation="tanh")(both(table(source), mask=mask))
    decoder = keras.layers.GRU(width, return_sequences=True)
    h = decoder(table(target), initial_state=state)
    outputs = keras.layers.Dense(VOCABULARY)(h)
    return keras.Model({"source_ids": source, "target_ids": target}, outputs)


competitors = {
    "recurrent, attention": recurrent(width=64),
    "Transformer": transformer(num_layers=1, width=64),
    "recurrent, last states": last_states_only(),
}
sizes = {name: model.count_params() for name, model in competitors.items()}
print(sizes)
assert max(sizes.values()) < 1.25 * min(sizes.values())

# %% [markdown]
# Each trains for as many seconds. After every 20 steps, and off the clock, 300
# sequences kept aside: the share of tokens that are likeliest, given the right
# ones before them. The first step, in which programs are compiled, is off the
# clock too. At the end the share of whole sequences that greedy search writes
# without a fault: those in which each token is the likeliest after the right
# ones.

# %%
SECONDS = 6
train_inputs, train_labels = backwards(20_000)


def whole(model):
    """The share of test sequences that greedy search gets right."""
    likeliest = model.predict(test_inputs, batch_size=300, verbose=0).argmax(-1)
    return ((likeliest == test_labels) | (test_labels == 0)).all(axis=1).mean()


# %%
def learned(model):
    """Seconds of training so far, and the share that is right then."""
    model.compile(
        keras.optimizers.Adam(training.InverseSquareRoot(3e-3, warmup_steps=40)),
        training.SmoothedCrossentropy(),
        metrics=[training.TokenAccuracy()],
    )
    spent, shares, done = [0.0], [], 0
    while True:
        scores = model.evaluate(test_inputs, test_labels, batch_size=300, verbose=0)
        shares.append(scores[1])
        if spent[-1] >= SECONDS:
            return spent, shares
        begin = time.perf_counter()
        for place in range(done, done + 1000, 50):
            some = slice(place % 20_000, place % 20_000 + 50)
            inputs = {name: ids[some] for name, ids in train_inputs.items()}
            model.train_on_batch(inputs, train_labels[some])
            begin = time.perf_counter() if place == 0 else begin
        done += 1000
        spent.append(spent[-1] + time.perf_counter() - begin)


right = {name: learned(model) for name, model in competitors.items()}
complete = {name: whole(model) for name, model in competitors.items()}
for name, (spent, shares) in right.items():
    steps = 20 * (len(spent) - 1)
    print(f"{name:23}{steps} steps in {spent[-1]:.1f} seconds:", end=" ")
    print(f"{shares[-1]:.2f} of tokens right, {complete[name]:.2f} of sequences")

# %%
last = {name: shares[-1] for name, (_, shares) in right.items()}
assert last["recurrent, attention"] > 0.9
assert complete["recurrent, attention"] > complete["recurrent, last states"]
assert last["Transformer"] > 0.5
assert all(complete[name] <= last[name] + 1e-6 for name in last)
figure = plot.curves(right, "seconds of training", "tokens right")
figure.axes[0].set_ylim(0, 1.02)
figure

# %% [markdown]
# The last has no attention. Of the other two the recurrent one is
# ahead, by the step as by the second: the task is small and all about order,
# which a recurrent model has from the start, and on few cores its steps take no
# longer. What speaks for the Transformer is above: all places at once, and no
# way that is long.
