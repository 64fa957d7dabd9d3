"""The drawn Transformer of the decoding tests."""

from tests.decode.conftest import transformer

__all__ = ["transformer"]
