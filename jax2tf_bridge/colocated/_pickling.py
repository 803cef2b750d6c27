"""Pickles objects for another process, by cloudpickle with reducers for the objects of JAX."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from types import ModuleType
from typing import Any

from jax2tf_bridge.colocated._pickle_errors import make_not_picklable_error
from jax2tf_bridge.colocated._reducers import DEDUPLICATED_TYPES, reduce_jax, return_first
from jax2tf_bridge.errors import MissingDependencyError


def dumps(obj: Any) -> bytes:
    """Pickles an object for `loads` in another process.

    Identical objects are pickled once, as are equal meshes and equal shardings.

    Raises:
      NotPicklableError: the object cannot be sent. The message names the captured part that is the
        cause.
      MissingDependencyError: cloudpickle is not installed.
    """
    dump = _make_dump()
    file = io.BytesIO()
    try:
        dump(obj, file)
    except MemoryError:
        raise
    except Exception as e:
        raise make_not_picklable_error(obj, e, dump) from e
    return file.getvalue()


def loads(data: bytes | memoryview) -> Any:
    """Unpickles the bytes that `dumps` returned.

    Unpickling can run any code. Call this only for bytes that are known to come from the peer.

    Raises:
      DeviceError: the object contains devices that this process does not have.
      DTypeError: the object contains an array with a 64-bit dtype, which this process has not
        enabled.
      MissingDependencyError: cloudpickle is not installed.
    """
    _import_cloudpickle()
    try:
        return pickle.loads(data)
    except (ImportError, AttributeError) as e:
        e.add_note(
            "This was raised while a message from another process was read. Functions and classes "
            "of importable modules are sent by name: this process needs the same modules on its "
            "sys.path, in the same versions."
        )
        raise


def _make_dump() -> Callable[[Any, Any], None]:
    """Makes a function that pickles an object into a binary file."""
    cloudpickle = _import_cloudpickle()
    by_value = frozenset(cloudpickle.list_registry_pickle_by_value())

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc,name-defined]
        """Pickler of one message. Remembers objects, to replace later ones that are equal."""

        def __init__(self, file: Any) -> None:
            super().__init__(file)
            self.firsts: dict[tuple[type, Any], Any] = {}

        def reducer_override(self, obj: Any) -> Any:
            if type(obj) in DEDUPLICATED_TYPES:
                first = self.firsts.setdefault((type(obj), obj), obj)
                if first is not obj:
                    # The pickle contains the first object already, so pickle writes a reference.
                    return return_first, (first,)
            reduced = reduce_jax(obj, by_value)
            return super().reducer_override(obj) if reduced is NotImplemented else reduced

    def dump(obj: Any, file: Any) -> None:
        Pickler(file).dump(obj)

    return dump


def _import_cloudpickle() -> ModuleType:
    try:
        import cloudpickle
    except ModuleNotFoundError as e:
        if e.name != "cloudpickle":
            raise
        raise MissingDependencyError(
            "cloudpickle", "parallel", "Sending objects to another process"
        ) from e
    module: ModuleType = cloudpickle
    return module
