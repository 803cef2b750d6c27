"""Formulas: functions of tensors alone, which neither see a scope nor an operation of StableHLO.

`integers`, `floats` and `conversions` have StableHLO's rules where TensorFlow has others, and
`factorizations` those of matrices. `converter_forms` and `converter_integers` have the forms that
tf2onnx and OpenVINO need.
"""
