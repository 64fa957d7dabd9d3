"""The command line: what `keras-tfm` and its options are.

Help needs no Keras and comes at once; what a command does stands in a module
of its own.
"""

from keras_tfm.command.start import main

__all__ = ["main"]
