"""The seam to JAX's private names that calls of TensorFlow functions need.

Each is looked up when it is needed, so that a release without it works as `SEAM` says.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from jax2tf_bridge._seam import SeamName

_WITHOUT = "JAX may drop or repeat a call whatever has_side_effects and ordered say"

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
_ORDERED = SeamName(
    "jax._src.effects",
    "ordered_effects",
    "0.8 to 0.12",
    "ordered=True keeps calls, not their order",
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
    _ORDERED,
    _TRACING,
    _EVALUATING,
    _TOP_LEVEL,
)


@contextmanager
def outside_transformations() -> Iterator[None]:
    """Leaves what JAX is tracing in this thread, the names of mapped axes included."""
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


def call_effects(*, ordered: bool) -> frozenset[Any]:
    """What JAX is told of a call that it must neither drop nor repeat; empty if it cannot be."""
    effect = _registered_effects()[ordered]
    return frozenset() if effect is None else frozenset({effect})


@functools.cache
def _registered_effects() -> tuple[Any, Any]:
    """The effects of unordered and of ordered calls, made known to JAX."""
    base, lowerable = _EFFECT.get(), _LOWERABLE.get()
    if base is None or lowerable is None:
        return None, None
    made = []
    for name in ("CallTfEffect", "OrderedCallTfEffect"):
        # JAX sorts effects by their text. In jax.checkpoint, which calls twice, they stay errors.
        kind = type(name, (base,), {"__module__": __name__, "__repr__": _text, "__str__": _text})
        for types in (lowerable, _CONTROL_FLOW.get(), _CUSTOM_DERIVATIVES.get()):
            if types is not None:
                types.add_type(kind)
        made.append(kind)
    if _ORDERED.get() is not None:
        _ORDERED.get().add_type(made[1])
    return made[0](), made[1]()


def _text(effect: Any) -> str:
    return type(effect).__name__
