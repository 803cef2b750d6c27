"""Takes those options of JAX that change a trace to another process or thread."""

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
    """Returns the options of JAX that may change a trace, with their values in this thread."""
    values: Mapping[str, Any] = jax.config.values
    return {
        name: value for name, value in values.items() if _OF_THE_PROCESS.isdisjoint(name.split("_"))
    }


@contextlib.contextmanager
def configured(values: Mapping[str, Any]) -> Iterator[None]:
    """Sets JAX's options for the body, and puts back the values that they had.

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
