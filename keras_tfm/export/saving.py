"""Writes SavedModels, which TensorFlow runs without this library."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

import keras

from keras_tfm.decode.options import Options
from keras_tfm.pipelines.classifier import Classifier
from keras_tfm.pipelines.saving import check_is_one_model
from keras_tfm.pipelines.translator import Translator
from keras_tfm.zoo.imported import missing_steps

WARM_UP_TEXTS = (("a",), ("a", "one two three four five six seven eight nine ten"))
SCRIPT = """
import json, sys
from keras_tfm import export, pipelines
pipeline, source, folder, options = sys.argv[1:]
pipeline = getattr(pipelines, pipeline).load(source)
export.saved_model(pipeline, folder, **json.loads(options))
"""


def saved_model(
    pipeline: Translator | Classifier,
    folder: str | os.PathLike,
    version: int | None = None,
    *,
    num_hypotheses: int | None = None,
    jit_compile: bool = False,
    buckets: Sequence[tuple[int, int]] = ((1, 16), (1, 32), (32, 32)),
) -> None:
    """Writes a translator or a classifier as a SavedModel of text.

    It contains network, vocabularies and decoding, and runs with TensorFlow
    and tensorflow_text, without this library. From JAX and PyTorch a process
    with the TensorFlow backend writes it.

    It translates text as it is: what `pipelines.TextConfig` protects, compares,
    lowers or adds, as in the presets, a graph cannot do. A UserWarning names
    the steps of the translator.

    The signatures of a translator take `text`, strings `(B,)`; `encode_ids`
    takes `ids`, int32 `(B, S)`. They return:

    * `serving_default`: `translation`, a string `(B,)`; `score`, float32
      `(B,)`; and `truncated`, bool `(B,)`, see `pipelines.Hypothesis`;
    * `n_best`: `translations`, strings `(B, n)`, and `scores`, float32
      `(B, n)`, the best first;
    * `encode`: `ids`, int32 `(B, S)`, padded with 0, of texts that are not
      split, and `states`, float32 `(B, S, D)`, of the encoder;
    * `encode_ids`: `states`.

    The signature of a classifier takes `text`, and of a paired classifier
    `second` too, and returns `labels`, strings `(B, C)`, the most likely
    first, with their `probabilities`, float32 `(B, C)`, and `truncated`, bool
    `(B,)`. For a text without tokens labels are "" and probabilities 0.

    Args:
        pipeline: `Translator` or `Classifier`.
        folder: path. An earlier SavedModel is replaced when all is written.
        version: int >= 0 or None. For TensorFlow Serving: the model goes to
            `folder/version`, with warm-up requests.
        num_hypotheses: int from 1 to the beam size, n of a translator; None
            for the beam size.
        jit_compile: bool. Without it decoding is a plain graph, for batches
            and texts of any size. With it XLA also compiles the decoding of
            each bucket when it is first needed, which takes seconds; a batch is
            padded to the smallest bucket that it fits in, and decoded by the
            plain graph if it fits in none.
        buckets: pairs of ints >= 1, `(B, S)`: segments of texts, and tokens of
            the longest segment with prefix and suffix, at most
            `max_source_length`.

    Raises:
        FileExistsError: the folder holds something else than a SavedModel.
        ValueError: an argument is out of its range, or a classifier is passed
            an option of decoding.
        TypeError: a vocabulary is not of SentencePiece, or the model is not one
            Keras model, or a language model.
        ImportError: TensorFlow or tensorflow_text is missing; from JAX and
            PyTorch a RuntimeError that says so.

    Example:
        ```python
        # requires: tensorflow, tensorflow_text
        import pathlib
        import tempfile

        from keras_tfm import export, pipelines

        classifier = pipelines.Classifier.from_preset("sentiment-en")
        with tempfile.TemporaryDirectory() as folder:
            export.saved_model(classifier, folder)
            assert (pathlib.Path(folder) / "saved_model.pb").is_file()
        ```
    """
    options = {"version": version}
    if isinstance(pipeline, Classifier):
        if num_hypotheses is not None or jit_compile:
            raise ValueError(
                "`num_hypotheses` and `jit_compile` are for translators; got them "
                "with a classifier. Leave them out."
            )
        _check_vocabularies(pipeline.vocabulary)
    else:
        _check_translator(pipeline, num_hypotheses)
        if message := missing_steps(pipeline.changes()):
            warnings.warn(message, stacklevel=2)
        options |= {"num_hypotheses": num_hypotheses, "jit_compile": bool(jit_compile)}
        options["buckets"] = _check_buckets(buckets, pipeline.config.max_source_length)
    destination(folder, version)
    if keras.config.backend() != "tensorflow":
        _write_by_tensorflow(pipeline, folder, options)
    elif isinstance(pipeline, Classifier):
        from keras_tfm.export.classification_graph import write_classifier

        write_classifier(pipeline, folder, **options)
    else:
        from keras_tfm.export.translation_graph import write_translator

        write_translator(pipeline, folder, **options)


def write(
    model: keras.Model,
    tokenizers: Sequence,
    signatures: Sequence[Callable],
    folder: str | os.PathLike,
    version: int | None,
    warm_up_texts: Sequence[Sequence[str]] = WARM_UP_TEXTS,
) -> None:
    """Writes functions and the weights they use, completely or not at all.

    Args:
        model: Keras model.
        tokenizers: tokenizers of tensorflow_text.
        signatures: `tf.function`s with input signatures; the first takes text.
        folder, version: see `saved_model`.
        warm_up_texts: lists of str, the warm-up requests of TensorFlow Serving.
    """
    import tensorflow as tf

    folder = destination(folder, version)
    module = tf.Module()
    # Not the model: a session restores other variables of a Keras model than it
    # reads. Nor the functions, which would be traced once more.
    module.weights = [variable.value for variable in model.variables]
    module.tokenizers = tuple(tokenizers)
    concrete = {
        signature.__name__: signature.get_concrete_function()
        for signature in signatures
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = pathlib.Path(tempfile.mkdtemp(dir=folder.parent, prefix=".part-"))
    try:
        tf.saved_model.save(module, os.fspath(unfinished), signatures=concrete)
        if version is not None:
            names = [spec.name for spec in signatures[0].input_signature]
            _write_warm_up_requests(unfinished, names, warm_up_texts)
        unfinished.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def destination(folder: str | os.PathLike, version: int | None) -> pathlib.Path:
    """Returns the folder of a SavedModel, or raises if it holds other files.

    Args:
        folder, version: see `saved_model`.
    """
    folder = pathlib.Path(folder)
    if version is not None:
        if not isinstance(version, Integral) or version < 0:
            raise ValueError(
                f"`version` must be an integer of at least 0; got {version!r}."
            )
        folder = folder / str(version)
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if names and "saved_model.pb" not in names:
        raise FileExistsError(
            "`folder` must be new, empty, or hold a SavedModel; got "
            f"{os.fspath(folder)!r} with {names[:8]}. Name another folder."
        )
    return folder


def decode_utf8(text: Any) -> Any:
    """Replaces bytes that are not UTF-8 by U+FFFD, as Python does."""
    import tensorflow as tf

    return tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace")


def _check_vocabularies(*vocabularies):
    for vocabulary in vocabularies:
        if not hasattr(vocabulary, "tensorflow_tokenizer"):
            raise TypeError(
                "`pipeline` must have SentencePiece vocabularies to be exported; got "
                f"a vocabulary of type {type(vocabulary).__name__}. Serve the "
                "pipeline itself."
            )


def _check_translator(translator, num_hypotheses):
    check_is_one_model(translator.model)
    _check_vocabularies(translator.vocabulary, translator.target_vocabulary)
    if translator.decoder.continues_source:
        raise TypeError(
            "`pipeline` must translate to be exported; got a language model of type "
            f"{type(translator.model).__name__!r}."
        )
    if num_hypotheses is not None:
        beam_size = translator.decoder.options.beam_size
        Options(beam_size=beam_size, num_hypotheses=num_hypotheses)  # validates


def _check_buckets(buckets, max_length):
    """Returns different pairs of int, of at most `max_length` tokens."""
    buckets = [[int(size) for size in bucket] for bucket in buckets]
    if any(len(bucket) != 2 or min(bucket) < 1 for bucket in buckets):
        raise ValueError(
            "`buckets` must be pairs of a number of segments and one of tokens, of at "
            f"least 1; got {buckets}. Pass pairs such as (32, 16)."
        )
    return list(dict.fromkeys((rows, min(n, max_length)) for rows, n in buckets))


def _write_by_tensorflow(pipeline, folder, options):
    """Lets a process with the TensorFlow backend write the SavedModel."""
    with tempfile.TemporaryDirectory() as source:
        pipeline.save(source)
        arguments = [type(pipeline).__name__, source, os.path.abspath(folder)]
        process = subprocess.run(
            [
                sys.executable,
                "-c",
                SCRIPT,
                *arguments,
                json.dumps(options, default=int),
            ],
            env={**os.environ, "KERAS_BACKEND": "tensorflow"},
            capture_output=True,
            text=True,
        )
    if process.returncode:
        last = process.stderr.strip().splitlines()[-1:] or ["no message"]
        raise RuntimeError(
            "A process with the TensorFlow backend writes the SavedModel, and failed: "
            f"{last[0]}. Is `keras-tfm[tensorflow]` installed?"
        )


def _write_warm_up_requests(folder, names, warm_up_texts):
    """Writes the requests that TensorFlow Serving sends to a new model.

    The file has records of PredictionLog of TensorFlow Serving's API, with
    requests only: predict_log (6) with a request (1) of a model_spec (1) with a
    signature_name (3), and of inputs (2).
    """
    import tensorflow as tf

    extra = folder / "assets.extra"
    extra.mkdir()
    with tf.io.TFRecordWriter(os.fspath(extra / "tf_serving_warmup_requests")) as file:
        for texts in warm_up_texts:
            tensor = tf.make_tensor_proto(list(texts), tf.string).SerializeToString()
            request = _field(1, _field(3, b"serving_default"))
            for name in names:
                request += _field(2, _field(1, name.encode()) + _field(2, tensor))
            file.write(_field(6, _field(1, request)))


def _field(number, content):
    """A field of bytes, as protocol buffers encode it."""
    size, count = bytearray(), len(content)
    while count > 127:
        size.append(count & 127 | 128)
        count >>= 7
    size.append(count)
    return bytes([number << 3 | 2]) + bytes(size) + content
