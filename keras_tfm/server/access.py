"""Who may send requests, and the headers that every answer has."""

import dataclasses
import hmac
import ipaddress
import json
import os
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from keras_tfm.file_reading import reading

if TYPE_CHECKING:  # the command line reads this without Starlette
    from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
KEY_VARIABLE = "KERAS_TFM_API_KEY"
MAX_HEADERS = 100  # status 431
HEADER_BYTES = 65_536  # of all headers; status 431
KEY_CHARACTERS = 4_096  # of the key, which a header must hold
# Their bodies may hold the key, as in LibreTranslate's interface.
KEY_IN_BODY = ("/translate", "/detect")
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}
UNAUTHORIZED = (
    "The server needs an API key. Send the header `Authorization: Bearer KEY`, or "
    "`api_key` in a body with `q`."
)


@dataclasses.dataclass(frozen=True)
class Access:
    """Who may send requests.

    Attributes:
        allowed_hosts: strs, the names in `Host` headers that are answered;
            empty: all. Others are rejected, so that no web page can read
            answers by DNS rebinding; status 400.
        api_key: str or None, what POST requests and `/metrics` must present;
            status 401.
    """

    allowed_hosts: tuple[str, ...] = ()
    api_key: str | None = dataclasses.field(default=None, repr=False)

    def allows_host(self, host: str) -> bool:
        """Returns whether a `Host` header names an allowed host.

        Args:
            host: str, with or without a port.
        """
        match = re.fullmatch(r"(\[[^]]*\]|[^:]*)(:\d+)?", host.lower())
        is_allowed = match is not None and match[1] in self.allowed_hosts
        return not self.allowed_hosts or is_allowed

    def allows_key(self, key: str | None) -> bool:
        """Returns whether a key is right, in a time that tells nothing of it.

        Args:
            key: str, or None if there is none.
        """
        if self.api_key is None:
            return True
        return key is not None and hmac.compare_digest(
            key.encode("utf-8", "surrogatepass"), self.api_key.encode()
        )


def hosts_for(address: str, additional: Sequence[str]) -> tuple[str, ...]:
    """Returns the allowed hosts of a server.

    Args:
        address: str, on which it listens. On a loopback address that and its
            names are allowed; on others all are, unless `additional` names
            some.
        additional: strs, further names.
    """
    is_loopback = _is_loopback(address)
    if not is_loopback and not additional:
        return ()
    address_names = (in_url(address).lower(),) if is_loopback else ()
    return (*LOOPBACK, *address_names, *(name.lower() for name in additional))


def _is_loopback(address):
    """Returns whether only this machine can reach an address or a name."""
    if address.lower() == "localhost":  # also where it cannot be resolved
        return True
    try:  # "" listens on all addresses
        places = socket.getaddrinfo(address, None) if address else ()
    except (OSError, UnicodeError):  # `check_port` rejects it
        places = ()
    # The last part of fe80::1%eth0 names an interface.
    addresses = {ipaddress.ip_address(str(place[4][0])) for place in places}
    mapped = {getattr(ip, "ipv4_mapped", None) or ip for ip in addresses}
    return bool(mapped) and all(ip.is_loopback for ip in mapped)


def in_url(address: str) -> str:
    """Returns an address as URLs have it, with brackets around IPv6.

    Args:
        address: str.
    """
    return f"[{address}]" if ":" in address else address


def read_key(file: str | os.PathLike | None) -> str | None:
    """Reads the API key from a file, or else from `KERAS_TFM_API_KEY`.

    Args:
        file: path, or None.

    Returns:
        str, or None without file and variable.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file cannot be read, or the key is empty or too long,
            or has other characters than visible ASCII.
    """
    place, key = KEY_VARIABLE, os.environ.get(KEY_VARIABLE)
    if file is not None:
        fix = "Make one by `openssl rand -hex 32`."
        with reading(file, "an API key", fix), open(file, "rb") as content:
            # /dev/zero does not end.
            key = content.read(2 * KEY_CHARACTERS).decode().strip()
        place = f"--api-key-file {os.fspath(file)!r}"
    if key is not None and not re.fullmatch(f"[!-~]{{1,{KEY_CHARACTERS}}}", key):
        raise ValueError(
            f"{place} must hold one key of at most {KEY_CHARACTERS} visible ASCII "
            f"characters; got {len(key)}. Make a key by `openssl rand -hex 32`."
        )
    return key


class Guard:
    """ASGI middleware that rejects requests without access, unread.

    It adds security headers to all answers.

    Args:
        app: ASGI application.
        access: `Access`.
    """

    def __init__(self, app: "ASGIApp", access: Access):
        self.app, self.access = app, access

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def secured_send(message):
            if message["type"] == "http.response.start":
                headers = message.get("headers", [])
                message = {**message, "headers": _secured(headers)}
            await send(message)

        if fault := self._fault(scope):
            await reject(secured_send, *fault)
        else:
            await self.app(scope, receive, secured_send)

    def _fault(self, scope):
        """Returns status and message of the error of a request, or None."""
        size = sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        if len(scope["headers"]) > MAX_HEADERS or size > HEADER_BYTES:
            return 431, (
                f"A request must have at most {MAX_HEADERS} headers of {HEADER_BYTES} "
                f"bytes in all; got {len(scope['headers'])} of {size}."
            )
        if re.search(r"[\x00-\x1f\x7f]", scope["path"]):
            return 404, "Not Found"  # routes match "/metrics\n", too
        headers = dict(scope["headers"])
        if b"content-length" in headers and b"transfer-encoding" in headers:
            return 400, (  # a proxy may read another body
                "A request must have Content-Length or Transfer-Encoding; got both."
            )
        host = headers.get(b"host", b"").decode("latin-1")
        if host and not self.access.allows_host(host):  # HTTP/1.0 has none
            return 400, (
                f"The header Host must name this server; got {host[:80]!r}. Start it "
                "with --allowed-hosts and this name."
            )
        if scope["method"] != "POST" and not scope["path"].endswith("/metrics"):
            return None
        kind, _, key = (
            headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        )
        if self.access.allows_key(key.strip() if kind.lower() == "bearer" else None):
            return None
        if not kind and scope["path"].endswith(KEY_IN_BODY):
            scope["needs_key"] = True  # the endpoint reads the body
            return None
        return 401, UNAUTHORIZED


def _secured(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Returns headers with those of `SECURITY_HEADERS` that they lack."""
    headers = list(headers)
    names = {name.lower() for name, _ in headers}
    additional = [
        (name.lower().encode(), value.encode())
        for name, value in SECURITY_HEADERS.items()
    ]
    return [*headers, *(pair for pair in additional if pair[0] not in names)]


async def reject(send: "Send", status: int, message: str) -> None:
    """Answers a request with an error, and closes its connection.

    Args:
        send: function of ASGI.
        status: int.
        message: str.
    """
    body, headers = error_bytes(status, message)
    start = {"type": "http.response.start", "status": status}
    await send({**start, "headers": list(headers.items())})
    await send({"type": "http.response.body", "body": body})


def error_bytes(status: int, message: str) -> tuple[bytes, Mapping[bytes, bytes]]:
    """Returns the body and the headers of an error that ends a connection.

    Args:
        status: int.
        message: str.
    """
    body = json.dumps({"error": message}).encode()
    headers = {
        b"content-type": b"application/json",
        b"content-length": str(len(body)).encode(),
        b"connection": b"close",
    }
    if status == 401:
        headers[b"www-authenticate"] = b"Bearer"
    return body, headers
