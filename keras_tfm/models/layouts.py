"""How weights are divided over the devices that share one model."""

# From regular expressions of paths of weights to the axis of the mesh of
# devices that divides each of their axes, for `training.distribute`. Attention
# is divided by heads, the feed-forward networks by their inner dimension F, so
# that a pair of products needs one sum over devices; embeddings by D. Other
# weights are copied to all devices.
# Shoeybi et al. 2019, section 3. https://arxiv.org/abs/1909.08053
LAYOUTS: dict[str, tuple] = {
    r".*attention/(query|key|value)/kernel": (None, "model", None),  # (D, H, d_k)
    r".*attention/(query|key|value)/bias": ("model", None),  # (H, d_k)
    r".*attention/attention_output/kernel": ("model", None, None),  # (H, d_v, D)
    r".*feed_forward/(inner|gate)/kernel": (None, "model"),  # (D, F)
    r".*feed_forward/(inner|gate)/bias": ("model",),  # (F,)
    r".*feed_forward/output/kernel": ("model", None),  # (F, D)
    r".*token_embedding/embeddings": (None, "model"),  # (V, D)
}
