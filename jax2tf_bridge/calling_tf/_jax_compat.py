"""Lists the private JAX API that call_tf uses.

Names are looked up on first use; `SEAM` describes what changes in a release that lacks one.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from jax2tf_bridge._utils import SeamName

_WITHOUT = "JAX may drop or repeat a call, regardless of has_side_effects and ordered"

_EFFECT = SeamName("jax._src.effects", "Effect", "0.8 to 0.12", _WITHOUT)
_LOWERABLE = SeamName("jax._src.effects", "lowerable_effects", "0.8 to 0.12", _WITHOUT)
_CONTROL_FLOW = SeamName(
    "jax._src.effects",
    "control_flow_allowed_effects",
    "0.8 to 0.12",
    "calls with side effects cannot be in scan, cond and while_loop",
)
_CUSTOM_DERIVATIVES = SeamName(
    "jax._src.effects",
    "custom_derivatives_allowed_effects",
    "0.8 to 0.12",
    "under jax.enable_checks, calls with side effects cannot be in jax.custom_vjp functions",
)
_REMAT = SeamName(
    "jax._src.effects",
    "remat_allowed_effects",
    "0.8 to 0.12",
    "calls cannot be in jax.checkpoint unless has_side_effects=False",
)
_ORDERED = SeamName(
    "jax._src.effects",
    "ordered_effects",
    "0.8 to 0.12",
    "ordered=True keeps the calls, but not their order",
)
_TRACING = SeamName(
    "jax._src.core",
    "trace_ctx",
    "0.8 to 0.12",
    "a TensorFlow function that is called while JAX traces cannot hold a converted JAX function",
)
_EVALUATING = SeamName("jax._src.core", "eval_context", "0.8 to 0.12", _TRACING.without)
_TOP_LEVEL = SeamName("jax._src.core", "top_axis_env", "0.8 to 0.12", _TRACING.without)

SEAM: Sequence[SeamName] = (
    _EFFECT,
    _LOWERABLE,
    _CONTROL_FLOW,
    _CUSTOM_DERIVATIVES,
    _REMAT,
    _ORDERED,
    _TRACING,
    _EVALUATING,
    _TOP_LEVEL,
)


@contextmanager
def suspend_transformations() -> Iterator[None]:
    """Suspends JAX's tracing in this thread for the body, including named axes."""
    tracing, evaluating, top_level = _TRACING.get(), _EVALUATING.get(), _TOP_LEVEL.get()
    if tracing is None or evaluating is None or top_level is None:
        yield
        return
    with evaluating():
        before = tracing.axis_env
        tracing.set_axis_env(top_level)
        try:
            yield
        finally:
            tracing.set_axis_env(before)


def make_call_effects(*, stateful: bool, ordered: bool) -> frozenset[Any]:
    """Returns the effects of a call that JAX must not drop; empty if this JAX lacks the API.

    Args:
      stateful: whether JAX must not repeat the call either, as jax.checkpoint does.
      ordered: whether the call keeps its order relative to other ordered calls.
    """
    effect = _register_effects().get((stateful, ordered))
    return frozenset() if effect is None else frozenset({effect})


@functools.cache
def _register_effects() -> Mapping[tuple[bool, bool], Any]:
    """Registers the effects with JAX; returns them by (stateful, ordered)."""
    base, lowerable = _EFFECT.get(), _LOWERABLE.get()
    if base is None or lowerable is None:
        return {}
    allowed = (lowerable, _CONTROL_FLOW.get(), _CUSTOM_DERIVATIVES.get())
    kinds = {
        (False, False): ("CallTfEffect", (*allowed, _REMAT.get())),
        (True, False): ("StatefulCallTfEffect", allowed),
        (True, True): ("OrderedCallTfEffect", (*allowed, _ORDERED.get())),
    }
    return {key: _register_effect(base, name, sets) for key, (name, sets) in kinds.items()}


def _register_effect(base: type, name: str, sets: Sequence[Any]) -> Any:
    """Makes an effect of a new type, and adds the type to JAX's `sets` of types."""
    # JAX sorts effects by their text, and serializes them by their type.
    members = {
        "__module__": __name__,
        "__repr__": lambda effect: name,
        "__str__": lambda effect: name,
        "__eq__": lambda effect, other: type(effect) is type(other),
        "__hash__": lambda effect: hash(type(effect)),
    }
    kind = type(name, (base,), members)
    for types in sets:
        if types is not None:
            types.add_type(kind)
    return kind()
