"""Makes JAX arrays from the variables of a SavedModel."""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax2tf_bridge._dtypes import KEYS, NEED_X64, WIDENED
from jax2tf_bridge._utils import array_type_text
from jax2tf_bridge.errors import DTypeError, FileFormatError
from jax2tf_bridge.portable import Aval
from jax2tf_bridge.saved_model import VARIABLES_FOLDER, BundleEntry, open_variables
from jax2tf_bridge.storage import AnyPath


class SavedVariables:
    """Variables of a SavedModel, read on demand."""

    def __init__(self, folder: AnyPath) -> None:
        """Opens the variables of the SavedModel in a folder; raises as `open_variables` does."""
        self._prefix = folder / VARIABLES_FOLDER / "variables"
        self._bundle = open_variables(folder)

    def entry(self, key: str) -> BundleEntry:
        """Returns the checkpoint entry of a variable.

        Raises:
          FileFormatError: the checkpoint has no variable of that key.
        """
        bundle_entry = None if self._bundle is None else self._bundle.entries.get(key)
        if bundle_entry is None:
            raise FileFormatError(
                f"{self._prefix}.index has no variable {key!r}, which the SavedModel has: they do "
                "not belong together. Copy the SavedModel anew, or save it again.",
                file=f"{self._prefix}.index",
            )
        return bundle_entry

    def data(self, key: str, dtype: str, shape: tuple[int, ...]) -> bytes:
        """Reads the bytes of a variable, and checks its dtype (as TensorFlow stores it) and shape.

        Raises:
          FileFormatError: the variable is missing, damaged, or has another dtype or shape.
          OSError: the variable cannot be read.
        """
        entry = self.entry(key)
        if (entry.dtype, entry.shape) != (dtype, shape):
            actual = array_type_text(entry.dtype, entry.shape)
            expected = array_type_text(dtype, shape)
            raise FileFormatError(
                f"{self._prefix}.index has {actual} for {key!r}, but the SavedModel has "
                f"{expected}: they do not belong together. Copy the SavedModel anew, or save it "
                "again.",
                file=f"{self._prefix}.index",
            )
        assert self._bundle is not None
        return self._bundle.read(key)

    def constant(self, key: str, digest: str, aval: Aval) -> bytes:
        """Reads the bytes of a captured array, and checks their SHA-256 digest.

        Raises:
          FileFormatError: as `data`, or the digest differs.
          OSError: the constant cannot be read.
        """
        dtype = aval.op_dtype
        if dtype == "bool" and self.entry(key).dtype == "uint8":
            dtype = "uint8"  # in a model for converters; the bytes are the same
        data = self.data(key, dtype, aval.known_op_shape)
        if hashlib.sha256(data).hexdigest() != digest:
            raise FileFormatError(
                f"The variable {key!r} in {self._prefix}.index is not the array that the function "
                "captured: its SHA-256 is another. Save the model again.",
                file=f"{self._prefix}.index",
            )
        return data


def make_jax_array(data: bytes, aval: Aval, name: str) -> jax.Array:
    """Makes a JAX array from the bytes of a variable.

    Args:
      data: the elements, as TensorFlow stores them.
      aval: the shape and dtype that the function takes, which may be 4-bit integers or typed keys.
      name: the name of the array in error messages.

    Raises:
      DTypeError: the installed JAX lacks the dtype, or needs jax_enable_x64 for it.
      FileFormatError: NumPy has no arrays of the shape.
    """
    if aval.op_dtype in NEED_X64 and not jax.config.read("jax_enable_x64"):
        raise DTypeError(
            f"{name} is {aval}, but 64-bit values are disabled in JAX: call "
            "jax.config.update('jax_enable_x64', True), or set JAX_ENABLE_X64=1, before load."
        )
    try:
        dtype = jnp.dtype(aval.op_dtype)
    except TypeError as e:
        raise DTypeError(f"{name} is {aval}, a dtype that JAX {jax.__version__} lacks") from e
    try:
        shaped = np.frombuffer(data, dtype).reshape(aval.known_op_shape)
    except ValueError as e:
        raise FileFormatError(
            f"{name} is {aval}, and NumPy has no arrays of this shape: load the SavedModel with "
            "TensorFlow, or save it again with another shape."
        ) from e
    values: Any = jnp.asarray(shaped)
    if aval.is_key:
        values = jax.random.wrap_key_data(values, impl=KEYS[aval.dtype].implementation)
    if aval.dtype in WIDENED:
        values = values.astype(aval.dtype)
    assert isinstance(values, jax.Array)
    return values


def make_typed_key(value: Any, aval: Aval) -> Any:
    """Makes a typed key from the words of a key or from a seed; other values are returned as is."""
    if not aval.is_key:
        return value
    if jnp.issubdtype(getattr(value, "dtype", np.float32), jax.dtypes.prng_key):
        return value
    words = jnp.asarray(value, jnp.uint32)
    if words.ndim == len(aval.shape):
        words = jnp.stack([jnp.zeros_like(words), words] * (KEYS[aval.dtype].words // 2), axis=-1)
    return jax.random.wrap_key_data(words, impl=KEYS[aval.dtype].implementation)
