"""Symbolic shapes: specifications, and the questions that tracing asks of them."""
