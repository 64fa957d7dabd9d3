"""`keras-tfm serve` as a process: with one worker, and with several."""

import concurrent.futures
import os
import re
import signal
import socket
import subprocess
import sys
import time

import httpx
import numpy as np
import pytest

from keras_tfm.server.limits import Limits

pytestmark = pytest.mark.backend("torch")  # a process is the same on every backend
PROGRAM = "import sys; from keras_tfm.cli import main; sys.exit(main())"
LIMITS = ["--batch-size", "8", "--max-texts", "500", "--timeout", "300"]
LIMITS += ["--max-waiting", "100", "--warm-up", "8"]
WORDS = ["an", "old", "man", "in", "a", "small", "boat", "garden", "house"]


def spawn(folder, *flags, stderr=subprocess.PIPE):
    """Starts a process."""
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            PROGRAM,
            "serve",
            folder,
            "--port",
            "0",
            *LIMITS,
            *flags,
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        # The tests may run under `nohup`, which ignores it.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )


def start(folder, *flags):
    """Starts a server; returns its address and its process."""
    process = spawn(folder, *flags)
    line = process.stdout.readline()
    address = re.fullmatch(r"animals at (http://127.0.0.1:[1-9]\d+)\n", line)
    if not address:
        process.kill()
        pytest.fail(line + process.stderr.read())
    return address[1], process


def stop(process):
    process.terminate()
    try:
        process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


@pytest.fixture
def texts(translator):
    """Random texts and their translations."""
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice(WORDS, 5)) for _ in range(24)]
    return dict(zip(texts, translator(texts), strict=True))


def send(address, text, additional=()):
    body = {"text": [text, *additional]}
    return httpx.post(address + "/translate", json=body, timeout=300)


def check_concurrent_requests(address, pool, expected):
    """Sends concurrent requests and checks that each gets its own answer."""
    texts = list(expected)
    additional = [texts[i : i + 4] for i in range(len(texts))]
    answers = list(pool.map(send, [address] * len(texts), texts, additional))
    for text, answer in zip(texts, answers, strict=True):
        assert answer.json()["translations"][0]["text"] == expected[text]


def check_graceful_stop(address, process, pool, expected, number=signal.SIGTERM):
    """Sends a signal during requests and checks that all are answered."""
    texts = list(expected)
    futures = [pool.submit(send, address, text, texts[:19]) for text in texts[:4]]
    time.sleep(0.5)
    process.send_signal(number)
    for text, future in zip(texts, futures, strict=False):
        answer = future.result().json()
        assert answer["translations"][0]["text"] == expected[text]
    assert process.wait(120) == 0
    assert process.stdout.read() == ""  # nothing after the address


def test_one_process_serves_and_finishes_its_requests(folder, texts):
    import psutil

    address, process = start(folder)
    try:
        url = httpx.URL(address)
        family = psutil.Process(process.pid)
        family = [family, *family.children(recursive=True)]
        assert listening_sockets(family) == {(url.host, url.port)}
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            check_concurrent_requests(address, pool, texts)
            metrics = httpx.get(address + "/metrics").text
            assert 'path="/translate",status="200"} 24.0' in metrics
            # More than the queue holds: 2 * 100 chunks of 2 texts.
            answer = httpx.post(address + "/translate", json={"text": ["a"] * 401})
            expected = {"error": "A request must have at most 400 texts; got 401."}
            assert (answer.status_code, answer.json()) == (413, expected)
            with socket.create_connection((url.host, url.port), timeout=60) as raw:
                raw.sendall(b"GET / HTTP/1.1\r\nlarge: ".ljust(2**16 + 1, b"a"))
                assert raw.recv(99).startswith(b"HTTP/1.1 431 ")
            check_graceful_stop(address, process, pool, texts)
        assert "Traceback" not in (errors := process.stderr.read()), errors
    finally:
        stop(process)


@pytest.mark.parametrize(
    ("flags", "warms_up_first"),
    [([], False), (["--workers", "2"], False), (["--compile-first"], True)],
)
def test_requests_are_accepted_before_the_server_is_warm(folder, flags, warms_up_first):
    process = spawn(folder, *flags, stderr=subprocess.STDOUT)
    events = []
    try:
        while not {"accepts", "warms up"} <= set(events):
            line = process.stdout.readline()
            assert line, events  # it has not ended
            events += ["accepts"] * (" at http://" in line)
            events += ["warms up"] * ("animals: warming up, 1 of " in line)
        assert (events[0] == "warms up") == warms_up_first
    finally:
        stop(process)


def test_a_second_signal_logs_no_error(folder):
    _, process = start(folder)
    try:
        for number in (signal.SIGHUP, signal.SIGINT):
            process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0 and "Traceback" not in errors, errors
    finally:
        stop(process)


def is_running(process, seconds=60):
    """Returns whether a process still runs after some seconds."""
    import psutil

    end_states = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if process.status() in end_states:
                return False
        except psutil.NoSuchProcess:
            return False
        time.sleep(0.1)
    return True


def listening_sockets(processes):
    """Returns the addresses at which any of the processes listens."""
    import psutil

    return {
        connection.laddr
        for process in processes
        for connection in process.net_connections(kind="all")
        if connection.status == psutil.CONN_LISTEN or isinstance(connection.laddr, str)
        if connection.laddr
    }


def test_lost_workers_are_replaced_and_requests_answered(folder, texts):
    import psutil

    address, process = start(folder, "--workers", "2")
    try:
        family = psutil.Process(process.pid)
        workers = family.children(recursive=True)
        assert len(workers) == 2
        url = httpx.URL(address)
        assert listening_sockets([family, *workers]) == {(url.host, url.port)}
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            check_concurrent_requests(address, pool, texts)
            names = list(texts)
            futures = [
                pool.submit(send, address, text, names[:19]) for text in names[:16]
            ]
            time.sleep(0.3)
            compiled = workers[0].environ()["JAX_COMPILATION_CACHE_DIR"]
            assert compiled in workers[0].environ()["TF_XLA_FLAGS"]
            for worker in workers:
                worker.kill()
            for text, future in zip(names, futures, strict=False):  # none hangs
                answer = future.result()
                if answer.status_code == 503:
                    assert "The worker was lost. Try again." in answer.text
                else:
                    [first, *_] = answer.json()["translations"]
                    assert first["text"] == texts[text]
            assert not any(map(is_running, workers))
            answer = send(address, names[0])
            while answer.status_code == 503:  # no worker has started yet
                time.sleep(0.1)
                answer = send(address, names[0])
            assert answer.json()["translations"][0]["text"] == texts[names[0]]
            assert len(workers := family.children(recursive=True)) == 2
            number = signal.SIGHUP  # its terminal is closed
            check_graceful_stop(address, process, pool, texts, number)
        errors = process.stderr.read()
        assert errors.startswith("Loading ") and "warming up, 1 of " in errors
        assert errors.count("A worker ended with status -9.") == 2, errors
        assert "Traceback" not in errors, errors
        assert not any(map(is_running, workers))
        assert not os.path.exists(compiled)
    finally:
        stop(process)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.slow
def test_the_error_explains_why_a_server_cannot_start(folder):
    def fail(*flags):
        process = subprocess.run(
            [sys.executable, "-c", PROGRAM, "serve", folder, *flags],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert process.returncode == 1 and "Traceback" not in process.stderr
        assert process.stdout == ""
        [line] = [x for x in process.stderr.splitlines() if "keras-tfm:" in x]
        return line

    language = ("--target-language", "xx")
    assert "xx" in fail("--port", str(free_port()), *language)
    assert "xx" in fail("--port", str(free_port()), *language, "--workers", "2")
    assert "--port must be from 0 to 65535; got 99999" in fail("--port", "99999")


def test_a_taken_port_is_rejected():
    from keras_tfm.server import start

    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(OSError, match=f"nothing can listen at 127.0.0.1:{port}"):
            start.run({}, "127.0.0.1", port, 1, Limits(), ())
