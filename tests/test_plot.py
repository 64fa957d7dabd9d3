"""Pictures: axes, readable labels, and errors."""

import io

import matplotlib.figure
import numpy as np
import pytest
from matplotlib import pyplot

from keras_tfm import decode, plot

pytestmark = pytest.mark.backend("torch")  # no backend is used

SOURCE = ["\u2581on", "\u2581", "31", "\u2581De", "cember", "</s>"]
TARGET = ["\u2581am", "\u258131.", "\u2581$5$", "</s>"]


def weights(target_length, source_length, heads=()):
    shape = (*heads, target_length, source_length)
    values = np.random.default_rng(1).uniform(size=shape)
    return values / values.sum(axis=-1, keepdims=True)


def labels(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_a_map_has_targets_as_rows_and_sources_as_columns():
    values = weights(4, 6)
    figure = plot.attention_map(values, SOURCE, TARGET, title="5 $ and 6 $")
    [ax] = figure.axes
    [bar] = ax.child_axes  # as tall as the map
    assert labels(ax.xaxis) == ["on", "\u2423", "31", "De", "cember", "</s>"]
    assert labels(ax.yaxis) == ["am", "31.", "$5$", "</s>"]
    [image] = ax.images
    np.testing.assert_allclose(image.get_array(), values, rtol=1e-6)
    assert image.get_clim() == (0.0, np.float32(values.max()))
    assert ax.get_title(loc="left") == "5 $ and 6 $"
    assert not ax._left_title.get_parse_math()  # otherwise "and 6" becomes italic
    assert not any(label.get_parse_math() for label in ax.get_yticklabels())
    assert bar.get_ylabel() == "attention weight"
    # Lines where words begin: "on | ␣ 31 | De cember | </s>".
    upright = [line.get_xdata()[0] for line in ax.lines[:3]]
    assert upright == [0.5, 2.5, 4.5]


def test_heads_are_averaged():
    values = weights(4, 6, heads=(3,))
    figure = plot.attention_map(values, SOURCE, TARGET)
    [image] = figure.axes[0].images
    np.testing.assert_allclose(image.get_array(), values.mean(axis=0), rtol=1e-5)


@pytest.mark.parametrize(("target_length", "source_length"), [(1, 1), (5, 5), (37, 40)])
def test_tokens_are_readable_complete_and_do_not_overlap(
    tmp_path, target_length, source_length
):
    words = ["\u2581Rindfleischverordnung", "\u2581a", "\u2581house"] * 14
    figure = plot.attention_map(
        weights(target_length, source_length),
        words[:source_length],
        words[:target_length],
        title="a title",
    )
    figure.savefig(tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    ax = figure.axes[0]
    for ticks in (ax.get_xticklabels(), ax.get_yticklabels()):
        boxes = [label.get_window_extent() for label in ticks]
        for box in boxes:
            assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1
            assert figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1
        assert not any(a.overlaps(b) for a, b in zip(boxes, boxes[1:], strict=False))
        assert all(label.get_fontsize() >= 6.5 for label in ticks)


def test_a_map_can_be_part_of_a_figure():
    figure = matplotlib.figure.Figure()
    left, right = figure.subplots(1, 2)
    assert plot.attention_map(weights(4, 6), SOURCE, TARGET, ax=right) is figure
    assert not left.images
    assert len(right.images) == 1


@pytest.mark.parametrize(
    ("values", "target", "message"),
    [
        (weights(6, 4), TARGET, r"shape \(6, 4\), 4 target tokens and 6 source.*swap"),
        (weights(4, 6, heads=(1, 2)), TARGET, r"one sentence.*shape \(1, 2, 4, 6\)"),
        (np.zeros((0, 6)), [], r"shape \(0, 6\)"),
        (np.full((4, 6), np.nan), TARGET, "must be finite"),
    ],
)
def test_weights_that_do_not_fit_the_tokens_raise(values, target, message):
    with pytest.raises(ValueError, match=message):
        plot.attention_map(values, SOURCE, target)


HISTORY = {
    "loss": [3.0, 2.0, 1.5],
    "val_loss": [3.1, 2.2, 2.3],
    "val_bleu": [5.0, 30.0, 25.0],
    "val_chrf": [20.0, float("nan"), 50.0],
    "learning_rate": [0.1, 0.1, 0.1],
}


def test_losses_are_above_scores_from_epoch_1(tmp_path):
    figure = plot.training_curves(HISTORY)
    figure.savefig(tmp_path / "curves.png")
    losses, scores = figure.axes
    lines = {
        line.get_label(): (list(line.get_xdata()), list(line.get_ydata()))
        for ax in (losses, scores)
        for line in ax.lines
    }
    assert lines == {
        "training": ([1, 2, 3], [3.0, 2.0, 1.5]),
        "validation": ([1, 2, 3], [3.1, 2.2, 2.3]),
        "BLEU": ([1, 2, 3], [5.0, 30.0, 25.0]),
        "chrF": ([1, 3], [20.0, 50.0]),  # none was computed in epoch 2
    }
    assert (len(losses.lines), len(scores.lines)) == (2, 2)
    assert losses.get_position().y0 > scores.get_position().y1
    assert losses.get_xlabel() == scores.get_xlabel() == "epoch"
    assert [(text.get_text(), text.xy) for text in scores.texts] == [
        ("30.0", (2, 30.0)),
        ("50.0", (3, 50.0)),
    ]


def test_scores_of_every_second_epoch_are_at_their_epochs():
    # As the `Bleu` callback logs them: none in the first epoch, then repeats.
    scores = [5.0, 5.0, 30.0, 30.0, 30.0]
    figure = plot.training_curves({"loss": [3.0] * 6, "val_bleu": scores})
    losses, [line] = figure.axes[0].lines[0], figure.axes[1].lines
    assert list(losses.get_xdata()) == [1, 2, 3, 4, 5, 6]
    assert list(line.get_xdata()) == [2, 4, 6]
    assert list(line.get_ydata()) == [5.0, 30.0, 30.0]
    assert [text.xy for text in figure.axes[1].texts] == [(4, 30.0)]


def test_every_score_has_its_own_color():
    figure = plot.training_curves({**HISTORY, "val_accuracy": [0.1, 0.2, 0.3]})
    lines = [line for ax in figure.axes for line in ax.lines]
    assert [line.get_label() for line in lines[2:]] == ["BLEU", "chrF", "accuracy, %"]
    assert len({line.get_color() for line in lines}) == 5


def test_rates_are_drawn_in_percent():
    for name in ("accuracy", "label accuracy"):
        scores = {f"val_{name.replace(' ', '_')}": [0.25, 0.5]}
        [line] = plot.training_curves({"loss": [2.0, 1.0], **scores}).axes[1].lines
        assert line.get_label() == f"{name}, %"
        assert list(line.get_ydata()) == [25.0, 50.0]


@pytest.mark.parametrize("size", [60, 80, 2_000])
def test_a_picture_of_many_classes_has_bounded_sides(size):
    classes = [f"class {number}" for number in range(size)]
    figure = plot.confusion_matrix(np.eye(size, dtype="int64"), classes)
    assert max(figure.get_size_inches()) <= 24
    names = classes if size <= 60 else []
    # Labels and the color bar must not stretch the saved picture either.
    ax = figure.axes[0]
    for axis in (ax.xaxis, ax.yaxis):
        assert labels(axis) == names
    assert not ax.texts
    if size == 80:  # without names all large pictures are the same
        file = io.BytesIO()
        figure.savefig(file, dpi=20)
        file.seek(0)
        height, width, _ = pyplot.imread(file).shape
        assert max(height, width) <= 24 * 20


def test_without_scores_there_is_one_panel():
    losses_figure = plot.training_curves({"loss": [3.0]})
    [ax] = losses_figure.axes
    low, high = ax.get_xlim()
    assert [tick for tick in ax.get_xticks() if low <= tick <= high] == [1]
    no_scores = {"loss": [3.0, 2.0], "val_bleu": [float("nan")] * 2}
    assert not plot.training_curves(no_scores).axes[1].texts
    figure = matplotlib.figure.Figure()
    assert plot.training_curves({"loss": [3.0]}, ax=figure.subplots()) is figure
    with pytest.raises(ValueError, match="a pair, for losses and .'BLEU', 'chrF'"):
        plot.training_curves(HISTORY, ax=matplotlib.figure.Figure().subplots())


def test_a_history_without_losses_raises():
    with pytest.raises(ValueError, match=r"1 epochs of \['val_bleu'\]"):
        plot.training_curves({"val_bleu": [1.0]})
    with pytest.raises(ValueError, match="one or more epochs; got 0 epochs"):
        plot.training_curves({"loss": []})


def test_pictures_do_not_change_the_state_of_matplotlib():
    state = dict(matplotlib.rcParams)
    plot.attention_map(weights(4, 6), SOURCE, TARGET)
    plot.training_curves(HISTORY)
    assert pyplot.get_fignums() == []
    assert dict(matplotlib.rcParams) == state


def render(figure):
    """Renders a figure, which raises an error for a faulty artist."""
    assert isinstance(figure, matplotlib.figure.Figure)
    figure.savefig(io.BytesIO(), dpi=40)


def test_every_head_has_a_map_with_the_same_scale(tmp_path):
    values = weights(4, 6, heads=(5,))
    figure = plot.attention_heads(values, SOURCE, TARGET, title="a layer")
    maps = [ax for ax in figure.axes if ax.images]
    assert [ax.get_xlabel() for ax in maps[:5]] == [f"head {n}" for n in range(1, 6)]
    for ax, head in zip(maps, values, strict=False):
        np.testing.assert_allclose(ax.images[0].get_array(), head, rtol=1e-6)
        assert ax.images[0].get_clim() == (0.0, pytest.approx(values.max()))
    assert labels(maps[0].yaxis) == ["am", "31.", "$5$", "</s>"]
    render(figure)
    # Five in rows of two: words are above the first row and left of each row.
    above = [ax.xaxis.get_tick_params()["labeltop"] for ax in maps[:5]]
    assert above == [True, True, False, False, False]
    beside = [ax.yaxis.get_tick_params()["labelleft"] for ax in maps[:5]]
    assert beside == [True, False, True, False, True]


def test_maps_can_be_compared():
    values = weights(4, 6) / 3
    figure = plot.attention_map(values, SOURCE, TARGET, vmax=1.0, label="rate")
    [ax] = figure.axes
    assert ax.images[0].get_clim() == (0.0, 1.0)
    assert ax.child_axes[0].get_ylabel() == "rate"


def test_heads_that_do_not_fit_the_tokens_raise():
    with pytest.raises(ValueError, match="6 target tokens"):
        plot.attention_heads(weights(4, 6, heads=(2,)), TARGET, SOURCE)


def test_lines_connect_targets_with_sources(tmp_path):
    values = np.zeros((4, 6))
    values[1, 2], values[3, 5], values[0, 0] = 0.9, 0.3, 0.04
    figure = plot.attention_lines(values, SOURCE, TARGET, title="lines")
    [ax] = figure.axes
    ends = {tuple(line.get_ydata()) for line in ax.lines}
    assert ends == {(2, 1), (5, 3)}  # the weakest weight has no line
    widths = [line.get_linewidth() for line in ax.lines]
    assert widths[0] > widths[1]
    words = [text.get_text() for text in ax.texts]
    assert words == [
        *["on", "\u2423", "31", "De", "cember", "</s>"],
        "am",
        "31.",
        "$5$",
        "</s>",
    ]
    render(figure)
    figure = plot.attention_lines(weights(4, 6, heads=(3,)), SOURCE, TARGET)
    names = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert names == ["head 1", "head 2", "head 3"]


def test_a_mask_shows_what_may_be_attended_to(tmp_path):
    allowed = np.tril(np.ones((3, 4), "bool"))
    figure = plot.mask(
        allowed, columns=["\u2581a", "b", "\u2581long", "."], title="mask"
    )
    [ax] = figure.axes
    np.testing.assert_array_equal(ax.images[0].get_array(), allowed)
    assert labels(ax.xaxis) == ["a", "b", "long", "."]
    assert labels(ax.yaxis) == ["0", "1", "2"]
    render(figure)
    with pytest.raises(ValueError, match=r"must be \(T, S\).*got shape \(4,\)"):
        plot.mask(allowed[0])
    with pytest.raises(ValueError, match="2 source tokens"):
        plot.mask(allowed, columns=["a", "b"])


def signals(length, width):
    angles = np.arange(length)[:, None] / 10_000 ** (np.arange(0, width, 2) / width)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(length, width)


def test_positions_are_drawn_without_scaling(tmp_path):
    values = signals(20, 16)
    figure = plot.positions(values, title="d = 16")
    [ax] = figure.axes
    np.testing.assert_allclose(ax.images[0].get_array(), values)
    assert ax.images[0].get_clim() == (-1.0, 1.0)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("channel", "position")
    render(figure)
    [ax] = plot.positions(values, vmax=3.0, label="value").axes
    assert ax.images[0].get_clim() == (-3.0, 3.0)
    assert ax.child_axes[0].get_ylabel() == "value"
    figure = plot.position_products(values[None])  # a batch of one
    whole, line = figure.axes[:2]
    np.testing.assert_allclose(whole.images[0].get_array(), values @ values.T)
    np.testing.assert_allclose(line.lines[0].get_ydata(), values @ values[10])
    render(figure)
    with pytest.raises(ValueError, match=r"`signals` must be \(T, D\)"):
        plot.positions(values[0])


@pytest.mark.parametrize("style", ["interleaved", "halves"])
def test_pairs_of_channels_rotate_on_circles(style, tmp_path):
    values = signals(9, 8)
    if style == "halves":
        values = np.concatenate([values[:, 0::2], values[:, 1::2]], axis=1)
    figure = plot.position_rings(values, pairs=(0, 3), style=style)
    assert [ax.get_title("left") for ax in figure.axes] == ["pair 0", "pair 3"]
    for ax, rate in zip(figure.axes, (1.0, 1e-3), strict=True):
        points = ax.collections[0].get_offsets()
        angles = np.arange(9) * rate
        np.testing.assert_allclose(
            points, np.stack([np.sin(angles), np.cos(angles)], 1)
        )
    render(figure)
    with pytest.raises(ValueError, match="from 0 to 3"):
        plot.position_rings(values, pairs=(4,))
    with pytest.raises(ValueError, match="got 'thirds'"):
        plot.position_rings(values, style="thirds")


@pytest.mark.parametrize("ending", ["gif", "html"])
def test_an_animation_has_a_frame_for_each_position(ending, tmp_path):
    file = tmp_path / f"rings.{ending}"
    plot.animate_rings(signals(5, 8), file, pairs=(0, 1))
    content = file.read_bytes()
    if ending == "gif":
        from PIL import Image

        with Image.open(file) as image:
            assert image.n_frames == 5
    else:
        assert content.count(b"data:image/png;base64") == 5
    with pytest.raises(ValueError, match="must end in .gif or .html"):
        plot.animate_rings(signals(5, 8), tmp_path / "rings.mp4")


def test_learning_rates_and_norms_are_curves(tmp_path):
    figure = plot.learning_rates({"a": lambda step: step * 2.0, "b": abs}, 10)
    [ax] = figure.axes
    np.testing.assert_allclose(ax.lines[0].get_ydata(), 2.0 * np.arange(11))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a", "b"]
    render(figure)
    figure = plot.gradient_norms({"post": [0.1, 1.0, 10.0], "pre": [1.0, 1.0]})
    [ax] = figure.axes
    assert ax.get_yscale() == "log"
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), [1, 2, 3])
    render(figure)
    curves = {f"curve {n}": ([1, 2], [n, n]) for n in range(12)}
    figure = plot.curves(curves, "length, tokens", "time, ms")
    [ax] = figure.axes
    assert [line.get_label() for line in ax.lines] == list(curves)
    assert len({line.get_color() for line in ax.lines}) == 12
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("length, tokens", "time, ms")
    render(figure)
    for points in ({}, {"a": ([1, 2], [1])}, {"a": ([], [])}):
        with pytest.raises(ValueError, match="as many x as y"):
            plot.curves(points, "x", "y")
    with pytest.raises(ValueError, match="0 schedules, steps=10"):
        plot.learning_rates({}, 10)
    with pytest.raises(ValueError, match="above 0"):
        plot.gradient_norms({"a": [1.0, 0.0]})


def test_similar_words_are_near_each_other(tmp_path):
    pytest.importorskip("sklearn")
    pytest.importorskip("adjustText")
    rng = np.random.default_rng(0)
    vectors = np.repeat(np.eye(2, 8) * 20, 6, axis=0) + rng.normal(size=(12, 8))
    words = [f"w{n}" for n in range(12)]
    groups = ["a"] * 6 + ["b"] * 6
    figure = plot.embeddings(vectors, words, groups, title="words")
    [ax] = figure.axes
    assert [text.get_text() for text in ax.texts] == words
    first, second = (np.asarray(points.get_offsets()) for points in ax.collections)
    distance = np.linalg.norm(first.mean(0) - second.mean(0))
    assert distance > np.linalg.norm(first - first.mean(0), axis=1).mean()
    repeated = plot.embeddings(vectors, words, groups).axes[0].collections[0]
    np.testing.assert_array_equal(repeated.get_offsets(), first)
    render(figure)
    with pytest.raises(ValueError, match="must be 4 or more"):
        plot.embeddings(vectors[:3], words[:3])


def test_a_tree_has_each_hypothesis_and_its_predecessor(tmp_path):
    steps = [
        decode.BeamTrace([([5], -0.5), ([6], -1.0)], []),
        decode.BeamTrace([([6, 7], -1.25), ([5, 8], -2.0)], [([5, 3], -0.4)]),
        decode.BeamTrace([([6, 7, 9], -3.5)], [([6, 7, 3], -0.75)]),
    ]
    figure = plot.beam_tree(steps, lambda i: f"t{i}", title="a beam")
    [ax] = figure.axes
    labels = [text.get_text() for text in ax.texts]
    tokens = ["t5", "t6", "t3", "t7", "t8", "t3", "t9"]
    assert labels[0] == "start" and labels[1::2] == tokens
    scores = ["0.50", "1.00", "0.40", "1.25", "2.00", "0.75", "3.50"]
    assert labels[2::2] == [f"\u2212{score}" for score in scores]
    bold = [t.get_text() for t in ax.texts if t.get_fontweight() == "bold"]
    assert bold == ["t5", "t3"]  # the path to the best finished hypothesis
    assert len(ax.lines) == 7
    # t7 continues t6, which is below t5.
    t6, t7 = ax.texts[3], ax.texts[7]
    assert ax.lines[3].get_ydata()[0] == pytest.approx(t6.get_position()[1] + 0.11)
    assert ax.lines[3].get_ydata()[1] == pytest.approx(t7.get_position()[1] + 0.11)
    render(figure)
    with pytest.raises(ValueError, match="at least one step"):
        plot.beam_tree([], str)


def test_a_path_connects_the_largest_weights(tmp_path):
    values = weights(4, 6)
    figure = plot.attention_path(values, SOURCE, TARGET)
    path = figure.axes[0].lines[-1]
    np.testing.assert_array_equal(path.get_xdata(), values.argmax(axis=1))
    render(figure)


def entry(row, changes, perplexity, bleu, paper):
    return {
        "row": row,
        "changes": changes,
        "validation_perplexity": perplexity,
        "bleu": bleu,
        "bleu_half_width_95": 1.5,
        "paper": dict(zip(("perplexity", "bleu"), paper, strict=True)),
    }


BASE_ROW = entry("base", {"num_heads": 8}, 10.0, 30.0, (4.0, 25.0))


def test_rows_of_an_ablation_are_differences_from_base():
    heads = entry("A1", {"num_heads": 1, "key_dim": 128}, 11.0, 28.5, (5.0, 24.0))
    layers = entry("C2", {"num_layers": (3, 3)}, 9.0, 31.0, (4.4, 25.5))
    figure = plot.ablation([heads, BASE_ROW, layers])
    perplexity, bleu = figure.axes
    assert labels(perplexity.yaxis) == ["num heads 1   A1", "num layers 3 + 3   C2"]
    runs, paper = (marks.get_offsets() for marks in perplexity.collections)
    np.testing.assert_allclose(runs, [(10, 0), (-10, 1)], atol=1e-9)
    np.testing.assert_allclose(paper, [(25, 0), (10, 1)], atol=1e-9)
    intervals, runs, paper = bleu.collections
    np.testing.assert_allclose(runs.get_offsets(), [(-1.5, 0), (1, 1)])
    np.testing.assert_allclose(paper.get_offsets(), [(-1, 0), (0.5, 1)])
    assert [list(line[:, 0]) for line in intervals.get_segments()] == [
        [-3.0, 0.0],
        [-0.5, 2.5],
    ]
    assert perplexity.yaxis_inverted()  # the first row is above
    assert [text.get_text() for text in bleu.get_legend().texts] == [
        "this run",
        "paper",
    ]


@pytest.mark.parametrize("table", [[], [BASE_ROW], [{**BASE_ROW, "row": "A1"}]])
def test_an_ablation_needs_base_and_another_row(table):
    with pytest.raises(ValueError, match="`table` must have the row 'base' and others"):
        plot.ablation(table)
