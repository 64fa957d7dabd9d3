"""Reads request bodies: JSON strictly, and forms as JSON."""

import json
import logging
from collections.abc import Callable
from typing import Any

import fastapi
from fastapi.routing import APIRoute
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException

FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
FORM_PATHS = ("/translate", "/detect")  # of LibreTranslate's interface
KINDS = ("our body", "body of LibreTranslate")  # of `/translate`
MAX_KEYS = 1_000  # of an object; each costs time to check
# It warns of each wrong form, so that any client could fill the log.
logging.getLogger("python_multipart").setLevel(logging.ERROR)


class WrongKeys(ValueError):
    """An object of JSON has a key twice, or too many keys."""


class StrictRequest(fastapi.Request):
    """A request whose JSON is UTF-8 and has each key once."""

    async def json(self) -> Any:
        text = (await self.body()).decode("utf-8-sig")
        return json.loads(text, object_pairs_hook=_unique)


class StrictRoute(APIRoute):
    """A route that reads its body as `StrictRequest`.

    A form with `q`, which only LibreTranslate's clients send, is read as an
    object of JSON.
    """

    def get_route_handler(self) -> Callable:
        handler = super().get_route_handler()

        async def strict_handler(request: fastapi.Request) -> fastapi.Response:
            request = StrictRequest(request.scope, request.receive)
            if self.path.endswith(FORM_PATHS) and media_type(request) in FORMS:
                request = await _from_form(request)
            return await handler(request)

        return strict_handler


def media_type(request: fastapi.Request) -> str:
    """Returns the media type of a body, in lower case, without parameters."""
    return request.headers.get("content-type", "").split(";")[0].strip().lower()


def is_libretranslate(body: Any) -> bool:
    """Returns whether a body is one of LibreTranslate's interface."""
    return isinstance(body, dict) and "q" in body


async def _from_form(request):
    """Returns a request with a form as JSON, if it has `q`."""
    body = await request.body()  # the form is read from it
    try:
        async with request.form(max_files=0, max_fields=20) as form:
            fields = _unique([(name, str(x)) for name, x in form.multi_items()])
    except (HTTPException, ValueError, LookupError) as error:  # charsets
        cause = f"{getattr(error, 'detail', error)}".rstrip(".")
        raise HTTPException(400, f"The form is invalid: {cause}.") from None
    converted = StrictRequest(dict(request.scope), request.receive)
    if "q" not in fields:
        converted._body = body
        return converted
    # Forms have CR LF as line breaks.
    fields["q"] = fields["q"].replace("\r\n", "\n")
    headers = MutableHeaders(raw=list(request.scope["headers"]))
    headers["content-type"] = "application/json"
    converted.scope["headers"] = headers.raw
    converted._body = json.dumps(fields).encode()
    return converted


def _unique(pairs):
    if len(pairs) > MAX_KEYS:
        raise WrongKeys(f"an object with {len(pairs)} keys; {MAX_KEYS} are allowed.")
    content = {}
    for name, value in pairs:
        if name in content:
            raise WrongKeys(f"the key {json.dumps(name)[:80]} twice.")
        content[name] = value
    return content
