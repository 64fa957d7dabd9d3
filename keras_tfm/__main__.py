"""Runs the command: `python -m keras_tfm` is `keras-tfm`."""

import sys

from keras_tfm.cli.main import main

sys.exit(main())
