"""Exports pipelines to other runtimes."""

from keras_tfm.export.saving import saved_model

__all__ = ["saved_model"]
