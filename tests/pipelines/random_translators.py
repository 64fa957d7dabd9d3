"""Translators with random weights, and texts for tests."""

import numpy as np
import pytest

from keras_tfm.decode.inputs import padded_rows
from keras_tfm.pipelines import Translator
from keras_tfm.text import Vocabulary
from tests.decode.conftest import draw_transformer

TEXTS = [
    "the small garden behind the old house",
    "a house",
    "",
    "an old man in a small boat",
    "the boat",
    "a garden and a house and a boat and a man",
    " ",
    "old",
    "Ünknown, zß!",
]
MAX_LENGTH = 16  # one chunk of steps, so each bucket has one compiled function
FAST = {
    "max_decoding_length": MAX_LENGTH,
    "jit_compile": False,
    # Bytes are suppressed too: random weights would generate little else.
    "suppress_ids": [0, 1, 2, *range(4, 260)],
}
CHANGES = {
    "beam_size": 2,
    "length_penalty": 0.7,
    "batch_size": 4,
    "batch_tokens": 2000,
    "split_tokens": 50,
    "max_source_length": 60,
    "length_penalty_form": "gnmt",
    **FAST,
}
AFFIXES = {"source_prefix": [270], "source_suffix": [3, 271], "target_prefix": [265]}


def as_ids(rows):
    return padded_rows(rows, max(map(len, rows)))


def rows_of(translator, texts):
    """Returns the ids of all segments."""
    sources = translator.encode(texts)
    return [segment.ids for source in sources for segment in source.segments]


def draw_vocabulary():
    return Vocabulary.train([text for text in TEXTS if text.isascii()] * 20, size=280)


def draw_translator(vocabulary, target_vocabulary):
    # Three unused rows, as in a matrix that is padded to a round size.
    model = draw_transformer(
        seed=6,  # outputs differ, and some have an end token
        vocabulary_size=vocabulary.size + 3,
        target_vocabulary_size=target_vocabulary.size + 3,
    )
    # Compiled, as after training: saved files must not contain the optimizer.
    model.compile("adam", "sparse_categorical_crossentropy")
    return Translator(model, vocabulary, target_vocabulary).replace(**CHANGES)


@pytest.fixture(scope="session")
def vocabulary():
    return draw_vocabulary()


@pytest.fixture(scope="session")
def target_vocabulary():
    return Vocabulary.train(["un uomo, una barca e un giardino"] * 20, size=276)


@pytest.fixture(scope="session")
def translator(vocabulary, target_vocabulary):
    return draw_translator(vocabulary, target_vocabulary)


@pytest.fixture(scope="session")
def translations(translator):
    return translator(TEXTS)


def hostile():
    """Returns unusual texts that a user may send."""
    rng = np.random.default_rng(0)
    letters = [chr(i) for i in range(1, 32)]
    letters += " .!?\"')]\u3002\uff01\u2581ab\U0001f600"
    letters += "\u05d0\u200f\u0301\ufeff\u2028\x7f\x85\x00"
    random_texts = ["".join(rng.choice(letters, size)) for size in range(1, 60)]
    return [
        *random_texts,
        "",
        " ",
        "\n",
        "\r\n\r\n",
        " \t a house \n\n an old man. ",
        "a house.\nan old man\n",
        "<s> a </s> <pad> <0x41>",
        "\u05d1\u05d9\u05ea \u05d5\u05d2\u05df",
        "a" * 300,
        "a house. " * 30,
        "a house of a. b. and 5. garden. " * 10,
        'the "small" boat." ' * 12,
        "a garden and a house " * 30,
        "\u3002".join(["a house"] * 20),
    ]
