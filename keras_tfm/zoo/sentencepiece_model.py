"""What a SentencePiece model says of its pieces."""

import base64

SPACE = "\u2581"  # stands for it in pieces
# What `tokenizer.json` does to text and SentencePiece does of itself.
SPACES = ("Replace", "Strip")


def read_model(model, file="`model`"):
    """Reads a SentencePiece model.

    Args:
        model: bytes.
        file: path, what is named in an error.

    Returns:
        Message of protobuf.

    Raises:
        ImportError: `protobuf` is not installed.
        ValueError: it is none.
    """
    messages, decode_error = _messages()
    found = messages.ModelProto()
    try:
        found.ParseFromString(model)
    except decode_error as error:
        raise ValueError(
            f"{file} is damaged or no SentencePiece model ({error}). Fetch it again."
        ) from error
    return found


def of_tokenizer_json(whole, file):
    """Makes the SentencePiece model that a `tokenizer.json` was made of.

    Args:
        whole: dict, the file's content: pieces of a unigram or BPE vocabulary,
            in which a mark stands for the space.
        file: path, what is named in an error.

    Returns:
        Message of protobuf, without the added tokens; or None where text is
        cut in another way than by SentencePiece.

    Raises:
        ImportError: `protobuf` is not installed.
        ValueError: the file is damaged.
    """
    try:
        model, steps = whole["model"], _steps(whole.get("normalizer"), "normalizers")
        before = _steps(whole.get("pre_tokenizer"), "pretokenizers")
        kinds = {step["type"] for step in steps}
        spaces = [step for step in before if step["type"] == "Metaspace"]
        spaces += [s for s in steps if s["type"] == "Prepend" and s["prepend"] == SPACE]
        plain = kinds <= {"Precompiled", "Prepend", *SPACES}
        if model.get("type") not in ("Unigram", "BPE") or not plain or not spaces:
            return None
        added = {one["content"] for one in whole.get("added_tokens", [])}
        unigram = model["type"] == "Unigram"
        scores = dict(model["vocab"]) if unigram else _ranks(model)
        made = _messages()[0].ModelProto()
        trainer, normalizer = made.trainer_spec, made.normalizer_spec
        trainer.model_type = trainer.UNIGRAM if unigram else trainer.BPE
        for step in steps:
            if step["type"] == "Precompiled":
                coded = step["precompiled_charsmap"]
                normalizer.precompiled_charsmap = base64.b64decode(coded)
        normalizer.remove_extra_whitespaces = not kinds.isdisjoint(SPACES)
        prepends = spaces[0].get("prepend_scheme", "always") != "never"
        normalizer.add_dummy_prefix = prepends and spaces[0].get(
            "add_prefix_space", True
        )
        unknown = model["vocab"][model["unk_id"]][0] if unigram else model["unk_token"]
        types = type(made).SentencePiece
        made.pieces.add(piece=unknown, type=types.UNKNOWN)
        for name, score in scores.items():
            if name not in added and name != unknown:
                byte = model.get("byte_fallback") and name.startswith("<0x")
                kind = types.BYTE if byte else types.NORMAL
                made.pieces.add(piece=name, score=score, type=kind)
        return made
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{file} is damaged: pieces of a vocabulary and their scores or merges are "
            f"wanted. Received: {error!r:.80}. Fetch it again."
        ) from error


def _steps(step, several):
    """The steps that one may consist of."""
    if step is None:
        return []
    if step["type"] != "Sequence":
        return [step]
    return [each for one in step[several] for each in _steps(one, several)]


def _ranks(model):
    """The score of each piece of a BPE: what is made earlier goes first."""
    found = {}
    for rank, pair in enumerate(model["merges"]):
        name = "".join(pair if isinstance(pair, list) else pair.split(" "))
        found.setdefault(name, -float(rank))
    least = len(model["merges"])
    order = sorted(model["vocab"], key=model["vocab"].get)
    return {name: found.get(name, -float(least + i)) for i, name in enumerate(order)}


def _messages():
    try:
        from google.protobuf.message import DecodeError
        from sentencepiece import sentencepiece_model_pb2 as messages
    except ImportError as error:
        raise ImportError(
            "Vocabularies of translation models are read by the library protobuf, "
            f"which cannot be imported here ({error}). Install `keras-tfm[zoo]`."
        ) from error
    return messages, DecodeError
