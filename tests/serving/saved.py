"""SavedModels where nothing of this library is."""

import json
import os
import subprocess
import sys

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
