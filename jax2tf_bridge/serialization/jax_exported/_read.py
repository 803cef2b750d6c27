"""Reads functions that jax.export.Exported.serialize wrote, without JAX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jax2tf_bridge.bytecode import Version
from jax2tf_bridge.portable import (
    Aval,
    Comparisons,
    GradientOnDemand,
    Module,
    NoGradient,
    PortableFunction,
    TreeSpec,
    function_problem,
    vjp_problem,
)
from jax2tf_bridge.serialization._flatbuffer import FlatBufferReader, FlatBufferTable, Readable
from jax2tf_bridge.serialization.jax_exported._modules import (
    read_asserted_constraints,
    read_stablehlo_version,
)
from jax2tf_bridge.serialization.jax_exported._schema import (
    FIRST_VERSION,
    WITHDRAWN_VERSION,
    AvalField,
    EffectField,
    ExportedField,
)
from jax2tf_bridge.serialization.jax_exported._shardings import ShardingReader
from jax2tf_bridge.serialization.jax_exported._trees import (
    AvalReader,
    ExportedTreeReader,
    read_disabled_checks,
)
from jax2tf_bridge.targets import Target
from shape_poly import is_symbolic_dim

_FORMAT_NAME = "A function exported by JAX"
_INDEX_FIELDS = {
    ExportedField.IN_AVALS: ExportedField.IN_AVALS_IDXS,
    ExportedField.OUT_AVALS: ExportedField.OUT_AVALS_IDXS,
}


class GradientInBytes(GradientOnDemand):
    """VJP that is stored as bytes and parsed when it is first used."""

    @property
    def made(self) -> PortableFunction:
        return self.get("the function")


def read_exported(data: Readable, *, file: str | None = None) -> PortableFunction:
    """Reads a function that jax.export.Exported.serialize of JAX 0.4.30 or later wrote.

    Supports serialization versions 2 to 12, and later versions if they only add fields. The format
    stores neither constraints nor the names of positional arguments. Constraints that the module
    checks itself are recovered, `constraints_known` is False, and the arguments are named x0, x1,
    and so on. Nodes are rebuilt if their types are registered, with
    register_pytree_node_serialization of the bridge or of jax.export. TreeSpec says how other
    nodes are represented.

    Args:
      data: the bytes. They must not change or be released, since VJPs are read from them later.
      file: the name of their file, for messages.

    Raises:
      FileFormatError: the bytes are not such a function, have the withdrawn version 7, or contain
        something that this version of the bridge does not support.
    """
    root = FlatBufferReader(data, what=_FORMAT_NAME, file=file).root()
    try:
        return _read_function(root, None)
    except RecursionError:
        # The reader limits the nesting, but the caller may be close to Python's recursion limit.
        raise root.error(None, "fewer trees within each other", "too many to follow") from None


def _check_version(root: FlatBufferTable) -> None:
    version = root.integer(ExportedField.SERIALIZATION_VERSION)
    if version == WITHDRAWN_VERSION:
        raise root.error(
            ExportedField.SERIALIZATION_VERSION,
            f"a serialization version but {WITHDRAWN_VERSION}, which JAX withdrew: "
            "export the function again",
            f"{version}",
        )
    if version < FIRST_VERSION:
        raise root.error(
            ExportedField.SERIALIZATION_VERSION,
            f"a serialization version from {FIRST_VERSION} on",
            f"{version}",
        )


def _read_function(
    table: FlatBufferTable,
    primal: PortableFunction | None,
    *,
    only_check: bool = False,
    checked: bool = False,
) -> PortableFunction:
    """Reads a function, or the VJP of `primal`.

    Args:
      table: the table of the function.
      primal: the function that this is the VJP of; None if this is not a VJP.
      only_check: whether to validate the function without copying its module.
      checked: whether the VJPs of this function were validated before.
    """
    _check_version(table)
    avals = _FunctionAvals(table)
    in_avals, in_shapes = avals.avals(ExportedField.IN_AVALS)
    out_avals, _ = avals.avals(ExportedField.OUT_AVALS)
    trees = ExportedTreeReader()
    in_tree = _read_tree(trees, table, ExportedField.IN_TREE, len(in_avals))
    _check_call(table, in_tree, in_avals, out_avals, primal)
    module, version = _read_module(table)
    constraints = () if only_check else read_asserted_constraints(module, in_shapes, in_avals)
    refines = table.boolean(ExportedField.USES_GLOBAL_CONSTANTS)
    convention = table.integer(ExportedField.CALLING_CONVENTION_VERSION)
    producer = _describe_producer(table)
    shardings = ShardingReader(table)
    portable = PortableFunction(
        name=table.string(ExportedField.FUNCTION_NAME) or "",
        in_tree=in_tree,
        in_avals=in_avals,
        out_tree=_read_tree(trees, table, ExportedField.OUT_TREE, len(out_avals)),
        out_avals=out_avals,
        argument_names=make_argument_names(in_tree, primal),
        module=Module(
            b"" if only_check else bytes(module),
            version,
            convention,
            kept_arguments=table.integers(ExportedField.MODULE_KEPT_VAR_IDX),
            platforms=table.strings(ExportedField.PLATFORMS),
            uses_shape_polymorphism=refines
            or any(is_symbolic_dim(dim) for aval in in_avals for dim in aval.shape),
            disabled_checks=read_disabled_checks(table.tables(ExportedField.DISABLED_CHECKS)),
            nr_devices=_read_nr_devices(table),
        ),
        constraints=constraints,
        ordered_effects=_read_effects(table, ExportedField.ORDERED_EFFECTS),
        unordered_effects=_read_effects(table, ExportedField.UNORDERED_EFFECTS),
        in_shardings=shardings.shardings(ExportedField.IN_SHARDINGS, len(in_avals)),
        out_shardings=shardings.shardings(ExportedField.OUT_SHARDINGS, len(out_avals)),
        target=Target(producer, (version,), convention),
        producer=producer,
        constraints_known=False,
        uses_global_constants=refines,
        gradient=NoGradient("it was stored without the VJP of this order"),
    )
    problem = function_problem(portable, len(in_avals), len(out_avals), Comparisons())
    if problem is not None:
        raise table.error(None, "parts that agree", problem)
    vjp = table.table(ExportedField.VJP)
    if vjp is None:
        return portable
    if not checked:
        _read_function(vjp, portable, only_check=True)
    return portable if only_check else _add_vjp(portable, vjp)


def _add_vjp(portable: PortableFunction, vjp: FlatBufferTable) -> PortableFunction:
    def make() -> PortableFunction:
        return _read_function(vjp.again(), portable, checked=True)

    return replace(portable, gradient=GradientInBytes(make))


class _FunctionAvals:
    """Reader of the abstract values of one function, stored inline or as indices into a list."""

    def __init__(self, exported: FlatBufferTable) -> None:
        self._exported = exported
        self._reader = AvalReader()
        self._shared = tuple(map(self._read, exported.tables(ExportedField.UNIQUE_AVALS)))

    def avals(self, field: ExportedField) -> tuple[tuple[Aval, ...], tuple[tuple[str, ...], ...]]:
        """Returns the abstract values of arguments or results, and their shapes as stored."""
        indices = self._exported.integers(_INDEX_FIELDS[field])
        if indices and max(indices) >= len(self._shared):
            raise self._exported.error(
                _INDEX_FIELDS[field], f"indices below {len(self._shared)}", f"{max(indices)}"
            )
        if indices:
            sizes = [4 + sum(map(len, shape)) + 4 * len(shape) for _, shape in self._shared]
            self._exported.spend(_INDEX_FIELDS[field], sum(sizes[i] for i in indices))
            pairs = tuple(self._shared[i] for i in indices)
        else:
            pairs = tuple(map(self._read, self._exported.tables(field)))
        return tuple(aval for aval, _ in pairs), tuple(shape for _, shape in pairs)

    def _read(self, table: FlatBufferTable) -> tuple[Aval, tuple[str, ...]]:
        return self._reader.aval(table), table.strings(AvalField.SHAPE)


def _read_tree(
    trees: ExportedTreeReader, table: FlatBufferTable, field: ExportedField, leaves: int
) -> TreeSpec:
    tree_table = table.table(field)
    if tree_table is None:
        raise table.error(field, "a pytree", "none")
    spec = trees.tree(tree_table)
    if spec.leaf_count != leaves:
        raise tree_table.error(None, f"{leaves} leaves, one a value", f"{spec.leaf_count}")
    return spec


def _check_call(
    table: FlatBufferTable,
    in_tree: TreeSpec,
    in_avals: Sequence[Aval],
    out_avals: Sequence[Aval],
    primal: PortableFunction | None,
) -> None:
    """Raises an error unless in_tree is (args, kwargs), and fits a VJP of `primal` if given."""
    if in_tree.kind != "tuple" or [c.kind for c in in_tree.children] != ["tuple", "dict"]:
        raise table.error(
            ExportedField.IN_TREE,
            "a tuple of arguments and a dict of keyword arguments",
            f"{in_tree.kind} of {len(in_tree.children)} children",
        )
    problem = None if primal is None else vjp_problem(primal, in_tree, in_avals, out_avals)
    if primal is not None and problem is not None:
        raise table.error(None, f"the VJP of {primal.name}", problem)


def _read_module(table: FlatBufferTable) -> tuple[memoryview, Version]:
    module = table.bytes(ExportedField.MODULE)
    version = None if module is None else read_stablehlo_version(module)
    if module is None or version is None:
        got = "none" if module is None else repr(bytes(module[:24]))
        raise table.error(ExportedField.MODULE, "a StableHLO module as a portable artifact", got)
    return module, version


def _describe_producer(table: FlatBufferTable) -> str:
    version = table.string(ExportedField.JAX_VERSION)
    if version:
        return f"JAX {version}"
    stamp = table.integer(ExportedField.SERIALIZATION_VERSION)
    return f"JAX (serialization version {stamp})"


def _read_nr_devices(table: FlatBufferTable) -> int:
    count = table.integer(ExportedField.NR_DEVICES) or table.integer(ExportedField.NR_DEVICES_SHORT)
    if count < 1:
        raise table.error(ExportedField.NR_DEVICES, "at least one device", f"{count}")
    return count


def _read_effects(table: FlatBufferTable, field: ExportedField) -> tuple[str, ...]:
    return tuple(map(_read_effect_name, table.tables(field)))


def _read_effect_name(table: FlatBufferTable) -> str:
    """Returns the class of an effect, such as "jax._src.debugging.OrderedDebugEffect"."""
    text = table.string(EffectField.TYPE_NAME)
    if not text:
        raise table.error(EffectField.TYPE_NAME, "the class of an effect", "none")
    return (
        text[len("<class '") : -2] if text.startswith("<class '") and text.endswith("'>") else text
    )


# The file format does not store names of positional arguments.
def make_argument_names(in_tree: TreeSpec, primal: PortableFunction | None) -> tuple[str, ...]:
    """Returns names of positional arguments: x0, x1, ... or primal_0, ... cotangent_0, ...

    Args:
      in_tree: the structure of (args, kwargs).
      primal: the function that this is the VJP of; None if this is not a VJP.
    """
    args, kwargs = in_tree.children
    if primal is not None:
        primals = len(primal.in_avals)
        return (
            *(f"primal_{i}" for i in range(primals)),
            *(f"cotangent_{i}" for i in range(len(args.children) - primals)),
        )
    keys, prefix = {str(key) for key in kwargs.keys}, "x"
    while not keys.isdisjoint(f"{prefix}{i}" for i in range(len(args.children))):
        prefix += "_"
    return tuple(f"{prefix}{i}" for i in range(len(args.children)))
