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
        arguments: list of str, its flags. Before `--`: those of
            `options.Cluster`.

    Returns:
        int, the exit status 0.

    Raises:
        ValueError: an unknown recipe.
        SystemExit: as in `keras_tfm.cli.main`.
    """
    if name not in RECIPES:
        raise ValueError(f"RECIPE must be one of {', '.join(RECIPES)}; got {name!r}.")
    recipe_name = name.replace("-", "_")
    if any(argument.split("=")[0] == "--cluster" for argument in arguments):
        _run_on_cluster(recipe_name, arguments)
        return 0
    from keras_tfm.recipes import runs

    recipe = importlib.import_module(f"keras_tfm.recipes.{recipe_name}")
    runs.start(recipe.main, recipe.Flags, recipe.__doc__, arguments)
    return 0


def _run_on_cluster(recipe, arguments):
    """Splits the flags at `--`, and trains on a cluster."""
    import tyro

    from keras_tfm.cli import cluster_training, options

    middle = arguments.index("--") if "--" in arguments else len(arguments)
    flags = tyro.cli(
        options.documented(options.Cluster),
        prog="keras-tfm train RECIPE",
        description="Train on a Ray cluster. The flags of the recipe follow `--`.",
        args=arguments[:middle],
    )
    cluster_training.run(recipe, arguments[middle + 1 :], flags)
