"""What a SentencePiece model says of its pieces."""


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
    try:
        from google.protobuf.message import DecodeError
        from sentencepiece import sentencepiece_model_pb2 as messages
    except ImportError as error:
        raise ImportError(
            "Vocabularies of translation models are read by the library protobuf, "
            f"which cannot be imported here ({error}). Install `keras-tfm[zoo]`."
        ) from error
    found = messages.ModelProto()
    try:
        found.ParseFromString(model)
    except DecodeError as error:
        raise ValueError(
            f"{file} is damaged or no SentencePiece model ({error}). Fetch it again."
        ) from error
    return found
