"""Checks the errors for functions that JAX's format cannot hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jax2tf_bridge import DisabledSafetyCheck, serialize_exported
from jax2tf_bridge.errors import SerializationError
from jax2tf_bridge.portable import (
    LEAF,
    AbstractMesh,
    Aval,
    LiftedConstant,
    Sharding,
    StoredGradient,
    TreeSpec,
)
from tests.serialization import records
from tests.serialization.exported_by_hand import writable

ARRAY = Aval((2,), "float32")
ORDERS = [
    (0, 1, "f cannot be written with vjp_order=1: there is no VJP. f has no gradient"),
    (1, 2, "f cannot be written with vjp_order=2: only VJPs up to order 1 exist. f_vjp has no"),
    (1, 9, "only VJPs up to order 1 exist"),
]


@pytest.mark.parametrize(("there_are", "order", "message"), ORDERS)
def test_more_orders_than_there_are(there_are: int, order: int, message: str) -> None:
    portable = writable()
    for _ in range(there_are):
        portable = replace(
            portable, gradient=StoredGradient(records.vjp_of(portable, name="f_vjp"))
        )
    with pytest.raises(SerializationError, match=message):
        serialize_exported(portable, vjp_order=order)


class Huge(bytes):
    """Claims to be of two gigabytes."""

    def __len__(self) -> int:
        return 2**31


class Box:
    """Not registered for files."""


def deep(depth: int) -> TreeSpec:
    spec = LEAF
    for _ in range(depth):
        spec = TreeSpec("tuple", children=(spec,))
    return spec


def one_argument(spec: TreeSpec) -> dict[str, Any]:
    return {"in_tree": records.call_tree(spec)}


LIMITS: list[tuple[dict[str, Any], str]] = [
    (
        one_argument(TreeSpec("dict", keys=(1,), children=(LEAF,))),
        "the arguments have the key 1 of type int, and the format has text as keys only: rename it",
    ),
    (
        one_argument(TreeSpec("namedtuple", "Free", ("only",), (LEAF,))),
        "the arguments have a Free, which is not registered for files. jax.export needs that",
    ),
    (
        {"out_tree": TreeSpec("custom", "Box", (), (LEAF,))},
        "the results have a Box, which is not registered for files. jax.export needs that",
    ),
    ({"out_tree": deep(500)}, "the results are nested more than 180 deep"),
    ({"in_avals": (Aval((), "int2"),)}, "x is int2, a dtype that JAX's format lacks: convert it"),
    ({"out_avals": (Aval((), "key<mine>"),)}, "result 0 is key<mine>, a dtype that JAX's format"),
    (
        {"module": Huge()},
        "its modules have 2147483648 bytes, and a whole file has at most 2147483647",
    ),
    (
        {"lifted_constants": (LiftedConstant(ARRAY, "0" * 64),)},
        r"the captured array 0{64} \(float32\[2\]\) is missing: it was written with arrays=False",
    ),
    (
        {"calling_convention_version": 7},
        "its calling convention is 7, and JAX supports 8 and later",
    ),
    (
        {"calling_convention_version": 65_536},
        "its calling convention is 65536, and the format holds up to 65535",
    ),
    ({"ordered_effects": ("Effect",)}, "the effect Effect has only the name of its class, and JAX"),
    ({"disabled_checks": (DisabledSafetyCheck("x"),)}, "safety check 'x' is unknown to the format"),
    ({"nr_devices": 2**32}, "4294967296 devices are not from 1 to 4294967295"),
    (
        {"in_shardings": (Sharding(AbstractMesh(("x",), (2**32,), ("auto",)), (("x",),)),)},
        r"the mesh \(x=4294967296\) has a size that is not from 1 to 4294967295",
    ),
    ({"name": "\ud800"}, "cannot be written as UTF-8: surrogates not allowed"),
]


@pytest.mark.parametrize(("changes", "message"), LIMITS)
def test_limits_are_errors_before_anything_is_written(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SerializationError, match=message):
        serialize_exported(writable(**changes))


def test_every_reason_is_listed() -> None:
    portable = writable(
        in_avals=(Aval((), "int2"),), calling_convention_version=5, **one_argument(LEAF)
    )
    with pytest.raises(SerializationError, match="f cannot be written as JAX's") as caught:
        serialize_exported(portable)
    assert str(caught.value).count("\n  - ") == 2
