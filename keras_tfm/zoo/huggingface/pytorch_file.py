"""Pickled tensors of PyTorch, read without running the pickle."""

import io
import math
import mmap
import pathlib
import pickletools
import struct
import zipfile
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

# Kinds of storages, their names in safetensors, and their dtypes; NumPy has no
# bfloat16, which is the upper half of a float32.
STORAGES = {
    "DoubleStorage": ("F64", "<f8"),
    "FloatStorage": ("F32", "<f4"),
    "HalfStorage": ("F16", "<f2"),
    "BFloat16Storage": ("BF16", "<u2"),
    "LongStorage": ("I64", "<i8"),
    "IntStorage": ("I32", "<i4"),
    "ShortStorage": ("I16", "<i2"),
    "CharStorage": ("I8", "i1"),
    "ByteStorage": ("U8", "u1"),
    "BoolStorage": ("BOOL", "?"),
}
MAPPING, REBUILD = "collections OrderedDict", "torch._utils _rebuild_tensor_v2"
GLOBALS = {MAPPING, REBUILD, *(f"torch {name}" for name in STORAGES)}
# Instructions of pickles: those that push their argument, and those that push a
# value that is always the same.
ARGUMENTS = ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE")
ARGUMENTS += ("SHORT_BINUNICODE", "GLOBAL")
CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "MARK": lambda: MARK,
}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
MARK = object()
# Numbers at the start of the format before PyTorch 1.6.
LEGACY_MAGIC, LEGACY_VERSION = 0x1950A86A20F9469CFC6C, 1001
LOCAL_HEADER = 30  # bytes of a zip file before a member's name
MAX_RANK, MAX_SIZE = 8, 2**48


class Global(str):
    """The name of a class or function, which is never imported."""


class Storage(NamedTuple):
    """Numbers that tensors are views of: the type, key and count of them."""

    kind: str
    key: str
    count: int


class Tensor(NamedTuple):
    """A view of a storage."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Unread(NamedTuple):
    """Stands for an object of a checkpoint, which is never made.

    Attributes:
        function: str, the name of what would have made it.
    """

    function: str


class PytorchFile:
    """The tensors of a `pytorch_model.bin` or checkpoint, mapped into memory.

    A pickle is a program that can call any function. Here an interpreter of the
    few instructions that `torch.save` writes for weights reads it. It imports
    and calls nothing: what is not a dict of tensors is rejected. PyTorch is
    not needed.

    A checkpoint of PyTorch Lightning holds its tensors in one of several
    entries, beside objects of optimizers and callbacks. These objects are
    skipped: in their place stands `Unread`.

    Args:
        file: path, of the zip format of PyTorch 1.6, or of the older one.
        entry: str, the entry of a checkpoint that is a dict of tensors, such as
            `"state_dict"`; None where the whole file is.

    Attributes:
        shapes: dict from str to tuple of int.
        dtypes: dict from str to str, as safetensors names types: `"F32"`.
        entries: dict from str to the other entries of a checkpoint: numbers,
            strings, lists and dicts of these, `Tensor` and `Unread`.

    Raises:
        Exception: of many types, if the file is damaged or holds anything but
            tensors; see `file_reading.reading`.
    """

    def __init__(self, file: pathlib.Path, entry: str | None = None):
        with open(file, "rb") as stream:  # mmap rejects an empty file
            self._data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        is_zip = self._data[:4] == b"PK\3\4"
        content, self._starts = (_open_zip if is_zip else _open_legacy)(
            self._data, file, entry is not None
        )
        self.entries: dict[str, Any] = {}
        if entry is not None and isinstance(content, dict):
            self.entries, content = content, content.get(entry)
            self.entries.pop(entry, None)
        place = "it" if entry is None else repr(entry)
        _check_tensors(content, place)
        self._tensors: dict[str, Tensor] = content
        self.shapes = {name: tensor.shape for name, tensor in content.items()}
        self.dtypes = {
            name: STORAGES[tensor.storage.kind][0] for name, tensor in content.items()
        }

    def array(self, name: str) -> np.ndarray:
        """Returns one tensor; bfloat16 becomes float32.

        Args:
            name: str, of `shapes`.
        """
        return self.rows(name, ...)

    def rows(self, name: str, part: Any) -> np.ndarray:
        """Returns a part of one tensor.

        Args:
            name: str, of `shapes`.
            part: index of an array, such as a slice.
        """
        tensor = self._tensors[name]
        kind, dtype = STORAGES[tensor.storage.kind]
        if 0 in tensor.shape:
            return np.zeros(tensor.shape, "f4" if kind == "BF16" else dtype)[part]
        start, size = self._starts[tensor.storage.key], np.dtype(dtype).itemsize
        numbers = np.frombuffer(self._data, dtype, tensor.storage.count, start)
        strides = [size * stride for stride in tensor.strides]
        array = np.lib.stride_tricks.as_strided(
            numbers[tensor.offset :], tensor.shape, strides, writeable=False
        )[part]
        if kind == "BF16":
            return (array.astype("<u4") << 16).view("<f4")
        return array


def _check_tensors(content, place):
    if not isinstance(content, dict):
        raise ValueError(f"{place} must hold a dict of tensors and nothing else")
    for name, value in content.items():
        if not isinstance(value, Tensor):
            kind = type(value).__name__
            if isinstance(value, Unread):
                kind = f"an object of {value.function!r:.80}"
            raise ValueError(
                f"{place} must hold a dict of tensors and nothing else; {name!r:.80} "
                f"is {kind}"
            )


def _open_zip(data, file, skips_objects):
    """Returns the unpickled content, and where each storage starts."""
    with zipfile.ZipFile(file) as archive:
        members = {member.filename: member for member in archive.infolist()}
    [pickle] = [name for name in members if name.split("/")[1:] == ["data.pkl"]]
    folder = pickle.removesuffix("data.pkl")

    def _span(name):
        """Returns where the bytes of a member are."""
        member = members[name]
        start = member.header_offset
        name_size, extra_size = struct.unpack_from("<2H", data, start + 26)
        start += LOCAL_HEADER + name_size + extra_size
        is_stored = member.compress_type == zipfile.ZIP_STORED
        if not is_stored or start + member.file_size > len(data):
            raise ValueError(f"the member {name!r:.60} is compressed or truncated")
        return start, start + member.file_size

    def _text(name):
        return data[slice(*_span(name))]

    order = f"{folder}byteorder"
    if order in members and _text(order) != b"little":
        raise ValueError("its numbers must be little-endian")
    content, storages = _unpickle(io.BytesIO(_text(pickle)), skips_objects)
    starts = {}
    for storage in storages.values():
        start, end = _span(f"{folder}data/{storage.key}")
        _check_storage(storage, end - start)
        starts[storage.key] = start
    return content, starts


def _open_legacy(data, file, skips_objects):
    """As `_open_zip`, of the format before PyTorch 1.6."""
    header = [_unpickle(data)[0] for _ in range(3)]  # the third is of the machine
    if header[:2] != [LEGACY_MAGIC, LEGACY_VERSION]:
        raise ValueError("it must start as a file that torch.save wrote")
    if header[2].get("little_endian") is not True:
        raise ValueError("its numbers must be little-endian")
    content, storages = _unpickle(data, skips_objects)
    keys, _ = _unpickle(data)
    start, starts = data.tell(), {}
    for key in keys:
        storage = storages[key]
        [count] = struct.unpack_from("<q", data, start)
        if count != storage.count:
            raise ValueError(f"a storage has {count} numbers, not {storage.count}")
        starts[key] = start + 8
        start += 8 + _size_of(storage)
        _check_storage(storage, len(data) - starts[key])
    if set(starts) != set(storages):
        raise ValueError("a storage is missing")
    return content, starts


def _size_of(storage):
    return storage.count * np.dtype(STORAGES[storage.kind][1]).itemsize


def _check_storage(storage, size):
    if _size_of(storage) > size:
        raise ValueError(
            f"a storage must have {_size_of(storage)} bytes; the file has {size}"
        )


def _unpickle(stream, skips_objects=False):
    """Interprets one pickle; returns its value and the storages in it.

    With `skips_objects` a call of a function or class is `Unread`, and what is
    added to it is lost; without, an error.
    """
    stack, memo, storages = [], {}, {}
    for opcode, argument, position in pickletools.genops(stream):
        name = opcode.name
        if name in ARGUMENTS:
            stack.append(Global(argument) if name == "GLOBAL" else argument)
        elif name in CONSTANTS:
            stack.append(CONSTANTS[name]())
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name in TUPLES or name == "TUPLE":
            items = _popped(stack, TUPLES.get(name))
            stack.append(tuple(items))
        elif name in ("SETITEM", "SETITEMS"):
            items = _popped(stack, 2 if name == "SETITEM" else None)
            if not isinstance(stack[-1], Unread):
                _set_items(stack[-1], items, skips_objects)
        elif name in ("APPEND", "APPENDS"):
            items = _popped(stack, 1 if name == "APPEND" else None)
            if not isinstance(stack[-1], Unread):
                _expect(stack[-1], list).extend(items)
        elif name == "BINPERSID":
            storage = _storage(stack.pop())
            if storages.setdefault(storage.key, storage) != storage:
                raise ValueError("a storage has two types or sizes")
            stack.append(storage)
        elif name == "REDUCE" or (name == "NEWOBJ" and skips_objects):
            arguments, function = stack.pop(), stack.pop()
            is_skipped = skips_objects and function not in (MAPPING, REBUILD)
            stack.append((_skip if is_skipped else _call)(function, arguments))
        elif name == "BUILD":  # attributes, such as the versions of layers
            stack.pop()
        elif name == "STOP":
            return stack.pop(), storages
        elif name != "PROTO":
            raise ValueError(f"{name} at byte {position} is not needed for tensors")
    raise ValueError("it is truncated")


def _popped(stack, count):
    """Removes the last values, or those after the last mark."""
    items = []
    while len(items) != count:
        items.append(stack.pop())
        if count is None and items[-1] is MARK:
            items.pop()
            break
    return items[::-1]


def _expect(value, kind):
    if type(value) is not kind:
        raise ValueError(f"expected {kind.__name__}, got {type(value).__name__}")
    return value


def _set_items(target, items, skips_others):
    # Keys are strings: the hash of nested tuples may take any time.
    pairs = list(zip(items[::2], items[1::2], strict=True))
    if skips_others:
        pairs = [pair for pair in pairs if type(pair[0]) is str]
    for name, _ in pairs:
        _expect(name, str)
    _expect(target, dict).update(pairs)


def _skip(function, arguments):
    # Not `str` of what may be a deep tuple.
    is_name = isinstance(function, Global)
    return Unread(str(function) if is_name else type(function).__name__)


def _call(function, arguments):
    """Returns what the only two functions would return."""
    name = str(_expect(function, Global))
    if name not in GLOBALS:
        raise ValueError(f"it must be of tensors alone; it calls {name!r:.80}")
    if name == MAPPING and arguments == ():
        return {}
    if name != REBUILD:
        raise ValueError(f"it must not call {name!r}")
    storage, offset, shape, strides = _expect(arguments, tuple)[:4]
    count = _expect(storage, Storage).count
    for numbers in (shape, strides):
        if len(_expect(numbers, tuple)) > MAX_RANK:
            raise ValueError(f"a tensor has {len(numbers)} axes")
        for number in numbers:
            _check_count(number)
    last = _check_count(offset)
    last += sum((n - 1) * m for n, m in zip(shape, strides, strict=True))
    # A view that repeats numbers could be of any size.
    if math.prod(shape) > count or (0 not in shape and last >= count):
        raise ValueError(f"a tensor of shape {shape} must be within its storage")
    return Tensor(storage, offset, shape, strides)


def _storage(identity):
    tag, kind, key, _, count = _expect(identity, tuple)[:5]
    name = _expect(kind, Global).removeprefix("torch ")
    if tag != "storage" or name not in STORAGES or any(identity[5:]):
        raise ValueError(f"a storage must be of {list(STORAGES)}; got {name!r:.80}")
    return Storage(name, _expect(key, str), _check_count(count))


def _check_count(number):
    if not 0 <= _expect(number, int) < MAX_SIZE:
        raise ValueError(f"a size must be between 0 and {MAX_SIZE}; got {number}")
    return number
