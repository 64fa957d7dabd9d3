"""The connection to a Ray cluster that is started for a command."""

import os
import pathlib
import stat

import pytest

from keras_tfm.cli import ray_cluster

pytestmark = pytest.mark.backend("torch")


class Ray:
    """Stands in for Ray, and notes what it would have been started with."""

    __version__ = "2.59.0"

    def init(self, address, **arguments):
        path = pathlib.Path(os.environ["RAY_AUTH_TOKEN_PATH"])
        self.mode, self.token = os.environ["RAY_AUTH_MODE"], path.read_text()
        self.path, self.rights = path, stat.S_IMODE(path.stat().st_mode)
        self.dashboard = arguments["include_dashboard"]

    def shutdown(self):
        self.ended = True


def test_a_local_cluster_asks_for_a_token_that_only_the_user_can_read(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    tokens = set()
    for _ in range(2):
        ray = Ray()
        monkeypatch.setattr(ray_cluster, "import_ray", lambda _, ray=ray: ray)
        with ray_cluster.connect("local", "serve"):
            assert ray.mode == "token" and ray.rights == 0o600
            assert ray.dashboard is False
            tokens.add(ray.token)
        assert ray.ended and not ray.path.parent.exists()
        assert os.environ["RAY_AUTH_MODE"] == "disabled"
        assert "RAY_AUTH_TOKEN_PATH" not in os.environ
    assert len(tokens) == 2 and min(map(len, tokens)) == 64


def test_a_local_cluster_needs_a_ray_that_asks_for_tokens(monkeypatch):
    ray = Ray()
    monkeypatch.setattr(ray, "__version__", "2.58.1", raising=False)
    monkeypatch.setattr(ray_cluster, "import_ray", lambda _: ray)
    with (
        pytest.raises(ImportError, match="needs Ray 2.59 or later.*got Ray 2.58.1"),
        ray_cluster.connect("local", "serve"),
    ):
        pass
    assert not hasattr(ray, "mode")  # it was not started
