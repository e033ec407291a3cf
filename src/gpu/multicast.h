// Multicast: addresses whose stores reach the memory of several GPUs, and whose loads reduce over
// it, as NVSwitches offer them (NVLink SHARP, NVLS).
//
// A *team* is a number of GPUs, of one or several processes, and a range of bytes. Life of a team:
//
//   one process                 every process, for each of its GPUs
//   create()  ── descriptor ──> import_team()
//                               join()       all GPUs of the team
//                               bind()       memory of the GPU, for a part of the range
//                               map()        addresses for kernels of the GPU
//
// bind() and map() wait, perhaps for ever, until all GPUs have joined: callers that can lose a peer
// let the ranks agree on every join() first.
//
// Users: registry, transport and the modules above. Thread safety: any thread.
#pragma once

#include <cstddef>

#include "base/fd.h"
#include "base/status.h"
#include "gpu/owner.h"

namespace niccolite::gpu {

class Multicast;

/// This process's hold on a team; the team ends with the last one. Bindings that this process made
/// end with it.
class MulticastTeam : public Owner<Multicast, MulticastTeam> {
 public:
  MulticastTeam() = default;
  MulticastTeam(Multicast* from, void* handle, size_t bytes) : Owner(from, handle), bytes_(bytes) {}
  static Status give_back(Multicast& from, void* handle);
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

/// Addresses of a team's range, for kernels of one GPU. No kernel may use them when it ends.
class MulticastMapping : public Owner<Multicast, MulticastMapping> {
 public:
  MulticastMapping() = default;
  MulticastMapping(Multicast* from, void* handle, std::byte* data)
      : Owner(from, handle), data_(data) {}
  static Status give_back(Multicast& from, void* handle);
  /// The begin of the range. The host never loads or stores there; kernels use multimem
  /// instructions alone.
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
};

class Multicast {
 public:
  /// Can `device` be in a team?
  virtual bool has_multicast(int device) = 0;
  /// Ranges are multiples of this, in bytes, for a team of `devices`.
  virtual Result<size_t> granularity(int devices) = 0;
  /// Offsets and bound memory are multiples of this.
  virtual Result<size_t> binding_granularity(int devices) = 0;
  /// A team of `devices` GPUs that bind `bytes` each. CudaError: the system cannot make it.
  virtual Result<MulticastTeam> create(int devices, size_t bytes) = 0;
  /// A descriptor by which another process of this machine imports the team.
  virtual Result<Fd> export_team(const MulticastTeam& team) = 0;
  /// `bytes` as create() had them.
  virtual Result<MulticastTeam> import_team(Fd fd, size_t bytes) = 0;
  virtual Status join(const MulticastTeam& team, int device) = 0;
  /// Binds `bytes` at `memory`, of `device`, to the range from `offset` on. The memory is shareable
  /// (Machine::allocate) or of virtual memory management. It must live until the binding ends.
  virtual Status bind(const MulticastTeam& team, int device, size_t offset, const void* memory,
                      size_t bytes) = 0;
  /// Ends the binding with this offset and length.
  virtual Status unbind(const MulticastTeam& team, int device, size_t offset, size_t bytes) = 0;
  /// The whole range.
  virtual Result<MulticastMapping> map(const MulticastTeam& team, int device) = 0;

 protected:
  friend class MulticastTeam;
  friend class MulticastMapping;
  ~Multicast() = default;
  virtual Status release_team(void* handle) = 0;
  virtual Status release_mapping(void* handle) = 0;
};

}  // namespace niccolite::gpu
