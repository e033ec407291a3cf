"""What all-reduces take of a decode step with tensor parallelism, in a CUDA graph: a process for each GPU, two or more of

  RANK=0|1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 [LD_PRELOAD=build/lib/libnccl.so.2] python3 bench/decode_step.py [OPTION]

The model has 32 layers of 4096 hidden and 14336 intermediate elements, 32 heads of 128 and a context of 1024 tokens, in bfloat16, with weights of
zeros. A layer has two all-reduces, of batch x 4096 elements, among RMS norms, matrix products and attention. The step of each batch is captured
twice, with and without its all-reduces; the difference is what they take beside the kernels that they wait for. Rank 0 prints a line of JSON
for each batch: microseconds of the step, of the step without all-reduces, and of one all-reduce. Medians of 5 rounds of 20 replays.

  --batches 1,8,64   other batches
"""

import argparse
import ctypes
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

LAYERS, HIDDEN, INTERMEDIATE, HEADS, CONTEXT = 32, 4096, 14336, 32, 1024
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
DEVICE = torch.device("cuda", RANK)
ROUNDS, REPLAYS = 5, 20


def zeros(*shape):
    return torch.zeros(*shape, dtype=torch.bfloat16, device=DEVICE)


class Layer:
    """This rank's share of one layer."""

    def __init__(self):
        self.norms = [torch.ones(HIDDEN, dtype=torch.bfloat16, device=DEVICE) for _ in range(2)]
        self.qkv = zeros(3 * HIDDEN // WORLD, HIDDEN)
        self.out = zeros(HIDDEN, HIDDEN // WORLD)
        self.up = zeros(2 * INTERMEDIATE // WORLD, HIDDEN)
        self.down = zeros(HIDDEN, INTERMEDIATE // WORLD)

    def __call__(self, x, keys, values, reduce):
        batch = x.shape[0]
        query, _, _ = F.linear(F.rms_norm(x, (HIDDEN,), self.norms[0]), self.qkv).chunk(3, dim=-1)
        heads = query.view(batch, HEADS // WORLD, 1, HIDDEN // HEADS)
        attention = F.scaled_dot_product_attention(heads, keys, values).reshape(batch, HIDDEN // WORLD)
        x = x + reduce(F.linear(attention, self.out))
        gate, up = F.linear(F.rms_norm(x, (HIDDEN,), self.norms[1]), self.up).chunk(2, dim=-1)
        return x + reduce(F.linear(F.silu(gate) * up, self.down))


def reduced(x):
    dist.all_reduce(x)
    return x


def captured(layers, batch, reduce):
    x = zeros(batch, HIDDEN)
    keys, values = (zeros(batch, HEADS // WORLD, CONTEXT, HIDDEN // HEADS) for _ in range(2))

    def step():
        y = x
        for layer in layers:
            y = layer(y, keys, values, reduce)
        return y

    side = torch.cuda.Stream()
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            step()
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            step()
    return graph


def time_of(graph):
    """Microseconds of a replay."""
    dist.barrier()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(REPLAYS):
        graph.replay()
    torch.cuda.synchronize()
    return 1e6 * (time.perf_counter() - begin) / REPLAYS


def version():
    number = ctypes.c_int()
    ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(number))
    return number.value


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", default="1,8,64")
    options = parser.parse_args()
    torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl", device_id=DEVICE)
    layers = [Layer() for _ in range(LAYERS)]
    for batch in map(int, options.batches.split(",")):
        graphs = [captured(layers, batch, reduce) for reduce in (reduced, lambda x: x)]
        for graph in graphs:
            time_of(graph)
        with_all, without = (statistics.median(round_) for round_ in zip(*([time_of(g) for g in graphs] for _ in range(ROUNDS))))
        if RANK == 0:
            print(json.dumps({"library": version(), "batch": batch, "bytes": 2 * batch * HIDDEN, "step_us": round(with_all, 1),
                              "without_us": round(without, 1), "all_reduce_us": round((with_all - without) / (2 * LAYERS), 2)}), flush=True)
        del graphs
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
