"""Forward passes in other formats, written by Keras' `export`."""

import itertools

import numpy as np
import pytest
from keras import ops

from keras_tfm import models
from tests.layers.formulas import draw_weights
from tests.models.small import SOURCE, TARGET, V, small

pytestmark = [
    pytest.mark.backend("tensorflow"),
    # Keras uses tf2onnx, which reads `np.object`.
    pytest.mark.filterwarnings("ignore:.*np.object:FutureWarning"),
    pytest.mark.filterwarnings("ignore:(?s).*tf.lite.Interpreter is deprecated"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
IDS = np.array([[5, 9, 4, 3, 7, 2], [7, 3, 0, 0, 0, 0], [4, 4, 4, 4, 4, 2]], "int32")


def translation():
    return small(), {"source_ids": SOURCE, "target_ids": TARGET}


def classifier():
    encoder = models.Encoder(V, num_layers=1, embedding_dim=8, num_heads=2)
    model = models.SequenceClassifier(encoder, 3, max_ngram=3, ngram_buckets=101)
    return draw_weights(model), {"token_ids": IDS}


def language_model():
    sizes = {"num_layers": 1, "embedding_dim": 8, "num_heads": 2}
    # tf2onnx has no Erfc, which the default activation, GELU, needs.
    model = models.CausalLM(V, positions="rotary", activation="silu", **sizes)
    return draw_weights(model), {"token_ids": IDS}


def onnx(file, inputs):
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(file)
    return session.run(None, inputs)[0]


def openvino(file, inputs):
    runtime = pytest.importorskip("openvino")
    # OpenVINO computes in bfloat16 by default where the CPU supports it.
    exact = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = runtime.Core().compile_model(file, "CPU", exact)
    return compiled(inputs)[0]


def litert(file, inputs):
    import tensorflow

    runner = tensorflow.lite.Interpreter(file).get_signature_runner()
    return next(iter(runner(**inputs).values()))


FORMATS = {"onnx": onnx, "openvino": openvino, "litert": litert}
SUFFIXES = {"onnx": ".onnx", "openvino": ".xml", "litert": ".tflite"}


# One format of each model; the other pairs are slow.
USUAL = {("onnx", classifier), ("openvino", language_model), ("litert", translation)}
PAIRS = [
    pytest.param(*pair, marks=[] if pair in USUAL else pytest.mark.slow)
    for pair in itertools.product(FORMATS, [translation, classifier, language_model])
]


@pytest.mark.parametrize(("name", "make_model"), PAIRS)
def test_exports_compute_the_logits_of_the_model_for_any_batch_and_length(
    tmp_path, name, make_model
):
    pytest.importorskip({"onnx": "tf2onnx"}.get(name, "tensorflow"))
    pytest.importorskip({"openvino": "openvino"}.get(name, "tensorflow"))
    model, inputs = make_model()
    file = str(tmp_path / f"model{SUFFIXES[name]}")
    shorter = {key: ids[:1, :-1] for key, ids in inputs.items()}
    # Keras needs a call before it exports to ONNX.
    expected = model(inputs), model(shorter)
    model.export(file, format=name, verbose=False)
    for batch, logits in zip((inputs, shorter), expected, strict=True):
        actual = FORMATS[name](file, batch)
        np.testing.assert_allclose(actual, ops.convert_to_numpy(logits), atol=1e-4)
