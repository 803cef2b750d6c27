"""Signatures from flat options, for tests that vary one option at a time."""

from __future__ import annotations

import dataclasses
from typing import Any

from jax2tf_bridge import Padding, Processing, Signature


def flat_signature(function: Any, *args: Any, **options: Any) -> Signature:
    """Makes a signature; options of Padding and of Processing may stand beside its own."""
    groups = {"padding": Padding, "processing": Processing}
    for group, kind in groups.items():
        names = {field.name for field in dataclasses.fields(kind)}
        given = {name: options.pop(name) for name in names & options.keys()}
        if given:
            options[group] = kind(**given)
    return Signature(function, *args, **options)
