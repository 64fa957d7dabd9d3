"""What transformers' files say of decoding, as settings of a search."""

import dataclasses

from keras_tfm.decode import Options
from keras_tfm.zoo.json_file import check_kinds, read_json

FILE = "generation_config.json"
# Names of it, and of a search here.
NAMES = {
    "num_beams": "beam_size",
    "length_penalty": "length_penalty",
    "no_repeat_ngram_size": "no_repeat_ngram_size",
}
# The same of draws, which are made where `do_sample` says so.
DRAWS = {
    "temperature": "sampling_temperature",
    "top_k": "sampling_topk",
    "top_p": "sampling_topp",
    "min_p": "sampling_minp",
    "epsilon_cutoff": "sampling_epsilon",
}
LIMITS = ("_length", "_new_tokens")
WITH_PROMPT = ("max_length", "min_length")  # of what goes on with a text, that too
TOP_K = 50  # theirs where nothing is said
LONGEST = 64  # tokens of what is never said in a row: each costs time at each step
NUMBERS = (*NAMES, *DRAWS)
NUMBERS += tuple(f"{end}{unit}" for end in ("max", "min") for unit in LIMITS)
# What a search here has nothing for, or does in another way, and what of it
# means nothing is asked.
OTHERS = {
    "begin_suppress_tokens": [],
    "constraints": [],
    "dola_layers": None,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "eta_cutoff": 0.0,
    "exponential_decay_length_penalty": None,
    "force_words_ids": [],
    "forced_decoder_ids": [],
    "guidance_scale": 1.0,
    "max_time": None,
    "num_beam_groups": 1,
    "penalty_alpha": 0.0,
    "repetition_penalty": 1.0,
    "sequence_bias": {},
    "stop_strings": [],
    "top_h": None,
    "typical_p": 1.0,
    "watermarking_config": None,
}
# Models that do not translate sentences: their texts stay whole.
WHOLE = ("bart", "mt5", "pegasus", "t5")
# Settings of a translator that are of no search, or of the tokenizer there.
SERVING = ("batch_size", "batch_tokens", "max_source_length", "num_hypotheses")
SERVING += ("source_prefix", "source_suffix", "split_tokens", "jit_compile")
SERVING += ("few_programs", "matmul_precision")


def search(folder, config, ids):
    """Reads how a model is to be decoded.

    Args:
        folder: path. Where it has a `generation_config.json`, this alone says
            it, and what it leaves out or sets to null is not asked for; but
            special tokens that it does not name are those of `config`.
        config: dict, `config.json`.
        ids: `plans.Ids`.

    Returns:
        dict of settings of `pipelines.Translator`. `max_length`, of GPT-2 only
        `max_new_tokens`, is its `max_decoding_length`. Three things differ.
        Where neither is said they take 20 tokens, and here the limit is a
        search's own. What comes to its limit they may give an end
        (`forced_eos_token_id`): here it is cut, and says so. And unless they
        have `renormalize_logits`, as here, what is forbidden keeps its share
        of a score, so that a beam may choose otherwise.

    Raises:
        ValueError: the file is no JSON, or asks for what is not there.
    """
    config = {name: value for name, value in config.items() if value is not None}
    asked = given(folder) if (folder / FILE).is_file() else config
    goes_on = config.get("model_type") == "gpt2"
    if goes_on:
        asked = {name: asked[name] for name in asked if name not in WITH_PROMPT}
    check_kinds(folder, asked, [(NUMBERS, (int, float), "a number")])
    wrong = {n: asked[n] for n, none in OTHERS.items() if asked.get(n, none) != none}
    wrong = {name: value for name, value in wrong.items() if value}
    if asked.get("do_sample") and asked.get("num_beams", 1) != 1:
        wrong |= {name: asked[name] for name in ("do_sample", "num_beams")}
    if asked.get("num_beams", 1) < 1:
        wrong["num_beams"] = asked["num_beams"]
    elif asked.get("num_beams", 1) > 1 and asked.get("length_penalty", 1) < 0:
        wrong["length_penalty"] = asked["length_penalty"]
    end = config.get("eos_token_id")  # that of the model; texts end with it too
    if asked.get("eos_token_id", end) not in (end, [end]):
        wrong["eos_token_id"] = asked["eos_token_id"]
    if goes_on and asked.get("no_repeat_ngram_size"):
        wrong["no_repeat_ngram_size"] = asked["no_repeat_ngram_size"]  # of prompts too
    if wrong:
        raise ValueError(
            f"{folder}: settings of decoding that are not known, or mean something "
            f"else here. Received: {wrong}. Take them out of `{FILE}`, and give a "
            "translator its own."
        )
    try:
        found = _known(asked, ids)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{folder}: settings of decoding are numbers, and lists of tokens that "
            f"there are. Received: {error} in `{FILE}`."
        ) from error
    found["source_suffix"] = [ids.end_id]
    if config.get("model_type") == "bart":
        found["source_prefix"] = [ids.ours(config["bos_token_id"])]
    if goes_on:
        found["source_suffix"] = []
    if config.get("model_type") in WHOLE:
        found["split_tokens"] = 1024
    found["disable_unk"] = False  # their unknown token is one like others
    return found


def _known(asked, ids):
    """What of their settings a search here has."""
    found = {ours: asked[n] for n, ours in NAMES.items() if asked.get(n) is not None}
    found.setdefault("beam_size", 1)  # theirs where nothing is said
    # They count the token that decoding starts with.
    limits = (("max", "max_decoding_length"), ("min", "min_decoding_length"))
    for name, ours in limits:
        new, whole = asked.get(f"{name}_new_tokens"), asked.get(f"{name}_length")
        count = new if new is not None else (whole or 1) - 1
        if count:
            found[ours] = int(count)
    if asked.get("do_sample"):
        draws = {"top_k": TOP_K, **asked}
        found |= {o: draws[n] for n, o in DRAWS.items() if draws.get(n) is not None}
    bad = [[ids.ours(token) for token in row] for row in asked.get("bad_words_ids", ())]
    bad = [row for row in bad if row != [ids.end_id]]  # they leave it out too
    longest = max(map(len, bad), default=0)
    if longest > LONGEST:
        raise ValueError(
            f"What is never said in a row is of up to {LONGEST} tokens. Received: one "
            f"of {longest:,} in `bad_words_ids`. Take it out of `{FILE}`."
        )
    bad += [[ids.ours(token)] for token in asked.get("suppress_tokens", ())]
    found["suppress_ids"] = sorted(
        {0, ids.start_id, *(row[0] for row in bad if len(row) == 1)}
    )
    if longer := [row for row in bad if len(row) > 1]:
        found["suppress_sequences"] = longer
    first = asked.get("forced_bos_token_id")
    found["target_prefix"] = [] if first is None else [ids.ours(first)]
    if first is not None:
        found["score_prefix"] = False
    if found["beam_size"] > 1:
        # They go on until none is better than the worst of a whole beam.
        found["num_hypotheses"] = found["beam_size"]
        if asked.get("early_stopping") == "never":
            found["patience"] = float("inf")
        elif asked.get("early_stopping"):
            found["early_stopping"] = True
    return found


def given(folder):
    """Reads `generation_config.json`.

    Args:
        folder: path.

    Returns:
        dict of what it sets; empty where there is no such file.

    Raises:
        ValueError: it is no JSON, or no object.
    """
    found = read_json(folder / FILE)
    return {name: value for name, value in found.items() if value is not None}


def written(search, max_length):
    """Turns settings of a search to those of transformers.

    Args:
        search: dict, settings of `pipelines.Translator`.
        max_length: int, in tokens, that there are positions for: the limit
            where they set none, or one that grows with the source.

    Returns:
        dict for `generation_config.json`.

    Raises:
        ValueError: transformers has nothing for one of them.
    """
    defaults = {field.name: field for field in dataclasses.fields(Options)}
    rest = {
        name: value
        for name, value in search.items()
        if name not in SERVING
        and (name not in defaults or value != defaults[name].default)
    }
    found = {theirs: rest.pop(ours) for theirs, ours in NAMES.items() if ours in rest}
    found.setdefault("num_beams", 1)
    limit = rest.pop("max_decoding_length", None)
    # They count the token that decoding starts with.
    found["max_length"] = max_length
    if isinstance(limit, int):
        found["max_length"] = min(limit + 1, max_length)
    if least := rest.pop("min_decoding_length", 0):
        found["min_length"] = least + 1
    if first := list(rest.get("target_prefix", ())):
        found["forced_bos_token_id"] = first[0]
    if len(first) < 2:
        rest.pop("target_prefix", None)
    # Theirs counts no token that is forced, which of a beam changes the order.
    counts = rest.pop("score_prefix", True)
    if first and counts and found["num_beams"] > 1:
        rest["score_prefix"] = counts
    if found["num_beams"] > 1 and rest.get("patience") == float("inf"):
        found["early_stopping"] = "never"
        del rest["patience"]
    elif rest.pop("early_stopping", False):
        found["early_stopping"] = True
    suppressed = {*rest.pop("suppress_ids", (0, 2))}
    if rest.pop("disable_unk", True):
        suppressed.add(1)
    found["bad_words_ids"] = [[i] for i in sorted(suppressed)]
    found["bad_words_ids"] += [list(row) for row in rest.pop("suppress_sequences", ())]
    if rest:
        raise ValueError(
            "Settings of a search that transformers has nothing for. Received: "
            f"{rest}. Leave them out of `search`; of a prefix that counts set "
            "score_prefix=False."
        )
    return {
        **found,
        "renormalize_logits": True,  # what is forbidden has no share here
        "forced_eos_token_id": None,
    }
