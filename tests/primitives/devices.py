"""Collectives over a mesh of one device, where they change nothing: of jax.lax."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from tests.primitives.arguments import integers, normal
from tests.primitives.case import Case, cases

_AXIS = "i"


def _on_one_device(function: Any, *args: Any, varying: bool = False) -> Any:
    mesh = Mesh(np.array(jax.devices()[:1]), (_AXIS,))
    everywhere = PartitionSpec()
    results = PartitionSpec(_AXIS) if varying else everywhere
    mapped = jax.shard_map(
        function, mesh=mesh, in_specs=everywhere, out_specs=results, check_vma=varying
    )
    return mapped(*args)


def _over_axis(f: Any, *args: Any) -> Any:
    return _on_one_device(lambda *inner: f(*inner, _AXIS), *args)


CASES: tuple[Case, ...] = (
    *cases("jax.lax: psum pmean", normal(5, 3), call=_over_axis, label="one device"),
    *cases("jax.lax: pmax pmin", integers(-9, 9, 5, 3), call=_over_axis, label="one device"),
    *cases("jax.lax: all_gather psum_scatter", normal(1, 3), call=_over_axis, label="one device"),
    *cases(
        "jax.lax: all_gather psum_scatter",
        normal(1, 3),
        label="one device, tiled",
        call=lambda f, x: _on_one_device(lambda a: f(a, _AXIS, tiled=True), x),
    ),
    *cases(
        "jax.lax.ppermute",
        normal(5, 3),
        label="one device",
        call=lambda f, x: _on_one_device(lambda a: f(a, _AXIS, [(0, 0)]), x),
    ),
    *cases(
        "jax.lax.pshuffle",
        normal(5, 3),
        label="one device",
        call=lambda f, x: _on_one_device(lambda a: f(a, _AXIS, [0]), x),
    ),
    *cases(
        "jax.lax.all_to_all",
        normal(1, 3),
        label="one device",
        call=lambda f, x: _on_one_device(lambda a: f(a, _AXIS, 0, 0), x),
    ),
    *cases(
        "jax.lax.axis_index",
        normal(5, 3),
        label="one device",
        call=lambda f, x: _on_one_device(lambda a: a + f(_AXIS), x),
    ),
    *cases(
        "jax.lax.pcast",
        normal(5, 3),
        label="one device",
        call=lambda f, x: _on_one_device(lambda a: f(a, _AXIS, to="varying"), x, varying=True),
    ),
)
