"""Checks that the parts of a function fit each other: it can be called, shown and written then."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jax2tf_bridge.portable._array_sizes import array_size
from jax2tf_bridge.portable._aval import Aval, LiftedConstant
from jax2tf_bridge.portable._portable_function import PortableFunction
from jax2tf_bridge.portable._symbolic_texts import Comparisons
from jax2tf_bridge.portable._tree_spec import TreeSpec
from shape_poly import Comparison, DimExpr


def function_problem(
    portable: PortableFunction, in_leaves: int, out_leaves: int, comparisons: Comparisons
) -> str | None:
    """Says where the parts of a portable function do not agree; None if they do.

    Args:
      portable: its module and its VJP are not looked at.
      in_leaves: how many leaves in_tree has.
      out_leaves: how many leaves out_tree has.
      comparisons: of the file.
    """
    in_avals, out_avals = len(portable.in_avals), len(portable.out_avals)
    return (
        _call_problem(portable)
        or _unequal("in_avals", in_avals, in_leaves, "leaves of in_tree")
        or _unequal("out_avals", out_avals, out_leaves, "leaves of out_tree")
        or _unequal("in_shardings", len(portable.in_shardings), in_avals, "in_avals")
        or _unequal("out_shardings", len(portable.out_shardings), out_avals, "out_avals")
        or _kept_problem(portable.module.kept_arguments, in_avals)
        or (None if portable.platforms else "platforms has no member")
        or _unequal("stablehlo_version", len(portable.module.stablehlo_version), 3, "numbers")
        or _sizes_problem(portable, comparisons)
        or (_constants_problem(portable.lifted_constants) if portable.lifted_constants else None)
    )


def vjp_problem(
    primal: PortableFunction, in_tree: TreeSpec, in_avals: Sequence[Aval], out_avals: Sequence[Aval]
) -> str | None:
    """Why these are not the structure and types of the VJP of a function; None if they are.

    It takes the flat arguments, then the cotangents of the results, and gives the cotangents of
    the flat arguments.  Sizes are compared where both are numbers: the same size may be written in
    two ways, since a VJP may know more of the sizes than its function.
    """
    arguments = (*primal.in_avals, *_cotangents(primal.out_avals))
    leaves = len(in_tree.children[0].children) if in_tree.children else 0
    return (
        _unequal("in_avals", len(in_avals), len(arguments), "arguments and cotangents of results")
        or _unequal("out_avals", len(out_avals), len(primal.in_avals), "cotangents of arguments")
        or _unequal("in_tree", leaves, len(arguments), "flat arguments")
        or _types_problem("in_avals", in_avals, arguments)
        or _types_problem("out_avals", out_avals, _cotangents(primal.in_avals))
    )


# Files name abstract values by number, so that few of them, with many sizes, may stand for many:
# each object is looked at once.
def _cotangents(avals: Sequence[Aval]) -> list[Aval]:
    made = {
        id(aval): Aval(aval.shape, aval.dtype if aval.is_differentiable else "float0")
        for aval in _distinct(avals)
    }
    return [made[id(aval)] for aval in avals]


def _distinct(avals: Sequence[Aval]) -> Iterable[Aval]:
    return {id(aval): aval for aval in avals}.values()


def _types_problem(name: str, found: Sequence[Aval], expected: Sequence[Aval]) -> str | None:
    agree: set[tuple[int, int]] = set()
    for i, (one, other) in enumerate(zip(found, expected, strict=True)):
        pair = id(one), id(other)
        if pair not in agree and not _may_be(one, other):
            return f"{name}[{i}] is {one!s:.80}, and by the function it is {other!s:.80}"
        agree.add(pair)
    return None


def _may_be(found: Aval, expected: Aval) -> bool:
    return (
        found.dtype == expected.dtype
        and found.element_shape == expected.element_shape
        and len(found.shape) == len(expected.shape)
        and all(
            one == other or isinstance(one, DimExpr) or isinstance(other, DimExpr)
            for one, other in zip(found.shape, expected.shape, strict=True)
        )
    )


def _call_problem(portable: PortableFunction) -> str | None:
    tree = portable.in_tree
    if tree.kind != "tuple" or [c.kind for c in tree.children] != ["tuple", "dict"]:
        return "in_tree is not the structure of (args, kwargs)"
    arguments, keywords = tree.children
    if not all(isinstance(key, str) for key in keywords.keys):
        return "in_tree has keyword arguments whose names are no text"
    names = len(portable.argument_names)
    return _unequal("argument_names", names, len(arguments.children), "arguments")


def _kept_problem(kept: Sequence[int], in_avals: int) -> str | None:
    if tuple(kept) == tuple(range(in_avals)):
        return None
    previous = -1
    for index in kept:
        if not previous < index < in_avals:
            return (
                f"kept_arguments is not in ascending order from 0 to {in_avals - 1}: "
                f"{index} comes after {previous}"
            )
        previous = index
    return None


def _sizes_problem(portable: PortableFunction, comparisons: Comparisons) -> str | None:
    known = _variables(portable.in_avals)
    for name in ("constraints", "requirements"):
        for i, text in enumerate(getattr(portable, name)):
            found = comparisons.parse(text)
            if not isinstance(found, Comparison):
                return f"{name}[{i}] is {text!r:.80}, which is no comparison of sizes: {found}"
            if found.operator == "==":
                # It may define a variable by those of the arguments.
                known |= found.variables()
    unknown = sorted(_variables(portable.out_avals) - known)
    if unknown:
        return f"out_avals have sizes of {', '.join(unknown):.80}, which no argument has"
    return None


def _constants_problem(constants: Sequence[LiftedConstant]) -> str | None:
    sizes = {id(aval): array_size(aval) for aval in _distinct([c.aval for c in constants])}
    for i, constant in enumerate(constants):
        name, size = f"lifted_constants[{i}]", sizes[id(constant.aval)]
        if isinstance(size, str):
            return f"{name} is {constant.aval!s:.80}, and {size}"
        if not is_digest(constant.digest):
            return f"{name} has the digest {constant.digest!r:.80}, which is no SHA-256"
        if constant.data is not None and len(constant.data) != size:
            return (
                f"{name} is {constant.aval!s:.80} of {size} bytes, and its data has "
                f"{len(constant.data)}"
            )
    return None


def is_digest(text: str) -> bool:
    """Tells whether a text may be a SHA-256, in hexadecimal and lower case."""
    return len(text) == 64 and not text.strip("0123456789abcdef")


def _variables(avals: Sequence[Aval]) -> frozenset[str]:
    dims = {dim for aval in _distinct(avals) for dim in aval.shape if isinstance(dim, DimExpr)}
    return frozenset().union(*(dim.variables() for dim in dims))


def _unequal(name: str, count: int, expected: int, what: str) -> str | None:
    return None if count == expected else f"{name} has {count} members for {expected} {what}"
