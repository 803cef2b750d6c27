"""Writes portable functions as JAX's exported functions, which jax.export.deserialize reads."""

from __future__ import annotations

from collections.abc import Sequence

from flatbuffers.builder import BuilderSizeError

from jax2tf_bridge.errors import SerializationError
from jax2tf_bridge.portable._aval import Aval
from jax2tf_bridge.portable._portable_function import PortableFunction
from jax2tf_bridge.portable._safety_checks import shared_checks
from jax2tf_bridge.portable._sharding import Sharding
from jax2tf_bridge.serialization._flatbuffer import MAX_DEPTH
from jax2tf_bridge.serialization._vjp_chain import vjp_chain
from jax2tf_bridge.serialization.jax_exported._limits import Writable, writable
from jax2tf_bridge.serialization.jax_exported._schema import WRITTEN_VERSION, ExportedField
from jax2tf_bridge.serialization.jax_exported._tables import Scalars, Tables
from jax2tf_bridge.serialization.jax_exported._xla_shardings import named_sharding, op_sharding

# JAX 0.4.30 and later read these conventions; 9 differs from 8 only for functions with effects.
_LOWEST_CONVENTION = 9
_LARGEST_SHORT = 2**15 - 1
_LARGEST_FILE = 2**31 - 1
_ROOM = 1 << 16
# Each lies within the one before, and needs some depth for its own parts.
_MOST_VJPS = MAX_DEPTH - 20


def writable_chain(record: PortableFunction, vjp_order: int | None) -> list[Writable]:
    """Checks that the format can hold a function and its VJPs, before anything is written.

    Args:
      record: the function.
      vjp_order: how many VJPs, which are made if they are not there; None for those that are.

    Raises:
      SerializationError: the format cannot hold the function, or it has fewer VJPs.
      InconclusiveShapeError: making a VJP asked something about the sizes.
      ValueError: vjp_order is negative.
    """
    return [writable(function) for function in vjp_chain(record, vjp_order, _MOST_VJPS)]


def write_exported(functions: Sequence[Writable]) -> bytes:
    """Writes a function and its VJPs, of which JAX has nothing to change any more.

    Raises:
      SerializationError: they are too large.
    """
    size = sum(len(f.record.module.data) for f in functions)
    try:
        tables = Tables(size + _ROOM)
        place: int | None = None
        for function in reversed(functions):
            place = _exported(tables, function, place)
        assert place is not None
        return tables.finish(place)
    except BuilderSizeError as e:
        raise SerializationError(
            f"{functions[0].record.name} cannot be written as JAX's exported function: its modules "
            f"have {size} bytes, and the format holds {_LARGEST_FILE}, with all else. Pass large "
            "arrays as arguments."
        ) from e


def _exported(tables: Tables, function: Writable, vjp: int | None) -> int:
    record = function.record
    avals = _Avals(tables, record)
    effects = [
        [tables.effect(e) for e in es] for es in (record.ordered_effects, record.unordered_effects)
    ]
    checks = [
        tables.disabled_check(check) for check in shared_checks(record.module.disabled_checks)
    ]
    references: dict[int, int | None] = {
        ExportedField.FUNCTION_NAME: tables.string(record.name),
        ExportedField.IN_TREE: tables.tree(function.in_tree),
        ExportedField.IN_AVALS: avals.inline(record.in_avals),
        ExportedField.OUT_TREE: tables.tree(function.out_tree),
        ExportedField.OUT_AVALS: avals.inline(record.out_avals),
        ExportedField.PLATFORMS: tables.strings(record.platforms),
        ExportedField.ORDERED_EFFECTS: tables.references(effects[0]),
        ExportedField.UNORDERED_EFFECTS: tables.references(effects[1]),
        ExportedField.DISABLED_CHECKS: tables.references(checks),
        ExportedField.MODULE: tables.byte_vector(record.module.data),
        ExportedField.MODULE_KEPT_VAR_IDX: tables.scalars("Uint16", record.module.kept_arguments),
        ExportedField.VJP: vjp,
        ExportedField.UNIQUE_AVALS: avals.shared(),
        ExportedField.IN_AVALS_IDXS: avals.indices(record.in_avals),
        ExportedField.OUT_AVALS_IDXS: avals.indices(record.out_avals),
        **_Shardings(tables, record).in_tables(),
    }
    # JAX then folds what depends on the sizes and on the platform before XLA compiles: without
    # it, custom calls of other platforms are still there.
    refines = (
        record.module.uses_shape_polymorphism
        or record.uses_global_constants
        or len(record.platforms) > 1
    )
    convention = max(record.module.calling_convention_version, _LOWEST_CONVENTION)
    short = record.module.nr_devices if record.module.nr_devices <= _LARGEST_SHORT else 0
    scalars: Scalars = {
        ExportedField.SERIALIZATION_VERSION: ("Uint16", WRITTEN_VERSION),
        ExportedField.NR_DEVICES_SHORT: ("Int16", short),
        ExportedField.CALLING_CONVENTION_VERSION: ("Uint16", convention),
        ExportedField.USES_GLOBAL_CONSTANTS: ("Uint8", int(refines)),
        ExportedField.NR_DEVICES: ("Uint32", record.module.nr_devices),
    }
    return tables.table(len(ExportedField), references, scalars)


class _Avals:
    """The abstract values of one function, in-line and by index."""

    def __init__(self, tables: Tables, record: PortableFunction) -> None:
        self._tables = tables
        self._places: dict[Aval, int] = {}
        for aval in (*record.in_avals, *record.out_avals):
            self._places.setdefault(aval, len(self._places))

    def inline(self, avals: Sequence[Aval]) -> int:
        return self._tables.references([self._tables.aval(aval) for aval in avals])

    def shared(self) -> int:
        return self.inline(list(self._places))

    def indices(self, avals: Sequence[Aval]) -> int:
        return self._tables.scalars("Uint32", [self._places[aval] for aval in avals])


class _Shardings:
    """The shardings of one function: in XLA's words, by name in-line, and by index.

    Older releases of JAX read the first, JAX 0.11 and later names alone.  Where only XLA's words
    are known, the axes get names.
    """

    def __init__(self, tables: Tables, record: PortableFunction) -> None:
        self._tables = tables
        devices = record.module.nr_devices
        self._ins = [_Spread(port.sharding, port.aval, devices) for port in record.inputs]
        self._outs = [_Spread(port.sharding, port.aval, devices) for port in record.outputs]
        every = (*self._ins, *self._outs)
        self._all_named = all(s.named or not s.sharding for s in every)
        self._shared = list(dict.fromkeys(s.named for s in every if s.named))
        self._meshes = list(dict.fromkeys(s.mesh for s in self._shared if s.mesh is not None))

    def in_tables(self) -> dict[int, int | None]:
        """Writes the tables of all shardings."""
        tables, meshes = self._tables, self._meshes
        written: dict[int, int | None] = {
            ExportedField.IN_SHARDINGS: self._inline(self._ins),
            ExportedField.OUT_SHARDINGS: self._inline(self._outs),
        }
        if not self._all_named:
            return written
        named = [tables.named_sharding(sharding, meshes) for sharding in self._shared]
        return {
            **written,
            ExportedField.UNIQUE_ABSTRACT_MESHES: tables.references(list(map(tables.mesh, meshes))),
            ExportedField.UNIQUE_NAMED_SHARDINGS: tables.references(named),
            ExportedField.IN_SHARDINGS_IDXS: self._indices(self._ins),
            ExportedField.OUT_SHARDINGS_IDXS: self._indices(self._outs),
        }

    def _inline(self, spreads: Sequence[_Spread]) -> int:
        places = [self._tables.sharding(s.hlo, s.named, self._meshes) for s in spreads]
        return self._tables.references(places)

    def _indices(self, spreads: Sequence[_Spread]) -> int:
        numbers = [1 + self._shared.index(s.named) if s.named else 0 for s in spreads]
        return self._tables.scalars("Uint32", numbers)


class _Spread:
    """A sharding of one array, in both forms as far as they are known."""

    def __init__(self, sharding: Sharding | None, aval: Aval, devices: int) -> None:
        self.sharding = sharding
        self.hlo: bytes | None = None
        self.named: Sharding | None = None
        if sharding is not None:
            rank = len(aval.op_shape)
            self.hlo = op_sharding(sharding, rank)
            self.named = sharding if sharding.mesh else named_sharding(sharding.hlo, rank, devices)
