"""Reads modules, their arguments and their gradients from XlaCallModule operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jax2tf_bridge._dtypes import is_differentiable
from jax2tf_bridge.loading._modules import CallableModule
from jax2tf_bridge.saved_model import (
    CallScope,
    Cast,
    FlatArgument,
    GraphVariable,
    Input,
    ModuleCall,
    ModuleResult,
    Node,
    Opaque,
    Value,
    read_module_call,
    split_reference,
)

_MAX_GRADIENT_ORDER = 50


class NotCallableError(Exception):
    """JAX cannot call a module as TensorFlow does; the text completes a sentence."""


@dataclass(frozen=True)
class BoundModule:
    """A module call, its module, and the values of its flat arguments."""

    call: ModuleCall
    callee: CallableModule
    arguments: tuple[Value, ...]


def bind_module(call: ModuleCall, name: str, variables: Mapping[str, str]) -> BoundModule:
    """Reads the module of an operation, with its gradients and arguments.

    Args:
      call: the operation.
      name: the name of the signature in error messages.
      variables: the name of the variable of each node.

    Raises:
      NotCallableError: JAX cannot call the module.
      FileFormatError: the graph or the module is damaged.
    """
    references: Sequence[str] = call.node.inputs
    differentiated = _find_flat_arguments(call)
    places = None if differentiated is None else _find_subsequence(call.node.inputs, differentiated)
    if differentiated is not None and places is not None:
        references = differentiated
    else:
        places = tuple(range(len(references)))
    values = tuple(call.scope.value(reference) for reference in references)
    labels = tuple(_describe_argument(value, i, variables) for i, value in enumerate(values))
    callee = _read_module(call, name, places, labels)
    return BoundModule(call, _add_gradient(callee, call, references, 1), values)


def _read_module(
    call: ModuleCall, name: str, kept_arguments: tuple[int, ...], labels: tuple[str, ...]
) -> CallableModule:
    node = read_module_call(0, call.scope.body.name, call.node)
    if node.has_tokens:
        raise NotCallableError(
            f"the module of {call.place} has ordered effects, which JAX cannot run from a "
            "SavedModel"
        )
    if node.functions:
        raise NotCallableError(f"the module of {call.place} calls TensorFlow functions itself")
    callee = CallableModule(
        name,
        bytes(node.module),
        node.platforms or ("cpu",),
        node.calling_convention_version,
        kept_arguments,
        labels,
    )
    ins, outs = callee.read_types()
    if len(ins) != len(kept_arguments) or len(outs) != len(node.results):
        raise NotCallableError(
            f"the operation {call.place} has {len(kept_arguments)} inputs and "
            f"{len(node.results)} results, and its module {len(ins)} and {len(outs)}"
        )
    return callee


def _find_flat_arguments(call: ModuleCall) -> tuple[str, ...] | None:
    """Returns the inputs after the results in the gradient's IdentityN; None if there is none."""
    node = call.gradient_node
    results = [(call.node.name, i) for i in range(len(call.node.dtypes("Tout")))]
    if node is None or [split_reference(i) for i in node.inputs[: len(results)]] != results:
        return None
    return node.inputs[len(results) :]


def _find_subsequence(
    references: Sequence[str], candidates: Sequence[str]
) -> tuple[int, ...] | None:
    """Returns the positions of a subsequence of tensors; None if it is not a subsequence."""
    tensors = [split_reference(reference) for reference in candidates]
    places: list[int] = []
    for reference in references:
        begin = places[-1] + 1 if places else 0
        try:
            places.append(tensors.index(split_reference(reference), begin))
        except ValueError:
            return None
    return tuple(places)


def _add_gradient(
    callee: CallableModule, call: ModuleCall, references: Sequence[str], order: int
) -> CallableModule:
    """Adds the VJP to a module, or the reason why the SavedModel has no usable VJP."""
    try:
        return replace(callee, gradient=_read_gradient(callee, call, references, order))
    except NotCallableError as e:
        return replace(callee, gradient_missing=str(e))


def _read_gradient(
    callee: CallableModule, call: ModuleCall, references: Sequence[str], order: int
) -> CallableModule:
    node = call.gradient_node
    flat = _find_flat_arguments(call)
    if node is None or flat != tuple(references) or order > _MAX_GRADIENT_ORDER:
        raise NotCallableError("the SavedModel has none for it")
    vjp = _find_gradient_module(call, node, references)
    dtypes = call.node.dtypes("Tout")
    places = _find_argument_indices(vjp, len(references), dtypes)
    if places != sorted(set(places)) or len(vjp.node.dtypes("Tout")) != len(references):
        raise NotCallableError("its gradient in the SavedModel has other arguments than JAX's")
    cotangents = tuple(f"the cotangent of result {i}" for i in range(len(dtypes)))
    gradient = _read_module(
        vjp, f"the gradient of {callee.name}", tuple(places), (*callee.labels, *cotangents)
    )
    vjp_arguments = _find_flat_arguments(vjp)
    if vjp_arguments is None or len(vjp_arguments) != len(references) + len(dtypes):
        return gradient
    return _add_gradient(gradient, vjp, vjp_arguments, order + 1)


def _find_argument_indices(vjp: ModuleCall, first: int, dtypes: Sequence[str]) -> list[int]:
    """Finds the positions of the flat arguments that the VJP's module takes, cotangents last.

    TensorFlow makes the cotangents of integers (float0) itself.

    Raises:
      NotCallableError: the module takes other values.
    """
    float0_places = [first + i for i, dtype in enumerate(dtypes) if not is_differentiable(dtype)]
    places: list[int] = []
    for reference in vjp.node.inputs:
        value = vjp.scope.value(reference)
        if isinstance(value, FlatArgument):
            places.append(value.place)
            continue
        candidates = [place for place in float0_places if not places or place > places[-1]]
        if isinstance(value, Cast) or not candidates:
            raise NotCallableError("TensorFlow computes something between it and its gradient")
        places.append(candidates[0])
    return places


def _find_gradient_module(call: ModuleCall, node: Node, references: Sequence[str]) -> ModuleCall:
    """Finds the only module that the gradient calls."""
    model = call.scope.model
    function = model.graph.find_gradient(node.gradient_type)
    if function is None:
        raise NotCallableError(
            "it was saved without one (tf.saved_model.SaveOptions(experimental_custom_gradients="
            "True) saves it)"
        )
    n_results = len(call.node.dtypes("Tout"))
    arguments: dict[str, Value] = {}
    cotangents = function.arguments[: len(node.inputs)]
    for i, name in enumerate(cotangents):
        # Only the cotangents of the results are used; the IdentityN has others too.
        arguments[name] = (
            FlatArgument(len(references) + i) if i < n_results else Opaque("a cotangent")
        )
    captures = model.captures(function.name)
    tensors = {split_reference(reference): i for i, reference in reversed([*enumerate(references)])}
    capture_names = function.arguments[len(cotangents) :]
    if len(captures) != len(capture_names):
        raise NotCallableError("the SavedModel does not say what its gradient takes")
    for name, capture in zip(capture_names, captures, strict=True):
        place = None
        if capture is not None and capture.function == call.scope.body.name:
            place = tensors.get(split_reference(capture.tensor))
        arguments[name] = Opaque("a captured value") if place is None else FlatArgument(place)
    scope = CallScope(model, function, arguments)
    calls = {v.call for r in function.results if isinstance(v := scope.value(r), ModuleResult)}
    if len(calls) != 1:
        raise NotCallableError(f"its gradient in the SavedModel calls {len(calls)} modules")
    return calls.pop()


def _describe_argument(value: Value, index: int, variables: Mapping[str, str]) -> str:
    if isinstance(value, Input):
        return value.name
    if isinstance(value, GraphVariable) and value.node in variables:
        return f"params[{variables[value.node]!r}]"
    return f"argument {index}"
