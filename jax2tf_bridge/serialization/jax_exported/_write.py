"""Writes portable functions in the file format that jax.export.deserialize reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flatbuffers.builder import BuilderSizeError

from jax2tf_bridge.errors import SerializationError
from jax2tf_bridge.portable import Aval, PortableFunction, Sharding, shared_checks
from jax2tf_bridge.serialization._flatbuffer import MAX_DEPTH, Field, Offset, Value
from jax2tf_bridge.serialization._flatbuffer_writer import FlatBufferWriter
from jax2tf_bridge.serialization._vjp_chain import collect_vjps
from jax2tf_bridge.serialization.jax_exported._limits import WritableFunction, check_writable
from jax2tf_bridge.serialization.jax_exported._schema import WRITTEN_VERSION, ExportedField
from jax2tf_bridge.serialization.jax_exported._shardings import (
    to_named_sharding,
    to_op_sharding,
)
from jax2tf_bridge.serialization.jax_exported._tables import (
    aval_table,
    check_table,
    effect_table,
    sharding_table,
    write_mesh,
    write_named_sharding,
    write_tree,
)

# JAX 0.4.30 and later read this version. It differs from 8 only for functions with effects.
_MIN_CONVENTION = 9
_MAX_SHORT = 2**15 - 1
_MAX_SIZE = 2**31 - 1
_ROOM_FOR_FIELDS = 1 << 16
# Each VJP is nested in the function before it, and the last needs some depth for its own parts.
_MAX_VJPS = MAX_DEPTH - 20


def check_writable_chain(
    portable: PortableFunction, vjp_order: int | None
) -> list[WritableFunction]:
    """Checks that the format can hold a function and its VJPs, before anything is written.

    Args:
      portable: the function.
      vjp_order: the number of VJPs; missing ones are made. None takes the VJPs that exist.

    Returns:
      The function, its VJP, the VJP of that VJP, and so on.

    Raises:
      SerializationError: the format cannot hold the function, or it has fewer than vjp_order VJPs.
      InconclusiveShapeError: making a VJP requires a decision about unknown sizes.
      ValueError: vjp_order is negative.
    """
    return [check_writable(function) for function in collect_vjps(portable, vjp_order, _MAX_VJPS)]


def write_exported(functions: Sequence[WritableFunction]) -> bytes:
    """Writes a function and its VJPs. The `needs_jax` of each of them must be "".

    Raises:
      SerializationError: they are too large for the format.
    """
    size = sum(len(f.portable.module.data) for f in functions)
    try:
        writer = FlatBufferWriter(size + _ROOM_FOR_FIELDS)
        offset: Offset | None = None
        for function in reversed(functions):
            offset = writer.table(_make_fields(writer, function, offset))
        assert offset is not None
        return bytes(writer.finish(offset))
    except BuilderSizeError as e:
        raise SerializationError(
            f"{functions[0].portable.name} cannot be written as JAX's exported function: its "
            f"modules have {size} bytes, and the format holds {_MAX_SIZE}, with all else. Pass "
            "large arrays as arguments."
        ) from e


def _make_fields(
    writer: FlatBufferWriter, function: WritableFunction, vjp: Offset | None
) -> Iterator[tuple[Field, Value]]:
    portable = function.portable
    avals = tuple(dict.fromkeys((*portable.in_avals, *portable.out_avals)))
    index_of = {aval: i for i, aval in enumerate(avals)}
    ordered, unordered = (
        [writer.table(effect_table(effect)) for effect in effects]
        for effects in (portable.ordered_effects, portable.unordered_effects)
    )
    checks = [writer.table(check_table(c)) for c in shared_checks(portable.module.disabled_checks)]
    yield ExportedField.FUNCTION_NAME, portable.name
    yield ExportedField.IN_TREE, write_tree(writer, function.in_tree)
    yield ExportedField.IN_AVALS, list(map(aval_table, portable.in_avals))
    yield ExportedField.OUT_TREE, write_tree(writer, function.out_tree)
    yield ExportedField.OUT_AVALS, list(map(aval_table, portable.out_avals))
    yield ExportedField.PLATFORMS, portable.platforms
    yield ExportedField.ORDERED_EFFECTS, ordered
    yield ExportedField.UNORDERED_EFFECTS, unordered
    yield ExportedField.DISABLED_CHECKS, checks
    yield ExportedField.MODULE, portable.module.data
    yield ExportedField.MODULE_KEPT_VAR_IDX, portable.module.kept_arguments
    yield ExportedField.VJP, vjp
    yield ExportedField.UNIQUE_AVALS, list(map(aval_table, avals))
    yield ExportedField.IN_AVALS_IDXS, [index_of[aval] for aval in portable.in_avals]
    yield ExportedField.OUT_AVALS_IDXS, [index_of[aval] for aval in portable.out_avals]
    yield from _sharding_fields(writer, portable)
    yield ExportedField.SERIALIZATION_VERSION, WRITTEN_VERSION
    short = portable.module.nr_devices if portable.module.nr_devices <= _MAX_SHORT else 0
    yield ExportedField.NR_DEVICES_SHORT, short
    convention = max(portable.module.calling_convention_version, _MIN_CONVENTION)
    yield ExportedField.CALLING_CONVENTION_VERSION, convention
    # JAX then specializes the module to the sizes and the platform before XLA compiles it.
    # Otherwise custom calls for other platforms would remain.
    refines = (
        portable.module.uses_shape_polymorphism
        or portable.uses_global_constants
        or len(portable.platforms) > 1
    )
    yield ExportedField.USES_GLOBAL_CONSTANTS, refines
    yield ExportedField.NR_DEVICES, portable.module.nr_devices


def _sharding_fields(
    writer: FlatBufferWriter, portable: PortableFunction
) -> Iterator[tuple[Field, Value]]:
    """Yields the shardings of one function in three forms: XLA's, named inline, named by index.

    Older releases of JAX read XLA's form; JAX 0.11 and later read only the named forms. If only
    XLA's form is known, the axes get made-up names.
    """
    in_shardings, out_shardings = (
        [_ArraySharding(port.sharding, port.aval, portable.module.nr_devices) for port in ports]
        for ports in (portable.inputs, portable.outputs)
    )
    shardings = (*in_shardings, *out_shardings)
    named = list(dict.fromkeys(s.named for s in shardings if s.named))
    meshes = list(dict.fromkeys(s.mesh for s in named if s.mesh is not None))
    for field, group in (
        (ExportedField.IN_SHARDINGS, in_shardings),
        (ExportedField.OUT_SHARDINGS, out_shardings),
    ):
        yield field, [sharding_table(writer, s.hlo, s.named, meshes) for s in group]
    if not all(s.named or not s.sharding for s in shardings):
        return
    offsets = [write_named_sharding(writer, sharding, meshes) for sharding in named]
    yield ExportedField.UNIQUE_ABSTRACT_MESHES, [write_mesh(writer, mesh) for mesh in meshes]
    yield ExportedField.UNIQUE_NAMED_SHARDINGS, offsets
    for field, group in (
        (ExportedField.IN_SHARDINGS_IDXS, in_shardings),
        (ExportedField.OUT_SHARDINGS_IDXS, out_shardings),
    ):
        yield field, [1 + named.index(s.named) if s.named else 0 for s in group]


class _ArraySharding:
    """Sharding of one array: as given, in XLA's form, and over a named mesh, if they exist."""

    def __init__(self, sharding: Sharding | None, aval: Aval, devices: int) -> None:
        self.sharding = sharding
        self.hlo: bytes | None = None
        self.named: Sharding | None = None
        if sharding is not None:
            rank = len(aval.op_shape)
            self.hlo = to_op_sharding(sharding, rank)
            self.named = (
                sharding if sharding.mesh else to_named_sharding(sharding.hlo, rank, devices)
            )
