"""LoadedModel: what load() gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jax2tf_bridge._utils._suggestions import did_you_mean
from jax2tf_bridge.loading._functions import LoadedSignature


class LoadedModel:
    """A SavedModel as JAX functions and arrays; made by `load`.

    `model.serving_default(x)`, by the name of any signature, calls the function with the weights
    of the SavedModel. `model.functions["serving_default"](params, x)` takes them as an argument,
    to be differentiated with respect to them. `model.signatures["serving_default"](x=x)` takes the
    inputs and gives the outputs by name, as TensorFlow does.

    Attributes:
      path: the SavedModel's folder.
      functions: by the signature's name, with the arguments of the JAX function.
      signatures: by name.
      params: the weights, as the pytree that was saved; node types that are not registered here
        (register_pytree_node_serialization) are dicts or tuples. None if there are none.
      constants: the arrays that the functions captured, by name.
      problems: for each signature that JAX alone cannot run, why.
    """

    def __init__(
        self,
        path: Path,
        functions: Mapping[str, Callable[..., Any]],
        signatures: Mapping[str, LoadedSignature],
        params: Any,
        constants: Mapping[str, Any],
        *,
        own_weights: Callable[[Any], tuple[Any, ...]],
        problems: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.path = path
        self.functions = MappingProxyType(dict(functions))
        self.signatures = MappingProxyType(dict(signatures))
        self.params = params
        self.constants = MappingProxyType(dict(constants))
        self.problems = MappingProxyType(dict(problems))
        self._own_weights = own_weights

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = self.__dict__.get("functions", {}).get(name)
        if function is None:
            problem = self.__dict__.get("problems", {}).get(name)
            if problem is not None:
                raise AttributeError(f"the signature {name} cannot run in JAX alone: {problem}")
            near = did_you_mean(name, self.__dict__.get("functions", {}))
            raise AttributeError(f"the SavedModel has no signature {name}{near}")

        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*self._own_weights(function), *args, **kwargs)

        call.__name__ = call.__qualname__ = name
        call.__doc__ = f"The signature {name} on its own weights: {function!r}."
        return call

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.functions})

    def __repr__(self) -> str:
        lines = [f"LoadedModel {self.path}"]
        lines += [f"  {signature!r}" for signature in self.signatures.values()]
        lines += [f"  not in JAX: {name}: {why}" for name, why in self.problems.items()]
        if self.constants:
            lines.append(f"  captured arrays: {len(self.constants)}")
        return "\n".join(lines)
