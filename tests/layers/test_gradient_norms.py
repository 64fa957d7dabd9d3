"""Why post-norm needs a warm-up: gradients of deep stacks at initialization.

Xiong et al. 2020, section 3. https://arxiv.org/abs/2002.04745
"""

import keras
import numpy as np
import pytest
from keras import ops

from keras_tfm.layers import TransformerDecoder
from keras_tfm.layers.normalization import normalization_layer
from tests.layers.formulas import draw
from tests.layers.gradients import gradient

B, T, S, D, H = 8, 4, 1, 32, 2
DEPTHS = (3, 12)
SEEDS = 2
NORMALIZE_FIRST = {"post-norm": False, "pre-norm": True}


def gradient_norms(depth, normalize_first):
    """Measures the gradient of the last matrix of each feed-forward network.

    Matrices start as Glorot and Bengio have it, and the feed-forward dimension
    is that of the model, as in the paper's theory. The blocks are those of a
    decoder: cross-attention, here to one position, is the part of the residual
    sum that passes no gradient down. The loss is linear in the output of the
    stack, so that the gradient at the top is the same at every depth.

    Returns:
        float64 `(depth,)`, from input to output: root mean squares over seeds.
    """
    # One stack, with new weights for each seed.
    settings = {"normalize_first": normalize_first, "kernel_initializer": "zeros"}
    blocks = [TransformerDecoder(D, H, **settings) for _ in range(depth)]
    for block in blocks:
        block.build((B, T, D), (B, S, D))
    final_norm = normalization_layer("layer_norm", 1e-5)
    final_norm.build((B, T, D))
    kernels = [block.feed_forward.output_dense.kernel for block in blocks]
    squares = []
    for seed in range(SEEDS):
        initialize(blocks, seed)
        x, slope = draw(B, T, D, seed=seed), draw(B, T, D, seed=100 + seed)
        memory = ops.convert_to_tensor(draw(B, S, D, seed=200 + seed))

        def loss(values, x=x, slope=slope, memory=memory):
            pairs = [(kernel, values[i]) for i, kernel in enumerate(kernels)]
            with keras.StatelessScope(state_mapping=pairs):
                for block in blocks:
                    x = block(x, memory)
                x = final_norm(x) if normalize_first else x
                return ops.sum(ops.multiply(x, slope))

        actual = gradient(loss, np.stack([kernel.numpy() for kernel in kernels]))
        squares.append((actual.astype("float64") ** 2).sum(axis=(1, 2)))
    return np.sqrt(np.mean(squares, axis=0))


def initialize(blocks, seed):
    """Draws each (D, D) matrix uniformly within the bound of Glorot."""
    rng, bound = np.random.default_rng(seed), (6 / (D + D)) ** 0.5
    for block in blocks:
        for weight in block.weights:
            if weight.path.endswith("kernel"):
                assert np.prod(weight.shape) == D * D
                weight.assign(rng.uniform(-bound, bound, size=weight.shape))


@pytest.fixture(scope="module")
def norms():
    """Gradient norms by kind and depth."""
    return {
        kind: {depth: gradient_norms(depth, first) for depth in DEPTHS}
        for kind, first in NORMALIZE_FIRST.items()
    }


@pytest.mark.backend("torch")
def test_post_norm_gradient_at_the_top_does_not_shrink_with_depth(norms):
    """Theorem 1: O(1) in the depth L."""
    shallow, deep = (norms["post-norm"][depth][-1] for depth in DEPTHS)
    assert 0.85 < deep / shallow < 1.15


@pytest.mark.slow("tensorflow", "jax")
def test_pre_norm_gradient_at_the_top_shrinks_with_the_root_of_the_depth(norms):
    """Theorem 1: O(1 / sqrt(L))."""
    shallow, deep = (norms["pre-norm"][depth][-1] for depth in DEPTHS)
    expected = (DEPTHS[0] / DEPTHS[1]) ** 0.5
    assert 0.8 < deep / shallow / expected < 1.25


def test_only_post_norm_gradients_grow_toward_the_output(norms):
    """Section 3.3, figure 3: gradients of the lower layers."""
    quarter = DEPTHS[-1] // 4
    bottom, top = (
        {kind: by_depth[DEPTHS[-1]][blocks].mean() for kind, by_depth in norms.items()}
        for blocks in (slice(quarter), slice(-quarter, None))
    )
    assert top["post-norm"] / bottom["post-norm"] > 8
    assert 0.4 < top["pre-norm"] / bottom["pre-norm"] < 1.5
