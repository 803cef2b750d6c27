"""JAX's exported functions that are damaged: the error says where, what was expected and got."""

from __future__ import annotations

from typing import Any

import pytest

from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.portable import LEAF
from jax2tf_bridge.serialization.jax_exported import ExportedField, read_exported

# Hand-made files differ from real ones in single fields, so they are written with the writer and
# the fields of the bridge.
from jax2tf_bridge.serialization.jax_exported._schema import CheckField, ShardingField
from tests.serialization.exported_by_hand import (
    aval,
    by_hand,
    inline,
    mesh,
    named,
    node,
    tree,
    vjp,
)
from tests.serialization.records import call_tree

F = ExportedField
WRONG: list[tuple[dict[Any, Any], str]] = [
    (
        {F.SERIALIZATION_VERSION: 7},
        "a serialization version other than 7, which J",
    ),
    ({F.SERIALIZATION_VERSION: 1}, "serialization_version: expected a serializati"),
    ({F.NR_DEVICES: 0}, "nr_devices: expected at least one device, got 0"),
    (
        {F.MODULE: None},
        "module: expected a StableHLO module as a portable artifact, g",
    ),
    ({F.MODULE: b"ML\xefR"}, r"artifact, got b'ML\\xefR'"),
    (
        {F.PLATFORMS: []},
        "expected parts that agree, got platforms is empty",
    ),
    ({F.IN_TREE: None}, "in_tree: expected a pytree, got none"),
    ({F.OUT_TREE: None}, "out_tree: expected a pytree, got none"),
    ({F.IN_TREE: tree(LEAF)}, r"in_tree: expected a tuple of arguments and a dict of keyword"),
    (
        {F.IN_TREE: tree(call_tree(LEAF, LEAF))},
        "in_tree: expected 1 leaves, one for each value, got 2",
    ),
    ({F.OUT_TREE: node(9)}, "out_tree.kind: expected 0 to 5, got 9"),
    ({F.OUT_TREE: node(1, children=1)}, "out_tree.children: expected no children below None"),
    (
        {F.OUT_TREE: node(4, ["a", "b"], 1)},
        "children_names: expected 1 keys, one for each child, got 2",
    ),
    (
        {F.OUT_TREE: node(4, ["a", "a"], 2)},
        "children_names: expected keys that differ, got the",
    ),
    ({F.OUT_TREE: node(5, children=1)}, "custom_name: expected the name of a registered type"),
    (
        {
            F.OUT_TREE: node(
                5,
                children=1,
                custom_name="collections.OrderedDict",
                custom_auxdata=b"1",
            )
        },
        "out_tree.custom_auxdata: (The names of .* must be a list|The file's .* cannot read)",
    ),
    ({F.OUT_AVALS: aval(kind=1)}, r"out_avals\[0\].kind: expected 0, an array, got 1"),
    ({F.OUT_AVALS: aval(dtype=30)}, r"dtype: expected a dtype from 0 to 29, .*, got 30"),
    ({F.OUT_AVALS: aval(dtype=-1)}, r"dtype: expected a dtype from 0 to 29, .*, got -1"),
    ({F.OUT_AVALS: aval(space=4)}, "memory_space: expected a memory space from 0 to 3, got 4"),
    (
        {F.OUT_AVALS: aval("b /")},
        r"out_avals\[0\].shape: expected a size as dimension 0, got text that is not a size: The",
    ),
    ({F.OUT_AVALS: aval("-5")}, "expected a size from 0 to 9223372036854775807 as dimension 0"),
    (
        {F.OUT_AVALS: aval("9" * 20)},
        "expected a size from 0 to 9223372036854775807 as dimension",
    ),
    (
        {F.IN_AVALS_IDXS: [0]},
        "in_avals_idxs: expected indices be",
    ),
    ({F.IN_SHARDINGS_IDXS: [1]}, "indices up to 0, got 1"),
    (
        {F.IN_SHARDINGS_IDXS: [0, 0]},
        "1 shardings, one for each value, g",
    ),
    ({F.OUT_SHARDINGS: []}, "out_shardings: expected 1 shardings, one for each value, got 0"),
    (
        {F.IN_SHARDINGS: [{ShardingField.KIND: 1}]},
        r"in_shardings\[0\].kind: expected 0 where there is no sharding, got 1",
    ),
    (inline(named()), "named_sharding.mesh: expected a mesh, got none"),
    (
        inline(named(mesh(), spec=False)),
        "named_sharding.spec: expected a partition spec, got no",
    ),
    (
        inline(named(mesh(), axes=("z",))),
        r"in_shardings have the axes z, which the mesh \(x=2, y=3\) lacks",
    ),
    (
        {F.UNIQUE_ABSTRACT_MESHES: [mesh()], **inline(named(index=1))},
        "abstract_mesh_idx: expected an index up to 0, got 1",
    ),
    (
        inline(named(mesh(axis_names=["x"]))),
        "mesh: expected one size, one type and a name of its own for each axis, got 2 sizes, 2 t",
    ),
    (
        inline(named(mesh(axis_sizes=[0, 1]))),
        "axis_sizes: expected sizes of at least 1, got 0",
    ),
    (
        inline(named(mesh(axis_types=[1, 9]))),
        r"axis_types: expected axis types from 0 to 3, got \(1, 9\)",
    ),
    (
        {F.ORDERED_EFFECTS: [{}]},
        r"ordered_effects\[0\].type_name: expected the class",
    ),
    (
        {F.DISABLED_CHECKS: [{CheckField.KIND: 3}]},
        r"disabled_checks\[0\].kind: expected 0 to 2, got 3",
    ),
    (
        {F.DISABLED_CHECKS: [{CheckField.KIND: 1}]},
        "custom_call_target: expected the name of a custom call, got none",
    ),
    (
        {F.MODULE_KEPT_VAR_IDX: [1]},
        "kept_arguments is not in ascending order from 0 to 0: 1 comes after -1",
    ),
    (
        {F.MODULE_KEPT_VAR_IDX: [0, 0]},
        "kept_arguments is not in ascending order from 0 to 0: 0 comes after 0",
    ),
    (
        {F.VJP: vjp(outs=2)},
        "vjp: expected the VJP of f, got out_avals has 2 members for 1 cotangents of arguments",
    ),
    (
        {F.VJP: vjp(version=7)},
        "vjp.serialization_version: expected a serialization version other",
    ),
]


@pytest.mark.parametrize(("fields", "message"), WRONG)
def test_errors_say_where_and_what(fields: dict[Any, Any], message: str) -> None:
    with pytest.raises(FileFormatError, match=message) as caught:
        read_exported(by_hand(fields), file="model.bin")
    assert str(caught.value).startswith("A function exported by JAX in model.bin cannot be read: ")
    assert caught.value.file == "model.bin"
