"""What TensorFlow Serving needs beside the model."""
