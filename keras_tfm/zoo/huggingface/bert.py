"""BERT (MiniLM among them), DistilBERT and RoBERTa."""

from keras_tfm.file_reading import Config
from keras_tfm.models import Encoder, MaskedLM, SequenceClassifier
from keras_tfm.zoo.huggingface.family import Family, activation, check_plain
from keras_tfm.zoo.huggingface.vocabularies import encoder_vocabulary
from keras_tfm.zoo.weight_mapping import (
    Weight,
    WeightMapping,
    attention_names,
    blocks,
    pytorch_layers,
)

ATTENTION = "self.query self.key self.value output.dense"
# Our layers inside a block, and theirs.
BERT_BLOCK = {
    **attention_names("self_attention", "attention.{}", ATTENTION),
    "self_attention_norm": "attention.output.LayerNorm",
    "feed_forward.inner_dense": "intermediate.dense",
    "feed_forward.output_dense": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}
DISTILBERT_BLOCK = {
    **attention_names("self_attention", "attention.{}_lin", "q k v out"),
    "self_attention_norm": "sa_layer_norm",
    "feed_forward.inner_dense": "ffn.lin1",
    "feed_forward.output_dense": "ffn.lin2",
    "feed_forward_norm": "output_layer_norm",
}
# Arguments of `Encoder`, and names of values in `config.json`.
BERT_SIZES = {
    "num_layers": "num_hidden_layers",
    "embedding_dim": "hidden_size",
    "intermediate_dim": "intermediate_size",
    "num_heads": "num_attention_heads",
}
DISTILBERT_SIZES = {
    "num_layers": "n_layers",
    "embedding_dim": "dim",
    "intermediate_dim": "hidden_dim",
    "num_heads": "n_heads",
}
# Layers of the heads: dense, norm and bias; hidden layer and output.
MASKED_LM = {
    "bert": (
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        "cls.predictions.bias",
    ),
    "distilbert": ("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
    "roberta": ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
}
CLASSIFIER = {
    "bert": ("bert.pooler.dense", "classifier"),
    "distilbert": ("pre_classifier", "classifier"),
    "roberta": ("classifier.dense", "classifier.out_proj"),
}
STEM, PART = r"(bert\.|distilbert\.|roberta\.)?", r"\.(weight|bias)"
IGNORED = (  # buffers, and heads that are not asked for
    rf"{STEM}embeddings\.position_ids",
    rf"{STEM}pooler\.dense{PART}",
    rf"(pre_)?classifier{PART}",
    rf"classifier\.(dense|out_proj){PART}",
    r"(cls\.predictions|lm_head)\.bias",
    rf"cls\.predictions\.(decoder|transform\.dense|transform\.LayerNorm){PART}",
    rf"cls\.seq_relationship{PART}",
    rf"lm_head\.(decoder|dense|layer_norm){PART}",
    rf"vocab_(transform|layer_norm|projector){PART}",
)
DECODER_FLAGS = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}


def _arguments(checkpoint):
    config, model_type = checkpoint.config, checkpoint.model_type
    check_plain(config, DECODER_FLAGS)
    distilled = model_type == "distilbert"
    sizes = DISTILBERT_SIZES if distilled else BERT_SIZES
    shared = {
        "vocabulary_size": config.integer("vocab_size"),
        "positions": "learned",
        "normalize_embedding": True,
        "pad_id": _pad_id(config),
        "activation": _activation(config),
        **{name: config.integer(key) for name, key in sizes.items()},
    }
    positions = config.integer("max_position_embeddings")
    if distilled:
        return shared | {
            "sequence_length": positions,
            "dropout": config.number("dropout"),
            "attention_dropout": config.number("attention_dropout"),
            "epsilon": 1e-12,
        }
    segments = config.integer("type_vocab_size", 2)
    return shared | {
        # A single segment carries no information: it is added to the positions.
        "num_segments": 0 if segments == 1 else segments,
        "sequence_length": positions - spare_rows(config),
        "dropout": config.number("hidden_dropout_prob"),
        "attention_dropout": config.number("attention_probs_dropout_prob"),
        "epsilon": config.number("layer_norm_eps", 1e-12),
    }


def _pad_id(config):
    return config.integer("pad_token_id", int(config["model_type"] == "roberta"))


def spare_rows(config: Config) -> int:
    """Returns the rows of the position matrix that no token has.

    RoBERTa counts positions from the row after that of padding.

    Args:
        config: `Config`.
    """
    return _pad_id(config) + 1 if config["model_type"] == "roberta" else 0


def _activation(config):
    distilled = config["model_type"] == "distilbert"
    return activation(config, "activation" if distilled else "hidden_act")


def _build(checkpoint, arguments):
    config = checkpoint.config
    encoder = Encoder(**arguments)
    if checkpoint.head == "encoder":
        return encoder
    if checkpoint.head == "masked_lm":
        check_plain(config, {"tie_word_embeddings": True})
        is_roberta = checkpoint.model_type == "roberta"
        return MaskedLM(encoder, "gelu" if is_roberta else _activation(config))
    if config.get("problem_type") == "regression":
        raise ValueError(
            f"{config.file}: `problem_type` must be of classification; got "
            "'regression'. Load the encoder with head='encoder'."
        )
    return _build_classifier(checkpoint, encoder)


def _build_classifier(checkpoint, encoder):
    config, output = checkpoint.config, CLASSIFIER[checkpoint.model_type][1]
    shape = checkpoint.tensors.shapes.get(f"{output}.weight")
    if checkpoint.num_classes is None and shape is None:
        raise ValueError(
            f"{checkpoint.folder} must have {output!r} to load a classifier; it has "
            "not. Load head='encoder', or pass `num_classes` for a new layer."
        )
    num_classes = checkpoint.num_classes or shape[0]
    dropouts = ("classifier_dropout", "seq_classif_dropout", "hidden_dropout_prob")
    multi_label = config.get("problem_type") == "multi_label_classification"
    return SequenceClassifier(
        encoder,
        num_classes,
        pooling="first",
        hidden_dim=encoder.embedding_dim,
        hidden_activation="relu" if checkpoint.model_type == "distilbert" else "tanh",
        dropout=next((config.number(n) for n in dropouts if n in config), 0.0),
        # A single label applies or not.
        multi_label=multi_label or num_classes == 1,
    )


def _weights(model, checkpoint):
    model_type, shapes = checkpoint.model_type, checkpoint.tensors.shapes
    prefix = f"{model_type}."
    prefix = prefix if any(name.startswith(prefix) for name in shapes) else ""
    encoder, spare = (
        getattr(model, "encoder", model),
        spare_rows(checkpoint.config),
    )
    mapping = encoder_weights(encoder, model_type, prefix, spare)
    if checkpoint.head == "masked_lm":
        mapping += masked_lm_weights(model, model_type)
    if checkpoint.head == "classifier":
        hidden, output = CLASSIFIER[model_type]
        if f"{hidden}.weight" not in shapes:
            hidden = hidden.removeprefix("bert.")
        is_new = checkpoint.num_classes is not None
        if not is_new or f"{hidden}.weight" in shapes:
            mapping += pytorch_layers([model.hidden_dense], hidden)
        if not is_new:
            mapping += pytorch_layers([model.output_dense], output)
    return mapping


def encoder_weights(
    encoder: Encoder, model_type: str, prefix: str, spare_positions: int = 0
) -> WeightMapping:
    """Maps the weights of an encoder.

    Args:
        encoder: `Encoder`.
        model_type: str.
        prefix: str, before all names.
        spare_positions: int, rows of the position matrix that are not used.

    Returns:
        list of `Weight`.
    """
    stem, distilled = f"{prefix}embeddings.", model_type == "distilbert"
    segments = f"{stem}token_type_embeddings.weight"
    positions = [f"{stem}position_embeddings.weight"]
    if not distilled and encoder.segment_embedding is None:
        positions.append(segments)
    part = slice(spare_positions, spare_positions + encoder.config["sequence_length"])
    tokens = encoder.embedding.token_embedding.embeddings
    matrix = encoder.embedding.position_layer.embeddings
    mapping = [
        Weight(tokens, [f"{stem}word_embeddings.weight"]),
        Weight(matrix, positions, lambda m, s=0.0: m[part].astype("float32") + s),
        *pytorch_layers([encoder.embedding_norm], f"{stem}LayerNorm"),
    ]
    if encoder.segment_embedding is not None:
        mapping.append(Weight(encoder.segment_embedding.embeddings, [segments]))
    if distilled:
        stem = f"{prefix}transformer.layer.{{}}."
        return mapping + blocks(encoder.blocks, DISTILBERT_BLOCK, stem)
    return mapping + blocks(encoder.blocks, BERT_BLOCK, f"{prefix}encoder.layer.{{}}.")


def masked_lm_weights(model: MaskedLM, model_type: str) -> WeightMapping:
    """Maps the weights of a masked-LM head.

    Args:
        model: `MaskedLM`.
        model_type: str.

    Returns:
        list of `Weight`.
    """
    dense, norm, bias = MASKED_LM[model_type]
    mapping = pytorch_layers([model.dense], dense) + pytorch_layers([model.norm], norm)
    return [*mapping, Weight(model.bias.bias, [bias])]


def _vocabulary(checkpoint, model):
    encoder = getattr(model, "encoder", model)
    fields = {"vocabulary": encoder_vocabulary(checkpoint, encoder)}
    if checkpoint.head == "classifier" and checkpoint.num_classes is None:
        names = checkpoint.config.typed("id2label", dict, {})
        fields["classes"] = [
            str(names.get(str(i), f"LABEL_{i}")) for i in range(model.num_classes)
        ]
    return fields


FAMILY = Family(
    model_types=("bert", "distilbert", "roberta"),
    heads=("encoder", "masked_lm", "classifier"),
    permutations=None,
    arguments=_arguments,
    build=_build,
    weights=_weights,
    ignored=IGNORED,
    vocabulary=_vocabulary,
)
