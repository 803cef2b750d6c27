"""Calls a portable function as TensorFlow's own operations."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jax2tf_bridge.bytecode import Program, TensorType, read_program
from jax2tf_bridge.emitters._array import Array
from jax2tf_bridge.emitters._ops import get_builder, ops
from jax2tf_bridge.emitters._scope import Scope
from jax2tf_bridge.emitters._sizes import fill_sizes
from jax2tf_bridge.errors import FileFormatError, ModuleError
from jax2tf_bridge.portable import Aval, PortableFunction
from jax2tf_bridge.rewriting import passes_for_tensorflow, run_passes
from shape_poly import Dim, DimExpr, SymbolicScope


def read(portable: PortableFunction) -> Program:
    """Reads the module of a function.

    Raises:
      ModuleError: the module cannot be read.
    """
    with _name_errors(portable):
        return read_program(portable.module.data)


def rewrite_program(
    portable: PortableFunction, program: Program, *, for_onnx: bool = False
) -> Program:
    """Rewrites the module of a function for `make_operations`.

    Args:
      portable: the function.
      program: its module.
      for_onnx: as for `make_operations`.

    Raises:
      ModuleError: the module cannot be read.
    """
    has_platform = len(portable.platforms) > 1 and program.main.body.arguments
    passes = passes_for_tensorflow(
        platform=_platform_index(portable) if has_platform else None,
        # The portable function's known constraints are checked before, with the arguments' names.
        checks_sizes=not (portable.constraints_known or portable.target.for_converters),
        for_converters=portable.target.for_converters,
        finds_rounding=for_onnx or portable.target.computes_as_trained,
        rounding_seed=portable.target.rounding_seed,
        splits_complex=portable.target.names_lines and not for_onnx,
    )
    with _name_errors(portable):
        return run_passes(program, passes, portable.name)


def make_operations(
    portable: PortableFunction,
    program: Program,
    args: Sequence[ops.Tensor],
    variables: Mapping[str, Any],
    graph_functions: Sequence[Callable[..., Any]] = (),
    *,
    refuses_bits: bool = False,
    for_onnx: bool = False,
) -> list[ops.Tensor]:
    """Makes TensorFlow's operations for a module's main function, in the current graph.

    Args:
      portable: the function.
      program: the module, as `rewrite_program` returns it.
      args: a tensor for each argument of main except the platform index; lifted constants are last.
      variables: the dimension variables: ints if known, else scalar tensors, or functions that make
        a scalar int32 tensor.
      graph_functions: the TensorFlow functions that the module calls, by number.
      refuses_bits: whether Bitcast is an error for a target for converters.
      for_onnx: whether the current graph is ONNX's; its target is the one for converters.

    Returns:
      A tensor for each result.

    Raises:
      ModuleError: TensorFlow cannot express an operation.
    """
    from jax2tf_bridge.emitters.operations import EMITTERS  # 20 modules, not needed with XLA

    numbers = {name: value for name, value in variables.items() if isinstance(value, int)}
    constraints = SymbolicScope(portable.constraints, check=False)
    scope = Scope(
        portable.name,
        program,
        EMITTERS,
        # Sizes are computed in 64 bits if the constraints have large numbers.
        {
            name: size if callable(size) else ops.cast(size, ops.int32)
            for name, size in variables.items()
            if name not in numbers
        },
        constraints,
        graph_functions,
        names_lines=portable.target.names_lines or for_onnx,
        for_converters=portable.target.for_converters and not for_onnx,
        for_onnx=for_onnx,
        refuses_bits=refuses_bits and portable.target.for_converters,
    )
    avals = [portable.in_avals[i] for i in portable.module.kept_arguments]
    avals += [constant.aval for constant in portable.lifted_constants]
    main = program.main.body
    arrays: list[Array] = []
    values = list(main.arguments)
    if len(portable.platforms) > 1:
        element = values.pop(0).tensor.element
        index = np.array(_platform_index(portable), np.int64 if element == "i64" else np.int32)
        arrays.append(Array(element, (), known=index))
    if len(values) != len(avals) or len(main.returned) != len(portable.out_avals):
        raise ModuleError(
            f"The module of {portable.name} takes {len(values)} arrays and gives "
            f"{len(main.returned)}: its portable function says {len(avals)} and "
            f"{len(portable.out_avals)}."
        )
    for value, aval, tensor in zip(values, avals, args, strict=True):
        arrays.append(_argument(scope, value.tensor, aval, tensor, numbers))
    with _name_errors(portable):
        return [scope.tensor(array) for array in scope.run(main, arrays)]


@contextlib.contextmanager
def _name_errors(portable: PortableFunction) -> Iterator[None]:
    """Converts errors of a module to errors that name the function.

    Raises:
      ModuleError: the module has an error.
    """
    try:
        yield
    except FileFormatError as e:
        raise ModuleError(f"The module of {portable.name} cannot be read: {e}") from e
    except RecursionError as e:
        operations = "TensorFlow's own" if get_builder() is None else "ONNX's"
        raise ModuleError(
            f"{portable.name} cannot be made of {operations} operations: its loops and branches "
            "are nested too deep for Python's stack. Nest fewer, or raise the limit with "
            "sys.setrecursionlimit."
        ) from e


def _platform_index(portable: PortableFunction) -> int:
    """Returns the index of the platform whose lowering is closest to plain StableHLO."""
    return portable.platforms.index("cpu") if "cpu" in portable.platforms else 0


def _argument(
    scope: Scope, kind: TensorType, aval: Aval, tensor: ops.Tensor, numbers: Mapping[str, int]
) -> Array:
    sizes = [
        size.substitute(numbers) if isinstance(size, DimExpr) else size for size in aval.op_shape
    ]
    result: tuple[Dim, ...] = fill_sizes(tensor.shape.as_list(), fill_sizes(kind.shape, sizes))
    return scope.new_array(tensor, kind.element, result)
