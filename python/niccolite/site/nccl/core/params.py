"""The library's parameters: environment variables, with the values that they have."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

from niccolite import _native

__all__ = ["dump_params", "params"]


class _Parameters(Mapping[str, str]):
    def __getitem__(self, name: str) -> str:
        if name not in _native.parameter_names():
            raise KeyError(name)
        return _native.parameter(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_native.parameter_names())

    def __len__(self) -> int:
        return len(_native.parameter_names())

    def __repr__(self) -> str:
        return f"<parameters of the library: {len(self)}>"


#: The parameters' values by name, as texts: "" where one is unset.
params: Mapping[str, str] = _Parameters()


def dump_params() -> None:
    """Prints all parameters, with values and meanings."""
    sys.stdout.flush()
    _native.print_parameters()
