"""Finds sizes of inputs that a saved signature accepts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from jax2tf_bridge.errors import ShapeError
from jax2tf_bridge.portable import PortableFunction
from jax2tf_bridge.saved_model._meta_graph import SignaturePort
from jax2tf_bridge.saved_model._sidecar import SignatureEntry
from shape_poly import Dim, SymbolicScope, evaluate_shape, sample_sizes, variables_of

_CANDIDATES = (*range(1, 9), 12, 16, 24, 32, 48, 64, 128, 224, 256)


def find_input_shapes(
    ports: Iterable[SignaturePort], entry: SignatureEntry, portable: PortableFunction
) -> dict[str, tuple[Dim, ...]] | None:
    """Returns the inputs' shapes with dimension variables; None if they do not fit the function.

    Args:
      ports: the inputs of the signature.
      entry: the signature in the sidecar.
      portable: its function.
    """
    avals = {port.path: port.aval for port in portable.inputs}
    shapes = {}
    for port in ports:
        aval = avals.get(entry.inputs[port.name].path) if port.name in entry.inputs else None
        if aval is None or port.type.shape is None:
            return None
        # For a random key, a signature takes its words, or a seed.
        candidates = [s for s in (aval.op_shape, aval.shape) if len(s) == len(port.type.shape)]
        if not candidates:
            return None
        shapes[port.name] = candidates[0]
    return shapes


def iterate_input_sizes(
    signature: str,
    portable: PortableFunction,
    shapes: Mapping[str, Sequence[Dim]],
    *,
    seed: int | None = None,
) -> Iterator[dict[str, tuple[int, ...]]]:
    """Yields sizes of the inputs that the function allows, the smallest first.

    Args:
      signature: the name of the signature, for messages.
      portable: its function.
      shapes: the shapes of the inputs by name.
      seed: the seed of all sizes but the first; by default, they are in ascending order.

    Raises:
      ShapeError: no sizes were found that satisfy the constraints.
    """
    scope = SymbolicScope((*portable.constraints, *portable.requirements), check=False)
    all_shapes = [
        *shapes.values(),
        *(aval.shape for aval in (*portable.in_avals, *portable.out_avals)),
    ]
    names = sorted({v for shape in all_shapes for d in shape for v in variables_of(d)})
    is_empty = True
    for sizes in sample_sizes(names, scope, nonempty=all_shapes, candidates=_CANDIDATES, seed=seed):
        is_empty = False
        yield {n: tuple(int(d or 0) for d in evaluate_shape(s, sizes)) for n, s in shapes.items()}
    if is_empty:
        raise ShapeError(
            f"{signature}: no sizes of {', '.join(names)} were found that satisfy "
            f"{scope if scope.constraints else 'its shapes'}."
        )
