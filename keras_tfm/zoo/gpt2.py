"""GPT-2, a language model."""

from keras_tfm.models import CausalLM
from keras_tfm.zoo import plans

HEADS = ("causal_lm",)
# Masks, and a copy of the table of words.
LEFT = (r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias", r"lm_head\.weight")
# What is read of it, and the only value that is.
PLAIN = {
    "add_cross_attention": False,
    "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True,
}


def model_of(config, weights, head, num_classes, settings):
    """Makes the model of a configuration, and finds its weights.

    Args:
        config: dict, `config.json`.
        weights: `Weights`.
        head: `"causal_lm"`.
        num_classes: None.
        settings: dict of `CausalLM`, over those of the configuration.

    Returns:
        The model; a plan of its weights, see `plans`; and `plans.Ids`.

    Raises:
        ValueError: the configuration is of something else.
    """
    wrong = {k: config[k] for k, v in PLAIN.items() if config.get(k, v) != v}
    if wrong:
        raise ValueError(
            f"GPT-2 is read as it was published, with {PLAIN}. Received: {wrong}."
        )
    end = config["eos_token_id"]
    start = config.get("bos_token_id")
    ids = plans.Ids(
        config["vocab_size"], None, None, end if start is None else start, end
    )
    width = config["n_embd"]
    tie = config.get("tie_word_embeddings", True)
    given = {
        "num_layers": config["n_layer"],
        "embedding_dim": width,
        "intermediate_dim": config.get("n_inner") or 4 * width,
        "num_heads": config["n_head"],
        "tie": tie,
        "logits_bias": True,
        "positions": "learned",
        "sequence_length": config["n_positions"],
        "dropout": config["resid_pdrop"],
        "attention_dropout": config["attn_pdrop"],
        "activation": plans.activation(config["activation_function"]),
        "epsilon": config["layer_norm_epsilon"],
    }
    model = CausalLM(ids.size, **{**given, **settings})
    # The first checkpoints have no prefix.
    stem = "" if "wpe.weight" in weights.shapes else "transformer."
    names = [f"{stem}wte.weight", *(["lm_head.weight"] if tie else [])]
    table = weights.one_of(names)
    embedding = model.embedding
    plan = [
        (embedding.embeddings, [table], ids.rows),
        (embedding.position_layer.embeddings, [f"{stem}wpe.weight"], plans.same),
        *plans.logits_plan(embedding, model.projection, ids, "lm_head.weight"),
        *plans.layer_plan(model.norm, f"{stem}ln_f"),
    ]
    for number, block in enumerate(model.blocks):
        plan += _block_plan(block, f"{stem}h.{number}")
    return model, plan, ids


def _block_plan(block, stem):
    attention, feed = block.self_attention, block.feed_forward
    plan = [
        *plans.layer_plan(block.self_attention_norm, f"{stem}.ln_1"),
        *plans.layer_plan(block.feed_forward_norm, f"{stem}.ln_2"),
    ]
    joined = (attention.query_dense, attention.key_dense, attention.value_dense)
    for part, layer in enumerate(joined):
        plan += plans.columns_plan(
            layer, f"{stem}.attn.c_attn.weight", f"{stem}.attn.c_attn.bias", part, 3
        )
    for layer, name in (
        (attention.output_dense, "attn.c_proj"),
        (feed.inner_dense, "mlp.c_fc"),
        (feed.output_dense, "mlp.c_proj"),
    ):
        name = f"{stem}.{name}"
        plan += plans.columns_plan(layer, f"{name}.weight", f"{name}.bias")
    return plan
