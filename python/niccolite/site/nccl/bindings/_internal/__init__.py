"""Errors of the bindings: ``nccl.bindings._internal.utils``."""
