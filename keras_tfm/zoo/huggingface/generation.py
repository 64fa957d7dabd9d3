"""Options of decoding, from and to `generation_config.json`."""

import dataclasses
import math
import pathlib
from typing import Any

from keras_tfm import decode
from keras_tfm.decode.option_checks import MAX_BEAMS, check_stored
from keras_tfm.file_reading import Config, read_json, reading
from keras_tfm.zoo.imported import TEXT_STEPS
from keras_tfm.zoo.token_permutation import TokenPermutation

FILE = "generation_config.json"
# Names in transformers, and fields of `decode.Options`.
RENAMED = {
    "num_beams": "beam_size",
    "length_penalty": "length_penalty",
    "no_repeat_ngram_size": "no_repeat_ngram_size",
}
SAMPLING = {  # where `do_sample` is true
    "temperature": "sampling_temperature",
    "top_k": "sampling_topk",
    "top_p": "sampling_topp",
    "min_p": "sampling_minp",
    "epsilon_cutoff": "sampling_epsilon",
}
# Names in transformers that count one token more than ours: the start.
LENGTHS = {"max_length": "max_decoding_length", "min_length": "min_decoding_length"}
NEW_TOKENS = {"max_length": "max_new_tokens", "min_length": "min_new_tokens"}
DEFAULT_TOP_K = 50  # of transformers
MAX_SEQUENCE = 64  # tokens of a suppressed sequence: each costs time at each step
# What decoding here lacks or does differently, unless it is empty or zero; and
# what means nothing if it is 1.
UNSUPPORTED = (
    *("begin_suppress_tokens", "constraints", "dola_layers", "eta_cutoff", "max_time"),
    *("encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "top_h"),
    *("force_words_ids", "forced_decoder_ids", "penalty_alpha", "sequence_bias"),
    *("stop_strings", "watermarking_config"),
)
UNSUPPORTED_UNLESS_1 = ("encoder_repetition_penalty", "guidance_scale")
UNSUPPORTED_UNLESS_1 += ("num_beam_groups", "repetition_penalty", "typical_p")
# Options that say how to run and how to tokenize, and those of the steps around
# the model, which transformers lacks, are not exported.
NOT_EXPORTED = (
    *("batch_size", "batch_tokens", "max_source_length", "num_hypotheses"),
    *("source_prefix", "source_suffix", "split_tokens", "jit_compile"),
    *("few_buckets", "matmul_precision", "engine", "compute_type"),
    *("stand_ins", "final_mark_words"),
    *TEXT_STEPS,
)


def read_options(
    folder: pathlib.Path, config: Config, permutation: TokenPermutation
) -> dict[str, Any]:
    """Reads how a model is to be decoded.

    Three things differ from transformers. Without a limit it stops after 20
    tokens; here the default of `decode.Options` applies. It may force an end
    token at the limit (`forced_eos_token_id`); here the translation is
    truncated, and the result says so. And unless `renormalize_logits` is set,
    as always here, forbidden tokens keep their probability, so that beam search
    may choose differently.

    Args:
        folder: path. `generation_config.json` alone counts where it exists;
            special tokens that it does not name are those of `config`.
        config: `Config` of `config.json`.
        permutation: `TokenPermutation`.

    Returns:
        dict of fields of `decode.Options` and arguments of a `Translator`.
        `max_length` (for GPT-2 only `max_new_tokens`) becomes
        `max_decoding_length`.

    Raises:
        ValueError: the file is not JSON, or asks for what is not supported.
    """
    continues = config.get("model_type") == "gpt2"
    generation = config
    if (folder / FILE).is_file():
        generation = Config(read_json(folder / FILE), folder / FILE)
    if continues:  # these lengths would count the prompt
        values = {k: v for k, v in generation.items() if k not in LENGTHS}
        generation = Config(values, generation.file)
    with reading(generation.file, "options of decoding"):
        for name in (*RENAMED, *SAMPLING, *LENGTHS, *NEW_TOKENS.values()):
            generation.number(name, None)
        _check_supported(generation, config, continues)
        options = check_stored(_options(generation, permutation))
        names = {*decode.Options.names()} & {*options}
        decode.Options(**{name: options[name] for name in names})  # raises
        return dict(options)


def _options(generation, permutation):
    options = {o: generation[n] for n, o in RENAMED.items() if n in generation}
    is_greedy = options.setdefault("beam_size", 1) == 1
    if is_greedy and options.get("length_penalty", 0) < 0:  # nothing is ranked
        del options["length_penalty"]
    for name, option in LENGTHS.items():
        count = generation.get(name, 1) - 1
        count = generation.get(NEW_TOKENS[name], count)
        if count:
            options[option] = int(count)
    if generation.get("do_sample"):
        sampling = {"top_k": DEFAULT_TOP_K, **generation}
        options |= {o: sampling[n] for n, o in SAMPLING.items() if n in sampling}
    options |= _suppressed(generation, permutation)
    forced = generation.get("forced_bos_token_id")
    options["target_prefix"] = [] if forced is None else [permutation.to_ours(forced)]
    if forced is not None:
        options["score_prefix"] = False
    if options["beam_size"] > 1:
        if generation.get("early_stopping") == "never":
            options["patience"] = float("inf")
        else:
            stops = bool(generation.get("early_stopping"))
            options["early_stopping" if stops else "late_stopping"] = True
    # The unknown token is one like others in transformers.
    suffix = [] if permutation.order[3] < 0 else [permutation.end_id]
    return options | {"source_suffix": suffix, "disable_unk": False}


def _check_supported(generation, config, continues):
    """Rejects what decoding here lacks, or does differently."""
    wrong = {n: generation[n] for n in UNSUPPORTED if generation.get(n)}
    ones = {n: generation[n] for n in UNSUPPORTED_UNLESS_1 if generation.get(n)}
    wrong |= {name: value for name, value in ones.items() if value != 1}
    num_beams = generation.get("num_beams", 1)
    conflicts = {
        "do_sample": generation.get("do_sample") and num_beams != 1,
        "num_beams": not 1 <= num_beams <= MAX_BEAMS
        or (generation.get("do_sample") and num_beams != 1),
        "length_penalty": num_beams > 1 and generation.get("length_penalty", 1) < 0,
        "eos_token_id": _differs(generation.get("eos_token_id"), config),
        "no_repeat_ngram_size": continues and generation.get("no_repeat_ngram_size"),
    }
    wrong |= {name: generation[name] for name, fault in conflicts.items() if fault}
    if wrong:
        raise ValueError(
            f"{generation.file} has options of decoding that are not supported, or "
            f"mean something else here; got {wrong}. Delete them, and pass options of "
            "your own to a `Translator`."
        )


def _differs(end, config):
    """Returns whether other tokens of the vocabulary end a sequence."""
    ends = {*(end if isinstance(end, list) else [end])} - {config.get("eos_token_id")}
    size = config.get("vocab_size", math.inf)
    return any(isinstance(i, int) and 0 <= i < size for i in ends)


def _suppressed(generation, permutation):
    sequences = [
        [permutation.to_ours(token) for token in sequence]
        for sequence in generation.get("bad_words_ids", ())
    ]
    sequences = [s for s in sequences if s != [permutation.end_id]]  # as in theirs
    longest = max(map(len, sequences), default=0)
    if longest > MAX_SEQUENCE:
        raise ValueError(
            f"{generation.file}: `bad_words_ids` must be of at most {MAX_SEQUENCE} "
            f"tokens; got {longest:,}. Delete the long ones."
        )
    tokens = map(permutation.to_ours, generation.get("suppress_tokens", ()))
    suppressed = {0, permutation.start_id, *tokens}
    suppressed.update(s[0] for s in sequences if len(s) == 1)
    options = {"suppress_ids": sorted(suppressed)}
    if longer := [s for s in sequences if len(s) > 1]:
        options["suppress_sequences"] = longer
    return options


def exported_options(options: dict[str, Any], max_length: int) -> dict[str, Any]:
    """Turns options of decoding into those of transformers.

    Args:
        options: dict of fields of `decode.Options` and arguments of a
            `Translator`.
        max_length: int, in tokens, that the model has positions for: the limit
            where `options` sets none, or one that grows with the source.

    Returns:
        dict for `generation_config.json`.

    Raises:
        ValueError: transformers lacks one of them.
    """
    defaults = {f.name: f.default for f in dataclasses.fields(decode.Options)}
    rest = {
        name: value
        for name, value in options.items()
        if name not in NOT_EXPORTED
        and (name not in defaults or value != defaults[name])
    }
    exported = {name: rest.pop(o) for name, o in RENAMED.items() if o in rest}
    num_beams = exported.setdefault("num_beams", 1)
    limit = rest.pop("max_decoding_length", None)
    is_fixed = isinstance(limit, int)
    exported["max_length"] = min(limit + 1, max_length) if is_fixed else max_length
    if minimum := rest.pop("min_decoding_length", 0):
        exported["min_length"] = minimum + 1
    if prefix := list(rest.get("target_prefix", ())):
        exported["forced_bos_token_id"] = prefix[0]
    if len(prefix) < 2:
        rest.pop("target_prefix", None)
    # A forced token has no score in transformers, which changes the order.
    score_prefix = rest.pop("score_prefix", True)
    if prefix and score_prefix and num_beams > 1:
        rest["score_prefix"] = score_prefix
    if num_beams > 1 and rest.get("patience") == float("inf"):
        exported["early_stopping"] = "never"
        del rest["patience"]
    elif rest.pop("early_stopping", False):
        exported["early_stopping"] = True
    rest.pop("late_stopping", None)  # how transformers ends by default
    suppressed = {*rest.pop("suppress_ids", (0, 2))}
    suppressed |= {1} if rest.pop("disable_unk", True) else set()
    sequences = map(list, rest.pop("suppress_sequences", ()))
    exported["bad_words_ids"] = [*([i] for i in sorted(suppressed)), *sequences]
    if rest:
        raise ValueError(
            f"`options` must be of those that transformers has; got {rest}. Leave them "
            "out; for a scored prefix pass score_prefix=False."
        )
    return {**exported, "renormalize_logits": True, "forced_eos_token_id": None}
