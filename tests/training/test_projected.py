"""ProjectedCrossentropy equals SmoothedCrossentropy on the logits."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfm.layers import TokenAndPositionEmbedding
from keras_tfm.training import ProjectedCrossentropy, SmoothedCrossentropy

B, T, D, V = 4, 7, 6, 13
XLA = keras.backend.backend() != "torch"  # PyTorch has no XLA


class Matrix(keras.layers.Layer):
    """Stands for an embedding layer, with the tensor of a test."""

    def __init__(self, embeddings, bias=None, **kwargs):
        super().__init__(**kwargs)
        self.embeddings = embeddings
        self.bias, self.logits_bias = bias, bias is not None


def batch(seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(1, V, size=(B, T)).astype("int32")
    labels[0, 3:] = labels[2] = 0
    hidden = rng.normal(size=(B, T, D)).astype("float32")
    matrix = rng.normal(size=(V, D)).astype("float32")
    return labels, hidden, matrix


# For 28 tokens: chunks of one token, chunks that need padding, one chunk.
@pytest.mark.parametrize(("smoothing", "chunk"), [(0.1, 1), (0.1, 9), (0.0, 1024)])
def test_value_and_gradients_are_those_of_the_loss_on_logits(
    smoothing, chunk, value_and_gradients
):
    labels, hidden, matrix = batch()
    weights = np.random.default_rng(1).uniform(size=(B, T)).astype("float32")

    def plain(hidden, matrix):
        logits = ops.matmul(hidden, ops.transpose(matrix))
        return 3.0 * SmoothedCrossentropy(smoothing)(labels, logits, weights)

    def projected(hidden, matrix):
        loss = ProjectedCrossentropy(Matrix(matrix), smoothing, chunk_tokens=chunk)
        return 3.0 * loss(labels, hidden, weights)

    value, gradients = value_and_gradients(projected, hidden, matrix)
    expected, expected_gradients = value_and_gradients(plain, hidden, matrix)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    for actual, gradient in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(actual, gradient, atol=1e-6)
    assert np.abs(expected_gradients[1]).max() > 0.1  # it can fail


def test_lists_are_labels_and_hidden_states_as_in_keras():
    labels, hidden, matrix = batch()
    loss = ProjectedCrossentropy(Matrix(matrix))
    expected = ops.convert_to_numpy(loss(labels, hidden))
    actual = ops.convert_to_numpy(loss(labels.tolist(), hidden.tolist()))
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_a_bias_is_added_and_has_a_gradient(value_and_gradients):
    labels, hidden, matrix = batch()
    bias = np.linspace(-1, 1, V).astype("float32")

    def plain(hidden, matrix, bias):
        logits = ops.matmul(hidden, ops.transpose(matrix)) + bias
        return SmoothedCrossentropy(0.1)(labels, logits)

    def projected(hidden, matrix, bias):
        return ProjectedCrossentropy(Matrix(matrix, bias), 0.1)(labels, hidden)

    value, gradients = value_and_gradients(projected, hidden, matrix, bias)
    expected, expected_gradients = value_and_gradients(plain, hidden, matrix, bias)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    for actual, gradient in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(actual, gradient, atol=1e-6)
    assert np.abs(expected_gradients[2]).max() > 0.01


def test_a_batch_of_padding_has_no_loss_and_no_gradient(value_and_gradients):
    _, hidden, matrix = batch()
    hidden[0, 0] = np.nan
    labels = np.zeros((B, T), "int32")
    value, gradients = value_and_gradients(
        lambda h, m: ProjectedCrossentropy(Matrix(m), 0.1)(labels, h), hidden, matrix
    )
    assert value == 0.0
    assert all((gradient == 0.0).all() for gradient in gradients)


@pytest.mark.parametrize("label", [V, -1])
def test_a_label_outside_the_vocabulary_makes_the_loss_nan(label):
    labels, hidden, matrix = batch()
    labels[1, 1] = label
    loss = ProjectedCrossentropy(Matrix(matrix))
    assert np.isnan(ops.convert_to_numpy(loss(labels, hidden)))
    assert np.isfinite(
        ops.convert_to_numpy(loss(np.where(labels == label, 0, labels), hidden))
    )
    outside = ProjectedCrossentropy(Matrix(matrix), pad_id=label)
    assert np.isfinite(ops.convert_to_numpy(outside(labels, hidden)))


@pytest.mark.backend("jax")
def test_the_tensor_of_all_logits_is_never_computed():
    import jax
    import jax.extend

    labels, hidden, matrix = (np.repeat(a, 8, axis=0) for a in batch())

    def largest(function):
        jaxpr = jax.make_jaxpr(jax.value_and_grad(function, argnums=(0, 1)))
        return max_size(jaxpr(hidden, matrix).jaxpr)

    def max_size(jaxpr):
        sizes = [v.aval.size for e in jaxpr.eqns for v in e.outvars]
        inner = jax.extend.core.jaxprs_in_params
        sizes += [max_size(j) for e in jaxpr.eqns for j in inner(e.params)]
        return max(sizes, default=0)

    tokens, size = labels.size, matrix.shape[0]
    plain = largest(lambda h, m: SmoothedCrossentropy()(labels, h @ m.T))
    assert plain >= tokens * size

    def in_chunks(h, m):
        return ProjectedCrossentropy(Matrix(m), chunk_tokens=8)(labels, h)

    assert largest(in_chunks) < tokens * size / 2


class Logits(keras.layers.Layer):
    """The tied projection as a layer that propagates the mask of its input."""

    def __init__(self, embedding, **kwargs):
        super().__init__(**kwargs)
        self.matrix = lambda: embedding.embeddings
        self.supports_masking = True

    def call(self, hidden):
        return ops.matmul(hidden, ops.transpose(self.matrix()))


def tied_model(projected):
    """A model whose logits or hidden states come from one embedding layer."""
    embedding = TokenAndPositionEmbedding(V, embedding_dim=D, mask_zero=True)
    ids = keras.Input((None,), dtype="int32")
    hidden = keras.layers.Dense(D, activation="tanh")(embedding(ids))
    if projected:
        model = keras.Model(ids, hidden)
        loss = ProjectedCrossentropy(embedding, 0.1, chunk_tokens=5)
    else:
        model = keras.Model(ids, Logits(embedding)(hidden))
        loss = SmoothedCrossentropy(0.1)
    rng = np.random.default_rng(3)
    model.set_weights([0.5 * rng.normal(size=w.shape) for w in model.get_weights()])
    return model, loss, embedding


@pytest.mark.backend("torch")
def test_fit_trains_the_tied_matrix():
    labels, _, _ = batch()
    results = []
    for projected in (True, False):
        model, loss, embedding = tied_model(projected)
        # Both the mask and the labels exclude padding.
        model.compile(keras.optimizers.SGD(0.5), loss, jit_compile=XLA)
        initial = ops.convert_to_numpy(embedding.embeddings).copy()
        history = model.fit(
            labels, labels, epochs=3, batch_size=3, verbose=0, shuffle=False,
            validation_data=(labels, labels, np.array([1.0, 2.0, 3.0, 4.0])),
        )  # fmt: skip
        final = ops.convert_to_numpy(embedding.embeddings)
        results.append([final, history.history["loss"], history.history["val_loss"]])
        assert np.abs(final - initial).max() > 0.05
    for actual, expected in zip(*results, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_products_are_in_the_dtype_of_the_layer(dtype):
    labels, hidden, matrix = batch()
    hidden = ops.cast(hidden, dtype)
    full = ProjectedCrossentropy(Matrix(matrix, dtype="float32"))(labels, hidden)
    half = ProjectedCrossentropy(Matrix(matrix, dtype=f"mixed_{dtype}"))(labels, hidden)
    assert keras.backend.standardize_dtype(half.dtype) == "float32"
    half, full = ops.convert_to_numpy(half), ops.convert_to_numpy(full)
    np.testing.assert_allclose(half, full, rtol=1e-2)
    assert half != full


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_loss_of_a_certain_model_is_not_negative(dtype):
    rng = np.random.default_rng(3)
    matrix = rng.normal(size=(V, 64)).astype("float32")
    labels = rng.integers(1, V, size=(B, T)).astype("int32")
    hidden = ops.cast(matrix[labels] * rng.uniform(0.3, 3, (B, T, 1)), "float32")
    matrix = Matrix(matrix, dtype=f"mixed_{dtype}")
    for row in range(B):
        loss = ProjectedCrossentropy(matrix)(labels[row:][:1], hidden[row:][:1])
        assert 0 <= float(ops.convert_to_numpy(loss)) < 0.1


@pytest.mark.parametrize("scale", [1e-8, 1e5])
def test_the_scale_of_sample_weights_does_not_matter_in_float16(
    scale, value_and_gradients
):
    labels, hidden, matrix = batch()
    hidden = hidden / 4

    def loss(hidden, matrix, scale):
        matrix = Matrix(matrix, dtype="mixed_float16")
        weights = np.full((B, T), scale, "float32")
        return ProjectedCrossentropy(matrix)(labels, hidden, weights)

    expected, gradients = value_and_gradients(
        lambda h, m: loss(h, m, 1), hidden, matrix
    )
    actual, scaled_gradients = value_and_gradients(
        lambda h, m: loss(h, m, scale), hidden, matrix
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    for scaled_gradient, gradient in zip(scaled_gradients, gradients, strict=True):
        np.testing.assert_allclose(scaled_gradient, gradient, atol=1e-5)


def test_with_negative_weights_the_loss_equals_that_on_logits():
    labels, hidden, matrix = batch()
    weights = np.random.default_rng(1).normal(size=(B, T)).astype("float32")
    expected = SmoothedCrossentropy(0.1)(labels, hidden @ matrix.T, weights)
    actual = ProjectedCrossentropy(Matrix(matrix), 0.1)(labels, hidden, weights)
    actual, expected = ops.convert_to_numpy(actual), ops.convert_to_numpy(expected)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_an_implicit_mask_excludes_further_tokens():
    labels, _, matrix = batch()
    ids = np.where(np.arange(T) < 2, 1, 0) * np.ones((B, 1), "int32")
    hidden = keras.layers.Embedding(2, D, mask_zero=True)(ids)
    assert hidden._keras_mask is not None
    loss = ProjectedCrossentropy(Matrix(matrix))
    actual = ops.convert_to_numpy(loss(labels, hidden))
    plain = ops.convert_to_numpy(hidden)
    expected = ops.convert_to_numpy(loss(np.where(ids == 0, 0, labels), plain))
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
    assert abs(actual - ops.convert_to_numpy(loss(labels, plain))) > 1e-3  # it can fail


def test_a_saved_model_is_loaded_without_its_loss(tmp_path):
    labels, _, _ = batch()
    model, loss, _ = tied_model(True)
    model.compile("sgd", loss)
    model.fit(labels, labels, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras", compile=False)
    for actual, expected in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(actual, expected)
    with pytest.raises(ValueError, match="compile=False, then compile it with Proj"):
        keras.models.load_model(tmp_path / "model.keras")


def test_weights_are_loaded_into_a_model_with_logits(tmp_path):
    model, loss, _ = tied_model(True)
    model.compile("sgd", loss)
    model.save_weights(tmp_path / "m.weights.h5")
    plain, _, _ = tied_model(False)
    plain.set_weights([np.zeros_like(w) for w in plain.get_weights()])
    plain.load_weights(tmp_path / "m.weights.h5")
    for actual, expected in zip(plain.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_wrong_arguments_are_rejected():
    labels, hidden, matrix = batch()
    with pytest.raises(TypeError, match="`embeddings`; got embedding=<Dense"):
        ProjectedCrossentropy(keras.layers.Dense(3))
    with pytest.raises(ValueError, match="chunk_tokens=0"):
        ProjectedCrossentropy(Matrix(matrix), chunk_tokens=0)
    with pytest.raises(ValueError, match="below 1; got label_smoothing=1"):
        ProjectedCrossentropy(Matrix(matrix), 1.0)
    loss = ProjectedCrossentropy(Matrix(matrix))
    with pytest.raises(ValueError, match=r"states \(4, 7, 5\), embeddings \(13, 6\)"):
        loss(labels, hidden[..., 1:])
    with pytest.raises(ValueError, match=r"got labels \(4, 6\)"):
        loss(labels[:, 1:], hidden)
