"""Strings of all Unicode categories get an answer everywhere, line by line.

`EXAMPLES=1000 pytest --slow tests/test_hostile_strings.py` draws more strings.
"""

import json
import os

import keras
import pytest

from keras_tfm import decode, export
from keras_tfm.cli import main
from keras_tfm.pipelines import Classifier, Translator
from keras_tfm.server.engine import Engine
from keras_tfm.text import Vocabulary
from tests import hostile_strings
from tests.decode.conftest import draw_transformer
from tests.pipelines.test_classifier import CLASSES, network
from tests.server.conftest import Client, InProcess

EXAMPLES = int(os.environ.get("EXAMPLES", 60))
SENTENCES = ["an old man in a small boat", "a house", "the garden of Tom, 3 km away."]
STEPS = {
    "protect": True,
    "match_numbers": True,
    "known_words": ["an", "old", "man", "house", "garden"],
    "lower_capitals": True,
    "add_final_mark": True,
    "avoid_loops": True,
}
SECONDS = 60  # for one string, on a busy machine


@pytest.fixture(scope="module")
def strings():
    return hostile_strings.draw(EXAMPLES)


@pytest.fixture(scope="module")
def vocabulary():
    return Vocabulary.train(SENTENCES * 20, size=280, exact=False)


@pytest.fixture(scope="module")
def translator(vocabulary):
    model = draw_transformer(seed=6, vocabulary_size=vocabulary.size)
    options = decode.Options(beam_size=2, max_decoding_length=8)
    return Translator(model, vocabulary, options=options, **STEPS)


@pytest.fixture(scope="module")
def folder(translator, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile") / "animals"
    translator.save(folder)
    return str(folder)


def single_lines(strings):
    """Returns the strings without line endings, as a file of lines has them."""
    return [string.replace("\n", " ").replace("\r", " ") for string in strings]


def test_a_translator_keeps_the_lines_of_every_string(translator, strings):
    for string in strings:
        answer = translator.translate(string, timeout=SECONDS).text
        assert answer.count("\n") == string.count("\n"), repr(string)


def test_a_classifier_labels_every_string(vocabulary, strings):
    classifier = Classifier(network(vocabulary), vocabulary, CLASSES)
    tokens = vocabulary.encode(strings)
    texts = [string for string, ids in zip(strings, tokens, strict=True) if ids]
    predictions = classifier(texts)
    assert len(predictions) == len(texts) > EXAMPLES / 2
    assert {prediction.label for prediction in predictions} <= {*CLASSES}
    for string in {*strings} - {*texts}:
        with pytest.raises(
            ValueError, match="must not be empty|has no tokens"
        ) as error:
            classifier([string])
        assert len(str(error.value)) < 400


@pytest.mark.slow
def test_a_saved_model_answers_every_string(translator, strings, tmp_path):
    tensorflow = pytest.importorskip("tensorflow")
    if keras.backend.backend() != "tensorflow":
        pytest.skip("The graph is the same on every backend.")
    with pytest.warns(UserWarning, match="text"):
        export.saved_model(translator, tmp_path / "exported")
    loaded = tensorflow.saved_model.load(str(tmp_path / "exported"))
    for string in strings:
        answer = loaded.signatures["serving_default"](
            text=tensorflow.constant([string])
        )
        [text] = answer["translation"].numpy()
        assert text.count(b"\n") == string.count("\n"), repr(string)


def test_a_command_writes_a_line_for_every_line(folder, strings, tmp_path):
    source, target = tmp_path / "source.txt", tmp_path / "target.txt"
    lines = single_lines(strings)
    source.write_bytes("".join(f"{line}\n" for line in lines).encode())
    assert main(["translate", folder, str(source), "--output", str(target)]) == 0
    assert target.read_bytes().count(b"\n") == len(lines)


def test_a_server_answers_every_string(folder, strings):
    client = Client(InProcess(Engine(folder)), max_characters=20_000)
    client.send("/translate", {"text": "a house"})
    for string in strings:
        body = json.dumps({"text": [string]}).encode()
        answer = client.send("/translate", body[:100_000])
        assert answer.status_code in (200, 413), repr(string)
        if answer.status_code == 200:
            [translation] = answer.json()["translations"]
            assert translation["text"].count("\n") == string.count("\n")
