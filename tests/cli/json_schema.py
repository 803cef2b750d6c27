"""Schema of `inspect --json` of a function, by types."""

from typing import Any

SCHEMA: dict[str, Any] = {
    "file": {"path": str, "format": str, "version": int, "bytes": int},
    "schema": int,
    "name": str,
    "producer": str,
    "target": str,
    "xla": bool,
    "arguments": [
        {"path": str, "shape": list, "dtype": str, "memory_space": str, "used": bool},
    ],
    "results": [{"path": str, "shape": list, "dtype": str, "memory_space": str}],
    "structure": {"arguments": str, "result": str},
    "sizes": {
        "variables": [str],
        "constraints": [str],
        "constraints_known": bool,
        "requirements": [str],
    },
    "platforms": [str],
    "dropped_platforms": [{"platform": str, "reason": str}],
    "tensorflow": [str],
    "gradient": {"orders": int, "then": str},
    "modules": [
        {
            "order": int,
            "bytes": int,
            "stablehlo": str,
            "calling_convention": int,
            "tensorflow": [str],
            "requirements": [str],
            "ops": [{"name": str, "count": int}],
            "custom_calls": [{"name": str, "count": int, "handled": bool}],
            "constant_bytes": (int, type(None)),
            "unreadable": (str, type(None)),
        }
    ],
    "effects": {"ordered": [str], "unordered": [str]},
    "disabled_checks": [str],
    "devices": int,
    "shardings": {"arguments": [(str, type(None))], "results": [(str, type(None))]},
    "constants": [
        {
            "name": str,
            "shape": list,
            "dtype": str,
            "memory_space": str,
            "sha256": str,
            "bytes": int,
            "in_file": bool,
        },
    ],
    "arrays": {"count": int, "bytes": int, "in_file": int, "largest": {"name": str, "bytes": int}},
}
"""The schema that docs/command-line.md promises."""
