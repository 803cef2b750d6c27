"""Compares a SavedModel and a JAX function on the same inputs: values, gradients, time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

from jax2tf_bridge.errors import BridgeError
from jax2tf_bridge.loading import LoadedFunction, make_typed_key
from jax2tf_bridge.portable import DRAWS, Aval, PlausibleInputs, batch_variable, kind_of
from jax2tf_bridge.saved_model import SignatureEntry
from jax2tf_bridge.storage import AnyPath, on_disk
from jax2tf_bridge.verifying._containers import KnownTypes, unknown_types
from jax2tf_bridge.verifying._differences import (
    SMALL_GRADIENT,
    Difference,
    largest,
    started,
    wide,
)
from jax2tf_bridge.verifying._samples import Sampler, Sizes

_QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


@dataclass(frozen=True)
class Latency:
    """Median time of a call, in milliseconds.

    Attributes:
      size: of the variable that is changed; None if nothing is open.
      jax_ms: of the jitted JAX function.
      saved_model_ms: of the SavedModel's signature, from Python.
    """

    size: int | None
    jax_ms: float
    saved_model_ms: float


class Pair:
    """A signature of a SavedModel, and the JAX function that it should be.

    Attributes:
      is_processed: whether the signature has a preprocess or postprocess. Then the function
        between them is compared.
    """

    def __init__(
        self,
        folder: AnyPath,
        params: Any,
        loaded: LoadedFunction,
        entry: SignatureEntry,
        function: Callable[..., Any],
        weight_names: Sequence[str],
        seed: int,
        types: KnownTypes,
    ) -> None:
        """Loads the SavedModel in TensorFlow.

        Args:
          folder: of the SavedModel.
          params: its weights.
          loaded: the signature's function, as load() gives it.
          entry: what save() wrote of the signature.
          function: what is compared with it.
          weight_names: of the variables of the weights that the function takes.
          seed: of sizes and values.
          types: the containers of the function's arguments.

        Raises:
          BridgeError: it has a preprocess or postprocess, and was saved without the function
            between them.
        """
        name = loaded.name
        self.portable = portable = loaded.portable
        # Nobody promises what padding along these does: only sizes that need none are compared.
        self.sampler = Sampler(portable, seed, entry.only_buckets())
        self._pad_values = entry.pad_numbers()
        self._in_tree = types.add_to(portable.in_tree)
        self._weights: Sequence[Any] = ()
        if loaded.takes_params:
            weights = portable.in_tree.children[0].children[0]
            self._weights = weights.flatten(params, "params")
            function = types.as_function(weights)
        with on_disk(folder) as here:
            self._root = tf.saved_model.load(str(here))
        functions = getattr(self._root, "unprocessed", {})
        self.is_processed = functions.get(name) is not None
        self._call: Any = self._root.signatures[name]
        if self.is_processed:
            (self._call,) = functions[name].concrete_functions
        self._is_padded, self._drawn = entry.buckets is not None, 0
        specs: Mapping[str, tf.TensorSpec] = self._call.structured_input_signature[1]
        self._specs = specs
        paths, avals = portable.in_paths(), portable.in_avals
        first = len(self._weights)
        by_path = {each.path: n for n, each in {**entry.inputs, **entry.masks}.items()}
        self._inputs: dict[str, Aval] = {
            by_path[path]: aval for path, aval in zip(paths[first:], avals[first:], strict=True)
        }
        out_names = {each.path: n for n, each in entry.outputs.items()}
        self._outputs = dict(
            zip(
                (out_names[p] for p in portable.out_tree.leaf_paths()),
                portable.out_avals,
                strict=True,
            )
        )
        self._masks = list(entry.masks)
        strange = [
            name
            for name, spec in specs.items()
            if name not in self._inputs or not _is_of(spec, self._inputs[name])
        ]
        if strange or set(specs) != set(entry.inputs):
            raise BridgeError(_without_inner(name, "takes", strange or specs))
        if set(self._call.structured_outputs) != set(self._outputs):
            raise BridgeError(_without_inner(name, "gives", self._call.structured_outputs))
        self._variables = [self._root.params[name] for name in weight_names[:first]]
        self._jax_function = function
        # Compiled as when served, for latency; compiled quickly for values, computed once each.
        self._jitted: Any = jax.jit(self._flat)
        quick = _quick_options()
        self._values: Any = jax.jit(self._flat, compiler_options=quick)
        self._with_gradients: Any = jax.jit(self._vjp, static_argnums=0, compiler_options=quick)

    @property
    def unknown_types(self) -> list[str]:
        """Names the types of containers that the function gets dicts or tuples for."""
        return list(dict.fromkeys(unknown_types(self._in_tree)))

    def compare(
        self, samples: Sequence[Sizes], tolerance: float | None, *, with_gradients: Sequence[Sizes]
    ) -> list[Difference]:
        """Finds the largest differences over samples.

        Args:
          samples: sizes.
          tolerance: what is allowed of all floats; None for what their dtypes have.
          with_gradients: those of the samples at which gradients are compared, too. They cost
            most: XLA compiles a program for each size, here and in TensorFlow, and those of
            gradients take several times as long.

        Raises:
          BridgeError: the results have other shapes, or are not as many.
        """
        found = {
            ("output", name): started("output", name, aval.op_dtype, tolerance)
            for name, aval in self._outputs.items()
        }
        # Both compilers leave Python's lock to each other.
        with ThreadPoolExecutor(1) as beside:
            for sizes in samples:
                inputs = self.draw(sizes)
                cotangents = self._cotangents(sizes) if sizes in with_gradients else {}
                sources = self._sources() if cotangents else {}
                in_tensorflow = beside.submit(
                    self._in_tensorflow, self._tensors(inputs), sources, cotangents
                )
                expected, by_jax = self._in_jax(self._leaves(inputs), sources, cotangents)
                results, by_tensorflow = in_tensorflow.result()
                for (name, aval), value in zip(self._outputs.items(), expected, strict=True):
                    if aval.is_key:
                        value = jax.random.key_data(value)
                    found["output", name].add(value, results[name], sizes)
                # Some numbers of the largest may be infinite; then the rest has a scale, too.
                scale = SMALL_GRADIENT * max((largest(wide(g)) for g in by_jax), default=0.0)
                for (label, i), one, other in zip(
                    sources.items(), by_jax, by_tensorflow, strict=True
                ):
                    key = ("gradient", label)
                    if key not in found:
                        dtype = self.portable.in_avals[i].dtype
                        found[key] = started("gradient", label, dtype, tolerance)
                    found[key].add(one, other, sizes, scale)
        return list(found.values())

    def draw(self, sizes: Sizes) -> dict[str, Any]:
        """Random inputs of these sizes, by name; masks are all true.

        Where buckets pad, they are such as requests have: lengths end within their sequences.
        """
        inputs, plausible = {}, self._draw_plausible(sizes)
        for name, aval in self._inputs.items():
            spec = self._specs.get(name)
            is_seed = spec is not None and aval.is_key and spec.shape.rank == len(aval.shape)
            inputs[name] = self.sampler.array(aval, sizes, seed=is_seed)
            if name in self._masks:
                inputs[name] = np.ones_like(inputs[name])
            elif name in plausible and not aval.is_key:
                inputs[name] = plausible[name].astype(inputs[name].dtype)
        return inputs

    def _draw_plausible(self, sizes: Sizes) -> dict[str, Any]:
        if not self._is_padded:
            return {}
        given = {n: aval for n, aval in self._inputs.items() if n not in self._masks}
        batch = batch_variable(given)
        sequences = tuple(v for v in self.sampler.variables if v != batch)
        self._drawn += 1
        return PlausibleInputs(given, sequences, batch, self._pad_values).draw(
            DRAWS[self._drawn % len(DRAWS)], sizes, np.random.default_rng(self._drawn)
        )

    def latency(self, size: int | None, sizes: Sizes, rounds: int) -> Latency:
        """Times both, in turns; neither compiles within what is measured."""
        inputs = self.draw(sizes)
        leaves = [jnp.asarray(leaf) if not _is_key(leaf) else leaf for leaf in self._leaves(inputs)]
        tensors = self._tensors(inputs)
        (first, *_) = self._outputs

        def in_jax() -> None:
            jax.block_until_ready(self._jitted(leaves))

        def in_tensorflow() -> None:
            self._call(**tensors)[first].numpy()

        took: tuple[list[float], list[float]] = ([], [])
        for i in range(rounds + 2):
            for run, times in zip((in_jax, in_tensorflow), took, strict=True):
                begun = time.perf_counter()
                run()
                if i > 1:  # the first compile, and warm the caches
                    times.append(1000 * (time.perf_counter() - begun))
        return Latency(size, statistics.median(took[0]), statistics.median(took[1]))

    def _sources(self) -> dict[str, int]:
        """Returns what has gradients: places among the flat arguments, by name."""
        first, paths = len(self._weights), self.portable.in_paths()
        sources = {paths[i]: i for i in range(first) if _is_real(self.portable.in_avals[i])}
        for i, (name, aval) in enumerate(self._inputs.items()):
            if _is_real(aval) and name not in self._masks:
                sources[name] = first + i
        return sources

    def _cotangents(self, sizes: Sizes) -> dict[str, Any]:
        """Draws the factors of the outputs, of whose sum the gradients are."""
        return {
            name: self.sampler.array(Aval(aval.op_shape, "float32"), sizes)
            for name, aval in self._outputs.items()
            if _is_real(aval)
        }

    def _in_jax(
        self, leaves: Sequence[Any], sources: Mapping[str, int], cotangents: Mapping[str, Any]
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Computes results and gradients by JAX, in one program."""
        if not sources:
            return self._checked(self._values(leaves)), []
        where = tuple(sources.values())
        results, gradients = self._with_gradients(
            where, [leaves[i] for i in where], leaves, cotangents
        )
        return results, gradients

    def _in_tensorflow(
        self,
        tensors: Mapping[str, tf.Tensor],
        sources: Mapping[str, int],
        cotangents: Mapping[str, Any],
    ) -> tuple[dict[str, Any], list[Any]]:
        """Computes results and gradients by the SavedModel."""
        first = len(self._weights)
        names = list(self._inputs)
        watched = [
            self._variables[i] if i < first else tensors[names[i - first]] for i in sources.values()
        ]
        with tf.GradientTape() as tape:
            tape.watch(watched)
            results = self._call(**tensors)
        gradients = []
        if watched:
            gradients = tape.gradient(
                [results[n] for n in cotangents],
                watched,
                output_gradients=[tf.cast(c, results[n].dtype) for n, c in cotangents.items()],
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
        arrays = [tf.convert_to_tensor(g).numpy() for g in gradients]
        return {name: results[name].numpy() for name in self._outputs}, arrays

    def _vjp(
        self,
        where: tuple[int, ...],
        chosen: Sequence[Any],
        leaves: Sequence[Any],
        cotangents: Mapping[str, Any],
    ) -> tuple[list[Any], list[Any]]:
        """Computes the results, and the gradients by the leaves at these places."""

        def outputs(values: Sequence[Any]) -> tuple[dict[str, Any], list[Any]]:
            given = list(leaves)
            for place, value in zip(where, values, strict=True):
                given[place] = value
            results = self._checked(self._flat(given))
            by_name = dict(zip(self._outputs, results, strict=True))
            return {n: by_name[n] for n in cotangents}, results

        primals, vjp, results = jax.vjp(outputs, list(chosen), has_aux=True)
        if any(primals[n].shape != c.shape for n, c in cotangents.items()):
            return results, []  # which is said of the results
        factors = {n: jnp.asarray(c, primals[n].dtype) for n, c in cotangents.items()}
        (gradients,) = vjp(factors)
        return results, gradients

    def _flat(self, leaves: Sequence[Any]) -> list[Any]:
        args, kwargs = self._in_tree.unflatten(iter(leaves))
        return jax.tree.leaves(self._jax_function(*args, **kwargs))

    def _leaves(self, inputs: Mapping[str, Any]) -> list[Any]:
        """Makes the flat arguments of the JAX function."""
        own = []
        for name, aval in self._inputs.items():
            value = make_typed_key(inputs[name], aval)
            own.append(value if _is_key(value) else jnp.asarray(value, aval.dtype))
        return [*self._weights, *own]

    def _tensors(self, inputs: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        return {
            name: tf.cast(tf.constant(inputs[name]), spec.dtype)
            for name, spec in self._specs.items()
        }

    def _checked(self, results: list[Any]) -> list[Any]:
        if len(results) != len(self._outputs):
            raise BridgeError(
                f"The JAX function gives {len(results)} arrays, and the SavedModel "
                f"{len(self._outputs)}: {', '.join(self._outputs)}. It is another function."
            )
        return results


def _without_inner(name: str, verb: str, arrays: Iterable[str]) -> str:
    return (
        f"The signature {name} {verb} {', '.join(arrays)}, which the JAX function does not: it has "
        "a preprocess or postprocess, and this SavedModel lacks the function between them, as "
        "older releases of the bridge wrote it. Save the model again, and verify that."
    )


def _is_real(aval: Aval) -> bool:
    return kind_of(aval.dtype) == "float"


def _quick_options() -> dict[str, Any] | None:
    """Returns the XLA options that halve compiling on CPU; None where it lacks them."""
    if jax.default_backend() != "cpu":
        return None
    try:
        jax.jit(lambda: 0, compiler_options=_QUICK)()
    except jax.errors.JaxRuntimeError:  # XLA changes its options; the values are the same without
        return None
    return _QUICK


def _is_of(spec: tf.TensorSpec, aval: Aval) -> bool:
    """Returns whether an input of the signature is the JAX function's, not a preprocess's."""
    return aval.is_key or spec.dtype.name == aval.op_dtype


def _is_key(value: Any) -> bool:
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
