# %% [markdown]
# # Recurrent against Transformer
#
# **You will see** how far a gradient reaches back in either, what that does to
# learning, what a step of training costs by length, how much each keeps while
# it writes, and which learns faster on the same data, which is not always the
# Transformer.
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

from keras_tfm import layers, models, training

rng = np.random.default_rng(0)


def numpy(tensor):
    """Any backend's tensor as an array."""
    return ops.convert_to_numpy(tensor)


def chart(curves, across, down, **axes):
    """Lines with markers, one for each name."""
    figure = Figure(figsize=(5.5, 3.2), layout="constrained")
    ax = figure.add_subplot()
    for name, (x, y) in curves.items():
        ax.plot(x, y, marker="o", label=name)
    ax.set(xlabel=across, ylabel=down, **axes)
    ax.legend(frameon=False)
    return figure


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
# $-\,\partial (u \cdot h_n) / \partial x_1$.

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


ids = keras.Input((None,), dtype="int32")
reach = {}
for name, model in [
    ("GRU", recurrent("gru")),
    ("LSTM", recurrent("lstm")),
    ("Transformer", transformer()),
]:
    reach[name] = gradients(model.encode(ids)[:, -1], model)

# %% [markdown]
# The whole recurrent model has short ways back: its decoder attends to all
# states of the encoder, the first among them, and begins with the last state of
# the backward cells, which stands at the first token. From the decoder's first
# hidden state:

# %%
start, model = keras.Input((1,), dtype="int32"), recurrent()
hidden = model.hidden_model()({"source_ids": ids, "target_ids": start})
reach["GRU and its decoder"] = gradients(hidden[:, 0], model, [start])
print(f"{'':20}" + "".join(f"{length:>10}" for length in LENGTHS))
for name, norms in reach.items():
    print(f"{name:20}" + "".join(f"{norm:10.1e}" for norm in norms))

assert reach["GRU"][-1] < reach["LSTM"][-1] < 1e-2
assert reach["Transformer"][-1] > 100 * reach["LSTM"][-1]
assert reach["GRU and its decoder"][-1] > 1000 * reach["GRU"][-1]
curves = {name: (LENGTHS, norms) for name, norms in reach.items()}
chart(curves, "length", "gradient, against length 2", yscale="log")

# %% [markdown]
# All of them before training. The gates of an LSTM are there to learn to keep
# what matters; the figure says how hard it is to begin.
#
# ## What that does to learning
#
# A token of eight that come nowhere else stands first, others follow, and the
# last position is to say which it was. The same data, the same 60 steps, the
# same rate for both; guessing is right in one of eight.


# %%
def memory_of_first(model, length):
    """The share that is right after training, of 200 new sequences."""
    tokens = rng.integers(4, 12, (60 * 64 + 200, length))
    tokens[:, 0] = rng.integers(12, 20, len(tokens))
    first = tokens[:, 0] - 12
    network = keras.Model(ids, keras.layers.Dense(8)(model.encode(ids)[:, -1]))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    network.compile(keras.optimizers.Adam(5e-3), loss)
    network.fit(tokens[:-200], first[:-200], batch_size=64, verbose=0)
    found = network.predict(tokens[-200:], batch_size=200, verbose=0)
    return np.mean(found.argmax(axis=-1) == first[-200:])


for length in (8, 64):
    right = {
        "GRU": memory_of_first(recurrent(), length),
        "Transformer": memory_of_first(transformer(), length),
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
    "GRU, 1 layer": [milliseconds(recurrent(), length) for length in lengths],
    "Transformer, 2 layers": [milliseconds(transformer(), n) for n in lengths],
}
for name, times in taken.items():
    print(f"{name:24}", *(f"{x:7.1f} ms" for x in times))
curves = {name: (lengths, times) for name, times in taken.items()}
chart(curves, "length", "milliseconds a step", ylim=0)

# %% [markdown]
# ## What each keeps while it writes
#
# The other side of it. A recurrent decoder keeps its state, of one size; a
# Transformer keeps keys and values of all that was written, and they grow:
# $2 N d$ numbers for each token.


# %%
def kept(model, length):
    """Numbers of the cache that are of what was written."""
    cache = model.begin(np.full((1, 5), 4, "int32"), max_length=length)
    own = cache["past"] if "past" in cache else cache["beams"]["states"]
    return sum(int(np.prod(x.shape)) for x in keras.tree.flatten(own))


for length in (16, 64, 256):
    sizes = kept(recurrent(), length), kept(transformer(), length)
    print(f"length {length:3}: recurrent {sizes[0]:3}, Transformer {sizes[1]:6,}")
    assert sizes == (WIDTH, 2 * 2 * WIDTH * length)

# %% [markdown]
# ## The same data
#
# Sequences of 3 to 8 tokens are to be written backwards. Three models of one
# layer: a recurrent one whose decoder gets the last state of the encoder and
# nothing else, one with attention, and a Transformer.


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


inputs, labels = backwards(2000)
test_inputs, test_labels = backwards(300)
print(test_inputs["source_ids"][0], test_labels[0])


def last_state_only():
    keras.utils.set_random_seed(1)
    source = keras.Input((None,), dtype="int32", name="source_ids")
    target = keras.Input((None,), dtype="int32", name="target_ids")
    table = layers.TokenAndPositionEmbedding(VOCABULARY, 64, positions=None)
    mask = layers.masks.padding_mask(source)
    state = keras.layers.GRU(64)(table(source), mask=mask)
    h = keras.layers.GRU(64, return_sequences=True)(table(target), initial_state=state)
    outputs = keras.layers.Dense(VOCABULARY)(h)
    return keras.Model({"source_ids": source, "target_ids": target}, outputs)


competitors = {
    "recurrent, last state": last_state_only(),
    "recurrent, attention": recurrent(width=64),
    "Transformer": transformer(num_layers=1, width=64),
}
right = {name: [] for name in competitors}
for name, model in competitors.items():
    model.compile(
        keras.optimizers.Adam(3e-3),
        training.SmoothedCrossentropy(),
        metrics=[training.TokenAccuracy()],
    )
    begin = time.perf_counter()
    for _ in range(3):
        model.fit(inputs, labels, batch_size=50, verbose=0)
        scores = model.evaluate(test_inputs, test_labels, batch_size=300, verbose=0)
        right[name].append(scores[1])
    seconds = time.perf_counter() - begin
    print(f"{name:22} {right[name][-1]:.2f} right, {seconds:5.1f} seconds")

# %%
steps = [40, 80, 120]
curves = {name: (steps, scores) for name, scores in right.items()}
assert right["recurrent, attention"][-1] > max(0.9, right["recurrent, last state"][-1])
assert right["recurrent, attention"][0] > right["Transformer"][0]
assert min(scores[-1] for scores in right.values()) > 0.5
chart(curves, "steps of training", "tokens right", ylim=(0, 1.02))

# %% [markdown]
# Attention is what the first lacks. With it the recurrent model learns this
# small task in the fewest steps, likely because its states know order from the
# start, where a Transformer has to learn what its positions mean. What speaks
# for the Transformer is above: all places at once, and no way that is long.
