"""The records of one converted function: one a signature, made once each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from jax2tf_bridge._portable import PortableFunction
from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax._specs import Specs
from jax2tf_bridge.to_tf._op import check_record

# One entry for each concrete shape that eager calls had: past this many they start anew.
_MAX_CALLS = 4096


@dataclass
class RecordCache:
    """Makes the records with `make` and keeps them; safe to use from several threads.

    Two levels, since the symbolic specs are what decides, but take long to find: calls that
    differ only in open dimensions share a record.
    """

    make: Callable[[Specs], PortableFunction]
    _by_call: dict[Hashable, PortableFunction] = field(default_factory=dict)
    _by_specs: dict[Hashable, PortableFunction] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def get(
        self, call_key: Hashable, static_key: Hashable, specs: Callable[[], Specs]
    ) -> PortableFunction:
        """The record for the calls of a key, in the present configuration of JAX.

        Args:
          call_key: equal for calls with equal structure, shapes, dtypes and static values.
          static_key: equal for calls with equal static values.
          specs: what to trace them with; asked for a new key only.
        """
        configuration = _jax_compat.configuration()
        key = (call_key, configuration)
        record = self._by_call.get(key)
        if record is not None:
            return record
        with self._lock:
            symbolic = specs()
            specs_key = (symbolic.key(), static_key, configuration)
            record = self._by_specs.get(specs_key)
            if record is None:
                record = self.make(symbolic)
                check_record(record)
                self._by_specs[specs_key] = record
            if len(self._by_call) >= _MAX_CALLS:
                self._by_call.clear()
            self._by_call[key] = record
            return record
