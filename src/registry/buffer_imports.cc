#include "registry/buffer_imports.h"

#include "base/log.h"
#include "registry/housekeeper.h"
#include "transport/descriptor_server.h"

namespace niccolite::registry {
namespace {

constexpr std::chrono::seconds kFetchTime{10};  // a descriptor server answers at once

}  // namespace

// Giving mappings back may wait for kernels of others, which may wait for this thread.
BufferImports::~BufferImports() {
  for (auto& [name, mapping] : mappings_) Housekeeper::instance().release(std::move(mapping));
}

void BufferImports::close() {
  std::lock_guard lock(mutex_);
  tell_ = nullptr;
}

Status BufferImports::map(int from, std::span<const std::byte> bytes) {
  MapAnswer answer{.number = TRY(MapRequest::number_in(bytes, fmt::format("rank {}", from))),
                   .base = 0};
  const Result<uint64_t> base = map_whole(from, bytes);
  if (base.is_ok())
    answer.base = base.value();
  else
    LOG(Info, Reg, "a buffer of rank {} is not mapped: {}", from, base.status().message());
  std::lock_guard lock(mutex_);
  if (tell_ != nullptr) tell_(from, answer);
  return {};
}

Result<uint64_t> BufferImports::map_whole(int from, std::span<const std::byte> bytes) {
  const MapRequest request = TRY(MapRequest::decode(bytes, fmt::format("rank {}", from)));
  std::shared_ptr<Mapping> made = TRY(make(from, request));
  const auto base = reinterpret_cast<uint64_t>(made->data());
  std::lock_guard lock(mutex_);
  if (!mappings_.emplace(std::pair(from, request.number), std::move(made)).second)
    return Status::remote_error("rank {} exports its buffer {} twice", from, request.number);
  return base;
}

Result<std::shared_ptr<BufferImports::Mapping>> BufferImports::make(int from,
                                                                    const MapRequest& request) {
  auto mapping = std::make_shared<Mapping>();
  if (request.pool) mapping->pool = TRY(import_pool(from, request));
  if (request.name) {
    mapping->allocation =
        TRY(sharing_.open_allocation(device_, *request.name, request.bytes, mapping->pool.get()));
    return mapping;
  }
  const size_t granularity = TRY(addresses_.mapping_granularity(device_));
  mapping->range = TRY(addresses_.reserve_addresses(device_, request.bytes, granularity));
  TRY(map_pieces(addresses_, mapping->range, 0, request.address, request.pieces, {device_},
                 Deadline::after(kFetchTime)));
  return mapping;
}

Result<std::shared_ptr<gpu::PoolImport>> BufferImports::import_pool(int from,
                                                                    const MapRequest& request) {
  std::lock_guard lock(pools_mutex_);
  std::erase_if(pools_, [](const auto& known) { return known.second.expired(); });
  std::weak_ptr<gpu::PoolImport>& known = pools_[{from, *request.pool}];
  if (std::shared_ptr<gpu::PoolImport> pool = known.lock()) return pool;
  Fd descriptor =
      TRY(transport::fetch_descriptor(request.address, *request.pool, Deadline::after(kFetchTime)));
  auto made =
      std::make_shared<gpu::PoolImport>(TRY(sharing_.import_pool(device_, std::move(descriptor))));
  known = made;
  return made;
}

Status BufferImports::unmap(int from, std::span<const std::byte> note) {
  const uint64_t number = TRY(decode_unmap(note, fmt::format("rank {}", from)));
  std::shared_ptr<Mapping> mapping;
  {
    std::lock_guard lock(mutex_);
    const auto found = mappings_.find({from, number});
    if (found == mappings_.end()) return {};  // it could not be mapped
    mapping = std::move(found->second);
    mappings_.erase(found);
  }
  Housekeeper::instance().release(std::move(mapping));
  return {};
}

}  // namespace niccolite::registry
