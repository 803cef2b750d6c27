"""Report of save_litert(), for people and programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jax2tf_bridge.saving import ServedArray
from jax2tf_bridge.saving.signatures import served_text
from jax2tf_bridge.storage import AnyPath


@dataclass(frozen=True)
class LiteRTSignature:
    """Signature of a LiteRT model.

    Attributes:
      inputs, outputs: the inputs and outputs by name.
    """

    inputs: Mapping[str, ServedArray]
    outputs: Mapping[str, ServedArray]

    def __str__(self) -> str:
        return f"({served_text(self.inputs)}) -> ({served_text(self.outputs)})"


@dataclass(frozen=True)
class LiteRTModel:
    """Model that `save_litert` wrote; print it.

    Attributes:
      path: the path of the file.
      signatures: the signatures by name.
      size: the size of the file in bytes.
      quantize: the kind of quantization, or None.
    """

    path: AnyPath
    signatures: Mapping[str, LiteRTSignature]
    size: int
    quantize: str | None = None

    def __str__(self) -> str:
        lines = [f"{self.path}"]
        lines += [f"  {name}{signature}" for name, signature in self.signatures.items()]
        quantized = f", quantised: {self.quantize}" if self.quantize else ""
        return "\n".join([*lines, f"  {self.size / 1e6:.2f} MB{quantized}"])
