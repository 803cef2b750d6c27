"""Hypothesis strategies for portable functions: every field, in every form that a file holds."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from jax2tf_bridge import DisabledSafetyCheck, PortableFunction, Target
from jax2tf_bridge.portable import (
    LEAF,
    AbstractDevice,
    AbstractMesh,
    Aval,
    GraphFunction,
    LiftedConstant,
    Module,
    NoGradient,
    Sharding,
    StoredGradient,
    TreeSpec,
    array_size,
)
from shape_poly import Dim
from tests.serialization.records import changed, constant, vjp_of, within
from tests.strategies import comparisons, written

DTYPES = ("float32", "bfloat16", "int4", "float0", "bool", "complex128", "float8_e4m3fn")

texts = st.text(max_size=8)
names = st.from_regex(r"[a-z_]{1,6}", fullmatch=True)
u32 = st.integers(0, 2**32 - 1)
versions = st.tuples(u32, u32, u32)


def tuples(of: st.SearchStrategy[Any], most: int = 3) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(of, max_size=most).map(tuple)


plain_keys: st.SearchStrategy[Hashable] = st.one_of(
    texts,
    st.integers(),
    st.integers(-(2**200), 2**200),
    st.floats(allow_nan=False),
    st.booleans(),
    st.none(),
    st.binary(max_size=8),
)
keys = st.recursive(plain_keys, tuples, max_leaves=5)
"""Every key of a dictionary that a file holds, but NaN, which does not equal itself."""


def _dicts(children: st.SearchStrategy[TreeSpec]) -> st.SearchStrategy[TreeSpec]:
    def make(pairs: list[tuple[Hashable, TreeSpec]]) -> TreeSpec:
        return TreeSpec(
            "dict", keys=tuple(k for k, _ in pairs), children=tuple(c for _, c in pairs)
        )

    pairs = st.tuples(keys, children)
    return st.lists(pairs, max_size=3, unique_by=lambda pair: pair[0]).map(make)


def _typed(children: st.SearchStrategy[TreeSpec]) -> st.SearchStrategy[TreeSpec]:
    """Named tuples and custom nodes, of types that nobody registered in this process."""

    def make(
        kind: Any, name: str, fields: list[str], named: bool, registered: str, auxdata: bytes | None
    ) -> st.SearchStrategy[TreeSpec]:
        with_keys = tuple(fields) if named or kind == "namedtuple" else ()
        return st.tuples(*[children] * len(fields)).map(
            lambda found: TreeSpec(
                kind, name, with_keys, found, serialized_name=registered, auxdata=auxdata
            )
        )

    fields = st.lists(names, max_size=3, unique=True)
    kinds = st.sampled_from(("namedtuple", "custom"))
    registered = st.just("") | st.sampled_from(("nobody.knows", "nor.this"))
    auxdata = st.none() | st.binary(max_size=5)
    made = st.tuples(kinds, names, fields, st.booleans(), registered, auxdata)
    return made.flatmap(lambda parts: make(*parts))


def _containers(children: st.SearchStrategy[TreeSpec]) -> st.SearchStrategy[TreeSpec]:
    return st.one_of(
        tuples(children).map(lambda found: TreeSpec("tuple", children=found)),
        tuples(children).map(lambda found: TreeSpec("list", children=found)),
        _dicts(children),
        _typed(children),
    )


trees = st.recursive(st.sampled_from((LEAF, TreeSpec("none"))), _containers, max_leaves=8)

dimensions: st.SearchStrategy[Dim] = st.integers(0, 2**63 - 1) | written.filter(
    lambda dimension: bool(dimension.variables())
)
_arrays = st.builds(
    Aval,
    shape=tuples(dimensions),
    dtype=st.sampled_from(DTYPES),
    memory_space=st.sampled_from(("device", "host", "any")),
)
_prng_keys = st.builds(
    Aval,
    shape=tuples(dimensions),
    dtype=st.just("key<fry>"),
    element_shape=tuples(st.integers(0, 4), 2),
)
avals = _arrays | _prng_keys

_devices = st.builds(AbstractDevice, texts, texts, st.none() | u32)
_axes = st.tuples(names, st.integers(0, 2**64 - 1), st.sampled_from(("auto", "explicit", "manual")))


def _mesh(axes: list[tuple[Any, Any, Any]], device: AbstractDevice | None) -> AbstractMesh:
    found = [tuple(axis[i] for axis in axes) for i in range(3)]
    return AbstractMesh(found[0], found[1], found[2], device)


meshes = st.builds(_mesh, st.lists(_axes, max_size=3), st.none() | _devices)


def _over_mesh(mesh: AbstractMesh) -> st.SearchStrategy[Sharding]:
    axes = tuples(st.sampled_from(mesh.axis_names)) if mesh.axis_names else st.just(())
    return st.builds(
        Sharding,
        mesh=st.just(mesh),
        partitions=tuples(axes),
        unreduced=axes,
        reduced=axes,
        memory_kind=st.none() | texts,
    )


shardings = meshes.flatmap(_over_mesh) | st.builds(Sharding, hlo=st.binary(min_size=1, max_size=9))
_constant_types = st.builds(
    Aval,
    shape=tuples(st.integers(0, 3)),
    dtype=st.sampled_from(("bool", "int8", "bfloat16", "float32", "complex128")),
    memory_space=st.sampled_from(("device", "host", "any")),
)


def _lifted(aval: Aval, name: str, data: bytes) -> LiftedConstant:
    size = array_size(aval)
    assert isinstance(size, int)
    # Few bytes that differ: portable functions often have an array several times.
    found = constant(aval, (data * size)[:size], name)
    # An array has its data everywhere or nowhere.
    return replace(found, data=None) if found.digest < "4" else found


lifted_constants = st.builds(
    _lifted, _constant_types, texts, st.sampled_from((b"\0", b"\1", b"ab", b"abc"))
)
graph_functions = st.builds(
    GraphFunction, texts, st.sampled_from((b"\0", b"a graph", bytes(range(256))))
)
constraints = comparisons.map(str) | st.just("mod( 2*(a+b), 3)==0")
targets = st.builds(Target, texts, tuples(versions), u32, xla=st.booleans())


@st.composite
def single_functions(draw: st.DrawFn) -> PortableFunction:
    """A portable function without VJPs; every field is drawn."""
    arguments = draw(tuples(trees))
    keywords = draw(st.lists(texts, max_size=2, unique=True))
    keyword_trees = tuple(draw(trees) for _ in keywords)
    in_tree = TreeSpec(
        "tuple",
        children=(
            TreeSpec("tuple", children=arguments),
            TreeSpec("dict", keys=tuple(keywords), children=keyword_trees),
        ),
    )
    out_tree = draw(trees)
    in_count, out_count = in_tree.leaf_count, out_tree.leaf_count

    def one_each(of: st.SearchStrategy[Any], count: int) -> tuple[Any, ...]:
        pool = draw(st.lists(of, min_size=1, max_size=3))
        return tuple(draw(st.sampled_from(pool)) for _ in range(count))

    in_avals = one_each(avals, in_count)
    kept = [i for i in range(in_count) if draw(st.booleans())]
    return PortableFunction(
        name=draw(texts),
        in_tree=in_tree,
        in_avals=in_avals,
        out_tree=out_tree,
        out_avals=within(in_avals, one_each(avals, out_count)),
        argument_names=one_each(texts, len(arguments)),
        module=Module(
            data=draw(st.binary(max_size=20)),
            stablehlo_version=draw(versions),
            calling_convention_version=draw(u32),
            kept_arguments=tuple(kept),
            platforms=draw(st.lists(texts, min_size=1, max_size=3).map(tuple)),
            uses_shape_polymorphism=draw(st.booleans()),
            disabled_checks=draw(tuples(st.builds(DisabledSafetyCheck, texts))),
            nr_devices=draw(u32),
        ),
        dropped_platforms=draw(tuples(st.tuples(texts, texts))),
        constraints=draw(tuples(constraints)),
        ordered_effects=draw(tuples(texts)),
        unordered_effects=draw(tuples(texts)),
        in_shardings=one_each(st.none() | shardings, in_count),
        out_shardings=one_each(st.none() | shardings, out_count),
        target=draw(targets),
        producer=draw(texts),
        requirements=draw(tuples(constraints)),
        constraints_known=draw(st.booleans()),
        uses_global_constants=draw(st.booleans()),
        tensorflow_differentiates=draw(st.booleans()),
        lifted_constants=draw(tuples(lifted_constants)),
        graph_functions=draw(tuples(graph_functions, most=2)),
        gradient=NoGradient(draw(texts)),
    )


def chained(functions: Sequence[PortableFunction]) -> PortableFunction:
    """Returns the first of the functions, each with the next as its VJP."""
    *rest, portable = functions
    for function in reversed(rest):
        portable = replace(function, gradient=StoredGradient(portable))
    return portable


@st.composite
def portable_functions(draw: st.DrawFn) -> PortableFunction:
    """A portable function with VJPs up to some order, which may share fields with it."""
    first = draw(single_functions())
    functions = [first]
    for _ in range(draw(st.integers(0, 2))):
        fresh = draw(single_functions())
        primal = functions[-1]
        shared = vjp_of(primal, module=fresh.module.data, name=fresh.name, gradient=fresh.gradient)
        types: dict[str, Any] = {
            name: getattr(shared, name)
            for name in (
                "in_tree",
                "in_avals",
                "out_tree",
                "out_avals",
                "argument_names",
                "in_shardings",
                "out_shardings",
            )
        }
        types["kept_arguments"] = shared.module.kept_arguments
        functions.append(draw(st.sampled_from((changed(fresh, **types), shared))))
    return chained(functions)


def same_key(left: Hashable, right: Hashable) -> bool:
    """Returns whether keys are equal and of the same types, with the signs of zeros."""
    if type(left) is not type(right):
        return False
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(same_key, left, right))
    if isinstance(left, float) and isinstance(right, float):
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    return left == right


def same_tree(left: TreeSpec, right: TreeSpec) -> bool:
    """Returns whether structures are equal, including the types of their keys."""
    return (
        left == right
        and len(left.keys) == len(right.keys)
        and all(map(same_key, left.keys, right.keys))
        and all(map(same_tree, left.children, right.children))
    )
