"""Teams: ranks of a communicator at equal distances."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NCCLTeam"]


@dataclass(frozen=True)
class NCCLTeam:
    """`n_ranks` ranks of a communicator: the caller is number `rank`, its neighbours are `stride` away."""

    n_ranks: int
    rank: int
    stride: int

    @property
    def _lowered(self) -> tuple[int, int, int]:
        return self.n_ranks, self.rank, self.stride
