"""Errors of the server and their answers, which reveal nothing internal."""

import json
import logging
from collections.abc import Mapping

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from keras_tfm.server.bodies import KINDS, WrongKeys, is_libretranslate, media_type

_log = logging.getLogger(__name__)
FAILED = "The server failed to answer."
FULL = "Too many requests are waiting. Try again."
EXPECTED = 'The body must be a JSON object with "text", in UTF-8; got '
MAX_FAULTS = 8  # faults of a body that an answer lists


class Unavailable(Exception):
    """No engine can take the request now; status 503."""


def too_late(timeout: float) -> str:
    """Returns the message of an answer that took too long; status 504."""
    return (
        f"There was no answer within {timeout:g} seconds. Send shorter texts, or try "
        "again later."
    )


def error_response(
    status: int, message: str, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Makes the JSON answer of an error."""
    return JSONResponse({"error": message}, status, headers)


def install(app: FastAPI) -> None:
    """Adds the error handlers to an application.

    Args:
        app: `fastapi.FastAPI`.
    """

    @app.exception_handler(HTTPException)
    async def http_error(request, error):
        # FastAPI raises another status for JSON that is grammatical but cannot
        # be read.
        if isinstance(error.__cause__, ValueError | RecursionError):
            return error_response(422, EXPECTED + _unreadable(error.__cause__))
        return error_response(error.status_code, error.detail, error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid_body(request, error):
        content_type, kind = (
            request.headers.get("content-type", ""),
            media_type(request),
        )
        is_json = kind.startswith("application/") and kind.endswith(("/json", "+json"))
        # A form that was read as an object has its own type.
        if not is_json and not isinstance(error.body, dict):
            return error_response(
                422,
                "The header Content-Type must be application/json; got "
                f"{content_type[:80]!r}.",
            )
        faults = error.errors()[:MAX_FAULTS]
        if faults[0]["type"] == "json_invalid" or not isinstance(error.body, dict):
            return error_response(422, EXPECTED + _not_an_object(faults[0]))
        messages = [f"{_place(fault['loc'])}: {fault['msg']}" for fault in faults]
        status = 400 if is_libretranslate(error.body) else 422
        return error_response(status, "; ".join(messages))

    @app.exception_handler(Unavailable)
    async def unavailable(request, error):
        return error_response(503, str(error), {"Retry-After": "1"})

    app.add_middleware(_CatchAll, response=error_response(500, FAILED))


def _place(location):
    """Names the field of a fault, without the kind of its body."""
    return ".".join(str(part) for part in location if part not in ("body", *KINDS))


def _unreadable(error):
    """Names what makes a body unreadable."""
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start}, which is not UTF-8."
    if isinstance(error, WrongKeys):
        return str(error)
    if isinstance(error, RecursionError):
        return "lists or objects that are nested too deeply."
    return "a number with too many digits."


def _not_an_object(fault):
    """Names what came instead of an object."""
    if fault["type"] == "json_invalid":
        reason = fault["ctx"]["error"]
        return f"invalid JSON from character {fault['loc'][1]} on: {reason}."
    if fault["type"] == "missing":
        return "nothing."
    return f"{json.dumps(fault['input'], default=repr)[:80]}."


class _CatchAll:
    """Answers with status 500 if the application fails before it answers.

    Args:
        app: ASGI application.
        response: response of Starlette.
    """

    def __init__(self, app, response):
        self.app, self.response = app, response

    async def __call__(self, scope, receive, send):
        responding = False

        async def watched_send(message):
            nonlocal responding
            responding = True
            await send(message)

        try:
            await self.app(scope, receive, watched_send)
        except Exception:
            if responding or scope["type"] != "http":
                raise
            _log.exception("A request failed.")
            await self.response(scope, receive, send)
