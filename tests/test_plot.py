"""Pictures: what is on the axes, that words are whole, and what is refused."""

import matplotlib.figure
import numpy as np
import pytest
from matplotlib import pyplot

from keras_tfm import plot

pytestmark = pytest.mark.backend("torch")  # of no backend: once is enough

SOURCE = ["\u2581on", "\u2581", "31", "\u2581De", "cember", "</s>"]
TARGET = ["\u2581am", "\u258131.", "\u2581$5$", "</s>"]


def weights(target_length, source_length, heads=()):
    drawn = np.random.default_rng(1).uniform(
        size=(*heads, target_length, source_length)
    )
    return drawn / drawn.sum(axis=-1, keepdims=True)


def labels(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_a_map_has_target_words_down_and_source_words_across():
    given = weights(4, 6)
    figure = plot.attention_map(given, SOURCE, TARGET, title="5 $ and 6 $")
    [ax] = figure.axes
    [bar] = ax.child_axes  # as high as the map
    assert labels(ax.xaxis) == ["on", "\u2423", "31", "De", "cember", "</s>"]
    assert labels(ax.yaxis) == ["am", "31.", "$5$", "</s>"]
    [image] = ax.images
    np.testing.assert_allclose(image.get_array(), given, rtol=1e-6)
    assert image.get_clim() == (0.0, np.float32(given.max()))
    assert ax.get_title() == "5 $ and 6 $"
    assert not ax.title.get_parse_math()  # else "and 6" becomes italic
    assert not any(label.get_parse_math() for label in ax.get_yticklabels())
    assert bar.get_ylabel() == "attention weight"
    # Lines where words begin: "on | ␣ 31 | De cember | </s>".
    upright = [line.get_xdata()[0] for line in ax.lines[:3]]
    assert upright == [0.5, 2.5, 4.5]


def test_heads_are_averaged():
    given = weights(4, 6, heads=(3,))
    figure = plot.attention_map(given, SOURCE, TARGET)
    [image] = figure.axes[0].images
    np.testing.assert_allclose(image.get_array(), given.mean(axis=0), rtol=1e-5)


@pytest.mark.parametrize(("target_length", "source_length"), [(1, 1), (5, 5), (37, 40)])
def test_words_are_readable_whole_and_apart(tmp_path, target_length, source_length):
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


def test_a_map_can_share_a_figure():
    figure = matplotlib.figure.Figure()
    left, right = figure.subplots(1, 2)
    assert plot.attention_map(weights(4, 6), SOURCE, TARGET, ax=right) is figure
    assert not left.images
    assert len(right.images) == 1


def test_weights_that_do_not_fit_the_words_are_refused():
    with pytest.raises(ValueError, match=r"\(6, 4\), 4 target pieces, 6 source.*swap"):
        plot.attention_map(weights(6, 4), SOURCE, TARGET)
    with pytest.raises(ValueError, match=r"one sentence.*shape=\(1, 2, 4, 6\)"):
        plot.attention_map(weights(4, 6, heads=(1, 2)), SOURCE, TARGET)
    with pytest.raises(ValueError, match=r"shape=\(0, 6\)"):
        plot.attention_map(np.zeros((0, 6)), SOURCE, [])
    with pytest.raises(ValueError, match="must be finite"):
        plot.attention_map(np.full((4, 6), np.nan), SOURCE, TARGET)


HISTORY = {
    "loss": [3.0, 2.0, 1.5],
    "val_loss": [3.1, 2.2, 2.3],
    "val_bleu": [5.0, 30.0, 25.0],
    "val_chrf": [20.0, float("nan"), 50.0],
    "learning_rate": [0.1, 0.1, 0.1],
}


def test_curves_show_losses_left_and_scores_right_from_epoch_1(tmp_path):
    figure = plot.training_curves(HISTORY)
    figure.savefig(tmp_path / "curves.png")
    left, right = figure.axes
    drawn = {
        line.get_label(): (list(line.get_xdata()), list(line.get_ydata()))
        for ax in (left, right)
        for line in ax.lines
    }
    assert drawn == {
        "training": ([1, 2, 3], [3.0, 2.0, 1.5]),
        "validation": ([1, 2, 3], [3.1, 2.2, 2.3]),
        "BLEU": ([1, 2, 3], [5.0, 30.0, 25.0]),
        "chrF": ([1, 3], [20.0, 50.0]),  # none was computed in epoch 2
    }
    assert (len(left.lines), len(right.lines)) == (2, 2)
    assert left.get_xlabel() == right.get_xlabel() == "epoch"
    assert [(text.get_text(), text.xy) for text in right.texts] == [
        ("30.0", (2, 30.0)),
        ("50.0", (3, 50.0)),
    ]


def test_scores_taken_every_second_epoch_stand_at_their_epochs():
    # As the `Bleu` callback logs them: none in the first epoch, then repeats.
    scores = [5.0, 5.0, 30.0, 30.0, 30.0]
    figure = plot.training_curves({"loss": [3.0] * 6, "val_bleu": scores})
    losses, [line] = figure.axes[0].lines[0], figure.axes[1].lines
    assert list(losses.get_xdata()) == [1, 2, 3, 4, 5, 6]
    assert list(line.get_xdata()) == [2, 4, 6]
    assert list(line.get_ydata()) == [5.0, 30.0, 30.0]
    assert [text.xy for text in figure.axes[1].texts] == [(4, 30.0)]


def test_every_score_is_drawn_in_a_colour_of_its_own():
    figure = plot.training_curves({**HISTORY, "val_accuracy": [0.1, 0.2, 0.3]})
    lines = [line for ax in figure.axes for line in ax.lines]
    assert [line.get_label() for line in lines[2:]] == ["BLEU", "chrF", "accuracy, %"]
    assert len({line.get_color() for line in lines}) == 5


def test_shares_are_drawn_in_hundredths():
    for name in ("accuracy", "label accuracy"):
        scores = {f"val_{name.replace(' ', '_')}": [0.25, 0.5]}
        [line] = plot.training_curves({"loss": [2.0, 1.0], **scores}).axes[1].lines
        assert line.get_label() == f"{name}, %"
        assert list(line.get_ydata()) == [25.0, 50.0]


@pytest.mark.parametrize("size", [60, 80, 2_000])
def test_a_picture_of_many_classes_has_bounded_sides(size, tmp_path):
    counts = np.eye(size, dtype="int64")
    classes = [f"class {number}" for number in range(size)]
    figure = plot.confusion_matrix(counts, classes)
    assert max(figure.get_size_inches()) <= 24
    ax = figure.axes[0]
    named = classes if size <= 60 else []
    for axis in (ax.xaxis, ax.yaxis):
        assert [label.get_text() for label in axis.get_ticklabels()] == named
    assert not ax.texts
    figure.savefig(tmp_path / "confusion.png", dpi=150)
    height, width, _ = pyplot.imread(tmp_path / "confusion.png").shape
    assert max(height, width) <= 24 * 150


def test_without_scores_there_is_one_panel():
    figure = plot.training_curves({"loss": [3.0]})
    [ax] = figure.axes
    low, high = ax.get_xlim()
    assert [tick for tick in ax.get_xticks() if low <= tick <= high] == [1]
    nothing = {"loss": [3.0, 2.0], "val_bleu": [float("nan")] * 2}
    assert not plot.training_curves(nothing).axes[1].texts
    shared = matplotlib.figure.Figure()
    assert plot.training_curves({"loss": [3.0]}, ax=shared.subplots()) is shared
    with pytest.raises(ValueError, match="an axis each.*'BLEU', 'chrF'"):
        plot.training_curves(HISTORY, ax=matplotlib.figure.Figure().subplots())


def test_a_history_that_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match=r"a 'loss' or a 'val_loss'.*\['val_bleu'\]"):
        plot.training_curves({"val_bleu": [1.0]})
    with pytest.raises(ValueError, match="at least one epoch.*after `fit`"):
        plot.training_curves({"loss": []})


def test_pictures_leave_the_state_of_matplotlib_alone():
    before = dict(matplotlib.rcParams)
    plot.attention_map(weights(4, 6), SOURCE, TARGET)
    plot.training_curves(HISTORY)
    assert pyplot.get_fignums() == []
    assert dict(matplotlib.rcParams) == before


def drawn(figure, tmp_path):
    """Draws a figure, and gives its size in bytes."""
    assert isinstance(figure, matplotlib.figure.Figure)
    file = tmp_path / "picture.png"
    figure.savefig(file)
    return file.stat().st_size


def test_every_head_has_a_map_to_one_scale(tmp_path):
    given = weights(4, 6, heads=(5,))
    figure = plot.attention_heads(given, SOURCE, TARGET, title="a layer")
    maps = [ax for ax in figure.axes if ax.images]
    assert [ax.get_title() for ax in maps[:5]] == [f"head {n}" for n in range(1, 6)]
    for ax, head in zip(maps, given, strict=False):
        np.testing.assert_allclose(ax.images[0].get_array(), head, rtol=1e-6)
        assert ax.images[0].get_clim() == (0.0, pytest.approx(given.max()))
    assert labels(maps[0].yaxis) == ["am", "31.", "$5$", "</s>"]
    assert drawn(figure, tmp_path)
    # Five in rows of four: the lowest map of each column has the words.
    named = [ax.xaxis.get_tick_params()["labelbottom"] for ax in maps[:5]]
    assert named == [False, True, True, True, True]


def test_maps_can_be_compared():
    given = weights(4, 6) / 3
    figure = plot.attention_map(given, SOURCE, TARGET, vmax=1.0, label="share")
    [ax] = figure.axes
    assert ax.images[0].get_clim() == (0.0, 1.0)
    assert ax.child_axes[0].get_ylabel() == "share"


def test_every_layer_has_a_row(tmp_path):
    given = [weights(4, 6, heads=(2,)) * scale for scale in (1, 0.5, 0.25)]
    figure = plot.attention_layers(given, SOURCE, TARGET)
    maps = [ax for ax in figure.axes if ax.images]
    assert maps[3].get_title() == "layer 2, head 2"
    np.testing.assert_allclose(maps[3].images[0].get_array(), given[1][1], rtol=1e-6)
    assert drawn(figure, tmp_path)
    with pytest.raises(ValueError, match="of every layer the same"):
        plot.attention_layers([given[0], given[0][:1]], SOURCE, TARGET)
    with pytest.raises(ValueError, match="of every layer the same"):
        plot.attention_layers([], SOURCE, TARGET)
    with pytest.raises(ValueError, match="6 target pieces"):
        plot.attention_heads(given[0], TARGET, SOURCE)


def test_lines_go_from_words_to_words(tmp_path):
    given = np.zeros((4, 6))
    given[1, 2], given[3, 5], given[0, 0] = 0.9, 0.3, 0.04
    figure = plot.attention_lines(given, SOURCE, TARGET, title="lines")
    [ax] = figure.axes
    found = {tuple(line.get_ydata()) for line in ax.lines}
    assert found == {(2, 1), (5, 3)}  # the weakest is left out
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
    assert drawn(figure, tmp_path)
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
    assert drawn(figure, tmp_path)
    with pytest.raises(ValueError, match=r"is \(T, S\). Received: shape=\(4,\)"):
        plot.mask(allowed[0])
    with pytest.raises(ValueError, match="2 source pieces"):
        plot.mask(allowed, columns=["a", "b"])


def signals(length, width):
    angles = np.arange(length)[:, None] / 10_000 ** (np.arange(0, width, 2) / width)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(length, width)


def test_positions_are_drawn_as_they_are(tmp_path):
    given = signals(20, 16)
    figure = plot.positions(given, title="d = 16")
    [ax] = figure.axes
    np.testing.assert_allclose(ax.images[0].get_array(), given)
    assert ax.images[0].get_clim() == (-1.0, 1.0)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("channel", "position")
    assert drawn(figure, tmp_path)
    [ax] = plot.positions(given, vmax=3.0, label="value").axes
    assert ax.images[0].get_clim() == (-3.0, 3.0)
    assert ax.child_axes[0].get_ylabel() == "value"
    figure = plot.position_products(given[None])  # a batch of one
    whole, line = figure.axes[:2]
    np.testing.assert_allclose(whole.images[0].get_array(), given @ given.T)
    np.testing.assert_allclose(line.lines[0].get_ydata(), given @ given[10])
    assert drawn(figure, tmp_path)
    with pytest.raises(ValueError, match=r"Signals are \(T, D\)"):
        plot.positions(given[0])


@pytest.mark.parametrize("style", ["interleaved", "halves"])
def test_pairs_of_channels_turn_on_circles(style, tmp_path):
    given = signals(9, 8)
    if style == "halves":
        given = np.concatenate([given[:, 0::2], given[:, 1::2]], axis=1)
    figure = plot.position_rings(given, pairs=(0, 3), style=style)
    assert [ax.get_title() for ax in figure.axes] == ["pair 0", "pair 3"]
    for ax, rate in zip(figure.axes, (1.0, 1e-3), strict=True):
        places = ax.collections[0].get_offsets()
        angles = np.arange(9) * rate
        np.testing.assert_allclose(
            places, np.stack([np.cos(angles), np.sin(angles)], 1)
        )
    assert drawn(figure, tmp_path)
    with pytest.raises(ValueError, match="4 pairs of channels, from 0"):
        plot.position_rings(given, pairs=(4,))
    with pytest.raises(ValueError, match="Received: 'thirds'"):
        plot.position_rings(given, style="thirds")


@pytest.mark.parametrize("ending", ["gif", "html"])
def test_rings_turn_in_an_animation(ending, tmp_path):
    file = tmp_path / f"rings.{ending}"
    plot.animate_rings(signals(5, 8), file, pairs=(0, 1))
    content = file.read_bytes()
    if ending == "gif":
        from PIL import Image

        with Image.open(file) as image:
            assert image.n_frames == 5
    else:
        assert content.count(b"data:image/png;base64") == 5
    with pytest.raises(ValueError, match="ends in .gif or .html"):
        plot.animate_rings(signals(5, 8), tmp_path / "rings.mp4")


def test_rates_and_norms_are_curves(tmp_path):
    figure = plot.learning_rates({"a": lambda step: step * 2.0, "b": abs}, 10)
    [ax] = figure.axes
    np.testing.assert_allclose(ax.lines[0].get_ydata(), 2.0 * np.arange(11))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a", "b"]
    assert drawn(figure, tmp_path)
    figure = plot.gradient_norms({"post": [0.1, 1.0, 10.0], "pre": [1.0, 1.0]})
    [ax] = figure.axes
    assert ax.get_yscale() == "log"
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), [1, 2, 3])
    assert drawn(figure, tmp_path)
    many = {f"curve {n}": ([1, 2], [n, n]) for n in range(12)}
    figure = plot.curves(many, "length, tokens", "time, ms")
    [ax] = figure.axes
    assert [line.get_label() for line in ax.lines] == list(many)
    assert len({line.get_color() for line in ax.lines}) == 12
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("length, tokens", "time, ms")
    assert drawn(figure, tmp_path)
    for points in ({}, {"a": ([1, 2], [1])}, {"a": ([], [])}):
        with pytest.raises(ValueError, match="as many places as heights"):
            plot.curves(points, "x", "y")
    with pytest.raises(ValueError, match="0 schedules, steps=10"):
        plot.learning_rates({}, 10)
    with pytest.raises(ValueError, match="above 0"):
        plot.gradient_norms({"a": [1.0, 0.0]})


def test_words_stand_where_their_neighbours_are(tmp_path):
    pytest.importorskip("sklearn")
    rng = np.random.default_rng(0)
    vectors = np.repeat(np.eye(2, 8) * 20, 6, axis=0) + rng.normal(size=(12, 8))
    words = [f"w{n}" for n in range(12)]
    groups = ["a"] * 6 + ["b"] * 6
    figure = plot.embeddings(vectors, words, groups, title="words")
    [ax] = figure.axes
    assert [text.get_text() for text in ax.texts] == words
    first, second = (np.asarray(each.get_offsets()) for each in ax.collections)
    apart = np.linalg.norm(first.mean(0) - second.mean(0))
    assert apart > np.linalg.norm(first - first.mean(0), axis=1).mean()
    again = plot.embeddings(vectors, words, groups).axes[0].collections[0]
    np.testing.assert_array_equal(again.get_offsets(), first)
    assert drawn(figure, tmp_path)
    with pytest.raises(ValueError, match="4 words or more"):
        plot.embeddings(vectors[:3], words[:3])


class Step:
    """What a search yields after a step."""

    def __init__(self, opened, ended=()):
        self.open, self.ended = opened, ended


def test_a_tree_has_each_hypothesis_and_where_it_came_from(tmp_path):
    steps = [
        Step([([5], -0.5), ([6], -1.0)]),
        Step([([6, 7], -1.25), ([5, 8], -2.0)], [([5, 3], -0.4)]),
        Step([([6, 7, 9], -3.5)], [([6, 7, 3], -0.75)]),
    ]
    figure = plot.beam_tree(steps, lambda i: f"t{i}", title="a beam")
    [ax] = figure.axes
    shown = [text.get_text() for text in ax.texts]
    tokens = ["t5", "t6", "t3", "t7", "t8", "t3", "t9"]
    assert shown[0] == "start" and shown[1::2] == tokens
    scores = ["-0.50", "-1.00", "-0.40", "-1.25", "-2.00", "-0.75", "-3.50"]
    assert shown[2::2] == scores
    bold = [t.get_text() for t in ax.texts if t.get_fontweight() == "bold"]
    assert bold == ["t5", "t3"]  # what leads to the best that ended
    assert len(ax.lines) == 7
    # t7 continues t6, which stands below t5.
    t6, t7 = ax.texts[3], ax.texts[7]
    assert ax.lines[3].get_ydata()[0] == pytest.approx(t6.get_position()[1] + 0.11)
    assert ax.lines[3].get_ydata()[1] == pytest.approx(t7.get_position()[1] + 0.11)
    assert drawn(figure, tmp_path)
    with pytest.raises(ValueError, match="at least one step"):
        plot.beam_tree([], str)


def test_a_path_goes_through_the_strongest(tmp_path):
    given = weights(4, 6)
    figure = plot.attention_path(given, SOURCE, TARGET)
    path = figure.axes[0].lines[-1]
    np.testing.assert_array_equal(path.get_xdata(), given.argmax(axis=1))
    assert drawn(figure, tmp_path)
