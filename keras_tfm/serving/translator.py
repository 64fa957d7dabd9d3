"""From sentence to sentence: a model with its vocabulary and a search."""

import functools
import itertools
import json
import os
import pathlib
import tempfile
from collections.abc import Iterable, Iterator

import keras

from keras_tfm.decode.search import Search
from keras_tfm.decode.shortlist import Shortlist
from keras_tfm.serving import preset
from keras_tfm.serving.folders import check_saved, write_model
from keras_tfm.text.tokenizers_vocabulary import load_vocabulary

# Of a saved translator.
FILES = ("model.keras", "source.model", "target.model", "search.json")
SHORTLIST = "shortlist.npz"  # if it has one


class Translator:
    """Translates text with a model, its vocabularies, and a search.

    Args:
        model: `Transformer`, or what else has `begin` and `step`.
        vocabulary: `Vocabulary` or `TokenizersVocabulary` of the source, and of
            the target unless another is given.
        target_vocabulary: likewise of the target, or None.
        beam_size: int >= 1. 1 is greedy search.
        length_penalty: float >= 0, see `keras_tfm.decode.penalty`.
        batch_size: int >= 1, in sentences: decoded at once, at most.
        batch_tokens: int >= 1, in source tokens with padding, likewise.
        max_source_length: int >= 1, in tokens. A longer text is refused, as
            is one of more tokens than the model has learned positions for.
        shortlist: `keras_tfm.decode.Shortlist` or None, see `Search`. It is
            saved with the translator; an export has none.
        source_prefix: ints, ids before those of each text, such as the mark of
            its language.
        source_suffix: ints, after them, such as the end.
        target_prefix: ints that each translation begins with, such as the mark
            of its language.
        **search: further settings of `keras_tfm.decode.Search`.

    Attributes:
        cut: int. Translations of the last call, or of `bulk` so far, that came
            to their limit of tokens, `max_decoding_length`, before their end.

    Call arguments:
        texts: str, or list of str.
        progress: bool. Show a progress bar.

    Returns:
        str, or list of str in the same order.

    Raises:
        ValueError: a size below 1, a vocabulary larger than the model's
            table, or a text of more than `max_source_length` tokens.
        TypeError: what comes is not text.
    """

    def __init__(
        self,
        model,
        vocabulary,
        target_vocabulary=None,
        beam_size=4,
        length_penalty=1.0,
        batch_size=64,
        batch_tokens=2048,
        max_source_length=1024,
        shortlist=None,
        source_prefix=(),
        source_suffix=(),
        target_prefix=(),
        **search,
    ):
        if min(batch_size, batch_tokens, max_source_length) < 1:
            raise ValueError(
                "A batch has at least one sentence of at least one token. Received: "
                f"batch_size={batch_size}, batch_tokens={batch_tokens}, "
                f"max_source_length={max_source_length}."
            )
        self.model = model
        self.vocabulary = vocabulary
        self.target_vocabulary = target_vocabulary or vocabulary
        self.batch_size = batch_size
        self.batch_tokens = batch_tokens
        self.cut = 0
        sides = (
            ("vocabulary_size", self.vocabulary),
            ("target_vocabulary_size", self.target_vocabulary),
        )
        for name, side in sides:
            size = getattr(model, name, None)
            if size is not None and side.size > size:
                raise ValueError(
                    "The vocabulary has more pieces than the model has rows. "
                    f"Received: {side.size} pieces, {name}={size}. Load the "
                    "vocabulary the model was trained with."
                )
        # What `save` writes: a translator read back searches as this one does.
        self.settings = {
            "beam_size": beam_size,
            "length_penalty": length_penalty,
            "batch_size": batch_size,
            "batch_tokens": batch_tokens,
            "max_source_length": max_source_length,
            "source_prefix": list(source_prefix),
            "source_suffix": list(source_suffix),
            "target_prefix": list(target_prefix),
            **search,
        }
        self._source_marks = (list(source_prefix), list(source_suffix))
        self.shortlist = shortlist
        self._search_of = functools.partial(
            Search,
            model,
            beam_size=beam_size,
            length_penalty=length_penalty,
            start_id=self.target_vocabulary.start_id,
            end_id=self.target_vocabulary.end_id,
            **search,
        )
        self.search = self._search_of(shortlist=shortlist)
        self.max_source_length = min(
            max_source_length, self.search.lengths.longest or max_source_length
        )

    def __call__(self, texts, progress=False):
        if isinstance(texts, str):
            return self([texts], progress)[0]
        return self._translate(texts, progress)

    def _check_is_one_model(self):
        if not isinstance(self.model, keras.Model):
            raise TypeError(
                "A translator of one Keras model is saved. Received: a model of type "
                f"{type(self.model).__name__!r}. Save the models of an ensemble apart."
            )

    def _translate(self, texts, progress=False, first=0):
        rows = self._rows(texts, first)
        bar = keras.utils.Progbar(len(rows), unit_name="sentence") if progress else None
        translations, self.cut, end_id = [""] * len(rows), 0, self.search.end_id
        prefix = None
        if self.settings["target_prefix"]:
            prefix = [self.settings["target_prefix"] if row else [] for row in rows]
        found = self.search.bulk(
            rows, self.batch_tokens, self.batch_size, target_prefix=prefix
        )
        for number, hypotheses in found:
            ids = hypotheses.ids[0, :1]
            translations[number] = self.target_vocabulary.decode(ids)[0]
            self.cut += bool(ids.any() and not (ids == end_id).any())
            if bar:
                bar.add(1)
        return translations

    def bulk(self, texts: Iterable[str], window: int = 10_000) -> Iterator[str]:
        """Translates any number of texts in bounded memory.

        Args:
            texts: iterable of str, such as an open file of lines.
            window: int >= 1: texts that are read before they are translated,
                in the order of their lengths.

        Yields:
            str, in the order of the texts.

        Raises:
            ValueError: a window below 1, or as a call.
        """
        if window < 1:
            raise ValueError(f"`window` must be 1 or more. Received: {window}.")
        if isinstance(texts, (str, bytes)):
            raise TypeError(
                "Texts are many. Received: one of type "
                f"{type(texts).__name__!r}. Call the translator with it."
            )
        texts, cut, first = iter(texts), 0, 0
        while some := list(itertools.islice(texts, window)):
            translations = self._translate(some, first=first)
            self.cut, first = cut + self.cut, first + window
            cut = self.cut
            yield from translations

    def save(self, folder):
        """Writes model, vocabularies and settings to a folder.

        Updates of LoRA are added to the matrices they belong to, and rounded
        where those are int8. What the folder held before stays until all is
        written.

        Args:
            folder: path. Made if it is not there.
        """
        self._check_is_one_model()
        folder = pathlib.Path(folder)
        settings = json.dumps(self.settings, indent=1, default=_plain)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as part:
            part = pathlib.Path(part)
            write_model(self.model, part)
            self.vocabulary.save(part / FILES[1])
            self.target_vocabulary.save(part / FILES[2])
            (part / FILES[3]).write_text(settings + "\n", encoding="utf-8")
            for name in FILES:
                os.replace(part / name, folder / name)
            if self.shortlist is None:
                (folder / SHORTLIST).unlink(missing_ok=True)
            else:
                self.shortlist.save(part / SHORTLIST)
                os.replace(part / SHORTLIST, folder / SHORTLIST)

    @classmethod
    def load(cls, folder, **settings):
        """Reads what `save` wrote, on any backend.

        Args:
            folder: path.
            **settings: of `Translator`, over those saved.

        Returns:
            `Translator`.

        Raises:
            FileNotFoundError: the folder lacks a file.
        """
        folder = pathlib.Path(folder)
        model, source, target, search = check_saved(folder, FILES, "Translator")
        saved = json.loads(search.read_text(encoding="utf-8"))
        if (folder / SHORTLIST).is_file():
            saved["shortlist"] = Shortlist.load(folder / SHORTLIST)
        return cls(
            keras.models.load_model(model),
            load_vocabulary(source),
            load_vocabulary(target),
            **{**saved, **settings},
        )

    @classmethod
    def from_preset(cls, name, source_language=None, target_language=None, **settings):
        """Loads a model that translates, whoever has trained it.

        Args:
            name: str or path: a name of `keras_tfm.presets()`;
                `"hf://owner/name"`, a repository of Hugging Face, fetched once
                by huggingface-hub; or a folder: of a recipe's run, of `save`,
                or as transformers, Marian or CTranslate2 write it.
            source_language: str, of a model of many languages, by its own name
                of it, such as `"eng_Latn"`; else None, and where the target
                alone has a mark, as of OPUS-MT.
            target_language: likewise.
            **settings: of `Translator`, over those it comes with.

        Returns:
            `Translator`.

        Raises:
            ValueError: there is no such name, no vocabulary with it, or no such
                language.
            FileNotFoundError: the folder holds no model that is known.
        """
        found, own = preset.find(name, "translation")
        named = (source_language, target_language)
        languages = getattr(found, "languages", None) or {}
        if languages or any(named):
            alone = bool(languages) and found.mark == "target"
            if not languages or None in named[alone:]:
                raise ValueError(
                    "Of a model of many languages, and of no other, both are named; "
                    "the target alone where it alone has a mark. Received: "
                    f"source_language={source_language!r}, target_language="
                    f"{target_language!r}; it has {sorted(languages)}."
                )
            own = {**own, **found.between(*named)}
        settings = {**own, **settings}
        if isinstance(found, pathlib.Path):
            return cls.load(found, **settings)
        if not hasattr(found.model, "begin"):
            raise ValueError(
                "A model that generates is wanted. Received: "
                f"{type(found.model).__name__} from {os.fspath(name)!r}."
            )
        target = found.target_vocabulary
        return cls(found.model, found.vocabulary, target, **settings)

    def export(self, folder):
        """Writes a SavedModel that takes sentences and gives sentences.

        It holds network, vocabularies and search, and runs with TensorFlow and
        tensorflow_text, without this library: `tf.saved_model.load(folder)
        .signatures["serving_default"](text=...)` with `text` a string `(B,)`
        gives `translation`, a string `(B,)`, `score`, float32 `(B,)`, minus
        infinity where there is no text, and `finished`, bool `(B,)`, False
        where a translation was cut at its limit. A text of more than
        `max_source_length` tokens is an error there too.

        Args:
            folder: path.

        Raises:
            RuntimeError: the backend is not TensorFlow.
            TypeError: a vocabulary is none of SentencePiece, or the model is
                none of Keras.
            ImportError: tensorflow_text is missing.
        """
        if keras.config.backend() != "tensorflow":
            raise RuntimeError(
                "A SavedModel is written by the TensorFlow backend. Received: "
                f"backend={keras.config.backend()!r}. Save the translator, and load "
                "and export it with KERAS_BACKEND=tensorflow."
            )
        self._check_is_one_model()
        for side in (self.vocabulary, self.target_vocabulary):
            if not hasattr(side, "tensorflow_tokenizer"):
                raise TypeError(
                    "A SavedModel cuts text by SentencePiece. Received: a vocabulary "
                    f"of type {type(side).__name__}. Serve the translator itself."
                )
        import tensorflow as tf

        tokenizer = self.vocabulary.tensorflow_tokenizer()
        detokenizer = self.target_vocabulary.tensorflow_tokenizer()
        search, target_size = self._search_of(), self.target_vocabulary.size
        end_id = self.target_vocabulary.end_id
        limit, marks = self.max_source_length, self._source_marks
        message = f"A text has more than {limit} tokens. Split it into sentences."

        def marked(rows):
            real = tf.cast(rows.row_lengths() > 0, tf.int64)  # else there is no text
            before, after = (
                tf.RaggedTensor.from_row_lengths(
                    tf.tile(tf.constant(ids, rows.dtype), [tf.reduce_sum(real)]),
                    real * len(ids),
                )
                for ids in marks
            )
            return tf.concat([before, rows, after], axis=1)

        @tf.function(
            input_signature=[tf.TensorSpec([None], tf.string, name="text")],
            autograph=False,  # it would read the source files again
        )
        def translate(text):
            rows = marked(tokenizer.tokenize(text))
            lengths = rows.row_lengths()
            fits = tf.debugging.assert_less_equal(
                lengths, tf.cast(limit, lengths.dtype), message
            )
            with tf.control_dependencies([fits]):
                ids = tf.cast(rows.to_tensor(0), tf.int32)
            best = search.decode(ids, self.settings["target_prefix"])
            ids = best.ids[:, 0]
            real = (ids != 0) & (ids != end_id) & (ids < target_size)
            sentence = detokenizer.detokenize(tf.ragged.boolean_mask(ids, real))
            empty = tf.equal(best.lengths[:, 0], 0)
            finished = empty | tf.reduce_any(ids == end_id, axis=-1)
            return {
                "translation": sentence,
                "score": best.scores[:, 0],
                "finished": finished,
            }

        module = tf.Module()
        module.model, module.translate = self.model, translate
        module.tokenizers = (tokenizer, detokenizer)
        tf.saved_model.save(
            module,
            os.fspath(folder),
            signatures={"serving_default": translate.get_concrete_function()},
        )

    def _rows(self, texts, first=0):
        before, after = self._source_marks
        rows = [
            [*before, *row, *after] if row else row
            for row in self.vocabulary.encode(_text_list(texts))
        ]
        for i, row in enumerate(rows):
            if len(row) > self.max_source_length:
                raise ValueError(
                    f"Text {first + i} has {len(row)} tokens; max_source_length="
                    f"{self.max_source_length}. Split it into sentences."
                )
        return rows


def _plain(value):
    """Gives JSON what it does not know: NumPy's numbers, ranges, sets."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (range, set, frozenset)):
        return sorted(value)
    raise TypeError(f"{value!r} is not JSON serializable")


def _text_list(texts):
    """Refuses what is not text, before any of it is translated."""
    kinds = {type(texts).__name__}
    if isinstance(texts, Iterable) and not isinstance(texts, bytes):
        texts = list(texts)
        kinds = {type(text).__name__ for text in texts if not isinstance(text, str)}
    if kinds:
        raise TypeError(
            f"Text is str or a list of str. Received: {sorted(kinds)}. Decode "
            "bytes, and put '' where there is no text."
        )
    return texts
