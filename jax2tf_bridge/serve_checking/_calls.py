"""Chooses the calls that `serve-check` makes: at some sizes, and the warm-up requests."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from jax2tf_bridge.errors import BridgeError, ShapeError
from jax2tf_bridge.portable import Aval, PortableFunction
from jax2tf_bridge.saved_model import (
    EntryPoint,
    GradientOrders,
    Request,
    SavedModelContents,
    Sidecar,
    SignatureEntry,
    TensorType,
    read_requests,
    read_sidecar,
    tensor_type,
)
from jax2tf_bridge.storage import as_path
from shape_poly import Dim, DimExpr, SymbolicScope, evaluate_shape, sample_sizes

_SAMPLES = 3
_CANDIDATES = (*range(1, 9), 12, 16, 24, 32, 48, 64, 128, 224, 256)
_MAX_WARM_UPS = 20
"""Limits the requests of each signature; all of a thousand would take long, and say little more."""

Shapes: TypeAlias = Mapping[str, tuple[Dim, ...]]


@dataclass(frozen=True)
class SignatureCall:
    """One call of a signature.

    Attributes:
      signature: its name.
      inputs: by name what the script makes a tensor of.
      text: the inputs, as a reader sees them.
      kind: "sizes" for sizes that the signature allows, "guess" for those that it may refuse,
        "warm-up" for a request in the file.
      gradients: whether gradients are taken.
    """

    signature: str
    inputs: Mapping[str, Mapping[str, Any]]
    text: str
    kind: str
    gradients: bool


def calls_of(contents: SavedModelContents) -> list[SignatureCall]:
    """Lists the calls of all signatures, one signature's after another's.

    Raises:
      BridgeError: there are no signatures, no sizes satisfy the constraints, or a file is damaged.
    """
    entries = [entry for entry in contents.entries if entry.is_signature]
    if not entries:
        raise BridgeError(f"{contents.path} has no signatures, so there is nothing to serve.")
    folder = as_path(contents.path)
    known = read_sidecar(folder)
    if known is not None:
        entries = [_with_own_gradient(entry, *known) for entry in entries]
    has_gradient = {entry.name: _has_gradient(entry) for entry in entries}
    requests = [_request(request, has_gradient) for request in read_requests(folder)]
    found: list[SignatureCall] = []
    for entry in entries:
        if known is not None and entry.name in known[0].signatures:
            portable = known[1][entry.name]
            shapes = _shapes(entry, known[0].signatures[entry.name], portable)
        else:
            portable, shapes = None, None
        if portable is None or shapes is None:
            found += _guesses(entry)
        else:
            found += _samples(entry, portable, shapes)
        found += [call for call in requests if call.signature == entry.name][:_MAX_WARM_UPS]
    # TensorFlow Serving does not load a model with requests for what is not there.
    names = {entry.name for entry in entries}
    return found + [call for call in requests if call.signature not in names]


def _with_own_gradient(
    entry: EntryPoint, sidecar: Sidecar, portables: Mapping[str, PortableFunction]
) -> EntryPoint:
    """Adds the gradients of TensorFlow's own operations, which no module of the graph tells."""
    portable = portables.get(entry.name)
    if entry.gradient is not None or portable is None or portable.target.xla:
        return entry
    orders = sidecar.signatures[entry.name].vjp_order
    return replace(
        entry, gradient=GradientOrders(max(orders, portable.tensorflow_differentiates), "")
    )


def _has_gradient(entry: EntryPoint) -> bool:
    return entry.gradient is not None and entry.gradient.orders > 0


def _shapes(entry: EntryPoint, known: SignatureEntry, portable: PortableFunction) -> Shapes | None:
    """Returns the inputs' shapes with named sizes; None if they are not the function's."""
    avals = {port.path: port.aval for port in portable.inputs}
    found = {}
    for port in entry.inputs:
        aval = avals.get(known.inputs[port.name].path) if port.name in known.inputs else None
        if aval is None or port.type.shape is None:
            return None
        fitting = [s for s in _op_or_own(aval) if len(s) == len(port.type.shape)]
        if not fitting:
            return None
        found[port.name] = fitting[0]
    return found


def _op_or_own(aval: Aval) -> tuple[tuple[Dim, ...], ...]:
    """Returns both shapes of an argument: a signature may take the seed of a random key."""
    return aval.op_shape, aval.shape


def _samples(
    entry: EntryPoint, portable: PortableFunction, shapes: Shapes
) -> Iterator[SignatureCall]:
    """Yields calls at a few sizes that the function allows, the smallest first."""
    scope = SymbolicScope((*portable.constraints, *portable.requirements), check=False)
    every = [*shapes.values(), *(aval.shape for aval in (*portable.in_avals, *portable.out_avals))]
    names = sorted({v for s in every for d in s if isinstance(d, DimExpr) for v in d.variables()})
    drawn = sample_sizes(names, scope, nonempty=every, candidates=_CANDIDATES, seed=0)
    found = list(itertools.islice(drawn, _SAMPLES))
    if not found:
        raise ShapeError(
            f"{entry.name}: no sizes of {', '.join(names)} were found that satisfy "
            f"{scope if scope.constraints else 'its shapes'}."
        )
    for sizes in found:
        concrete = {n: [int(d or 0) for d in evaluate_shape(s, sizes)] for n, s in shapes.items()}
        yield _call(entry, concrete, "sizes")


def _guesses(entry: EntryPoint) -> Iterator[SignatureCall]:
    """Yields calls where nothing says which of the open sizes are allowed."""
    types = {port.name: port.type for port in entry.inputs}
    is_open = any(t.shape is None or None in t.shape for t in types.values())
    for size in range(1, _SAMPLES + 1 if is_open else 2):
        concrete = {
            name: [size] if t.shape is None else [size if d is None else d for d in t.shape]
            for name, t in types.items()
        }
        yield _call(entry, concrete, "guess" if is_open else "sizes")


def _call(entry: EntryPoint, shapes: Mapping[str, list[int]], kind: str) -> SignatureCall:
    dtypes = {port.name: port.type.dtype for port in entry.inputs}
    return SignatureCall(
        entry.name,
        {name: {"dtype": dtypes[name], "shape": shape} for name, shape in shapes.items()},
        _text((name, TensorType(dtypes[name], tuple(s))) for name, s in shapes.items()),
        kind,
        _has_gradient(entry),
    )


def _text(inputs: Iterator[tuple[str, TensorType]] | Sequence[tuple[str, TensorType]]) -> str:
    return ", ".join(f"{name}: {kind}" for name, kind in inputs) or "no inputs"


def _request(request: Request, has_gradient: Mapping[str, bool]) -> SignatureCall:
    inputs, types = {}, []
    for key, value in request.inputs.items():
        kind, content = tensor_type(value), value.data[value.start : value.end]
        inputs[key] = {"dtype": kind.dtype, "proto": base64.b64encode(content).decode()}
        types.append((key, kind))
    name = request.signature
    return SignatureCall(name, inputs, _text(types), "warm-up", has_gradient.get(name, False))
