"""Schema of `inspect --json` of a SavedModel, by types."""

from typing import Any

_ENTRY: dict[str, Any] = {
    "name": str,
    "modules": [{"module": int, "order": int}],
    "gradient": object,
}
_PORT: dict[str, Any] = {"name": str, "dtype": str, "shape": (list, type(None)), "tensor": str}

DIRECTORY_SCHEMA: dict[str, Any] = {
    "schema": int,
    "saved_model": {
        "path": str,
        "graph_bytes": int,
        "variables_bytes": int,
        "written_by": str,
        "bridge": str,
        "tags": [str],
    },
    "findings": [{"severity": str, "text": str, "remedy": str, "modules": [int]}],
    "tensorflow": [str],
    "tensorflow_for_gradients": [str],
    "platforms": [str],
    "signatures": [
        {
            **_ENTRY,
            "own_operations": bool,
            "own_gradient": bool,
            "inputs": [{**_PORT, "has_default": bool}],
            "outputs": [_PORT],
            "buckets": (dict, type(None)),
            "unchecked_padding": [str],
            "masks": [str],
            "pad_values": dict,
            "joins_requests": bool,
            "updates": [str],
        }
    ],
    "methods": [_ENTRY],
    "more_methods": int,
    "modules": [
        {
            "number": int,
            "function": str,
            "node": str,
            "order": (int, type(None)),
            "run_by": [str],
            "bytes": int,
            "stablehlo": (str, type(None)),
            "calling_convention": int,
            "platforms": [str],
            "disabled_checks": [str],
            "tensorflow": [str],
            "name": str,
            "arguments": [str],
            "results": [str],
            "sizes": (dict, type(None)),
            "ops": [{"name": str, "count": int}],
            "custom_calls": [{"name": str, "count": int, "handled": bool}],
            "constant_bytes": (int, type(None)),
            "largest_constants": [{"type": str, "bytes": int}],
            "calls": [str],
            "effects": bool,
            "unreadable": (str, type(None)),
        }
    ],
    "variables": {
        "count": int,
        "bytes": int,
        "list": [
            {
                "path": str,
                "name": str,
                "dtype": str,
                "shape": (list, type(None)),
                "bytes": (int, type(None)),
                "trainable": (bool, type(None)),
            }
        ],
    },
    "constants": {
        "bytes": int,
        "largest": [
            {
                "function": str,
                "node": str,
                "dtype": str,
                "shape": (list, type(None)),
                "bytes": (int, type(None)),
            }
        ],
    },
    "assets": [str],
    "warm_up": (dict, type(None)),
}
"""The schema that docs/command-line.md promises."""
