"""A worker process, which holds the models and answers its parent.

    python -m keras_tfm.server.worker_process

`workers.Worker` starts it. Messages are pickles behind their size in 8 bytes,
on standard input and output. A request is a tuple of its number, a method of
`LocalClient`, the name of a model, and arguments. A reply is a tuple of the
number of its request, its kind, and a value.
"""

import asyncio
import concurrent.futures
import contextlib
import importlib
import logging
import os
import pickle
import signal
import sys
from typing import Any, BinaryIO

SIZE_BYTES = 8
# Methods that are special.
LOAD, CANCEL, STREAM, PING = "load", "cancel", "stream", "ping"
STATE, END, ERROR = "state", "end", "error"  # kinds of replies
_log = logging.getLogger(__name__)


def encode(message: Any) -> bytes:
    """Returns a message as bytes, with its size before it."""
    data = pickle.dumps(message)
    return len(data).to_bytes(SIZE_BYTES, "big") + data


def _read(stream: BinaryIO) -> Any:
    """Returns the next message; ends the process if its parent has gone."""
    size = stream.read(SIZE_BYTES)
    if len(size) < SIZE_BYTES:
        os._exit(0)  # threads that still compute are of no use to anyone
    return pickle.loads(stream.read(int.from_bytes(size, "big")))


class _Worker:
    """Answers requests, each in a task of its own."""

    def __init__(self, requests: BinaryIO, replies: BinaryIO):
        self._requests, self._replies = requests, replies
        self._tasks: dict[int, asyncio.Task] = {}
        self._loading: asyncio.Task | None = None

    async def run(self):
        loop = asyncio.get_running_loop()
        reader = concurrent.futures.ThreadPoolExecutor(1, "reader")
        while True:
            request = await loop.run_in_executor(reader, _read, self._requests)
            number, method, *arguments = request
            if method == CANCEL:
                if task := self._tasks.get(number):
                    task.cancel()
                continue
            if method == PING:
                self._reply(number, END, None)
                continue
            if method == LOAD:
                # Before the next message is read: its classes would be imported
                # by two threads at once, and one gets modules half executed.
                name = "keras_tfm.server.local"
                local = loop.run_in_executor(reader, importlib.import_module, name)
                self._loading = loop.create_task(_load(local, *arguments))
            task = loop.create_task(self._answer(number, method, *arguments))
            self._tasks[number] = task
            task.add_done_callback(lambda _, number=number: self._tasks.pop(number))

    async def _answer(self, number, method, *arguments):
        try:
            clients = await asyncio.shield(self._loading)
            value = None
            if method != LOAD:
                name, *arguments = arguments
                answer = getattr(clients[name], method)(*arguments)
                if method != STREAM:
                    value = await answer
                else:
                    async for state in answer:
                        self._reply(number, STATE, state)
            self._reply(number, END, value)
        except Exception as error:
            self._reply(number, ERROR, error)

    def _reply(self, number, kind, value):
        try:
            data = encode((number, kind, value))
        except Exception:  # an error of a library that cannot be pickled
            _log.exception("A reply cannot be sent: %r", value)
            data = encode((number, ERROR, RuntimeError(repr(value))))
        self._replies.write(data)
        self._replies.flush()


async def _load(local, *arguments):
    def progress(message):
        # A full disk must not keep a worker from replacing another.
        with contextlib.suppress(OSError):
            sys.stderr.write(f"{message}\n")

    return await asyncio.to_thread((await local).load, *arguments, progress)


def main() -> None:
    """Answers requests until standard input ends."""
    # The parent decides about the end, also where a signal goes to all.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if sys.stderr is None:  # closed; the next file would take its number
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print
    asyncio.run(_Worker(sys.stdin.buffer, replies).run())


if __name__ == "__main__":
    main()
