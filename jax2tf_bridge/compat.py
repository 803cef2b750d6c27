"""Names and a context manager for code that was written for jax2tf.

`as_jax2tf` lets code that calls jax.experimental.jax2tf use the bridge within a `with` block.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from jax2tf_bridge._lazy_names import make_lazy_getattr
from jax2tf_bridge.portable import NOT_STRICT, PolyShape
from jax2tf_bridge.targets import Target

if TYPE_CHECKING:
    from jax2tf_bridge.converting import dtype_of_val
    from jax2tf_bridge.from_jax import eval_polymorphic_shape
    from jax2tf_bridge.to_tensorflow import split_to_logical_devices
else:
    # Imported lazily, because they need JAX or TensorFlow, and as_jax2tf needs neither at import.
    __getattr__ = make_lazy_getattr(
        __package__,
        {
            "dtype_of_val": "converting",
            "eval_polymorphic_shape": "from_jax",
            "split_to_logical_devices": "to_tensorflow",
        },
        module=__name__,
    )

__all__ = [
    "PolyShape",
    "as_jax2tf",
    "dtype_of_val",
    "eval_polymorphic_shape",
    "split_to_logical_devices",
]

_PACKAGE = "jax.experimental.jax2tf"
_JAX2TF_MODULE, _CALL_TF_MODULE = f"{_PACKAGE}.jax2tf", f"{_PACKAGE}.call_tf"
_XLA_OPTIONS = ("enable_xla", "native_serialization")
_STRICT, _CHECKS = "native_serialization_strict_checks", "native_serialization_disabled_checks"
_MISSING = object()


@contextlib.contextmanager
def as_jax2tf() -> Iterator[types.ModuleType]:
    """Replaces jax.experimental.jax2tf by the bridge, for all code of this process.

    While a context is open, the public names of that module, and of its submodules jax2tf and
    call_tf, are the bridge's functions, also in libraries that imported the module before:
    orbax-export, Keras' JaxLayer and Keras' export. If this JAX has no jax2tf, or one that cannot
    be imported, a stand-in takes its place. Leaving the context, also by an exception, restores
    everything. Functions that were converted in it stay the bridge's.

    The context applies to every thread. Contexts may be nested, and open in several threads: the
    last one that closes restores jax2tf. Code that imports a name within a context (`from
    jax.experimental.jax2tf import convert`) keeps the bridge's function.

    enable_xla=False and native_serialization=False make TensorFlow's own operations, as in the JAX
    releases that supported them; within Keras' exports to OpenVINO and ONNX, they make those of
    `Target.converters()`. experimental_native_lowering has no effect.
    native_serialization_strict_checks=False disables the checks of the platform and of custom
    calls, as in the releases that had it.

    Yields:
      The module jax.experimental.jax2tf as it is now.

    Raises:
      MissingDependencyError: JAX or TensorFlow is not installed.

    >>> with as_jax2tf() as jax2tf:
    ...     f = jax2tf.convert(lambda x: x + 1, polymorphic_shapes="(b,)")
    >>> import numpy as np
    >>> f(np.zeros(2)).numpy().tolist()
    [1.0, 1.0]
    """
    _SWAP.begin(_get_bridge_names())
    try:
        yield sys.modules[_PACKAGE]
    finally:
        _SWAP.end()


def _get_bridge_names() -> Mapping[str, Any]:
    """Returns the bridge's objects under jax2tf's public names."""
    from jax2tf_bridge.calling_tf import call_tf
    from jax2tf_bridge.converting import convert, dtype_of_val
    from jax2tf_bridge.from_jax import eval_polymorphic_shape
    from jax2tf_bridge.portable import DisabledSafetyCheck
    from jax2tf_bridge.to_tensorflow import opaque_to_autograph, split_to_logical_devices

    return {
        "DisabledSafetyCheck": DisabledSafetyCheck,
        "PolyShape": PolyShape,
        "call_tf": call_tf,
        "convert": opaque_to_autograph(_adapt_convert(convert)),
        "dtype_of_val": dtype_of_val,
        "eval_polymorphic_shape": eval_polymorphic_shape,
        "split_to_logical_devices": split_to_logical_devices,
    }


def _adapt_convert(bridge_convert: Callable[..., Any]) -> Callable[..., Any]:
    def convert(fun_jax: Callable[..., Any], **options: Any) -> Any:
        """Calls `jax2tf_bridge.convert` without options that have no effect."""
        options.pop("experimental_native_lowering", None)
        xla_options = {name: options[name] for name in _XLA_OPTIONS if name in options}
        is_for_converter = not all(xla_options.values()) and _is_keras_converting()
        if all(xla_options.values()) or is_for_converter:
            # True is the default; passing it would only trigger a warning.
            options = {name: value for name, value in options.items() if name not in xla_options}
        if is_for_converter:
            options["target"] = Target.converters()
        if not options.pop(_STRICT, True):
            options[_CHECKS] = (*options.get(_CHECKS, ()), *NOT_STRICT)
        return bridge_convert(fun_jax, **options)

    return convert


_CONVERTING_MODULES = frozenset({"keras.src.export.onnx", "keras.src.export.openvino"})
"""Modules in which Keras 3.8 to 3.15 hands a graph to tf2onnx and to OpenVINO."""


def _is_keras_converting() -> bool:
    """Returns whether the caller is an export of Keras to a converter."""
    frames = traceback.walk_stack(inspect.currentframe())
    return any(frame.f_globals.get("__name__") in _CONVERTING_MODULES for frame, _ in frames)


class _Swap:
    """Counter of open contexts: the first installs the bridge, the last removes it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._open_count = 0
        self._undo = contextlib.ExitStack()

    def begin(self, names: Mapping[str, Any]) -> None:
        """Opens a context, and installs the bridge in the first one."""
        with self._lock:
            if not self._open_count:
                with contextlib.ExitStack() as undo:
                    _install_names(names, undo)
                    self._undo = undo.pop_all()
            self._open_count += 1

    def end(self) -> None:
        """Closes a context, and removes the bridge with the last one."""
        with self._lock:
            self._open_count -= 1
            if not self._open_count:
                self._undo.close()


_SWAP = _Swap()


class _StandIn(types.ModuleType):
    """Stand-in for a module that this JAX lacks; only open contexts give it names."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        if name == _PACKAGE:
            self.__path__ = []  # its submodules are in sys.modules

    def __getattr__(self, name: str) -> Any:
        message = (
            f"module {self.__name__!r} has no attribute {name!r}: this JAX has no jax2tf that can "
            "be imported. Within `with jax2tf_bridge.compat.as_jax2tf():` the bridge stands in."
        )
        raise AttributeError(message, name=name, obj=self)


# Made once, since libraries keep the module that they imported.
_STAND_INS = {name: _StandIn(name) for name in (_PACKAGE, _JAX2TF_MODULE, _CALL_TF_MODULE)}


def _install_names(names: Mapping[str, Any], undo: contextlib.ExitStack) -> None:
    old_modules = {name: module for name, module in sys.modules.items() if _is_jax2tf_module(name)}
    from jax2tf_bridge.from_jax.trees import can_import_jax2tf

    if not can_import_jax2tf():
        undo.callback(_restore_modules, old_modules)
        _restore_modules(_STAND_INS)
        experimental = importlib.import_module("jax.experimental")
        _set_attribute(experimental, "jax2tf", _STAND_INS[_PACKAGE], undo)
        _set_attribute(_STAND_INS[_PACKAGE], "jax2tf", _STAND_INS[_JAX2TF_MODULE], undo)
    for module_name, public_names in (
        (_PACKAGE, names),
        (_JAX2TF_MODULE, names.keys() - {"call_tf"}),
        (_CALL_TF_MODULE, {"call_tf"}),
    ):
        module = sys.modules.get(module_name)
        if module is not None:
            for name in public_names:
                _set_attribute(module, name, names[name], undo)


def _is_jax2tf_module(module_name: str) -> bool:
    return f"{module_name}.".startswith(f"{_PACKAGE}.")


def _restore_modules(modules: Mapping[str, types.ModuleType]) -> None:
    # A failed import of jax2tf may have left other modules.
    for name in filter(_is_jax2tf_module, list(sys.modules)):
        del sys.modules[name]
    sys.modules.update(modules)


def _set_attribute(
    owner: types.ModuleType, name: str, value: Any, undo: contextlib.ExitStack
) -> None:
    old_value = vars(owner).get(name, _MISSING)
    if old_value is _MISSING:
        undo.callback(delattr, owner, name)
    else:
        undo.callback(setattr, owner, name, old_value)
    setattr(owner, name, value)
