"""Reads the files that JAX's releases wrote, in a process that cannot import JAX, and compares.

Run as a program: it prints nothing but what differs.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

from jax2tf_bridge.portable import PortableFunction, Sharding, TreeSpec
from jax2tf_bridge.serialization.jax_exported import read_exported
from shape_poly import parse_dimension

ARCHIVES = Path(__file__).parent / "archives"
FILES = sorted(ARCHIVES.glob("*/*.exported"))
KEY_WORDS = {"key<fry>": (2,), "key<rbg>": (4,), "key<urbg>": (4,)}


def archive(release: str, name: str) -> bytes:
    """Returns the bytes that a release of JAX wrote of a function."""
    return (ARCHIVES / release / f"{name}.exported").read_bytes()


Json = Any


def tree(spec: TreeSpec) -> Json:
    children = [tree(child) for child in spec.children]
    if spec.kind in ("leaf", "none"):
        return spec.kind
    if spec.kind == "dict":
        return ["dict", list(spec.keys), children]
    if spec.kind == "namedtuple":
        return ["namedtuple", [spec.serialized_name, *spec.keys], children]
    if spec.kind == "custom":
        return ["custom", [spec.serialized_name, (spec.auxdata or b"").decode()], children]
    return [spec.kind, [], children]


def shardings(them: tuple[Sharding | None, ...], theirs: Json) -> Json:
    """Ours in the form of theirs; where theirs has both forms, the named one counts."""
    hlo: list[str | None] = []
    named: list[Json] = []
    for sharding, their_hlo in zip(them, theirs["hlo"], strict=True):
        if sharding is None or sharding.mesh is None:
            # Replicated: empty where it is written, and spelled out in the portable function.
            spelled = None if sharding is None else sharding.hlo.hex()
            hlo.append("" if (spelled, their_hlo) == ("0800", "") else spelled)
            named.append(None)
            continue
        mesh = sharding.mesh
        device = mesh.device
        hlo.append(their_hlo)
        named.append(
            {
                "axes": [list(mesh.axis_names), list(mesh.axis_sizes)],
                "types": list(mesh.axis_types),
                "device": device and [device.kind, device.platform, device.num_cores],
                "partitions": [list(axes) for axes in sharding.partitions],
                "memory_kind": sharding.memory_kind,
            }
        )
    for ours, their in zip(named, theirs["named"], strict=True):
        # The platform was not known yet: it follows from the kind.
        if ours and their and their["device"] and their["device"][1] is None:
            their["device"][1] = "cpu"
    return {"hlo": hlo, "named": named}


def describe(portable: PortableFunction, theirs: Json) -> Json:
    """Describes a function in the form of the JSON beside the file."""

    def avals(them: Any, theirs: Json) -> Json:
        return [
            [
                [text if parse_dimension(text) == dim else str(dim) for text, dim in pairs],
                aval.dtype,
            ]
            for aval, (texts, _) in zip(them, theirs, strict=True)
            for pairs in [list(zip(texts, aval.shape, strict=True))]
        ]

    return {
        "fun_name": portable.name,
        "in_tree": tree(portable.in_tree),
        "in_avals": avals(portable.in_avals, theirs["in_avals"]),
        "out_tree": tree(portable.out_tree),
        "out_avals": avals(portable.out_avals, theirs["out_avals"]),
        "in_shardings": shardings(portable.in_shardings, theirs["in_shardings"]),
        "out_shardings": shardings(portable.out_shardings, theirs["out_shardings"]),
        "nr_devices": portable.module.nr_devices,
        "platforms": list(portable.platforms),
        "ordered_effects": [f"<class '{name}'>" for name in portable.ordered_effects],
        "unordered_effects": [f"<class '{name}'>" for name in portable.unordered_effects],
        "disabled_safety_checks": [str(check) for check in portable.module.disabled_checks],
        "module": hashlib.sha256(portable.module.data).hexdigest(),
        "calling_convention_version": portable.module.calling_convention_version,
        "module_kept_var_idx": list(portable.module.kept_arguments),
        "uses_global_constants": portable.uses_global_constants,
        "vjp": describe(portable.vjp(), theirs["vjp"]) if portable.has_vjp else None,
    }


def differences(file: Path) -> list[str]:
    """Lists where a function differs from what JAX said of it."""
    theirs = json.loads(file.with_suffix(".json").read_text())
    portable = read_exported(file.read_bytes())
    ours = describe(portable, theirs)
    found = [f"{k}: {v!r}, expected {theirs[k]!r}" for k, v in ours.items() if v != theirs[k]]
    release = file.parent.name
    if file.stem == "symbolic" and portable.constraints != ("b >= 3", "mod(b, 2) == 0", "h <= 100"):
        found.append(f"constraints: {portable.constraints}")
    if portable.constraints_known or portable.in_paths() != tuple(
        dict.fromkeys(portable.in_paths())
    ):
        found.append("constraints_known or the paths are wrong")
    stamp = {"0.8.3": 3, "0.9.2": 3, "0.10.2": 3}.get(release, 2)
    wrote = f"JAX {release}" if release == "0.12.0.1" else f"JAX (serialization version {stamp})"
    if portable.producer != wrote:
        found.append(f"producer: {portable.producer}")
    artifact = re.match(rb"ML\xefR.StableHLO_v([0-9.]+)\0", portable.module.data)
    assert artifact is not None
    if ".".join(map(str, portable.module.stablehlo_version)) != artifact.group(1).decode():
        found.append(f"StableHLO {portable.module.stablehlo_version}")
    for aval in (*portable.in_avals, *portable.out_avals):
        if aval.element_shape != KEY_WORDS.get(aval.dtype, ()) or aval.memory_space != "device":
            found.append(f"aval: {aval!r}")
    return [f"{release}/{file.stem}: {line}" for line in found]


def main() -> None:
    """Prints every difference."""
    for name in ("jax", "jaxlib", "tensorflow"):
        sys.modules[name] = None  # type: ignore[assignment]
    for file in FILES:
        print("".join(f"{line}\n" for line in differences(file)), end="")
    print(f"{len(FILES)} files read")


if __name__ == "__main__":
    main()
