"""A scope of symbolic sizes that is asked while JAX traces, where JAX cannot compare its sizes.

As in the other seams, private names are looked up when they are needed, and a release without one
works as `SEAM` says. Each is replaced, until the process ends, by one that does the same and asks,
since JAX calls it by its name in the module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jax import export as jax_export

from jax2tf_bridge._utils import SeamName
from jax2tf_bridge.from_jax._jax_compat import InconclusiveDimensionOperation

Answer = Callable[[Exception], Iterable[Sequence[str]]]
"""Takes JAX's error; returns constraints under which JAX shall try again: the first it takes."""

_IN_ROUNDS = "{} stop the trace also where the answer is proven, and the function is traced again"

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
    """A scope of JAX's that is asked where JAX cannot decide about its sizes, until it is closed.

    Sizes of other scopes are decided as they always are.
    """

    def __init__(self, constraints: Sequence[str], answer: Answer) -> None:
        """Makes a scope of these constraints; `answer` is asked."""
        self._bridge_answer: Answer | None = answer
        self._bridge_constraints = tuple(constraints)
        self._bridge_asked = frozenset(name.name for name in SEAM if name.wrap(_Decision))
        super().__init__(constraints)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles as a scope of JAX's, as which it is read where the bridge is not installed."""
        return jax_export.SymbolicScope, (self._bridge_constraints,)

    def close(self) -> None:
        """Leaves further questions unanswered."""
        self._bridge_answer = None

    def take_answer(self, asked: str, error: Exception) -> bool:
        """Takes the constraints that answer `error`, raised by a function of JAX, if any do."""
        if self._bridge_answer is None or asked not in self._bridge_asked:
            return False
        return any(map(self._takes, self._bridge_answer(error)))

    def _takes(self, constraints: Sequence[str]) -> bool:
        # In place, since the sizes that were made so far belong to this very object.
        try:
            super().__init__(constraints)
        except Exception:  # JAX refuses by errors of many types
            super().__init__(self._bridge_constraints)
            return False
        self._bridge_constraints = tuple(constraints)
        return True


@dataclass(frozen=True)
class _Decision:
    """A function of JAX's that decides about sizes, and asks an AnsweringScope if it cannot."""

    name: str
    plain: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        while True:
            try:
                return self.plain(*args, **kwargs)
            except InconclusiveDimensionOperation as e:
                scope = _scope_of((*args, *kwargs.values()))
                if not isinstance(scope, AnsweringScope) or not scope.take_answer(self.name, e):
                    raise


def _scope_of(args: Sequence[Any]) -> jax_export.SymbolicScope | None:
    """Finds the scope of sizes and shapes, which is one for all."""
    sizes = [size for a in args for size in (a if isinstance(a, (tuple, list)) else (a,))]
    return next((size.scope for size in sizes if jax_export.is_symbolic_dim(size)), None)
