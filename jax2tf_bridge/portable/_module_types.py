"""Compares a function's types with those of its module's main function, as MLIR prints them."""

from __future__ import annotations

from collections.abc import Sequence

from jax2tf_bridge.errors import ModuleError, bullet_list
from jax2tf_bridge.portable._aval import Aval
from jax2tf_bridge.portable._dtypes import ELEMENT_TYPES
from jax2tf_bridge.portable._portable_function import PortableFunction

# Of 64 bits where JAX exported with x64.
_PLATFORM_INDEX = frozenset({"tensor<i32>", "tensor<i64>"})


def check_types(
    name: str,
    in_avals: Sequence[Aval],
    out_avals: Sequence[Aval],
    module_inputs: Sequence[str],
    module_outputs: Sequence[str],
    *,
    has_platform_index: bool,
) -> None:
    """Raises unless the module takes and gives what the portable function says.

    TensorFlow does not compare them, and would read stray memory.

    Args:
      name: the function's, for the message.
      in_avals: of the arguments that the module takes.
      out_avals: of all results.
      module_inputs: the types of main's arguments, as "tensor<?x3xf32>"; the platform index comes
        first, where there is one, and tokens may follow it.
      module_outputs: the types of main's results; tokens may come first.
      has_platform_index: whether main has one, as it has for several platforms.

    Raises:
      ModuleError: they differ; each difference is listed.
    """
    inputs = module_inputs[1:] if has_platform_index else module_inputs
    problems = _differences("argument", in_avals, inputs)
    problems += _differences("result", out_avals, module_outputs)
    if has_platform_index and _PLATFORM_INDEX.isdisjoint(module_inputs[:1]):
        found = ", ".join(module_inputs[:1]) or "nothing"
        problems.append(
            "the portable function is for several platforms, and the module does not take the "
            "platform's "
            f"index first, a scalar integer, but {found}"
        )
    if problems:
        raise ModuleError(
            f"The StableHLO module of {name} does not match its portable "
            f"function:{bullet_list(problems)}"
        )


def check_function_types(
    function: PortableFunction, module_inputs: Sequence[str], module_outputs: Sequence[str]
) -> None:
    """Raises unless a module takes and gives what a portable function says.

    Args:
      function: whose module it is; what it captured comes behind the arguments.
      module_inputs: as in `check_types`.
      module_outputs: as in `check_types`.

    Raises:
      ModuleError: they differ; each difference is listed.
    """
    kept = [function.in_avals[i] for i in function.module.kept_arguments]
    check_types(
        function.name,
        [*kept, *(constant.aval for constant in function.lifted_constants)],
        function.out_avals,
        module_inputs,
        module_outputs,
        has_platform_index=len(function.platforms) > 1,
    )


def _differences(kind: str, avals: Sequence[Aval], types: Sequence[str]) -> list[str]:
    tensors = [t for t in types if t.startswith("tensor<")]
    if len(tensors) != len(avals):
        return [f"the portable function has {len(avals)} {kind}s, the module {len(tensors)}"]
    return [
        f"{kind} {i}: the portable function says {aval}, the module {found}"
        for i, (aval, found) in enumerate(zip(avals, tensors, strict=True))
        if not _matches(aval, found)
    ]


def _matches(aval: Aval, found: str) -> bool:
    element = ELEMENT_TYPES.get(aval.module_dtype)
    *sizes, found_element = found.removeprefix("tensor<")[:-1].split("x", len(aval.op_shape))
    if element is None or found_element != element or len(sizes) != len(aval.op_shape):
        return False
    return all(
        size == (str(d) if isinstance(d, int) else "?")
        for size, d in zip(sizes, aval.op_shape, strict=True)
    )
