"""Symbolic shapes: specifications of arguments, and questions that tracing asks about sizes."""
