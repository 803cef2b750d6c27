"""Reads the object graph of a SavedModel: variables and functions, by the paths to them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from jax2tf_bridge.saved_model._nodes import Node
from jax2tf_bridge.saved_model._protobuf import Message
from jax2tf_bridge.saved_model._schema import (
    CapturedTensorField,
    ConcreteFunctionField,
    MetaGraphField,
    ObjectField,
    ObjectGraphField,
    VariableField,
)
from jax2tf_bridge.saved_model._tensors import TensorType, typed

_SIGNATURES = "signatures"
"""The child of the root that holds the signatures, which are read from their own place."""

_LONGEST_PATH = 1000
"""Characters; a chain of objects can be as long as the file."""


@dataclass(frozen=True)
class Variable:
    """A variable of the model.

    Attributes:
      path: how it is reached from the loaded object, as "params/w"; its name where it is not.
      name: as TensorFlow calls it.
      type: its dtype and shape.
      trainable: whether optimizers change it; None where the file does not say.
    """

    path: str
    name: str
    type: TensorType
    trainable: bool | None


@dataclass(frozen=True)
class Objects:
    """What hangs on the loaded object.

    Attributes:
      variables: in the order of the file.
      methods: the names of the concrete functions by the path to the function.
    """

    variables: tuple[Variable, ...] = ()
    methods: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Capture:
    """A tensor within a function, which a gradient needs."""

    function: str
    tensor: str


@dataclass(frozen=True)
class _Object:
    children: tuple[tuple[str, int], ...]
    functions: tuple[str, ...] | None
    variable: Message | None


def read_objects(meta_graph: Message) -> Objects | None:
    """The object graph of a MetaGraphDef; None if it has none, as models of TensorFlow 1."""
    objects = [
        _object(message)
        for graph in meta_graph.messages(MetaGraphField.OBJECT_GRAPH, "the object graph")
        for message in graph.messages(ObjectGraphField.NODES, "an object")
    ]
    if not objects:
        return None
    paths = dict(_paths(objects))
    variables = []
    methods: dict[str, tuple[str, ...]] = {}
    for i, entry in enumerate(objects):
        if entry.variable is not None:
            variables.append(_variable(entry.variable, paths.get(i)))
        elif entry.functions and i in paths and _is_method(paths[i]):
            methods[paths[i]] = entry.functions
    return Objects(tuple(variables), methods)


def variables_of_nodes(nodes: tuple[Node, ...]) -> tuple[Variable, ...]:
    """The variables by the nodes that hold them, for models without an object graph."""
    found = []
    for node in nodes:
        if node.op != "VarHandleOp":
            continue
        if "dtype" in node.attributes and "shape" in node.attributes:
            kind = TensorType(node.dtype("dtype"), node.shape("shape"))
            found.append(Variable(node.name, node.name, kind, None))
    return tuple(found)


def read_captures(meta_graph: Message, function: str) -> tuple[Capture | None, ...]:
    """What a function of a MetaGraphDef takes after its arguments.

    None stands for what is no tensor of a function.
    """
    for graph in meta_graph.messages(MetaGraphField.OBJECT_GRAPH, "the object graph"):
        for part in graph.fields():
            if part.number != ObjectGraphField.CONCRETE_FUNCTIONS:
                continue
            name, concrete = graph.entry(part, "a concrete function")
            if name == function:
                objects = list(graph.messages(ObjectGraphField.NODES, "an object"))
                return tuple(
                    _capture(concrete, objects, index)
                    for inputs in concrete.fields()
                    if inputs.number == ConcreteFunctionField.BOUND_INPUTS
                    for index in concrete.integers(inputs)
                )
    return ()


def _capture(concrete: Message, objects: Sequence[Message], index: int) -> Capture | None:
    if not 0 <= index < len(objects):
        problem = f"it names the object {index} of {len(objects)}"
        raise concrete.error(concrete.start, problem)
    for tensor in objects[index].messages(ObjectField.CAPTURED_TENSOR, "a captured tensor"):
        return Capture(
            tensor.text_of(CapturedTensorField.FUNCTION), tensor.text_of(CapturedTensorField.NAME)
        )
    return None


def _is_method(path: str) -> bool:
    return path != _SIGNATURES and not path.startswith(f"{_SIGNATURES}/")


def _object(message: Message) -> _Object:
    children: list[tuple[str, int]] = []
    functions: list[str] | None = None
    variable = None
    for part in message.fields():
        if part.number == ObjectField.CHILDREN:
            child = message.message(part, "a child of an object")
            children.append((child.text_of(2), child.integer_of(1)))
        elif part.number == ObjectField.FUNCTION:
            function = message.message(part, "a function object")
            functions = [function.text(f) for f in function.fields() if f.number == 1]
        elif part.number == ObjectField.VARIABLE:
            variable = message.message(part, "a variable")
    return _Object(tuple(children), None if functions is None else tuple(functions), variable)


def _paths(objects: list[_Object]) -> Iterator[tuple[int, str]]:
    """The shortest path to each object; those below functions are their traces."""
    seen = {0}
    waiting = deque([(0, "")])
    while waiting:
        index, path = waiting.popleft()
        yield index, path
        if objects[index].functions is not None:
            continue
        for name, child in objects[index].children:
            if child in seen or not 0 <= child < len(objects):
                continue
            seen.add(child)
            below = f"{path}/{name}" if path else name
            waiting.append((child, below[:_LONGEST_PATH]))


def _variable(message: Message, path: str | None) -> Variable:
    name = message.text_of(VariableField.NAME)
    return Variable(
        path or name,
        name,
        typed(message, VariableField.DTYPE, VariableField.SHAPE),
        message.integer_of(VariableField.TRAINABLE) != 0,
    )
