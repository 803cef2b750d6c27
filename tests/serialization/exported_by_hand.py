"""JAX's exported functions made by hand, field by field, for tests that need no JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jax2tf_bridge import Aval, PortableFunction, TreeSpec
from jax2tf_bridge.portable._tree_spec import LEAF
from jax2tf_bridge.serialization.jax_exported._schema import ExportedField
from jax2tf_bridge.serialization.jax_exported._tables import ScalarKind, Tables
from tests.serialization.records import call_tree, changed, simple

MODULE = b"ML\xefR\x0dStableHLO_v1.13.1\x00and so on"
Write = Callable[[Tables], int | None]


def avals(*them: Aval) -> Write:
    return lambda t: t.references([t.aval(aval) for aval in them])


def tree(spec: TreeSpec) -> Write:
    return lambda t: t.tree(spec)


def table(
    fields: int,
    references: Mapping[int, Write] | None = None,
    scalars: Mapping[int, tuple[ScalarKind, int]] | None = None,
) -> Write:
    """A table of any fields."""

    def write(t: Tables) -> int:
        written = {f: make(t) for f, make in (references or {}).items()}
        return t.table(fields, written, scalars or {})

    return write


def vector(*them: Write) -> Write:
    """A vector of tables."""

    def write(t: Tables) -> int:
        places = [make(t) for make in them]
        return t.references([place for place in places if place is not None])

    return write


@dataclass
class ByHand:
    """A function of one float32 array; the fields that are given replace its own."""

    references: dict[int, Write] = field(default_factory=dict)
    scalars: dict[int, tuple[ScalarKind, int]] = field(default_factory=dict)

    def place(self, t: Tables) -> int:
        """Writes it as a table."""
        array = Aval((2,), "float32")
        references: dict[int, Write] = {
            ExportedField.FUNCTION_NAME: lambda t: t.string("f"),
            ExportedField.IN_TREE: tree(call_tree(LEAF)),
            ExportedField.IN_AVALS: avals(array),
            ExportedField.OUT_TREE: tree(LEAF),
            ExportedField.OUT_AVALS: avals(array),
            ExportedField.PLATFORMS: lambda t: t.strings(["cpu"]),
            ExportedField.MODULE: lambda t: t.byte_vector(MODULE),
            ExportedField.MODULE_KEPT_VAR_IDX: lambda t: t.scalars("Uint16", [0]),
            **self.references,
        }
        scalars: dict[int, tuple[ScalarKind, int]] = {
            ExportedField.SERIALIZATION_VERSION: ("Uint16", 3),
            ExportedField.CALLING_CONVENTION_VERSION: ("Uint16", 10),
            ExportedField.NR_DEVICES: ("Uint32", 1),
            **self.scalars,
        }
        written = {f: make(t) for f, make in references.items()}
        return t.table(len(ExportedField) + 5, written, scalars)

    def bytes(self) -> bytes:
        """Writes it as a file."""
        tables = Tables()
        return tables.finish(self.place(tables))


def by_hand(
    references: Mapping[int, Write] | None = None,
    scalars: Mapping[int, tuple[ScalarKind, int]] | None = None,
) -> bytes:
    """The bytes of a function of one array, with these fields in the place of its own."""
    return ByHand(dict(references or {}), dict(scalars or {})).bytes()


def writable(**changes: Any) -> PortableFunction:
    """A record of one array to one array, with these fields in the place of its own."""
    own: dict[str, Any] = {"module": MODULE, "stablehlo_version": (1, 13, 1)}
    return changed(simple(), **{**own, **changes})
