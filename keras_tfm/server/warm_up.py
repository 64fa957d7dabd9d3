"""Compiles what an engine needs, in two stages.

After the first, which takes seconds, it answers any text. After the second,
which takes minutes where nothing is cached, no usual text waits.
"""

import contextlib
import functools
from collections.abc import Callable, Sequence

from keras_tfm.pipelines.translator import GREEDY
from keras_tfm.server.engine import WARM_UP, Engine

RARE = 2  # lengths for which rare kinds of answers are compiled


class _Closed(Exception):
    """The engine was closed."""


def prepare(engine: Engine) -> None:
    """Compiles the functions without which no text could be answered.

    Args:
        engine: `Engine`.
    """
    if engine.shared is None:
        engine.model(["a"])
    else:
        engine.shared.prepare()


def warm_up(
    engine: Engine,
    lengths: Sequence[int] = WARM_UP,
    progress: Callable[[str], None] = lambda message: None,
) -> None:
    """Compiles what texts of some lengths need, so that no request waits.

    It may run in a thread while the engine answers. When the engine is closed,
    it ends after the function that is being compiled. n-best lists, attention
    and streams, which are rarer, are compiled for the first two lengths. Other
    functions are compiled when a text needs them, also after an error.

    Args:
        engine: `Engine`.
        lengths: ints >= 1, in tokens, ascending. If empty, only what one short
            text needs.
        progress: function that gets a message before each step, and at the end.
    """

    def check():
        if engine.is_closed:
            raise _Closed

    try:
        with contextlib.suppress(_Closed):
            steps = _steps(engine, lengths, check)
            for number, (title, step) in enumerate(steps, 1):
                check()
                progress(f"warming up, {number} of {len(steps)}: {title}")
                step()
            progress("warm")
    finally:
        if engine.shared is not None:
            engine.shared.warm_up([])  # allows all sizes, and compiles none


def _steps(engine, lengths, check):
    """Returns what to compile, as pairs of a title and a function."""
    steps: list = [("one short text", lambda: engine.model(["a"]))]
    if engine.task == "translation" and lengths:
        model = engine.shared or engine.model
        title = f"translations of up to {lengths[-1]} tokens"
        steps.append((title, lambda: model.warm_up(lengths, check=check)))
        for name, options in _rare_kinds(engine).items():
            for length in lengths[:RARE]:
                step = functools.partial(
                    engine.single.warm_up, [length], check=check, **options
                )
                steps.append((f"{name} of up to {length} tokens", step))
    return steps


def _rare_kinds(engine):
    """Returns the options of the rarer kinds of answers."""
    description = engine.describe()
    kinds = {"alternatives": engine.options(True, False)}
    if description["attention"]:
        kinds["attention"] = engine.options(True, True)
    if description["streams"]:
        kinds["streams"] = GREEDY
    return kinds
