"""From sentence to sentence: a model with its vocabulary and a search."""

import json
import os
import pathlib
import tempfile
import time
from collections.abc import Iterable, Iterator

import keras
import numpy as np

from keras_tfm.decode.inputs import padded_rows
from keras_tfm.decode.options import Options
from keras_tfm.decode.shortlist import Shortlist
from keras_tfm.export import saved_model
from keras_tfm.pipelines import pretrained as preset
from keras_tfm.pipelines.folders import check_saved, read_model, write_model
from keras_tfm.pipelines.segmentation import Part, Pieces, joined, parts_of
from keras_tfm.pipelines.translation import Hypothesis, Score, Translation
from keras_tfm.runtime.decoder import Decoder
from keras_tfm.text.files import chunks, is_unicode
from keras_tfm.text.tokenizers_vocabulary import load_vocabulary
from keras_tfm.zoo.config_file import read_json

# Of a saved translator.
FILES = ("model.keras", "source.model", "target.model", "search.json")
SHORTLIST = "shortlist.npz"  # if it has one
GREEDY = {
    "beam_size": 1,
    "num_hypotheses": 1,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "coverage_penalty": 0.0,
}
SEARCHES = 8  # with their programs, that are kept for settings of a call


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
        split_tokens: int >= 1. A line of more source tokens is cut after its
            sentences, into parts of no more where they allow it. A model leaves
            out part of what is longer than all that it was trained on: for one
            of single sentences about 24.
        max_source_length: int >= 1, in tokens with prefix and suffix; no more
            than the model has learned positions for. A longer sentence is cut
            between words. A text that a language model goes on with is not
            cut, but refused.
        shortlist: `keras_tfm.decode.Shortlist` or None, see `Decoder`. It is
            saved with the translator; an export has none.
        source_prefix: ints, ids before those of each text, such as the mark of
            its language.
        source_suffix: ints, after them, such as the end.
        target_prefix: ints that each translation begins with, such as the mark
            of its language.
        **search: further settings of `keras_tfm.runtime.Decoder`.

    Attributes:
        cut: int. Translations of the last call, or of `bulk` so far, that came
            to their limit of tokens, `max_decoding_length`, before their end.
        search: `Decoder` of a call.
        source_marks: pair of lists of int, `source_prefix`, `source_suffix`.
        pieces: `parts.Pieces` of the source.
        cuts: pair of int, the arguments of `Pieces.cut`.

    Call arguments:
        texts: str, or list of str.
        progress: bool. Show a progress bar.

    Returns:
        str, or list of str in the same order, with the line breaks and the
        blanks around lines that the texts have.

    Raises:
        ValueError: a size below 1, or a vocabulary larger than the model's
            table.
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
        split_tokens=128,
        max_source_length=1024,
        shortlist=None,
        source_prefix=(),
        source_suffix=(),
        target_prefix=(),
        **search,
    ):
        marks = len(source_prefix) + len(source_suffix)
        if min(batch_size, batch_tokens, split_tokens, max_source_length - marks) < 1:
            raise ValueError(
                "A batch has at least one sentence of at least one token. Received: "
                f"batch_size={batch_size}, batch_tokens={batch_tokens}, split_tokens="
                f"{split_tokens}, max_source_length={max_source_length} with {marks} "
                "marks."
            )
        _check_names(search)
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
            "split_tokens": split_tokens,
            "max_source_length": max_source_length,
            "source_prefix": list(source_prefix),
            "source_suffix": list(source_suffix),
            "target_prefix": list(target_prefix),
            **search,
        }
        self.source_marks = (list(source_prefix), list(source_suffix))
        self.shortlist = shortlist
        self.options = Options(
            beam_size=beam_size,
            length_penalty=length_penalty,
            start_id=self.target_vocabulary.start_id,
            end_id=self.target_vocabulary.end_id,
            unk_id=getattr(self.target_vocabulary, "unknown_id", 1),
            shortlist=shortlist,
            **search,
        )
        self.search = Decoder(model, self.options)
        self._searches = {}
        self.max_source_length = min(
            max_source_length, self.search.max_positions or max_source_length
        )
        most = self.max_source_length - marks
        self.pieces, self.cuts = Pieces(vocabulary), (min(split_tokens, most), most)

    def __call__(self, texts, progress=False):
        if isinstance(texts, str):
            return self([texts], progress)[0]
        return self._translate(texts, progress)

    def translate(
        self,
        texts,
        target_prefix=None,
        constraints=None,
        return_scores=True,
        return_attention=False,
        progress=False,
        seconds=None,
        seed=None,
        **search,
    ):
        """Translates, and says more of it than a call.

        Args:
            texts: str, or list of str.
            target_prefix: str that the translation begins with, or a list with
                one for each text, None where there is none; of a text in parts
                the first begins with it. Or None.
            constraints: list of str, phrases that the translation contains, or
                a list of such lists, None where there are none; or None. They
                need a beam, and such a text is not cut into parts.
            return_scores: bool. Give each hypothesis its score.
            return_attention: bool. Give what each piece attended to.
            progress: bool. Show a progress bar.
            seconds: float > 0 or None: give up soon after so many.
            seed: int, of sampling: the same seed draws the same; or None for
                another each time.
            **search: settings of `Decoder` for this call, over those of the
                translator, such as `beam_size` and `num_hypotheses`. Hypotheses
                are of different tokens; two may have the same text, which was
                cut into pieces in two ways.

        Returns:
            `Translation`, or a list of them in the order of the texts.

        Raises:
            ValueError: other prefixes or constraints than texts, settings of a
                search that do not fit each other, or constraints without a
                beam.
            TypeError: what comes is not text, or there is no such setting.
            TimeoutError: it took more than `seconds`.
        """
        _check_names(search, ("target_prefix", "constraints", "seconds", "seed"))
        if isinstance(texts, str):
            return self.translate(
                [texts],
                [target_prefix],
                [constraints],
                return_scores,
                return_attention,
                progress,
                seconds,
                seed,
                **search,
            )[0]
        end = None if seconds is None else time.monotonic() + seconds
        texts = _text_list(texts)
        if return_attention:
            search["return_attention"] = True
        searched = self._search_with(search)
        phrases = self._phrases(constraints, texts)
        rows, places = self.rows_of(texts, phrases)
        forced = self._forced(target_prefix, texts, rows, places, searched)
        found = self._decoded(
            searched, rows, forced, progress, phrases, places, end, seed
        )
        return self.translations_of(texts, rows, places, found, return_scores)

    def stream(self, text, target_prefix=None) -> Iterator[str]:
        """Translates greedily, and gives the translation as it comes.

        Args:
            text: str.
            target_prefix: str that the translation begins with, or None.

        Yields:
            str, all that there is so far; at last the translation that
            `translate` with `beam_size=1` gives.

        Raises:
            ValueError: a translator that samples; or as a call.
            TypeError: what comes is not text.
        """
        [text] = _text_list([text])
        search = self._search_with(GREEDY)
        rows, [(parts, after, _)] = self.rows_of([text])
        places = [(parts, after, 0)]
        forced = self._forced(target_prefix, [text], rows, places, search)
        return self._stream(search, rows, forced, parts, after)

    def _stream(self, search, rows, forced, parts, after):
        done = []
        for number, row in enumerate(rows):
            ids = []
            for token in search.stream([row], forced and [forced[number]]):
                ids.append(int(token[0]))
                [so_far] = self._texts([ids], [row])
                # The first bytes of a letter are not one yet.
                so_far = [*done, so_far.rstrip("\ufffd")]
                yield joined(so_far, parts[: len(so_far)], "")
            done += self._texts([ids], [row])
        yield joined(done, parts, after)

    def score(self, pairs) -> list[Score]:
        """Tells how likely translations are that are given.

        Args:
            pairs: list of pairs of str, a source and a translation. Neither is
                cut into parts.

        Returns:
            list of `Score`, in their order. Without source or translation it
            is minus infinity.

        Raises:
            ValueError: a source of more tokens than `max_source_length`, or a
                translation of more than there are positions for.
            TypeError: what comes is no pair of texts.
        """
        pairs = [_pair(number, pair) for number, pair in enumerate(pairs)]
        before, after = self.source_marks
        sources = self.vocabulary.encode([source for source, _ in pairs])
        sources = [[*before, *row, *after] if row else row for row in sources]
        for number, row in enumerate(sources):
            self._check_length(number, row)
        begin, end = self.settings["target_prefix"], self.search.options.end_id
        targets = self.target_vocabulary.encode([target for _, target in pairs])
        targets = [[*begin, *row, end] if row else row for row in targets]
        most = self.search.max_positions
        for number, row in enumerate(targets):
            if most is not None and len(row) > most:
                raise ValueError(
                    f"Translation {number} has {len(row)} tokens with its end. The "
                    f"model has positions for {most}. Split it into sentences."
                )
        sizes = [max(map(len, sides)) for sides in zip(sources, targets, strict=True)]
        order = sorted(range(len(pairs)), key=lambda i: -sizes[i])
        scores = [None] * len(pairs)
        while order:
            # Of few sizes, and filled up to them: others are other programs.
            width = self.search.source_bucket(sizes[order[0]])
            count = max(1, min(self.batch_size, self.batch_tokens // width))
            some, order = order[:count], order[count:]
            spare = [[]] * (count - len(some))
            longest = max(len(sources[i]) for i in some)
            ids = padded_rows([sources[i] for i in some] + spare, longest)
            rows = [targets[i] for i in some] + spare
            given = [min(len(begin), len(row)) for row in rows]
            found = self.search.score(ids, rows, given)
            for place, number in enumerate(some):
                length = len(targets[number])
                scores[number] = Score(
                    float(found.scores[place, 0]),
                    self.target_vocabulary.tokens(targets[number]),
                    found.token_scores[place, 0, :length].tolist(),
                )
        return scores

    def warm_up(self, lengths=(16, 32), **search):
        """Compiles what texts of usual lengths need, alone and with others.

        See `Decoder.warm_up`.

        Args:
            lengths: ints >= 1, in source tokens, with marks.
            **search: as of `translate`.
        """
        self._search_with(search).warm_up(
            [min(length, self.max_source_length) for length in lengths],
            self.batch_tokens,
            self.batch_size,
            self.settings["target_prefix"],
        )

    def _search_with(self, search):
        if not search:
            return self.search
        key = json.dumps(sorted(search.items()), default=_known_by)
        found = self._searches.pop(key, None)
        if found is None:
            found = self.search.replace(**search)
        self._searches[key] = found  # as the latest
        if len(self._searches) > SEARCHES:
            del self._searches[next(iter(self._searches))]
        return found

    def _forced(self, target_prefix, texts, rows, places, search):
        """The ids that each row begins with; None where none has any."""
        prefixes = target_prefix
        if prefixes is None or isinstance(prefixes, str):
            prefixes = [prefixes] * len(texts)
        if len(prefixes) != len(texts):
            raise ValueError(
                "Each text has a prefix. Received: "
                f"{len(prefixes)} prefixes for {len(texts)} texts."
            )
        own = self.settings["target_prefix"]
        forced = [list(own) if row else [] for row in rows]
        encoded = self.target_vocabulary.encode(_text_list(p or "" for p in prefixes))
        for number, (prefix, (parts, _, first)) in enumerate(
            zip(encoded, places, strict=True)
        ):
            if not parts or not prefix:
                continue
            forced[first] += prefix
            limit = search.length_limit(len(rows[first]))
            if len(forced[first]) >= limit:
                raise ValueError(
                    f"Text {number}: a prefix must leave room for a token. Received: "
                    f"{len(forced[first])} tokens, and a limit of {limit}. Raise "
                    "`max_decoding_length`, or shorten the prefix."
                )
        return forced if any(forced) else None

    def _phrases(self, constraints, texts):
        """The constraints of each text that has any, as lists of ids."""
        if constraints is None:
            return {}
        if len(constraints) != len(texts):
            raise ValueError(
                "Each text has constraints, or None. Received: "
                f"{len(constraints)} for {len(texts)} texts."
            )
        single = [phrases for phrases in constraints if isinstance(phrases, str)]
        if single:
            raise TypeError(
                "The constraints of a text are a list of phrases. Received: "
                f"{single[0]!r}. Put it into a list."
            )
        return {
            number: self.target_vocabulary.encode(_text_list(phrases))
            for number, phrases in enumerate(constraints)
            if phrases and texts[number].strip()
        }

    def _decoded(
        self,
        search,
        rows,
        forced,
        progress=False,
        phrases=(),
        places=(),
        end=None,
        seed=None,
    ):
        """The hypotheses of each row."""

        def in_time():
            if end is not None and time.monotonic() > end:
                raise TimeoutError("There was no time to translate all texts.")

        bar = keras.utils.Progbar(len(rows), unit_name="sentence") if progress else None
        found = [None] * len(rows)
        held = {places[n][2]: phrases[n] for n in phrases if places[n][0]}
        free = [i for i in range(len(rows)) if i not in held]
        for number, hypotheses in search.bulk(
            [rows[i] for i in free],
            self.batch_tokens,
            self.batch_size,
            seed=seed,
            target_prefix=forced and [forced[i] for i in free],
        ):
            found[free[number]] = hypotheses
            in_time()
            if bar:
                bar.add(1)
        for number, ids in held.items():
            prefix = forced and [forced[number]]
            try:
                found[number] = search([rows[number]], prefix, [ids], seed)
            except ValueError as error:
                text = next(n for n in phrases if places[n][2] == number)
                raise ValueError(f"Text {text}: {error}") from error
            in_time()
            if bar:
                bar.add(1)
        return found

    def translations_of(self, texts, rows, places, found, return_scores=True):
        """Makes translations of what was decoded.

        Args:
            texts: list of str.
            rows, places: of `rows_of`.
            found: list of `Hypotheses`, one for each row.
            return_scores: of `translate`.

        Returns:
            list of `Translation`, in the order of the texts.
        """
        return [
            self._translation(text, parts, after, rows, found, first, return_scores)
            for text, (parts, after, first) in zip(texts, places, strict=True)
        ]

    def _translation(self, text, parts, after, rows, found, first, scored):
        rows = rows[first : first + len(parts)]
        some = found[first : first + len(parts)]
        tokens = [t for row in rows for t in row]
        source_tokens = self.vocabulary.tokens(tokens)
        if not parts:
            score = -float("inf") if scored else None
            none = Hypothesis(after, score, [], None, True)
            return Translation(text, source_tokens, [none])
        hypotheses = []
        for n in range(some[0].ids.shape[1]):
            ids = [one.ids[0, n, : one.lengths[0, n]] for one in some]
            lengths = np.array([len(row) for row in ids])
            scores = np.array([one.scores[0, n] for one in some])
            score = None
            if scored:
                known = np.isfinite(scores).all() and lengths.sum()
                weights = lengths if known else None
                score = float(np.average(scores, weights=weights))
            attention = None
            if some[0].attention is not None:
                widths = [len(row) for row in rows]
                weights = [one.attention[0, n] for one in some]
                attention = _blocks(weights, lengths, widths)
            hypotheses.append(
                Hypothesis(
                    joined(self._texts(ids, rows), parts, after),
                    score,
                    self.target_vocabulary.tokens(np.concatenate(ids)),
                    attention,
                    all(self.search.options.end_id in row for row in ids),
                )
            )
        return Translation(text, source_tokens, hypotheses)

    def _texts(self, ids, rows):
        """The text of what was decoded, row by row."""
        decode = self.target_vocabulary.decode
        if not self.search.continues_source:
            return [decode([row])[0] for row in ids]
        # With the space, if there is one, between a text and what follows it.
        both = [decode([[*row, *more]])[0] for row, more in zip(rows, ids, strict=True)]
        return [
            text[len(decode([row])[0]) :] for row, text in zip(rows, both, strict=True)
        ]

    def _check_is_one_model(self):
        if not isinstance(self.model, keras.Model):
            raise TypeError(
                "A translator of one Keras model is saved. Received: a model of type "
                f"{type(self.model).__name__!r}. Save the models of an ensemble apart."
            )

    def _translate(self, texts, progress=False):
        texts = _text_list(texts)
        rows, places = self.rows_of(texts)
        forced = self._forced(None, texts, rows, places, self.search)
        found = self._decoded(self.search, rows, forced, progress)
        ids = [hypotheses.ids[0, 0] for hypotheses in found]
        ended = [self.search.options.end_id in row or not row.any() for row in ids]
        translations, self.cut = self._texts(ids, rows), 0
        texts = []
        for parts, after, first in places:
            last = first + len(parts)
            texts.append(joined(translations[first:last], parts, after))
            self.cut += not all(ended[first:last])
        return texts

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
        cut = 0
        for some in chunks(texts, window):
            translations = self._translate(some)
            self.cut += cut
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
        # How products are taken is of a machine, and not of all backends.
        kept = {k: v for k, v in self.settings.items() if k != "matmul_precision"}
        settings = json.dumps(kept, indent=1, default=_plain)
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
            ValueError: a file is damaged.
        """
        folder = pathlib.Path(folder)
        model, source, target, search = check_saved(folder, FILES, "Translator")
        saved = read_json(search)
        if (folder / SHORTLIST).is_file():
            saved["shortlist"] = Shortlist.load(folder / SHORTLIST)
        vocabulary = target_vocabulary = load_vocabulary(source)
        if source.read_bytes() != target.read_bytes():
            target_vocabulary = load_vocabulary(target)
        return cls(
            read_model(model),
            vocabulary,
            target_vocabulary,
            **_over(saved, settings),
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
                alone has a mark, as of OPUS-MT and of our own recipe.
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
        marked = "source_prefix" in settings or bool(own.get("source_prefix"))
        own = {**own, **_between(found, marked, source_language, target_language)}
        settings = _over(own, settings)
        if isinstance(found, pathlib.Path):
            return cls.load(found, **settings)
        if not hasattr(found.model, "begin"):
            raise ValueError(
                "A model that generates is wanted. Received: "
                f"{type(found.model).__name__} from {os.fspath(name)!r}."
            )
        target = found.target_vocabulary
        return cls(found.model, found.vocabulary, target, **settings)

    def export(
        self,
        folder,
        num_hypotheses=None,
        version=None,
        jit_compile=False,
        shapes=((1, 16), (1, 32), (32, 32)),
    ):
        """Writes a SavedModel that takes sentences and gives sentences.

        It holds network, vocabularies and search, and runs with TensorFlow and
        tensorflow_text, without this library. Its signatures take `text`, a
        string `(B,)`, and say what a call, `translate` and the encoder say:

        * `serving_default`: `translation`, a string `(B,)`; `score`, float32
          `(B,)`, see `Hypothesis`; and `finished`, bool `(B,)`, False where a
          translation was cut at its limit;
        * `n_best`: `translations`, strings `(B, n)`, and `scores`, float32
          `(B, n)`, the best first;
        * `encode`: `ids`, int32 `(B, S)`, padded with 0, of texts that are not
          cut into parts, and `states`, float32 `(B, S, D)`, of the encoder;
        * `encode_ids`: `states` of `ids`.

        From JAX and PyTorch a process with TensorFlow writes it.

        The search is a plain graph, which takes batches and texts of any size
        as they come. With `jit_compile` XLA compiles it for each of `shapes`
        when it is first needed, which takes seconds; what fits into one is
        filled up to it, and what fits into none goes through the plain graph.

        Args:
            folder: path. Replaced when all is written.
            num_hypotheses: int from 1 to the beam's size, n; None for that.
            version: int >= 0 or None. For TensorFlow Serving: the model goes to
                `folder/version`, with texts that warm it up, for each shape if
                it compiles.
            jit_compile: bool, see above.
            shapes: pairs of ints >= 1, `(B, S)`: parts of texts (a short text
                is one), and tokens of the longest with its marks, of which
                `max_source_length` are counted at most.

        Raises:
            FileExistsError: the folder holds something else than a SavedModel.
            ValueError: `shapes` are no pairs of numbers from 1, the version is
                none, or `num_hypotheses` is not from 1 to the beam's size.
            ImportError: TensorFlow or tensorflow_text is missing; from JAX and
                PyTorch a RuntimeError, which says so.
            TypeError: a vocabulary is none of SentencePiece, or the model is
                none of Keras, or a language model.
        """
        self._check_is_one_model()
        for side in (self.vocabulary, self.target_vocabulary):
            if not hasattr(side, "tensorflow_tokenizer"):
                raise TypeError(
                    "A SavedModel cuts text by SentencePiece. Received: a vocabulary "
                    f"of type {type(side).__name__}. Serve the translator itself."
                )
        if self.search.continues_source:
            raise TypeError(
                "A SavedModel of a translator is written. Received: a model of type "
                f"{type(self.model).__name__!r}, which goes on with a text."
            )
        shapes = [[int(size) for size in shape] for shape in shapes]
        if any(len(shape) != 2 or min(shape) < 1 for shape in shapes):
            raise ValueError(
                "A shape is a number of texts and one of tokens, from 1. Received: "
                f"shapes={shapes}. Give pairs such as (32, 16)."
            )
        # No part is longer, and a table of positions may be no longer.
        most = self.max_source_length
        shapes = dict.fromkeys((rows, min(length, most)) for rows, length in shapes)
        if num_hypotheses is not None:
            size = self.settings["beam_size"]
            Options(beam_size=size, num_hypotheses=num_hypotheses)
        options = {
            "num_hypotheses": num_hypotheses,
            "version": version,
            "jit_compile": bool(jit_compile),
            "shapes": list(shapes),
        }
        if keras.config.backend() != "tensorflow":
            saved_model.write_elsewhere(self, folder, options)
            return
        saved_model.write_translator(self, folder, **options)

    def searches(self, num_hypotheses=None):
        """Makes the searches that a program of one's own holds.

        Args:
            num_hypotheses: int, n of the second; None for the beam's size.

        Returns:
            Pair of `Decoder`, without a shortlist: for the best, and for the n
            best.
        """
        count = num_hypotheses or self.settings["beam_size"]
        options = self.options.replace(shortlist=None)
        return (
            Decoder(self.model, options),
            Decoder(self.model, options.replace(num_hypotheses=count)),
        )

    def rows_of(self, texts, whole=()):
        """Gives what of texts is decoded.

        Args:
            texts: list of str.
            whole: ints, the numbers of texts that are not cut into parts.

        Returns:
            list of lists of int, the ids of every part; and for each text a
            triple: its parts, list of `Part`; str, what stands after the last;
            and the number of the first one's row.

        Raises:
            ValueError: more tokens than `max_source_length`, and no place to
                cut.
            TypeError: what comes is not text.
        """
        texts = _text_list(texts)
        if self.search.continues_source:
            whole = range(len(texts))
        found = parts_of(texts, self.vocabulary, self.pieces, *self.cuts)
        for number in whole:
            row = self.vocabulary.encode([texts[number]])[0]
            found[number] = ([Part(row, "")] if row else [], "")
        before, after = self.source_marks
        rows, places = [], []
        for number, (parts, end) in enumerate(found):
            places.append((parts, end, len(rows)))
            for part in parts:
                rows.append([*before, *part.ids, *after])
                self._check_length(number, rows[-1])
        return rows, places

    def _check_length(self, number, row):
        if len(row) > self.max_source_length:
            raise ValueError(
                f"Text {number} has {len(row)} tokens; max_source_length="
                f"{self.max_source_length}. Split it into sentences."
            )


def _blocks(weights, lengths, widths):
    """Attention of parts, each to its own."""
    whole = np.zeros((sum(lengths), sum(widths)), "float32")
    down = across = 0
    for part, length, width in zip(weights, lengths, widths, strict=True):
        block = part[:length, :width]
        whole[down : down + length, across : across + width] = block
        down, across = down + length, across + width
    return whole


def _pair(number, pair):
    fits = isinstance(pair, tuple | list) and len(pair) == 2
    if not fits or not all(isinstance(side, str) for side in pair):
        raise TypeError(
            "A source and a translation are scored, two str. Received: "
            f"{str(pair)[:60]!r} of type {type(pair).__name__}, pair {number}."
        )
    return pair


def _check_names(search, more=()):
    """Refuses what is no setting of a search, nor one of `more`."""
    Options.check_names(search, more)


def _between(found, marked, source, target):
    """Gives the settings for a pair of languages, where a model has many.

    Nothing where none is named, and one is set (`marked`).
    """
    theirs = getattr(found, "languages", None) or {}
    if isinstance(found, pathlib.Path):
        vocabulary = load_vocabulary(check_saved(found, FILES, "Translator")[1])
    else:
        vocabulary = found.vocabulary
    marks = {} if theirs else getattr(vocabulary, "languages", {})
    one = bool(marks) or bool(theirs) and found.tag_position == "target"
    known = theirs or marks
    # Ours is saved with the target that it was trained for first.
    settled = not known or marks and (marked or isinstance(found, pathlib.Path))
    if settled and source is None and target is None:
        return {}
    fault = None
    if not known:
        fault = "The model is of one pair of languages, which are not named"
    elif target is None or (source is None and not one):
        fault = "A model of many languages is told which: "
        fault += "the target" if one else "source and target"
    elif marks and source is not None:
        fault = "The target alone has a mark, and the source is not named"
    if fault:
        raise ValueError(
            f"{fault}. Received: source_language={source!r}, target_language="
            f"{target!r}; it has {sorted(known)}."
        )
    if theirs:
        return found.options_for(source, target)
    if target not in marks:
        raise ValueError(
            f"A model that translates to {', '.join(marks)}. Received: "
            f"target_language={target!r}. Name one of these."
        )
    return {"source_prefix": marks[target]}


def _over(own, given):
    """Puts settings over others.

    Others' models say as many hypotheses as they have beams.
    """
    settings = {**own, **given}
    count = own.get("num_hypotheses", 1)
    if "num_hypotheses" not in given and count > given.get("beam_size", count):
        settings["num_hypotheses"] = given["beam_size"]
    return settings


def _known_by(value):
    """Tells settings apart that JSON does not know."""
    try:
        return _plain(value)
    except TypeError:
        return id(value)


def _plain(value):
    """Gives JSON what it does not know: NumPy's numbers, ranges, sets."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (range, set, frozenset)):
        return sorted(value)
    raise TypeError(
        f"Settings are saved as JSON, which has no {type(value).__name__}. Received: "
        f"{value!r}. Make the translator without it, such as `processors`."
    )


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
    for number, text in enumerate(texts):
        if not is_unicode(text):
            raise ValueError(
                f"Text {number} has half of a surrogate pair, which is no character. "
                f"Received: {text[:60]!r}. Mend how it was decoded."
            )
    return texts
