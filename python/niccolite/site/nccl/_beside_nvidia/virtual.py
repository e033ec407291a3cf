"""Found instead of ``nccl.virtual`` where ``nccl`` is NVIDIA's nccl4py: says how both live side by side."""

import nccl as _nccl

raise ImportError(
    "nccl.virtual is Niccolite's: begin the program with `import niccolite; niccolite.use()`, before nccl is imported. "
    f"This nccl is NVIDIA's nccl4py, of {_nccl.__path__[0]}, which came first",
    name=__name__,
)
