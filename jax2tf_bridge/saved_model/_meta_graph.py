"""Reads a graph of a SavedModel: its signatures, and its objects by path."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from jax2tf_bridge.saved_model._graph import Graph
from jax2tf_bridge.saved_model._schema import (
    CapturedTensorField,
    ConcreteFunctionField,
    MetaGraphField,
    MetaInfoField,
    ObjectField,
    ObjectGraphField,
    SaverField,
    SignatureField,
    TensorInfoField,
    VariableField,
)
from jax2tf_bridge.saved_model._tensors import TensorSpec, read_spec
from jax2tf_bridge.serialization import ProtoMessage

_SIGNATURES = "signatures"
"""Attribute of the root that has the signatures; they are read from the MetaGraphDef instead."""

_MAX_PATH_LENGTH = 1000
"""Maximum number of characters of a path; a chain of objects can be as long as the file."""


@dataclass(frozen=True)
class ModelVariable:
    """Variable of the model.

    Attributes:
      path: the path from the loaded object, such as "params/w"; the name if there is no path.
      name: TensorFlow's name.
      type: the dtype and shape.
      trainable: whether it is trainable; None if unknown.
    """

    path: str
    name: str
    type: TensorSpec
    trainable: bool | None


@dataclass(frozen=True)
class Objects:
    """Variables and methods of the loaded object.

    Attributes:
      variables: the variables in the order of the file.
      methods: maps the paths of functions to the names of their concrete functions.
    """

    variables: tuple[ModelVariable, ...]
    methods: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Capture:
    """Captured intermediate tensor of a function, which a gradient needs."""

    function: str
    tensor: str


@dataclass(frozen=True)
class _Object:
    children: tuple[tuple[str, int], ...]
    functions: tuple[str, ...] | None
    variable: ProtoMessage | None


def _read_objects(messages: Iterable[ProtoMessage]) -> Objects | None:
    objects = list(map(_read_object, messages))
    if not objects:
        return None
    paths = dict(_iter_paths(objects))
    variables = []
    methods: dict[str, tuple[str, ...]] = {}
    for i, entry in enumerate(objects):
        if entry.variable is not None:
            variables.append(_read_variable(entry.variable, paths.get(i)))
        elif entry.functions and i in paths and paths[i].partition("/")[0] != _SIGNATURES:
            methods[paths[i]] = entry.functions
    return Objects(tuple(variables), methods)


def _read_capture(
    concrete: ProtoMessage, objects: Sequence[ProtoMessage], index: int
) -> Capture | None:
    if not 0 <= index < len(objects):
        problem = f"it names the object {index} of {len(objects)}"
        raise concrete.error(concrete.start, problem)
    for tensor in objects[index].messages(ObjectField.CAPTURED_TENSOR, "a captured tensor"):
        return Capture(
            tensor.text_of(CapturedTensorField.FUNCTION), tensor.text_of(CapturedTensorField.NAME)
        )
    return None


def _read_object(message: ProtoMessage) -> _Object:
    children: list[tuple[str, int]] = []
    functions: tuple[str, ...] | None = None
    variable = None
    for part in message.fields():
        if part.number == ObjectField.CHILDREN:
            child = message.message(part, "a child of an object")
            children.append((child.text_of(2), child.integer_of(1)))
        elif part.number == ObjectField.FUNCTION:
            function = message.message(part, "a function object")
            functions = tuple(function.text(f) for f in function.fields() if f.number == 1)
        elif part.number == ObjectField.VARIABLE:
            variable = message.message(part, "a variable")
    return _Object(tuple(children), functions, variable)


def _iter_paths(objects: list[_Object]) -> Iterator[tuple[int, str]]:
    """Yields the index and the shortest path of each object; traces of functions have no path."""
    seen = {0}
    waiting = deque([(0, "")])
    while waiting:
        index, path = waiting.popleft()
        yield index, path
        if objects[index].functions is not None:
            continue
        # A function's own name tells more than `__call__`, so it is visited first.
        children = sorted(objects[index].children, key=lambda child: child[0] == "__call__")
        for name, child in children:
            if child in seen or not 0 <= child < len(objects):
                continue
            seen.add(child)
            child_path = f"{path}/{name}" if path else name
            waiting.append((child, child_path[:_MAX_PATH_LENGTH]))


def _read_variable(message: ProtoMessage, path: str | None) -> ModelVariable:
    name = message.text_of(VariableField.NAME)
    return ModelVariable(
        path or name,
        name,
        read_spec(message, VariableField.DTYPE, VariableField.SHAPE),
        message.integer_of(VariableField.TRAINABLE) != 0,
    )


_INTERNAL_SIGNATURES = frozenset({"__saved_model_init_op", "__saved_model_train_op"})
"""Names of TensorFlow's own signatures, for initialization and training."""


@dataclass(frozen=True)
class SignaturePort:
    """Input or output of a signature.

    Attributes:
      name: the name for callers.
      type: the dtype and shape.
      tensor: the tensor of the graph.
      default: the TensorProto that takes its place if callers omit it; None if they may not.
    """

    name: str
    type: TensorSpec
    tensor: str
    default: ProtoMessage | None = None


@dataclass(frozen=True)
class GraphSignature:
    """Signature: inputs and outputs by name."""

    inputs: Mapping[str, SignaturePort]
    outputs: Mapping[str, SignaturePort]


class MetaGraph:
    """Graph of the model; its parts are read on demand.

    Attributes:
      tensorflow: the TensorFlow version that wrote it; "" if unknown.
      tags: the tags that select the graph.
      restore: the node that restores its variables; "" without any.
    """

    def __init__(self, message: ProtoMessage) -> None:
        """Reads the tags and the version of a MetaGraphDef.

        Raises:
          FileFormatError: it is damaged. All methods raise this for damaged parts.
        """
        self._message = message
        self.tensorflow = self.restore = ""
        self.tags: list[str] = []
        for part in message.fields():
            if part.number == MetaGraphField.META_INFO:
                info = message.message(part, "the graph's information")
                for field in info.fields():
                    if field.number == MetaInfoField.TAGS:
                        self.tags.append(info.text(field))
                    elif field.number == MetaInfoField.TENSORFLOW_VERSION:
                        self.tensorflow = info.text(field)
            elif part.number == MetaGraphField.SAVER:
                saver = message.message(part, "the saver")
                self.restore = saver.text_of(SaverField.RESTORE)

    @cached_property
    def graph(self) -> Graph:
        """Nodes and functions."""
        return Graph(self._message)

    @cached_property
    def objects(self) -> Objects | None:
        """Variables and methods of the loaded object; None in models of TensorFlow 1."""
        return _read_objects(self._object_messages)

    @cached_property
    def _object_graphs(self) -> list[ProtoMessage]:
        return list(self._message.messages(MetaGraphField.OBJECT_GRAPH, "the object graph"))

    @cached_property
    def _object_messages(self) -> list[ProtoMessage]:
        return [
            message
            for graph in self._object_graphs
            for message in graph.messages(ObjectGraphField.NODES, "an object")
        ]

    @cached_property
    def _concrete_functions(self) -> dict[str, ProtoMessage]:
        return dict(
            graph.entry(field, "a concrete function")
            for graph in self._object_graphs
            for field in graph.fields()
            if field.number == ObjectGraphField.CONCRETE_FUNCTIONS
        )

    @cached_property
    def signatures(self) -> Mapping[str, GraphSignature]:
        """Signatures by name, without TensorFlow's own."""
        signatures = {}
        for field in self._message.fields():
            if field.number == MetaGraphField.SIGNATURES:
                name, signature = self._message.entry(field, "a signature")
                if name not in _INTERNAL_SIGNATURES:
                    signatures[name] = _read_signature(signature)
        return signatures

    def captures(self, function: str) -> tuple[Capture | None, ...]:
        """Returns the captures of a function, which follow its arguments; None for non-tensors."""
        concrete = self._concrete_functions.get(function)
        if concrete is None:
            return ()
        return tuple(
            _read_capture(concrete, self._object_messages, index)
            for inputs in concrete.fields()
            if inputs.number == ConcreteFunctionField.BOUND_INPUTS
            for index in concrete.integers(inputs)
        )

    def variables(self) -> tuple[ModelVariable, ...]:
        """Returns the variables: of the objects, or of the nodes in a model of TensorFlow 1."""
        if self.objects is not None:
            return self.objects.variables
        return tuple(
            ModelVariable(
                node.name, node.name, TensorSpec(node.dtype("dtype"), node.shape("shape")), None
            )
            for node in self.graph.main.nodes
            if node.op == "VarHandleOp" and {"dtype", "shape"} <= node.attributes.keys()
        )

    def assets(self) -> Iterator[str]:
        """Yields the names of the files that the model needs in assets/."""
        for asset in self._message.messages(MetaGraphField.ASSETS, "an asset"):
            yield asset.text_of(2)


def _read_signature(message: ProtoMessage) -> GraphSignature:
    inputs: dict[str, SignaturePort] = {}
    outputs: dict[str, SignaturePort] = {}
    defaults: dict[str, ProtoMessage] = {}
    for field in message.fields():
        if field.number in (SignatureField.INPUTS, SignatureField.OUTPUTS):
            name, info = message.entry(field, "an entry of a signature")
            ports = inputs if field.number == SignatureField.INPUTS else outputs
            spec = read_spec(info, TensorInfoField.DTYPE, TensorInfoField.SHAPE)
            ports[name] = SignaturePort(name, spec, info.text_of(TensorInfoField.NAME))
        elif field.number == SignatureField.DEFAULTS:
            name, default = message.entry(field, "an entry of a signature")
            defaults[name] = default
    for name in inputs.keys() & defaults.keys():
        inputs[name] = replace(inputs[name], default=defaults[name])
    return GraphSignature(inputs, outputs)
