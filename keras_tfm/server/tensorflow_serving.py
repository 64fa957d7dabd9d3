"""The addresses and shapes of TensorFlow Serving's REST interface.

Its clients ask this server as they ask that one.
https://www.tensorflow.org/tfx/serving/api_rest
"""

import fastapi
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

# Names, types and ranks of what signatures give, as `Translator.export` does.
SIGNATURES = {
    "translation": {
        "serving_default": {
            "translation": ("DT_STRING", 1),
            "score": ("DT_FLOAT", 1),
            "finished": ("DT_BOOL", 1),
        },
        "n_best": {"translations": ("DT_STRING", 2), "scores": ("DT_FLOAT", 2)},
    },
    "classification": {
        "serving_default": {
            "labels": ("DT_STRING", 2),
            "probabilities": ("DT_FLOAT", 2),
            "truncated": ("DT_BOOL", 1),
        },
    },
}


def add(app, name, version, described, answers):
    """Adds the addresses to an application.

    Args:
        app: `fastapi.FastAPI`.
        name, version: str, of the model.
        described: coroutine, what the model is.
        answers: coroutine `(texts, prefix, full)`, what it says of texts.
    """
    for place in (f"/v1/models/{name}", f"/v1/models/{name}/versions/{version}"):
        _add(app, place, name, version, described, answers)


def _add(app, place, name, version, described, answers):
    @app.get(place)
    async def status():
        """The state of the model."""
        await described(alive=True)
        state = {"error_code": "OK", "error_message": ""}
        one = {"version": version, "state": "AVAILABLE", "status": state}
        return {"model_version_status": [one]}

    @app.get(place + "/metadata")
    async def metadata():
        """What the model takes and gives."""
        signatures = SIGNATURES[(await described())["kind"]]
        return {
            "model_spec": {"name": name, "signature_name": "", "version": version},
            "metadata": {
                "signature_def": {
                    "signature_def": {
                        signature: _definition(signature, outputs)
                        for signature, outputs in signatures.items()
                    }
                }
            },
        }

    @app.post(place + ":predict")
    async def predict(request: fastapi.Request):
        """Answers `instances`, or `inputs`, by a signature."""
        does = await described()
        kind = does["kind"]
        try:
            body = await request.json()
        except (ValueError, RecursionError):
            return JSONResponse({"error": "The body is not JSON."}, 400)
        try:
            signature, texts, by_row = _read(body, SIGNATURES[kind])
        except ValueError as fault:
            return JSONResponse({"error": str(fault)}, 400)
        try:
            found = await answers(texts, None, signature == "n_best")
        except HTTPException as fault:
            if fault.status_code != 422:
                raise
            return JSONResponse({"error": fault.detail}, 400)
        rows = [_row(one, signature, does) for one in found]
        if by_row:
            return {"predictions": rows}
        outputs = SIGNATURES[kind][signature]
        return {"outputs": {key: [row[key] for row in rows] for key in outputs}}


def _read(body, signatures):
    """Gives the signature's name, the texts, and whether they come in rows."""
    if not isinstance(body, dict):
        raise ValueError("The body is an object with `instances` or `inputs`.")
    unknown = set(body) - {"signature_name", "instances", "inputs"}
    if unknown or ("instances" in body) == ("inputs" in body):
        raise ValueError(
            "A body has `instances` or `inputs`, and may have `signature_name`. "
            f"Received: {sorted(body)}."
        )
    signature = body.get("signature_name") or "serving_default"
    if not isinstance(signature, str) or signature not in signatures:
        raise ValueError(
            f"Signatures are {sorted(signatures)}. Received: {signature!r}."
        )
    by_row = "instances" in body
    texts = body["instances"] if by_row else body["inputs"]
    if by_row and isinstance(texts, list):
        texts = [one.get("text") if _holds_text(one) else one for one in texts]
    elif not by_row and _holds_text(texts):
        texts = texts["text"]
    texts = [texts] if isinstance(texts, str) and not by_row else texts
    if not isinstance(texts, list) or not all(isinstance(t, str) for t in texts):
        raise ValueError(
            'The input is `text`, a list of strings: as "instances": ['
            '"a text"] or [{"text": "a text"}], or as "inputs": ["a text"].'
        )
    return signature, texts, by_row


def _holds_text(value):
    return isinstance(value, dict) and set(value) == {"text"}


def _row(found, signature, does):
    if does["kind"] == "classification":
        shares = found["probabilities"]
        return {
            "labels": list(shares),
            "probabilities": list(shares.values()),
            "truncated": found["truncated"],
        }
    hypotheses = found["hypotheses"]
    if signature == "n_best":  # of an empty text, too
        missing = does["hypotheses"] - len(hypotheses)
        return {
            "translations": [one["text"] for one in hypotheses] + [""] * missing,
            "scores": [one["score"] for one in hypotheses] + [None] * missing,
        }
    best = hypotheses[0]
    return {
        "translation": best["text"],
        "score": best["score"],
        "finished": best["finished"],
    }


def _definition(signature, outputs):
    return {
        "inputs": {"text": _tensor(f"{signature}_text:0", "DT_STRING", 1)},
        "outputs": {
            key: _tensor(f"{signature}_{key}:0", dtype, rank)
            for key, (dtype, rank) in outputs.items()
        },
        "method_name": "tensorflow/serving/predict",
    }


def _tensor(name, dtype, rank):
    sizes = [{"size": "-1", "name": ""}] * rank
    shape = {"dim": sizes, "unknown_rank": False}
    return {"dtype": dtype, "tensor_shape": shape, "name": name}
