"""NCCL for Python: ``nccl.core`` (communicators and collectives), ``nccl.virtual`` (GPUs of CPU threads).

This is Niccolite's package. NVIDIA's nccl4py has the same name; where both are installed, the one that
stands first on ``sys.path`` is imported, which is NVIDIA's unless ``niccolite.use()`` was called.
"""

import os as _os
import sys as _sys

TYPE_CHECKING = False  # true for type checkers; importing typing for it would cost more than all else here


def _folder_before_ours() -> "str | None":
    # nccl4py may be a package without __init__.py, which Python takes only when no other one is
    # anywhere on the path. It came first, so it shall be found first.
    for entry in _sys.path:
        folder = _os.path.join(entry or _os.curdir, "nccl")
        if _os.path.isdir(__path__[0]) and _os.path.realpath(folder) == _os.path.realpath(__path__[0]):
            return None
        if _os.path.isfile(_os.path.join(folder, "core", "__init__.py")):
            return folder
    return None


if (_other := _folder_before_ours()) is not None:
    __path__ = [_other, _os.path.join(__path__[0], "_beside_nvidia")]
else:
    __version__ = "0.3.1"  # of the nccl4py interface that this package has
    __all__ = ["__version__", "LibraryInfo", "VersionInfo", "get_version", "show_versions"]

    if TYPE_CHECKING:
        from ._versions import LibraryInfo, VersionInfo, get_version, show_versions

    def __getattr__(name: str) -> object:
        if name in __all__:
            from . import _versions

            return getattr(_versions, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
