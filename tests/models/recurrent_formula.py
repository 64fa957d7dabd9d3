"""Small recurrent models, and their formula in NumPy."""

import functools
import pathlib

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfm import runtime
from keras_tfm.models import RecurrentSeq2Seq
from tests.layers.formulas import below, draw_weights, numpy, softmax
from tests.models.small import SOURCE, TARGET, V

ROOT = pathlib.Path(__file__).parents[2]
D, U, LENGTHS = 8, 6, (4, 2)  # of the rows of SOURCE
KINDS = {
    f"{cell} {attention}": {"cell": cell, "attention": attention}
    for cell in ("gru", "lstm")
    for attention in ("additive", "multiplicative")
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def small(seed=0, **settings):
    """Makes the model; settings of `RecurrentSeq2Seq` over those here."""
    sizes = {"num_layers": 1, "embedding_dim": D, "units": U, "dropout": 0.0}
    return drawn(RecurrentSeq2Seq(V, **{**sizes, **settings}), seed)


def drawn(model, seed=0):
    """Gives it weights that make states and attention differ much."""
    draw_weights(model, seed)
    model.set_weights([weight * 2 for weight in model.get_weights()])
    return model


@functools.cache
def model_of(kind, num_layers=(1, 2)):
    return small(num_layers=num_layers, **KINDS[kind])


@functools.cache
def programs(model, beams=1):
    """Its call, `begin` and `step`; each loop is compiled anew without."""

    def begin(source_ids):
        return model.begin(source_ids, 4, beams, return_attention=True)

    functions = (lambda batch: model(batch), begin, model.step)
    return [runtime.compiled(f, model, jit_compile=False) for f in functions]


def logits_of(model, source=SOURCE, target=TARGET):
    rows = np.arange(6) % len(source)  # one shape for all tests
    batch = {"source_ids": source[rows], "target_ids": target[rows]}
    batch = keras.tree.map_structure(ops.convert_to_tensor, batch)
    return numpy(programs(model)[0](batch))[: len(source)]


def begun(model, source=SOURCE, beams=1):
    return programs(model, beams)[1](ops.convert_to_tensor(source))


def stepped(model, ids, index, cache):
    arguments = (ops.convert_to_tensor(x, "int32") for x in (ids, index))
    return programs(model, ids.shape[1])[2](*arguments, cache)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gru(w, x, state):
    """Cho et al. 2014, the reset gate after the product."""
    (h,), bias = state, w["bias"]
    xz, xr, xn = np.split(x @ w["kernel"] + bias[0], 3)
    hz, hr, hn = np.split(h @ w["recurrent_kernel"] + bias[1], 3)
    z, r = sigmoid(xz + hz), sigmoid(xr + hr)
    return (z * h + (1 - z) * np.tanh(xn + r * hn),)


def lstm(w, x, state):
    """Hochreiter and Schmidhuber 1997, with the forget gate of Gers 2000."""
    h, c = state
    gates = x @ w["kernel"] + h @ w["recurrent_kernel"] + w["bias"]
    i, f, new, o = np.split(gates, 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(new)
    return sigmoid(o) * np.tanh(c), c


STEPS, STATES = {"gru": gru, "lstm": lstm}, {"gru": 1, "lstm": 2}


def read(w, cell, x):
    """States of one layer after each of `x (S, D)`, from zeros."""
    state, actual = (np.zeros(U),) * STATES[cell], []
    for each in x:
        state = STEPS[cell](below(w, f"{cell}_cell"), each, state)
        actual.append(state[0])
    return np.stack(actual)


def network(model, source, target):
    """Logits `(T, V)` and attention `(T, S)` of one row without padding."""
    w = {w.path: numpy(w).astype("float64") for w in model.weights}
    cell, attention = model.config["cell"], model.config["attention"]
    table = w["embedding/token_embedding/embeddings"]
    memory, depth = table[source], len(model.decoder.layers)
    for i in range(model.encoder.num_layers):
        forward = read(below(w, f"encoder/forward_{i}"), cell, memory)
        backward = read(below(w, f"encoder/backward_{i}"), cell, memory[::-1])[::-1]
        memory = np.concatenate([forward, backward], axis=-1)
    w = below(w, "decoder")
    parts = np.tanh(memory[0, U:] @ w["bridge/kernel"] + w["bridge/bias"])
    each = STATES[cell]
    parts = np.split(parts, depth * each)
    state = [tuple(parts[i * each :][:each]) for i in range(depth)]
    layers = [below(w, f"layer_{i}/{cell}_cell") for i in range(depth)]

    def attend(h):
        if attention == "additive":
            sums = h @ w["attention/query/kernel"] + memory @ w["attention/key/kernel"]
            weights = softmax(np.tanh(sums) @ w["attention/score/vector"][0, :, 0])
        else:
            weights = softmax(h @ (memory @ w["key/kernel"]).T)
        maps.append(weights)
        return weights @ memory

    logits, maps = [], []
    for x in table[target]:
        if attention == "additive":
            context = attend(state[0][0])
            h = x
            for i in range(depth):
                state[i] = STEPS[cell](layers[i], np.r_[h, context], state[i])
                h = state[i][0]
            both = np.r_[h, x, context] @ w["readout/kernel"]
            both = (both + w["readout/bias"]).reshape(2, D)  # of maxout
            hidden = both.max(axis=0)
        else:
            h = x
            for i in range(depth):
                state[i] = STEPS[cell](layers[i], h, state[i])
                h = state[i][0]
            hidden = np.tanh(np.r_[attend(h), h] @ w["readout/kernel"])
        logits.append(hidden @ table.T)
    return np.stack(logits), np.stack(maps)
