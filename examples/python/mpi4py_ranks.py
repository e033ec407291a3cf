"""Ranks of MPI: the unique id goes through a broadcast of mpi4py.

    mpirun -np 4 python examples/python/mpi4py_ranks.py
"""

import nccl.core as nccl
import numpy as np
from mpi4py import MPI
from nccl.core.cuda import Device

world = MPI.COMM_WORLD
rank, ranks = world.Get_rank(), world.Get_size()
local = world.Split_type(MPI.COMM_TYPE_SHARED).Get_rank()  # on this machine

Device(local).set_current()
identity = world.bcast(nccl.get_unique_id() if rank == 0 else None)
comm = nccl.Communicator.init(ranks, rank, identity)
blocks = np.arange(ranks, dtype=np.float64) + 10 * rank  # block i is for rank i
received = np.empty_like(blocks)
comm.alltoall(blocks, received)
if received.tolist() != [10 * other + rank for other in range(ranks)]:
    raise SystemExit(f"rank {rank}: wrong blocks")
comm.destroy()
if rank == 0:
    print(f"{ranks} ranks of MPI agree")
