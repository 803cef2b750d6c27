"""Files and settings that TensorFlow Serving needs beside the model."""
