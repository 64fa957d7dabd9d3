"""Pictures: what is on the axes, that words are whole, and what is refused."""

import matplotlib.figure
import numpy as np
import pytest
from matplotlib import pyplot

from keras_tfm import plot

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
    ax, bar = figure.axes
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
