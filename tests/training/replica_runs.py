"""Trains one model as two replicas with unequal numbers of tokens.

    KERAS_BACKEND=tensorflow python -m tests.training.replica_runs FOLDER
    KERAS_BACKEND=torch python -m tests.training.replica_runs FOLDER

`MirroredStrategy` of TensorFlow, or `DistributedDataParallel` of PyTorch over
gloo. Writes the weights of one replica, and of two, which must be equal.
"""

import os
import pathlib
import sys

import keras
import numpy as np

from keras_tfm import models, training

STEPS = 3


def batch(step):
    """Returns a batch of 8 rows, of which the second half is short."""
    generator = np.random.default_rng(step)
    ids = generator.integers(4, 20, (8, 6))
    ids[4:, 2:] = 0
    return {"source_ids": ids, "target_ids": ids}, ids


def make():
    """Makes a compiled network without dropout, which replicas draw apart."""
    keras.utils.set_random_seed(3)
    model = models.Transformer(
        20, num_layers=1, embedding_dim=8, num_heads=2, intermediate_dim=16, dropout=0.0
    )
    network = model.hidden_model()
    loss = training.ProjectedCrossentropy(model.target_embedding, 0.1)
    network.compile(keras.optimizers.SGD(0.5), loss)
    return network


def save(network, file):
    np.savez(file, *network.get_weights())


def run_tensorflow(folder):
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * 2
    )

    def elements():
        for step in range(STEPS):
            yield batch(step)

    ids = tf.TensorSpec((8, 6), "int32")
    signature = ({"source_ids": ids, "target_ids": ids}, ids)
    for name, devices in (("one", ["CPU:0"]), ("two", ["CPU:0", "CPU:1"])):
        with tf.distribute.MirroredStrategy(devices).scope():
            network = make()
        data = tf.data.Dataset.from_generator(elements, output_signature=signature)
        network.fit(data, epochs=1, verbose=0)
        save(network, folder / f"{name}.npz")


def run_torch(folder):
    import torch
    import torch.multiprocessing

    network = make()
    for step in range(STEPS):
        network.train_on_batch(*batch(step))
    save(network, folder / "one.npz")
    torch.multiprocessing.spawn(replica, (str(folder),), nprocs=2)


def replica(rank, folder):
    """Trains one of two replicas of PyTorch; the loop of docs/scale.md."""
    import torch

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29541"}
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    network = make()
    replicated = torch.nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.SGD(network.parameters(), 0.5)
    for step in range(STEPS):
        rows = slice(4 * rank, 4 * rank + 4)
        inputs, labels = batch(step)
        inputs = {name: torch.tensor(x[rows]) for name, x in inputs.items()}
        optimizer.zero_grad()
        loss = network.loss(torch.tensor(labels[rows]), replicated(inputs))
        loss.backward()
        optimizer.step()
    if rank == 0:
        save(network, pathlib.Path(folder) / "two.npz")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    runs = {"tensorflow": run_tensorflow, "torch": run_torch}
    runs[keras.config.backend()](pathlib.Path(sys.argv[1]))
