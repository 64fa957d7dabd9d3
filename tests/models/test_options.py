"""Options of a model reach its layers, and the layers of its copy."""

from collections import Counter

import keras
import pytest

from keras_tfm.layers.transformer_block import BLOCK_OPTIONS
from keras_tfm.models import (
    CausalLM,
    Encoder,
    MaskedLM,
    RecurrentSeq2Seq,
    SequenceClassifier,
    Transformer,
)
from keras_tfm.models.configured_model import BLOCK_DEFAULTS

pytestmark = pytest.mark.backend("torch")  # options are the same everywhere
OPTIONS = {
    "num_layers": 2,
    "embedding_dim": 8,
    "intermediate_dim": 12,
    "num_heads": 2,
    "dropout": 0.125,
    "attention_dropout": 0.25,
    "activation_dropout": 0.375,
    "epsilon": 0.0625,
    "activation": "silu",
    "normalize_first": True,
}
ENCODER = {**OPTIONS, "normalize_embedding": True}
# Dropout rates of a stack, and how many layers have them.
STACK = {0.125: 3, 0.25: 2, 0.375: 2}
MODELS = {
    "Encoder": (lambda: Encoder(9, **ENCODER), STACK, 6),
    "CausalLM": (lambda: CausalLM(9, **OPTIONS), STACK, 5),
    "Classifier": (
        lambda: SequenceClassifier(Encoder(9, **ENCODER), 3, hidden_dim=4, dropout=0.5),
        {**STACK, 0.5: 1},
        6,
    ),
    "MaskedLM": (lambda: MaskedLM(Encoder(9, **ENCODER), "relu"), STACK, 7),
    # Two stacks with one embedding; decoder blocks have cross-attention.
    "Transformer": (
        lambda: Transformer(9, **OPTIONS),
        {0.125: 5, 0.25: 6, 0.375: 4},
        2 * 5 + 2,
    ),
}


def layers_of(model, kind):
    return [layer for layer in model._flatten_layers() if isinstance(layer, kind)]


@pytest.mark.parametrize("name", MODELS)
def test_rates_and_epsilons_reach_their_layers(name):
    make_model, rates, norms = MODELS[name]
    model = make_model()
    copy = type(model).from_config(model.get_config())
    for instance in (model, copy):
        counts = Counter(d.rate for d in layers_of(instance, keras.layers.Dropout))
        assert {rate: n for rate, n in counts.items() if rate} == rates
        layers = layers_of(instance, keras.layers.LayerNormalization)
        assert [layer.epsilon for layer in layers] == [0.0625] * norms
    for instance in (model, copy):
        if name == "MaskedLM":
            assert instance.dense.activation is keras.activations.relu
        if name == "Classifier":
            assert instance.hidden_dense.activation is keras.activations.tanh


def test_a_model_accepts_every_option_of_its_blocks():
    explicit = {"intermediate_dim", "num_heads", "dropout"}
    assert {*BLOCK_DEFAULTS, *explicit} == {*BLOCK_OPTIONS}


@pytest.mark.parametrize("name", [*MODELS, "RecurrentSeq2Seq"])
def test_an_unknown_option_is_rejected(name):
    """Functional models of Keras ignore unknown keywords."""
    unknown = {"name": "mine", "num_decoder_layers": 3}
    encoder = Encoder(9, num_layers=1, embedding_dim=8, num_heads=2)
    constructors = {
        "Encoder": lambda: Encoder(9, **ENCODER, **unknown),
        "CausalLM": lambda: CausalLM(9, **OPTIONS, **unknown),
        "Classifier": lambda: SequenceClassifier(encoder, 3, **unknown),
        "MaskedLM": lambda: MaskedLM(encoder, **unknown),
        "Transformer": lambda: Transformer(9, **OPTIONS, **unknown),
        "RecurrentSeq2Seq": lambda: RecurrentSeq2Seq(9, units=4, **unknown),
    }
    with pytest.raises(TypeError, match="; got num_decoder_layers"):
        constructors[name]()


@pytest.mark.parametrize("name", ["Transformer", "Classifier"])
def test_frozen_layers_of_a_saved_model_stay_frozen(name, tmp_path):
    model = MODELS[name][0]()
    blocks = getattr(model, "encoder_blocks", [])
    frozen = [model.get_layer("embedding"), blocks[0]] if blocks else [model.layers[1]]
    for layer in frozen:
        layer.trainable = False
    expected = [weight.path for weight in model.trainable_weights]
    assert 0 < len(expected) < len(model.weights)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert [weight.path for weight in loaded.trainable_weights] == expected
    # A preset is a model for any training.
    model.save_to_preset(tmp_path)
    assert len(type(model).from_preset(tmp_path).trainable_weights) == len(
        model.weights
    )
    loaded.trainable = True
    assert len(loaded.trainable_weights) == len(model.weights)
