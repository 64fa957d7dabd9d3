"""Sources that come one after another get what they get in a batch."""

import numpy as np
import pytest

from keras_tfm import decode
from keras_tfm.decode.continuous import ContinuousSearch
from tests.decode.conftest import VOCABULARY_SIZE
from tests.decode.test_search import assert_same

OPTIONS = {"jit_compile": False}
WIDTHS = (6, 12)
SEARCHES = {
    "greedy": {},
    "beam": {"beam_size": 3, "num_hypotheses": 2, "return_token_scores": True},
}


def draw_rows(count, longest=12, seed=0):
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, longest + 1, count)
    return [draw.integers(4, VOCABULARY_SIZE, n).tolist() for n in lengths]


def assert_as_alone(search, rows, found, prefix=()):
    """What each row gets is what `Search` gives it."""
    for row, got in zip(rows, found, strict=True):
        wanted = search([row], [list(prefix)] if row and prefix else None)
        shared = min(got.ids.shape[-1], wanted.ids.shape[-1])
        assert not got.ids[..., shared:].any() and not wanted.ids[..., shared:].any()
        cut = (x if x is None else x[:, :, :shared] for x in (got.ids, wanted.ids))
        assert_same(got._replace(ids=next(cut)), wanted._replace(ids=next(cut)))


def decoded(continuous, rows):
    return [f.result(120) for f in [continuous.submit(row) for row in rows]]


@pytest.mark.parametrize("name", SEARCHES)
def test_each_source_gets_what_it_gets_alone(name, transformer):
    search = decode.Search(transformer, **SEARCHES[name], **OPTIONS)
    rows = draw_rows(12)
    with ContinuousSearch(search, 4, widths=WIDTHS) as continuous:
        assert_as_alone(search, rows, decoded(continuous, rows))
