"""Makes portable functions from XlaCallModule ops of any tool, and checks their types."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from jax2tf_bridge._dtypes import DTYPES_BY_ELEMENT_TYPE
from jax2tf_bridge.bytecode import Version, read_main_types
from jax2tf_bridge.errors import FileFormatError, ModuleError
from jax2tf_bridge.portable._aval import Aval
from jax2tf_bridge.portable._consistency import check_types
from jax2tf_bridge.portable._module import DisabledSafetyCheck, Module
from jax2tf_bridge.portable._portable_function import PortableFunction
from jax2tf_bridge.targets import Target
from shape_poly import Dim, parse_dimension


def make_called_function(
    module: bytes,
    version: Version | None,
    *,
    name: str,
    argument_dtypes: Sequence[str],
    result_dtypes: Sequence[str],
    platforms: Sequence[str],
    disabled_checks: Sequence[DisabledSafetyCheck],
    has_tokens: bool,
    calling_convention_version: int,
    target: Target | None = None,
) -> PortableFunction:
    """Makes a portable function of flat arrays from an op's module.

    Args:
      module: the portable artifact.
      version: its StableHLO version; None if it is not a portable artifact.
      name: the name in error messages.
      argument_dtypes: the op's argument dtypes (Tin), by TensorFlow's names.
      result_dtypes: the op's result dtypes (Tout).
      platforms: the platforms that the module was lowered for.
      disabled_checks: custom calls that these name are assumed to have a handler.
      has_tokens: whether the op passes tokens.
      calling_convention_version: the op's calling convention.
      target: the target of the function; by default any consumer that reads the module unchanged.

    Raises:
      ModuleError: the module cannot be read.
    """
    try:
        inputs, outputs = read_main_types(module)
    except FileFormatError as e:
        raise ModuleError(f"The module of {name} cannot be read: {e}") from e
    if version is None:
        raise ModuleError(f"The module of {name} is not a portable artifact of StableHLO.")
    in_avals, out_avals = make_call_avals(
        argument_dtypes, result_dtypes, (inputs, outputs), has_platform_index=len(platforms) > 1
    )
    function = PortableFunction.over_leaves(
        name,
        Module(
            module,
            version,
            calling_convention_version,
            kept_arguments=tuple(range(len(in_avals))),
            platforms=tuple(platforms),
            uses_shape_polymorphism=any("?" in t for t in inputs),
            disabled_checks=tuple(disabled_checks),
        ),
        in_avals,
        out_avals,
        target=target or Target("another tool", (version,), calling_convention_version),
        producer="another tool",
    )
    effects = ("tokens",) if has_tokens else ()
    return replace(function, ordered_effects=effects, constraints_known=False)


_TENSOR = re.compile(r"tensor<((?:(?:\d+|\?)x)*)")
_WHOLE_TENSOR = re.compile(_TENSOR.pattern + r"([a-z]\w*(?:<f\d+>)?)(?:, .*)?>")


def read_tensor_type(text: str) -> tuple[list[str], str] | None:
    """Splits an MLIR type into its sizes and its dtype; None if it is not a tensor of numbers.

    >>> read_tensor_type("tensor<?x3xf32>")
    (['?', '3'], 'float32')
    """
    match = _WHOLE_TENSOR.fullmatch(text)
    if match is None or match[2] not in DTYPES_BY_ELEMENT_TYPE:
        return None
    return match[1].split("x")[:-1], DTYPES_BY_ELEMENT_TYPE[match[2]]


def name_open_sizes(sizes: Iterable[str], prefix: str) -> tuple[Dim, ...]:
    """Converts the sizes of an MLIR type; open sizes become variables.

    >>> name_open_sizes(["?", "3"], "x0")
    (DimExpr('x0_0'), 3)
    """
    return tuple(
        parse_dimension(f"{prefix}_{i}") if size == "?" else int(size)
        for i, size in enumerate(sizes)
    )


def make_call_avals(
    arguments: Sequence[str],
    results: Sequence[str],
    module_types: tuple[Sequence[str], Sequence[str]],
    *,
    has_platform_index: bool,
) -> tuple[tuple[Aval, ...], tuple[Aval, ...]]:
    """Combines an op's dtypes with the shapes of its module's main function.

    Each open size becomes a variable named by its position: "x0_1" for the second dimension of the
    first argument.

    Args:
      arguments: the op's argument dtypes (Tin), by name.
      results: the op's result dtypes (Tout).
      module_types: the types of main's arguments and results, such as "tensor<?x3xf32>".
      has_platform_index: whether main's first argument is the platform index.
    """
    inputs = module_types[0][1:] if has_platform_index else module_types[0]
    return _make_avals(arguments, inputs, "x"), _make_avals(results, module_types[1], "y")


def find_call_problem(
    name: str,
    arguments: Sequence[str],
    results: Sequence[str],
    module_types: tuple[Sequence[str], Sequence[str]],
    *,
    has_platform_index: bool,
) -> str | None:
    """Says how an op's dtypes differ from its module's types; None if they agree.

    TensorFlow does not check this, and reads stray memory if they differ.
    """
    avals = make_call_avals(arguments, results, module_types, has_platform_index=has_platform_index)
    try:
        check_types(name, *avals, *module_types, has_platform_index=has_platform_index)
    except ModuleError as e:
        return str(e)
    return None


def _make_avals(dtypes: Sequence[str], types: Sequence[str], prefix: str) -> tuple[Aval, ...]:
    # If the numbers of dtypes and types differ, check_types reports it.
    matches = [_TENSOR.match(t) for t in types if t.startswith("tensor<")]
    shapes = [
        name_open_sizes(match[1].split("x")[:-1] if match else (), f"{prefix}{i}")
        for i, match in enumerate(matches)
    ]
    shapes += [()] * (len(dtypes) - len(shapes))
    return tuple(Aval(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=False))
