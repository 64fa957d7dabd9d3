"""`keras-tfm average`."""

import pathlib

from keras_tfm.cli.options import Average
from keras_tfm.pipelines import Translator
from keras_tfm.training import CheckpointAverage


def run(flags: Average) -> None:
    """Averages the weights of the last epochs of a run.

    Args:
        flags: `options.Average`.
    """
    folder = pathlib.Path(flags.run_folder)
    checkpoints = folder / "averages"
    if not checkpoints.is_dir():
        raise FileNotFoundError(
            f"FOLDER must be a run folder of the translation recipe; got "
            f"{flags.run_folder!r}, which has no folder `averages` with the weights "
            "of its epochs."
        )
    translator = Translator.from_preset(folder)
    paths = CheckpointAverage(checkpoints, flags.last).apply(translator.model)
    translator.save(flags.folder)
    print(f"{flags.folder}: the average of {', '.join(path.name for path in paths)}")
