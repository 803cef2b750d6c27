"""Reads functions that jax.export.Exported.serialize wrote, without JAX."""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from dataclasses import replace

from jax2tf_bridge.bytecode import Version, read_stablehlo_version
from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.portable import (
    LEAF,
    MAX_TEXT,
    Aval,
    ComparisonParser,
    DisabledSafetyCheck,
    GradientOnDemand,
    Module,
    NodeCodec,
    NoGradient,
    PortableFunction,
    TreeSpec,
    find_function_problem,
    find_vjp_problem,
    has_own_parentheses,
)
from jax2tf_bridge.serialization._flatbuffer import FlatBufferReader, FlatBufferTable, Readable
from jax2tf_bridge.serialization._node_data import read_fields, write_fields
from jax2tf_bridge.serialization._stored_types import make_node_codec
from jax2tf_bridge.serialization.jax_exported._modules import read_asserted_constraints
from jax2tf_bridge.serialization.jax_exported._schema import (
    DTYPES,
    FIRST_VERSION,
    KEY_SHAPES,
    MEMORY_SPACES,
    WITHDRAWN_VERSION,
    AvalField,
    CheckField,
    CheckKind,
    EffectField,
    ExportedField,
    TreeField,
    TreeKind,
)
from jax2tf_bridge.serialization.jax_exported._shardings import ShardingReader
from jax2tf_bridge.targets import Target
from shape_poly import Dim, DimensionSyntaxError, is_symbolic_dim, parse_dimension

_FORMAT_NAME = "A function exported by JAX"
_CLASS_TEXT = re.compile(r"<class '(.*)'>", re.DOTALL)
_INDEX_FIELDS = {
    ExportedField.IN_AVALS: ExportedField.IN_AVALS_IDXS,
    ExportedField.OUT_AVALS: ExportedField.OUT_AVALS_IDXS,
}


class GradientInBytes(GradientOnDemand):
    """VJP that is stored as bytes and parsed when it is first used."""

    @property
    def vjp(self) -> PortableFunction:
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
        raise root.error(None, "less deeply nested trees", "too many levels") from None


def _check_version(root: FlatBufferTable) -> None:
    version = root.integer(ExportedField.SERIALIZATION_VERSION)
    if version == WITHDRAWN_VERSION:
        raise root.error(
            ExportedField.SERIALIZATION_VERSION,
            f"a serialization version other than {WITHDRAWN_VERSION}, which JAX withdrew: "
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
    are_vjps_checked: bool = False,
) -> PortableFunction:
    """Reads a function, or the VJP of `primal`.

    Args:
      table: the table of the function.
      primal: the function that this is the VJP of; None if this is not a VJP.
      only_check: whether to validate the function without copying its module.
      are_vjps_checked: whether the VJPs of this function were validated before.
    """
    _check_version(table)
    aval_reader = _AvalReader(table)
    in_avals, in_shapes = aval_reader.read(ExportedField.IN_AVALS)
    out_avals, _ = aval_reader.read(ExportedField.OUT_AVALS)
    tree_reader = _TreeReader()
    in_tree = _read_tree(tree_reader, table, ExportedField.IN_TREE, len(in_avals))
    _check_call(table, in_tree, in_avals, out_avals, primal)
    module, version = _read_module(table)
    constraints = () if only_check else read_asserted_constraints(module, in_shapes, in_avals)
    refines = table.boolean(ExportedField.USES_GLOBAL_CONSTANTS)
    convention = table.integer(ExportedField.CALLING_CONVENTION_VERSION)
    producer = _describe_producer(table)
    sharding_reader = ShardingReader(table)
    portable = PortableFunction(
        name=table.string(ExportedField.FUNCTION_NAME) or "",
        in_tree=in_tree,
        in_avals=in_avals,
        out_tree=_read_tree(tree_reader, table, ExportedField.OUT_TREE, len(out_avals)),
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
            disabled_checks=_read_disabled_checks(table.tables(ExportedField.DISABLED_CHECKS)),
            nr_devices=_read_nr_devices(table),
        ),
        constraints=constraints,
        ordered_effects=_read_effects(table, ExportedField.ORDERED_EFFECTS),
        unordered_effects=_read_effects(table, ExportedField.UNORDERED_EFFECTS),
        in_shardings=sharding_reader.read(ExportedField.IN_SHARDINGS, len(in_avals)),
        out_shardings=sharding_reader.read(ExportedField.OUT_SHARDINGS, len(out_avals)),
        target=Target(producer, (version,), convention),
        producer=producer,
        constraints_known=False,
        uses_global_constants=refines,
        gradient=NoGradient("it was stored without the VJP of this order"),
    )
    problem = find_function_problem(portable, len(in_avals), len(out_avals), ComparisonParser())
    if problem is not None:
        raise table.error(None, "parts that agree", problem)
    vjp = table.table(ExportedField.VJP)
    if vjp is None:
        return portable
    if not are_vjps_checked:
        _read_function(vjp, portable, only_check=True)
    return portable if only_check else _add_vjp(portable, vjp)


def _add_vjp(portable: PortableFunction, vjp: FlatBufferTable) -> PortableFunction:
    def make() -> PortableFunction:
        return _read_function(vjp.with_full_budget(), portable, are_vjps_checked=True)

    return replace(portable, gradient=GradientInBytes(make))


def _read_tree(
    tree_reader: _TreeReader, table: FlatBufferTable, field: ExportedField, leaves: int
) -> TreeSpec:
    tree_table = table.table(field)
    if tree_table is None:
        raise table.error(field, "a pytree", "none")
    spec = tree_reader.read(tree_table)
    if spec.leaf_count != leaves:
        raise tree_table.error(None, f"{leaves} leaves, one for each value", f"{spec.leaf_count}")
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
    problem = None if primal is None else find_vjp_problem(primal, in_tree, in_avals, out_avals)
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
    return f"JAX (serialization version {table.integer(ExportedField.SERIALIZATION_VERSION)})"


def _read_nr_devices(table: FlatBufferTable) -> int:
    count = table.integer(ExportedField.NR_DEVICES) or table.integer(ExportedField.NR_DEVICES_SHORT)
    if count < 1:
        raise table.error(ExportedField.NR_DEVICES, "at least one device", f"{count}")
    return count


def _read_effects(table: FlatBufferTable, field: ExportedField) -> tuple[str, ...]:
    """Returns the class of each effect, such as "jax._src.debugging.OrderedDebugEffect"."""
    names = []
    for effect in table.tables(field):
        text = effect.string(EffectField.TYPE_NAME)
        if not text:
            raise effect.error(EffectField.TYPE_NAME, "the class of an effect", "none")
        match = _CLASS_TEXT.fullmatch(text)
        names.append(text if match is None else match[1])
    return tuple(names)


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


_MAX_SIZE = 2**63 - 1


class _TreeReader:
    """Reader of pytrees. It looks up each node type only once."""

    def __init__(self) -> None:
        self._codecs: dict[tuple[str, bytes, int], NodeCodec | None] = {}

    def read(self, table: FlatBufferTable) -> TreeSpec:
        kind = table.integer(TreeField.KIND)
        if kind == TreeKind.LEAF:
            return LEAF
        children = tuple(self.read(child) for child in table.tables(TreeField.CHILDREN))
        match kind:
            case TreeKind.NONE:
                if children:
                    raise table.error(
                        TreeField.CHILDREN, "no children below None", f"{len(children)}"
                    )
                return TreeSpec("none")
            case TreeKind.TUPLE:
                return TreeSpec("tuple", children=children)
            case TreeKind.LIST:
                return TreeSpec("list", children=children)
            case TreeKind.DICT:
                return TreeSpec("dict", keys=_read_keys(table, len(children)), children=children)
            case TreeKind.CUSTOM:
                return self._read_custom(table, children)
        raise table.error(TreeField.KIND, f"0 to {max(TreeKind)}", f"{kind}")

    def _read_custom(self, table: FlatBufferTable, children: tuple[TreeSpec, ...]) -> TreeSpec:
        name = table.string(TreeField.CUSTOM_NAME)
        if not name:
            raise table.error(TreeField.CUSTOM_NAME, "the name of a registered type", "none")
        auxdata = bytes(table.bytes(TreeField.CUSTOM_AUXDATA) or b"")
        try:
            codec = self._find_codec(name, auxdata, children)
            keys = read_fields(auxdata) if name == "collections.OrderedDict" else ()
        except FileFormatError as e:
            raise table.content_error(TreeField.CUSTOM_AUXDATA, str(e)) from e
        class_name = name.rpartition(".")[2] if codec is None else codec.node_type.__name__
        fields = _read_fields_if_plain(auxdata, len(children))
        is_namedtuple = (
            _is_plain_name(class_name)
            if codec is None
            else issubclass(codec.node_type, tuple) and hasattr(codec.node_type, "_fields")
        )
        if is_namedtuple and fields is not None:
            return TreeSpec("namedtuple", class_name, fields, children, codec, name, auxdata)
        return TreeSpec("custom", class_name, keys, children, codec, name, auxdata)

    def _find_codec(
        self, name: str, auxdata: bytes, children: tuple[TreeSpec, ...]
    ) -> NodeCodec | None:
        key = name, auxdata, len(children)
        if key not in self._codecs:
            self._codecs[key] = make_node_codec(name, auxdata, children)
        return self._codecs[key]


def _read_keys(table: FlatBufferTable, count: int) -> tuple[str, ...]:
    keys = table.strings(TreeField.CHILDREN_NAMES)
    if len(keys) != count:
        raise table.error(
            TreeField.CHILDREN_NAMES, f"{count} keys, one for each child", f"{len(keys)}"
        )
    if len(set(keys)) != count:
        raise table.error(TreeField.CHILDREN_NAMES, "keys that differ", "the same key twice")
    return keys


def _read_fields_if_plain(auxdata: bytes, count: int) -> tuple[str, ...] | None:
    """Returns the fields of a named tuple, as jax.export writes them; None for other data."""
    try:
        fields = read_fields(auxdata)
    except FileFormatError:
        return None
    is_plain = all(map(_is_plain_name, fields)) and len(set(fields)) == len(fields) == count
    return fields if is_plain and write_fields(fields) == auxdata else None


def _is_plain_name(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("_")


class _AvalReader:
    """Reader of the abstract values of one function, stored inline or as indices into a list.

    It parses each size only once.
    """

    def __init__(self, exported: FlatBufferTable) -> None:
        self._exported = exported
        self._dims: dict[str, Dim] = {}
        self._characters = 0
        self._shared = tuple(map(self._read_aval, exported.tables(ExportedField.UNIQUE_AVALS)))

    def read(self, field: ExportedField) -> tuple[tuple[Aval, ...], tuple[tuple[str, ...], ...]]:
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
            pairs = tuple(map(self._read_aval, self._exported.tables(field)))
        return tuple(aval for aval, _ in pairs), tuple(shape for _, shape in pairs)

    def _read_aval(self, table: FlatBufferTable) -> tuple[Aval, tuple[str, ...]]:
        kind = table.integer(AvalField.KIND)
        if kind != 0:
            raise table.error(AvalField.KIND, "0, an array", f"{kind}")
        number = table.integer(AvalField.DTYPE)
        if not 0 <= number < len(DTYPES):
            raise table.error(
                AvalField.DTYPE,
                f"a dtype from 0 to {len(DTYPES) - 1}, or a newer version of the bridge",
                f"{number}",
            )
        space = table.integer(AvalField.MEMORY_SPACE)
        if not 0 <= space < len(MEMORY_SPACES):
            raise table.error(
                AvalField.MEMORY_SPACE,
                f"a memory space from 0 to {len(MEMORY_SPACES) - 1}",
                f"{space}",
            )
        dtype, texts = DTYPES[number], table.strings(AvalField.SHAPE)
        shape = tuple(self._parse_dim(table, i, text) for i, text in enumerate(texts))
        return Aval(shape, dtype, KEY_SHAPES.get(dtype, ()), MEMORY_SPACES[space]), texts

    def _parse_dim(self, table: FlatBufferTable, index: int, text: str) -> Dim:
        if text in self._dims:
            return self._dims[text]
        # Parsing other texts may take too long; JAX prints none of them.
        self._characters += len(text)
        if self._characters > MAX_TEXT:
            raise table.error(
                AvalField.SHAPE, f"at most {MAX_TEXT} characters of all sizes together", "more"
            )
        if has_own_parentheses(text):
            raise table.error(
                AvalField.SHAPE,
                f"a size as dimension {index}, as JAX prints it",
                f"{text!r:.80} (it has grouping parentheses)",
            )
        try:
            dim = parse_dimension(text)
        except DimensionSyntaxError as e:
            problem = f"text that is not a size: {str(e).rstrip('.')}"
            raise table.error(AvalField.SHAPE, f"a size as dimension {index}", problem) from e
        if isinstance(dim, int) and not 0 <= dim <= _MAX_SIZE:
            raise table.error(
                AvalField.SHAPE, f"a size from 0 to {_MAX_SIZE} as dimension {index}", text
            )
        return self._dims.setdefault(text, dim)


def _read_disabled_checks(tables: Sequence[FlatBufferTable]) -> tuple[DisabledSafetyCheck, ...]:
    """Reads the disabled safety checks. Skips shape assertions, which can no longer be disabled."""
    checks: list[DisabledSafetyCheck] = []
    for table in tables:
        match table.integer(CheckField.KIND):
            case CheckKind.PLATFORM:
                checks.append(DisabledSafetyCheck.platform())
            case CheckKind.CUSTOM_CALL:
                target = table.string(CheckField.CUSTOM_CALL_TARGET)
                if not target:
                    raise table.error(
                        CheckField.CUSTOM_CALL_TARGET, "the name of a custom call", "none"
                    )
                checks.append(DisabledSafetyCheck.custom_call(target))
            case CheckKind.SHAPE_ASSERTIONS:
                pass
            case kind:
                raise table.error(CheckField.KIND, f"0 to {max(CheckKind)}", f"{kind}")
    return tuple(checks)
