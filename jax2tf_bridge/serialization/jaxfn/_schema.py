"""The fields of schema/jaxfn.fbs by their ids, and its enums, for the reader.

A test compares them with what flatc made of the schema.
"""

from __future__ import annotations

from enum import IntEnum

from jax2tf_bridge.portable._aval import MemorySpace
from jax2tf_bridge.portable._sharding import AxisType
from jax2tf_bridge.portable._tree_spec import NodeKind

NODE_KINDS: tuple[NodeKind, ...] = (
    "leaf",
    "none",
    "tuple",
    "list",
    "dict",
    "namedtuple",
    "custom",
    "custom",  # with names for its children
)
LEAF, NONE, TUPLE, LIST, DICT, NAMEDTUPLE, CUSTOM, NAMED_CUSTOM = range(8)

KEY_IS_NO_TEXT = 1 << 31
"""Set in Trees.keys where the rest is an index into File.keys."""

KEY_KINDS = ("none", "boolean", "integer", "real", "text", "bytes", "tuple")
MEMORY_SPACES: tuple[MemorySpace, ...] = ("device", "host", "any")
AXIS_TYPES: tuple[AxisType, ...] = ("auto", "explicit", "manual")


class Key(IntEnum):
    """A key of a dictionary that is no string."""

    KIND = 0
    DATA = 1
    ITEMS = 2


class NodeType(IntEnum):
    """The type of a named tuple or custom node."""

    NAME = 0
    SERIALIZED_NAME = 1
    AUXDATA = 2


class Trees(IntEnum):
    """All pytree structures of a file."""

    KINDS = 0
    COUNTS = 1
    KEYS = 2
    TYPES = 3


class Avals(IntEnum):
    """All abstract values of a file."""

    DTYPES = 0
    RANKS = 1
    ELEMENT_RANKS = 2
    MEMORY_SPACES = 3
    SIZES = 4
    DIMENSIONS = 5


class Device(IntEnum):
    """A kind of device."""

    KIND = 0
    PLATFORM = 1
    NUM_CORES = 2


class Mesh(IntEnum):
    """A mesh of devices."""

    AXIS_NAMES = 0
    AXIS_SIZES = 1
    AXIS_TYPES = 2
    DEVICE = 3


class Sharding(IntEnum):
    """Fields of how an array is spread over devices."""

    MESH = 0
    PARTITION_SIZES = 1
    AXES = 2
    UNREDUCED = 3
    REDUCED = 4
    MEMORY_KIND = 5
    HLO = 6


class Lowering(IntEnum):
    """Fields of how functions were lowered, and for whom."""

    STABLEHLO_VERSION = 0
    CALLING_CONVENTION_VERSION = 1
    PLATFORMS = 2
    DROPPED_PLATFORMS = 3
    DROPPED_BECAUSE = 4
    DISABLED_CHECKS = 5
    NR_DEVICES = 6
    USES_SHAPE_POLYMORPHISM = 7
    CONSTRAINTS = 8
    CONSTRAINTS_KNOWN = 9
    PRODUCER = 10
    TARGET_NAME = 11
    TARGET_STABLEHLO_VERSIONS = 12
    TARGET_CALLING_CONVENTION = 13


class GraphFunction(IntEnum):
    """A TensorFlow graph that modules call."""

    NAME = 0
    GRAPH = 1


class Function(IntEnum):
    """A function, or a VJP."""

    NAME = 0
    IN_AVALS = 1
    OUT_AVALS = 2
    ARGUMENT_NAMES = 3
    LOWERING = 4
    REQUIREMENTS = 5
    ORDERED_EFFECTS = 6
    UNORDERED_EFFECTS = 7
    MODULE_KEPT_VAR_IDX = 8
    IN_SHARDINGS = 9
    OUT_SHARDINGS = 10
    USES_GLOBAL_CONSTANTS = 11
    LIFTED_AVALS = 12
    LIFTED_DIGESTS = 13
    LIFTED_NAMES = 14
    MODULE_SIZE = 15
    MODULE_CRC32 = 16
    GRAPH_FUNCTIONS = 17


class File(IntEnum):
    """The root."""

    TEXT = 0
    TEXT_SIZES = 1
    BRIDGE_VERSION = 2
    FUNCTIONS = 3
    VJP_MISSING_BECAUSE = 4
    LOWERINGS = 5
    AVALS = 6
    TREES = 7
    KEYS = 8
    NODE_TYPES = 9
    SHARDINGS = 10
    MESHES = 11
    ARRAY_DIGESTS = 12
    ARRAY_SIZES = 13
    GRAPH_FUNCTIONS = 14
