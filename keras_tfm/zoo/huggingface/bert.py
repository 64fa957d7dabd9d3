"""BERT (MiniLM among them), DistilBERT and RoBERTa."""

from keras_tfm.models import Encoder, MaskedLM, SequenceClassifier
from keras_tfm.zoo.huggingface.family import Family, activation, check_plain
from keras_tfm.zoo.huggingface.vocabularies import encoder_vocabulary
from keras_tfm.zoo.weight_mapping import Weight, blocks, pytorch_layers

# Our layers inside a block, and theirs: in BERT and RoBERTa, and in DistilBERT.
BERT_BLOCK = {
    "self_attention.query_dense": "attention.self.query",
    "self_attention.key_dense": "attention.self.key",
    "self_attention.value_dense": "attention.self.value",
    "self_attention.output_dense": "attention.output.dense",
    "self_attention_norm": "attention.output.LayerNorm",
    "feed_forward.inner_dense": "intermediate.dense",
    "feed_forward.output_dense": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}
DISTILBERT_BLOCK = {
    "self_attention.query_dense": "attention.q_lin",
    "self_attention.key_dense": "attention.k_lin",
    "self_attention.value_dense": "attention.v_lin",
    "self_attention.output_dense": "attention.out_lin",
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
        **{ours: config.integer(theirs) for ours, theirs in sizes.items()},
    }
    positions = config.integer("max_position_embeddings")
    if distilled:
        return shared | {
            "sequence_length": positions,
            "dropout": config.number("dropout"),
            "attention_dropout": config.number("attention_dropout"),
            "epsilon": 1e-12,
        }
    segments = config.integer("type_vocab_size")
    return shared | {
        # A single segment carries no information: it is added to the positions.
        "num_segments": 0 if segments == 1 else segments,
        "sequence_length": positions - _spare_positions(config),
        "dropout": config.number("hidden_dropout_prob"),
        "attention_dropout": config.number("attention_probs_dropout_prob"),
        "epsilon": config.number("layer_norm_eps"),
    }


def _pad_id(config):
    return config.integer("pad_token_id", int(config["model_type"] == "roberta"))


def _spare_positions(config):
    """RoBERTa counts positions from the row after that of padding."""
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
    encoder = getattr(model, "encoder", model)
    prefix = (
        f"{model_type}." if any(n.startswith(f"{model_type}.") for n in shapes) else ""
    )
    mapping = _embedding_weights(encoder, checkpoint, f"{prefix}embeddings.")
    if model_type == "distilbert":
        stem, names = f"{prefix}transformer.layer.{{}}.", DISTILBERT_BLOCK
    else:
        stem, names = f"{prefix}encoder.layer.{{}}.", BERT_BLOCK
    mapping += blocks(encoder.blocks, names, stem)
    if checkpoint.head == "masked_lm":
        dense, norm, bias = MASKED_LM[model_type]
        mapping += pytorch_layers([model.dense], dense) + pytorch_layers(
            [model.norm], norm
        )
        mapping.append(Weight(model.bias.bias, [bias]))
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


def _embedding_weights(encoder, checkpoint, stem):
    spare, rows = _spare_positions(checkpoint.config), encoder.config["sequence_length"]
    positions = [f"{stem}position_embeddings.weight"]
    segments = f"{stem}token_type_embeddings.weight"
    has_segments = encoder.config["num_segments"]
    if checkpoint.model_type != "distilbert" and not has_segments:
        positions.append(segments)

    def add_segment(matrix, segment=0.0):
        return matrix[spare : spare + rows].astype("float32") + segment

    tokens = encoder.embedding.token_embedding.embeddings
    mapping = [
        Weight(tokens, [f"{stem}word_embeddings.weight"]),
        Weight(encoder.embedding.position_layer.embeddings, positions, add_segment),
        *pytorch_layers([encoder.embedding_norm], f"{stem}LayerNorm"),
    ]
    if has_segments:
        mapping.append(Weight(encoder.segment_embedding.embeddings, [segments]))
    return mapping


def _vocabulary(checkpoint, model):
    encoder = getattr(model, "encoder", model)
    fields = {"vocabulary": encoder_vocabulary(checkpoint.folder, encoder)}
    if checkpoint.head == "classifier" and checkpoint.num_classes is None:
        names = checkpoint.config.typed("id2label", dict, {})
        fields["classes"] = [
            str(names.get(str(i), f"LABEL_{i}")) for i in range(model.num_classes)
        ]
    return fields


FAMILY = Family(
    model_types=("bert", "distilbert", "roberta"),
    heads=("encoder", "masked_lm", "classifier"),
    permutation=lambda config: None,
    arguments=_arguments,
    build=_build,
    weights=_weights,
    ignored=IGNORED,
    vocabulary=_vocabulary,
)
