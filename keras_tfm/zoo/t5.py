"""T5, versions 1.0 and 1.1, and mT5."""

import operator

from keras_tfm.layers import T5Positions
from keras_tfm.models import Transformer
from keras_tfm.zoo import plans

HEADS = ("seq2seq",)
ATTENTION = {
    "query_dense": "q",
    "key_dense": "k",
    "value_dense": "v",
    "output_dense": "o",
}
SIDES = ("encoder", "decoder")
# Copies of the table of words, and a bias that is not used.
LEFT = (
    r"(en|de)coder\.embed_tokens\.weight",
    r"lm_head\.weight",
    r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
)


def model_of(config, weights, head, num_classes, settings):
    """Makes the model of a configuration, and finds its weights.

    Args:
        config: dict, the `config.json` of a T5.
        weights: `Weights`.
        head: `"seq2seq"`.
        num_classes: None.
        settings: dict of `Transformer`, over those of the configuration.

    Returns:
        The model; a plan of its weights, see `plans`; and `plans.Ids`.

    Raises:
        ValueError: the configuration is of something else.
    """
    # Unknown is 2 in all its vocabularies; it is trained to start with padding.
    ids = plans.Ids.of(config, 2, config["pad_token_id"])
    tied = config.get("tie_word_embeddings", config["model_type"] != "mt5")
    tie = "all" if tied else "inputs"
    model = Transformer(**{**_settings(config, ids), "tie": tie, **settings})
    names = ["shared.weight", *(f"{side}.embed_tokens.weight" for side in SIDES)]
    table = weights.one_of([*names, "lm_head.weight"] if tied else names)
    plan = [(model.target_embedding.embeddings, [table], ids.rows)]
    plan += plans.output_plan(model, ids, "lm_head.weight")
    plan += _stack_plan(model.encoder_blocks, "encoder")
    plan += _stack_plan(model.decoder_blocks, "decoder")
    plan += plans.layer_plan(model.encoder_norm, "encoder.final_layer_norm")
    scale = config["d_model"] ** -0.5 if _scales(config) else 1.0
    plan.append(
        (
            model.decoder_norm.scale,
            ["decoder.final_layer_norm.weight"],
            # What the hidden states are multiplied by before the projection.
            lambda weight: scale * weight.astype("float32"),
        )
    )
    return model, plan, ids


def _scales(config):
    """Version 1.0 scales before the projection; 1.1 and mT5 do not.

    Older configurations tell 1.0 from 1.1 by whether the projection is tied.
    """
    if config["model_type"] == "mt5":
        return False
    return config.get("scale_decoder_outputs", config.get("tie_word_embeddings", True))


def _settings(config, ids):
    kind = config.get("feed_forward_proj", "relu")
    # Its "gelu" is the one by tanh where it is gated.
    name = "gelu_new" if kind == "gated-gelu" else kind.removeprefix("gated-")
    # What newer ones say besides goes before it.
    name = config.get("dense_act_fn", name)
    gated = config.get("is_gated_act", kind.startswith("gated-"))
    return {
        "vocabulary_size": ids.size,
        "num_layers": (
            config["num_layers"],
            config.get("num_decoder_layers") or config["num_layers"],
        ),
        "embedding_dim": config["d_model"],
        "intermediate_dim": config["d_ff"],
        "num_heads": config["num_heads"],
        "key_dim": config["d_kv"],
        "positions": T5Positions(
            config["relative_attention_num_buckets"],
            config.get("relative_attention_max_distance", 128),
        ),
        "scale_embedding": False,
        "logits_bias": bool(ids.added),
        "dropout": config["dropout_rate"],
        "attention_dropout": config["dropout_rate"],
        "activation_dropout": config["dropout_rate"],
        "activation": plans.activation(name),
        "gated": bool(gated),
        "normalize_first": True,
        "normalization": "rms_norm",
        "epsilon": config["layer_norm_epsilon"],
        "use_bias": False,
        "score": "dot",
    }


def _stack_plan(blocks, side):
    plan = []
    for number, block in enumerate(blocks):
        stem = f"{side}.block.{number}.layer"
        parts = [("self_attention", "SelfAttention")]
        if side == "decoder":
            parts.append(("cross_attention", "EncDecAttention"))
        for place, (ours, theirs) in enumerate(parts):
            for projection, name in ATTENTION.items():
                layer = operator.attrgetter(f"{ours}.{projection}")(block)
                plan += plans.layer_plan(layer, f"{stem}.{place}.{theirs}.{name}")
            norm = getattr(block, f"{ours}_norm")
            plan += plans.layer_plan(norm, f"{stem}.{place}.layer_norm")
        last = f"{stem}.{len(parts)}"
        feed = block.feed_forward
        inner = "wi_1" if feed.gated else "wi"
        plan += plans.layer_plan(feed.inner_dense, f"{last}.DenseReluDense.{inner}")
        if feed.gated:
            plan += plans.layer_plan(feed.gate_dense, f"{last}.DenseReluDense.wi_0")
        plan += plans.layer_plan(feed.output_dense, f"{last}.DenseReluDense.wo")
        plan += plans.layer_plan(block.feed_forward_norm, f"{last}.layer_norm")
    # The first block has the table that all of them share.
    table = blocks[0].positions.embeddings
    name = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    return [*plan, (table, [name], plans.same)]
