"""Defaults of the translation recipe: model sizes and flags for each corpus."""

import dataclasses
import functools
import pathlib
from typing import TYPE_CHECKING

from keras_tfm import models
from keras_tfm.recipes import augmentation, configuration, encoded, multilingual, runs
from keras_tfm.recipes.flags import compiles_buckets

if TYPE_CHECKING:  # which imports this module
    from keras_tfm.recipes import translation

AnyModel = models.Transformer | models.RecurrentSeq2Seq  # of `--architecture`

# A deep encoder and a shallow decoder: as good and faster, Kasai et al. 2021,
# https://arxiv.org/abs/2006.10369
MEDIUM = {
    "num_layers": (4, 2),
    "embedding_dim": 256,
    "intermediate_dim": 1024,
    "num_heads": 4,
    "normalize_first": True,
}
SIZES = {
    "small": functools.partial(models.transformer_tiny, num_layers=2),
    "tiny": models.transformer_tiny,
    "medium": functools.partial(models.transformer_base, **MEDIUM),
    "base": models.transformer_base,
    "big": models.transformer_big,
}
# About as many parameters as the Transformer of that size, embeddings apart.
RECURRENT_SIZES = {
    "small": {"num_layers": 1, "embedding_dim": 128, "units": 136},
    "tiny": {"num_layers": 1, "embedding_dim": 128, "units": 216},
    "medium": {"num_layers": 1, "embedding_dim": 256, "units": 429},
    "base": {"num_layers": 2, "embedding_dim": 512, "units": 864},
    "big": {"num_layers": 2, "embedding_dim": 1024, "units": 1728},
}

ANY_CORPUS = {"num_buckets": 8, "cooldown_epochs": 0, "length_penalty": 1.0}
NAMED_CORPORA = {
    "phrases": {
        "size": "small",
        "vocabulary_size": 2_000,
        "subword_model": "unigram",
        "batch_tokens": 4_096,
        "epochs": 7,
        "learning_rate": 4e-3,
        "warmup_steps": 400,
        "dropout": 0.0,
        "average_last": 3,
        "evaluate_every": 5,
    },
    "multi30k": {
        "size": "tiny",
        "vocabulary_size": 10_000,
        "subword_model": "bpe",
        "batch_tokens": 4_096,
        "epochs": 80,
        "learning_rate": 3.5e-3,
        "warmup_steps": 2_000,
        "dropout": 0.3,
        "average_last": 10,
        "evaluate_every": 10,
    },
}
LARGE = 50_000  # pairs
SMALL_CORPUS = {
    "size": "small",
    "vocabulary_size": 3_000,
    "subword_model": "unigram",
    "batch_tokens": 1_024,
    "epochs": 60,
    "learning_rate": 2e-3,
    "warmup_steps": 1_000,
    "dropout": 0.15,
    "average_last": 5,
    "evaluate_every": 5,
}
LARGE_CORPUS = {
    "size": "medium",
    "vocabulary_size": 6_000,
    "subword_model": "unigram",
    "batch_tokens": 512,
    "num_buckets": 32,
    "epochs": 10,
    "learning_rate": 1.5e-3,
    "warmup_steps": 1_500,
    "cooldown_epochs": 3,
    "dropout": 0.1,
    "average_last": 2,
    "evaluate_every": 2,
}
# Configuration that a fine-tuned model brings along.
OF_PARENT = ("size", *configuration.FIELDS)
COUNTS = ("epochs", "average_last", "evaluate_every", "beam_size", "batch_tokens")
COUNTS += ("num_buckets", "held_out", "warmup_steps", "save_every", "accumulate")


def complete(flags: "translation.Flags", num_pairs: int) -> "translation.Flags":
    """Replaces each None by the default for the corpus.

    Args:
        flags: `translation.Flags`.
        num_pairs: int, training pairs.

    Returns:
        `translation.Flags`.

    Raises:
        ValueError: more cooldown epochs than epochs.
    """
    by_size = SMALL_CORPUS if num_pairs < LARGE else LARGE_CORPUS
    defaults = ANY_CORPUS | NAMED_CORPORA.get(flags.data, by_size)
    if compiles_buckets(flags.jit_compile):  # each bucket costs a compilation
        defaults["num_buckets"] = ANY_CORPUS["num_buckets"]
    if flags.epochs is not None:
        defaults["cooldown_epochs"] = min(
            defaults["cooldown_epochs"], flags.epochs // 3
        )
    defaults["bleu_tokenize"] = "none" if flags.tokenized else "13a"
    if augmentation.is_spaceless(flags.target):
        defaults["bleu_tokenize"] = "char"
    defaults["out"] = _run_folder(flags)
    if flags.init_from is not None:
        inherited = OF_PARENT
        if flags.vocabulary_size is None:
            inherited += ("vocabulary_size", "subword_model")
        defaults = {k: v for k, v in defaults.items() if k not in inherited}
    if encoded.is_encoded_data(flags.data):
        defaults = {k: v for k, v in defaults.items() if k not in encoded.OF_ENCODE}
    unset = {k: v for k, v in defaults.items() if getattr(flags, k) is None}
    flags = configuration.complete(dataclasses.replace(flags, **unset))
    if flags.cooldown_epochs > flags.epochs:
        raise ValueError(
            f"--cooldown-epochs must be at most --epochs {flags.epochs}; got "
            f"{flags.cooldown_epochs}."
        )
    return flags


def warn_of_few_updates(flags: "translation.Flags", steps_per_epoch: int) -> None:
    """Prints a warning if training ends before the warm-up does.

    Args:
        flags: complete `translation.Flags`.
        steps_per_epoch: int.
    """
    updates = flags.epochs * steps_per_epoch // flags.accumulate
    if updates < flags.warmup_steps:
        print(
            f"Warning: {updates:,} updates are fewer than --warmup-steps "
            f"{flags.warmup_steps:,}: the learning rate reaches "
            f"{updates / flags.warmup_steps:.0%} of its peak, and the model may learn "
            "nothing. Increase --epochs, or lower --warmup-steps, --batch-tokens or "
            "--accumulate."
        )


def _run_folder(flags) -> str:
    corpus = pathlib.Path(flags.data.split(",")[0]).resolve().name.split(".")[0]
    sources = "+".join([flags.source, *flags.additional_sources])
    targets = "+".join([flags.target, *flags.additional_targets])
    recurrent = "-recurrent" if flags.architecture == "recurrent" else ""
    return f"runs/{corpus}-{sources}-{targets}{recurrent}"


def check(flags: "translation.Flags") -> None:
    """Rejects flags that are wrong for every corpus.

    Args:
        flags: `translation.Flags`.

    Raises:
        ValueError: a flag is out of its range, or two exclude each other.
    """
    choices = {"size": (None, *SIZES), "architecture": ("transformer", "recurrent")}
    for name, allowed in choices.items():
        if getattr(flags, name) not in allowed:
            raise ValueError(
                f"--{name} must be one of {', '.join(filter(None, allowed))}; got "
                f"{getattr(flags, name)!r}."
            )
    runs.check_at_least(flags, 1, COUNTS)
    runs.check_at_least(flags, 0, ("cooldown_epochs", "length_penalty"))
    runs.check_ranges(flags)
    configuration.check(flags)
    if flags.data_weights and not encoded.is_encoded_data(flags.data):
        raise ValueError(
            "--data-weights needs folders of `keras-tfm encode` as --data; got --data "
            f"{flags.data!r}. Leave it out."
        )
    if flags.additional_sources or flags.additional_targets:
        multilingual.check_languages(flags)
    elif flags.sampling_temperature != 1:
        raise ValueError(
            "--sampling-temperature needs --additional-sources or --additional-targets;"
            f" got {flags.sampling_temperature} and one pair of languages."
        )
    if flags.init_from is not None:
        _check_parent_flags(flags)


def _check_parent_flags(flags):
    fixed = {name: getattr(flags, name) for name in OF_PARENT}
    fixed = {name: value for name, value in fixed.items() if value is not None}
    if flags.architecture != "transformer":
        fixed["architecture"] = flags.architecture
    if fixed:
        raise ValueError(
            "--from keeps the architecture of the model that is fine-tuned; got "
            f"{fixed} too. Leave these out."
        )
    for name in ("subword_model", "normalization", "character_coverage"):
        value = getattr(flags, name)
        if value is not None and flags.vocabulary_size is None:
            raise ValueError(
                f"--{name.replace('_', '-')} needs --vocabulary-size with --from; got "
                f"{value!r} alone. Give both or neither."
            )
