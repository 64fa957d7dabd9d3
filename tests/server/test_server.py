"""The server: what it answers, what it refuses, and that it loses nothing."""

import asyncio
import concurrent.futures
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import keras
import numpy as np
import pytest

from keras_tfm.cli import main, serve
from keras_tfm.pipelines import Classifier, Translator
from keras_tfm.text import Vocabulary
from tests.decode.conftest import draw_transformer
from tests.pipelines.test_classifier import CLASSES, network
from tests.pipelines.test_translator import SETTINGS, TEXTS
from tests.runtime.conftest import count_compilations

httpx = pytest.importorskip("httpx")
pytest.importorskip("fastapi")
pytest.importorskip("ray")

from keras_tfm.server.limits import Limits  # noqa: E402
from keras_tfm.server.worker import Asked, Worker  # noqa: E402
from tests.pipelines import browser  # noqa: E402

# The model's answers are those of a translator, which is tested on all three.
pytestmark = pytest.mark.backend("torch")
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
LIMITS = {"body_bytes": 5_000, "text_length": 200, "texts": 20, "batch_size": 4}
BOTH = {"kind": "translation", "hypotheses": 2, "attention": True, "streams": True}


@pytest.fixture(scope="module")
def vocabulary():
    return Vocabulary.train([text for text in TEXTS if text.isascii()] * 20, size=280)


@pytest.fixture(scope="module")
def translator(vocabulary):
    model = draw_transformer(seed=6, vocabulary_size=vocabulary.size)
    return Translator(model, vocabulary, **SETTINGS)


@pytest.fixture(scope="module")
def folder(translator, tmp_path_factory):
    folder = tmp_path_factory.mktemp("server") / "animals"
    translator.save(folder)
    return folder


@pytest.fixture(scope="module")
def classifier(vocabulary, tmp_path_factory):
    made = Classifier(network(vocabulary), vocabulary, CLASSES)
    folder = tmp_path_factory.mktemp("classifier")
    made.save(folder)
    return made, Worker(folder)


class Near:
    """Asks a worker in this process."""

    def __init__(self, worker):
        self.worker = worker

    async def answer(self, asked):
        return self.worker.answers([asked])[0]

    async def describe(self):
        return self.worker.describe()

    async def stream(self, text, target_prefix):
        for state in self.worker.stream(text, target_prefix):
            yield state


class Client:
    """Asks an application without a network."""

    def __init__(self, model, within=None, **limits):
        from keras_tfm.server.app import make_app

        limits = Limits(**{**LIMITS, **limits})
        limits = limits if within is None else limits.within(within)
        self.app = make_app(lambda: model, "animals", limits, metrics=self.metrics)

    async def metrics(self):
        return "served 3\n"

    def ask(self, path, body=None, **options):
        async def asked():
            transport = httpx.ASGITransport(self.app)
            url = "http://server" + path
            async with httpx.AsyncClient(transport=transport) as client:
                if body is None:
                    return await client.get(url, **options)
                if isinstance(body, bytes):
                    options.setdefault("headers", {"content-type": "application/json"})
                    return await client.post(url, content=body, **options)
                return await client.post(url, json=body, **options)

        return asyncio.run(asked())

    def refused(self, status, path, body=None, **options):
        answer = self.ask(path, body, **options)
        assert answer.status_code == status, answer.text
        assert set(answer.json()) == {"error"}
        return answer.json()["error"]


@pytest.fixture(scope="module")
def client(folder):
    return Client(Near(Worker(folder)))


def test_texts_are_translated_as_the_translator_does(client, translator):
    answer = client.ask("/translate", {"text": TEXTS})
    assert answer.status_code == 200
    found = answer.json()["translations"]
    assert [one["text"] for one in found] == translator(TEXTS)
    wanted = translator.translate(TEXTS)
    for one, other in zip(found, wanted, strict=True):
        score = pytest.approx(other.score) if np.isfinite(other.score) else None
        assert one["score"] == score
        assert one["finished"] == other.hypotheses[0].finished
        assert len(one["hypotheses"]) == 1 and "attention" not in one["hypotheses"][0]
    [single] = client.ask("/translate", {"text": TEXTS[0]}).json()["translations"]
    assert single["text"] == found[0]["text"]


def test_alternatives_attention_and_prefixes_are_given(client, translator):
    asked = {"text": TEXTS[0], "num_hypotheses": 2, "return_attention": True}
    [found] = client.ask("/translate", asked).json()["translations"]
    wanted = translator.translate(TEXTS[0], num_hypotheses=2, return_attention=True)
    assert found["source_tokens"] == wanted.source_tokens
    for one, other in zip(found["hypotheses"], wanted.hypotheses, strict=True):
        assert (one["text"], one["tokens"]) == (other.text, other.tokens)
        np.testing.assert_allclose(one["attention"], other.attention, atol=1e-4)
    prefix = "old house"
    asked = {"text": ["a man", "a boat"], "target_prefix": prefix}
    found = client.ask("/translate", asked).json()["translations"]
    wanted = translator.translate(asked["text"], [prefix] * 2)
    assert [one["text"] for one in found] == [one.text for one in wanted]
    assert all(one["text"].startswith(prefix) for one in found)


def test_a_stream_ends_with_the_greedy_translation(client, translator):
    text = "\n".join(TEXTS)
    answer = client.ask("/translate/stream", {"text": text})
    assert answer.headers["content-type"] == "application/x-ndjson"
    states = [json.loads(line) for line in answer.text.splitlines()]
    assert [one["done"] for one in states] == [False] * (len(states) - 1) + [True]
    wanted = translator.translate(text, beam_size=1, num_hypotheses=1).text
    assert states[-1]["translation"] == wanted
    assert len({one["translation"] for one in states}) > 3
    for text in ("", "a house\n\nthe boat"):
        last = client.ask("/translate/stream", {"text": text}).text.splitlines()[-1]
        wanted = translator.translate(text, beam_size=1, num_hypotheses=1).text
        assert json.loads(last)["translation"] == wanted


def test_tensorflow_servings_clients_are_answered_as_by_it(client, translator):
    place, texts = "/v1/models/animals", TEXTS[:3]
    wanted = translator(texts)
    rows = client.ask(place + ":predict", {"instances": texts}).json()["predictions"]
    assert [row["translation"] for row in rows] == wanted
    assert set(rows[0]) == {"translation", "score", "finished"}
    assert rows[2]["score"] is None  # JSON has no minus infinity
    named = {"instances": [{"text": one} for one in texts]}
    assert client.ask(place + ":predict", named).json()["predictions"] == rows
    place += "/versions/1"
    for inputs in (texts, {"text": texts}):
        columns = client.ask(place + ":predict", {"inputs": inputs}).json()["outputs"]
        assert columns["translation"] == wanted
    asked = {"signature_name": "n_best", "instances": texts}
    rows = client.ask(place + ":predict", asked).json()["predictions"]
    assert [row["translations"][0] for row in rows] == wanted
    for row in rows:  # of the empty text too, as columns need
        assert len(row["translations"]) == len(row["scores"]) == 2
    [state] = client.ask(place).json()["model_version_status"]
    assert (state["version"], state["state"]) == ("1", "AVAILABLE")
    metadata = client.ask(place + "/metadata").json()
    assert metadata["model_spec"]["name"] == "animals"
    signatures = metadata["metadata"]["signature_def"]["signature_def"]
    assert set(signatures) == {"serving_default", "n_best"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "not JSON"),
        (b"[" * 3000, "not JSON"),
        ({"instances": ["a"], "inputs": ["a"]}, "`instances` or `inputs`"),
        ({"instances": ["a"], "other": 1}, "Received: .*other"),
        ([], "an object"),
        ({"instances": [1]}, "a list of strings"),
        ({"instances": "a"}, "a list of strings"),
        ({"inputs": {"text": [["a"]]}}, "a list of strings"),
        ({"instances": ["a"], "signature_name": "none"}, "Signatures are"),
        ({"instances": ["a"], "signature_name": ["n"]}, "Signatures are"),
    ],
)
def test_what_tensorflow_serving_would_refuse_is_refused(client, body, message):
    assert re.search(message, client.refused(400, "/v1/models/animals:predict", body))


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (422, {"text": 5}, "text.*valid string"),
        (422, {"txt": "a"}, "txt: Extra inputs"),
        (422, {"text": "a", "num_hypotheses": 0}, "greater than or equal to 1"),
        (422, {"text": "a", "num_hypotheses": 3}, "2 at most, the beam's size"),
        (422, {"text": "a", "target_prefix": "old " * 20}, "leave room for a token"),
        (413, {"text": "a" * 201}, "200 characters at most. Received: 201"),
        (413, {"text": "a", "target_prefix": "a" * 201}, "200 characters at most"),
        (413, {"text": ["a"] * 21}, "20 texts at most. Received: 21"),
        (422, b'{"text": ["a", "b\\ud800"]}', "Text 1 has half of a surrogate"),
        (
            422,
            b'{"text": "a", "target_prefix": "\\ud800"}',
            "The prefix has half of a surrogate",
        ),
        (413, {"text": "a" * 5_000}, "5000 bytes at most"),
    ],
)
def test_too_much_and_other_things_are_refused(client, status, body, message):
    found = client.refused(status, "/translate", body)
    assert re.search(message, found), found


def test_a_body_that_does_not_say_that_it_is_json_is_refused(client):
    form = {"content-type": "application/x-www-form-urlencoded"}  # curl's own
    found = client.refused(422, "/translate", b'{"text": "a"}', headers=form)
    assert "Content-Type says application/json. Received: 'application/x-" in found


@pytest.mark.parametrize(
    ("body", "came"),
    [
        (b'{"text":', "no JSON from character 8 on: Expecting value"),
        (b"", "nothing"),
        (b"[]", r"\[\]"),
        (b"null", "null"),
        (b'"a"', '"a"'),
        (b'{"text": "a\xff"}', "byte 11 is of no character"),
        (b"[" * 4_999, "nested too deep"),
        (b"1" * 4_999, "too many digits"),
    ],
)
def test_what_is_no_object_is_refused_by_what_was_wanted(client, body, came):
    for place in ("/translate", "/translate/stream", "/classify"):
        found = client.refused(422, place, body)
        wanted = 'The body is a JSON object with "text", in UTF-8. Received: '
        assert re.fullmatch(re.escape(wanted) + f".*{came}\\.", found), found


def test_attention_is_of_short_texts(folder, translator):
    client = Client(Near(Worker(folder, attention_tokens=20)))
    text = "an old man in a small boat, in a garden"
    asked = {"text": [text, "a man"], "num_hypotheses": 2}
    found = client.ask("/translate", asked).json()["translations"]
    assert found[0]["text"] == translator(text)  # its hypotheses alone are given
    asked["return_attention"] = True
    assert "20 tokens at most" in client.refused(413, "/translate", asked)
    asked["text"] = "a man"
    assert client.ask("/translate", asked).status_code == 200


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan")])
def test_limits_are_above_nothing_and_finite(value):
    with pytest.raises(ValueError, match=f"above 0, and finite. .*seconds={value}"):
        Limits(seconds=value)


def test_a_body_without_a_length_is_counted(client):
    async def parts():
        for _ in range(100):
            yield b" " * 100

    async def asked():
        transport = httpx.ASGITransport(client.app)
        async with httpx.AsyncClient(transport=transport) as made:
            return await made.post("http://server/translate", content=parts())

    answer = asyncio.run(asked())
    assert (answer.status_code, answer.json()["error"][:21]) == (
        413,
        "A body has 5000 bytes",
    )


def test_a_body_that_does_not_come_is_given_up(folder):
    near = Near(Worker(folder))

    async def parts(waits):
        yield b'{"text": '
        await asyncio.sleep(waits)
        yield b'"a man"}'

    async def asked(seconds, waits):
        transport = httpx.ASGITransport(Client(near, seconds=seconds).app)
        headers = {"content-type": "application/json"}
        async with httpx.AsyncClient(transport=transport) as made:
            url = "http://server/translate"
            return await made.post(url, content=parts(waits), headers=headers)

    answer = asyncio.run(asked(0.5, 30))
    assert (answer.status_code, answer.json()) == (
        408,
        {"error": "A body is there within 0.5 seconds."},
    )
    assert asyncio.run(asked(60.0, 0.1)).status_code == 200


def test_one_bad_request_costs_the_others_nothing(folder, translator):
    worker = Worker(folder)
    asked = [
        Asked(["a man", ""]),
        Asked(["a boat"], ["old " * 40]),
        Asked(["a house"], None, True, True),
        Asked(["old"], ["a"]),
        Asked([]),
    ]
    good, bad, full, prefixed, none = worker.answers(asked)
    assert [one["hypotheses"][0]["text"] for one in good] == translator(["a man", ""])
    assert isinstance(bad, ValueError)
    assert full[0]["hypotheses"][0]["attention"]
    assert prefixed[0]["hypotheses"][0]["text"].startswith("a")
    assert none == []


def test_what_takes_too_long_is_given_up(folder):
    worker = Worker(folder, seconds=1e-6)
    late = worker.answers([Asked(["a man"]), Asked(["a boat"], full=True)])
    assert all(isinstance(one, TimeoutError) for one in late)
    answer = Client(Near(worker), seconds=7.0).refused(504, "/translate", {"text": "a"})
    assert "within 7 seconds" in answer


class Broken:
    """Fails as it is told to."""

    def __init__(self, fault):
        self.fault = fault

    async def describe(self):
        if self.fault == "away":
            await asyncio.sleep(60)
        return BOTH

    async def answer(self, asked):
        if isinstance(self.fault, Exception):
            raise self.fault
        await asyncio.sleep(self.fault)

    async def stream(self, text, target_prefix):
        yield "ein"
        await self.answer(text)


def test_a_long_text_counts_by_its_pages():
    weights = []

    class Noting(Broken):
        async def answer(self, asked):
            weights.append((len(asked.texts), asked.weight))
            return ValueError("enough")

    client = Client(Noting(0), batch_size=32, text_length=5_000, body_bytes=50_000)
    for text in ("a", ["a"] * 3, "a" * 1_700, ["a" * 4_900] * 3):
        client.refused(422, "/translate", {"text": text})
    assert weights == [(1, 1), (3, 3), (1, 3), (3, 8)]  # a quarter of a batch at most


def test_faults_of_the_server_have_a_status_and_tell_nothing_more(caplog):
    from keras_tfm.server.app import Unavailable

    late = Client(Broken(60), seconds=0.05)
    assert "within 0.05 seconds" in late.refused(504, "/translate", {"text": "a"})
    last = late.ask("/translate/stream", {"text": "a"}).text.splitlines()[-1]
    assert "within 0.05 seconds" in json.loads(last)["error"]
    lost = Client(Broken(Unavailable("The worker was lost.")))
    assert lost.refused(503, "/translate", {"text": "a"}) == "The worker was lost."
    assert lost.ask("/translate", {"text": "a"}).headers["retry-after"] == "1"
    secret = Client(Broken(RuntimeError("in /secret/place.py")))
    assert "secret" not in secret.refused(500, "/translate", {"text": "a"})
    assert "A request failed" in caplog.text  # who serves finds it
    lines = secret.ask("/translate/stream", {"text": "a"}).text.splitlines()
    states = [json.loads(line) for line in lines]
    assert states[0]["translation"] == "ein" and "error" in states[1]
    assert "secret" not in lines[1]
    asked = Client(Broken(ValueError("no such prefix")))
    lines = asked.ask("/translate/stream", {"text": "a"}).text.splitlines()
    assert len(lines) == 2 and "error" in json.loads(lines[1])


def test_health_is_of_the_worker_now():
    model = Broken(0)
    client = Client(model, seconds=0.05)
    assert client.ask("/health").status_code == 200
    model.fault = "away"
    for place in ("/health", "/v1/models/animals"):
        found = client.refused(503, place)
        assert found == "No worker answered within 0.05 seconds. Try again later."


class Waits:
    """Refuses the first it is asked, and notes what it gives up."""

    def __init__(self):
        self.given_up = 0

    async def describe(self):
        return BOTH

    async def answer(self, asked):
        from keras_tfm.server.app import Unavailable

        if asked.texts == ["a"]:
            raise Unavailable("no")
        await self._wait()

    async def stream(self, text, target_prefix):
        yield "first"
        await self._wait()

    async def _wait(self):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.given_up += 1
            raise


def test_what_nobody_waits_for_is_given_up():
    from keras_tfm.server import app

    model = Waits()

    async def refused():
        made = Client(model, batch_size=1).app
        transport = httpx.ASGITransport(made)
        async with httpx.AsyncClient(transport=transport) as client:
            asked = {"text": ["b", "a", "c"]}
            answer = await client.post("http://server/translate", json=asked)
        await asyncio.sleep(0)
        return answer.status_code, model.given_up

    assert asyncio.run(refused()) == (503, 2)
    closed = []

    async def states():
        try:
            while True:
                yield "more"
        finally:
            closed.append(True)

    async def left():
        until = asyncio.get_running_loop().time() + 60
        lines = app._lines("first", states(), until, 60)
        await anext(lines)
        await anext(lines)
        await lines.aclose()
        return list(closed)

    assert asyncio.run(left()) == [True]


def test_models_that_no_request_fits_are_told_apart(vocabulary, folder, tmp_path):
    made = Classifier(network(vocabulary), vocabulary, CLASSES, paired=True)
    made.save(tmp_path / "pairs")
    with pytest.raises(ValueError, match="a classifier of pairs"):
        Worker(tmp_path / "pairs")
    sampling = Worker(folder, beam_size=1, sampling_topk=3)
    sampling.warm_up()
    client = Client(Near(sampling))
    assert client.ask("/translate", {"text": "a"}).status_code == 200
    assert "no stream" in client.refused(422, "/translate/stream", {"text": "a"})
    diverse = {"beam_size": 4, "num_beam_groups": 2, "diversity_penalty": 0.5}
    grouped = Worker(folder, **diverse)
    plain = Worker(folder, beam_size=1)
    assert list(grouped.stream("a man"))[-1] == list(plain.stream("a man"))[-1]


def test_a_warm_worker_compiles_nothing(folder, monkeypatch):
    worker = Worker(folder)
    new = count_compilations(monkeypatch)
    worker.warm_up((16,))
    assert new
    new.clear()
    for texts in (["a house"], ["a boat", "an old man"]):
        assert worker.shares(Asked(texts))
        shared = asyncio.run(worker.share(Asked(texts)))
        for attention in (False, True):
            asked = Asked(texts, full=True, attention=attention)
            assert not worker.shares(asked)
            [whole] = worker.answers([asked])
            for one, other in zip(shared, whole, strict=True):
                assert one["hypotheses"][0]["text"] == other["hypotheses"][0]["text"]
    list(worker.stream("a man"))
    assert not new
    asyncio.run(worker.share(Asked(["a house " * 30])))
    assert new
    assert isinstance(asyncio.run(worker.share(Asked([7]))), TypeError)


@pytest.mark.filterwarnings("ignore:Using extra keyword arguments on `Field`")  # Ray's
def test_a_taken_port_is_refused():
    from keras_tfm.server import start

    with socket.socket() as place:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        place.bind(("127.0.0.1", 0))
        place.listen()
        port = place.getsockname()[1]
        with pytest.raises(OSError, match=f"Nothing can listen at 127.0.0.1:{port}"):
            start.run({}, "a", "127.0.0.1", port, 1, Limits(), ())


class Queued:
    """Answers when it is told to, as a handle of Ray's does; or refuses."""

    def __init__(self, fault=None):
        self.fault, self.free = fault, asyncio.Event()
        self.answers = self.describe = self

    def options(self, **_):
        return self

    def remote(self, *asked):
        return self._answers(*asked) if asked else self._described()

    async def _answers(self, asked):
        await self.free.wait()
        if self.fault is not None:
            raise self.fault
        label = {"label": "a"}
        yield [(place, [label] * len(one.texts)) for place, one in enumerate(asked)]

    async def _described(self):
        return {"kind": "classification", "classes": ["a"]}


# Ray's own.
@pytest.mark.filterwarnings("ignore:Using extra keyword arguments on `Field`")
def test_what_does_not_fit_into_the_queue_is_refused():
    from ray.serve.exceptions import BackPressureError

    from keras_tfm.server.start import Remote

    limits = {"batch_size": 8, "texts": 50, "text_length": 5}
    full = "Too many requests are waiting. Try again."

    async def asked(queue, *counts):
        model = Remote(queue, 3)
        app = Client(model, **limits, within=3).app
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport) as made:
            waiting = []
            for count in counts:
                sent = made.post("http://server/classify", json={"text": ["a"] * count})
                waiting.append(asyncio.ensure_future(sent))
                await asyncio.sleep(0.2)
            queue.free.set()
            return await asyncio.gather(*waiting)

    first, second, third = asyncio.run(asked(Queued(), 4, 3, 2))
    assert (first.status_code, third.status_code) == (200, 200)
    assert len(first.json()["predictions"]) == 4
    assert (second.status_code, second.json()) == (503, {"error": full})
    assert second.headers["retry-after"] == "1"
    # What never fits is not told to try again.
    largest, larger = asyncio.run(asked(Queued(), 6, 7))
    assert (largest.status_code, larger.status_code) == (200, 413)
    assert larger.json() == {"error": "A request has 6 texts at most. Received: 7."}
    [later] = asyncio.run(asked(Queued(BackPressureError(3, 3)), 1))
    assert (later.status_code, later.json()) == (503, {"error": full})


@pytest.mark.filterwarnings("ignore:Using extra keyword arguments on `Field`")
def test_what_is_measured_tells_nothing_of_the_inside():
    from keras_tfm.server.start import _shown

    line = (
        'ray_serve_batches_total{{Component="core",NodeAddress="192.0.2.2",'
        'SessionName="s",Version="2.60.0",WorkerId="{}",application="animals",'
        'otel_scope_name="ray._private",otel_scope_version="",replica="r"}} {}\n'
    )
    other = 'ray_serve_controller_loops{Version="2.60.0"} 5.0\n'
    page = "# TYPE ray_serve_batches_total counter\n" + line.format("e7", "1.0")
    assert _shown(page + other + line.format("e8", "3.0") + "python_gc 1.0\n") == (
        "# TYPE ray_serve_batches_total counter\n"
        'ray_serve_batches_total{application="animals",replica="r"} 3.0\n'
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        *(
            ([option, "0"], f"`{option}` is 1 or more. Received: 0.")
            for option in (
                "--workers",
                "--beam-size",
                "--body-bytes",
                "--text-length",
                "--texts",
                "--waiting",
                "--attention-tokens",
                "--batch-size",
            )
        ),
        (["--workers", "-1"], "`--workers` is 1 or more. Received: -1."),
        (["--warm-up", "32", "0"], "has lengths of 1 or more. Received: 32 0."),
        (["--seconds", "0"], "`--seconds` is above 0, and finite. Received: 0.0."),
        (["--seconds", "nan"], "`--seconds` is above 0, and finite. Received: nan."),
    ],
)
def test_numbers_that_no_server_has_are_refused_at_once(
    folder, monkeypatch, capsys, given, said
):
    monkeypatch.setattr(serve.preset, "check", lambda model: pytest.fail("too late"))
    assert main(["serve", str(folder), *given]) == 1
    written = capsys.readouterr()
    assert written.out == "" and said in written.err


def test_a_classifier_labels_and_does_not_translate(classifier, client):
    own, worker = classifier
    labels, texts = Client(Near(worker)), TEXTS[:2]
    found = labels.ask("/classify", {"text": texts}).json()["predictions"]
    for one, wanted in zip(found, own(texts), strict=True):
        assert one["label"] == wanted.label == next(iter(one["probabilities"]))
        assert one["probabilities"] == pytest.approx(wanted.probabilities)
    asked = {"inputs": texts}
    outputs = labels.ask("/v1/models/animals:predict", asked).json()["outputs"]
    assert [row[0] for row in outputs["labels"]] == [one["label"] for one in found]
    assert outputs["truncated"] == [False, False]
    refused = labels.refused(404, "/translate", {"text": "a"})
    assert refused == "The model labels texts."
    assert "translates" in client.refused(404, "/classify", {"text": "a"})
    # It has no label: said, not guessed.
    asked = {"text": ["a", " "]}
    assert "Text 1 is empty" in labels.refused(422, "/classify", asked)
    asked = {"instances": [""]}
    refused = labels.refused(400, "/v1/models/animals:predict", asked)
    assert "Text 0 is empty" in refused


def test_health_metrics_and_openapi(client):
    assert client.ask("/health").json() == {"status": "ok", **BOTH}
    assert client.ask("/metrics").text == "served 3\n"
    paths = client.ask("/openapi.json").json()["paths"]
    assert {"/translate", "/translate/stream", "/classify", "/health"} < set(paths)
    page = client.ask("/docs")
    assert page.status_code == 200 and "url: '/openapi.json'" in page.text
    assert client.refused(404, "/nothing") == "Not Found"


def test_the_page_asks_nobody_else(client):
    answer = client.ask("/")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    addresses = set(re.findall(r"\bhttps?://[^\s\"']+", answer.text))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # a name, not a place
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=", answer.text)


@pytest.mark.skipif(not browser.chromium(), reason="no Chromium is installed")
def test_the_page_shows_translation_alternatives_and_attention(client, translator):
    uvicorn = pytest.importorskip("uvicorn")
    config = uvicorn.Config(client.app, port=free_port(), log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    text = "an old man"

    async def by_keyboard():
        async with browser.opened(f"http://127.0.0.1:{config.port}/") as page:
            await page.until("document.activeElement.id === 'text'")
            await page.until("view.kind === 'translation'")
            await page.call("Input.insertText", text=text)
            await page.press("Enter", modifiers=2)  # with Ctrl
            await page.until("document.querySelectorAll('path').length > 3")
            first = await page.value("find('answer').textContent")
            buttons = "[...document.querySelectorAll('#alternatives button')]"
            listed = await page.value(f"{buttons}.map((b) => b.innerText)")
            for _ in range(3):  # past the button to the second alternative
                await page.press("Tab")
            await page.press("Enter")
            second = await page.value("find('answer').textContent")
            await page.press("Tab")
            await page.press("Tab")
            await page.press("Enter")
            cells = await page.value("document.querySelectorAll('tbody td').length")
            await page.press("Tab")
            await page.press("ArrowRight")
            walked = await page.value("document.activeElement.title")
            assert walked == await page.value("find('said').textContent")
            assert walked.split(": ")[1] == await page.value(
                "view.answer.hypotheses[1].attention[0][1].toFixed(2)"
            )
            await page.call("Emulation.setDeviceMetricsOverride", **PHONE)
            over = await page.value("document.documentElement.scrollWidth")
            # Nothing of the old text stays beside none.
            await page.value("find('text').value = ''; ask();")
            assert await page.value("find('more').hidden && !find('answer').innerText")
            return first, listed, second, cells, over

    try:
        first, listed, second, cells, over = asyncio.run(by_keyboard())
    finally:
        server.should_exit = True
        thread.join()
    found = translator.translate(text, num_hypotheses=2, return_attention=True)
    assert [first, second] == [one.text for one in found.hypotheses]
    for line, one in zip(listed, found.hypotheses, strict=True):
        assert line.split() == f"{one.score:.2f} {one.text}".split()
    assert cells == found.hypotheses[1].attention.size
    assert over <= PHONE["width"]  # nothing sticks out


def free_port():
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return place.getsockname()[1]


@pytest.fixture(scope="module")
def served(folder):
    """A server as `keras-tfm serve` starts it: its address and its process."""
    program = "import sys; from keras_tfm.cli import main; sys.exit(main())"
    limits = ["--batch-size", "8", "--texts", "500", "--seconds", "300"]
    limits += ["--waiting", "100"]
    process = subprocess.Popen(
        [sys.executable, "-c", program, "serve", folder, "--port", "0", *limits],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    line = process.stdout.readline()
    address = re.fullmatch(r"animals at (http://127.0.0.1:[1-9]\d+)\n", line)
    if not address:
        process.kill()
        pytest.fail(line + process.stderr.read())
    yield address[1], process
    process.terminate()  # Ray ends what it has started
    try:
        process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


# A process is the same on every backend.
@pytest.mark.backend("torch")
def test_a_server_says_why_a_model_is_not_loaded(folder):
    program = "import sys; from keras_tfm.cli import main; sys.exit(main())"
    ask = ["serve", folder, "--port", str(free_port()), "--target-language", "xx"]
    ended = subprocess.run(
        [sys.executable, "-c", program, *ask],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 1 and "Traceback" not in ended.stderr
    assert ended.stdout == ""
    [said] = [line for line in ended.stderr.splitlines() if "keras-tfm:" in line]
    assert "target_language='xx'" in said
    ask[3] = "99999"
    ended = subprocess.run(
        [sys.executable, "-c", program, *ask], capture_output=True, text=True
    )
    assert ended.returncode == 1 and "0 to 65535. Received: --port 99999" in (
        ended.stderr
    )


def outlives(process, seconds=60):
    """Tells whether a process still runs after that time; a zombie does not."""
    import psutil

    ended = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if process.status() in ended:
                return False
        except psutil.NoSuchProcess:
            return False
        time.sleep(0.1)
    return True


def test_a_server_mixes_up_nothing_and_outlives_a_worker(served, translator):
    import psutil

    address, process = served
    words = ["an", "old", "man", "in", "a", "small", "boat", "garden", "house"]
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice(words, 5)) for _ in range(24)]
    wanted = dict(zip(texts, translator(texts), strict=True))

    def ask(text, more=()):
        asked = {"text": [text, *more]}
        return httpx.post(address + "/translate", json=asked, timeout=300)

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, texts, [texts[i : i + 4] for i in range(24)]))
        for text, answer in zip(texts, answers, strict=True):
            assert answer.json()["translations"][0]["text"] == wanted[text]
        measured = httpx.get(address + "/metrics").text
        assert 'application="animals"' in measured and "Version=" not in measured
        # Alone it would not fit into the queue: 2 * 100 parts of 2 texts.
        refused = httpx.post(address + "/translate", json={"text": ["a"] * 401})
        assert (refused.status_code, refused.json()["error"]) == (
            413,
            "A request has 400 texts at most. Received: 401.",
        )
        place = httpx.URL(address)
        with socket.create_connection((place.host, place.port), timeout=60) as one:
            one.sendall(b"GET / HTTP/1.1\r\nlarge: ".ljust(2**16 + 1, b"a"))
            assert one.recv(99).startswith(b"HTTP/1.1 400 ")

        family = psutil.Process(process.pid).children(recursive=True)
        [worker] = [one for one in family if "Workers" in " ".join(one.cmdline())]
        environment = worker.environ()
        asked = [pool.submit(ask, text, texts[:19]) for text in texts[:16]]
        time.sleep(0.3)
        worker.kill()
        for text, one in zip(texts, asked, strict=False):  # none hangs
            answer = one.result()
            if answer.status_code == 503:
                assert answer.json() == {"error": "The worker was lost. Try again."}
            else:
                assert answer.json()["translations"][0]["text"] == wanted[text]
        assert not outlives(worker)
        # The next one reads what this one has compiled.
        kept = environment["JAX_COMPILATION_CACHE_DIR"]
        assert kept in environment["TF_XLA_FLAGS"]
        if keras.config.backend() != "torch":
            assert os.listdir(kept)
        assert ask(texts[0]).json()["translations"][0]["text"] == wanted[texts[0]]

        asked = [pool.submit(ask, text, texts[:19]) for text in texts[:4]]
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        for text, one in zip(texts, asked, strict=False):
            assert one.result().json()["translations"][0]["text"] == wanted[text]
    assert process.wait(120) == 0
    assert process.stdout.read() == ""  # after the line that it is ready
    assert "ServeController" not in (said := process.stderr.read()), said
    assert " INFO " not in f" {said}".replace("\n", " "), said
    assert not [one for one in family if outlives(one)]
    assert not os.path.exists(kept)
