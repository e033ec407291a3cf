"""Training steps of PyTorch, timed: a transformer sharded by FSDP2 (fully_shard), or copied by DDP. torch_training.py fsdp|ddp [STEPS], with
RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set. Rank 0 prints a line `TIME {"name": ..., "us": ..., "wrong": ..., ...}` with the
median time of a step, and how many of the checked values were wrong:
  the loss, and gradients, of the distributed model against those of a plain one, on the same weights and data in all ranks
  after training: the loss has fallen, and DDP's weights are the same on all ranks, bit for bit."""

import gc
import json
import math
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
DEVICE = torch.device("cuda", RANK)
WARM_UP = 5
# Width and layers: 12 * width^2 weights a layer, 1.2e9 and 0.4e9 in all.
SHAPES = {"fsdp": (2048, 24), "ddp": (1536, 14), "tiny": (64, 3)}
HEADS, VOCABULARY, BATCH, LENGTH = 16, 4096, 2, 1024
TOLERANCE = 0.05  # of the largest gradient: bf16, and kernels that add in any order


class Layer(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.before_attention, self.before_mlp = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.queries_keys_values = torch.nn.Linear(width, 3 * width, bias=False)
        self.projection = torch.nn.Linear(width, width, bias=False)
        self.up = torch.nn.Linear(width, 4 * width, bias=False)
        self.down = torch.nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.queries_keys_values(self.before_attention(x)).view(batch, length, 3, HEADS, width // HEADS)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.before_mlp(x))))


class Transformer(torch.nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, width)
        self.layers = torch.nn.ModuleList(Layer(width) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(width)
        self.head = torch.nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def loss_of(model, tokens):
    logits = model(tokens[:, :-1])
    return F.cross_entropy(logits.float().reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))


def tokens_of(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator).to(DEVICE)


def checked(model):
    """Names of the weights whose gradients are compared: one of each kind, in the first, a middle and the last layer."""
    layers = sorted({0, len(model.layers) // 2, len(model.layers) - 1})
    return ["embedding.weight", "head.weight"] + [f"layers.{layer}.{name}.weight" for layer in layers
                                                  for name in ("queries_keys_values", "projection", "up", "down", "before_mlp")]


def weights_of(model):
    return dict((model.module if isinstance(model, DistributedDataParallel) else model).named_parameters())


def whole(gradient):
    return gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient


def build(kind, width, layers):
    """The distributed model, and how many of its checked values differ from a plain one's."""
    torch.manual_seed(7)
    model = Transformer(width, layers).to(DEVICE, torch.bfloat16)
    tokens = tokens_of(1)  # the same on all ranks: the mean of the gradients is each rank's own
    plain_loss = loss_of(model, tokens)
    plain_loss.backward()
    plain = {name: weights_of(model)[name].grad.detach().to("cpu", torch.float32) for name in checked(model)}
    names = checked(model)
    model.zero_grad(set_to_none=True)
    if kind == "fsdp":
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    else:
        model = DistributedDataParallel(model, device_ids=[DEVICE.index] if DEVICE.type == "cuda" else None)
    loss = loss_of(model, tokens)
    loss.backward()
    wrong = int(abs(loss.item() - plain_loss.item()) > 0.01 * abs(plain_loss.item()))
    for name in names:
        gradient = whole(weights_of(model)[name].grad).detach().to("cpu", torch.float32)
        wrong += int((gradient - plain[name]).abs().max() > TOLERANCE * plain[name].abs().max())
    model.zero_grad(set_to_none=True)
    return model, wrong


def same_on_all_ranks(model):
    """Compares sums of bits, which differ where a weight does."""
    own = torch.stack([weight.detach().view(torch.int16).to(torch.int64).sum() for weight in weights_of(model).values()])
    least, most = own.clone(), own.clone()
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return bool((least == most).all())


def main():
    kind, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 30
    width, layers = SHAPES[os.environ.get("TORCH_TRAINING_SHAPE", kind)]
    gc.disable()  # a collection takes 0.2 s
    torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl", device_id=DEVICE)
    model, wrong = build(kind, width, layers)
    weights = sum(weight.numel() for weight in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = tokens_of(100 + RANK)
    times, losses = [], []
    for step in range(WARM_UP + steps):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        loss = loss_of(model, tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        if step >= WARM_UP:
            times.append(time.perf_counter() - begin)
        losses.append(loss.item())
    wrong += int(not math.isfinite(losses[-1]) or losses[-1] >= losses[0])
    if kind == "ddp":
        wrong += int(not same_on_all_ranks(model))
    both = torch.tensor([statistics.median(times) * 1e6, float(wrong)], dtype=torch.float64, device=DEVICE)
    dist.all_reduce(both, op=dist.ReduceOp.MAX)
    if RANK == 0:
        print("TIME " + json.dumps({"name": f"a step of {kind.upper()}", "us": round(both[0].item(), 1), "wrong": int(both[1].item()),
                                    "steps": steps, "weights": weights, "first_loss": round(losses[0], 4),
                                    "last_loss": round(losses[-1], 4)}), flush=True)
    dist.destroy_process_group()


main()
