"""Models for the server tests, and clients of an application in memory."""

import asyncio

import httpx
import pytest

from keras_tfm import decode
from keras_tfm.pipelines import Classifier, Translator
from keras_tfm.server.engine import ERRORS, Engine
from keras_tfm.server.limits import Limits
from keras_tfm.text import Vocabulary
from tests.decode.conftest import draw_transformer
from tests.pipelines.test_classifier import CLASSES, network

TEXTS = [
    "an old man in a small boat",
    "a house",
    "",
    "the garden in front of the house",
    "a small boat",
]
LIMITS = {
    "max_body_bytes": 5_000,
    "max_characters": 200,
    "max_texts": 20,
    "batch_size": 4,
}
DESCRIPTION = {
    "kind": "translation",
    "hypotheses": 2,
    "attention": True,
    "streams": True,
    "languages": [],
    "weaknesses": [],
}


@pytest.fixture(scope="session")
def vocabulary():
    return Vocabulary.train([text for text in TEXTS if text] * 20, size=280)


@pytest.fixture(scope="session")
def translator(vocabulary):
    model = draw_transformer(seed=6, vocabulary_size=vocabulary.size)
    options = decode.Options(beam_size=2, max_decoding_length=12)
    return Translator(model, vocabulary, options=options)


@pytest.fixture(scope="session")
def folder(translator, tmp_path_factory):
    folder = tmp_path_factory.mktemp("server") / "animals"
    translator.save(folder)
    return str(folder)


@pytest.fixture(scope="session")
def classifier(vocabulary, tmp_path_factory):
    """A classifier and an engine that has loaded it."""
    classifier = Classifier(network(vocabulary), vocabulary, CLASSES)
    folder = tmp_path_factory.mktemp("classifier")
    classifier.save(folder)
    return classifier, Engine(str(folder))


class InProcess:
    """Calls an engine directly."""

    def __init__(self, engine):
        self.engine = engine

    async def answer(self, job):
        return self.engine.answers([job])[0]

    async def describe(self):
        return self.engine.describe()

    async def stream(self, text, target_prefix):
        try:
            for state in self.engine.stream(text, target_prefix):
                yield state
        except ERRORS as error:
            yield error


class Client:
    """Sends requests to an application without a network."""

    def __init__(self, model, queue_size=None, **limits):
        from keras_tfm.server.app import make_app

        self.model = model
        limits = Limits(**{**LIMITS, **limits})
        limits = limits if queue_size is None else limits.for_queue(queue_size)
        self.app = make_app(model, "animals", limits)

    def send(self, path, body=None, **options):
        """Sends a GET request, or a POST request if there is a body."""

        async def send():
            transport = httpx.ASGITransport(self.app)
            url = "http://server" + path
            async with httpx.AsyncClient(transport=transport) as client:
                if body is None:
                    return await client.get(url, **options)
                if isinstance(body, bytes):
                    options.setdefault("headers", {"content-type": "application/json"})
                    return await client.post(url, content=body, **options)
                return await client.post(url, json=body, **options)

        return asyncio.run(send())

    def error(self, status, path, body=None, **options):
        """Returns the message of an error with this status."""
        answer = self.send(path, body, **options)
        assert answer.status_code == status, answer.text
        assert set(answer.json()) == {"error"}
        return answer.json()["error"]


@pytest.fixture(scope="session")
def client(folder):
    return Client(InProcess(Engine(folder)))
