"""Classification: order, batches, truncation, words, saving."""

import logging

import keras
import numpy as np
import pytest

from keras_tfm.models import Encoder, SequenceClassifier
from keras_tfm.pipelines import Classifier
from keras_tfm.text import TokenizersVocabulary, Vocabulary
from tests.layers.formulas import draw_weights, numpy

TEXTS = [
    "the small garden behind the old house",
    "a house",
    "an old man in a small boat",
    "a garden and a house and a boat and a man and the old garden",
    "Ünknown, zß!",
]
CLASSES = ["good", "bad", "ugly"]


@pytest.fixture(scope="module")
def vocabulary():
    return Vocabulary.train(TEXTS, size=290, exact=False)


def network(vocabulary, seed=0, segments=0, **settings):
    encoder = Encoder(
        vocabulary.size,
        num_layers=1,
        embedding_dim=8,
        intermediate_dim=12,
        num_heads=2,
        num_segments=segments,
        pad_id=vocabulary.pad_id,
    )
    return draw_weights(SequenceClassifier(encoder, len(CLASSES), **settings), seed)


@pytest.fixture(scope="module")
def classifier(vocabulary):
    return Classifier(network(vocabulary), vocabulary, CLASSES)


def reference_probabilities(classifier, text):
    """Computes the probabilities of one text without padding."""
    vocabulary = classifier.vocabulary
    [ids] = vocabulary.encode([text])
    ids = [vocabulary.start_id, *ids, vocabulary.end_id]
    logits = numpy(classifier.model({"token_ids": np.array([ids], "int32")}))[0]
    exponentials = np.exp(logits - logits.max())
    return exponentials / exponentials.sum()


def assert_same_prediction(actual, expected):
    """Compares predictions from batches of different shapes."""
    assert (actual.label, actual.truncated) == (expected.label, expected.truncated)
    assert actual.probabilities == pytest.approx(expected.probabilities, abs=1e-6)


@pytest.mark.slow("jax")
def test_each_text_gets_the_likeliest_class_in_order(classifier):
    predictions = classifier(TEXTS)
    for text, prediction in zip(TEXTS, predictions, strict=True):
        expected = reference_probabilities(classifier, text)
        assert list(prediction.probabilities) == CLASSES
        actual = list(prediction.probabilities.values())
        np.testing.assert_allclose(actual, expected, atol=1e-5)
        assert prediction.label == CLASSES[expected.argmax()]
        assert prediction.probability == max(actual)
        assert not prediction.truncated
    assert len({prediction.label for prediction in predictions}) > 1
    assert_same_prediction(classifier(TEXTS[1]), predictions[1])
    assert classifier([]) == []


@pytest.mark.backend("torch")
def test_batches_do_not_change_the_probabilities(classifier, vocabulary):
    texts = [TEXTS[i * 7 % 12 % 5] for i in range(40)]
    small = Classifier(classifier.model, vocabulary, CLASSES, batch_tokens=256)
    probabilities_of = {
        text: reference_probabilities(classifier, text) for text in set(texts)
    }
    expected = [probabilities_of[text] for text in texts]
    np.testing.assert_allclose(small.probabilities(texts), expected, atol=1e-5)
    np.testing.assert_allclose(classifier.probabilities(texts), expected, atol=1e-5)
    probabilities = classifier.probabilities(texts[1])
    np.testing.assert_allclose(probabilities, expected[1], atol=1e-5)


@pytest.mark.backend("torch")
def test_a_long_text_is_truncated_with_a_warning(classifier, vocabulary, caplog):
    short = Classifier(classifier.model, vocabulary, CLASSES, max_length=12)
    texts = ["old " * 100_000, "a man"]
    with caplog.at_level(logging.WARNING):
        long, brief = short(texts)
    assert (long.truncated, brief.truncated) == (True, False)
    assert "1 of 2 texts have more than 12 tokens" in caplog.text
    [ids] = vocabulary.encode(texts[:1])
    truncated_ids = [[vocabulary.start_id, *ids[:10], vocabulary.end_id]]
    logits = numpy(short.model({"token_ids": np.array(truncated_ids, "int32")}))[0]
    assert long.label == CLASSES[logits.argmax()]
    assert not short("a man").truncated
    caplog.clear()  # a server calls it for each request
    assert short(texts)[0].truncated and not caplog.text


@pytest.mark.slow("tensorflow", "jax")
def test_the_weight_of_a_word_is_that_of_its_tokens(classifier, vocabulary):
    text = "the small boat, old"
    words = classifier.word_weights(text)
    assert "".join(word for word, _ in words) == text.replace(" ", "")
    [ids] = vocabulary.encode([text])
    row = np.array([[vocabulary.start_id, *ids, vocabulary.end_id]], "int32")
    weights = numpy(classifier.model.pooling_weights({"token_ids": row}))[0]
    total = sum(weight for _, weight in words)
    assert total == pytest.approx(1 - weights[0] - weights[-1], abs=1e-5)
    first = [i for i, n in enumerate(vocabulary.word_indices(ids)) if n == 0]
    assert words[0][1] == pytest.approx(weights[1:][first].sum(), abs=1e-5)
    mean = Classifier(network(vocabulary, pooling="mean"), vocabulary, CLASSES)
    with pytest.raises(ValueError, match="pooling='mean'"):
        mean.word_weights(text)


@pytest.mark.slow("jax")
def test_pairs_have_segments(vocabulary):
    paired = Classifier(
        network(vocabulary, segments=2), vocabulary, CLASSES, paired=True
    )
    prediction, swapped = paired([("a man", "a house"), ("a house", "a man")])
    assert prediction.probabilities != swapped.probabilities
    assert_same_prediction(paired(("a man", "a house")), prediction)
    first, second = vocabulary.encode(["a man", "a house"])
    end = [vocabulary.end_id]
    ids = [vocabulary.start_id, *first, *end, *second, *end]
    segments = [0] * (len(first) + 2) + [1] * (len(second) + 1)
    inputs = {"token_ids": [ids], "segment_ids": [segments]}
    logits = numpy(paired.model({k: np.array(v, "int32") for k, v in inputs.items()}))
    actual = list(prediction.probabilities.values())
    np.testing.assert_allclose(actual, numpy(keras.ops.softmax(logits))[0], atol=1e-5)
    words = paired.word_weights(("a man", "a house"))
    assert [word for word, _ in words] == ["a", "man", "a", "house"]


@pytest.mark.backend("torch")
def test_several_labels_are_those_above_the_threshold(vocabulary):
    model = network(vocabulary, multi_label=True)
    classifier = Classifier(model, vocabulary, CLASSES)
    logits = numpy(model({"token_ids": np.array([[2, 5, 3]], "int32")}))
    assert logits.shape == (1, 3)
    for prediction in classifier(TEXTS):
        expected = [c for c, p in prediction.probabilities.items() if p >= 0.5]
        assert prediction.label == expected
    low_threshold = Classifier(model, vocabulary, CLASSES, threshold=1e-6)
    assert low_threshold(TEXTS[0]).label == CLASSES


@pytest.mark.parametrize("kind", ["sentencepiece", "wordpiece"])
def test_a_saved_classifier_predicts_the_same(vocabulary, kind, tmp_path):
    if kind == "wordpiece":
        vocabulary = TokenizersVocabulary.train(TEXTS, size=90)
    settings = {"max_length": 9, "batch_tokens": 64, "threshold": 0.3}
    classifier = Classifier(network(vocabulary), vocabulary, CLASSES, **settings)
    classifier.model.compile("adam", "mse")
    classifier.save(tmp_path / "model")
    loaded = Classifier.load(tmp_path / "model")
    assert (loaded.max_length, loaded.batch_tokens, loaded.threshold) == (9, 64, 0.3)
    assert loaded.classes == CLASSES
    np.testing.assert_allclose(
        loaded.probabilities(TEXTS), classifier.probabilities(TEXTS), atol=1e-6
    )
    assert Classifier.load(tmp_path / "model", max_length=20).max_length == 20
    names = sorted(path.name for path in (tmp_path / "model").iterdir())
    assert names == ["classifier.json", "model.keras", "vocabulary.model"]
    (tmp_path / "model" / "classifier.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"\['classifier.json'\] missing"):
        Classifier.load(tmp_path / "model")


def test_new_weights_change_the_probabilities(vocabulary):
    model = network(vocabulary)
    classifier = Classifier(model, vocabulary, CLASSES)
    old_probabilities = classifier.probabilities(TEXTS)
    draw_weights(model, 7)
    new_probabilities = classifier.probabilities(TEXTS)
    assert np.abs(new_probabilities - old_probabilities).max() > 0.01
    np.testing.assert_allclose(
        new_probabilities[1], reference_probabilities(classifier, TEXTS[1]), atol=1e-5
    )


@pytest.mark.backend("torch")
@pytest.mark.parametrize(
    ("texts", "error", "message"),
    [
        ("", ValueError, "Text 0 must not be empty; got"),
        (["a man", " \t"], ValueError, "Text 1 must not be empty"),
        ("\u2004" * 99, ValueError, r"^Text 0 must not be empty; got .{80}\. Leave it"),
        (["a man", "\u200b"], ValueError, "Text 1 has no tokens in this vocabulary"),
        (b"a man", TypeError, "got bytes. Decode bytes"),
        (["a man", b"a man"], TypeError, "Text 1 must be a str .* of type bytes"),
        (7, TypeError, "got int"),
        ({"a man": 1}, TypeError, "got dict.*pass a list"),
        ([None], TypeError, "Text 0 must be a str.* of type NoneType"),
        (["a man", "a \ud800"], ValueError, "Text 1 has a lone surrogate"),
        ([("a man", "a house")], TypeError, "must be a str for this.*type tuple"),
    ],
)
def test_values_that_are_not_text_are_rejected(classifier, texts, error, message):
    with pytest.raises(error, match=message):
        classifier(texts)


@pytest.mark.backend("torch")
@pytest.mark.parametrize(
    ("encoder", "changes", "message"),
    [
        ({}, {"max_length": 2}, "2 special tokens.*max_length=2"),
        ({}, {"max_length": 300, "batch_tokens": 256}, "batch_tokens=256"),
        ({}, {"threshold": 1.0}, "threshold=1.0"),
        ({}, {"classes": ["good", "bad"]}, "3 different names.*got 2:"),
        ({}, {"classes": ["a", "b", "a"]}, r"3 different names.*\['a', 'b', 'a'"),
        ({}, {"classes": [0, 1, 2]}, r"3 different names.*\[0, 1, 2\]"),
        ({"pad_id": 5}, {}, "encoder masks; got 0, and pad_id=5"),
        ({"vocabulary_size": 9}, {}, "must not have more tokens.*vocabulary_size=9"),
        (
            {"positions": "learned", "sequence_length": 16},
            {"max_length": 256},
            "at most 16, the learned positions.*max_length=256",
        ),
    ],
)
def test_invalid_arguments_are_rejected(vocabulary, encoder, changes, message):
    config = {"vocabulary_size": vocabulary.size, "num_layers": 1, "embedding_dim": 8}
    model = SequenceClassifier(Encoder(num_heads=2, **config | encoder), 3)
    with pytest.raises(ValueError, match=message):
        Classifier(model, vocabulary, **{"classes": CLASSES, **changes})


def test_learned_positions_limit_the_length(vocabulary):
    config = {"vocabulary_size": vocabulary.size, "num_layers": 1, "embedding_dim": 8}
    encoder = Encoder(num_heads=2, positions="learned", sequence_length=16, **config)
    classifier = Classifier(SequenceClassifier(encoder, 3), vocabulary, CLASSES)
    assert classifier.max_length == 16


@pytest.mark.backend("torch")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"classes": "ab"}', "'classes' must be of type list"),
        ('{"paired": 1}', "'paired' must be of type bool"),
        ('{"speed": 1}', r"unknown entries \['speed'\]"),
    ],
)
def test_the_error_names_a_damaged_configuration(
    classifier, tmp_path, content, message
):
    classifier.save(tmp_path)
    (tmp_path / "classifier.json").write_text(content)
    with pytest.raises(ValueError, match=f"classifier.json.*{message}"):
        Classifier.load(tmp_path)
