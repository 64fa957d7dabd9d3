"""The interface of LibreTranslate, in memory and with its own client."""

import asyncio
import re
import threading
import time
import urllib.error

import httpx
import pytest

from keras_tfm.server.access import Access
from keras_tfm.server.limits import Limits
from tests.server.conftest import DESCRIPTION, LIMITS, Client

pytestmark = pytest.mark.backend("torch")
PAIRS = {"en-de": ("en", "de"), "de-en": ("de", "en"), "en-fr": ("en", "fr")}
ENGLISH, GERMAN = "Where is the station?", "Wo ist der Bahnhof?"


class Renaming:
    """A model that writes its languages behind each text."""

    def __init__(self, languages, kind="translation"):
        self.languages, self.kind, self.jobs = languages, kind, []

    async def describe(self):
        return {**DESCRIPTION, "languages": list(self.languages), "kind": self.kind}

    async def answer(self, job):
        self.jobs.append(job)
        if "fail" in job.texts:
            return ValueError("no such text")
        source, target = self.languages
        return [
            {"hypotheses": [{"text": f"{text}|{target}{i}"} for i in (0, 1, 1)]}
            for text in job.texts
        ]


class Slow(Renaming):
    """Answers after a while."""

    async def answer(self, job):
        await asyncio.sleep(0.6)
        return await super().answer(job)


@pytest.fixture
def models():
    labels = {"labels": Renaming((), "classification"), "own": Renaming(())}
    return {**labels, **{name: Renaming(pair) for name, pair in PAIRS.items()}}


@pytest.fixture
def client(models):
    from keras_tfm.server.app import make_apps

    client = Client(models["en-de"])
    client.app = make_apps(models, Limits(**LIMITS))
    return client


def body(q, source="en", target="de", **fields):
    return {"q": q, "source": source, "target": target, **fields}


def test_two_models_have_one_timeout_together():
    from keras_tfm.server.app import make_apps

    models = {name: Slow(pair) for name, pair in PAIRS.items()}
    client = Client(models["en-de"])
    client.app = make_apps(models, Limits(timeout=1.0))
    assert client.send("/translate", body("a", "en", "fr")).status_code == 200
    error = client.error(504, "/translate", body("a", "de", "fr"))
    assert error.startswith("There was no answer within 1 seconds.")


def test_texts_are_translated_by_the_model_of_their_languages(client, models):
    answer = client.send("/translate", body("a")).json()
    assert answer == {"translatedText": "a|de0"}
    answer = client.send("/translate", body(["a", "b"], "en", "fr")).json()
    assert answer == {"translatedText": ["a|fr0", "b|fr0"]}
    answer = client.send("/translate", body(["a"], alternatives=5)).json()
    assert answer == {"translatedText": ["a|de0"], "alternatives": [["a|de1"]]}
    answer = client.send("/translate", body("a", alternatives=1)).json()
    assert answer == {"translatedText": "a|de0", "alternatives": ["a|de1"]}
    assert client.send("/translate", body("a", "de", "de")).json() == {
        "translatedText": "a"
    }
    client.send("/translate", body("<p>a", format="html"))
    assert models["en-de"].jobs[-1].format == "html"
    # Clients send fields that this server does not have.
    assert client.send("/translate", body("a", secret="")).status_code == 200


def test_two_models_translate_where_none_does(client):
    answer = client.send("/translate", body("a", "de", "fr", alternatives=1)).json()
    assert answer == {"translatedText": "a|en0|fr0", "alternatives": ["a|en0|fr1"]}
    assert client.send("/languages").json() == [
        {"code": "de", "name": "German", "targets": ["de", "en", "fr"]},
        {"code": "en", "name": "English", "targets": ["de", "en", "fr"]},
        {"code": "fr", "name": "French", "targets": ["fr"]},
    ]


def test_languages_are_detected(client):
    pytest.importorskip("py3langid")
    texts = [GERMAN, ENGLISH, "Wo?"]
    answer = client.send("/translate", body(texts, "auto", "de")).json()
    assert answer["translatedText"] == [GERMAN, f"{ENGLISH}|de0", "Wo?"]
    codes = [language["language"] for language in answer["detectedLanguage"]]
    assert codes == ["de", "en", "de"]
    answer = client.send("/translate", body(ENGLISH, "auto", "fr")).json()
    assert answer["detectedLanguage"]["language"] == "en"
    best, *less_likely = client.send("/detect", {"q": GERMAN}).json()
    assert best["language"] == "de" and 99 < best["confidence"] <= 100
    assert {language["language"] for language in less_likely} == {"en", "fr"}


def test_a_model_that_detects_languages_itself_is_not_used(client, models):
    from keras_tfm.server.app import make_apps

    detecting = {"auto-fr": Renaming(("auto", "fr"))}
    client.app = make_apps(detecting | models, Limits(**LIMITS))
    languages = client.send("/languages").json()
    assert [language["code"] for language in languages] == ["de", "en", "fr"]
    answer = client.send("/translate", body([ENGLISH], "auto", "fr")).json()
    assert answer["translatedText"] == [f"{ENGLISH}|fr0"]
    # Alone it would have one language to detect, and translate nothing.
    client.app = make_apps(detecting, Limits(**LIMITS))
    client.error(501, "/translate", body(ENGLISH, "auto", "fr"))


def test_detection_needs_its_library(client, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "py3langid.langid", None)
    error = client.error(501, "/translate", body("a", "auto"))
    assert "Install `keras-tfm[detect]`" in error
    assert "py3langid" in client.error(501, "/detect", {"q": "a"})


@pytest.mark.parametrize(
    ("status", "request_body", "message"),
    [
        (400, {"q": "a", "source": "en"}, "target: Field required"),
        (400, body(5), "q.*valid string"),
        (400, body("a", format="xml"), "format: Input should be 'text' or 'html'"),
        (400, body("a", "xx"), "`source` must be one of .*; got 'xx'"),
        (400, body("a", "en", "xx"), "`target` must be one of .*; got 'xx'"),
        (400, body("a", "fr", "de"), "No model translates from 'fr' to 'de'"),
        (400, body("fail"), "no such text"),
        (400, body("a", alternatives=-1), "alternatives: .*greater"),
        (400, body("a", alternatives=True), "alternatives: .*valid integer"),
        (400, b'{"q": "\\ud800", "source": "en", "target": "de"}', "lone surrogate"),
        (413, body("a" * 201), "at most 200 characters"),
        (413, body(["a"] * 21), "at most 20 texts"),
    ],
)
def test_errors_have_the_statuses_of_libretranslate(
    client, status, request_body, message
):
    error = client.error(status, "/translate", request_body)
    assert re.search(message, error), error


def test_forms_are_read(client, caplog):
    form = {"q": "a\r\nb", "source": "en", "target": "de", "alternatives": "1"}
    expected = {"translatedText": "a\nb|de0", "alternatives": ["a\nb|de1"]}
    urlencoded = {"content-type": "application/x-www-form-urlencoded"}
    content = str(httpx.QueryParams(form)).encode()
    answer = client.send("/translate", content, headers=urlencoded)
    assert answer.json() == expected
    multipart = httpx.Request(
        "POST", "http://server", files={name: (None, form[name]) for name in form}
    )
    headers = {"content-type": multipart.headers["content-type"]}
    answer = client.send("/translate", multipart.read(), headers=headers)
    assert answer.json() == expected
    file = httpx.Request("POST", "http://server", files={"q": ("name", b"a")})
    headers = {"content-type": file.headers["content-type"]}
    error = client.error(400, "/translate", file.read(), headers=headers)
    assert "The form is invalid" in error
    headers = {"content-type": "multipart/form-data; boundary=x"}
    error = client.error(400, "/translate", b"no boundary", headers=headers)
    assert "The form is invalid" in error
    assert not caplog.records  # no client can fill the log
    for fault, message in (
        ("q=a&source=en", "^target: Field required$"),
        ("q=a&source=en&target=de&format=xml", "^format: Input should be"),
        ("q=a&source=en&target=de&alternatives=x", "^alternatives: .*integer"),
        ("q=a&q=b&source=en&target=de", 'The form is invalid: the key "q" twice.'),
    ):
        fields = fault.encode()
        error = client.error(400, "/translate", fields, headers=urlencoded)
        assert re.search(message, error), error
    error = client.error(422, "/en-de/translate/stream", content, headers=urlencoded)
    assert "must be application/json" in error
    error = client.error(422, "/translate", b"text=a", headers=urlencoded)
    assert "must be application/json" in error


def test_frontend_settings(client):
    settings = client.send("/frontend/settings").json()
    assert settings["charLimit"] == 200 and settings["keyRequired"] is False
    assert settings["language"]["target"] == {"code": "de", "name": "German"}


@pytest.fixture
def address(models):
    """The address of a running server that needs a key."""
    uvicorn = pytest.importorskip("uvicorn")
    from keras_tfm.server.app import make_apps
    from keras_tfm.server.listen import configure

    limits = Limits(access=Access(("127.0.0.1",), "abc"))
    app = make_apps(models, limits)
    server = uvicorn.Server(configure(app, "127.0.0.1", 0, limits))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


def test_the_client_of_libretranslate_is_served(address):
    library = pytest.importorskip("libretranslatepy")
    pytest.importorskip("py3langid")
    client = library.LibreTranslateAPI(address, api_key="abc")
    assert client.translate("a & b\n=", "de", "fr") == "a & b\n=|en0|fr0"
    assert client.translate(GERMAN, "auto", "en") == f"{GERMAN}|en0"
    assert client.detect(ENGLISH)[0]["language"] == "en"
    assert [language["code"] for language in client.languages()] == ["de", "en", "fr"]
    stranger = library.LibreTranslateAPI(address)
    with pytest.raises(urllib.error.HTTPError, match="401"):
        stranger.translate("a", "en", "de")
    # One model answers at its own path as well.
    single = library.LibreTranslateAPI(f"{address}/en-de", api_key="abc")
    assert single.translate("a", "en", "de") == "a|de0"
