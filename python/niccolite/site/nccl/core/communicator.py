"""Communicators: ranks that exchange data, each on a GPU of its own."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

from nccl.core.constants import CommShrinkFlag, CommSuspendFlag, CTAPolicy, WindowFlag
from nccl.core.cuda import Device, device_count, get_event_ptr
from nccl.core.resources import (
    CommResource,
    CustomRedOp,
    DevCommResource,
    GinBarrierHandle,
    LLA2AHandle,
    LsaBarrierHandle,
    MultimemHandle,
    RegisteredBufferHandle,
    RegisteredWindowHandle,
)
from nccl.core.team import NCCLTeam
from nccl.core.typing import (
    NcclCftCap,
    NcclCftTeamMode,
    NcclDataType,
    NcclGinConnectionType,
    NcclGinType,
    NcclHostCftMode,
    NcclInvalid,
    NcclNvlsHostMode,
)
from nccl.core.utils import UniqueId
from niccolite import _native
from niccolite.triton import ChannelsRequirement

if TYPE_CHECKING:
    from nccl.core.resources import ResourceHandle
    from nccl.core.typing import (
        NcclBufferSpec,
        NcclCommMemStat,
        NcclEventSpec,
        NcclRedOp,
        NcclScalarSpec,
        NcclStreamSpec,
    )

__all__ = [
    "Communicator",
    "GinBarrierRequirement",
    "LLA2ARequirement",
    "LsaBarrierRequirement",
    "NCCLCollConfig",
    "NCCLCommProperties",
    "NCCLConfig",
    "NCCLDevCommRequirements",
    "TeamRequirement",
    "VendorOption",
    "WaitSignalDesc",
]

_NO_COLOR = -1
_NO_RANK = -1
_Resource = TypeVar("_Resource", bound=CommResource)


def _fill(struct: Any, values: Any, *others: str) -> Any:
    """Copies the values of a dataclass that are not None into a struct of the library, without the fields `others`."""
    for field in fields(values):
        if field.name not in others and (value := getattr(values, field.name)) is not None:
            setattr(struct, field.name, value)
    return struct


@dataclass(kw_only=True)
class NCCLConfig:
    """Configuration of a communicator. None leaves the choice to the library, or to the environment.

    It is read on construction; later assignments have no effect. The library checks the values
    (NCCLError) when a communicator is made.
    """

    blocking: bool | None = None  # False: calls return at once, get_async_error() tells when done
    cga_cluster_size: int | None = None  # CTAs of a thread block cluster, 0 to 8
    min_ctas: int | None = None
    max_ctas: int | None = None
    net_name: str | None = None  # the network to use, which must be there
    split_share: bool | None = None  # children made by split() share this one's resources
    traffic_class: int | None = None
    comm_name: str | None = None  # for logs
    collnet_enable: bool | None = None
    cta_policy: CTAPolicy | None = None
    shrink_share: bool | None = None
    nvls_ctas: int | None = None
    n_channels_per_net_peer: int | None = None
    nvlink_centric_sched: bool | None = None
    graph_usage_mode: int | None = None  # 0: never captured; 1: one graph at a time; 2: any mixture
    num_rma_ctx: int | None = None  # contexts of signals and puts
    max_p2p_peers: int | None = None
    graph_stream_ordering: int | None = None
    # since NCCL 2.31
    launch_order_implicit: bool | None = None
    num_rma_sig: int | None = None  # signals of a context
    rma_eager_init: bool | None = None  # connect for signals and puts at init
    host_cft_mode: NcclHostCftMode | None = None
    nvls_host_mode: NcclNvlsHostMode | None = None

    def __post_init__(self) -> None:
        self._lowpp = _fill(_native.Config(), self)


@dataclass(frozen=True)
class VendorOption:
    """An option of one vendor's library, which others ignore. One of the three values is given."""

    vendor_id: int
    option_id: int
    int_value: int | None = None
    str_value: str | None = None
    raw_value: int | None = None  # an address

    def __post_init__(self) -> None:
        values = (self.int_value, self.str_value, self.raw_value)
        given = sum(value is not None for value in values)
        if given != 1:
            raise NcclInvalid(
                f"VendorOption needs one of int_value, str_value and raw_value, and has {given}"
            )


@dataclass(kw_only=True)
class NCCLCollConfig:
    """Settings of one collective. None leaves the choice to the communicator.

    All ranks pass equal settings, except for the event and the profiler's tag. Each call reads them.
    NcclInvalid: `vendor_options` are no VendorOption, or two of them are for one option.
    """

    min_ctas: int | None = None
    max_ctas: int | None = None
    nvls_ctas: int | None = None  # most CTAs of what uses NVLink multicast
    cga_cluster_size: int | None = None
    alg_selection: str | None = None  # algorithms with protocols, as "RING_LL128,TREE"
    force_alg_selection: bool | None = None  # False: others where none of these serves
    cta_policy: CTAPolicy | None = None
    user_profiler_tag: int | None = None
    launch_completion_event: NcclEventSpec | None = None  # recorded when the operation is launched
    vendor_options: Sequence[VendorOption] = ()

    def __post_init__(self) -> None:
        self._check_options()

    def _check_options(self) -> None:
        if isinstance(self.vendor_options, (str, bytes)) or not isinstance(
            self.vendor_options, Sequence
        ):
            kind = type(self.vendor_options).__name__
            raise NcclInvalid(f"vendor_options must be a sequence of VendorOption, not {kind}")
        seen = set()
        for option in self.vendor_options:
            if not isinstance(option, VendorOption):
                raise NcclInvalid(f"vendor_options holds a {type(option).__name__}, not a VendorOption")
            if (key := (option.vendor_id, option.option_id)) in seen:
                raise NcclInvalid(f"vendor_options holds option {key[1]} of vendor {key[0]} twice")
            seen.add(key)

    def _lower(self) -> _native.CollConfig:
        self._check_options()
        made = _native.CollConfig()
        _fill(made, self, "launch_completion_event", "vendor_options")
        made.launch_completion_event = get_event_ptr(self.launch_completion_event)
        for one in self.vendor_options:
            if one.int_value is not None:
                made.add_int_option(one.vendor_id, one.option_id, one.int_value)
            elif one.str_value is not None:
                made.add_text_option(one.vendor_id, one.option_id, one.str_value)
            elif one.raw_value is not None:
                made.add_raw_option(one.vendor_id, one.option_id, one.raw_value)
        return made


@dataclass(frozen=True, kw_only=True)
class NCCLCommProperties:
    """Properties of a communicator. None: the library is older than the field."""

    rank: int
    n_ranks: int
    cuda_dev: int
    nvml_dev: int
    device_api_support: bool
    multimem_support: bool
    gin_type: NcclGinType
    n_lsa_teams: int
    host_rma_support: bool
    railed_gin_type: NcclGinType
    comm_hash: int | None = None  # the same on all ranks, and in logs
    gin_min_stride: int | None = None
    gin_connection_type: NcclGinConnectionType | None = None
    available_gin_types: frozenset[NcclGinType] | None = None
    dev_comm_runtime_version_size: int | None = None
    cft_support: bool | None = None
    cft_multicast_support: bool | None = None
    cft_counted_support: bool | None = None


@dataclass(frozen=True)
class TeamRequirement:
    """A team that kernels use; `multimem`: with multicast memory (DevCommResource.multimem_handle())."""

    team: NCCLTeam
    multimem: bool = False


@dataclass(frozen=True)
class LsaBarrierRequirement:
    """Barriers of a load-store team; they become an LsaBarrierHandle."""

    team: NCCLTeam
    n_barriers: int


@dataclass(frozen=True)
class GinBarrierRequirement:
    """Barriers of a team over the network; they become a GinBarrierHandle."""

    team: NCCLTeam
    n_barriers: int


@dataclass(frozen=True)
class LLA2ARequirement:
    """Room for all-to-all exchanges of `n_blocks` blocks; it becomes an LLA2AHandle."""

    n_blocks: int
    max_elements: int
    max_element_size: int  # bytes


@dataclass(kw_only=True)
class NCCLDevCommRequirements:
    """Requirements of a device communicator. None: the library's default. Each create_dev_comm() reads them."""

    lsa_multimem: bool | None = None
    barrier_count: int | None = None
    lsa_barrier_count: int | None = None
    rail_gin_barrier_count: int | None = None
    lsa_ll_a2a_block_count: int | None = None
    lsa_ll_a2a_slot_count: int | None = None
    gin_force_enable: bool | None = None
    gin_context_count: int | None = None
    gin_signal_count: int | None = None
    gin_counter_count: int | None = None
    gin_connection_type: NcclGinConnectionType | None = None
    gin_exclusive_contexts: bool | None = None
    gin_queue_depth: int | None = None
    gin_traffic_class: int | None = None
    world_gin_barrier_count: int | None = None
    gin_strong_signals_required: bool | None = None
    gin_va_signals_required: bool | None = None
    gin_custom_stride: int | None = None
    gin_type: NcclGinType | None = None
    cft_caps: NcclCftCap | None = None
    cft_barrier_count: int | None = None
    teams: Sequence[TeamRequirement] = ()
    resources: Sequence[LsaBarrierRequirement | GinBarrierRequirement | LLA2ARequirement | ChannelsRequirement] = ()

    def _lower(
        self, comm: _native.Communicator
    ) -> tuple[_native.DevCommRequirements, dict[NCCLTeam, MultimemHandle], list[ResourceHandle]]:
        """The library's struct, and the objects that ncclDevCommCreate will fill."""
        made = _native.DevCommRequirements()
        _fill(made, self, "teams", "resources")
        multimem = {one.team: MultimemHandle() for one in self.teams if one.multimem}
        for team in dict.fromkeys(one.team for one in self.teams):
            made.add_team(team._lowered, multimem.get(team))
        handles = [_add_resource(made, comm, one) for one in self.resources]
        return made, multimem, handles


def _add_resource(
    made: _native.DevCommRequirements,
    comm: _native.Communicator,
    wanted: LsaBarrierRequirement | GinBarrierRequirement | LLA2ARequirement | ChannelsRequirement,
) -> ResourceHandle:
    if isinstance(wanted, LsaBarrierRequirement):
        made.add_lsa_barrier(wanted.team._lowered, wanted.n_barriers, lsa := LsaBarrierHandle())
        return lsa
    if isinstance(wanted, GinBarrierRequirement):
        made.add_gin_barrier(comm, wanted.team._lowered, wanted.n_barriers, gin := GinBarrierHandle())
        return gin
    if isinstance(wanted, LLA2ARequirement):
        made.add_ll_a2a(
            wanted.n_blocks, wanted.max_elements, wanted.max_element_size, slots := LLA2AHandle()
        )
        return slots
    if isinstance(wanted, ChannelsRequirement):
        made.add_channels(wanted.team._lowered, wanted.n_channels, channels := _native.ChannelsHandle())
        return channels
    raise TypeError(f"resources holds a {type(wanted).__name__}, which is no requirement")


@dataclass(frozen=True)
class WaitSignalDesc:
    """A wait for `op_count` signals number `signal_index` of rank `peer`."""

    peer: int
    op_count: int = 1
    signal_index: int = 0
    context: int = 0


def _lowered(config: NCCLConfig | None) -> _native.Config | None:
    return None if config is None else config._lowpp


class Communicator:
    """One rank of a communicator. Made by init(), init_all(), or from another one; ended by destroy().

    **Buffers** are NumPy or CuPy arrays, PyTorch tensors, or anything with DLPack, the CUDA Array
    Interface, ``__array_interface__`` or the buffer protocol. Their elements must lie side by side, on
    the communicator's device; virtual GPUs use memory of the host in place, too. They are kept alive
    until the operation is over.

    **Streams** are None, a handle as an integer, or an object with ``__cuda_stream__``. A call returns
    when the operation is queued on its stream. On virtual GPUs a call without a stream returns when its
    result is there (in a group: the end of the group does); on GPUs None is the default stream.

    **Errors.** NcclInvalid: an argument is wrong, which one and why. NCCLError: the library refuses, or
    the communicator has failed, also while a call waits for its result; the operation then goes on
    until abort() or destroy(). Ctrl-C during a wait aborts the communicator.

    One thread at a time may use it; abort() may come from any.
    """

    def __init__(self, ptr: Any = 0) -> None:
        """`ptr`: a handle of the library that somebody else has made; 0: none yet."""
        self._comm = _native.Communicator()
        if ptr:
            self._comm.handle = int(getattr(ptr, "ptr", ptr))
        self._resources: list[CommResource] = []
        self._children: list[Communicator] = []

    # ---- making and ending

    @classmethod
    def init(
        cls,
        nranks: int,
        rank: int,
        unique_id: UniqueId | Sequence[UniqueId],
        config: NCCLConfig | None = None,
    ) -> Communicator:
        """Joins, on the current device, as `rank` of `nranks`; returns when all have joined.

        `unique_id`: one id for all ranks, from get_unique_id(), or a list of several. One thread that makes several
        ranks calls this in a group. NCCLError: ranks are missing, or the ids differ.
        """
        made = cls()
        made.initialize(nranks, rank, unique_id, config)
        return made

    def initialize(
        self,
        nranks: int,
        rank: int,
        unique_id: UniqueId | Sequence[UniqueId],
        config: NCCLConfig | None = None,
    ) -> None:
        """The same for a communicator that is null. NcclInvalid: it is not."""
        if self.is_valid:
            raise NcclInvalid("Cannot initialize: Communicator already initialized")
        self.__dict__.pop("_known_properties", None)
        ids: list[Any] = list(unique_id) if isinstance(unique_id, (list, tuple)) else [unique_id]
        if not ids or not all(isinstance(one, UniqueId) for one in ids):
            raise NcclInvalid("unique_id must be a UniqueId, or a list or tuple of them")
        _native.initialize(self._comm, nranks, rank, [one.as_bytes for one in ids], _lowered(config))

    @classmethod
    def init_all(cls, devices: int | Sequence[int] | None = None) -> list[Communicator]:
        """One communicator over devices of this process, a rank for each: all ranks, in order.

        `devices`: None (all), their number, or ordinals. TypeError: something else. One thread that
        uses them all puts the calls of all ranks into one group.
        """
        if devices is None:
            ordinals: Iterable[int] = range(device_count())
        elif isinstance(devices, int):
            ordinals = range(devices)
        elif isinstance(devices, (list, tuple, range)):
            ordinals = devices
        else:
            raise TypeError(
                f"devices is of type {type(devices).__name__}; it must be None, an int, or a list, tuple "
                "or range of ordinals"
            )
        chosen = [int(ordinal) for ordinal in ordinals]
        made = [cls() for _ in chosen]
        if made:
            _native.initialize_all([one._comm for one in made], chosen)
        return made

    def split(
        self, color: int | None = None, key: int = 0, config: NCCLConfig | None = None
    ) -> Communicator:
        """Makes communicators of the ranks with equal `color`, in the order of `key`. All ranks call.

        `color` None: this rank is in none, and gets a null communicator.
        """
        child = self._child("split")
        color = _NO_COLOR if color is None else color
        _native.split(self._comm, child._comm, color, key, _lowered(config))
        return child

    def shrink(
        self,
        exclude_ranks: Sequence[int] | None = None,
        config: NCCLConfig | None = None,
        flag: CommShrinkFlag = CommShrinkFlag.DEFAULT,
    ) -> Communicator:
        """Makes a communicator without `exclude_ranks`, which do not call. ABORT: others may have died."""
        child = self._child("shrink")
        excluded = list(exclude_ranks or ())
        _native.shrink(self._comm, child._comm, excluded, _lowered(config), int(flag))
        return child

    def get_unique_id(self) -> UniqueId:
        """The id with which new ranks join grow(); one rank asks and sends it to them."""
        self._require("get_unique_id")
        return UniqueId.from_bytes(_native.comm_unique_id(self._comm))

    def grow(
        self,
        nranks: int,
        unique_id: UniqueId | None = None,
        rank: int | None = None,
        config: NCCLConfig | None = None,
    ) -> Communicator:
        """Makes a communicator of `nranks` from this one's ranks, which keep theirs, and new ones.

        A new rank calls it on a null communicator, with `unique_id` and its `rank`; ranks of this one
        give no `rank`, and the one that made the id gives it.
        NcclInvalid: `rank` is given here, or missing there.
        """
        if rank is not None and self.is_valid:
            raise NcclInvalid("Cannot grow: rank is for new ranks, and this communicator exists")
        if rank is None:
            self._require("grow")
        child = type(self)()
        identity = None if unique_id is None else unique_id.as_bytes
        new_rank = _NO_RANK if rank is None else rank
        _native.grow(self._comm, child._comm, nranks, identity, new_rank, _lowered(config))
        self._keep_unfinished(child)
        return child

    def destroy(self) -> None:
        """Ends it, with its resources, after the queued operations. Does nothing if it is null.

        NCCLError: the communicator has failed before; it is null afterwards nevertheless.
        NcclInvalid: in a group.
        """
        if self.is_valid and _native.is_group_open():
            raise NcclInvalid("Cannot destroy between the calls of a group: end the group first")
        self._end(_native.destroy)

    def abort(self) -> None:
        """Ends it at once; operations in flight end with undefined data. From any thread."""
        self._end(_native.abort)

    def _end(self, how: Any) -> None:
        if not self.is_valid:
            return
        self.close_all_resources()
        self._children.clear()
        how(self._comm)

    def finalize(self) -> None:
        """Waits until the queued operations of all ranks are over, so that destroy() will not wait."""
        if self.is_valid:
            _native.finalize(self._comm)

    def revoke(self, flags: int = 0) -> None:
        """Ends operations in flight; afterwards shrink(), split() and destroy() are possible."""
        self._require("revoke")
        _native.revoke(self._comm, flags)

    def suspend(self, flags: CommSuspendFlag = CommSuspendFlag.MEM) -> None:
        """Gives the communicator's device memory back until resume(). All ranks call."""
        self._require("suspend")
        _native.suspend(self._comm, int(flags))

    def resume(self) -> None:
        """Takes the memory of suspend() again. NCCLError: the device has no such room."""
        self._require("resume")
        _native.resume(self._comm)

    # ---- properties

    @property
    def ptr(self) -> int:
        """The library's handle; 0 when null."""
        return self._comm.handle

    @property
    def is_valid(self) -> bool:
        """Is it not null?"""
        return self._comm.handle != 0

    @property
    def nranks(self) -> int:
        """Ranks of the communicator."""
        self._require("get nranks")
        return self._comm.nranks

    @property
    def rank(self) -> int:
        """This one, from 0."""
        self._require("get rank")
        return self._comm.rank

    @property
    def device(self) -> Device:
        """The device of this rank."""
        self._require("get device")
        return Device(self._comm.device)

    @functools.cached_property
    def _known_properties(self) -> _native.Properties:
        return _native.properties(self._comm)

    def _properties(self, name: str) -> _native.Properties:
        self._require(f"get {name}")
        return self._known_properties

    @property
    def properties(self) -> NCCLCommProperties:
        """All that the library tells about it. They do not change."""
        found = self._properties("properties")
        connection, support = found.gin_connection_type, found.gin_support
        return NCCLCommProperties(
            rank=found.rank,
            n_ranks=found.n_ranks,
            cuda_dev=found.cuda_dev,
            nvml_dev=found.nvml_dev,
            device_api_support=found.device_api_support,
            multimem_support=found.multimem_support,
            gin_type=NcclGinType(found.gin_type),
            n_lsa_teams=found.n_lsa_teams,
            host_rma_support=found.host_rma_support,
            railed_gin_type=NcclGinType(found.railed_gin_type),
            comm_hash=found.comm_hash,
            gin_min_stride=found.gin_min_stride,
            gin_connection_type=None if connection is None else NcclGinConnectionType(connection),
            available_gin_types=None
            if support is None
            else frozenset(kind for kind in NcclGinType if support[kind]),
            dev_comm_runtime_version_size=found.dev_comm_runtime_version_size,
            cft_support=found.cft_support,
            cft_multicast_support=found.cft_multicast_support,
            cft_counted_support=found.cft_counted_support,
        )

    @property
    def cuda_dev(self) -> int:
        """CUDA's ordinal of the device."""
        return self._properties("cuda_dev").cuda_dev

    @property
    def nvml_dev(self) -> int:
        """NVML's ordinal of the device."""
        return self._properties("nvml_dev").nvml_dev

    @property
    def device_api_support(self) -> bool:
        """Can create_dev_comm() succeed?"""
        return self._properties("device_api_support").device_api_support

    @property
    def multimem_support(self) -> bool:
        """Are there multicast addresses?"""
        return self._properties("multimem_support").multimem_support

    @property
    def gin_type(self) -> NcclGinType:
        """How the network serves kernels."""
        return NcclGinType(self._properties("gin_type").gin_type)

    @property
    def n_lsa_teams(self) -> int:
        """Teams of ranks that reach each other by loads and stores."""
        return self._properties("n_lsa_teams").n_lsa_teams

    @property
    def host_rma_support(self) -> bool:
        """Can put_signal(), signal() and wait_signal() be used?"""
        return self._properties("host_rma_support").host_rma_support

    @property
    def railed_gin_type(self) -> NcclGinType:
        """How the network serves kernels within a rail."""
        return NcclGinType(self._properties("railed_gin_type").railed_gin_type)

    @property
    def team_world(self) -> NCCLTeam:
        """All ranks."""
        self._require("get team_world")
        return NCCLTeam(*_native.team_world(self._comm))

    @property
    def team_lsa(self) -> NCCLTeam:
        """The ranks whose memory kernels of this one load and store."""
        self._require("get team_lsa")
        return NCCLTeam(*_native.team_lsa(self._comm))

    @property
    def team_rail(self) -> NCCLTeam:
        """The ranks with this rank's place in each load-store team."""
        self._require("get team_rail")
        return NCCLTeam(*_native.team_rail(self._comm))

    def team_cft(self, mode: NcclCftTeamMode = NcclCftTeamMode.FLAT) -> NCCLTeam:
        """The ranks that this one reaches by the compute fabric; this one alone where there is none."""
        self._require("get team_cft")
        return NCCLTeam(*_native.team_cft(self._comm, int(mode)))

    @property
    def team_cft_multimem(self) -> NCCLTeam:
        """The ranks that share a multicast endpoint there."""
        self._require("get team_cft_multimem")
        return NCCLTeam(*_native.team_cft_multimem(self._comm))

    def team_rank_to_world(self, team: NCCLTeam, team_rank: int) -> int:
        """The rank of member `team_rank` of `team`."""
        self._require("map a team's rank")
        return _native.team_rank_to_world(self._comm, team._lowered, team_rank)

    def team_rank_to_lsa(self, team: NCCLTeam, team_rank: int) -> int:
        """The place of member `team_rank` of `team` in its load-store team."""
        self._require("map a team's rank")
        return _native.team_rank_to_lsa(self._comm, team._lowered, team_rank)

    def get_last_error(self) -> str:
        """The library's last message in this process, "" where there was none."""
        self._require("get_last_error")
        return _native.last_error(self._comm)

    def get_async_error(self) -> int:
        """How the communicator is: a value of nccl.bindings.nccl.Result; InProgress while it works."""
        self._require("get_async_error")
        return _native.async_error(self._comm)

    def get_mem_stat(self, stat: NcclCommMemStat) -> int:
        """Bytes of device memory of the communicator, of the kind `stat`."""
        self._require("get_mem_stat")
        return _native.memory_statistic(self._comm, int(stat))

    # ---- messages and signals

    def send(
        self, sendbuf: NcclBufferSpec, peer: int, *, stream: NcclStreamSpec | None = None
    ) -> None:
        """Sends all of `sendbuf` to rank `peer`, which receives as many elements."""
        _native.send(self._comm, sendbuf, peer, stream)

    def recv(
        self, recvbuf: NcclBufferSpec, peer: int, *, stream: NcclStreamSpec | None = None
    ) -> None:
        """Receives from rank `peer`; fills all of `recvbuf`."""
        _native.recv(self._comm, recvbuf, peer, stream)

    def signal(
        self,
        peer: int,
        signal_index: int = 0,
        context: int = 0,
        flags: int = 0,
        *,
        stream: NcclStreamSpec | None = None,
    ) -> None:
        """Signals rank `peer`, after this rank's earlier puts to it."""
        _native.signal(self._comm, peer, signal_index, context, flags, stream)

    def wait_signal(
        self,
        descs: WaitSignalDesc | Sequence[WaitSignalDesc],
        *,
        stream: NcclStreamSpec | None = None,
    ) -> None:
        """Has the stream wait for signals of other ranks, all of them."""
        waits = [descs] if isinstance(descs, WaitSignalDesc) else descs
        described = [(one.op_count, one.peer, one.signal_index, one.context) for one in waits]
        _native.wait_signal(self._comm, described, stream)

    def put_signal(
        self,
        local_buffer: NcclBufferSpec,
        peer: int,
        peer_window: RegisteredWindowHandle,
        peer_window_offset: int = 0,
        signal_index: int = 0,
        context: int = 0,
        flags: int = 0,
        *,
        stream: NcclStreamSpec | None = None,
    ) -> None:
        """Writes `local_buffer` into rank `peer`'s part of the window, then signals it.

        `peer_window_offset` counts elements of `local_buffer`'s type.
        """
        _native.put_signal(
            self._comm,
            local_buffer,
            peer,
            peer_window.handle,
            peer_window_offset,
            signal_index,
            context,
            flags,
            stream,
        )

    # ---- collectives: every rank calls, in the same order

    def allreduce(
        self,
        sendbuf: NcclBufferSpec,
        recvbuf: NcclBufferSpec,
        op: NcclRedOp | CustomRedOp,
        *,
        stream: NcclStreamSpec | None = None,
        config: NCCLCollConfig | None = None,
    ) -> None:
        """Combines the ranks' `sendbuf` element by element, into each rank's `recvbuf`.

        Shapes: `sendbuf` n elements, `recvbuf` at least n of this type; it may be `sendbuf`.
        """
        _native.all_reduce(self._comm, sendbuf, recvbuf, op, stream, config and config._lower())

    def reduce(
        self,
        sendbuf: NcclBufferSpec,
        recvbuf: NcclBufferSpec | None,
        op: NcclRedOp | CustomRedOp,
        root: int | None = None,
        *,
        stream: NcclStreamSpec | None = None,
        config: NCCLCollConfig | None = None,
    ) -> None:
        """Combines as allreduce() does, into `recvbuf` of rank `root` alone; other ranks' is ignored.

        `root` None: all ranks.
        """
        if root is None:
            _native.all_reduce(self._comm, sendbuf, recvbuf, op, stream, config and config._lower())
        else:
            _native.reduce(self._comm, sendbuf, recvbuf, op, root, stream, config and config._lower())

    def broadcast(
        self,
        sendbuf: NcclBufferSpec | None,
        recvbuf: NcclBufferSpec,
        root: int,
        *,
        stream: NcclStreamSpec | None = None,
        config: NCCLCollConfig | None = None,
    ) -> None:
        """Copies rank `root`'s `sendbuf` into every rank's `recvbuf`, which has as many elements.

        `sendbuf` of other ranks is ignored.
        """
        _native.broadcast(self._comm, sendbuf, recvbuf, root, stream, config and config._lower())

    def allgather(
        self,
        sendbuf: NcclBufferSpec,
        recvbuf: NcclBufferSpec,
        *,
        stream: NcclStreamSpec | None = None,
        config: NCCLCollConfig | None = None,
    ) -> None:
        """Puts the ranks' `sendbuf` side by side, in the order of ranks, into each `recvbuf`.

        Shapes: `sendbuf` n elements, `recvbuf` at least nranks * n.
        """
        _native.all_gather(self._comm, sendbuf, recvbuf, stream, config and config._lower())

    def gather(
        self,
        sendbuf: NcclBufferSpec,
        recvbuf: NcclBufferSpec | None,
        root: int | None = None,
        *,
        stream: NcclStreamSpec | None = None,
        config: NCCLCollConfig | None = None,
    ) -> None:
        """Gathers as allgather() does, into `recvbuf` of rank `root` alone; other ranks' is ignored.

        `root` None: all ranks.
        """
        if root is None:
            _native.all_gather(self._comm, sendbuf, recvbuf, stream, config and config._lower())
        else:
            _native.gather(self._comm, sendbuf, recvbuf, root, stream, config and config._lower())

    def scatter(
        self,
        sendbuf: NcclBufferSpec | None,
        recvbuf: NcclBufferSpec,
        root: int,
        *,
        stream: NcclStreamSpec | None = None,
        config: NCCLCollConfig | None = None,
    ) -> None:
        """Gives rank i the i-th block of rank `root`'s `sendbuf`.

        Shapes: `recvbuf` n elements; at the root `sendbuf` nranks * n; other ranks' `sendbuf` is ignored.
        """
        _native.scatter(self._comm, sendbuf, recvbuf, root, stream, config and config._lower())

    def reduce_scatter(
        self,
        sendbuf: NcclBufferSpec,
        recvbuf: NcclBufferSpec,
        op: NcclRedOp | CustomRedOp,
        *,
        stream: NcclStreamSpec | None = None,
        config: NCCLCollConfig | None = None,
    ) -> None:
        """Combines the ranks' `sendbuf`, and gives rank i the i-th block of the result.

        Shapes: `sendbuf` nranks * n elements (a remainder is not used), `recvbuf` at least n.
        """
        _native.reduce_scatter(self._comm, sendbuf, recvbuf, op, stream, config and config._lower())

    def alltoall(
        self,
        sendbuf: NcclBufferSpec,
        recvbuf: NcclBufferSpec,
        *,
        stream: NcclStreamSpec | None = None,
        config: NCCLCollConfig | None = None,
    ) -> None:
        """Sends block i of `sendbuf` to rank i, and receives rank i's as block i of `recvbuf`.

        Shapes: both nranks * n elements (a remainder is not used). They must not overlap.
        """
        _native.all_to_all(self._comm, sendbuf, recvbuf, stream, config and config._lower())

    # ---- resources

    def register_buffer(self, buffer: NcclBufferSpec) -> RegisteredBufferHandle:
        """Lets operations on `buffer` go faster. Its memory must be a device's."""
        self._require("register_buffer")
        handle, size = _native.register_buffer(self._comm, buffer)
        return self._keep(RegisteredBufferHandle(self.ptr, handle, size, buffer))

    def register_window(
        self, buffer: NcclBufferSpec, flags: WindowFlag | None = None
    ) -> RegisteredWindowHandle | None:
        """Makes `buffer`, of mem_alloc(), addressable for all ranks. All ranks call.

        None: the library makes no windows here. In a group, and for a nonblocking communicator, the
        handle is 0 until the work is done.
        """
        self._require("register_window")
        chosen = WindowFlag.DEFAULT if flags is None else WindowFlag(flags)
        place = _native.WindowPlace()
        size = _native.register_window(self._comm, buffer, int(chosen), place)
        is_over = self.get_async_error() == 0 and not _native.is_group_open()
        if place.handle == 0 and is_over:
            return None
        return self._keep(RegisteredWindowHandle(self.ptr, place, size, chosen, buffer))

    def create_pre_mul_sum(
        self, scalar: NcclScalarSpec, datatype: NcclDataType | None = None
    ) -> CustomRedOp:
        """An operator that multiplies by `scalar` before it sums.

        `scalar`: a number or a NumPy array of one element, read now; or one element of device memory,
        read by each operation. `datatype` of the buffers; None: the scalar's.
        NcclInvalid: more than one element, or a type that is not `datatype`.
        """
        self._require("create_pre_mul_sum")
        value, address, kind, is_host = _scalar(scalar, datatype)
        op = _native.create_pre_mul_sum(self._comm, address, int(kind), is_host)
        residence = "HostImmediate" if is_host else "Device"
        return self._keep(CustomRedOp(self.ptr, op, kind, residence, value))

    def create_dev_comm(
        self, requirements: NCCLDevCommRequirements | None = None
    ) -> DevCommResource:
        """Makes a device communicator, for kernels that communicate. NCCLError: a requirement cannot be met."""
        self._require("create_dev_comm")
        made = _native.DevComm()
        wanted, multimem, handles = (requirements or NCCLDevCommRequirements())._lower(self._comm)
        _native.create_dev_comm(self._comm, wanted, made)
        return self._keep(DevCommResource(self.ptr, made, multimem, handles))

    def close_all_resources(self) -> None:
        """Closes all resources of the communicator; ignores errors."""
        while self._resources:
            try:
                self._resources.pop().close()
            except Exception:  # noqa: BLE001, S110
                pass

    # ----

    def _require(self, operation: str) -> None:
        if not self.is_valid:
            self._comm.require(operation)

    def _keep(self, resource: _Resource) -> _Resource:
        self._resources = [one for one in self._resources if not one._is_closed]
        self._resources.append(resource)
        return resource

    def _child(self, operation: str) -> Communicator:
        self._require(operation)
        child = type(self)()
        self._keep_unfinished(child)
        return child

    def _keep_unfinished(self, child: Communicator) -> None:
        # A nonblocking call stores the child's handle when it is done: until then somebody holds it.
        self._children = [one for one in self._children if not one._comm.is_settled]
        self._children.append(child)

    def __repr__(self) -> str:
        if not self.is_valid:
            return "<Communicator: null (ptr=0)>"
        try:
            what = f"rank={self.rank}/{self.nranks}, device={self._comm.device}"
        except Exception:  # noqa: BLE001  (still being made, or failed)
            what = "not ready"
        return f"<Communicator: {what}, ptr={self.ptr:#x}>"

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        from html import escape

        from nccl.bindings.nccl import Result
        from nccl.core.typing import NcclCommMemStat

        rows: dict[str, str] = {}
        try:
            state = Result(self.get_async_error())
            if state == Result.Success:
                kind = "virtual GPU" if _native.is_virtual() else "GPU"
                memory = self.get_mem_stat(NcclCommMemStat.GPU_MEM_TOTAL)
                rows["rank"] = f"{self.rank} of {self.nranks}"
                rows["device"] = f"{kind} {self._comm.device}"
                rows["device memory"] = f"{memory / 2**20:.1f} MiB"
            rows["state"] = "ready" if state == Result.Success else state.name
        except NcclInvalid as error:
            rows["state"] = str(error).rpartition(": ")[2]
        except Exception as error:  # noqa: BLE001  (a display must not fail)
            rows["state"] = str(error)

        body = "".join(f"<tr><th>{name}</th><td>{escape(value)}</td></tr>" for name, value in rows.items())
        return f"<table><caption>Communicator</caption>{body}</table>"


def _scalar(scalar: Any, datatype: NcclDataType | None) -> tuple[object, int, NcclDataType, bool]:
    """(object to keep alive, address, type, True if it is read now)"""
    import numpy

    from nccl.core.buffer import NcclBuffer

    if datatype is not None:
        datatype = NcclDataType(datatype)
    if isinstance(scalar, (int, float)):
        scalar = numpy.array(scalar, dtype=None if datatype is None else datatype.numpy_dtype)
    if isinstance(scalar, (numpy.ndarray, numpy.generic)):
        array = numpy.ascontiguousarray(scalar)
        if array.size != 1:
            raise NcclInvalid(f"scalar has {array.size} elements; it must have 1")
        inferred = NcclDataType.from_numpy_dtype(array.dtype) if datatype is None else datatype
        return array, array.ctypes.data, inferred, True
    try:
        buffer = NcclBuffer(scalar)
    except (TypeError, ValueError, NcclInvalid) as error:
        raise NcclInvalid(f"scalar is neither a number nor a buffer: {error}") from error
    if buffer.count != 1:
        raise NcclInvalid(f"scalar has {buffer.count} elements; it must have 1")
    if datatype is not None and buffer.dtype != datatype:
        raise NcclInvalid(f"Dtype mismatch: scalar has dtype {buffer.dtype}, not {datatype}")
    return scalar, buffer.ptr, buffer.dtype, False
