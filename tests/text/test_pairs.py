"""Pairs in memory: nothing is lost without a word."""

import logging

import pytest

from keras_tfm.text import Pairs

pytestmark = pytest.mark.backend("torch")  # of no backend: once is enough


def test_an_empty_side_is_a_counted_and_said_drop(caplog):
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


def test_nothing_is_said_when_nothing_is_dropped(caplog):
    assert Pairs(["one"], ["eins"]).report == "pairs: 1 pairs read, 0 dropped, 1 kept"
    assert not caplog.messages


def test_what_is_no_list_of_pairs_is_refused():
    with pytest.raises(ValueError, match="Received: 2 source and 1 target sentences"):
        Pairs(["one", "two"], ["eins"])
    with pytest.raises(ValueError, match="No pair is left.*0 pairs read"):
        Pairs([], [])
    with pytest.raises(TypeError, match="`source` must be a list.*one string: 'one'"):
        Pairs("one", ["eins"])
    with pytest.raises(TypeError, match="`target` .* at index 1: None of type None"):
        Pairs(["one", "two"], ["eins", None])
    with pytest.raises(ValueError, match="`source` .* at index 1: .*half of one"):
        Pairs(["one", "two\ud800"], ["eins", "zwei"])
