"""Decodes with CTranslate2, an engine for Transformers in C++."""

import collections
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_tfm import zoo
from keras_tfm.decode import inputs
from keras_tfm.decode.hypotheses import Hypotheses
from keras_tfm.decode.options import Options
from keras_tfm.decode.protocol import Capabilities
from keras_tfm.models import Transformer

# Options that the engine has under the same name.
SAME_OPTIONS = ("beam_size", "num_hypotheses", "length_penalty", "coverage_penalty")
SAME_OPTIONS += ("patience", "repetition_penalty", "no_repeat_ngram_size")
SAME_OPTIONS += ("min_decoding_length", "return_attention", "sampling_topk")
SAME_OPTIONS += ("sampling_topp", "sampling_temperature")
# Those that it lacks, or means otherwise; they must have their defaults.
LACKING = ("length_penalty_form", "late_stopping", "num_beam_groups")
LACKING += ("diversity_penalty", "sampling_minp", "sampling_epsilon")
LACKING += ("logits_processors", "shortlist", "return_alternatives")
LACKING += ("return_token_scores", "matmul_precision")
STREAMED = ("min_decoding_length", "sampling_topk", "sampling_topp")
STREAMED += ("sampling_temperature", "repetition_penalty", "no_repeat_ngram_size")


class Engine(NamedTuple):
    """A model in CTranslate2.

    Attributes:
        translator: `ctranslate2.Translator`. Its tokens are the ids as strings.
        compute_type: str, of `decode.Options`.
        special_ids: the ids of the unknown token, the start and the end.
        num_workers: int, batches that it decodes at once.
    """

    translator: Any
    compute_type: str
    special_ids: tuple[int, int, int]
    num_workers: int


class CTranslate2Decoder:
    """Decodes source ids as `runtime.Decoder` does, with CTranslate2.

    The weights are converted when the object is made; later changes of the
    model have no effect. One batch uses all cores. Hypotheses are those of a
    `Decoder` with `early_stopping=True`, whatever that option is, and with
    `score_prefix=False` where they begin with a prefix.

    Args:
        model: `Transformer` that `zoo.to_ctranslate2` can convert.
        options: `decode.Options` with the engine `"ctranslate2"`.
        engine: `Engine` of the same model to use again if it fits, or None.

    Attributes:
        model, options, engine: the arguments, or the new `Engine`.
        max_positions: int or None, as of `Decoder`.
        continues_source: False.
        vocabulary_size: int, source tokens.

    Raises:
        ImportError: `ctranslate2` is not installed.
        ValueError: the engine lacks the model, an option, or the compute type
            on this processor.

    Example:
        ```python
        # requires: ctranslate2
        from keras_tfm import decode, engines, models

        model = models.Transformer(
            40, num_layers=1, embedding_dim=8, intermediate_dim=8, num_heads=2
        )
        options = decode.Options(engine="ctranslate2", beam_size=2)
        decoder = engines.CTranslate2Decoder(model, options)
        [(_, hypotheses)] = decoder.bulk([[4, 5, 6]])
        assert hypotheses.ids.shape[:2] == (1, 1)
        ```

    Source: https://opennmt.net/CTranslate2
    """

    continues_source = False

    def __init__(
        self, model: Transformer, options: Options, engine: Engine | None = None
    ):
        _check_options(options)
        special_ids = (options.unk_id, options.start_id, options.end_id)
        if engine is None or engine[1:3] != (options.compute_type, special_ids):
            engine = _load(model, options.compute_type, special_ids)
        self.model, self.options, self.engine = model, options, engine
        capabilities = Capabilities.of(model)
        self.max_positions = capabilities.max_positions
        self.vocabulary_size = capabilities.vocabulary_size

    def __repr__(self) -> str:
        return f"<CTranslate2Decoder: {type(self.model).__name__}, {self.options!r}>"

    def replace(self, **changes: Any) -> "CTranslate2Decoder":
        """Returns a decoder of the same model with some options changed.

        Args:
            **changes: of `decode.Options`.
        """
        options = self.options.replace(**changes)
        return CTranslate2Decoder(self.model, options, self.engine)

    def __call__(
        self,
        source_ids: Any,
        target_prefix: Sequence | None = None,
        constraints: Sequence | None = None,
        seed: int | None = None,
    ) -> Hypotheses:
        """Decodes a batch, see `Decoder`.

        Raises:
            ValueError: constraints or a seed, which the engine does not have;
                or as `Decoder`.
        """
        if constraints is not None and any(map(len, constraints)):
            raise ValueError(
                "`constraints` need the engine 'keras'; got engine='ctranslate2'."
            )
        rows = self._rows(source_ids)
        pairs = self.bulk(rows, seed=seed, target_prefix=target_prefix)
        by_row = dict(pairs)
        if not by_row:
            empty = self._hypotheses([], None)
            return Hypotheses(*(a if a is None else a[:0] for a in empty))
        return _stack([by_row[number] for number in range(len(rows))])

    def bulk(
        self,
        source_ids: Iterable[Sequence[int]],
        batch_tokens: int = 2048,
        batch_size: int = 64,
        inter_threads: int | None = None,
        seed: int | None = None,
        target_prefix: Sequence[Sequence[int]] | None = None,
        compile_lengths: bool | None = None,
    ) -> Iterator[tuple[int, Hypotheses]]:
        """Decodes any number of sources, see `Decoder.bulk`.

        Args:
            source_ids, batch_tokens, batch_size, target_prefix: as there.
            inter_threads, compile_lengths: have no effect.
            seed: None.

        Yields:
            The index of a source, and its `Hypotheses` with B = 1.
        """
        if seed is not None:
            raise ValueError(
                f"`seed` needs the engine 'keras'; got seed={seed} with "
                "engine='ctranslate2'. Leave it out."
            )
        rows = self._rows(list(source_ids))
        prefixes = [list(p or ()) for p in target_prefix or [[]] * len(rows)]
        if any(prefixes) and self.options.score_prefix:
            raise ValueError(
                "`target_prefix` needs score_prefix=False with engine='ctranslate2', "
                "which does not score prefixes; got score_prefix=True. Change it, or "
                "set engine='keras'."
            )
        order = sorted(range(len(rows)), key=lambda number: len(rows[number]))
        for number in order:
            if not rows[number]:
                yield number, self._hypotheses(rows[number], None)
        order = [number for number in order if rows[number]]
        size = min(batch_size, -(-len(order) // self.engine.num_workers))
        # Few batches at once: callers that give up must not wait for the rest,
        # and sources of other threads must not wait behind all of them.
        started: collections.deque = collections.deque()
        while order or started:
            while order and len(started) <= self.engine.num_workers:
                longest = len(rows[order[:size][-1]])
                count = max(1, min(size, batch_tokens // longest))
                numbers, order = order[:count], order[count:]
                batch = [rows[n] for n in numbers], [prefixes[n] for n in numbers]
                started.append((numbers, *batch, self._start(*batch)))
            numbers, *batch = started.popleft()
            for number, result in zip(numbers, self._results(*batch), strict=True):
                yield number, self._hypotheses(rows[number], result)

    def warm_up(self, *arguments: Any, **keywords: Any) -> None:
        """Does nothing: the engine compiles nothing."""

    def stream(
        self, source_ids: Any, target_prefix: Sequence | None = None
    ) -> Iterator[np.ndarray]:
        """Decodes one source greedily, see `Decoder.stream`."""
        [row] = self._rows(source_ids)
        [prefix] = target_prefix or [[]]
        if self.options.beam_size > 1:
            raise ValueError(
                "`stream` needs greedy search; got beam_size="
                f"{self.options.beam_size}. Set beam_size=1."
            )
        if not row:
            return
        steps = self.engine.translator.generate_tokens(
            _tokens(row),
            _tokens(prefix) or None,
            max_decoding_length=self.length_limit(len(row)),
            max_input_length=0,
            **{name: getattr(self.options, name) for name in STREAMED},
            **self._suppressed(),
        )
        for step in steps:
            yield np.array([step.token_id], "int32")

    def _rows(self, source_ids):
        """Lists of ids without padding, checked."""
        array = inputs.source_array(source_ids, self.vocabulary_size)
        lengths = (array != 0).sum(axis=-1)
        return [row[:n].tolist() for row, n in zip(array, lengths, strict=True)]

    def length_limit(self, source_length: int) -> int:
        """Returns the most tokens of a hypothesis, see `Decoder.length_limit`.

        Args:
            source_length: int, in tokens.
        """
        factor, constant = self.options.length_rule
        limit = factor * source_length + constant
        return limit if self.max_positions is None else min(limit, self.max_positions)

    def _suppressed(self):
        ids = sorted(self.options.suppressed_ids - {self.options.unk_id})
        sequences = [[number] for number in ids] + list(self.options.suppress_sequences)
        return {
            "suppress_sequences": [_tokens(ids) for ids in sequences],
            "disable_unk": self.options.disable_unk,
        }

    def _start(self, rows, prefixes, limit=None):
        """Starts to decode a batch; returns futures of the results."""
        options = {name: getattr(self.options, name) for name in SAME_OPTIONS}
        if self.options.beam_size > 1:
            # For one hypothesis the engine would stop when the best beam ends.
            options["num_hypotheses"] = max(2, self.options.num_hypotheses)
        options |= {"max_input_length": 0, "return_scores": True}
        options |= {"return_end_token": True, **self._suppressed()}
        return self.engine.translator.translate_batch(
            list(map(_tokens, rows)),
            list(map(_tokens, prefixes)) if any(prefixes) else None,
            max_decoding_length=limit or max(self._limits(rows)),
            asynchronous=True,
            **options,
        )

    def _results(self, rows, prefixes, futures):
        """Results of the engine. One limit of length holds for a batch: a row
        that exceeds its own limit is decoded again."""
        results = [future.result() for future in futures]
        for number, limit in enumerate(self._limits(rows)):
            if max(map(len, results[number].hypotheses)) > limit:
                [future] = self._start([rows[number]], [prefixes[number]], limit)
                results[number] = future.result()
        return results

    def _limits(self, rows):
        return [self.length_limit(len(row)) for row in rows]

    def _hypotheses(self, row, result):
        """`Hypotheses` with B = 1; without ids if there is no result."""
        count = self.options.num_hypotheses
        texts = result.hypotheses[:count] if result else []
        texts = [list(map(int, ids)) for ids in texts]
        longest = max(map(len, texts), default=1)
        ids = np.zeros((1, count, longest), "int32")
        lengths = np.zeros((1, count), "int32")
        scores = np.full((1, count), -np.inf, "float32")
        attention = None
        if self.options.return_attention:
            attention = np.zeros((1, count, longest, max(len(row), 1)), "float32")
        for number, text in enumerate(texts):
            ids[0, number, : len(text)] = text
            lengths[0, number], scores[0, number] = len(text), result.scores[number]
            if attention is not None and text:
                attention[0, number, : len(text)] = result.attention[number]
        return Hypotheses(ids, scores, lengths, None, attention)


def _check_options(options):
    fields = type(options).__dataclass_fields__
    wrong = {
        name: getattr(options, name)
        for name in LACKING
        if getattr(options, name) != fields[name].default
    }
    if wrong:
        raise ValueError(
            "The engine 'ctranslate2' needs the defaults of "
            f"{', '.join(wrong)}; got {wrong}. Leave them out, or set engine='keras'."
        )


def _load(model, compute_type, special_ids):
    """Converts a model into a folder that is removed again, and loads it."""
    try:
        import ctranslate2
    except ImportError as error:
        raise ImportError(
            "The engine 'ctranslate2' needs its package, which cannot be imported "
            f"({error}). Install `ctranslate2`, or set engine='keras'."
        ) from error
    supported = ctranslate2.get_supported_compute_types("cpu")
    if compute_type not in supported:
        raise ValueError(
            "`compute_type` must be one that CTranslate2 has on this processor, "
            f"{', '.join(sorted(supported))}; got {compute_type!r}."
        )
    if not isinstance(model, Transformer):
        raise ValueError(
            "The engine 'ctranslate2' needs a Transformer; got "
            f"{type(model).__name__}. Set engine='keras'."
        )
    sizes = (model.vocabulary_size, model.target_vocabulary_size)
    source, target = (_tokens(range(size)) for size in sizes)
    cores = _num_cores()
    with tempfile.TemporaryDirectory() as folder:
        zoo.to_ctranslate2(
            model, source, folder, target_vocabulary=target, special_ids=special_ids
        )
        translator = ctranslate2.Translator(
            folder, compute_type=compute_type, inter_threads=cores, intra_threads=1
        )
    return Engine(translator, compute_type, special_ids, cores)


def _num_cores():
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        return os.cpu_count() or 1


def _tokens(ids):
    return [str(number) for number in ids]


def _stack(items):
    """One `Hypotheses` of B rows of those with B = 1."""
    columns = []
    for arrays in zip(*items, strict=True):
        if arrays[0] is None:
            columns.append(None)
            continue
        shape = np.max([array.shape[2:] for array in arrays], axis=0)
        padded = []
        for array in arrays:
            rest = zip(shape, array.shape[2:], strict=True)
            width = [(0, 0), (0, 0), *((0, int(size - n)) for size, n in rest)]
            padded.append(np.pad(array, width[: array.ndim]))
        columns.append(np.concatenate(padded))
    return Hypotheses(*columns)
