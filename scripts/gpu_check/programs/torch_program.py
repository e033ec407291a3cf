"""PyTorch as users run it: one process a GPU. torch_program.py PART, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set."""

import os
import sys

import torch
import torch.distributed as dist

from report import RANK, WORLD, Skip, run

DEVICE = torch.device("cuda", RANK)
TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.uint8, torch.int8)


def begin(**options):
    torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl", device_id=DEVICE, **options)


def full(value, count=1000, dtype=torch.float32):
    return torch.full((count,), value, dtype=dtype, device=DEVICE)


def expect(tensor, value, what=""):
    torch.cuda.synchronize()
    wrong = int((tensor.double() != float(value)).sum()) if not torch.is_tensor(value) else int((tensor != value).sum())
    if wrong:
        raise AssertionError(f"{what}: {wrong} of {tensor.numel()} elements wrong, the first is {tensor.flatten()[0].item()}")


def agree(is_right):
    verdict = torch.tensor([1 if is_right else 0], device=DEVICE)
    dist.all_reduce(verdict, op=dist.ReduceOp.MIN)
    return bool(verdict.item())


# ---- collectives

def all_reduce():
    for dtype in TYPES:
        for count in (1, 1000, 1_000_003):
            tensor = full(RANK + 1, count, dtype)
            dist.all_reduce(tensor)
            expect(tensor, WORLD * (WORLD + 1) // 2, f"{dtype} sum of {count}")


def operations():
    operations = {dist.ReduceOp.PRODUCT: 2 ** WORLD, dist.ReduceOp.MIN: 2, dist.ReduceOp.MAX: 2, dist.ReduceOp.AVG: 2}
    for operation, value in operations.items():
        tensor = full(2)
        dist.all_reduce(tensor, op=operation)
        expect(tensor, value, str(operation))
    tensor = full(3)
    dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(2.0))
    expect(tensor, 6 * WORLD, "pre-multiplied sum")


def unaligned():
    for start in (1, 3):
        for count in (999, 100_001):
            whole = full(0, count + 8, torch.bfloat16)
            part = whole[start:start + count]
            part.fill_(RANK + 1)
            dist.all_reduce(part)
            expect(part, WORLD * (WORLD + 1) // 2)
            expect(whole[:start], 0)
            expect(whole[start + count:], 0)


def rooted():
    for root in range(WORLD):
        tensor = full(RANK + 1)
        dist.broadcast(tensor, root)
        expect(tensor, root + 1, "broadcast")
        tensor = full(RANK + 1)
        dist.reduce(tensor, root)
        if RANK == root:
            expect(tensor, WORLD * (WORLD + 1) // 2, "reduce")
        parts = [torch.empty(1000, device=DEVICE) for _ in range(WORLD)] if RANK == root else None
        dist.gather(full(RANK), parts, dst=root)
        for rank, part in enumerate(parts or ()):
            expect(part, rank, "gather")
        parts = [full(rank + 5) for rank in range(WORLD)] if RANK == root else None
        part = full(0)
        dist.scatter(part, parts, src=root)
        expect(part, RANK + 5, "scatter")


def gathers():
    whole = torch.empty(WORLD * 777, device=DEVICE)
    dist.all_gather_into_tensor(whole, full(RANK, 777))
    expect(whole.view(WORLD, 777), torch.arange(WORLD, device=DEVICE, dtype=torch.float32).view(WORLD, 1).expand(WORLD, 777))
    parts = [torch.empty(777, device=DEVICE) for _ in range(WORLD)]
    dist.all_gather(parts, full(RANK, 777))
    for rank, part in enumerate(parts):
        expect(part, rank)
    part = torch.empty(777, device=DEVICE)
    dist.reduce_scatter_tensor(part, full(RANK + 1, WORLD * 777))
    expect(part, WORLD * (WORLD + 1) // 2)
    uneven = [full(rank, 10 + rank) for rank in range(WORLD)]
    dist.all_gather([torch.empty(10 + rank, device=DEVICE) for rank in range(WORLD)], uneven[RANK])


def exchanges():
    whole = torch.empty(WORLD * 100, device=DEVICE)
    dist.all_to_all_single(whole, full(RANK, WORLD * 100))
    expect(whole.view(WORLD, 100), torch.arange(WORLD, device=DEVICE, dtype=torch.float32).view(WORLD, 1).expand(WORLD, 100))
    # Uneven, with nothing for oneself.
    sends = [0 if peer == RANK else 50 + 13 * peer for peer in range(WORLD)]
    receives = [0 if peer == RANK else 50 + 13 * RANK for peer in range(WORLD)]
    whole = torch.empty(sum(receives), device=DEVICE)
    dist.all_to_all_single(whole, full(RANK, sum(sends)), receives, sends)
    for part, peer in zip(torch.split(whole, receives), range(WORLD)):
        if part.numel():
            expect(part, peer)


def messages():
    after, before = (RANK + 1) % WORLD, (RANK - 1) % WORLD
    got = torch.empty(5000, device=DEVICE)
    for request in dist.batch_isend_irecv([dist.P2POp(dist.isend, full(RANK, 5000), after),
                                           dist.P2POp(dist.irecv, got, before)]):
        request.wait()
    expect(got, before, "batch")
    if RANK == 0:
        dist.send(full(7), 1)
    elif RANK == 1:
        tensor = full(0)
        dist.recv(tensor, 0)
        expect(tensor, 7, "send and receive")
    many = [torch.empty(300, device=DEVICE) for _ in range(8)]
    batch = [dist.P2POp(dist.isend, full(RANK * 10 + i, 300), after) for i in range(8)]
    batch += [dist.P2POp(dist.irecv, tensor, before) for tensor in many]
    for request in dist.batch_isend_irecv(batch):
        request.wait()
    for i, tensor in enumerate(many):
        expect(tensor, before * 10 + i, "eight messages")


def lists():
    tensors = [full(RANK + 1, 100 + i) for i in range(200)]
    with dist._coalescing_manager(device=DEVICE):
        for tensor in tensors:
            dist.all_reduce(tensor)
    for tensor in tensors:
        expect(tensor, WORLD * (WORLD + 1) // 2)


def objects():
    found = [None] * WORLD
    dist.all_gather_object(found, {"rank": RANK})
    assert found == [{"rank": rank} for rank in range(WORLD)], found
    dist.barrier()


# ---- what is made of them

def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)).to(DEVICE)


def train(net, rounds=3):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for step in range(rounds):
        torch.manual_seed(100 + step * WORLD + RANK)
        loss = net(torch.randn(32, 64, device=DEVICE)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total, op=dist.ReduceOp.AVG)
        losses.append(total.item())
    return losses


def reference_losses(rounds=3):
    """The same training in one process, on all ranks' data."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for step in range(rounds):
        parts = []
        for rank in range(WORLD):
            torch.manual_seed(100 + step * WORLD + rank)
            parts.append(net(torch.randn(32, 64, device=DEVICE)).square().mean())
        loss = sum(parts) / WORLD
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def compare_training(net):
    for got, wanted in zip(train(net), reference_losses()):
        assert abs(got - wanted) <= 1e-4 * abs(wanted), (got, wanted)


def ddp():
    compare_training(torch.nn.parallel.DistributedDataParallel(model(), device_ids=[RANK]))


def fsdp2():
    from torch.distributed.fsdp import fully_shard
    net = model()
    for layer in (net[0], net[2]):
        fully_shard(layer)
    fully_shard(net)
    compare_training(net)


# ---- process groups

def split():
    group = dist.split_group(split_ranks=[[rank] for rank in range(WORLD)]) if WORLD > 1 else None
    tensor = full(RANK + 1)
    dist.all_reduce(tensor, group=group)
    expect(tensor, RANK + 1, "group of one")
    whole = dist.split_group(split_ranks=[list(range(WORLD))])
    tensor = full(RANK + 1)
    dist.all_reduce(tensor, group=whole)
    expect(tensor, WORLD * (WORLD + 1) // 2, "group of all")


def many_groups():
    free, _ = torch.cuda.mem_get_info()
    groups = [dist.new_group(list(range(WORLD))) for _ in range(32)]
    tensor = full(1, 256)
    for group in groups:
        dist.all_reduce(tensor, group=group)
    expect(tensor, WORLD ** 32)
    took = free - torch.cuda.mem_get_info()[0]
    for group in groups:
        dist.destroy_process_group(group)
    return {"mib_of_32_groups": round(took / 2 ** 20)}


def graphs():
    tensor = full(1)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        dist.all_reduce(tensor)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        dist.all_reduce(tensor)
        tensor += 1
    tensor.fill_(RANK + 1)
    value = None
    for _ in range(3):
        value = (WORLD * (WORLD + 1) // 2 if value is None else value * WORLD) + 1
        graph.replay()
    expect(tensor, value)


# ---- memory

def backend():
    return dist.group.WORLD._get_backend(DEVICE)


def memory_pool():
    pool = torch.cuda.MemPool(backend().mem_allocator)
    with torch.cuda.use_mem_pool(pool):
        tensor = full(RANK + 1, 1 << 20)
    backend().register_mem_pool(pool)
    dist.all_reduce(tensor)
    expect(tensor, WORLD * (WORLD + 1) // 2)
    backend().deregister_mem_pool(pool)
    del tensor, pool


def window_pool():
    pool = torch.cuda.MemPool(backend().mem_allocator)
    with torch.cuda.use_mem_pool(pool):
        tensor = full(RANK + 1, 1 << 20)
    backend().register_mem_pool(pool, symm=True)
    dist.all_reduce(tensor)
    expect(tensor, WORLD * (WORLD + 1) // 2)
    backend().deregister_mem_pool(pool)
    del tensor, pool


def symmetric_memory():
    import torch.distributed._symmetric_memory as symmetric
    symmetric.set_backend("NCCL")
    symmetric.enable_symm_mem_for_group(dist.group.WORLD.group_name)
    tensor = symmetric.empty(1 << 16, dtype=torch.float32, device=DEVICE)
    tensor.fill_(RANK + 1)
    try:
        symmetric.rendezvous(tensor, dist.group.WORLD.group_name)
    except RuntimeError as error:
        if "ncclDevCommCreate" not in str(error):
            raise
        raise Skip("PyTorch's rendezvous makes a device communicator, which the library refuses") from error
    dist.all_reduce(tensor)
    expect(tensor, WORLD * (WORLD + 1) // 2)


def grown_segments():
    """Every segment of the caching allocator is registered, those that come later too."""
    kept = []
    for megabytes in (1, 4, 32, 64):
        tensor = full(RANK + 1, megabytes << 18)
        dist.all_reduce(tensor)
        expect(tensor, WORLD * (WORLD + 1) // 2)
        kept.append(tensor)
    del kept
    torch.cuda.empty_cache()
    tensor = full(RANK + 1, 1 << 22)
    dist.all_reduce(tensor)
    expect(tensor, WORLD * (WORLD + 1) // 2)


def shrink():
    """The last rank leaves; the others go on."""
    last = WORLD - 1
    if RANK == last:
        return
    group = dist.shrink_group([last])
    tensor = full(1)
    dist.all_reduce(tensor, group=group)
    expect(tensor, WORLD - 1)


PARTS = {
    "collectives": [all_reduce, operations, unaligned, rooted, gathers, exchanges, messages, lists, objects],
    "training": [ddp, fsdp2, graphs],
    "groups": [split, many_groups],
    "memory": [memory_pool, window_pool, grown_segments],
    "registered": [grown_segments, all_reduce, graphs, ddp],
    "nonblocking": [all_reduce, gathers, messages, split],
    "symmetric": [symmetric_memory],
    "shrink": [shrink],
}
ENVIRONMENTS = {
    "registered": {"TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": "1"},
    "nonblocking": {"TORCH_NCCL_USE_COMM_NONBLOCKING": "1"},
}


def main():
    part = sys.argv[1]
    os.environ.update(ENVIRONMENTS.get(part, {}))
    begin()
    cases = [(f"{part}: {function.__name__}", function) for function in PARTS[part]]
    is_right = run(cases, (lambda verdict: verdict) if part == "shrink" else agree)
    if is_right and part != "shrink":
        dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0 if is_right else 1) if part == "shrink" else sys.exit(0 if is_right else 1)


if __name__ == "__main__":
    main()
