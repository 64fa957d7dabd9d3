"""The engine, and the client that runs it in the server process."""

import asyncio
import concurrent.futures
import gc
import itertools
import threading
import types
import weakref

import httpx
import pytest

from keras_tfm.pipelines import (
    Classifier,
    SharedTranslator,
    Translator,
    finishing,
    pivoting,
)
from keras_tfm.runtime.compiled_search import CompiledSearch
from keras_tfm.server.engine import Engine, Job
from keras_tfm.server.errors import FULL
from keras_tfm.server.limits import PAGE
from keras_tfm.server.local import LocalClient, max_batches
from keras_tfm.server.warm_up import prepare, warm_up
from tests.pipelines.test_classifier import CLASSES, network
from tests.runtime.conftest import count_compilations
from tests.server.conftest import TEXTS, Client, InProcess

pytestmark = pytest.mark.backend("torch")


def test_a_bad_job_does_not_affect_others(folder, translator):
    engine = Engine(folder)
    jobs = [
        Job(["a man", ""]),
        Job(["a boat"], ["old " * 40]),
        Job(["a house"], None, True, True),
        Job(["old"], ["a"]),
        Job([]),
    ]
    plain, bad, full, prefixed, empty = engine.answers(jobs)
    texts = [answer["hypotheses"][0]["text"] for answer in plain]
    assert texts == translator(["a man", ""])
    assert isinstance(bad, ValueError)
    assert full[0]["hypotheses"][0]["attention"]
    assert prefixed[0]["hypotheses"][0]["text"].startswith("a")
    assert empty == []


def test_a_batch_beyond_the_timeout_is_stopped(folder):
    engine = Engine(folder, timeout=1e-6)
    jobs = [Job(["a man"]), Job(["a boat"], all_hypotheses=True)]
    assert all(isinstance(a, TimeoutError) for a in engine.answers(jobs))
    client = Client(InProcess(engine), timeout=7.0)
    assert "within 7 seconds" in client.error(504, "/translate", {"text": "a"})


def test_jobs_of_many_kinds_have_one_timeout_together(folder, monkeypatch):
    timeouts, translate = [], Translator.translate

    def noted(self, texts, *arguments, timeout=None, **options):
        timeouts.append(timeout)
        return translate(self, texts, *arguments, timeout=timeout, **options)

    monkeypatch.setattr(Translator, "translate", noted)
    jobs = [Job(["a house"], glossary=((term, "b"),)) for term in "abc"]
    jobs.append(Job(["<b>a</b> house<p>old"], format="html"))  # calls it twice
    assert all(isinstance(a, list) for a in Engine(folder, timeout=99).answers(jobs))
    assert len(timeouts) == 5 and timeouts[0] < 99
    assert timeouts == sorted(set(timeouts), reverse=True)


def test_models_that_cannot_be_served_are_rejected(vocabulary, folder, tmp_path):
    pairs = Classifier(network(vocabulary), vocabulary, CLASSES, paired=True)
    pairs.save(tmp_path / "pairs")
    with pytest.raises(ValueError, match="got one of pairs of texts"):
        Engine(str(tmp_path / "pairs"))
    sampling = Engine(folder, beam_size=1, sampling_topk=3)
    warm_up(sampling)
    client = Client(InProcess(sampling))
    assert client.send("/translate", {"text": "a"}).status_code == 200
    assert "cannot stream" in client.error(422, "/translate/stream", {"text": "a"})
    diverse = Engine(folder, beam_size=4, num_beam_groups=2, diversity_penalty=0.5)
    greedy = Engine(folder, beam_size=1)
    assert list(diverse.stream("a man"))[-1] == list(greedy.stream("a man"))[-1]


def test_a_warm_engine_compiles_nothing(folder, monkeypatch):
    engine = Engine(folder)
    compilations = count_compilations(monkeypatch)
    messages = []
    warm_up(engine, (8, 16), progress=messages.append)
    assert messages == [
        "warming up, 1 of 8: one short text",
        "warming up, 2 of 8: translations of up to 16 tokens",
        "warming up, 3 of 8: alternatives of up to 8 tokens",
        "warming up, 4 of 8: alternatives of up to 16 tokens",
        "warming up, 5 of 8: attention of up to 8 tokens",
        "warming up, 6 of 8: attention of up to 16 tokens",
        "warming up, 7 of 8: streams of up to 8 tokens",
        "warming up, 8 of 8: streams of up to 16 tokens",
        "warm",
    ]
    assert compilations
    compilations.clear()
    for texts in (["a house"], ["a boat", "an old man"]):
        assert engine.can_share(Job(texts))
        shared = asyncio.run(engine.share(Job(texts)))
        for attention in (False, True):
            job = Job(texts, all_hypotheses=True, attention=attention)
            assert not engine.can_share(job)
            [answers] = engine.answers([job])
            for first, second in zip(shared, answers, strict=True):
                assert (
                    first["hypotheses"][0]["text"] == (second["hypotheses"][0]["text"])
                )
    list(engine.stream("a man"))
    assert not compilations
    asyncio.run(engine.share(Job(["a house " * 30])))
    assert compilations
    assert isinstance(asyncio.run(engine.share(Job([7]))), TypeError)


def test_a_prepared_engine_answers_without_compiling(folder, monkeypatch):
    engine = Engine(folder)
    compilations = count_compilations(monkeypatch)
    prepare(engine)
    assert compilations
    compilations.clear()
    texts = ["a house", "an old man in a small boat", ""]
    answers = asyncio.run(engine.share(Job(texts)))
    assert not compilations
    assert [answer["hypotheses"][0]["text"] for answer in answers] == engine.model(
        texts
    )


def test_without_lengths_functions_are_compiled_when_a_text_needs_them(
    folder, monkeypatch
):
    """Else all texts would be padded to the largest bucket for ever."""
    engine = Engine(folder)
    prepare(engine)
    compilations = count_compilations(monkeypatch)
    warm_up(engine, ())
    compilations.clear()
    [answer] = asyncio.run(engine.share(Job(["a house"])))
    assert compilations
    assert answer["hypotheses"][0]["text"] == engine.model("a house")


def test_a_warm_up_that_fails_or_is_closed_ends(folder, monkeypatch, caplog):
    engine, messages = Engine(folder), []
    client = LocalClient(engine, 4, 9, progress=messages.append)
    allowed = []

    def fail(lengths, check=None):
        allowed.append(1 / 0 if lengths else lengths)

    monkeypatch.setattr(engine.shared, "warm_up", fail)
    asyncio.run(client.warm_up((8,)))
    assert len(messages) == 2 and "Warming up failed." in caplog.text
    assert allowed == [[]]
    client.close()
    asyncio.run(client.warm_up((8,)))
    assert len(messages) == 2


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_warm_up_compiles_no_further_function_once_it_is_closed(
    folder, monkeypatch, is_shared
):
    """The end of the server waits for it."""
    engine = Engine(folder)
    if not is_shared:  # as of a pivot
        engine.shared.close()
        engine.shared = None
    advance, messages, calls = CompiledSearch.advance, [], []

    def advance_and_close(*arguments):
        if len(messages) >= 2:  # the first step takes little time
            calls.append(arguments)
            engine.close()
        return advance(*arguments)

    monkeypatch.setattr(CompiledSearch, "advance", advance_and_close)
    warm_up(engine, (8, 16), progress=messages.append)
    assert len(calls) == 1


def test_a_warm_translator_decodes_again_without_compiling(translator, monkeypatch):
    changes = {"stand_ins": ["garden"], "few_buckets": True, "batch_size": 2}
    careful = translator.replace(protect="all", **changes)
    shared = SharedTranslator(careful, 2)
    compilations = count_compilations(monkeypatch)
    shared.warm_up((16, 32))
    compilations.clear()
    passes = []
    decode_again = finishing.decode_again

    def count(translator, items, *arguments):
        passes.append(len(items))
        return decode_again(translator, items, *arguments)

    monkeypatch.setattr(finishing, "decode_again", count)
    [result] = asyncio.run(shared.translate(["a house of {name}"]))
    assert passes == [1] and not compilations
    assert result.text.count("{name}") == 1
    shared.close()


def test_texts_are_decoded_again_only_within_the_timeout(translator, monkeypatch):
    changes = {"protect": "all", "stand_ins": ["house"], "max_decoding_length": 6}
    careful = translator.replace(**changes)
    times = itertools.count(step=60)
    clock = types.SimpleNamespace(monotonic=lambda: next(times))
    monkeypatch.setattr(finishing, "time", clock)
    shared = SharedTranslator(careful, batch_size=2)
    # A clock that runs a minute in each call, so that no real time matters.
    with pytest.raises(TimeoutError, match="`timeout` must allow .* 50 seconds for 1"):
        asyncio.run(shared.translate(["a house of {name}"], timeout=50))
    assert asyncio.run(shared.translate(["a house of {name}"], timeout=1e9))
    shared.close()


def test_the_second_pass_of_a_long_request_delays_no_other(translator, monkeypatch):
    shared, assemble = SharedTranslator(translator, batch_size=4), Translator.assemble
    is_reached, released = threading.Event(), threading.Event()

    def slowly(self, sources, decoded, **options):
        if len(sources) > 1:
            is_reached.set()
            assert released.wait(60)
        return assemble(self, sources, decoded, **options)

    monkeypatch.setattr(Translator, "assemble", slowly)

    async def ask():
        threads = concurrent.futures.ThreadPoolExecutor(1)
        asyncio.get_running_loop().set_default_executor(threads)
        long = asyncio.ensure_future(shared.translate(["a house"] * 40))
        while not is_reached.is_set():
            await asyncio.sleep(0.01)
        try:
            return await asyncio.wait_for(shared.translate(["a house"]), 20), long
        finally:
            released.set()
            assert len(await long) == 40

    [short], long = asyncio.run(ask())
    assert short.text == long.result()[0].text
    shared.close()


def test_concurrent_jobs_get_their_own_answers(folder, translator):
    engine = Engine(folder)
    client = LocalClient(engine, batch_size=4, max_waiting=100)

    async def ask():
        shared = [client.answer(Job([text])) for text in TEXTS * 3]
        full = [client.answer(Job([text], all_hypotheses=True)) for text in TEXTS * 3]
        return await asyncio.gather(*shared, *full)

    answers = [answer[0]["hypotheses"][0]["text"] for answer in asyncio.run(ask())]
    assert answers == translator(TEXTS) * 6

    async def stream():
        return [state async for state in client.stream("a house", None)]

    expected = translator.translate("a house", beam_size=1, num_hypotheses=1).text
    assert asyncio.run(stream())[-1] == expected


class Slow:
    """An engine that answers when it is released."""

    def __init__(self):
        self.released, self.batches = threading.Event(), []

    def describe(self):
        return {"kind": "classification", "classes": ["a"]}

    def can_share(self, job):
        return False

    def answers(self, jobs):
        self.released.wait(30)
        self.batches.append(sum(len(job.texts) for job in jobs))
        if any("fail" in job.texts for job in jobs):
            raise RuntimeError("no")
        return [[{"label": "a"}] * len(job.texts) for job in jobs]


def test_ctranslate2_gets_two_batches_at_once(folder):
    pytest.importorskip("ctranslate2")
    assert max_batches(Engine(folder, engine="ctranslate2")) == 2
    assert max_batches(Engine(folder)) == 1
    engine, barrier = Slow(), threading.Barrier(2)
    engine.answers = lambda jobs: [[str(barrier.wait(30))] for _ in jobs]

    async def ask():
        client = LocalClient(engine, batch_size=1, max_waiting=9, max_batches=2)
        return await asyncio.gather(*(client.answer(Job([str(i)])) for i in range(4)))

    assert sorted(asyncio.run(ask())) == [["0"], ["0"], ["1"], ["1"]]


@pytest.mark.parametrize(
    "job, expected",
    [
        (Job(["a" * 5 * PAGE] * 3), [1, 1, 1]),  # others take turns with them
        (Job(["abc"] * 3, weight=3, is_part=True), [3]),
    ],
)
def test_short_requests_do_not_wait_for_long_ones(job, expected):
    engine = Slow()
    answer_when_released = engine.answers

    def answers(jobs):
        is_long = len(jobs[0].texts[0]) > 1
        return answer_when_released(jobs) if is_long else [["short"] for _ in jobs]

    engine.answers = answers

    async def ask():
        client = LocalClient(engine, batch_size=4, max_waiting=9)
        long_answers = asyncio.ensure_future(client.answer(job))
        await asyncio.sleep(0.05)
        short_answer = await asyncio.wait_for(client.answer(Job(["a"])), 10)
        engine.released.set()
        return short_answer, await long_answers

    short_answer, long_answers = asyncio.run(ask())
    assert short_answer == ["short"] and len(long_answers) == 3
    assert engine.batches == expected


def test_the_parts_of_a_job_have_their_own_texts_and_prefixes():
    texts = ["a" * PAGE, "b", "c" * PAGE, "d" * PAGE]
    job = Job(texts, ["1", "2", "3", "4"], weight=4)
    parts = job.split(2)
    assert [part.texts for part in parts] == [texts[:2], texts[2:]]
    assert [part.prefixes for part in parts] == [["1", "2"], ["3", "4"]]
    assert [part.weight for part in parts] == [2, 2]
    assert Job(texts).split(4) == [Job(texts)]
    assert len(Job(texts).split(1)) == 4


def test_a_stream_that_begins_slowly_does_not_stop_the_server():
    engine = Slow()
    engine.stream = lambda *_: iter([str(engine.released.wait(5))])

    async def ask():
        client = LocalClient(engine, batch_size=4, max_waiting=3)
        stream = asyncio.ensure_future(anext(client.stream("a", None)))
        await asyncio.sleep(0.05)
        engine.released.set()  # the event loop is free to get here
        return await stream

    assert asyncio.run(ask()) == "True"


def test_slow_streams_do_not_delay_other_answers():
    engine = Slow()
    engine.stream = lambda *_: iter([str(engine.released.wait(10))])

    async def ask():
        client, begin = LocalClient(engine, 4, 300), asyncio.get_running_loop().time()
        streams = [client.stream("a", None) for _ in range(100)]
        states = [asyncio.ensure_future(anext(stream)) for stream in streams]
        await asyncio.sleep(0.05)
        for state in states[50:]:  # their clients leave
            state.cancel()
        await client.describe()
        seconds = asyncio.get_running_loop().time() - begin
        engine.released.set()
        return seconds, await asyncio.gather(*states[:50])

    seconds, states = asyncio.run(ask())
    assert seconds < 5 and states == ["True"] * 50


def test_a_closed_client_has_ended_its_threads(folder):
    """Those that compute abort Python when it ends."""
    engine = Engine(folder)
    client = LocalClient(engine, batch_size=4, max_waiting=100)

    async def ask_and_leave():
        job = asyncio.ensure_future(client.answer(Job(["a house of stone"] * 30)))
        await asyncio.sleep(0.05)
        job.cancel()

    asyncio.run(ask_and_leave())
    client.close()
    threads = [client._thread, *engine.shared._decoder._threads]
    assert not any(thread.is_alive() for thread in threads)


def test_jobs_beyond_the_queue_are_rejected():
    limits = {"batch_size": 8, "max_texts": 50, "max_characters": 5}

    async def send(engine, *counts):
        client = LocalClient(engine, batch_size=8, max_waiting=3)
        app = Client(client, **limits, queue_size=3).app
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport) as sender:
            tasks = []
            for count in counts:
                body = {"text": ["a"] * count}
                request = sender.post("http://server/classify", json=body)
                tasks.append(asyncio.ensure_future(request))
                await asyncio.sleep(0.2)
            engine.released.set()
            return await asyncio.gather(*tasks)

    first, second, third = asyncio.run(send(Slow(), 4, 3, 2))
    assert (first.status_code, third.status_code) == (200, 200)
    assert len(first.json()["predictions"]) == 4
    assert (second.status_code, second.json()) == (503, {"error": FULL})
    assert second.headers["retry-after"] == "1"
    # A request that exceeds the queue is not asked to try again.
    fitting, larger = asyncio.run(send(Slow(), 6, 7))
    assert (fitting.status_code, larger.status_code) == (200, 413)
    assert larger.json() == {"error": "A request must have at most 6 texts; got 7."}


@pytest.mark.parametrize("prefixes", [None, ["b"]])  # decoded with others, or not
def test_a_large_request_does_not_delay_others(folder, monkeypatch, prefixes):
    engine, order, all_asked = Engine(folder), [], threading.Event()
    check = engine._check_lengths

    def noted(texts, attention=False):
        assert all_asked.wait(60)
        order.append(texts)
        check(texts, attention)

    monkeypatch.setattr(engine, "_check_lengths", noted)
    client = LocalClient(engine, batch_size=2, max_waiting=100)
    text, jobs = "a " * 400, []
    for request in [1] * 9 + [2]:
        jobs.append(Job([f"{request}"], prefixes, request=request))
    jobs.append(Job([text], prefixes, request=3))

    async def ask():
        answers = asyncio.gather(*map(client.answer, jobs))
        await asyncio.sleep(0)  # each job joins the queue
        all_asked.set()
        return await answers

    answers = asyncio.run(ask())
    assert len(answers) == 11 and not any(isinstance(a, Exception) for a in answers)
    # Some turns are given before all have asked. Without turns: 9 and 10.
    assert order.index(["2"]) < 7 and order.index([text]) < 7


def test_pages_of_text_fill_a_batch():
    engine = Slow()
    engine.released.set()
    client = LocalClient(engine, batch_size=4, max_waiting=100)

    async def ask():
        jobs = [Job([text]) for text in ("a" * 9_000, "b", "c", "d" * 9_000)]
        return await asyncio.gather(*map(client.answer, jobs))

    asyncio.run(ask())
    assert engine.batches == [1, 2, 1]


def test_jobs_that_wait_for_the_engine_share_batches_unless_their_client_leaves():
    engine = Slow()

    async def ask():
        client, tasks = LocalClient(engine, batch_size=4, max_waiting=100), []
        for _ in range(10):
            tasks.append(asyncio.ensure_future(client.answer(Job(["a"]))))
            await asyncio.sleep(0.02)  # longer than jobs are gathered
        for task in tasks[3:8]:
            task.cancel()
        await asyncio.sleep(0)
        engine.released.set()
        return await asyncio.gather(*tasks[:3], *tasks[8:])

    assert asyncio.run(ask()) == [[{"label": "a"}]] * 5
    assert engine.batches == [1, 4]


def test_jobs_of_clients_that_have_left_take_no_memory():
    engine = Slow()

    async def ask():
        client, jobs = LocalClient(engine, batch_size=1, max_waiting=3), []
        first = asyncio.ensure_future(client.answer(Job(["a"])))
        await asyncio.sleep(0.05)
        for _ in range(100):
            job = Job(["a" * 1_000])
            jobs.append(weakref.ref(job))
            task = asyncio.ensure_future(client.answer(job))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            del job, task
        gc.collect()
        left = sum(job() is not None for job in jobs)
        engine.released.set()
        await first
        return left

    assert asyncio.run(ask()) == 0


def test_waiting_jobs_share_batches_and_a_failure_affects_one_batch(caplog):
    engine = Slow()
    engine.released.set()
    client = LocalClient(engine, batch_size=4, max_waiting=100)

    async def ask():
        jobs = [Job(["a"]) for _ in range(6)] + [
            Job(["fail"]),
            Job(["a"] * 3, weight=3),
        ]
        return await asyncio.gather(*map(client.answer, jobs), return_exceptions=True)

    answers = asyncio.run(ask())
    assert engine.batches == [4, 3, 3]
    assert answers[0] == [{"label": "a"}]
    assert [isinstance(answer, RuntimeError) for answer in answers] == (
        [False] * 4 + [True] * 3 + [False]
    )
    assert "A batch failed" in caplog.text


@pytest.mark.parametrize(
    ("name", "languages"), [("sentiment-en", ["en"]), ("en-fr", ["en", "fr"])]
)
def test_a_preset_says_its_languages(name, languages):
    description = Engine(name).describe()
    assert description["languages"] == languages
    assert ("classes" in description) == (name == "sentiment-en")


@pytest.mark.slow
def test_a_pivot_is_served():
    engine = Engine("de-fr", beam_size=2)
    description = engine.describe()
    assert description["languages"] == ["de", "fr"] and not description["attention"]
    text = "Wo ist der Bahnhof?"
    expected = engine.model(text)
    jobs = [
        Job([text]),
        Job([text], ["Mais où"]),
        Job([text], all_hypotheses=True),
        Job([f"<p>{text}</p>"], format="html"),
        Job([text], glossary=(("Bahnhof", "gare"),)),
    ]
    plain, prefixed, several, page, error = engine.answers(jobs)
    assert plain[0]["hypotheses"][0]["text"] == expected
    assert prefixed[0]["hypotheses"][0]["text"].startswith("Mais où")
    assert len(several[0]["hypotheses"]) == 2
    assert page[0]["hypotheses"][0]["text"] == f"<p>{expected}</p>"
    assert "`glossary` needs one model" in str(error)
    assert [*engine.stream(text)][-1].endswith("?")


@pytest.mark.slow
def test_detected_languages_are_served(monkeypatch):
    pytest.importorskip("py3langid")
    monkeypatch.setattr(pivoting, "PACKAGED", {})
    engine = Engine("auto-fr", beam_size=2)
    warm_up(engine, (16,))
    description = engine.describe()
    assert description["languages"] == ["auto", "fr"]
    assert (description["hypotheses"], description["attention"]) == (2, False)
    texts = ["Wo ist der Bahnhof?", "Where is he?", "Elle est ici."]
    jobs = [
        Job(texts),
        Job(texts, all_hypotheses=True),
        Job(texts, ["Mais", None, None]),
        Job(texts[:1], format="html"),
        Job(texts[:1], glossary=(("Bahnhof", "gare"),)),
    ]
    plain, several, *errors = engine.answers(jobs)
    assert [a["hypotheses"][0]["text"] for a in plain] == engine.model(texts)
    assert plain[2]["hypotheses"][0]["text"] == texts[2]
    assert [len(answer["hypotheses"]) for answer in several] == [2, 2, 1]
    for error, name in zip(
        errors, ("target_prefix", "format", "glossary"), strict=True
    ):
        assert isinstance(error, ValueError) and str(error).startswith(f"`{name}`")
    assert [*engine.stream(texts[0])][-1].endswith("?")
    client = Client(InProcess(engine))
    body = {"text": texts, "num_hypotheses": 2}
    assert client.send("/translate", body).status_code == 200
    body = {"text": texts[0], "return_attention": True}
    assert "has no attention" in client.error(422, "/translate", body)
    body = {"text": texts[0], "format": "html"}
    assert "`format` must be 'text'" in client.error(422, "/translate", body)
    with pytest.raises(ValueError, match="with one language"):
        engine.stream(texts[0], "Mais")
