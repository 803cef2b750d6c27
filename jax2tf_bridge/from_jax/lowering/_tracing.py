"""Traces a function at its specs: with symbolic sizes, or at numbers in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax

from jax2tf_bridge.errors import BridgeError, FunctionError
from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax._argument_advice import value_note
from jax2tf_bridge.from_jax._callables import JaxCallable
from jax2tf_bridge.from_jax.lowering._boundary import VjpShardings, trace_vjp
from jax2tf_bridge.from_jax.shapes._knowledge import Knowledge
from jax2tf_bridge.from_jax.shapes._specs import Specs


class Tracing(Protocol):
    """A function that can be traced as often as needed."""

    def under(self, knowledge: Knowledge) -> jax.stages.Traced:
        """The trace under what is known of the sizes."""
        ...

    def at(self, sizes: Mapping[str, int]) -> jax.stages.Traced:
        """The trace with these numbers in the place of the dimension variables."""
        ...


@dataclass(frozen=True)
class Tracer:
    """Traces a user's function."""

    function: JaxCallable
    specs: Specs

    def under(self, knowledge: Knowledge) -> jax.stages.Traced:
        """The trace under what is known of the sizes."""
        return self._traced(*self.specs.under(knowledge))

    def at(self, sizes: Mapping[str, int]) -> jax.stages.Traced:
        """The trace with these numbers in the place of the dimension variables."""
        return self._traced(*self.specs.at(sizes))

    def _traced(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> jax.stages.Traced:
        function, specs = self.function, self.specs
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


def _asks_for_sizes(error: Exception) -> bool:
    """Whether inference may answer what stopped the trace."""
    return isinstance(
        error, (BridgeError, KeyError, RecursionError, _jax_compat.InconclusiveDimensionOperation)
    )


@dataclass(frozen=True)
class VjpTracer:
    """Traces the VJP of what another traces, spread over devices as `spread` says."""

    primal: Tracing
    spread: Callable[[], VjpShardings]

    def under(self, knowledge: Knowledge) -> jax.stages.Traced:
        """The trace under what is known of the sizes."""
        return trace_vjp(self.primal.under(knowledge), self.spread())

    def at(self, sizes: Mapping[str, int]) -> jax.stages.Traced:
        """The trace with these numbers in the place of the dimension variables."""
        return trace_vjp(self.primal.at(sizes), self.spread())
