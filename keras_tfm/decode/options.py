"""Decoding options: one immutable value, documented and validated once."""

import dataclasses
import difflib
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from keras_tfm.decode.option_checks import (
    check_count,
    check_ids,
    check_number,
    check_probability,
    is_integer,
)
from keras_tfm.decode.shortlist import Shortlist

# Names in other libraries, for which an error suggests ours.
PEER_NAMES = {
    "num_beams": "beam_size",
    "num_return_sequences": "num_hypotheses",
    "temperature": "sampling_temperature",
    "top_k": "sampling_topk",
    "top_p": "sampling_topp",
    "max_length": "max_decoding_length",
    "max_new_tokens": "max_decoding_length",
    "min_length": "min_decoding_length",
    "nbest": "num_hypotheses",
    "alpha": "length_penalty",
    "do_sample": "sampling_topk",
    "sampler": "sampling_topk",
    "eos_token_id": "end_id",
    "stop_token_ids": "end_id",
    "bos_token_id": "start_id",
    "decoder_start_token_id": "start_id",
}
_COUNTS = {
    "beam_size": 1,
    "num_hypotheses": 1,
    "num_beam_groups": 1,
    "min_decoding_length": 0,
    "no_repeat_ngram_size": 0,
    "sampling_topk": 0,
}
# Options with a few allowed values.
_CHOICES = {
    "length_penalty_form": ("mean", "gnmt"),
    "matmul_precision": ("float32", "bfloat16", "int8"),
    "engine": ("keras", "ctranslate2", "auto"),
    "compute_type": ("float32", "bfloat16", "int8", "int8_bfloat16", "int16"),
}
# Options that are True or False.
_FLAGS = ("early_stopping", "late_stopping", "disable_unk", "score_prefix")
_FLAGS += ("return_alternatives", "return_token_scores", "return_attention")
_FLAGS += ("jit_compile", "few_buckets")
# Closed or open intervals: the lowest value, and whether it is allowed.
_NUMBERS = {
    "length_penalty": (0, True),
    "coverage_penalty": (0, True),
    "diversity_penalty": (0, True),
    "patience": (0, False),
    "repetition_penalty": (0, False),
    "sampling_temperature": (0, False),
    "sampling_topp": (0, False),
    "sampling_minp": (0, True),
    "sampling_epsilon": (0, True),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Holds every option of decoding.

    Names and meanings are those of CTranslate2; `num_beam_groups`,
    `diversity_penalty` and `early_stopping=True` are those of Hugging Face
    transformers. An instance is immutable: `replace` returns a changed copy.

    Attributes:
        beam_size: int >= 1, K. 1 is greedy search, or sampling.
        num_hypotheses: int from 1 to K, n: hypotheses returned for each source,
            the best first; n does not change which. With `patience` below 1 at
            most `beam_size * patience`, with sampling any number.
        length_penalty: float >= 0, see `decode.penalty`.
        length_penalty_form: `"mean"` or `"gnmt"`, see `decode.penalty`.
        coverage_penalty: float >= 0. Adds `coverage_penalty * sum(log(min(a,
            1)))` to a score, where `a` is the attention that each source token
            has received (Wu et al. 2016, equation 14). It is not divided by the
            length: combine it with the form `"gnmt"`; 0.2 is usual for both.
        patience: float > 0. A source is finished after `beam_size * patience`
            finished hypotheses, if no live beam scores higher than the best of
            them. Source: Kasai et al. 2022.
        early_stopping: bool. Stop there even if a live beam scores higher.
        late_stopping: bool. Continue while a live beam scores higher than the
            worst of the best K finished hypotheses, as transformers does by
            default.
        num_beam_groups: int >= 1 that divides `beam_size`: groups of diverse
            beam search. Source: Vijayakumar et al. 2016.
        diversity_penalty: float >= 0, subtracted from the log-probability of a
            token for each earlier group that has chosen it at this step.
        max_decoding_length: int >= 1, in tokens, the end token included; or a
            pair (m, c): m times the source length plus c; None is (2, 16).
            Learned positions of the model limit it further.
        min_decoding_length: int >= 0, in tokens, the end token not included.
        repetition_penalty: float > 0. 1 disables it.
        no_repeat_ngram_size: int >= 0. N-grams of this size never repeat; 0
            disables it.
        suppress_sequences: sequences of token ids that are never generated.
        suppress_ids: token ids that are never generated; None stands for
            padding (0) and `start_id`.
        disable_unk: bool. Never generate `unk_id`. True by default, unlike in
            CTranslate2.
        sampling_topk: int >= 0. 1 disables sampling; k > 1 samples from the k
            likeliest tokens; 0 samples from all tokens.
        sampling_topp: float in (0, 1], see `logits_processors.top_p`.
        sampling_minp: float in [0, 1], see `logits_processors.minimum_p`.
        sampling_epsilon: float in [0, 1), see `logits_processors.epsilon`.
        sampling_temperature: float > 0.
        logits_processors: functions `(logits, history) -> logits`, see
            `decode.logits_processors`. They run after the processors of the
            other options and before those of sampling.
        shortlist: `decode.Shortlist` or None: the candidate target tokens of
            each source. The model's `begin` must accept `candidates`.
        score_prefix: bool. Count the log-probabilities of prefix tokens in the
            score.
        return_alternatives: bool. Take the n likeliest tokens after the prefix,
            and return the best continuation of each, in the order of these
            tokens. n may exceed `beam_size`.
        return_token_scores: bool. Return `Hypotheses.token_scores`.
        return_attention: bool. Return `Hypotheses.attention`.
        start_id: int. The token that starts decoding.
        end_id: int. The token that ends a hypothesis.
        unk_id: int. The unknown token.
        jit_compile: bool. Compile with XLA on TensorFlow.
        few_buckets: bool. Round lengths up to 32, 64, 128, ...: half as many
            compiled functions, each about a tenth slower.
        matmul_precision: `"float32"`; or `"bfloat16"` on JAX and PyTorch:
            multiply float32 weights in bfloat16, see `runtime.compile`.
            It is faster on processors with AVX512_BF16 or AMX. Or `"int8"` on
            PyTorch, with AVX512_VNNI, AVX_VNNI or AMX, see `runtime.int8`.
        engine: `"keras"`; in a `Translator` also `"ctranslate2"`, or `"auto"`
            for the faster of both, see `engines`.
        compute_type: type of the weights of CTranslate2, such as `"int8"`.

    Raises:
        ValueError: a value is out of its range, or two options exclude each
            other.

    Example:
        ```python
        from keras_tfm import decode

        options = decode.Options(beam_size=4, length_penalty=0.6)
        greedy = options.replace(beam_size=1)
        assert (options.beam_size, greedy.beam_size) == (4, 1)
        ```
    """

    # How hypotheses are searched and scored.
    beam_size: int = 1
    num_hypotheses: int = 1
    length_penalty: float = 1.0
    length_penalty_form: str = "mean"
    coverage_penalty: float = 0.0
    patience: float = 1.0
    early_stopping: bool = False
    late_stopping: bool = False
    num_beam_groups: int = 1
    diversity_penalty: float = 0.0
    # How long they are.
    max_decoding_length: int | Sequence[int] | None = None
    min_decoding_length: int = 0
    # Which tokens they may hold.
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    suppress_sequences: Sequence[Sequence[int]] = ()
    suppress_ids: Sequence[int] | None = None
    disable_unk: bool = True
    # How tokens are sampled.
    sampling_topk: int = 1
    sampling_topp: float = 1.0
    sampling_minp: float = 0.0
    sampling_epsilon: float = 0.0
    sampling_temperature: float = 1.0
    logits_processors: Sequence[Callable] = ()
    shortlist: Shortlist | None = None
    score_prefix: bool = True
    # What is returned.
    return_alternatives: bool = False
    return_token_scores: bool = False
    return_attention: bool = False
    # Special tokens.
    start_id: int = 2
    end_id: int = 3
    unk_id: int = 1
    # How it is run.
    jit_compile: bool = True
    few_buckets: bool = False
    matmul_precision: str = "float32"
    engine: str = "keras"
    compute_type: str = "float32"

    def __post_init__(self) -> None:
        for name, least in _COUNTS.items():
            check_count(name, getattr(self, name), least)
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool | np.bool_):
                raise ValueError(
                    f"`{name}` must be True or False; got {getattr(self, name)!r}."
                )
        for name, (least, closed) in _NUMBERS.items():
            check_number(name, getattr(self, name), least, closed)
        for name in ("sampling_topp", "sampling_minp", "sampling_epsilon"):
            check_probability(name, getattr(self, name), name != "sampling_epsilon")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"`{name}` must be {' or '.join(map(repr, choices))}; got "
                    f"{getattr(self, name)!r}."
                )
        self._freeze_sequences()
        self._check_lengths()
        self._check_special_ids()
        self._check_combinations()

    def _freeze_sequences(self):
        """Turns lists and generators into tuples."""
        # A string is iterable too, but its characters cannot be called.
        processors = self.logits_processors
        processors = tuple(processors) if isinstance(processors, Iterable) else None
        if processors is None or not all(map(callable, processors)):
            raise ValueError(
                "`logits_processors` must be a list of functions (logits, history) -> "
                f"logits; got {self.logits_processors!r}."
            )
        frozen: dict[str, Any] = {"logits_processors": processors}
        if self.suppress_ids is not None:
            frozen["suppress_ids"] = check_ids("suppress_ids", self.suppress_ids)
        name = "suppress_sequences"
        if not isinstance(self.suppress_sequences, Iterable):
            raise ValueError(
                f"`{name}` must be a list of lists of token ids; got "
                f"{self.suppress_sequences!r}."
            )
        frozen[name] = tuple(check_ids(name, ids) for ids in self.suppress_sequences)
        if not all(frozen[name]):
            raise ValueError(
                f"`{name}` must hold lists of 1 or more token ids; got []."
            )
        for field, value in frozen.items():
            # The only way to set a field of a frozen dataclass.
            object.__setattr__(self, field, value)

    def _check_lengths(self):
        rule, length = self.length_rule, self.max_decoding_length
        is_whole = all(map(is_integer, rule))
        if not is_whole or len(rule) != 2 or min(rule) < 0 or max(rule) < 1:
            raise ValueError(
                "`max_decoding_length` must be an integer of at least 1, or a pair "
                f"(m, c) for m times the source length plus c; got {length!r}."
            )
        if not rule[0] and self.min_decoding_length >= rule[1]:
            raise ValueError(
                "`min_decoding_length` must be less than `max_decoding_length`; got "
                f"min_decoding_length={self.min_decoding_length}, "
                f"max_decoding_length={length}."
            )

    def _check_special_ids(self):
        for name in ("start_id", "end_id", "unk_id"):
            token = getattr(self, name)
            if not is_integer(token) or token < 1:
                raise ValueError(
                    f"`{name}` must be a token id of at least 1, since 0 is padding; "
                    f"got {token!r}."
                )
        if self.start_id == self.end_id:
            raise ValueError(
                "`start_id` and `end_id` must be different tokens; got "
                f"start_id={self.start_id}, end_id={self.end_id}."
            )

        # Without an end each hypothesis would run to its limit.
        if self.disable_unk and self.unk_id == self.end_id:
            raise ValueError(
                "`unk_id` must not be the end token, which would never be generated; "
                f"got unk_id={self.unk_id}, end_id={self.end_id}. Change it, or set "
                "disable_unk=False."
            )

    def _check_combinations(self):
        if self.engine == "keras" and self.compute_type != "float32":
            raise ValueError(
                "`compute_type` is an option of the engine 'ctranslate2'; got engine="
                f"'keras' and compute_type={self.compute_type!r}. Set `engine`."
            )
        if self.samples:
            self._check_sampling()
        else:
            self._check_search()
        if not isinstance(self.shortlist, Shortlist | None):
            raise ValueError(
                f"`shortlist` must be a `Shortlist` or None; got {self.shortlist!r}."
            )
        if self.shortlist is not None and (
            self.logits_processors or self.suppress_sequences
        ):
            raise ValueError(
                "`shortlist` excludes `logits_processors` and `suppress_sequences`: "
                "with it each row has logits of its own candidate tokens. Leave one "
                "of them out."
            )

    def _check_sampling(self):
        conflicts = {
            "beam_size": self.beam_size > 1,
            "num_beam_groups": self.num_beam_groups > 1,
            "diversity_penalty": self.diversity_penalty > 0,
            "coverage_penalty": self.coverage_penalty > 0,
            "return_alternatives": self.return_alternatives,
        }
        for name, conflict in conflicts.items():
            if conflict:
                default = getattr(type(self), name)  # a preset may have another
                raise ValueError(
                    f"`{name}` needs beam search; got {name}={getattr(self, name)} "
                    f"with sampling_topk={self.sampling_topk}. Set sampling_topk=1 "
                    f"or {name}={default}."
                )

    def _check_search(self):
        unsampled = {
            "sampling_temperature": 1.0,
            "sampling_topp": 1.0,
            "sampling_minp": 0.0,
            "sampling_epsilon": 0.0,
        }
        for name, neutral in unsampled.items():
            if getattr(self, name) != neutral:
                raise ValueError(
                    f"`{name}` has no effect without sampling; got "
                    f"{name}={getattr(self, name)} with sampling_topk=1. Set "
                    "sampling_topk=0 to sample from all tokens."
                )
        if self.num_hypotheses > self.beam_size and not self.return_alternatives:
            raise ValueError(
                "`beam_size` must be at least `num_hypotheses`; got "
                f"beam_size={self.beam_size}, num_hypotheses={self.num_hypotheses}. "
                "Increase `beam_size`."
            )
        # The search may end with so many; it always finds one.
        if self.num_hypotheses > max(1, self.beam_size * self.patience) and (
            not self.return_alternatives
        ):
            raise ValueError(
                "`num_hypotheses` must be at most `beam_size * patience`, after which "
                f"the search ends; got num_hypotheses={self.num_hypotheses}, beam_size="
                f"{self.beam_size}, patience={self.patience}. Increase `patience`."
            )
        if self.early_stopping and self.late_stopping:
            raise ValueError(
                "`early_stopping` and `late_stopping` exclude each other; got both. "
                "Leave one out."
            )
        if self.beam_size % self.num_beam_groups:
            raise ValueError(
                "`num_beam_groups` must divide `beam_size`; got num_beam_groups="
                f"{self.num_beam_groups}, beam_size={self.beam_size}."
            )
        if self.diversity_penalty and self.num_beam_groups == 1:
            raise ValueError(
                "`diversity_penalty` requires `num_beam_groups` > 1; got "
                f"diversity_penalty={self.diversity_penalty}, num_beam_groups=1."
            )

    def __repr__(self) -> str:
        """Shows the options that are not the defaults."""
        changed = (
            f"{field.name}={value!r}"
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) != field.default
        )
        return f"{type(self).__name__}({', '.join(changed)})"

    @property
    def samples(self) -> bool:
        """Whether tokens are sampled."""
        return self.sampling_topk != 1

    @property
    def length_rule(self) -> tuple[int, int]:
        """The pair (m, c) of `max_decoding_length`."""
        rule = (2, 16) if self.max_decoding_length is None else self.max_decoding_length
        pair = rule if isinstance(rule, (tuple, list)) else (0, rule)
        return tuple(pair)  # pyright: ignore[reportReturnType]: two, once checked

    @property
    def suppressed_ids(self) -> frozenset[int]:
        """The ids of all tokens that are never generated."""
        ids = (0, self.start_id) if self.suppress_ids is None else self.suppress_ids
        return frozenset([*ids, *([self.unk_id] if self.disable_unk else [])])

    @property
    def num_special_ids(self) -> int:
        """Ids below this keep their index in every shortlist."""
        return 1 + max(self.start_id, self.end_id, self.unk_id)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Returns the names of all options.

        Example:
            ```python
            from keras_tfm import decode

            assert "beam_size" in decode.Options.names()
            ```
        """
        return tuple(field.name for field in dataclasses.fields(cls))

    @classmethod
    def check_names(cls, names: Iterable[str], additional: Iterable[str] = ()) -> None:
        """Rejects names that are not options, and suggests the nearest.

        Args:
            names: str, names to check.
            additional: str, further names that are allowed.

        Raises:
            TypeError: a name is neither an option nor among `additional`.

        Example:
            ```python
            from keras_tfm import decode

            try:
                decode.Options.check_names(["num_beams"])
            except TypeError as error:
                assert "beam_size" in str(error)
            ```
        """
        valid = {*cls.names(), *additional}
        for name in names:
            if name in valid:
                continue
            nearest = [PEER_NAMES[name]] if name in PEER_NAMES else []
            nearest += difflib.get_close_matches(name, valid, 2)
            nearest += sorted(option for option in valid if name in option)
            raise TypeError(
                f"`{name}` is not a decoding option. Did you mean "
                f"{' or '.join(map(repr, dict.fromkeys(nearest)))}?"
                if nearest
                else f"`{name}` is not a decoding option. Options: "
                f"{', '.join(sorted(valid))}."
            )

    def replace(self, **changes: Any) -> "Options":
        """Returns a copy with some options changed.

        Where the copied options ask for more hypotheses than a smaller
        `beam_size` allows, and `changes` does not name `num_hypotheses`, it is
        lowered to the beam size.

        Args:
            **changes: options, by name.

        Raises:
            TypeError: a name is not an option.
            ValueError: see `Options`.

        Example:
            ```python
            from keras_tfm import decode

            options = decode.Options(beam_size=4, num_hypotheses=4)
            assert options.replace(beam_size=2).num_hypotheses == 2
            ```
        """
        self.check_names(changes)
        beam_size = changes.get("beam_size", self.beam_size)
        lower = "beam_size" in changes and "num_hypotheses" not in changes
        # Samples may be more than the beams.
        is_beam_search = changes.get("sampling_topk", self.sampling_topk) == 1
        if lower and is_beam_search and self.num_hypotheses > beam_size:
            changes["num_hypotheses"] = beam_size
        return dataclasses.replace(self, **changes)


_set_fields = Options.__init__


@functools.wraps(_set_fields)
def _checked_init(self: Options, **options: Any) -> None:
    # A name of another library gets ours in the error.
    self.check_names(options)
    _set_fields(self, **options)


Options.__init__ = _checked_init
