"""Random numbers that a backend draws outside of Keras' variables.

On PyTorch, `Dropout` without a seed draws from the global generator, not from
Keras' seed of the layer. TensorFlow and JAX draw from that seed, which is among
the variables of the model.
"""

import keras
import numpy as np


def generator_states() -> list[np.ndarray]:
    """Returns the states of the backend's global generators.

    Returns:
        list of uint8 arrays: of the CPU, then of each CUDA device; empty for
        TensorFlow and JAX.
    """
    if keras.backend.backend() != "torch":
        return []
    import torch

    states = [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]
    return [state.numpy().copy() for state in states]


def set_generator_states(states: list[np.ndarray]) -> None:
    """Sets the global generators to states of `generator_states`.

    Args:
        states: list of uint8 arrays. Devices that this machine lacks are left
            out.
    """
    if not states:
        return
    import torch

    tensors = [torch.from_numpy(np.array(state)) for state in states]
    torch.set_rng_state(tensors[0])
    devices = range(torch.cuda.device_count())
    for device, state in zip(devices, tensors[1:], strict=False):
        torch.cuda.set_rng_state(state, device)
