"""Writes portable functions in the file format that jax.export.deserialize reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flatbuffers.builder import BuilderSizeError

from jax2tf_bridge.errors import SerializationError
from jax2tf_bridge.portable import (
    AbstractMesh,
    Aval,
    DisabledSafetyCheck,
    PortableFunction,
    Sharding,
    TreeSpec,
    drop_own_checks,
)
from jax2tf_bridge.serialization._flatbuffer import (
    MAX_DEPTH,
    Field,
    Fields,
    FlatBufferWriter,
    Offset,
    Value,
)
from jax2tf_bridge.serialization._vjp_chain import collect_vjps
from jax2tf_bridge.serialization.jax_exported._limits import WritableFunction, check_writable
from jax2tf_bridge.serialization.jax_exported._schema import (
    AXIS_TYPES,
    DTYPES,
    MEMORY_SPACES,
    WRITTEN_VERSION,
    AvalField,
    CheckField,
    CheckKind,
    DeviceField,
    EffectField,
    ExportedField,
    MeshField,
    NamedShardingField,
    PartitionField,
    ShardingField,
    SpecField,
    TreeField,
    TreeKind,
)
from jax2tf_bridge.serialization.jax_exported._shardings import (
    to_named_sharding,
    to_op_sharding,
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
            f"modules have {size} bytes, and a whole file has at most {_MAX_SIZE}. Pass "
            "large arrays as arguments."
        ) from e


def _make_fields(
    writer: FlatBufferWriter, function: WritableFunction, vjp: Offset | None
) -> Iterator[tuple[Field, Value]]:
    portable = function.portable
    avals = tuple(dict.fromkeys((*portable.in_avals, *portable.out_avals)))
    index_of = {aval: i for i, aval in enumerate(avals)}
    ordered, unordered = (
        [writer.table(_make_effect_table(effect)) for effect in effects]
        for effects in (portable.ordered_effects, portable.unordered_effects)
    )
    checks = [
        writer.table(_make_check_table(c)) for c in drop_own_checks(portable.module.disabled_checks)
    ]
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
    yield from _iter_sharding_fields(writer, portable)
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


def _iter_sharding_fields(
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
        yield field, [s.fields(writer, meshes) for s in group]
    if not all(s.named or not s.sharding for s in shardings):
        return
    offsets = [_write_named_sharding(writer, sharding, meshes) for sharding in named]
    yield ExportedField.UNIQUE_ABSTRACT_MESHES, [_write_mesh(writer, mesh) for mesh in meshes]
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

    def fields(
        self, writer: FlatBufferWriter, meshes: Sequence[AbstractMesh]
    ) -> Iterator[tuple[Field, Value]]:
        yield ShardingField.HLO_SHARDING, self.hlo
        if self.named is not None:
            yield (
                ShardingField.NAMED_SHARDING,
                _write_named_sharding(writer, self.named, meshes),
            )
        is_unspecified = self.hlo is None and self.named is None
        yield ShardingField.KIND, _UNSPECIFIED if is_unspecified else _HLO


_UNSPECIFIED, _HLO = 0, 1


def write_tree(writer: FlatBufferWriter, spec: TreeSpec) -> Offset:
    """Writes a pytree. Its named tuples and custom nodes must have serialized names."""
    is_custom = spec.kind in ("namedtuple", "custom")
    return writer.table(
        {
            TreeField.CHILDREN: [write_tree(writer, child) for child in spec.children] or None,
            TreeField.CHILDREN_NAMES: list(map(str, spec.keys)) if spec.kind == "dict" else None,
            TreeField.CUSTOM_NAME: spec.serialized_name if is_custom else None,
            TreeField.CUSTOM_AUXDATA: spec.auxdata or b"" if is_custom else None,
            TreeField.KIND: TreeKind.CUSTOM if is_custom else TreeKind[spec.kind.upper()],
        }
    )


def aval_table(aval: Aval) -> Fields:
    """Makes the table of an abstract value. The format must support its dtype."""
    return {
        AvalField.SHAPE: list(map(str, aval.shape)),
        AvalField.DTYPE: DTYPES.index(aval.dtype),
        # Starts at 1, since index 0 stands for an unknown memory space.
        AvalField.MEMORY_SPACE: MEMORY_SPACES.index(aval.memory_space, 1),
    }


def _write_mesh(writer: FlatBufferWriter, mesh: AbstractMesh) -> Offset:
    device = mesh.device
    device_offset = None
    if device is not None:
        device_offset = writer.table(
            {
                DeviceField.DEVICE_KIND: device.kind,
                DeviceField.PLATFORM: device.platform or None,
                DeviceField.NUM_CORES: device.num_cores,
            }
        )
    return writer.table(
        {
            MeshField.AXIS_SIZES: mesh.axis_sizes,
            MeshField.AXIS_NAMES: mesh.axis_names,
            MeshField.AXIS_TYPES: [AXIS_TYPES.index(axis, 1) for axis in mesh.axis_types],
            MeshField.ABSTRACT_DEVICE: device_offset,
        }
    )


def _write_named_sharding(
    writer: FlatBufferWriter, sharding: Sharding, meshes: Sequence[AbstractMesh]
) -> Offset:
    assert sharding.mesh is not None
    spec = writer.table(
        {
            SpecField.PARTITIONS: [{PartitionField.AXES: axes} for axes in sharding.partitions],
            SpecField.REDUCED: sharding.reduced,
            SpecField.UNREDUCED: sharding.unreduced,
        }
    )
    return writer.table(
        {
            NamedShardingField.MESH: _write_mesh(writer, sharding.mesh),
            NamedShardingField.SPEC: spec,
            NamedShardingField.MEMORY_KIND: sharding.memory_kind,
            NamedShardingField.ABSTRACT_MESH_IDX: meshes.index(sharding.mesh),
        }
    )


def _make_effect_table(name: str) -> Fields:
    # JAX writes a class as Python prints it.
    parts = name.replace(".<locals>", "").split(".")
    is_qualified = len(parts) > 1 and all(part.isidentifier() for part in parts)
    return {EffectField.TYPE_NAME: f"<class '{name}'>" if is_qualified else name}


def _make_check_table(check: DisabledSafetyCheck) -> Fields:
    target = check.is_custom_call()
    return {
        CheckField.CUSTOM_CALL_TARGET: target,
        CheckField.KIND: CheckKind.PLATFORM if target is None else CheckKind.CUSTOM_CALL,
    }


def write_structure(in_tree: TreeSpec) -> bytearray:
    """Writes a file that stores `in_tree`; all its other fields are placeholders."""
    writer = FlatBufferWriter()
    leaves = in_tree.leaf_count
    fields: Fields = {
        ExportedField.FUNCTION_NAME: "structure",
        ExportedField.IN_TREE: write_tree(writer, in_tree),
        ExportedField.IN_AVALS: [aval_table(Aval((), "float32"))] * leaves,
        ExportedField.OUT_TREE: write_tree(writer, TreeSpec("none")),
        ExportedField.OUT_AVALS: [],
        ExportedField.IN_SHARDINGS: [{ShardingField.KIND: _UNSPECIFIED}] * leaves,
        ExportedField.OUT_SHARDINGS: [],
        ExportedField.PLATFORMS: ["cpu"],
        ExportedField.MODULE: b"",
        ExportedField.MODULE_KEPT_VAR_IDX: [],
        ExportedField.SERIALIZATION_VERSION: WRITTEN_VERSION,
        ExportedField.NR_DEVICES: 1,
    }
    return bytearray(writer.finish(writer.table(fields)))
