"""Computes all values of a JAX function, and all tensors of a TensorFlow function."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax.extend import core

from jax2tf_bridge.from_jax.source_lines import user_line_of_equation
from jax2tf_bridge.to_tensorflow import freeze
from jax2tf_bridge.verifying._locating import Step, Trace

_BODY_PARAMETERS = ("jaxpr", "call_jaxpr", "fun_jaxpr")
"""Parameters with the body of a primitive that calls a function once."""

_LOOPS = ("scan", "while", "cond")
"""Primitives of loops and branches."""

_CALLS = frozenset(
    {
        *("jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint"),
        *("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_lin"),
    }
)
"""Primitives that call a function once, with their own operands."""

_JAX_FOLDERS = tuple(
    os.path.join(os.path.dirname(os.path.dirname(jax.__file__)), package, "")
    for package in ("jax", "jaxlib")
)

CALL_MODULE = "XlaCallModule"

_BODY_ATTRIBUTES = {"While": "body", "If": "then_branch", "Case": "branches"}
"""Operations of loops and branches, and the attribute with the function of their body."""

_NOT_READ = (tf.resource, tf.variant, tf.string)


def trace_function(
    function: Callable[[Sequence[Any]], Any],
    leaves: Sequence[Any],
    options: Mapping[str, Any] | None = None,
) -> Trace:
    """Computes all values of a function in one program.

    Args:
      function: the function of a list of arrays.
      leaves: the arrays.
      options: options of XLA.
    """
    return _trace_jaxpr(jax.make_jaxpr(function)(leaves), leaves, (), options)


def _trace_jaxpr(
    closed: Any, leaves: Sequence[Any], path: tuple[Any, ...], options: Mapping[str, Any] | None
) -> Trace:
    """Computes all values of a jaxpr; `path` are the equations around it, the outermost first."""
    recorder = _Recorder()

    def run(arrays: Sequence[Any]) -> dict[int, Any]:
        recorder.restart()
        inputs = [recorder.add(array) for array in arrays]
        constants = [recorder.add(array) for array in closed.consts]
        recorder.trace.outputs = recorder.run(closed.jaxpr, [*constants, *inputs], path)
        return recorder.arrays

    compiled: Any = jax.jit(run, compiler_options=dict(options) if options else None)
    arrays = compiled(leaves)
    trace = recorder.trace
    trace.values = [
        np.asarray(arrays[number]) if number in arrays else None
        for number in range(len(trace.values))
    ]

    def trace_body(place: int) -> Trace | None:
        call = _find_loop_body(recorder.paths[place][-1], trace, trace.steps[place])
        return None if call is None else _trace_jaxpr(*call, recorder.paths[place], options)

    trace.steps = [
        replace(step, trace_body=functools.partial(trace_body, place))
        if step.operation in _LOOPS
        else step
        for place, step in enumerate(trace.steps)
    ]
    return trace


def _find_loop_body(equation: Any, trace: Trace, step: Step) -> tuple[Any, list[Any]] | None:
    """Returns the body of a loop, or the chosen branch, with the arguments of its first run."""
    avals = [atom.aval for atom in equation.invars]
    if any(jnp.issubdtype(aval.dtype, jax.dtypes.extended) for aval in avals):
        return None
    operands = [trace.values[number] for number in step.operands]
    params = equation.params
    if step.operation == "scan" and params["length"]:
        body, row = params["jaxpr"], -1 if params["reverse"] else 0
        # The body takes a row of what is scanned, and the rest as it is. JAX releases describe this
        # by different parameters.
        return body, [
            operand if operand.ndim == aval.ndim else operand[row]
            for operand, aval in zip(operands, body.in_avals, strict=True)
        ]
    if step.operation == "while":
        body = params["body_jaxpr"]
        return body, operands[len(operands) - len(body.in_avals) :]
    if step.operation == "cond":
        branches = params["branches"]
        index = min(max(int(operands[0]), 0), len(branches) - 1)
        return branches[index], operands[1:]
    return None


class _Recorder:
    """Evaluates jaxprs, and records each value."""

    def __init__(self) -> None:
        self.trace = Trace()
        self.arrays: dict[int, Any] = {}
        self.paths: list[tuple[Any, ...]] = []
        self._tracers: dict[int, Any] = {}

    def restart(self) -> None:
        """Forgets all, since JAX may trace a function again."""
        self.trace, self.arrays, self.paths, self._tracers = Trace(), {}, [], {}

    def add(self, value: Any) -> int:
        number = self.trace.add(None)
        self._tracers[number] = value
        dtype = getattr(value, "dtype", None) or jnp.result_type(value)
        if jnp.issubdtype(dtype, jax.dtypes.prng_key):
            value = jax.random.key_data(value)
        self.arrays[number] = jnp.asarray(value)
        return number

    def _add_constant(self, value: Any) -> int:
        number = self.add(value)
        self.trace.constants.add(number)
        return number

    def run(
        self,
        jaxpr: Any,
        numbers: Sequence[int],
        path: tuple[Any, ...] = (),
        *,
        is_of_jax: bool = False,
    ) -> list[int]:
        """Evaluates a jaxpr.

        Args:
          jaxpr: the jaxpr.
          numbers: the values of its arguments.
          path: the calls around it, the outermost first.
          is_of_jax: whether JAX defines the function. JAX traces its own functions, such as relu,
            only once, so their equations have the line of the first call; the last call of `path`
            has the right one.
        """
        known = dict(zip([*jaxpr.constvars, *jaxpr.invars], numbers, strict=True))

        def read(atom: Any) -> int:
            return self._add_constant(atom.val) if isinstance(atom, core.Literal) else known[atom]

        for equation in jaxpr.eqns:
            operands = [read(atom) for atom in equation.invars]
            inner = path if is_of_jax else (*path, equation)
            results = self._run_equation(jaxpr, equation, operands, inner, is_of_jax=is_of_jax)
            known.update(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _run_equation(
        self,
        jaxpr: Any,
        equation: Any,
        operands: Sequence[int],
        path: tuple[Any, ...],
        *,
        is_of_jax: bool,
    ) -> list[int]:
        body = _find_body(equation)
        if body is not None:
            inner = getattr(body, "jaxpr", body)
            constants = [self._add_constant(value) for value in getattr(body, "consts", ())]
            is_of_jax = is_of_jax or _is_of_jax(inner)
            return self.run(inner, [*constants, *operands], path, is_of_jax=is_of_jax)
        alone = jaxpr.replace(
            constvars=[],
            invars=[atom for atom in equation.invars if not isinstance(atom, core.Literal)],
            outvars=list(equation.outvars),
            eqns=[equation],
        )
        arrays = [
            self._tracers[number]
            for number, atom in zip(operands, equation.invars, strict=True)
            if not isinstance(atom, core.Literal)
        ]
        outputs = core.jaxpr_as_fun(core.ClosedJaxpr(alone, []))(*arrays)
        results = [self.add(output) for output in outputs]
        line = user_line_of_equation(path)
        name = equation.primitive.name
        self.paths.append((*path, equation) if is_of_jax else path)
        self.trace.steps.append(Step(name, line, tuple(operands), tuple(results)))
        return results


def _find_body(equation: Any) -> Any:
    """Returns the jaxpr that an equation calls once; None if it is not such a call."""
    if equation.primitive.name not in _CALLS:
        return None
    return next((equation.params[key] for key in _BODY_PARAMETERS if key in equation.params), None)


def _is_of_jax(jaxpr: Any) -> bool:
    file = getattr(getattr(jaxpr, "debug_info", None), "func_filename", None)
    return str(file or "").startswith(_JAX_FOLDERS)


def trace_tensors(
    function: Callable[..., Sequence[tf.Tensor]], arguments: Sequence[tf.Tensor]
) -> Trace:
    """Computes all tensors of a function, without those inside loops and branches.

    Args:
      function: the function of these tensors.
      arguments: the tensors.

    Raises:
      ModuleError: the installed TensorFlow cannot inline the functions of a graph.
    """
    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in arguments]
    concrete = tf.function(function, input_signature=specs, autograph=False).get_concrete_function()
    frozen = freeze(concrete, aggressive_inlining=False)
    trace, numbers = Trace(), {}
    fetched: list[Any] = []
    for operation in frozen.graph.get_operations():
        for tensor in operation.outputs:
            numbers[tensor.ref()] = trace.add(None)
            if tensor.dtype not in _NOT_READ:
                fetched.append(tensor)
        if operation.type not in ("Placeholder", "Const"):
            trace.steps.append(
                Step(
                    operation.type,
                    operation.name,
                    tuple(numbers[tensor.ref()] for tensor in operation.inputs),
                    tuple(numbers[tensor.ref()] for tensor in operation.outputs),
                    functools.partial(_trace_body, operation, trace, len(trace.steps))
                    if operation.type.removeprefix("Stateless") in _BODY_ATTRIBUTES
                    else None,
                )
            )
    run = frozen.prune(frozen.inputs, fetched)
    for tensor, value in zip(fetched, run(*arguments), strict=True):
        trace.values[numbers[tensor.ref()]] = value.numpy()
    trace.outputs = [numbers[tensor.ref()] for tensor in frozen.outputs]
    return trace


def _trace_body(operation: Any, outer: Trace, place: int) -> Trace | None:
    """Computes the tensors of the first iteration of a loop, or of the chosen branch."""
    values = [outer.values[number] for number in outer.steps[place].operands]
    kind = operation.type.removeprefix("Stateless")
    name = _BODY_ATTRIBUTES[kind]
    if kind == "While":
        body = operation.get_attr(name).name
    elif kind == "If":
        condition, *values = values
        body = operation.get_attr(name if condition else "else_branch").name
    else:
        index, *values = values
        branches = operation.get_attr(name)
        body = branches[min(max(int(index), 0), len(branches) - 1)].name
    if any(value is None for value in values):
        return None
    return trace_tensors(
        functools.partial(_call_body, operation.graph.as_graph_def().library, body),
        [tf.constant(value) for value in values],
    )


def _call_body(library: Any, body: str, *arguments: tf.Tensor) -> Sequence[tf.Tensor]:
    signature = next(f.signature for f in library.function if f.signature.name == body)
    graph = tf.compat.v1.GraphDef(library=library)
    names = [f"argument_{i}" for i in range(len(arguments))]
    for name, argument in zip(names, arguments, strict=True):
        node = graph.node.add(name=name, op="Placeholder")
        node.attr["dtype"].type = argument.dtype.as_datatype_enum
    call = graph.node.add(name="body", op="StatefulPartitionedCall", input=names)
    call.attr["f"].func.name = body
    call.attr["Tin"].list.type.extend(argument.dtype.as_datatype_enum for argument in arguments)
    call.attr["Tout"].list.type.extend(argument.type for argument in signature.output_arg)
    results: list[tf.Tensor] = tf.graph_util.import_graph_def(
        graph,
        input_map=dict(zip(names, arguments, strict=True)),
        return_elements=[f"body:{i}" for i in range(len(signature.output_arg))],
    )
    return results
