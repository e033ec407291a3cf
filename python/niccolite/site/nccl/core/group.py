"""Groups: calls of one thread that are carried out together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from niccolite import _native

__all__ = ["GroupSimInfo", "group", "group_end", "group_start"]


@dataclass(frozen=True)
class GroupSimInfo:
    """Prediction for a simulated group: `estimated_time` in microseconds, -1 if it is unknown."""

    estimated_time: float


def group_start() -> None:
    """Opens a group: calls of this thread up to its group_end() are only recorded. Groups nest.

    Sends and receives between the same ranks, and one thread's calls for several communicators, must
    stand in a group, since each waits for the others.
    """
    _native.group_start()


def group_end(*, simulate: bool = False) -> GroupSimInfo | None:
    """Closes a group; the outermost one carries out the recorded calls.

    With `simulate` it carries out nothing and returns the predicted time.
    NCCLError: one of the calls failed, or no group is open.
    """
    if simulate:
        return GroupSimInfo(_native.group_simulate_end())
    _native.group_end()
    return None


@contextmanager
def group() -> Iterator[None]:
    """``with group():`` opens a group and closes it, also when the body raises."""
    group_start()
    try:
        yield
    finally:
        group_end()
