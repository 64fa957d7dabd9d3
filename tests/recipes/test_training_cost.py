"""Tokens seen, operations and perplexity: what `result.json` says of a run."""

import keras
import numpy as np
import pytest

from keras_tfm import models, pipelines, text
from keras_tfm.recipes import training_cost, translation_scores

pytestmark = pytest.mark.backend("torch")
PAIRS = text.Pairs(
    [f"a {'big ' * (i % 5)}cat" for i in range(40)],
    [f"eine {'große ' * (i % 7)}Katze" for i in range(40)],
)


@pytest.fixture(scope="module")
def vocabulary():
    lines = [*PAIRS.source, *PAIRS.target]
    return text.Vocabulary.train(lines, size=280, exact=False)


@pytest.fixture(scope="module")
def model(vocabulary):
    keras.utils.set_random_seed(0)
    sizes = {"embedding_dim": 16, "intermediate_dim": 32, "num_heads": 2}
    return models.Transformer(vocabulary.size, num_layers=1, dropout=0.0, **sizes)


def test_the_cost_is_that_of_all_batches(model, vocabulary, capsys):
    batches = text.Batches(PAIRS, vocabulary, batch_tokens=64, num_buckets=3)
    result = training_cost.of_pairs(model, batches, epochs=2)
    source_tokens = target_tokens = flops = 0
    for step in range(2 * batches.steps_per_epoch):
        inputs, labels = batches.batch(step)
        source_ids = inputs["source_ids"]
        source_tokens += np.count_nonzero(source_ids)
        target_tokens += np.count_nonzero(labels)
        size, length = source_ids.shape
        flops += models.training_flops(model, size, length, labels.shape[1])
    assert result == {
        "source_tokens_seen": source_tokens,
        "target_tokens_seen": target_tokens,
        "training_flops": flops,
    }
    printed = capsys.readouterr().out
    assert printed.startswith(f"Training cost: {flops:.1e} FLOPs; {source_tokens:,} ")


def test_the_cost_of_running_text_is_that_of_all_rows(vocabulary):
    rows = text.TokenRows(PAIRS.target, vocabulary, length=8, batch_size=4)
    sizes = {"embedding_dim": 16, "intermediate_dim": 32, "num_heads": 2}
    model = models.CausalLM(vocabulary.size, num_layers=1, **sizes)
    result = training_cost.of_rows(model, rows, 4, epochs=3)
    shapes = [rows.batch(step)[1].shape for step in range(3 * rows.steps_per_epoch)]
    assert result["tokens_seen"] == sum(size * length for size, length in shapes)
    flops = sum(models.training_flops(model, *shape) for shape in shapes)
    assert result["training_flops"] == flops


def test_the_cost_of_a_classifier_is_that_of_all_texts(vocabulary):
    examples = text.LabeledDataset(PAIRS.target, ["a", "b"] * 20)
    batches = text.LabelBatches(examples, vocabulary, batch_tokens=64, num_buckets=3)
    sizes = {"embedding_dim": 16, "intermediate_dim": 32, "num_heads": 2}
    encoder = models.Encoder(vocabulary.size, num_layers=1, **sizes)
    model = models.SequenceClassifier(encoder, num_classes=2)
    result = training_cost.of_texts(model, batches, epochs=2)
    tokens = flops = 0
    for step in range(2 * batches.steps_per_epoch):
        ids = batches.batch(step)[0]["token_ids"]
        tokens += np.count_nonzero(ids)
        flops += models.training_flops(model, *ids.shape)
    assert result == {"tokens_seen": tokens, "training_flops": flops}


def test_perplexity_is_that_of_the_labels(model, vocabulary):
    batches = text.Batches(PAIRS, vocabulary, batch_tokens=64, shuffle=False)
    total = count = 0
    for step in range(batches.steps_per_epoch):
        inputs, labels = batches.batch(step)
        logits = keras.ops.convert_to_numpy(model(inputs)).astype("float64")
        log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        at_labels = np.take_along_axis(log_probabilities, labels[..., None], -1)[..., 0]
        total, count = total + at_labels[labels > 0].sum(), count + (labels > 0).sum()
    translator = pipelines.Translator(model, vocabulary)
    result = translation_scores.perplexity(translator, PAIRS)
    expected = np.exp(-total / count)
    assert result["validation_perplexity"] == pytest.approx(expected, rel=1e-3)


def test_pairs_that_do_not_fit_have_no_perplexity(vocabulary):
    sizes = {"embedding_dim": 16, "intermediate_dim": 32, "num_heads": 2}
    learned = {"positions": "learned", "sequence_length": 12}
    model = models.Transformer(vocabulary.size, num_layers=1, **sizes, **learned)
    translator = pipelines.Translator(model, vocabulary)
    short = text.Pairs(["a cat"], ["eine Katze"])
    long = text.Pairs(["a cat", "a cat", ""], ["eine Katze", "Katze " * 40, "Katze"])
    expected = translation_scores.perplexity(translator, short)
    assert translation_scores.perplexity(translator, long) == expected
