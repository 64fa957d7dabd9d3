"""Answers jobs with a model: batches of them, or each with others in flight."""

import asyncio
import concurrent.futures
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_tfm.decode.protocol import Capabilities
from keras_tfm.pipelines.finishing import time_left
from keras_tfm.pipelines.glossary import GlossaryTranslator
from keras_tfm.pipelines.loading import load
from keras_tfm.pipelines.markup_translation import translate_markup
from keras_tfm.pipelines.model_card import known_weaknesses
from keras_tfm.pipelines.pivoting import (
    AnyTranslator,
    AutoTranslator,
    PivotTranslator,
)
from keras_tfm.pipelines.pretrained import languages_of
from keras_tfm.pipelines.shared import SharedTranslator
from keras_tfm.pipelines.translator import Translator
from keras_tfm.server.limits import MAX_TOKENS, PAGE
from keras_tfm.server.places import Turns

WARM_UP = (32, 64, 128)  # tokens; longer texts are split into sentences
ERRORS = (ValueError, TypeError)  # caused by the request, not by the server


class TooLong(ValueError):
    """A text is longer than the server allows."""


@dataclasses.dataclass(frozen=True)
class Job:
    """What one request, or a chunk of it, asks of the model.

    Attributes:
        texts: list of str.
        prefixes: list of str or None, the beginning of each translation.
        all_hypotheses: bool. Return the n-best list.
        attention: bool. Return cross-attention.
        weight: int >= 1. The number of texts of a batch that it counts as.
        format: `"text"`, `"html"` or `"xml"`.
        glossary: pairs of a term and its translation.
        num_hypotheses: int >= 1, of the n-best list to return; None for all.
        request: int, the same for the chunks of a request. Requests take turns.
        is_part: bool. Its request has other jobs, too.
    """

    texts: list[str]
    prefixes: list[str | None] | None = None
    all_hypotheses: bool = False
    attention: bool = False
    weight: int = 1
    format: str = "text"
    glossary: tuple[tuple[str, str], ...] = ()
    num_hypotheses: int | None = None
    request: int | None = None
    is_part: bool = False

    @property
    def kind(self) -> tuple:
        """Jobs of one kind are decoded together; others need other
        functions."""
        prefixed = any(self.prefixes or ())
        special = (self.format, self.glossary)
        return self.all_hypotheses, self.attention, prefixed, *special

    def split(self, pages: int) -> list["Job"]:
        """Splits a job into jobs of one text, or of some pages at most.

        Args:
            pages: int >= 1, see `limits.PAGE`.
        """
        parts: list[list[int]] = [[]]  # indices of texts
        size = 0
        for index, text in enumerate(self.texts):
            size += len(text)
            if parts[-1] and size > pages * PAGE:
                parts.append([])
                size = len(text)
            parts[-1].append(index)
        if len(parts) == 1:
            return [self]
        prefixes = self.prefixes or []
        return [
            dataclasses.replace(
                self,
                texts=[self.texts[i] for i in part],
                prefixes=prefixes and [prefixes[i] for i in part],
                weight=len(part),
            )
            for part in parts
        ]


class Engine:
    """A loaded model that answers jobs.

    Args:
        name: str, a preset or a folder, see `pipelines.load`.
        source_language, target_language: str or None, see there.
        max_attention_tokens: int >= 1, of a text whose attention is requested;
            of several texts in a job the squares have at most its square as
            their sum.
        batch_size: int >= 1, texts that a translator decodes at once.
        timeout: float > 0 or None: seconds after which a batch is given up.
        max_tokens: int >= 1, of a text to translate.
        **options: of `Translator.from_preset`.

    Attributes:
        model: `Translator`, `PivotTranslator`, `AutoTranslator` or
            `Classifier`.
        task: `"translation"` or `"classification"`.
        single: the model that answers rare kinds of jobs, text by text.
        shared: `SharedTranslator`, or None if the model has none.
        is_closed: bool. No further answers are needed; a warm-up ends.

    Raises:
        ValueError, FileNotFoundError: there is no such model, or it classifies
            pairs of texts, which no request holds.
    """

    def __init__(
        self,
        name: str,
        source_language: str | None = None,
        target_language: str | None = None,
        max_attention_tokens: int = 400,
        batch_size: int = 32,
        timeout: float | None = None,
        max_tokens: int = MAX_TOKENS,
        **options: Any,
    ):
        self.max_attention_tokens, self.timeout = max_attention_tokens, timeout
        self.max_tokens = max_tokens
        # Two threads decode half a batch each; with PyTorch one decodes it all.
        threads = 1 if keras.config.backend() == "torch" else 2
        defaults = {
            "batch_size": -(-batch_size // threads),
            # Room for a full batch of any usual length: other batch sizes would
            # need compiled functions of their own.
            "batch_tokens": batch_size * 2 * max(WARM_UP),
            "few_buckets": True,
        }
        languages = (source_language, target_language)
        self.model = load(name, *languages, defaults, **options)
        self._languages = tuple(filter(None, languages)) or languages_of(name)
        if isinstance(self.model, PivotTranslator | AutoTranslator):
            self._languages = tuple(name.split("-"))
        self._weaknesses = known_weaknesses(name)
        translates = isinstance(self.model, AnyTranslator)
        self.task = "translation" if translates else "classification"
        if not translates and self.model.paired:
            raise ValueError(
                "A server needs a classifier of single texts; got one of pairs of "
                "texts. Export it for TensorFlow Serving."
            )
        self.is_closed, self.single = False, self.model
        if translates and keras.config.backend() != "torch":
            # Rare kinds of jobs are compiled for one text only.
            self.single = self.model.replace(batch_size=1)
        self.shared, self._turns = None, Turns()
        can_share = isinstance(self.model, Translator) and batch_size > 1
        if can_share and SharedTranslator.supports(self.model):
            self.shared = SharedTranslator(self.model, batch_size)
        self._reader = concurrent.futures.ThreadPoolExecutor(1, "reader")

    def close(self) -> None:
        """Ends the threads of the engine when the last answer has been sent.

        They may still decode for clients that have gone. At the exit of Python
        that would abort the process.
        """
        self.is_closed = True
        if self.shared is not None:
            self.shared.close()
        self._reader.shutdown()

    def describe(self) -> dict[str, Any]:
        """Returns what the model can do, as JSON values."""
        shared = {
            "kind": self.task,
            "languages": list(self._languages),
            "weaknesses": self._weaknesses,
        }
        if self.task == "classification":
            return {**shared, "classes": self.model.classes}
        has_attention = False
        if isinstance(self.model, Translator):  # two models have none
            capabilities = Capabilities.of(self.model.model)
            has_attention = "return_attention" in capabilities.begin_options
        return {
            **shared,
            "hypotheses": min(options.beam_size for options in self._decoding),
            "attention": has_attention,
            "streams": not any(options.samples for options in self._decoding),
        }

    @property
    def _decoding(self):
        """The options of the translators that write the answers."""
        translators: list[Any] = [self.model]
        if isinstance(self.model, AutoTranslator):
            translators = [self.model.translator(c) for c in self.model.sources]
        return [
            (t.second if isinstance(t, PivotTranslator) else t).decoder.options
            for t in translators
        ]

    def answers(self, jobs: Sequence[Job]) -> list:
        """Answers jobs together.

        Args:
            jobs: list of `Job`.

        Returns:
            For each job a list of dicts of JSON values, one for each text; or
            the error that the job caused; or a `TimeoutError`.
        """
        results: list = [None] * len(jobs)
        # Of all kinds: after it no client waits any more.
        left = time_left(self.timeout)
        for kind in sorted({job.kind for job in jobs}):
            indices = [i for i, job in enumerate(jobs) if job.kind == kind]
            try:
                answers = self._answer_together([jobs[i] for i in indices], left)
            except TimeoutError as error:
                answers = [error] * len(indices)
            except ERRORS:  # one job is at fault; the others get their answers
                answers = [self._answer_alone(jobs[i], left) for i in indices]
            for index, answer in zip(indices, answers, strict=True):
                results[index] = answer
        return results

    def can_share(self, job: Job) -> bool:
        """Returns whether a job can be decoded by continuous batching."""
        return self.shared is not None and job.kind == (
            False,
            False,
            False,
            "text",
            (),
        )

    async def share(self, job: Job) -> list[dict] | Exception:
        """Answers a job by continuous batching, see `answers`.

        Args:
            job: `Job` that `can_share` accepts.
        """
        try:
            async with self._turns.take(job.request):
                sources = await _read(self, job.texts)
            translations = await self.shared.decode(sources, self.timeout, job.request)
        except (*ERRORS, TimeoutError) as error:
            return error
        return [_translation_json(translation) for translation in translations]

    def stream(self, text: str, target_prefix: str | None = None) -> Iterator[str]:
        """Translates greedily, see `Translator.stream`.

        Raises:
            TooLong: the text has too many tokens.
            TimeoutError: its first translation, of a pivot, took too long.
        """
        self._check_lengths([text])
        if isinstance(self.single, Translator):  # each token is a step
            return self.single.stream(text, target_prefix)
        return self.single.stream(text, target_prefix, self.timeout)

    def _answer_alone(self, job, left):
        try:
            return self._answer_together([job], left)[0]
        except (*ERRORS, TimeoutError) as error:
            return error

    def _answer_together(self, jobs, left=lambda: None):
        """Answers jobs of one kind, in the seconds that are left."""
        texts = [text for job in jobs for text in job.texts]
        if self.task == "classification":
            answers = [_prediction_json(prediction) for prediction in self.model(texts)]
        else:
            prefixes = [
                prefix
                for job in jobs
                for prefix in job.prefixes or [None] * len(job.texts)
            ]
            all_hypotheses, attention, _, format, glossary = jobs[0].kind
            for job in jobs:
                self._check_lengths(job.texts, attention)
            if format != "text" or glossary:
                answers = self._translate_specially(texts, format, glossary, left())
                return _by_job(jobs, answers)
            options = {**self.options(all_hypotheses, attention), "timeout": left()}
            translations = self._translate(texts, prefixes, all_hypotheses, options)
            counts = [job.num_hypotheses for job in jobs for _ in job.texts]
            answers = list(map(_translation_json, translations, counts))
        return _by_job(jobs, answers)

    def _translate_specially(self, texts, format, glossary, timeout):
        """Answers texts of HTML or XML, or with a glossary."""
        translator: Any = self.single
        if glossary and not isinstance(translator, Translator):
            raise ValueError(
                "`glossary` needs one model; the server translates by several. Leave "
                "it out."
            )
        if isinstance(translator, AutoTranslator):
            raise ValueError(
                f"`format` must be 'text' for detected languages; got {format!r}. Use "
                "a server of one language, such as `keras-tfm serve de-fr`."
            )
        if glossary:
            translator = GlossaryTranslator(translator, dict(glossary))
        if format == "text":
            translations = translator.translate(texts, timeout=timeout)
            return [_translation_json(translation) for translation in translations]
        translated = translate_markup(translator, texts, format, timeout=timeout)
        return [_text_json(text) for text in translated]

    def _translate(self, texts, prefixes, all_hypotheses, options):
        prefixes = prefixes if any(prefixes) else None
        translator = self.single if all_hypotheses or prefixes else self.model
        return translator.translate(texts, target_prefix=prefixes, **options)

    def options(self, all_hypotheses: bool, attention: bool) -> dict[str, Any]:
        """Returns the options of `Translator.translate` for a kind of jobs.

        Args:
            all_hypotheses, attention: bool, as of a `Job`.
        """
        beam_size = min(options.beam_size for options in self._decoding)
        options = {"num_hypotheses": beam_size} if all_hypotheses else {}
        return {**options, "return_attention": True} if attention else options

    def _check_lengths(self, texts, attention=False):
        """Rejects texts with too many tokens; to count them takes
        milliseconds."""
        first: Any = self.model
        if isinstance(first, AutoTranslator):  # others count about the same
            first = first.translator(first.sources[0])
        first = getattr(first, "first", first)  # of a pivot
        lengths = list(map(len, first.vocabulary.encode(texts)))
        longest = max(lengths, default=0)
        if longest > self.max_tokens:
            raise TooLong(
                f"A text must have at most {self.max_tokens} tokens; got {longest}. "
                "Send its paragraphs one by one."
            )
        limit = self.max_attention_tokens
        if attention and longest > limit:
            raise TooLong(
                f"`return_attention` needs texts of at most {limit} tokens; got "
                f"{longest}. Request the translation alone."
            )
        # Attention has about as many numbers as the square of the tokens.
        if attention and sum(length**2 for length in lengths) > limit**2:
            raise TooLong(
                "`return_attention` needs a few short texts, or one of at most "
                f"{limit} tokens; got {len(texts)} texts of up to {longest} tokens. "
                "Send them one by one."
            )


async def _read(engine, texts):
    """Tokenizes texts; long ones in a thread, so that the event loop passes on
    what other requests wait for."""

    def read():
        engine._check_lengths(texts)
        return engine.model.encode(texts)

    if sum(map(len, texts)) <= PAGE:
        return read()
    return await asyncio.get_running_loop().run_in_executor(engine._reader, read)


def _by_job(jobs, answers):
    remaining = iter(answers)
    return [[next(remaining) for _ in job.texts] for job in jobs]


def _text_json(text):
    """The answer for a document, which has neither score nor tokens."""
    hypothesis = {"text": text, "score": None, "truncated": False}
    hypothesis |= {"number_mismatch": False, "tokens": [], "attention": None}
    return {"source_tokens": [], "hypotheses": [hypothesis], "unmet_terms": {}}


def _translation_json(translation, num_hypotheses=None):
    return {
        "unmet_terms": translation.unmet_terms,
        "source_tokens": translation.source_tokens,
        "hypotheses": [
            {
                "text": hypothesis.text,
                "score": hypothesis.score if np.isfinite(hypothesis.score) else None,
                "truncated": hypothesis.truncated,
                "number_mismatch": hypothesis.number_mismatch,
                "tokens": hypothesis.tokens,
                "attention": _attention_json(hypothesis.attention),
            }
            for hypothesis in translation.hypotheses[:num_hypotheses]
        ],
    }


def _attention_json(attention):
    if attention is None:
        return None
    return np.round(attention.astype("float64"), 4).tolist()


def _prediction_json(prediction):
    probabilities = prediction.probabilities
    names = sorted(probabilities, key=probabilities.get, reverse=True)
    return {
        "label": prediction.label,
        "probabilities": {name: float(probabilities[name]) for name in names},
        "truncated": prediction.truncated,
    }
