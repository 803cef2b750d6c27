"""Fields and numbers of the file format of jax.export, serialization versions 2 to 12.

Until July 2026 JAX wrote version 2 or 3 into all files, so only the fields show what a file
contains. Since the versions only added fields and numbers, one schema reads all of them:

| version | since | what it added |
|---|---|---|
| 2 | December 2023 | float0 |
| 3 | October 2024 | custom nodes and named tuples |
| 4 | April 2025 | typed PRNG keys |
| 5 | November 2025 | memory spaces, the number of devices in 32 bits |
| 6 | January 2026 | named shardings, beside XLA's |
| 7 | | named shardings only; withdrawn soon after, since readers did not support them yet |
| 8 | March 2026 | the kind of the devices of a mesh |
| 9 | March 2026 | named shardings only |
| 10 | April 2026 | avals, meshes and shardings by index |
| 11 | May 2026 | the platform of a device |
| 12 | July 2026 | the JAX version, and the true serialization version |
"""

from __future__ import annotations

from enum import IntEnum

from jax2tf_bridge._dtypes import ALL_DTYPES, KEYS
from jax2tf_bridge.portable import AxisType, MemorySpace
from jax2tf_bridge.serialization._flatbuffer import Field

FIRST_VERSION = 2
WITHDRAWN_VERSION = 7
WRITTEN_VERSION = 12
"""Version that serialize_exported writes. JAX_VERSION stays empty, since JAX is not the writer."""


class ExportedField(Field):
    """Field of an exported function: the root table, or a VJP."""

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
    """Field of a pytree node."""

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
    KIND = "byte"
    SHAPE = "[string]"
    DTYPE = "byte"
    MEMORY_SPACE = "byte"


class ShardingField(Field):
    KIND = "byte"
    HLO_SHARDING = "[ubyte]"
    NAMED_SHARDING = "NamedSharding"


class ShardingKind(IntEnum):
    """Kinds of shardings, from the time when XLA's form was the only one."""

    UNSPECIFIED = 0
    HLO = 1


class NamedShardingField(Field):
    """Field of a sharding over a mesh with named axes."""

    MESH = "AbstractMesh"
    SPEC = "PartitionSpec"
    MEMORY_KIND = "string"
    ABSTRACT_MESH_IDX = "uint"


class SpecField(Field):
    PARTITIONS = "[PartitionSpecOneAxis]"
    REDUCED = "[string]"
    UNREDUCED = "[string]"


class PartitionField(Field):
    """Field of one dimension of a partition spec."""

    AXES = "[string]"


class MeshField(Field):
    AXIS_SIZES = "[uint]"
    AXIS_NAMES = "[string]"
    AXIS_TYPES = "[byte]"
    ABSTRACT_DEVICE = "AbstractDevice"


class DeviceField(Field):
    """Field of the abstract device of a mesh."""

    DEVICE_KIND = "string"
    NUM_CORES = "uint", None
    PLATFORM = "string"


class EffectField(Field):
    TYPE_NAME = "string"


class CheckField(Field):
    KIND = "byte"
    CUSTOM_CALL_TARGET = "string"


class CheckKind(IntEnum):
    """Kinds of disabled safety checks. Shape assertions can no longer be disabled since 2024."""

    PLATFORM = 0
    CUSTOM_CALL = 1
    SHAPE_ASSERTIONS = 2


_DTYPE_BY_NUMBER = {row.jax_export: row.name for row in ALL_DTYPES if row.jax_export is not None}
_DTYPE_BY_NUMBER |= {22: "float0", **{row.jax_export: row.name for row in KEYS.values()}}

DTYPES = tuple(_DTYPE_BY_NUMBER[number] for number in range(len(_DTYPE_BY_NUMBER)))
"""Name of the dtype for each number."""

KEY_SHAPES = {row.name: (row.words,) for row in KEYS.values()}
"""Shape of the words that represent one PRNG key, by key dtype."""

# Index 0 stands for a missing field.
MEMORY_SPACES: tuple[MemorySpace, ...] = ("device", "device", "host", "any")
AXIS_TYPES: tuple[AxisType, ...] = ("auto", "auto", "explicit", "manual")
