"""Makes the page of a weights file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jax2tf_bridge._utils import in_units
from jax2tf_bridge.cli.inspect._module_texts import ModuleTexts
from jax2tf_bridge.cli.inspect.html._charts import Bar, bar_chart, largest
from jax2tf_bridge.cli.inspect.html._page import Page, PageTable
from jax2tf_bridge.inspecting import format_leaf_count, format_weights_row

MAX_BARS = 20


def weights_page(facts: Mapping[str, Any], texts: ModuleTexts, version: str) -> Page:
    """Makes the page of a weights file."""
    file, weights = facts["file"], facts["weights"]
    bars = [Bar(leaf["path"], leaf["bytes"], in_units(leaf["bytes"])) for leaf in weights["list"]]
    return Page(
        title=file["path"],
        subtitle=f"Weights in {file['format']}, {in_units(file['bytes'])}",
        summary=[
            ("weights", f"{format_leaf_count(weights)}, {in_units(weights['bytes'])}"),
            *facts["metadata"].items(),
        ],
        tables=[
            PageTable(
                "Weights",
                ["path", "type", "size"],
                [format_weights_row(leaf) for leaf in weights["list"]],
                numbers=frozenset({2}),
            )
        ],
        charts=[bar_chart("Weights, in bytes", largest(bars, MAX_BARS, in_units))],
        footer=f"Made by jax2tf-bridge {version} inspect.",
    )
