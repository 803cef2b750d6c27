"""Programs that a runtime does not take, or computes otherwise, by what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_REFUSED_AT_SAVE = "it needs Bitcast, which no converter of graphs supports"

# OpenVINO has no complex numbers outside its own pairs, no floats of 8 or 64 bits, and neither
# 64-bit integers nor unsigned ones of fewer than 32; an output that is a constant loses its name.
_OPENVINO = {
    "fft": "Conversion is failed for: Cast, FFT2D",
    "fft_symbolic": "Conversion is failed for: Cast, FFT, IFFT",
    "float64": "differ",
    "small_integers": "differ",
    "large_integers": "differ",
    "fp8_inside": _REFUSED_AT_SAVE,
    "fp8_arguments": "cpu_convert can't convert from: f32 precision to: dynamic",
    "complex64": "Conversion is failed for: StatefulPartitionedCall",
    "complex128": "expected complex128[1, 4], got float32[1, 4]",
    "no_arguments": "KeyError: 'output_0'",
    "complex_cholesky": "node index is out of range",
    "complex_eigh": "node index is out of range",
    "complex_solve": "Imag with a message",
    "complex_qr_svd": "Model wasn't fully converted",
    "double_precision": "differs by",
    "double_precision_vectors": "infinite elements or NaN differ",
    "case-fft_of_halves": "Conversion is failed for: Cast, FFT",
    "case-fourth_smallest": "top_k >= 1",
    "case-grouped_conv": "not implemented for op: opset1::Convolution",
    "case-image_and_kernel": "not implemented for op: opset1::Convolution",
    "case-view_as_wider": _REFUSED_AT_SAVE,
}

# tf2onnx has complex numbers within an FFT alone, and no bits of other types; 4-bit integers come
# out as others, and so does a shift by an open size.
_ONNX = {
    "conv_symbolic_image": "Dilation not supported for AutoPadType",
    "fft": "RFFT or FFT only allows ComplexAbs",
    "fft_symbolic": "RFFT or FFT only allows ComplexAbs",
    "selections": ": TruncateMod] is not supported",
    "int4_inside": "differ",
    "int4_arguments": "differ",
    "fp8_inside": _REFUSED_AT_SAVE,
    "fp8_arguments": "Converting f8E5M2 to DataType",
    "complex64": "ComplexAbs expected the first dimension",
    "complex128": "ComplexAbs expected the first dimension",
    "no_results": "Exception during initialization",
    "complex_cholesky": ": Real] is not supported",
    "complex_eigh": "list index out of range",
    "complex_solve": ": Real] is not supported",
    "complex_qr_svd": "list index out of range",
    "case-pack_and_unpack": "Could not find an implementation for ReduceSum",
    "case-grouped_conv": "Input channels C is not equal",
    "case-shifted_windows": "differs by",
    "case-fft_of_halves": "RFFT assumes the input",
    "case-view_as_wider": _REFUSED_AT_SAVE,
}

REFUSED: Mapping[str, Mapping[str, str]] = MappingProxyType({"onnx": _ONNX, "openvino": _OPENVINO})
"""A part of the error of each program that a runtime refuses, by runtime and program."""
