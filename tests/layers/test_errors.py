"""Errors name the argument, the expected and the actual value, and the fix."""

import re

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfm import layers, models
from keras_tfm.layers import masks
from keras_tfm.layers.position_factory import positions_of_blocks

pytestmark = pytest.mark.backend("torch")

X = np.ones((2, 4, 6), "float32")
VALUE = np.ones((2, 5, 6), "float32")
IDS = np.array([[3, 1, 0], [2, 0, 0]], "int32")
BLOCK = {"intermediate_dim": 8, "num_heads": 2}
SIZES = {"embedding_dim": 8, **BLOCK}
ONES = np.ones((2, 4, 4), bool)


def built(layer, *shapes):
    layer.build(*(shapes or (X.shape,)))
    return layer


def attention(**options):
    return built(layers.MultiHeadAttention(3, **options))


def cached(**call):
    """Calls attention at one position, with a cache of length 3."""
    layer = attention(positions="alibi")
    return layer(X[:, :1], cache=layer.empty_cache(2, 3), **call)


def shaw_with_weights():
    positions = layers.ShawPositions()
    positions.build((None, None, 2, 4))
    return positions


def tied(vocabulary_size, is_built=False):
    layer = layers.TokenAndPositionEmbedding(6, embedding_dim=8)
    if is_built:
        layer(IDS)
    return layer.tie_embeddings(
        layers.TokenAndPositionEmbedding(vocabulary_size, embedding_dim=8)
    )


CONSTRUCTORS = [
    (lambda: layers.Attention("concat"), "`score` must be one of .*'additive'.*concat"),
    (lambda: layers.Attention("additive", units=0), "`units` must be at least 1"),
    (lambda: layers.Attention("dot", units=3), "got units=3, score='dot'. Leave"),
    (lambda: layers.AttentionPooling(0), "`num_queries` must be at least 1"),
    (lambda: layers.AttentionPooling(score="concat"), "`score` must be one of"),
    (lambda: layers.FeedForward(0), "`intermediate_dim` must be at least 1"),
    (lambda: layers.LearnedPositions(0), "got sequence_length=0"),
    (lambda: layers.LearnedPositions(None), "got sequence_length=None"),
    (lambda: layers.LearnedPositions(4, combine="multiply"), "`combine` .*'multiply'"),
    (lambda: attention(num_key_value_heads=2), "num_heads=3, num_key_value_heads=2"),
    (lambda: layers.MultiHeadAttention(0), "`num_heads` must be at least 1"),
    (lambda: layers.MultiHeadAttention(2, 0), "`key_dim` must be at least 1"),
    (lambda: layers.MultiHeadAttention(2.5), "`num_heads` must be an integer; .*2.5"),
    (lambda: layers.MultiHeadAttention(2, positions="rope"), "`positions` .*'rope'"),
    (lambda: layers.Pooling("attention"), "`kind` must be one of .*'attention'"),
    (lambda: layers.RotaryPositions("pairs"), "`style` must be one of .*'pairs'"),
    (
        lambda: layers.RotaryPositions(max_period=float("nan")),
        "`max_period` must be a finite number above 1; got max_period=nan",
    ),
    (lambda: layers.ShawPositions(0), "`max_distance` must be at least 1"),
    (lambda: layers.SinusoidalPositions("quarters"), "`style` must .*'quarters'"),
    (lambda: layers.SinusoidalPositions(max_period=1), "`max_period` .* above 1"),
    (lambda: layers.SinusoidalPositions(first_position=-1), "`first_position` must be"),
    (lambda: layers.SSRUDecoder(8, 2, positions="shaw"), "`positions` must be None"),
    (lambda: layers.T5Positions(3), "got num_buckets=3"),
    (lambda: layers.T5Positions(32, 8), "max_distance=8"),
    (
        lambda: layers.TokenAndPositionEmbedding(0, embedding_dim=8),
        "`vocabulary_size` must be at",
    ),
    (
        lambda: layers.TokenAndPositionEmbedding(6, embedding_dim=0),
        "`embedding_dim` must be at",
    ),
    (
        lambda: layers.TokenAndPositionEmbedding(
            6, embedding_dim=8, positions="rotary"
        ),
        "`positions` must be one of .*'sinusoidal'.*'rotary'",
    ),
    (
        lambda: layers.TokenAndPositionEmbedding(
            6, embedding_dim=8, positions="learned"
        ),
        "sequence_length=None",
    ),
    (
        lambda: layers.TokenAndPositionEmbedding(
            6, embedding_dim=8, normalization="batch_norm"
        ),
        "`normalization` must be one of .*'batch_norm'",
    ),
    (
        lambda: layers.TransformerEncoder(8, 2, normalization="batch"),
        "`normalization` must be one of .*'rms_norm'.*'batch'",
    ),
    (
        lambda: layers.TransformerDecoder(8, 2, epsilon=0.0),
        "`epsilon` must be a finite number above 0; got epsilon=0.0",
    ),
    (
        lambda: layers.TransformerEncoder(8, 2, epsilon=float("nan")),
        "`epsilon` must be a finite number above 0; got epsilon=nan",
    ),
    (
        lambda: positions_of_blocks(shaw_with_weights(), 1, True),
        "`positions` must be a layer without weights",
    ),
    (lambda: tied(7), r"sizes \(7, 8\) for \(6, 8\)"),
    (lambda: tied(6, is_built=True), "built=True"),
]
CALLS = [
    (lambda: layers.Attention()([X, VALUE]), "a list of 2 .*`attention[(]query"),
    (lambda: layers.Attention("dot")(X, X, VALUE[:, :4, :5]), "6 and 5.*'multiplic"),
    (lambda: layers.Attention(name="mine").keys_and_values(X), "'mine' must be built"),
    (lambda: layers.MultiHeadAttention(2).empty_cache(2, 3), "must be built before"),
    (lambda: layers.MultiHeadAttention(4)(X), "must divide .*num_heads=4 for .* 6"),
    (lambda: layers.TransformerEncoder(8, 4)(X), "num_heads=4 for dimension 6"),
    (lambda: attention()(X, cache_index=3), "got cache_index=3 and cache=None"),
    (lambda: cached(cache_index=3), "cache_index=3 and 1 positions .* 3 slots"),
    (
        # The first positions of the cache would be overwritten.
        lambda: attention()(X, cache=attention().empty_cache(2, 4), cache_index=1),
        "cache_index=1 and 4 positions .* 4 slots",
    ),
    (lambda: cached(cache_index=-1), "cache_index=-1 and 1 positions .* 3 slots"),
    # These would be broadcast.
    (
        lambda: attention()(X, padding_mask=np.ones((2, 1), bool)),
        "`padding_mask` must have one column .*for 4 keys",
    ),
    (
        lambda: cached(cache_index=2, query_positions=np.array([3, 2])),
        r"`query_positions` .*\(batch, length\).*shape=\(2,\)",
    ),
    (
        lambda: cached(cache_index=2, key_positions=np.arange(5)),
        r"`key_positions` .*shape=\(5,\)",
    ),
    (lambda: built(layers.RotaryPositions(), (None, None, 2, 5)), "key_dim=5"),
    (
        lambda: built(layers.RotaryPositions(rotary_dim=3), (None, None, 2, 4)),
        "rotary_dim=3, key_dim=4",
    ),
    (lambda: layers.SinusoidalPositions()(X[..., :5]), "must be even.*`embedding_dim`"),
    (lambda: layers.SinusoidalPositions()(X[0]), r"\(batch, length, dimension\); got"),
    (lambda: layers.LearnedPositions(4)(VALUE), "sequence_length=4 for 5 tokens"),
    (lambda: layers.LearnedPositions(4)(X, offset=1), "sequence_length=4 for 5"),
    (lambda: layers.LearnedPositions(4)(X, offset=-1), "got offset=-1"),
    (
        lambda: layers.TokenAndPositionEmbedding(6, embedding_dim=8)(IDS + 0.5),
        "`inputs` must be ids of a vocabulary of 6 tokens, from 0 to 5; got .*3.5",
    ),
    (
        lambda: layers.TokenAndPositionEmbedding(6, embedding_dim=8)(IDS + 3),
        "from 0 to 5; got numbers from 3 to 6. Use the vocabulary that",
    ),
    (
        lambda: layers.TokenAndPositionEmbedding(300, embedding_dim=8)(
            keras.Input((None,), dtype="bfloat16")
        ),
        'dtype=bfloat16.*half precision with `keras.Input.*dtype="int32"',
    ),
    (
        lambda: layers.TokenAndPositionEmbedding(6, embedding_dim=8, sequence_length=4),
        "`sequence_length` must be None unless positions='learned'; got .*=4",
    ),
    (
        lambda: layers.TokenAndPositionEmbedding(6, embedding_dim=8)(IDS[0]),
        r"shape=\(3,\)",
    ),
    (
        lambda: layers.TokenAndPositionEmbedding(6, embedding_dim=8).as_logits(X),
        "of dimension 8",
    ),
    (
        lambda: layers.TokenAndPositionEmbedding(6, embedding_dim=4).as_logits(IDS),
        "must be floats",
    ),
    (lambda: layers.Pooling()(X[:, 0]), r"got shape=\(2, 6\)"),
    (
        lambda: built(layers.TransformerDecoder(8, 3))(X, VALUE),
        "built without one and is called with one. Use two blocks",
    ),
    (
        lambda: built(layers.TransformerDecoder(8, 3), X.shape, VALUE.shape)(X),
        "built with one and is called without one",
    ),
    (
        lambda: built(layers.SSRUDecoder(8, 3))(X, VALUE),
        "built without one and is called with one",
    ),
    (
        lambda: built(layers.TransformerDecoder(8, 3))(X, cache=(None, None)),
        "`cache_index` must be set with a cache",
    ),
    (lambda: masks.padding_mask(ops.zeros((2, 3))), "`ids` must be .*dtype=float32"),
    (lambda: masks.causal_mask(-1), "`length` must be at least 0"),
]


@pytest.mark.parametrize(("call", "message"), CONSTRUCTORS + CALLS)
def test_wrong_arguments_raise_an_error_that_names_them(call, message):
    with pytest.raises(ValueError) as error:
        call()
    assert re.search(message, str(error.value))


LAYERS_WITH_DROPOUT = {
    "MultiHeadAttention": lambda **rate: layers.MultiHeadAttention(2, **rate),
    "Attention": layers.Attention,
    "AttentionPooling": layers.AttentionPooling,
    "FeedForward": lambda **rate: layers.FeedForward(8, **rate),
    "embedding": lambda **rate: layers.TokenAndPositionEmbedding(
        9, embedding_dim=8, **rate
    ),
    "TransformerEncoder": lambda **rate: layers.TransformerEncoder(**BLOCK, **rate),
    "Encoder": lambda **rate: models.encoder_small(9, **SIZES, **rate),
}


@pytest.mark.parametrize("rate", [1.0, -0.1, float("nan")])
@pytest.mark.parametrize("layer", LAYERS_WITH_DROPOUT)
def test_a_dropout_rate_outside_0_to_1_is_rejected(layer, rate):
    with pytest.raises(ValueError, match=f"`dropout` must be .*got dropout={rate}"):
        LAYERS_WITH_DROPOUT[layer](dropout=rate)


@pytest.mark.parametrize("name", ["attention_dropout", "activation_dropout"])
def test_each_dropout_rate_of_a_block_is_checked(name):
    with pytest.raises(ValueError, match=f"`{name}` must be .*got {name}=1.0"):
        layers.TransformerDecoder(**BLOCK, **{name: 1.0})


SEQUENCES = [
    [(2, 6)],
    [(2, 3, 4, 6)],
    [(2, 3, 5)],
    [(2, 3, 6), (2, 4, 5)],
    [(2, 3, 6), (3, 4, 6)],
    [(2, 3, 6), (2, 4, 6), (2, 5, 6)],
]


@pytest.mark.parametrize("shapes", SEQUENCES)
@pytest.mark.parametrize("layer", [attention, lambda: built(layers.Attention())])
def test_sequences_of_inconsistent_shapes_are_rejected(layer, shapes):
    message = "with one length for value and key; expected dimensions .*'key': 6"
    for sequences in (
        [np.ones(shape, "float32") for shape in shapes],
        [keras.Input(batch_shape=shape) for shape in shapes],  # a functional model
    ):
        with pytest.raises(ValueError, match=message):
            layer()(*sequences)


# An argument, a wrong mask for it, and the error message.
MASKS = [
    ("padding_mask", ONES, r"`padding_mask` must be boolean of shape \(B, S\)"),
    ("attention_mask", ONES[:, 0], r"`attention_mask` .*shape=\(2, 4\)"),
    ("attention_mask", ONES[0, 0], r"`attention_mask` .*shape=\(4,\)"),
]
# The same of values, which are read where they are known.
VALUES = [
    ("attention_mask", 0.5 * ONES, "from 0.5 to 0.5"),
    ("attention_mask", ONES - 2.0, "from -1.0 to -1.0"),
    ("attention_mask", ONES * -1, "additive, floats of 0.*from -1 to -1"),
    ("padding_mask", ONES[:, 0] * np.nan, "from nan to nan"),
    ("padding_mask", 2 + ONES[:, 0], r"hold 0 and 1; .*`masks.padding_mask\(ids\)`"),
]
LAYERS_WITH_MASKS = {
    "MultiHeadAttention": attention,
    "Attention": lambda: built(layers.Attention()),
    "TransformerEncoder": lambda: layers.TransformerEncoder(8, 3),
}


@pytest.mark.parametrize(("name", "mask", "message"), MASKS)
@pytest.mark.parametrize("layer", LAYERS_WITH_MASKS)
def test_a_mask_of_the_wrong_rank_is_rejected(layer, name, mask, message):
    with pytest.raises(ValueError, match=message):
        LAYERS_WITH_MASKS[layer]()(X, **{name: mask})
    symbol = keras.Input(mask.shape[1:], dtype=str(mask.dtype))
    with pytest.raises(ValueError, match=f"`{name}` must be boolean"):
        LAYERS_WITH_MASKS[layer]()(keras.Input(X.shape[1:]), **{name: symbol})


@pytest.mark.parametrize(("name", "mask", "message"), VALUES)
@pytest.mark.parametrize("layer", LAYERS_WITH_MASKS)
def test_a_mask_of_other_numbers_is_rejected_without_advice_to_invert_it(
    layer, name, mask, message
):
    with pytest.raises(ValueError, match=message) as error:
        LAYERS_WITH_MASKS[layer]()(X, **{name: mask})
    assert f"`{name}` must be boolean, True" in str(error.value)
    assert "==" not in str(error.value)


@pytest.mark.parametrize("layer", ["MultiHeadAttention", "Attention"])
@pytest.mark.parametrize("mask", [ONES[:, :, :3], ONES[:, :3], ONES[[0, 1, 1]]])
def test_a_mask_of_the_wrong_size_is_rejected(layer, mask):
    heads = 3 if layer == "MultiHeadAttention" else 1
    message = rf"expected \(B, H, T, S\) = \(2, {heads}, 4, 4\), got"
    with pytest.raises(ValueError, match=message) as error:
        LAYERS_WITH_MASKS[layer]()(X, attention_mask=mask)
    assert str(mask[:, None].shape) in str(error.value)


@pytest.mark.parametrize("layer", [layers.Pooling, layers.AttentionPooling])
def test_pooling_rejects_a_padding_mask_of_another_shape(layer):
    for x in (X, keras.Input(X.shape[1:])):
        for mask, message in [
            (keras.Input((4, 6), dtype="bool"), r"boolean of shape \(B, S\)"),
            (keras.Input((3,), dtype="bool"), r"shape=\(None, 3\) for"),
        ]:
            with pytest.raises(ValueError, match=message):
                layer()(x, padding_mask=mask)


@pytest.mark.parametrize("name", ["attention_mask", "padding_mask", "causal_mask"])
def test_combine_rejects_a_mask_of_the_wrong_rank(name):
    mask = ops.ones((3,) if name == "attention_mask" else (2, 3, 3), "bool")
    arguments = [mask] if name == "attention_mask" else []
    keywords = {} if arguments else {name: mask}
    with pytest.raises(ValueError, match=f"`{name}` must be boolean"):
        masks.combine(*arguments, **keywords)


@pytest.mark.parametrize("kind", [layers.SinusoidalPositions, layers.LearnedPositions])
def test_positions_reject_shapes_they_were_not_built_for(kind):
    layer = kind(*([9] if kind is layers.LearnedPositions else []))
    layer(np.ones((1, 8, 8), "float32"))
    for shape in [(8, 8), (1, 8, 6)]:
        with pytest.raises(ValueError, match="incompatible with the layer"):
            layer(np.ones(shape, "float32"))
