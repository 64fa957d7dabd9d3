"""Worker processes: requests, errors, and what happens when one is lost."""

import asyncio
import gc
import os
import signal
import subprocess
import types

import pytest

from keras_tfm.server import workers
from keras_tfm.server.engine import Job
from keras_tfm.server.errors import FULL, Unavailable
from keras_tfm.server.limits import Limits
from keras_tfm.server.worker_process import encode
from tests.server.conftest import TEXTS

pytestmark = pytest.mark.backend("torch")  # a process is the same on every backend


@pytest.fixture(scope="module")
def runner():
    """Runs coroutines of all tests on one event loop."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def client(folder, tmp_path_factory, runner):
    """The client of a model in two worker processes."""
    models, compiled = (
        {"animals": {"name": folder}},
        tmp_path_factory.mktemp("compiled"),
    )
    starting = workers.start(models, 2, Limits(), (), str(compiled))
    clients = runner.run(starting.__aenter__())
    yield clients["animals"]
    runner.run(starting.__aexit__(None, None, None))


def texts_of(answers):
    return [answer["hypotheses"][0]["text"] for answer in answers]


def test_a_worker_answers_streams_and_describes(client, runner, translator):
    async def ask():
        states = [state async for state in client.stream(TEXTS[0], None)]
        return await client.answer(Job(TEXTS)), states, await client.describe()

    answers, states, description = runner.run(ask())
    assert texts_of(answers) == translator(TEXTS)
    assert states[-1] == list(translator.stream(TEXTS[0]))[-1]
    assert description["kind"] == "translation"


def test_a_slow_client_gets_the_latest_state_of_a_stream(runner):
    """All states of long streams would fill the memory."""

    async def ask():
        worker, stdout = workers.Worker({}), asyncio.StreamReader()
        for size in range(1, 100):
            stdout.feed_data(encode((0, "state", "a" * size)))
        stdout.feed_data(encode((0, "end", None)))
        stdout.feed_eof()
        transport = types.SimpleNamespace(get_write_buffer_size=lambda: 0)
        stdin = types.SimpleNamespace(
            write=len, close=lambda: None, transport=transport
        )
        worker._process = types.SimpleNamespace(
            stdout=stdout, stdin=stdin, wait=lambda: asyncio.sleep(0)
        )
        stream = worker.stream("animals", "a text", None)
        first = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        await worker._read(worker._process)
        return [await first, *[state async for state in stream]]

    assert runner.run(ask()) == ["a" * 99]


def test_an_error_of_a_job_is_its_answer(client, runner):
    job = Job(["a"], glossary=(("", "b"),))
    assert isinstance(runner.run(client.answer(job)), ValueError)


def test_jobs_beyond_the_queue_are_rejected(client, runner):
    async def ask():
        small = workers.WorkerClient(client.workers, "animals", max_waiting=2)
        jobs = [small.answer(Job([text])) for text in ("a", "b", "c")]
        return await asyncio.gather(*jobs, return_exceptions=True)

    first, second, third = runner.run(ask())
    assert len(first) == len(second) == 1
    assert isinstance(third, Unavailable) and str(third) == FULL


def test_jobs_go_to_the_worker_with_the_least_to_do(client, runner):
    async def ask():
        jobs = [Job(["a"], weight=3), Job(["b"]), Job(["c"]), Job(["d"])]
        tasks = [asyncio.ensure_future(client.answer(job)) for job in jobs]
        await asyncio.sleep(0)
        weights = [worker.weight for worker in client.workers]
        await asyncio.gather(*tasks)
        return weights, [worker.weight for worker in client.workers]

    assert runner.run(ask()) == ([3, 3], [0, 0])


def test_a_job_that_nobody_waits_for_is_canceled(client, runner):
    async def ask():
        task = asyncio.ensure_future(client.answer(Job(["a"])))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        states = client.stream(TEXTS[0], None)
        await anext(states)
        await states.aclose()
        weights = [worker.weight for worker in client.workers]
        return weights, len(await client.answer(Job(["a"])))

    assert runner.run(ask()) == ([0, 0], 1)


def test_requests_that_hung_workers_do_not_read_are_limited(client, runner):
    """Clients that have left take no place, but their requests take memory."""
    processes = [worker._process for worker in client.workers]

    async def ask():
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        faults = []
        for _ in range(200):
            task = asyncio.ensure_future(client.answer(Job(["a" * 1_000_000])))
            await asyncio.sleep(0)
            task.cancel()
            [fault] = await asyncio.gather(task, return_exceptions=True)
            faults.append(str(fault))
        sizes = [p.stdin.transport.get_write_buffer_size() for p in processes]
        for process in processes:
            process.send_signal(signal.SIGCONT)
        while sum(p.stdin.transport.get_write_buffer_size() for p in processes):
            await asyncio.sleep(0.1)
        return faults[-1], max(sizes), len(await client.answer(Job(["a"])))

    fault, size, count = runner.run(ask())
    assert fault == FULL and size < 1.1 * workers.UNREAD_BYTES and count == 1


def test_a_lost_worker_fails_its_jobs_and_is_replaced(client, runner):
    async def ask():
        lost, running = client.workers
        jobs = [client.answer(Job(TEXTS)) for _ in range(8)]
        answers = asyncio.gather(*jobs, return_exceptions=True)
        await asyncio.sleep(0)
        lost._process.kill()
        answers = await answers
        at_once = await client.answer(Job(TEXTS))
        assert running.is_ready and not lost.is_ready
        while not lost.is_ready:
            await asyncio.sleep(0.1)
        later = await asyncio.gather(*(client.answer(Job(TEXTS)) for _ in range(2)))
        return answers, at_once, later

    answers, at_once, later = runner.run(ask())
    errors = [answer for answer in answers if isinstance(answer, Unavailable)]
    assert len(errors) == 4 and {str(error) for error in errors} == {workers.LOST}
    answers = [answer for answer in answers if answer not in errors]
    assert len(answers) == 4
    for answer in answers + later:
        assert texts_of(answer) == texts_of(at_once)


def test_jobs_of_a_worker_that_is_starting_wait(folder, tmp_path, runner):
    """Their classes are not imported while the models are."""

    async def ask():
        starting = workers.start(
            {"animals": {"name": folder}}, 1, Limits(), (), str(tmp_path)
        )
        async with starting as clients:
            client = clients["animals"]
            [worker] = client.workers
            process = worker._process
            process.kill()
            while worker._process is process:
                await asyncio.sleep(0.01)
            jobs = [client.answer(Job(TEXTS)) for _ in range(4)]
            return await asyncio.gather(*jobs)

    assert len({str(texts_of(answer)) for answer in runner.run(ask())}) == 1


def test_a_worker_that_does_not_answer_is_avoided_and_replaced(
    client, runner, monkeypatch
):
    for name, seconds in (("INTERVAL", 0.1), ("TIMEOUT", 2)):
        monkeypatch.setattr(workers, f"PING_{name}", seconds)
    monkeypatch.setattr(workers, "HANG_TIMEOUT", 5)

    async def ask():
        hung, running = client.workers
        process = hung._process
        await asyncio.sleep(5.5)  # the interval of before
        process.send_signal(signal.SIGSTOP)
        while hung.is_ready:
            await asyncio.sleep(0.1)
        count = running.num_asked
        answers = [await client.answer(Job(["a"])) for _ in range(3)]
        was_avoided = running.num_asked - count >= 3
        while not hung.is_ready:
            await asyncio.sleep(0.1)
        return len(answers), was_avoided, hung._process is not process

    assert runner.run(ask()) == (3, True, True)


def test_a_worker_that_is_lost_during_a_ping_leaves_no_traceback(caplog, monkeypatch):
    async def lose_worker():
        worker, lost = workers.Worker({}), asyncio.Event()

        async def ask(method, weight):
            await lost.wait()
            raise Unavailable("The worker was lost.")

        monkeypatch.setattr(worker, "ask", ask)
        watching = asyncio.ensure_future(worker._watch(None))
        await asyncio.sleep(0)  # the ping is sent
        lost.set()
        watching.cancel()
        await asyncio.wait([watching])
        await asyncio.sleep(0)

    asyncio.run(lose_worker())
    gc.collect()  # an error that nobody retrieved is logged
    assert caplog.text == ""


def test_a_worker_is_started_until_it_can_be(runner, monkeypatch, caplog):
    """Whatever goes wrong while a lost worker is replaced."""
    starts = []

    async def fail(*command, **options):
        starts.append(command)
        raise OSError("Too many open files")

    async def run():
        loaded = asyncio.get_running_loop().create_future()
        loaded.set_result(None)  # by an earlier process
        task = asyncio.ensure_future(workers.Worker({}).run((), (), loaded))
        await asyncio.sleep(0.5)
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    monkeypatch.setattr(workers, "RESTART_DELAYS", (0.1,))
    monkeypatch.setattr(workers, "COMMAND", ("true",))
    runner.run(run())  # ends at once
    assert caplog.text.count("A worker cannot be replaced. A worker ended") > 1
    monkeypatch.setattr(asyncio, "create_subprocess_exec", fail)
    runner.run(run())
    assert len(starts) > 1


def test_a_model_that_cannot_be_loaded_is_an_error(tmp_path, runner):
    async def start():
        models = {"missing": {"name": str(tmp_path / "missing")}}
        async with workers.start(models, 2, Limits(), (), str(tmp_path)):
            pass

    with pytest.raises(ValueError, match="must be a shipped preset"):
        runner.run(start())


def test_a_full_disk_does_not_keep_a_server_or_a_worker_from_loading(monkeypatch):
    from keras_tfm.cli import serve
    from keras_tfm.server import worker_process

    class FullDisk:
        def write(self, text):
            raise OSError(28, "No space left on device")

    def load(progress):
        progress("animals: loading")
        return "clients"

    async def run():
        local = asyncio.get_running_loop().create_future()
        local.set_result(types.SimpleNamespace(load=load))
        return await worker_process._load(local)

    serve._print("animals at http://127.0.0.1:8501", FullDisk())
    monkeypatch.setattr("sys.stderr", FullDisk())
    assert asyncio.run(run()) == "clients"


def test_a_worker_runs_without_standard_error():
    from keras_tfm.server.worker_process import END, PING, encode

    process = subprocess.Popen(
        workers.COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: os.close(2),
    )
    replies, _ = process.communicate(encode((7, PING)), timeout=60)
    assert replies == encode((7, END, None))
