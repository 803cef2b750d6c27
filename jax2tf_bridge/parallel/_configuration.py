"""Copies the JAX options that affect tracing to another process or thread."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax

# Options with one of these words in their names control where code runs, what is cached and what
# is logged. They belong to a process and are not copied.
_PROCESS_WORDS = frozenset(
    {"backend", "backends", "cache", "caches", "collectives", "compilation", "compiler", "cpu"}
    | {"device", "devices", "distributed", "dump", "guard", "host", "hosts", "log", "logging"}
    | {"mock", "mtls", "pgle", "platform", "platforms", "preemption", "proxy", "xla"}
)


def read_configuration() -> dict[str, Any]:
    """Returns the JAX options that may affect tracing, with their values in this thread."""
    values: Mapping[str, Any] = jax.config.values
    return {
        name: value for name, value in values.items() if _PROCESS_WORDS.isdisjoint(name.split("_"))
    }


@contextlib.contextmanager
def use_configuration(values: Mapping[str, Any]) -> Iterator[None]:
    """Sets JAX options for the body, and restores them afterwards.

    Options that the installed JAX lacks are ignored. If JAX has a context manager for an option
    (jax.enable_x64), the change affects only this thread.
    """
    current: Mapping[str, Any] = jax.config.values
    with contextlib.ExitStack() as stack:
        for name, value in values.items():
            if name not in current or current[name] == value:
                continue
            context = getattr(jax, name.removeprefix("jax_"), None)
            if callable(context):
                stack.enter_context(context(value))
            else:
                jax.config.update(name, value)
                stack.callback(jax.config.update, name, current[name])
        yield
