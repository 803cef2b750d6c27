"""Compares a SavedModel and a JAX function on the same inputs: values, gradients, time."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

from jax2tf_bridge._dtypes import find_kind
from jax2tf_bridge._utils import progress_bar
from jax2tf_bridge.comparing import (
    DRAWS,
    ROUNDING_SEEDS,
    Distance,
    PlausibleInputs,
    bound_rounding_errors,
    find_largest_finite,
    infer_batch_variable,
    tolerance_of,
)
from jax2tf_bridge.errors import BridgeError, ModuleError, ShapeError
from jax2tf_bridge.from_jax import export, get_quick_options, run_rounded
from jax2tf_bridge.loading import LoadedFunction, make_input
from jax2tf_bridge.portable import Aval, PortableFunction
from jax2tf_bridge.saved_model import SignatureEntry
from jax2tf_bridge.storage import AnyPath, on_disk
from jax2tf_bridge.to_tensorflow import call_operations
from jax2tf_bridge.verifying._containers import KnownTypes, list_unknown_types
from jax2tf_bridge.verifying._locating import Location, Trace, locate
from jax2tf_bridge.verifying._runtimes import RuntimeModel, split_complex
from jax2tf_bridge.verifying._traces import CALL_MODULE, trace_function, trace_tensors
from jax2tf_bridge.verifying._verification import (
    SMALL_GRADIENT,
    Difference,
    Latency,
    Scale,
    Sizes,
    make_difference,
)
from shape_poly import (
    DimExpr,
    SymbolicScope,
    evaluate_shape,
    sample_sizes,
)

_DISTINCT_SIZES = range(3, 9)
"""Sizes at which `locate` searches: arrays of fewer numbers may equal others by chance."""

_MAX_DRAWS = 2
"""Maximum number of such sizes that it tries, before the sizes of the largest difference."""

_INTEGER_BOUND = 8
"""Exclusive bound of integers, which may be indices: nearly every table has 8 rows."""


class Sampler:
    """Draws sizes that satisfy the constraints of a function, and arrays of these sizes."""

    def __init__(
        self,
        portable: PortableFunction,
        seed: int,
        only: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        """Draws arguments of a portable function; equal seeds draw equal arguments.

        Args:
          portable: the function.
          seed: the seed of sizes and values.
          only: the allowed sizes of some variables; other variables take any size.
        """
        self._name, self._seed = portable.name, seed
        self._scope = SymbolicScope((*portable.constraints, *portable.requirements), check=False)
        self._shapes = [aval.shape for aval in (*portable.in_avals, *portable.out_avals)]
        self._generator = np.random.default_rng(seed)
        dims = (d for aval in portable.in_avals for d in aval.shape if isinstance(d, DimExpr))
        self.variables: tuple[str, ...] = tuple(
            dict.fromkeys(name for dim in dims for name in sorted(dim.variables()))
        )
        self._only = only or {}

    def draw_sizes(self, count: int) -> list[Sizes]:
        """Returns distinct sizes, the smallest first; fewer than `count` if no more exist.

        Raises:
          ShapeError: none were found.
        """
        return [
            self.complete_sizes({}),
            *itertools.islice(self._iter_sizes(self._only), 1, count),
        ]

    def complete_sizes(self, fixed: Sizes) -> Sizes:
        """Returns the smallest sizes that include the fixed ones.

        Raises:
          ShapeError: none were found.
        """
        among = {**self._only, **{name: [size] for name, size in fixed.items()}}
        smallest = next(self._iter_sizes(among), None)
        if smallest is None:
            free = [name for name in self.variables if name not in fixed]
            texts = ", ".join(f"{name} = {size}" for name, size in fixed.items())
            raise ShapeError(
                f"{self._name}: no sizes of {', '.join(free) or 'its variables'}"
                f"{f' with {texts}' if texts else ''} were found that satisfy "
                f"{self._scope if self._scope.constraints else 'its shapes'}."
            )
        return smallest

    def draw_distinct_sizes(self) -> list[Sizes]:
        """Returns small sizes, those with the most different numbers first."""
        among = {name: self._only.get(name, _DISTINCT_SIZES) for name in self.variables}
        samples = list(itertools.islice(self._iter_sizes(among), len(_DISTINCT_SIZES)))
        return sorted(samples, key=lambda sizes: -len(set(sizes.values())))

    def _iter_sizes(self, among: Mapping[str, Sequence[int]]) -> Iterator[Sizes]:
        return sample_sizes(
            self.variables, self._scope, among=among, nonempty=self._shapes, seed=self._seed
        )

    def draw_array(self, aval: Aval, sizes: Sizes, *, seed: bool = False) -> Any:
        """Draws a random array: normal floats or small integers; for a key, its words or a seed."""
        shape = aval.shape if seed else aval.op_shape
        size = tuple(int(n or 0) for n in evaluate_shape(shape, sizes))
        generator, dtype = self._generator, aval.op_dtype
        kind = find_kind(dtype)
        if kind == "bool":
            return generator.integers(0, 2, size).astype(bool)
        if kind in ("int", "uint"):
            return generator.integers(0, _INTEGER_BOUND, size).astype(dtype)
        numbers: Any = generator.normal(size=size)
        if kind == "complex":
            return (numbers + 1j * generator.normal(size=size)).astype(dtype)
        # Other dtypes, such as bfloat16, are converted from float32 by the caller.
        is_known = dtype in ("float16", "float32", "float64")
        return numbers.astype(dtype if is_known else np.float32)


@dataclass(frozen=True)
class _Pair:
    """Distance of an array in JAX and in the model.

    Attributes:
      difference: the difference of the array so far.
      distance: the distance.
      scale: the minimum scale.
    """

    difference: Difference
    distance: Distance
    scale: Scale

    @property
    def is_unexplained(self) -> bool:
        """Returns whether the array differs, and did not at other sizes."""
        relative = self.distance.relative(self.scale.number)
        return self.difference.within and relative > self.difference.tolerance

    def explain(self, rounding_error: float) -> _Pair:
        """Returns the pair with the scale of terms that cancel, if this explains the distance."""
        allowed = tolerance_of(self.difference.dtype)
        if not self.is_unexplained or not allowed:
            return self
        scale = Scale(rounding_error / allowed, cancels=True)
        explained = replace(self, scale=scale)
        return self if explained.is_unexplained else explained


class ComparedPair:
    """A signature of a SavedModel, and the JAX function that it should equal.

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
        runtime: RuntimeModel | None = None,
    ) -> None:
        """Loads the SavedModel in TensorFlow.

        Args:
          folder: the folder of the SavedModel.
          params: its weights.
          loaded: the signature's function, as load() returns it.
          entry: the sidecar's entry of the signature.
          function: the JAX function to compare with it.
          weight_names: the names of the variables of the weights that the function takes.
          seed: the seed of sizes and values.
          types: the container types of the function's arguments.
          runtime: the model in another runtime, which is compared instead; None for TensorFlow.

        Raises:
          BridgeError: the signature has a preprocess or postprocess, and was saved without the
            function between them.
        """
        name = loaded.name
        self._runtime = runtime
        self.portable = portable = loaded.portable
        # save() did not check padding along these variables, so only unpadded sizes are compared.
        self.sampler = Sampler(portable, seed, entry.only_buckets())
        self._pad_values = entry.pad_numbers()
        self._in_tree = types.add_to(portable.in_tree)
        self._weights: Sequence[Any] = ()
        weight_paths: Sequence[str] = ()
        if loaded.takes_params:
            weights = portable.first_argument
            self._weights = weights.flatten(params, "params")
            weight_paths = tuple(weights.leaf_paths("params"))
            function = types.as_function(weights)
        with on_disk(folder) as local_folder:
            self._root = tf.saved_model.load(str(local_folder))
        functions = getattr(self._root, "unprocessed", {})
        self.is_processed = functions.get(name) is not None
        self._call: Any = self._root.signatures[name]
        if self.is_processed:
            (self._call,) = functions[name].concrete_functions
        self._differentiable: Any = self._call
        # A signature that joins requests has no gradient.
        without_batching = getattr(self._root, "without_batching", {}).get(name)
        if without_batching is not None:
            (self._differentiable,) = without_batching.concrete_functions
        self._is_padded, self._draw_count = entry.buckets is not None, 0
        specs: Mapping[str, tf.TensorSpec] = self._call.structured_input_signature[1]
        self._specs = specs
        paths, avals = portable.in_paths(), portable.in_avals
        first = len(self._weights)
        by_path = {port.path: n for n, port in {**entry.inputs, **entry.masks}.items()}
        self._inputs: dict[str, Aval] = {
            by_path[path]: aval for path, aval in zip(paths[first:], avals[first:], strict=True)
        }
        out_names = {port.path: n for n, port in entry.outputs.items()}
        # A call also assigns new weights, which are compared like outputs.
        out_names |= {path: f"new {weight}" for path, weight in entry.updates.items()}
        self._outputs = dict(
            zip(
                (out_names[p] for p in portable.out_tree.leaf_paths()),
                portable.out_avals,
                strict=True,
            )
        )
        self._masks = list(entry.masks)
        mismatches = [
            name
            for name, spec in specs.items()
            if name not in self._inputs or not _fits_function(spec, self._inputs[name])
        ]
        if mismatches or set(specs) != set(entry.inputs):
            raise BridgeError(_format_missing_inner(name, "takes", mismatches or specs))
        if set(self._call.structured_outputs) != set(entry.outputs):
            raise BridgeError(_format_missing_inner(name, "returns", self._call.structured_outputs))
        self._variables = [self._root.params[name] for name in weight_names[:first]]
        by_weight = dict(zip(weight_paths, self._variables, strict=True))
        self._updated = {f"new {path}": by_weight[path] for path in entry.updates.values()}
        self._before = [variable.numpy() for variable in self._updated.values()]
        # The indices of the outputs that the signature returns, by name.
        self._results = {n: i for i, n in enumerate(self._outputs) if n not in self._updated}
        self._jax_function = function
        # Latency needs full optimization. Values are computed once, so they compile quickly.
        self._jitted: Any = jax.jit(self._call_flat)
        quick = get_quick_options()
        self._values: Any = jax.jit(self._call_flat, compiler_options=quick)
        self._with_gradients: Any = jax.jit(
            self._compute_vjp, static_argnums=0, compiler_options=quick
        )

    @property
    def unknown_types(self) -> list[str]:
        """Names of the container types that dicts or tuples replace in the function's arguments."""
        return list(dict.fromkeys(list_unknown_types(self._in_tree)))

    def compare(
        self, samples: Sequence[Sizes], tolerance: float | None, *, with_gradients: Sequence[Sizes]
    ) -> list[Difference]:
        """Finds the largest differences over samples.

        Args:
          samples: sizes.
          tolerance: the tolerance of all floats; None for the default of each dtype.
          with_gradients: the samples at which gradients are compared, too. They cost most: XLA
            compiles a program for each size, here and in TensorFlow, and gradient programs take
            several times as long.

        Raises:
          BridgeError: the results differ in number or shape.
        """
        differences = {
            ("output", name): make_difference("output", name, aval.op_dtype, tolerance)
            for name, aval in self._outputs.items()
        }
        # Both compilers release Python's lock, so that they run in parallel.
        with (
            ThreadPoolExecutor(1) as pool,
            progress_bar("comparing", len(samples), "size") as advance,
        ):
            for sizes in samples:
                inputs = self.draw(sizes)
                cotangents = self._draw_cotangents(sizes) if sizes in with_gradients else {}
                sources = self._find_sources() if cotangents else {}
                in_tensorflow = pool.submit(
                    self._run_in_tensorflow, self._make_tensors(inputs), sources, cotangents
                )
                leaves = self._make_leaves(inputs)
                expected, by_jax = self._run_in_jax(leaves, sources, cotangents)
                results, by_tensorflow = in_tensorflow.result()
                pairs: list[_Pair] = []
                for name, value in zip(self._outputs, expected, strict=True):
                    difference = differences["output", name]
                    value = self._to_runtime(_as_array(value))
                    distance = difference.measure(value, results[name], sizes)
                    pairs.append(_Pair(difference, distance, Scale()))
                # The scale ignores infinite numbers.
                largest = max(map(find_largest_finite, by_jax), default=0.0)
                scale = Scale(SMALL_GRADIENT * largest, "a tenth of the largest gradient")
                for (label, i), jax_gradient, tf_gradient in zip(
                    sources.items(), by_jax, by_tensorflow, strict=True
                ):
                    key = ("gradient", label)
                    if key not in differences:
                        dtype = self.portable.in_avals[i].dtype
                        differences[key] = make_difference("gradient", label, dtype, tolerance)
                    distance = differences[key].measure(jax_gradient, tf_gradient, sizes)
                    pairs.append(_Pair(differences[key], distance, scale))
                # This costs a compilation, so only what decides the outcome is explained.
                if any(pair.is_unexplained for pair in pairs):
                    arrays = [_as_array(value) for value in (*expected, *by_jax)]
                    rounded = self._run_rounded(leaves, sources, cotangents)
                    for bounds in bound_rounding_errors(arrays, rounded):
                        pairs = [*map(_Pair.explain, pairs, bounds)]
                        if not any(pair.is_unexplained for pair in pairs):
                            break
                for pair in pairs:
                    pair.difference.add(pair.distance, pair.scale, sizes)
                advance(1)
        return list(differences.values())

    def draw(self, sizes: Sizes) -> dict[str, Any]:
        """Draws random inputs of these sizes, by name; masks are all true.

        For signatures with buckets, inputs are plausible: lengths end within their sequences.
        """
        inputs, plausible = {}, self._draw_plausible(sizes)
        for name, aval in self._inputs.items():
            spec = self._specs.get(name)
            is_seed = spec is not None and aval.is_key and spec.shape.rank == len(aval.shape)
            inputs[name] = self.sampler.draw_array(aval, sizes, seed=is_seed)
            if name in self._masks:
                inputs[name] = np.ones_like(inputs[name])
            elif name in plausible and not aval.is_key:
                inputs[name] = plausible[name].astype(inputs[name].dtype)
        return inputs

    def _draw_plausible(self, sizes: Sizes) -> dict[str, Any]:
        if not self._is_padded:
            return {}
        avals = {n: aval for n, aval in self._inputs.items() if n not in self._masks}
        batch = infer_batch_variable(avals)
        sequences = tuple(v for v in self.sampler.variables if v != batch)
        self._draw_count += 1
        return PlausibleInputs(avals, sequences, batch, self._pad_values).draw(
            DRAWS[self._draw_count % len(DRAWS)], sizes, np.random.default_rng(self._draw_count)
        )

    def locate(self, differences: Sequence[Difference], tolerance: float | None) -> Location | None:
        """Finds the first line of the function whose value differs.

        Args:
          differences: the differences, as `compare` returns them.
          tolerance: the tolerance of all floats; None for the default of each dtype.

        Returns:
          The line; None if no output differs.
        """
        beyond = [d for d in differences if d.what == "output" and not d.within]
        if not beyond:
            return None
        samples = self.sampler.draw_distinct_sizes()
        worst = max(beyond, key=lambda d: d.relative).sizes
        names = {d.name for d in beyond}
        for sizes in [*samples[:_MAX_DRAWS], worst, worst]:
            location = self._locate_at(sizes, tolerance, names)
            if location is not None:
                return location
        return None

    def _locate_at(self, sizes: Sizes, tolerance: float | None, names: set[str]) -> Location | None:
        """Finds the line with new random inputs, which need not show the difference.

        Args:
          sizes: the sizes of the inputs.
          tolerance: the tolerance of all floats; None for the default of each dtype.
          names: the outputs that differ.
        """
        inputs = self.draw(sizes)
        function = trace_function(self._call_flat, self._make_leaves(inputs), get_quick_options())
        tensors = self._make_tensors(inputs)
        if self._runtime is None:
            model = self._trace_in_tensorflow(tensors)
            self._restore_weights()
        else:
            model = self._runtime.trace(_make_arrays(tensors), list(self._results))
            function.values = [self._to_runtime(value) for value in function.values]
        # Other outputs may have other rounding errors where terms cancel.
        chosen = [name in names for name in self._results]
        if not any(chosen):  # new weights differ
            chosen = [True] * len(chosen)
        model.outputs = list(itertools.compress(model.outputs, chosen))
        indices = itertools.compress(self._results.values(), chosen)
        function.outputs = [function.outputs[i] for i in indices]
        return locate(function, model, tolerance)

    def _to_runtime(self, value: Any) -> Any:
        """Returns a value of JAX in the dtype that the runtime has for it."""
        if value is None or self._runtime is None:
            return value
        array = np.asarray(value)
        if array.dtype == np.uint32 and not self._runtime.has_uint32:
            return array.view(np.int32)
        return array if self._runtime.has_complex else split_complex(array)

    def _trace_in_tensorflow(self, tensors: Mapping[str, tf.Tensor]) -> Trace:
        specs = self._specs
        nodes = self._call.graph.as_graph_def().library.function
        calls_module = any(n.op == CALL_MODULE for f in nodes for n in f.node_def)
        if calls_module and not self.portable.lifted_constants:
            # The module is one operation, so its tensors are those of TensorFlow's operations.
            weights = [tf.convert_to_tensor(variable) for variable in self._variables]
            arguments = [*weights, *(tensors[name] for name in self._inputs if name in specs)]

            def call_with_operations(*args: tf.Tensor) -> list[tf.Tensor]:
                outputs = call_operations(self.portable, args)
                return [outputs[i] for i in self._results.values()]

            with contextlib.suppress(ModuleError, ShapeError, KeyError):
                return trace_tensors(call_with_operations, arguments)
        ordered = sorted(specs)

        def call(*args: tf.Tensor) -> list[tf.Tensor]:
            results = self._call(**dict(zip(ordered, args, strict=True)))
            return [results[name] for name in self._results]

        return trace_tensors(call, [tensors[name] for name in ordered])

    def measure_latency(self, size: int | None, sizes: Sizes, rounds: int) -> Latency:
        """Times both functions, alternating; compilation is not measured."""
        inputs = self.draw(sizes)
        leaves = [
            jnp.asarray(leaf) if not _is_key(leaf) else leaf for leaf in self._make_leaves(inputs)
        ]
        tensors = self._make_tensors(inputs)
        first = next(iter(self._results))

        def in_jax() -> None:
            jax.block_until_ready(self._jitted(leaves))

        def in_tensorflow() -> None:
            self._call(**tensors)[first].numpy()

        durations: tuple[list[float], list[float]] = ([], [])
        for i in range(rounds + 2):
            for run, times in zip((in_jax, in_tensorflow), durations, strict=True):
                start = time.perf_counter()
                run()
                if i > 1:  # the first compile, and warm the caches
                    times.append(1000 * (time.perf_counter() - start))
        self._restore_weights()
        return Latency(size, statistics.median(durations[0]), statistics.median(durations[1]))

    def _find_sources(self) -> dict[str, int]:
        """Returns the flat argument positions of arrays with gradients, by name."""
        first, paths = len(self._weights), self.portable.in_paths()
        sources = {paths[i]: i for i in range(first) if _is_real(self.portable.in_avals[i])}
        for i, (name, aval) in enumerate(self._inputs.items()):
            if _is_real(aval) and name not in self._masks:
                sources[name] = first + i
        return sources

    def _draw_cotangents(self, sizes: Sizes) -> dict[str, Any]:
        return {
            name: self.sampler.draw_array(Aval(aval.op_shape, "float32"), sizes)
            for name, aval in self._outputs.items()
            if _is_real(aval) and name in self._results
        }

    def _run_in_jax(
        self, leaves: Sequence[Any], sources: Mapping[str, int], cotangents: Mapping[str, Any]
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Computes results and gradients in JAX, in one program."""
        if not sources:
            return self._check_count(self._values(leaves)), []
        where = tuple(sources.values())
        results, gradients = self._with_gradients(
            where, [leaves[i] for i in where], leaves, cotangents
        )
        return results, gradients

    def _run_rounded(
        self, leaves: Sequence[Any], sources: Mapping[str, int], cotangents: Mapping[str, Any]
    ) -> Iterator[list[Any]]:
        """Yields the results and gradients in JAX if operations round.

        Yields nothing if JAX cannot export the function.
        """
        where = tuple(sources.values())

        def run(leaves: Sequence[Any], cotangents: Mapping[str, Any]) -> list[Any]:
            if not where:
                return self._call_flat(leaves)
            chosen = [leaves[i] for i in where]
            results, gradients = self._compute_vjp(where, chosen, leaves, cotangents)
            return [*results, *gradients]

        factors = {name: jnp.asarray(cotangent) for name, cotangent in cotangents.items()}
        with contextlib.suppress(BridgeError):
            portable = export(run, platforms=[jax.default_backend()])(list(leaves), factors)
            arguments = jax.tree.leaves((list(leaves), factors))
            for results in run_rounded(portable, arguments, ROUNDING_SEEDS):
                yield [_as_array(value) for value in results]

    def _run_in_tensorflow(
        self,
        tensors: Mapping[str, tf.Tensor],
        sources: Mapping[str, int],
        cotangents: Mapping[str, Any],
    ) -> tuple[dict[str, Any], list[Any]]:
        if self._runtime is not None:
            return self._runtime.run(_make_arrays(tensors)), []
        first = len(self._weights)
        names = list(self._inputs)
        watched = [
            self._variables[i] if i < first else tensors[names[i - first]] for i in sources.values()
        ]
        # A tape fails on a function that was saved without a gradient.
        with tf.GradientTape(watch_accessed_variables=bool(watched)) as tape:
            tape.watch(watched)
            outputs = self._differentiable(**tensors)
        results = outputs if self._differentiable is self._call else self._call(**tensors)
        gradients = []
        if watched:
            gradients = tape.gradient(
                [outputs[n] for n in cotangents],
                watched,
                output_gradients=[tf.cast(c, outputs[n].dtype) for n, c in cotangents.items()],
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
        arrays = [tf.convert_to_tensor(g).numpy() for g in gradients]
        new_weights = {name: variable.numpy() for name, variable in self._updated.items()}
        self._restore_weights()
        return {**{name: value.numpy() for name, value in results.items()}, **new_weights}, arrays

    def _restore_weights(self) -> None:
        for variable, value in zip(self._updated.values(), self._before, strict=True):
            variable.assign(value)

    def _compute_vjp(
        self,
        where: tuple[int, ...],
        chosen: Sequence[Any],
        leaves: Sequence[Any],
        cotangents: Mapping[str, Any],
    ) -> tuple[list[Any], list[Any]]:
        """Computes the results, and the gradients with respect to the leaves at `where`."""

        def outputs(values: Sequence[Any]) -> tuple[dict[str, Any], list[Any]]:
            arguments = list(leaves)
            for place, value in zip(where, values, strict=True):
                arguments[place] = value
            results = self._check_count(self._call_flat(arguments))
            by_name = dict(zip(self._outputs, results, strict=True))
            return {n: by_name[n] for n in cotangents}, results

        primals, vjp, results = jax.vjp(outputs, list(chosen), has_aux=True)
        if any(primals[n].shape != c.shape for n, c in cotangents.items()):
            return results, []  # the comparison of the results reports the shapes
        factors = {n: jnp.asarray(c, primals[n].dtype) for n, c in cotangents.items()}
        (gradients,) = vjp(factors)
        return results, gradients

    def _call_flat(self, leaves: Sequence[Any]) -> list[Any]:
        args, kwargs = self._in_tree.unflatten(iter(leaves))
        return jax.tree.leaves(self._jax_function(*args, **kwargs))

    def _make_leaves(self, inputs: Mapping[str, Any]) -> list[Any]:
        arguments = []
        for name, aval in self._inputs.items():
            value = make_input(inputs[name], aval, name)
            arguments.append(value if _is_key(value) else jnp.asarray(value, aval.dtype))
        return [*self._weights, *arguments]

    def _make_tensors(self, inputs: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        return {
            name: tf.cast(tf.constant(inputs[name]), spec.dtype)
            for name, spec in self._specs.items()
        }

    def _check_count(self, results: list[Any]) -> list[Any]:
        if len(results) != len(self._outputs):
            raise BridgeError(
                f"The JAX function returns {len(results)} arrays, but the SavedModel returns "
                f"{len(self._outputs)}: {', '.join(self._outputs)}. The SavedModel was saved from "
                "another function."
            )
        return results


def _format_missing_inner(name: str, verb: str, arrays: Iterable[str]) -> str:
    return (
        f"The signature {name} {verb} {', '.join(arrays)}, but the JAX function does not. The "
        "signature has a preprocess or postprocess, and an older release of the bridge saved it "
        "without the function between them. Save the model again, and verify the new one."
    )


def _make_arrays(tensors: Mapping[str, tf.Tensor]) -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def _is_real(aval: Aval) -> bool:
    return find_kind(aval.dtype) == "float"


def _fits_function(spec: tf.TensorSpec, aval: Aval) -> bool:
    """Returns whether an input of the signature fits the JAX function, not a preprocess."""
    # A model for converters has float32 in place of bfloat16.
    dtypes = (aval.op_dtype, replace(aval, widened=True).op_dtype)
    return aval.is_key or spec.dtype.name in dtypes


def _as_array(value: Any) -> Any:
    """Returns a NumPy array; the words of a key."""
    return np.asarray(jax.random.key_data(value) if _is_key(value) else value)


def _is_key(value: Any) -> bool:
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
