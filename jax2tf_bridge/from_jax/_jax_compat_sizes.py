"""Symbolic scope that answers questions about sizes while JAX traces.

Each private name is looked up on use, and a release without one works as described in `SEAM`. Each
function is replaced until the process ends, because JAX looks it up in its module. The replacement
calls the original, and asks the scope if that raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jax import export as jax_export

from jax2tf_bridge._utils import SeamName
from jax2tf_bridge.from_jax._jax_compat import InconclusiveDimensionOperation

Answer = Callable[[Exception], Iterable[Sequence[str]]]
"""Receives JAX's error; returns sets of constraints. JAX retries with the first that it accepts."""

_IN_ROUNDS = "{} stop the trace even if the answer is proven, and the function is traced again"

SEAM: Sequence[SeamName] = (
    SeamName(
        "jax._src.export.shape_poly",
        "_geq_decision",
        "0.8 to 0.12",
        _IN_ROUNDS.format("comparisons by size"),
    ),
    SeamName(
        "jax._src.core",
        "divide_shape_sizes",
        "0.8 to 0.12",
        _IN_ROUNDS.format("reshapes with a size that JAX computes"),
    ),
)


class AnsweringScope(jax_export.SymbolicScope):
    """JAX's symbolic scope, extended by answers to questions about its sizes until it is closed.

    Sizes of other scopes are not affected.
    """

    def __init__(self, constraints: Sequence[str], answer: Answer) -> None:
        """Makes a scope with these constraints; `answer` answers questions."""
        self._bridge_answer: Answer | None = answer
        self._bridge_constraints = tuple(constraints)
        self._bridge_asked = frozenset(name.name for name in SEAM if name.wrap(_Decision))
        super().__init__(constraints)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles as JAX's scope, which can be read without the bridge."""
        return jax_export.SymbolicScope, (self._bridge_constraints,)

    def close(self) -> None:
        """Leaves further questions unanswered."""
        self._bridge_answer = None

    def take_answer(self, asked: str, error: Exception) -> bool:
        """Adds constraints that answer JAX's `error`, if there are any."""
        if self._bridge_answer is None or asked not in self._bridge_asked:
            return False
        return any(map(self._try_constraints, self._bridge_answer(error)))

    def _try_constraints(self, constraints: Sequence[str]) -> bool:
        # In place, because the existing sizes belong to this object.
        try:
            super().__init__(constraints)
        except Exception:  # JAX rejects constraints with errors of many types
            super().__init__(self._bridge_constraints)
            return False
        self._bridge_constraints = tuple(constraints)
        return True


@dataclass(frozen=True)
class _Decision:
    """Replacement of JAX's function that decides about sizes; asks an AnsweringScope."""

    name: str
    original: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        while True:
            try:
                return self.original(*args, **kwargs)
            except InconclusiveDimensionOperation as e:
                scope = _find_scope((*args, *kwargs.values()))
                if not isinstance(scope, AnsweringScope) or not scope.take_answer(self.name, e):
                    raise


def _find_scope(args: Sequence[Any]) -> jax_export.SymbolicScope | None:
    """Finds the common scope of sizes and shapes."""
    sizes = [size for arg in args for size in (arg if isinstance(arg, (tuple, list)) else (arg,))]
    return next((size.scope for size in sizes if jax_export.is_symbolic_dim(size)), None)
