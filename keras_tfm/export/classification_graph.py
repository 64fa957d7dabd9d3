"""A classifier as a TensorFlow graph from text to labels."""

import os

import tensorflow as tf

from keras_tfm.export.saving import decode_utf8, write
from keras_tfm.pipelines.classifier import Classifier
from keras_tfm.text.pair_packing import count_special_tokens
from keras_tfm.types import Tensor


def write_classifier(
    classifier: Classifier, folder: str | os.PathLike, version: int | None = None
) -> None:
    """Writes the SavedModel of a classifier.

    Args:
        classifier: `Classifier` on the TensorFlow backend.
        folder, version: see `export.saved_model`.
    """
    tokenizer = classifier.vocabulary.tensorflow_tokenizer()
    model, classes = classifier.model, tf.constant(classifier.classes)
    specs = [tf.TensorSpec([None], tf.string, name="text")]
    if classifier.paired:
        specs.append(tf.TensorSpec([None], tf.string, name="second"))

    # Without autograph, which would read the source files again.
    @tf.function(input_signature=specs, autograph=False)
    def serving_default(*texts: Tensor) -> dict[str, Tensor]:
        rows = [tokenizer.tokenize(decode_utf8(text)) for text in texts]
        inputs, truncated = _pack(rows, classifier)
        probabilities = model.probabilities(model(inputs, training=False))
        lengths = tf.stack([row.row_lengths() for row in rows])  # (sides, B)
        empty = tf.reduce_any(lengths == 0, axis=0)[:, None]
        probabilities = tf.where(empty, 0.0, probabilities)
        probabilities, order = tf.math.top_k(probabilities, len(classes))
        return {
            "labels": tf.where(empty, "", tf.gather(classes, order)),
            "probabilities": probabilities,
            "truncated": truncated,
        }

    write(model, [tokenizer], [serving_default], folder, version)


def _pack(rows, classifier):
    """Packs texts like `pack_texts`; returns inputs and who is truncated."""
    vocabulary = classifier.vocabulary
    special = count_special_tokens(vocabulary, len(rows))
    lengths = [tf.cast(row.row_lengths(), tf.int32) for row in rows]
    kept_lengths = _truncated_lengths(lengths, classifier.max_length - special)
    start = tf.fill([rows[0].nrows(), 1], tf.constant(vocabulary.start_id))
    tokens, segments = [start], [tf.zeros_like(start)]
    for number, (row, count) in enumerate(zip(rows, kept_lengths, strict=True)):
        positions = tf.ragged.range(row.row_lengths())
        truncated = tf.ragged.boolean_mask(
            row, positions < tf.cast(count, tf.int64)[:, None]
        )
        is_last = number == len(rows) - 1
        end = [vocabulary.end_id] if is_last else list(vocabulary.separator_ids)
        ends = tf.repeat(tf.constant([end], tf.int32), row.nrows(), axis=0)
        tokens.append(tf.concat([tf.cast(truncated, tf.int32), ends], axis=1))
        segments.append(tf.ones_like(tokens[-1]) * number)
    inputs = {"token_ids": tf.concat(tokens, axis=1).to_tensor(vocabulary.pad_id)}
    if classifier.model.encoder.config["num_segments"] > 0:
        inputs["segment_ids"] = tf.concat(segments, axis=1).to_tensor(0)
    shorter = [new < old for new, old in zip(kept_lengths, lengths, strict=True)]
    return inputs, tf.reduce_any(tf.stack(shorter), axis=0)


def _truncated_lengths(lengths, max_length):
    """As `text.pair_packing.truncated_lengths`."""
    if len(lengths) == 1:
        return [tf.minimum(lengths[0], max_length)]
    first = tf.maximum(max_length - lengths[1], max_length - max_length // 2)
    first = tf.minimum(lengths[0], first)
    return [first, tf.minimum(lengths[1], max_length - first)]
