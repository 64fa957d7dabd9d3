"""One form for errors of arguments: the rule, the value received, the fix."""

from typing import Any


def check(condition: Any, rule: str, fix: str = "", **received: Any) -> None:
    """Raises ValueError where an argument breaks a rule.

    Args:
        condition: truth value, whether the rule holds.
        rule: string, begins with the name of the argument.
        fix: string, a sentence that says what to do.
        **received: the values to show.
    """
    if not condition:
        values = ", ".join(f"{name}={value!r}" for name, value in received.items())
        raise ValueError(f"{rule}; got {values}. {fix}".rstrip())
