"""The fields and numbers of JAX's format of exported functions, serialization versions 2 to 12.

JAX stamped its files with 2 or 3 until July 2026, whatever they held: what a file holds is seen by
its fields. Since the versions only added fields and numbers, one schema reads all of them:

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

FIRST_VERSION = 2
WITHDRAWN_VERSION = 7
WRITTEN_VERSION = 12
"""What serialize_exported writes: all of version 12 but JAX's version, which is not ours."""


class ExportedField(IntEnum):
    """The fields of the root table."""

    SERIALIZATION_VERSION = 0
    FUNCTION_NAME = 1
    IN_TREE = 2
    IN_AVALS = 3
    OUT_TREE = 4
    OUT_AVALS = 5
    NR_DEVICES_SHORT = 6
    IN_SHARDINGS = 7
    OUT_SHARDINGS = 8
    PLATFORMS = 9
    ORDERED_EFFECTS = 10
    UNORDERED_EFFECTS = 11
    DISABLED_CHECKS = 12
    MODULE = 13
    CALLING_CONVENTION_VERSION = 14
    MODULE_KEPT_VAR_IDX = 15
    USES_GLOBAL_CONSTANTS = 16
    VJP = 17
    NR_DEVICES = 18
    UNIQUE_AVALS = 19
    UNIQUE_ABSTRACT_MESHES = 20
    UNIQUE_NAMED_SHARDINGS = 21
    IN_AVALS_IDXS = 22
    OUT_AVALS_IDXS = 23
    IN_SHARDINGS_IDXS = 24
    OUT_SHARDINGS_IDXS = 25
    JAX_VERSION = 26


class TreeField(IntEnum):
    """The fields of a pytree's node."""

    KIND = 0
    CHILDREN = 1
    CHILDREN_NAMES = 2
    CUSTOM_NAME = 3
    CUSTOM_AUXDATA = 4


class TreeKind(IntEnum):
    """Kinds of nodes; named tuples are custom nodes."""

    LEAF = 0
    NONE = 1
    TUPLE = 2
    LIST = 3
    DICT = 4
    CUSTOM = 5


class AvalField(IntEnum):
    """The fields of an abstract value."""

    KIND = 0
    SHAPE = 1
    DTYPE = 2
    MEMORY_SPACE = 3


class ShardingField(IntEnum):
    """The fields of how one array is spread."""

    KIND = 0
    HLO_SHARDING = 1
    NAMED_SHARDING = 2


class NamedShardingField(IntEnum):
    """The fields of a sharding over a mesh with named axes."""

    MESH = 0
    SPEC = 1
    MEMORY_KIND = 2
    ABSTRACT_MESH_IDX = 3


class SpecField(IntEnum):
    """The fields of a partition spec; each partition has one field, its axes."""

    PARTITIONS = 0
    REDUCED = 1
    UNREDUCED = 2


class PartitionField(IntEnum):
    """The field of one dimension of a partition spec."""

    AXES = 0


class MeshField(IntEnum):
    """The fields of an abstract mesh."""

    AXIS_SIZES = 0
    AXIS_NAMES = 1
    AXIS_TYPES = 2
    ABSTRACT_DEVICE = 3


class DeviceField(IntEnum):
    """The fields of what kind of device a mesh is of."""

    DEVICE_KIND = 0
    NUM_CORES = 1
    PLATFORM = 2


class EffectField(IntEnum):
    """The field of an effect."""

    TYPE_NAME = 0


class CheckField(IntEnum):
    """The fields of a disabled safety check."""

    KIND = 0
    CUSTOM_CALL_TARGET = 1


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
