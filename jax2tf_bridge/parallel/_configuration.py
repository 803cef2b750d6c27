"""JAX's configuration for another process or thread: what of it changes a trace, and only that."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax

# Options with one of these words in their names say where and how code runs, what is kept on disk,
# and what is logged: each process has its own answer.
_OF_THE_PROCESS = frozenset(
    {"backend", "backends", "cache", "caches", "collectives", "compilation", "compiler", "cpu"}
    | {"device", "devices", "distributed", "dump", "guard", "host", "hosts", "log", "logging"}
    | {"mock", "mtls", "pgle", "platform", "platforms", "preemption", "proxy", "xla"}
)


def configuration() -> dict[str, Any]:
    """The options of JAX that may change a trace, as they are in this thread now."""
    values: Mapping[str, Any] = jax.config.values
    return {
        name: value for name, value in values.items() if _OF_THE_PROCESS.isdisjoint(name.split("_"))
    }


@contextlib.contextmanager
def configured(values: Mapping[str, Any]) -> Iterator[None]:
    """Gives JAX's options these values, and afterwards those that they had.

    Options that this JAX does not have are left out. Where JAX has a context manager for an option
    (jax.enable_x64), only this thread sees the change.
    """
    here: Mapping[str, Any] = jax.config.values
    with contextlib.ExitStack() as stack:
        for name, value in values.items():
            if name not in here or here[name] == value:
                continue
            scoped = getattr(jax, name.removeprefix("jax_"), None)
            if callable(scoped):
                stack.enter_context(scoped(value))
            else:
                jax.config.update(name, value)
                stack.callback(jax.config.update, name, here[name])
        yield
