"""The HTTP application: answers, limits and errors."""

import asyncio
import json
import re
import time

import httpx
import numpy as np
import pytest
from fastapi.responses import JSONResponse

from keras_tfm.cli import main, serve
from keras_tfm.pipelines import translate_markup
from keras_tfm.server.engine import Engine, Job, TooLong
from keras_tfm.server.errors import Unavailable
from keras_tfm.server.limits import Limits
from keras_tfm.server.local import LocalClient
from tests.pipelines.test_classifier import CLASSES
from tests.server.conftest import DESCRIPTION, LIMITS, TEXTS, Client, InProcess

# The translator behind the engine is tested on every backend.
pytestmark = pytest.mark.backend("torch")


def test_translations_are_those_of_the_translator(client, translator):
    answer = client.send("/translate", {"text": TEXTS})
    assert answer.status_code == 200
    results = answer.json()["translations"]
    for result, expected in zip(results, translator.translate(TEXTS), strict=True):
        score = pytest.approx(expected.score) if np.isfinite(expected.score) else None
        assert (result["text"], result["score"]) == (expected.text, score)
        assert result["truncated"] == expected.truncated
        assert len(result["hypotheses"]) == 1
        assert "attention" not in result["hypotheses"][0]
    [single] = client.send("/translate", {"text": TEXTS[0]}).json()["translations"]
    assert single["text"] == results[0]["text"]


def test_hypotheses_attention_and_prefixes_are_returned(client, translator):
    body = {"text": TEXTS[0], "num_hypotheses": 2, "return_attention": True}
    [result] = client.send("/translate", body).json()["translations"]
    expected = translator.translate(TEXTS[0], num_hypotheses=2, return_attention=True)
    assert result["source_tokens"] == expected.source_tokens
    pairs = zip(result["hypotheses"], expected.hypotheses, strict=True)
    for hypothesis, reference in pairs:
        assert hypothesis["text"] == reference.text
        assert hypothesis["tokens"] == reference.tokens
        np.testing.assert_allclose(
            hypothesis["attention"], reference.attention, atol=1e-4
        )
    prefix = "old house"
    body = {"text": ["a man", "a boat"], "target_prefix": prefix}
    results = client.send("/translate", body).json()["translations"]
    expected = translator.translate(body["text"], [prefix] * 2)
    assert [result["text"] for result in results] == [x.text for x in expected]
    assert all(result["text"].startswith(prefix) for result in results)


def test_terms_of_a_glossary_are_used(client):
    body = {"text": ["a house", "an old man"], "glossary": {"house": "boat"}}
    first, second = client.send("/translate", body).json()["translations"]
    assert "boat" in first["text"] and first["unmet_terms"] == {}
    assert (
        second["text"]
        == client.send("/translate", {"text": "an old man"}).json()["translations"][0][
            "text"
        ]
    )


def test_a_glossary_cannot_make_huge_translations(client):
    client = Client(client.model, max_body_bytes=1_000_000, max_characters=20_000)
    for term in ("house", " house\t"):
        body = {"text": "house " * 200, "glossary": {term: "k" * 50_000}}
        message = client.error(413, "/translate", body)
        assert "could have 12000000. Shorten its translations" in message
    for glossary in ({"house": "k" * 201}, {"k" * 201: "house"}):
        body = {"text": "a house", "glossary": glossary}
        message = client.error(413, "/translate", body)
        assert "translations of at most 200 characters; got 201" in message
    body = {"text": "a house", "glossary": {"house": "k" * 200}}
    assert client.send("/translate", body).status_code == 200


def test_markup_is_translated(client, translator):
    text = "<p>an <b>old</b> man</p><p>a boat</p>"
    for format in ("html", "xml"):
        body = {"text": [text], "format": format}
        [result] = client.send("/translate", body).json()["translations"]
        assert result["text"] == translate_markup(translator, text, format)
        assert result["text"].endswith(f"</p><p>{translator('a boat')}</p>")
        assert result["score"] is None


@pytest.mark.parametrize("text", ["\n".join(TEXTS), "", "a house\n\nthe boat"])
def test_a_stream_ends_with_the_greedy_translation(client, translator, text):
    answer = client.send("/translate/stream", {"text": text})
    assert answer.headers["content-type"] == "application/x-ndjson"
    states = [json.loads(line) for line in answer.text.splitlines()]
    assert [s["done"] for s in states] == [False] * (len(states) - 1) + [True]
    expected = translator.translate(text, beam_size=1, num_hypotheses=1).text
    assert states[-1]["translation"] == expected
    if len(text) > 40:
        assert len({state["translation"] for state in states}) > 3


def test_clients_of_tensorflow_serving_get_its_answers(client, translator):
    path, texts = "/v1/models/animals", TEXTS[:3]
    expected = translator(texts)
    rows = client.send(path + ":predict", {"instances": texts}).json()["predictions"]
    assert [row["translation"] for row in rows] == expected
    assert set(rows[0]) == {"translation", "score", "truncated"}
    assert rows[2]["score"] is None  # JSON has no minus infinity
    body_with_keys = {"instances": [{"text": text} for text in texts]}
    assert client.send(path + ":predict", body_with_keys).json()["predictions"] == rows
    path += "/versions/1"
    for inputs in (texts, {"text": texts}):
        columns = client.send(path + ":predict", {"inputs": inputs}).json()["outputs"]
        assert columns["translation"] == expected
    body = {"signature_name": "n_best", "instances": texts}
    rows = client.send(path + ":predict", body).json()["predictions"]
    assert [row["translations"][0] for row in rows] == expected
    for row in rows:  # also for the empty text: columns have equal lengths
        assert len(row["translations"]) == len(row["scores"]) == 2
    [state] = client.send(path).json()["model_version_status"]
    assert (state["version"], state["state"]) == ("1", "AVAILABLE")
    metadata = client.send(path + "/metadata").json()
    assert metadata["model_spec"]["name"] == "animals"
    signatures = metadata["metadata"]["signature_def"]["signature_def"]
    assert set(signatures) == {"serving_default", "n_best"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "must be JSON"),
        (b"[" * 3000, "must be JSON"),
        ({"instances": ["a"], "inputs": ["a"]}, "`instances` or `inputs`"),
        ({"instances": ["a"], "other": 1}, "got .*other"),
        ([], "an object"),
        ({"instances": [1]}, "a list of strings"),
        ({"instances": "a"}, "a list of strings"),
        ({"inputs": {"text": [["a"]]}}, "a list of strings"),
        ({"instances": ["a"], "signature_name": "none"}, "`signature_name` must be"),
        ({"instances": ["a"], "signature_name": ["n"]}, "`signature_name` must be"),
        ({"instances": ["a"], "signature_name": {}}, "`signature_name` must be"),
        ({"instances": ["a"], "signature_name": "x" * 999}, "got 'x{79}[.]$"),
        ({"instances": ["a"], "x" * 999: 1}, "x{150,200}[.]$"),
        ({"instances": ["a"], "signature_name": False}, "`signature_name` must be"),
    ],
)
def test_requests_that_tensorflow_serving_rejects_are_rejected(client, body, message):
    assert re.search(message, client.error(400, "/v1/models/animals:predict", body))


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (422, {"text": 5}, "text.*valid string"),
        (422, {"txt": "a"}, "txt: Extra inputs"),
        (422, {"text": "a", "num_hypotheses": 0}, "greater than or equal to 1"),
        (422, {"text": "a", "num_hypotheses": 3}, "at most the beam size, 2; got 3"),
        (422, {"text": "a", "target_prefix": "old " * 20}, "prefix"),
        (413, {"text": "a" * 201}, "at most 200 characters; got 201"),
        (413, {"text": "a", "target_prefix": "a" * 201}, "at most 200 characters"),
        (413, {"text": ["a"] * 21}, "at most 20 texts; got 21"),
        (422, b'{"text": ["a", "b\\ud800"]}', "Text 1 has a lone surrogate"),
        (
            422,
            b'{"text": "a", "target_prefix": "\\ud800"}',
            "`target_prefix` has a lone surrogate",
        ),
        (413, {"text": "a" * 5_000}, "at most 5000 bytes"),
        (422, {"text": "a", "format": "rtf"}, "^format: Input should be"),
        (422, {"text": "a", "num_hypotheses": True}, "num_hypotheses: .*valid integer"),
        (422, {"text": "a", "num_hypotheses": "2"}, "num_hypotheses: .*valid integer"),
        (422, {"text": "a", "return_attention": "yes"}, "attention: .*valid boolean"),
        (422, b'{"text": "a", "text": "b"}', r'got the key "text" twice\.'),
        (422, '{"text": "a"}'.encode("utf-16"), "got byte 0, which is not UTF-8"),
        (422, {"text": "<b>a", "format": "xml"}, "well-formed XML"),
        (
            422,
            {"text": "a", "format": "html", "num_hypotheses": 2},
            "`format` must be 'text', and `glossary` empty, with",
        ),
    ],
)
def test_bodies_beyond_limits_or_of_wrong_types_are_rejected(
    client, status, body, message
):
    assert re.search(message, client.error(status, "/translate", body))


@pytest.mark.parametrize(
    "content_type",
    ["application/x-www-form-urlencoded", "text/json", "application/jsonx", ""],
)
def test_a_body_must_be_declared_as_json(client, content_type):
    headers = {"content-type": content_type}
    error = client.error(422, "/translate", b'{"text": "a"}', headers=headers)
    assert f"must be application/json; got {content_type!r}" in error


@pytest.mark.parametrize(
    ("body", "received"),
    [
        (b'{"text":', "invalid JSON from character 8 on: Expecting value"),
        (b"", "nothing"),
        (b"[]", r"\[\]"),
        (b"null", "null"),
        (b'"a"', '"a"'),
        (b'{"text": "a\xff"}', "byte 11, which is not UTF-8"),
        (b"[" * 4_999, "nested too deeply"),
        (b"1" * 4_999, "too many digits"),
    ],
)
def test_the_error_of_a_body_names_what_was_received(client, body, received):
    expected = 'The body must be a JSON object with "text", in UTF-8; got '
    for path in ("/translate", "/translate/stream", "/classify"):
        error = client.error(422, path, body)
        assert re.fullmatch(re.escape(expected) + f".*{received}\\.", error), error


def test_attention_is_limited_to_short_texts(folder, translator):
    client = Client(InProcess(Engine(folder, max_attention_tokens=20)))
    text = "an old man in a small boat, in a garden"
    body = {"text": [text, "a man"], "num_hypotheses": 2}
    results = client.send("/translate", body).json()["translations"]
    assert results[0]["text"] == translator(text)
    body["return_attention"] = True
    assert "at most 20 tokens" in client.error(413, "/translate", body)
    body["text"] = "a man"
    assert client.send("/translate", body).status_code == 200
    # Several texts have together as much as a long one.
    jobs = [Job(["a man in a boat"] * n, None, True, True) for n in (1, 9)]
    [answer], error = client.model.engine.answers(jobs)
    assert answer["hypotheses"] and isinstance(error, TooLong)
    assert "got 9 texts of up to" in str(error)


def test_an_answer_is_written_in_pieces(client, monkeypatch):
    """While JSON is written, the server answers nobody else."""
    contents, render = [], JSONResponse.render

    def noted(self, content):
        contents.append(content)
        return render(self, content)

    monkeypatch.setattr(JSONResponse, "render", noted)
    body = {"text": ["a house"] * 3, "num_hypotheses": 2, "return_attention": True}
    answer = client.send("/translate", body)
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {"translations": contents} and len(contents) == 3


def test_no_attention_is_prepared_that_is_not_returned(folder):
    text, engine = "a small boat", Engine(folder)
    jobs = [Job([text], None, True, True, num_hypotheses=n) for n in (1, None)]
    [[best]], [[full]] = ([answer] for answer in engine.answers(jobs))
    assert [len(best["hypotheses"]), len(full["hypotheses"])] == [1, 2]
    assert best["hypotheses"][0]["text"] == full["hypotheses"][0]["text"]
    assert best["hypotheses"][0]["attention"]


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan")])
def test_limits_must_be_positive_and_finite(value):
    with pytest.raises(ValueError, match=f"`timeout` must be positive.*got {value}"):
        Limits(timeout=value)


def test_the_bytes_of_a_body_without_a_length_are_counted(client):
    async def chunks():
        for _ in range(100):
            yield b" " * 100

    async def send():
        transport = httpx.ASGITransport(client.app)
        async with httpx.AsyncClient(transport=transport) as sender:
            return await sender.post("http://server/translate", content=chunks())

    answer = asyncio.run(send())
    assert answer.status_code == 413
    assert answer.json() == {"error": "A body must have at most 5000 bytes."}


def test_a_slow_body_times_out(client):
    async def chunks(delay):
        yield b'{"text": '
        await asyncio.sleep(delay)
        yield b'"a man"}'

    async def send(timeout, delay):
        model = Faulty(0)
        transport = httpx.ASGITransport(Client(model, timeout=timeout).app)
        headers = {"content-type": "application/json"}
        async with httpx.AsyncClient(transport=transport) as sender:
            url = "http://server/classify"
            return await sender.post(url, content=chunks(delay), headers=headers)

    answer = asyncio.run(send(0.5, 30))
    assert answer.status_code == 408
    assert answer.json() == {"error": "The body must arrive within 0.5 seconds."}
    # A body in time reaches the endpoint, which a translator does not have.
    assert asyncio.run(send(60.0, 0.1)).status_code == 404


class Faulty:
    """A model that raises an error, or waits for some seconds."""

    def __init__(self, fault):
        self.fault = fault

    async def describe(self):
        if self.fault == "lost":
            await asyncio.sleep(60)
        return DESCRIPTION

    async def answer(self, job):
        if isinstance(self.fault, Exception):
            raise self.fault
        await asyncio.sleep(self.fault)

    async def stream(self, text, target_prefix):
        yield "ein"
        await self.answer(text)


def test_the_weight_of_a_job_grows_with_the_length_of_its_texts():
    weights = []

    class Recorder(Faulty):
        async def answer(self, job):
            weights.append((len(job.texts), job.weight))
            return ValueError("enough")

    model = Recorder(0)
    client = Client(model, batch_size=32, max_characters=5_000, max_body_bytes=50_000)
    for text in ("a", ["a"] * 3, "a" * 1_700, ["a" * 4_900] * 3):
        client.error(422, "/translate", {"text": text})
    assert weights == [(1, 1), (3, 3), (1, 3), (3, 8)]  # at most a quarter of a batch


def test_internal_errors_have_a_status_and_reveal_nothing(caplog):
    late = Client(Faulty(60), timeout=0.05)
    assert "within 0.05 seconds" in late.error(504, "/translate", {"text": "a"})
    last = late.send("/translate/stream", {"text": "a"}).text.splitlines()[-1]
    assert "within 0.05 seconds" in json.loads(last)["error"]
    lost = Client(Faulty(Unavailable("The worker was lost.")))
    assert lost.error(503, "/translate", {"text": "a"}) == "The worker was lost."
    assert lost.send("/translate", {"text": "a"}).headers["retry-after"] == "1"
    secret = Client(Faulty(RuntimeError("in /secret/place.py")))
    assert "secret" not in secret.error(500, "/translate", {"text": "a"})
    assert "A request failed" in caplog.text  # the operator sees it
    lines = secret.send("/translate/stream", {"text": "a"}).text.splitlines()
    states = [json.loads(line) for line in lines]
    assert states[0]["translation"] == "ein" and "error" in states[1]
    assert "secret" not in lines[1]
    rejecting = Client(Faulty(ValueError("no such prefix")))
    lines = rejecting.send("/translate/stream", {"text": "a"}).text.splitlines()
    assert len(lines) == 2 and "error" in json.loads(lines[1])


def test_health_is_answered_by_the_model():
    model = Faulty(0)
    client = Client(model, timeout=0.05)
    assert client.send("/health").status_code == 200
    model.fault = "lost"
    for path in ("/health", "/v1/models/animals"):
        error = client.error(503, path)
        expected = "The model did not answer within 0.05 seconds. Try again later."
        assert error == expected


class Rejecting:
    """Rejects the text "a", waits for all others, and counts cancellations."""

    def __init__(self):
        self.cancelled = 0

    async def describe(self):
        return DESCRIPTION

    async def answer(self, job):
        if job.texts == ["a"]:
            raise Unavailable("no")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


def test_jobs_that_nobody_waits_for_are_cancelled():
    model = Rejecting()

    async def send():
        transport = httpx.ASGITransport(Client(model, batch_size=1).app)
        async with httpx.AsyncClient(transport=transport) as client:
            body = {"text": ["b", "a", "c"]}
            answer = await client.post("http://server/translate", json=body)
        await asyncio.sleep(0)
        return answer.status_code, model.cancelled

    assert asyncio.run(send()) == (503, 2)


def test_an_abandoned_stream_is_closed():
    from keras_tfm.server import app

    closed = []

    async def states():
        try:
            while True:
                yield "more"
        finally:
            closed.append(True)

    async def read_two():
        deadline = asyncio.get_running_loop().time() + 60
        lines = app.stream_lines("first", states(), deadline, 60)
        await anext(lines)
        await anext(lines)
        await lines.aclose()

    asyncio.run(read_two())
    assert closed == [True]


def test_a_classifier_classifies_and_does_not_translate(classifier, client):
    reference, engine = classifier
    labels, texts = Client(InProcess(engine)), TEXTS[:2]
    results = labels.send("/classify", {"text": texts}).json()["predictions"]
    for result, expected in zip(results, reference(texts), strict=True):
        assert result["label"] == expected.label == next(iter(result["probabilities"]))
        assert result["probabilities"] == pytest.approx(expected.probabilities)
    path = "/v1/models/animals:predict"
    outputs = labels.send(path, {"inputs": texts}).json()["outputs"]
    assert [row[0] for row in outputs["labels"]] == [r["label"] for r in results]
    assert outputs["truncated"] == [False, False]
    error = labels.error(404, "/translate", {"text": "a"})
    assert (
        error
        == "This endpoint needs a model for translation; got one for classification."
    )
    assert "got one for translation" in client.error(404, "/classify", {"text": "a"})
    # An empty text has no label: an error instead of a guess.
    assert "Text 1 is empty" in labels.error(422, "/classify", {"text": ["a", " "]})
    assert "Text 0 is empty" in labels.error(400, path, {"instances": [""]})


def test_health_metrics_and_openapi(client):
    description = {k: v for k, v in DESCRIPTION.items() if k != "weaknesses"}
    assert client.send("/health").json() == {"status": "ok", **description}
    [model] = client.send("/models").json()["models"]
    assert model == {"name": "animals", "address": "./", **DESCRIPTION}
    paths = client.send("/openapi.json").json()["paths"]
    assert {"/translate", "/translate/stream", "/classify", "/health"} < set(paths)
    assert client.error(404, "/nothing") == "Not Found"
    metrics = client.send("/metrics").text
    assert 'keras_tfm_requests_total{path="/health",status="200"}' in metrics
    assert 'keras_tfm_requests_total{path="unknown",status="404"}' in metrics
    assert "/nothing" not in metrics


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_the_pages_load_nothing_from_other_servers(client, path):
    answer = client.send(path)
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    addresses = set(re.findall(r"\bhttps?://[^\s\"']+", answer.text))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # a namespace, not an address
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=", answer.text)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        *(
            ([flag, "0"], f"{flag} must be at least 1; got 0.")
            for flag in (
                "--workers",
                "--beam-size",
                "--max-body-bytes",
                "--max-characters",
                "--max-texts",
                "--max-waiting",
                "--max-attention-tokens",
                "--batch-size",
            )
        ),
        (["--workers", "-1"], "--workers must be at least 1; got -1."),
        (["--warm-up", "32", "0"], "lengths of at least 1; got 32 0."),
        (["--timeout", "0"], "--timeout must be positive and finite; got 0.0."),
        (["--max-tokens", "0"], "--max-tokens must be at least 1; got 0."),
        (["--header-timeout", "0"], "--header-timeout must be positive and finite"),
        (["--timeout", "nan"], "--timeout must be positive and finite; got nan."),
    ],
)
def test_flags_out_of_range_are_rejected_at_once(
    folder, monkeypatch, capsys, flags, message
):
    monkeypatch.setattr(
        serve.pivoting, "check_name", lambda model: pytest.fail("too late")
    )
    assert main(["serve", folder, *flags]) == 1
    printed = capsys.readouterr()
    assert printed.out == "" and message in printed.err


def test_several_models_answer_under_their_names(client, classifier):
    from keras_tfm.server.app import make_apps

    _, engine = classifier
    clients = {"animals": client.model, "moods": InProcess(engine)}
    client_of_two = Client(client.model)
    client_of_two.app = make_apps(clients, Limits(**LIMITS))
    health = client_of_two.send("/health").json()
    assert health["models"]["animals"]["attention"]
    for path, addresses in (
        ("/models", ["animals/", "moods/"]),
        ("/moods/models", ["../animals/", "../moods/"]),
    ):
        models = client_of_two.send(path).json()["models"]
        assert [model["address"] for model in models] == addresses
        assert [model["name"] for model in models] == ["animals", "moods"]
    assert health["models"]["moods"]["kind"] == "classification"
    translate = {"text": TEXTS[0]}
    answer = client_of_two.send("/animals/translate", translate).json()
    assert answer == client.send("/translate", translate).json()
    assert client_of_two.send("/animals/v1/models/animals").status_code == 200
    label = client_of_two.send("/moods/classify", {"text": "a house"}).json()[
        "predictions"
    ][0]
    assert label["label"] in CLASSES
    assert "got one for classification" in client_of_two.error(
        404, "/moods/translate", translate
    )
    error = client_of_two.error(404, "/translate", translate)
    assert "needs the path of a model, such as /animals/translate" in error
    assert "<html" in client_of_two.send("/animals/").text
    assert client_of_two.send("/").text == client_of_two.send("/animals/").text
    # One model keeps the paths that it has alone.
    client_of_two.app = make_apps({"animals": client.model}, Limits(**LIMITS))
    assert client_of_two.send("/translate", translate).json() == answer


def test_models_have_different_names(folder, tmp_path, capsys):
    import shutil

    twin = tmp_path / "animals"
    shutil.copytree(folder, twin)
    assert main(["serve", folder, str(twin)]) == 1
    error = capsys.readouterr().err
    assert "MODEL must have different names; got 'animals' twice" in error
    assert main(["serve", folder, str(twin), "--name", "a"]) == 1
    assert "--name must name a single MODEL" in capsys.readouterr().err
    # {x} would answer for all names; JSON cannot hold the last.
    for name in ("{x}", "a/b", "..", "a\n", "a\udcff"):
        assert main(["serve", folder, "--name", name]) == 1
        assert f"braces and control characters; got {name!r}" in capsys.readouterr().err
    assert main(["serve", folder, "--gpus-per-worker", "1"]) == 1
    assert "--gpus-per-worker needs --cluster" in capsys.readouterr().err
    assert main(["serve", folder, "--cluster", "auto", "--api-key-file", "key"]) == 1
    assert "Set KERAS_TFM_API_KEY" in capsys.readouterr().err
    assert main(["serve", folder, "--api-key-file", str(tmp_path / "no")]) == 1
    assert "no" in capsys.readouterr().err


def test_bodies_that_would_take_long_to_check_are_rejected(client):
    client = Client(client.model, max_body_bytes=2_000_000)
    keys = ",".join(f'"{n}":0' for n in range(60_000))
    start = time.perf_counter()
    message = client.error(422, "/translate", f'{{{keys},"0":0}}'.encode())
    assert "an object with 60001 keys; 1000 are allowed" in message
    glossary = {f"term {n}": "b" for n in range(1_001)}
    client.error(422, "/translate", {"text": "a", "glossary": glossary})
    message = client.error(422, "/translate", b'{"text":[%s0]}' % (b"0," * 400_000))
    assert "valid string" in message
    assert time.perf_counter() - start < 10  # a minute before
    message = client.error(
        400, "/translate", {"q": "a", "source": "x" * 9_999, "target": "de"}
    )
    assert len(message) < 400


def test_streams_count_among_the_requests_that_wait(client):
    local = LocalClient(client.model.engine, batch_size=4, max_waiting=1)

    async def ask():
        first = local.stream("an old man", None)
        await anext(first)
        with pytest.raises(Unavailable, match="Too many requests"):
            await anext(local.stream("an old man", None))
        await first.aclose()
        return [state async for state in local.stream("an old man", None)]

    assert asyncio.run(ask())
