"""Traces a user's function at its specs, with symbolic sizes or with numbers in their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from jax2tf_bridge.errors import BridgeError, FunctionError
from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax.arguments import JaxCallable, value_note
from jax2tf_bridge.from_jax.lowering._row_wise import list_row_wise_forms
from jax2tf_bridge.from_jax.shapes import POLYMORPHIC, SizeWords, Specs, TracedFunction


def make_traced_function(
    function: JaxCallable, specs: Specs, words: SizeWords = POLYMORPHIC
) -> TracedFunction:
    """Returns an object that traces the function at `specs`; `words` are for messages."""

    def trace(args: Sequence[Any], kwargs: Mapping[str, Any]) -> jax.stages.Traced:
        try:
            traced: jax.stages.Traced = function.jitted.trace(*args, **kwargs)
        except Exception as e:
            if function.is_unbound_module and not _asks_for_sizes(e):
                raise FunctionError(
                    f"{function.name} is a module of Flax without parameters, which cannot be "
                    f"called ({type(e).__name__}). Give its apply, as model.apply, which takes the "
                    "parameters as its first argument."
                ) from e
            note = value_note(e, function, specs.names, specs.numbers())
            if note is not None:
                e.add_note(note)
            raise
        return traced

    return TracedFunction(
        function.name,
        specs.variables(),
        lambda assumptions, scope: trace(*specs.under(assumptions, scope)),
        lambda sizes: trace(*specs.at(sizes)),
        specs.example(),
        function.source,
        words,
        row_wise=list_row_wise_forms(function, specs),
    )


def _asks_for_sizes(error: Exception) -> bool:
    return isinstance(
        error, (BridgeError, KeyError, RecursionError, _jax_compat.InconclusiveDimensionOperation)
    )
