"""SavedModels where nothing of this library is."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

# A machine that serves: TensorFlow and its text ops, nothing of ours.
SERVER = """
import json, sys
import tensorflow as tf
import tensorflow_text
signatures = tf.saved_model.load(sys.argv[1]).signatures
def plain(tensor):
    values = tensor.numpy()
    if values.dtype == object:
        return [plain_text(row) for row in values.tolist()]
    return values.tolist()
def plain_text(value):
    if isinstance(value, list):
        return [text.decode() for text in value]
    return value.decode()
answers = []
for name, texts in json.load(sys.stdin):
    answer = signatures[name](text=tf.constant(texts, tf.string))
    answers.append({key: plain(value) for key, value in answer.items()})
assert not any(name.split(".")[0] == "keras_tfm" for name in sys.modules)
print(json.dumps(answers))
"""


def serve(folder, *asked):
    """Lets a process without this library answer signatures with texts."""
    done = subprocess.run(
        [sys.executable, "-c", SERVER, os.fspath(folder)],
        input=json.dumps(asked),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def in_c(folder):
    """Compiles the program in C against the TensorFlow of the wheel."""
    import tensorflow as tf

    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    source, program = pathlib.Path(__file__).with_name("translate.c"), folder / "c"
    libraries = tf.sysconfig.get_lib()
    names = ("libtensorflow_cc.so.2", "libtensorflow_framework.so.2")
    done = subprocess.run(
        [
            *(compiler, "-O1", "-Wall", "-Werror", source, "-o", program),
            *("-I", tf.sysconfig.get_include(), "-L", libraries),
            *(f"-l:{name}" for name in names),
            f"-Wl,-rpath,{libraries}",
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return program


def text_operations():
    """Finds the library of what cuts text and joins it."""
    import tensorflow_text

    package = pathlib.Path(tensorflow_text.__file__).parent
    return package / "python" / "ops" / "_sentencepiece_tokenizer.so"


def names_of(folder):
    """Gives the operations of text and translation, and the latter's index."""
    from tensorflow.core.protobuf import saved_model_pb2

    saved = saved_model_pb2.SavedModel.FromString(
        (folder / "saved_model.pb").read_bytes()
    )
    signature = saved.meta_graphs[0].signature_def["serving_default"]
    given = signature.inputs["text"].name.split(":")
    actual = signature.outputs["translation"].name.split(":")
    return [given[0], *actual]
