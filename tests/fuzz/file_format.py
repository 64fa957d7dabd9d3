"""What a format of files is to the tests of damage."""

import dataclasses
import importlib.util
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Format:
    """Files of one program.

    Attributes:
        write: function of an empty folder, which it fills.
        read: function of that folder. It loads all and uses it once.
        files: names of the files that are damaged one by one.
        needs: str, a package without which the files cannot be written or read.
    """

    write: Callable
    read: Callable
    files: tuple[str, ...]
    needs: str = "keras"

    @property
    def is_possible(self):
        return importlib.util.find_spec(self.needs) is not None
