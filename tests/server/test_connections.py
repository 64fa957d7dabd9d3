"""Connections of slow, silent and strange clients, over real sockets."""

import asyncio
import contextlib
import gc
import json
import socket
import threading
import time

import pytest

from keras_tfm.server.access import HEADER_BYTES, SECURITY_HEADERS
from keras_tfm.server.limits import UNFINISHED_BODIES, BodyLimit, Limits
from tests.server.conftest import DESCRIPTION

pytestmark = pytest.mark.backend("torch")
HEADER_TIMEOUT = 1.0
REQUEST = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Describing:
    """A model that describes itself, and does not answer."""

    def __init__(self):
        self.num_begun = self.num_canceled = 0

    async def describe(self):
        return DESCRIPTION

    async def answer(self, job):
        self.num_begun += 1
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.num_canceled += 1
            raise


@contextlib.contextmanager
def serving(model=None):
    """Runs a server that waits a second for clients; yields its port."""
    uvicorn = pytest.importorskip("uvicorn")
    from keras_tfm.server.app import make_app
    from keras_tfm.server.listen import configure

    limits = Limits(header_timeout=HEADER_TIMEOUT)
    app = make_app(model or Describing(), "animals", limits)
    server = uvicorn.Server(configure(app, "127.0.0.1", 0, limits))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def port():
    with serving() as port:
        yield port


@pytest.fixture
def connect(port):
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(
            socket.create_connection(("127.0.0.1", port), timeout=20)
        )


def read(connection):
    """Returns all bytes until the server closes the connection."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(65_536):
            received += data
    return received


def trickle(connection, line, seconds=15):
    """Sends a line again and again until the server closes the connection."""
    begin = time.monotonic()
    with contextlib.suppress(OSError):
        while time.monotonic() - begin < seconds:
            connection.sendall(line)
            time.sleep(0.1)
    return time.monotonic() - begin


def check_error(answer, status):
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode().lower().split("\r\n")
    assert lines[0].startswith(f"http/1.1 {status} ")
    for name, value in SECURITY_HEADERS.items():
        assert f"{name}: {value}".lower() in lines
    return json.loads(body)["error"]


def test_a_silent_connection_is_closed(connect):
    connection, begin = connect(), time.monotonic()
    assert read(connection) == b""
    assert 0.9 * HEADER_TIMEOUT < time.monotonic() - begin < 5


def test_trickled_headers_end_with_a_message(connect):
    connection = connect()
    connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
    assert HEADER_TIMEOUT * 0.9 < trickle(connection, b"x: y\r\n") < 5
    connection = connect()
    connection.sendall(b"GET / HTTP/1.1\r\n")
    error = check_error(read(connection), 408)
    assert error == "The headers must arrive within 1 seconds."


def test_an_idle_connection_serves_several_requests_and_is_closed(connect):
    connection = connect()
    for _ in range(3):  # longer than the limit in all
        connection.sendall(REQUEST[:10])
        time.sleep(0.5 * HEADER_TIMEOUT)
        connection.sendall(REQUEST[10:])
        assert b"HTTP/1.1 200 OK" in connection.recv(65_536)
    connection.sendall(REQUEST[:10])
    assert HEADER_TIMEOUT * 0.9 < trickle(connection, b"a") < 5
    connection, begin = connect(), time.monotonic()
    connection.sendall(REQUEST)
    read(connection)
    assert time.monotonic() - begin < 10


def test_a_body_after_its_answer_does_not_hold_the_connection(connect):
    connection = connect()
    connection.sendall(
        b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000\r\n\r\n"
    )
    assert b"404" in connection.recv(65_536)
    assert trickle(connection, b"a") < 10


def chunked(path, size, count):
    chunk = b"%x\r\n%b\r\n" % (size, b"x" * size)
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
    head += b"Content-Type: application/json\r\n\r\n"
    return head % path + chunk * count + b"0\r\n\r\n"


def send(connection, content):
    with contextlib.suppress(OSError):  # the server may close it before
        connection.sendall(content)
    return connection


def test_a_body_in_very_many_chunks_is_rejected(connect):
    error = check_error(read(send(connect(), chunked(b"/translate", 1, 11_000))), 413)
    assert error.startswith("A body must arrive in at most 10000 pieces, and one more")
    for size, count in ((1, 9_000), (64, 12_000)):
        connection = send(connect(), chunked(b"/translate", size, count))
        assert b"HTTP/1.1 422" in connection.recv(65_536)


@pytest.mark.parametrize("rest", [b"1\r\nx\r\n" * 11_000, b"no chunk\r\n"])
def test_a_wrong_body_after_its_answer_ends_the_connection(rest, connect, caplog):
    connection = connect()
    connection.sendall(chunked(b"/nothing", 1, 1).removesuffix(b"0\r\n\r\n"))
    assert b"HTTP/1.1 404" in connection.recv(65_536)
    assert read(send(connection, rest)) == b""
    assert not caplog.records


def test_a_client_that_does_not_read_is_cut_off():
    class Verbose(Describing):
        async def describe(self):
            return {**DESCRIPTION, "weaknesses": ["x" * 1_000] * 30_000}

    with serving(Verbose()) as port:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.connect(("127.0.0.1", port))
        with connection:
            connection.sendall(REQUEST.replace(b"/health", b"/models"))
            time.sleep(3 * HEADER_TIMEOUT)
            assert len(read(connection)) < 20_000_000


def test_the_work_for_a_client_that_has_gone_is_canceled(caplog):
    model = Describing()
    body = b'{"text": "a dog"}'
    request = (
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
        b"application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    )

    def wait(name):
        begin = time.monotonic()
        while not getattr(model, name) and time.monotonic() - begin < 20:
            time.sleep(0.05)
        return getattr(model, name)

    with serving(model) as port:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(request)
            assert wait("num_begun") == 1
            assert model.num_canceled == 0
        assert wait("num_canceled") == 1
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(REQUEST)
            assert b"200 OK" in connection.recv(9_999)
    gc.collect()  # asyncio reports lost exceptions then
    assert not [r for r in caplog.records if r.levelname == "ERROR"]


def test_headers_beyond_the_limit_are_rejected(connect):
    def send(headers):
        connection = connect()
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + headers)
        return check_error(read(connection), 431)

    long = b"large: " + b"a" * HEADER_BYTES
    assert "at most 65536 bytes" in send(long)  # without an end
    assert "headers of 65536 bytes in all" in send(long + b"\r\n\r\n")
    assert "at most 100 headers" in send(b"x: y\r\n" * 100 + b"\r\n")
    connection = connect()
    connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
    connection.sendall(b"x: y\r\n" * 98 + b"connection: close\r\n\r\n")
    assert read(connection).startswith(b"HTTP/1.1 200")


def test_what_is_not_http_is_rejected(connect):
    connection = connect()
    connection.sendall(b"\x16\x03\x01 hello\r\n\r\n")
    assert check_error(read(connection), 400) == "Invalid HTTP request received."


def test_a_body_with_two_lengths_is_rejected(connect):
    connection = connect()
    headers = b"Host: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked"
    connection.sendall(b"POST /translate HTTP/1.1\r\n" + headers + b"\r\n\r\n")
    connection.sendall(b"0\r\n\r\n" + REQUEST)
    answer = read(connection)  # closed: what follows is not another request
    assert answer.startswith(b"HTTP/1.1 400") and answer.count(b"HTTP/1.1") == 1
    assert b"Content-Length or Transfer-Encoding" in answer


def test_connections_beyond_the_limit_are_closed(monkeypatch):
    from keras_tfm.server import listen

    assert 8 <= listen.max_connections() <= listen.MAX_CONNECTIONS
    monkeypatch.setattr(listen, "max_connections", lambda: 3)
    with serving() as port, contextlib.ExitStack() as stack:
        address = ("127.0.0.1", port)
        connections = [
            stack.enter_context(socket.create_connection(address, timeout=20))
            for _ in range(4)
        ]
        assert read(connections[3]) == b""
        connections[0].sendall(REQUEST)
        assert connections[0].recv(99).startswith(b"HTTP/1.1 200")


def test_a_burst_of_connections_fits_into_the_open_files(monkeypatch):
    resource = pytest.importorskip("resource")
    from keras_tfm.server.listen import check_port, configure, max_connections

    def limit(soft):
        monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, 4_096))

    for soft in (64, 256, 1_024):  # macOS has 256
        limit(soft)
        backlog = configure(None, "127.0.0.1", 0, Limits()).backlog
        # asyncio accepts the backlog before it closes what is too much.
        assert 0 < backlog <= soft - max_connections() - 16
    limit(24)
    with pytest.raises(OSError, match="open files must be at least 64; got 24"):
        check_port("127.0.0.1", 0)


@pytest.mark.parametrize("host", ["no such host", "a" * 70, "a..b"])
def test_the_error_names_a_host_that_cannot_be_listened_on(host):
    from keras_tfm.server.listen import check_port

    with pytest.raises(OSError, match=f"--host and --port: .* at {host}:0 "):
        check_port(host, 0)


def test_too_few_threads_are_an_error_before_a_model_is_loaded(monkeypatch):
    from keras_tfm.server.listen import check_port

    def start(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(OSError, match="ulimit -u"):
        check_port("127.0.0.1", 0)


def test_mapped_ipv4_addresses_are_rejected_before_a_model_is_loaded():
    from keras_tfm.server.listen import check_port

    with pytest.raises(OSError, match="--host and --port: nothing can listen"):
        check_port("::ffff:127.0.0.1", 0)


def test_bodies_that_do_not_end_hold_limited_memory():
    async def read(scope, receive, send):
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200})

    async def status_of(limit, end):
        statuses, messages = [], [(bytes(100), True), (b"", False)]

        async def receive():
            body, has_more = messages.pop(0)
            if not has_more:
                await end.wait()
            return {"type": "http.request", "body": body, "more_body": has_more}

        async def send(message):
            statuses.append(message.get("status"))

        await limit({"type": "http", "headers": []}, receive, send)
        return statuses[0]

    async def send_all():
        limit, end = BodyLimit(read, max_body_bytes=100, timeout=60), asyncio.Event()
        count = UNFINISHED_BODIES + 2
        tasks = [asyncio.ensure_future(status_of(limit, end)) for _ in range(count)]
        await asyncio.sleep(0.1)
        assert limit.unfinished == 100 * UNFINISHED_BODIES
        end.set()
        assert (await asyncio.gather(*tasks)).count(503) == 2
        assert limit.unfinished == 0 and await status_of(limit, end) == 200

    asyncio.run(send_all())
