"""An encoder, and what stands on it, as a BERT of transformers."""

import keras
import numpy as np

from keras_tfm.models import MaskedLM, SequenceClassifier
from keras_tfm.zoo import arrays, bert
from keras_tfm.zoo.torch_layers import activation, block_shape, blocks, check, layer


def written(model, classes):
    """Gives what transformers has of a model.

    Args:
        model: `Encoder`, `MaskedLM` or `SequenceClassifier`.
        classes: list of C str, or None.

    Returns:
        dict, the configuration; and a dict of float32 arrays.

    Raises:
        ValueError: a model of another shape.
    """
    encoder = getattr(model, "encoder", model)
    settings = encoder.config
    check("BERT", settings, _bert_shape(settings))
    kind = "bert"
    if isinstance(model, SequenceClassifier):
        kind = _classifier_kind(model, settings)
    config = {**_bert_config(kind, settings), "model_type": kind}
    distilled = kind == "distilbert"
    stem = f"{kind}." if model is not encoder else ""
    tensors = _encoder_words(encoder, f"{stem}embeddings.", distilled)
    tensors |= blocks(
        encoder.blocks,
        {ours: theirs[distilled] for ours, theirs in bert.BLOCK.items()},
        f"{stem}{'transformer.layer' if distilled else 'encoder.layer'}.{{}}",
    )
    title = "DistilBert" if distilled else "Bert"
    config["architectures"] = [f"{title}Model"]
    if isinstance(model, MaskedLM):
        check(
            "BERT with a head for masked words",
            {"activation": activation(model.activation)},
            {"activation": (config["hidden_act"],)},
        )
        config["architectures"] = ["BertForMaskedLM"]
        head = "cls.predictions"
        tensors |= layer(model.dense, f"{head}.transform.dense")
        tensors |= layer(model.norm, f"{head}.transform.LayerNorm")
        tensors[f"{head}.bias"] = arrays.array(model.bias.bias)
    if isinstance(model, SequenceClassifier):
        config["architectures"] = [f"{title}ForSequenceClassification"]
        config |= _classifier_config(model, classes, distilled)
        hidden = "pre_classifier" if distilled else "bert.pooler.dense"
        tensors |= layer(model.hidden_dense, hidden)
        tensors |= layer(model.output_dense, "classifier")
    return config, tensors


def _bert_shape(settings):
    return {
        **block_shape(settings),
        "normalize_first": (False,),
        "normalize_embedding": (True,),
        "positions": ("learned",),
        "activation_dropout": (0.0, settings["dropout"]),
    }


def _classifier_kind(model, settings):
    hidden = keras.activations.serialize(model.hidden_activation)
    given = {
        "pooling": model.pooling,
        "hidden_dim": model.hidden_dim,
        "hidden_activation": hidden,
    }
    wanted = {
        "pooling": ("first",),
        "hidden_dim": (settings["embedding_dim"],),
        "hidden_activation": ("tanh", "relu"),
    }
    check("BERT with a head for classes", given, wanted)
    if hidden == "tanh":
        return "bert"
    wanted = {"num_segments": (0,), "epsilon": (1e-12,)}
    check("DistilBERT", settings, wanted)
    return "distilbert"


def _bert_config(kind, settings):
    function = activation(settings["activation"])
    shared = {
        "vocab_size": settings["vocabulary_size"],
        "max_position_embeddings": settings["sequence_length"],
        "pad_token_id": settings["pad_id"],
        "attention_dropout": settings["attention_dropout"],
        "dropout": settings["dropout"],
    }
    if kind == "distilbert":
        return shared | {
            "activation": function,
            "dim": settings["embedding_dim"],
            "hidden_dim": settings["intermediate_dim"],
            "n_heads": settings["num_heads"],
            "n_layers": settings["num_layers"],
        }
    return shared | {
        "hidden_act": function,
        "hidden_size": settings["embedding_dim"],
        "intermediate_size": settings["intermediate_dim"],
        "num_attention_heads": settings["num_heads"],
        "num_hidden_layers": settings["num_layers"],
        "type_vocab_size": max(1, settings["num_segments"]),
        "layer_norm_eps": settings["epsilon"],
        "hidden_dropout_prob": settings["dropout"],
        "attention_probs_dropout_prob": settings["attention_dropout"],
    }


def _encoder_words(encoder, stem, distilled):
    embedding = encoder.embedding
    arrays.check_is_whole(embedding.token_embedding)
    check("BERT", vars(embedding), {"factor": (1.0,)})
    tensors = {
        f"{stem}word_embeddings.weight": arrays.array(embedding.embeddings),
        f"{stem}position_embeddings.weight": arrays.array(
            embedding.position_layer.embeddings
        ),
        **layer(encoder.embedding_norm, f"{stem}LayerNorm"),
    }
    if not distilled:
        # A table of one segment, where ours has none, adds nothing.
        segments = np.zeros((1, encoder.embedding_dim), "float32")
        if encoder.segment_embedding is not None:
            segments = arrays.array(encoder.segment_embedding.embeddings)
        tensors[f"{stem}token_type_embeddings.weight"] = segments
    return tensors


def _classifier_config(model, classes, distilled):
    names = classes or [f"LABEL_{i}" for i in range(model.num_classes)]
    if len(names) != model.num_classes or len(set(names)) < len(names):
        raise ValueError(
            "Each class has a name of its own. Received: "
            f"{len(names)} names for {model.num_classes} classes, {names[:8]}."
        )
    kind = "multi" if model.multi_label else "single"
    dropout = "seq_classif_dropout" if distilled else "classifier_dropout"
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
        "problem_type": f"{kind}_label_classification",
        dropout: model.dropout,
    }
