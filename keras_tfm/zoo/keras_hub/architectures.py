"""Architectures of KerasHub, and the models here that are the same.

Keras names a weight by the class and the number of its layer, such as
`layers/transformer_encoder_1/_feedforward_output_dense/vars/0`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras

from keras_tfm.file_reading import Config
from keras_tfm.layers import T5Positions, gelu_tanh
from keras_tfm.models import CausalLM, Encoder, MaskedLM, Transformer
from keras_tfm.zoo.token_permutation import TokenPermutation
from keras_tfm.zoo.weight_mapping import (
    Weight,
    WeightMapping,
    attention_names,
    blocks,
    identity,
    logits,
    projections,
    stacks_of,
)

ATTENTION = "query key value output"
# Our layers inside a block, and theirs.
BLOCK = {
    **attention_names("self_attention", "_self_attention_layer/{}_dense", ATTENTION),
    "self_attention_norm": "_self_attention_layer_norm",
    **attention_names("cross_attention", "_cross_attention_layer/{}_dense", ATTENTION),
    "cross_attention_norm": "_cross_attention_layer_norm",
    "feed_forward.inner_dense": "_feedforward_intermediate_dense",
    "feed_forward.output_dense": "_feedforward_output_dense",
    "feed_forward_norm": "_feedforward_layer_norm",
}
T5_ATTENTION = {
    **attention_names("self_attention", "self_attention/{}_projector", ATTENTION),
    "self_attention_norm": "self_attention_layer_norm",
    **attention_names("cross_attention", "cross_attention/{}_projector", ATTENTION),
    "cross_attention_norm": "cross_attention_layer_norm",
    "feed_forward_norm": "layer_norm",
    "feed_forward.output_dense": "output_projector",
}
# The activation belongs to `input_projector`, with a gate or without.
T5_BLOCK = {**T5_ATTENTION, "feed_forward.inner_dense": "input_projector"}
T5_GATED_BLOCK = {
    **T5_ATTENTION,
    "feed_forward.gate_dense": "input_projector",
    "feed_forward.inner_dense": "gate_projector",
}
# Arguments of models here, and names of values in the config of a backbone.
SIZES = {
    "num_layers": "num_layers",
    "embedding_dim": "hidden_dim",
    "intermediate_dim": "intermediate_dim",
    "num_heads": "num_heads",
}
TOKENS = "layers/reversible_embedding/vars/0"
POOLER = "layers/dense"  # of BERT, which no other encoder has
TASK = "task/"  # before the names in `task.weights.h5`
# Activations of T5 by their names in KerasHub.
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "silu": "silu",
    "keras_hub>gelu_approximate": gelu_tanh,
}
VARIABLES = (("kernel", "bias"), ("gamma", "beta"), ("scale",), ("embeddings",))


@dataclasses.dataclass(frozen=True)
class Architecture:
    """Describes a backbone of KerasHub.

    Attributes:
        title: str, before `Backbone`, `Tokenizer` and `TextClassifier`.
        package: str, the name of its modules.
        model_class: `Encoder`, `CausalLM` or `Transformer`.
        fixed: dict, arguments of the model that no preset changes.
        weights: function from the model and a `TokenPermutation`, or None, to
            the weight mapping.
        special_tokens: tuple of padding, unknown, start and end of a model that
            generates: the token that the tokenizer has, or None.
        special_ids: tuple of their ids where a preset has no tokenizer; -1 is
            the last id.
        hidden_activation: str, of the hidden layer of a classifier.
    """

    title: str
    package: str
    model_class: type
    fixed: dict[str, Any]
    weights: Callable[[keras.Model, TokenPermutation | None], WeightMapping]
    special_tokens: tuple[str | None, ...] = ()
    special_ids: tuple[int | None, ...] = ()
    hidden_activation: str = "tanh"

    def arguments(self, config: Config, size: int) -> dict[str, Any]:
        """Returns the arguments of the model.

        Args:
            config: `Config` of the backbone.
            size: int, V of the model.
        """
        dropout = config.number("dropout")
        arguments = {
            "vocabulary_size": size,
            **{name: config.integer(key) for name, key in SIZES.items()},
            "dropout": dropout,
            "attention_dropout": dropout,
            **self.fixed,
        }
        if self.package == "t5":
            return arguments | _t5_arguments(config) | {"activation_dropout": dropout}
        if self.package == "bert":
            arguments["num_segments"] = config.integer("num_segments")
        length = config.integer("max_sequence_length")
        return arguments | {"positions": "learned", "sequence_length": length}

    def permutation(self, size: int, ids: dict[str, int]) -> TokenPermutation | None:
        """Returns the order of the tokens of a model that generates.

        Args:
            size: int, V of the backbone.
            ids: dict from tokens to ids; empty without a tokenizer.
        """
        if not self.special_tokens:
            return None
        if ids:
            special = [token and ids.get(token) for token in self.special_tokens]
        else:
            special = [i and i % size for i in self.special_ids]
        return TokenPermutation(size, *special)


def layer_name(kind: str, number: int) -> str:
    """Returns the name of a layer in a file of weights.

    Args:
        kind: str, the class of the layer in snake case.
        number: int, from 0, among the layers of this class.
    """
    return f"layers/{kind}_{number}" if number else f"layers/{kind}"


def variables(layers: list[keras.layers.Layer], name: str) -> WeightMapping:
    """Maps the variables of a layer that has the same shapes in both.

    Args:
        layers: list of one built layer.
        name: str, of the layer in the file.
    """
    [layer] = layers
    names = next(names for names in VARIABLES if hasattr(layer, names[0]))
    values = [getattr(layer, attribute) for attribute in names]
    return [
        Weight(value, [f"{name}/vars/{number}"])
        for number, value in enumerate(values)
        if value is not None
    ]


def _stack(layers, names, kind, map_layers=variables, first=0):
    mapping = []
    for number, block in enumerate(layers, first):
        mapping += blocks([block], names, f"{layer_name(kind, number)}/", map_layers)
    return mapping


def _encoder_weights(model, permutation, embedding_stem, token_layer):
    encoder = getattr(model, "encoder", model)
    embedding, segments = encoder.embedding, encoder.segment_embedding
    mapping = variables([embedding.token_embedding], f"{embedding_stem}{token_layer}")
    mapping += variables(
        [embedding.position_layer], f"{embedding_stem}position_embedding"
    )
    if segments is not None:
        mapping += variables([segments], "layers/embedding")
    mapping += variables([encoder.embedding_norm], "layers/layer_normalization")
    return mapping + _stack(encoder.blocks, BLOCK, "transformer_encoder")


def _bert_weights(model, permutation):
    return _encoder_weights(model, permutation, "layers/", "reversible_embedding")


def _roberta_weights(model, permutation):
    stem = "layers/token_and_position_embedding/"
    return _encoder_weights(model, permutation, stem, "token_embedding")


def classifier_weights(model: keras.Model, architecture: Architecture) -> WeightMapping:
    """Maps the two layers of a classifier.

    Args:
        model: `SequenceClassifier`.
        architecture: `Architecture` of its encoder.
    """
    hidden, output = f"{TASK}layers/dense", f"{TASK}layers/dense_1"
    if architecture.package == "bert":
        hidden, output = POOLER, hidden
    return variables([model.hidden_dense], hidden) + variables(
        [model.output_dense], output
    )


def masked_lm_weights(model: MaskedLM) -> WeightMapping:
    """Maps the head of a masked language model.

    Args:
        model: `MaskedLM`.
    """
    head = f"{TASK}layers/masked_lm_head"
    mapping = variables([model.dense], f"{head}/_intermediate_dense")
    mapping += variables([model.norm], f"{head}/_intermediate_layer_norm")
    return [*mapping, Weight(model.bias.bias, [f"{head}/vars/0"])]


def _token_weights(model, permutation):
    embedding = getattr(model, "target_embedding", None) or model.embedding
    rows = permutation.rows if permutation else identity
    mapping = [Weight(embedding.embeddings, [TOKENS], rows)]
    projection = TOKENS.removesuffix("0") + "1"  # (D, V), where it is not tied
    return mapping + [
        weight._replace(invert=identity)
        for weight in logits(model, permutation, projection, transposed=False)
    ]


def _gpt2_weights(model, permutation):
    mapping = _token_weights(model, permutation)
    mapping += variables([model.embedding.position_layer], "layers/position_embedding")
    mapping += variables([model.norm], "layers/layer_normalization")
    return mapping + _stack(model.blocks, BLOCK, "transformer_decoder")


def _bart_weights(model, permutation):
    mapping = _token_weights(model, permutation)
    for number, (side, embedding, layers, _) in enumerate(stacks_of(model)):
        positions = layer_name("position_embedding", number)
        mapping += variables([embedding.position_layer], positions)
        norm = layer_name("layer_normalization", number)
        mapping += variables([embedding.norm], norm)
        mapping += _stack(layers, BLOCK, f"transformer_{side}")
    return mapping


def _t5_weights(model, permutation):
    mapping, first = _token_weights(model, permutation), 0
    for number, (_, _, layers, norm) in enumerate(stacks_of(model)):
        kind = "t5_transformer_layer"
        names = T5_GATED_BLOCK if model.config["gated"] else T5_BLOCK
        mapping += _stack(layers, names, kind, _t5_layers, first)
        # The first block of a stack holds the bias that all of them share.
        bias = f"{layer_name(kind, first)}/self_attention/vars/0"
        mapping.append(Weight(layers[0].positions.embeddings, [bias]))
        [weight] = variables([norm], layer_name("t5_layer_norm", number))
        mapping.append(weight)
        first += len(layers)
    if model.config["tie"] == "all":
        # KerasHub scales the hidden states before a tied projection.
        scale = model.config["embedding_dim"] ** -0.5
        mapping[-1] = weight._replace(
            convert=lambda w: scale * w.astype("float32"), invert=lambda w: w / scale
        )
    return mapping


def _t5_layers(layers, name):
    """Maps a kernel that has no axis of heads in KerasHub."""
    if not hasattr(layers[0], "kernel"):
        return variables(layers, name)
    [weight] = projections(layers, f"{name}/vars/0")
    return [weight._replace(invert=lambda a, rows=weight.invert: rows(a).T)]


def _t5_arguments(config):
    name = config["activation"]
    name = name.get("config") if isinstance(name, dict) else name
    if name not in ACTIVATIONS:
        raise ValueError(
            f"{config.file}: `activation` must be one of {sorted(ACTIVATIONS)}; got "
            f"{config['activation']!r}."
        )
    head_dim = config.integer("hidden_dim") // config.integer("num_heads")
    return {
        "activation": ACTIVATIONS[name],
        "gated": bool(config.get("use_gated_activation", True)),
        "epsilon": config.number("layer_norm_epsilon"),
        "key_dim": config.integer("key_value_dim", head_dim),
        "positions": T5Positions(),
        # Earlier versions of KerasHub have no value for this.
        "tie": "all" if config.get("tie_embedding_weights", True) else "inputs",
    }


_ENCODER = {"normalize_embedding": True, "activation": "gelu", "epsilon": 1e-12}
_ROBERTA = {**_ENCODER, "epsilon": 1e-5, "pad_id": 1}
BERT = Architecture(
    "Bert", "bert", Encoder, {**_ENCODER, "activation": gelu_tanh}, _bert_weights
)
DISTIL_BERT = Architecture(
    "DistilBert",
    "distil_bert",
    Encoder,
    _ENCODER,
    _roberta_weights,
    hidden_activation="relu",
)
ROBERTA = Architecture("Roberta", "roberta", Encoder, _ROBERTA, _roberta_weights)
XLM_ROBERTA = Architecture(
    "XLMRoberta", "xlm_roberta", Encoder, _ROBERTA, _roberta_weights
)
GPT2 = Architecture(
    "GPT2",
    "gpt2",
    CausalLM,
    {"activation": gelu_tanh, "epsilon": 1e-5, "tie": True, "logits_bias": True},
    _gpt2_weights,
    special_tokens=(None, None, "<|endoftext|>", "<|endoftext|>"),
    special_ids=(None, None, -1, -1),
)
BART = Architecture(
    "Bart",
    "bart",
    Transformer,
    {
        "activation": "gelu",
        "epsilon": 1e-5,
        "tie": "all",
        "scale_embedding": False,
        "normalize_embedding": True,
        "normalize_first": False,
        "logits_bias": True,
    },
    _bart_weights,
    special_tokens=("<pad>", "<unk>", "</s>", "</s>"),
    special_ids=(1, 3, 2, 2),
)
T5 = Architecture(
    "T5",
    "t5",
    Transformer,
    {
        "scale_embedding": False,
        "normalize_first": True,
        "normalization": "rms_norm",
        "use_bias": False,
        "score": "dot",
        "logits_bias": True,
    },
    _t5_weights,
    special_tokens=("<pad>", "<unk>", "<pad>", "</s>"),
    special_ids=(0, 2, 0, 1),
)
ARCHITECTURES = {
    f"{architecture.title}Backbone": architecture
    for architecture in (BERT, DISTIL_BERT, ROBERTA, XLM_ROBERTA, GPT2, BART, T5)
}
