"""The file of weights that CTranslate2 writes."""

import math
import mmap
import os
import pathlib
import struct

import numpy as np

# By the number of a type.
TYPES = ("float32", "int8", "int16", "int32", "float16", "bfloat16")
# Before version 4 by the bytes of an element.
OLD_TYPES = {1: "int8", 2: "int16", 4: "float32"}
RANK = 32  # axes, that NumPy has at least


class Variables:
    """The arrays of a `model.bin`, mapped into memory.

    Args:
        file: path.

    Attributes:
        name: str, of the kind of model.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is damaged, or no file of CTranslate2.
    """

    def __init__(self, file):
        self.file, self._used = pathlib.Path(file), set()
        with open(file, "rb") as opened:
            if not os.fstat(opened.fileno()).st_size:
                raise self._damaged("it is empty")
            self._data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        self._place, self._arrays, self._aliases = 0, {}, {}
        self._bfloats = set()
        try:
            self._read()
        except (struct.error, UnicodeDecodeError, IndexError) as error:
            raise self._damaged(error) from error

    def __contains__(self, name):
        return name in self._arrays or name in self._aliases

    def shape(self, name):
        """Gives the shape of an array.

        Args:
            name: str.
        """
        return self._arrays[self.origin(name)].shape

    def origin(self, name):
        """Gives the name of the array that another name stands for.

        Args:
            name: str.

        Raises:
            ValueError: there is none.
        """
        name = self._aliases.get(name, name)
        if name not in self._arrays:
            raise ValueError(f"{self.file}: {name!r} is missing. Convert it again.")
        return name

    def array(self, name):
        """Gives an array, as float32 where it is one of numbers with fractions.

        Args:
            name: str.
        """
        name = self.origin(name)
        self._used.add(name)
        array, scale = self._floats(name), f"{name}_scale"
        if scale in self:
            factor = self._floats(self.origin(scale))
            self._used.add(self.origin(scale))
            if factor.shape not in ((), (1,), array.shape[:1]):
                raise self._damaged(f"{scale!r} has another shape than {name!r}")
            return array / factor.reshape((-1,) + (1,) * (array.ndim - 1))
        return array

    def number(self, name, default):
        """Gives a setting.

        Args:
            name: str.
            default: what it is where it is not there.
        """
        if name not in self:
            return default
        name = self.origin(name)
        self._used.add(name)
        if self._arrays[name].size != 1:
            raise self._damaged(f"{name!r} is no number")
        stored = self._floats(name) if name in self._bfloats else self._arrays[name]
        return stored.reshape(-1)[0].item()

    def unread(self, names):
        """Lists what is neither among the names nor was read as a setting.

        Args:
            names: list of str.
        """
        read = {self.origin(name) for name in names} | self._used
        read |= {f"{name}_scale" for name in read}
        return sorted(set(self._arrays) - read)

    def _floats(self, name):
        array = self._arrays[name]
        if name in self._bfloats:
            return (array.astype("uint32") << 16).view("float32")
        return array.astype("float32")

    def _read(self):
        [version] = self._take("I")
        if not 1 <= version <= 6:
            raise self._damaged(f"version {version}, and 1 to 6 are read")
        self.name = self._string() if version >= 2 else "TransformerBase"
        self._take("I" if version >= 2 else "")
        for _ in range(*self._take("I")):
            name = self._string()
            [rank] = self._take("B")
            if rank > RANK:
                raise self._damaged(f"{name!r} has {rank} axes")
            shape = self._take(f"{rank}I")
            kind, size = self._take("BI")
            old = version < 4
            known = kind in OLD_TYPES if old else kind < len(TYPES)
            if not known:
                raise self._damaged(f"{name!r} is of type {kind}")
            dtype = OLD_TYPES[kind] if old else TYPES[kind]
            stored = np.dtype("uint16" if dtype == "bfloat16" else dtype)
            size *= kind if old else 1
            if size != math.prod(shape) * stored.itemsize:
                raise self._damaged(f"{name!r} of shape {shape} has {size} bytes")
            if size > len(self._data) - self._place or name in self._arrays:
                raise self._damaged(f"{name!r} is cut, or stands there twice")
            array = np.frombuffer(
                self._data, stored, math.prod(shape), self._place
            ).reshape(shape)
            if dtype == "bfloat16":
                self._bfloats.add(name)
            self._arrays[name], self._place = array, self._place + size
        if version >= 3:
            for _ in range(*self._take("I")):
                alias = self._string()
                self._aliases[alias] = self._string()
        if self._place != len(self._data):
            raise self._damaged(f"{len(self._data) - self._place} bytes are left over")

    def _take(self, form):
        values = struct.unpack_from("<" + form, self._data, self._place)
        self._place += struct.calcsize("<" + form)
        return values

    def _string(self):
        [size] = self._take("H")
        text = self._data[self._place : self._place + size]
        self._place += size
        return text.rstrip(b"\0").decode("utf-8")

    def _damaged(self, reason):
        return ValueError(
            f"{self.file} is damaged or no model of CTranslate2 ({reason}). Fetch or "
            "convert it again."
        )
