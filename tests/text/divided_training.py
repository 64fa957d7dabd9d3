"""Weights and scores after some steps on some devices, for each kind of batch.

Run as `python -m tests.text.divided_training FILE DEVICES [MODEL_DEVICES
[PROCESS ADDRESS]]` with JAX, PROCESS as one of two. FILE, an .npz, is written.
"""

import sys

import keras
import numpy as np
from keras import ops

from keras_tfm import text, training
from tests.text.conftest import sentences

STEPS = 3


def batches_of(name):
    """Returns the batches of a kind, of sizes that no count divides."""
    pairs = text.Pairs(*sentences(120, seed=1))
    vocabulary = text.Vocabulary.train(pairs.source + pairs.target, size=320)
    if name == "Batches":
        return text.Batches(pairs, vocabulary, batch_tokens=700, num_buckets=2)
    if name == "TokenRows":
        return text.TokenRows(pairs.target, vocabulary, length=16, batch_size=7)
    labels = [len(source) % 2 for source in pairs.source]
    examples = text.LabeledDataset(pairs.source, [str(label) for label in labels])
    batches = text.LabelBatches(examples, vocabulary, 350, num_buckets=1)
    return text.MaskedBatches(batches) if name == "MaskedBatches" else batches


def make_network(name, projected):
    """Returns a small compiled network over the inputs of a kind of batches."""
    keras.utils.set_random_seed(1)
    names = {"Batches": ["source_ids", "target_ids"]}.get(name, ["token_ids"])
    names += ["mask_positions"] * (name == "MaskedBatches")
    inputs = {n: keras.Input((None,), dtype="int32", name=n) for n in names}
    embed = keras.layers.Embedding(320, 16)
    x = embed(inputs[names[-1] if name == "Batches" else names[0]])
    if name == "Batches":
        x = x + ops.mean(embed(inputs["source_ids"]), axis=1, keepdims=True)
    if name == "MaskedBatches":
        x = ops.take_along_axis(x, inputs["mask_positions"][..., None], axis=1)
    x = keras.layers.Dense(16, activation="relu")(x)
    if name == "LabelBatches":
        outputs = keras.layers.Dense(2)(ops.mean(x, axis=1))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    elif projected:
        outputs, loss = x, training.ProjectedCrossentropy(embed, 0.1)
    else:
        outputs = keras.layers.Dense(320)(x)
        loss = training.SmoothedCrossentropy(0.1)
    network = keras.Model(inputs, outputs)
    network.compile(keras.optimizers.SGD(0.1), loss)
    return network


def results_of(name, projected=False):
    """Returns the weights after some steps, and the loss or the predictions."""
    batches = batches_of(name)
    network = make_network(name, projected)
    network.fit(
        batches.py_dataset() if projected else batches.dataset(repeat=True),
        steps_per_epoch=STEPS,
        shuffle=False,
        verbose=0,
    )
    evaluated = batches.ordered() if hasattr(batches, "ordered") else batches.dataset()
    results = {"loss": network.evaluate(evaluated, verbose=0)}
    # Predictions of several processes are in several processes.
    if name == "LabelBatches" and text.local_part() == (0, 1):
        logits = network.predict(batches.ordered(), verbose=0)
        results["logits"] = batches.restore(logits)
    weights = [
        keras.ops.convert_to_numpy(variable) for variable in network.trainable_variables
    ]
    results |= {f"weight {number}": weight for number, weight in enumerate(weights)}
    return {f"{name} {projected} {key}": value for key, value in results.items()}


def main(file, num_devices, num_model_devices=1, process=None, address=None):
    """Runs all kinds of batches on one device, or under a distribution."""
    num_devices, num_model_devices = int(num_devices), int(num_model_devices)
    if address:
        keras.utils.set_random_seed(1)
        keras.distribution.initialize(address, 2, int(process))
    devices = keras.distribution.list_devices()[: num_devices * num_model_devices]
    distribution = None
    if num_model_devices > 1:
        shape = (num_devices, num_model_devices)
        mesh = keras.distribution.DeviceMesh(shape, ("batch", "model"), devices)
        layout = keras.distribution.LayoutMap(mesh)
        if not address:  # weights in several processes cannot be compared
            layout[".*dense.*kernel"] = (None, "model")
        distribution = keras.distribution.ModelParallel(layout_map=layout)
    elif num_devices > 1:
        distribution = keras.distribution.DataParallel(devices=devices)
    keras.distribution.set_distribution(distribution)
    if address:
        check_that_keras_may_not_divide()
        distribution.auto_shard_dataset = False
    assert text.data_parallel_width() == num_devices
    is_divided = address and num_devices > 1
    assert text.local_part() == ((int(process), 2) if is_divided else (0, 1))
    kinds = ["Batches", "LabelBatches", "TokenRows", "MaskedBatches"]
    results = {} if address else results_of("Batches", projected=True)
    for name in kinds[:2] if address else kinds:
        results |= results_of(name)
    np.savez(file, **results)


def check_that_keras_may_not_divide():
    """Checks the error where Keras would divide the batches again."""
    try:
        text.local_part()
    except ValueError as error:
        assert "`auto_shard_dataset` of the distribution must be" in str(error)
    else:
        raise AssertionError("no error")


if __name__ == "__main__":
    main(*sys.argv[1:])
