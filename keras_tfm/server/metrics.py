"""Counts and durations of requests, for Prometheus."""

import time

import prometheus_client
from starlette.types import ASGIApp


class Metrics:
    """Measures the requests of one application."""

    def __init__(self):
        self._registry = prometheus_client.CollectorRegistry()
        self._requests = prometheus_client.Counter(
            "keras_tfm_requests",
            "Answered requests.",
            ["path", "status"],
            registry=self._registry,
        )
        self._seconds = prometheus_client.Histogram(
            "keras_tfm_request_seconds",
            "Seconds until a request was answered.",
            ["path"],
            registry=self._registry,
        )

    def middleware(self, app: ASGIApp) -> ASGIApp:
        """Wraps an ASGI application: each request is counted and timed.

        Args:
            app: ASGI application.
        """

        async def measured(scope, receive, send):
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            start, status = time.perf_counter(), 500

            async def watched_send(message):
                nonlocal status
                status = message.get("status", status)
                await send(message)

            try:
                await app(scope, receive, watched_send)
            finally:
                # Unknown paths share one series, or clients could make many.
                path = getattr(scope.get("route"), "path", "unknown")
                self._requests.labels(path, str(status)).inc()
                self._seconds.labels(path).observe(time.perf_counter() - start)

        return measured

    def text(self) -> str:
        """Returns all measurements in the text format of Prometheus."""
        return prometheus_client.generate_latest(self._registry).decode()
