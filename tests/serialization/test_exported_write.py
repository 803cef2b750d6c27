"""Writes JAX's exported functions; JAX reads, runs and differentiates them."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax2tf_bridge import DisabledSafetyCheck, PortableFunction, export, serialize_exported
from jax2tf_bridge.errors import SerializationError
from jax2tf_bridge.portable import LEAF, AbstractDevice, AbstractMesh, Aval, Sharding, TreeSpec
from jax2tf_bridge.serialization import FlatBufferReader, deserialize, serialize
from jax2tf_bridge.serialization.jax_exported import DTYPES, ExportedField, read_exported

# The test compares the numbers of the schema with those of the installed JAX.
from jax2tf_bridge.serialization.jax_exported._schema import KEY_SHAPES, WRITTEN_VERSION
from tests.archives.register_types import register_types
from tests.consumers.comparison import differences
from tests.fresh_process import run_python, several_devices
from tests.program_cases.reference import jax_arguments, reference
from tests.programs import PROGRAMS, Example, Program
from tests.serialization import records
from tests.serialization.exported_by_hand import writable
from tests.serialization.read_archives import ARCHIVES, FILES
from tests.strategies import written

register_types()
QUICK = (
    "mixed_arguments",
    "named_tuples",
    "dataclasses_and_none",
    "no_arguments",
    "unused_and_untouched",
    "related_dimensions",
    "keys_in_and_out",
)
# In CI, besides; the others are one row of a table each.
THOROUGH = (
    "mlp_vjp",
    "attention",
    "control_flow",
    "complex64",
    "no_results",
    "float64",
    "fp8_arguments",
    "empty_arrays",
    "eigh",
    "matrix_exponential",
)


class Free(NamedTuple):
    """Registered nowhere."""

    only: Any


def in_jax(data: bytes) -> Any:
    return jax.export.deserialize(bytearray(data))


def marks(program: Program) -> Any:
    if program.name in QUICK:
        return ()
    return pytest.mark.slow if program.name in THOROUGH else pytest.mark.complete


@pytest.mark.parametrize(
    "program",
    [pytest.param(p, marks=marks(p), id=p.name) for p in PROGRAMS],
)
def test_programs_run_in_jax(program: Program) -> None:
    with program.precision():
        example = program.build()
        first = example.calls[0]
        portable = export(
            example.function,
            polymorphic_shapes=program.polymorphic_shapes,
            polymorphic_constraints=program.constraints,
            platforms=["cpu"],
        )(*jax_arguments(program, first), **first.kwargs)
        back = in_jax(serialize_exported(portable, vjp_order=int(program.differentiable)))
        again = Example(back.call, example.calls)
        for call in example.calls:
            want, got = reference(program, example, call), reference(program, again, call)
            assert differences("result", got.results, want.results, program.tolerance) == []
            assert differences("gradient", got.gradients, want.gradients, program.tolerance) == []


def test_second_derivatives() -> None:
    portable = export(lambda x: jnp.sin(x) * x, polymorphic_shapes="b")(jnp.ones(3))
    back = in_jax(serialize_exported(portable, vjp_order=2))
    x = jnp.arange(5.0)

    def second(f: Any) -> Any:
        return jax.grad(lambda v: jax.grad(lambda u: f(u).sum())(v).sum())(x)

    np.testing.assert_allclose(second(back.call), second(lambda v: jnp.sin(v) * v), rtol=1e-5)
    assert back.vjp().vjp().has_vjp() is False


@pytest.mark.costly
def test_captured_arrays_and_4_bit_integers() -> None:
    """They are as JAX has them: constants of the module, and arguments and results of 4 bits."""
    captured = np.sin(np.arange(64 * 32, dtype=np.float32)).reshape(64, 32) / 8

    def f(x: Any, q: Any) -> Any:
        return jnp.tanh(x @ captured) * q.astype(jnp.float32), q

    x, q = np.ones((2, 64), np.float32), jnp.arange(-8, 8, 0.5).astype(jnp.int4)
    portable = export(f, polymorphic_shapes=["b, _", None])(x, q)
    assert portable.lifted_constants
    # As it is written where it is, and from a file.
    exported = jax.export.export(jax.jit(f), platforms=["cpu"])(x, q)
    for stored in (portable, deserialize(serialize(portable, vjp_order=1))):
        back = in_jax(serialize_exported(stored, vjp_order=1))
        assert [str(aval.dtype) for aval in back.in_avals] == ["float32", "int4"]
        result, same = back.call(x, q)
        np.testing.assert_allclose(result, exported.call(x, q)[0], rtol=1e-6)
        assert same.dtype == jnp.int4
        assert same.tolist() == q.tolist()

    def slope(g: Any) -> Any:
        return jax.grad(lambda x: g(x, q)[0].sum())

    np.testing.assert_allclose(slope(back.call)(x), slope(f)(x), rtol=1e-4)
    again = read_exported(serialize_exported(stored, vjp_order=0))
    assert not again.lifted_constants
    assert serialize_exported(stored) == serialize_exported(portable, vjp_order=1)


WITHOUT_JAX = """
import sys
from jax2tf_bridge import deserialize, serialize_exported
from jax2tf_bridge.errors import SerializationError

try:
    serialize_exported(deserialize(bytes.fromhex(sys.argv[1])))
except SerializationError as e:
    print(e)
"""


def test_what_needs_jax_says_so() -> None:
    captured = np.sin(np.arange(2048, dtype=np.float32))
    portable = export(lambda x, q: (captured + x, q))(np.float32(1), jnp.ones(2, jnp.int4))
    assert run_python(WITHOUT_JAX, serialize(portable).hex(), without_jax=True) == (
        "<lambda> cannot be written as JAX's exported function without JAX: captured arrays (1) "
        "are stored outside of its module, and its module takes 4-bit integers as 8-bit ones, for "
        "TensorFlow. Install JAX (pip install 'jax2tf-bridge[jax]'), or write a .jaxfn file with "
        "write_function."
    )


def described(portable: PortableFunction) -> dict[str, Any]:
    """Returns the fields of a function that the format holds."""
    left_out = {
        "argument_names",
        "constraints",
        "constraints_known",
        "requirements",
        "dropped_platforms",
        "target",
        "producer",
        "gradient",
        "uses_global_constants",
    }
    fields = {f.name: getattr(portable, f.name) for f in dataclasses.fields(portable)}
    # JAX folds what depends on the platform by a newer convention.
    module = dataclasses.replace(
        portable.module, calling_convention_version=9, uses_shape_polymorphism=False
    )
    found = {name: value for name, value in fields.items() if name not in left_out}
    return {**found, "module": module}


def test_what_is_written() -> None:
    data = serialize_exported(writable(platforms=("cpu", "tpu"), nr_devices=3))
    root = FlatBufferReader(data, what="it").root()
    assert root.integer(ExportedField.SERIALIZATION_VERSION) == WRITTEN_VERSION == 12
    # It is not JAX that wrote it.
    assert not root.has(ExportedField.JAX_VERSION)
    # Older and newer releases read different fields.
    assert root.integer(ExportedField.NR_DEVICES) == 3
    assert root.integer(ExportedField.NR_DEVICES_SHORT) == 3
    assert len(root.tables(ExportedField.IN_AVALS)) == 1
    assert root.integers(ExportedField.IN_AVALS_IDXS) == (0,)
    assert root.integers(ExportedField.IN_SHARDINGS_IDXS) == (0,)
    # JAX folds what depends on the platform.
    assert root.boolean(ExportedField.USES_GLOBAL_CONSTANTS)
    assert root.integer(ExportedField.CALLING_CONVENTION_VERSION) == 9
    newer = serialize_exported(writable(calling_convention_version=10))
    assert read_exported(newer).module.calling_convention_version == 10


def test_the_same_function_is_written_as_the_same_bytes() -> None:
    portable = export(lambda x: jnp.sin(x))(jnp.ones(3)).with_vjp(1)
    assert serialize_exported(portable, vjp_order=1) == serialize_exported(portable, vjp_order=1)


def test_what_jax_wrote_is_written_again() -> None:
    for file in FILES:
        portable = read_exported(file.read_bytes())
        again = read_exported(serialize_exported(portable, vjp_order=int(portable.has_vjp)))
        if any(s is not None and s.mesh is None for s in portable.in_shardings):
            # Known in XLA's words alone; JAX 0.11 and later need names.
            assert all(s is not None and s.mesh is not None for s in again.in_shardings)
            portable = replace(
                portable, in_shardings=again.in_shardings, out_shardings=again.out_shardings
            )
        assert described(again) == described(portable), file
        assert again.has_vjp == portable.has_vjp
        if portable.has_vjp:
            assert described(again.vjp()) == described(portable.vjp()), file


MESH = AbstractMesh(
    ("x", "y"), (2, 3), ("auto", "explicit"), AbstractDevice("TPU v5 lite", "tpu", 2)
)

texts = st.text(st.characters(codec="utf-8"), max_size=8)
trees = st.recursive(
    st.sampled_from([LEAF, TreeSpec("none")]),
    lambda children: st.one_of(
        st.builds(
            lambda kind, c: TreeSpec(kind, children=tuple(c)),
            st.sampled_from(["tuple", "list"]),
            st.lists(children, max_size=3),
        ),
        st.builds(
            lambda d: TreeSpec("dict", keys=tuple(d), children=tuple(d.values())),
            st.dictionaries(texts, children, max_size=3),
        ),
        st.builds(
            lambda c, aux: TreeSpec(
                "custom", "node", children=tuple(c), serialized_name="no.node", auxdata=aux
            ),
            st.lists(children, max_size=3),
            st.binary(max_size=5).map(lambda b: b"\xff" + b),
        ),
    ),
    max_leaves=8,
)
sizes = st.integers(0, 2**62) | written.filter(lambda d: bool(d.variables()))
arrays = st.builds(
    lambda shape, dtype, space: Aval(tuple(shape), dtype, KEY_SHAPES.get(dtype, ()), space),
    st.lists(sizes, max_size=3),
    st.sampled_from([d for d in DTYPES if d not in ("int4", "uint4")]),
    st.sampled_from(["device", "host", "any"]),
)
spread = st.none() | st.builds(
    Sharding,
    st.sampled_from([MESH, replace(MESH, device=None)]),
    st.sampled_from([(), (("x",),), ((), ("y", "x")), (("x",), ("y",))]),
    memory_kind=st.none() | texts,
)
# Shardings of a type that no mesh has.
xla_spread = st.none() | st.binary(max_size=3).map(lambda rest: Sharding(hlo=b"\x08\x01" + rest))


@st.composite
def functions(draw: st.DrawFn) -> PortableFunction:
    in_tree = records.call_tree(draw(trees))
    out_tree = draw(trees)
    ins, outs = in_tree.leaf_count, out_tree.leaf_count
    how = draw(st.sampled_from([spread, xla_spread]))

    def some(of: st.SearchStrategy[Any], count: int) -> tuple[Any, ...]:
        return tuple(draw(of) for _ in range(count))

    in_avals = some(arrays, ins)
    return writable(
        name=draw(texts),
        in_tree=in_tree,
        out_tree=out_tree,
        in_avals=in_avals,
        out_avals=records.within(in_avals, some(arrays, outs)),
        kept_arguments=tuple(i for i in range(ins) if draw(st.booleans())),
        platforms=tuple(draw(st.lists(texts, min_size=1, max_size=3))),
        disabled_checks=draw(
            st.sampled_from(
                [(), (DisabledSafetyCheck.platform(), DisabledSafetyCheck.custom_call("c"))]
            )
        ),
        ordered_effects=draw(
            st.sampled_from([(), ("a.b.C",), ("a.f.<locals>.C", "something else")])
        ),
        nr_devices=draw(st.integers(1, 2**32 - 1)),
        in_shardings=some(how, ins),
        out_shardings=some(how, outs),
    )


@given(functions())
def test_what_is_read_is_what_was_written(portable: PortableFunction) -> None:
    assert described(read_exported(serialize_exported(portable))) == described(portable)


def test_shardings_are_jax_s() -> None:
    """For releases that know names, and for those that know XLA's words alone."""
    spread = (Sharding(MESH, (("x",), ())),)
    matrix = (Aval((4, 3), "float32"),)
    portable = writable(
        in_avals=matrix, out_avals=matrix, in_shardings=spread, out_shardings=spread, nr_devices=6
    )
    back = in_jax(serialize_exported(portable))
    assert back.nr_devices == 6
    if jax.__version_info__ >= (0, 9):
        named = back.in_shardings_jax(None)[0]
        assert named.spec == jax.sharding.PartitionSpec("x", None)
        assert dict(named.mesh.shape) == {"x": 2, "y": 3}
        assert [kind.name for kind in named.mesh.axis_types] == ["Auto", "Explicit"]
        assert named.mesh.abstract_device.device_kind == "TPU v5 lite"
    else:
        tiles = back.in_shardings_hlo[0]
        assert tiles.tile_assignment_dimensions() == [2, 1, 3]
        assert tiles.tile_assignment_devices() == [0, 1, 2, 3, 4, 5]
        assert tiles.replicate_on_last_tile_dim()


SHARDED = """
import sys
from pathlib import Path
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax2tf_bridge.serialization import deserialize, serialize
from jax2tf_bridge.serialization.jax_exported import read_exported
from jax2tf_bridge import serialize_exported

mesh = jax.sharding.Mesh(np.array(jax.devices()), ("m",))
everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
for path in sys.argv[1:]:
    record = read_exported(Path(path).read_bytes())
    back = jax.export.deserialize(bytearray(serialize_exported(record)))
    x = jax.device_put(jnp.ones((4, 2)), everywhere)
    y = jax.device_put(jnp.ones((3, 4, 5)), everywhere)
    result, total = jax.jit(back.call)(x, y)
    print(float(result.sum()), float(total), result.addressable_shards[0].data.shape)
"""


@pytest.mark.slow
def test_archives_of_several_devices_run_in_jax() -> None:
    releases = ("0.4.30", "0.7.2", "0.8.3")
    files = [str(ARCHIVES / release / "sharded.exported") for release in releases]
    lines = run_python(SHARDED, *files, env=several_devices(2)).splitlines()
    assert lines == ["16.0 60.0 (2, 2)"] * len(releases)


def test_types_that_jax_knows_but_nobody_registered() -> None:
    portable = export(lambda t: t.only + 1)(Free(jnp.ones(2)))
    with pytest.raises(SerializationError, match="a Free, which is not registered for files"):
        serialize_exported(portable)


def test_4_bit_integers_of_jax_s_own_modules() -> None:
    portable = writable(in_avals=(Aval((), "int4"),), constraints_known=False)
    assert read_exported(serialize_exported(portable)).in_avals == portable.in_avals


def test_ordered_dicts() -> None:
    tree = OrderedDict([("b", jnp.ones(2)), ("a", jnp.zeros(2))])
    portable = export(lambda t: OrderedDict(t, c=t["b"]))(tree)
    result = in_jax(serialize_exported(portable)).call(tree)
    assert isinstance(result, OrderedDict)
    assert list(result) == ["b", "a", "c"]
