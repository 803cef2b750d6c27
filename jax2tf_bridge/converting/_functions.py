"""Portable functions of one converted function: one per signature, each made once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import overload

from jax2tf_bridge.from_jax import jax_compat
from jax2tf_bridge.from_jax.shapes import AutoSpec, Specs
from jax2tf_bridge.portable import PortableFunction
from jax2tf_bridge.to_tensorflow import check_function
from shape_poly import evaluate_shape, solve_dimensions

# Maximum number of concrete shapes of eager calls; the cache is then cleared.
_MAX_CALLS = 4096


@dataclass
class FunctionCache:
    """Makes portable functions with `make` and caches them; thread-safe.

    The cache has two levels because the key is the symbolic specs, which take long to find: calls
    that differ only in open dimensions share a portable function.
    """

    make: Callable[[Specs], PortableFunction]
    _by_call: dict[Hashable, PortableFunction] = field(default_factory=dict)
    _by_specs: dict[Hashable, list[PortableFunction]] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def portables(self) -> list[PortableFunction]:
        """Portable functions that were made."""
        with self._lock:
            return [portable for known in self._by_specs.values() for portable in known]

    def get(
        self, call_key: Hashable, static_key: Hashable, specs: Callable[[], Specs]
    ) -> PortableFunction:
        """Returns the portable function for calls with a key, in JAX's current configuration.

        Args:
          call_key: equal for calls with equal structure, shapes, dtypes and static values.
          static_key: equal for calls with equal static values.
          specs: makes the specs to trace with; called for a new key only.
        """
        configuration = jax_compat.configuration()
        key = (call_key, configuration)
        portable = self._by_call.get(key)
        if portable is not None:
            return portable
        with self._lock:
            symbolic = specs()
            specs_key = (symbolic.key(), static_key, configuration)
            known = self._by_specs.setdefault(specs_key, [])
            portable = next((r for r in known if _serves(r, symbolic)), None)
            if portable is None:
                portable = self.make(symbolic)
                check_function(portable)
                known.append(portable)
            if len(self._by_call) >= _MAX_CALLS:
                self._by_call.clear()
            self._by_call[key] = portable
            return portable


def _serves(portable: PortableFunction, specs: Specs) -> bool:
    """Returns whether the function takes the sizes that AUTO found a specification for."""
    pairs = [
        (aval.shape, leaf.shape)
        for aval, leaf in zip(portable.in_avals, specs.leaves(), strict=True)
        if isinstance(leaf, AutoSpec)
    ]
    values = solve_dimensions([shape for shape, _ in pairs], [sizes for _, sizes in pairs])
    for shape, sizes in pairs:
        for dimension, size, found in zip(shape, sizes, evaluate_shape(shape, values), strict=True):
            if size is None and isinstance(dimension, int):
                return False
            if size is not None and found is not None and size != found:
                return False
    return True


class Requirements(Sequence[str]):
    """Live view of the requirements of all portable functions made so far."""

    def __init__(self, portables: FunctionCache) -> None:
        """Takes the cache of the functions."""
        self._portables = portables

    def _texts(self) -> list[str]:
        texts = [text for portable in self._portables.portables() for text in portable.requirements]
        return list(dict.fromkeys(texts))

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self._texts()[index]

    def __len__(self) -> int:
        return len(self._texts())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._texts() == list(other)

    def __repr__(self) -> str:
        return repr(self._texts())
