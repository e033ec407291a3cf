"""Type checkers only: nccl.virtual.run() has the function's result type, and checks its arguments."""

from nccl.core import Communicator
from nccl.virtual import run
from typing_extensions import assert_type


def alone(comm: Communicator) -> int:
    return comm.rank


def with_two(comm: Communicator, offset: int, name: str = "") -> str:
    return name * offset


assert_type(run(alone), list[int])
assert_type(run(alone, 4, processes=True), list[int])
assert_type(run(lambda comm: comm.rank / 2, ranks=2), list[float])
assert_type(run(with_two, args=(1, "x")), list[str])
assert_type(run(with_two, args=(1,)), list[str])
run(alone, args=(1,))  # type: ignore[arg-type]
run(with_two)  # type: ignore[arg-type]
run(with_two, args=("x",))  # type: ignore[arg-type]
