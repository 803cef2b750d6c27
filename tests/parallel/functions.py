"""Functions that the tests export, in a module that other processes can import."""

import ctypes
import dataclasses
import os
import sys
import threading
import time
from collections import namedtuple
from typing import Any

import jax
import jax.numpy as jnp

LOCK = threading.Lock()
INITIALIZED: list[str] = []
"""Names of the callers of an initializer in this process."""
WEIGHTS = jnp.arange(6.0).reshape(2, 3)

Point = namedtuple("Point", "x y")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    """A pytree that is not registered for files."""

    kernel: Any
    bias: Any


class WrongSize(Exception):
    """An exception whose __init__ does not take its args."""

    def __init__(self, *, size: int) -> None:
        super().__init__(f"the size is {size}")
        self.size = size


class WrongSizes(Exception):
    """An exception that may hold anything."""


def double(x: Any) -> Any:
    return x * 2


def dense(x: Any) -> Any:
    return jnp.tanh(x @ WEIGHTS)


def softmax(x: Any, *, scale: Any) -> Any:
    return {"p": jax.nn.softmax(x * scale), "x": x}


def layer(weights: Layer, x: Any) -> Point:
    return Point(x @ weights.kernel + weights.bias, Layer(x, None))


@jax.jit
def jitted(x: Any) -> Any:
    return x + 1


def power(x: Any, exponent: int) -> Any:
    return x**exponent


def halves(x: Any) -> Any:
    half = x.shape[0] // 2
    return x[:half] + x[-half:]


def with_lock(x: Any) -> Any:
    with LOCK:
        return x


def raises(x: Any) -> Any:
    print("looking at the size")
    raise WrongSize(size=x.shape[0])


def raises_unsendable(x: Any) -> Any:
    raise WrongSizes(threading.Lock())


def exits(x: Any) -> Any:
    sys.exit("no more")


def dies(x: Any) -> Any:
    print("about to leave")
    sys.stdout.flush()
    os._exit(3)


def crashes(x: Any) -> Any:
    ctypes.string_at(0)


def prints(x: Any) -> Any:
    print("from Python")
    sys.stdout.flush()
    os.write(1, b"\x00\x01 from C\n")
    print(repr(sys.stdin.read()))
    return x


def sleeps(x: Any) -> Any:
    time.sleep(600)


def process_of() -> int:
    return os.getpid()


def environment_of(name: str) -> str | None:
    return os.environ.get(name)
