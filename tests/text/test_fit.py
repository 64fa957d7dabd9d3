"""Every kind of batches feeds `fit` on every backend."""

import keras
import numpy as np
import pytest

from keras_tfm.text import (
    Batches,
    LabelBatches,
    LabeledDataset,
    MaskedBatches,
    TokenRows,
)


@pytest.fixture(scope="module")
def labeled_pairs(pairs):
    labels = ["long" if len(text) > 60 else "short" for text in pairs.target]
    return LabeledDataset(list(pairs), labels)


def compile_model(inputs, outputs, learning_rate=0.01, metrics=None):
    model = keras.Model(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, ignore_class=None if metrics else 0
    )
    optimizer = keras.optimizers.Adam(learning_rate)
    model.compile(optimizer, loss, weighted_metrics=metrics)
    return model


def fit(model, batches, **options):
    steps = batches.steps_per_epoch
    history = model.fit(
        batches.dataset(),
        epochs=3,
        shuffle=False,
        verbose=0,
        **options,
    ).history
    assert model.optimizer.iterations == 3 * steps
    assert history["loss"][-1] < 0.9 * history["loss"][0]
    return history


def int_inputs(*names):
    return {name: keras.Input((None,), dtype="int32", name=name) for name in names}


def test_batches_feed_fit(pairs, vocabulary):
    inputs = int_inputs("source_ids", "target_ids")
    embed = keras.layers.Embedding(vocabulary.size, 16)
    summary = keras.layers.GlobalAveragePooling1D(keepdims=True)
    x = embed(inputs["target_ids"]) + summary(embed(inputs["source_ids"]))
    x = keras.layers.Dense(16, activation="relu")(x)
    model = compile_model(inputs, keras.layers.Dense(vocabulary.size)(x))
    batches = Batches(pairs, vocabulary, batch_tokens=1500, num_buckets=3)
    validation = Batches(
        pairs, vocabulary, batch_tokens=1500, num_buckets=3, shuffle=False
    )
    history = fit(model, batches, validation_data=validation.dataset())
    assert np.isfinite(history["val_loss"]).all()


def test_label_batches_feed_fit_and_predict(labeled_pairs, vocabulary):
    inputs = int_inputs("token_ids", "segment_ids")
    x = keras.layers.Embedding(vocabulary.size, 8)(inputs["token_ids"])
    x = x + keras.layers.Embedding(2, 8)(inputs["segment_ids"])
    x = keras.layers.GlobalAveragePooling1D()(x)
    model = compile_model(inputs, keras.layers.Dense(2)(x), 0.05, ["accuracy"])
    batches = LabelBatches(
        labeled_pairs, vocabulary, 4000, num_buckets=1, class_weight="balanced"
    )
    history = fit(model, batches, validation_data=batches.ordered())
    logits = batches.restore(model.predict(batches.ordered(), verbose=0))
    accuracy = np.mean(logits.argmax(1) == labeled_pairs.encoded_labels())
    # Predictions in the order of the texts agree with the validation of `fit`.
    np.testing.assert_allclose(accuracy, history["val_accuracy"][-1], atol=1e-6)
    assert accuracy > 0.8


def test_masked_batches_feed_fit(labeled_pairs, vocabulary):
    inputs = int_inputs("token_ids", "segment_ids", "mask_positions")
    x = keras.layers.Embedding(vocabulary.size, 16)(inputs["token_ids"])
    x = x + keras.layers.Embedding(2, 16)(inputs["segment_ids"])
    x = keras.ops.take_along_axis(x, inputs["mask_positions"][..., None], axis=1)
    model = compile_model(inputs, keras.layers.Dense(vocabulary.size)(x), 0.03)
    batches = LabelBatches(labeled_pairs, vocabulary, 4000, num_buckets=1)
    fit(model, MaskedBatches(batches))


def test_token_rows_feed_fit(pairs, vocabulary):
    inputs = int_inputs("token_ids")
    x = keras.layers.Embedding(vocabulary.size, 16)(inputs["token_ids"])
    model = compile_model(inputs, keras.layers.Dense(vocabulary.size)(x), 0.03)
    rows = TokenRows(pairs.target, vocabulary, length=32, batch_size=16)
    fit(model, rows)
    assert model.evaluate(rows.ordered(), verbose=0) < np.log(vocabulary.size)


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_py_dataset_feeds_fit_one_epoch_after_the_other(pairs, vocabulary, shuffle):
    ids = keras.Input((None,), dtype="int32", name="source_ids")
    target_ids = keras.Input((None,), dtype="int32", name="target_ids")
    x = keras.layers.Embedding(vocabulary.size, 4)(target_ids)
    inputs = {"source_ids": ids, "target_ids": target_ids}
    model = compile_model(inputs, keras.layers.Dense(vocabulary.size)(x))
    batches = Batches(pairs, vocabulary, batch_tokens=2000, num_buckets=4)
    dataset = batches.py_dataset()
    steps, batch = [], batches.divided_batch
    batches.divided_batch = lambda step, *args: (
        steps.append(step),
        batch(step, *args),
    )[1]
    model.fit(dataset, epochs=2, shuffle=shuffle, verbose=0)
    assert model.optimizer.iterations == 2 * len(dataset)
    assert dataset.epoch == 2 and set(steps) >= set(range(2 * len(dataset)))
    model.evaluate(dataset, verbose=0)
    assert max(steps) < 3 * len(dataset)
