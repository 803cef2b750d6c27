"""Compiles exported functions for an H100 and a TPU v5e, neither of which has to be there.

    python -m tests.consumers.compile_for_devices EXPORTED REPORT [NAME ...]

needs JAX with the plugins for both, and neither TensorFlow nor a device. XLA compiles a function
and its gradient, at the sizes of the last call, as they come back from the exporting side's files:
the portable function (record.pickle), or else the SavedModel (model) as `load` reads it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

# A TPU's compiler asks the machine which TPU it has; these are its answers where there is none.
# JAX itself runs on the CPU, so that CUDA's plugin does not look for CUDA's libraries.
os.environ |= {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
}

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from jax2tf_bridge import load, to_exported
from jax2tf_bridge.portable import flat_call, flat_names, flat_tuple
from tests.consumers.exchange import Report, read_arrays
from tests.consumers.one_by_one import one_by_one
from tests.programs import PROGRAMS

DEVICES = {"H100": "cuda", "v5e": "tpu"}
"""The platform of each, as JAX names it when it lowers."""

# A GpuTargetConfigProto (xla/service/gpu/gpu_device_info.proto), with the figures of NVIDIA's data
# sheet of the H100 SXM5.
_H100 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 84942979072
  shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 1 patch: 1 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""

Function = Callable[..., Sequence[Any]]


def _device(name: str) -> Any:
    if name == "v5e":
        topology = topologies.get_topology_desc(topology_name="v5e:2x2", platform="tpu")
    else:
        topology = topologies.get_topology_desc(
            topology_name="h100", platform="cuda", topology="1x1x1", target_config=_H100
        )
    return topology.devices[0]


def _with_gradient(function: Function, specs: Sequence[Any]) -> Function:
    """Returns the function with its gradient for all floating-point and complex arguments."""
    sources = [i for i, spec in enumerate(specs) if jnp.issubdtype(spec.dtype, jnp.inexact)]

    def run(*leaves: Any) -> Sequence[Any]:
        def differentiable(*values: Any) -> tuple[Sequence[Any], Sequence[Any]]:
            every = list(leaves)
            for i, value in zip(sources, values, strict=True):
                every[i] = value
            results = function(*every)
            return [r for r in results if jnp.issubdtype(r.dtype, jnp.inexact)], results

        values = [leaves[i] for i in sources]
        targets, pull_back, results = jax.vjp(differentiable, *values, has_aux=True)
        return [*results, *pull_back([jnp.ones_like(t) for t in targets])]

    return run


def _compile(device_name: str, function: Function, specs: Sequence[Any]) -> None:
    sharding = SingleDeviceSharding(_device(device_name))
    jitted = jax.jit(function, in_shardings=sharding, out_shardings=sharding)
    jitted.trace(*specs).lower(lowering_platforms=(DEVICES[device_name],)).compile()


def _portable_function(folder: Path) -> tuple[Function, list[Any], bool]:
    portable = pickle.loads((folder / "record.pickle").read_bytes())
    # Flat arguments and results, so that no type of a pytree node has to be known here.
    exported = to_exported(
        replace(
            portable,
            in_tree=flat_call(len(portable.in_avals)),
            out_tree=flat_tuple(len(portable.out_avals)),
            argument_names=flat_names(len(portable.in_avals)),
        )
    )
    arrays = _inputs(folder, "program.json")
    specs = [
        # Arrays of typed keys have their words as one more dimension.
        jax.ShapeDtypeStruct(array.shape[: len(aval.shape)], aval.dtype)
        for array, aval in zip(arrays, exported.in_avals, strict=True)
    ]
    return exported.call, specs, portable.has_vjp


def _saved_model(folder: Path) -> tuple[Function, list[Any], bool]:
    model = load(folder / "model")
    facts = json.loads((folder / "model.json").read_text())
    places, tree = jax.tree_util.tree_flatten(facts["arguments"])
    arrays = _inputs(folder, "model.json")
    inputs = jax.tree_util.tree_unflatten(tree, [arrays[i] for i in places])
    leaves, tree = jax.tree_util.tree_flatten((model.params, *inputs))
    function = model.functions["serving_default"]

    def flat(*leaves: Any) -> Sequence[Any]:
        return jax.tree_util.tree_leaves(function(*jax.tree_util.tree_unflatten(tree, leaves)))

    avals = function.portable.in_avals
    specs = [
        # Keys are read as their words.
        jax.eval_shape(jax.random.wrap_key_data, leaf)
        if aval.is_key
        else jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype)
        for leaf, aval in zip(leaves, avals, strict=True)
    ]
    return flat, specs, function.portable.has_vjp


def _inputs(folder: Path, facts: str) -> list[Any]:
    last = json.loads((folder / facts).read_text())["calls"] - 1
    return read_arrays(folder / f"call-{last}.npz").get("inputs", [])


def _check(folder: Path) -> Iterator[str]:
    is_program = (folder / "record.pickle").exists()
    function, specs, has_gradient = (_portable_function if is_program else _saved_model)(folder)
    compiled = _with_gradient(function, specs) if has_gradient else function
    for name in DEVICES:
        try:
            _compile(name, compiled, specs)
        except Exception as e:
            yield f"{name}: {type(e).__name__}: {str(e)[:1500]}"


def main(exported: Path, report_path: Path, *names: str) -> None:
    """Compiles the functions named, or all that were exported."""
    report = Report(report_path)
    report.head({"jax": jax.__version__, "python": "{}.{}.{}".format(*sys.version_info[:3])})
    every = names or sorted(p.parent.name for p in exported.glob("*/call-0.npz"))
    precisions = {program.name: program.precision for program in PROGRAMS}

    def check(name: str) -> list[str]:
        with precisions.get(name, contextlib.nullcontext)():
            return list(_check(exported / name))

    one_by_one(report, every, check)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
