"""Worked examples of the lecture notes, computed by the layers.

`docs/lectures.md` lists the statements that they belong to.
"""

import keras
import numpy as np
from keras import ops

from keras_tfm.layers import (
    SSRU,
    Attention,
    AttentionPooling,
    AttentionScore,
    MultiHeadAttention,
    SinusoidalPositions,
    TokenAndPositionEmbedding,
    TransformerEncoder,
)
from keras_tfm.layers.normalization import normalization_layer
from tests.layers.formulas import draw, numpy, softmax

CAT = np.array([[105, 6587, 5475, 3578, 65, 6587]], "int32")  # YOUR CAT ... CAT


def embedding(vocabulary_size, dim, **settings):
    return TokenAndPositionEmbedding(vocabulary_size, embedding_dim=dim, **settings)


def signal(length, dim):
    return numpy(SinusoidalPositions().signal(length, 0, dim))


def test_ids_select_rows_of_the_embedding_matrix():
    words = ["an", "this", "is", "it", "example"]
    ids = np.array([[words.index(word) for word in ("it", "is", "an", "example")]])
    assert ids.tolist() == [[3, 2, 0, 4]]
    layer = embedding(5, 4, positions=None, scale=False)
    actual, matrix = numpy(layer(ids)), numpy(layer.embeddings)
    np.testing.assert_allclose(actual[0], matrix[[3, 2, 0, 4]], atol=1e-6)
    np.testing.assert_allclose(actual[0], np.eye(5)[ids[0]] @ matrix, atol=1e-6)


def test_a_small_matrix_with_the_scale_is_a_standard_normal_one_without():
    ids, dim = np.arange(400)[None], 64
    normal = keras.initializers.RandomNormal(stddev=1.0, seed=0)
    standard = embedding(
        400, dim, positions=None, scale=False, embeddings_initializer=normal
    )
    for layer, spread in (
        (standard, 1.0),
        (embedding(400, dim, positions=None), 1 / 8),
    ):
        assert abs(numpy(layer(ids)).std() - 1) < 0.02
        assert abs(numpy(layer.embeddings).std() / spread - 1) < 0.02
        # The logits of the notes' matrix are sqrt(D) times as large.
        logits = numpy(layer.as_logits(ops.convert_to_tensor(draw(50, dim))))
        assert abs(logits.std() / (dim**0.5 * spread) - 1) < 0.1


def test_a_repeated_word_has_one_vector_and_two_positions():
    plain = embedding(7000, 512, positions=None)
    x = numpy(plain(CAT))[0]  # (6, 512)
    np.testing.assert_array_equal(x[1], x[5])
    positioned = x + signal(6, 512)
    assert abs(positioned[1] - positioned[5]).max() > 0.5
    layer = Attention()
    _, weights = layer(ops.convert_to_tensor(x[None]), return_attention_scores=True)
    np.testing.assert_allclose(
        numpy(weights)[0], softmax(x @ x.T / np.sqrt(512)), atol=1e-5
    )
    assert layer.weights == [] and weights.shape == (1, 6, 6)


def test_the_signal_depends_on_the_position_alone():
    """It is the same for all sentences and calls, so it can be reused."""
    layer, (short, long) = SinusoidalPositions(), (draw(2, 6, 8), draw(3, 9, 8, seed=2))
    expected = signal(9, 8)
    for x in (short, long, short):
        added = numpy(layer(x)) - x
        for row in added:
            np.testing.assert_allclose(row, expected[: x.shape[1]], atol=1e-6)
    assert layer.weights == []


def test_one_rotation_leads_from_name_to_name_and_on():
    sentence = "Anthony Hopkins admired Michael Bay as a great director ."
    words = sentence.split()
    positions = [words.index(word) for word in ("Hopkins", "Bay", "great")]
    assert np.diff(positions).tolist() == [3, 3]
    dim, rotation = 256, np.zeros((256, 256))
    for k in range(dim // 2):
        angle = 3 * 10_000.0 ** (-2 * k / dim)
        pair = slice(2 * k, 2 * k + 2)
        cos, sin = np.cos(angle), np.sin(angle)
        rotation[pair, pair] = [[cos, sin], [-sin, cos]]
    first, second, third = signal(len(words), dim)[positions]
    np.testing.assert_allclose(rotation @ first, second, atol=1e-5)
    np.testing.assert_allclose(rotation @ second, third, atol=1e-5)
    assert abs(rotation).max() <= 1


def test_the_product_of_a_pair_is_the_cosine_of_the_distance():
    """With a sine as its last factor, as printed, it would depend on t."""
    omega, distance, t = 0.3, 1.7, np.array([0.0, 2.0, 5.0])
    products = [
        np.sin(omega * t) ** 2 * np.cos(omega * distance)
        + np.cos(omega * t) ** 2 * last(omega * distance)
        for last in (np.cos, np.sin)
    ]
    np.testing.assert_allclose(products[0], np.cos(omega * distance))
    assert np.ptp(products[1]) > 0.1
    rows = signal(12, 2)  # one pair, with omega 1
    np.testing.assert_allclose(rows[4] @ rows[9], np.cos(5.0), atol=1e-5)


def test_dot_products_of_one_and_of_several_queries():
    keys = np.array([[1.0, 1.0], [1.0, 0.0]], "float32")
    queries = np.array([[2, 3], [2, 1], [-5, 10], [13, -5]], "float32")
    expected = [[5, 2], [3, 2], [5, -5], [8, 13]]
    for num_queries, num_keys in ((1, 1), (1, 2), (4, 2)):
        score = AttentionScore("dot")(
            ops.convert_to_tensor(queries[None, :num_queries, None]),
            ops.convert_to_tensor(keys[None, :num_keys].transpose(0, 2, 1)[:, None]),
        )
        products = np.array(expected)[:num_queries, :num_keys]
        np.testing.assert_array_equal(numpy(score).reshape(products.shape), products)


def test_a_sequence_becomes_one_vector_or_a_vector_for_each_token():
    x = draw(2, 5, 8)
    assert numpy(AttentionPooling()(x)).shape == (2, 8)
    assert numpy(TransformerEncoder(16, 2)(x)).shape == (2, 5, 8)


def test_the_last_state_has_read_the_whole_sentence():
    x = draw(2, 5, 8)
    cell = SSRU()
    states = numpy(cell(x))
    for t in range(1, 6):  # each state is the last one of a shorter sentence
        np.testing.assert_allclose(
            numpy(cell(x[:, :t]))[:, -1], states[:, t - 1], atol=1e-6
        )
    changed = x.copy()
    changed[:, 0] += 3.0
    assert abs(numpy(cell(changed))[:, -1] - states[:, -1]).max() > 1e-3


def heads_looking_for(*words):
    """Makes heads whose only large score is at channels of `words`."""
    layer = MultiHeadAttention(len(words), key_dim=1)
    layer.build((1, 4, 4))
    values = {weight.path: np.zeros(weight.shape) for weight in layer.weights}
    for path in values:
        if path.endswith("query/bias"):
            values[path] += 30.0
        if path.endswith("key/kernel"):
            for head, channels in enumerate(words):
                values[path][channels, head] = 1.0
    layer.set_weights(list(values.values()))
    _, weights = layer(np.eye(4, dtype="float32")[None], return_attention_scores=True)
    return numpy(weights)[0, :, 0]  # (H, S), the same for all queries


def test_words_compete_in_one_softmax_and_not_in_two_heads():
    """Weights sum to 1: a head that needs two words has half for each."""
    np.testing.assert_allclose(heads_looking_for([1, 2]), [[0, 0.5, 0.5, 0]], atol=1e-6)
    two = heads_looking_for([1], [2])
    np.testing.assert_allclose(two, [[0, 1, 0, 0], [0, 0, 1, 0]], atol=1e-6)


def test_an_image_has_positions_of_rows_and_of_columns():
    """Half of the channels is for each of both, as in DETR."""
    rows, columns, dim = 4, 5, 16
    half = signal(5, dim // 2)
    grid = np.concatenate(
        [
            np.broadcast_to(half[:rows, None], (rows, columns, dim // 2)),
            np.broadcast_to(half[None, :columns], (rows, columns, dim // 2)),
        ],
        axis=-1,
    ).reshape(rows * columns, dim)
    products = (grid @ grid.T).reshape(rows, columns, rows, columns)
    np.testing.assert_allclose(products[0, 1, 2, 4], products[1, 0, 3, 3], atol=1e-5)
    block, patches = TransformerEncoder(16, 2), draw(1, rows * columns, dim)
    order = np.random.default_rng(0).permutation(rows * columns)
    plain, positioned = (numpy(block(patches + p)) for p in (0 * grid, grid))
    moved, moved_positioned = (
        numpy(block(patches[:, order] + p)) for p in (0 * grid, grid)
    )
    np.testing.assert_allclose(moved, plain[:, order], atol=1e-5)
    assert abs(moved_positioned - positioned[:, order]).max() > 0.1
    objects = AttentionPooling(num_queries=3)(positioned)  # learned queries
    assert numpy(objects).shape == (1, 3, dim)


def test_batch_norm_serves_patches_of_a_fixed_number():
    """A ViT always has as many patches; a text has padding."""
    patches = draw(4, 6, 8)
    norm = normalization_layer("batch_norm", epsilon=1e-5)
    expected = (patches - patches.mean((0, 1))) / np.sqrt(patches.var((0, 1)) + 1e-5)
    np.testing.assert_allclose(numpy(norm(patches, training=True)), expected, atol=1e-4)
