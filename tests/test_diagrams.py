"""Diagrams: the numbers of the model, arrows in order, labels apart."""

import itertools

import numpy as np
import pytest

from keras_tfm import layers, models, plot

pytestmark = pytest.mark.backend("torch")  # shapes alone

SMALL = {"embedding_dim": 16, "intermediate_dim": 48, "num_heads": 2}


def words(figure):
    return [text.get_text() for text in figure.axes[0].texts if text.get_text()]


def assert_labels_are_apart(figure):
    """Asserts that labels are in the figure and do not overlap."""
    boxes = [
        (text.get_text(), text.get_window_extent())
        for text in figure.axes[0].texts
        if text.get_text()
    ]
    for label, box in boxes:
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1, label
        assert figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1, label
    for (first, a), (second, b) in itertools.combinations(boxes, 2):
        assert not a.overlaps(b), (first, second)


def encoder_block(**options):
    block = layers.TransformerEncoder(48, 2, **options)
    block.build((None, 3, 16))
    return block


def multi_head(num_heads, **options):
    layer = layers.MultiHeadAttention(num_heads, **options)
    layer.build((None, 6, 16))
    return layer


SOURCE, TARGET = ["I", "love", "you", "very", "much"], ["Ti", "amo", "molto"]
FIGURES = {
    "post-norm": lambda: plot.architecture(
        models.Transformer(37_000, num_layers=(3, 2), **SMALL)
    ),
    "pre-norm": lambda: plot.architecture(
        models.Transformer(
            900,
            tie=None,
            positions="learned",
            sequence_length=128,
            normalize_first=True,
            normalize_embedding=True,
            num_layers=1,
            **SMALL,
        )
    ),
    "recurrent": lambda: plot.architecture(
        models.Transformer(900, num_layers=1, decoder_recurrence="ssru", **SMALL)
    ),
    "language model": lambda: plot.architecture(
        models.CausalLM(50_000, num_layers=2, gated=True, **SMALL)
    ),
    "encoder": lambda: plot.architecture(models.bert_encoder("bert_tiny")),
    "blocks": lambda: plot.blocks(
        {"post": encoder_block(), "pre": encoder_block(normalize_first=True)}
    ),
    "heads": lambda: plot.multi_head(multi_head(2)),
    "four heads": lambda: plot.multi_head(multi_head(4, key_dim=3, value_dim=5)),
    "training": lambda: plot.training_flow(SOURCE, TARGET),
    "short source": lambda: plot.training_flow(["a"], ["Donaudampfschiff"] * 4),
    "inference": lambda: plot.inference_flow(SOURCE, TARGET),
    "short target": lambda: plot.inference_flow(SOURCE * 2, ["a"]),
    "recurrence": lambda: plot.recurrence(TARGET),
    "gates": lambda: plot.recurrence([*TARGET, "straordinariamente"], gated=True),
    "shapes": lambda: plot.head_shapes(np.arange(24.0).reshape(3, 4, 2) - 50),
    "equation": lambda: plot.equation(
        {"a long name": -np.ones((3, 4)), "x": np.ones((3, 4))}, "=", rows=TARGET
    ),
}


@pytest.mark.parametrize("name", FIGURES)
def test_labels_are_complete_and_do_not_overlap(name):
    figure = FIGURES[name]()
    assert_labels_are_apart(figure)
    assert min(text.get_fontsize() for text in figure.axes[0].texts) >= 8


def test_the_architecture_has_the_sizes_of_the_model():
    model = models.Transformer(
        900, num_layers=(3, 2), target_vocabulary_size=700, tie="target", **SMALL
    )
    labels = words(plot.architecture(model))
    assert "900 × 16, times √16" in labels and "700 × 16, times √16" in labels
    assert labels.count("16 → 48 → 16, ReLU") == 2
    assert labels.count("2 heads of 8") == 3
    assert "3 × encoder" in labels and "2 × decoder" in labels
    assert "16 → 700, tied" in labels and "logits (B, T, 700)" in labels
    assert "causal self-attention" in labels and "cross-attention" in labels


def test_norms_stand_where_the_model_has_them():
    post, pre = (
        words(plot.blocks({"": encoder_block(normalize_first=first, **options)}))
        for first, options in ((False, {}), (True, {"normalization": "rms_norm"}))
    )
    assert post.count("add & layer norm") == 2 and "+" not in post
    assert pre.count("RMS norm") == pre.count("+") == 2
    # From the bottom to the top.
    assert post.index("self-attention") < post.index("add & layer norm")
    assert pre.index("RMS norm") < pre.index("self-attention") < pre.index("+")


def test_a_language_model_has_no_cross_attention_and_an_encoder_no_logits():
    labels = words(plot.architecture(models.CausalLM(50, num_layers=1, **SMALL)))
    assert "2 heads of 8, rotary positions" in labels
    assert "cross-attention" not in labels and "16 → 50, tied" in labels
    labels = words(plot.architecture(models.bert_encoder("bert_tiny")))
    assert "2 × 128" in labels and "512 × 128" in labels  # segments, positions
    assert labels[-1] == "one vector per token"


def test_the_end_of_the_encoder_reaches_cross_attention():
    model = models.Transformer(900, num_layers=1, **SMALL)
    [ax] = plot.architecture(model).axes
    center = next(t for t in ax.texts if t.get_text() == "cross-attention")
    heights = [arrow.xy[1] for arrow in ax.texts if hasattr(arrow, "arrow_patch")]
    # The label is above the middle of its box, to which the arrow points.
    assert min(abs(center.get_position()[1] - y - 0.05) for y in heights) < 0.01


def test_a_label_is_the_next_token_that_the_decoder_reads():
    [ax] = plot.training_flow(SOURCE, TARGET).axes
    points = {}
    for text in ax.texts:
        points.setdefault(text.get_text(), []).append(text.get_position())
    reads = ["(start)", *TARGET]
    for position, token in enumerate(TARGET):
        (read_x, read_y), (label_x, label_y) = points[token]
        assert read_y < label_y  # labels are above what is read
        assert label_x == points[reads[position]][0][0] < read_x
    assert words(ax.figure).count("decoder") == words(ax.figure).count("encoder") == 1


def test_inference_has_a_step_for_each_token_and_encodes_once():
    labels = words(plot.inference_flow(SOURCE, TARGET))
    assert [x for x in labels if x.startswith("step")] == [
        f"step {number}" for number in (1, 2, 3, 4)
    ]
    assert labels.count("encoder") == 1 and labels.count("decoder") == 4
    assert labels.count("(start)") == labels.count("(end)") == 1


def test_heads_are_split_and_transposed_without_a_change_of_numbers():
    vectors = np.arange(12.0).reshape(3, 2, 2)
    [ax] = plot.head_shapes(vectors).axes
    cells = [
        (round(text.get_position()[0], 2), -round(text.get_position()[1], 2), float(x))
        for text in ax.texts
        if (x := text.get_text()).endswith(".0")
    ]
    xs = sorted({x for x, *_ in cells})
    flat, heads = (
        [c for c in cells if c[0] in xs[i]] for i in (slice(4), slice(-2, None))
    )
    # Read in rows: all channels of a position, then all positions of a head.
    in_rows = [
        [v for *_, v in sorted(part, key=lambda c: c[1::-1])] for part in (flat, heads)
    ]
    np.testing.assert_array_equal(in_rows[0], vectors.ravel())
    np.testing.assert_array_equal(in_rows[1], vectors.transpose(1, 0, 2).ravel())
    assert "(B, 2, 3, 2)" in words(ax.figure)


def test_an_equation_has_its_numbers_and_signs():
    labels = words(plot.equation({"a": [[0.123, -4.0]], "b": [[-0.001]]}, "="))
    assert {"0.12", "−4.00", "0.00", "=", "a", "b", "(1, 2)", "(1, 1)"} == set(labels)
    dark = plot.equation({"a": [[1.0, 0.1]]}, "").axes[0].texts
    colors = {text.get_text(): text.get_color() for text in dark}
    assert colors["1.00"] == "white" != colors["0.10"]


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: plot.architecture(multi_head(2)), "got MultiHeadAttention"),
        (lambda: plot.blocks({}), "got {}"),
        (lambda: plot.blocks({"a": layers.TransformerEncoder(4, 2)}), "'a': False"),
        (lambda: plot.multi_head(multi_head(8)), "num_heads=8"),
        (lambda: plot.multi_head(layers.MultiHeadAttention(2)), "built=False"),
        (lambda: plot.training_flow([], ["a"]), "got 0 and 1"),
        (lambda: plot.inference_flow(["a"], []), "got 1 and 0"),
        (lambda: plot.recurrence([]), "got none"),
        (lambda: plot.head_shapes(np.ones((3, 4))), r"got shape \(3, 4\)"),
        (lambda: plot.head_shapes(np.ones((9, 4, 2))), r"up to 24; got shape"),
        (lambda: plot.equation({}, ""), "1 or more; got {}"),
        (lambda: plot.equation({"a": np.ones((25, 1))}, ""), "from 1 to 24"),
        (lambda: plot.equation({"a": np.ones((2, 1))}, "+"), "got 1 signs"),
        (lambda: plot.equation({"a": np.ones((2, 1))}, "", ["x"]), r"rows=\['x'\]"),
    ],
)
def test_what_cannot_be_drawn_raises(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()


def test_numbers_stand_in_the_cells_of_a_map():
    weights = [[0.914, 0.086], [0.25, 0.75]]
    maps = (
        plot.attention_map(weights, ["a", "b"], ["c", "d"], numbers=True),
        plot.positions(weights, numbers=True),
    )
    for figure in maps:
        [ax] = figure.axes
        cells = {text.get_position(): text.get_text() for text in ax.texts}
        assert cells == {(0, 0): "0.91", (1, 0): "0.09", (0, 1): "0.25", (1, 1): "0.75"}
        assert not ax.child_axes  # no color bar
        figure.draw_without_rendering()
        pixels = ax.transData.transform([(0, 0), (1, 0)])
        assert ax.texts[0].get_window_extent().width < np.diff(pixels[:, 0])[0]


def test_rings_turn_clockwise_from_the_top():
    angles = np.arange(4.0)
    signals = np.stack([np.sin(angles), np.cos(angles)], axis=1)
    [ax] = plot.position_rings(signals, pairs=(0,)).axes
    points = np.asarray(ax.collections[0].get_offsets())
    np.testing.assert_allclose(points[0], [0, 1], atol=1e-12)
    (x, y), (next_x, next_y) = points[:-1].T, points[1:].T
    assert (x * next_y - y * next_x < 0).all()


def test_a_reference_line_has_its_name_at_its_height():
    figure = plot.curves({"loss": ([1, 2], [3.0, 1.0])}, "step", "loss")
    [ax] = figure.axes
    plot.reference_line(ax, 0.5, "lower bound")
    assert set(ax.lines[-1].get_ydata()) == {0.5}
    [label] = ax.texts
    assert label.get_text() == "lower bound" and label.xy[1] == 0.5


def test_a_loss_is_drawn_above_zero():
    ax = plot.training_curves({"loss": [3.0, 0.01]}).axes[0]
    assert ax.get_ylim()[0] == 0


def test_words_do_not_overlap_among_embeddings():
    pytest.importorskip("sklearn")
    pytest.importorskip("adjustText")
    vectors = np.random.default_rng(0).normal(size=(24, 8))
    figure = plot.embeddings(vectors, [f"a long word {n}" for n in range(24)])
    labels = [text for text in figure.axes[0].texts if text.get_text()]
    boxes = [label.get_window_extent() for label in labels]
    assert len(boxes) == 24
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
