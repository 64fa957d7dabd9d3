"""Text to text as a TensorFlow graph: SavedModels.

TensorFlow stands here in its own right: what it saves, it runs without Keras.
"""

import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from numbers import Integral

from keras_tfm.pipelines.segmentation import BREAKS, MARK
from keras_tfm.text.pair_packing import count_special_tokens

STRETCH = 4  # steps that room is made for, and after which rows that are done leave
FIRST_TEXTS = (("a",), ("a", "one two three four five six seven eight nine ten"))
WRITES = """
import json, sys
from keras_tfm import pipelines
kind, source, folder, options = sys.argv[1:]
getattr(pipelines, kind).load(source).export(folder, **json.loads(options))
"""


def write_elsewhere(served, folder, options):
    """Lets a process with the TensorFlow backend write a SavedModel.

    Args:
        served: `Translator` or `Classifier`.
        folder: path.
        options: dict, of its `export`.

    Raises:
        FileExistsError: the folder holds something else than a SavedModel.
        RuntimeError: the process failed; what it said is in the message.
    """
    place(folder, options["version"])
    with tempfile.TemporaryDirectory() as source:
        served.save(source)
        kind = type(served).__name__
        done = subprocess.run(
            [
                *(sys.executable, "-c", WRITES, kind, source),
                *(os.path.abspath(folder), json.dumps(options, default=int)),
            ],
            env={**os.environ, "KERAS_BACKEND": "tensorflow"},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["nothing"]
        raise RuntimeError(
            "A SavedModel is written by a process with the TensorFlow backend, which "
            f"failed. Received: {last[0]}. Is `keras-tfm[tensorflow]` installed?"
        )


def write_translator(
    translator, folder, num_hypotheses=None, version=None, jit_compile=False, shapes=()
):
    """Writes the SavedModel of a translator.

    Args:
        translator: `Translator` on the TensorFlow backend.
        folder, num_hypotheses, version, jit_compile, shapes: of its `export`.
    """
    import tensorflow as tf

    shapes = [tuple(shape) for shape in shapes] if jit_compile else []
    reader = _Reader(translator, shapes)
    best, many = translator.searches(num_hypotheses)
    text = tf.TensorSpec([None], tf.string, name="text")
    ids = tf.TensorSpec([None, None], tf.int32, name="ids")

    # Without autograph, which would read the source files again.
    @tf.function(input_signature=[text], autograph=False)
    def serving_default(text):
        translations, scores, finished = reader.translations(text, best)
        return {
            "translation": translations[:, 0],
            "score": scores[:, 0],
            "finished": finished[:, 0],
        }

    @tf.function(input_signature=[text], autograph=False)
    def n_best(text):
        translations, scores, _ = reader.translations(text, many)
        return {"translations": translations, "scores": scores}

    @tf.function(input_signature=[text], autograph=False)
    def encode(text):
        ids = reader.whole(text)
        return {"ids": ids, "states": translator.model.encode(ids)}

    @tf.function(input_signature=[ids], autograph=False)
    def encode_ids(ids):
        return {"states": translator.model.encode(ids)}

    functions = [serving_default, n_best]
    if hasattr(translator.model, "encode"):
        functions += [encode, encode_ids]
    first = reader.first_texts() if shapes else FIRST_TEXTS
    write(translator.model, reader.tokenizers, functions, folder, version, first)


def write(model, tokenizers, functions, folder, version, first_texts=None):
    """Writes functions with what they hold, whole or not at all.

    Args:
        model: Keras model.
        tokenizers: tuple of tokenizers of tensorflow_text.
        functions: list of `tf.function` with signatures; the first takes text.
        folder: path.
        version: int or None, see `Translator.export`.
        first_texts: lists of str, what TensorFlow Serving asks first; None for
            a usual one.
    """
    import tensorflow as tf

    folder = place(folder, version)
    module = tf.Module()
    # Not the model: of variables of Keras a session restores others than it
    # reads. Nor the functions, which would be traced once more.
    module.weights = [variable.value for variable in model.variables]
    module.tokenizers = tokenizers
    names = [function.__name__ for function in functions]
    signatures = {
        name: function.get_concrete_function()
        for name, function in zip(names, functions, strict=True)
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = pathlib.Path(tempfile.mkdtemp(dir=folder.parent, prefix=".part-"))
    try:
        tf.saved_model.save(module, os.fspath(part), signatures=signatures)
        if version is not None:
            names = [spec.name for spec in functions[0].input_signature]
            _write_first_requests(part, names, first_texts or FIRST_TEXTS)
        part.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def place(folder, version):
    """Tells where a SavedModel goes.

    Args:
        folder: path.
        version: int or None.

    Returns:
        `pathlib.Path`.

    Raises:
        FileExistsError: something else is there.
        ValueError: the version is no whole number from 0.
    """
    folder = pathlib.Path(folder)
    if version is not None:
        if not isinstance(version, Integral) or version < 0:
            raise ValueError(
                f"A version is a whole number from 0. Received: {version!r}."
            )
        folder = folder / str(version)
    there = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if folder.exists() and there and "saved_model.pb" not in there:
        raise FileExistsError(
            f"A SavedModel replaces an earlier one, or nothing. Received: "
            f"{os.fspath(folder)!r} with {there[:8]}. Name another folder."
        )
    return folder


def _write_first_requests(folder, names, first_texts):
    """Writes what TensorFlow Serving asks a model before others do.

    The file is of records of PredictionLog of TensorFlow Serving's API, of
    which only requests matter: predict_log (6) with a request (1) of a
    model_spec (1) with a signature_name (3), and of inputs (2).
    """
    import tensorflow as tf

    extra = folder / "assets.extra"
    extra.mkdir()
    with tf.io.TFRecordWriter(os.fspath(extra / "tf_serving_warmup_requests")) as file:
        for texts in first_texts:
            tensor = tf.make_tensor_proto(list(texts), tf.string).SerializeToString()
            request = _field(1, _field(3, b"serving_default"))
            for name in names:
                request += _field(2, _field(1, name.encode()) + _field(2, tensor))
            file.write(_field(6, _field(1, request)))


def _field(number, content):
    """A field of bytes, as protocol buffers write it."""
    size, count = bytearray(), len(content)
    while count > 127:
        size.append(count & 127 | 128)
        count >>= 7
    size.append(count)
    return bytes([number << 3 | 2]) + bytes(size) + content


def _as_utf8(text):
    """Puts U+FFFD where bytes are no UTF-8, as Python's "replace" does."""
    import tensorflow as tf

    return tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace")


class _Reader:
    """From text to parts and back, as `parts` does it, in a graph."""

    def __init__(self, translator, shapes=()):
        # The one that costs least first.
        self._shapes = sorted(shapes, key=lambda shape: (shape[0] * shape[1], shape))
        self._vocabularies = (translator.vocabulary, translator.target_vocabulary)
        self.tokenizers = tuple(
            side.tensorflow_tokenizer() for side in self._vocabularies
        )
        self._pieces, self._cuts = translator.pieces, translator.cuts
        self._marks = translator.source_marks
        self._prefix = translator.settings["target_prefix"]

    def whole(self, text):
        """The ids of texts, which are not cut."""
        import tensorflow as tf

        rows = self._marked(self.tokenizers[0].tokenize(_as_utf8(text)))
        return tf.cast(rows.to_tensor(0), tf.int32)

    def translations(self, text, search):
        """Strings, scores and whether each is finished, all `(B, n)`."""
        import tensorflow as tf

        # Pieces of a text are lines and, between them, blanks.
        text = tf.strings.regex_replace(_as_utf8(text), MARK, "\ufffd")
        broken = tf.strings.regex_replace(text, BREAKS, rf"{MARK}\1{MARK}")
        pieces = tf.strings.split(broken, MARK)
        is_line = tf.ragged.range(pieces.row_lengths()).flat_values % 2 == 0
        lines = tf.where(is_line, pieces.flat_values, "")
        rows = self.tokenizers[0].tokenize(lines)
        parts, counts, blanks = self._cut(rows)
        ids = tf.cast(self._marked(parts).to_tensor(0), tf.int32)
        best, scores, lengths = self._decoded(search, ids)
        width = best.shape[1]
        numbers = tf.repeat(pieces.value_rowids(), counts)  # the text of each part
        texts = []
        ended = tf.reduce_any(best == search.options.end_id, axis=-1) | (lengths == 0)
        for n in range(width):
            said = blanks + self._text(best[:, n], search.options.end_id)
            said = tf.RaggedTensor.from_row_lengths(said, counts)
            said = tf.where(
                is_line, tf.strings.reduce_join(said, axis=1), pieces.flat_values
            )
            texts.append(tf.strings.reduce_join(pieces.with_flat_values(said), axis=1))
        count = pieces.nrows()
        weights = tf.cast(lengths, "float32")
        weighted = tf.where(lengths > 0, scores * weights, -float("inf"))
        total = tf.math.unsorted_segment_sum(weighted, numbers, count)
        weights = tf.math.unsorted_segment_sum(weights, numbers, count)
        scores = tf.where(weights > 0, total / weights, -float("inf"))
        cut = tf.math.unsorted_segment_sum(tf.cast(~ended, "int32"), numbers, count)
        return tf.stack(texts, axis=1), scores, cut == 0

    def _decoded(self, search, ids):
        """Ids `(B, n, T)`, scores and lengths `(B, n)` of the hypotheses."""
        import tensorflow as tf

        count, length = tf.shape(ids)[0], tf.shape(ids)[1]

        def decode(ids):
            found = search.decode(ids, self._prefix)
            return found.ids, found.scores, found.lengths

        def of_any_shape():
            # One row without tokens, so that there is a row.
            padded = tf.pad(ids, [[0, 1], [0, 0]])
            found = _until_each_is_done(search, padded, self._prefix)
            return tuple(kept[:-1] for kept in found)

        program = tf.function(decode, jit_compile=True, autograph=False)

        def of_shape(rows, most):
            padded = tf.pad(ids, [[0, rows - count], [0, most - length]])
            padded = tf.ensure_shape(padded, (rows, most))
            return tuple(kept[:count] for kept in program(padded))

        search_it = of_any_shape
        for rows, most in reversed(self._shapes):
            search_it = functools.partial(
                tf.cond,
                (count <= rows) & (length <= most),
                functools.partial(of_shape, rows, most),
                search_it,
            )
        best, scores, lengths = search_it()
        # TensorFlow forgets more than the lengths, in which branches differ.
        return (
            tf.ensure_shape(best, (None, search.options.num_hypotheses, None)),
            scores,
            lengths,
        )

    def first_texts(self):
        """As many texts for each shape, of as many tokens, or some fewer."""
        added, chosen = sum(map(len, self._marks)), []
        for rows, most in self._shapes:
            words = next(
                count
                for count in range(most, 0, -1)
                if count == 1 or len(self._tokens("a " * count)) + added <= most
            )
            chosen.append(["a " * words] * rows)
        return chosen

    def _tokens(self, text):
        return self._vocabularies[0].encode([text])[0]

    def _text(self, ids, end_id):
        import tensorflow as tf

        real = (ids != 0) & (ids != end_id) & (ids < self._vocabularies[1].size)
        return self.tokenizers[1].detokenize(tf.ragged.boolean_mask(ids, real))

    def _marked(self, rows):
        import tensorflow as tf

        real = tf.cast(rows.row_lengths() > 0, tf.int64)  # else there is no text
        before, after = (
            tf.RaggedTensor.from_row_lengths(
                tf.tile(tf.constant(ids, rows.dtype), [tf.reduce_sum(real)]),
                real * len(ids),
            )
            for ids in self._marks
        )
        return tf.concat([before, rows, after], axis=1)

    def _cut(self, rows):
        """Parts of each row; how many it has; and what stands before each."""
        import tensorflow as tf

        least, most = self._cuts
        ids = rows.to_tensor(0)
        lengths = tf.cast(rows.row_lengths(), tf.int32)
        pieces = self._pieces
        flags = (pieces.starts, pieces.ends, pieces.wide, pieces.closes)
        flags += (pieces.dots, pieces.short, pieces.letter, pieces.begun)
        starts, ends, wide, closes, dots, short, letter, begun = (
            tf.gather(tf.constant(each), ids) for each in flags
        )

        def after(flags):
            return tf.pad(flags, [[0, 0], [1, 0]])[:, :-1]

        second = letter & after(begun)
        ends &= ~(dots & after(short | second | (letter & after(second))))
        for _ in range(2):
            ends |= closes & after(ends)
            wide |= closes & after(wide)
        sentences = (after(ends) & starts) | (after(wide) & (~closes | starts))
        places = tf.range(tf.shape(ids)[1])[None]

        def last(flags):
            return tf.reduce_max(tf.where(flags, places, 0), axis=1)

        def first(flags):
            big = tf.int32.max
            return tf.reduce_min(tf.where(flags, places, big), axis=1)

        def advance(here, cuts):
            from_here = places > here[:, None]
            near = from_here & (places <= here[:, None] + least)
            within = from_here & (places <= here[:, None] + most)
            rest = lengths - here
            inside, beyond = last(near & sentences), first(within & ~near & sentences)
            word = last(within & starts)
            end = tf.where(word > 0, word, here + most)
            end = tf.where(rest <= most, lengths, end)
            end = tf.where(beyond < tf.int32.max, beyond, end)
            end = tf.where(inside > 0, inside, end)
            end = tf.where(rest <= least, lengths, end)
            return end, tf.concat([cuts, end[:, None]], axis=1)

        zeros = tf.zeros_like(lengths)
        _, cuts = tf.while_loop(
            lambda here, cuts: tf.reduce_any(here < lengths),
            advance,
            (zeros, zeros[:, None]),
            shape_invariants=(tf.TensorShape([None]), tf.TensorShape([None, None])),
        )
        begins, widths = cuts[:, :-1], cuts[:, 1:] - cuts[:, :-1]
        real = widths > 0
        parts = tf.RaggedTensor.from_row_lengths(
            rows.flat_values, tf.cast(tf.boolean_mask(widths, real), tf.int64)
        )
        size = tf.maximum(tf.shape(ids)[1], 1)
        padded = tf.pad(starts, [[0, 0], [0, 1]])  # so that there is a place
        blank = tf.gather(padded, tf.minimum(begins, size), batch_dims=1)
        blank = tf.where(blank & (begins > 0), " ", "")
        counts = tf.reduce_sum(tf.cast(real, tf.int64), axis=1)
        return parts, counts, tf.boolean_mask(blank, real)


def write_classifier(classifier, folder, version=None):
    """Writes the SavedModel of a classifier.

    Args:
        classifier: `Classifier` on the TensorFlow backend.
        folder, version: of its `export`.
    """
    import tensorflow as tf

    vocabulary, model = classifier.vocabulary, classifier.model
    tokenizer = vocabulary.tensorflow_tokenizer()
    names = tf.constant(classifier.classes)
    sides = 1 + classifier.paired
    room = classifier.max_length - count_special_tokens(vocabulary, sides)
    segments = model.encoder.config["num_segments"] > 0
    ends = [list(vocabulary.separator_ids), [vocabulary.end_id]]

    def said(texts):
        rows = [tokenizer.tokenize(_as_utf8(text)) for text in texts]
        lengths = [tf.cast(row.row_lengths(), tf.int32) for row in rows]
        kept = _kept(lengths, room)
        start = tf.fill([rows[0].nrows(), 1], tf.constant(vocabulary.start_id))
        tokens, numbers = [start], [tf.zeros_like(start)]
        for number, (row, count) in enumerate(zip(rows, kept, strict=True)):
            places = tf.ragged.range(row.row_lengths())
            mask = places < tf.cast(count, tf.int64)[:, None]
            marks = tf.constant([ends[number == sides - 1]], tf.int32)
            some = tf.cast(tf.ragged.boolean_mask(row, mask), tf.int32)
            some = tf.concat([some, tf.repeat(marks, row.nrows(), axis=0)], axis=1)
            tokens.append(some)
            numbers.append(tf.ones_like(some) * number)
        inputs = {"token_ids": tf.concat(tokens, axis=1).to_tensor(vocabulary.pad_id)}
        if segments:
            inputs["segment_ids"] = tf.concat(numbers, axis=1).to_tensor(0)
        found = model.probabilities(model(inputs, training=False))
        # Nothing can be said of a text without a token.
        blank = tf.reduce_any(tf.stack(lengths) == 0, axis=0)[:, None]
        found, order = tf.math.top_k(tf.where(blank, 0.0, found), len(names))
        cut = [k < n for k, n in zip(kept, lengths, strict=True)]
        return {
            "labels": tf.where(blank, "", tf.gather(names, order)),
            "probabilities": found,
            "truncated": tf.reduce_any(tf.stack(cut), axis=0),
        }

    specs = [tf.TensorSpec([None], tf.string, name="text")]
    if classifier.paired:
        specs.append(tf.TensorSpec([None], tf.string, name="second"))

    @tf.function(input_signature=specs, autograph=False)
    def serving_default(text, *second):
        return said([text, *second])

    write(model, (tokenizer,), [serving_default], folder, version)


def _kept(lengths, room):
    """As `text.pair_packing.truncated_lengths`."""
    import tensorflow as tf

    if len(lengths) == 1:
        return [tf.minimum(lengths[0], room)]
    first = tf.maximum(room - lengths[1], room - room // 2)
    first = tf.minimum(lengths[0], first)
    return [first, tf.minimum(lengths[1], room - first)]


def _until_each_is_done(search, ids, prefix):
    """Decodes a batch of any size, which rows leave that are done.

    Args:
        search: `Decoder`.
        ids: int32 `(B, S)`.
        prefix: ints.

    Returns:
        Ids `(B, n, T)`, scores and lengths `(B, n)`.
    """
    import tensorflow as tf

    def finished(state):
        found = search.hypotheses(state)
        return found.ids, found.scores, found.lengths

    def written(found, numbers, state):
        return tuple(
            tf.tensor_scatter_nd_update(whole, numbers[:, None], rows)
            for whole, rows in zip(found, finished(state), strict=True)
        )

    def unfinished(numbers, state, found):
        return tf.size(numbers) > 0

    def stretch(numbers, state, found):
        # A step costs what there is room for.
        state = search.extend(state, state.step + STRETCH)
        more = state.capacity - tf.shape(found[0])[-1]
        found = (tf.pad(found[0], [[0, 0], [0, 0], [0, more]]), *found[1:])
        state = search.decode_until(state, state.step + STRETCH)
        done = tf.reduce_all(state.done, axis=1)

        def smaller():
            left = tf.where(~done)[:, 0]
            rows = tf.nest.map_structure(
                lambda x: tf.gather(x, left) if len(x.shape) else x, state
            )
            return tf.gather(numbers, left), rows, written(found, numbers, state)

        # To take rows out costs a copy of all others.
        over = tf.reduce_sum(tf.cast(done, tf.int32))
        return tf.cond(
            8 * over >= tf.size(numbers), smaller, lambda: (numbers, state, found)
        )

    # None of it is a constant, or the loop would hold its shape to it.
    state = search.begin_decoding(ids, prefix, STRETCH)
    numbers = tf.range(tf.shape(ids)[0])
    variables = (numbers, state, finished(state))
    shapes = tf.nest.map_structure(
        lambda x: tf.TensorShape([None, *x.shape[1:]]) if len(x.shape) else x.shape,
        variables,
    )
    numbers, state, found = tf.while_loop(
        unfinished, stretch, variables, shape_invariants=shapes
    )
    return written(found, numbers, state)
