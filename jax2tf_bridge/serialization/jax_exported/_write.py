"""Writes portable functions in the file format that jax.export.deserialize reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from flatbuffers.builder import BuilderSizeError

from jax2tf_bridge._dtypes import ELEMENT_TYPES, WIDENED
from jax2tf_bridge.bytecode import read_main_types
from jax2tf_bridge.errors import FileFormatError, SerializationError, format_bullets
from jax2tf_bridge.portable import (
    AbstractMesh,
    Aval,
    ComparisonParser,
    DisabledSafetyCheck,
    PortableFunction,
    Sharding,
    TreeSpec,
    drop_own_checks,
    find_function_problem,
)
from jax2tf_bridge.serialization._flatbuffer import (
    MAX_DEPTH,
    Field,
    Fields,
    FlatBufferWriter,
    Offset,
    Value,
)
from jax2tf_bridge.serialization._stored_types import format_registration_call, serialize_node_type
from jax2tf_bridge.serialization._vjp_chain import collect_vjps
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
    ShardingKind,
    SpecField,
    TreeField,
    TreeKind,
)
from jax2tf_bridge.serialization.jax_exported._shardings import (
    to_named_sharding,
    to_op_sharding,
)

# JAX reads calling convention 8 and later. Files have at least 9, which JAX 0.4.30 and later read;
# it differs from 8 only for functions with effects.
_MIN_CONVENTION, _MIN_WRITTEN_CONVENTION = 8, 9
_MAX_SHORT, _MAX_USHORT, _MAX_UINT = 2**15 - 1, 2**16 - 1, 2**32 - 1
_MAX_FILE_SIZE = 2**31 - 1
_ROOM_FOR_FIELDS = 1 << 16
# Each VJP is nested in the function before it, and the last needs some depth for its own parts.
_MAX_VJPS = MAX_DEPTH - 20
# The root table and its VJPs add to the depth of the file.
_MAX_TREE_DEPTH = MAX_DEPTH - 20
# The ends of the types of tensors of narrow integers, as MLIR prints them.
_NARROW_TYPE_ENDS = tuple(f"{before}{ELEMENT_TYPES[name]}>" for name in WIDENED for before in "x<")


@dataclass(frozen=True)
class WritableFunction:
    """Portable function that the format can hold, with the serialized names of its nodes.

    Attributes:
      portable: the function.
      in_tree: the structure of its arguments, with serialized names.
      out_tree: the structure of its results, with serialized names.
      needs_jax: the reason why JAX must rewrite the module first; "" if that is not needed.
    """

    portable: PortableFunction
    in_tree: TreeSpec
    out_tree: TreeSpec
    needs_jax: str


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
    return [_check_writable(function) for function in collect_vjps(portable, vjp_order, _MAX_VJPS)]


def _check_writable(portable: PortableFunction) -> WritableFunction:
    """Checks that the format can hold a function, and adds the serialized names of its types.

    Raises:
      SerializationError: the format cannot hold it; the message lists every reason.
    """
    trees = {"the arguments": portable.in_tree, "the results": portable.out_tree}
    problems = [
        f"{path} are nested more than {_MAX_TREE_DEPTH} deep"
        for path, tree in trees.items()
        if _is_too_deep(tree, 1)
    ]
    if problems:
        raise _make_refusal_error(portable, problems)  # the other checks would recurse too deeply
    in_tree, out_tree = (
        _add_serialized_names(tree, path, problems) for path, tree in trees.items()
    )
    leaves = portable.in_tree.leaf_count, portable.out_tree.leaf_count
    problem = find_function_problem(portable, *leaves, ComparisonParser())
    if problem is not None:
        raise _make_refusal_error(portable, [*problems, f"its parts disagree: {problem}"])
    problems += _iter_problems(portable)
    if problems:
        raise _make_refusal_error(portable, problems)
    return WritableFunction(portable, in_tree, out_tree, _describe_needed_rewrites(portable))


def _iter_problems(portable: PortableFunction) -> Iterator[str]:
    """Yields the reasons why the format cannot hold a function, apart from its trees."""
    module = portable.module
    arrays = [(port.path, port.aval) for port in portable.inputs]
    arrays += [(f"result {i}", aval) for i, aval in enumerate(portable.out_avals)]
    for path, aval in arrays:
        if aval.dtype not in DTYPES:
            yield (
                f"{path} is {aval.dtype}, a dtype that JAX's format lacks: convert it inside the "
                "function, or write a .jaxfn file"
            )
    last_kept = max(module.kept_arguments, default=0)
    if last_kept > _MAX_USHORT:
        yield (
            f"argument {last_kept} is used, and the format counts arguments in 16 bits, up to "
            f"{_MAX_USHORT}: join arrays, or write a .jaxfn file"
        )
    for constant in portable.lifted_constants:
        if constant.data is None:
            yield (
                f"the captured array {constant.name or constant.digest} ({constant.aval}) is "
                "missing: it was written with arrays=False. Read a file that has its arrays"
            )
    if portable.graph_functions:
        names = ", ".join(dict.fromkeys(function.name for function in portable.graph_functions))
        yield (
            f"it calls TensorFlow graphs ({names}), which JAX cannot run: export it with call_tf "
            "without call_tf_graph, or write a .jaxfn file"
        )
    convention = module.calling_convention_version
    if convention < _MIN_CONVENTION:
        yield (
            f"its calling convention is {convention}, and JAX supports {_MIN_CONVENTION} and later"
        )
    if convention > _MAX_USHORT:
        yield f"its calling convention is {convention}, and the format holds up to {_MAX_USHORT}"
    for name in (*portable.ordered_effects, *portable.unordered_effects):
        if name.isidentifier():
            yield (
                f"the effect {name} has only the name of its class, and JAX needs that of its "
                "module, too"
            )
    for check in drop_own_checks(module.disabled_checks):
        if check != DisabledSafetyCheck.platform() and check.is_custom_call() is None:
            yield f"the disabled safety check {str(check)!r} is unknown to the format"
    shardings = (*portable.in_shardings, *portable.out_shardings)
    for mesh in dict.fromkeys(s.mesh for s in shardings if s is not None and s.mesh is not None):
        if any(not 0 < size <= _MAX_UINT for size in mesh.axis_sizes):
            yield f"the mesh {mesh} has a size that is not from 1 to {_MAX_UINT}"
    if not 0 < module.nr_devices <= _MAX_UINT:
        yield f"{module.nr_devices} devices are not from 1 to {_MAX_UINT}"


def _make_refusal_error(portable: PortableFunction, problems: list[str]) -> SerializationError:
    return SerializationError(
        f"{portable.name} cannot be written as JAX's exported function:{format_bullets(problems)}"
    )


def _is_too_deep(spec: TreeSpec, depth: int) -> bool:
    return depth > _MAX_TREE_DEPTH or any(_is_too_deep(c, depth + 1) for c in spec.children)


def _is_widened(portable: PortableFunction) -> bool:
    """Returns whether the module takes 4-bit integers widened to 8 bits, as TensorFlow needs."""
    if not any(aval.dtype in WIDENED for aval in (*portable.in_avals, *portable.out_avals)):
        return False
    try:
        inputs, outputs = read_main_types(portable.module.data)
    except FileFormatError:
        # The bridge widens all functions that it exports, and knows the constraints of only these.
        return portable.constraints_known
    return not any(t.endswith(_NARROW_TYPE_ENDS) for t in (*inputs, *outputs))


def _describe_needed_rewrites(portable: PortableFunction) -> str:
    """Returns the reason why JAX must rewrite the module, as a clause; "" if it need not."""
    reasons = []
    if portable.lifted_constants:
        reasons.append(
            f"captured arrays ({len(portable.lifted_constants)}) are stored outside of its module"
        )
    if _is_widened(portable):
        reasons.append("its module takes 4-bit integers as 8-bit ones, for TensorFlow")
    if not portable.target.xla:
        reasons.append("its module has composites, for TensorFlow's own operations")
    return ", and ".join(reasons)


def _add_serialized_names(spec: TreeSpec, path: str, problems: list[str]) -> TreeSpec:
    """Returns the structure with the serialized name of each node; appends to `problems`."""
    if spec.kind == "dict":
        problems += [
            f"{path} have the key {key!r} of type {type(key).__name__}, and the format has text "
            "as keys only: rename it, or write a .jaxfn file"
            for key in spec.keys
            if not isinstance(key, str)
        ]
    serialization: tuple[str, bytes] | None = None
    if spec.kind in ("namedtuple", "custom"):
        try:
            serialization = serialize_node_type(spec)
        except SerializationError as e:
            problems.append(f"{path}: {e}")
            serialization = spec.name, b""
        if serialization is None:
            problems.append(
                f"{path} have a {spec.name}, which is not registered for files. jax.export "
                f"needs that where they are written and where they are read: "
                f"{format_registration_call(spec)}"
            )
    children = tuple(_add_serialized_names(child, path, problems) for child in spec.children)
    name, auxdata = serialization or ("", None)
    return replace(spec, children=children, serialized_name=name, auxdata=auxdata)


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
            offset = writer.write_table(_make_fields(writer, function, offset))
        assert offset is not None
        return bytes(writer.finish(offset))
    except BuilderSizeError as e:
        raise SerializationError(
            f"{functions[0].portable.name} cannot be written as JAX's exported function: its "
            f"modules have {size} bytes, and a whole file has at most {_MAX_FILE_SIZE}. Pass "
            "large arrays as arguments."
        ) from e


def _make_fields(
    writer: FlatBufferWriter, function: WritableFunction, vjp: Offset | None
) -> Iterator[tuple[Field, Value]]:
    portable = function.portable
    avals = tuple(dict.fromkeys((*portable.in_avals, *portable.out_avals)))
    index_of = {aval: i for i, aval in enumerate(avals)}
    module = portable.module
    checks = drop_own_checks(module.disabled_checks)
    yield ExportedField.FUNCTION_NAME, portable.name
    yield ExportedField.IN_TREE, write_tree(writer, function.in_tree)
    yield ExportedField.IN_AVALS, list(map(make_aval_table, portable.in_avals))
    yield ExportedField.OUT_TREE, write_tree(writer, function.out_tree)
    yield ExportedField.OUT_AVALS, list(map(make_aval_table, portable.out_avals))
    yield ExportedField.PLATFORMS, portable.platforms
    yield ExportedField.ORDERED_EFFECTS, list(map(_make_effect_table, portable.ordered_effects))
    yield ExportedField.UNORDERED_EFFECTS, list(map(_make_effect_table, portable.unordered_effects))
    yield ExportedField.DISABLED_CHECKS, list(map(_make_check_table, checks))
    yield ExportedField.MODULE, module.data
    yield ExportedField.MODULE_KEPT_VAR_IDX, module.kept_arguments
    yield ExportedField.VJP, vjp
    yield ExportedField.UNIQUE_AVALS, list(map(make_aval_table, avals))
    yield ExportedField.IN_AVALS_IDXS, [index_of[aval] for aval in portable.in_avals]
    yield ExportedField.OUT_AVALS_IDXS, [index_of[aval] for aval in portable.out_avals]
    yield from _iter_sharding_fields(portable)
    yield ExportedField.SERIALIZATION_VERSION, WRITTEN_VERSION
    is_short = module.nr_devices <= _MAX_SHORT
    yield ExportedField.NR_DEVICES_SHORT, module.nr_devices if is_short else 0
    convention = max(module.calling_convention_version, _MIN_WRITTEN_CONVENTION)
    yield ExportedField.CALLING_CONVENTION_VERSION, convention
    # JAX then specializes the module to the sizes and the platform before XLA compiles it.
    # Otherwise custom calls for other platforms would remain.
    refines = (
        module.uses_shape_polymorphism
        or portable.uses_global_constants
        or len(portable.platforms) > 1
    )
    yield ExportedField.USES_GLOBAL_CONSTANTS, refines
    yield ExportedField.NR_DEVICES, module.nr_devices


def _iter_sharding_fields(portable: PortableFunction) -> Iterator[tuple[Field, Value]]:
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
    yield ExportedField.IN_SHARDINGS, [s.make_table(meshes) for s in in_shardings]
    yield ExportedField.OUT_SHARDINGS, [s.make_table(meshes) for s in out_shardings]
    if not all(s.named or not s.sharding for s in shardings):
        return
    yield ExportedField.UNIQUE_ABSTRACT_MESHES, list(map(_make_mesh_table, meshes))
    named_tables = [_make_named_sharding_table(sharding, meshes) for sharding in named]
    yield ExportedField.UNIQUE_NAMED_SHARDINGS, named_tables
    in_indices, out_indices = (
        [1 + named.index(s.named) if s.named else 0 for s in group]
        for group in (in_shardings, out_shardings)
    )
    yield ExportedField.IN_SHARDINGS_IDXS, in_indices
    yield ExportedField.OUT_SHARDINGS_IDXS, out_indices


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

    def make_table(self, meshes: Sequence[AbstractMesh]) -> Fields:
        named = None if self.named is None else _make_named_sharding_table(self.named, meshes)
        is_unspecified = self.hlo is None and self.named is None
        return {
            ShardingField.HLO_SHARDING: self.hlo,
            ShardingField.NAMED_SHARDING: named,
            ShardingField.KIND: ShardingKind.UNSPECIFIED if is_unspecified else ShardingKind.HLO,
        }


def write_tree(writer: FlatBufferWriter, spec: TreeSpec) -> Offset:
    """Writes a pytree. Its named tuples and custom nodes must have serialized names."""
    is_custom = spec.kind in ("namedtuple", "custom")
    return writer.write_table(
        {
            TreeField.CHILDREN: [write_tree(writer, child) for child in spec.children] or None,
            TreeField.CHILDREN_NAMES: list(map(str, spec.keys)) if spec.kind == "dict" else None,
            TreeField.CUSTOM_NAME: spec.serialized_name if is_custom else None,
            TreeField.CUSTOM_AUXDATA: spec.auxdata or b"" if is_custom else None,
            TreeField.KIND: TreeKind.CUSTOM if is_custom else TreeKind[spec.kind.upper()],
        }
    )


def make_aval_table(aval: Aval) -> Fields:
    """Makes the table of an abstract value. The format must support its dtype."""
    return {
        AvalField.SHAPE: list(map(str, aval.shape)),
        AvalField.DTYPE: DTYPES.index(aval.dtype),
        # Starts at 1, since index 0 stands for an unknown memory space.
        AvalField.MEMORY_SPACE: MEMORY_SPACES.index(aval.memory_space, 1),
    }


def _make_mesh_table(mesh: AbstractMesh) -> Fields:
    device = mesh.device
    device_table: Fields | None = None
    if device is not None:
        device_table = {
            DeviceField.DEVICE_KIND: device.kind,
            DeviceField.PLATFORM: device.platform or None,
            DeviceField.NUM_CORES: device.num_cores,
        }
    return {
        MeshField.AXIS_SIZES: mesh.axis_sizes,
        MeshField.AXIS_NAMES: mesh.axis_names,
        MeshField.AXIS_TYPES: [AXIS_TYPES.index(axis, 1) for axis in mesh.axis_types],
        MeshField.ABSTRACT_DEVICE: device_table,
    }


def _make_named_sharding_table(sharding: Sharding, meshes: Sequence[AbstractMesh]) -> Fields:
    assert sharding.mesh is not None
    return {
        NamedShardingField.MESH: _make_mesh_table(sharding.mesh),
        NamedShardingField.SPEC: {
            SpecField.PARTITIONS: [{PartitionField.AXES: axes} for axes in sharding.partitions],
            SpecField.REDUCED: sharding.reduced,
            SpecField.UNREDUCED: sharding.unreduced,
        },
        NamedShardingField.MEMORY_KIND: sharding.memory_kind,
        NamedShardingField.ABSTRACT_MESH_IDX: meshes.index(sharding.mesh),
    }


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
        ExportedField.IN_AVALS: [make_aval_table(Aval((), "float32"))] * leaves,
        ExportedField.OUT_TREE: write_tree(writer, TreeSpec("none")),
        ExportedField.OUT_AVALS: [],
        ExportedField.IN_SHARDINGS: [{ShardingField.KIND: ShardingKind.UNSPECIFIED}] * leaves,
        ExportedField.OUT_SHARDINGS: [],
        ExportedField.PLATFORMS: ["cpu"],
        ExportedField.MODULE: b"",
        ExportedField.MODULE_KEPT_VAR_IDX: [],
        ExportedField.SERIALIZATION_VERSION: WRITTEN_VERSION,
        ExportedField.NR_DEVICES: 1,
    }
    return bytearray(writer.finish(writer.write_table(fields)))
