"""Fields of the tables in the structure of a .jaxfn file, and its enums, for reader and writer.

They repeat schema/jaxfn.fbs, which explains each field and exists for other tools. A test compares
the two. Enums are ubytes here.
"""

from __future__ import annotations

from jax2tf_bridge.portable import AxisType, MemorySpace, NodeKind
from jax2tf_bridge.serialization._flatbuffer import Field

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

KEY_INDEX_FLAG = 1 << 31
"""Flag in Trees.keys: the other bits are an index into File.keys, not into the texts."""

KEY_KINDS = ("none", "boolean", "integer", "real", "text", "bytes", "tuple")
MEMORY_SPACES: tuple[MemorySpace, ...] = ("device", "host", "any")
AXIS_TYPES: tuple[AxisType, ...] = ("auto", "explicit", "manual")


class Key(Field):
    """Key of a dictionary that is not a string."""

    KIND = "ubyte"
    DATA = "[ubyte]"
    ITEMS = "[Key]"


class NodeType(Field):
    """Type of a named tuple or custom node."""

    NAME = "uint"
    SERIALIZED_NAME = "uint", None
    AUXDATA = "[ubyte]"


class Trees(Field):
    """All pytree structures of a file."""

    KINDS = "[ubyte]"
    COUNTS = "[uint]"
    KEYS = "[uint]"
    TYPES = "[uint]"


class Avals(Field):
    """All abstract values of a file."""

    DTYPES = "[uint]"
    RANKS = "[uint]"
    ELEMENT_RANKS = "[uint]"
    MEMORY_SPACES = "[ubyte]"
    SIZES = "[long]"
    DIMENSIONS = "[uint]"


class Device(Field):
    """Kind of device."""

    KIND = "uint"
    PLATFORM = "uint"
    NUM_CORES = "uint", None


class Mesh(Field):
    """Mesh of devices."""

    AXIS_NAMES = "[uint]"
    AXIS_SIZES = "[ulong]"
    AXIS_TYPES = "[ubyte]"
    DEVICE = "Device"


class Sharding(Field):
    """Distribution of an array over devices."""

    MESH = "uint", None
    PARTITION_SIZES = "[uint]"
    AXES = "[uint]"
    UNREDUCED = "[uint]"
    REDUCED = "[uint]"
    MEMORY_KIND = "uint", None
    HLO = "[ubyte]"


class Lowering(Field):
    """Settings that functions were lowered with, and their target."""

    STABLEHLO_VERSION = "[uint]"
    CALLING_CONVENTION_VERSION = "uint"
    PLATFORMS = "[uint]"
    DROPPED_PLATFORMS = "[uint]"
    DROPPED_BECAUSE = "[uint]"
    DISABLED_CHECKS = "[uint]"
    NR_DEVICES = "uint", 1
    USES_SHAPE_POLYMORPHISM = "bool"
    CONSTRAINTS = "[uint]"
    CONSTRAINTS_KNOWN = "bool", True
    PRODUCER = "uint"
    TARGET_NAME = "uint"
    TARGET_STABLEHLO_VERSIONS = "[uint]"
    TARGET_CALLING_CONVENTION = "uint"
    TARGET_XLA = "bool", True


class GraphFunction(Field):
    """TensorFlow graph that modules call."""

    NAME = "uint"
    GRAPH = "[ubyte]"


class Function(Field):
    """Function or VJP."""

    NAME = "uint"
    IN_AVALS = "[uint]"
    OUT_AVALS = "[uint]"
    ARGUMENT_NAMES = "[uint]"
    LOWERING = "uint"
    REQUIREMENTS = "[uint]"
    ORDERED_EFFECTS = "[uint]"
    UNORDERED_EFFECTS = "[uint]"
    MODULE_KEPT_VAR_IDX = "[uint]"
    IN_SHARDINGS = "[uint]"
    OUT_SHARDINGS = "[uint]"
    USES_GLOBAL_CONSTANTS = "bool"
    LIFTED_AVALS = "[uint]"
    LIFTED_DIGESTS = "[uint]"
    LIFTED_NAMES = "[uint]"
    MODULE_SIZE = "ulong"
    MODULE_CRC32 = "uint"
    GRAPH_FUNCTIONS = "[uint]"
    TENSORFLOW_DIFFERENTIATES = "bool"


class File(Field):
    """Root table of a file."""

    TEXT = "string"
    TEXT_SIZES = "[uint]"
    BRIDGE_VERSION = "uint"
    FUNCTIONS = "[Function]"
    VJP_MISSING_BECAUSE = "uint"
    LOWERINGS = "[Lowering]"
    AVALS = "Avals"
    TREES = "Trees"
    KEYS = "[Key]"
    NODE_TYPES = "[NodeType]"
    SHARDINGS = "[Sharding]"
    MESHES = "[Mesh]"
    ARRAY_DIGESTS = "[uint]"
    ARRAY_SIZES = "[ulong]"
    GRAPH_FUNCTIONS = "[GraphFunction]"
