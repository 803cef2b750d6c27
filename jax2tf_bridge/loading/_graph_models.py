"""Loads SavedModels of other tools from their graph."""

from __future__ import annotations

import graphlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax2tf_bridge._dtypes import find_dtype
from jax2tf_bridge.errors import FileFormatError, StructureError, format_bullets
from jax2tf_bridge.loading._arrays import convert_numbers, make_jax_array
from jax2tf_bridge.loading._called_modules import (
    BoundModule,
    NotCallableError,
    bind_module,
)
from jax2tf_bridge.loading._functions import LoadedModel, LoadedSignature, list_input_problems
from jax2tf_bridge.loading._modules import ModuleFunction
from jax2tf_bridge.portable import Aval
from jax2tf_bridge.saved_model import (
    CALL_MODULE,
    CallScope,
    Graph,
    GraphConstant,
    GraphSignature,
    GraphVariable,
    Input,
    MetaGraph,
    ModuleCall,
    ModuleResult,
    Node,
    Opaque,
    SavedVariables,
    Value,
    read_array,
    read_strings,
    read_tensor_spec,
    split_casts,
    split_reference,
    variable_name,
)
from jax2tf_bridge.storage import AnyPath

_MAX_CALLS = 2000
"""Maximum number of module calls in a signature.

A small file can make 2^n calls, if each of its n functions calls the next one twice.
"""

_MAX_CONSTANT_BYTES = 1 << 31
"""Maximum size of all constants in bytes; a few bytes of a file can stand for a large constant."""


class SavedGraphFunction:
    """A signature as a function of (params, **inputs), which returns its outputs by name.

    Attributes:
      name: the name of the signature.
      takes_params: True, because the first argument is the weights, a dict by name.
      inputs, outputs: the inputs and the outputs by name.
      variables: the name of each variable that it reads, by node.
      gradient_missing: the reason for each called module that has no gradient.
    """

    takes_params = True

    def __init__(
        self,
        name: str,
        signature: GraphSignature,
        outputs: Mapping[str, Value],
        calls: Sequence[BoundModule],
        variables: Mapping[str, str],
        constants: Mapping[GraphConstant, Any],
    ) -> None:
        self.name, self.inputs, self.outputs = name, signature.inputs, signature.outputs
        self.gradient_missing = tuple(
            bound.callee.gradient_missing for bound in calls if bound.callee.gradient is None
        )
        self._values, self._calls = outputs, calls
        self._modules = {
            callee: ModuleFunction(callee) for callee in {bound.callee for bound in calls}
        }
        self.variables, self._constants = variables, constants

    def __call__(self, params: Mapping[str, Any], /, *args: Any, **inputs: Any) -> dict[str, Any]:
        """Runs the signature on the weights and the inputs.

        Raises:
          StructureError: a weight or an input is missing, or an input is unknown or passed by
            position.
          ShapeError, DTypeError: the inputs do not fit.
        """
        self._check(params, args, inputs)
        arrays = {
            name: convert_numbers(value, name, self.inputs[name].type)
            for name, value in inputs.items()
        }
        results: dict[ModuleCall, Sequence[Any]] = {}

        def compute(value: Value) -> Any:
            source, dtypes = split_casts(value)
            array = get_array(source)
            for dtype in dtypes:
                array = jnp.asarray(array).astype(dtype)
            return array

        def get_array(source: Value) -> Any:
            match source:
                case Input(name):
                    return arrays[name]
                case GraphVariable(node):
                    return params[self.variables[node]]
                case GraphConstant():
                    return self._constants[source]
                case ModuleResult(call, index):
                    return results[call][index]
            raise AssertionError(source)

        for bound in self._calls:
            arguments = [compute(value) for value in bound.arguments]
            results[bound.call] = self._modules[bound.callee](arguments)
        return {name: compute(value) for name, value in self._values.items()}

    def _check(self, params: Any, args: Sequence[Any], inputs: Mapping[str, Any]) -> None:
        problems = list_input_problems(self.inputs, args, inputs)
        names = self.variables.values()
        if isinstance(params, Mapping):
            problems += [f"params[{name!r}] is missing" for name in names if name not in params]
        else:
            problems.append(f"params must be a dict of weights, not a {type(params).__name__}")
        if problems:
            raise StructureError(
                f"The arguments are not those of {self!r}:{format_bullets(problems)}"
            )

    def __repr__(self) -> str:
        inputs = ", ".join(f"{name}: {port.type}" for name, port in self.inputs.items())
        outputs = ", ".join(f"{name}: {port.type}" for name, port in self.outputs.items())
        return f"<{type(self).__name__} {self.name}: (params, {inputs}) -> ({outputs})>"


def load_graph_model(folder: AnyPath, model: MetaGraph) -> LoadedModel:
    """Loads those signatures of a graph that only call modules.

    Raises:
      FileFormatError: no signature can be loaded, or the SavedModel is damaged.
      DTypeError: the model has 64-bit weights, and jax_enable_x64 is off.
      OSError: the SavedModel cannot be read.
    """
    _check_has_modules(folder, model.graph)
    keys = _find_checkpoint_keys(model)
    names = {node: variable_name(key) for node, key in keys.items()}
    constants = _Constants()
    functions: dict[str, SavedGraphFunction] = {}
    problems: dict[str, str] = {}
    for name, signature in model.signatures.items():
        try:
            functions[name] = _make_function(model, name, signature, names, constants)
        except NotCallableError as e:
            problems[name] = str(e)
    if not functions:
        raise _make_nothing_loaded_error(folder, problems)
    nodes = {node for function in functions.values() for node in function.variables}
    variables = SavedVariables(folder)
    params = {}
    for node in sorted(nodes):
        entry = variables.get_entry(keys[node])
        aval = Aval(entry.shape, entry.dtype)
        data = variables.read(keys[node], entry.dtype, entry.shape)
        params[names[node]] = make_jax_array(data, aval, f"The variable {names[node]}")
    signatures = {name: _make_signature(function, params) for name, function in functions.items()}
    return LoadedModel(folder, functions, signatures, params, {}, problems=problems)


class _Constants(dict[GraphConstant, jax.Array]):
    """Arrays of the constants of a model. A lookup reads a constant that is not there yet."""

    _size = 0

    def __missing__(self, constant: GraphConstant) -> jax.Array:
        node = constant.node
        tensor = node.tensor("value")
        if tensor is None:
            raise node.error("is a constant without a value")
        _check_dtype(read_tensor_spec(tensor).dtype, f"the constant {node.name}")
        array = jnp.asarray(read_array(tensor, jnp.dtype))
        self._size += array.nbytes
        if self._size > _MAX_CONSTANT_BYTES:
            raise node.error(f"and other constants take more than {_MAX_CONSTANT_BYTES:,} bytes")
        self[constant] = array
        return array


def _make_function(
    model: MetaGraph,
    name: str,
    signature: GraphSignature,
    names: Mapping[str, str],
    constants: _Constants,
) -> SavedGraphFunction:
    scope = CallScope.of_graph(model, {n: port.tensor for n, port in signature.inputs.items()})
    outputs = {n: scope.value(port.tensor) for n, port in signature.outputs.items()}
    calls = _sort_calls(outputs.values(), name, names)
    values = [*outputs.values(), *(value for bound in calls for value in bound.arguments)]
    variables: dict[str, str] = {}
    for leaf, dtypes in map(split_casts, values):
        for dtype in dtypes:
            _check_dtype(dtype, "a cast")
        if isinstance(leaf, Opaque):
            raise NotCallableError(f"it needs {leaf.reason}, which only TensorFlow can run")
        if isinstance(leaf, GraphVariable):
            if leaf.node not in names:
                raise NotCallableError(f"it reads the variable {leaf.node}, which is not restored")
            variables[leaf.node] = names[leaf.node]
        elif isinstance(leaf, GraphConstant):
            _ = constants[leaf]  # reads it
    if not calls:
        raise NotCallableError("it calls no JAX function")
    return SavedGraphFunction(name, signature, outputs, calls, variables, constants)


def _check_dtype(name: str, user: str) -> None:
    try:
        dtype = None if find_dtype(name) is None else jnp.dtype(name)
    except TypeError:
        dtype = None
    if dtype is None:
        raise NotCallableError(
            f"it needs {user}, whose dtype is {name}, and JAX has no such arrays"
        )


def _sort_calls(values: Iterable[Value], name: str, names: Mapping[str, str]) -> list[BoundModule]:
    """Sorts the calls that values need topologically, so that each follows its dependencies."""
    bound: dict[ModuleCall, BoundModule] = {}
    sorter: graphlib.TopologicalSorter[ModuleCall] = graphlib.TopologicalSorter()
    waiting = _find_calls(values)
    while waiting:
        call = waiting.pop()
        if call in bound:
            continue
        if len(bound) == _MAX_CALLS:
            raise NotCallableError(f"it calls more than {_MAX_CALLS:,} modules, one by one")
        bound[call] = bind_module(call, name, names)
        dependencies = _find_calls(bound[call].arguments)
        sorter.add(call, *dependencies)
        waiting += dependencies
    try:
        return [bound[call] for call in sorter.static_order()]
    except graphlib.CycleError as e:
        raise e.args[1][0].scope.body.error("operations depend on themselves") from e


def _find_calls(values: Iterable[Value]) -> list[ModuleCall]:
    return [v.call for v, _ in map(split_casts, values) if isinstance(v, ModuleResult)]


def _make_signature(function: SavedGraphFunction, params: Mapping[str, Any]) -> LoadedSignature:
    def call(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        return function(params, **inputs)

    inputs, outputs = (
        {name: str(port.type) for name, port in ports.items()}
        for ports in (function.inputs, function.outputs)
    )
    return LoadedSignature(function.name, inputs, outputs, call)


def _check_has_modules(folder: AnyPath, graph: Graph) -> None:
    if any(node.op == CALL_MODULE for _, node in graph.iterate_nodes()):
        return
    raise FileFormatError(
        f"{folder} holds no JAX function: none of its {len(graph.functions)} functions has an "
        f"{CALL_MODULE} operation, as save(), jax2tf and Orbax write it. jax2tf's models without "
        "native serialization (before 2023) contain only TensorFlow's operations.",
        file=str(folder),
    )


def _make_nothing_loaded_error(folder: AnyPath, problems: Mapping[str, str]) -> FileFormatError:
    if not problems:
        return FileFormatError(
            f"{folder} has no signatures, so it is unknown which of its functions to call. "
            "Save it with signatures=...",
            file=str(folder),
        )
    lines = format_bullets([f"{name}: {problem}" for name, problem in problems.items()])
    return FileFormatError(
        f"{folder} has no signature that JAX alone can run:{lines}\nLoad it with TensorFlow, or "
        "save the JAX function by itself.",
        file=str(folder),
    )


def _find_checkpoint_keys(model: MetaGraph) -> dict[str, str]:
    """Maps each variable node of the graph to the checkpoint key that is restored into it."""
    keys: dict[str, str] = {}
    nodes = model.graph.main.by_name
    node = nodes.get(split_reference(model.restore)[0])
    names = () if node is None else node.functions("f")
    function = model.graph.functions.get(names[0]) if names else None
    if node is None or function is None:
        return keys
    inputs: dict[str, Value] = {}
    for argument, reference in zip(function.arguments, node.inputs, strict=False):
        source = nodes.get(split_reference(reference)[0])
        if source is not None and source.op == "VarHandleOp":
            inputs[argument] = GraphVariable(source.name)
        else:
            inputs[argument] = Opaque("a file")
    scope = CallScope(model, function, inputs)
    names_of: dict[Node, Sequence[bytes]] = {}
    for assignment in function.nodes:
        if assignment.op != "AssignVariableOp" or len(assignment.inputs) != 2:
            continue
        handle = scope.value(assignment.inputs[0])
        key = _find_restored_key(scope, assignment.inputs[1], names_of)
        if isinstance(handle, GraphVariable) and key is not None:
            keys[handle.node] = key
    return keys


def _find_restored_key(
    scope: CallScope, reference: str, names_of: dict[Node, Sequence[bytes]]
) -> str | None:
    """Finds the key that a tensor is restored from.

    One RestoreV2 node restores all variables, so `names_of` caches the keys of each such node.
    """
    for _ in range(100):
        name, index = split_reference(reference)
        node = scope.body.by_name.get(name)
        if node is None:
            return None
        if node.op == "RestoreV2" and len(node.inputs) > 1:
            if node not in names_of:
                names = scope.value(node.inputs[1])
                tensor = names.node.tensor("value") if isinstance(names, GraphConstant) else None
                names_of[node] = () if tensor is None else read_strings(tensor)
            keys = names_of[node]
            return keys[index].decode(errors="replace") if index < len(keys) else None
        if node.op != "Identity" or not node.inputs:
            return None
        reference = node.inputs[0]
    return None
