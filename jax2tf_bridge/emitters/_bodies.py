"""Results of regions, and functions that serve as regions."""

from __future__ import annotations

from collections.abc import Sequence

from jax2tf_bridge.bytecode import Block, Operation
from jax2tf_bridge.emitters._array import Array
from jax2tf_bridge.emitters._scope import Scope
from jax2tf_bridge.emitters._shapes import broadcast, resize
from jax2tf_bridge.rewriting import Reducer
from shape_poly import Dim


def fit_sizes(scope: Scope, array: Array, sizes: Sequence[Dim]) -> Array:
    """Broadcasts a result of a body to the sizes of the operands, if it does not depend on them."""
    if array.sizes == tuple(sizes):
        return array
    if array.rank != len(sizes):
        return broadcast(scope, array, sizes, ())
    return resize(array, sizes)


def is_identity(scope: Scope, reducer: Reducer, init: Array) -> bool:
    """Returns whether an initial value is known to be the identity element."""
    known = scope.scalar(init)
    # 0 and -0 are both identities of sums; they differ only for a sum of -0, which XLA makes 0.
    return known is not None and bool(known == reducer.identity)


def called_block(scope: Scope, operation: Operation) -> Block:
    """Returns the body of the function that a custom call has as its computation."""
    names = operation.attributes.get("called_computations")
    if isinstance(names, tuple) and len(names) == 1 and isinstance(names[0], str):
        function = scope.program.functions.get(names[0].removeprefix("@"))
        if function is not None:
            return function.body
    scope.fail(operation, f"its computation is {names!r:.100}")
