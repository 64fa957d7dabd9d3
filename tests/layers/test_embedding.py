"""TokenAndPositionEmbedding: scale, tying, masks, and dense gradients."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfm.layers import (
    LearnedPositions,
    SinusoidalPositions,
    TokenAndPositionEmbedding,
)
from tests.layers import formulas
from tests.layers.contract import check_layer
from tests.layers.formulas import below, draw, draw_weights, numpy, weights_of
from tests.layers.gradients import gradient
from tests.layers.test_positions import paper

IDS = np.array([[3, 1, 3, 0], [2, 0, 0, 0]], "int32")


def make_layer(ids=IDS, **settings):
    layer = TokenAndPositionEmbedding(**{"vocabulary_size": 6, **settings})
    layer(ids)
    return draw_weights(layer), *weights_of(layer).values()


def test_embeddings_are_scaled_by_the_root_of_the_dimension():
    layer, matrix = make_layer(embedding_dim=8)
    expected = matrix[IDS] * np.sqrt(8) + paper(4, 8)
    np.testing.assert_allclose(numpy(layer(IDS)), expected, atol=1e-5)
    np.testing.assert_allclose(numpy(layer(IDS, training=True)), expected, atol=1e-5)


def test_learned_positions_are_added_without_a_scale():
    layer, matrix, rows = make_layer(
        embedding_dim=8, positions="learned", sequence_length=5
    )
    for training in (False, True):
        output = numpy(layer(IDS, training=training))
        np.testing.assert_allclose(output, matrix[IDS] + rows[:4], atol=1e-5)
    layer, matrix = make_layer(embedding_dim=8, scale=False, positions=None)
    np.testing.assert_allclose(numpy(layer(IDS)), matrix[IDS], atol=1e-6)
    layer, matrix = make_layer(embedding_dim=8, positions=None)
    np.testing.assert_allclose(numpy(layer(IDS)), matrix[IDS] * 8**0.5, atol=1e-5)


def test_scale_and_normalization_can_be_set():
    layer, matrix, rows = make_layer(
        embedding_dim=8, positions="learned", sequence_length=5, scale=True
    )
    expected = matrix[IDS] * 8**0.5 + rows[:4]
    np.testing.assert_allclose(numpy(layer(IDS)), expected, atol=1e-5)
    for kind in ("layer_norm", "rms_norm"):
        layer = TokenAndPositionEmbedding(
            6, embedding_dim=8, normalization=kind, epsilon=0.5
        )
        layer(IDS)
        draw_weights(layer)
        w = weights_of(layer)
        x = w["token_embedding/embeddings"][IDS] * np.sqrt(8) + paper(4, 8)
        expected = formulas.normalize(below(w, "norm"), x, 0.5)
        np.testing.assert_allclose(numpy(layer(IDS)), expected, atol=1e-5)


def test_logits_bias_is_added_for_any_number_of_vectors():
    layer = TokenAndPositionEmbedding(6, embedding_dim=8, logits_bias=True)
    layer(IDS)
    draw_weights(layer)
    w = weights_of(layer)
    for num_vectors in (3, 70):  # a few vectors are projected in another order
        hidden = draw(num_vectors, 8)
        expected = hidden @ w["token_embedding/embeddings"].T + w["bias"]
        logits = numpy(layer.as_logits(ops.convert_to_tensor(hidden)))
        np.testing.assert_allclose(logits, expected, atol=1e-5)
    assert TokenAndPositionEmbedding.from_config(layer.get_config()).logits_bias


def test_tied_embeddings_share_one_matrix():
    source, target = (
        TokenAndPositionEmbedding(
            6, embedding_dim=8, positions="learned", sequence_length=length
        )
        for length in (4, 5)
    )
    target.tie_embeddings(source)
    source(IDS), target(IDS)
    assert target.embeddings is source.embeddings
    assert len(source.weights) == len(target.weights) == 2


def test_tokens_and_positions_start_with_equal_variance():
    for positions, spread in [("sinusoidal", 1.0), ("learned", 64**-0.5)]:
        layer = TokenAndPositionEmbedding(
            800,
            embedding_dim=64,
            positions=positions,
            sequence_length=900 if positions == "learned" else None,
        )
        layer(IDS)
        start = layer.get_weights()
        assert abs(start[0].std() * 8 - 1) < 0.05  # of the matrix: D ** -0.5
        assert abs((start[0] * layer.factor).std() / spread - 1) < 0.05
        if positions == "learned":
            assert abs(start[1].std() * 8 - 1) < 0.05
    logits = numpy(layer.as_logits(draw(50, 64)))
    assert abs(logits.std() - 1) < 0.1


def test_logits_are_the_product_with_the_transposed_matrix():
    layer, matrix = make_layer(embedding_dim=8)
    for hidden in (draw(2, 3, 8), draw(2, 8)):
        logits = numpy(layer.as_logits(ops.convert_to_tensor(hidden)))
        np.testing.assert_allclose(logits, hidden @ matrix.T, atol=1e-5)


def test_logits_of_masked_vectors_give_no_warning():
    layer, matrix = make_layer(embedding_dim=8, mask_zero=True)
    hidden = layer(IDS)
    assert getattr(hidden, "_keras_mask", None) is not None
    logits = numpy(layer.as_logits(hidden))  # a warning is an error here
    np.testing.assert_allclose(logits, numpy(hidden) @ matrix.T, atol=1e-4)


def test_logits_keep_the_compute_dtype_inside_a_model():
    hidden = keras.Input((None, 8))
    layer = TokenAndPositionEmbedding(6, embedding_dim=8, dtype="mixed_bfloat16")
    layer(IDS)
    model = keras.Model(hidden, layer.as_logits(hidden))
    model.dtype_policy = "mixed_bfloat16"
    assert keras.backend.standardize_dtype(model(draw(1, 3, 8)).dtype) == "bfloat16"


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_a_tied_model_is_saved_and_cloned_with_one_matrix(positions, tmp_path):
    embedding = TokenAndPositionEmbedding(
        6,
        embedding_dim=8,
        sequence_length=5 if positions == "learned" else None,
        positions=positions,
        mask_zero=True,
    )
    ids = keras.Input((None,), dtype="int32")
    hidden = keras.layers.Dense(8)(embedding(ids))
    model = keras.Model(ids, embedding.as_logits(hidden))
    expected = numpy(model(IDS))
    assert expected.shape == (2, 4, 6)
    assert model.layers.count(embedding) == 1
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    model.save(tmp_path / "tied.keras")
    for copy in (clone, keras.models.load_model(tmp_path / "tied.keras")):
        assert len(copy.weights) == len(model.weights)
        np.testing.assert_allclose(numpy(copy(IDS)), expected, atol=1e-6)
        matrix = copy.weights[0]
        matrix.assign(matrix * 2.0)  # changes both embeddings and logits
        assert np.abs(numpy(copy(IDS)) / expected - 2).max() > 0.1


def test_logits_may_be_computed_before_embeddings():
    embedding = TokenAndPositionEmbedding(6, embedding_dim=8)
    hidden = np.ones((2, 3, 8), "float32")
    np.testing.assert_allclose(
        numpy(embedding.as_logits(hidden)),
        hidden @ numpy(embedding.embeddings).T,
        atol=1e-5,
    )
    embedding(IDS)
    learned = TokenAndPositionEmbedding(
        6, embedding_dim=8, sequence_length=4, positions="learned"
    )
    assert learned.as_logits(np.ones((3, 8), "float32")).shape == (3, 6)
    assert learned(IDS).shape == (2, 4, 8)


def test_source_target_and_output_train_one_matrix():
    layer = TokenAndPositionEmbedding(6, embedding_dim=8)
    source, target = (keras.Input((None,), dtype="int32") for _ in range(2))
    hidden = layer(target) + ops.mean(layer(source), axis=1, keepdims=True)
    model = keras.Model([source, target], layer.as_logits(hidden))
    assert [weight.shape for weight in model.weights] == [(6, 8)]
    initial = model.get_weights()[0].copy()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.train_on_batch([IDS[:, :1], IDS[:, 1:2]], IDS[:, 2:3])
    # Tokens 4 and 5 are in no sequence: only the output projection trains them.
    assert (model.get_weights()[0] != initial).any(axis=1).all()


@pytest.mark.parametrize("factor", [True, False])
def test_the_gradient_of_a_repeated_id_is_its_sum(factor):
    layer, matrix = make_layer(embedding_dim=8, scale=factor, positions=None)
    upstream = draw(2, 4, 8, seed=5)

    def loss(values):
        with keras.StatelessScope([(layer.weights[0], values)]):
            return ops.sum(ops.multiply(layer(IDS, training=True), upstream))

    expected = np.zeros_like(matrix)
    np.add.at(expected, IDS, upstream * (8**0.5 if factor else 1))
    actual = gradient(loss, matrix.astype("float32"))
    np.testing.assert_allclose(actual, expected, atol=1e-5)


@pytest.mark.backend("tensorflow")
@pytest.mark.parametrize("settings", [{}, {"scale": False}], ids=["scaled", "plain"])
def test_tensorflow_gets_a_dense_gradient_in_training(settings):
    import tensorflow as tf

    layer, _ = make_layer(embedding_dim=8, **settings)

    @tf.function
    def check_kinds():
        gradients = []
        for training in (True, False):
            with tf.GradientTape() as tape:
                value = tf.reduce_sum(layer(tf.constant(IDS), training=training))
            gradients.append(tape.gradient(value, layer.weights[0].value))
        assert isinstance(gradients[0], tf.Tensor)
        assert isinstance(gradients[1], tf.IndexedSlices)  # TensorFlow's default
        return tf.constant(0)

    check_kinds()


def test_an_offset_selects_later_positions():
    layer, _ = make_layer(embedding_dim=8)
    whole = numpy(layer(IDS))
    for offset in (2, ops.convert_to_tensor(2, "int32")):
        output = numpy(layer(IDS[:, 2:], offset=offset))
        np.testing.assert_allclose(output, whole[:, 2:], atol=1e-6)
    assert abs(numpy(layer(IDS[:, 2:])) - whole[:, 2:]).max() > 0.1  # it can fail


@pytest.mark.parametrize("mask_zero", [True, False])
def test_mask_zero_masks_padding(mask_zero):
    layer = TokenAndPositionEmbedding(6, embedding_dim=8, mask_zero=mask_zero)
    mask = layer.compute_mask(ops.convert_to_tensor(IDS))
    if mask_zero:
        np.testing.assert_array_equal(numpy(mask), IDS != 0)
    else:
        assert mask is None


def test_dropout_acts_on_the_sum_in_training_only():
    layer, matrix = make_layer(embedding_dim=8, dropout=0.5)
    still, trained = numpy(layer(IDS)), numpy(layer(IDS, training=True))
    is_dropped = trained == 0
    assert 0.2 < is_dropped.mean() < 0.8
    np.testing.assert_allclose(trained[~is_dropped], 2 * still[~is_dropped], rtol=1e-5)


def test_positions_may_be_a_layer():
    layer, _ = make_layer(embedding_dim=8, positions=SinusoidalPositions("halves"))
    rebuilt = TokenAndPositionEmbedding.from_config(layer.get_config())
    assert rebuilt.position_layer.style == "halves"
    rebuilt(IDS)
    rebuilt.set_weights(layer.get_weights())
    np.testing.assert_array_equal(numpy(rebuilt(IDS)), numpy(layer(IDS)))


# The bias belongs to the logits, which an embedding lookup does not compute.
@pytest.mark.filterwarnings("ignore:Gradients do not exist for variables .*/bias")
@pytest.mark.parametrize(
    "positions",
    [lambda: "learned", lambda: LearnedPositions(9, combine="concat")],
    ids=["name", "layer"],
)
def test_layer_meets_the_contract(positions, tmp_path):
    settings = {
        "sequence_length": 9,
        "positions": positions(),
        "seed": 5,
        "embeddings_regularizer": "l2",
        "embeddings_constraint": "non_neg",
        "scale": False,
        "normalization": "rms_norm",
        "epsilon": 0.1,
        "dropout": 0.1,
        "logits_bias": True,
        "mask_zero": True,
        "embeddings_initializer": "uniform",
    }
    layer = TokenAndPositionEmbedding(6, embedding_dim=8, **settings)
    check_layer(layer, IDS, folder=tmp_path)
