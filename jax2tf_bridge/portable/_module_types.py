"""Compares a function's types with those of its module's main function, as MLIR prints them."""

from __future__ import annotations

from collections.abc import Sequence

from jax2tf_bridge.errors import ModuleError, bullet_list
from jax2tf_bridge.portable._aval import Aval
from jax2tf_bridge.portable._dtypes import ELEMENT_TYPES
from jax2tf_bridge.portable._portable_function import PortableFunction

# int64 if JAX exported with jax_enable_x64.
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
    """Checks that the module's types are those of the portable function.

    TensorFlow does not compare them, and would read stray memory.

    Args:
      name: the function's name, for messages.
      in_avals: the arguments that the module takes.
      out_avals: all results.
      module_inputs: the types of main's arguments, such as "tensor<?x3xf32>". The platform index
        comes first if there is one, and tokens may follow it.
      module_outputs: the types of main's results; tokens may come first.
      has_platform_index: whether main takes a platform index, which it does for several platforms.

    Raises:
      ModuleError: the types differ; the message lists all differences.
    """
    inputs = module_inputs[1:] if has_platform_index else module_inputs
    problems = _list_differences("argument", in_avals, inputs)
    problems += _list_differences("result", out_avals, module_outputs)
    if has_platform_index and _PLATFORM_INDEX.isdisjoint(module_inputs[:1]):
        first_input = ", ".join(module_inputs[:1]) or "nothing"
        problems.append(
            "the portable function is for several platforms, and the module does not take the "
            "platform's "
            f"index first, a scalar integer, but {first_input}"
        )
    if problems:
        raise ModuleError(
            f"The StableHLO module of {name} does not match its portable "
            f"function:{bullet_list(problems)}"
        )


def check_function_types(
    function: PortableFunction, module_inputs: Sequence[str], module_outputs: Sequence[str]
) -> None:
    """Checks that a module's types are those of its portable function.

    Args:
      function: the function; its captured arrays follow the arguments.
      module_inputs: as in `check_types`.
      module_outputs: as in `check_types`.

    Raises:
      ModuleError: the types differ; the message lists all differences.
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


def _list_differences(kind: str, avals: Sequence[Aval], types: Sequence[str]) -> list[str]:
    tensors = [t for t in types if t.startswith("tensor<")]
    if len(tensors) != len(avals):
        return [f"the portable function has {len(avals)} {kind}s, the module {len(tensors)}"]
    return [
        f"{kind} {i}: the portable function says {aval}, the module {module_type}"
        for i, (aval, module_type) in enumerate(zip(avals, tensors, strict=True))
        if not _is_match(aval, module_type)
    ]


def _is_match(aval: Aval, module_type: str) -> bool:
    element = ELEMENT_TYPES.get(aval.module_dtype)
    *sizes, module_element = module_type.removeprefix("tensor<")[:-1].split("x", len(aval.op_shape))
    if element is None or module_element != element or len(sizes) != len(aval.op_shape):
        return False
    return all(
        size == (str(d) if isinstance(d, int) else "?")
        for size, d in zip(sizes, aval.op_shape, strict=True)
    )
