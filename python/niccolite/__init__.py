"""Niccolite: collective communication between GPUs, real and virtual. ``import nccl.core`` uses it."""

import os as _os
import sys as _sys

from niccolite._version import __version__

__all__ = ["__version__", "get_folder", "get_include", "get_library", "get_virtual_cuda", "use"]

_FOLDER = _os.path.dirname(_os.path.abspath(__file__))
_SITE = _os.path.join(_FOLDER, "site")


def use() -> None:
    """Makes ``import nccl`` give Niccolite's package where NVIDIA's nccl4py is installed, too.

    RuntimeError: NVIDIA's is imported already. To choose for a whole process, put the folder
    ``niccolite/site`` on PYTHONPATH.
    """
    loaded = _sys.modules.get("nccl")
    folders = [] if loaded is None else [_os.path.dirname(folder) for folder in loaded.__path__]
    if folders and _SITE not in folders:
        raise RuntimeError(f"nccl is imported already, from {folders[0]}: call niccolite.use() before")
    if _SITE in _sys.path:
        _sys.path.remove(_SITE)
    _sys.path.insert(0, _SITE)


def get_folder() -> str:
    """The folder of the package: bin/ has the command, lib/ the libraries."""
    return _FOLDER


def get_library() -> str:
    """The file of Niccolite's libnccl.so.2, for LD_PRELOAD."""
    return _os.path.join(_FOLDER, "lib", "libnccl.so.2")


def get_include() -> str:
    """The folder of nccl.h; below it vcuda/, CUDA's headers for machines without the toolkit."""
    return _os.path.join(_FOLDER, "include")


def get_virtual_cuda() -> str:
    """The beginning of LD_LIBRARY_PATH for programs that know nothing of Niccolite: the folder of the virtual GPUs'
    libcuda.so.1, libcudart.so.13 and libnvidia-ml.so.1, and the folder of libnccl.so.2.
    """
    return _os.pathsep.join([_os.path.join(_FOLDER, "lib", "vcuda"), _os.path.join(_FOLDER, "lib")])
