"""Writes a model as a SavedModel, with what JAX answers beside it; needs JAX and TensorFlow."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jax2tf_bridge import Signature, Target, save
from jax2tf_bridge.saving import SavedModel
from tests.consumers.exchange import EXAMPLE, OPERATIONS, write_arrays
from tests.consumers.own_operations import without_xla
from tests.models.model import Arguments, Built, Model, normal
from tests.program_cases.reference import crossing

SIGNATURE = "serving_default"


def save_model(
    model: Model,
    built: Built,
    folder: Path,
    target: Target | None = None,
    platforms: Sequence[str] | None = None,
) -> SavedModel:
    """Saves a model by one call, as a user writes it."""
    signature = Signature(
        built.function, args=built.example, polymorphic_shapes=list(model.polymorphic_shapes)
    )
    return save(
        folder,
        {SIGNATURE: signature},
        params=built.params,
        trainable=model.trainable,
        vjp_order=1,
        target=target,
        platforms=platforms,
    )


def export_model(model: Model, folder: Path) -> None:
    """Writes `folder`/model, with XLA and without, and for each call what JAX answers.

    The inputs of the example are written as well: all runtimes measure its time.

    The gradients are those of all floating-point arguments and weights, in the order of
    "sources" in model.json: first the arguments' leaves, then the weights by name.
    """
    folder.mkdir(parents=True)
    built = model.build()
    saved = save_model(model, built, folder / "model")
    save_model(model, built, folder / f"{OPERATIONS}model", without_xla())
    weights, leaves = list(saved.weights), jax.tree_util.tree_leaves(built.params)
    assert [saved.weights[name].shape for name in weights] == [np.shape(leaf) for leaf in leaves]
    for i, args in enumerate(built.calls):
        inputs, tree = jax.tree_util.tree_flatten(args)
        results, cotangents, gradients = _answers(built, args)
        groups = {"inputs": list(map(crossing, inputs)), "results": results}
        groups |= {"cotangents": cotangents, "gradients": gradients}
        write_arrays(folder / f"call-{i}.npz", groups)
    example = map(crossing, jax.tree_util.tree_leaves(built.example))
    write_arrays(folder / EXAMPLE, {"inputs": list(example)})
    offered = saved.signatures[SIGNATURE]
    facts = {
        "calls": len(built.calls),
        "arguments": jax.tree_util.tree_unflatten(tree, range(len(inputs))),
        "inputs": list(offered.inputs),
        "outputs": list(offered.outputs),
        "sources": _inexact(inputs),
        "weights": [weights[i] for i in _inexact(leaves)],
        "tolerance": model.tolerance,
        "gradient_tolerance": model.gradient_tolerance,
    }
    (folder / "model.json").write_text(json.dumps(facts))


def _answers(built: Built, args: Arguments) -> tuple[list[Any], list[Any], list[Any]]:
    """Results, cotangents for those of floats, and the gradients of arguments and weights."""
    weights, weights_tree = jax.tree_util.tree_flatten(built.params)
    inputs, inputs_tree = jax.tree_util.tree_flatten(args)
    leaves = [*inputs, *weights]
    sources = _inexact(leaves)

    def flat(given: Sequence[Any], others: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        every = list(others)
        for i, value in zip(sources, given, strict=True):
            every[i] = value
        arguments = jax.tree_util.tree_unflatten(inputs_tree, every[: len(inputs)])
        params = jax.tree_util.tree_unflatten(weights_tree, every[len(inputs) :])
        results = jax.tree_util.tree_leaves(built.function(params, *arguments))
        targets = _inexact(results)
        return [results[i] for i in targets], results

    def differentiated(given: Any, others: Any, cotangents: Any) -> Any:
        _, pull_back, results = jax.vjp(lambda g: flat(g, others), given, has_aux=True)
        return results, pull_back(cotangents)[0]

    given = [leaves[i] for i in sources]
    targets, _ = jax.eval_shape(flat, given, leaves)
    cotangents = [normal(*t.shape, seed=17 + i, dtype=t.dtype) for i, t in enumerate(targets)]
    results, gradients = jax.jit(differentiated)(given, leaves, cotangents)
    return [crossing(r) for r in results], cotangents, [np.asarray(g) for g in gradients]


def _inexact(values: Sequence[Any]) -> list[int]:
    return [i for i, v in enumerate(values) if jax.dtypes.issubdtype(v.dtype, np.inexact)]
