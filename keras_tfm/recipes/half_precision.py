"""Weights of a Keras file in 16 bits."""

import pathlib
import tempfile
import zipfile

import h5py

WEIGHTS = "model.weights.h5"  # in a Keras file


def convert(file: pathlib.Path) -> None:
    """Converts the weights of a Keras file to float16.

    Keras loads them into the variables of the model, which stay float32.
    """
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with tempfile.TemporaryDirectory() as folder:
        full, half = pathlib.Path(folder, "full"), pathlib.Path(folder, "half")
        full.write_bytes(members[WEIGHTS])
        with h5py.File(full) as source, h5py.File(half, "w") as target:
            _copy_as_half(source, target)
        members[WEIGHTS] = half.read_bytes()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def _copy_as_half(source, target):
    target.attrs.update(source.attrs)
    for name, item in source.items():
        if isinstance(item, h5py.Group):
            _copy_as_half(item, target.create_group(name))
        else:
            values = item[()]
            if values.dtype == "float32":
                values = values.astype("float16")
            target.create_dataset(name, data=values).attrs.update(item.attrs)
