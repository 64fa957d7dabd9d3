"""`keras-tfm train` without a known recipe; `main` starts the recipes."""

from keras_tfm.cli.main import RECIPES


def run(flags):
    """Rejects what is not a recipe."""
    raise ValueError(f"RECIPE must be one of {', '.join(RECIPES)}; got {flags.recipe}.")
