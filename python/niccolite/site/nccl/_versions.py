"""Versions of the installed packages and of the loaded library."""

from __future__ import annotations

import re
from dataclasses import dataclass

import niccolite
from nccl import __version__


@dataclass(frozen=True)
class LibraryInfo:
    """A loaded library: its version, the CUDA version it was built for ("13.0"; None: without), its file."""

    version: str
    cuda_variant: str | None
    path: str | None

    def __str__(self) -> str:
        variant = f"+cuda{self.cuda_variant}" if self.cuda_variant else ""
        path = f" @ {self.path}" if self.path else ""
        return f"{self.version}{variant}{path}"


@dataclass(frozen=True)
class VersionInfo:
    """`nccl4py`: the interface's version; `nccl`: the loaded library, None where there is none.

    `nccl_ep` is None: Niccolite has no expert-parallel extension.
    """

    nccl4py: str
    nccl: LibraryInfo | None
    nccl_ep: LibraryInfo | None


def get_version() -> VersionInfo:
    """The versions of the interface and of the library, which this loads. Raises nothing."""
    from nccl.core.utils import get_lib_path, get_lib_version

    try:
        version = str(get_lib_version())
        path = get_lib_path()
    except (ImportError, RuntimeError):
        return VersionInfo(__version__, None, None)
    variant = _cuda_variant(path) if path is not None else None
    return VersionInfo(__version__, LibraryInfo(version, variant, str(path) if path else None), None)


def _cuda_variant(path: object) -> str | None:
    try:
        with open(str(path), "rb") as file:
            found = re.search(rb"NCCL version [^+\s]+\+cuda(\d+\.\d+)", file.read())
    except OSError:
        return None
    return found.group(1).decode() if found else None


def show_versions() -> None:
    """Prints which package and which library are used.

    The library is Niccolite's own, unless the environment variable ``NICCOLITE_LIBRARY`` names the
    file of another one, or one is loaded for the whole process (``LD_PRELOAD``).
    """
    info = get_version()
    print("\nNCCL versions\n-------------")
    rows = {
        "nccl4py": f"{info.nccl4py} (niccolite {niccolite.__version__})",
        "libnccl": info.nccl,
        "libnccl_ep": info.nccl_ep,
    }
    for label, value in rows.items():
        print(f"{label:<12}: {'not available' if value is None else value}")
