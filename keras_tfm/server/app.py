"""The HTTP application: routes, requests and answers."""

import asyncio
import dataclasses
import importlib.resources
import json
import logging
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Annotated, Any, Literal, Protocol

import fastapi
import pydantic
from fastapi.responses import HTMLResponse, PlainTextResponse, StreamingResponse
from starlette.exceptions import HTTPException

from keras_tfm.server import errors, libretranslate, tensorflow_serving
from keras_tfm.server.access import Guard
from keras_tfm.server.bodies import KINDS, StrictRoute, is_libretranslate
from keras_tfm.server.engine import Job, TooLong
from keras_tfm.server.errors import FAILED, Unavailable, too_late
from keras_tfm.server.libretranslate import LibreRequest, LibreTranslate
from keras_tfm.server.limits import PAGE, BodyLimit, Departures, Limits
from keras_tfm.server.metrics import Metrics
from keras_tfm.text.files import is_unicode

_log = logging.getLogger(__name__)
HEALTH_TIMEOUT = 5.0  # seconds
# The page contains everything that it needs and loads nothing.
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}


class Client(Protocol):
    """What the application asks of a model, wherever that runs."""

    async def answer(self, job: Job) -> list[dict] | Exception:
        """Answers a job, see `Engine.answers`."""
        ...

    async def describe(self) -> dict[str, Any]:
        """Describes the model, see `Engine.describe`."""
        ...

    def stream(self, text: str, target_prefix: str | None) -> AsyncIterator:
        """Yields the translation so far, or an error."""
        ...


# One wrong item is enough: a million of them would be a million errors.
Texts = Annotated[list[str], pydantic.Field(fail_fast=True)]


class TranslateRequest(pydantic.BaseModel, extra="forbid", strict=True):
    """The body of `/translate`."""

    text: str | Texts = pydantic.Field(
        description="A text or a list of texts. Line breaks are kept.",
        examples=["Where is the station?"],
    )
    num_hypotheses: int = pydantic.Field(
        1,
        ge=1,
        le=10_000,
        description="Number of translations of each text, best first.",
    )
    return_attention: bool = pydantic.Field(
        False, description="Return the cross-attention of the translations."
    )
    target_prefix: str | None = pydantic.Field(
        None, description="The beginning of the translations."
    )
    format: Literal["text", "html", "xml"] = pydantic.Field(
        "text", description="Of HTML and XML, tags stay around the words they held."
    )
    glossary: dict[str, str] = pydantic.Field(
        {}, description="Terms and the translations to use for them."
    )


class StreamRequest(pydantic.BaseModel, extra="forbid", strict=True):
    """The body of `/translate/stream`."""

    text: str = pydantic.Field(description="A text.")
    target_prefix: str | None = pydantic.Field(
        None, description="The beginning of the translation."
    )


class ClassifyRequest(pydantic.BaseModel, extra="forbid", strict=True):
    """The body of `/classify`."""

    text: str | Texts = pydantic.Field(description="A text or a list of texts.")


# Ours has `text`, that of LibreTranslate `q`.
AnyTranslateRequest = Annotated[
    Annotated[TranslateRequest, pydantic.Tag(KINDS[0])]
    | Annotated[LibreRequest, pydantic.Tag(KINDS[1])],
    pydantic.Discriminator(lambda body: KINDS[is_libretranslate(body)]),
]


@dataclasses.dataclass
class Service:
    """What the routes share: the model's client and the limits.

    Args:
        client: `Client`.
        limits: `Limits`.
    """

    client: Client
    limits: Limits
    description: dict | None = None

    async def describe(self, kind: str | None = None, alive: bool = False) -> dict:
        """Returns the description of the model.

        Args:
            kind: the task that a route needs; status 404 for another.
            alive: bool. Ask the engine now.
        """
        if alive or self.description is None:
            timeout = self.limits.timeout
            timeout = min(timeout, HEALTH_TIMEOUT) if alive else timeout
            try:
                self.description = await asyncio.wait_for(
                    self.client.describe(), timeout
                )
            except TimeoutError:
                raise Unavailable(
                    f"The model did not answer within {timeout:g} seconds. Try again "
                    "later."
                ) from None
        task = self.description["kind"]
        if kind not in (None, task):
            raise HTTPException(
                404, f"This endpoint needs a model for {kind}; got one for {task}."
            )
        return dict(self.description)

    def check(
        self,
        texts: list[str],
        prefix: str | None,
        blank: bool = True,
        glossary: Mapping[str, str] | None = None,
    ) -> None:
        """Rejects texts that exceed a limit or are not text."""
        prefix = prefix or ""
        if message := self.limits.exceeded(texts, prefix, glossary):
            raise HTTPException(413, message)
        if not is_unicode(prefix):
            raise HTTPException(
                422,
                "`target_prefix` has a lone surrogate. Correct its encoding.",
            )
        for number, text in enumerate(texts):
            if not is_unicode(text):
                raise HTTPException(
                    422, f"Text {number} has a lone surrogate. Correct its encoding."
                )
            if not blank and not text.strip():
                raise HTTPException(
                    422,
                    f"Text {number} is empty; a classifier needs text. Leave it out.",
                )

    async def answers(
        self,
        texts: list[str],
        prefix: str | None = None,
        all_hypotheses: bool = False,
        attention: bool = False,
        format: str = "text",
        glossary: Mapping[str, str] | None = None,
        num_hypotheses: int | None = None,
    ) -> list[dict]:
        """Answers the texts of a request, in chunks of a quarter of a batch."""
        translates = (await self.describe())["kind"] == "translation"
        self.check(texts, prefix, translates, glossary)
        size, jobs = self.limits.chunk_size, []
        terms, number = tuple(sorted((glossary or {}).items())), uuid.uuid4().int
        special = (format, terms, num_hypotheses, number, len(texts) > size)
        for chunk in (texts[i : i + size] for i in range(0, len(texts), size)):
            pages = sum(map(len, chunk)) // PAGE
            weight = min(size, max(len(chunk), pages))
            kind = prefix and [prefix] * len(chunk), all_hypotheses, attention
            jobs.append(Job(chunk, *kind, weight, *special))
        tasks = [asyncio.ensure_future(self.client.answer(job)) for job in jobs]
        try:
            async with asyncio.timeout(self.limits.timeout):
                results = await asyncio.gather(*tasks)
        except TimeoutError:
            raise HTTPException(504, too_late(self.limits.timeout)) from None
        finally:  # if one is rejected nobody waits for the others
            for task in tasks:
                task.cancel()
        for result in results:
            if isinstance(result, TimeoutError):
                raise HTTPException(504, too_late(self.limits.timeout))
            if isinstance(result, TooLong):
                raise HTTPException(413, str(result))
            if isinstance(result, Exception):
                raise HTTPException(422, str(result))
        return [answer for result in results for answer in result]


def make_app(
    client: Client,
    name: str = "default",
    limits: Limits | None = None,
    version: str = "1",
) -> fastapi.FastAPI:
    """Makes the application of a server.

    Args:
        client: `Client` of the model.
        name: str, of the model in URLs.
        limits: `Limits`, or None for the defaults.
        version: str, of the model.
    """
    limits = limits or Limits()
    metrics, app = Metrics(), _new_app(limits, version)
    app.add_middleware(metrics.middleware)
    app.state.service = service = Service(client, limits)
    app.state.models = {"./": (name, service)}
    libre = LibreTranslate([service])
    _add_general_routes(app, service, metrics)
    _add_model_routes(app, service, libre)
    libretranslate.add(app, libre, limits)
    tensorflow_serving.add(app, name, version, service.describe, service.answers)
    return app


def make_apps(clients: Mapping[str, Client], limits: Limits) -> fastapi.FastAPI:
    """Makes the application of one model, or of several under their names.

    Of several, the endpoints of a model begin with its name, such as
    `/en-de/translate`; `/health` describes all.

    Args:
        clients: dict from the names of models to their `Client`.
        limits: `Limits` of each model.
    """
    apps = {name: make_app(client, name, limits) for name, client in clients.items()}
    if len(apps) == 1:
        return next(iter(apps.values()))
    root, services = _new_app(limits), [app.state.service for app in apps.values()]
    names = dict(zip(apps, services, strict=True))
    for name, app in apps.items():
        root.mount(f"/{name}", app)
        app.state.models = _paths(names, "../")
    root.state.models = _paths(names, "")
    _add_pages(root, limits)
    libre = LibreTranslate(services)
    libretranslate.add(root, libre, limits)

    @root.post("/translate")
    async def translate(body: AnyTranslateRequest, request: fastapi.Request):
        """Translates as LibreTranslate does, with any of the models."""
        if isinstance(body, LibreRequest):
            libretranslate.check_key(request, body.api_key, limits)
            return await libre.translate(body)
        raise HTTPException(
            404,
            "A body with `text` needs the path of a model, such as "
            f"/{next(iter(apps))}/translate. Send it there, or send `q`, `source` and "
            "`target` here.",
        )

    @root.get("/health")
    async def health():
        """Returns status 200 if all models answer now, and what each can do."""
        descriptions = await asyncio.gather(*map(_health, services))
        return {"status": "ok", "models": dict(zip(apps, descriptions, strict=True))}

    return root


def _new_app(limits, version="1"):
    """Returns an application with the middleware that all have."""
    app = fastapi.FastAPI(
        title="keras-tfm",
        description="Translates and classifies text.",
        version=version,
        docs_url=None,
        redoc_url=None,
    )
    app.router.route_class = StrictRoute
    app.add_middleware(
        BodyLimit, max_body_bytes=limits.max_body_bytes, timeout=limits.timeout
    )
    app.add_middleware(Departures)
    errors.install(app)
    app.add_middleware(Guard, access=limits.access)
    return app


def _paths(services, prefix):
    """Maps the relative addresses of models to their names and services."""
    return {f"{prefix}{name}/": (name, service) for name, service in services.items()}


async def _health(service):
    description = await service.describe(alive=True)
    return {key: value for key, value in description.items() if key != "weaknesses"}


def _add_pages(app, limits):
    """Adds the page to try models, the page of the API, and what they read."""

    def page(file):
        text = importlib.resources.files(__package__).joinpath(file)
        return HTMLResponse(text.read_text("utf-8"), headers=PAGE_HEADERS)

    @app.get("/", include_in_schema=False)
    async def try_models():
        return page("page.html")

    @app.get("/docs", include_in_schema=False)
    async def describe_api():
        return page("docs.html")

    @app.get("/models")
    async def models(request: fastapi.Request):
        """The models of the server: addresses, languages, weaknesses."""
        entries = request.app.state.models
        descriptions = await asyncio.gather(
            *(service.describe() for _, service in entries.values())
        )
        return {
            "needs_key": limits.access.api_key is not None,
            "models": [
                {"name": name, "address": address, **description}
                for (address, (name, _)), description in zip(
                    entries.items(), descriptions, strict=True
                )
            ],
        }


def _add_general_routes(app, service, metrics):
    _add_pages(app, service.limits)

    @app.get("/health")
    async def health():
        """Returns status 200 if the model answers now."""
        return {"status": "ok", **await _health(service)}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def prometheus():
        """Counts and durations of requests, for Prometheus."""
        return metrics.text()


def _add_model_routes(app, service, libre):
    @app.post("/translate")
    async def translate(body: AnyTranslateRequest, request: fastapi.Request):
        """Translates a text or a list of texts, also as LibreTranslate does."""
        if not isinstance(body, LibreRequest):
            libretranslate.check_key(request, None, service.limits)
            return await _translate(service, body)
        libretranslate.check_key(request, body.api_key, service.limits)
        return await libre.translate(body)

    @app.post("/translate/stream")
    async def stream(request: StreamRequest):
        """Translates greedily: lines of JSON with the translation so far."""
        if not (await service.describe("translation"))["streams"]:
            raise HTTPException(
                422, "The model samples, so it cannot stream. Use `/translate`."
            )
        service.check([request.text], request.target_prefix)
        timeout = service.limits.timeout
        deadline = asyncio.get_running_loop().time() + timeout
        states = service.client.stream(request.text, request.target_prefix)
        # The first state is awaited here: a bad request gets its own status.
        first = await _within(anext(states, ""), timeout)
        if isinstance(first, Exception):
            status = 413 if isinstance(first, TooLong) else 422
            raise HTTPException(status, str(first))
        return StreamingResponse(
            stream_lines(first, states, deadline, timeout),
            media_type="application/x-ndjson",
        )

    @app.post("/classify")
    async def classify(request: ClassifyRequest):
        """Classifies a text or a list of texts."""
        await service.describe("classification")
        return {"predictions": await service.answers(_as_list(request.text))}


async def _translate(service, request):
    """Answers a `TranslateRequest`."""
    description = await service.describe("translation")
    beam_size, count = description["hypotheses"], request.num_hypotheses
    if count > beam_size:
        raise HTTPException(
            422,
            f"`num_hypotheses` must be at most the beam size, {beam_size}; got "
            f"{count}.",
        )
    if request.return_attention and not description["attention"]:
        raise HTTPException(
            422,
            "`return_attention` must be false, since the model has no attention.",
        )
    if (request.format != "text" or request.glossary) and (
        count > 1 or request.return_attention or request.target_prefix
    ):
        raise HTTPException(
            422,
            "`format` must be 'text', and `glossary` empty, with "
            "`num_hypotheses`, `return_attention` or `target_prefix`; got "
            f"{request.format!r} and {len(request.glossary)} terms.",
        )
    results = await service.answers(
        _as_list(request.text),
        request.target_prefix,
        count > 1 or request.return_attention,
        request.return_attention,
        request.format,
        request.glossary,
        count,
    )
    if request.return_attention:  # it may be megabytes
        return await asyncio.to_thread(_translations_response, results, request)
    return _translations_response(results, request)


def _translations_response(results, request):
    # One by one: while `json` writes a value, no other thread runs.
    answers = [_translation(result, request) for result in results]
    items = [fastapi.responses.JSONResponse(answer).body for answer in answers]
    body = b'{"translations":[' + b",".join(items) + b"]}"
    return fastapi.Response(body, media_type="application/json")


async def _within(awaitable, seconds, limit=None):
    try:
        return await asyncio.wait_for(awaitable, seconds)
    except TimeoutError:
        raise HTTPException(504, too_late(limit or seconds)) from None


async def stream_lines(
    state: str | Exception | None,
    states: AsyncGenerator,
    deadline: float,
    timeout: float,
) -> AsyncIterator[str]:
    """Yields the states of a stream as lines of JSON, the last one marked.

    Args:
        state: the first state; an error, or None if there is none.
        states: those that follow.
        deadline: time of the event loop's clock at which the stream ends.
        timeout: float, seconds, for the message of an error.
    """
    clock = asyncio.get_running_loop().time
    try:
        while state is not None:
            if isinstance(state, Exception):
                raise HTTPException(422, str(state))
            yield json.dumps({"translation": state, "done": False}) + "\n"
            last, remaining = state, max(0.001, deadline - clock())
            state = await _within(anext(states, None), remaining, timeout)
        yield json.dumps({"translation": last, "done": True}) + "\n"
    except (HTTPException, Unavailable) as error:  # the status is already sent
        yield json.dumps({"error": getattr(error, "detail", str(error))}) + "\n"
    except Exception:
        _log.exception("A stream failed.")
        yield json.dumps({"error": FAILED}) + "\n"
    finally:
        await states.aclose()


def _as_list(text):
    return [text] if isinstance(text, str) else text


def _translation(result, request):
    hypotheses = result["hypotheses"][: request.num_hypotheses]
    names = ["text", "score", "truncated", "number_mismatch"]
    answer = {name: hypotheses[0][name] for name in names}
    if request.glossary:
        answer["unmet_terms"] = result["unmet_terms"]
    if request.return_attention:
        names += ["tokens", "attention"]
        answer["source_tokens"] = result["source_tokens"]
    answer["hypotheses"] = [
        {name: hypothesis[name] for name in names} for hypothesis in hypotheses
    ]
    return answer
