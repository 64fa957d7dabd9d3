"""Models of BART's kin: Marian, Pegasus, M2M100, NLLB, mBART, BART."""

import operator

from keras_tfm.layers import SinusoidalPositions
from keras_tfm.models import Transformer
from keras_tfm.zoo import plans

HEADS = ("seq2seq",)
# Names inside a block, ours and theirs.
BLOCK = {
    "self_attention.query_dense": "self_attn.q_proj",
    "self_attention.key_dense": "self_attn.k_proj",
    "self_attention.value_dense": "self_attn.v_proj",
    "self_attention.output_dense": "self_attn.out_proj",
    "self_attention_norm": "self_attn_layer_norm",
    "feed_forward.inner_dense": "fc1",
    "feed_forward.output_dense": "fc2",
    "feed_forward_norm": "final_layer_norm",
}
DECODER_BLOCK = {
    **BLOCK,
    "cross_attention.query_dense": "encoder_attn.q_proj",
    "cross_attention.key_dense": "encoder_attn.k_proj",
    "cross_attention.value_dense": "encoder_attn.v_proj",
    "cross_attention.output_dense": "encoder_attn.out_proj",
    "cross_attention_norm": "encoder_attn_layer_norm",
}
# Copies of the table of words, and sinusoids.
LEFT = ("embed_tokens.weight", "lm_head.weight", "embed_positions.weight")
LEARNED = ("bart", "mbart")  # rows from 2 are of positions
PRE_NORM = ("m2m_100", "mbart", "pegasus")
WITH_BIAS = ("marian", "mbart", "bart", "pegasus")
# Of each the id of its unknown token, if its configuration names none.
UNKNOWN = {"marian": 1, "pegasus": 105}


def model_of(config, weights, head, num_classes, settings):
    """Makes the model of a configuration, and finds its weights.

    Args:
        config: dict, the `config.json` of one of this kin.
        weights: `Weights`.
        head: `"seq2seq"`.
        num_classes: None.
        settings: dict of `Transformer`, over those of the configuration.

    Returns:
        The model; a plan of its weights, see `plans`; and `plans.Ids`.

    Raises:
        ValueError: the configuration is of something else.
    """
    kind = config["model_type"]
    # Vocabularies of fairseq have their unknown token there. mBART shifts what
    # it is trained on, so that it starts with the end.
    unknown = config.get("unk_token_id", UNKNOWN.get(kind, 3))
    ids = plans.Ids.of(config, unknown, config["eos_token_id"])
    two = not config.get("share_encoder_decoder_embeddings", True)
    if two and config.get("decoder_vocab_size") != config["vocab_size"]:
        raise ValueError(
            "Source and target of one vocabulary are read. Received: vocab_size="
            f"{config['vocab_size']}, decoder_vocab_size="
            f"{config.get('decoder_vocab_size')}."
        )
    tie = "target" if two else "all"
    if not config.get("tie_word_embeddings", True):
        tie = None if two else "inputs"
    model = Transformer(**{**_settings(config, ids), "tie": tie, **settings})
    plan = _embedding_plan(model, config, ids, two)
    for side, blocks, names in (
        ("encoder", model.encoder_blocks, BLOCK),
        ("decoder", model.decoder_blocks, DECODER_BLOCK),
    ):
        for number, block in enumerate(blocks):
            for ours, theirs in names.items():
                name = f"model.{side}.layers.{number}.{theirs}"
                plan += plans.layer_plan(operator.attrgetter(ours)(block), name)
        norm = getattr(model, f"{side}_norm")
        if norm is not None:
            plan += plans.layer_plan(norm, f"model.{side}.layer_norm")
        if kind in LEARNED:
            norm = _embedding_of(model, side).norm
            plan += plans.layer_plan(norm, f"model.{side}.layernorm_embedding")
    return model, plan, ids


def _settings(config, ids):
    kind = config["model_type"]
    heads = {config["encoder_attention_heads"], config["decoder_attention_heads"]}
    widths = {config["encoder_ffn_dim"], config["decoder_ffn_dim"]}
    if len(heads | widths) != 2:
        raise ValueError(
            "Encoder and decoder of one width and number of heads are read. Received: "
            f"heads {sorted(heads)}, feed-forward widths {sorted(widths)}."
        )
    positions = "learned"
    if kind not in LEARNED:
        positions = SinusoidalPositions(
            "halves",
            # Counted from the row after padding's, which is 1.
            first_position=config["pad_token_id"] + 1 if kind == "m2m_100" else 0,
            reach_max_period=kind == "m2m_100",
        )
    return {
        "vocabulary_size": ids.size,
        "num_layers": (config["encoder_layers"], config["decoder_layers"]),
        "embedding_dim": config["d_model"],
        "intermediate_dim": widths.pop(),
        "num_heads": heads.pop(),
        "positions": positions,
        "sequence_length": config["max_position_embeddings"]
        if kind in LEARNED
        else None,
        "scale_embedding": bool(config.get("scale_embedding")),
        "normalize_embedding": kind in LEARNED,
        "logits_bias": kind in WITH_BIAS or bool(ids.added),
        "dropout": config["dropout"],
        "attention_dropout": config["attention_dropout"],
        "activation_dropout": config["activation_dropout"],
        "activation": plans.activation(config["activation_function"]),
        "normalize_first": kind in PRE_NORM,
    }


def _embedding_of(model, side):
    return model.source_embedding if side == "encoder" else model.target_embedding


def _embedding_plan(model, config, ids, two):
    source, target = model.source_embedding, model.target_embedding
    plan = [(target.embeddings, ["model.shared.weight"], ids.rows)]
    if two:
        plan = [
            (source.embeddings, ["model.encoder.embed_tokens.weight"], ids.rows),
            (target.embeddings, ["model.decoder.embed_tokens.weight"], ids.rows),
        ]
    biased = config["model_type"] in WITH_BIAS
    bias = "final_logits_bias" if biased else None
    plan += plans.output_plan(model, ids, "lm_head.weight", bias)
    if config["model_type"] in LEARNED:
        for side in ("encoder", "decoder"):
            table = _embedding_of(model, side).position_layer.table
            rows = table.shape[0]
            plan.append(
                (
                    table,
                    [f"model.{side}.embed_positions.weight"],
                    lambda array, rows=rows: array[2 : 2 + rows],
                )
            )
    return plan
