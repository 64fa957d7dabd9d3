"""Layers take what a user of Keras and KerasHub passes by habit."""

import inspect

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfm import layers
from tests.layers.formulas import draw, numpy

IDS = np.array([[4, 7, 2, 0, 0], [9, 9, 1, 3, 5]])
REAL = IDS != 0  # (B, S)
X = draw(2, 5, 8)
MEMORY = draw(2, 4, 8)
LAYERS = [
    layers.MultiHeadAttention(2),
    layers.Attention(),
    layers.TransformerEncoder(8, 2),
    layers.TransformerDecoder(8, 2),
    layers.SSRUDecoder(8, 2),
    layers.SSRU(),
    layers.Pooling(),
    layers.AttentionPooling(),
]


def embedding(**options):
    return layers.TokenAndPositionEmbedding(12, embedding_dim=8, **options)


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32"])
def test_a_sequential_model_begins_with_the_embedding(dtype):
    stack = [
        embedding(mask_zero=True),
        layers.TransformerEncoder(16, 2),
        layers.Pooling(),
        keras.layers.Dense(2),
    ]
    model = keras.Sequential(stack)
    output = model(IDS.astype(dtype))
    x = stack[0](IDS)
    expected = stack[1](x, padding_mask=REAL)
    expected = stack[3](stack[2](expected, padding_mask=REAL))
    np.testing.assert_allclose(numpy(output), numpy(expected), atol=1e-5)
    model.compile("adam", "mse")
    model.fit(IDS.astype(dtype), np.zeros((2, 2)), verbose=0)
    assert np.isfinite(model.predict(IDS.astype(dtype), verbose=0)).all()


def test_a_functional_model_takes_ids_as_floats():
    inputs = keras.Input((None,))
    x = embedding(mask_zero=True)(inputs)
    model = keras.Model(inputs, layers.Pooling()(x))
    expected = layers.Pooling()(model.layers[1](IDS), padding_mask=REAL)
    np.testing.assert_allclose(numpy(model(IDS)), numpy(expected), atol=1e-6)


def as_masks(real):
    """One mask in each of the forms in use."""
    return {
        "int32": real.astype("int32"),
        "uint8": real.astype("uint8"),
        "float32": real.astype("float32"),
        "additive": np.where(real, 0.0, -1e9).astype("float32"),
        "lowest": np.where(real, 0.0, np.finfo("float32").min).astype("float32"),
        "infinite": np.where(real, 0.0, -np.inf).astype("float32"),
    }


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
def test_every_form_of_a_padding_mask_is_the_boolean_one(layer):
    expected = numpy(layer(X, padding_mask=REAL))
    assert np.abs(expected - numpy(layer(X))).max() > 1e-3
    for form, mask in as_masks(REAL).items():
        actual = numpy(layer(X, padding_mask=mask))
        np.testing.assert_allclose(actual, expected, atol=1e-6, err_msg=form)


def test_every_form_of_an_attention_mask_is_the_boolean_one():
    layer, rows = layers.MultiHeadAttention(2), draw(2, 5, 5) > 0
    expected = numpy(layer(X, attention_mask=rows))
    for form, mask in as_masks(rows).items():
        actual = numpy(layer(X, attention_mask=mask))
        np.testing.assert_allclose(actual, expected, atol=1e-6, err_msg=form)


def test_an_additive_mask_without_padding_allows_everything():
    layer = layers.MultiHeadAttention(2)
    zeros = np.zeros((2, 5), "float32")
    actual = numpy(layer(X, padding_mask=zeros))
    np.testing.assert_allclose(actual, numpy(layer(X)), atol=1e-6)
    # Integers are never additive: here nothing may be attended to.
    nothing = numpy(layer(X, padding_mask=zeros.astype("int32")))
    np.testing.assert_allclose(nothing, 0, atol=1e-6)


@pytest.mark.parametrize("form", as_masks(REAL))
def test_a_compiled_model_reads_the_forms_of_a_mask(form):
    x, mask = keras.Input((5, 8)), as_masks(REAL)[form]
    symbol = keras.Input((5,), dtype=str(mask.dtype))
    layer = layers.TransformerEncoder(8, 2)
    model = keras.Model([x, symbol], layer(x, padding_mask=symbol))
    expected = numpy(layer(X, padding_mask=REAL))
    actual = model.predict([X, mask], verbose=0)
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def peers(**options):
    """Our attention and that of Keras, with the same weights."""
    layer = layers.MultiHeadAttention(2, 4, **options)
    peer = keras.layers.MultiHeadAttention(2, 4, **options)
    layer(X, MEMORY)
    peer(X, MEMORY)
    peer.set_weights(layer.get_weights())
    return layer, peer


def test_masks_of_query_value_and_key_are_those_of_keras():
    layer, peer = peers()
    masks = {
        "query_mask": REAL,
        "value_mask": np.array([[1, 1, 1, 0], [0, 1, 1, 1]], bool),
        "key_mask": np.array([[0, 1, 1, 1], [1, 1, 1, 0]], bool),
    }
    actual = numpy(layer(X, MEMORY, **masks))
    expected = numpy(peer(X, MEMORY, **masks))
    np.testing.assert_allclose(actual[REAL], expected[REAL], atol=1e-5)
    bias = layer.get_weights()[-1]
    # A masked query has an output of zero, before the bias.
    np.testing.assert_allclose(actual[~REAL], np.tile(bias, (2, 1)), atol=1e-6)
    # The implicit mask of the values does not come on top of an explicit one.
    masked = keras.layers.Masking()(MEMORY * REAL[:, :4, None])
    combined = numpy(layer(X, masked, padding_mask=masks["value_mask"]))
    plain = numpy(layer(X, MEMORY * REAL[:, :4, None], value_mask=masks["value_mask"]))
    np.testing.assert_allclose(combined, plain, atol=1e-6)


def test_the_decoder_takes_an_attention_mask_of_the_encoder():
    layer, mask = layers.TransformerDecoder(8, 2), np.ones((2, 5, 4), bool)
    mask[:, :, 3] = False
    actual = layer(X, MEMORY, encoder_attention_mask=mask.astype("int32"))
    expected = layer(X, MEMORY, encoder_padding_mask=mask[:, 0])
    np.testing.assert_allclose(numpy(actual), numpy(expected), atol=1e-6)
    # The order of KerasHub: its sixth argument is this mask.
    names = list(inspect.signature(layer.call).parameters)
    assert names.index("encoder_attention_mask") == 5
    x, memory = keras.Input((5, 8)), keras.Input((4, 8))
    symbol = keras.Input((5, 4), dtype="int32")
    model = keras.Model(
        [x, memory, symbol], layer(x, memory, encoder_attention_mask=symbol)
    )
    actual = model([X, MEMORY, mask.astype("int32")])
    np.testing.assert_allclose(numpy(actual), numpy(expected), atol=1e-6)


def test_one_seed_gives_one_dropout_and_each_sublayer_another():
    options = {"dropout": 0.5, "attention_dropout": 0.5, "activation_dropout": 0.5}
    outputs = []
    for seed in (3, 3, 4):
        block = layers.TransformerEncoder(16, 2, seed=seed, **options)
        block.build(X.shape)
        outputs.append(numpy(block.dropout_layer(ops.ones((4, 99)), training=True)))
    assert (outputs[0] == outputs[1]).all() and (outputs[0] != outputs[2]).any()
    parts = [block, block.self_attention, block.feed_forward]
    masks = [numpy(p.dropout_layer(ops.ones((4, 99)), training=True)) for p in parts]
    assert (masks[0] != masks[1]).any() and (masks[1] != masks[2]).any()
    assert [part.seed for part in parts] == [4, 6, 5]


def test_regularizers_and_constraints_are_those_of_keras():
    options = {"kernel_regularizer": "l2", "bias_regularizer": "l1"}
    options |= {"kernel_constraint": "max_norm", "bias_initializer": "ones"}
    layer, peer = peers(**options)
    for attention in (layer, peer):
        attention(X, MEMORY)
    losses = [sorted(map(numpy, attention.losses)) for attention in (layer, peer)]
    np.testing.assert_allclose(*losses, rtol=1e-4)
    constraints = [type(weight.constraint).__name__ for weight in layer.weights]
    assert constraints == [type(weight.constraint).__name__ for weight in peer.weights]
    block = layers.TransformerDecoder(8, 2, **options)
    block(X, MEMORY)
    assert len(block.losses) == 2 * 8 + 4  # attentions and feed-forward
    table = embedding(embeddings_regularizer="l2", embeddings_constraint="non_neg")
    table(IDS)
    assert len(table.losses) == 1
    assert type(table.embeddings.constraint).__name__ == "NonNeg"


@pytest.mark.backend("torch")
def test_training_is_none_by_default():
    for name in layers.__all__:
        call = getattr(getattr(layers, name), "call", None)
        parameters = inspect.signature(call).parameters if call else {}
        if "training" in parameters:
            assert parameters["training"].default is None, name
    block = layers.TransformerEncoder(8, 2, dropout=0.5)
    x = ops.convert_to_tensor(X)
    output = numpy(block(x, training=None))
    np.testing.assert_array_equal(numpy(block.call(x)), output)


@pytest.mark.parametrize(
    "layer",
    [*LAYERS, layers.Pooling("max"), layers.Pooling("first")],
    ids=lambda layer: layer.name,
)
def test_a_sequence_of_length_0_gives_an_empty_result_or_zeros(layer):
    layer(X)
    output = numpy(layer(X[:, :0]))
    assert output.shape == tuple(layer.compute_output_shape((len(X), 0, X.shape[2])))
    np.testing.assert_array_equal(output, 0.0)


@pytest.mark.backend("torch")
def test_arguments_in_the_order_of_another_library_are_rejected():
    with pytest.raises(TypeError, match="positional"):
        layers.TokenAndPositionEmbedding(100, 50, 8)
    with pytest.raises(TypeError, match="positional"):
        layers.TransformerEncoder(64, 4, 0.1)  # KerasHub: dropout
    with pytest.raises(TypeError, match="positional"):
        layers.MultiHeadAttention(2, 4, 4, 0.1)  # Keras: dropout


def test_ids_outside_the_vocabulary_are_one_error_on_every_backend():
    message = "ids of a vocabulary of 12 tokens, from 0 to 11; got numbers from 0 to 12"
    for ids in (IDS + 3 * (IDS > 8), ops.convert_to_tensor(IDS + 3 * (IDS > 8))):
        with pytest.raises(ValueError, match=message):
            embedding()(ids)
    with pytest.raises(ValueError, match="from -1 to 8"):
        embedding()(IDS - 1)
