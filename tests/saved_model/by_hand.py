"""Builds small SavedModels without TensorFlow, sound or damaged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jax2tf_bridge.saved_model import bytes_field, varint_field

FLOAT32, INT32, INT4 = 1, 3, 29

Sizes = Sequence[int | None]


def shape(sizes: Sizes) -> bytes:
    """A TensorShapeProto; None is an open size."""
    return b"".join(bytes_field(2, varint_field(1, -1 if d is None else d)) for d in sizes)


def map_entry(key: str, value: bytes) -> bytes:
    return bytes_field(1, key) + bytes_field(2, value)


@dataclass(frozen=True)
class Call:
    """An XlaCallModule node."""

    module: bytes
    version: int = 8
    platforms: Sequence[str] = ()
    disabled_checks: Sequence[str] = ()
    arguments: Sequence[int] = (FLOAT32,)
    results: Sequence[int] = (FLOAT32,)
    name: str = "XlaCallModule"
    flags: Sequence[str] = ()
    inputs: Sequence[str] = ("x",)

    def node(self) -> bytes:
        attributes = {
            "module": bytes_field(2, self.module),
            "version": varint_field(3, self.version),
            "platforms": bytes_field(1, b"".join(bytes_field(2, p) for p in self.platforms)),
            "disabled_checks": bytes_field(
                1, b"".join(bytes_field(2, c) for c in self.disabled_checks)
            ),
            "Tin": bytes_field(1, b"".join(varint_field(6, t) for t in self.arguments)),
            "Tout": bytes_field(1, bytes_field(6, bytes(self.results))),
            **{flag: varint_field(5, 1) for flag in self.flags},
        }
        return node(self.name, "XlaCallModule", self.inputs, attributes)


def node(
    name: str, op: str, inputs: Sequence[str] = (), attributes: Mapping[str, bytes] | None = None
) -> bytes:
    """A NodeDef."""
    return (
        bytes_field(1, name)
        + bytes_field(2, op)
        + b"".join(bytes_field(3, i) for i in inputs)
        + b"".join(bytes_field(5, map_entry(k, v)) for k, v in (attributes or {}).items())
    )


def function(name: str, *nodes: bytes, results: str = "", returned: str = "") -> bytes:
    """A function of one argument x, in the library."""
    signature = bytes_field(1, name) + bytes_field(2, bytes_field(1, "x"))
    signature += bytes_field(3, bytes_field(1, results)) if results else b""
    body = b"".join(bytes_field(3, each) for each in nodes)
    entry = bytes_field(4, map_entry(results, returned.encode())) if returned else b""
    return bytes_field(1, bytes_field(1, signature) + body + entry)


def doubling(count: int, *nodes: bytes, returned: str = "x") -> bytes:
    """Functions f0 to f<count>, each of which calls the one before twice; f0 has the nodes."""
    functions = function("f0", *nodes, results="y", returned=returned)
    for i in range(count):
        calls = (node("a", f"f{i}", ["x"]), node("b", f"f{i}", ["a:y:0"]))
        functions += function(f"f{i + 1}", *calls, results="y", returned="b:y:0")
    return functions


def calling(name: str, function: str) -> bytes:
    """A node that calls a function."""
    target = bytes_field(10, bytes_field(1, function))
    return node(name, "StatefulPartitionedCall", ["x"], {"f": target})


def differentiable(name: str, gradient_type: str) -> bytes:
    """A node whose gradient is registered under a name."""
    return node(name, "IdentityN", attributes={"_gradient_op_type": bytes_field(2, gradient_type)})


def preventing(message: str) -> bytes:
    """A node that refuses to be differentiated."""
    return node("last", "PreventGradient", attributes={"message": bytes_field(2, message)})


def constant(name: str, sizes: Sequence[int]) -> bytes:
    """A node with an array of float32 zeros."""
    count = 1
    for size in sizes:
        count *= size
    tensor = (
        varint_field(1, FLOAT32) + bytes_field(2, shape(sizes)) + bytes_field(4, bytes(4 * count))
    )
    return node(name, "Const", attributes={"value": bytes_field(8, tensor)})


@dataclass(frozen=True)
class Model:
    """A SavedModel with one signature, whose node calls the function `main`.

    Attributes:
      functions: the nodes of each function.
      gradients: the gradient functions by the type that they are registered for.
      inputs, outputs: the sizes of the signature's inputs and outputs by name.
      defaults: the names of inputs with a default.
      nodes: more nodes of the graph.
      variables: the shapes of the variables by path below the root.
      methods: the functions by the name of the method.
      assets: the names of the files in assets/.
      name: the name of the signature.
      has_objects: whether it has an object graph.
    """

    functions: Mapping[str, Sequence[bytes]]
    gradients: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, Sizes] = field(default_factory=lambda: {"x": (None, 3)})
    outputs: Mapping[str, Sizes] = field(default_factory=lambda: {"y": (None, 3)})
    defaults: Sequence[str] = ()
    nodes: Sequence[bytes] = ()
    variables: Mapping[str, Sequence[int]] = field(default_factory=dict)
    methods: Mapping[str, str] = field(default_factory=dict)
    assets: Sequence[str] = ()
    name: str = "serving_default"
    has_objects: bool = True

    def proto(self) -> bytes:
        """saved_model.pb."""
        functions = b"".join(
            bytes_field(1, bytes_field(1, bytes_field(1, name)) + _nodes(nodes))
            for name, nodes in self.functions.items()
        )
        registered = b"".join(
            bytes_field(3, bytes_field(1, function) + bytes_field(2, kind))
            for kind, function in self.gradients.items()
        )
        graph = b"".join(bytes_field(1, n) for n in (calling("call", "main"), *self.nodes))
        graph += bytes_field(2, functions + registered)
        info = bytes_field(4, "serve") + bytes_field(5, "2.21.0")
        signature = (
            b"".join(bytes_field(1, map_entry(k, _info(k, v))) for k, v in self.inputs.items())
            + b"".join(
                bytes_field(2, map_entry(k, _info("call:0", v))) for k, v in self.outputs.items()
            )
            + b"".join(bytes_field(4, map_entry(k, b"")) for k in self.defaults)
        )
        meta_graph = (
            bytes_field(1, info)
            + bytes_field(2, graph)
            + bytes_field(5, map_entry(self.name, signature))
            + b"".join(bytes_field(6, bytes_field(2, name)) for name in self.assets)
            + (bytes_field(7, self._objects()) if self.has_objects else b"")
        )
        return varint_field(1, 1) + bytes_field(2, meta_graph)

    def _objects(self) -> bytes:
        names = [*self.variables, *self.methods]
        root = b"".join(
            bytes_field(1, varint_field(1, i) + bytes_field(2, name))
            for i, name in enumerate(names, 1)
        )
        objects = [root]
        for sizes in self.variables.values():
            variable = varint_field(1, FLOAT32) + bytes_field(2, shape(sizes)) + varint_field(3, 1)
            objects.append(bytes_field(7, variable + bytes_field(6, "Variable")))
        objects += [bytes_field(6, bytes_field(1, f)) for f in self.methods.values()]
        return b"".join(bytes_field(1, each) for each in objects)

    def write(self, folder: Path) -> Path:
        """Writes the model, with an empty checkpoint if it has variables; returns the folder."""
        folder.mkdir(parents=True)
        (folder / "saved_model.pb").write_bytes(self.proto())
        if self.variables:
            (folder / "variables").mkdir()
            (folder / "variables" / "variables.index").write_bytes(b"")
        return folder


def _nodes(nodes: Sequence[bytes]) -> bytes:
    return b"".join(bytes_field(3, n) for n in nodes)


def _info(name: str, sizes: Sizes) -> bytes:
    return bytes_field(1, name) + varint_field(2, FLOAT32) + bytes_field(3, shape(sizes))
