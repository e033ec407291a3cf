// SharedPool: a memory pool of this process's user, from which ranks of other processes may open
// allocations. Thread safety: any thread.
#pragma once

#include <memory>
#include <utility>

#include "gpu/sharing.h"
#include "transport/shareable.h"

namespace niccolite::registry {

class SharedPool final : public transport::Shareable {
 public:
  /// The pool that the memory at `pointer` is of. Error: it was not made to be exported.
  static Result<std::shared_ptr<SharedPool>> create(gpu::Sharing& sharing, const void* pointer) {
    const transport::Token token = TRY(transport::draw_token());
    std::shared_ptr<SharedPool> pool(new SharedPool(token, TRY(sharing.export_pool(pointer))));
    publish(pool);
    return pool;
  }
  Result<Fd> export_descriptor() const override { return descriptor_.duplicate(); }

 private:
  // The descriptor is made at once: when a peer asks for it, the user may have destroyed the pool.
  SharedPool(const transport::Token& token, Fd descriptor)
      : Shareable(token), descriptor_(std::move(descriptor)) {}
  const Fd descriptor_;
};

}  // namespace niccolite::registry
