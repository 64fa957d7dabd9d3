"""Damages files and reads them, each in a process of its own.

`python -m tests.fuzz.worker FORMAT NUMBER` repeats one case and shows its
traceback. Without arguments it reads lines of JSON, [format, count], and
answers each by a line: the outcomes with their counts, and faults.

It is a process beside pytest since only a process that never had threads can be
forked safely, and the limit of memory counts what a process has already.
"""

import collections
import gc
import json
import os
import pathlib
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import warnings

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from keras_tfm.runtime.capture import CapturedFunction  # noqa: E402
from tests.fuzz.formats import FORMATS  # noqa: E402
from tests.fuzz.mutations import mutate  # noqa: E402

MEMORY = 700 * 2**20  # bytes beyond what the parent has
SECONDS = 20
# Capturing costs more than reading, and reads no file.
CapturedFunction.__call__ = lambda self, *arguments: self.function(*arguments)
LOADED, REJECTED, NOT_FINITE = "loaded", "rejected", "not finite"
OUTCOMES = (LOADED, REJECTED, NOT_FINITE)


def outcome_of(read, folder, file):
    """Reads a folder, one file of which is damaged.

    Returns:
        str, one of `OUTCOMES`; or what is wrong with the error.
    """
    try:
        read(folder)
    except (ValueError, FileNotFoundError) as error:
        if type(error) not in (ValueError, FileNotFoundError):
            return f"{type(error).__name__}: {error}"
        message = str(error)
        is_named = str(folder) in message and pathlib.Path(file).name in message
        return REJECTED if is_named else f"another file is named: {message}"
    except FloatingPointError as error:  # of finite weights that overflow
        return NOT_FINITE if "weights" in str(error) else f"FloatingPointError: {error}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return LOADED


def in_child(function, seconds=SECONDS):
    """Calls a function in a fork with limits, and returns its str."""
    [size] = pathlib.Path("/proc/self/statm").read_text().split()[:1]
    limit = int(size) * os.sysconf("SC_PAGE_SIZE") + MEMORY
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        signal.alarm(seconds)
        try:
            result = function()
        except BaseException:
            result = f"the test failed: {traceback.format_exc()}"
        os.write(writer, result.encode(errors="replace")[:4000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        result = stream.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return "no end within the time" if name == "SIGALRM" else f"killed by {name}"
    return result


class Folders:
    """Intact folders, written once, and copies of them with a damaged file."""

    def __init__(self, scratch):
        self.scratch = pathlib.Path(scratch)

    def intact(self, name):
        folder = self.scratch / str([*FORMATS].index(name))
        if not folder.exists():
            folder.mkdir()
            FORMATS[name].write(folder)
            FORMATS[name].read(self.copy(folder))  # its imports are made here
            gc.freeze()
        return folder

    def copy(self, folder):
        copy = self.scratch / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        return shutil.copytree(folder, copy, copy_function=os.link)

    def damaged(self, name, number):
        """Damages the files in turn; returns the folder and the file."""
        files, intact = FORMATS[name].files, self.intact(name)
        folder, file = self.copy(intact), files[number % len(files)]
        content = (intact / file).read_bytes()
        (folder / file).unlink()  # not the intact one
        (folder / file).write_bytes(mutate(content, file, f"{name}/{number}"))
        return folder, file


def run(folders, name, count):
    """Returns the count of each outcome, and the faults by their number."""
    counts, faults = collections.Counter(), {}
    for number in range(count):
        folder, file = folders.damaged(name, number)
        read = FORMATS[name].read
        result = in_child(lambda: outcome_of(read, folder, file))  # noqa: B023
        counts[result if result in OUTCOMES else "fault"] += 1
        if result not in OUTCOMES:
            faults[number] = result
    return {"counts": counts, "faults": faults}


def main():
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as scratch:
        folders = Folders(scratch)
        if sys.argv[1:]:
            name, number = sys.argv[1:]
            FORMATS[name].read(folders.damaged(name, int(number))[0])
            return
        answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # libraries print there
        for line in sys.stdin:
            result = run(folders, *json.loads(line))
            print(json.dumps(result), file=answers, flush=True)


if __name__ == "__main__":
    main()
