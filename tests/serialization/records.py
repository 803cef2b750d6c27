"""Portable functions made by hand, for tests that need no JAX."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import replace
from typing import Any

from jax2tf_bridge import PortableFunction, Target
from jax2tf_bridge.portable import (
    LEAF,
    AbstractMesh,
    Aval,
    LiftedConstant,
    Module,
    NoGradient,
    Sharding,
    StoredGradient,
    TreeSpec,
)
from shape_poly import Dim, DimExpr

MODULE_FIELDS = {field.name for field in dataclasses.fields(Module)}
SCALAR = Aval((), "float32")

FUNCTIONS_THAT_CANNOT_BE_CALLED: list[tuple[dict[str, Any], str]] = [
    ({"platforms": ()}, "platforms is empty"),
    ({"stablehlo_version": (1,)}, "stablehlo_version has 1 members for 3 numbers"),
    ({"in_avals": ()}, "in_avals has 0 members for 1 leaves of in_tree"),
    (
        {"in_shardings": (Sharding(AbstractMesh(("x",), (2,), ("auto",)), (("y",),)),)},
        "in_shardings have the axes y, which the mesh (x=2) lacks",
    ),
    ({"kept_arguments": (5,)}, "kept_arguments is not in ascending order from 0 to 0: 5"),
    (
        {"constraints": ("b >= 1", "b >= ")},
        "constraints[1] is 'b >= ', which is not a comparison of sizes: ",
    ),
    ({"requirements": ("b",)}, "requirements[0] is 'b', which is not a comparison of sizes: "),
    (
        {"out_avals": (Aval((DimExpr.variable("b") + DimExpr.variable("c"),), "int8"),)},
        "out_avals have sizes of b, c, which no argument has",
    ),
    (
        {"constraints": tuple(f"(b + {i}) >= 0" for i in range(9))},
        "more than 8 constraints have parentheses of their own: write 2*a + 2*b for 2*(a + b)",
    ),
    (
        {"constraints": tuple(f"{'b + ' * 8000}{i} >= 0" for i in range(9))},
        "all constraints have more than 131072 characters together",
    ),
]
"""Changes to `simple()` and what is wrong with it then; no format holds it."""


def call_tree(*arguments: TreeSpec) -> TreeSpec:
    """Returns the structure of (args, kwargs) with these positional arguments."""
    return TreeSpec("tuple", children=(TreeSpec("tuple", children=arguments), TreeSpec("dict")))


def constant(aval: Aval, data: bytes, name: str = "") -> LiftedConstant:
    """An array that was lifted, with its digest."""
    return LiftedConstant(aval, hashlib.sha256(data).hexdigest(), name, data)


def simple(argument: TreeSpec = LEAF, result: TreeSpec = LEAF) -> PortableFunction:
    """A portable function of a function of one argument, all of whose leaves are scalars."""
    ins, outs = argument.leaf_count, result.leaf_count
    return PortableFunction(
        name="f",
        in_tree=call_tree(argument),
        in_avals=(SCALAR,) * ins,
        out_tree=result,
        out_avals=(SCALAR,) * outs,
        argument_names=("x",),
        module=Module(b"the module", (0, 14, 24), 8, tuple(range(ins)), ("cpu",)),
        in_shardings=(None,) * ins,
        out_shardings=(None,) * outs,
        target=Target("a test", ((0, 14, 24),), 8),
        producer="by hand",
    )


def changed(function: PortableFunction, **fields: Any) -> PortableFunction:
    """Replaces fields of a portable function, and of its module; `module` may be bytes."""
    of_module = {name: fields.pop(name) for name in MODULE_FIELDS & fields.keys()}
    if isinstance(fields.get("module"), bytes):
        of_module["data"] = fields.pop("module")
    function = replace(function, **fields)
    return replace(function, module=replace(function.module, **of_module))


def cotangent(aval: Aval) -> Aval:
    """Returns the type of the cotangent of a value."""
    return Aval(aval.shape, aval.dtype if aval.is_differentiable else "float0")


def vjp_of(primal: PortableFunction, **changes: Any) -> PortableFunction:
    """A function of the types of a function's VJP, with these fields in the place of its own."""
    in_avals = (*primal.in_avals, *map(cotangent, primal.out_avals))
    ins, outs = len(in_avals), len(primal.in_avals)
    fields: dict[str, Any] = {
        "in_tree": call_tree(*(LEAF,) * ins),
        "in_avals": in_avals,
        "out_tree": TreeSpec("tuple", children=(LEAF,) * outs),
        "out_avals": tuple(map(cotangent, primal.in_avals)),
        "argument_names": tuple(f"x{i}" for i in range(ins)),
        "kept_arguments": tuple(range(ins)),
        "in_shardings": (None,) * ins,
        "out_shardings": (None,) * outs,
        "gradient": NoGradient(),
        **changes,
    }
    return changed(primal, **fields)


def with_vjps(portable: PortableFunction, *modules: bytes) -> PortableFunction:
    """Adds VJPs of these modules, each that of the one before."""
    if not modules:
        return portable
    vjp = with_vjps(vjp_of(portable, module=modules[0], gradient=portable.gradient), *modules[1:])
    return replace(portable, gradient=StoredGradient(vjp))


def within(in_avals: tuple[Aval, ...], out_avals: tuple[Aval, ...]) -> tuple[Aval, ...]:
    """Replaces sizes of the results that have variables of no argument by 7."""
    known = {v for a in in_avals for d in a.shape if isinstance(d, DimExpr) for v in d.variables()}

    def size(dim: Dim) -> Dim:
        return 7 if isinstance(dim, DimExpr) and not dim.variables() <= known else dim

    return tuple(replace(aval, shape=tuple(map(size, aval.shape))) for aval in out_avals)
