"""TensorFlow as an input pipeline does not use the GPU of another backend."""

import keras
import pytest

from keras_tfm.text.tf_data import import_tensorflow

tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed")


def test_tensorflow_sees_a_gpu_only_if_it_is_the_backend(monkeypatch):
    calls = []
    monkeypatch.setattr(
        tf.config, "set_visible_devices", lambda *arguments: calls.append(arguments)
    )
    assert import_tensorflow() is tf
    backend = keras.backend.backend()
    assert calls == ([] if backend == "tensorflow" else [([], "GPU")])


def test_a_running_tensorflow_keeps_its_devices(monkeypatch):
    def too_late(*arguments):
        raise RuntimeError("cannot be modified after being initialized")

    monkeypatch.setattr(tf.config, "set_visible_devices", too_late)
    assert import_tensorflow() is tf
