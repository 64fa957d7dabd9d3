"""Keeps two processes from training in one folder."""

import os
import pathlib
import socket

FILE_NAME = ".lock"
# By path. The system releases a lock when its process ends, however it ends.
_locks: dict[pathlib.Path, int] = {}  # descriptors of lock files


def lock_folder(folder: str | os.PathLike, parameter: str = "folder") -> None:
    """Locks a folder for this process, until it ends or unlocks it.

    A folder that this process has locked already stays locked. Windows, and
    file systems without locks, lock nothing.

    Args:
        folder: path. Created if it does not exist.
        parameter: str, its name in the error.

    Raises:
        ValueError: another process has locked the folder.
    """
    folder = pathlib.Path(folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if folder in _locks:
        return
    try:
        import fcntl
    except ImportError:  # Windows
        return
    file = os.open(folder / FILE_NAME, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(file, 1_000).decode().strip() or "another process"
        os.close(file)
        raise ValueError(
            f"`{parameter}` must be a folder that no other process trains in; got "
            f"{os.fspath(folder)!r}, in which {holder} trains. Wait for it, stop it, "
            "or name another folder."
        ) from error
    except OSError:  # a file system without locks
        os.close(file)
        return
    os.ftruncate(file, 0)
    os.write(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
    _locks[folder] = file


def unlock_folder(folder: str | os.PathLike) -> None:
    """Unlocks a folder that this process has locked, if it has.

    Args:
        folder: path.
    """
    file = _locks.pop(pathlib.Path(folder).resolve(), None)
    if file is not None:
        os.close(file)
