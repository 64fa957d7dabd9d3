# %% [markdown]
# # Recurrent against Transformer
#
# [![Open in Colab][badge]][colab] There, first run
# `%pip install "keras-tfm[recipes] @ git+https://github.com/keras-tfm/keras-tfm"`.
#
# [badge]: https://colab.research.google.com/assets/colab-badge.svg
# [colab]: https://colab.research.google.com/github/keras-tfm/keras-tfm/blob/main/notebooks/5_recurrent_against_transformer.ipynb
#
# **You will see** how far a gradient reaches back in both kinds of networks,
# how that affects learning, what a training step costs by length, how much
# state each keeps while it generates, and which learns more of the same task in
# the same time, which is not always the Transformer.
#
# **Takes** two minutes.
#
# **Follows** Vaswani et al. 2017, *Attention Is All You Need*, section 4 and
# table 1, <https://arxiv.org/abs/1706.03762>; Bahdanau et al. 2015, *Neural
# Machine Translation by Jointly Learning to Align and Translate*,
# <https://arxiv.org/abs/1409.0473>; for gradients, Pascanu et al. 2013, section
# 2, <https://arxiv.org/abs/1211.5063>.

# %%
# %matplotlib inline
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import keras
import numpy as np
from keras import ops

from keras_tfm import layers, models, plot, training

rng = np.random.default_rng(0)


def numpy(tensor):
    """Converts a tensor of any backend to an array."""
    return ops.convert_to_numpy(tensor)


# %% [markdown]
# ## Two models
#
# Both models map ids to logits, both have an encoder and a decoder with
# attention to it, and both are trained and decoded in the same way. A recurrent
# network receives its past through a state, which each step computes from the
# previous state. A Transformer attends to the whole past at once:
#
# $$h_t = f(h_{t-1}, x_t) \qquad\qquad h_t = f(x_1, \dots, x_n)$$
#
# | for each layer (table 1) | operations | sequential steps | longest path |
# |---|---|---|---|
# | self-attention | $n^2 d$ | $1$ | $1$ |
# | recurrent | $n d^2$ | $n$ | $n$ |
# | convolutional | $k n d^2$ | $1$ | $\log_k n$, dilated |
# | self-attention, restricted | $r n d$ | $1$ | $n / r$ |
#
# for $n$ tokens of $d$ channels, kernels of $k$ tokens, and neighborhoods of
# $r$ tokens, outside of which a query attends to nothing. The recurrent encoder
# here has two such chains, as in Bahdanau et al.: one reads forwards and one
# reads backwards.
#
# The figure shows a recurrent network unrolled over the words of a sentence.
# The cell is the same at each word, and each state waits for the one before.
# The last state has seen all words, and can stand for the sentence. A plain
# cell computes its state anew at each step. A cell with gates (LSTM, GRU) has a
# second path, drawn in green: the state runs past the cell, is scaled by a gate
# and gets something added.

# %%
plot.recurrence(["I", "love", "you"])

# %%
plot.recurrence(["I", "love", "you"], gated=True)

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
# ## Operations of a layer
#
# XLA, the compiler of JAX, counts the operations of a function that it has
# compiled. `benchmarks/layer_costs.py` in the repository asks it about a layer
# of each kind, for $n = 16$, $d = 64$, $k = 3$ and $r = 8$, and then for twice
# as many tokens, and for twice as many channels. The time beside it is that of
# 16 sequences in milliseconds, on the machine that ran this notebook. At this
# size a part of it is overhead, so that it grows less than the operations.
#
# A mask saves nothing: dense attention computes all products and throws those
# away that it masks. Restricted attention needs $r n d$ only if it is computed
# in chunks. The heads of a Transformer also project queries, keys, values and
# outputs, which costs $n d^2$ and is not in table 1.


# %%
def find_repository():
    """Returns the folder that has `benchmarks`, or None without a clone."""
    folders = [pathlib.Path(name) for name in ("..", *sys.path)]
    files = (folder / "benchmarks" / "layer_costs.py" for folder in folders)
    return next((str(file.parents[1]) for file in files if file.is_file()), None)


def count_operations(repository):
    """Returns the rows of table 1, counted by XLA in a process of its own."""
    command = "-m benchmarks.layer_costs --length 16 --neighborhood 8"
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "costs.json")
        subprocess.run(
            [sys.executable, *command.split(), "--json", str(file)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([repository, *sys.path])},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        return json.loads(file.read_text("utf-8"))["tables"][0]["rows"]


repository = find_repository()
if repository and importlib.util.find_spec("jax"):
    growth = {}
    print(f"{'':28}{'table 1':12}{'counted':>9}   2 n   2 d |    ms   2 n   2 d")
    for layer, cost, _, _, counted, *numbers in count_operations(repository):
        growth[layer], times = numbers[:2], numbers[2:]
        print(f"{layer:28}{cost:12}{counted:9,.0f}", end=" ")
        print(*(f"{factor:5.2f}" for factor in growth[layer]), end=" | ")
        print(*(f"{x:5.2f}" for x in times))
    assert np.allclose(growth["self-attention"], (4, 2), rtol=0.06)
    assert np.allclose(growth["recurrent"], (2, 4), rtol=0.06)
    assert np.allclose(growth["convolutional"], (2, 4), rtol=0.06)
    assert np.allclose(growth["self-attention, restricted"], (2, 2), rtol=0.06)
else:
    print("No operations are counted here: that needs JAX and a clone of the")
    print("repository. docs/benchmarks.md has the counts and the times.")

# %% [markdown]
# ## Vanishing gradients: how far a gradient reaches
#
# What the last position learns about the first token passes through all steps
# between them. In a recurrent encoder the gradient is a product of as many
# matrices. Unless each matrix preserves the norm, the gradient vanishes or
# explodes:
#
# $$\frac{\partial h_n}{\partial x_1}
# = \frac{\partial h_n}{\partial h_{n-1}} \cdots
# \frac{\partial h_2}{\partial h_1} \frac{\partial h_1}{\partial x_1}$$
#
# In a Transformer the last position attends to the first in one step.
#
# The following method measures the gradient on any backend. The first token is
# the only one with its id, and its row in the embedding matrix is set to zero.
# The loss is $u \cdot h_n$ with a random $u$. After one step of gradient
# descent with learning rate 1, that row is
# $-\,\partial (u \cdot h_n) / \partial x_1$, summed over eight sequences, each
# with its own $u$.

# %%
FIRST, LENGTHS = 1, [2, 8, 24, 64]


def gradients(outputs, embedding, more_inputs=()):
    """Computes gradient norms of `outputs` by the vector of the first token."""
    network = keras.Model([ids, *more_inputs], outputs)
    network.compile(keras.optimizers.SGD(1.0), loss=lambda u, h: ops.sum(u * h))
    table = embedding.weights[0]
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
    return np.array(norms) / norms[0]  # relative to length 2


# %%
ids = keras.Input((None,), dtype="int32")
reach = {}
for name, model in [
    ("GRU", recurrent("gru")),
    ("Transformer", transformer()),
    ("LSTM", recurrent("lstm")),
]:
    reach[name] = gradients(model.encode(ids)[:, -1], model.source_embedding)

# %% [markdown]
# Two more chains: a plain cell, $h_t = \tanh(W h_{t-1} + U x_t)$, and a GRU
# whose gates are open, as training can make them. A GRU mixes its old state
# with a new one, $h_t = z_t h_{t-1} + (1 - z_t) \tilde h_t$, and a bias of 4 in
# $z_t$ keeps 98% of the old state:

# %%
plain, gated = keras.layers.SimpleRNN(WIDTH), keras.layers.GRU(WIDTH)
for name, cell in {"no gates": plain, "GRU, open gates": gated}.items():
    keras.utils.set_random_seed(1)
    embedding = layers.TokenAndPositionEmbedding(
        VOCABULARY, embedding_dim=WIDTH, positions=None
    )
    state = cell(embedding(ids))
    if cell is gated:
        kernel, recurrent_kernel, bias = cell.get_weights()
        bias[0, :WIDTH] = 4.0
        cell.set_weights([kernel, recurrent_kernel, bias])
    reach[name] = gradients(state, embedding)

# %% [markdown]
# The whole recurrent model has short paths back: its decoder attends to all
# states of the encoder, including the first. The decoder also starts from the
# last state of the backward cells, which is at the first token. We measure the
# gradient of the encoder's state at the first position, and of the first hidden
# state of both decoders:

# %%
model = recurrent()
first_state = model.encode(ids)[:, 0]
reach["GRU, first state"] = gradients(first_state, model.source_embedding)
start = keras.Input((1,), dtype="int32")
for name, model in [("GRU", recurrent()), ("Transformer", transformer())]:
    hidden = model.hidden_model()({"source_ids": ids, "target_ids": start})
    decoder_norms = gradients(hidden[:, 0], model.source_embedding, [start])
    reach[f"{name} and its decoder"] = decoder_norms
print(f"{'':28}" + "".join(f"{length:>10}" for length in LENGTHS))
for name, norms in reach.items():
    print(f"{name:28}" + "".join(f"{norm:10.1e}" for norm in norms))

assert max(reach["no gates"][-1], reach["GRU"][-1]) < 1e-6
assert reach["GRU, open gates"][-1] > 1e-2
assert min(reach["GRU, first state"]) > 0.5
assert reach["GRU"][-1] < reach["LSTM"][-1] < 1e-2
assert reach["Transformer"][-1] > 100 * reach["LSTM"][-1]
assert reach["GRU and its decoder"][-1] > 1000 * reach["GRU"][-1]
order = ("Transformer", "GRU, open gates", "LSTM", "GRU", "no gates")
chains = {name: reach[name] for name in order}
whole = {name: norms for name, norms in reach.items() if name not in chains}
figure = plot.figure((7.6, 3.6))
axes = figure.subplots(1, 2, sharey=True)
titles = "of the last state", "with a short path"
for ax, norms, title in zip(axes, (chains, whole), titles, strict=True):
    curves = {name: (LENGTHS, values) for name, values in norms.items()}
    plot.curves(curves, "length, tokens", "gradient, against length 2", ax, title)
    ax.set_yscale("log")
    ax.legend(frameon=False, fontsize=8, loc="lower left")
figure

# %% [markdown]
# All gradients are measured before training. That of the Transformer falls too,
# but only about as $1/n$: an untrained query spreads its attention over all $n$
# tokens, including the first, and it can learn to do otherwise. The gradient of
# a recurrent chain falls by a constant factor at each step, without gates and
# with those of an untrained GRU or LSTM, which are half open. But gates can
# learn to open: then the gradient of a GRU reaches further than that of an
# untrained Transformer. The figure shows how hard it is to start.
# The state at the first position has no chain in between. The decoder starts
# from it, so its gradient uses this short path.

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
# ## How reach decides what is learned
#
# The first token is one of eight that occur nowhere else; other tokens follow.
# The last position has to predict the first token, so the path between them is
# as long as the sequence in a recurrent network, and one step in a Transformer.
# All models get the same sequences, the same steps and the same learning rate.
# A guess is right in one of eight cases.


# %%
TESTS = 400


def sequences(length, steps):
    """Draws sequences for training, 64 a step, and then those for testing."""
    draw = np.random.default_rng(length)
    tokens = draw.integers(4, 12, (steps * 64 + TESTS, length))
    tokens[:, 0] = draw.integers(12, 20, len(tokens))
    return tokens


def first_token_accuracy(model, tokens):
    """Trains, and returns the accuracy on the test sequences."""
    first = tokens[:, 0] - 12
    network = keras.Model(ids, keras.layers.Dense(8)(model.encode(ids)[:, -1]))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    network.compile(keras.optimizers.Adam(5e-3), loss)
    network.fit(tokens[:-TESTS], first[:-TESTS], batch_size=64, verbose=0)
    logits = network.predict(tokens[-TESTS:], batch_size=TESTS, verbose=0)
    return np.mean(logits.argmax(axis=-1) == first[-TESTS:])


lengths, recalled = [8, 32, 64, 128], {"GRU": [], "LSTM": [], "Transformer": []}
for length in lengths:
    tokens = sequences(length, steps=100)
    for name, row in recalled.items():
        model = transformer() if name == "Transformer" else recurrent(name.lower())
        row.append(first_token_accuracy(model, tokens))
    scores = " ".join(f"{name} {row[-1]:.2f}" for name, row in recalled.items())
    print(f"length {length:3} {scores}")

curves = {name: (lengths, row) for name, row in recalled.items()}
figure = plot.curves(curves, "length, tokens", "first token right, after 100 steps")
figure.axes[0].set_ylim(0, 1.05)
figure.axes[0].set_xticks(lengths)
figure.axes[0].axhline(1 / 8, color="gray", linewidth=0.9, linestyle="--")
figure

# %% [markdown]
# The dashed line is guessing. All three learn the task at length 8. From
# length 32 on only the Transformer does, and length hardly changes how soon.
# Four times as many steps do not help the GRU at length 64, since there is
# almost no gradient to follow:

# %%
patient = first_token_accuracy(recurrent(), sequences(64, steps=400))
print(f"GRU, length 64, 400 steps: {patient:.2f}")
assert min(row[0] for row in recalled.values()) > 0.9
assert min(recalled["Transformer"]) > 0.9
assert max(*recalled["GRU"][1:], *recalled["LSTM"][1:], patient) < 0.5

# %% [markdown]
# ## Cost of a training step by length
#
# We measure one training step of both encoders with 16 sequences, the best of
# three, on the machine that ran this notebook. The table above counts steps
# that must wait for each other; it does not say how long they take. If a
# recurrence is compiled to one loop and the processor has few cores, it may be
# faster. If each of its steps is a call from Python, or if the machine could do
# thousands of operations in parallel, it is slower.


# %%
def milliseconds(model, length):
    """Measures the fastest of three training steps, after one warm-up."""
    network = keras.Model(ids, model.encode(ids))
    network.compile("sgd", "mse")
    tokens = rng.integers(4, VOCABULARY, (16, length))
    targets, times = numpy(network(tokens)), []
    for _ in range(4):
        begin = time.perf_counter()
        network.train_on_batch(tokens, targets)
        times.append(time.perf_counter() - begin)
    return 1000 * min(times[1:])


lengths = [16, 64, 256]
step_times = {
    "GRU, both directions": [milliseconds(recurrent(), length) for length in lengths],
    "Transformer, 2 layers": [milliseconds(transformer(), n) for n in lengths],
}
for name, times in step_times.items():
    print(f"{name:28}", *(f"{x:7.1f} ms" for x in times))
curves = {name: (lengths, times) for name, times in step_times.items()}
figure = plot.curves(curves, "length, tokens", "milliseconds a step")
figure.axes[0].set_ylim(0)
figure

# %% [markdown]
# ## State during decoding
#
# Decoding shows the opposite advantage. A recurrent decoder keeps a state of
# fixed size. A Transformer keeps keys and values of all generated tokens:
# $2 N d$ numbers for each token, in $N$ layers. Here the cache has capacity for
# the maximum length from the start:


# %%
def state_size(model, length):
    """Counts the numbers in the cache for `length` generated tokens."""
    cache = model.begin(np.full((1, 5), 4, "int32"), max_length=length)
    state = cache["past"] if "past" in cache else cache["beams"]["states"]
    return sum(int(np.prod(x.shape)) for x in keras.tree.flatten(state))


for length in (16, 64, 256):
    sizes = state_size(recurrent(), length), state_size(transformer(), length)
    print(f"length {length:3}: recurrent {sizes[0]:3}, Transformer {sizes[1]:6,}")
    assert sizes == (WIDTH, 2 * 2 * WIDTH * length)

# %% [markdown]
# ## Recurrent networks and Transformer on one task
#
# The task is to reverse sequences of 3 to 8 tokens. Three models have about
# equal numbers of parameters: a recurrent one whose decoder receives only the
# last states of the encoder, a recurrent one with attention, and a Transformer.
# All three use Adam with a warm-up of 40 steps; the notebook on normalization
# shows what happens to a Transformer without it.


# %%
def draw_reversals(count):
    """Draws source ids, target ids and labels."""
    lengths = rng.integers(3, 9, (count, 1))
    positions = np.arange(9)
    tokens = np.where(positions < lengths, rng.integers(4, 14, (count, 9)), 0)
    reversed_tokens = np.take_along_axis(
        tokens, np.maximum(lengths - 1 - positions, 0), axis=1
    )
    labels = np.where(
        positions < lengths, reversed_tokens, np.where(positions == lengths, 3, 0)
    )
    shifted = np.concatenate([np.full((count, 1), 2), reversed_tokens[:, :-1]], axis=1)
    target = np.where(positions <= lengths, shifted, 0)
    return {"source_ids": tokens[:, :8], "target_ids": target}, labels


test_inputs, test_labels = draw_reversals(300)
print(test_inputs["source_ids"][0], test_labels[0])


# %%
def last_states_only(width=90):
    """Makes a bidirectional encoder that passes one vector to the decoder."""
    keras.utils.set_random_seed(1)
    source = keras.Input((None,), dtype="int32", name="source_ids")
    target = keras.Input((None,), dtype="int32", name="target_ids")
    embedding = layers.TokenAndPositionEmbedding(
        VOCABULARY, embedding_dim=width, positions=None
    )
    mask = layers.masks.padding_mask(source)
    encoder = keras.layers.Bidirectional(keras.layers.GRU(width // 2))
    state = keras.layers.Dense(width, activation="tanh")(
        encoder(embedding(source), mask=mask)
    )
    decoder = keras.layers.GRU(width, return_sequences=True)
    h = decoder(embedding(target), initial_state=state)
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
# Each model trains for the same number of seconds of the processor, which other
# programs do not change. After every 20 steps,
# outside of the measured time, it is evaluated on 300 held-out sequences: the
# fraction of tokens that are most likely, given the correct previous tokens.
# The first step, which compiles functions, is not measured either. At the end
# we compute the fraction of whole sequences that greedy search generates
# correctly. These are the sequences in which each token is the most likely one
# after the correct previous tokens.

# %%
SECONDS = 8
train_inputs, train_labels = draw_reversals(20_000)


def sequence_accuracy(model):
    """Returns the fraction of test sequences that greedy search gets right."""
    likeliest = model.predict(test_inputs, batch_size=300, verbose=0).argmax(-1)
    return ((likeliest == test_labels) | (test_labels == 0)).all(axis=1).mean()


# %%
def learning_curve(model):
    """Returns seconds of training so far, and the accuracy at each."""
    model.compile(
        keras.optimizers.Adam(training.InverseSquareRoot(3e-3, warmup_steps=40)),
        training.SmoothedCrossentropy(),
        metrics=[training.TokenAccuracy()],
    )
    seconds, accuracies, num_examples = [0.0], [], 0
    while True:
        scores = model.evaluate(test_inputs, test_labels, batch_size=300, verbose=0)
        accuracies.append(scores[1])
        if seconds[-1] >= SECONDS:
            return seconds, accuracies
        begin = time.process_time()
        for start in range(num_examples, num_examples + 1000, 50):
            rows = slice(start % 20_000, start % 20_000 + 50)
            inputs = {name: ids[rows] for name, ids in train_inputs.items()}
            model.train_on_batch(inputs, train_labels[rows])
            begin = time.process_time() if start == 0 else begin
        num_examples += 1000
        seconds.append(seconds[-1] + time.process_time() - begin)


learning_curves = {name: learning_curve(model) for name, model in competitors.items()}
sequence_accuracies = {
    name: sequence_accuracy(model) for name, model in competitors.items()
}
for name, (seconds, accuracies) in learning_curves.items():
    steps = 20 * (len(seconds) - 1)
    print(f"{name:23}{steps} steps in {seconds[-1]:.1f} s:", end=" ")
    print(f"{accuracies[-1]:.2f} of tokens right,", end=" ")
    print(f"{sequence_accuracies[name]:.2f} of sequences")

# %%
token_accuracies = {
    name: accuracies[-1] for name, (_, accuracies) in learning_curves.items()
}
assert token_accuracies["recurrent, attention"] > 0.9
assert (
    sequence_accuracies["recurrent, attention"]
    > sequence_accuracies["recurrent, last states"]
)
assert token_accuracies["Transformer"] > 0.5
assert all(
    sequence_accuracies[name] <= token_accuracies[name] + 1e-6
    for name in token_accuracies
)
figure = plot.curves(learning_curves, "processor seconds of training", "tokens right")
figure.axes[0].set_ylim(0, 1.02)
figure

# %% [markdown]
# The last model has no attention. Of the other two, the recurrent one is ahead,
# both by steps and by seconds. The task is small and depends on order, which a
# recurrent model has built in, and on few cores its steps take no longer. The
# sections above show the advantages of the Transformer: it processes all
# positions at once, and all its paths are short.
