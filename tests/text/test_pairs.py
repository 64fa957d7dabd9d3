"""Pairs in memory: dropped pairs are reported."""

import logging

import pytest

from keras_tfm.text import Pairs

pytestmark = pytest.mark.backend("torch")  # no backend is involved


def test_pairs_with_an_empty_side_are_dropped_counted_and_logged(caplog):
    source = ["one", "", "three", " \t", "five", ""]
    target = ["eins", "zwei", "\u3000", "", "fünf ", "sechs"]
    with caplog.at_level(logging.WARNING):
        pairs = Pairs(source, target, name="toy")
    assert list(pairs) == [("one", "eins"), ("five", "fünf ")]
    assert len(pairs) == len(pairs.source) == len(pairs.target) == 2
    assert pairs.dropped == {"empty source": 2, "empty target": 1, "both empty": 1}
    assert pairs.report == (
        "toy: 6 pairs read, 4 dropped (2 empty source, 1 empty target, "
        "1 both empty), 2 kept"
    )
    assert caplog.messages == [pairs.report]


def test_nothing_is_logged_when_nothing_is_dropped(caplog):
    assert Pairs(["one"], ["eins"]).report == "pairs: 1 pairs read, 0 dropped, 1 kept"
    assert not caplog.messages


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (["one", "two"], ["eins"], "the same length; got source=2, target=1"),
        ([], [], "No pair has text.*0 pairs read"),
        ("one", ["eins"], "must be lists"),
        (["one", "two"], ["eins", None], "`target` must hold strings.*None"),
        (["one", "two\ud800"], ["eins", "zwei"], "`source` .*lone surrogates.*two"),
    ],
)
def test_wrong_sides_raise(source, target, message):
    with pytest.raises(ValueError, match=message):
        Pairs(source, target)
