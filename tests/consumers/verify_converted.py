"""Runs verify with a runtime whose packages another environment has; prints what it says.

    python -m tests.consumers.verify_converted RUNTIME SITE_PACKAGES SAVED_MODEL [MODEL]

`write` writes the SavedModel. The other environment's packages come last on the path.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

PARAMS = {
    "w": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4),
    "b": np.linspace(0, 1, 4, dtype=np.float32),
}


def network(params: Any, x: Any) -> Any:
    hidden = x @ params["w"]
    hidden = hidden + params["b"]
    hidden = jnp.exp(hidden)
    return jnp.transpose(hidden)


def changed_network(params: Any, x: Any) -> Any:
    hidden = x @ params["w"]
    hidden = hidden + params["b"]
    hidden = jnp.tanh(hidden)
    return jnp.transpose(hidden)


def write(folder: Path) -> None:
    """Saves the function for converters."""
    from jax2tf_bridge import Signature, Target, save

    signature = Signature(network, args=[np.ones((2, 3), np.float32)], polymorphic_shapes="(b, 3)")
    save(folder, signature, params=PARAMS, target=Target.converters(), vjp_order=0)


def main(runtime: str, site_packages: str, saved_model: str, model: str | None = None) -> None:
    """Prints a line of JSON."""
    sys.path.append(site_packages)
    from jax2tf_bridge import verify

    same = verify(saved_model, network, samples=2, runtime=runtime, model=model)
    changed = verify(
        saved_model, changed_network, samples=2, runtime=runtime, model=model, locate=True
    )
    facts = {"ok": same.ok, "title": same.title, "location": changed.as_json()["location"]}
    print(json.dumps(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])
