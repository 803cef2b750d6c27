"""Advice about arguments that choose what a function does: flags, words, functions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jax2tf_bridge.from_jax.arguments._callables import JaxCallable

_WRITTEN_AS_CODE = (bool, int, float, str)


def close_over(function: JaxCallable, names: Sequence[str], argument: str, value: Any) -> str:
    """Returns advice, with code, to pass an argument before the function is exported.

    Args:
      function: whose argument it is.
      names: of the positional arguments of the call.
      argument: the name of the one to give before.
      value: what it was called with.

    >>> f = JaxCallable.of(lambda x, mode: x, caller="export")
    >>> close_over(f, ["x", "mode"], "mode", "fast")
    "Close over it, or give it before: functools.partial(f, mode='fast')."
    """
    called = function.code_name
    shown = repr(value) if isinstance(value, _WRITTEN_AS_CODE) else argument
    if not argument.isidentifier():  # one of *args
        return "Close over it."
    parameters = {} if function.signature is None else function.signature.parameters
    parameter = parameters.get(argument)
    by_position = parameter is not None and parameter.kind is parameter.POSITIONAL_ONLY
    if argument in names[:-1] or by_position:
        # Later positional arguments would take its place.
        others = [name for name in names if name != argument]
        if not all(map(str.isidentifier, others)):
            return "Close over it."
        call = ", ".join(shown if name == argument else name for name in names)
        return f"Close over it: lambda {', '.join(others)}: {called}({call})."
    return f"Close over it, or give it before: functools.partial({called}, {argument}={shown})."


def value_note(
    error: Exception, function: JaxCallable, names: Sequence[str], given: Mapping[str, Any]
) -> str | None:
    """Returns a note for JAX's error that an argument has no value while tracing.

    Args:
      error: what JAX raised; it names the arguments.
      function: whose arguments they are.
      names: of the positional arguments of the call.
      given: the arguments that were numbers of Python, by name.
    """
    for argument, value in given.items():
        if re.search(rf"\bargument {re.escape(argument)}(?![\w\[])", str(error)):
            return (
                f"{function.name} needs the value of its argument {argument}, and arguments are "
                f"traced without values. {close_over(function, names, argument, value)}"
            )
    return None
