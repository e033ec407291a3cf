"""Names of the bindings that programs use: ``nccl.bindings.nccl``."""
