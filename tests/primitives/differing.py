"""Cases that differ from JAX as TensorFlow's own operations, and why."""

from __future__ import annotations

from collections.abc import Mapping

DIFFERING: Mapping[str, str] = {
    "jax.lax.scaled_dot[float32]": "TensorFlow has no dtype for scales (f8E8M0FNU)",
}
"""By the cases' names, in every release."""

DIFFERING_IN: Mapping[str, Mapping[str, str]] = {}
"""The same, by the release: what only some TensorFlow lacks or computes otherwise."""


def differing_in(release: str) -> set[str]:
    """Names the cases that differ in a release, as "2.17"."""
    return {*DIFFERING, *DIFFERING_IN.get(release, {})}


def reasons() -> Mapping[str, str]:
    """Why cases differ in any release, by their names; the release is in the reason."""
    older = {
        name: f"{reason} (TensorFlow {release})"
        for release, found in DIFFERING_IN.items()
        for name, reason in found.items()
    }
    return {**older, **DIFFERING}
