// What NCCL_P2P_DISABLE and NCCL_P2P_LEVEL say of two GPUs of one machine.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace niccolite::comm {

/// How far two GPUs are from each other, as NCCL numbers it: what is not more than NCCL_P2P_LEVEL
/// may use peer access. The same GPU counts as NVLink: LOC means "never" (NCCL's guide).
enum class Distance : int { Loc = 0, NvLink = 1, Pix = 4, Pxb = 5, Phb = 8, Sys = 9 };

/// Of NCCL_P2P_LEVEL: a name, or one of the older digits (0 LOC, 1 PIX, 2 PXB, 3 PHB, from 4 on
/// SYS). Nothing: neither.
std::optional<int> parse_p2p_level(std::string_view text);

/// Of two places in the tree of PCI devices, as /sys names them: "/sys/devices/pci0000:00/...". One
/// bridge between them: PIX; several: PXB; the processor's own: PHB, or SYS where it has several of
/// them. What is no such name: SYS.
Distance pci_distance(std::string_view a, std::string_view b);
/// The same of two bus ids ("0000:1b:00.0").
Distance distance_by_bus(const std::string& a, const std::string& b);

/// Do the variables of this process forbid peer access over such a distance?
bool forbids_peer_access(Distance distance);

}  // namespace niccolite::comm
