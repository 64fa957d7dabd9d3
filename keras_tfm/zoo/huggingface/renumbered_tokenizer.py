"""A `tokenizer.json` with the ids of the models here."""

import copy
import json
import re
from collections.abc import Mapping
from typing import Any

from keras_tfm.text import TokenizersVocabulary
from keras_tfm.zoo.huggingface.tokenizer_files import (
    from_model,
    special_entries,
    with_special_tokens,
)
from keras_tfm.zoo.huggingface.tokenizer_folder import OWN_TOKEN, TokenizerFolder
from keras_tfm.zoo.token_permutation import TokenPermutation

# Options of padding in `tokenizer.json`, apart from its token.
PADDING = {"strategy": "BatchLongest", "direction": "Right", "pad_type_id": 0}
PADDING |= {"pad_to_multiple_of": None}
NEVER_SCORE = -1e4  # of a subword that no text is segmented into


def with_user_tokens(
    content: dict[str, Any], tokenizer: TokenizerFolder
) -> dict[str, Any]:
    """Lets only tokens that a user has added be cut out of text and decoded.

    Args:
        content: dict, a `tokenizer.json`.
        tokenizer: `TokenizerFolder`.

    Returns:
        dict, a changed copy.
    """
    user_added, content = set(tokenizer.user_added), copy.copy(content)
    content["added_tokens"] = [
        {**token, "special": token["special"] and token["content"] not in user_added}
        for token in content.get("added_tokens", [])
    ]
    # Special tokens are among the subwords of a unigram model.
    special = {token["content"] for token in content["added_tokens"]}
    return _with_split_names(content, (special | {*tokenizer.added}) - user_added)


def _with_split_names(content, names):
    """Splits names of special tokens in text, so that none becomes the token.

    Names stay among the tokens of a unigram model, which would prefer them to
    characters that it does not know.
    """
    model = content.get("model", {})
    names = sorted(name for name in names if name)
    if model.get("type") != "Unigram" or not names:
        return content
    scores = [score for token, score in model["vocab"] if token not in names]
    lowest = min(scores, default=0.0)
    vocab = [[t, lowest if t in names else s] for t, s in model["vocab"]]
    pattern = "|".join(f"{re.escape(n[0])}(?={re.escape(n[1:])})" for n in names)
    split = {"type": "Split", "pattern": {"Regex": pattern}, "invert": False}
    steps = [content.get("pre_tokenizer"), split | {"behavior": "Isolated"}]
    steps = {"type": "Sequence", "pretokenizers": [s for s in steps if s]}
    return {**content, "model": {**model, "vocab": vocab}, "pre_tokenizer": steps}


def from_tokens(
    model: Any, tokens: Mapping[int, str], tokenizer: TokenizerFolder
) -> dict[str, Any]:
    """Makes the `tokenizer.json` of a SentencePiece model with other ids.

    Added tokens are searched in the text as it is, before SentencePiece
    segments what is between them, as Python tokenizers of transformers do.

    Args:
        model: of `sentencepiece_models.read_model`.
        tokens: dict from ids to tokens.
        tokenizer: `TokenizerFolder`, which knows the added tokens.

    Returns:
        dict, without special tokens around a text. Tokens that the model lacks
        are never produced from text, except for characters that would have no
        token otherwise.
    """
    content, kinds = from_model(model, 0), type(model).SentencePiece
    added = {t["content"]: t | {"normalized": False} for t in tokenizer.added_entries}
    ids = {token: number for number, token in sorted(tokens.items())}
    subwords = {token: number for token, number in ids.items() if token not in added}
    rules = content["model"]
    if rules["type"] == "Unigram":
        textual = (kinds.NORMAL, kinds.USER_DEFINED, kinds.BYTE)
        scores = {p.piece: p.score for p in model.pieces if p.type in textual}
        lowest, characters = min(scores.values(), default=0.0), set().union(*scores)
        scores |= {t: lowest for t in ids if len(t) == 1 and t not in characters}
        names = [tokens.get(i, f"<{i}>") for i in range(max(subwords.values()) + 1)]
        rules["vocab"] = [[name, scores.get(name, NEVER_SCORE)] for name in names]
    else:
        rules["vocab"] = subwords
        rules["merges"] = [
            pair for pair in rules["merges"] if {*pair, "".join(pair)} <= {*subwords}
        ]
    names = tokenizer.special_names
    special = [t for t in subwords if t in names or OWN_TOKEN.fullmatch(t)]
    content["added_tokens"] = [*special_entries(ids, special), *added.values()]
    return content


def renumbered(
    content: dict[str, Any],
    permutation: TokenPermutation,
    size: int,
    end_id: int | None,
) -> TokenizersVocabulary:
    """Numbers the tokens of a `tokenizer.json` anew.

    Args:
        content: dict, of BPE or unigram tokens; it is changed.
        permutation: `TokenPermutation`.
        size: int, V of the checkpoint.
        end_id: int, in the checkpoint; or None.

    Returns:
        `TokenizersVocabulary`.

    Raises:
        ImportError: `tokenizers` is not installed.
        ValueError: the tokenizer is of another model.
    """
    added = content.get("added_tokens", [])
    special = {token["content"] for token in added}
    # Some have a mask token that the network has no row for.
    added = [token for token in added if token["id"] < size]
    vocab, scores = _ids_and_scores(content["model"]["vocab"])
    beyond = [t for t, i in vocab.items() if i >= size and t not in special]
    vocab = {token: number for token, number in vocab.items() if number < size}
    vocab |= {token["content"]: token["id"] for token in added}
    end = next((token for token, number in vocab.items() if number == end_id), None)
    if (end is None and end_id is not None) or beyond:
        raise ValueError(
            f"ids must be below vocab_size={size}, and eos_token_id={end_id} must "
            f"name a token; got {len(beyond)} larger ids, and the end token {end!r}"
        )
    subwords = {permutation.to_ours(i) for t, i in vocab.items() if t in scores}
    vocab = {token: permutation.to_ours(number) for token, number in vocab.items()}
    # Rows that the checkpoint lacks, or has twice, or without a name.
    unnamed = sorted(set(range(permutation.size)) - set(vocab.values()))
    names = {i: f"<{i}>" if i or "<pad>" in vocab else "<pad>" for i in unnamed}
    if set(names.values()) & set(vocab):
        raise ValueError(f"the tokens {list(names.values())[:4]} must not exist")
    vocab |= {name: number for number, name in names.items()}
    for token in added:
        token["id"] = vocab[token["content"]]
    by_id = {number: token for token, number in vocab.items()}
    # Text is segmented into no token beyond the subwords.
    last = max(subwords)
    beyond = {name: i for i, name in names.items() if i > last}
    added += special_entries(beyond, beyond)
    content["added_tokens"] = sorted(added, key=lambda token: token["id"])
    if isinstance(content["model"]["vocab"], dict):
        # GPT-2 has no unknown token, and decoding expects one.
        vocab = {token: number for token, number in vocab.items() if number <= last}
        content["model"] |= {"vocab": vocab, "unk_token": by_id[1]}
    else:
        lowest = min(scores.values())
        vocab = [[by_id[i], scores.get(by_id[i], lowest)] for i in range(last + 1)]
        content["model"] |= {"vocab": vocab, "unk_id": 1}
        content = _with_split_names(content, set(names.values()))
    content["padding"] = {**PADDING, "pad_id": 0, "pad_token": by_id[0]}
    start, end = [permutation.start_id], [permutation.end_id]

    def _tokens(ids):
        return [by_id[i] for i in ids]

    content = with_special_tokens(content, _tokens, start, end, end)
    return TokenizersVocabulary(json.dumps(content))


def _ids_and_scores(vocab):
    """Returns the ids of subwords and their scores, 0 where they have none."""
    if isinstance(vocab, dict):
        return dict(vocab), dict.fromkeys(vocab, 0.0)
    return {token: number for number, (token, _) in enumerate(vocab)}, dict(vocab)
