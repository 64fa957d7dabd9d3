"""Encoder and decoder blocks: formula, masks, parity with other libraries."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfm.layers import TransformerDecoder, TransformerEncoder
from tests.layers import formulas
from tests.layers.contract import WEIGHT_OPTIONS, check_layer
from tests.layers.formulas import (
    causal,
    draw,
    draw_weights,
    numpy,
    relu,
    silu,
    weights_of,
)

B, T, S, D, H, F = 2, 4, 5, 6, 3, 10
X, MEMORY = draw(B, T, D), draw(B, S, 7, seed=2)
PADDING = np.array([[1, 1, 1, 0], [1, 1, 1, 1]], bool)
MEMORY_PADDING = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]], bool)
ROWS = np.random.default_rng(3).random((B, T, T)) < 0.7

KINDS = {
    "post-norm": {},
    "pre-norm": {"normalize_first": True},
    "RMS post-norm": {"normalization": "rms_norm", "epsilon": 0.1},
    "gated RMS pre-norm, no bias": {
        "normalize_first": True,
        "normalization": "rms_norm",
        "activation": "silu",
        "gated": True,
        "use_bias": False,
        "epsilon": 1e-3,
    },
    "key and value dimensions": {"key_dim": 5, "value_dim": 4},
}


def make_layer(kind, *inputs, **settings):
    # Zeros, then drawn values: JAX compiles a random generator for each shape.
    layer = kind(F, H, kernel_initializer="zeros", **settings)
    layer.build(*(x.shape for x in inputs))
    return draw_weights(layer)


def run(layer, *inputs, **call):
    return keras.tree.map_structure(numpy, layer(*inputs, **call))


def formula_of(layer, x, memory=None, **masks):
    """Computes the formula with the options of the layer."""
    return formulas.block(
        weights_of(layer),
        x.astype("float64"),
        memory,
        first=layer.normalize_first,
        epsilon=layer.epsilon,
        activation=silu if layer.activation is keras.activations.silu else relu,
        **masks,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_an_encoder_block_follows_the_formula(kind):
    layer = make_layer(TransformerEncoder, X, **KINDS[kind])
    actual = run(layer, X, padding_mask=PADDING, attention_mask=ROWS)
    expected = formula_of(layer, X, mask=ROWS & PADDING[:, None])
    np.testing.assert_allclose(actual, expected, atol=2e-5)
    assert abs(formula_of(layer, X) - expected).max() > 0.01  # it can fail


@pytest.mark.parametrize("kind", KINDS)
def test_a_decoder_block_follows_the_formula(kind):
    layer = make_layer(TransformerDecoder, X, MEMORY, **KINDS[kind])
    masks = {"padding_mask": PADDING, "encoder_padding_mask": MEMORY_PADDING}
    expected = formula_of(
        layer,
        X,
        MEMORY,
        mask=causal(T) & PADDING[:, None],
        memory_mask=MEMORY_PADDING[:, None],
    )
    np.testing.assert_allclose(run(layer, X, MEMORY, **masks), expected, atol=2e-5)


def test_a_decoder_block_without_an_encoder_has_no_cross_attention():
    layer = make_layer(TransformerDecoder, X)
    expected = formula_of(layer, X, mask=causal(T) & ROWS)
    np.testing.assert_allclose(run(layer, X, attention_mask=ROWS), expected, atol=2e-5)
    assert not any("cross" in weight.path for weight in layer.weights)
    free = run(layer, X, use_causal_mask=False)
    np.testing.assert_allclose(free, formula_of(layer, X), atol=2e-5)


@pytest.mark.parametrize("name", ["dropout", "attention_dropout", "activation_dropout"])
@pytest.mark.parametrize("kind", [TransformerEncoder, TransformerDecoder])
def test_every_dropout_acts_in_training_only(kind, name):
    layer = make_layer(kind, X, **{name: 0.5})
    without = make_layer(kind, X)
    still = run(without, X, training=True)
    np.testing.assert_allclose(run(layer, X), still, atol=1e-6)
    assert abs(run(layer, X, training=True) - still).max() > 0.1


def test_residual_dropout_acts_on_the_output_of_the_sublayer():
    layer = make_layer(TransformerEncoder, X, dropout=0.999999, normalize_first=True)
    np.testing.assert_allclose(run(layer, X, training=True), X, atol=1e-6)


def test_attention_weights_follow_the_formula_and_sum_to_one():
    layer = make_layer(TransformerDecoder, X, MEMORY)
    call = {"padding_mask": PADDING, "encoder_padding_mask": MEMORY_PADDING}
    output, self_weights, cross = run(
        layer, X, MEMORY, return_attention_scores=True, **call
    )
    np.testing.assert_allclose(output, run(layer, X, MEMORY, **call), atol=1e-5)
    weights = weights_of(layer)
    _, expected = formulas.attention(
        formulas.below(weights, "self_attention"),
        X,
        mask=causal(T) & PADDING[:, None],
    )
    np.testing.assert_allclose(self_weights, expected, atol=1e-5)
    assert cross.shape == (B, H, T, S)
    np.testing.assert_allclose(self_weights.sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(cross.sum(-1), 1, atol=1e-5)
    assert (cross[1, :, :, 2:] == 0).all()

    encoder = make_layer(TransformerEncoder, X)
    output, scores = run(encoder, X, return_attention_scores=True)
    np.testing.assert_allclose(output, run(encoder, X), atol=1e-5)
    np.testing.assert_allclose(scores.sum(-1), 1, atol=1e-5)


@pytest.mark.parametrize("memory", [None, MEMORY], ids=["LM", "cross"])
def test_cached_decoding_matches_the_full_sequence(memory):
    inputs = [X] if memory is None else [X, memory]
    layer = make_layer(TransformerDecoder, *inputs, normalize_first=True)
    masks = {} if memory is None else {"encoder_padding_mask": MEMORY_PADDING}
    expected = run(layer, *inputs, **masks)
    past = layer.empty_cache(B, T + 2)
    if memory is not None:
        memory = layer.cross_attention.keys_and_values(ops.convert_to_tensor(memory))
    for start, end in [(0, 2), (2, 3), (3, 4)]:
        output, (past, cross_cache) = layer(
            X[:, start:end], cache=(past, memory), cache_index=start, **masks
        )
        np.testing.assert_allclose(numpy(output), expected[:, start:end], atol=1e-5)
        assert (cross_cache is None) == (memory is None)


def test_weights_and_cache_are_returned_together():
    layer = make_layer(TransformerDecoder, X, MEMORY)
    memory = layer.cross_attention.keys_and_values(ops.convert_to_tensor(MEMORY))
    cache = (layer.empty_cache(B, T), memory)
    call = {"return_attention_scores": True}
    actual = layer(X, cache=cache, cache_index=0, **call)
    expected = run(layer, X, MEMORY, **call)
    for result, full in zip(actual[:3], expected, strict=True):
        np.testing.assert_allclose(numpy(result), full, atol=1e-5)
    assert actual[3][0][0].shape == (B, H, D // H, T)


def masked(x, mask):
    x = np.where(mask[..., None], x, 0).astype("float32")
    return keras.layers.Masking()(ops.convert_to_tensor(x)), x


@pytest.mark.parametrize("normalize_first", [False, True])
def test_explicit_masks_replace_implicit_ones(normalize_first):
    carrying, x = masked(X, PADDING)
    memory_carrying, memory = masked(MEMORY, MEMORY_PADDING)
    explicit = {"padding_mask": PADDING, "encoder_padding_mask": MEMORY_PADDING}
    full = {
        "padding_mask": np.ones_like(PADDING),
        "encoder_padding_mask": np.ones_like(MEMORY_PADDING),
    }
    settings = {"normalize_first": normalize_first}
    decoder = make_layer(TransformerDecoder, X, MEMORY, **settings)
    actual = run(decoder, carrying, memory_carrying, use_causal_mask=False)
    expected = run(decoder, x, memory, use_causal_mask=False, **explicit)
    np.testing.assert_allclose(actual, expected, atol=1e-6)
    actual = run(decoder, carrying, memory_carrying, use_causal_mask=False, **full)
    plain = run(decoder, x, memory, use_causal_mask=False)
    np.testing.assert_allclose(actual, plain, atol=1e-6)
    assert abs(plain - expected).max() > 0.01  # it can fail

    encoder = make_layer(TransformerEncoder, X, **settings)
    expected = run(encoder, x, padding_mask=PADDING)
    np.testing.assert_allclose(run(encoder, carrying), expected, atol=1e-6)
    rows = {"attention_mask": ROWS}
    np.testing.assert_allclose(
        run(encoder, carrying, **rows), run(encoder, x, **rows), atol=1e-6
    )


def test_padding_and_batch_order_do_not_change_the_output():
    layer = make_layer(TransformerDecoder, X, MEMORY)
    call = {"encoder_padding_mask": MEMORY_PADDING}
    whole = run(layer, X, MEMORY, **call)
    noisy = np.where(MEMORY_PADDING[..., None], MEMORY, 9.0).astype("float32")
    np.testing.assert_allclose(run(layer, X, noisy, **call), whole, atol=1e-5)
    short = run(layer, X[1:], MEMORY[1:, :2])  # without its padding
    np.testing.assert_allclose(short, whole[1:], atol=1e-5)
    masks = {"encoder_padding_mask": MEMORY_PADDING[::-1].copy()}
    reversed_batch = run(layer, X[::-1].copy(), MEMORY[::-1].copy(), **masks)
    np.testing.assert_allclose(reversed_batch[::-1], whole, atol=1e-5)


def test_the_future_cannot_change_the_past():
    layer = make_layer(TransformerDecoder, X)
    later = X.copy()
    later[:, 2:] += np.random.default_rng(0).normal(size=(B, 2, D))
    original, changed = run(layer, X), run(layer, later)
    np.testing.assert_allclose(original[:, :2], changed[:, :2], atol=1e-5)
    assert abs(original[:, 2:] - changed[:, 2:]).max() > 0.1  # it can fail


def test_symbolic_shapes_match_the_output():
    x, memory = keras.Input((None, D)), keras.Input((S, 7))
    call = {"return_attention_scores": True}
    results = TransformerDecoder(F, H)(x, memory, **call)
    expected = [(None, None, D), (None, H, None, None), (None, H, None, S)]
    assert [item.shape for item in results] == expected
    model = keras.Model([x, memory], results)
    shapes = [item.shape for item in model([X, MEMORY])]
    assert shapes == [(B, T, D), (B, H, T, T), (B, H, T, S)]
    assert len(TransformerDecoder(F, H)(x, **call)) == 2
    assert len(TransformerEncoder(F, H)(x, **call)) == 2

    layer = TransformerDecoder(F, H)
    layer.build(X.shape, MEMORY.shape)
    past, cross = ((keras.Input((H, 2, n)), keras.Input((H, n, 2))) for n in (9, S))
    index = keras.Input(batch_shape=(), dtype="int32")
    results = layer(x, cache=(past, cross), cache_index=index, **call)
    shapes = [item.shape for item in keras.tree.flatten(results)]
    caches = [(None, H, 2, 9), (None, H, 9, 2), (None, H, 2, S), (None, H, S, 2)]
    assert shapes == [expected[0], (None, H, None, 9), expected[2], *caches]


@pytest.mark.parametrize("normalize_first", [False, True])
def test_parity_with_keras_hub(normalize_first):
    keras_hub = pytest.importorskip("keras_hub")
    settings = {"layer_norm_epsilon": 1e-3, "normalize_first": normalize_first}
    settings["kernel_initializer"] = "zeros"
    options = {"epsilon": 1e-3, "normalize_first": normalize_first}
    memory = draw(B, S, D, seed=2)
    call = {"encoder_padding_mask": MEMORY_PADDING}

    hub_layer = keras_hub.layers.TransformerEncoder(F, H, **settings)
    hub_layer(X)
    layer = make_layer(TransformerEncoder, X, **options)
    copy_by_name(layer, hub_layer, KERAS_HUB)
    np.testing.assert_allclose(
        run(layer, X, padding_mask=PADDING),
        run(hub_layer, X, padding_mask=PADDING),
        atol=2e-5,
    )

    hub_layer = keras_hub.layers.TransformerDecoder(F, H, **settings)
    hub_layer(X, memory)
    layer = make_layer(TransformerDecoder, X, memory, **options)
    copy_by_name(layer, hub_layer, KERAS_HUB)
    np.testing.assert_allclose(
        run(layer, X, memory, padding_mask=PADDING, **call),
        run(hub_layer, X, memory, decoder_padding_mask=PADDING, **call),
        atol=2e-5,
    )


KERAS_HUB = {  # folders of paths, and their names in the library
    "self_attention_layer_norm": "self_attention_norm",
    "cross_attention_layer_norm": "cross_attention_norm",
    "feedforward_layer_norm": "feed_forward_norm",
    "feedforward_intermediate_dense": "feed_forward/inner",
    "feedforward_output_dense": "feed_forward/output",
    "self_attention_layer": "self_attention",
}


def copy_by_name(source, target, names):
    """Copies each weight of `source` to its counterpart in `target`."""
    weights = {weight.path.split("/", 1)[1]: weight for weight in source.weights}
    assert len(weights) == len(target.weights)
    for weight in target.weights:
        path = weight.path.split("/", 1)[1]
        folder, rest = path.split("/", 1)
        weight.assign(weights[f"{names.get(folder, folder)}/{rest}"])


@pytest.mark.backend("torch")
@pytest.mark.parametrize("normalize_first", [False, True])
def test_parity_with_pytorch(normalize_first):
    import torch

    kind = {"dropout": 0.0, "batch_first": True, "norm_first": normalize_first}
    settings = {"normalize_first": normalize_first}
    memory = draw(B, S, D, seed=2)
    layer = make_layer(TransformerEncoder, X, **settings)
    module = torch.nn.TransformerEncoderLayer(D, H, F, **kind).double()
    copy_to_torch(layer, module)
    expected = module(
        torch.tensor(X).double(), src_key_padding_mask=torch.tensor(~PADDING)
    )
    actual = run(layer, X, padding_mask=PADDING)
    np.testing.assert_allclose(actual, expected.detach().numpy(), atol=2e-5)

    layer = make_layer(TransformerDecoder, X, memory, **settings)
    module = torch.nn.TransformerDecoderLayer(D, H, F, **kind).double()
    copy_to_torch(layer, module)
    expected = module(
        torch.tensor(X).double(),
        torch.tensor(memory).double(),
        tgt_mask=torch.tensor(~causal(T)[0]),
        memory_key_padding_mask=torch.tensor(~MEMORY_PADDING),
    )
    actual = run(layer, X, memory, encoder_padding_mask=MEMORY_PADDING)
    np.testing.assert_allclose(actual, expected.detach().numpy(), atol=2e-5)


def copy_to_torch(layer, module):
    """Copies the weights of a block to the PyTorch module of the same kind."""
    import torch

    w = weights_of(layer)
    attentions = {"self_attn": "self_attention", "multihead_attn": "cross_attention"}
    norms = ["self_attention_norm", "cross_attention_norm", "feed_forward_norm"]
    norms = [norm for norm in norms if f"{norm}/gamma" in w]
    values = {}
    for torch_name, name in attentions.items():
        if f"{name}/query/kernel" not in w:
            continue
        projections = [
            f"{name}/{projection}" for projection in ("query", "key", "value")
        ]
        kernels = [
            w[f"{projection}/kernel"].reshape(D, D).T for projection in projections
        ]
        values[f"{torch_name}.in_proj_weight"] = np.concatenate(kernels)
        biases = [w[f"{projection}/bias"].ravel() for projection in projections]
        values[f"{torch_name}.in_proj_bias"] = np.concatenate(biases)
        out = f"{name}/attention_output"
        values[f"{torch_name}.out_proj.weight"] = w[f"{out}/kernel"].reshape(D, D).T
        values[f"{torch_name}.out_proj.bias"] = w[f"{out}/bias"]
    for torch_name, name in {"linear1": "inner", "linear2": "output"}.items():
        values[f"{torch_name}.weight"] = w[f"feed_forward/{name}/kernel"].T
        values[f"{torch_name}.bias"] = w[f"feed_forward/{name}/bias"]
    for i, norm in enumerate(norms, start=1):
        values[f"norm{i}.weight"] = w[f"{norm}/gamma"]
        values[f"norm{i}.bias"] = w[f"{norm}/beta"]
    module.load_state_dict({k: torch.tensor(v.copy()) for k, v in values.items()})
    module.eval()


ALL_OPTIONS = {
    "key_dim": 5,
    "value_dim": 4,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "activation_dropout": 0.1,
    "activation": "silu",
    "gated": True,
    "normalize_first": True,
    "normalization": "rms_norm",
    "epsilon": 1e-3,
    "use_bias": False,
    "score": "multiplicative",
    "num_key_value_heads": 1,
    "positions": "shaw",
    "seed": 5,
    **WEIGHT_OPTIONS,
}


def test_the_encoder_block_meets_the_contract(tmp_path):
    layer = TransformerEncoder(F, H, **ALL_OPTIONS)
    check_layer(layer, X, folder=tmp_path, padding_mask=PADDING)


def test_the_decoder_block_meets_the_contract(tmp_path):
    layer = TransformerDecoder(F, H, **ALL_OPTIONS)
    masks = {"attention_mask": ROWS, "encoder_padding_mask": MEMORY_PADDING}
    check_layer(layer, X, MEMORY, folder=tmp_path, **masks)
