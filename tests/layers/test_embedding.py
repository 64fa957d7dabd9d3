"""TokenAndPositionEmbedding: scale, tying, masks, and the gradient's kind."""

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


def made(ids=IDS, **settings):
    layer = TokenAndPositionEmbedding(**{"vocabulary_size": 6, **settings})
    layer(ids)
    return draw_weights(layer), *weights_of(layer).values()


def test_vectors_are_scaled_by_the_root_of_the_width_and_positions_added():
    layer, table = made(embedding_dim=8)
    wanted = table[IDS] * np.sqrt(8) + paper(4, 8)
    np.testing.assert_allclose(numpy(layer(IDS)), wanted, atol=1e-5)
    np.testing.assert_allclose(numpy(layer(IDS, training=True)), wanted, atol=1e-5)


def test_learned_positions_and_no_scale_leave_vectors_as_they_are():
    layer, table, rows = made(embedding_dim=8, positions="learned", sequence_length=5)
    for training in (False, True):
        output = numpy(layer(IDS, training=training))
        np.testing.assert_allclose(output, table[IDS] + rows[:4], atol=1e-5)
    layer, table = made(embedding_dim=8, scale=False, positions=None)
    np.testing.assert_allclose(numpy(layer(IDS)), table[IDS], atol=1e-6)
    layer, table = made(embedding_dim=8, positions=None)
    np.testing.assert_allclose(numpy(layer(IDS)), table[IDS] * 8**0.5, atol=1e-5)


def test_what_is_asked_for_is_scaled_and_normalised():
    layer, table, rows = made(
        embedding_dim=8, positions="learned", sequence_length=5, scale=True
    )
    wanted = table[IDS] * 8**0.5 + rows[:4]
    np.testing.assert_allclose(numpy(layer(IDS)), wanted, atol=1e-5)
    for kind in ("layer_norm", "rms_norm"):
        layer = TokenAndPositionEmbedding(6, 8, normalization=kind, epsilon=0.5)
        layer(IDS)
        draw_weights(layer)
        w = weights_of(layer)
        x = w["token_embedding/embeddings"][IDS] * np.sqrt(8) + paper(4, 8)
        wanted = formulas.normalize(below(w, "norm"), x, 0.5)
        np.testing.assert_allclose(numpy(layer(IDS)), wanted, atol=1e-5)
    with pytest.raises(ValueError, match="count padding.*'batch_norm'"):
        TokenAndPositionEmbedding(6, 8, normalization="batch_norm")


def test_logits_may_have_a_bias():
    layer = TokenAndPositionEmbedding(6, 8, logits_bias=True)
    layer(IDS)
    draw_weights(layer)
    w = weights_of(layer)
    for rows in (3, 70):  # few are projected in another order
        hidden = draw(rows, 8)
        wanted = hidden @ w["token_embedding/embeddings"].T + w["bias"]
        logits = numpy(layer.as_logits(ops.convert_to_tensor(hidden)))
        np.testing.assert_allclose(logits, wanted, atol=1e-5)
    assert TokenAndPositionEmbedding.from_config(layer.get_config()).logits_bias


def test_two_embeddings_may_have_one_table():
    one, two = (
        TokenAndPositionEmbedding(6, 8, positions="learned", sequence_length=length)
        for length in (4, 5)
    )
    two.tie_embeddings(one)
    one(IDS), two(IDS)
    assert two.embeddings is one.embeddings
    assert len(one.weights) == len(two.weights) == 2
    for other in (one, TokenAndPositionEmbedding(7, 8)):
        with pytest.raises(ValueError, match="Embeddings of one size share a table"):
            other.tie_embeddings(two)


def test_tokens_start_as_loud_as_positions_and_logits_at_variance_1():
    for positions, spread in [("sinusoidal", 1.0), ("learned", 64**-0.5)]:
        layer = TokenAndPositionEmbedding(
            800, 64, positions=positions, sequence_length=900
        )
        layer(IDS)
        start = layer.get_weights()
        assert abs(start[0].std() * 8 - 1) < 0.05  # of the table: D ** -0.5
        assert abs((start[0] * layer.factor).std() / spread - 1) < 0.05
        if positions == "learned":
            assert abs(start[1].std() * 8 - 1) < 0.05
    logits = numpy(layer.as_logits(draw(50, 64)))
    assert abs(logits.std() - 1) < 0.1


def test_logits_are_the_product_with_the_transposed_table():
    layer, table = made(embedding_dim=8)
    for hidden in (draw(2, 3, 8), draw(2, 8)):
        logits = numpy(layer.as_logits(ops.convert_to_tensor(hidden)))
        np.testing.assert_allclose(logits, hidden @ table.T, atol=1e-5)


def test_logits_of_vectors_that_carry_a_mask_are_taken_without_a_warning():
    layer, table = made(embedding_dim=8, mask_zero=True)
    hidden = layer(IDS)
    assert getattr(hidden, "_keras_mask", None) is not None
    logits = numpy(layer.as_logits(hidden))  # a warning is an error here
    np.testing.assert_allclose(logits, numpy(hidden) @ table.T, atol=1e-4)


def test_logits_keep_the_compute_dtype_inside_a_model_of_that_policy():
    hidden = keras.Input((None, 8))
    layer = TokenAndPositionEmbedding(6, 8, dtype="mixed_bfloat16")
    layer(IDS)
    model = keras.Model(hidden, layer.as_logits(hidden))
    model.dtype_policy = "mixed_bfloat16"
    assert keras.backend.standardize_dtype(model(draw(1, 3, 8)).dtype) == "bfloat16"


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_a_model_tied_to_its_output_is_saved_and_cloned_with_one_table(
    positions, tmp_path
):
    embedding = TokenAndPositionEmbedding(
        6, 8, sequence_length=5, positions=positions, mask_zero=True
    )
    ids = keras.Input((None,), dtype="int32")
    hidden = keras.layers.Dense(8)(embedding(ids))
    model = keras.Model(ids, embedding.as_logits(hidden))
    wanted = numpy(model(IDS))
    assert wanted.shape == (2, 4, 6)
    assert model.layers.count(embedding) == 1
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    model.save(tmp_path / "tied.keras")
    for other in (clone, keras.models.load_model(tmp_path / "tied.keras")):
        assert len(other.weights) == len(model.weights)
        np.testing.assert_allclose(numpy(other(IDS)), wanted, atol=1e-6)
        table = other.weights[0]
        table.assign(table * 2.0)  # felt at both ends
        assert np.abs(numpy(other(IDS)) / wanted - 2).max() > 0.1


def test_reverse_may_come_first_and_other_widths_are_refused():
    embedding = TokenAndPositionEmbedding(6, 8)
    hidden = np.ones((2, 3, 8), "float32")
    np.testing.assert_allclose(
        numpy(embedding.as_logits(hidden)),
        hidden @ numpy(embedding.embeddings).T,
        atol=1e-5,
    )
    embedding(IDS)
    learned = TokenAndPositionEmbedding(6, 8, 4, positions="learned")
    assert learned.as_logits(np.ones((3, 8), "float32")).shape == (3, 6)
    assert learned(IDS).shape == (2, 4, 8)
    for wrong in (np.ones((2, 3, 7), "float32"), np.ones((2, 8), "int32")):
        with pytest.raises(ValueError, match="floats of width 8"):
            embedding.as_logits(wrong)
    with pytest.raises(ValueError, match="floats of width 8"):
        embedding.as_logits(keras.Input((None, 7)))


def test_source_target_and_output_train_one_table():
    layer = TokenAndPositionEmbedding(6, 8)
    source, target = (keras.Input((None,), dtype="int32") for _ in range(2))
    joined = layer(target) + ops.mean(layer(source), axis=1, keepdims=True)
    model = keras.Model([source, target], layer.as_logits(joined))
    assert [weight.shape for weight in model.weights] == [(6, 8)]
    before = model.get_weights()[0].copy()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.train_on_batch([IDS[:, :1], IDS[:, 1:2]], IDS[:, 2:3])
    # 4 and 5 are in no sentence and are reached as outputs only.
    assert (model.get_weights()[0] != before).any(axis=1).all()


@pytest.mark.parametrize("factor", [True, False])
def test_the_gradient_of_a_repeated_id_is_its_sum(factor):
    layer, table = made(embedding_dim=8, scale=factor, positions=None)
    upstream = draw(2, 4, 8, seed=5)

    def heard(values):
        with keras.StatelessScope([(layer.weights[0], values)]):
            return ops.sum(ops.multiply(layer(IDS, training=True), upstream))

    wanted = np.zeros_like(table)
    np.add.at(wanted, IDS, upstream * (8**0.5 if factor else 1))
    found = gradient(heard, table.astype("float32"))
    np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.backend("tensorflow")
@pytest.mark.parametrize("settings", [{}, {"scale": False}], ids=["scaled", "plain"])
def test_tensorflow_gets_a_dense_gradient_in_training(settings):
    import tensorflow as tf

    layer, _ = made(embedding_dim=8, **settings)

    @tf.function
    def kinds():
        found = []
        for training in (True, False):
            with tf.GradientTape() as tape:
                value = tf.reduce_sum(layer(tf.constant(IDS), training=training))
            found.append(tape.gradient(value, layer.weights[0].value))
        assert isinstance(found[0], tf.Tensor)
        assert isinstance(found[1], tf.IndexedSlices)  # what it would be
        return tf.constant(0)

    kinds()


def test_offset_gives_later_positions():
    layer, _ = made(embedding_dim=8)
    whole = numpy(layer(IDS))
    for offset in (2, ops.convert_to_tensor(2, "int32")):
        part = numpy(layer(IDS[:, 2:], offset=offset))
        np.testing.assert_allclose(part, whole[:, 2:], atol=1e-6)
    assert abs(numpy(layer(IDS[:, 2:])) - whole[:, 2:]).max() > 0.1  # it can fail


@pytest.mark.parametrize("mask_zero", [True, False])
def test_mask_zero_marks_padding(mask_zero):
    layer = TokenAndPositionEmbedding(6, 8, mask_zero=mask_zero)
    mask = layer.compute_mask(ops.convert_to_tensor(IDS))
    if mask_zero:
        np.testing.assert_array_equal(numpy(mask), IDS != 0)
    else:
        assert mask is None


def test_dropout_takes_from_the_sum_in_training_only():
    layer, table = made(embedding_dim=8, dropout=0.5)
    still, dropped = numpy(layer(IDS)), numpy(layer(IDS, training=True))
    gone = dropped == 0
    assert 0.2 < gone.mean() < 0.8
    np.testing.assert_allclose(dropped[~gone], 2 * still[~gone], rtol=1e-5)


def test_a_layer_of_positions_may_be_given():
    layer, _ = made(embedding_dim=8, positions=SinusoidalPositions("halves"))
    again = TokenAndPositionEmbedding.from_config(layer.get_config())
    assert again.position_layer.style == "halves"
    again(IDS)
    again.set_weights(layer.get_weights())
    np.testing.assert_array_equal(numpy(again(IDS)), numpy(layer(IDS)))


@pytest.mark.parametrize("ids", [np.zeros((2, 3), "float32"), np.zeros(3, "int32")])
def test_what_is_not_ids_is_refused(ids):
    layer = TokenAndPositionEmbedding(6, 8, positions=None)
    with pytest.raises(ValueError, match=r"integers of shape \(batch, length\)") as e:
        layer(ids)
    assert f"shape={ids.shape}, dtype={ids.dtype}" in str(e.value)
    with pytest.raises(ValueError, match="integers of shape"):
        layer(keras.Input(batch_shape=ids.shape, dtype=str(ids.dtype)))


def test_wrong_settings_are_refused():
    for sizes in [(0, 8), (6, 0)]:
        size, width = sizes
        message = f"vocabulary_size={size}, embedding_dim={width}"
        with pytest.raises(ValueError, match=message):
            TokenAndPositionEmbedding(*sizes)
    with pytest.raises(ValueError, match="'sinusoidal', 'learned'.*'rotary'"):
        TokenAndPositionEmbedding(6, 8, positions="rotary")
    with pytest.raises(ValueError, match="sequence_length=None"):
        TokenAndPositionEmbedding(6, 8, positions="learned")
    with pytest.raises(ValueError, match="last axis must be even"):
        TokenAndPositionEmbedding(6, 7)(IDS)


# The bias is of the logits, which a lookup does not give.
@pytest.mark.filterwarnings("ignore:Gradients do not exist for variables .*/bias")
@pytest.mark.parametrize(
    "positions",
    [lambda: "learned", lambda: LearnedPositions(9, combine="concat")],
    ids=["name", "layer"],
)
def test_contract(positions, tmp_path):
    settings = {
        "sequence_length": 9,
        "positions": positions(),
        "scale": False,
        "normalization": "rms_norm",
        "epsilon": 0.1,
        "dropout": 0.1,
        "logits_bias": True,
        "mask_zero": True,
        "embeddings_initializer": "uniform",
    }
    layer = TokenAndPositionEmbedding(6, 8, **settings)
    check_layer(layer, IDS, folder=tmp_path)
