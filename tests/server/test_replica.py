"""The client of Ray Serve replicas, tested with a fake replica."""

import asyncio

import pytest

from keras_tfm.server.engine import Job
from keras_tfm.server.errors import FULL, Unavailable

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.backend("torch"),
    # Ray raises it when it is imported.
    pytest.mark.filterwarnings("ignore:Using extra keyword arguments on `Field`"),
]


class Handle:
    """A fake handle of Ray Serve: it answers when released, or fails."""

    def __init__(self, error=None):
        self.error, self.released, self.groups = error, asyncio.Event(), []
        self.answers = self

    def options(self, **_):
        return self

    async def remote(self, jobs):
        await self.released.wait()
        self.groups.append(len(jobs))
        if self.error is not None:
            raise self.error
        yield [(index, job.texts) for index, job in enumerate(jobs)]


def ask(handle, count, max_waiting=3):
    from keras_tfm.server.replica import ReplicaClient

    async def ask():
        client = ReplicaClient(handle, max_waiting)
        jobs = [Job([str(number)]) for number in range(count)]
        tasks = [asyncio.ensure_future(client.answer(job)) for job in jobs]
        await asyncio.sleep(0.1)
        handle.released.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    return asyncio.run(ask())


def test_jobs_are_grouped_and_jobs_beyond_the_queue_are_rejected():
    handle = Handle()
    *answers, last = ask(handle, 4)
    assert answers == [["0"], ["1"], ["2"]] and handle.groups == [3]
    assert isinstance(last, Unavailable) and str(last) == FULL


def test_errors_of_ray_become_unavailable():
    from ray.exceptions import RayActorError
    from ray.serve.exceptions import BackPressureError

    for error, message in (
        (BackPressureError(3, 3), FULL),
        (RayActorError(), "The worker was lost. Try again."),
    ):
        [answer] = ask(Handle(error), 1)
        assert isinstance(answer, Unavailable) and str(answer) == message
