"""Who may send requests, and the headers of every answer."""

import pytest

from keras_tfm.server.access import (
    SECURITY_HEADERS,
    Access,
    hosts_for,
    in_url,
    read_key,
)
from tests.server.conftest import Client, InProcess
from tests.server.test_app import Faulty

pytestmark = pytest.mark.backend("torch")
KEY = "3f0a"


@pytest.mark.parametrize(
    ("address", "additional", "allowed", "rejected"),
    [
        (
            "127.0.0.1",
            (),
            ["localhost:8501", "127.0.0.1", "[::1]:80"],
            ["evil.com", "localhost:evil.com", "localhost:@evil.com"],
        ),
        ("::1", (), ["[::1]", "LOCALHOST"], ["localhost.evil.com:8501", "::1"]),
        ("127.0.0.2", (), ["127.0.0.2:8501", "localhost"], ["evil.com", "127.0.0.3"]),
        ("LOCALHOST", (), ["localhost:8501", "127.0.0.1"], ["evil.com"]),
        ("0:0:0:0:0:0:0:1", (), ["[::1]", "[0:0:0:0:0:0:0:1]:80"], ["evil.com"]),
        ("::ffff:127.0.0.1", (), ["127.0.0.1"], ["evil.com"]),
        ("", (), ["10.0.0.1:8501"], []),
        ("127.0.0.1", ("mt.org",), ["MT.org:443", "localhost"], ["xmt.org", ":1"]),
        ("0.0.0.0", (), ["evil.com", "10.0.0.1:8501"], []),
        ("0.0.0.0", ("mt.org",), ["mt.org", "127.0.0.1:8501"], ["evil.com"]),
    ],
)
def test_host_must_name_the_server(address, additional, allowed, rejected):
    access = Access(hosts_for(address, additional))
    client = Client(Faulty(0), access=access)
    for host in allowed:
        assert client.send("/health", headers={"host": host}).status_code == 200
    for host in rejected:
        error = client.error(400, "/health", headers={"host": host})
        assert f"Host must name this server; got {host!r}" in error


def test_requests_need_the_key(client):
    locked = Client(client.model, access=Access(api_key=KEY))
    body, right = {"text": "a house"}, {"authorization": f"Bearer {KEY}"}
    paths = ["/translate", "/translate/stream", "/v1/models/animals:predict"]
    for path in [*paths, "/classify", "/detect", "/metrics"]:
        sent = None if path == "/metrics" else body
        if path == "/detect":
            sent = {"q": "a house"}
        for headers in (
            {},
            {"authorization": f"Bearer {KEY}0"},
            {"authorization": KEY},
            {"authorization": f"Basic {KEY}"},
        ):
            error = locked.error(401, path, sent, headers=headers)
            assert "needs an API key" in error
            answer = locked.send(path, sent, headers=headers)
            assert answer.headers["www-authenticate"] == "Bearer"
    assert locked.send("/translate", body, headers=right).status_code == 200
    assert locked.send("/metrics", headers=right).status_code == 200
    # A regular expression of a route ends before a final line break.
    for path in ("/metrics%0A", "/metrics%0D", "/health%0A"):
        assert locked.error(404, path) == "Not Found"
    assert "needs an API key" in locked.error(401, "/%6Detrics")
    for path in ("/", "/health", "/languages", "/docs", "/openapi.json"):
        assert locked.send(path).status_code == 200  # pages and probes


def test_a_key_may_stand_in_a_body_of_libretranslate(client):
    locked = Client(client.model, access=Access(api_key=KEY))
    body = {"q": "a house", "source": "en", "target": "de"}
    assert "`source` must be" in locked.error(
        400, "/translate", {**body, "api_key": KEY}
    )
    for wrong in ({}, {"api_key": "3f0"}, {"api_key": "\u00e9"}):
        locked.error(401, "/translate", {**body, **wrong})
    # Our own body has no field for it.
    locked.error(422, "/translate", {"text": "a", "api_key": KEY})
    locked.error(401, "/translate/stream", {**body, "api_key": KEY})


def test_the_key_comes_from_a_file_or_the_environment(tmp_path, monkeypatch):
    assert read_key(None) is None
    monkeypatch.setenv("KERAS_TFM_API_KEY", "abc")
    assert read_key(None) == "abc"
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    assert read_key(file) == KEY
    for content in ("", "two keys", "two\nkeys", "\u00e9"):
        file.write_text(content, "utf-8")
        with pytest.raises(ValueError, match="key-file '.*key' must hold one key"):
            read_key(file)
    file.write_text("k" * 5_000)  # no header can hold it
    for endless in (file, "/dev/zero"):
        with pytest.raises(ValueError, match="one key of at most 4096 visible"):
            read_key(endless)
    assert KEY not in repr(Access(api_key=KEY))


@pytest.mark.parametrize(
    ("status", "path", "body"),
    [
        (200, "/", None),
        (200, "/docs", None),
        (200, "/openapi.json", None),
        (200, "/health", None),
        (404, "/nothing", None),
        (405, "/translate", None),
        (413, "/translate", {"text": "a" * 5_001}),
        (422, "/translate", {"text": 5}),
        (500, "/translate", {"text": "a"}),
    ],
)
def test_all_answers_have_security_headers(status, path, body):
    answer = Client(Faulty(RuntimeError("no"))).send(path, body)
    assert answer.status_code == status
    for name, value in SECURITY_HEADERS.items():
        if name != "Content-Security-Policy":
            assert answer.headers.get_list(name) == [value]
    [policy] = answer.headers.get_list("content-security-policy")
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert answer.headers["x-frame-options"] == "DENY"


def test_engines_reject_texts_of_too_many_tokens(folder, translator):
    from keras_tfm.server.engine import Engine

    client = Client(InProcess(Engine(folder, max_tokens=20)))
    short, long = "an old man", "q" * 30  # a token for each letter
    assert client.send("/translate", {"text": [short]}).status_code == 200
    for body in ({"text": [short, long]}, {"text": long, "num_hypotheses": 2}):
        error = client.error(413, "/translate", body)
        assert "A text must have at most 20 tokens; got 3" in error
    assert "at most 20" in client.error(413, "/translate/stream", {"text": long})


def test_an_address_of_ipv6_has_brackets_in_urls():
    assert [in_url(x) for x in ("::1", "127.0.0.1")] == ["[::1]", "127.0.0.1"]
