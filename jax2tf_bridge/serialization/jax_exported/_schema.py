"""Fields and numbers of JAX's format of exported functions, serialization versions 2 to 12.

JAX stamped its files with 2 or 3 until July 2026, whatever they held: only its fields tell what a
file holds. Since the versions only added fields and numbers, one schema reads all of them:

| version | since | what it added |
|---|---|---|
| 2 | December 2023 | float0 |
| 3 | October 2024 | custom nodes and named tuples |
| 4 | April 2025 | typed PRNG keys |
| 5 | November 2025 | memory spaces, the number of devices in 32 bits |
| 6 | January 2026 | named shardings, beside XLA's |
| 7 | | withdrawn soon after: named shardings only, too early for its readers |
| 8 | March 2026 | what kind of device a mesh is of |
| 9 | March 2026 | named shardings only |
| 10 | April 2026 | avals, meshes and shardings by index |
| 11 | May 2026 | the platform of a device |
| 12 | July 2026 | JAX's version, and the true serialization version |
"""

from __future__ import annotations

from enum import IntEnum

from jax2tf_bridge.portable._aval import MemorySpace
from jax2tf_bridge.portable._dtypes import ALL_DTYPES, KEYS
from jax2tf_bridge.portable._sharding import AxisType
from jax2tf_bridge.serialization._flatbuffer import Field

FIRST_VERSION = 2
WITHDRAWN_VERSION = 7
WRITTEN_VERSION = 12
"""What serialize_exported writes: all of version 12 but JAX's version, which is not ours."""


class ExportedField(Field):
    """Field of the root table, or of a VJP."""

    SERIALIZATION_VERSION = "ushort"
    FUNCTION_NAME = "string"
    IN_TREE = "PyTreeDef"
    IN_AVALS = "[AbstractValue]"
    OUT_TREE = "PyTreeDef"
    OUT_AVALS = "[AbstractValue]"
    NR_DEVICES_SHORT = "short"
    IN_SHARDINGS = "[Sharding]"
    OUT_SHARDINGS = "[Sharding]"
    PLATFORMS = "[string]"
    ORDERED_EFFECTS = "[Effect]"
    UNORDERED_EFFECTS = "[Effect]"
    DISABLED_CHECKS = "[DisabledSafetyCheck]"
    MODULE = "[ubyte]"
    CALLING_CONVENTION_VERSION = "ushort"
    MODULE_KEPT_VAR_IDX = "[ushort]"
    USES_GLOBAL_CONSTANTS = "bool"
    VJP = "Exported"
    NR_DEVICES = "uint"
    UNIQUE_AVALS = "[AbstractValue]"
    UNIQUE_ABSTRACT_MESHES = "[AbstractMesh]"
    UNIQUE_NAMED_SHARDINGS = "[NamedSharding]"
    IN_AVALS_IDXS = "[uint]"
    OUT_AVALS_IDXS = "[uint]"
    IN_SHARDINGS_IDXS = "[uint]"
    OUT_SHARDINGS_IDXS = "[uint]"
    JAX_VERSION = "string"


class TreeField(Field):
    """Field of a pytree's node."""

    KIND = "byte"
    CHILDREN = "[PyTreeDef]"
    CHILDREN_NAMES = "[string]"
    CUSTOM_NAME = "string"
    CUSTOM_AUXDATA = "[ubyte]"


class TreeKind(IntEnum):
    """Kinds of nodes; named tuples are custom nodes."""

    LEAF = 0
    NONE = 1
    TUPLE = 2
    LIST = 3
    DICT = 4
    CUSTOM = 5


class AvalField(Field):
    """Field of an abstract value."""

    KIND = "byte"
    SHAPE = "[string]"
    DTYPE = "byte"
    MEMORY_SPACE = "byte"


class ShardingField(Field):
    """Field of one array's sharding."""

    KIND = "byte"
    HLO_SHARDING = "[ubyte]"
    NAMED_SHARDING = "NamedSharding"


class NamedShardingField(Field):
    """Field of a sharding over a mesh with named axes."""

    MESH = "AbstractMesh"
    SPEC = "PartitionSpec"
    MEMORY_KIND = "string"
    ABSTRACT_MESH_IDX = "uint"


class SpecField(Field):
    """Field of a partition spec."""

    PARTITIONS = "[PartitionSpecOneAxis]"
    REDUCED = "[string]"
    UNREDUCED = "[string]"


class PartitionField(Field):
    """Field of one dimension of a partition spec."""

    AXES = "[string]"


class MeshField(Field):
    """Field of an abstract mesh."""

    AXIS_SIZES = "[uint]"
    AXIS_NAMES = "[string]"
    AXIS_TYPES = "[byte]"
    ABSTRACT_DEVICE = "AbstractDevice"


class DeviceField(Field):
    """Field of a mesh's kind of device."""

    DEVICE_KIND = "string"
    NUM_CORES = "uint", None
    PLATFORM = "string"


class EffectField(Field):
    """Field of an effect."""

    TYPE_NAME = "string"


class CheckField(Field):
    """Field of a disabled safety check."""

    KIND = "byte"
    CUSTOM_CALL_TARGET = "string"


class CheckKind(IntEnum):
    """Kinds of disabled safety checks; shape assertions cannot be disabled since 2024."""

    PLATFORM = 0
    CUSTOM_CALL = 1
    SHAPE_ASSERTIONS = 2


_NUMBERS = {row.jax_export: row.name for row in ALL_DTYPES if row.jax_export is not None}
_NUMBERS |= {22: "float0", **{row.jax_export: row.name for row in KEYS.values()}}

DTYPES = tuple(_NUMBERS[number] for number in range(len(_NUMBERS)))
"""The dtypes by their numbers."""

KEY_SHAPES = {row.name: (row.words,) for row in KEYS.values()}
"""The shape of the words that a key of each kind is made of."""

# Each 0 means that the field is missing.
MEMORY_SPACES: tuple[MemorySpace, ...] = ("device", "device", "host", "any")
AXIS_TYPES: tuple[AxisType, ...] = ("auto", "auto", "explicit", "manual")
