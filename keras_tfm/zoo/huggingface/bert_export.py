"""An encoder, and a model on top of it, as a BERT or DistilBERT."""

from typing import Any

import keras
import numpy as np

from keras_tfm.models import MaskedLM, SequenceClassifier
from keras_tfm.zoo import layer_arrays
from keras_tfm.zoo.huggingface import bert
from keras_tfm.zoo.huggingface.pytorch_layers import (
    activation_name,
    block_tensors,
    check_supported,
    layer_tensors,
    supported_blocks,
)

# Values of `config.json`, and the config of an `Encoder`.
SHARED_CONFIG = {
    "vocab_size": "vocabulary_size",
    "max_position_embeddings": "sequence_length",
    "pad_token_id": "pad_id",
}
BERT_CONFIG = {
    **SHARED_CONFIG,
    **{theirs: ours for ours, theirs in bert.BERT_SIZES.items()},
    "layer_norm_eps": "epsilon",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
}
DISTILBERT_CONFIG = {
    **SHARED_CONFIG,
    **{theirs: ours for ours, theirs in bert.DISTILBERT_SIZES.items()},
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
}


def convert(
    model: keras.Model, classes: list[str] | None
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns the config and the tensors of a model in transformers.

    Args:
        model: `Encoder`, `MaskedLM` or `SequenceClassifier`.
        classes: list of C str, or None.

    Raises:
        ValueError: the model is of another configuration.
    """
    encoder = getattr(model, "encoder", model)
    config = encoder.config
    check_supported(
        "BERT",
        config,
        {
            **supported_blocks(config),
            "normalize_first": (False,),
            "normalize_embedding": (True,),
            "positions": ("learned",),
            "activation_dropout": (0.0, config["dropout"]),
        },
    )
    model_type = "bert"
    if isinstance(model, SequenceClassifier):
        model_type = _classifier_type(model, config)
    distilled = model_type == "distilbert"
    prefix = f"{model_type}." if model is not encoder else ""
    names = bert.DISTILBERT_BLOCK if distilled else bert.BERT_BLOCK
    stem = "transformer.layer.{}." if distilled else "encoder.layer.{}."
    title = "DistilBert" if distilled else "Bert"
    exported = _config(model_type, config) | {"architectures": [f"{title}Model"]}
    tensors = _embedding_tensors(encoder, f"{prefix}embeddings.", distilled)
    tensors |= block_tensors(encoder.blocks, names, prefix + stem)
    if isinstance(model, MaskedLM):
        activation = activation_name(model.activation)
        check_supported(
            "BERT with a masked-LM head",
            {"activation": activation},
            {"activation": (exported["hidden_act"],)},
        )
        exported["architectures"] = ["BertForMaskedLM"]
        dense, norm, bias = bert.MASKED_LM["bert"]
        tensors |= layer_tensors(model.dense, dense) | layer_tensors(model.norm, norm)
        tensors[bias] = layer_arrays.to_array(model.bias.bias)
    if isinstance(model, SequenceClassifier):
        exported["architectures"] = [f"{title}ForSequenceClassification"]
        exported |= _classifier_config(model, classes, distilled)
        hidden, output = bert.CLASSIFIER[model_type]
        tensors |= layer_tensors(model.hidden_dense, hidden)
        tensors |= layer_tensors(model.output_dense, output)
    return exported, tensors


def _classifier_type(model, config):
    activation = keras.activations.serialize(model.hidden_activation)
    check_supported(
        "BERT with a classification head",
        {
            "pooling": model.pooling,
            "hidden_dim": model.hidden_dim,
            "hidden_activation": activation,
        },
        {
            "pooling": ("first",),
            "hidden_dim": (config["embedding_dim"],),
            "hidden_activation": ("tanh", "relu"),
        },
    )
    if activation == "tanh":
        return "bert"
    check_supported("DistilBERT", config, {"num_segments": (0,), "epsilon": (1e-12,)})
    return "distilbert"


def _config(model_type, config):
    names = DISTILBERT_CONFIG if model_type == "distilbert" else BERT_CONFIG
    exported = {theirs: config[ours] for theirs, ours in names.items()}
    exported["model_type"] = model_type
    activation = activation_name(config["activation"])
    if model_type == "distilbert":
        return exported | {"activation": activation}
    segments = max(1, config["num_segments"])
    return exported | {"hidden_act": activation, "type_vocab_size": segments}


def _embedding_tensors(encoder, stem, distilled):
    embedding = encoder.embedding
    layer_arrays.check_not_quantized(embedding.token_embedding)
    check_supported("BERT", vars(embedding), {"factor": (1.0,)})
    matrices = {
        "word_embeddings": embedding.embeddings,
        "position_embeddings": embedding.position_layer.embeddings,
    }
    if not distilled:
        # A single segment of zeros, where ours has none, adds nothing.
        matrices["token_type_embeddings"] = np.zeros((1, encoder.embedding_dim))
        if encoder.segment_embedding is not None:
            segments = encoder.segment_embedding.embeddings
            matrices["token_type_embeddings"] = segments
    tensors = layer_tensors(encoder.embedding_norm, f"{stem}LayerNorm")
    for name, matrix in matrices.items():
        tensors[f"{stem}{name}.weight"] = layer_arrays.to_array(matrix)
    return tensors


def _classifier_config(model, classes, distilled):
    names = classes or [f"LABEL_{i}" for i in range(model.num_classes)]
    if len(names) != model.num_classes or len(set(names)) < len(names):
        raise ValueError(
            f"`classes` must be {model.num_classes} different names; got {len(names)} "
            f"names for {model.num_classes} classes, {names[:8]}."
        )
    kind = "multi" if model.multi_label else "single"
    dropout = "seq_classif_dropout" if distilled else "classifier_dropout"
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
        "problem_type": f"{kind}_label_classification",
        dropout: model.dropout,
    }
