"""The words of kernels for Triton: the names and types of the module are those of the source and of the bitcode, the
bitcode compiles to PTX and SASS, and so does a kernel of Triton with it, where triton is installed. None of it runs.
"""

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess

import nccl.core as nccl
import pytest
from niccolite import triton as words

SOURCE = pathlib.Path(__file__).parents[2]
TABLE = {**words._WHERE, **words._WORDS}


@pytest.fixture
def bitcode():
    try:
        return words.library()
    except FileNotFoundError:
        pytest.skip("this build has no bitcode: there was no clang that compiles for GPUs")


@pytest.fixture
def ptxas():
    found = shutil.which("ptxas", path=os.environ["PATH"] + ":/usr/local/cuda/bin")
    return found or pytest.skip("there is no ptxas")


def compiled(bitcode, folder):
    """The bitcode as PTX. Clang 14 knows no sm_90, so that the header is written here."""
    clang = next(filter(None, map(shutil.which, ["clang++", *(f"clang++-{n}" for n in range(20, 13, -1))])), None)
    if clang is None:
        pytest.skip("there is no clang++")
    ptx = folder / "device.ptx"
    subprocess.run([clang, "--target=nvptx64-nvidia-cuda", "-x", "ir", "-S", "-O2", "-Xclang", "-target-cpu", "-Xclang", "sm_80",
                    "-Xclang", "-target-feature", "-Xclang", "+ptx70", "-Wno-override-module", "-o", ptx, bitcode], check=True)
    ptx.write_text(re.sub(r"(?m)^\.target .*$", ".target sm_90", re.sub(r"(?m)^\.version .*$", ".version 8.2", ptx.read_text())))
    return ptx


def test_the_module_has_the_functions_of_the_source():
    letter = {"int": "i", "uint32_t": "i", "uint64_t": "p"}
    source = (SOURCE / "bitcode" / "device.cc").read_text()
    found = {name: "".join(letter[argument.split()[0]] for argument in arguments.split(",") if argument.strip()) + " " + letter[result]
             for result, name, arguments in re.findall(r"__device__ (\w+) niccolite_(\w+)\(([^)]*)\) \{", source)}
    assert found == TABLE


def test_the_page_has_each_function():
    page = (SOURCE / "docs" / "device-api.md").read_text()
    section = page[page.index("## Kernels of Triton"):]
    named = {}
    for name, arguments in re.findall(r"`(\w+)\(([^)]*)\)`", "".join(line for line in section.splitlines(True) if line.startswith("|"))):
        named[name] = len([each for each in arguments.split(",") if each.strip()])
    assert named == {name: len(types.split(" ")[0]) for name, types in TABLE.items()}


def test_the_bitcode_exports_them_and_nothing_else(bitcode, tmp_path):
    ptx = compiled(bitcode, tmp_path).read_text()
    letter = {"32": "i", "64": "p"}
    found = {}
    for result, name, arguments in re.findall(r"\.visible \.func\s+\(\.param \.b(\d+) \w+\)\s+(\w+)\s*\(([^)]*)\)\s*\{", ptx):
        found[name] = "".join(letter[bits] for bits in re.findall(r"\.param \.b(\d+)", arguments)) + " " + letter[result]
    assert found == {f"niccolite_{name}": types for name, types in TABLE.items()}
    assert ptx.count(".visible") == len(found)
    assert ".extern" not in ptx
    assert str(SOURCE).encode() not in pathlib.Path(bitcode).read_bytes()


def test_the_bitcode_assembles_for_sm_90(bitcode, ptxas, tmp_path):
    ptx = compiled(bitcode, tmp_path)
    subprocess.run([ptxas, "-arch=sm_90", "-c", "-o", tmp_path / "device.o", ptx], check=True)
    assert (tmp_path / "device.o").stat().st_size > 0


def test_a_wrong_name_is_no_attribute():
    with pytest.raises(AttributeError, match="'nothing'"):
        words.nothing


def test_a_library_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("NICCOLITE_DEVICE_BITCODE", "/nowhere/device.bc")
    with pytest.raises(FileNotFoundError, match="/nowhere/device.bc: there is no such file"):
        words.extern_libs()


def test_a_device_communicator_has_channels(comm):
    wanted = [nccl.LLA2ARequirement(1, 1, 1), words.ChannelsRequirement(comm.team_lsa, 2)]
    made = comm.create_dev_comm(nccl.NCCLDevCommRequirements(lsa_barrier_count=2, resources=wanted))
    slots, channels = made.resource_handles
    assert channels.n_channels == 2
    assert channels.handle not in (0, slots.buf_handle)  # the beginning is the library's own
    assert len(words.struct_of(made)) == 512
    made.close()
    with pytest.raises(ValueError, match="n_channels is negative"):
        comm.create_dev_comm(nccl.NCCLDevCommRequirements(resources=[words.ChannelsRequirement(comm.team_lsa, -1)]))


# Calls each word once, where its arguments are of other types than the function's.
EVERY_WORD = """
import triton
import triton.language as tl
import niccolite.triton as nt

@triton.jit
def every_word(comm, window, memory, size):
    at = nt.rank(comm) + nt.nranks(comm) + nt.world_rank(comm) + nt.world_nranks(comm)
    where = nt.peer(window, 0, at) + nt.own(window, size) + nt.all(comm, window, 16)
    done = nt.put(comm, window, size, at, memory, 64) + nt.store_all(comm, window, 0, memory, size)
    done += nt.load_reduce_f32(comm, window, 0, size, memory) + nt.load_reduce_f16(comm, window, 0, size, memory)
    done += nt.load_reduce_bf16(comm, window, 0, size, where)
    done += nt.barrier(comm, tl.program_id(0)) + nt.signal(comm, size, 0, at) + nt.signal_all(comm, size, 1)
    done += nt.wait(comm, size, 0, at) + nt.wait_all(comm, size, 1) + nt.flush()
    done += nt.network_put(comm, 0, window, 0, at, window, size, 8) + nt.network_put_value(comm, 0, window, 8, at, done)
    done += nt.network_get(comm, 0, window, 0, at, window, size, 8) + nt.network_signal(comm, 0, at, 1, 1)
    done += nt.network_wait(comm, 0, 1, size) + nt.network_flush(comm, 0)
    tl.store(memory, done)

@triton.jit
def with_a_tensor(comm, window, memory, size):
    nt.barrier(comm, tl.arange(0, 16))

@triton.jit
def with_one_argument(comm, window, memory, size):
    nt.barrier(comm)
"""


def kernels_of(text, folder):
    """Triton reads the source of kernels, so that they need a file."""
    path = folder / "kernels.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("kernels", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def compile_kernel(bitcode, tmp_path, monkeypatch):
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))

    def compile(kernel, signature, constants=None, multiples_of_16=()):
        source = ASTSource(fn=kernel, signature=signature, constexprs=constants or {},
                           attrs={(each,): [["tt.divisibility", 16]] for each in multiples_of_16})
        return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"extern_libs": words.extern_libs()}).asm

    return compile


SIGNATURE = {"comm": "*u8", "window": "i64", "memory": "*i32", "size": "i32"}


def test_triton_compiles_every_word(compile_kernel, tmp_path):
    made = compile_kernel(kernels_of(EVERY_WORD, tmp_path).every_word, SIGNATURE)
    assert len(made["cubin"]) > 0
    assert ".extern .func" not in made["ptx"]
    for instruction in ["ld.acquire.sys", "st.release.sys", "bar.sync", "bar.red.or", "multimem.ld_reduce", "atom.sys.add"]:
        assert instruction in made["ptx"], instruction


@pytest.mark.parametrize(("kernel", "says"), [("with_a_tensor", "niccolite.triton.barrier takes scalars"),
                                              ("with_one_argument", "niccolite.triton.barrier takes 2 arguments, and was given 1")])
def test_triton_refuses_a_bad_call(compile_kernel, tmp_path, kernel, says):
    with pytest.raises(Exception) as caught:  # noqa: PT011  # of Triton, caused by ours
        compile_kernel(getattr(kernels_of(EVERY_WORD, tmp_path), kernel), SIGNATURE)
    assert says in str(caught.value) + str(caught.value.__cause__)


def test_triton_compiles_the_kernel_of_the_page(compile_kernel, tmp_path):
    page = (SOURCE / "docs" / "device-api.md").read_text()
    section = page[page.index("## Kernels of Triton"):]
    kernels = kernels_of(re.search(r"```python\n(.*?)```", section, re.DOTALL)[1].split("# ---- host")[0], tmp_path)
    made = compile_kernel(kernels.all_reduce, {"comm": "*u8", "window": "i64", "out": "i64", "count": "i32", "BLOCK": "constexpr"},
                          {"BLOCK": 1024}, multiples_of_16=[3])
    assert len(made["cubin"]) > 0
    assert ".v4.b32" in made["ptx"]  # tl.multiple_of was believed
