"""Encoder and SequenceClassifier."""

import json
import math

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfm.layers import SinusoidalPositions
from keras_tfm.models import Encoder, SequenceClassifier
from tests.layers import formulas
from tests.layers.formulas import below, draw_weights, numpy

V, D, C = 13, 8, 3
IDS = np.array([[2, 8, 6, 11, 3], [2, 10, 3, 0, 0]], "int32")
SEGMENTS = np.array([[0, 0, 1, 1, 1], [0, 0, 0, 0, 0]], "int32")
SINGLE, PAIR = {"token_ids": IDS}, {"token_ids": IDS, "segment_ids": SEGMENTS}
BERT = {
    "num_segments": 2,
    "positions": "learned",
    "sequence_length": 6,
    "normalize_embedding": True,
    "activation": "gelu",
    "epsilon": 1e-12,
}
KINDS = {
    "paper's": ({}, SINGLE),
    "pre-norm": ({"normalize_first": True, "positions": "rotary"}, SINGLE),
    "BERT's": (BERT, PAIR),
}


def encoder(seed=0, **settings):
    sizes = {"embedding_dim": D, "intermediate_dim": 12, "num_heads": 2}
    settings = {"num_layers": 2, "dropout": 0.0, **sizes, **settings}
    return draw_weights(Encoder(V, **settings), seed)


def classifier(inner=None, **settings):
    settings = {"dropout": 0.0, **settings}
    return draw_weights(SequenceClassifier(inner or encoder(), C, **settings), 3)


def run(model, inputs):
    return numpy(model({name: np.asarray(x) for name, x in inputs.items()}))


def gelu(x):
    return x * (1 + np.vectorize(math.erf)(x / 2**0.5)) / 2


def test_the_encoder_computes_the_formula_of_bert():
    """Devlin et al. 2019, section 3.2: tokens, positions and segments added."""
    model = encoder(**BERT)
    w = {w.path: numpy(w).astype("float64") for w in model.weights}
    x = w["embedding/token_embedding/embeddings"][IDS]
    x = x + w["embedding/positions/embeddings"][:5]
    x = x + w["segment_embedding/embeddings"][SEGMENTS]
    x = formulas.normalize(below(w, "embedding_norm"), x, 1e-12)
    mask = (IDS != 0)[:, None]
    for i in range(2):
        settings = {"epsilon": 1e-12, "activation": gelu}
        x = formulas.block(below(w, f"encoder_{i}"), x, mask=mask, **settings)
    np.testing.assert_allclose(run(model, PAIR), x, atol=5e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_and_batch_order_do_not_change_logits(kind):
    settings, inputs = KINDS[kind]
    model = classifier(encoder(**settings))
    whole = run(model, inputs)
    alone = run(model, {name: x[1:, :3] for name, x in inputs.items()})
    np.testing.assert_allclose(alone[0], whole[1], atol=1e-5)
    reversed_batch = run(model, {name: x[::-1] for name, x in inputs.items()})
    np.testing.assert_allclose(reversed_batch[::-1], whole, atol=1e-5)


def test_batch_statistics_exclude_padding():
    settings = {"normalize_first": True, "normalization": "batch_norm"}
    wide = np.pad(IDS, ((0, 0), (0, 3)))
    actual = []
    for ids in (IDS, wide):
        model = encoder(**settings, normalize_embedding=True)
        actual.append(numpy(model({"token_ids": ids}, training=True))[:, :5])
    real = IDS != 0
    np.testing.assert_allclose(actual[0][real], actual[1][real], atol=1e-4)
    quiet = run(model, SINGLE)  # with moving averages
    assert abs(quiet - actual[0])[real].max() > 1e-2


def test_padding_may_have_another_id():
    """As in RoBERTa, where padding is 1, and 0 is a token."""
    swapped = np.where(IDS == 0, 1, IDS)
    model, reference = encoder(pad_id=1), encoder()
    embeddings = reference.weights[0]
    np.testing.assert_allclose(
        run(model, {"token_ids": swapped})[1, :3],
        run(reference, SINGLE)[1, :3],
        atol=1e-5,
    )
    assert embeddings.shape == (V, D)
    real = run(reference, {"token_ids": swapped})[1, :3]
    assert abs(real - run(reference, SINGLE)[1, :3]).max() > 1e-3
    classification_model = classifier(model)
    short = run(classification_model, {"token_ids": swapped[1:, :3]})
    np.testing.assert_allclose(
        short[0], run(classification_model, {"token_ids": swapped})[1], atol=1e-5
    )


@pytest.mark.parametrize("kind", KINDS)
def test_attention_maps_sum_to_one_and_exclude_padding(kind):
    settings, inputs = KINDS[kind]
    model = encoder(**settings)
    maps = model.attention_maps(inputs)
    assert [tuple(weights.shape) for weights in maps] == [(2, 2, 5, 5)] * 2
    for weights in maps:
        np.testing.assert_allclose(numpy(weights).sum(-1), 1, atol=1e-5)
        assert numpy(weights)[1, :, :, 3:].max() == 0


@pytest.mark.parametrize("pooling", ["attention", "mean", "max", "first"])
def test_a_classifier_pools_and_projects(pooling):
    inner = encoder()
    model = classifier(inner, pooling=pooling, hidden_dim=4)
    hidden, real = run(inner, SINGLE).astype("float64"), IDS != 0
    w = {w.path: numpy(w).astype("float64") for w in model.weights}
    if pooling == "attention":
        scores = hidden @ w["pooling/queries"][0] / D**0.5
        weights = formulas.softmax(np.where(real, scores, -1e300))
        actual = numpy(model.pooling_weights(SINGLE))
        np.testing.assert_allclose(actual, weights, atol=1e-5)
        pooled = np.einsum("bs,bsd->bd", weights, hidden)
    elif pooling == "first":
        pooled = hidden[:, 0]
    elif pooling == "max":
        pooled = np.where(real[..., None], hidden, -np.inf).max(1)
    else:
        pooled = np.stack(
            [hidden[i, is_real].mean(0) for i, is_real in enumerate(real)]
        )
    pooled = np.tanh(pooled @ w["hidden/kernel"] + w["hidden/bias"])
    expected = pooled @ w["logits/kernel"] + w["logits/bias"]
    np.testing.assert_allclose(run(model, SINGLE), expected, atol=1e-5)
    if pooling != "attention":
        with pytest.raises(
            ValueError, match=f"needs pooling='attention'; got pooling='{pooling}'"
        ):
            model.pooling_weights(SINGLE)


def test_probabilities_are_a_softmax_or_with_multi_label_sigmoids():
    logits = np.array([[0.0, 1.0, -2.0]], "float32")
    distribution = numpy(classifier().probabilities(logits))
    np.testing.assert_allclose(distribution, formulas.softmax(logits), atol=1e-6)
    label_probabilities = numpy(classifier(multi_label=True).probabilities(logits))
    np.testing.assert_allclose(
        label_probabilities, 1 / (1 + np.exp(-logits)), atol=1e-6
    )


@pytest.mark.backend("torch")
@pytest.mark.parametrize("multi_label", [False, True])
def test_training_learns_the_labels(multi_label):
    model = classifier(encoder(num_layers=1), multi_label=multi_label)
    labels, loss = np.array([2, 0]), "SparseCategoricalCrossentropy"
    if multi_label:
        labels = np.array([[1, 0, 1], [0, 1, 0]], "float32")
        loss = "BinaryCrossentropy"
    loss = getattr(keras.losses, loss)(from_logits=True)
    model.compile(keras.optimizers.Adam(0.03), loss)
    initial = [numpy(weight) for weight in model.weights]
    model.fit(SINGLE, labels, epochs=30, verbose=0)
    actual = numpy(model.probabilities(model(SINGLE)))
    if multi_label:
        np.testing.assert_array_equal(actual > 0.5, labels == 1)
    else:
        assert actual.argmax(-1).tolist() == [2, 0]
    for weight, initial_value in zip(model.weights, initial, strict=True):
        if "key/bias" not in weight.path:  # a softmax does not depend on it
            assert abs(numpy(weight) - initial_value).max() > 0, weight.path


@pytest.mark.parametrize(
    "positions", [lambda: "shaw", lambda: SinusoidalPositions("halves")]
)
def test_a_saved_model_has_the_same_config_and_logits(positions, tmp_path):
    inner = encoder(
        positions=positions(), num_segments=2, activation=keras.activations.silu
    )
    settings = {"hidden_dim": 4, "hidden_activation": "relu", "dropout": 0.2}
    model = SequenceClassifier(
        inner, C, "mean", multi_label=True, name="labels", **settings
    )
    model.save(str(tmp_path / "model.keras"))
    loaded = keras.models.load_model(str(tmp_path / "model.keras"))
    np.testing.assert_allclose(run(loaded, PAIR), run(model, PAIR), atol=1e-6)
    config = json.loads(json.dumps(model.get_config()))
    assert json.loads(json.dumps(loaded.get_config())) == config
    assert loaded.multi_label and loaded.name == "labels"
    encoder_path = tmp_path / "encoder.keras"
    inner.save(str(encoder_path))
    loaded_encoder = keras.models.load_model(str(encoder_path))
    np.testing.assert_allclose(run(loaded_encoder, PAIR), run(inner, PAIR), atol=1e-6)


def test_lora_and_a_frozen_encoder_limit_the_trainable_weights():
    model = classifier(encoder(num_layers=1))
    model.encoder.trainable = False
    names = {weight.path.split("/")[0] for weight in model.trainable_weights}
    assert names == {"pooling", "logits"}
    model = classifier(encoder(num_layers=1))
    model.encoder.enable_lora(2)
    inside = [w.path for w in model.encoder.trainable_weights]
    assert len(inside) == 4 and all("lora" in path for path in inside)


def test_half_precision_computes_close_float32_logits():
    whole = run(classifier(encoder(**BERT)), PAIR)
    half = classifier(encoder(**BERT, dtype="mixed_bfloat16"))
    actual = half(PAIR)
    assert half.pooling_layer.compute_dtype == "bfloat16"
    assert ops.dtype(actual) == "float32"  # bfloat16 would make close logits equal
    assert (numpy(actual) != numpy(ops.cast(actual, "bfloat16"))).any()
    np.testing.assert_allclose(numpy(actual), whole, atol=0.1)


@pytest.mark.parametrize(
    ("make_model", "message"),
    [
        (
            lambda: SequenceClassifier(encoder(), 1),
            "got num_classes=1, multi_label=False",
        ),
        (
            lambda: SequenceClassifier(encoder(), 2, "last"),
            "one of .*'attention'.*got pooling='last'",
        ),
        (lambda: Encoder(V, pad_id=V), "pad_id=13, vocabulary_size=13"),
        (lambda: Encoder(V, num_segments=-1), "num_segments=-1"),
    ],
)
def test_wrong_arguments_are_rejected(make_model, message):
    with pytest.raises(ValueError, match=message):
        make_model()
