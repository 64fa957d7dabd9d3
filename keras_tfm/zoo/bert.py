"""Encoders of BERT's kin: their settings and the names of their weights."""

import operator

from keras_tfm.models import Encoder, MaskedLM, SequenceClassifier
from keras_tfm.zoo import plans

HEADS = ("encoder", "masked_lm", "classifier")
# Names inside a block: ours, then BERT's and RoBERTa's, then DistilBERT's.
BLOCK = {
    "self_attention.query_dense": ("attention.self.query", "attention.q_lin"),
    "self_attention.key_dense": ("attention.self.key", "attention.k_lin"),
    "self_attention.value_dense": ("attention.self.value", "attention.v_lin"),
    "self_attention.output_dense": ("attention.output.dense", "attention.out_lin"),
    "self_attention_norm": ("attention.output.LayerNorm", "sa_layer_norm"),
    "feed_forward.inner_dense": ("intermediate.dense", "ffn.lin1"),
    "feed_forward.output_dense": ("output.dense", "ffn.lin2"),
    "feed_forward_norm": ("output.LayerNorm", "output_layer_norm"),
}
# What of a file may be left over: buffers, and heads that are not asked for.
STEM, PART = r"(bert\.|distilbert\.|roberta\.)?", r"\.(weight|bias)"
LEFT = (
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


def model_of(config, weights, head, num_classes, settings):
    """Makes the model of a configuration, and finds its weights.

    Args:
        config: dict, the `config.json` of a BERT, DistilBERT or RoBERTa.
        weights: `Weights`.
        head: one of `HEADS`.
        num_classes: int or None: of a classifier, other than the file's.
        settings: dict of `Encoder`, over those of the configuration.

    Returns:
        The model; a plan of its weights, see `plans`; and None: its ids are
        theirs.

    Raises:
        ValueError: the configuration is of something else.
    """
    kind = config["model_type"]
    distilled = kind == "distilbert"
    encoder = Encoder(**{**_settings(config), **settings})
    start = f"{kind}." if any(n.startswith(f"{kind}.") for n in weights.shapes) else ""
    plan = _embedding_plan(encoder, config, start)
    for number, block in enumerate(encoder.blocks):
        stem = "transformer.layer" if distilled else "encoder.layer"
        for ours, theirs in BLOCK.items():
            name = f"{start}{stem}.{number}.{theirs[distilled]}"
            plan += plans.layer_plan(operator.attrgetter(ours)(block), name)
    if head == "encoder":
        return encoder, plan, None
    if head == "masked_lm":
        if config.get("tie_word_embeddings") is False:
            raise ValueError(
                "A head for masked words is read that projects by the table of words. "
                "Received: tie_word_embeddings=False. Read the encoder alone."
            )
        # RoBERTa's has one of its own.
        activation = "gelu" if kind == "roberta" else _activation(config)
        model = MaskedLM(encoder, activation)
        return model, plan + _masked_plan(model, kind), None
    return *_classifier(encoder, config, plan, num_classes, weights), None


def _settings(config):
    kind = config["model_type"]
    if config.get("position_embedding_type", "absolute") != "absolute":
        raise ValueError(
            "Learned absolute positions are read. Received: position_embedding_type="
            f"{config['position_embedding_type']!r}."
        )
    if config.get("is_decoder") or config.get("add_cross_attention"):
        raise ValueError("An encoder is read. Received: a configuration of a decoder.")
    shared = {
        "vocabulary_size": config["vocab_size"],
        "positions": "learned",
        "normalize_embedding": True,
        "activation": _activation(config),
    }
    if kind == "distilbert":
        return shared | {
            "num_layers": config["n_layers"],
            "embedding_dim": config["dim"],
            "intermediate_dim": config["hidden_dim"],
            "num_heads": config["n_heads"],
            "sequence_length": config["max_position_embeddings"],
            "dropout": config["dropout"],
            "attention_dropout": config["attention_dropout"],
            "epsilon": 1e-12,
            "pad_id": config.get("pad_token_id") or 0,
        }
    return shared | {
        "num_layers": config["num_hidden_layers"],
        "embedding_dim": config["hidden_size"],
        "intermediate_dim": config["intermediate_size"],
        "num_heads": config["num_attention_heads"],
        # A table of one segment says nothing: it is added to the positions.
        "num_segments": 0
        if config["type_vocab_size"] == 1
        else config["type_vocab_size"],
        "sequence_length": config["max_position_embeddings"] - _spare_rows(config),
        "dropout": config["hidden_dropout_prob"],
        "attention_dropout": config["attention_probs_dropout_prob"],
        "epsilon": config["layer_norm_eps"],
        "pad_id": _pad_id(config),
    }


def _pad_id(config):
    given = config.get("pad_token_id")
    return int(config["model_type"] == "roberta") if given is None else given


def _spare_rows(config):
    """RoBERTa counts places from the row after padding's."""
    return _pad_id(config) + 1 if config["model_type"] == "roberta" else 0


def _activation(config):
    distilled = config["model_type"] == "distilbert"
    return plans.activation(config["activation" if distilled else "hidden_act"])


def _embedding_plan(encoder, config, start):
    stem = f"{start}embeddings."
    rows = encoder.config["sequence_length"]
    spare = _spare_rows(config)
    segments = f"{stem}token_type_embeddings.weight"
    places = [f"{stem}position_embeddings.weight"]
    if config["model_type"] != "distilbert" and not encoder.config["num_segments"]:
        places.append(segments)

    def places_of(table, segment=0.0):
        return table[spare : spare + rows].astype("float32") + segment

    embedding = encoder.embedding
    plan = [
        (
            embedding.token_embedding.embeddings,
            [f"{stem}word_embeddings.weight"],
            plans.same,
        ),
        (embedding.position_layer.embeddings, places, places_of),
        *plans.layer_plan(encoder.embedding_norm, f"{stem}LayerNorm"),
    ]
    if encoder.config["num_segments"]:
        plan.append((encoder.segment_embedding.embeddings, [segments], plans.same))
    return plan


def _masked_plan(model, kind):
    names = {
        "bert": (
            "cls.predictions.transform.dense",
            "cls.predictions.transform.LayerNorm",
        ),
        "distilbert": ("vocab_transform", "vocab_layer_norm"),
        "roberta": ("lm_head.dense", "lm_head.layer_norm"),
    }[kind]
    bias = {"bert": "cls.predictions.bias", "roberta": "lm_head.bias"}
    bias = bias.get(kind, "vocab_projector.bias")
    return [
        *plans.layer_plan(model.dense, names[0]),
        *plans.layer_plan(model.norm, names[1]),
        (model.bias.bias, [bias], plans.same),
    ]


def _classifier(encoder, config, plan, num_classes, weights):
    hidden, output = {
        "bert": ("bert.pooler.dense", "classifier"),
        "distilbert": ("pre_classifier", "classifier"),
        "roberta": ("classifier.dense", "classifier.out_proj"),
    }[config["model_type"]]
    if config.get("problem_type") == "regression":
        raise ValueError(
            "A classifier gives labels. Received: problem_type='regression'. Read the "
            "encoder alone."
        )
    found = weights.shapes.get(f"{output}.weight")
    if num_classes is None and found is None:
        raise ValueError(
            f"A classifier has a projection. Received: weights without {output!r}. "
            "Read the encoder alone, or give `num_classes` for a new one."
        )
    dropouts = ("classifier_dropout", "seq_classif_dropout", "hidden_dropout_prob")
    dropouts = [config[name] for name in dropouts if config.get(name) is not None]
    several = config.get("problem_type") == "multi_label_classification"
    count = num_classes or found[0]
    model = SequenceClassifier(
        encoder,
        count,
        pooling="first",
        hidden_dim=encoder.embedding_dim,
        hidden_activation="relu" if config["model_type"] == "distilbert" else "tanh",
        dropout=[*dropouts, 0.0][0],
        multi_label=several or count == 1,  # one label holds or does not
    )
    if f"{hidden}.weight" not in weights.shapes:
        hidden = hidden.removeprefix("bert.")
    if num_classes is None or f"{hidden}.weight" in weights.shapes:
        plan = plan + plans.layer_plan(model.hidden_dense, hidden)
    if num_classes is None:
        plan += plans.layer_plan(model.output_dense, output)
    return model, plan
