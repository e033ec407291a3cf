"""Names, values and signatures are those that programs for nccl4py 0.3.1 and 0.6.0 use."""

import ctypes
import enum
import inspect
import os
import pickle
import subprocess
import sys

import nccl
import nccl.core
import numpy as np
import pytest
from nccl.bindings.nccl import NCCLError, Result
from nccl.core import Communicator, NcclDataType, NcclInvalid, NcclRedOp

PUBLIC = """
NcclDataType NcclRedOp NcclGinType NcclGinConnectionType NcclCommMemStat NcclBufferSpec
NcclScalarSpec NcclDeviceSpec NcclStreamSpec NcclInvalid
INT8 CHAR UINT8 INT32 INT UINT32 INT64 UINT64 FLOAT16 HALF FLOAT32 FLOAT FLOAT64 DOUBLE BFLOAT16
FLOAT8E4M3 FLOAT8E5M2 SUM PROD MAX MIN AVG CTAPolicy CommShrinkFlag CommSuspendFlag WindowFlag
NCCLConfig WaitSignalDesc NCCLDevCommRequirements Communicator RegisteredBufferHandle
RegisteredWindowHandle CustomRedOp DevCommResource group group_start group_end GroupSimInfo
Version get_version get_lib_version get_lib_path UniqueId get_unique_id get_error_string
mem_alloc mem_free cupy torch
__version__ LibraryInfo VersionInfo show_versions
NcclHostCftMode NcclNvlsHostMode NcclCftTeamMode NcclCftCap NcclEventSpec
NCCLCollConfig VendorOption NCCLCommProperties TeamRequirement LsaBarrierRequirement
GinBarrierRequirement LLA2ARequirement NCCLTeam MultimemHandle LsaBarrierHandle GinBarrierHandle
LLA2AHandle CftLeInfo params dump_params
""".split()


def test_all_names_are_there():
    assert set(nccl.core.__all__) == set(PUBLIC)
    for name in PUBLIC:
        assert getattr(nccl.core, name) is not None


@pytest.mark.parametrize("name", ["__version__", "LibraryInfo", "VersionInfo", "show_versions"])
def test_versions_are_told_by_both_modules(name):
    assert getattr(nccl.core, name) is getattr(nccl, name)


def test_other_names_are_not():
    with pytest.raises(AttributeError, match="module 'nccl.core' has no attribute 'nothing'"):
        nccl.core.nothing


def test_star_import_needs_no_framework():
    code = "from nccl.core import *; assert cupy.__name__ == 'nccl.core.interop.cupy' and torch"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("name", "base", "members"),
    [
        ("NcclRedOp", enum.IntEnum, {"SUM": 0, "PROD": 1, "MAX": 2, "MIN": 3, "AVG": 4}),
        ("NcclGinType", enum.IntEnum, {"NONE": 0, "PROXY": 2, "GDAKI": 3, "GPI": 4, "EFA_GDA": 5}),
        ("NcclGinConnectionType", enum.IntEnum, {"NONE": 0, "FULL": 1, "RAIL": 2, "CUSTOM_STRIDE": 3}),
        ("NcclHostCftMode", enum.IntEnum, {"DEFAULT": -(2**31), "ENABLE": 1, "DISABLE": 2, "FALLBACK": 3}),
        ("NcclNvlsHostMode", enum.IntFlag, {"ENABLE": 0, "DISABLE_TRANSPORT": 1, "DISABLE_SYMMETRIC_MULTIMEM": 2,
                                            "DISABLE": 2**31 - 1}),
        ("NcclCftTeamMode", enum.IntEnum, {"FLAT": 0, "HIER_MULTIMEM": 1, "HIER_LSA": 2}),
        ("NcclCftCap", enum.IntFlag, {"NONE": 0, "CFT": 1, "MULTIMEM": 2}),
        ("CTAPolicy", enum.IntFlag, {"DEFAULT": 0, "EFFICIENCY": 1, "ZERO": 2, "Zero": 2}),
        ("CommShrinkFlag", enum.IntEnum, {"DEFAULT": 0, "ABORT": 1, "Abort": 1}),
        ("CommSuspendFlag", enum.IntFlag, {"MEM": 1, "Mem": 1}),
        ("WindowFlag", enum.IntFlag, {"DEFAULT": 0, "COLL_SYMMETRIC": 1, "CollSymmetric": 1,
                                      "STRICT_ORDERING": 2, "StrictOrdering": 2,
                                      "GIN_ONLY": 4, "CFT_COUNTED": 8}),
        ("NcclCommMemStat", enum.IntEnum, {"GPU_MEM_SUSPEND": 0, "GpuMemSuspended": 1,
                                           "GPU_MEM_PERSIST": 2, "GpuMemTotal": 3}),
    ],
)
def test_enumerations(name, base, members):
    kind = getattr(nccl.core, name)
    assert issubclass(kind, base)
    assert {member: int(kind[member]) for member in members} == members


def test_data_types_have_their_aliases_and_sizes():
    assert nccl.core.CHAR is NcclDataType.INT8 is NcclDataType.CHAR
    assert nccl.core.FLOAT is NcclDataType.FLOAT32
    assert [int(kind) for kind in NcclDataType] == list(range(12))
    assert [f"{kind}" for kind in NcclDataType][6:10] == ["float16", "float32", "float64", "bfloat16"]
    # str() is NVIDIA's (tests/python/nvidia_wheels compares all); messages format the type by its name.
    assert str(nccl.core.FLOAT8E4M3) == "10"
    assert (f"{nccl.core.FLOAT8E4M3}", f"{nccl.core.FLOAT32:d}") == ("float8_e4m3fn", "7")
    assert [kind.itemsize for kind in NcclDataType] == [1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1]


@pytest.mark.parametrize(("value", "kind"), [
    (7, NcclDataType.FLOAT32), ("float32", NcclDataType.FLOAT32), (np.float16, NcclDataType.FLOAT16),
    (float, NcclDataType.FLOAT64), (int, NcclDataType.INT64), (np.dtype("u4"), NcclDataType.UINT32),
])
def test_data_types_come_from_whatever_numpy_takes(value, kind):
    assert NcclDataType(value) is kind


def test_data_types_that_are_not_communicated():
    with pytest.raises(ValueError):
        NcclDataType("no such type")
    for name in ["bool", "int16", "complex64", ">f4"]:
        with pytest.raises(NcclInvalid):
            NcclDataType(name)


def test_data_types_of_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for kind, scalar in [(NcclDataType.BFLOAT16, ml_dtypes.bfloat16),
                         (NcclDataType.FLOAT8E4M3, ml_dtypes.float8_e4m3fn),
                         (NcclDataType.FLOAT8E5M2, ml_dtypes.float8_e5m2)]:
        assert NcclDataType.from_numpy_dtype(np.dtype(scalar)) is kind
        assert kind.numpy_dtype == np.dtype(scalar)


OPERATIONS = {
    "send": "(self, sendbuf, peer, *, stream=None)",
    "recv": "(self, recvbuf, peer, *, stream=None)",
    "signal": "(self, peer, signal_index=0, context=0, flags=0, *, stream=None)",
    "wait_signal": "(self, descs, *, stream=None)",
    "put_signal": "(self, local_buffer, peer, peer_window, peer_window_offset=0, signal_index=0, "
                  "context=0, flags=0, *, stream=None)",
    "allreduce": "(self, sendbuf, recvbuf, op, *, stream=None, config=None)",
    "reduce": "(self, sendbuf, recvbuf, op, root=None, *, stream=None, config=None)",
    "broadcast": "(self, sendbuf, recvbuf, root, *, stream=None, config=None)",
    "allgather": "(self, sendbuf, recvbuf, *, stream=None, config=None)",
    "gather": "(self, sendbuf, recvbuf, root=None, *, stream=None, config=None)",
    "scatter": "(self, sendbuf, recvbuf, root, *, stream=None, config=None)",
    "reduce_scatter": "(self, sendbuf, recvbuf, op, *, stream=None, config=None)",
    "alltoall": "(self, sendbuf, recvbuf, *, stream=None, config=None)",
    "initialize": "(self, nranks, rank, unique_id, config=None)",
    "split": "(self, color=None, key=0, config=None)",
    "shrink": "(self, exclude_ranks=None, config=None, flag=<CommShrinkFlag.DEFAULT: 0>)",
    "grow": "(self, nranks, unique_id=None, rank=None, config=None)",
    "revoke": "(self, flags=0)",
    "suspend": "(self, flags=<CommSuspendFlag.MEM: 1>)",
    "register_window": "(self, buffer, flags=None)",
    "create_pre_mul_sum": "(self, scalar, datatype=None)",
    "create_dev_comm": "(self, requirements=None)",
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_signatures(name):
    signature = inspect.signature(getattr(Communicator, name))
    bare = [one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values()]
    text = str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))
    assert text == OPERATIONS[name]
    assert getattr(Communicator, name).__doc__


def test_errors_of_the_library_say_which_result_and_why():
    error = NCCLError(4)
    assert str(error).startswith("InvalidArgument (4): ")
    assert error.status == Result.InvalidArgument
    assert str(NCCLError(5, "rank 1 called nothing")) == "InvalidUsage (5): rank 1 called nothing"
    assert "ncclGetLastError" not in str(error) + nccl.core.get_error_string(4)
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.status, str(copy)) == (error.status, str(error))


def test_invalid_arguments_are_exceptions_with_a_message():
    error = NcclInvalid("why")
    assert (str(error), error.msg, repr(error)) == ("why", "why", "<NcclInvalid: why>")
    assert pickle.loads(pickle.dumps(error)).msg == "why"


def test_in_progress_is_no_error(comm):
    assert comm.get_async_error() == Result.Success


def test_versions(capsys):
    info = nccl.get_version()
    assert info.nccl4py == nccl.__version__ == "0.3.1"
    assert str(nccl.core.get_lib_version()) == info.nccl.version
    assert nccl.core.get_lib_path().name == "libnccl.so.2"
    nccl.show_versions()
    lines = capsys.readouterr().out.split("\n")
    assert lines[:3] == ["", "NCCL versions", "-------------"]
    assert lines[3].startswith("nccl4py     : 0.3.1")
    assert lines[4].startswith(f"libnccl     : {info.nccl.version}")
    assert lines[5] == "libnccl_ep  : not available"
    with pytest.warns(DeprecationWarning):
        assert repr(nccl.core.get_version()).startswith("Versions:")
    assert str(nccl.core.Version(2703).nccl_version) == "2.7.3"


def test_the_library_can_be_chosen():
    code = "import nccl.core; print(nccl.core.get_lib_path())"
    for chosen, answer in [(str(nccl.core.get_lib_path().resolve()), 0), ("/no/such/libnccl.so.2", 1)]:
        done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "NICCOLITE_LIBRARY": chosen},
                              capture_output=True, text=True)
        assert done.returncode == answer and chosen in done.stdout + done.stderr
    assert "ImportError" in done.stderr and "NICCOLITE_LIBRARY" in done.stderr


def test_a_library_that_lacks_functions_says_so_at_the_call():
    code = ("import ctypes.util, os; os.environ['NICCOLITE_LIBRARY'] = ctypes.util.find_library('c')\n"
            "import nccl.core\n"
            "try: nccl.core.get_unique_id()\n"
            "except RuntimeError as error: print(type(error).__name__, error)")
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert done.stdout == "FunctionNotFoundError function ncclGetUniqueId is not found\n"


def test_config_is_keyword_only_and_leaves_the_rest_unset():
    with pytest.raises(TypeError):
        nccl.core.NCCLConfig(True)
    with pytest.raises(TypeError):
        nccl.core.NCCLConfig(no_such_field=1)
    config = nccl.core.NCCLConfig(blocking=False, max_ctas=4, comm_name="x",
                                  cta_policy=nccl.core.CTAPolicy.ZERO, graph_stream_ordering=0)
    assert config == nccl.core.NCCLConfig(blocking=False, max_ctas=4, comm_name="x",
                                          cta_policy=2, graph_stream_ordering=0)
    low = config._lowpp
    unset = -(2**31)
    assert (low.blocking, low.max_ctas, low.comm_name, low.cta_policy) == (0, 4, "x", 2)
    assert (low.min_ctas, low.graph_stream_ordering) == (unset, 0)
    config.max_ctas = 8
    assert low.max_ctas == 4
    with pytest.raises(TypeError):
        nccl.core.NCCLConfig(max_ctas="many")


def test_fields_of_newer_headers_are_announced_when_they_are_set():
    version = ctypes.c_uint * 4  # size (two words), magic, version
    for config, announced in [(nccl.core.NCCLDevCommRequirements(barrier_count=3), (96, 23007)),
                              (nccl.core.NCCLDevCommRequirements(cft_barrier_count=3), (120, 23203))]:
        low, _, _ = config._lower(None)
        words = version.from_address(low.ptr)
        assert (words[0], words[3]) == announced


def test_requirements_have_the_library_s_defaults():
    low, _, _ = nccl.core.NCCLDevCommRequirements(barrier_count=3)._lower(None)
    assert (low.barrier_count, low.gin_context_count, low.lsa_multimem) == (3, 4, 0)
    assert (low.gin_custom_stride, low.gin_type, low.cft_caps, low.cft_barrier_count) == (1, 0, 0, 0)


def test_parameters_are_a_mapping_of_the_library_s(capfd):
    from collections.abc import Mapping

    assert isinstance(nccl.core.params, Mapping) and len(nccl.core.params) == len(list(nccl.core.params)) > 20
    assert nccl.core.params["NICCOLITE_DEVICES"] == "virtual:8"
    assert "NCCL_NOTHING" not in nccl.core.params and nccl.core.params.get("NCCL_NOTHING") is None
    with pytest.raises(KeyError, match="NCCL_NOTHING"):
        nccl.core.params["NCCL_NOTHING"]
    nccl.core.dump_params()
    shown = capfd.readouterr()
    assert "NICCOLITE_DEVICES" in shown.out and shown.err == ""


def test_unique_ids_travel():
    made = nccl.core.get_unique_id()
    raw = bytes(made)
    assert len(raw) == 128 and raw == made.as_bytes and any(raw)
    assert bytes(pickle.loads(pickle.dumps(made))) == raw
    array = made.as_ndarray
    assert array.shape == (1,) and array.internal.shape == (1, 128)
    array.internal[0, 0] = ~array.internal[0, 0]
    assert bytes(made)[0] != raw[0], "the array shares memory"
    source = bytearray(raw)
    shared = nccl.core.UniqueId.from_bytes(source)
    source[1] ^= 0xFF
    assert bytes(shared) == bytes(source), "nothing was copied"
    assert shared.ptr != 0
    assert repr(nccl.core.get_unique_id(empty=True)) == "<UniqueId: 00000000...00000000>"
    assert nccl.core.UniqueId() != nccl.core.UniqueId(), "ids are compared by identity"
    for wrong in [bytes(127), np.zeros(128, np.int32)]:
        with pytest.raises(ValueError):
            nccl.core.UniqueId.from_bytes(wrong)


def test_error_strings():
    assert nccl.core.get_error_string(Result.InvalidUsage) == nccl.core.get_error_string(5) != ""


def test_operators_are_the_library_s():
    assert [int(op) for op in NcclRedOp] == [0, 1, 2, 3, 4]


def test_frameworks_that_are_missing_are_named():
    for module, call, name in [("torch", "resolve_tensor", "PyTorch"), ("cupy", "resolve_array", "CuPy")]:
        try:
            __import__(module)
        except ImportError:
            with pytest.raises(ModuleNotFoundError, match=f"{name} is not installed"):
                getattr(getattr(nccl.core, module), call)(None)
