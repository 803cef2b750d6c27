"""jax2tf-bridge: runs JAX functions in TensorFlow, and TensorFlow functions in JAX.

Names are imported when they are first used, so that `import jax2tf_bridge` works where only JAX,
or only TensorFlow, is installed. `__init__.pyi` has the same names for type checkers.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from jax2tf_bridge._lazy_names import make_lazy_getattr
from jax2tf_bridge._version import __version__ as __version__

_PACKAGES = (
    "c_library colocated compat coreml errors inspecting jax_export keras litert loading parallel "
    "portable publishing saving serve_checking signatures tfjs to_onnx verifying weights"
)
"""The public packages and modules."""

_NAMES = {
    "c_library": "compile_library load_library",
    "calling_tf": "call_tf",
    "compat": "PolyShape dtype_of_val eval_polymorphic_shape split_to_logical_devices",
    "converting": "convert publish save serialize_exported",
    "coreml": "save_coreml",
    "errors": "BridgeError",
    "from_jax": "export from_exported retarget to_exported",
    "inspecting": "inspect",
    "keras": "KerasLayer",
    "litert": "save_litert",
    "loading": "load",
    "parallel": "ExportJob export_many",
    "portable": "AUTO DisabledSafetyCheck PortableFunction",
    "publishing": "latest_version list_versions promote published_versions rollback",
    "saving": "Batching assign_weights choose_buckets",
    "scoring": "RowScorer",
    "serialization": (
        "deserialize read_function register_namedtuple_serialization "
        "register_pytree_node_serialization serialize write_function"
    ),
    "serve_checking": "measure_load serve_check",
    "signatures": "Padding Processing Signature",
    "stablehlo": "from_stablehlo",
    "targets": "Target",
    "tfjs": "save_tfjs",
    "to_onnx": "save_onnx",
    "to_tensorflow": "to_tf",
    "verifying": "verify",
    "weights": "open_weights read_weights write_weights",
}
"""The public names, by the package that has them."""

_HOMES = {name: package for package, names in _NAMES.items() for name in names.split()} | {
    package: package for package in _PACKAGES.split()
}
_USERS = {
    "jax": (
        "calling_tf convert dtype_of_val eval_polymorphic_shape from_jax loading parallel verifying"
    ),
    "tensorflow": (
        "calling_tf compile_library convert coreml dtype_of_val keras litert publish save saving "
        "scoring split_to_logical_devices tfjs to_tensorflow verifying"
    ),
}
"""The packages and single names that need each library."""

_get_lazily = make_lazy_getattr(__name__, _HOMES)


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # a broken import hook, or a module without a spec
        return False


def _can_import(name: str) -> bool:
    return all(
        _is_installed(library)
        for library, users in _USERS.items()
        if not {name, _HOMES[name]}.isdisjoint(users.split())
    )


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name == "__all__":
            # `import *` fails at a name whose libraries are not installed, and at KerasLayer unless
            # Keras runs on TensorFlow.
            public = _HOMES.keys() - {*_PACKAGES.split(), "KerasLayer"}
            return sorted(filter(_can_import, public))
        return _get_lazily(name)


def __dir__() -> list[str]:
    return sorted((*_HOMES, "__version__"))
