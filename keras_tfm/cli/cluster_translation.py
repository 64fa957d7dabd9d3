"""Translates files on a Ray cluster: `keras-tfm translate --cluster`.

Ray Data gives each file to a worker, which does what `keras-tfm translate FILE
--output FILE` does. A file that a lost worker has begun goes to another, which
resumes it.
"""

import contextlib
import dataclasses
import glob
import io
import json
import os
import pathlib
import sys
import time
from collections.abc import Iterable
from typing import Any

from keras_tfm.cli import lines, options, output, ray_cluster, translate
from keras_tfm.cli.main import ERRORS
from keras_tfm.pipelines import pretrained

JOB = ".job.json"  # in the folder of the output: what its files depend on
LOCK_SECONDS = 120  # until the lock of a lost worker is free


def run(flags: options.Translate) -> None:
    """Translates files to files of the same names in a folder.

    Args:
        flags: `options.Translate` with `cluster`.

    Raises:
        ValueError: a flag is out of its range; two files have one name; the
            folder holds the output of another command; or a file could not be
            translated, and the others are written.
        ConnectionError, ImportError: see `ray_cluster.connect`.
    """
    ray_cluster.check(flags)
    files = expand(flags.files)
    targets = _targets(files, flags.output)
    pretrained.check_name(flags.model)
    flags = dataclasses.replace(
        flags, model=ray_cluster.absolute(flags.model), files=files
    )
    identity = output.prepare(
        dataclasses.replace(flags, output=None), pretrained.locate(flags.model)
    )
    for name in ("cluster", *ray_cluster.FLAGS):
        del identity[name]
    _open_folder(pathlib.Path(flags.output), identity)
    tasks = [
        {"file": file, "output": os.fspath(target), "identity": json.dumps(identity)}
        for file, target in targets.items()
        if not target.exists()
    ]
    print(f"{len(tasks):,} of {len(files):,} files to translate.", file=sys.stderr)
    if tasks:
        with ray_cluster.connect(flags.cluster, "data"):
            _report(_translate(flags, tasks), len(tasks))


def expand(patterns: Iterable[str]) -> tuple[str, ...]:
    """Returns the absolute paths of files; patterns are replaced by their
    files, in order.

    Args:
        patterns: paths and patterns, such as `"part-*.gz"`.

    Raises:
        ValueError: there is no pattern, or one is standard input.
        FileNotFoundError: a file is missing.
    """
    names: list[str] = []
    for pattern in patterns:
        exists = os.path.exists(pattern)
        names += [pattern] if exists else sorted(glob.glob(pattern)) or [pattern]
    if not names or "-" in names:
        raise ValueError(
            "FILE must name files with --cluster; got standard input. Write it to "
            "files, for example with `split -l 100000`."
        )
    return tuple(map(os.path.abspath, lines.check_files(names)))


def _targets(files, folder):
    """Maps each file to its output, which is never compressed."""
    if folder is None:
        raise ValueError("--output must be a folder with --cluster; got none.")
    folder, targets = pathlib.Path(folder).resolve(), {}
    for file in files:
        target = folder / pathlib.Path(file).name.removesuffix(".gz")
        if target in targets.values():
            raise ValueError(
                "FILE must be files of different names, which the outputs take; got "
                f"{target.name!r} twice. Rename one."
            )
        output.check(os.fspath(target), files)
        targets[file] = target
    return targets


def _open_folder(folder, identity):
    """Creates the folder, or checks that the same command has created it."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(
            f"--output must be a folder with --cluster; got {os.fspath(folder)!r}, a "
            "file. Name a folder."
        )
    folder.mkdir(parents=True, exist_ok=True)
    note, text = folder / JOB, json.dumps(identity, sort_keys=True)
    if any(folder.iterdir()):
        if not note.is_file() or note.read_bytes() != text.encode():
            raise ValueError(
                f"--output must be an empty folder, or that of the same command; got "
                f"{os.fspath(folder)!r}, which holds other files, or the output of "
                "another model, of other flags or files. Name another folder."
            )
        return
    partial = note.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(note)


def _translate(flags, tasks):
    """Yields what `Worker` returns of each file, as they are done."""
    import ray
    from ray.data import ActorPoolStrategy, DataContext

    DataContext.get_current().enable_progress_bars = False
    dataset = ray.data.from_items(tasks, override_num_blocks=len(tasks))
    results = dataset.map(
        Worker,
        fn_constructor_args=[dataclasses.asdict(flags)],
        # It starts with the workers that the cluster has room for.
        compute=ActorPoolStrategy(
            min_size=1,
            max_size=flags.workers,
            max_tasks_in_flight_per_actor=1,  # no file waits for a busy worker
        ),
        num_cpus=flags.cpus_per_worker,
        num_gpus=flags.gpus_per_worker,
    )
    return results.iter_rows()


class Worker:
    """Translates files in a process of a cluster.

    Args:
        flags: dict of `options.Translate`.
    """

    def __init__(self, flags: dict[str, Any]):
        alone = {name: getattr(options.Cluster, name) for name in ray_cluster.FLAGS}
        flags = {**flags, **alone, "cluster": None, "progress": False}
        self.flags, self.translator = options.Translate(**flags), None

    def __call__(self, task: dict[str, str]) -> dict[str, Any]:
        """Translates a file.

        Args:
            task: dict with `"file"`, `"output"` and `"identity"`.

        Returns:
            dict with `"file"`, `"lines"`, `"rejected"`, `"messages"` and
            `"error"`, which is empty unless the file could not be translated.
        """
        flags = dataclasses.replace(
            self.flags, files=(task["file"],), output=task["output"]
        )
        identity = json.loads(task["identity"])
        identity["files"] = output.fingerprints(task["file"])
        result = {"file": task["file"], "lines": 0, "rejected": 0, "error": ""}
        messages = io.StringIO()
        with contextlib.redirect_stderr(messages):
            try:
                if self.translator is None:
                    self.translator = translate.load(flags)
                job, count = _write(self.translator, flags, identity)
                result |= {"lines": count, "rejected": job.num_rejected}
            except ERRORS as error:
                result["error"] = str(error)
        return {**result, "messages": messages.getvalue()}


def _write(translator, flags, identity):
    """Writes a file as soon as no lost worker has it open."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return translate.write(translator, flags, identity)
        except output.Locked:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


def _report(results, count):
    """Prints each result; raises if a file or a line was not translated."""
    errors, rejected = [], 0
    for number, result in enumerate(results, start=1):
        print(result["messages"], end="", file=sys.stderr)
        rejected += result["rejected"]
        state = f"{result['lines']:,} lines"
        if result["error"]:
            errors.append(f"{result['file']}: {result['error']}")
            state = result["error"]
        print(f"{number:,}/{count:,} {result['file']}: {state}", file=sys.stderr)
    if errors:
        raise ValueError(
            f"{len(errors):,} of {count:,} files could not be translated; all others "
            f"are written. The first: {errors[0]} The same command tries them again."
        )
    if rejected:
        raise ValueError(f"{rejected:,} lines have no answer; all others are written.")
