"""`keras-tfm average`."""

import pathlib

from keras_tfm.pipelines import Translator
from keras_tfm.training import CheckpointAverage


def run(command):
    """Means the weights of the last epochs.

    Args:
        command: `options.Average`.
    """
    folder = pathlib.Path(command.run_folder)
    epochs = folder / "averages"
    if not epochs.is_dir():
        raise FileNotFoundError(
            f"{command.run_folder!r} is no run of the translation recipe: there is no "
            "folder `averages` with the weights of its epochs."
        )
    translator = Translator.from_preset(folder)
    paths = CheckpointAverage(epochs, command.last).apply(translator.model)
    translator.save(command.folder)
    print(f"{command.folder}: the mean of {', '.join(path.name for path in paths)}")
