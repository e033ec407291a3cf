"""Errors of the bindings."""


class FunctionNotFoundError(RuntimeError):
    """The loaded library lacks a function."""


class NotSupportedError(RuntimeError):
    """There is no CUDA driver, and nothing in its place."""
