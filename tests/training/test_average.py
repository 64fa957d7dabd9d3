"""CheckpointAverage sets a model to the mean weights of its last epochs."""

import keras
import numpy as np
import pytest

from keras_tfm.training import CheckpointAverage, average_weights


def small_model(seed=0):
    """A model with an integer weight and a random seed."""
    model = keras.Sequential(
        [
            keras.Input((2,)),
            keras.layers.Dense(3),
            keras.layers.Dropout(0.5),
            UpdateCounter(),
        ]
    )
    rng = np.random.default_rng(seed)
    weights = model.get_weights()
    model.set_weights([rng.normal(size=w.shape).astype(w.dtype) for w in weights])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


class UpdateCounter(keras.layers.Layer):
    """Counts training calls in an integer weight."""

    def build(self, input_shape):
        self.count = self.add_weight(
            shape=(), dtype="int32", trainable=False, initializer="zeros", name="count"
        )

    def call(self, x, training=False):
        if training:
            self.count.assign_add(1)
        return x


def fit(model, callback, epochs, initial_epoch=0):
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(8, 2)), rng.normal(size=(8, 3))
    weights_of_epochs = []
    watch = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: weights_of_epochs.append(model.get_weights())
    )
    model.fit(x, y, initial_epoch=initial_epoch, epochs=epochs, verbose=0,
              callbacks=[watch, callback])  # fmt: skip
    return weights_of_epochs


def mean(epochs):
    """Averages lists of weights in float64; integers are from the last list."""
    stacked = [np.stack(weights) for weights in zip(*epochs, strict=True)]
    return [
        s.mean(0, dtype="float64") if s.dtype.kind == "f" else s[-1] for s in stacked
    ]


def check_weights(model, expected):
    for actual, expected_weight in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(actual, expected_weight, rtol=1e-6)


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def test_apply_sets_the_model_to_the_mean_of_the_last_epochs(tmp_path):
    model, average = small_model(), CheckpointAverage(tmp_path / "a/b", last=3)
    weights_of_epochs = fit(model, average, 5)
    paths = average.apply(model)
    assert [path.name for path in paths] == names(tmp_path / "a/b")
    assert names(tmp_path / "a/b") == [
        f"epoch_{epoch:04d}.weights.h5" for epoch in (3, 4, 5)
    ]
    check_weights(model, mean(weights_of_epochs[2:]))
    difference = mean(weights_of_epochs[2:])[0] - weights_of_epochs[-1][0]
    assert np.abs(difference).max() > 1e-3  # it can fail
    loaded = small_model(seed=5)
    loaded.load_weights(paths[0])
    check_weights(loaded, weights_of_epochs[2])


def test_a_resumed_run_averages_its_earlier_files_too(tmp_path):
    model = small_model()
    weights_of_epochs = fit(model, CheckpointAverage(tmp_path, last=3), 2)
    average = CheckpointAverage(tmp_path, last=3)
    assert len(average.paths()) == 2
    weights_of_epochs += fit(model, average, 4, initial_epoch=2)
    average.apply(model)
    check_weights(model, mean(weights_of_epochs[1:]))


def test_epochs_of_an_abandoned_run_are_not_averaged(tmp_path):
    fit(small_model(), CheckpointAverage(tmp_path), 4)
    model, average = small_model(seed=2), CheckpointAverage(tmp_path)
    weights_of_epochs = fit(model, average, 2)
    average.apply(model)
    check_weights(model, mean(weights_of_epochs))


def test_an_interrupted_write_leaves_no_file_of_that_epoch(tmp_path, monkeypatch):
    model, average = small_model(), CheckpointAverage(tmp_path)
    fit(model, average, 1)

    def write_half(path, **options):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(model, "save_weights", write_half)
    with pytest.raises(KeyboardInterrupt):
        fit(model, average, 2, initial_epoch=1)
    assert [path.name for path in average.paths()] == ["epoch_0001.weights.h5"]
    average.apply(model)


def test_average_weights_does_not_change_the_model(tmp_path):
    model, average = small_model(), CheckpointAverage(tmp_path)
    fit(model, average, 2)
    model.set_weights([w + np.ones_like(w) for w in model.get_weights()])
    initial = [np.array(keras.ops.convert_to_numpy(v)) for v in model.variables]
    means = average_weights(model, average.paths())
    assert np.abs(means[0] - initial[0]).max() > 0.5
    final = [keras.ops.convert_to_numpy(v) for v in model.variables]
    for actual, expected in zip(final, initial, strict=True):
        np.testing.assert_array_equal(actual, expected)
    wider = keras.Sequential([keras.Input((2,)), keras.layers.Dense(7)])
    wider_weights = wider.get_weights()
    with pytest.raises(Exception, match="shape|compatible|weights of `model`"):
        average.apply(wider)
    check_weights(wider, wider_weights)


@pytest.mark.parametrize("trained", [False, True])
def test_a_file_of_a_deeper_model_is_rejected(tmp_path, trained):
    def stack(depth):
        layers = [keras.layers.Dense(2) for _ in range(depth)]
        inner = keras.Sequential([keras.Input((2,)), layers[0]])
        return keras.Sequential([keras.Input((2,)), inner, *layers[1:]])

    deep = stack(3)
    if trained:  # the file contains weights of optimizers too
        for model in (deep.layers[0], deep):
            model.compile("adam", "mse", metrics=["mae"])
            model.fit(np.ones((4, 2)), np.ones((4, 2)), verbose=0)
    file = tmp_path / "deep.weights.h5"
    deep.save_weights(file)
    for actual, expected in zip(
        average_weights(deep, [file]), deep.weights, strict=True
    ):
        np.testing.assert_array_equal(actual, keras.ops.convert_to_numpy(expected))
    assert len(average_weights(stack(3), [file])) == 6
    with pytest.raises(ValueError, match="deep.weights.h5' with 6 weights.* with 4"):
        average_weights(stack(2), [file])


def test_weights_are_summed_in_float64(tmp_path):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    paths = []
    for i, value in enumerate([2.0**24, 1.0, 1.0, 1.0]):  # the sum in float32 is 2**24
        model.set_weights([np.full((1, 1), value)])
        paths.append(tmp_path / f"{i}.weights.h5")
        model.save_weights(paths[-1])
    (actual,) = average_weights(model, paths)
    assert actual.dtype == "float32"
    assert actual.item() == np.float32((2.0**24 + 3) / 4)
    assert actual.item() != 2.0**22


def test_wrong_arguments_are_rejected(tmp_path):
    with pytest.raises(ValueError, match="at least 1; got last=0"):
        CheckpointAverage(tmp_path, last=0)
    with pytest.raises(ValueError, match="must have files .* got folder="):
        CheckpointAverage(tmp_path / "none").apply(small_model())
    with pytest.raises(ValueError, match=r"at least one file; got paths=\[\]"):
        average_weights(small_model(), [])
