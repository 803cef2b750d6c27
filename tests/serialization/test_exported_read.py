"""JAX's exported functions are read without JAX: every release's, by what is in them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from jax2tf_bridge import DisabledSafetyCheck
from jax2tf_bridge.errors import GradientError
from jax2tf_bridge.portable import LEAF, AbstractDevice, AbstractMesh, Aval, Sharding, TreeSpec
from jax2tf_bridge.serialization import Field
from jax2tf_bridge.serialization.jax_exported import DTYPES, ExportedField, read_exported

# Hand-made files differ from real ones in single fields, so they are written with the writer and
# the fields of the bridge.
from jax2tf_bridge.serialization.jax_exported._schema import (
    KEY_SHAPES,
    AvalField,
    CheckField,
    EffectField,
)
from tests.fresh_process import run_python
from tests.serialization.exported_by_hand import avals, by_hand, inline, mesh, named, tree, vjp
from tests.serialization.read_archives import FILES, archive, differences


def test_archives_are_read_without_jax() -> None:
    code = "from tests.serialization.read_archives import main; main()"
    assert run_python(code, without_jax=True) == f"{len(FILES)} files read"
    releases = {file.parent.name for file in FILES}
    assert len(releases) >= 9
    assert {"0.4.30", "0.12.0.1"} <= releases


@pytest.mark.parametrize("file", FILES, ids=lambda f: f"{f.parent.name}-{f.stem}")
def test_archives_are_read_where_jax_may_be(file: Path) -> None:
    assert differences(file) == []


def test_a_function_says_where_it_comes_from() -> None:
    portable = read_exported(archive("0.9.2", "symbolic"))
    assert portable.argument_names == ("x0", "x1")
    assert portable.in_paths() == ("x0", "x1")
    assert not portable.constraints_known
    assert portable.constraints == ("b >= 3", "mod(b, 2) == 0", "h <= 100")
    assert portable.module.uses_shape_polymorphism
    assert portable.uses_global_constants
    assert portable.producer == portable.target.name == "JAX (serialization version 3)"
    assert portable.target.stablehlo_versions == (portable.module.stablehlo_version,)
    assert portable.module.stablehlo_version == (1, 13, 7)
    assert read_exported(archive("0.12.0.1", "nothing")).producer == "JAX 0.12.0.1"


def test_nodes_that_nobody_registered_have_stand_ins() -> None:
    portable = read_exported(archive("0.8.3", "trees"))
    (boxes, nothing), (point, empty) = (
        portable.in_tree.children[0].children[0].children[i].children for i in (1, 0)
    )
    box = boxes
    assert (box.kind, box.name, box.serialized_name, box.auxdata) == (
        "custom",
        "Box",
        "archives.Box",
        b"red",
    )
    assert (point.kind, point.name, point.keys) == ("namedtuple", "Point", ("x", "y"))
    assert (nothing.kind, empty.kind) == ("none", "dict")
    assert box.unflatten(iter([1])) == (1,)
    assert point.unflatten(iter([1, 2]))._asdict() == {"x": 1, "y": 2}


def test_vjps_are_read_when_they_are_asked_for() -> None:
    portable = read_exported(archive("0.6.2", "trees"))
    vjp = portable.vjp()
    assert vjp is portable.vjp()
    assert vjp is portable.gradient.vjp
    count = len(portable.in_avals)
    assert vjp.argument_names[: count + 1] == (
        *(f"primal_{i}" for i in range(count)),
        "cotangent_0",
    )
    assert vjp.module.data != portable.module.data
    with pytest.raises(GradientError, match="it was stored without the VJP of this order"):
        vjp.vjp()
    copied = pickle.loads(pickle.dumps(portable))
    assert copied.vjp().module.data == vjp.module.data
    assert copied.in_tree == portable.in_tree


def test_names_do_not_hide_keywords() -> None:
    kwargs = TreeSpec("dict", keys=("x0",), children=(LEAF,))
    spec = TreeSpec("tuple", children=(TreeSpec("tuple", children=(LEAF,)), kwargs))
    array = Aval((), "int8")
    data = by_hand(
        {ExportedField.IN_TREE: tree(spec), ExportedField.IN_AVALS: avals(array, array)},
    )
    assert read_exported(data).in_paths() == ("x_0", "x0")


@pytest.mark.parametrize("data", [bytearray, memoryview])
def test_every_buffer_is_taken(data: type[bytearray]) -> None:
    assert read_exported(data(by_hand())).name == "f"


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(dtype: str) -> None:
    aval = Aval((3,), dtype, KEY_SHAPES.get(dtype, ()))
    assert read_exported(by_hand({ExportedField.IN_AVALS: avals(aval)})).in_avals == (aval,)


@pytest.mark.parametrize("space", ["device", "host", "any"])
def test_memory_spaces(space: Any) -> None:
    aval = Aval((3,), "int8", memory_space=space)
    assert read_exported(by_hand({ExportedField.IN_AVALS: avals(aval)})).in_avals == (aval,)


def test_sizes_stay_as_jax_wrote_them() -> None:
    data = by_hand(
        {ExportedField.IN_AVALS: [{AvalField.SHAPE: ["b^2 + -1", "floordiv(4*b + 1, 2)", "0"]}]}
    )
    (aval,) = read_exported(data).in_avals
    assert str(aval) == "bool[b^2 - 1,floordiv(4*b + 1, 2),0]"


def test_counts_of_devices_in_both_widths() -> None:
    wide, short = ExportedField.NR_DEVICES, ExportedField.NR_DEVICES_SHORT
    assert read_exported(by_hand({wide: 100_000})).module.nr_devices == 100_000
    assert read_exported(by_hand({wide: 0, short: 8})).module.nr_devices == 8


def test_later_fields_are_passed_over() -> None:
    count = len(ExportedField)
    make: Any = Field
    later = make("Later", {f"FIELD_{i}": "string" for i in range(count + 3)})
    data = by_hand(
        {list(later)[count + 2]: "new", ExportedField.SERIALIZATION_VERSION: 99},
    )
    assert read_exported(data).producer == "JAX (serialization version 99)"


def test_checks_and_effects() -> None:
    portable = read_exported(
        by_hand(
            {
                # Shape assertions can no longer be disabled.
                ExportedField.DISABLED_CHECKS: [
                    {CheckField.KIND: 2},
                    {CheckField.KIND: 0},
                    {CheckField.KIND: 1, CheckField.CUSTOM_CALL_TARGET: "mine"},
                ],
                ExportedField.ORDERED_EFFECTS: [{EffectField.TYPE_NAME: "<class 'a.b.Effect'>"}],
                ExportedField.UNORDERED_EFFECTS: [{EffectField.TYPE_NAME: "something else"}],
            }
        )
    )
    assert portable.module.disabled_checks == (
        DisabledSafetyCheck.platform(),
        DisabledSafetyCheck.custom_call("mine"),
    )
    assert portable.ordered_effects == ("a.b.Effect",)
    assert portable.unordered_effects == ("something else",)


@pytest.mark.parametrize(
    ("kind", "platform"),
    [
        ("TPU v5 lite", "tpu"),
        ("NVIDIA H100", "gpu"),
        ("Tesla V100", "gpu"),
        ("AMD MI300", "gpu"),
        ("cpu", "cpu"),
        ("abacus", ""),
    ],
)
def test_platforms_follow_from_kinds_where_they_are_missing(kind: str, platform: str) -> None:
    (sharding,) = read_exported(by_hand(inline(named(mesh(kind))))).in_shardings
    assert sharding == Sharding(
        AbstractMesh(("x", "y"), (2, 3), ("auto", "explicit"), AbstractDevice(kind, platform)),
        (("y",), ()),
    )


def test_shardings_by_index() -> None:
    fields: dict[Any, Any] = {
        ExportedField.UNIQUE_ABSTRACT_MESHES: [mesh("cpu"), mesh()],
        ExportedField.UNIQUE_NAMED_SHARDINGS: [named(index=1)],
        ExportedField.IN_SHARDINGS_IDXS: [1],
        ExportedField.OUT_SHARDINGS_IDXS: [0],
    }
    portable = read_exported(by_hand(fields))
    assert portable.out_shardings == (None,)
    (sharding,) = portable.in_shardings
    assert sharding is not None
    assert sharding.mesh == AbstractMesh(("x", "y"), (2, 3), ("auto", "explicit"))


def test_avals_by_index() -> None:
    shared = (Aval((), "int8"), Aval((5,), "bool"))
    fields: dict[Any, Any] = {
        ExportedField.UNIQUE_AVALS: avals(*shared),
        ExportedField.IN_AVALS: None,
        ExportedField.IN_AVALS_IDXS: [1],
        ExportedField.OUT_AVALS_IDXS: [0],
    }
    portable = read_exported(by_hand(fields))
    assert (portable.in_avals, portable.out_avals) == (shared[1:], shared[:1])


def test_a_good_vjp_by_hand() -> None:
    assert read_exported(by_hand({ExportedField.VJP: vjp()})).vjp().name == "f"


def test_assertions_of_other_functions_are_not_its_constraints() -> None:
    data = archive("0.9.2", "symbolic")
    assert b"args[0].shape = (b, h)," in data
    other = data.replace(b"args[0].shape = (b, h),", b"args[0].shape = (b, i),")
    assert read_exported(other).constraints == ()
