"""HTTP: what is asked, what is answered, and how it is refused."""

import asyncio
import importlib.resources
import json
import logging

import fastapi
import pydantic
from fastapi.exceptions import RequestValidationError
from fastapi.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    StreamingResponse,
)
from starlette.exceptions import HTTPException

from keras_tfm.server import tensorflow_serving
from keras_tfm.server.limits import BodyLimit, Limits
from keras_tfm.server.worker import Asked, TooLong
from keras_tfm.text.files import is_unicode

_log = logging.getLogger(__name__)
HEALTH_SECONDS = 5.0  # a model that takes longer to say what it is is not well
PAGE = 500  # characters, that count as a text of their own


class Unavailable(Exception):
    """No worker can take the request now."""


class TranslateRequest(pydantic.BaseModel, extra="forbid"):
    """What `/translate` is asked."""

    text: str | list[str] = pydantic.Field(
        description="A text, or several. Line breaks and blanks are kept.",
        examples=["Where is the station?"],
    )
    num_hypotheses: int = pydantic.Field(
        1, ge=1, description="Translations of each, the best first."
    )
    return_attention: bool = pydantic.Field(
        False, description="What each piece of the translations looked at."
    )
    target_prefix: str | None = pydantic.Field(
        None, description="What the translations begin with."
    )


class StreamRequest(pydantic.BaseModel, extra="forbid"):
    """What `/translate/stream` is asked."""

    text: str
    target_prefix: str | None = None


class ClassifyRequest(pydantic.BaseModel, extra="forbid"):
    """What `/classify` is asked."""

    text: str | list[str]


def make_app(model, name="default", limits=None, version="1", metrics=None):
    """Makes the application of a server.

    Args:
        model: function without arguments that gives what has the coroutines
            `answer(asked)`, a list of dicts as of `Worker.answers`, and
            `describe()`, and the generator `stream(text, target_prefix)`.
        name: str, of the model in addresses.
        limits: `Limits`, or None for its defaults.
        version: str, of the model.
        metrics: coroutine that gives what Prometheus reads, str; or None.

    Returns:
        `fastapi.FastAPI`.
    """
    limits = limits or Limits()
    app = fastapi.FastAPI(
        title="keras-tfm",
        description="Translates and labels text.",
        version=version,
        redoc_url=None,
    )
    app.add_middleware(BodyLimit, body_bytes=limits.body_bytes, seconds=limits.seconds)
    _refusals(app)

    known = {}

    async def described(kind=None, alive=False):
        if alive or not known:
            seconds = min(limits.seconds, HEALTH_SECONDS) if alive else limits.seconds
            try:
                known.update(await asyncio.wait_for(model().describe(), seconds))
            except TimeoutError:
                text = (
                    f"No worker answered within {seconds:g} seconds. Try again later."
                )
                raise Unavailable(text) from None
        if kind not in (None, known["kind"]):
            does = {"translation": "translates", "classification": "labels"}
            raise HTTPException(404, f"The model {does[known['kind']]} texts.")
        return dict(known)

    def check(texts, prefix, blank=True):
        if fault := limits.fault(texts) or limits.fault([prefix or ""]):
            raise HTTPException(413, fault)
        if not is_unicode(prefix or ""):
            raise HTTPException(422, "The prefix has half of a surrogate pair.")
        for number, text in enumerate(texts):
            if not is_unicode(text):
                fault = f"Text {number} has half of a surrogate pair: no character."
                raise HTTPException(422, fault)
            if not blank and not text.strip():
                raise HTTPException(422, f"Text {number} is empty: it has no label.")

    async def answers(texts, prefix=None, full=False, attention=False):
        check(texts, prefix, blank=known["kind"] == "translation")
        size, asked = limits.part, []
        for some in (texts[i : i + size] for i in range(0, len(texts), size)):
            pages = sum(map(len, some)) // PAGE
            prefixes, weight = prefix and [prefix] * len(some), max(len(some), pages)
            asked.append(Asked(some, prefixes, full, attention, min(size, weight)))
        parts = [asyncio.ensure_future(model().answer(one)) for one in asked]
        try:
            found = await _in_time(asyncio.gather(*parts), limits.seconds)
        finally:  # where one was refused nobody waits for the others
            for part in parts:
                part.cancel()
        for some in found:
            if isinstance(some, TimeoutError):
                raise HTTPException(504, _late(limits.seconds))
            if isinstance(some, TooLong):
                raise HTTPException(413, str(some))
            if isinstance(some, Exception):
                raise HTTPException(422, str(some))
        return [answer for some in found for answer in some]

    @app.get("/", include_in_schema=False)
    async def page():
        text = importlib.resources.files(__package__).joinpath("page.html")
        return HTMLResponse(text.read_text("utf-8"), headers=PAGE_HEADERS)

    @app.get("/health")
    async def health():
        """Whether a worker answers, now."""
        return {"status": "ok", **await described(alive=True)}

    @app.post("/translate")
    async def translate(request: TranslateRequest):
        """Translates a text, or several."""
        does = await described("translation")
        most, count = does["hypotheses"], request.num_hypotheses
        if count > most:
            text = f"num_hypotheses is {most} at most, the beam's size. Received: "
            raise HTTPException(422, text + f"{count}.")
        if request.return_attention and not does["attention"]:
            text = "This model tells nothing of its attention. Received: "
            raise HTTPException(422, text + "return_attention=true.")
        found = await answers(
            _listed(request.text),
            request.target_prefix,
            count > 1 or request.return_attention,
            request.return_attention,
        )
        return {"translations": [_answer(one, request) for one in found]}

    @app.post("/translate/stream")
    async def stream(request: StreamRequest):
        """Translates greedily: lines of JSON, what there is so far."""
        if not (await described("translation"))["streams"]:
            raise HTTPException(422, "This model samples: it has no stream.")
        check([request.text], request.target_prefix)
        until = asyncio.get_running_loop().time() + limits.seconds
        states = model().stream(request.text, request.target_prefix)
        # So that what is wrong with the request has a status of its own.
        first = await _in_time(anext(states, ""), limits.seconds)
        if isinstance(first, Exception):
            raise HTTPException(422, str(first))
        return StreamingResponse(
            _lines(first, states, until, limits.seconds),
            media_type="application/x-ndjson",
        )

    @app.post("/classify")
    async def classify(request: ClassifyRequest):
        """Labels a text, or several."""
        await described("classification")
        return {"predictions": await answers(_listed(request.text))}

    if metrics is not None:

        @app.get("/metrics", response_class=PlainTextResponse)
        async def measured():
            """Counts and times, as Prometheus reads them."""
            return await metrics()

    tensorflow_serving.add(app, name, version, described, answers)
    return app


FAILED = "The server failed to answer."
WANTED = 'The body is a JSON object with "text", in UTF-8. Received: '
# The page brings all it needs, and asks nobody else.
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


async def _in_time(waited, seconds, limit=None):
    try:
        return await asyncio.wait_for(waited, seconds)
    except TimeoutError:
        raise HTTPException(504, _late(limit or seconds)) from None


def _late(seconds):
    return f"No answer came within {seconds:g} seconds. Try shorter texts."


async def _lines(state, states, until, limit):
    """What there is so far, as lines; the last tells that it is the last."""
    clock = asyncio.get_running_loop().time
    try:
        while state is not None:
            if isinstance(state, Exception):
                raise HTTPException(422, str(state))
            yield json.dumps({"translation": state, "done": False}) + "\n"
            last, left = state, max(0.001, until - clock())
            state = await _in_time(anext(states, None), left, limit)
        yield json.dumps({"translation": last, "done": True}) + "\n"
    except (HTTPException, Unavailable) as fault:  # the status has been sent
        text = getattr(fault, "detail", str(fault))
        yield json.dumps({"error": text}) + "\n"
    except Exception:
        _log.exception("A stream failed.")
        yield json.dumps({"error": FAILED}) + "\n"
    finally:
        await states.aclose()


def _listed(text):
    return [text] if isinstance(text, str) else text


def _answer(found, request):
    hypotheses = found["hypotheses"][: request.num_hypotheses]
    shown = ["text", "score", "finished"]
    if request.return_attention:
        shown += ["tokens", "attention"]
    answer = {key: hypotheses[0][key] for key in shown[:3]}
    if request.return_attention:
        answer["source_tokens"] = found["source_tokens"]
    answer["hypotheses"] = [{key: one[key] for key in shown} for one in hypotheses]
    return answer


def _refusals(app):
    """Errors in one form, which tells nothing of the server's inside."""

    def refused(status, text, headers=None):
        return JSONResponse({"error": text}, status, headers)

    @app.exception_handler(HTTPException)
    async def known(request, fault):
        # Of JSON that is wrong beyond its grammar FastAPI makes another status.
        if isinstance(fault.__cause__, (ValueError, RecursionError)):
            return refused(422, WANTED + _unreadable(fault.__cause__))
        return refused(fault.status_code, fault.detail, fault.headers)

    @app.exception_handler(RequestValidationError)
    async def misshapen(request, fault):
        kind = request.headers.get("content-type", "")
        if "json" not in kind:
            return refused(
                422,
                "The body is JSON, and the header Content-Type says application/json. "
                f"Received: {kind[:80]!r}.",
            )
        faults = fault.errors()[:8]
        if faults[0]["type"] == "json_invalid" or len(faults[0]["loc"]) == 1:
            return refused(422, WANTED + _no_object(faults[0]))
        places = [
            ".".join(str(part) for part in one["loc"][1:]) + ": " + one["msg"]
            for one in faults
        ]
        return refused(422, "; ".join(places))

    @app.exception_handler(Unavailable)
    async def unavailable(request, fault):
        return refused(503, str(fault), {"Retry-After": "1"})

    app.add_middleware(_Unknown, answer=refused(500, FAILED))


def _unreadable(fault):
    """Says what came that is not even JSON of another form."""
    if isinstance(fault, UnicodeDecodeError):
        return f"byte {fault.start} is of no character."
    if isinstance(fault, RecursionError):
        return "lists or objects that are nested too deep."
    return "a number of too many digits."


def _no_object(fault):
    """Says what came instead of an object, by an error of FastAPI."""
    if fault["type"] == "json_invalid":
        return f"no JSON from character {fault['loc'][1]} on: {fault['ctx']['error']}."
    if fault["type"] == "missing":
        return "nothing."
    return f"{json.dumps(fault['input'])[:80]}."


class _Unknown:
    """Answers where the application failed before it did.

    Args:
        app: ASGI application.
        answer: response of Starlette.
    """

    def __init__(self, app, answer):
        self.app, self.answer = app, answer

    async def __call__(self, scope, receive, send):
        begun = False

        async def watched(message):
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except Exception:
            if begun or scope["type"] != "http":
                raise
            _log.exception("A request failed.")
            await self.answer(scope, receive, send)
