"""RecurrentSeq2Seq: one network by formula, by `call`, and step by step."""

import functools
import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_tfm import decode, runtime
from keras_tfm.decode.search_state import reorder_cache
from keras_tfm.models import RecurrentSeq2Seq
from keras_tfm.models.recurrent import RecurrentDecoder, RecurrentEncoder
from keras_tfm.pipelines import Translator
from keras_tfm.text import Vocabulary
from keras_tfm.training import ProjectedCrossentropy, SmoothedCrossentropy
from tests.decode.languages import assert_found, by_hand, log_softmax
from tests.layers.formulas import below, draw_weights, numpy, softmax
from tests.models.small import BATCH, LABELS, SOURCE, TARGET, V

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
    state, found = (np.zeros(U),) * STATES[cell], []
    for each in x:
        state = STEPS[cell](below(w, f"{cell}_cell"), each, state)
        found.append(state[0])
    return np.stack(found)


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


@every_kind
def test_the_whole_network_is_the_formula(kind):
    model = model_of(kind, 2) if kind == "gru additive" else model_of(kind)
    found = logits_of(model)
    for row, length in enumerate(LENGTHS):  # the formula knows no padding
        wanted, _ = network(model, SOURCE[row, :length], TARGET[row])
        np.testing.assert_allclose(found[row], wanted, atol=2e-5)
    assert found.std() > 0.1


def test_attention_maps_are_those_of_the_formula():
    model = model_of("lstm multiplicative")
    program = runtime.compiled(model.attention_maps, model, jit_compile=False)
    maps = program(ops.convert_to_tensor(SOURCE), ops.convert_to_tensor(TARGET))
    assert (maps["encoder"], maps["decoder"], len(maps["cross"])) == ([], [], 1)
    cross = numpy(maps["cross"][0])
    assert cross.shape == (2, 1, 5, 4)
    for row, length in enumerate(LENGTHS):
        _, wanted = network(model, SOURCE[row, :length], TARGET[row])
        np.testing.assert_allclose(cross[row, 0, :, :length], wanted, atol=1e-5)
        assert (cross[row, 0, :, length:] == 0).all()
    assert cross[0].std() > 0.01


@pytest.mark.backend("torch")
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_the_encoder_is_that_of_pytorch(cell):
    import torch

    encoder = RecurrentEncoder(U, num_layers=2, cell=cell)
    encoder.build((None, None, D))
    draw_weights(encoder)
    modules = {"gru": torch.nn.GRU, "lstm": torch.nn.LSTM}
    peer = modules[cell](D, U, 2, bidirectional=True, batch_first=True)

    def turned(weight):
        """Keras has the update gate of a GRU first, PyTorch the reset gate."""
        if cell == "lstm":
            return weight
        z, r, n = np.split(weight, 3, axis=-1)
        return np.concatenate([r, z, n], axis=-1)

    given = {}
    for end, layers in (("", "forward_layers"), ("_reverse", "backward_layers")):
        for i, layer in enumerate(getattr(encoder, layers)):
            kernel, recurrent, bias = (turned(numpy(w)) for w in layer.weights)
            biases = bias if cell == "gru" else (bias, np.zeros_like(bias))
            given |= {
                f"weight_ih_l{i}{end}": kernel.T,
                f"weight_hh_l{i}{end}": recurrent.T,
                f"bias_ih_l{i}{end}": biases[0],
                f"bias_hh_l{i}{end}": biases[1],
            }
    peer.load_state_dict({k: torch.tensor(v.copy()) for k, v in given.items()})
    x = np.random.default_rng(3).normal(size=(2, 4, D)).astype("float32")
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        torch.tensor(x), torch.tensor(LENGTHS), batch_first=True
    )
    wanted, _ = torch.nn.utils.rnn.pad_packed_sequence(peer(packed)[0], True)
    found = numpy(encoder(x, ops.convert_to_tensor(SOURCE != 0)))
    for row, length in enumerate(LENGTHS):
        wanted_row = wanted[row, :length].detach().numpy()
        np.testing.assert_allclose(found[row, :length], wanted_row, atol=1e-6)


@every_kind
@settings(max_examples=2)
@given(seed=st.integers(0, 999))
def test_steps_give_what_the_call_gives(kind, seed):
    """At every position, and for beams that change places."""
    rng, (rows, beams, length) = np.random.default_rng(seed), (2, 3, 5)
    model = model_of(kind)
    cache = begun(model, beams=beams)
    histories = np.full((rows, beams, 1), 2, "int32")
    found = []
    for t in range(length):
        logits, cache = stepped(model, histories[:, :, -1], t, cache)
        found.append(numpy(logits))
        parents = rng.integers(0, beams, (rows, beams)).astype("int32")
        found = [np.take_along_axis(x, parents[..., None], 1) for x in found]
        cache = reorder_cache(cache, ops.convert_to_tensor(parents))
        cache = model.extend(cache, length + t)
        histories = np.take_along_axis(histories, parents[..., None], 1)
        ids = rng.integers(3, V, (rows, beams, 1)).astype("int32")
        histories = np.concatenate([histories, ids], axis=-1)
    targets = histories[:, :, :length].reshape(rows * beams, length)
    wanted = logits_of(model, np.repeat(SOURCE, beams, axis=0), targets)
    found = np.stack(found, axis=2).reshape(wanted.shape)
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_the_future_padding_and_batch_order_change_nothing():
    model = model_of("gru additive")
    whole = logits_of(model)
    later = TARGET.copy()
    later[:, 3:] = 9
    changed = logits_of(model, target=later)
    np.testing.assert_allclose(changed[:, :3], whole[:, :3], atol=1e-5)
    assert abs(changed[:, 3:] - whole[:, 3:]).max() > 0.01  # it can fail
    turned = logits_of(model, SOURCE[::-1].copy(), TARGET[::-1].copy())
    np.testing.assert_allclose(turned[::-1], whole, atol=1e-5)
    wider = np.pad(SOURCE, [[0, 0], [0, 3]])
    np.testing.assert_allclose(logits_of(model, wider), whole, atol=1e-5)


def test_a_row_of_padding_gives_no_nan():
    source, target = SOURCE.copy(), TARGET.copy()
    source[1] = target[1] = 0
    logits = logits_of(model_of("gru additive"), source, target)
    assert np.isfinite(logits).all()
    wanted = logits_of(model_of("gru additive"))
    np.testing.assert_allclose(logits[0], wanted[0], atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "count"), [("gru additive", 2), ("lstm multiplicative", 4)]
)
def test_nothing_of_the_source_is_repeated_for_the_beams(kind, count):
    cache = begun(model_of(kind), beams=3)
    keys, values = cache["memory"]
    assert tuple(keys.shape) == (2, U, 4)
    assert tuple(values.shape) == (2, 4, 2 * U)
    own = keras.tree.flatten(cache["beams"])
    assert [tuple(x.shape) for x in own] == [(2, 3, U)] * count
    assert tuple(cache["attention"].shape) == (2, 3, 4)


@pytest.mark.backend("torch")
def test_tying_decides_how_many_tables_there_are():
    counts = {}
    for tie in ("all", "target", None):
        size = None if tie == "all" else 15
        model = small(tie=tie, target_vocabulary_size=size)
        shapes = [tuple(weight.shape) for weight in model.weights]
        sizes = ((V, D), (15, D), (D, 15))
        counts[tie] = [shapes.count(shape) for shape in sizes]
        assert model.target_vocabulary_size == (V if tie == "all" else 15)
    assert counts == {"all": [1, 0, 0], "target": [1, 1, 0], None: [1, 1, 1]}
    cache = model.begin(ops.convert_to_tensor(SOURCE), 4)
    candidates = ops.convert_to_tensor([[3, 5, 14]] * 2, "int32")
    few = model.begin(ops.convert_to_tensor(SOURCE), 4, candidates=candidates)
    logits, of_few = (model.step(TARGET[:, :1], 0, each)[0] for each in (cache, few))
    assert logits.shape == (2, 1, 15)
    wanted = numpy(logits)[..., [3, 5, 14]]
    np.testing.assert_allclose(numpy(of_few), wanted, atol=1e-5)


def test_depths_may_differ():
    model = small(num_layers=(3, 1), tie="target")
    assert (model.encoder.num_layers, model.decoder.num_layers) == (3, 1)
    assert len(model.encoder.backward_layers) == 3


EVERY_SETTING = {
    "num_layers": (1, 2),
    "embedding_dim": D,
    "units": U,
    "cell": "lstm",
    "attention": "multiplicative",
    "target_vocabulary_size": 15,
    "tie": None,
    "dropout": 0.2,
    "name": "translator",
}


def test_a_saved_model_comes_back_whole(tmp_path):
    model = drawn(RecurrentSeq2Seq(V, **EVERY_SETTING))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded) is RecurrentSeq2Seq
    np.testing.assert_allclose(logits_of(loaded), logits_of(model), atol=1e-6)
    config = json.loads(json.dumps(model.get_config()))
    assert json.loads(json.dumps(loaded.get_config())) == config
    assert {name: config[name] for name in EVERY_SETTING} == {
        **EVERY_SETTING,
        "num_layers": [1, 2],
    }
    for layer in (model.encoder, model.decoder):
        layer_config = layer.get_config()
        assert type(layer).from_config(layer_config).get_config() == layer_config
    hidden = model.hidden_model()
    hidden.save(tmp_path / "hidden.keras")
    loaded = keras.models.load_model(tmp_path / "hidden.keras")
    assert loaded.outputs[0].shape == (None, None, D)
    for found, own in zip(loaded.get_weights(), hidden.get_weights(), strict=True):
        np.testing.assert_array_equal(found, own)


@pytest.mark.backend("torch")
def test_dropout_reaches_its_layers_and_stops_where_it_decodes():
    model = small(dropout=0.5)
    for layer in (model.source_embedding, model.encoder, model.decoder):
        assert layer.dropout_layer.rate == 0.5
    program = runtime.compiled(
        lambda batch: model(batch, training=True), model, jit_compile=False
    )
    dropped = numpy(program(keras.tree.map_structure(ops.convert_to_tensor, BATCH)))
    wanted = logits_of(model_of("gru additive", 1))  # the same weights
    assert abs(dropped - wanted).max() > 0.1
    step, _ = stepped(model, TARGET[:, :1], 0, begun(model))
    np.testing.assert_allclose(numpy(step)[:, 0], wanted[:, 0], atol=1e-5)


@pytest.mark.backend("torch")
def test_dropout_is_between_layers_too(monkeypatch):
    model, seen = small(dropout=0.5, num_layers=3), []
    for layer in (model.encoder, model.decoder):
        monkeypatch.setattr(
            layer.dropout_layer, "call", lambda x, training: seen.append(training) or x
        )
    model(BATCH, training=True)
    assert seen == [True] * (2 + 3)  # the decoder drops of its output too
    seen.clear()
    model(BATCH)
    assert seen == [False] * 5


@pytest.mark.backend("torch")
def test_it_learns_to_turn_a_sequence_around():
    """By the hidden states, as the recipe trains it."""
    model = small(tie="target", dropout=0.05)
    network = model.hidden_model()
    network.compile(
        keras.optimizers.Adam(0.02), ProjectedCrossentropy(model.target_embedding)
    )
    hidden = network.predict_on_batch(BATCH)
    assert hidden.shape == (2, 5, D)
    found = numpy(model.as_logits(ops.convert_to_tensor(hidden)))
    np.testing.assert_allclose(found, logits_of(model), atol=1e-5)
    before = model.get_weights()
    rng, losses = np.random.default_rng(0), []
    for _ in range(40):
        source = rng.integers(4, 8, (16, 4)).astype("int32")
        labels = source[:, ::-1]
        target = np.hstack([np.full((16, 1), 2, "int32"), labels[:, :-1]])
        batch = {"source_ids": source, "target_ids": target}
        network.reset_metrics()
        losses.append(float(network.train_on_batch(batch, labels)))
    assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:5])
    same = [
        weight.path
        for weight, old in zip(model.weights, before, strict=True)
        if np.array_equal(numpy(weight), old)
    ]
    assert same == []  # each has a gradient


@pytest.mark.parametrize(
    ("policy", "kind"),
    [
        ("mixed_float16", "gru additive"),
        pytest.param(
            "mixed_bfloat16",
            "lstm multiplicative",
            marks=pytest.mark.backend("torch"),  # the fastest at it
        ),
    ],
)
def test_half_precision_says_nearly_the_same_and_trains(policy, kind):
    model = small(dtype=policy, **KINDS[kind])
    wanted = logits_of(model_of(kind, 1))
    assert keras.backend.standardize_dtype(model.outputs[0].dtype) == policy[6:]
    np.testing.assert_allclose(logits_of(model), wanted, atol=0.1)
    assert all(weight.dtype == "float32" for weight in model.weights)
    step, cache = stepped(model, TARGET[:, :1], 0, begun(model))
    assert keras.backend.standardize_dtype(step.dtype) == "float32"
    own = keras.tree.flatten(cache["beams"])
    assert {keras.backend.standardize_dtype(x.dtype) for x in own} == {policy[6:]}
    np.testing.assert_allclose(numpy(step)[:, 0], wanted[:, 0], atol=0.1)
    if kind != "gru additive":
        return
    model.compile("sgd", SmoothedCrossentropy())
    scaled = type(model.optimizer).__name__ == "LossScaleOptimizer"
    assert scaled
    assert np.isfinite(float(model.train_on_batch(BATCH, LABELS)))
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


@functools.cache
def search_model():
    """Says many things, and ends some of them."""
    return small(seed=23)


@pytest.mark.backend("torch")
def test_a_beam_goes_as_one_by_hand_by_the_formula():
    model, sources = search_model(), np.pad(SOURCE, [[0, 1], [0, 4]])
    options = {"return_attention": True, "jit_compile": False}
    beam = runtime.Decoder(
        model,
        decode.Options(
            beam_size=3, num_hypotheses=3, max_decoding_length=18, **options
        ),
    )
    found = beam(sources)

    def ask(histories):
        source = SOURCE[row, : LENGTHS[row]]
        logits = [network(model, source, [2, *ids])[0][-1] for ids in histories]
        return log_softmax(np.stack(logits), (0, 1, 2))

    for row in range(2):
        assert_found(found, row, by_hand(ask, 18, 3, 3), tolerance=1e-4)
    assert found.lengths[2].tolist() == [0, 0, 0]
    assert len({tuple(ids) for ids in found.ids[:2].reshape(6, -1)}) > 3
    assert found.lengths.max() == 18  # past the first room
    size = found.lengths[0, 0]
    _, wanted = network(model, SOURCE[0], [2, *found.ids[0, 0, : size - 1]])
    attention = found.attention[0, 0, :size, :4]
    np.testing.assert_allclose(attention, wanted, atol=1e-4)
    assert attention.std() > 0.01


@pytest.mark.backend("torch")  # the search of each backend is tested elsewhere
def test_rows_that_leave_and_join_a_batch_keep_their_states():
    draw = np.random.default_rng(0)
    rows = [draw.integers(4, V, n).tolist() for n in draw.integers(1, 6, 9)]
    search = runtime.Decoder(
        search_model(),
        decode.Options(beam_size=3, max_decoding_length=20, jit_compile=False),
    )
    for number, found in search.bulk(rows, batch_size=3):
        wanted = search([rows[number]])
        assert found.lengths.tolist() == wanted.lengths.tolist()
        size = min(found.ids.shape[-1], wanted.ids.shape[-1])
        assert found.ids[..., :size].tolist() == wanted.ids[..., :size].tolist()


@pytest.mark.backend("tensorflow")
def test_xla_compiles_what_a_search_calls():
    model = model_of("gru additive", 1)
    begin = runtime.compiled(lambda ids: model.begin(ids, 4), model)
    step = runtime.compiled(model.step, model)
    index = ops.convert_to_tensor(0, "int32")
    first = ops.convert_to_tensor(TARGET[:, :1])
    found, _ = step(first, index, begin(ops.convert_to_tensor(SOURCE)))
    wanted = logits_of(model)[:, 0]
    np.testing.assert_allclose(numpy(found)[:, 0], wanted, atol=1e-5)


@pytest.mark.backend("torch")
def test_it_decides_together_with_others():
    models = [model_of("gru additive"), model_of("lstm multiplicative")]
    ensemble = decode.Ensemble(models)
    cache = ensemble.extend(begun(ensemble, beams=2), 8)
    cache = reorder_cache(cache, ops.zeros((2, 2), "int32"))
    found, cache = stepped(ensemble, np.repeat(TARGET[:, :1], 2, axis=1), 0, cache)
    shares = [softmax(logits_of(model)[:, 0].astype("float64")) for model in models]
    wanted = np.log(np.mean(shares, axis=0))
    for beam in range(2):
        np.testing.assert_allclose(numpy(found)[:, beam], wanted, atol=1e-5)
    np.testing.assert_allclose(numpy(cache["attention"]).sum(-1), 1, atol=1e-5)


def test_a_translator_of_it_is_saved(tmp_path):
    texts = ["a house by the sea", "the old house", "", "sea"]
    vocabulary = Vocabulary.train(texts * 20, size=273)
    settings = {**model_of("gru additive").config, "vocabulary_size": 273}
    model = drawn(RecurrentSeq2Seq(**settings))
    options = {"beam_size": 2, "max_decoding_length": 5, "jit_compile": False}
    translator = Translator(model, vocabulary).replace(**options)
    translator.save(tmp_path / "model")
    loaded = Translator.load(tmp_path / "model")
    assert type(loaded.model) is RecurrentSeq2Seq
    pairs = zip(loaded.model.get_weights(), model.get_weights(), strict=True)
    assert all(np.array_equal(*pair) for pair in pairs)
    assert loaded.changes() == translator.changes()


ELSEWHERE = """
import json, sys
import keras
import numpy as np
import keras_tfm.models
whole = keras.models.load_model(sys.argv[1] + "/model.keras")
model = type(whole).from_config(whole.get_config())
model.load_weights(sys.argv[1] + "/model.weights.h5")
for own, other in zip(model.get_weights(), whole.get_weights(), strict=True):
    np.testing.assert_array_equal(own, other)
batch = {name: np.array(ids, "int32") for name, ids in json.loads(sys.argv[2]).items()}
print(json.dumps(keras.ops.convert_to_numpy(model(batch)).tolist()))
"""


@pytest.mark.backend("torch")
def test_one_file_gives_the_same_logits_on_another_backend(tmp_path):
    pytest.importorskip("tensorflow")
    model = small(num_layers=(1, 2), attention="additive", cell="lstm")
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    batch = json.dumps({name: ids.tolist() for name, ids in BATCH.items()})
    answer = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(tmp_path), batch],
        env={**os.environ, "KERAS_BACKEND": "tensorflow", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    found = json.loads(answer.stdout.splitlines()[-1])
    np.testing.assert_allclose(found, logits_of(model), atol=1e-5)


def test_wrong_arguments_are_rejected():
    sizes = {"embedding_dim": D, "units": U}
    for wrong, message in [
        ({"cell": "rnn"}, r"`cell` must be one of \['gru', 'lstm'\]; got cell='rnn'"),
        (
            {"attention": "dot"},
            "`attention` must be one of .*'additive'.*got attention='dot'",
        ),
        ({"tie": "both"}, "`tie` must be one of .*got tie='both'"),
        ({"target_vocabulary_size": 15}, "two vocabularies; got tie='all'.*13.*15"),
        ({"units": 0}, "`units` must be at least 1; got units=0"),
        ({"num_layers": 0}, "`num_layers` must be at least 1; got num_layers=0"),
    ]:
        with pytest.raises(ValueError, match=message):
            RecurrentSeq2Seq(V, **{**sizes, **wrong})
    with pytest.raises(ValueError, match="got 5 channels, units=6"):
        RecurrentDecoder(U).build((None, None, D), (None, None, 5))
