"""Reads portable functions in the .jaxfn format, which _format and the schema describe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from jax2tf_bridge.bytecode import Version
from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.portable import (
    AbstractDevice,
    AbstractMesh,
    Aval,
    ComparisonParser,
    DisabledSafetyCheck,
    Gradient,
    GraphFunction,
    LiftedConstant,
    Module,
    NoGradient,
    PortableFunction,
    Sharding,
    StoredGradient,
    TreeSpec,
    find_function_problem,
    find_vjp_problem,
)
from jax2tf_bridge.serialization._flatbuffer import FlatBufferReader, FlatBufferTable
from jax2tf_bridge.serialization.jaxfn import _format
from jax2tf_bridge.serialization.jaxfn._file_parts import Part, locate_arrays, locate_modules
from jax2tf_bridge.serialization.jaxfn._format import (
    DeviceRecord,
    FileRecord,
    FunctionRecord,
    GraphFunctionRecord,
    LoweringRecord,
    MeshRecord,
    ShardingRecord,
)
from jax2tf_bridge.serialization.jaxfn._pools import (
    decode_avals,
    decode_texts,
    look_up,
    look_up_all,
    look_up_optional,
    optional_bytes,
)
from jax2tf_bridge.serialization.jaxfn._trees import TreeReader
from jax2tf_bridge.targets import Target


@dataclass(frozen=True)
class ValidatedStructure:
    """Validated structure of a file whose modules and arrays are not read yet.

    Attributes:
      functions: the function and each of its VJPs, without the gradient, the bytes of the module
        and the data of the lifted constants.
      parts: the positions of the modules, one for each function, and then of the arrays.
      vjp_missing_because: the reason why the last function has no VJP.
    """

    functions: tuple[PortableFunction, ...]
    parts: tuple[Part, ...]
    vjp_missing_because: str

    def make_portable(self, contents: Sequence[bytes]) -> PortableFunction:
        """Makes the portable function; `contents` are the bytes of each of the `parts`."""
        count = len(self.functions)
        arrays = {
            part.expected: data
            for part, data in zip(self.parts[count:], contents[count:], strict=True)
        }
        gradient: Gradient = NoGradient(self.vjp_missing_because)
        # From the last order to the first, since each function holds its VJP.
        for function, module in zip(self.functions[::-1], contents[count - 1 :: -1], strict=True):
            portable = replace(
                function,
                module=replace(function.module, data=module),
                lifted_constants=tuple(
                    replace(constant, data=arrays.get(constant.digest))
                    for constant in function.lifted_constants
                ),
                gradient=gradient,
            )
            gradient = StoredGradient(portable)
        return portable


def read_structure(
    header: _format.Header, structure: bytes | memoryview, file: str | None
) -> ValidatedStructure:
    """Reads the structure of a file.

    Args:
      header: the header of the file.
      structure: the bytes of the structure, of the size in the header.
      file: the name of the file, for messages.

    Raises:
      FileFormatError: the checksum is wrong, or the structure does not describe a function.
    """
    _format.check_structure(header, structure, file)
    try:
        root = FlatBufferReader(structure, what=_format.file_label(file)).root()
        return _FileReader(root, header.version).read(header)
    except FileFormatError as e:
        e.file = file
        raise


class _FileReader:
    def __init__(self, root: FlatBufferTable, version: int) -> None:
        self._root = root
        texts = self._texts = decode_texts(root)
        tree_reader = TreeReader(root, texts)
        trees = root.table(FileRecord.TREES)
        self._trees = [] if trees is None else tree_reader.decode(trees)
        avals = root.table(FileRecord.AVALS)
        self._avals = [] if avals is None else decode_avals(avals, texts)
        meshes = [_read_mesh(table, texts) for table in root.tables(FileRecord.MESHES)]
        shardings = root.tables(FileRecord.SHARDINGS)
        self._shardings = [None, *(_read_sharding(table, meshes, texts) for table in shardings)]
        lowerings = root.tables(FileRecord.LOWERINGS)
        self._lowerings = [_read_lowering(table, version, texts) for table in lowerings]
        self._graph_functions = _read_graph_functions(root, version, texts)
        self._comparisons = ComparisonParser()

    def read(self, header: _format.Header) -> ValidatedStructure:
        tables = self._root.tables(FileRecord.FUNCTIONS)
        if not 1 <= len(tables) <= _format.MAX_VJP_ORDER + 1:
            raise self._root.error(
                FileRecord.FUNCTIONS,
                f"1 to {_format.MAX_VJP_ORDER + 1} functions",
                f"{len(tables)}",
            )
        if len(self._trees) != 2 * len(tables):
            raise self._root.error(
                FileRecord.TREES, f"two for each of {len(tables)} functions", f"{len(self._trees)}"
            )
        functions = tuple(map(self._read_function, tables, self._trees[::2], self._trees[1::2]))
        for table, function, vjp in zip(tables[1:], functions, functions[1:], strict=False):
            problem = find_vjp_problem(function, vjp.in_tree, vjp.in_avals, vjp.out_avals)
            if problem is not None:
                raise table.error(None, f"the VJP of {function.name}", problem)
        modules = locate_modules(tables, header.structure_size)
        constants = chain.from_iterable(function.lifted_constants for function in functions)
        arrays = locate_arrays(self._root, self._texts, constants, modules[-1].end)
        parts = (*modules, *arrays)
        if parts[-1].end != header.file_size:
            raise self._root.error(
                FileRecord.FUNCTIONS,
                f"modules and arrays up to byte {header.file_size}, where the file ends",
                f"some up to byte {parts[-1].end}",
            )
        look_up(self._root, FileRecord.BRIDGE_VERSION, self._texts)  # only checked
        missing_because = look_up(self._root, FileRecord.VJP_MISSING_BECAUSE, self._texts)
        return ValidatedStructure(functions, parts, missing_because)

    def _read_function(
        self, table: FlatBufferTable, in_tree: TreeSpec, out_tree: TreeSpec
    ) -> PortableFunction:
        texts = self._texts
        in_avals = look_up_all(table, FunctionRecord.IN_AVALS, self._avals)
        out_avals = look_up_all(table, FunctionRecord.OUT_AVALS, self._avals)
        lowering = look_up(table, FunctionRecord.LOWERING, self._lowerings)
        kept_arguments = table.integers(FunctionRecord.MODULE_KEPT_VAR_IDX)
        portable = PortableFunction(
            name=look_up(table, FunctionRecord.NAME, texts),
            in_tree=in_tree,
            in_avals=in_avals,
            out_tree=out_tree,
            out_avals=out_avals,
            argument_names=look_up_all(table, FunctionRecord.ARGUMENT_NAMES, texts),
            requirements=look_up_all(table, FunctionRecord.REQUIREMENTS, texts),
            ordered_effects=look_up_all(table, FunctionRecord.ORDERED_EFFECTS, texts),
            unordered_effects=look_up_all(table, FunctionRecord.UNORDERED_EFFECTS, texts),
            in_shardings=self._read_shardings(table, FunctionRecord.IN_SHARDINGS, in_avals),
            out_shardings=self._read_shardings(table, FunctionRecord.OUT_SHARDINGS, out_avals),
            uses_global_constants=table.boolean(FunctionRecord.USES_GLOBAL_CONSTANTS),
            lifted_constants=self._read_lifted_constants(table),
            graph_functions=look_up_all(
                table, FunctionRecord.GRAPH_FUNCTIONS, self._graph_functions
            ),
            tensorflow_differentiates=table.boolean(FunctionRecord.TENSORFLOW_DIFFERENTIATES),
            **{**lowering, "module": replace(lowering["module"], kept_arguments=kept_arguments)},
        )
        problem = find_function_problem(
            portable, in_tree.leaf_count, out_tree.leaf_count, self._comparisons
        )
        if problem is not None:
            raise table.error(None, "parts that agree", problem)
        return portable

    def _read_shardings(
        self, table: FlatBufferTable, field: FunctionRecord, avals: Sequence[Aval]
    ) -> tuple[Sharding | None, ...]:
        if not table.has(field):
            return (None,) * len(avals)
        return look_up_all(table, field, self._shardings)

    def _read_lifted_constants(self, table: FlatBufferTable) -> tuple[LiftedConstant, ...]:
        if not table.has(FunctionRecord.LIFTED_AVALS):
            return ()
        avals = look_up_all(table, FunctionRecord.LIFTED_AVALS, self._avals)
        digests = look_up_all(table, FunctionRecord.LIFTED_DIGESTS, self._texts)
        names = look_up_all(table, FunctionRecord.LIFTED_NAMES, self._texts)
        if not len(avals) == len(digests) == len(names):
            raise table.error(
                FunctionRecord.LIFTED_AVALS,
                "an abstract value, a digest and a name for each constant",
                f"{len(avals)}, {len(digests)} and {len(names)}",
            )
        return tuple(map(LiftedConstant, avals, digests, names))


def _read_graph_functions(
    root: FlatBufferTable, version: int, texts: Sequence[str]
) -> list[GraphFunction]:
    field = FileRecord.GRAPH_FUNCTIONS
    tables = root.tables(field)
    if tables and version < _format.GRAPH_FUNCTIONS_VERSION:
        raise root.error(field, f"none in a file of version {version}", f"{len(tables)}")
    graph_functions = []
    for table in tables:
        graph = optional_bytes(table, GraphFunctionRecord.GRAPH)
        if not graph:
            raise table.error(GraphFunctionRecord.GRAPH, "a graph", "no bytes")
        graph_functions.append(
            GraphFunction(look_up(table, GraphFunctionRecord.NAME, texts), graph)
        )
    return graph_functions


def _read_lowering(table: FlatBufferTable, version: int, texts: Sequence[str]) -> dict[str, Any]:
    """Reads the arguments of PortableFunction that functions of one lowering share."""
    xla = table.boolean(LoweringRecord.TARGET_XLA)
    if not xla and version < _format.WITHOUT_XLA_VERSION:
        raise table.error(
            LoweringRecord.TARGET_XLA, f"true in a file of version {version}", "false"
        )
    versions = _read_versions(table, LoweringRecord.STABLEHLO_VERSION)
    if len(versions) != 1:
        raise table.error(LoweringRecord.STABLEHLO_VERSION, "one version", f"{len(versions)}")
    dropped_platforms = look_up_all(table, LoweringRecord.DROPPED_PLATFORMS, texts)
    reasons = look_up_all(table, LoweringRecord.DROPPED_BECAUSE, texts)
    if len(dropped_platforms) != len(reasons):
        raise table.error(
            LoweringRecord.DROPPED_BECAUSE, f"{len(dropped_platforms)} reasons", f"{len(reasons)}"
        )
    checks = look_up_all(table, LoweringRecord.DISABLED_CHECKS, texts)
    return {
        "module": Module(
            b"",
            versions[0],
            table.integer(LoweringRecord.CALLING_CONVENTION_VERSION),
            kept_arguments=(),
            platforms=look_up_all(table, LoweringRecord.PLATFORMS, texts),
            uses_shape_polymorphism=table.boolean(LoweringRecord.USES_SHAPE_POLYMORPHISM),
            disabled_checks=tuple(map(DisabledSafetyCheck, checks)),
            nr_devices=table.integer(LoweringRecord.NR_DEVICES),
        ),
        "dropped_platforms": tuple(zip(dropped_platforms, reasons, strict=True)),
        "constraints": look_up_all(table, LoweringRecord.CONSTRAINTS, texts),
        "constraints_known": table.boolean(LoweringRecord.CONSTRAINTS_KNOWN),
        "producer": look_up(table, LoweringRecord.PRODUCER, texts),
        "target": Target(
            look_up(table, LoweringRecord.TARGET_NAME, texts),
            _read_versions(table, LoweringRecord.TARGET_STABLEHLO_VERSIONS),
            table.integer(LoweringRecord.TARGET_CALLING_CONVENTION),
            xla=xla,
        ),
    }


def _read_versions(table: FlatBufferTable, field: LoweringRecord) -> tuple[Version, ...]:
    numbers = table.integers(field)
    if len(numbers) % 3:
        raise table.error(field, "three numbers for each version", f"{len(numbers)}")
    return tuple(zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True))


def _read_mesh(table: FlatBufferTable, texts: Sequence[str]) -> AbstractMesh:
    names = look_up_all(table, MeshRecord.AXIS_NAMES, texts)
    sizes = table.integers(MeshRecord.AXIS_SIZES)
    types = table.integers(MeshRecord.AXIS_TYPES)
    if not len(names) == len(sizes) == len(types):
        raise table.error(
            None, "a name, a size and a type for each axis", "different numbers of them"
        )
    if max(types, default=0) >= len(_format.AXIS_TYPES):
        raise table.error(MeshRecord.AXIS_TYPES, "0, 1 or 2", f"{max(types)}")
    device_table = table.table(MeshRecord.DEVICE)
    device = None
    if device_table is not None:
        device = AbstractDevice(
            look_up(device_table, DeviceRecord.KIND, texts),
            look_up(device_table, DeviceRecord.PLATFORM, texts),
            device_table.optional_integer(DeviceRecord.NUM_CORES),
        )
    return AbstractMesh(names, sizes, tuple(_format.AXIS_TYPES[i] for i in types), device)


def _read_sharding(
    table: FlatBufferTable, meshes: Sequence[AbstractMesh], texts: Sequence[str]
) -> Sharding:
    sizes = table.integers(ShardingRecord.PARTITION_SIZES)
    axes = look_up_all(table, ShardingRecord.AXES, texts)
    if sum(sizes) != len(axes):
        raise table.error(ShardingRecord.AXES, f"{sum(sizes)} axes", f"{len(axes)}")
    partitions, end = [], 0
    for size in sizes:
        partitions.append(axes[end : end + size])
        end += size
    return Sharding(
        mesh=look_up_optional(table, ShardingRecord.MESH, meshes),
        partitions=tuple(partitions),
        unreduced=look_up_all(table, ShardingRecord.UNREDUCED, texts),
        reduced=look_up_all(table, ShardingRecord.REDUCED, texts),
        memory_kind=look_up_optional(table, ShardingRecord.MEMORY_KIND, texts),
        hlo=optional_bytes(table, ShardingRecord.HLO) or b"",
    )
