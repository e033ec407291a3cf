"""JAX over all GPUs of one process."""

import functools
import os
import sys

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P  # noqa: E402

from report import run  # noqa: E402

DEVICES = jax.devices()
N = len(DEVICES)
MESH = Mesh(np.array(DEVICES), ("x",))


def mapped(function, inputs, in_specs=P("x"), out_specs=P("x")):
    placed = jax.device_put(inputs, NamedSharding(MESH, in_specs))
    return np.asarray(jax.jit(jax.shard_map(function, mesh=MESH, in_specs=in_specs, out_specs=out_specs))(placed))


def data(dtype=np.float32, columns=1000):
    return (np.arange(N)[:, None] + np.arange(columns)[None, :] % 7).astype(dtype)


def psum():
    for dtype in (np.float32, np.int32, jnp.bfloat16, np.float16, np.float64):
        got = mapped(lambda x: jax.lax.psum(x, "x"), data(dtype))
        np.testing.assert_array_equal(got.astype(np.float64), np.tile(data().sum(0), (N, 1)))


def extremes():
    np.testing.assert_array_equal(mapped(lambda x: jax.lax.pmax(x, "x"), data()), np.tile(data().max(0), (N, 1)))
    np.testing.assert_array_equal(mapped(lambda x: jax.lax.pmin(x, "x"), data()), np.tile(data().min(0), (N, 1)))


def all_gather():
    got = mapped(lambda x: jax.lax.all_gather(x, "x", tiled=True)[None], data())
    for rank in range(N):
        np.testing.assert_array_equal(got[rank], data())


def reduce_scatter():
    got = mapped(lambda x: jax.lax.psum_scatter(x[0], "x", tiled=True)[None], data(columns=N * 500))
    np.testing.assert_array_equal(got.reshape(-1), data(columns=N * 500).sum(0))


def permute():
    got = mapped(lambda x: jax.lax.ppermute(x, "x", [(i, (i + 1) % N) for i in range(N)]), data())
    np.testing.assert_array_equal(got, np.roll(data(), 1, axis=0))


def all_to_all():
    blocks = np.arange(N * N * 8, dtype=np.float32).reshape(N, N, 8)
    got = mapped(lambda x: jax.lax.all_to_all(x, "x", 1, 1, tiled=True), blocks)
    np.testing.assert_array_equal(got, blocks.transpose(1, 0, 2))


def training():
    weights = jnp.ones((64, 8))
    inputs = np.random.default_rng(1).normal(size=(N * 16, 64)).astype(np.float32)

    def loss(w, x):
        return jnp.mean(jnp.square(x @ w))

    @functools.partial(jax.jit, out_shardings=NamedSharding(MESH, P()))
    def step(w, x):
        return w - 0.1 * jax.grad(loss)(w, x)

    placed = jax.device_put(inputs, NamedSharding(MESH, P("x")))
    spread, alone = jax.device_put(weights, NamedSharding(MESH, P())), weights
    for _ in range(3):
        spread = step(spread, placed)
        alone = alone - 0.1 * jax.grad(loss)(alone, jnp.asarray(inputs))
    np.testing.assert_allclose(np.asarray(spread), np.asarray(alone), rtol=1e-4)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    functions = [psum, extremes, all_gather, reduce_scatter, permute, all_to_all, training]
    sys.exit(0 if run([(function.__name__, function) for function in functions]) else 1)
