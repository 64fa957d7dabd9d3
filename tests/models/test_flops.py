"""Operations counted from shapes agree with those that XLA counts."""

import keras
import numpy as np
import pytest

from keras_tfm import models, training

pytestmark = pytest.mark.backend("jax")  # whose compiler counts operations
SIZES = {"num_layers": 2, "dropout": 0.0}
S, T, B, V = 24, 16, 2, 300


def transformer(**options):
    sizes = {"embedding_dim": 128, "intermediate_dim": 512, "num_heads": 4}
    return models.Transformer(V, **{**SIZES, **sizes, **options})


def compiler_flops(model, inputs):
    """Counts the operations of the loss and its gradients by all weights."""
    import jax

    labels = np.ones(inputs["target_ids"].shape, "int32")
    return _compiler_flops(jax, model, inputs, labels)


def _compiler_flops(jax, model, inputs, labels, loss=None):
    loss = loss or training.SmoothedCrossentropy(0.1)
    frozen = [variable.value for variable in model.non_trainable_variables]

    def value(weights):
        logits, _ = model.stateless_call(weights, frozen, inputs, training=True)
        return loss(labels, logits)

    weights = [variable.value for variable in model.trainable_variables]
    step = jax.jit(jax.value_and_grad(value)).lower(weights)
    return step.compile().cost_analysis()["flops"]


def pair_inputs(batch_size=B, source_length=S, target_length=T):
    rng = np.random.default_rng(0)
    return {
        "source_ids": rng.integers(4, V, (batch_size, source_length), "int32"),
        "target_ids": rng.integers(4, V, (batch_size, target_length), "int32"),
    }


@pytest.mark.parametrize(
    "options",
    [{}, {"key_dim": 8, "value_dim": 48}, {"num_layers": (1, 2), "tie": None}],
    ids=["base", "dimensions of heads", "two depths, untied"],
)
def test_operations_of_a_transformer_are_those_of_the_compiler(options):
    model = transformer(**options)
    count = models.training_flops(model, B, S, T)
    # The compiler counts normalization, softmax and dropout too.
    assert 1.0 < compiler_flops(model, pair_inputs()) / count < 1.06


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["additive", "multiplicative"])
def test_operations_of_a_recurrent_model_are_those_of_the_compiler(
    attention, monkeypatch
):
    # The compiler counts the body of a loop once, whatever its steps.
    for cell in (keras.layers.RNN, keras.layers.GRU):
        monkeypatch.setattr(cell, "__init__", unrolled(cell.__init__))
    model = models.RecurrentSeq2Seq(
        V, embedding_dim=96, units=128, attention=attention, dropout=0.0
    )
    # Each unrolled step adds its gradients of the weights: little in a batch.
    shape = (32, 5, 4)
    count = models.training_flops(model, *shape)
    assert 0.97 < compiler_flops(model, pair_inputs(*shape)) / count < 1.06


def unrolled(init):
    def init_unrolled(self, *args, **options):
        init(self, *args, **{**options, "unroll": True})

    return init_unrolled


def test_operations_of_a_language_model_are_those_of_the_compiler():
    import jax

    model = models.CausalLM(
        V, embedding_dim=128, intermediate_dim=512, num_heads=4, **SIZES
    )
    ids = np.random.default_rng(0).integers(4, V, (B, T), "int32")
    actual = _compiler_flops(jax, model, {"token_ids": ids}, ids)
    assert 1.0 < actual / models.training_flops(model, B, T) < 1.06


def test_operations_of_a_classifier_are_those_of_the_compiler():
    import jax

    encoder = models.Encoder(
        V, embedding_dim=128, intermediate_dim=512, num_heads=4, **SIZES
    )
    model = models.SequenceClassifier(encoder, num_classes=3, dropout=0.0)
    ids = np.random.default_rng(0).integers(4, V, (B, S), "int32")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    labels = np.zeros(B, "int32")
    actual = _compiler_flops(jax, model, {"token_ids": ids}, labels, loss)
    assert 1.0 < actual / models.training_flops(model, B, S) < 1.06


def test_one_step_is_three_times_twice_the_products():
    """Kaplan et al. 2020, section 2.1: 6 N operations for each token."""
    model = transformer(num_layers=1)
    # A long way from attention: its share vanishes at length 1.
    flops = models.training_flops(model, 1, 1, 1)
    d, f = 128, 512
    encoder, decoder, logits = 4 * d * d + 2 * d * f, 8 * d * d + 2 * d * f, V * d
    attention = 3 * 2 * d
    assert flops == 6 * (encoder + decoder + logits + attention)
