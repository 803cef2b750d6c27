"""Rules for joining the rows of several requests."""

from __future__ import annotations

from jax2tf_bridge.portable import variables_in
from jax2tf_bridge.saving.buckets import Bucketing, is_plain
from jax2tf_bridge.signatures import ServedArray
from shape_poly import variables_of

CHANGES_WEIGHTS = "each request changes weights"
"""Reason why the requests of a signature that changes weights cannot be joined."""


def find_batch_variable(bucketing: Bucketing) -> str | None:
    """Returns the bucketed variable that is the first dimension of each input and output."""
    avals = [*bucketing.passed_inputs().values(), *bucketing.outputs.values()]
    for variable in bucketing.sizes:
        if all(aval.op_shape and is_plain(aval.op_shape[0], variable) for aval in avals):
            return variable
    return None


def find_lengths(bucketing: Bucketing) -> set[str]:
    """Returns the variables, other than the rows, that requests choose."""
    avals = bucketing.passed_inputs().values()
    return {v for aval in avals for v in variables_in(aval)} - {find_batch_variable(bucketing)}


def find_obstacle(bucketing: Bucketing) -> str | None:
    """Returns the reason why rows of several requests must not be joined; None if they may."""
    batch = find_batch_variable(bucketing)
    if batch is None:
        return _find_row_obstacle(bucketing)
    for name, aval in (*bucketing.passed_inputs().items(), *bucketing.outputs.items()):
        if any(batch in variables_of(dimension) for dimension in aval.op_shape[1:]):
            return f"{name}: {ServedArray.of_aval(aval)} has the number of rows twice"
    if bucketing.is_masked(batch):
        return "a mask says which rows are real, so rows may influence each other"
    if batch in bucketing.unchecked:
        return f"unchecked_padding names {batch}, so the independence of rows was not checked"
    return None


def _find_row_obstacle(bucketing: Bucketing) -> str:
    """Returns the reason why a signature has no batch variable."""
    for name, aval in (*bucketing.passed_inputs().items(), *bucketing.outputs.items()):
        shape = aval.op_shape
        if not shape or not any(is_plain(shape[0], variable) for variable in bucketing.sizes):
            return f"{name}: {ServedArray.of_aval(aval)} does not begin with a bucketed size"
    return "its inputs and outputs do not all begin with the same size"
