"""What transformers' files say of decoding, as settings of a search."""

import inspect

from keras_tfm.decode import Search
from keras_tfm.zoo.json_file import read_json

# Names of `generation_config.json`, and of a search here.
NAMES = {
    "num_beams": "beam_size",
    "length_penalty": "length_penalty",
    "repetition_penalty": "repetition_penalty",
    "no_repeat_ngram_size": "no_repeat_ngram_size",
}
# What a search here has nothing for, and what of it means nothing is asked.
OTHERS = {"encoder_no_repeat_ngram_size": 0, "exponential_decay_length_penalty": None}
# Settings of a translator that are of no search, or of the tokenizer there.
SERVING = ("batch_size", "batch_tokens", "max_source_length", "num_hypotheses")
SERVING += ("source_prefix", "source_suffix", "split_tokens", "jit_compile")
SERVING += ("few_programs",)


def search(folder, config, ids):
    """Reads how a model is to be decoded.

    Args:
        folder: path. Its `generation_config.json` goes before `config`.
        config: dict, `config.json`.
        ids: `plans.Ids`.

    Returns:
        dict of settings of `serving.Translator`. Their `early_stopping: true`
        is searched as false: on, until no open hypothesis can be better.

    Raises:
        ValueError: the file is no JSON, or asks for what is not there.
    """
    config = {name: value for name, value in config.items() if value is not None}
    asked = {**config, **given(folder)}
    wrong = {name: asked[name] for name in OTHERS if asked.get(name)}
    if wrong:
        raise ValueError(
            f"{folder}: settings of decoding that are not known. Received: {wrong}. "
            "Take them out of `generation_config.json`."
        )
    found = {ours: asked[theirs] for theirs, ours in NAMES.items() if asked.get(theirs)}
    found.setdefault("beam_size", 1)  # theirs where nothing is said
    # They count the token that decoding starts with.
    if asked.get("max_length"):
        found["max_decoding_length"] = asked["max_length"] - 1
    if asked.get("min_length", 0) > 1:
        found["min_decoding_length"] = asked["min_length"] - 1
    bad = [[ids.ours(token) for token in row] for row in asked.get("bad_words_ids", ())]
    found["suppress_ids"] = sorted(
        {0, ids.start_id, *(row[0] for row in bad if len(row) == 1)}
    )
    if longer := [row for row in bad if len(row) > 1]:
        found["suppress_sequences"] = longer
    first = asked.get("forced_bos_token_id")
    found["target_prefix"] = [] if first is None else [ids.ours(first)]
    if found["beam_size"] > 1:
        # They go on until none is better than the worst of a whole beam.
        found["num_hypotheses"] = found["beam_size"]
        if asked.get("early_stopping") == "never":
            found["patience"] = float("inf")
    found["source_suffix"] = [ids.end_id]
    if config.get("model_type") == "bart":
        found["source_prefix"] = [ids.ours(config["bos_token_id"])]
    if config.get("model_type") == "gpt2":  # goes on with a text; their limit counts it
        found["source_suffix"] = []
        found.pop("max_decoding_length", None)
        found.pop("min_decoding_length", None)
    found["disable_unk"] = False  # their unknown token is one like others
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
    found = read_json(folder / "generation_config.json")
    return {name: value for name, value in found.items() if value is not None}


def written(search, max_length):
    """Turns settings of a search to those of transformers.

    Args:
        search: dict, settings of `serving.Translator`.
        max_length: int, in tokens, that there are positions for: the limit
            where they set none, or one that grows with the source.

    Returns:
        dict for `generation_config.json`.

    Raises:
        ValueError: transformers has nothing for one of them.
    """
    defaults = inspect.signature(Search).parameters
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
    if found["num_beams"] > 1 and rest.get("patience") == float("inf"):
        found["early_stopping"] = "never"
        del rest["patience"]
    suppressed = {*rest.pop("suppress_ids", (0, 2))}
    if rest.pop("disable_unk", True):
        suppressed.add(1)
    found["bad_words_ids"] = [[i] for i in sorted(suppressed)]
    found["bad_words_ids"] += [list(row) for row in rest.pop("suppress_sequences", ())]
    if rest:
        raise ValueError(
            "Settings of a search that transformers has nothing for. Received: "
            f"{rest}. Leave them out of `search`."
        )
    return {
        **found,
        "renormalize_logits": True,  # what is forbidden has no share here
        "forced_eos_token_id": None,
    }
