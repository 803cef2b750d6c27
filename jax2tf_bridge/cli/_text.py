"""A record, and what is known of it, as text for a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from jax2tf_bridge.cli._orders import stored_functions
from jax2tf_bridge.portable._portable_function import PortableFunction

_NUMBER = re.compile(r"([0-9]+)")
_MANY = 40
"""How many arguments or results are listed; a model may have thousands."""


def summary(record: PortableFunction) -> str:
    """A record in one line."""
    arguments = list(map(str, record.inputs))
    results = [str(aval) for aval in record.out_avals]
    sizes = (*record.constraints, *record.requirements)
    return "; ".join(
        [
            f"{record.name}({_some(arguments, 8)}) -> ({_some(results, 8)})",
            *([f"needs {', '.join(sizes)}"] if sizes else []),
            f"{gradients_text(len(stored_functions(record)) - 1)}",
            f"runs on {releases_text(record.tensorflow_releases)}",
        ]
    )


def natural_order(text: str) -> list[tuple[int, str]]:
    """A key for sorting by which "block_2" comes before "block_10".

    >>> sorted(["block_10", "block_2"], key=natural_order)
    ['block_2', 'block_10']
    """
    # Texts and numbers take turns, of which the longer is the larger.
    parts = [part.lstrip("0") if i % 2 else part for i, part in enumerate(_NUMBER.split(text))]
    return [(len(part) if i % 2 else 0, part) for i, part in enumerate(parts)]


def gradients_text(orders: int) -> str:
    """How many orders of gradients there are.

    >>> gradients_text(0), gradients_text(2)
    ('no gradient', 'gradients to order 2')
    """
    return f"gradients to order {orders}" if orders else "no gradient"


def releases_text(releases: Sequence[str]) -> str:
    """The TensorFlow releases, the oldest and the newest.

    >>> releases_text(["2.15", "2.16", "2.17"])
    'TensorFlow 2.15 to 2.17'
    """
    if not releases:
        return "no TensorFlow release that is known"
    first, last = releases[0], releases[-1]
    return f"TensorFlow {first}" if first == last else f"TensorFlow {first} to {last}"


def lines(facts: Mapping[str, Any], ops: int) -> Iterator[str]:
    """What `inspect` prints.

    Args:
      facts: as `describe` gives them, with the file's.
      ops: how many of the operations to show.
    """
    file = facts["file"]
    yield f"{facts['name']}, in {file['path']}"
    yield ""
    yield from _arrays("arguments", facts["arguments"])
    yield from _arrays("results", facts["results"])
    yield from _arrays("constants", [{**c, "path": c["name"]} for c in facts["constants"]])
    yield from _table(
        [
            ("constants", _constants(facts["arrays"])),
            ("sizes", _sizes(facts["sizes"])),
            ("runs on", _runs_on(facts)),
            ("platforms", [", ".join(facts["platforms"])]),
            *((f"not {d['platform']}", [d["reason"]]) for d in facts["dropped_platforms"]),
            ("gradient", _gradient(facts)),
            ("devices", [str(facts["devices"])] if facts["devices"] > 1 else []),
            ("effects", [", ".join(chain(*facts["effects"].values()))]),
            ("checks off", [", ".join(facts["disabled_checks"])]),
            ("made by", [facts["producer"]]),
            ("made for", [facts["target"]] if facts["target"] != facts["producer"] else []),
            ("format", [f"{file['format']} version {file['version']}, {file['bytes']:,} bytes"]),
        ]
    )
    for module in facts["modules"]:
        yield ""
        yield from _module(module, ops)


def _arrays(title: str, arrays: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not arrays:
        if title != "constants":
            yield f"{title}: none"
        return
    yield f"{title}:"
    shown = arrays[:_MANY]
    width = max(len(_path(array)) for array in shown)
    for array in shown:
        sizes = ", ".join(map(str, array["shape"]))
        unused = "" if array.get("used", True) else "  (not used)"
        space = "" if array["memory_space"] == "device" else f"  in {array['memory_space']} memory"
        yield f"  {_path(array):{width}}  {array['dtype']}[{sizes}]{space}{unused}"
    if len(arrays) > len(shown):
        yield f"  and {len(arrays) - len(shown):,} more (--json has all)"


def _path(array: Mapping[str, Any]) -> str:
    return array["path"] or "result"


def _constants(arrays: Mapping[str, Any]) -> list[str]:
    count, largest = arrays["count"], arrays["largest"]
    if not count:
        return []
    if not arrays["in_file"]:
        where = "not in the file"
    elif arrays["in_file"] < count:
        where = f"{arrays['in_file']:,} of them in the file"
    else:
        where = "in the file"
    name = f" ({largest['name']})" if largest["name"] else ""
    arrays_text = "1 array" if count == 1 else f"{count:,} arrays"
    return [
        f"{arrays_text}, {arrays['bytes']:,} bytes, {where}",
        *([f"the largest{name} has {largest['bytes']:,}"] if count > 1 else []),
    ]


def _sizes(sizes: Mapping[str, Any]) -> list[str]:
    if not sizes["variables"]:
        return []
    found = [f"{', '.join(sizes['variables'])} open"]
    if sizes["constraints"]:
        found.append(f"under {', '.join(sizes['constraints'])}")
    if sizes["requirements"]:
        found.append(f"needs {', '.join(sizes['requirements'])}")
    if not sizes["constraints_known"]:
        found.append("other constraints are not known: the file's format has none")
    return found


def _runs_on(facts: Mapping[str, Any]) -> list[str]:
    names = [c["name"] for c in facts["modules"][0]["custom_calls"] if not c["handled"]]
    if names:
        return [
            f"no TensorFlow: it calls {', '.join(names)}, for which there is no handler in it",
            "jax2tf-bridge retarget writes it without, if it has a form in StableHLO alone",
        ]
    retarget = [] if facts["tensorflow"] else ["jax2tf-bridge retarget writes it for one"]
    return [releases_text(facts["tensorflow"]), *retarget]


def _gradient(facts: Mapping[str, Any]) -> list[str]:
    gradient = facts["gradient"]
    if not gradient["orders"]:
        return [gradient["then"]]
    return [f"to order {gradient['orders']}"]


def _module(module: Mapping[str, Any], ops: int) -> Iterator[str]:
    order = module["order"]
    title = "the function" if order == 0 else f"its gradient of order {order}"
    total = sum(op["count"] for op in module["ops"])
    constants = module["constant_bytes"]
    facts = [f"{module['bytes']:,} bytes{f' ({constants:,} in constants)' if constants else ''}"]
    facts += [f"StableHLO {module['stablehlo']}"]
    facts.append(f"calling convention {module['calling_convention']}")
    facts.append(releases_text(module["tensorflow"]))
    if order and module["requirements"]:
        facts.append(f"needs {', '.join(module['requirements'])}")
    yield f"{title}: {', '.join(facts)}"
    if module["unreadable"]:
        yield f"  its operations cannot be read: {module['unreadable']}"
        return
    shown = module["ops"][:ops]
    yield f"  {total:,} ops: " + _some(
        [f"{op['count']} {op['name']}" for op in shown], ops, len(module["ops"])
    )
    if module["custom_calls"]:
        yield "  custom calls: " + ", ".join(
            f"{c['count']} {c['name']}{'' if c['handled'] else ' (no handler in TensorFlow)'}"
            for c in module["custom_calls"]
        )


def _table(rows: Sequence[tuple[str, Sequence[str]]]) -> Iterator[str]:
    filled = [(title, "; ".join(filter(None, texts))) for title, texts in rows]
    width = max(len(title) for title, text in filled if text) + 1
    for title, text in filled:
        if text:
            yield f"{title + ':':{width}} {text}"


def _some(texts: Sequence[str], shown: int, total: int | None = None) -> str:
    more = (total or len(texts)) - min(shown, len(texts))
    return ", ".join([*texts[:shown], *([f"and {more} more"] if more > 0 else [])])
