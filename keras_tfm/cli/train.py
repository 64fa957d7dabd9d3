"""`keras-tfm train` without a known recipe; `main` starts the recipes."""

from typing import NoReturn

from keras_tfm.cli.main import RECIPES
from keras_tfm.cli.options import Train


def run(flags: Train) -> NoReturn:
    """Rejects what is not a recipe."""
    raise ValueError(f"RECIPE must be one of {', '.join(RECIPES)}; got {flags.recipe}.")
