"""Runs small StableHLO modules, written as text, as TensorFlow's own operations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge._dtypes import DTYPES_BY_ELEMENT_TYPE
from jax2tf_bridge.bytecode import read_main_types
from jax2tf_bridge.from_jax import ir, jax_compat
from jax2tf_bridge.portable import Aval, Module, PortableFunction
from jax2tf_bridge.targets import Target
from jax2tf_bridge.to_tensorflow import to_tf

_NO_XLA = Target("operations", ((1, 13, 7),), 10, xla=False)


def portable_of(text: str, *, symbols: Iterable[str] = "abcdefgh") -> PortableFunction:
    """Makes a portable function of a module's text; each open size is a variable of its own.

    Args:
      text: of a module with a function main.
      symbols: the names of the open sizes, in the order in which the arguments have them; a name
        that is there twice makes the sizes equal.
    """
    version = (1, 13, 7)
    with jax_compat.make_ir_context():
        module = ir.Module.parse(text)
        artifact = jax_compat.serialize_module(module, "1.13.7")
    # JAX 0.8 cannot read all artifacts that it writes: slices of scalars among them.
    inputs, outputs = read_main_types(artifact)
    names = iter(symbols)
    in_avals = [_aval(kind, names) for kind in inputs]
    out_avals = [_aval(kind, iter("zyxwvuts")) for kind in outputs]
    return PortableFunction.over_leaves(
        "tested",
        Module(
            artifact,
            version,
            9,
            kept_arguments=tuple(range(len(in_avals))),
            platforms=("cpu",),
            uses_shape_polymorphism=any("?" in kind for kind in inputs),
        ),
        in_avals,
        out_avals,
        target=_NO_XLA,
        producer="a test",
    )


def _aval(kind: str, names: Iterator[str]) -> Aval:
    from shape_poly import DimExpr

    *sizes, element = (
        kind.removeprefix("tensor<")[:-1].split("x")
        if "complex" not in kind
        else (
            *kind.removeprefix("tensor<").split("complex")[0].split("x")[:-1],
            "complex" + kind.split("complex")[1][:-1],
        )
    )
    dtype = {"complex<f32>": "complex64", "complex<f64>": "complex128"}.get(
        element, DTYPES_BY_ELEMENT_TYPE.get(element, "")
    )
    shape = tuple(DimExpr.variable(next(names)) if s == "?" else int(s) for s in sizes)
    return Aval(shape, dtype)


def run(text: str, *args: Any, symbols: Iterable[str] = "abcdefgh") -> list[np.ndarray[Any, Any]]:
    """Runs a module's main function, whose open sizes its graph leaves open, without XLA."""
    return run_each(text, [args], symbols=symbols)[0]


def run_each(
    text: str, calls: Sequence[Sequence[Any]], *, symbols: Iterable[str] = "abcdefgh"
) -> list[list[np.ndarray[Any, Any]]]:
    """Runs a module as `run` does, once with each call's arguments; its graph is made once."""
    function = trace(portable_of(text, symbols=symbols), calls[0])
    assert not {name for name in op_names(function.graph) if "Xla" in name}
    answers = []
    for args in calls:
        results = function(*(tf.constant(arg) for arg in args))
        found = results if isinstance(results, (tuple, list)) else [results]
        answers.append([np.asarray(result) for result in found])
    return answers


def trace(portable: PortableFunction, args: Sequence[Any]) -> Any:
    """Makes a concrete function of the portable one's sizes and the arguments' dtypes."""
    specs = [
        tf.TensorSpec(
            [size if isinstance(size, int) else None for size in aval.op_shape],
            np.asarray(arg).dtype,
        )
        for aval, arg in zip(portable.in_avals, args, strict=True)
    ]
    function = to_tf(portable, with_gradient=False)
    traced = tf.function(function, input_signature=specs, autograph=False, jit_compile=False)
    return traced.get_concrete_function()


def graph_of(function: Any, args: Sequence[Any]) -> Any:
    """Traces a function with the arguments' dtypes, and returns its graph."""
    specs = [tf.TensorSpec(np.shape(a), np.asarray(a).dtype) for a in args]
    return tf.function(function, autograph=False).get_concrete_function(*specs).graph


def op_names(graph: Any) -> list[str]:
    """Lists the kinds of operations of a graph and its functions, one for each operation."""
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    return [node.op for node in nodes]
