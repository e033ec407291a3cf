#include "gpu/virtual/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace niccolite::gpu::virtual_ {
namespace {

constexpr size_t kGrain = 256;

// Blocks of a page or more consist of whole pages, so that giving back pages never touches a
// neighbour.
size_t block_bytes(size_t bytes) { return round_up(bytes, bytes < kPage ? kGrain : kPage); }

}  // namespace

void Arena::Segment::add_free(size_t offset, size_t size) {
  const auto next = free_by_offset.lower_bound(offset);
  if (next != free_by_offset.end() && offset + size == next->first) {
    const auto [next_offset, next_size] = *next;
    take_free(next_offset, next_size);
    size += next_size;
  }
  const auto after = free_by_offset.lower_bound(offset);
  if (after != free_by_offset.begin()) {
    const auto [previous_offset, previous_size] = *std::prev(after);
    if (previous_offset + previous_size == offset) {
      take_free(previous_offset, previous_size);
      offset = previous_offset;
      size += previous_size;
    }
  }
  free_by_offset.emplace(offset, size);
  free_by_size.emplace(size, offset);
}

void Arena::Segment::take_free(size_t offset, size_t size) {
  free_by_offset.erase(offset);
  free_by_size.erase({size, offset});
}

Result<Arena::Segments::iterator> Arena::add_segment(size_t bytes) {
  Segment segment;
  segment.bytes = std::max(bytes, kSegmentBytes);
  segment.fd = TRY(Fd::memfd("virtual-gpu", segment.bytes));
  // NORESERVE: the segment is meant to be much larger than the part in use.
  void* base = mmap(nullptr, segment.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                    segment.fd.get(), 0);
  if (base == MAP_FAILED)
    return Status::from_errno(errno, "cannot map memory of virtual GPUs (mmap)");
  segment.base = static_cast<std::byte*>(base);
  segment.add_free(0, segment.bytes);
  const std::byte* key = segment.base;
  return segments_.emplace(key, std::move(segment)).first;
}

Result<std::byte*> Arena::allocate(size_t asked) {
  const size_t bytes = block_bytes(asked);
  const size_t alignment = asked < kPage ? kGrain : kPage;
  for (bool grown = false;; grown = true) {
    for (auto& [base, segment] : segments_) {
      for (auto found = segment.free_by_size.lower_bound({bytes, 0});
           found != segment.free_by_size.end(); ++found) {
        const auto [size, offset] = *found;
        const size_t start = round_up(offset, alignment);
        if (start + bytes > offset + size) continue;
        segment.take_free(offset, size);
        if (start > offset) segment.add_free(offset, start - offset);
        if (offset + size > start + bytes)
          segment.add_free(start + bytes, offset + size - start - bytes);
        return segment.base + start;
      }
    }
    if (grown) return Status::internal("a new segment has no room for {} bytes", bytes);
    TRY(add_segment(bytes));
  }
}

void Arena::free(std::byte* block, size_t asked) {
  const size_t bytes = block_bytes(asked);
  const auto found = segments_.find(find(block)->first);
  Segment& segment = found->second;
  const auto offset = static_cast<size_t>(block - segment.base);
  // A hole reads as zeros and holds no memory; it is not worth a system call for a few pages.
  const bool punched = bytes >= kPunchBytes &&
                       fallocate(segment.fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                 static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0;
  if (!punched) std::memset(block, 0, bytes);
  segment.add_free(offset, bytes);
  if (segment.free_by_offset.begin()->second == segment.bytes) retire(found);
}

void Arena::retire(Segments::iterator found) {
  Segment& segment = found->second;
  void* reserved = mmap(segment.base, segment.bytes, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (reserved == MAP_FAILED) {
    munmap(segment.base, segment.bytes);
  } else {
    retired_.push_back({segment.base, segment.bytes});
  }
  segments_.erase(found);
  if (retired_.size() > kRetiredSegments) {
    munmap(retired_.front().base, retired_.front().bytes);
    retired_.pop_front();
  }
}

Arena::Segments::const_iterator Arena::find(const void* pointer) const {
  const auto* address = static_cast<const std::byte*>(pointer);
  auto after = segments_.upper_bound(address);
  if (after == segments_.begin()) return segments_.end();
  --after;
  return address < after->first + after->second.bytes ? after : segments_.end();
}

Arena::Extent Arena::place_of(const std::byte* block) const {
  const auto found = find(block);
  return {found->second.fd.get(), static_cast<size_t>(block - found->first)};
}

bool Arena::owns(const void* pointer) const {
  if (find(pointer) != segments_.end()) return true;
  const auto* address = static_cast<const std::byte*>(pointer);
  return std::any_of(retired_.begin(), retired_.end(), [address](const Range& range) {
    return address >= range.base && address < range.base + range.bytes;
  });
}

size_t Arena::touched() const {
  size_t bytes = 0;
  for (const auto& [base, segment] : segments_) bytes += touched_bytes(segment.fd);
  return bytes;
}

size_t touched_bytes(const Fd& memfd) {
  struct stat file {};
  constexpr size_t kBlock = 512;  // of st_blocks, always
  return fstat(memfd.get(), &file) == 0 ? static_cast<size_t>(file.st_blocks) * kBlock : 0;
}

Arena::~Arena() {
  for (auto& [base, segment] : segments_) munmap(segment.base, segment.bytes);
  for (const Range& range : retired_) munmap(range.base, range.bytes);
}

}  // namespace niccolite::gpu::virtual_
