"""Compares portable functions."""

from __future__ import annotations

import dataclasses

from jax2tf_bridge import PortableFunction
from jax2tf_bridge.portable import are_types_checked
from tests.serialization.strategies import same_tree

# How a portable function was made known in this process is not in the file.
OF_THE_PROCESS = {"gradient"}
FIELDS = {field.name for field in dataclasses.fields(PortableFunction)} - OF_THE_PROCESS


def assert_equal(found: PortableFunction, expected: PortableFunction) -> None:
    """Field by field, the VJPs too, and why the last of them has none."""
    for name in sorted(FIELDS):
        assert getattr(found, name) == getattr(expected, name), name
    assert same_tree(found.in_tree, expected.in_tree)
    assert same_tree(found.out_tree, expected.out_tree)
    for mine, other in zip(found.lifted_constants, expected.lifted_constants, strict=True):
        assert mine.data == other.data  # which does not count when constants are compared
    assert type(found.module.data) is bytes
    assert not are_types_checked(found)
    if expected.gradient.vjp is None:
        assert found.gradient.vjp is None
        assert found.gradient_problem() == expected.gradient_problem()
    else:
        assert found.gradient.vjp is not None
        assert_equal(found.vjp(), expected.vjp())
