"""`keras-tfm train`: runs a recipe with the flags behind its name."""

import importlib

from keras_tfm.cli.options import Train

RECIPES = ("translation", "classification", "language-model")


def run(flags: Train) -> int:
    """Runs a recipe with its default flags."""
    return run_recipe(flags.recipe, [])


def run_recipe(name: str, arguments: list[str]) -> int:
    """Runs a recipe.

    Args:
        name: str, one of `RECIPES`.
        arguments: list of str, its flags.

    Returns:
        int, the exit status 0.

    Raises:
        ValueError: an unknown recipe.
        SystemExit: as in `keras_tfm.cli.main`.
    """
    if name not in RECIPES:
        raise ValueError(f"RECIPE must be one of {', '.join(RECIPES)}; got {name!r}.")
    from keras_tfm.recipes import runs

    recipe = importlib.import_module(f"keras_tfm.recipes.{name.replace('-', '_')}")
    runs.start(recipe.main, recipe.Flags, recipe.__doc__, arguments)
    return 0
