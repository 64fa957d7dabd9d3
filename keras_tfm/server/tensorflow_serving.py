"""Routes and shapes of the REST API of TensorFlow Serving.

Its clients can talk to this server.
https://www.tensorflow.org/tfx/serving/api_rest
"""

from collections.abc import Callable

import fastapi
from starlette.exceptions import HTTPException

from keras_tfm.server.errors import error_response

# Names, types and ranks of the outputs, as in `export.saved_model`.
SIGNATURES = {
    "translation": {
        "serving_default": {
            "translation": ("DT_STRING", 1),
            "score": ("DT_FLOAT", 1),
            "truncated": ("DT_BOOL", 1),
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


def add(
    app: fastapi.FastAPI,
    name: str,
    version: str,
    describe: Callable,
    answers: Callable,
) -> None:
    """Adds the routes to an application.

    Args:
        app: `fastapi.FastAPI`.
        name, version: str, of the model.
        describe: coroutine function that describes the model.
        answers: coroutine function `(texts, prefix, all_hypotheses)`.
    """
    for path in (f"/v1/models/{name}", f"/v1/models/{name}/versions/{version}"):
        _add_routes(app, path, name, version, describe, answers)


def _add_routes(app, path, name, version, describe, answers):
    @app.get(path)
    async def status():
        """The state of the model."""
        await describe(alive=True)
        status = {"error_code": "OK", "error_message": ""}
        state = {"version": version, "state": "AVAILABLE", "status": status}
        return {"model_version_status": [state]}

    @app.get(path + "/metadata")
    async def metadata():
        """Inputs and outputs of the signatures."""
        signatures = SIGNATURES[(await describe())["kind"]]
        definitions = {
            signature: _definition(signature, outputs)
            for signature, outputs in signatures.items()
        }
        return {
            "model_spec": {"name": name, "signature_name": "", "version": version},
            "metadata": {"signature_def": {"signature_def": definitions}},
        }

    @app.post(path + ":predict")
    async def predict(request: fastapi.Request):
        """Answers `instances` or `inputs` by a signature."""
        description = await describe()
        signatures = SIGNATURES[description["kind"]]
        try:
            body = await request.json()
        except (ValueError, RecursionError):
            return error_response(400, "The body must be JSON.")
        try:
            signature, texts, by_row = _parse(body, signatures)
        except ValueError as error:
            return error_response(400, str(error))
        try:
            results = await answers(texts, None, signature == "n_best")
        except HTTPException as error:
            if error.status_code != 422:
                raise
            return error_response(400, error.detail)
        rows = [_row(result, signature, description) for result in results]
        if by_row:
            return {"predictions": rows}
        names = signatures[signature]
        return {"outputs": {name: [row[name] for row in rows] for name in names}}


def _parse(body, signatures):
    """Returns the signature, the texts, and whether they came as rows."""
    if not isinstance(body, dict):
        raise ValueError("The body must be an object with `instances` or `inputs`.")
    unknown = set(body) - {"signature_name", "instances", "inputs"}
    if unknown or ("instances" in body) == ("inputs" in body):
        raise ValueError(
            "The body must have `instances` or `inputs`, and may have "
            f"`signature_name`; got {sorted(body)!s:.200}."
        )
    signature = body.get("signature_name")
    signature = "serving_default" if signature in (None, "") else signature
    if not isinstance(signature, str) or signature not in signatures:
        raise ValueError(
            f"`signature_name` must be one of {sorted(signatures)}; got "
            f"{signature!r:.80}."
        )
    by_row = "instances" in body
    texts = body["instances"] if by_row else body["inputs"]
    if by_row and isinstance(texts, list):
        texts = [item.get("text") if _holds_text(item) else item for item in texts]
    elif not by_row and _holds_text(texts):
        texts = texts["text"]
    texts = [texts] if isinstance(texts, str) and not by_row else texts
    if not isinstance(texts, list) or not all(isinstance(t, str) for t in texts):
        raise ValueError(
            'The input `text` must be a list of strings: "instances": ["a text"] or '
            '[{"text": "a text"}], or "inputs": ["a text"].'
        )
    return signature, texts, by_row


def _holds_text(value):
    return isinstance(value, dict) and set(value) == {"text"}


def _row(result, signature, description):
    if description["kind"] == "classification":
        probabilities = result["probabilities"]
        return {
            "labels": list(probabilities),
            "probabilities": list(probabilities.values()),
            "truncated": result["truncated"],
        }
    hypotheses = result["hypotheses"]
    if signature == "n_best":  # n columns for an empty text too
        missing = description["hypotheses"] - len(hypotheses)
        texts = [hypothesis["text"] for hypothesis in hypotheses]
        scores = [hypothesis["score"] for hypothesis in hypotheses]
        return {
            "translations": texts + [""] * missing,
            "scores": scores + [None] * missing,
        }
    best = hypotheses[0]
    return {
        "translation": best["text"],
        "score": best["score"],
        "truncated": best["truncated"],
    }


def _definition(signature, outputs):
    return {
        "inputs": {"text": _tensor(f"{signature}_text:0", "DT_STRING", 1)},
        "outputs": {
            name: _tensor(f"{signature}_{name}:0", dtype, rank)
            for name, (dtype, rank) in outputs.items()
        },
        "method_name": "tensorflow/serving/predict",
    }


def _tensor(name, dtype, rank):
    shape = {"dim": [{"size": "-1", "name": ""}] * rank, "unknown_rank": False}
    return {"dtype": dtype, "tensor_shape": shape, "name": name}
