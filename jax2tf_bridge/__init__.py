"""jax2tf-bridge: takes what people write in JAX to where TensorFlow runs.

Names are imported when they are first used, so that `import jax2tf_bridge` works where only JAX,
or only TensorFlow, is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jax2tf_bridge.call_tf import call_tf
    from jax2tf_bridge.converting._convert import convert
    from jax2tf_bridge.converting._dtypes import dtype_of_val
    from jax2tf_bridge.converting._publish import publish
    from jax2tf_bridge.converting._save import save
    from jax2tf_bridge.converting._serialize_exported import serialize_exported
    from jax2tf_bridge.errors import (
        ArgumentsError,
        BridgeError,
        CallTfError,
        DeviceError,
        DTypeError,
        ExportError,
        ExportManyError,
        FileFormatError,
        FunctionError,
        GradientError,
        InconclusiveShapeError,
        JobError,
        MissingDependencyError,
        ModuleError,
        NotExportableError,
        NotPicklableError,
        PlatformError,
        SavingError,
        SerializationError,
        ShapeError,
        ShardingError,
        StateDictError,
        StructureError,
        TargetError,
        UnsoundBucketsError,
        UnsupportedByTargetError,
        UntrustedMessageError,
        WorkerDiedError,
    )
    from jax2tf_bridge.from_jax import export, from_exported, retarget_record, to_exported
    from jax2tf_bridge.from_jax._eval_shape import eval_polymorphic_shape
    from jax2tf_bridge.loading import LoadedModel, load
    from jax2tf_bridge.parallel import (
        ExportJob,
        ExportWorkers,
        RayExecutor,
        export_many,
    )
    from jax2tf_bridge.portable._auto import AUTO
    from jax2tf_bridge.portable._aval import Aval, LiftedConstant
    from jax2tf_bridge.portable._poly_shape import PolyShape
    from jax2tf_bridge.portable._portable_function import PortableFunction
    from jax2tf_bridge.portable._safety_checks import DisabledSafetyCheck
    from jax2tf_bridge.portable._sharding import AbstractDevice, AbstractMesh, Sharding
    from jax2tf_bridge.portable._target import Target
    from jax2tf_bridge.portable._tree_spec import TreeSpec
    from jax2tf_bridge.saved_model._signature import Signature
    from jax2tf_bridge.saving import (
        Published,
        SavedModel,
        SavedSignature,
        ServedArray,
        ServingInstructions,
        WeightsReport,
        assign_weights,
        choose_buckets,
        latest,
        versions,
    )
    from jax2tf_bridge.serialization import (
        deserialize,
        read_function,
        register_namedtuple_serialization,
        register_pytree_node_serialization,
        serialize,
        write_function,
    )
    from jax2tf_bridge.to_tf import to_tf
    from jax2tf_bridge.to_tf._logical_devices import split_to_logical_devices
    from jax2tf_bridge.weights import (
        LeafInfo,
        WeightsFile,
        current_path,
        flatten_state,
        from_bytes,
        from_state_dict,
        is_serializable,
        msgpack_restore,
        msgpack_serialize,
        open_weights,
        read_weights,
        register_serialization_state,
        to_bytes,
        to_state_dict,
        unflatten_state,
        write_weights,
    )

from jax2tf_bridge._version import __version__ as __version__

_MODULES = {
    "portable._auto": ["AUTO"],
    "portable._safety_checks": ["DisabledSafetyCheck"],
    "converting._convert": ["convert"],
    "converting._dtypes": ["dtype_of_val"],
    "errors": [
        "ArgumentsError",
        "BridgeError",
        "CallTfError",
        "DTypeError",
        "DeviceError",
        "ExportError",
        "ExportManyError",
        "FileFormatError",
        "FunctionError",
        "GradientError",
        "InconclusiveShapeError",
        "JobError",
        "MissingDependencyError",
        "ModuleError",
        "NotExportableError",
        "NotPicklableError",
        "PlatformError",
        "SavingError",
        "SerializationError",
        "ShapeError",
        "ShardingError",
        "StateDictError",
        "StructureError",
        "TargetError",
        "UnsoundBucketsError",
        "UnsupportedByTargetError",
        "UntrustedMessageError",
        "WorkerDiedError",
    ],
    "portable._poly_shape": ["PolyShape"],
    "portable._portable_function": ["Aval", "LiftedConstant", "PortableFunction"],
    "portable._tree_spec": ["TreeSpec"],
    "converting._publish": ["publish"],
    "converting._save": ["save"],
    "converting._serialize_exported": ["serialize_exported"],
    "portable._sharding": ["AbstractDevice", "AbstractMesh", "Sharding"],
    "saved_model._signature": ["Signature"],
    "portable._target": ["Target"],
    "call_tf": ["call_tf"],
    "parallel": [
        "ExportJob",
        "ExportWorkers",
        "RayExecutor",
        "export_many",
    ],
    "from_jax": ["export", "from_exported", "retarget_record", "to_exported"],
    "from_jax._eval_shape": ["eval_polymorphic_shape"],
    "loading": ["LoadedModel", "load"],
    "saving": [
        "Published",
        "SavedModel",
        "SavedSignature",
        "ServedArray",
        "ServingInstructions",
        "WeightsReport",
        "assign_weights",
        "choose_buckets",
        "latest",
        "versions",
    ],
    "serialization": [
        "deserialize",
        "read_function",
        "register_namedtuple_serialization",
        "register_pytree_node_serialization",
        "serialize",
        "write_function",
    ],
    "to_tf": ["to_tf"],
    "to_tf._logical_devices": ["split_to_logical_devices"],
    "weights": [
        "LeafInfo",
        "WeightsFile",
        "current_path",
        "flatten_state",
        "from_bytes",
        "from_state_dict",
        "is_serializable",
        "msgpack_restore",
        "msgpack_serialize",
        "open_weights",
        "read_weights",
        "register_serialization_state",
        "to_bytes",
        "to_state_dict",
        "unflatten_state",
        "write_weights",
    ],
}
_NEEDED = {
    "converting._convert": ("jax", "tensorflow"),
    "converting._dtypes": ("jax", "tensorflow"),
    "converting._publish": ("tensorflow",),
    "converting._save": ("tensorflow",),
    "call_tf": ("jax", "tensorflow"),
    "parallel": ("jax",),
    "from_jax": ("jax",),
    "from_jax._eval_shape": ("jax",),
    "loading": ("jax",),
    "saving": ("tensorflow",),
    "to_tf": ("tensorflow",),
    "to_tf._logical_devices": ("tensorflow",),
}
_SUBPACKAGES = ("colocated", "compat", "jax_export")
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "AUTO",
    "AbstractDevice",
    "AbstractMesh",
    "ArgumentsError",
    "Aval",
    "BridgeError",
    "CallTfError",
    "DTypeError",
    "DeviceError",
    "DisabledSafetyCheck",
    "ExportError",
    "ExportJob",
    "ExportManyError",
    "ExportWorkers",
    "FileFormatError",
    "FunctionError",
    "GradientError",
    "InconclusiveShapeError",
    "JobError",
    "LeafInfo",
    "LiftedConstant",
    "LoadedModel",
    "MissingDependencyError",
    "ModuleError",
    "NotExportableError",
    "NotPicklableError",
    "PlatformError",
    "PolyShape",
    "PortableFunction",
    "Published",
    "RayExecutor",
    "SavedModel",
    "SavedSignature",
    "SavingError",
    "SerializationError",
    "ServedArray",
    "ServingInstructions",
    "ShapeError",
    "Sharding",
    "ShardingError",
    "Signature",
    "StateDictError",
    "StructureError",
    "Target",
    "TargetError",
    "TreeSpec",
    "UnsoundBucketsError",
    "UnsupportedByTargetError",
    "UntrustedMessageError",
    "WeightsFile",
    "WeightsReport",
    "WorkerDiedError",
    "assign_weights",
    "call_tf",
    "choose_buckets",
    "convert",
    "current_path",
    "deserialize",
    "dtype_of_val",
    "eval_polymorphic_shape",
    "export",
    "export_many",
    "flatten_state",
    "from_bytes",
    "from_exported",
    "from_state_dict",
    "is_serializable",
    "latest",
    "load",
    "msgpack_restore",
    "msgpack_serialize",
    "open_weights",
    "publish",
    "read_function",
    "read_weights",
    "register_namedtuple_serialization",
    "register_pytree_node_serialization",
    "register_serialization_state",
    "retarget_record",
    "save",
    "serialize",
    "serialize_exported",
    "split_to_logical_devices",
    "to_bytes",
    "to_exported",
    "to_state_dict",
    "to_tf",
    "unflatten_state",
    "versions",
    "write_function",
    "write_weights",
]


if not TYPE_CHECKING:  # else a misspelt name would pass for Any

    def __getattr__(name: str) -> Any:
        if name in _SUBPACKAGES:
            return importlib.import_module(f"{__name__}.{name}")
        if name not in _HOME:
            # With name and obj, Python proposes the nearest of dir().
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message, name=name, obj=sys.modules[__name__])
        value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*_HOME, *_SUBPACKAGES, "__version__"])


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # something keeps it from being found
        return False


class _Facade(types.ModuleType):
    """Keeps the function to_tf in view when the subpackage of that name is imported."""

    @property
    def __all__(self) -> list[str]:
        """The public names, without those that need what is not installed: for `import *`."""
        return [
            name
            for name in self.__dict__["__all__"]
            if all(map(_is_installed, _NEEDED.get(_HOME[name], ())))
        ]

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, types.ModuleType) and name in _HOME:
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Facade
