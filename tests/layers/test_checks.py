"""Shares that are dropped."""

import pytest

from keras_tfm import layers, models

BLOCK = {"intermediate_dim": 8, "num_heads": 2}
SIZES = {"embedding_dim": 8, **BLOCK}


@pytest.mark.backend("torch")
@pytest.mark.parametrize("share", [1.0, -0.1, float("nan")])
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("dropout", lambda **given: layers.MultiHeadAttention(2, **given)),
        ("dropout", lambda **given: layers.Attention(**given)),
        ("dropout", lambda **given: layers.AttentionPooling(**given)),
        ("dropout", lambda **given: layers.FeedForward(8, **given)),
        ("dropout", lambda **given: layers.TokenAndPositionEmbedding(9, 8, **given)),
        ("dropout", lambda **given: layers.TransformerEncoder(**BLOCK, **given)),
        ("attention_dropout", lambda **g: layers.TransformerEncoder(**BLOCK, **g)),
        ("activation_dropout", lambda **g: layers.TransformerDecoder(**BLOCK, **g)),
        ("dropout", lambda **given: models.encoder_small(9, **SIZES, **given)),
        (
            "dropout",
            lambda **given: models.SequenceClassifier(
                models.encoder_small(9, **SIZES), 2, **given
            ),
        ),
    ],
)
def test_a_share_that_leaves_nothing_or_is_none_is_refused(name, make, share):
    with pytest.raises(ValueError, match=f"`{name}` is a share .* Received: {share}"):
        make(**{name: share})
