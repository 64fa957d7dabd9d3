"""The command `keras-tfm`: train, translate, classify, serve and more.

`options` declares the flags, `main` parses them. Each command is a module of
its name with a function `run(flags)`, imported when the command runs, so that
`--help` does not wait for Keras.
"""

from keras_tfm.cli.main import main

__all__ = ["main"]
