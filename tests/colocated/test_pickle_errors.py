"""Objects that cannot be sent raise an error that names the culprit and the path to it."""

import collections
import functools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.extend.random
import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf_bridge.colocated import Channel
from jax2tf_bridge.errors import NotPicklableError


def error_of(obj: Any) -> NotPicklableError:
    with pytest.raises(NotPicklableError) as caught:
        Channel.with_new_token().pack(obj)
    assert caught.value.__cause__ is not None
    return caught.value


@dataclass
class Model:
    """A model with something in it that belongs to its process."""

    width: int = 3
    layers: dict[str, Any] = field(default_factory=dict)
    _lock: Any = field(default_factory=threading.Lock)

    def apply(self, x: Any) -> Any:
        return x * self.width


class Slots:
    __slots__ = ("handle", "name")

    def __init__(self, handle: Any) -> None:
        self.name, self.handle = "slots", handle


class Point(NamedTuple):
    x: Any
    y: Any


def closure(value: Any) -> Callable[..., Any]:
    def train_step(x: Any) -> Any:
        return x, value

    return train_step


def test_a_captured_lock_is_named() -> None:
    error = error_of(closure(threading.Lock()))
    assert error.culprit == "train_step.value"
    assert str(error) == (
        "train_step captures `value`, a _thread.lock, which cannot be sent to another process "
        "(train_step → closure variable value): TypeError: cannot pickle '_thread.lock' object. "
        "Create it inside the function, or pass what it is made from as an argument."
    )


LOCK = threading.Lock()


def of_a_script(function: Any) -> Any:
    """Makes a function one of a script: sent by value, with the globals that it uses."""
    function.__module__ = "__main__"
    return function


def uses_global() -> Any:
    return LOCK


def uses_global_within() -> Any:
    return [LOCK for _ in range(2)], (lambda: LOCK)


def recursive(n: int) -> Any:
    return recursive(n - 1) if n else LOCK


def with_default(x: Any, *, lock: Any = LOCK) -> Any:
    return x, lock


def with_positional_default(x: Any, lock: Any = LOCK) -> Any:
    return x, lock


def with_attribute(x: Any) -> Any:
    return x


with_attribute.lock = LOCK  # type: ignore[attr-defined]

LOCK_LIST: list[Any] = [LOCK]
CASES: list[tuple[Any, str]] = [
    (of_a_script(uses_global), "uses_global.LOCK"),
    (of_a_script(uses_global_within), "uses_global_within.LOCK"),
    (of_a_script(recursive), "recursive.LOCK"),
    (of_a_script(with_default), "with_default.lock"),
    (of_a_script(with_positional_default), "with_positional_default.lock"),
    (of_a_script(with_attribute), "with_attribute.lock"),
    (closure({"a": [1, (2, LOCK)]}), "train_step.value['a'][1][1]"),
    (closure(Model()), "train_step.value._lock"),
    (closure(Model().apply), "train_step.value.__self__._lock"),
    (closure(Slots(LOCK)), "train_step.value.handle"),
    (closure(Point(1, LOCK)), "train_step.value.y"),
    (closure(Model(_lock=None, layers={"dense": Slots(LOCK)})), "train_step.value.layers['dense']"),
    (closure(closure(LOCK)), "train_step.value.value"),
    (functools.partial(closure(1), LOCK), "partial of train_step.args[0]"),
    (functools.partial(closure(1), x={"lr": LOCK}), "partial of train_step.keywords['x']['lr']"),
    (jax.jit(closure(LOCK)), "train_step.value"),
    (jax.jit(closure({"x": LOCK})), "train_step.value['x']"),
    (Model(), "the Model._lock"),
    (collections.deque([1, LOCK]), "the deque"),
    (collections.OrderedDict(a=LOCK), "the OrderedDict['a']"),
    (LOCK, "the lock"),
    ([1, LOCK], "the list[1]"),
    (closure(jax.jit(jnp.sin).lower(1.0).compile()), "train_step.value"),
]


@pytest.mark.parametrize(("obj", "culprit"), CASES, ids=[culprit for _, culprit in CASES])
def test_the_smallest_part_is_named(obj: Any, culprit: str) -> None:
    error = error_of(obj)
    assert error.culprit.startswith(culprit)
    assert "lock" in str(error) or "LoadedExecutable" in str(error)


def test_classes_of_a_script_are_looked_into() -> None:
    def method(self: Any) -> Any:
        return self, LOCK

    kind = type("Net", (), {"__module__": "__main__", "apply": method})
    assert error_of(kind).culprit == "Net.apply.LOCK"
    assert error_of(kind()).culprit == "the Net.__class__.apply.LOCK"


def test_generators_are_to_be_lists() -> None:
    error = error_of({"batches": (i for i in range(3))})
    assert error.culprit == "the dict['batches']"
    assert str(error).endswith("Send a list of what it yields.")


def test_files_are_no_lists_of_lines(tmp_path: Path) -> None:
    with open(tmp_path / "log", "wb") as file:
        error = error_of({"log": file})
    assert error.culprit == "the dict['log']"
    assert str(error).endswith("Send what it is made from, and make it in the other process.")


def test_a_traced_value_says_so() -> None:
    def outer(x: Any) -> Any:
        error = error_of(closure(x))
        assert error.culprit == "train_step.value"
        assert "it is traced: it has no value until" in str(error)
        return x

    jax.jit(outer)(1.0)


def test_a_deleted_array_says_so() -> None:
    array = jnp.ones(3)
    array.delete()
    error = error_of(closure([1, array]))
    assert error.culprit == "train_step.value[1]"
    assert "delete" in str(error)


def test_keys_of_an_implementation_without_a_name() -> None:
    mine = jax.extend.random.define_prng_impl(
        key_shape=(2,),
        seed=lambda seed: jnp.zeros(2, jnp.uint32),
        split=lambda key, shape: key,
        random_bits=lambda key, width, shape: key,
        fold_in=lambda key, data: key,
        tag="mine",
    )
    key = jax.random.wrap_key_data(jnp.zeros(2, jnp.uint32), impl=mine)
    error = error_of(closure(key))
    assert error.culprit == "train_step.value"
    assert "Keys of mine cannot be sent" in str(error)
    assert "jax.random.key_data" in str(error)


def test_arrays_of_text() -> None:
    text = jax.device_put(np.array("text", np.dtypes.StringDType()), jax.devices()[0])
    error = error_of({"text": text})
    assert error.culprit == "the dict['text']"
    assert "Send the text as a str or a numpy array" in str(error)


def test_cycles_end() -> None:
    """Everything in the cycle fails, and one part of it by itself."""
    a: dict[str, Any] = {}
    b = [a]
    a["b"], a["lock"] = b, LOCK
    assert error_of(a).culprit == "the dict['lock']"
    assert error_of(closure(b)).culprit == "train_step.value[0]['lock']"
    around = Model()
    around.layers["me"] = around
    assert error_of(around.apply).culprit == "Model.apply.__self__._lock"


def test_deep_nesting_names_its_top() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    error = error_of(closure({"deep": deep}))
    assert error.culprit == "train_step.value"
    assert "it is nested too deeply for pickle" in str(error)


def test_much_beside_the_culprit_is_passed_quickly() -> None:
    big = {
        "weights": np.zeros((16, 1 << 20), np.float32),
        "many": [*range(50_000), LOCK, *range(50_000)],
    }
    begin = time.monotonic()
    error = error_of(closure(big))
    assert error.culprit == "train_step.value['many'][50000]"
    assert time.monotonic() - begin < 20


def test_a_failing_getter_is_no_harm() -> None:
    class Odd:
        def __reduce_ex__(self, protocol: Any) -> Any:
            raise ValueError("not me\nat all")

        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    error = error_of(closure(Odd()))
    assert "train_step captures `value`" in str(error)
    assert "ValueError: not me. Create" in str(error)


def test_attributes_of_containers_are_looked_at() -> None:
    class Registry(dict[str, int]):
        lock: Any = None

    registry = Registry(a=1)
    registry.lock = LOCK
    assert error_of(closure(registry)).culprit == "train_step.value.lock"


def test_parts_that_cannot_be_looked_at_are_passed() -> None:
    class Key:
        def __repr__(self) -> str:
            raise RuntimeError("no text")

    assert error_of(closure([{Key(): 1, "a": LOCK}, 2])).culprit == "train_step.value[0]"
