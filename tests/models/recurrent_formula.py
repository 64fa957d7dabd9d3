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
D, U, LENGTHS = 8, 6, (4, 2)  # lengths of the sequences of SOURCE
KINDS = {
    f"{cell} {attention}": {"cell": cell, "attention": attention}
    for cell in ("gru", "lstm")
    for attention in ("additive", "multiplicative")
}
all_kinds = pytest.mark.parametrize("kind", KINDS)


def small(seed=0, **settings):
    """Makes a small model; `settings` override its arguments."""
    sizes = {"num_layers": 1, "embedding_dim": D, "units": U, "dropout": 0.0}
    return with_drawn_weights(RecurrentSeq2Seq(V, **{**sizes, **settings}), seed)


def with_drawn_weights(model, seed=0):
    """Sets weights that make states and attention differ clearly."""
    draw_weights(model, seed)
    model.set_weights([weight * 2 for weight in model.get_weights()])
    return model


@functools.cache
def model_of(kind, num_layers=(1, 2)):
    return small(num_layers=num_layers, **KINDS[kind])


@functools.cache
def compiled_functions(model, beams=1):
    """Returns the call, `begin` and `step` of a model, compiled once."""

    def begin(source_ids):
        return model.begin(source_ids, 4, beams, return_attention=True)

    functions = (lambda batch: model(batch), begin, model.step)
    return [runtime.compiled(f, model, jit_compile=False) for f in functions]


def logits_of(model, source=SOURCE, target=TARGET):
    indices = np.arange(6) % len(source)  # one shape for all tests
    batch = {"source_ids": source[indices], "target_ids": target[indices]}
    batch = keras.tree.map_structure(ops.convert_to_tensor, batch)
    return numpy(compiled_functions(model)[0](batch))[: len(source)]


def begin_cache(model, source=SOURCE, beams=1):
    return compiled_functions(model, beams)[1](ops.convert_to_tensor(source))


def run_step(model, ids, index, cache):
    arguments = (ops.convert_to_tensor(x, "int32") for x in (ids, index))
    return compiled_functions(model, ids.shape[1])[2](*arguments, cache)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gru(w, x, state):
    """Cho et al. 2014, with the reset gate after the product."""
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
    """Returns the states of one layer after each of `x (S, D)`, from zeros."""
    state, states = (np.zeros(U),) * STATES[cell], []
    for vector in x:
        state = STEPS[cell](below(w, f"{cell}_cell"), vector, state)
        states.append(state[0])
    return np.stack(states)


def network(model, source, target):
    """Logits `(T, V)` and attention `(T, S)` of one pair without padding."""
    w = {w.path: numpy(w).astype("float64") for w in model.weights}
    cell, attention = model.config["cell"], model.config["attention"]
    embeddings = w["embedding/token_embedding/embeddings"]
    memory, depth = embeddings[source], len(model.decoder.layers)
    for i in range(model.encoder.num_layers):
        forward = read(below(w, f"encoder/forward_{i}"), cell, memory)
        backward = read(below(w, f"encoder/backward_{i}"), cell, memory[::-1])[::-1]
        memory = np.concatenate([forward, backward], axis=-1)
    w = below(w, "decoder")
    bridge = np.tanh(memory[0, U:] @ w["bridge/kernel"] + w["bridge/bias"])
    count = STATES[cell]
    states = np.split(bridge, depth * count)
    state = [tuple(states[i * count :][:count]) for i in range(depth)]
    layers = [below(w, f"layer_{i}/{cell}_cell") for i in range(depth)]

    def attend(h):
        if attention == "additive":
            sums = h @ w["attention/query/kernel"] + memory @ w["attention/key/kernel"]
            weights = softmax(np.tanh(sums) @ w["attention/score/vector"][0, :, 0])
        else:
            weights = softmax(h @ (memory @ w["key/kernel"]).T)
        attention_rows.append(weights)
        return weights @ memory

    logits, attention_rows = [], []
    for x in embeddings[target]:
        if attention == "additive":
            context = attend(state[0][0])
            h = x
            for i in range(depth):
                state[i] = STEPS[cell](layers[i], np.r_[h, context], state[i])
                h = state[i][0]
            readout = np.r_[h, x, context] @ w["readout/kernel"]
            # Maxout: the greater of two values.
            readout = (readout + w["readout/bias"]).reshape(2, D)
            hidden = readout.max(axis=0)
        else:
            h = x
            for i in range(depth):
                state[i] = STEPS[cell](layers[i], h, state[i])
                h = state[i][0]
            hidden = np.tanh(np.r_[attend(h), h] @ w["readout/kernel"])
        logits.append(hidden @ embeddings.T)
    return np.stack(logits), np.stack(attention_rows)
