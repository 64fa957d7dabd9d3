"""Runs SavedModels in processes without this library."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

# A serving process: TensorFlow and its text ops, without this library.
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


def serve(folder, *requests):
    """Calls signatures on texts in a process without this library."""
    process = subprocess.run(
        [sys.executable, "-c", SERVER, os.fspath(folder)],
        input=json.dumps(requests),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    return json.loads(process.stdout)


def compile_c_program(folder):
    """Compiles the program in C against the TensorFlow of the wheel."""
    import tensorflow as tf

    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    source, program = pathlib.Path(__file__).with_name("translate.c"), folder / "c"
    libraries = tf.sysconfig.get_lib()
    names = ("libtensorflow_cc.so.2", "libtensorflow_framework.so.2")
    process = subprocess.run(
        [
            *(compiler, "-O1", "-Wall", "-Werror", source, "-o", program),
            *("-I", tf.sysconfig.get_include(), "-L", libraries),
            *(f"-l:{name}" for name in names),
            f"-Wl,-rpath,{libraries}",
        ],
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    return program


def text_operations():
    """Returns the path of the library of tokenization operations."""
    import tensorflow_text

    package = pathlib.Path(tensorflow_text.__file__).parent
    return package / "python" / "ops" / "_sentencepiece_tokenizer.so"


def operation_names(folder):
    """Returns the input operation, the output operation and its index."""
    from tensorflow.core.protobuf import saved_model_pb2

    saved = saved_model_pb2.SavedModel.FromString(
        (folder / "saved_model.pb").read_bytes()
    )
    signature = saved.meta_graphs[0].signature_def["serving_default"]
    text_input = signature.inputs["text"].name.split(":")
    translation_output = signature.outputs["translation"].name.split(":")
    return [text_input[0], *translation_output]
