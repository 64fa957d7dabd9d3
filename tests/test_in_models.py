"""The layers work in models that a user would write.

Each model uses one of the three forms of Keras, and is trained, saved, loaded
and exported for a server.
"""

import keras
import numpy as np
import pytest

from keras_tfm.layers import (
    AttentionPooling,
    LearnedPositions,
    MultiHeadAttention,
    Pooling,
    SinusoidalPositions,
    TokenAndPositionEmbedding,
    TransformerDecoder,
    TransformerEncoder,
)
from keras_tfm.layers.masks import padding_mask
from tests.layers.formulas import draw

D, H, F, V = 8, 2, 8, 11
BACKEND = keras.backend.backend()
REGISTERED = keras.saving.register_keras_serializable("tests")


@REGISTERED
class Forecaster(keras.Model):
    """Subclass: the next value of a series at each of its positions."""

    def __init__(self, depth, **kwargs):
        super().__init__(**kwargs)
        self.depth = depth
        self.enter = keras.layers.Dense(D)
        self.positions = LearnedPositions(8)
        self.blocks = [TransformerDecoder(F, H) for _ in range(depth)]
        self.leave = keras.layers.Dense(2)

    def call(self, x):
        x = self.positions(self.enter(x))
        for block in self.blocks:
            x = block(x)
        return self.leave(x)

    def get_config(self):
        return {**super().get_config(), "depth": self.depth}


def forecaster():
    """Functional: the same with rotary, multi-query and additive attention."""
    x = series = keras.Input((6, 2))
    x = keras.layers.Dense(D)(x)
    x = TransformerDecoder(F, H, positions="rotary", num_key_value_heads=1)(x)
    x = TransformerDecoder(F, H, score="additive", positions="t5")(x)
    return keras.Model(series, keras.layers.Dense(2)(x))


def vision():
    """Sequential: the class of an image, from patches of 4 by 4."""
    return keras.Sequential(
        [
            keras.Input((16, 16, 1)),
            keras.layers.Conv2D(D, 4, strides=4),
            keras.layers.Reshape((16, D)),
            LearnedPositions(16),
            TransformerEncoder(F, H, normalize_first=True, normalization="batch_norm"),
            keras.layers.LayerNormalization(),
            Pooling("mean"),
            keras.layers.Dense(3),
        ]
    )


def set_encoder():
    """Sequential: a property of a set of points; rows of zeros are padding."""
    return keras.Sequential(
        [
            keras.Input((None, 4)),
            keras.layers.Masking(),
            keras.layers.Dense(D),
            TransformerEncoder(F, H, normalization="rms_norm", gated=True),
            AttentionPooling(2, "additive"),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )


def pair_scorer():
    """Functional: how well two texts fit, with masks passed by hand."""
    first, second = (keras.Input((None,), dtype="int32") for _ in range(2))
    embed = TokenAndPositionEmbedding(V, embedding_dim=D)
    attended = MultiHeadAttention(H)(
        embed(first), embed(second), padding_mask=padding_mask(second)
    )
    x = keras.layers.Add()([embed(first), attended])
    x = Pooling("max")(x, padding_mask=padding_mask(first))
    return keras.Model([first, second], keras.layers.Dense(1)(x))


@REGISTERED
class PairScorer(keras.Model):
    """Subclass: the same with a decoder block and the masks of the ids."""

    def __init__(self, width, **kwargs):
        super().__init__(**kwargs)
        self.width = width
        # Keras exports a subclass with floats, which are rejected by
        # TokenAndPositionEmbedding.
        self.embed = keras.layers.Embedding(V, width, mask_zero=True)
        self.positions = SinusoidalPositions()
        self.block = TransformerDecoder(F, H)
        self.pool = AttentionPooling()
        self.score = keras.layers.Dense(1)

    def call(self, pair):
        first, second = (self.positions(self.embed(ids)) for ids in pair)
        return self.score(self.pool(self.block(first, second, use_causal_mask=False)))

    def get_config(self):
        return {**super().get_config(), "width": self.width}


@REGISTERED
class Tagger(keras.Model):
    """Subclass: a number for each token, with TokenAndPositionEmbedding."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.embed = TokenAndPositionEmbedding(
            V, embedding_dim=D, mask_zero=True, dtype=self.dtype_policy
        )
        self.score = keras.layers.Dense(1, dtype=self.dtype_policy)

    def call(self, ids):
        return self.score(self.embed(ids) * padding_mask(ids)[..., None])


def ids(length, seed=0):
    """Draws two texts, the second with two padding tokens."""
    token_ids = np.random.default_rng(seed).integers(
        1, V, size=(2, length), dtype="int32"
    )
    token_ids[1, -2:] = 0
    return token_ids


SET = draw(2, 5, 4)
SET[1, 3:] = 0
PAIR = [ids(5), ids(6, seed=1)]
# A function that creates the model, its input and the shape of its output.
MODELS = {
    "forecaster": (lambda: Forecaster(1), draw(2, 6, 2), (2, 6, 2)),
    "forecaster function": (forecaster, draw(2, 6, 2), (2, 6, 2)),
    "vision": (vision, draw(2, 16, 16, 1), (2, 3)),
    "set encoder": (set_encoder, SET, (2, 1)),
    "pair scorer": (pair_scorer, PAIR, (2, 1)),
    "pair scorer class": (lambda: PairScorer(D), PAIR, (2, 1)),
}


def predict(model, x):
    return np.array(model.predict(x, verbose=0))


def symbol(array):
    return keras.Input(array.shape[1:], dtype=array.dtype)


@pytest.fixture(scope="module")
def train_model():
    """Trains each model two steps, once for all tests."""
    models = {}

    def train(name):
        if name not in models:
            make, x, shape = MODELS[name]
            model = make()
            # Built on symbols, since JAX compiles every operation on arrays.
            model(keras.tree.map_structure(symbol, x))
            initial = model.get_weights()
            model.compile(keras.optimizers.SGD(1e-3), "mse")
            losses = [model.train_on_batch(x, draw(*shape)) for _ in range(2)]
            models[name] = model, initial, [float(loss) for loss in losses]
        return models[name]

    return train


@pytest.mark.slow("tensorflow", "jax")
@pytest.mark.parametrize("name", MODELS)
def test_training_lowers_the_loss_and_changes_every_weight(train_model, name):
    model, initial, losses = train_model(name)
    assert losses[1] < losses[0] < np.inf
    final = model.get_weights()
    for old, weight, new in zip(initial, model.weights, final, strict=True):
        # A bias of the keys adds the same number to all scores of a query.
        if not weight.path.endswith("key/bias"):
            assert abs(new - old).max() > 1e-8, weight.path


@pytest.mark.parametrize("name", MODELS)
def test_a_loaded_model_matches_the_saved_one(train_model, name, tmp_path):
    model, x = train_model(name)[0], MODELS[name][1]
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(predict(loaded, x), predict(model, x), atol=1e-6)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_a_subclassed_model_with_ids_is_loaded(policy, tmp_path):
    model = Tagger(dtype=policy)
    expected = predict(model, PAIR[1])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(predict(loaded, PAIR[1]), expected)
    with pytest.raises(ValueError, match="must be ids.*from 0.5 to"):
        loaded.embed(PAIR[1] + 0.5)


@pytest.mark.parametrize("name", MODELS)
def test_an_exported_model_matches_the_original(train_model, name, tmp_path):
    model, x = train_model(name)[0], MODELS[name][1]
    serve, expected = export(model, x, tmp_path), predict(model, x)
    # The batch size differs from that of training.
    first = keras.tree.map_structure(lambda array: array[:1], x)
    np.testing.assert_allclose(serve(first), expected[:1], atol=1e-5)


def export(model, x, folder):
    """Exports a model and returns the function that a server would call."""
    signature = keras.tree.map_structure(
        lambda array: keras.InputSpec(array.dtype, (None, *array.shape[1:])), x
    )
    call = {"input_signature": [signature], "verbose": False}
    if BACKEND == "torch":
        import torch

        batch = {0: torch.export.Dim("batch")}
        sizes = keras.tree.map_structure(lambda array: batch, x)
        call |= {"format": "torch", "dynamic_shapes": [(sizes,)]}
        model.export(folder / "model.pt2", **call)
        module = torch.export.load(folder / "model.pt2").module()

        def serve(x):
            return module(keras.tree.map_structure(torch.tensor, x)).detach().numpy()

        return serve
    import tensorflow as tf

    model.export(folder / "model", format="tf_saved_model", **call)
    loaded = tf.saved_model.load(folder / "model")
    return lambda x: loaded.serve(x).numpy()


def test_order_and_padding_of_a_set_do_not_change_the_output(train_model):
    model = train_model("set encoder")[0]
    expected = predict(model, SET)
    permutation = np.random.default_rng(1).permutation(SET.shape[1])
    np.testing.assert_allclose(predict(model, SET[:, permutation]), expected, atol=1e-5)
    padded = np.pad(SET, [(0, 0), (0, 2), (0, 0)])
    np.testing.assert_allclose(predict(model, padded), expected, atol=1e-5)
    changed = SET.copy()
    changed[:, 0] += 1
    assert abs(predict(model, changed) - expected).min() > 1e-3  # it can fail


@pytest.mark.parametrize("name", ["pair scorer", "pair scorer class"])
def test_padding_of_a_pair_does_not_change_the_output(train_model, name):
    model, (first, second) = train_model(name)[0], PAIR
    expected = predict(model, PAIR)
    padded = [np.pad(first, [(0, 0), (0, 2)]), np.pad(second, [(0, 0), (0, 1)])]
    np.testing.assert_allclose(predict(model, padded), expected, atol=1e-5)
    changed = predict(model, [first[::-1].copy(), second])
    assert abs(changed - expected).max() > 1e-3  # it can fail


@pytest.mark.parametrize("name", ["forecaster", "forecaster function"])
def test_the_future_does_not_change_the_forecast(name, train_model):
    model, x = train_model(name)[0], MODELS[name][1]
    later = x.copy()
    later[:, 3:] += 1
    expected, actual = predict(model, x), predict(model, later)
    np.testing.assert_allclose(expected[:, :3], actual[:, :3], atol=1e-6)
    assert abs(expected[:, 3:] - actual[:, 3:]).max() > 0.01  # it can fail
