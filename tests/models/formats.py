"""Facts about the formats that the bridge writes, for the table in docs/where-it-runs.md."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Format:
    """A format, as a row of the table.

    Attributes:
      name: its name.
      page: the page about it, in docs/.
      command: the command that writes it, and its options.
      package: what runs it.
      open_sizes: what happens with open sizes.
      dtypes: the dtypes of inputs, outputs and values.
      gradients: whether the model has gradients.
      quantisation: the choices of --quantize, or what is quantised without it, or "no".
      consumer: the column of its errors, and of its sizes and times.
    """

    name: str
    page: str
    command: str
    package: str
    open_sizes: str
    dtypes: str
    gradients: str
    quantisation: str
    consumer: str


FORMATS = (
    Format(
        "SavedModel with XLA",
        "saving.md",
        "save",
        "tensorflow 2.15 or later",
        "yes; each size is compiled when it first occurs, or beforehand as a bucket",
        "all that TensorFlow has",
        "yes",
        "no",
        "TensorFlow, XLA",
    ),
    Format(
        "SavedModel of TensorFlow's operations",
        "targets.md#without-xla",
        "save --no-xla",
        "tensorflow 2.15 or later, C++, Node",
        "yes",
        "those that TensorFlow has kernels for",
        "yes",
        "no",
        "TensorFlow, operations",
    ),
    Format(
        "LiteRT",
        "litert.md",
        "litert",
        "ai-edge-litert",
        "yes",
        "those that LiteRT has; 16-bit floats are computed in float32",
        "no; a signature can learn",
        "dynamic_range, float16, int8, int16x8, as_trained",
        "LiteRT",
    ),
    Format(
        "ONNX",
        "onnx-and-openvino.md",
        "onnx",
        "onnxruntime",
        "yes",
        "all but float8; bfloat16 becomes float32, complex numbers pairs of floats",
        "no",
        "of functions that round or have products of int8",
        "ONNX Runtime",
    ),
    Format(
        "TensorFlow.js",
        "browser.md",
        "tfjs",
        "@tensorflow/tfjs",
        "yes",
        "float32, int32, bool, complex64; narrower numbers and uint32 become these",
        "no",
        "float16, uint16, uint8",
        "TensorFlow.js",
    ),
    Format(
        "OpenVINO",
        "onnx-and-openvino.md#by-way-of-a-savedmodel",
        "save --for-converters",
        "openvino",
        "yes",
        "integers of at most 32 bits; bfloat16 becomes float32",
        "no",
        "no",
        "OpenVINO",
    ),
    Format(
        "Core ML",
        "core-ml.md",
        "coreml",
        "coremltools",
        "fixed or bounded",
        "float32 or float16, int32, bool",
        "no",
        "no",
        "Core ML",
    ),
    Format(
        "C library",
        "c-library.md",
        "compile",
        "a C++ compiler",
        "compiled for sizes that you name; with TensorFlow, `--open-sizes` takes any",
        "all but float8 arguments and results",
        "no",
        "no",
        "C library",
    ),
)
