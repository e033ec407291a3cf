"""Ranks that a launcher has started, told who they are by the environment, as torchrun does:
RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT. The unique id goes over a socket.

    torchrun --nproc-per-node 4 examples/python/torchrun_ranks.py
"""

import os
import socket
import time

import nccl.core as nccl
import numpy as np
from nccl.core.cuda import Device

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
# The port after the launcher's own.
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + 1)


def share_id() -> nccl.UniqueId:
    if rank == 0:
        identity = nccl.get_unique_id()
        with socket.create_server(address) as server:
            for _ in range(ranks - 1):
                with server.accept()[0] as peer:
                    peer.sendall(bytes(identity))
        return identity
    deadline = time.monotonic() + 60
    while True:
        try:
            with socket.create_connection(address, timeout=60) as root:
                return nccl.UniqueId.from_bytes(root.makefile("rb").read(128))
        except ConnectionRefusedError:  # rank 0 is not there yet
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


Device(int(os.environ["LOCAL_RANK"])).set_current()
comm = nccl.Communicator.init(ranks, rank, share_id())
mine = np.full(3, rank, np.int64)
everybody = np.empty((ranks, 3), np.int64)
comm.allgather(mine, everybody)
if everybody[:, 0].tolist() != list(range(ranks)):
    raise SystemExit(f"rank {rank}: wrong blocks")
comm.destroy()
if rank == 0:
    print(f"{ranks} ranks of the launcher agree")
