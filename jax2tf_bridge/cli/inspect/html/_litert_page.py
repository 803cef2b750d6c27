"""Makes the page of a LiteRT model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jax2tf_bridge._utils import in_units
from jax2tf_bridge.cli.inspect._module_texts import ModuleTexts
from jax2tf_bridge.cli.inspect.html._charts import Bar, bar_chart, largest
from jax2tf_bridge.cli.inspect.html._page import Page, PageTable
from jax2tf_bridge.inspecting import litert_summary, ports_text

MAX_BARS = 20


def litert_page(facts: Mapping[str, Any], texts: ModuleTexts, version: str) -> Page:
    """Makes the page of a LiteRT model."""
    file, ops = facts["file"], facts["ops"]
    bars = [Bar(op["name"], op["count"], str(op["count"])) for op in ops]
    return Page(
        title=file["path"],
        subtitle=f"LiteRT model, {in_units(file['bytes'])}",
        summary=litert_summary(facts, 0),
        tables=[
            PageTable(
                "Signatures",
                ["name", "inputs", "outputs"],
                [
                    (s["name"] or "", ports_text(s["inputs"]), ports_text(s["outputs"]))
                    for s in facts["signatures"]
                ],
            ),
            PageTable(
                "Operators",
                ["name", "count", "LiteRT's own"],
                [(op["name"], str(op["count"]), "no" if op["custom"] else "yes") for op in ops],
                numbers=frozenset({1}),
            ),
        ],
        charts=[bar_chart("Operators", largest(bars, MAX_BARS, str))],
        footer=f"Made by jax2tf-bridge {version} inspect.",
    )
