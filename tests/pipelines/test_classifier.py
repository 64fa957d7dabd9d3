"""From text to labels: order, batches, cut texts, words, saving."""

import logging
import os

import keras
import numpy as np
import pytest

from keras_tfm.models import Encoder, SequenceClassifier
from keras_tfm.pipelines import Classifier
from keras_tfm.text import TokenizersVocabulary, Vocabulary
from tests.export.saved import serve
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


def by_hand(classifier, text):
    """Probabilities of one text alone, without padding."""
    vocabulary = classifier.vocabulary
    [ids] = vocabulary.encode([text])
    ids = [vocabulary.start_id, *ids, vocabulary.end_id]
    logits = numpy(classifier.model({"token_ids": np.array([ids], "int32")}))[0]
    shares = np.exp(logits - logits.max())
    return shares / shares.sum()


def assert_alike(one, other):
    """Batches of other shapes differ in the last place."""
    assert (one.label, one.truncated) == (other.label, other.truncated)
    assert one.probabilities == pytest.approx(other.probabilities, abs=1e-6)


def test_each_text_gets_the_likeliest_class_in_order(classifier):
    predictions = classifier(TEXTS)
    for text, prediction in zip(TEXTS, predictions, strict=True):
        wanted = by_hand(classifier, text)
        assert list(prediction.probabilities) == CLASSES
        found = list(prediction.probabilities.values())
        np.testing.assert_allclose(found, wanted, atol=1e-5)
        assert prediction.label == CLASSES[wanted.argmax()]
        assert prediction.probability == max(found)
        assert not prediction.truncated
    assert len({prediction.label for prediction in predictions}) > 1
    assert_alike(classifier(TEXTS[1]), predictions[1])
    assert classifier([]) == []


@pytest.mark.backend("torch")
def test_batches_do_not_change_what_is_said(classifier, vocabulary):
    many = [TEXTS[i * 7 % 12 % 5] for i in range(40)]
    small = Classifier(classifier.model, vocabulary, CLASSES, batch_tokens=256)
    alone = {text: by_hand(classifier, text) for text in set(many)}
    wanted = [alone[text] for text in many]
    np.testing.assert_allclose(small.probabilities(many), wanted, atol=1e-5)
    np.testing.assert_allclose(classifier.probabilities(many), wanted, atol=1e-5)
    one = classifier.probabilities(many[1])
    np.testing.assert_allclose(one, wanted[1], atol=1e-5)


@pytest.mark.backend("torch")
def test_a_very_long_text_is_cut_and_said(classifier, vocabulary, caplog):
    short = Classifier(classifier.model, vocabulary, CLASSES, max_length=12)
    texts = ["old " * 100_000, "a man"]
    with caplog.at_level(logging.WARNING):
        long, other = short(texts)
    assert (long.truncated, other.truncated, short.truncated) == (True, False, 1)
    assert "1 of 2 texts have more than 12 tokens" in caplog.text
    [ids] = vocabulary.encode(texts[:1])
    kept = [[vocabulary.start_id, *ids[:10], vocabulary.end_id]]
    logits = numpy(short.model({"token_ids": np.array(kept, "int32")}))[0]
    assert long.label == CLASSES[logits.argmax()]
    short("a man")
    assert short.truncated == 0


def test_words_weigh_what_their_pieces_weigh(classifier, vocabulary):
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


def test_pairs_have_segments(vocabulary):
    paired = Classifier(
        network(vocabulary, segments=2), vocabulary, CLASSES, paired=True
    )
    one, other = paired([("a man", "a house"), ("a house", "a man")])
    assert one.probabilities != other.probabilities
    assert_alike(paired(("a man", "a house")), one)
    first, second = vocabulary.encode(["a man", "a house"])
    end = [vocabulary.end_id]
    ids = [vocabulary.start_id, *first, *end, *second, *end]
    segments = [0] * (len(first) + 2) + [1] * (len(second) + 1)
    inputs = {"token_ids": [ids], "segment_ids": [segments]}
    logits = numpy(paired.model({k: np.array(v, "int32") for k, v in inputs.items()}))
    found = list(one.probabilities.values())
    np.testing.assert_allclose(found, numpy(keras.ops.softmax(logits))[0], atol=1e-5)
    words = paired.word_weights(("a man", "a house"))
    assert [word for word, _ in words] == ["a", "man", "a", "house"]


@pytest.mark.backend("torch")
def test_several_labels_are_those_above_the_threshold(vocabulary):
    model = network(vocabulary, multi_label=True)
    some = Classifier(model, vocabulary, CLASSES)
    logits = numpy(model({"token_ids": np.array([[2, 5, 3]], "int32")}))
    assert logits.shape == (1, 3)
    for prediction in some(TEXTS):
        wanted = [c for c, p in prediction.probabilities.items() if p >= 0.5]
        assert prediction.label == wanted
    all_of_them = Classifier(model, vocabulary, CLASSES, threshold=1e-6)
    assert all_of_them(TEXTS[0]).label == CLASSES


@pytest.mark.parametrize("kind", ["sentencepiece", "wordpiece"])
def test_a_saved_classifier_says_the_same(vocabulary, kind, tmp_path):
    if kind == "wordpiece":
        vocabulary = TokenizersVocabulary.train(TEXTS, size=90)
    settings = {"max_length": 9, "batch_tokens": 64, "threshold": 0.3}
    before = Classifier(network(vocabulary), vocabulary, CLASSES, **settings)
    before.model.compile("adam", "mse")
    before.save(tmp_path / "model")
    again = Classifier.load(tmp_path / "model")
    assert (again.max_length, again.batch_tokens, again.threshold) == (9, 64, 0.3)
    assert again.classes == CLASSES
    np.testing.assert_allclose(
        again.probabilities(TEXTS), before.probabilities(TEXTS), atol=1e-6
    )
    assert Classifier.load(tmp_path / "model", max_length=20).max_length == 20
    left = sorted(path.name for path in (tmp_path / "model").iterdir())
    assert left == ["classifier.json", "model.keras", "vocabulary.model"]
    (tmp_path / "model" / "classifier.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"\['classifier.json'\] missing"):
        Classifier.load(tmp_path / "model")


def test_what_is_learned_later_is_said_later(vocabulary):
    model = network(vocabulary)
    classifier = Classifier(model, vocabulary, CLASSES)
    before = classifier.probabilities(TEXTS)
    draw_weights(model, 7)
    after = classifier.probabilities(TEXTS)
    assert np.abs(after - before).max() > 0.01
    np.testing.assert_allclose(after[1], by_hand(classifier, TEXTS[1]), atol=1e-5)


@pytest.mark.parametrize(
    ("texts", "error", "message"),
    [
        ("", ValueError, "empty text. Received: .*text 0"),
        (["a man", " \t"], ValueError, "empty text. .*text 1"),
        (["a man", "\u200b"], ValueError, "left in this vocabulary.*text 1"),
        (b"a man", TypeError, "Received: bytes"),
        (["a man", b"a man"], TypeError, "of type bytes, text 1"),
        (7, TypeError, "Received: int"),
        ({"a man": 1}, TypeError, "Received: dict. Give a list"),
        ([None], TypeError, "of type NoneType, text 0. Give its text alone"),
        (["a man", "a \ud800"], ValueError, "Text 1 has half of a surrogate pair"),
        ([("a man", "a house")], TypeError, "A text is a str for this.*type tuple"),
    ],
)
def test_what_is_no_text_is_refused(classifier, texts, error, message):
    with pytest.raises(error, match=message):
        classifier(texts)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_length": 2}, "2 marks and a token.*max_length=2"),
        ({"max_length": 300, "batch_tokens": 256}, "batch_tokens=256"),
        ({"threshold": 1.0}, "threshold=1.0"),
        ({"classes": ["good", "bad"]}, "The model has 3 classes. Received: 2"),
        ({"classes": ["a", "b", "a"]}, r"a name of its own. Received: \['a', 'b', 'a'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(classifier, settings, message):
    settings = {"classes": CLASSES, **settings}
    with pytest.raises(ValueError, match=message):
        Classifier(classifier.model, classifier.vocabulary, **settings)


def test_another_id_of_padding_is_refused(vocabulary):
    encoder = Encoder(vocabulary.size, 1, 8, 12, 2, pad_id=5)
    with pytest.raises(ValueError, match="than the model masks. Received: 0, pad_id=5"):
        Classifier(SequenceClassifier(encoder, 2), vocabulary, ["a", "b"])


def test_a_vocabulary_or_length_past_a_table_is_refused(vocabulary):
    encoder = Encoder(vocabulary.size - 1, num_layers=1, embedding_dim=8, num_heads=2)
    with pytest.raises(ValueError, match="more pieces than the model has rows"):
        Classifier(SequenceClassifier(encoder, 3), vocabulary, CLASSES)
    encoder = Encoder(
        vocabulary.size,
        num_layers=1,
        embedding_dim=8,
        num_heads=2,
        positions="learned",
        sequence_length=16,
    )
    with pytest.raises(ValueError, match="learned 16 positions. .*max_length=256"):
        Classifier(SequenceClassifier(encoder, 3), vocabulary, CLASSES, max_length=256)
    assert (
        Classifier(SequenceClassifier(encoder, 3), vocabulary, CLASSES).max_length == 16
    )


@pytest.mark.backend("tensorflow")
@pytest.mark.parametrize("paired", [False, True])
def test_the_savedmodel_says_what_the_classifier_says(paired, vocabulary, tmp_path):
    import tensorflow as tf

    model = network(vocabulary, segments=2 * paired)
    classifier = Classifier(model, vocabulary, CLASSES, paired, max_length=14)
    classifier.export(tmp_path / "saved", version=1)
    folder = tmp_path / "saved" / "1"
    texts = [(text, other) for text in TEXTS for other in TEXTS]
    if not paired:
        texts = TEXTS
        [found] = serve(folder, ("serving_default", [*TEXTS, "", " "]))
    else:
        signature = tf.saved_model.load(os.fspath(folder)).signatures["serving_default"]
        sides = zip(*texts, ("a house", ""), (" ", "a"), strict=True)
        sides = [tf.constant(list(side)) for side in sides]
        found = signature(text=sides[0], second=sides[1])
        found = {name: value.numpy().tolist() for name, value in found.items()}
        found["labels"] = [[x.decode() for x in row] for row in found["labels"]]
    wanted = classifier(texts)
    assert found["labels"][-2:] == [[""] * 3] * 2
    assert found["probabilities"][-2:] == [[0.0] * 3] * 2
    assert found["truncated"][:-2] == [one.truncated for one in wanted]
    assert len(set(found["truncated"])) == 2
    for labels, probabilities, one in zip(
        found["labels"], found["probabilities"], wanted, strict=False
    ):
        assert labels[0] == one.label
        given = dict(zip(labels, probabilities, strict=True))
        assert given == pytest.approx(one.probabilities, abs=1e-5)
    warm = folder / "assets.extra" / "tf_serving_warmup_requests"
    [_, record] = tf.data.TFRecordDataset(os.fspath(warm)).as_numpy_iterator()
    assert (b"second" in record) == paired


def test_a_classifier_of_other_pieces_is_not_exported(tmp_path):
    vocabulary = TokenizersVocabulary.train(TEXTS, size=70)
    classifier = Classifier(network(vocabulary), vocabulary, CLASSES)
    with pytest.raises(TypeError, match="vocabulary of type TokenizersVocabulary"):
        classifier.export(tmp_path)


@pytest.mark.backend("torch")  # a translator is exported from both
def test_other_backends_export_in_one_call(classifier, tmp_path):
    classifier.export(tmp_path / "saved")
    [found] = serve(tmp_path / "saved", ("serving_default", TEXTS))
    assert [labels[0] for labels in found["labels"]] == [
        one.label for one in classifier(TEXTS)
    ]
