"""Traces a function at its specs: with symbolic sizes, or at numbers in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import jax

from jax2tf_bridge.from_jax._boundary import VjpShardings, trace_vjp
from jax2tf_bridge.from_jax._callables import JaxCallable
from jax2tf_bridge.from_jax._knowledge import Knowledge
from jax2tf_bridge.from_jax._specs import Specs


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
        args, kwargs = self.specs.under(knowledge)
        traced: jax.stages.Traced = self.function.jitted.trace(*args, **kwargs)
        return traced

    def at(self, sizes: Mapping[str, int]) -> jax.stages.Traced:
        """The trace with these numbers in the place of the dimension variables."""
        args, kwargs = self.specs.at(sizes)
        traced: jax.stages.Traced = self.function.jitted.trace(*args, **kwargs)
        return traced


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
