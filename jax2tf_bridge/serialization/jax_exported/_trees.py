"""Reads trees, abstract values and disabled safety checks from files of jax.export."""

from __future__ import annotations

import keyword
from collections.abc import Sequence

from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.portable import (
    LEAF,
    MAX_TEXT,
    Aval,
    DisabledSafetyCheck,
    NodeCodec,
    TreeSpec,
    has_own_parentheses,
)
from jax2tf_bridge.serialization._flatbuffer import FlatBufferTable
from jax2tf_bridge.serialization._node_data import read_fields, write_fields
from jax2tf_bridge.serialization._registry import make_node_codec
from jax2tf_bridge.serialization.jax_exported._schema import (
    DTYPES,
    KEY_SHAPES,
    MEMORY_SPACES,
    AvalField,
    CheckField,
    CheckKind,
    TreeField,
    TreeKind,
)
from shape_poly import Dim, DimensionSyntaxError, parse_dimension

_MAX_SIZE = 2**63 - 1


class ExportedTreeReader:
    """Reader of pytrees. It looks up each node type only once."""

    def __init__(self) -> None:
        self._codecs: dict[tuple[str, bytes, int], NodeCodec | None] = {}

    def tree(self, table: FlatBufferTable) -> TreeSpec:
        """Reads the pytree whose root is this node."""
        kind = table.integer(TreeField.KIND)
        if kind == TreeKind.LEAF:
            return LEAF
        children = tuple(self.tree(child) for child in table.tables(TreeField.CHILDREN))
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
            raise table.problem(TreeField.CUSTOM_AUXDATA, str(e)) from e
        short = name.rpartition(".")[2] if codec is None else codec.node_type.__name__
        fields = _read_fields_if_plain(auxdata, len(children))
        is_namedtuple = (
            _is_plain_name(short)
            if codec is None
            else issubclass(codec.node_type, tuple) and hasattr(codec.node_type, "_fields")
        )
        if is_namedtuple and fields is not None:
            return TreeSpec("namedtuple", short, fields, children, codec, name, auxdata)
        return TreeSpec("custom", short, keys, children, codec, name, auxdata)

    def _find_codec(
        self, name: str, auxdata: bytes, children: tuple[TreeSpec, ...]
    ) -> NodeCodec | None:
        key = name, auxdata, len(children)
        if key not in self._codecs:
            self._codecs[key] = make_node_codec(*key, children)
        return self._codecs[key]


def _read_keys(table: FlatBufferTable, count: int) -> tuple[str, ...]:
    keys = table.strings(TreeField.CHILDREN_NAMES)
    if len(keys) != count:
        raise table.error(TreeField.CHILDREN_NAMES, f"{count} keys, one a child", f"{len(keys)}")
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


class AvalReader:
    """Reader of abstract values. It parses each size only once."""

    def __init__(self) -> None:
        self._dims: dict[str, Dim] = {}
        self._characters = 0

    def aval(self, table: FlatBufferTable) -> Aval:
        """Reads the abstract value in a table."""
        kind = table.integer(AvalField.KIND)
        if kind != 0:
            raise table.error(AvalField.KIND, "0, an array", f"{kind}")
        number = table.integer(AvalField.DTYPE)
        if not 0 <= number < len(DTYPES):
            raise table.error(
                AvalField.DTYPE,
                f"a dtype from 0 to {len(DTYPES) - 1}, or a newer bridge",
                f"{number}",
            )
        space = table.integer(AvalField.MEMORY_SPACE)
        if not 0 <= space < len(MEMORY_SPACES):
            raise table.error(
                AvalField.MEMORY_SPACE,
                f"a memory space from 0 to {len(MEMORY_SPACES) - 1}",
                f"{space}",
            )
        dtype = DTYPES[number]
        shape = tuple(
            self._parse_dim(table, i, text) for i, text in enumerate(table.strings(AvalField.SHAPE))
        )
        return Aval(shape, dtype, KEY_SHAPES.get(dtype, ()), MEMORY_SPACES[space])

    def _parse_dim(self, table: FlatBufferTable, index: int, text: str) -> Dim:
        if text not in self._dims:
            self._check_text(table, index, text)
            try:
                dim = parse_dimension(text)
            except DimensionSyntaxError as e:
                problem = f"text that is none: {str(e).rstrip('.')}"
                raise table.error(AvalField.SHAPE, f"a size as dimension {index}", problem) from e
            if isinstance(dim, int) and not 0 <= dim <= _MAX_SIZE:
                raise table.error(
                    AvalField.SHAPE, f"a size from 0 to {_MAX_SIZE} as dimension {index}", text
                )
            self._dims[text] = dim
        return self._dims[text]

    def _check_text(self, table: FlatBufferTable, index: int, text: str) -> None:
        """Raises an error for sizes that would take too long to parse; JAX prints none of them."""
        self._characters += len(text)
        if self._characters > MAX_TEXT:
            raise table.error(
                AvalField.SHAPE, f"at most {MAX_TEXT} characters of all sizes together", "more"
            )
        if has_own_parentheses(text):
            raise table.error(
                AvalField.SHAPE,
                f"a size as dimension {index}, as it is printed",
                f"{text!r:.80} (it has parentheses of its own)",
            )


def read_disabled_checks(tables: Sequence[FlatBufferTable]) -> tuple[DisabledSafetyCheck, ...]:
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
