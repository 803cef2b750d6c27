"""The elements of NumPy and JAX arrays as bytes: views where they can be, else piece by piece."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

_PIECE = 2**22
"""Bytes that are copied at once: while one piece is written, the next may be made."""


def is_jax_array(value: object) -> bool:
    """Whether it is a jax.Array; without JAX there can be none."""
    array = getattr(sys.modules.get("jax"), "Array", None)
    return array is not None and isinstance(value, array)


def whats_wrong_with(array: Any) -> str | None:
    """Why the elements of a JAX array cannot be had, as "is ...: expected .... Fix."; else None."""
    if not isinstance(array.dtype, np.dtype):
        return (
            f"is a JAX array of {array.dtype}, which NumPy has no dtype for: expected numbers. Of "
            "PRNG keys, write jax.random.key_data(keys), and wrap what is read with "
            "jax.random.wrap_key_data."
        )
    jax: Any = sys.modules["jax"]
    try:
        deleted, whole = array.is_deleted(), array.is_fully_addressable
    except jax.errors.ConcretizationTypeError:
        return (
            "is an array that JAX is tracing: expected one with values. Write outside of jax.jit, "
            "jax.grad and the like."
        )
    if deleted:
        return (
            "is a JAX array that was deleted or donated: expected one with values. Write it "
            "before it is, or write what the function returned in its place."
        )
    if not (whole or array.is_fully_replicated):
        return (
            "is a JAX array of which parts are on devices of other processes: expected a fully "
            "addressable one. Gather it with "
            "jax.experimental.multihost_utils.process_allgather, or replicate it."
        )
    return None


def host_array(array: Any) -> np.ndarray[Any, Any]:
    """A NumPy array of the same elements; a view, of all but JAX arrays on other devices.

    A JAX array keeps the copy that NumPy or another device gets of it for as long as it lives: with
    a tree of them, the tree would be in this machine's memory as a whole. Its shards do not.
    """
    if isinstance(array, np.ndarray):
        return np.asarray(array)
    if len(array.devices()) == 1:
        return _on_cpu(array)
    shards = array.addressable_shards
    if array.is_fully_replicated:
        return _on_cpu(shards[0].data)
    whole = np.empty(array.shape, array.dtype)
    for shard in shards:
        if shard.replica_id == 0:
            whole[shard.index] = _on_cpu(shard.data)
    return whole


def _on_cpu(array: Any) -> np.ndarray[Any, Any]:
    """The elements of an array on one device."""
    jax: Any = sys.modules["jax"]
    (device,) = array.devices()
    if device.platform != "cpu":
        try:
            cpu = jax.local_devices(backend="cpu")[0]
        except RuntimeError:
            pass  # JAX was told to do without: the array keeps the copy
        else:
            array = jax.device_put(array, cpu)
    return np.asarray(array)


def byte_blocks(array: np.ndarray[Any, Any]) -> Iterator[memoryview]:
    """Its elements, row by row and little-endian; a view of it, or copies one after the other."""
    little = array.dtype.newbyteorder("<")
    if array.flags.c_contiguous and array.dtype == little:
        yield _bytes_of(array)
    else:
        yield from _copied(array, little)


def _copied(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> Iterator[memoryview]:
    if array.nbytes <= _PIECE:
        yield _bytes_of(array.astype(dtype, order="C"))
        return
    row = array.nbytes // len(array)
    if row > _PIECE:
        for part in array:
            yield from _copied(part, dtype)
        return
    count = _PIECE // row
    for start in range(0, len(array), count):
        yield _bytes_of(array[start : start + count].astype(dtype, order="C"))


def _bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    # Not of the array itself: buffers have no words for the dtypes of ml_dtypes.
    return array.reshape(-1).view(np.uint8).data
