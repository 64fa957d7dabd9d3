"""Decodes segments of texts, with a decoder for the options of each call."""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_tfm.decode.hypotheses import Hypotheses
from keras_tfm.decode.options import Options
from keras_tfm.engines.choice import AnyDecoder, make_decoder
from keras_tfm.pipelines.finishing import decode_ids, finish
from keras_tfm.pipelines.segmentation import SegmentedText
from keras_tfm.pipelines.text_config import TextConfig
from keras_tfm.pipelines.texts import AnyVocabulary

if TYPE_CHECKING:
    from keras_tfm.pipelines.translator import Translator

GREEDY = {
    "beam_size": 1,
    "num_hypotheses": 1,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "coverage_penalty": 0.0,
}


def with_special_ids(options: Options | None, vocabulary: AnyVocabulary) -> Options:
    """Returns options with the special tokens of a target vocabulary.

    Args:
        options: `decode.Options`; None for `Options(beam_size=4)`.
        vocabulary: `Vocabulary` or `TokenizersVocabulary`.
    """
    start_id = vocabulary.start_id
    return (Options(beam_size=4) if options is None else options).replace(
        start_id=start_id,
        end_id=vocabulary.end_id,
        # Where nothing is unknown, the start, which is never generated.
        unk_id=getattr(vocabulary, "unknown_id", 1) or start_id,
    )


class DecoderCache:
    """Keeps the decoders, with their compiled functions, of recent options.

    Any number of threads may ask at once: each set of options is built once.

    Args:
        decoder: `Decoder` of calls without options of their own.
        capacity: int >= 1: other decoders kept; the least recently used goes
            first.
    """

    def __init__(self, decoder: AnyDecoder, capacity: int = 8):
        self.decoder, self.capacity = decoder, capacity
        self._decoders: OrderedDict[tuple, AnyDecoder] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._decoders)

    def get(self, changes: dict[str, Any]) -> AnyDecoder:
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
                decoder = make_decoder(self.decoder.model, options, self.decoder)
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


def decode_segments(
    decoder: AnyDecoder,
    config: TextConfig,
    sources: Sequence[SegmentedText],
    prefixes: Sequence[list[int]] | None,
    constraints: Sequence[list[list[int]]],
    seed: int | None,
) -> Iterator[tuple[int, Hypotheses]]:
    """Decodes the segments of texts, those with constraints by themselves.

    Args:
        decoder, config, sources: of a `Translator`.
        prefixes: see `encode_prefixes`.
        constraints: see `encode_constraints`.
        seed: see `Translator.translate`.

    Yields:
        The number of a segment, and its `Hypotheses`, in any order.
    """
    rows = [segment.ids for source in sources for segment in source.segments]
    texts = [n for n, source in enumerate(sources) for _ in source.segments]
    free = [number for number, text in enumerate(texts) if not constraints[text]]
    for number, hypotheses in decoder.bulk(
        [rows[number] for number in free],
        config.batch_tokens,
        config.batch_size,
        seed=seed,
        target_prefix=prefixes and [prefixes[number] for number in free],
    ):
        yield free[number], hypotheses
    for number, text in enumerate(texts):
        if not constraints[text]:
            continue
        prefix = prefixes and [prefixes[number]]
        try:
            yield number, decoder([rows[number]], prefix, [constraints[text]], seed)
        except ValueError as error:
            raise ValueError(f"Text {text}: {error}") from error


def stream_segments(
    translator: "Translator",
    decoder: AnyDecoder,
    source: SegmentedText,
    prefixes: Sequence[list[int]] | None,
    has_prefix: bool = False,
) -> Iterator[str]:
    """Decodes the segments of one text greedily, see `Translator.stream`.

    Args:
        translator: `Translator`.
        decoder: greedy `Decoder`.
        source: `SegmentedText`.
        prefixes: see `encode_prefixes`.
        has_prefix: bool. The prefix is more than that of the configuration.
    """
    complete: list[str] = []
    for number, segment in enumerate(source.segments):
        row, ids = segment.ids, []
        for token in decoder.stream([row], prefixes and [prefixes[number]]):
            ids.append(int(token[0]))
            [text] = decode_ids(translator, [ids], [row])
            # The first bytes of a character decode to U+FFFD.
            text = text.rstrip("\ufffd")
            if segment.steps is not None:
                text = segment.steps.restore_beginning(text)
            yield source.join([*complete, text], trailing=False)
        array = np.array(ids, "int32")[None, None]
        scores = np.zeros((1, 1), "float32")
        hypotheses = Hypotheses(array, scores, np.array([[len(ids)]]))
        [[finished]] = finish(
            translator,
            [source._replace(segments=[segment])],
            [hypotheses],
            fixed=[0] if has_prefix else [],
            options=GREEDY,
        )
        complete += finished.texts
    yield source.join(complete)
