"""The files of weights that Marian writes: `.npz`, and `.bin`, also 8-bit."""

import functools
import math
import mmap
import os
import pathlib
import struct
import zipfile

import numpy as np

from keras_tfm.file_reading import Config, reading
from keras_tfm.zoo.marian.yaml_file import read_yaml

CONFIG = "special:model.yml"
# Element types by number.
TYPES = {0x101: "int8", 0x402: "float16", 0x404: "float32", 0x4101: "intgemm8"}
REAL_KINDS = "iuf"  # dtypes of real numbers
MAX_COMPRESSION = 20  # weights never become so many times smaller
MAX_RANK = 8
CONTENT = "a model of Marian"


class WeightsFile:
    """The arrays of a file, read on demand.

    Args:
        file: path of a `.npz` or `.bin`.

    Attributes:
        config: `Config` of the architecture, which the file holds as YAML.
        shapes: dict from str to tuple of int, without the configuration and
            the scales of 8-bit activations.

    Raises:
        FileNotFoundError: the file does not exist.
        ImportError: PyYAML is not installed.
        ValueError: the file is damaged, or not of Marian.
    """

    def __init__(self, file: str | os.PathLike):
        self.file = pathlib.Path(file)
        arrays = _open_npz if self.file.suffix == ".npz" else _open_bin
        with reading(self.file, CONTENT):
            arrays = arrays(self.file)
            self._readers = {name: read for name, (_, read) in arrays.items()}
            content = self.array(CONFIG).astype("int8").tobytes().rstrip(b"\0")
        self.config: Config = read_yaml(content, self.file)
        self.shapes = {
            name: shape
            for name, (shape, _) in arrays.items()
            if name != CONFIG and not name.endswith("_QuantMultA")
        }

    def __contains__(self, name: str) -> bool:
        return name in self.shapes

    def array(self, name: str) -> np.ndarray:
        """Returns an array as float32.

        Args:
            name: str.

        Raises:
            ValueError: its data are damaged.
        """
        with reading(self.file, CONTENT):
            return self._readers[name]().astype("float32", copy=False)


def _open_npz(file):
    archive, size = zipfile.ZipFile(file), os.path.getsize(file)
    members = archive.infolist()
    unpacked = sum(member.file_size for member in members)
    if unpacked > MAX_COMPRESSION * size:
        raise ValueError(f"{unpacked:,} bytes are compressed into {size:,}")
    arrays = {}
    for member in members:
        name = member.filename.removesuffix(".npy")
        if name in arrays:
            raise ValueError(f"the array {name!r} exists twice")
        with archive.open(member) as stream:
            shape, _, _ = _npy_header(stream, member)
        arrays[name] = (shape, functools.partial(_read_member, archive, member))
    return arrays


def _npy_header(stream, member):
    """Reads shape, order and dtype of an array, and checks its size."""
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"{member.filename!r} is of version {version}")
    read = getattr(np.lib.format, f"read_array_header_{version[0]}_0")
    shape, fortran_order, dtype = read(stream)
    if dtype.kind not in REAL_KINDS or any(size < 0 for size in shape):
        raise ValueError(f"{member.filename!r} is of type {dtype} and shape {shape}")
    expected = math.prod(shape) * dtype.itemsize
    actual = member.file_size - stream.tell()
    if expected != actual:
        raise ValueError(
            f"{member.filename!r} of shape {shape} must have {expected} bytes; got "
            f"{actual}"
        )
    return shape, fortran_order, dtype


def _read_member(archive, member):
    with archive.open(member) as stream:
        shape, fortran_order, dtype = _npy_header(stream, member)
        data = np.frombuffer(stream.read(), dtype)
    return data.reshape(shape, order="F" if fortran_order else "C")


def _open_bin(file):
    with open(file, "rb") as stream:  # mmap rejects an empty file
        data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    version, count = struct.unpack_from("<2Q", data)
    if version != 1 or count > len(data) // 32:
        raise ValueError(f"version {version} with {count} arrays, expected version 1")
    # Headers; names; shapes; bytes that align what follows; data.
    headers = [struct.unpack_from("<4Q", data, 16 + 32 * i) for i in range(count)]
    offset, names, shapes, arrays = 16 + 32 * count, [], [], {}
    for length, _, _, _ in headers:
        text = data[offset : offset + length]
        if len(text) < length:
            raise ValueError("a name is truncated")
        names.append(text.rstrip(b"\0").decode("utf-8"))
        offset += length
    for _, _, rank, _ in headers:
        if rank > MAX_RANK:
            raise ValueError(f"an array has {rank} axes")
        shapes.append(struct.unpack_from(f"<{rank}i", data, offset))
        offset += 4 * rank
    [padding] = struct.unpack_from("<Q", data, offset)
    offset += 8 + padding
    for name, shape, (_, kind, _, size) in zip(names, shapes, headers, strict=True):
        if name in arrays:
            raise ValueError(f"the array {name!r} exists twice")
        read = _bin_reader(data, name, shape, kind, size, offset)
        arrays[name] = (shape, read)
        offset += size
    return arrays


def _bin_reader(data, name, shape, kind, size, offset):
    if kind not in TYPES:
        raise ValueError(f"{name!r} is of type {kind:#x}, not {sorted(TYPES.values())}")
    is_quantized = TYPES[kind] == "intgemm8"
    dtype = np.dtype("int8" if is_quantized else TYPES[kind])
    expected = math.prod(shape) * dtype.itemsize + 4 * is_quantized
    if any(n < 0 for n in shape) or not expected <= size <= len(data) - offset:
        raise ValueError(f"{name!r} of shape {shape} has {size} bytes, or is truncated")
    read = _read_quantized if is_quantized else _read_plain
    return functools.partial(read, data, dtype, shape, offset, name)


def _read_plain(data, dtype, shape, offset, name):
    return np.frombuffer(data, dtype, math.prod(shape), offset).reshape(shape)


def _read_quantized(data, dtype, shape, offset, name):
    """Divides integers by their factor; all but embeddings are transposed."""
    count = math.prod(shape)
    [factor] = struct.unpack_from("<f", data, offset + count)
    if not (math.isfinite(factor) and factor > 0):
        raise ValueError(
            f"the factor of {name!r} must be positive and finite; got {factor}"
        )
    array = np.frombuffer(data, dtype, count, offset)
    is_transposed = len(shape) == 2 and not name.endswith("Wemb")
    array = array.reshape(shape[::-1]).T if is_transposed else array.reshape(shape)
    return array.astype("float32") / np.float32(factor)
