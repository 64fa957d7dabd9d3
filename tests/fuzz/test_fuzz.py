"""Damaged files are read, or rejected by an error that names the file.

`EXAMPLES=300 pytest tests/fuzz` makes 300 damages a format instead of 40.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests.fuzz.formats import FORMATS

pytestmark = [
    pytest.mark.backend("torch"),  # files are read, whatever the backend
    pytest.mark.skipif(
        not pathlib.Path("/proc/self/statm").exists(), reason="needs Linux"
    ),
]
EXAMPLES = int(os.environ.get("EXAMPLES", "40"))


@pytest.fixture(scope="module")
def worker():
    root = pathlib.Path(__file__).parents[2]
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        [sys.executable, "-m", "tests.fuzz.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"},
        text=True,
    ) as process:
        yield process
        process.stdin.close()


@pytest.mark.parametrize("name", FORMATS)
def test_a_damaged_file_is_read_or_named_by_an_error(name, worker, record_property):
    if not FORMATS[name].is_possible:
        pytest.skip(f"{FORMATS[name].needs} is not installed")
    print(json.dumps([name, EXAMPLES]), file=worker.stdin, flush=True)
    result = json.loads(worker.stdout.readline())
    record_property("counts", result["counts"])
    faults = "\n".join(f"{n}: {fault}" for n, fault in result["faults"].items())
    assert not faults, f"{faults}\nRepeat: python -m tests.fuzz.worker {name!r} NUMBER"
    # Damage is noticed, or the mutations do nothing.
    assert result["counts"].get("rejected", 0) > EXAMPLES // 10
