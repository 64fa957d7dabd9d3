"""An encoder, and a model on top of it, as a BERT or DistilBERT."""

from typing import Any

import keras
import numpy as np

from keras_tfm.models import MaskedLM, SequenceClassifier
from keras_tfm.zoo.huggingface import bert
from keras_tfm.zoo.huggingface.pytorch_layers import (
    activation_name,
    add_missing_biases,
    check_supported,
    supported_blocks,
)
from keras_tfm.zoo.weight_mapping import export, pytorch_layers

TITLES = {"bert": "Bert", "distilbert": "DistilBert"}

# Values of `config.json`, and the config of an `Encoder`.
SHARED_CONFIG = {
    "vocab_size": "vocabulary_size",
    "max_position_embeddings": "sequence_length",
    "pad_token_id": "pad_id",
}
BERT_CONFIG = {
    **SHARED_CONFIG,
    **{key: name for name, key in bert.BERT_SIZES.items()},
    "layer_norm_eps": "epsilon",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
}
DISTILBERT_CONFIG = {
    **SHARED_CONFIG,
    **{key: name for name, key in bert.DISTILBERT_SIZES.items()},
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
    prefix = f"{model_type}." if model is not encoder else ""
    mapping = bert.encoder_weights(encoder, model_type, prefix)
    check_supported("BERT", vars(encoder.embedding), {"factor": (1.0,)})
    exported = _config(model_type, config)
    head = "Model"
    if isinstance(model, MaskedLM):
        head = "ForMaskedLM"
        check_supported(
            "BERT with a masked-LM head",
            {"activation": activation_name(model.config["activation"])},
            {"activation": (exported["hidden_act"],)},
        )
        mapping += bert.masked_lm_weights(model, model_type)
    if isinstance(model, SequenceClassifier):
        head = "ForSequenceClassification"
        exported |= _classifier_config(model, classes, model_type)
        hidden, output = bert.CLASSIFIER[model_type]
        mapping += pytorch_layers([model.hidden_dense], hidden)
        mapping += pytorch_layers([model.output_dense], output)
    tensors = export(mapping)
    if model_type == "bert":  # a single segment of zeros adds nothing
        segments = f"{prefix}embeddings.token_type_embeddings.weight"
        zeros = np.zeros((1, encoder.embedding_dim), "float32")
        tensors.setdefault(segments, zeros)
    exported["architectures"] = [f"{TITLES[model_type]}{head}"]
    add_missing_biases(tensors)
    return exported, tensors


def _classifier_type(model, config):
    activation = keras.activations.serialize(
        keras.activations.get(model.config["hidden_activation"])
    )
    check_supported(
        "BERT with a classification head",
        {
            "pooling": model.config["pooling"],
            "max_ngram": model.config["max_ngram"],
            "hidden_dim": model.config["hidden_dim"],
            "hidden_activation": activation,
        },
        {
            "pooling": ("first",),
            "max_ngram": (0,),
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
    exported = {key: config[name] for key, name in names.items()}
    exported["model_type"] = model_type
    activation = activation_name(config["activation"])
    if model_type == "distilbert":
        return exported | {"activation": activation}
    segments = max(1, config["num_segments"])
    return exported | {"hidden_act": activation, "type_vocab_size": segments}


def _classifier_config(model, classes, model_type):
    names = classes or [f"LABEL_{i}" for i in range(model.num_classes)]
    if len(names) != model.num_classes or len(set(names)) < len(names):
        raise ValueError(
            f"`classes` must be {model.num_classes} different names; got {len(names)} "
            f"names for {model.num_classes} classes, {names[:8]}."
        )
    kind = "multi" if model.multi_label else "single"
    distilled = model_type == "distilbert"
    dropout = "seq_classif_dropout" if distilled else "classifier_dropout"
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
        "problem_type": f"{kind}_label_classification",
        dropout: model.config["dropout"],
    }
