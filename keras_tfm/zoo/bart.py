"""Models of BART's kin: Marian, Pegasus, M2M100, NLLB, mBART, BART."""

import operator

import numpy as np
from keras import ops

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
# Copies of the table of words, or what it was before each side had its own; and
# sinusoids.
LEFT = (r"lm_head\.weight", r"(model\.)?shared\.weight")
LEFT += (r"(model\.)?(en|de)coder\.embed_(tokens\.weight|positions\.weights?)",)
LEARNED = ("bart", "mbart")  # rows from 2 are of positions
TABLE = "{}{}.embed_positions.weight"
WORDS = "{}{}.embed_tokens.weight"
PRE_NORM = ("m2m_100", "mbart", "pegasus")
ROUNDED = 2e-3  # what half precision takes from a sine, and some
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
    whole = any(name.startswith("model.") for name in weights.shapes)
    start = "model." if whole else ""  # of those saved without their head
    tie = "target" if two else "all"
    if not config.get("tie_word_embeddings", True):
        # transformers 5 then ties no table to another.
        sides = [WORDS.format(start, side) for side in ("encoder", "decoder")]
        two = two or all(name in weights.shapes for name in sides)
        tie = None if two else "inputs"
    positions = _positions(config, weights, start)
    own = _settings(config, ids) | positions
    model = Transformer(**{**own, "tie": tie, **settings})
    biased = kind in WITH_BIAS and "final_logits_bias" in weights.shapes
    plan = _embedding_plan(model, config, ids, _tables(weights, start, tie), biased)
    plan += _positions_plan(model, config, start)
    for side, blocks, names in (
        ("encoder", model.encoder_blocks, BLOCK),
        ("decoder", model.decoder_blocks, DECODER_BLOCK),
    ):
        for number, block in enumerate(blocks):
            for ours, theirs in names.items():
                name = f"{start}{side}.layers.{number}.{theirs}"
                plan += plans.layer_plan(operator.attrgetter(ours)(block), name)
        norm = getattr(model, f"{side}_norm")
        if norm is not None:
            plan += plans.layer_plan(norm, f"{start}{side}.layer_norm")
        if kind in LEARNED:
            norm = _embedding_of(model, side).norm
            plan += plans.layer_plan(norm, f"{start}{side}.layernorm_embedding")
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
    return {
        "vocabulary_size": ids.size,
        "num_layers": (config["encoder_layers"], config["decoder_layers"]),
        "embedding_dim": config["d_model"],
        "intermediate_dim": widths.pop(),
        "num_heads": heads.pop(),
        "scale_embedding": bool(config.get("scale_embedding", kind == "m2m_100")),
        "normalize_embedding": kind in LEARNED,
        "logits_bias": kind in WITH_BIAS or bool(ids.added),
        "dropout": config["dropout"],
        "attention_dropout": config["attention_dropout"],
        "activation_dropout": config["activation_dropout"],
        "activation": plans.activation(config["activation_function"]),
        "normalize_first": kind in PRE_NORM,
    }


def _positions(config, weights, start):
    kind = config["model_type"]
    if kind in LEARNED:
        length = config["max_position_embeddings"]
        return {"positions": "learned", "sequence_length": length}
    waves = SinusoidalPositions(
        "halves",
        # Counted from the row after padding's, which is 1.
        first_position=config["pad_token_id"] + 1 if kind == "m2m_100" else 0,
        reach_max_period=kind == "m2m_100",
    )
    # They have a table for the sinusoids, which others write another into.
    names = (TABLE.format(start, side) for side in ("encoder", "decoder"))
    tables = [name for name in names if name in weights.shapes]
    for name in () if kind == "m2m_100" else tables:
        _check_waves(weights, name, config["d_model"])
        table = weights.array(name).astype("float32")
        wanted = ops.convert_to_numpy(waves.signal(len(table), 0, table.shape[-1]))
        if np.abs(table - wanted).max(initial=0) > ROUNDED:
            return {"positions": "learned", "sequence_length": len(table)}
    return {"positions": waves, "sequence_length": None}


def _check_waves(weights, name, width):
    shape = weights.shapes[name]
    if shape[1:] != (width,) or width % 2:
        raise ValueError(
            f"{weights.folder}: each row of {name!r} has D / 2 sines and as many "
            f"cosines. Received: shape {shape}, d_model={width}. Choose an even width, "
            "and fetch weights and configuration from one model."
        )


def _embedding_of(model, side):
    return model.source_embedding if side == "encoder" else model.target_embedding


def _tables(weights, start, tie):
    """The names of the tables of words, of source and target.

    Where both have one, and the logits too, it may stand under any of their
    names.
    """
    source, target = (WORDS.format(start, side) for side in ("encoder", "decoder"))
    output = ["lm_head.weight"] if tie in ("all", "target") else []
    if tie in ("all", "inputs"):
        one = weights.one_of([f"{start}shared.weight", source, target, *output])
        return one, one
    return source, weights.one_of([target, *output])


def _embedding_plan(model, config, ids, tables, biased):
    sides = (model.source_embedding, model.target_embedding)
    pairs = dict(zip(tables, sides, strict=True))  # of one table that of the target
    plan = [(side.embeddings, [name], ids.rows) for name, side in pairs.items()]
    bias = "final_logits_bias" if biased else None
    return plan + plans.output_plan(model, ids, "lm_head.weight", bias)


def _positions_plan(model, config, start):
    plan = []
    if model.config["positions"] == "learned":
        first = 2 if config["model_type"] in LEARNED else 0
        for side in ("encoder", "decoder"):
            table = _embedding_of(model, side).position_layer.embeddings
            rows = table.shape[0]
            plan.append(
                (
                    table,
                    [TABLE.format(start, side)],
                    lambda array, rows=rows: array[first : first + rows],
                )
            )
    return plan
