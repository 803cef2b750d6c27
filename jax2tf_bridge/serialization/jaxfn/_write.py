"""Writes portable functions in the .jaxfn format, which _format and the schema describe."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from flatbuffers.builder import BuilderSizeError

from jax2tf_bridge._version import __version__
from jax2tf_bridge.errors import SerializationError
from jax2tf_bridge.portable import (
    AbstractMesh,
    Aval,
    ComparisonParser,
    GraphFunction,
    HoldsPortable,
    PortableFunction,
    Sharding,
    as_portable_function,
    find_function_problem,
)
from jax2tf_bridge.serialization._flatbuffer import Field, Fields, FlatBufferWriter, Offset, Value
from jax2tf_bridge.serialization._vjp_chain import collect_vjps
from jax2tf_bridge.serialization.jaxfn import _format
from jax2tf_bridge.serialization.jaxfn._file_parts import collect_arrays, pad_arrays
from jax2tf_bridge.serialization.jaxfn._format import (
    DeviceRecord,
    FileRecord,
    FunctionRecord,
    GraphFunctionRecord,
    LoweringRecord,
    MeshRecord,
    ShardingRecord,
)
from jax2tf_bridge.serialization.jaxfn._pools import Pool, encode_texts, make_avals_table
from jax2tf_bridge.serialization.jaxfn._trees import StructureName, TreeWriter


def make_file_parts(
    portable: PortableFunction | HoldsPortable, *, vjp_order: int | None, arrays: bool
) -> list[bytes | bytearray]:
    """Returns the parts of a .jaxfn file: the structure, each module, and each array.

    The parts also contain the padding before each array.

    Args:
      portable: the portable function.
      vjp_order: the number of VJPs to write; missing ones are made. None writes the VJPs that
        exist.
      arrays: whether to write the lifted arrays.

    Raises:
      SerializationError: the file cannot hold the function, or it has fewer than vjp_order VJPs.
      InconclusiveShapeError: making a VJP requires a decision about unknown sizes.
      ValueError: vjp_order is negative.
      FunctionError: `portable` is not a portable function.
    """
    portable = as_portable_function(portable, "serialize (or write_function)")
    functions, missing_because = _collect_functions(portable, vjp_order)
    writer = _StructureWriter()
    try:
        structure = writer.write(functions, missing_because, arrays)
    except BuilderSizeError as e:
        raise _make_size_error(portable.name) from e
    if len(structure) > _format.MAX_STRUCTURE_SIZE:
        raise _make_size_error(portable.name)
    contents = [function.module.data for function in functions]
    contents += pad_arrays(writer.arrays.values(), len(structure) + sum(map(len, contents)))
    version = _format.FIRST_VERSION
    if any(f.graph_functions for f in functions):
        version = _format.GRAPH_FUNCTIONS_VERSION
    if any(not f.target.xla or f.tensorflow_differentiates for f in functions):
        version = _format.WITHOUT_XLA_VERSION
    _format.fill_header(structure, sum(map(len, contents)), version)
    return [structure, *contents]


def _make_size_error(name: str) -> SerializationError:
    return SerializationError(
        f"{name} cannot be written: its description, without modules and arrays, takes more than "
        f"{_format.MAX_STRUCTURE_SIZE} bytes, the limit of FlatBuffers."
    )


def _collect_functions(
    portable: PortableFunction, vjp_order: int | None
) -> tuple[tuple[PortableFunction, ...], str]:
    """Returns the function and the VJPs to write, and the reason why the last has no VJP."""
    functions = collect_vjps(portable, vjp_order, _format.MAX_VJP_ORDER)
    gradient = functions[-1].gradient
    if gradient.available:
        order = len(functions) - 1
        return functions, (
            f"its file was written with vjp_order={order}; write it with vjp_order={order + 1}"
        )
    return functions, gradient.missing_because


class _StructureWriter:
    """Writer of the structure of one file.

    Attributes:
      arrays: the arrays to write after the modules, by digest. `write` sets it.
    """

    def __init__(self) -> None:
        self.arrays: dict[str, bytes] = {}
        self._writer = FlatBufferWriter(skip_empty=True)
        self._texts = Pool[str]()
        self._trees = TreeWriter(self._texts)
        self._avals = Pool[Aval]()
        self._comparisons = ComparisonParser()
        self._shardings = Pool[Sharding]()
        self._graph_functions = Pool[GraphFunction]()
        self._lowerings: dict[tuple[Any, ...], int] = {}
        self._lowering_tables: list[Offset] = []

    def write(
        self, functions: Sequence[PortableFunction], missing_because: str, arrays: bool
    ) -> bytearray:
        tables = []
        for function in functions:
            try:
                tables.append(self._writer.write_table(self._iter_function_fields(function)))
            except SerializationError as e:
                raise SerializationError(f"{function.name} cannot be written: {e}") from e
        if arrays:
            constants = chain.from_iterable(f.lifted_constants for f in functions)
            try:
                self.arrays = collect_arrays(constants)
            except SerializationError as e:
                raise SerializationError(f"{functions[0].name} cannot be written: {e}") from e
        fields = self._writer.write_parts(self._iter_file_fields(tables, missing_because))
        # Texts come last, since all other tables add to them.
        texts = encode_texts(self._texts.values())
        root = self._writer.write_table(
            {
                FileRecord.TEXT: b"".join(texts),
                FileRecord.TEXT_SIZES: [len(text) for text in texts],
                **fields,
            }
        )
        # HEADER_ROOM is a multiple of 8, so there is no padding after the identifier.
        return bytearray(self._writer.finish(root, _format.IDENTIFIER, _format.HEADER_ROOM))

    def _iter_file_fields(
        self, functions: Sequence[Offset], missing_because: str
    ) -> Iterator[tuple[Field, Value]]:
        yield FileRecord.FUNCTIONS, functions
        yield FileRecord.VJP_MISSING_BECAUSE, self._texts.index(missing_because)
        yield FileRecord.LOWERINGS, self._lowering_tables
        yield FileRecord.AVALS, make_avals_table(self._avals.values(), self._texts)
        trees = self._trees
        yield FileRecord.TREES, trees.make_table()
        types = list(map(self._writer.write_table, trees.make_type_tables()))
        yield FileRecord.KEYS, trees.make_key_tables()
        yield FileRecord.NODE_TYPES, types
        meshes = Pool[AbstractMesh]()
        yield (
            FileRecord.SHARDINGS,
            [self._make_sharding_table(s, meshes) for s in self._shardings.values()],
        )
        yield FileRecord.MESHES, [self._make_mesh_table(mesh) for mesh in meshes.values()]
        yield FileRecord.BRIDGE_VERSION, self._texts.index(__version__)
        yield FileRecord.ARRAY_DIGESTS, self._texts.indices(self.arrays)
        yield FileRecord.ARRAY_SIZES, list(map(len, self.arrays.values()))
        yield (
            FileRecord.GRAPH_FUNCTIONS,
            [
                {
                    GraphFunctionRecord.NAME: self._texts.index(graph_function.name),
                    GraphFunctionRecord.GRAPH: graph_function.graph,
                }
                for graph_function in self._graph_functions.values()
            ],
        )

    def _iter_function_fields(self, function: PortableFunction) -> Iterator[tuple[Field, Value]]:
        texts, avals, constants = self._texts, self._avals, function.lifted_constants
        in_leaves = self._trees.add(
            function.in_tree, StructureName("the arguments", function.argument_names)
        )
        out_leaves = self._trees.add(function.out_tree, StructureName("the result"))
        problem = find_function_problem(function, in_leaves, out_leaves, self._comparisons)
        if problem is not None:
            raise SerializationError(f"its parts disagree: {problem}.")
        yield FunctionRecord.NAME, texts.index(function.name)
        yield FunctionRecord.IN_AVALS, avals.indices(function.in_avals)
        yield FunctionRecord.OUT_AVALS, avals.indices(function.out_avals)
        yield FunctionRecord.ARGUMENT_NAMES, texts.indices(function.argument_names)
        yield FunctionRecord.LOWERING, self._find_lowering(function)
        yield FunctionRecord.REQUIREMENTS, texts.indices(function.requirements)
        yield FunctionRecord.ORDERED_EFFECTS, texts.indices(function.ordered_effects)
        yield FunctionRecord.UNORDERED_EFFECTS, texts.indices(function.unordered_effects)
        yield FunctionRecord.MODULE_KEPT_VAR_IDX, function.module.kept_arguments
        yield FunctionRecord.IN_SHARDINGS, self._index_shardings(function.in_shardings)
        yield FunctionRecord.OUT_SHARDINGS, self._index_shardings(function.out_shardings)
        yield FunctionRecord.USES_GLOBAL_CONSTANTS, function.uses_global_constants
        yield FunctionRecord.LIFTED_AVALS, avals.indices(c.aval for c in constants)
        yield FunctionRecord.LIFTED_DIGESTS, texts.indices(c.digest for c in constants)
        yield FunctionRecord.LIFTED_NAMES, texts.indices(c.name for c in constants)
        yield FunctionRecord.MODULE_SIZE, len(function.module.data)
        yield FunctionRecord.MODULE_CRC32, zlib.crc32(function.module.data)
        yield (
            FunctionRecord.GRAPH_FUNCTIONS,
            self._graph_functions.indices(function.graph_functions),
        )
        yield FunctionRecord.TENSORFLOW_DIFFERENTIATES, function.tensorflow_differentiates

    def _find_lowering(self, function: PortableFunction) -> int:
        """Returns the index of the lowering of a function. Writes the lowering if it is new."""
        module, target = function.module, function.target
        key = (
            replace(module, data=b"", kept_arguments=()),
            function.dropped_platforms,
            function.constraints,
            function.constraints_known,
            function.producer,
            target,
        )
        if key in self._lowerings:
            return self._lowerings[key]
        texts, platform_reasons = self._texts, function.dropped_platforms
        table = self._writer.write_table(
            {
                LoweringRecord.STABLEHLO_VERSION: _flatten_versions([module.stablehlo_version]),
                LoweringRecord.CALLING_CONVENTION_VERSION: module.calling_convention_version,
                LoweringRecord.PLATFORMS: texts.indices(module.platforms),
                LoweringRecord.DROPPED_PLATFORMS: texts.indices(p for p, _ in platform_reasons),
                LoweringRecord.DROPPED_BECAUSE: texts.indices(r for _, r in platform_reasons),
                LoweringRecord.DISABLED_CHECKS: texts.indices(
                    check.directive for check in module.disabled_checks
                ),
                LoweringRecord.NR_DEVICES: module.nr_devices,
                LoweringRecord.USES_SHAPE_POLYMORPHISM: module.uses_shape_polymorphism,
                LoweringRecord.CONSTRAINTS: texts.indices(function.constraints),
                LoweringRecord.CONSTRAINTS_KNOWN: function.constraints_known,
                LoweringRecord.PRODUCER: texts.index(function.producer),
                LoweringRecord.TARGET_NAME: texts.index(target.name),
                LoweringRecord.TARGET_STABLEHLO_VERSIONS: _flatten_versions(
                    target.stablehlo_versions
                ),
                LoweringRecord.TARGET_CALLING_CONVENTION: target.calling_convention,
                LoweringRecord.TARGET_XLA: target.xla,
            }
        )
        self._lowering_tables.append(table)
        return self._lowerings.setdefault(key, len(self._lowerings))

    def _index_shardings(self, shardings: Sequence[Sharding | None]) -> list[int] | None:
        if not any(shardings):
            return None
        return [0 if s is None else 1 + self._shardings.index(s) for s in shardings]

    def _make_sharding_table(self, sharding: Sharding, meshes: Pool[AbstractMesh]) -> Fields:
        texts, partitions = self._texts, sharding.partitions
        return {
            ShardingRecord.MESH: None if sharding.mesh is None else meshes.index(sharding.mesh),
            ShardingRecord.PARTITION_SIZES: [len(axes) for axes in partitions],
            ShardingRecord.AXES: texts.indices(chain.from_iterable(partitions)),
            ShardingRecord.UNREDUCED: texts.indices(sharding.unreduced),
            ShardingRecord.REDUCED: texts.indices(sharding.reduced),
            ShardingRecord.MEMORY_KIND: texts.optional_index(sharding.memory_kind),
            ShardingRecord.HLO: sharding.hlo or None,
        }

    def _make_mesh_table(self, mesh: AbstractMesh) -> Fields:
        lengths = {len(mesh.axis_names), len(mesh.axis_sizes), len(mesh.axis_types)}
        if len(lengths) > 1:
            raise SerializationError(
                f"A mesh needs a name, a size and a type for each axis: {mesh!r}"
            )
        device = mesh.device
        return {
            MeshRecord.AXIS_NAMES: self._texts.indices(mesh.axis_names),
            MeshRecord.AXIS_SIZES: mesh.axis_sizes,
            MeshRecord.AXIS_TYPES: bytes(map(_format.AXIS_TYPES.index, mesh.axis_types)) or None,
            MeshRecord.DEVICE: None
            if device is None
            else {
                DeviceRecord.KIND: self._texts.index(device.kind),
                DeviceRecord.PLATFORM: self._texts.index(device.platform),
                DeviceRecord.NUM_CORES: device.num_cores,
            },
        }


def _flatten_versions(versions: Sequence[Sequence[int]]) -> list[int]:
    if any(len(version) != 3 for version in versions):
        raise SerializationError(f"A StableHLO version has three numbers. Got: {versions!r}")
    return [part for version in versions for part in version]
