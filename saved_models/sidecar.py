"""Sidecars of the golden corpus: the versions that wrote a member, and its results then."""

from __future__ import annotations

import datetime
import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # a sidecar is read where JAX is not
    from tests.program_cases.answers import Reference


def today() -> str:
    """Returns the date that begins the name of a member."""
    return datetime.datetime.now(tz=datetime.UTC).date().isoformat()


def leave_out_paths() -> None:
    """Keeps JAX from writing the paths of source files into modules."""
    import jax  # where sidecars are only read, there is no JAX

    jax.config.update("jax_traceback_in_locations_limit", 0)
    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")


def check_new(member: Path) -> None:
    """Raises FileExistsError if the member or its sidecar exists."""
    if member.exists() or sidecar_of(member).exists():
        raise FileExistsError(f"{member} exists: members are never rewritten")


def sidecar_of(member: Path) -> Path:
    """Returns the path of a member's sidecar."""
    return member.with_name(f"{member.name.removesuffix('.exported')}.json")


def write_sidecar(
    member: Path,
    references: Sequence[Reference],
    *,
    recipe: str,
    versions: Mapping[str, str],
    **facts: Any,
) -> None:
    """Writes a member's sidecar beside it.

    Args:
      member: the member's path.
      references: the inputs and results of each call.
      recipe: the command that wrote the member.
      versions: the versions of the packages that wrote it; Python's is added.
      facts: facts about the program.
    """
    contents = {
        "recipe": recipe,
        "versions": {**versions, "python": platform.python_version()},
        **facts,
        "calls": [_describe_call(r) for r in references],
    }
    sidecar_of(member).write_text(json.dumps(contents) + "\n")


def _describe_call(expected: Reference) -> dict[str, Any]:
    return {
        "inputs": [_list_array(a) for a in expected.inputs],
        "results": [_list_array(a) for a in expected.results],
        "sources": expected.sources,
        "targets": expected.targets,
        "cotangents": [_list_array(a) for a in expected.cotangents],
        "gradients": [_list_array(a) for a in expected.gradients],
    }


def array_of(listed: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Reads an array of a sidecar."""
    dtype = np.dtype(listed["dtype"])
    values = np.array(listed["values"], np.float64 if dtype.kind == "c" else dtype)
    if dtype.kind == "c":
        values = values[..., 0] + 1j * values[..., 1]
    return values.astype(dtype).reshape(listed["shape"])


def _list_array(array: Any) -> dict[str, Any]:
    # Complex numbers become pairs of numbers.
    array = np.asarray(array)
    values = np.stack([array.real, array.imag], -1) if np.iscomplexobj(array) else array
    return {"dtype": array.dtype.name, "shape": array.shape, "values": values.tolist()}
