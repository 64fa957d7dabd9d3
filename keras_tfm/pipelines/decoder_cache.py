"""Decoders of one model for the options of single calls."""

import threading
from collections import OrderedDict
from typing import Any

from keras_tfm.decode.options import Options
from keras_tfm.runtime.decoder import Decoder


class DecoderCache:
    """Keeps the decoders, with their compiled functions, of recent options.

    Any number of threads may ask at once: each set of options is built once.

    Args:
        decoder: `Decoder` of calls without options of their own.
        capacity: int >= 1: other decoders kept; the least recently used goes
            first.
    """

    def __init__(self, decoder: Decoder, capacity: int = 8):
        self.decoder, self.capacity = decoder, capacity
        self._decoders: OrderedDict[tuple, Decoder] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._decoders)

    def get(self, changes: dict[str, Any]) -> Decoder:
        """Returns the decoder for some changed options.

        Args:
            changes: dict of fields of `decode.Options`.
        """
        if not changes:
            return self.decoder
        options = self.decoder.options.replace(**changes)
        key = tuple(_key(getattr(options, name)) for name in Options.names())
        with self._lock:
            decoder = self._decoders.pop(key, None)
            if decoder is None:
                decoder = Decoder(self.decoder.model, options)
            self._decoders[key] = decoder
            if len(self._decoders) > self.capacity:
                self._decoders.popitem(last=False)
        return decoder


def _key(value):
    """A hashable stand-in; objects that have none stand for themselves."""
    if isinstance(value, list | tuple):
        return tuple(map(_key, value))
    try:
        hash(value)
    except TypeError:
        return id(value)  # the decoder in the cache keeps it alive
    return value
