"""Writes a PortableFunction, with its VJPs, in the .jaxfn format; see _format and the schema."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import chain
from typing import Any

from flatbuffers.builder import BuilderSizeError

from jax2tf_bridge._version import __version__
from jax2tf_bridge.errors import SerializationError
from jax2tf_bridge.portable._as_portable import HoldsPortable, as_record
from jax2tf_bridge.portable._aval import Aval
from jax2tf_bridge.portable._consistency import record_problem
from jax2tf_bridge.portable._graph_function import GraphFunction
from jax2tf_bridge.portable._portable_function import PortableFunction
from jax2tf_bridge.portable._sharding import AbstractMesh, Sharding
from jax2tf_bridge.portable._symbolic_texts import Comparisons
from jax2tf_bridge.serialization._vjp_chain import vjp_chain
from jax2tf_bridge.serialization.jaxfn import _format
from jax2tf_bridge.serialization.jaxfn import _schema as schema
from jax2tf_bridge.serialization.jaxfn._arrays import distinct_arrays, laid_out
from jax2tf_bridge.serialization.jaxfn._avals import encode_avals
from jax2tf_bridge.serialization.jaxfn._builder import Builder, Offset
from jax2tf_bridge.serialization.jaxfn._keys import EncodedKey
from jax2tf_bridge.serialization.jaxfn._pools import Pool
from jax2tf_bridge.serialization.jaxfn._texts import encode_texts
from jax2tf_bridge.serialization.jaxfn._trees import Root, TreeWriter

_U32, _U64 = 2**32 - 1, 2**64 - 1


def file_parts(
    record: PortableFunction | HoldsPortable, *, vjp_order: int | None, arrays: bool
) -> list[bytes | bytearray]:
    """Writes the parts of a .jaxfn file: the structure, each module, and each array.

    Args:
      record: the record.
      vjp_order: how many VJPs are written; None for those that are materialised.
      arrays: whether the lifted arrays are written.

    Raises:
      SerializationError: the file cannot hold the record, or there are fewer VJPs.
      InconclusiveShapeError: making a VJP asked something about the sizes.
      ValueError: vjp_order is negative.
      FunctionError: it is no record.
    """
    record = as_record(record, "serialize (or write_function)")
    functions, missing_because = _chain(record, vjp_order)
    writer = _Writer()
    try:
        structure = writer.structure(functions, missing_because, arrays)
    except BuilderSizeError as e:
        raise _too_large(record.name) from e
    if len(structure) > _format.MAX_STRUCTURE_SIZE:
        raise _too_large(record.name)
    behind = [function.module.data for function in functions]
    behind += laid_out(writer.arrays.values(), len(structure) + sum(map(len, behind)))
    has_graphs = any(function.graph_functions for function in functions)
    version = _format.GRAPH_FUNCTIONS_VERSION if has_graphs else _format.FIRST_VERSION
    _format.fill_header(structure, sum(map(len, behind)), version)
    return [structure, *behind]


def _too_large(name: str) -> SerializationError:
    return SerializationError(
        f"{name} cannot be written: what describes it, without its modules and arrays, takes more "
        f"than {_format.MAX_STRUCTURE_SIZE} bytes, as far as FlatBuffers' offsets reach."
    )


def _chain(
    record: PortableFunction, vjp_order: int | None
) -> tuple[tuple[PortableFunction, ...], str]:
    """Collects the function and the VJPs that are written, and why the last of them has none."""
    functions = vjp_chain(record, vjp_order, _format.MAX_VJP_ORDER)
    lazy = functions[-1].gradient
    if lazy.available:
        order = len(functions) - 1
        return functions, (
            f"its file was written with vjp_order={order}; write it with vjp_order={order + 1}"
        )
    return functions, lazy.missing_because


class _Writer:
    """Builds the structure of one file.

    Attributes:
      arrays: what is written behind the modules, by digest; known when the structure is.
    """

    def __init__(self) -> None:
        self.arrays: dict[str, bytes] = {}
        self._builder = Builder()
        self._texts = Pool[str]()
        self._trees = TreeWriter(self._texts)
        self._avals = Pool[Aval]()
        self._comparisons = Comparisons()
        self._shardings = Pool[Sharding]()
        self._graph_functions = Pool[GraphFunction]()
        self._lowerings: dict[tuple[Any, ...], int] = {}
        self._lowering_tables: list[Offset] = []

    def structure(
        self, functions: Sequence[PortableFunction], missing_because: str, arrays: bool
    ) -> bytearray:
        builder = self._builder
        tables = []
        for function in functions:
            try:
                tables.append(self._function(function))
            except SerializationError as e:
                raise SerializationError(f"{function.name} cannot be written: {e}") from e
        if arrays:
            constants = chain.from_iterable(f.lifted_constants for f in functions)
            try:
                self.arrays = distinct_arrays(constants)
            except SerializationError as e:
                raise SerializationError(f"{functions[0].name} cannot be written: {e}") from e
        fields: dict[str, Offset | None] = {
            "functions": builder.offsets(tables),
            "vjp_missing_because": self._texts.index(missing_because),
            "lowerings": builder.offsets(self._lowering_tables),
            "avals": self._aval_table(),
            **self._shared_by_trees(),
            **self._shared_by_shardings(),
            "bridge_version": self._texts.index(__version__),
            "array_digests": self._text_indices(list(self.arrays)),
            "array_sizes": builder.integers(list(map(len, self.arrays.values())), "<u8"),
            "graph_functions": builder.offsets(
                [
                    builder.table(
                        "GraphFunction",
                        name=self._texts.index(found.name),
                        graph=builder.bytes(found.graph),
                    )
                    for found in self._graph_functions.values()
                ]
            ),
        }
        # Last, when all of them are known.
        texts = encode_texts(self._texts.values())
        table = builder.table(
            "File",
            text=builder.string(b"".join(texts)),
            text_sizes=builder.integers([len(text) for text in texts], "<u4"),
            **fields,
        )
        return builder.finished(table)

    def _text_indices(self, texts: Sequence[str]) -> Offset | None:
        return self._builder.integers([self._texts.index(text) for text in texts], "<u4")

    def _optional_text(self, text: str | None) -> int | None:
        return None if text is None else self._texts.index(text)

    def _function(self, record: PortableFunction) -> Offset:
        builder = self._builder
        in_leaves = self._trees.add(record.in_tree, Root("the arguments", record.argument_names))
        out_leaves = self._trees.add(record.out_tree, Root("the result"))
        problem = record_problem(record, in_leaves, out_leaves, self._comparisons)
        if problem is not None:
            raise SerializationError(f"its record is inconsistent: {problem}.")
        constants = record.lifted_constants
        return builder.table(
            "Function",
            name=self._texts.index(record.name),
            in_avals=self._aval_indices(record.in_avals),
            out_avals=self._aval_indices(record.out_avals),
            argument_names=self._text_indices(record.argument_names),
            lowering=self._lowering(record),
            requirements=self._text_indices(record.requirements),
            ordered_effects=self._text_indices(record.ordered_effects),
            unordered_effects=self._text_indices(record.unordered_effects),
            module_kept_var_idx=builder.integers(record.module.kept_arguments, "<u4"),
            in_shardings=self._sharding_indices(record.in_shardings),
            out_shardings=self._sharding_indices(record.out_shardings),
            uses_global_constants=record.uses_global_constants,
            lifted_avals=self._aval_indices([constant.aval for constant in constants]),
            lifted_digests=self._text_indices([constant.digest for constant in constants]),
            lifted_names=self._text_indices([constant.name for constant in constants]),
            module_size=_in_range(len(record.module.data), _U64, "the module's size"),
            module_crc32=zlib.crc32(record.module.data),
            graph_functions=builder.integers(
                [self._graph_functions.index(found) for found in record.graph_functions], "<u4"
            ),
        )

    def _lowering(self, record: PortableFunction) -> int:
        """Finds the index of how a function was lowered."""
        target = record.target
        key = (
            record.module.stablehlo_version,
            record.module.calling_convention_version,
            record.platforms,
            record.dropped_platforms,
            record.module.disabled_checks,
            record.module.nr_devices,
            record.module.uses_shape_polymorphism,
            record.constraints,
            record.constraints_known,
            record.producer,
            target,
        )
        if key in self._lowerings:
            return self._lowerings[key]
        builder = self._builder
        table = builder.table(
            "Lowering",
            stablehlo_version=_versions(builder, [record.module.stablehlo_version]),
            calling_convention_version=_in_range(
                record.module.calling_convention_version, _U32, "calling_convention_version"
            ),
            platforms=self._text_indices(record.platforms),
            dropped_platforms=self._text_indices([name for name, _ in record.dropped_platforms]),
            dropped_because=self._text_indices([reason for _, reason in record.dropped_platforms]),
            disabled_checks=self._text_indices(
                [c.directive for c in record.module.disabled_checks]
            ),
            nr_devices=_in_range(record.module.nr_devices, _U32, "nr_devices"),
            uses_shape_polymorphism=record.module.uses_shape_polymorphism,
            constraints=self._text_indices(record.constraints),
            constraints_known=record.constraints_known,
            producer=self._texts.index(record.producer),
            target_name=self._texts.index(target.name),
            target_stablehlo_versions=_versions(builder, target.stablehlo_versions),
            target_calling_convention=_in_range(
                target.calling_convention, _U32, "target.calling_convention"
            ),
        )
        self._lowering_tables.append(table)
        return self._lowerings.setdefault(key, len(self._lowerings))

    def _shared_by_trees(self) -> dict[str, Offset | None]:
        builder = self._builder
        trees = self._trees.trees
        table = builder.table(
            "Trees",
            kinds=builder.bytes(trees.kinds),
            counts=builder.integers(trees.counts, "<u4"),
            keys=builder.integers(trees.keys, "<u4"),
            types=builder.integers(trees.types, "<u4"),
        )
        types = [
            builder.table(
                "NodeType",
                name=self._texts.index(found.name),
                serialized_name=self._optional_text(found.serialized_name or None),
                auxdata=builder.bytes(found.auxdata),
            )
            for found in self._trees.types.values()
        ]
        return {
            "trees": table,
            "keys": builder.offsets([self._key(key) for key in self._trees.keys.values()]),
            "node_types": builder.offsets(types),
        }

    def _key(self, key: EncodedKey) -> Offset:
        builder = self._builder
        return builder.table(
            "Key",
            kind=key.kind,
            data=builder.bytes(key.data or None),
            items=builder.offsets([self._key(item) for item in key.items]),
        )

    def _aval_indices(self, avals: Sequence[Aval]) -> Offset | None:
        return self._builder.integers([self._avals.index(aval) for aval in avals], "<u4")

    def _aval_table(self) -> Offset:
        builder = self._builder
        avals = encode_avals(self._avals.values(), self._texts)
        return builder.table(
            "Avals",
            dtypes=builder.integers(avals.dtypes, "<u4"),
            ranks=builder.integers(avals.ranks, "<u4"),
            element_ranks=builder.integers(
                avals.element_ranks if any(avals.element_ranks) else (), "<u4"
            ),
            memory_spaces=builder.bytes(avals.memory_spaces if any(avals.memory_spaces) else None),
            sizes=builder.integers(avals.sizes, "<i8"),
            dimensions=builder.integers(avals.dimensions, "<u4"),
        )

    def _sharding_indices(self, shardings: Sequence[Sharding | None]) -> Offset | None:
        if not any(shardings):
            return None
        indices = [0 if s is None else 1 + self._shardings.index(s) for s in shardings]
        return self._builder.integers(indices, "<u4")

    def _shared_by_shardings(self) -> dict[str, Offset | None]:
        meshes = Pool[AbstractMesh]()
        shardings = [self._sharding(s, meshes) for s in self._shardings.values()]
        return {
            "shardings": self._builder.offsets(shardings),
            "meshes": self._builder.offsets([self._mesh(mesh) for mesh in meshes.values()]),
        }

    def _sharding(self, sharding: Sharding, meshes: Pool[AbstractMesh]) -> Offset:
        builder = self._builder
        return builder.table(
            "Sharding",
            mesh=None if sharding.mesh is None else meshes.index(sharding.mesh),
            partition_sizes=builder.integers([len(axes) for axes in sharding.partitions], "<u4"),
            axes=self._text_indices([axis for axes in sharding.partitions for axis in axes]),
            unreduced=self._text_indices(sharding.unreduced),
            reduced=self._text_indices(sharding.reduced),
            memory_kind=self._optional_text(sharding.memory_kind),
            hlo=builder.bytes(sharding.hlo or None),
        )

    def _mesh(self, mesh: AbstractMesh) -> Offset:
        builder = self._builder
        lengths = {len(mesh.axis_names), len(mesh.axis_sizes), len(mesh.axis_types)}
        if len(lengths) > 1:
            raise SerializationError(f"A mesh needs a name, a size and a type each axis: {mesh!r}")
        device = mesh.device
        return builder.table(
            "Mesh",
            axis_names=self._text_indices(mesh.axis_names),
            axis_sizes=builder.integers(mesh.axis_sizes, "<u8"),
            axis_types=builder.bytes(bytes(map(schema.AXIS_TYPES.index, mesh.axis_types)) or None),
            device=None
            if device is None
            else builder.table(
                "Device",
                kind=self._texts.index(device.kind),
                platform=self._texts.index(device.platform),
                num_cores=None
                if device.num_cores is None
                else _in_range(device.num_cores, _U32, "num_cores"),
            ),
        )


def _in_range(value: int, largest: int, name: str) -> int:
    if not 0 <= value <= largest:
        raise SerializationError(f"A file holds {name} from 0 to {largest}. Got: {value}")
    return value


def _versions(builder: Builder, versions: Sequence[Sequence[int]]) -> Offset | None:
    if any(len(version) != 3 for version in versions):
        raise SerializationError(f"A StableHLO version has three numbers. Got: {versions!r}")
    return builder.integers([part for version in versions for part in version], "<u4")
