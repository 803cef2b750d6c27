"""Traces the outputs of a signature back to inputs, variables, constants and module calls.

It looks through identities, casts and function calls. Results of other operations are `Opaque`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from jax2tf_bridge.saved_model._graph import (
    CALL_MODULE,
    GraphBody,
    LibraryFunction,
    Node,
    split_reference,
)
from jax2tf_bridge.saved_model._meta_graph import MetaGraph

_IDENTITY_OPS = frozenset(
    {
        *("Identity", "IdentityN", "StopGradient", "PreventGradient", "EnsureShape", "Snapshot"),
        *("ReadVariableOp", "PlaceholderWithDefault"),
    }
)
_CALL_OPS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_MAX_STEPS = 500_000
_MAX_DEPTH = 200


@dataclass(frozen=True)
class Input:
    """Input of the signature, or argument of a function that is traced alone."""

    name: str


@dataclass(frozen=True)
class GraphVariable:
    """Variable, identified by its node in the graph."""

    node: str


@dataclass(frozen=True)
class GraphConstant:
    """Constant, identified by its node."""

    node: Node


@dataclass(frozen=True)
class Opaque:
    """Value that cannot be traced further; `reason` describes it."""

    reason: str


@dataclass(frozen=True)
class FlatArgument:
    """Flat argument of a VJP."""

    place: int


@dataclass(frozen=True)
class Cast:
    """Value cast to another dtype."""

    value: Value
    dtype: str


@dataclass(frozen=True)
class ModuleResult:
    """Result of a module call."""

    call: ModuleCall
    index: int


@dataclass(eq=False)
class ModuleCall:
    """XlaCallModule operation.

    Attributes:
      node: the operation.
      scope: the scope of the operation.
      gradient_node: the IdentityN for which the gradient of the module is registered, or None.
    """

    node: Node
    scope: CallScope = field(repr=False)
    gradient_node: Node | None = None

    @property
    def place(self) -> str:
        """Names its location, for messages."""
        function = self.scope.body.name
        return f"{function}/{self.node.name}" if function else self.node.name


Value: TypeAlias = (
    "Input | GraphVariable | GraphConstant | Opaque | FlatArgument | Cast | ModuleResult"
)


def split_casts(value: Value) -> tuple[Value, list[str]]:
    """Splits a value into the value before all casts and the dtypes of the casts, in order."""
    dtypes = []
    while isinstance(value, Cast):
        dtypes.append(value.dtype)
        value = value.value
    return value, dtypes[::-1]


@dataclass(eq=False)
class CallScope:
    """Scope of tensor names: the main graph, or one call of a function.

    Attributes:
      model: the graph of the SavedModel.
      body: the operations of the main graph or of the function.
      arguments: cached values of the function's arguments; for the main graph, its inputs by
        tensor.
      caller: the scope of the call; None for the main graph or a function that is traced alone.
      caller_tensors: the caller's tensor for each argument of the function.
      depth: the number of enclosing calls.
    """

    model: MetaGraph
    body: GraphBody
    arguments: dict[str, Value]
    caller: CallScope | None = field(default=None, repr=False)
    caller_tensors: Mapping[str, str] = field(default_factory=dict)
    depth: int = 0
    _calls: dict[str, CallScope] = field(default_factory=dict)
    _modules: dict[str, ModuleCall] = field(default_factory=dict)

    @staticmethod
    def of_graph(model: MetaGraph, inputs: Mapping[str, str]) -> CallScope:
        """Makes the scope of the main graph."""
        arguments: dict[str, Value] = {
            split_reference(tensor)[0]: Input(name) for name, tensor in inputs.items()
        }
        return CallScope(model, model.graph.main, arguments)

    def value(self, reference: str) -> Value:
        """Traces a tensor of this graph or function to its origin.

        Raises:
          FileFormatError: the graph is damaged.
        """
        steps: list[str | tuple[CallScope, str]] = []
        value = self._find_origin(reference, steps)
        for step in reversed(steps):
            if isinstance(step, str):
                value = Cast(value, step)
            else:
                scope, argument = step
                scope.arguments[argument] = value
        return value

    def _find_origin(self, reference: str, steps: list[str | tuple[CallScope, str]]) -> Value:
        """Traces a tensor to its origin.

        Chains of calls are traced without recursion, because they may be long.

        Args:
          reference: the tensor.
          steps: receives the dtype of each cast on the way, and each function argument.
        """
        scope: CallScope = self
        for _ in range(_MAX_STEPS):
            name, index = split_reference(reference)
            if name in scope.arguments:
                return scope.arguments[name]
            if scope.caller is not None and name in scope.caller_tensors:
                steps.append((scope, name))
                scope, reference = scope.caller, scope.caller_tensors[name]
                continue
            node = scope.body.by_name.get(name)
            if node is None:
                raise scope.body.error(f"there is no operation {name!r}")
            if node.op == CALL_MODULE:
                if index >= len(node.dtypes("Tout")):
                    raise scope.body.error(f"the operation {name!r} has no result {index}")
                return ModuleResult(scope._get_module_call(node), index)
            if node.op == "VarHandleOp":
                return GraphVariable(node.name)
            if node.op == "Const":
                return GraphConstant(node)
            if node.op == "Cast" and node.inputs:
                steps.append(node.dtype("DstT"))
                reference = node.inputs[0]
            elif node.op in _IDENTITY_OPS:
                if index >= len(node.inputs):
                    raise scope.body.error(f"the operation {name!r} has no result {index}")
                scope._record_gradient(node)
                reference = node.inputs[index]
            else:
                call = scope._enter_call(node)
                if call is None:
                    where = f" in the function {scope.body.name}" if scope.body.name else ""
                    return Opaque(f"the operation {node.op} ({node.name}{where})")
                function, scope = call
                if index >= len(function.results):
                    raise function.error(f"it has no result {index}")
                reference = function.results[index]
        raise self.body.error("operations depend on themselves")

    def _get_module_call(self, node: Node) -> ModuleCall:
        if node.name not in self._modules:
            self._modules[node.name] = ModuleCall(node, self)
        return self._modules[node.name]

    def _record_gradient(self, node: Node) -> None:
        # The IdentityN of tf.custom_gradient names the gradient of the module call before it.
        if node.op != "IdentityN" or not node.gradient_type or not node.inputs:
            return
        first = self.body.by_name.get(split_reference(node.inputs[0])[0])
        if first is not None and first.op == CALL_MODULE:
            self._get_module_call(first).gradient_node = node

    def _enter_call(self, node: Node) -> tuple[LibraryFunction, CallScope] | None:
        """Returns the function that a node calls, and its scope; None for other operations."""
        names = node.functions("f") if node.op in _CALL_OPS else (node.op,)
        function = self.model.graph.functions.get(names[0]) if names else None
        if function is None:
            return None
        if node.name not in self._calls:
            if self.depth > _MAX_DEPTH:
                raise self.body.error("functions call each other without end")
            if len(function.arguments) != len(node.inputs):
                problem = f"{node.name!r} calls {function.name} with other arguments"
                raise self.body.error(problem)
            tensors = dict(zip(function.arguments, node.inputs, strict=True))
            scope = CallScope(self.model, function, {}, self, tensors, self.depth + 1)
            self._calls[node.name] = scope
        return function, self._calls[node.name]
