"""The n-grams beside an encoder, and the scales of the logits."""

import numpy as np
import pytest
from scipy import sparse

from keras_tfm import models, pipelines, text
from keras_tfm.recipes import calibration, logit_scales, ngram_model

WORDS = [f"w{i}" for i in range(30)]


def make_examples(count, multi_label=False, seed=0):
    """Texts whose label is a pair of words that may stand anywhere."""
    generator = np.random.default_rng(seed)
    texts, labels = [], []
    for i in range(count):
        words = generator.choice(WORDS, 6).tolist()
        place = int(generator.integers(6))
        words[place:place] = ["not", "good"] if i % 2 else ["good", "not"]
        texts.append(" ".join(words))
        label = ["negative"] if i % 2 else ["positive"]
        labels.append([*label, "late"] if "w1" in words else label)
    if not multi_label:
        labels = [label[0] for label in labels]
    return text.LabeledDataset(texts, labels)


def make_batches(multi_label=False):
    train, validation = (
        make_examples(count, multi_label, seed) for seed, count in enumerate((400, 100))
    )
    if multi_label:
        validation = text.LabeledDataset(
            validation.texts, validation.labels, classes=train.classes
        )
    vocabulary = text.Vocabulary.train(train.texts, 400, "bpe", exact=False)
    return vocabulary, [
        text.LabelBatches(examples, vocabulary, 512, max_length=64)
        for examples in (train, validation)
    ]


def make_model(vocabulary, num_classes, **options):
    encoder = models.encoder_small(vocabulary.size, num_layers=1)
    return models.SequenceClassifier(
        encoder, num_classes, ngram_buckets=2**12, **options
    )


def test_all_weightings_and_strengths_converge():
    rng = np.random.default_rng(0)
    frequencies = 1 / np.arange(1, 2001)
    topics = [rng.permutation(2000) for _ in range(6)]
    counts = []
    for count in (2400, 60):  # texts of one topic, with words of all
        matrix, labels = np.zeros((count, 2000), "float32"), np.arange(count) % 6
        for row, label in zip(matrix, labels, strict=True):
            words = rng.choice(2000, 12, p=frequencies / frequencies.sum())
            is_general = rng.random(12) > 0.2
            row[np.where(is_general, words, topics[label][words])] = 1
        lengths = matrix.sum(axis=1)
        matrix = sparse.csr_matrix(matrix)
        counts.append(ngram_model.Counts(matrix, lengths, labels))
    rows = np.flatnonzero(counts[0].counts.sum(axis=0).A1 > 1)
    # Warnings, such as scikit-learn's ConvergenceWarning, are errors here.
    fitted = list(ngram_model.fit_regressions(counts, rows, 6, False))
    assert len(fitted) == len(ngram_model.WEIGHTINGS) * len(ngram_model.STRENGTHS)
    assert max(regression.score[0] for regression in fitted) > 0.4


def test_pairs_of_words_are_learned_beside_an_untrained_encoder():
    vocabulary, (train, validation) = make_batches()
    model = make_model(vocabulary, 2, max_ngram=4)
    model.ngram_bag.trainable = False
    result = calibration.combine(model, train, validation)["logits"]
    assert result["n-grams"]["validation"] > 0.95
    assert result["encoder"]["validation"] < 0.7
    assert result["n-grams"]["scale"] > result["encoder"]["scale"] > 0
    assert model.ngram_bag.trainable
    classifier = pipelines.Classifier(model, vocabulary, train.examples.classes)
    labels = [prediction.label for prediction in classifier(validation.examples.texts)]
    right = np.mean(
        [a == b for a, b in zip(labels, validation.examples.labels, strict=True)]
    )
    assert right > 0.95


@pytest.mark.parametrize("multi_label", [False, True])
def test_ngrams_are_finally_fitted_to_the_validation_texts_too(multi_label):
    vocabulary, (train, validation) = make_batches(multi_label)
    num_classes = 2 + multi_label
    model = make_model(vocabulary, num_classes, max_ngram=4, multi_label=multi_label)
    chosen = ngram_model.fit(model, train, validation)
    alone = np.array(model.ngram_bag.kernel)
    ngram_model.refit(model, train, chosen)
    np.testing.assert_allclose(model.ngram_bag.kernel, alone, atol=1e-5)
    scales, kernels, weights = [], [], model.get_weights()
    for whole in (None, train, validation):
        model.set_weights(weights)
        result = calibration.combine(model, train, validation, whole)["logits"]
        scales.append(result["n-grams"]["scale"])
        kernels.append(np.array(model.ngram_bag.kernel))
    # The scales are those of the first fit, to texts that it has not seen.
    np.testing.assert_allclose(scales, scales[0], rtol=1e-3)
    np.testing.assert_allclose(kernels[1], kernels[0], rtol=1e-3, atol=1e-4)
    assert np.abs(kernels[2] - kernels[0]).max() > 0.1


def test_several_labels_for_a_text_are_fitted_each():
    vocabulary, (train, validation) = make_batches(multi_label=True)
    model = make_model(vocabulary, 3, max_ngram=4, multi_label=True)
    result = calibration.combine(model, train, validation)["logits"]
    assert result["n-grams"]["validation"] > 0.95


def test_an_encoder_alone_gets_a_temperature():
    vocabulary, (train, validation) = make_batches()
    model = make_model(vocabulary, 2)
    kernel = 30 * np.array(model.output_dense.kernel)
    model.output_dense.kernel.assign(kernel)  # sure of what it does not know
    result = calibration.combine(model, train, validation)["logits"]
    assert set(result) == {"encoder", "validation"} and result["encoder"]["scale"] < 0.2
    np.testing.assert_allclose(
        model.output_dense.kernel, kernel * result["encoder"]["scale"], rtol=1e-2
    )


def test_the_scale_of_logits_is_the_one_they_were_drawn_with():
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(20_000, 3))
    noise = generator.normal(size=logits.shape)
    labels = (2 * logits + generator.gumbel(size=logits.shape)).argmax(-1)
    scales = logit_scales.fit_scales([logits, noise], labels)
    np.testing.assert_allclose(scales, [2, 0], atol=0.06)
    labels = generator.random(logits.shape) < 1 / (1 + np.exp(-0.5 * logits))
    [scale] = logit_scales.fit_scales([logits], labels.astype("float32"))
    assert scale == pytest.approx(0.5, abs=0.05)


def test_a_validation_set_without_errors_does_not_make_the_scale_infinite():
    logits = np.array([[4.0, 0.0], [0.0, 4.0]])
    [scale] = logit_scales.fit_scales([logits], np.array([0, 1]))
    assert 1 < scale < 2


def test_a_label_that_all_texts_have_is_a_constant():
    features = np.ones((9, 4))
    kernel, bias = ngram_model.fit_label(features, np.ones(9, bool), 1.0)
    assert not kernel.any() and bias == pytest.approx(np.log(10))


def make_features(labels, seed=0):
    """Features of which the first C say the label, but for noise."""
    features = np.random.default_rng(seed).normal(size=(len(labels), 6))
    features[np.arange(len(labels)), labels] += 3
    return features


@pytest.mark.parametrize("num_classes", [2, 3])
def test_balanced_classes_make_rare_ones_as_likely_as_others(num_classes):
    labels = np.array([0] * 900 + list(range(1, num_classes)) * 20)
    features = make_features(labels)
    fits = [
        ngram_model.fit_regression(features, labels, num_classes, 1.0, balanced)
        for balanced in (False, True)
    ]
    # Features without any label: the classes are as likely as in training.
    plain, balanced = (bias - bias.mean() for _, bias in fits)
    assert plain[0] - plain[1] > max(1.5, 2.5 * abs(balanced[0] - balanced[1]))


@pytest.mark.parametrize("present", [[0, 2], [0, 1], [1, 2], [0, 1, 3]])
def test_a_class_without_training_texts_is_unlikely(present):
    labels = np.array(present * 30)
    features = make_features(labels)
    kernel, bias = ngram_model.fit_regression(features, labels, 4, 1.0)
    logits = features @ kernel + bias
    assert kernel.shape == (6, 4) and (logits.argmax(-1) == labels).mean() > 0.9
    absent = [number for number in range(4) if number not in present]
    assert set(logits.argmax(-1)).isdisjoint(absent)


def test_a_second_fit_replaces_the_first():
    vocabulary, (train, validation) = make_batches()
    model = make_model(vocabulary, 2, max_ngram=2)
    kernels = []
    for _ in range(2):
        ngram_model.fit(model, train, validation)
        kernels.append(np.array(model.ngram_bag.kernel))
    np.testing.assert_allclose(*kernels, atol=1e-6)
    assert np.abs(kernels[0]).max() > 0.1
