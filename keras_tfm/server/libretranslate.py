"""The interface of LibreTranslate, whose clients can talk to this server.

https://docs.libretranslate.com/guides/api_usage
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Protocol

import fastapi
import pydantic
from babel import Locale
from pydantic_core import PydanticCustomError
from starlette.exceptions import HTTPException

from keras_tfm.pipelines.pivoting import AUTO, language_identifier, pivot_steps
from keras_tfm.server.access import UNAUTHORIZED
from keras_tfm.server.errors import too_late
from keras_tfm.server.limits import Limits

FRONTEND_TIMEOUT = 500  # milliseconds that a page waits for more typing


class DetectRequest(pydantic.BaseModel, strict=True):
    """The body of `/detect`."""

    q: str = pydantic.Field(description="A text.")
    api_key: str | None = None


class LibreRequest(pydantic.BaseModel, strict=True):
    """The body of `/translate` in LibreTranslate's interface."""

    q: str | Annotated[list[str], pydantic.Field(fail_fast=True)] = pydantic.Field(
        description="A text or a list of texts."
    )
    source: str = pydantic.Field(description="Code of a language, or `auto`.")
    target: str = pydantic.Field(description="Code of a language.")
    format: Literal["text", "html"] = "text"
    # Forms have strings.
    alternatives: Annotated[int, pydantic.Field(strict=False, ge=0)] = pydantic.Field(
        0, description="Number of further translations, fewer with a smaller beam."
    )
    api_key: str | None = None

    @pydantic.field_validator("alternatives", mode="before")
    @classmethod
    def _is_no_boolean(cls, value: Any) -> Any:
        if isinstance(value, bool):
            raise PydanticCustomError("int_type", "Input should be a valid integer")
        return value


class Service(Protocol):
    """What the interface asks of a model, see `app.Service`."""

    limits: Limits

    async def describe(self) -> dict[str, Any]:
        """Describes the model."""
        ...

    def check(self, texts: list[str], prefix: str | None) -> None:
        """Rejects texts that exceed a limit or are not text."""
        ...

    async def answers(self, texts: list[str], **options: Any) -> list[dict]:
        """Translates texts."""
        ...


class LibreTranslate:
    """Translates between the languages of the models, by two where needed.

    Args:
        services: `Service` of each model. Those without a source and a target
            language are left out, and those that detect languages themselves.
    """

    def __init__(self, services: Sequence[Service]):
        self.services = list(services)
        self._pairs: dict[tuple[str, str], Service] | None = None
        self._identifier: Any = None

    def check(self, texts: list[str]) -> None:
        """Rejects texts that exceed a limit or are not text.

        Args:
            texts: list of str.

        Raises:
            HTTPException: status 413 or 400.
        """
        with _as_bad_request():
            self.services[0].check(texts, None)

    async def pairs(self) -> dict[tuple[str, str], Service]:
        """Returns the model of each pair of languages."""
        if self._pairs is None:
            pairs: dict[tuple[str, str], Service] = {}
            for service in self.services:
                description = await service.describe()
                languages = tuple(description["languages"])
                if description["kind"] != "translation" or len(languages) != 2:
                    continue
                if AUTO not in languages:  # else the languages are not known
                    pairs.setdefault(languages, service)
            self._pairs = pairs
        return self._pairs

    async def languages(self) -> list[dict]:
        """Returns the languages, and those that each can be translated to."""
        pairs = await self.pairs()
        codes = sorted({code for pair in pairs for code in pair})
        return [
            {
                "code": code,
                "name": _name(code),
                "targets": [
                    target
                    for target in codes
                    if target == code or _steps(pairs, code, target)
                ],
            }
            for code in codes
        ]

    async def detect(self, text: str) -> list[dict]:
        """Returns the languages of the models, the likeliest for a text first.

        Args:
            text: str.

        Raises:
            HTTPException: the text exceeds a limit, or py3langid is not
                installed; status 501.
        """
        self.check([text])
        codes = {code for pair in await self.pairs() for code in pair}
        if self._identifier is None and codes:
            try:
                self._identifier = await asyncio.to_thread(language_identifier, codes)
            except ImportError as error:
                raise HTTPException(501, f"`source` cannot be auto. {error}") from None
        if not codes or not self._identifier.labels:
            raise HTTPException(501, "No model names a language that can be detected.")
        ranked = await asyncio.to_thread(self._identifier.rank, text)
        return [
            {"language": code, "confidence": round(100 * float(probability), 1)}
            for code, probability in ranked
        ]

    async def translate(self, request: LibreRequest) -> dict:
        """Translates the texts of a request.

        Args:
            request: `LibreRequest`.

        Raises:
            HTTPException: no model translates between the languages; status
                400. All models together took too long; 504.
        """
        timeout = self.services[0].limits.timeout
        try:
            async with asyncio.timeout(timeout):
                return await self._answer(request)
        except TimeoutError:
            raise HTTPException(504, too_late(timeout)) from None

    async def _answer(self, request):
        texts = [request.q] if isinstance(request.q, str) else request.q
        self.check(texts)
        if request.source == AUTO:
            detected = [(await self.detect(text))[0] for text in texts]
        else:
            detected = [{"language": request.source, "confidence": 100.0}] * len(texts)
        answers: list[list[str]] = [[] for _ in texts]
        for source in sorted({language["language"] for language in detected}):
            indices = [i for i, d in enumerate(detected) if d["language"] == source]
            translations = await self._translate(
                [texts[index] for index in indices], source, request
            )
            for index, translation in zip(indices, translations, strict=True):
                answers[index] = translation
        result: dict[str, Any] = {"translatedText": [answer[0] for answer in answers]}
        if request.alternatives:
            count = 1 + request.alternatives
            result["alternatives"] = [answer[1:count] for answer in answers]
        if request.source == AUTO:
            result["detectedLanguage"] = detected
        if isinstance(request.q, str):
            result = {name: value[0] for name, value in result.items()}
        return result

    async def _translate(self, texts, source, request):
        """Returns the different translations of each text, best first."""
        pairs = await self.pairs()
        codes = sorted({code for pair in pairs for code in pair})
        for name, code in (("source", source), ("target", request.target)):
            if code not in codes:
                raise HTTPException(
                    400, f"`{name}` must be one of {codes}; got {code!r:.80}."
                )
        if source == request.target:
            return [[text] for text in texts]
        steps = _steps(pairs, source, request.target)
        if not steps:
            raise HTTPException(
                400,
                f"No model translates from {source!r:.80} to {request.target!r:.80}. "
                "`GET /languages` lists the targets of each language.",
            )
        several = bool(request.alternatives) and request.format == "text"
        results = []
        for number, step in enumerate(steps):
            is_last = number == len(steps) - 1
            with _as_bad_request():
                results = await pairs[step].answers(
                    texts, all_hypotheses=several and is_last, format=request.format
                )
            texts = [result["hypotheses"][0]["text"] for result in results]
        return [
            list(dict.fromkeys(h["text"] for h in result["hypotheses"]))
            for result in results
        ]


def add(app: fastapi.FastAPI, libretranslate: LibreTranslate, limits: Limits) -> None:
    """Adds the routes to an application, except `/translate`.

    Args:
        app: `fastapi.FastAPI`.
        libretranslate: `LibreTranslate`.
        limits: `Limits`.
    """

    @app.get("/languages")
    async def languages():
        """The languages of the models, as LibreTranslate lists them."""
        return await libretranslate.languages()

    @app.post("/detect")
    async def detect(body: DetectRequest, request: fastapi.Request):
        """Detects the language of a text, as LibreTranslate does."""
        check_key(request, body.api_key, limits)
        return await libretranslate.detect(body.q)

    @app.get("/frontend/settings")
    async def settings():
        """What LibreTranslate's clients ask before they translate."""
        pair = next(iter(await libretranslate.pairs()), ("en", "en"))
        source, target = ({"code": code, "name": _name(code)} for code in pair)
        return {
            "apiKeys": limits.access.api_key is not None,
            "keyRequired": limits.access.api_key is not None,
            "charLimit": limits.max_characters,
            "frontendTimeout": FRONTEND_TIMEOUT,
            "filesTranslation": False,
            "supportedFilesFormat": [],
            "suggestions": False,
            "language": {"source": source, "target": target},
        }


def check_key(request: fastapi.Request, key: str | None, limits: Limits) -> None:
    """Rejects a request whose body should hold the key of the server.

    Args:
        request: request that `access.Guard` has let through.
        key: str or None, of its body.
        limits: `Limits`.

    Raises:
        HTTPException: the key is wrong or missing; status 401.
    """
    if request.scope.get("needs_key") and not limits.access.allows_key(key):
        raise HTTPException(401, UNAUTHORIZED, {"WWW-Authenticate": "Bearer"})


@contextlib.contextmanager
def _as_bad_request():
    try:
        yield
    except HTTPException as error:
        if error.status_code != 422:
            raise
        raise HTTPException(400, error.detail) from None  # as LibreTranslate does


def _steps(pairs, source, target):
    """Returns the pairs of languages that lead from one to another."""
    if (source, target) in pairs:
        return [(source, target)]
    return list(pivot_steps(pairs, source, target) or ())


def _name(code):
    """Returns the English name of a language."""
    return Locale("en").languages.get(code, code)
