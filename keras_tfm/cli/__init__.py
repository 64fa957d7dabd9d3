"""The command `keras-tfm`: its options, apart from what they start.

This stands beside keras_tfm, since whoever imports that imports Keras too, and
help is to come at once. What a command does stands in `keras_tfm.cli`.
"""

from keras_tfm.cli.main import main

__all__ = ["main"]
