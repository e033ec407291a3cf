// Peer memory: a kernel module by which a NIC registers memory of a GPU by its address, as memory
// of the host (ibv_reg_mr), where there are no dma-bufs. Thread safety: any thread.
#pragma once

#include <algorithm>
#include <array>
#include <filesystem>
#include <string>
#include <system_error>

namespace niccolite::transport::net::verbs {

/// One of them is there where the module is loaded.
inline constexpr std::array kPeerMemoryFiles{"/sys/module/nvidia_peermem/version",
                                             "/sys/kernel/mm/memory_peers/nv_mem/version",
                                             "/sys/kernel/mm/memory_peers/nv_mem_nc/version"};

/// `root`: of the files; of this machine unless told.
inline bool has_peer_memory(const std::string& root = "") {
  return std::ranges::any_of(kPeerMemoryFiles, [&](const char* file) {
    std::error_code ignored;
    return std::filesystem::exists(root + file, ignored);
  });
}

}  // namespace niccolite::transport::net::verbs
