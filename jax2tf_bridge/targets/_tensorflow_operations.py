"""Lists the operations, custom calls and composites that TensorFlow's operations can express."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from jax2tf_bridge.bytecode import (
    STOP_GRADIENT,
    Block,
    Function,
    Operation,
    OtherType,
    Program,
    Value,
)

OPERATIONS = frozenset(
    {
        *("abs", "add", "after_all", "all_gather", "all_reduce", "all_to_all", "and", "atan2"),
        *("batch_norm_grad", "batch_norm_inference", "batch_norm_training", "bitcast_convert"),
        *("broadcast", "broadcast_in_dim", "call", "case", "cbrt", "ceil", "cholesky", "clamp"),
        *("collective_broadcast", "collective_permute", "collective_reduce", "compare", "complex"),
        *("composite", "concatenate", "constant", "convert", "convolution", "cosine"),
        *("count_leading_zeros", "create_token", "cross-replica-sum", "custom_call", "divide"),
        *("dot", "dot_general", "dynamic_broadcast_in_dim", "dynamic_conv", "dynamic_gather"),
        *("dynamic_iota", "dynamic_pad", "dynamic_reshape", "dynamic_slice"),
        *("dynamic_update_slice", "einsum"),
        *("exponential", "exponential_minus_one", "fft", "floor", "gather", "get_dimension_size"),
        *("get_tuple_element", "if", "imag", "iota", "is_finite", "log", "log_plus_one"),
        *("logistic", "map", "maximum", "minimum", "multiply", "negate", "not"),
        *("optimization_barrier", "or", "pad", "partition_id", "popcnt", "power", "real"),
        *("real_dynamic_slice", "reduce", "reduce_precision", "reduce_scatter", "reduce_window"),
        *("remainder", "replica_id", "reshape", "reverse", "rng", "rng_bit_generator"),
        *("round_nearest_afz", "round_nearest_even", "rsqrt", "scatter", "select"),
        *("select_and_scatter", "set_dimension_size", "shift_left", "shift_right_arithmetic"),
        *("shift_right_logical", "sign", "sine", "slice", "sort", "sqrt", "subtract", "tan"),
        *("tanh", "torch_index_select", "transpose", "triangular_solve", "tuple"),
        *("unary_einsum", "while", "xor"),
    }
)
"""StableHLO operations, without dialect, that can become TensorFlow operations.

A test compares the three tables with the emitters in `to_tensorflow.operations`.
"""

_CHLO = ("acos", "acosh", "asin", "asinh", "atanh", "cosh", "erf", "sinh")
"""CHLO operations that JAX up to 0.9 writes as custom calls, and later releases as composites."""

CUSTOM_CALLS = frozenset(
    {
        # JAX up to 0.9 writes CHLO operations in this form.
        *(f"mhlo.{name}" for name in _CHLO),
        *("Eigh", "LuDecomposition", "ProductOfElementaryHouseholderReflectors", "Qr"),
        *(
            f"lapack_{letter}{routine}_ffi"
            for letters, routines in (
                ("sdcz", ("geqrf", "gesdd", "getrf", "potrf", "trsm")),
                ("sd", ("orgqr", "syevd")),
                ("cz", ("heevd", "ungqr")),
            )
            for letter in letters
            for routine in routines
        ),
        *("ApproxTopK", "mhlo.topk", "stablehlo.dynamic_approx_top_k", "stablehlo.dynamic_top_k"),
        *("stablehlo.dynamic_reduce_window", "stablehlo.dynamic_rng_bit_generator"),
        *("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "shape_assertion"),
        *("annotate_device_placement", "xla.sdy.FuncResultSharding"),
        *("xla.sdy.GlobalToLocalShape", "xla.sdy.LocalToGlobalShape", "tf.call_tf_function"),
    }
)
"""Targets of custom calls that can become TensorFlow operations."""

COMPOSITES = frozenset(
    {
        *(f"chlo.{name}" for name in _CHLO),
        *("chlo.bessel_i1e", "chlo.digamma", "chlo.erf_inv", "chlo.erfc", "chlo.lgamma"),
        *("chlo.next_after", "chlo.polygamma", "chlo.top_k", "chlo.zeta"),
        *("jax2tf.bessel_i0e", "jax2tf.betainc", "jax2tf.igamma", "jax2tf.igammac"),
        *("jax2tf.cumlogsumexp", "jax2tf.cummax", "jax2tf.cummin", "jax2tf.cumprod"),
        *("jax2tf.cumsum", "jax2tf.eig", "jax2tf.eigh", "jax2tf.lu", "jax2tf.qr", "jax2tf.svd"),
        *(STOP_GRADIENT, "jax2tf.tridiagonal_solve"),
    }
)
"""Composites that become a TensorFlow operation; others are replaced by their decomposition."""

_PLATFORM = "_platform_index"
"""JAX's name for the platform index argument."""


@dataclass(frozen=True)
class Inexpressible:
    """An operation that TensorFlow's operations cannot express.

    Attributes:
      operation: the name of the operation, or the target of the custom call.
      problem: the reason, to follow "predict cannot become TensorFlow's own operations: ".
      source: the user's line as "file:line", if known.
    """

    operation: str
    problem: str
    source: str | None


def find_inexpressible(program: Program) -> Inexpressible | None:
    """Returns the first operation that TensorFlow's operations cannot express, or None."""
    return next(iterate_inexpressible(program), None)


def iterate_inexpressible(program: Program) -> Iterator[Inexpressible]:
    """Yields the operations of a module that TensorFlow's operations cannot express."""
    return (p for o in _walk_operations(program) if (p := _find_problem(o)) is not None)


def _walk_operations(program: Program) -> Iterator[Operation]:
    """Yields the reachable operations, except in decompositions of known composites.

    Platform branches are skipped, because only one of them is emitted, and it is not known here.
    """
    seen = {"main"}
    blocks: list[Block] = [program.main.body]
    by_platform = {
        v for function in program.functions.values() for v in _find_platform_index(function)
    }
    constants: set[Value] = set()
    while blocks:
        for operation in blocks.pop().operations:
            yield operation
            if operation.name == "constant":
                constants.update(operation.results)
            if operation.name == "case" and operation.operands[0] in by_platform:
                # JAX may first select a branch index by platform, and pass it to another case.
                if constants.issuperset(v for region in operation.regions for v in region.returned):
                    by_platform.update(operation.results)
                continue
            blocks += operation.regions
            if operation.name == "composite" and operation.attributes.get("name") in COMPOSITES:
                continue
            callee = operation.callee
            if callee is not None and callee in program.functions and callee not in seen:
                seen.add(callee)
                blocks.append(program.functions[callee].body)


def _find_platform_index(function: Function) -> Iterator[Value]:
    """Yields the platform index argument of a function, if it has one."""
    attributes = function.attributes.get("arg_attrs")
    if isinstance(attributes, tuple):
        # Not strict, because a damaged artifact may have another number of attributes.
        for value, notes in zip(function.body.arguments, attributes, strict=False):
            if isinstance(notes, Mapping) and notes.get("jax.global_constant") == _PLATFORM:
                yield value


def _find_problem(operation: Operation) -> Inexpressible | None:
    name = operation.name
    if name == "custom_call":
        target = operation.attributes.get("call_target_name")
        if target in CUSTOM_CALLS:
            return None
        return _make_inexpressible(operation, str(target), f"the custom call {str(target)!r}")
    if name not in OPERATIONS and name != "return":
        return _make_inexpressible(operation, name, f"the operation {name}")
    for value in operation.results:
        if isinstance(value.type, OtherType) and "quant" in value.type.text:
            text = f"the quantised type {value.type.text} of a result of {name}"
            return _make_inexpressible(operation, "quantised types", text)
    return None


def _make_inexpressible(operation: Operation, name: str, what: str) -> Inexpressible:
    place = f" at {operation.source}" if operation.source else ""
    return Inexpressible(name, f"they cannot express {what}{place}", operation.source)
