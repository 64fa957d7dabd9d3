"""The file of weights that CTranslate2 writes."""

import math
import mmap
import pathlib
import struct
from typing import Any

import numpy as np

from keras_tfm.file_reading import reading

# Element types by number; before version 4, by the bytes of an element.
TYPES = ("float32", "int8", "int16", "int32", "float16", "bfloat16")
OLD_TYPES = {1: "int8", 2: "int16", 4: "float32"}
MAX_RANK = 32  # axes that NumPy has at least
CONTENT = "a model of CTranslate2"


class ModelBin:
    """The arrays of a `model.bin`, mapped into memory.

    Args:
        file: path.

    Attributes:
        name: str, the kind of model.
        arrays: dict from str to array, as stored.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is damaged, or not of CTranslate2.
    """

    def __init__(self, file: str | pathlib.Path):
        self.file, self._used = pathlib.Path(file), set()
        self._offset, self.arrays, self._aliases = 0, {}, {}
        self._bfloat16 = set()
        with reading(self.file, CONTENT):
            with open(file, "rb") as stream:  # mmap rejects an empty file
                self._data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            self._read()

    def __contains__(self, name: str) -> bool:
        return name in self.arrays or name in self._aliases

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of an array.

        Args:
            name: str.
        """
        return self.arrays[self.origin(name)].shape

    def origin(self, name: str) -> str:
        """Returns the name of the array that a name is an alias of.

        Args:
            name: str.

        Raises:
            ValueError: there is no such array.
        """
        name = self._aliases.get(name, name)
        if name not in self.arrays:
            raise ValueError(f"{self.file}: {name!r} is missing. Convert it again.")
        return name

    def array(self, name: str) -> np.ndarray:
        """Returns an array in float32, scaled where it is quantized.

        Args:
            name: str.
        """
        name = self.origin(name)
        self._used.add(name)
        array, scale_name = self._to_float(name), f"{name}_scale"
        if scale_name not in self:
            return array
        scale = self._to_float(self.origin(scale_name))
        self._used.add(self.origin(scale_name))
        if scale.shape not in ((), (1,), array.shape[:1]):
            raise ValueError(
                f"{self.file}: {scale_name!r} must have a number for each row of "
                f"{name!r}; got shape {scale.shape}."
            )
        return array / scale.reshape((-1,) + (1,) * (array.ndim - 1))

    def number(self, name: str, default: Any) -> Any:
        """Returns a value that configures the model.

        Args:
            name: str.
            default: returned where the value is absent.
        """
        if name not in self:
            return default
        name = self.origin(name)
        self._used.add(name)
        is_bfloat16 = name in self._bfloat16
        array = self._to_float(name) if is_bfloat16 else self.arrays[name]
        return array.item()

    def unread(self, names: list[str]) -> list[str]:
        """Lists arrays that are neither among the names nor were read before.

        Args:
            names: list of str.
        """
        read = {self.origin(name) for name in names} | self._used
        read |= {f"{name}_scale" for name in read}
        return sorted(set(self.arrays) - read)

    def _to_float(self, name):
        array = self.arrays[name]
        if name in self._bfloat16:
            return (array.astype("uint32") << 16).view("float32")
        return array.astype("float32")

    def _read(self):
        [version] = self._take("I")
        if not 1 <= version <= 6:
            raise ValueError(f"version {version}, supported are 1 to 6")
        self.name = self._string() if version >= 2 else "TransformerBase"
        self._take("I" if version >= 2 else "")
        for _ in range(*self._take("I")):
            self._read_array(is_old=version < 4)
        if version >= 3:
            for _ in range(*self._take("I")):
                alias = self._string()
                self._aliases[alias] = self._string()
        if self._offset != len(self._data):
            raise ValueError(f"{len(self._data) - self._offset} bytes are left over")

    def _read_array(self, is_old):
        name = self._string()
        [rank] = self._take("B")
        if rank > MAX_RANK:
            raise ValueError(f"{name!r} has {rank} axes")
        shape = self._take(f"{rank}I")
        kind, size = self._take("BI")
        dtype = OLD_TYPES[kind] if is_old else TYPES[kind]
        stored = np.dtype("uint16" if dtype == "bfloat16" else dtype)
        size *= kind if is_old else 1
        remaining = len(self._data) - self._offset
        if size != math.prod(shape) * stored.itemsize or size > remaining:
            raise ValueError(
                f"{name!r} of shape {shape} has {size} of {remaining} bytes"
            )
        if name in self.arrays:
            raise ValueError(f"the array {name!r} exists twice")
        array = np.frombuffer(self._data, stored, math.prod(shape), self._offset)
        self.arrays[name] = array.reshape(shape)
        self._offset += size
        if dtype == "bfloat16":
            self._bfloat16.add(name)

    def _take(self, layout):
        values = struct.unpack_from("<" + layout, self._data, self._offset)
        self._offset += struct.calcsize("<" + layout)
        return values

    def _string(self):
        [size] = self._take("H")
        text = self._data[self._offset : self._offset + size]
        self._offset += size
        return text.rstrip(b"\0").decode("utf-8")
