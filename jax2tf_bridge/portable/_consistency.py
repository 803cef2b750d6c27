"""Checks that a portable function's parts agree with each other and with its module."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeVar

from jax2tf_bridge._dtypes import ELEMENT_TYPES
from jax2tf_bridge.errors import ModuleError, format_bullets
from jax2tf_bridge.portable._aval import Aval, LiftedConstant, array_size, variables_in
from jax2tf_bridge.portable._portable_function import PortableFunction
from jax2tf_bridge.portable._tree_spec import TreeSpec
from shape_poly import Comparison, DimensionSyntaxError, DimExpr, parse_comparison

T = TypeVar("T")

MAX_TEXT = 1 << 17
"""Maximum number of characters of all symbolic sizes of a file; parsing takes a few seconds."""

MAX_WITH_PARENTHESES = 8
"""Maximum number of constraints with grouping parentheses in a file; each may take a second."""

# Expressions are printed with parentheses after function names only. Other parentheses may contain
# products of sums, whose expansion is much longer than their text.
_GROUP = re.compile(r"(?<!\w)\(")


def has_own_parentheses(text: str) -> bool:
    """Returns whether a text has parentheses that do not follow a function name."""
    return _GROUP.search(text) is not None


class ComparisonParser:
    """A parser for the constraints of one file, with a cache and bounded work."""

    def __init__(self) -> None:
        self._results: dict[str, Comparison | str] = {}
        self._characters = 0
        self._with_parentheses = 0

    def parse(self, text: str) -> Comparison | str:
        """Returns the parsed comparison, or the reason why the text cannot be parsed."""
        if text not in self._results:
            self._results[text] = self._parse_new(text)
        return self._results[text]

    def _parse_new(self, text: str) -> Comparison | str:
        self._characters += len(text)
        if self._characters > MAX_TEXT:
            return f"all constraints have more than {MAX_TEXT} characters together"
        # Users write constraints by hand, so some may have grouping parentheses.
        if has_own_parentheses(text):
            self._with_parentheses += 1
            if self._with_parentheses > MAX_WITH_PARENTHESES:
                return (
                    f"more than {MAX_WITH_PARENTHESES} constraints have parentheses of their own: "
                    "write 2*a + 2*b for 2*(a + b)"
                )
        try:
            return parse_comparison(text)
        except DimensionSyntaxError as e:
            return e.problem.encode(errors="backslashreplace").decode()


def find_function_problem(
    portable: PortableFunction, in_leaves: int, out_leaves: int, comparisons: ComparisonParser
) -> str | None:
    """Returns the first inconsistency between the parts of a portable function, or None.

    Args:
      portable: the function; its module and its VJP are not inspected.
      in_leaves: the number of leaves of in_tree.
      out_leaves: the number of leaves of out_tree.
      comparisons: the parser for the constraints of the file.
    """
    in_avals, out_avals = len(portable.in_avals), len(portable.out_avals)
    return (
        _find_structure_problem(portable)
        or _compare_counts("in_avals", in_avals, in_leaves, "leaves of in_tree")
        or _compare_counts("out_avals", out_avals, out_leaves, "leaves of out_tree")
        or _compare_counts("in_shardings", len(portable.in_shardings), in_avals, "in_avals")
        or _compare_counts("out_shardings", len(portable.out_shardings), out_avals, "out_avals")
        or _find_sharding_problem(portable)
        or _find_kept_problem(portable.module.kept_arguments, in_avals)
        or (None if portable.platforms else "platforms is empty")
        or _compare_counts(
            "stablehlo_version", len(portable.module.stablehlo_version), 3, "numbers"
        )
        or _find_sizes_problem(portable, comparisons)
        or _find_constants_problem(portable.lifted_constants)
    )


def find_vjp_problem(
    primal: PortableFunction, in_tree: TreeSpec, in_avals: Sequence[Aval], out_avals: Sequence[Aval]
) -> str | None:
    """Returns why these cannot be the structure and types of a function's VJP, or None.

    A VJP takes the flat arguments and the cotangents of the results, and returns the cotangents of
    the flat arguments. Only constant sizes are compared: a VJP may know more about the sizes than
    its function, so the same size may be written in two ways.
    """
    arguments = (*primal.in_avals, *_make_cotangents(primal.out_avals))
    leaves = len(in_tree.children[0].children) if in_tree.children else 0
    return (
        _compare_counts(
            "in_avals", len(in_avals), len(arguments), "arguments and cotangents of results"
        )
        or _compare_counts(
            "out_avals", len(out_avals), len(primal.in_avals), "cotangents of arguments"
        )
        or _compare_counts("in_tree", leaves, len(arguments), "flat arguments")
        or _find_type_problem("in_avals", in_avals, arguments)
        or _find_type_problem("out_avals", out_avals, _make_cotangents(primal.in_avals))
    )


# Files refer to such objects by number, so a small file may repeat a large one many times.
# Therefore each object is processed once.
def _make_cotangents(avals: Sequence[Aval]) -> list[Aval]:
    cotangents = {
        id(aval): Aval(aval.shape, aval.dtype if aval.is_differentiable else "float0")
        for aval in _iter_distinct(avals)
    }
    return [cotangents[id(aval)] for aval in avals]


def _iter_distinct(values: Iterable[T]) -> Iterable[T]:
    return {id(value): value for value in values}.values()


def _find_type_problem(name: str, avals: Sequence[Aval], expected: Sequence[Aval]) -> str | None:
    equal_pairs: set[tuple[int, int]] = set()
    for i, (aval, expected_aval) in enumerate(zip(avals, expected, strict=True)):
        pair = id(aval), id(expected_aval)
        if pair not in equal_pairs and not _can_be_equal(aval, expected_aval):
            return f"{name}[{i}] is {aval!s:.80}, but the function requires {expected_aval!s:.80}"
        equal_pairs.add(pair)
    return None


def _can_be_equal(aval: Aval, expected: Aval) -> bool:
    return (
        aval.dtype == expected.dtype
        and aval.element_shape == expected.element_shape
        and len(aval.shape) == len(expected.shape)
        and all(
            size == expected_size or isinstance(size, DimExpr) or isinstance(expected_size, DimExpr)
            for size, expected_size in zip(aval.shape, expected.shape, strict=True)
        )
    )


def _find_structure_problem(portable: PortableFunction) -> str | None:
    tree = portable.in_tree
    if tree.kind != "tuple" or [c.kind for c in tree.children] != ["tuple", "dict"]:
        return "in_tree is not the structure of (args, kwargs)"
    arguments, keywords = tree.children
    if not all(isinstance(key, str) for key in keywords.keys):
        return "in_tree has keyword arguments whose names are not text"
    names = len(portable.argument_names)
    return _compare_counts("argument_names", names, len(arguments.children), "arguments")


def _find_sharding_problem(portable: PortableFunction) -> str | None:
    for name in ("in_shardings", "out_shardings"):
        for sharding in _iter_distinct(getattr(portable, name)):
            axes = [] if sharding is None else sharding.find_unknown_axes()
            if axes:
                mesh = str(sharding.mesh)
                return (
                    f"{name} have the axes {', '.join(axes):.80}, which the mesh {mesh:.80} lacks"
                )
    return None


def _find_kept_problem(kept: Sequence[int], in_avals: int) -> str | None:
    previous = -1
    for index in kept:
        if not previous < index < in_avals:
            return (
                f"kept_arguments is not in ascending order from 0 to {in_avals - 1}: "
                f"{index} comes after {previous}"
            )
        previous = index
    return None


def _find_sizes_problem(portable: PortableFunction, comparisons: ComparisonParser) -> str | None:
    known_variables = _find_variables(portable.in_avals)
    for name in ("constraints", "requirements"):
        for i, text in enumerate(getattr(portable, name)):
            comparison = comparisons.parse(text)
            if not isinstance(comparison, Comparison):
                return (
                    f"{name}[{i}] is {text!r:.80}, which is not a comparison of sizes: {comparison}"
                )
            if comparison.operator == "==":
                # The equation may define a variable in terms of the arguments' variables.
                known_variables |= comparison.variables()
    unknown_variables = sorted(_find_variables(portable.out_avals) - known_variables)
    if unknown_variables:
        return f"out_avals have sizes of {', '.join(unknown_variables):.80}, which no argument has"
    return None


def _find_constants_problem(constants: Sequence[LiftedConstant]) -> str | None:
    sizes = {id(aval): array_size(aval) for aval in _iter_distinct([c.aval for c in constants])}
    for i, constant in enumerate(constants):
        name, size = f"lifted_constants[{i}]", sizes[id(constant.aval)]
        if isinstance(size, str):
            return f"{name} is {constant.aval!s:.80}, and {size}"
        if not is_digest(constant.digest):
            return f"{name} has the digest {constant.digest!r:.80}, which is not a SHA-256"
        if constant.data is not None and len(constant.data) != size:
            return (
                f"{name} is {constant.aval!s:.80} of {size} bytes, and its data has "
                f"{len(constant.data)}"
            )
    return None


def is_digest(text: str) -> bool:
    """Returns whether a text has the form of a SHA-256 in lower-case hexadecimal."""
    return len(text) == 64 and not text.strip("0123456789abcdef")


def _find_variables(avals: Sequence[Aval]) -> frozenset[str]:
    return frozenset().union(*map(variables_in, _iter_distinct(avals)))


def _compare_counts(name: str, count: int, expected: int, what: str) -> str | None:
    return None if count == expected else f"{name} has {count} members for {expected} {what}"


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
            "the portable function is for several platforms, so the first argument of the module "
            f"must be the platform index, a scalar integer. Got: {first_input}"
        )
    if problems:
        raise ModuleError(
            f"The StableHLO module of {name} does not match its portable "
            f"function:{format_bullets(problems)}"
        )


def list_main_avals(function: PortableFunction) -> list[Aval]:
    """Returns the abstract values of main's arguments after the platform index and tokens."""
    argument_avals = [function.in_avals[i] for i in function.module.kept_arguments]
    return argument_avals + [constant.aval for constant in function.lifted_constants]


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
    check_types(
        function.name,
        list_main_avals(function),
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
