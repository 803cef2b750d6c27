"""Makes the graph of each program, which is one call of a portable function at fixed sizes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from jax2tf_bridge._dtypes import find_dtype
from jax2tf_bridge.c_library._interface import LibrarySignature
from jax2tf_bridge.portable import Aval, PortableFunction
from shape_poly import evaluate_shape


@dataclass(frozen=True)
class ProgramGraph:
    """The graph of a program.

    Attributes:
      graph: a serialized GraphDef.
      config: the arguments and results in tfcompile's text format.
      arguments: the indices of the leaves that the program takes, in its order.
    """

    graph: bytes
    config: str
    arguments: tuple[int, ...]


class _Placeholders:
    """Gives the captured arrays of a function as placeholders."""

    def __init__(self, tensors: list[Any]) -> None:
        self._tensors = tensors

    def tensors(self, portable: PortableFunction, saving: Collection[Any] | None) -> list[Any]:
        return self._tensors


def make_graph(signature: LibrarySignature, sizes: Mapping[str, int]) -> ProgramGraph:
    """Makes the graph of a signature for some sizes. Weights and captured arrays are arguments."""
    import tensorflow as tf

    from jax2tf_bridge.to_tensorflow import call_flat

    portable = signature.portable
    avals = [*portable.in_avals, *(c.aval for c in portable.lifted_constants)]
    with tf.Graph().as_default() as graph:
        placeholders = [
            tf.compat.v1.placeholder(
                _choose_carrier(aval),
                (*evaluate_shape(aval.op_shape, sizes), *([2] if _is_complex(aval) else [])),
                name=f"argument_{i}",
            )
            for i, aval in enumerate(avals)
        ]
        tensors = [_to_dtype(p, aval) for p, aval in zip(placeholders, avals, strict=True)]
        count = len(portable.in_avals)
        results = call_flat(portable, tensors[:count], False, _Placeholders(tensors[count:]))
        outputs = [
            tf.identity(
                _from_dtype(results[position], portable.out_avals[position]), name=f"result_{i}"
            )
            for i, position in enumerate(signature.results)
        ]
    needed = _find_needed([output.op for output in outputs])
    arguments = [i for i, p in enumerate(placeholders) if p.op.name in needed]
    config = [_format_feed(placeholders[i]) for i in arguments]
    config += [_format_port("fetch", output.op.name) for output in outputs]
    definition = graph.as_graph_def()
    return ProgramGraph(definition.SerializeToString(), "\n".join(config), tuple(arguments))


# tfcompile has no C++ type for some dtypes, so programs take the bits of 16-bit floats, and the two
# parts of complex numbers.
def _choose_carrier(aval: Aval) -> str:
    row = find_dtype(aval.op_dtype)
    if row is None or row.name in ("float32", "float64"):
        return aval.op_dtype
    return {"float": f"uint{row.bits}", "complex": row.real}.get(row.kind, row.name)


def _is_complex(aval: Aval) -> bool:
    return aval.op_dtype.startswith("complex")


def _to_dtype(tensor: Any, aval: Aval) -> Any:
    import tensorflow as tf

    if _is_complex(aval):
        return tf.complex(tensor[..., 0], tensor[..., 1])
    return tensor if tensor.dtype.name == aval.op_dtype else tf.bitcast(tensor, aval.op_dtype)


def _from_dtype(tensor: Any, aval: Aval) -> Any:
    import tensorflow as tf

    if _is_complex(aval):
        return tf.stack([tf.math.real(tensor), tf.math.imag(tensor)], axis=-1)
    carrier = _choose_carrier(aval)
    return tensor if carrier == aval.op_dtype else tf.bitcast(tensor, carrier)


def _find_needed(operations: list[Any]) -> set[str]:
    needed: set[str] = set()
    rest = list(operations)
    while rest:
        operation = rest.pop()
        if operation.name not in needed:
            needed.add(operation.name)
            rest += [tensor.op for tensor in operation.inputs] + list(operation.control_inputs)
    return needed


def _format_feed(tensor: Any) -> str:
    dims = " ".join(f"dim {{ size: {size} }}" for size in tensor.shape)
    rest = f"shape {{ {dims} }} type: {tensor.dtype.as_datatype_enum}"
    return _format_port("feed", tensor.op.name, rest)


def _format_port(kind: str, name: str, rest: str = "") -> str:
    return f'{kind} {{ id {{ node_name: "{name}" }} name: "{name}" {rest} }}'
