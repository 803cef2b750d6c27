"""save_onnx(): functions as ONNX models."""
