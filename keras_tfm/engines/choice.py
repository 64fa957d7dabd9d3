"""Chooses the program that decodes with a model."""

import time
from collections.abc import Callable

import numpy as np

from keras_tfm.decode.options import Options
from keras_tfm.decode.protocol import Decodable
from keras_tfm.engines.ctranslate2_decoder import CTranslate2Decoder
from keras_tfm.runtime.decoder import Decoder

AnyDecoder = Decoder | CTranslate2Decoder
# What "auto" decodes with both engines: as many sources of as many tokens.
TRIAL_SOURCES, TRIAL_LENGTH = 8, 16


def make_decoder(
    model: Decodable,
    options: Options | None = None,
    former: AnyDecoder | None = None,
) -> AnyDecoder:
    """Makes the decoder of the engine that the options name.

    With the engine `"auto"` both decode random sources, if CTranslate2 is
    installed and has the model and the options, and the faster one is taken.
    The options of the result name it.

    Args:
        model: `decode.Decodable`.
        options: `decode.Options`, or None for the defaults.
        former: decoder of the same model, or None. A converted model is used
            again.

    Raises:
        ImportError: CTranslate2 is not installed.
        ValueError: the engine does not have the model or an option.

    Example:
        ```python
        # requires: ctranslate2
        from keras_tfm import decode, engines, models

        model = models.Transformer(
            40, num_layers=1, embedding_dim=8, intermediate_dim=8, num_heads=2
        )
        options = decode.Options(engine="ctranslate2", compute_type="int8")
        decoder = engines.make_decoder(model, options)
        hypotheses = decoder([[4, 5, 6], [7]])
        assert hypotheses.ids.shape[:2] == (2, 1)
        ```
    """
    options = Options() if options is None else options
    if options.engine == "auto":
        options = options.replace(**_faster(model, options, former))
    if options.engine == "keras":
        return Decoder(model, options)
    engine = former.engine if isinstance(former, CTranslate2Decoder) else None
    return CTranslate2Decoder(model, options, engine)


def keras_decoder(decoder: AnyDecoder) -> Decoder:
    """Returns a decoder of the same model and options on the backend of Keras.

    Args:
        decoder: `Decoder`, which is returned, or `CTranslate2Decoder`.
    """
    if isinstance(decoder, Decoder):
        return decoder
    options = decoder.options.replace(engine="keras", compute_type="float32")
    return Decoder(decoder.model, options)


def _faster(model, options, former):
    """The changed options of the faster engine."""
    keras_changes = {"engine": "keras", "compute_type": "float32"}
    converted_options = options.replace(engine="ctranslate2")
    try:
        converted = make_decoder(model, converted_options, former)
    except (ImportError, ValueError):
        return keras_changes
    size = min(converted.vocabulary_size, 1_000)
    generator = np.random.default_rng(0)
    shape = (TRIAL_SOURCES, TRIAL_LENGTH)
    sources = generator.integers(options.num_special_ids, size, shape)

    def run(decoder: AnyDecoder) -> Callable[[], None]:
        limited = decoder.replace(max_decoding_length=TRIAL_LENGTH)
        return lambda: list(limited.bulk(sources.tolist()))

    decoders = (Decoder(model, options.replace(**keras_changes)), converted)
    seconds = [_seconds(run(decoder)) for decoder in decoders]
    return keras_changes if seconds[0] <= seconds[1] else {"engine": "ctranslate2"}


def _seconds(function):
    """The seconds of the fastest of three calls, after one that compiles."""
    function()
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
