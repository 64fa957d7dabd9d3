"""A translator as a TensorFlow graph from text to text."""

import functools
import os
from collections.abc import Sequence

import tensorflow as tf

from keras_tfm.engines.choice import keras_decoder
from keras_tfm.export.saving import WARM_UP_TEXTS, decode_utf8, write
from keras_tfm.pipelines import sentences
from keras_tfm.pipelines.segmentation import LINE_BREAKS, ArrayFunctions, next_end
from keras_tfm.pipelines.sentences import SEPARATOR
from keras_tfm.pipelines.translator import Translator
from keras_tfm.runtime.decoder import Decoder
from keras_tfm.types import Tensor

CHUNK = 4  # steps between which the cache grows and finished rows leave


def write_translator(
    translator: Translator,
    folder: str | os.PathLike,
    version: int | None = None,
    num_hypotheses: int | None = None,
    jit_compile: bool = False,
    buckets: Sequence[Sequence[int]] = (),
) -> None:
    """Writes the SavedModel of a translator.

    The graph leaves out what `TextConfig` does to a text apart from splitting
    it: it protects nothing, compares no numbers, lowers no capitals and adds no
    final marks.

    Args:
        translator: `Translator` on the TensorFlow backend.
        folder, version, num_hypotheses, jit_compile, buckets: see
            `export.saved_model`.

    Raises:
        ValueError: the translator splits texts with a function of the user.
    """
    if translator.config.splitter is not sentences.split_sentences:
        raise ValueError(
            "`splitter` must be the default in a SavedModel, which contains no Python; "
            f"got {translator.config.splitter!r}. Export "
            "`translator.replace(splitter=split_sentences)`, and split texts before."
        )
    buckets = [tuple(bucket) for bucket in buckets] if jit_compile else []
    graph = TranslationGraph(translator, buckets)
    model, options = translator.model, translator.decoder.options
    decoder = keras_decoder(translator.decoder).replace(shortlist=None)
    n_best_decoder = decoder.replace(num_hypotheses=num_hypotheses or options.beam_size)
    text = tf.TensorSpec([None], tf.string, name="text")
    ids = tf.TensorSpec([None, None], tf.int32, name="ids")

    # Without autograph, which would read the source files again.
    @tf.function(input_signature=[text], autograph=False)
    def serving_default(text: Tensor) -> dict[str, Tensor]:
        translations, scores, truncated = graph.translate(text, decoder)
        return {
            "translation": translations[:, 0],
            "score": scores[:, 0],
            "truncated": truncated[:, 0],
        }

    @tf.function(input_signature=[text], autograph=False)
    def n_best(text: Tensor) -> dict[str, Tensor]:
        translations, scores, _ = graph.translate(text, n_best_decoder)
        return {"translations": translations, "scores": scores}

    @tf.function(input_signature=[text], autograph=False)
    def encode(text: Tensor) -> dict[str, Tensor]:
        ids = graph.encode(text)
        return {"ids": ids, "states": model.encode(ids)}

    @tf.function(input_signature=[ids], autograph=False)
    def encode_ids(ids: Tensor) -> dict[str, Tensor]:
        return {"states": model.encode(ids)}

    signatures = [serving_default, n_best]
    if hasattr(model, "encode"):
        signatures += [encode, encode_ids]
    texts = graph.warm_up_texts() if buckets else WARM_UP_TEXTS
    write(model, graph.tokenizers, signatures, folder, version, texts)


TENSORFLOW = ArrayFunctions(tf.where, tf.reduce_max, tf.reduce_min)


class TranslationGraph:
    """Builds the graph from text to translations.

    Args:
        translator: `Translator` on the TensorFlow backend.
        buckets: pairs of ints, the sizes of batches that XLA compiles.
    """

    def __init__(self, translator: Translator, buckets: Sequence[tuple[int, int]] = ()):
        # The least expensive first.
        self.buckets = sorted(buckets, key=lambda size: (size[0] * size[1], size))
        self.config, self.segmenter = translator.config, translator.segmenter
        self.vocabularies = (translator.vocabulary, translator.target_vocabulary)
        self.tokenizers = [side.tensorflow_tokenizer() for side in self.vocabularies]

    def encode(self, text: Tensor) -> Tensor:
        """int32 `(B, S)`, the ids of texts that are not split."""
        rows = self._with_affixes(self.tokenizers[0].tokenize(decode_utf8(text)))
        return tf.cast(rows.to_tensor(0), tf.int32)

    def translate(
        self, text: Tensor, decoder: Decoder
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns translations, scores and whether truncated, all `(B, n)`."""
        # Every second part of a text is the whitespace between two lines.
        text = tf.strings.regex_replace(decode_utf8(text), SEPARATOR, "\ufffd")
        separated = tf.strings.regex_replace(
            text, LINE_BREAKS, rf"{SEPARATOR}\1{SEPARATOR}"
        )
        parts = tf.strings.split(separated, SEPARATOR)  # ragged (B, parts)
        is_line = tf.ragged.range(parts.row_lengths()).flat_values % 2 == 0
        lines = tf.where(is_line, parts.flat_values, "")
        # counts: int64 (parts,), the segments of each part.
        segments, counts, spaces = self._split(lines)
        ids = tf.cast(self._with_affixes(segments).to_tensor(0), tf.int32)
        hypotheses, scores, lengths = self._decode(decoder, ids)  # (segments, n, T)
        texts = []
        for n in range(hypotheses.shape[1]):
            words = spaces + self._detokenize(hypotheses[:, n], decoder.options.end_id)
            words = tf.RaggedTensor.from_row_lengths(words, counts)
            words = tf.where(
                is_line, tf.strings.reduce_join(words, axis=1), parts.flat_values
            )
            texts.append(tf.strings.reduce_join(parts.with_flat_values(words), axis=1))
        ended = tf.reduce_any(hypotheses == decoder.options.end_id, axis=-1) | (
            lengths == 0
        )
        text_numbers = tf.repeat(parts.value_rowids(), counts)  # (segments,)
        sum_by_text = functools.partial(
            tf.math.unsorted_segment_sum,
            segment_ids=text_numbers,
            num_segments=parts.nrows(),
        )
        weights = tf.cast(lengths, "float32")
        weighted = tf.where(lengths > 0, scores * weights, -float("inf"))
        total, weights = sum_by_text(weighted), sum_by_text(weights)
        scores = tf.where(weights > 0, total / weights, -float("inf"))
        truncated = sum_by_text(tf.cast(~ended, "int32")) > 0
        return tf.stack(texts, axis=1), scores, truncated

    def warm_up_texts(self) -> list[list[str]]:
        """For each bucket, as many texts of about as many tokens."""
        config = self.config
        added = config.max_source_length - config.max_text_tokens
        texts = []
        for rows, length in self.buckets:
            words = next(
                count
                for count in range(length, 0, -1)
                if count == 1 or self._count_tokens("a " * count) + added <= length
            )
            texts.append(["a " * words] * rows)
        return texts

    def _count_tokens(self, text):
        return len(self.vocabularies[0].encode([text])[0])

    def _decode(self, decoder, ids):
        """Decodes in the smallest bucket: ids `(B, n, T)`, scores, lengths."""
        count, length = tf.shape(ids)[0], tf.shape(ids)[1]
        prefix = self.config.target_prefix

        def decode(ids):
            hypotheses = decoder.decode(ids, prefix)
            return hypotheses.ids, hypotheses.scores, hypotheses.lengths

        def of_any_size():
            # One row without tokens, so that there is a row.
            padded = tf.pad(ids, [[0, 1], [0, 0]])
            hypotheses = decode_in_chunks(decoder, padded, prefix)
            return tuple(tensor[:-1] for tensor in hypotheses)

        compiled = tf.function(decode, jit_compile=True, autograph=False)

        def of_bucket(rows, max_length):
            padded = tf.pad(ids, [[0, rows - count], [0, max_length - length]])
            padded = tf.ensure_shape(padded, (rows, max_length))
            return tuple(tensor[:count] for tensor in compiled(padded))

        branch = of_any_size
        for rows, max_length in reversed(self.buckets):
            branch = functools.partial(
                tf.cond,
                (count <= rows) & (length <= max_length),
                functools.partial(of_bucket, rows, max_length),
                branch,
            )
        hypotheses, scores, lengths = branch()
        # TensorFlow forgets n, too, where the lengths of branches differ.
        shape = (None, decoder.options.num_hypotheses, None)
        return tf.ensure_shape(hypotheses, shape), scores, lengths

    def _detokenize(self, ids, end_id):
        real = (ids != 0) & (ids != end_id) & (ids < self.vocabularies[1].size)
        return self.tokenizers[1].detokenize(tf.ragged.boolean_mask(ids, real))

    def _with_affixes(self, rows):
        """Ragged ids with prefix and suffix, except for empty rows."""
        has_text = tf.cast(rows.row_lengths() > 0, tf.int64)
        prefix, suffix = (
            tf.RaggedTensor.from_row_lengths(
                tf.tile(tf.constant(ids, rows.dtype), [tf.reduce_sum(has_text)]),
                has_text * len(ids),
            )
            for ids in (self.config.source_prefix, self.config.source_suffix)
        )
        return tf.concat([prefix, rows, suffix], axis=1)

    def _sentences(self, lines):
        """Splits long lines as `sentences.split_sentences` does.

        Args:
            lines: strings `(R,)`.

        Returns:
            strings, ragged `(R, sentences)`, with the space before each.
        """
        replace, text = tf.strings.regex_replace, lines
        for pattern, replacement in sentences.RULES:
            text = replace(text, pattern, replacement)
        capital = rf"(?s)(?:{sentences.BEGINS_WITH_CAPITAL}).*"
        text = tf.where(
            tf.strings.regex_full_match(text, capital),
            replace(text, sentences.BEFORE_LOWER, r"\1"),
            text,
        )
        lengths = self.tokenizers[0].tokenize(lines).row_lengths()
        text = tf.where(lengths > self.config.segment_tokens[0], text, lines)
        return tf.strings.split(text, SEPARATOR)

    def _split(self, lines):
        """Splits lines as `Segmenter.split` does.

        Args:
            lines: strings `(R,)`.

        Returns:
            ragged ids `(segments, L)`; int64 `(R,)`, the segments of each row;
            and strings `(segments,)`, the space before each.
        """
        texts = self._sentences(lines)
        tokens = self.tokenizers[0].tokenize(texts.flat_values)  # (sentences, L)
        after_space = tf.strings.regex_full_match(
            texts.flat_values, f"(?s){sentences.SPACE}.*"
        )
        is_first = tf.ragged.range(tokens.row_lengths()) == 0
        spaces = tf.where(
            is_first.flat_values,
            tf.gather(after_space, tokens.value_rowids()),
            tf.gather(tf.constant(self.segmenter.starts), tokens.flat_values),
        )
        rows = texts.with_flat_values(tokens).merge_dims(1, 2)
        lengths = tf.cast(rows.row_lengths(), tf.int32)
        ids = rows.to_tensor(0)
        is_first = rows.with_flat_values(is_first.flat_values).to_tensor(False)
        spaces = rows.with_flat_values(spaces).to_tensor(False)
        positions = tf.range(tf.shape(ids)[1])[None]

        def advance(begin, cuts):
            end = next_end(
                begin,
                lengths,
                positions,
                (spaces | is_first, is_first),
                self.config.segment_tokens,
                TENSORFLOW,
            )
            return end, tf.concat([cuts, end[:, None]], axis=1)

        zeros = tf.zeros_like(lengths)
        _, cuts = tf.while_loop(
            lambda begin, cuts: tf.reduce_any(begin < lengths),
            advance,
            (zeros, zeros[:, None]),
            shape_invariants=(tf.TensorShape([None]), tf.TensorShape([None, None])),
        )
        begins, sizes = cuts[:, :-1], cuts[:, 1:] - cuts[:, :-1]
        real = sizes > 0  # a row that has ended repeats its end
        segments = tf.RaggedTensor.from_row_lengths(
            rows.flat_values, tf.cast(tf.boolean_mask(sizes, real), tf.int64)
        )
        size = tf.maximum(tf.shape(ids)[1], 1)
        padded = tf.pad(spaces, [[0, 0], [0, 1]])  # so that an end has an index
        space = tf.gather(padded, tf.minimum(begins, size), batch_dims=1)
        space = tf.where(space & (begins > 0), " ", "")
        counts = tf.reduce_sum(tf.cast(real, tf.int64), axis=1)
        return segments, counts, tf.boolean_mask(space, real)


def decode_in_chunks(
    decoder: Decoder, ids: Tensor, prefix: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Decodes a batch of any size; finished rows leave it between chunks.

    Args:
        decoder: `Decoder`.
        ids: int32 `(B, S)`.
        prefix: ints.

    Returns:
        Ids `(B, n, T)`, scores and lengths `(B, n)`.
    """

    def hypotheses_of(state):
        hypotheses = decoder.hypotheses(state)
        return hypotheses.ids, hypotheses.scores, hypotheses.lengths

    def scatter(results, numbers, state):
        return tuple(
            tf.tensor_scatter_nd_update(result, numbers[:, None], rows)
            for result, rows in zip(results, hypotheses_of(state), strict=True)
        )

    def take_chunk(numbers, state, results):
        # A step costs what the cache has capacity for.
        state = decoder.extend(state, state.step + CHUNK)
        longer = state.capacity - tf.shape(results[0])[-1]
        padded = tf.pad(results[0], [[0, 0], [0, 0], [0, longer]])
        results = (padded, *results[1:])
        state = decoder.decode_until(state, state.step + CHUNK)
        is_done = tf.reduce_all(state.is_done, axis=1)  # (rows,)

        def without_finished():
            live = tf.where(~is_done)[:, 0]
            rows = tf.nest.map_structure(
                lambda x: tf.gather(x, live) if len(x.shape) else x, state
            )
            return tf.gather(numbers, live), rows, scatter(results, numbers, state)

        # Only when an eighth has finished: it copies all other rows.
        finished = tf.reduce_sum(tf.cast(is_done, tf.int32))
        return tf.cond(
            8 * finished >= tf.size(numbers),
            without_finished,
            lambda: (numbers, state, results),
        )

    # No tensor of the loop is a constant, whose shape the loop would enforce.
    state = decoder.begin_decoding(ids, prefix, CHUNK)
    numbers = tf.range(tf.shape(ids)[0])
    variables = (numbers, state, hypotheses_of(state))
    shapes = tf.nest.map_structure(
        lambda x: tf.TensorShape([None, *x.shape[1:]]) if len(x.shape) else x.shape,
        variables,
    )
    numbers, state, results = tf.while_loop(
        lambda numbers, state, results: tf.size(numbers) > 0,
        take_chunk,
        variables,
        shape_invariants=shapes,
    )
    ids, scores, lengths = scatter(results, numbers, state)
    return ids, scores, lengths
