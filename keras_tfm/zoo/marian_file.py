"""The files of weights that Marian writes: `.npz`, and `.bin` with 8-bit."""

import functools
import math
import mmap
import os
import pathlib
import struct
import zipfile
import zlib

import numpy as np

CONFIG = "special:model.yml"
# By the number of a type.
TYPES = {0x101: "int8", 0x402: "float16", 0x404: "float32", 0x4101: "intgemm8"}
ZIP_FAULTS = (
    EOFError,
    NotImplementedError,
    OSError,  # a seek to before the file's start, as well as a disk's fault
    OverflowError,
    RuntimeError,
    ValueError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
REAL = "iuf"  # the kinds of dtypes that are of real numbers
RATIO = 20  # how many times smaller zip makes weights: never so much


class MarianFile:
    """The arrays of a file, read when asked for.

    Args:
        file: path of a `.npz` or a `.bin`.

    Attributes:
        config: dict, the architecture, as the file has it in YAML.
        shapes: dict of str to tuple of int, without the configuration and the
            scales of 8-bit activations.

    Raises:
        FileNotFoundError: there is no such file.
        ImportError: PyYAML is not installed.
        ValueError: it is damaged, or no file of Marian.
    """

    def __init__(self, file):
        self.file = pathlib.Path(file)
        open_file = _open_npz if self.file.suffix == ".npz" else _open_bin
        try:
            found = open_file(self.file)
        except _Damaged as error:
            raise self._damaged(error) from error
        self._read = {name: read for name, (_, read) in found.items()}
        shapes = {name: shape for name, (shape, _) in found.items()}
        if CONFIG not in shapes:
            raise self._damaged(f"it has no {CONFIG!r}")
        self.config = self._parsed(self.array(CONFIG).astype("int8").tobytes())
        self.shapes = {
            name: shape
            for name, shape in shapes.items()
            if name != CONFIG and not name.endswith("_QuantMultA")
        }

    def __contains__(self, name):
        return name in self.shapes

    def array(self, name):
        """Gives an array, as float32.

        Args:
            name: str.

        Raises:
            ValueError: its data are damaged.
        """
        try:
            return self._read[name]().astype("float32", copy=False)
        except (_Damaged, TypeError, ValueError) as error:
            raise self._damaged(error) from error

    def _parsed(self, content):
        return yaml_of(content.rstrip(b"\0"), self.file)

    def _damaged(self, reason):
        return ValueError(
            f"{self.file} is damaged or no model of Marian ({reason}). Fetch it again."
        )


def yaml_of(content, file):
    """Reads a configuration: a mapping to numbers, strings and lists of these.

    Args:
        content: bytes.
        file: path, what is named in an error.

    Returns:
        dict.

    Raises:
        ImportError: PyYAML is not installed.
        ValueError: it is none.
    """
    yaml = _yaml()
    try:
        found = yaml.load(content.decode("utf-8"), _without_references(yaml))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{file}: its YAML is damaged ({error}).") from error
    flat = isinstance(found, dict)
    for value in found.values() if flat else ():
        values = value if isinstance(value, list) else [value]
        flat = flat and not any(isinstance(one, (list, dict)) for one in values)
    if not flat:
        raise ValueError(
            f"{file}: its YAML is damaged: a mapping to plain values is wanted."
        )
    return found


@functools.cache
def _without_references(yaml):
    """Some hundred bytes of references to references stand for any number."""

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent, index):
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError("it refers to parts of itself")
            return super().compose_node(parent, index)

    return Loader


def vocabulary_of(file):
    """Reads a vocabulary: a piece and its number a line, as Marian writes it.

    PyYAML would take pieces such as no and 012 for a bool and a number.

    Args:
        file: path.

    Returns:
        dict from int to str.

    Raises:
        ImportError: PyYAML is not installed.
        ValueError: a line is none, or a number or piece stands there twice.
    """
    found, key = {}, ""
    yaml = _yaml()
    for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), 1):
        line = line.rstrip("\r")
        if not line or line in ("---", "..."):
            continue
        if line.startswith("? "):  # a long piece; its number is on the next line
            key = line[2:]
            continue
        piece, _, value = line.rpartition(":")
        try:
            value = int(value)
            piece = key or piece
            if piece[:1] in ("'", '"'):
                piece = yaml.load(piece, yaml.BaseLoader)  # noqa: S506, only strings
        except (ValueError, yaml.YAMLError):
            raise ValueError(
                f"{file}: a line has a piece and its number. Received: {line[:60]!r}, "
                f"line {number}."
            ) from None
        if value in found:
            raise ValueError(f"{file}: {value} stands there twice, line {number}.")
        found[value], key = piece, ""
    if len(set(found.values())) < len(found):
        raise ValueError(f"{file}: a piece stands there twice.")
    return found


def _yaml():
    try:
        import yaml
    except ImportError as error:
        raise ImportError(
            "Configurations of Marian are read by the library PyYAML, which cannot be "
            f"imported here ({error}). Install `keras-tfm[zoo]`."
        ) from error
    return yaml


class _Damaged(ValueError):
    """Why a file is not read."""


def _open_npz(file):
    with open(file, "rb"):  # one that is not there is no fault of a zip
        pass
    try:
        archive = zipfile.ZipFile(file)
        members = archive.infolist()
        size, limit = sum(m.file_size for m in members), RATIO * os.path.getsize(file)
        if size > limit:
            raise _Damaged(f"{size:,} bytes are packed into {os.path.getsize(file):,}")
        found = {}
        for member in members:
            name = member.filename.removesuffix(".npy")
            if name in found:
                raise _Damaged(f"{name!r} stands there twice")
            with archive.open(member) as opened:
                shape, _, _ = _header(opened, member)
            found[name] = (shape, functools.partial(_member, archive, member))
        return found
    except ZIP_FAULTS as error:
        raise _Damaged(error) from error


def _header(opened, member):
    """Shape, order and dtype of an array, if so many bytes follow."""
    version = np.lib.format.read_magic(opened)
    if version not in ((1, 0), (2, 0)):
        raise _Damaged(f"{member.filename!r} is of version {version}")
    read = getattr(np.lib.format, f"read_array_header_{version[0]}_0")
    shape, fortran, dtype = read(opened)
    if dtype.kind not in REAL or any(size < 0 for size in shape):
        raise _Damaged(f"{member.filename!r} is of type {dtype} and shape {shape}")
    if math.prod(shape) * dtype.itemsize != member.file_size - opened.tell():
        raise _Damaged(f"{member.filename!r} of shape {shape} has other bytes")
    return shape, fortran, dtype


def _member(archive, member):
    try:
        with archive.open(member) as opened:
            shape, fortran, dtype = _header(opened, member)
            data = opened.read()
        order = "F" if fortran else "C"
        return np.frombuffer(data, dtype).reshape(shape, order=order)
    except ZIP_FAULTS as error:
        raise _Damaged(error) from error


def _open_bin(file):
    with open(file, "rb") as opened:
        if not os.fstat(opened.fileno()).st_size:
            raise _Damaged("it is empty")
        data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    try:
        return _read_bin(data)
    except (struct.error, UnicodeDecodeError) as error:
        raise _Damaged(error) from error


def _read_bin(data):
    """Headers; names; shapes; bytes that align what follows; data."""
    version, count = struct.unpack_from("<2Q", data)
    if version != 1:
        raise _Damaged(f"version {version}, and 1 is read")
    if count > len(data) // 32:
        raise _Damaged(f"{count} arrays in {len(data):,} bytes")
    headers = [struct.unpack_from("<4Q", data, 16 + 32 * i) for i in range(count)]
    place, names, shapes = 16 + 32 * count, [], []
    for length, _, _, _ in headers:
        text = data[place : place + length]
        if len(text) < length:
            raise _Damaged("a name is cut")
        names.append(text.rstrip(b"\0").decode("utf-8"))
        place += length
    for _, _, rank, _ in headers:
        if rank > 8:
            raise _Damaged(f"an array has {rank} axes")
        shapes.append(struct.unpack_from(f"<{rank}i", data, place))
        place += 4 * rank
    [skipped] = struct.unpack_from("<Q", data, place)
    place, found = place + 8 + skipped, {}
    for name, shape, (_, kind, _, size) in zip(names, shapes, headers, strict=True):
        if kind not in TYPES:
            raise _Damaged(
                f"{name!r} is of type {kind:#x}; known are {sorted(TYPES.values())}: "
                "what Marian packs for one kind of processor is not read"
            )
        kind = TYPES[kind]
        if name in found:
            raise _Damaged(f"{name!r} stands there twice")
        stored = np.dtype("int8" if kind == "intgemm8" else kind)
        wanted = math.prod(shape) * stored.itemsize + 4 * (kind == "intgemm8")
        if any(n < 0 for n in shape) or wanted > size or size > len(data) - place:
            raise _Damaged(f"{name!r} of shape {shape} has {size} bytes, or is cut")
        read = _quantised if kind == "intgemm8" else _plain
        found[name] = (
            shape,
            functools.partial(read, data, stored, shape, place, name),
        )
        place += size
    return found


def _plain(data, dtype, shape, place, name):
    return np.frombuffer(data, dtype, math.prod(shape), place).reshape(shape)


def _quantised(data, dtype, shape, place, name):
    """Integers and what they were multiplied with; all but tables turned."""
    count = math.prod(shape)
    [factor] = struct.unpack_from("<f", data, place + count)
    if not (math.isfinite(factor) and factor > 0):
        raise _Damaged(f"{name!r} is quantised by {factor}")
    turned = len(shape) == 2 and not name.endswith("Wemb")
    array = np.frombuffer(data, dtype, count, place)
    array = array.reshape(shape[::-1]).T if turned else array.reshape(shape)
    return array.astype("float32") / np.float32(factor)
