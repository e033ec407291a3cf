"""Tests of the Python package. They run on virtual GPUs, in one process unless they say otherwise."""

import os

os.environ["NICCOLITE_DEVICES"] = "virtual:8"

from collections.abc import Callable, Iterator
from typing import Any

import nccl.core as nccl
import pytest
from nccl import virtual
from nccl.virtual import run

RANKS = 4


@pytest.fixture(autouse=True)
def first_device() -> None:
    """Every test begins on device 0."""
    virtual.devices()[0].set_current()


@pytest.fixture
def comm() -> Iterator[nccl.Communicator]:
    """A communicator of one rank."""
    [made] = nccl.Communicator.init_all(1)
    yield made
    made.destroy()


@pytest.fixture(params=["threads", "processes"])
def on_ranks(request: pytest.FixtureRequest) -> Callable[..., list[Any]]:
    """Runs a function on RANKS ranks, once in threads and once in processes."""

    def on(function: Callable[..., Any], *args: Any) -> list[Any]:
        return run(function, RANKS, args=args, processes=request.param == "processes")

    return on
