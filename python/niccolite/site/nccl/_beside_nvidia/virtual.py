"""Found instead of ``nccl.virtual`` where another package ``nccl`` came first: says how both live side by side."""

import nccl as _nccl

raise ImportError(
    "nccl.virtual is Niccolite's: begin the program with `import niccolite; niccolite.use()`, before nccl is imported. "
    f"The nccl that came first is NVIDIA's nccl4py, or another package, of {list(_nccl.__path__)[0]}",
    name=__name__,
)
