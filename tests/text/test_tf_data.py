"""TensorFlow as a pipeline leaves the accelerator to the backend."""

import keras
import pytest

from keras_tfm.text.tf_data import import_tensorflow

tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed")


def test_tensorflow_sees_a_gpu_only_as_the_backend(monkeypatch):
    hidden = []
    monkeypatch.setattr(
        tf.config, "set_visible_devices", lambda *seen: hidden.append(seen)
    )
    assert import_tensorflow() is tf
    backend = keras.backend.backend()
    assert hidden == ([] if backend == "tensorflow" else [([], "GPU")])


def test_tensorflow_in_use_already_stays_as_it_is(monkeypatch):
    def too_late(*seen):
        raise RuntimeError("cannot be modified after being initialized")

    monkeypatch.setattr(tf.config, "set_visible_devices", too_late)
    assert import_tensorflow() is tf
