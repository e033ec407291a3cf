// CollNet plug-ins: how tables of all versions become one CollectiveNetwork.
#include <unistd.h>

#include <mutex>
#include <utility>
#include <vector>

#include "base/parameters.h"
#include "transport/net/collective_network.h"
#include "transport/net/plugin_abi.h"

namespace niccolite::transport::net {
namespace {

using executor::DataType;
using executor::ReduceOp;

constexpr size_t kLeastBytes = 4096;  // of a request: less would be latency alone
constexpr size_t kMostOldBytes = size_t{512} << 20;

template <int V>
class CollectivePlugin final : public CollectiveNetwork {
 public:
  static Result<std::shared_ptr<CollectiveNetwork>> open(std::shared_ptr<PluginLibrary> library,
                                                         const abi::CollectiveTable<V>& table,
                                                         uint64_t communicator) {
    std::shared_ptr<CollectivePlugin> plugin(new CollectivePlugin(std::move(library), table));
    if (table.init == nullptr) return plugin->broken("its table has no init");
    TRY(plugin->init(communicator));
    // Some plug-ins complete their table there.
    TRY(plugin->check_table());
    TRY(plugin->inspect());
    return std::shared_ptr<CollectiveNetwork>(std::move(plugin));
  }
  ~CollectivePlugin() override {
    if constexpr (V >= 11)
      if (is_initialized_ && table_.end.finalize != nullptr && process_ == getpid())
        static_cast<void>(table_.end.finalize(context_));  // nothing depends on it any more
  }

  Result<void*> listen(Handle& handle) override {
    void* listener = nullptr;
    abi::Outcome result;
    if constexpr (V >= 11)
      result = table_.listen(context_, 0, handle.data(), &listener);
    else
      result = table_.listen(0, handle.data(), &listener);
    TRY(check("listen", result));
    return listener;
  }
  Result<void*> connect(std::span<Handle> handles, int place, void* listener) override {
    std::vector<void*> addresses;
    for (Handle& handle : handles) addresses.push_back(handle.data());
    void* collective = nullptr;
    TRY(check("connect", table_.connect(addresses.data(), static_cast<int>(addresses.size()), place,
                                        listener, &collective)));
    if (collective == nullptr) return broken("connect gave no collective");
    return collective;
  }
  Result<bool> can_reduce(DataType type, ReduceOp operation) override {
    int is_supported = 0;
    TRY(check("reduceSupport", table_.reduce_support(static_cast<int>(type),
                                                     static_cast<int>(operation), &is_supported)));
    return is_supported != 0;
  }
  bool gathers() const override {
    if constexpr (V >= 8)
      return table_.gatherings.gather != nullptr && table_.gatherings.reduce_scatter != nullptr;
    return false;
  }
  Result<void*> register_memory(void* collective, void* data, size_t bytes) override {
    void* memory = nullptr;
    TRY(check("regMr",
              table_.register_memory(collective, data,
                                     static_cast<typename abi::Signatures<V>::MemorySize>(bytes),
                                     abi::kHostMemory, &memory)));
    return memory;
  }
  bool takes_device_memory() const override { return (memory_kinds_ & abi::kDeviceMemory) != 0; }
  // Plug-ins keep no descriptor.
  Result<void*> register_device_memory(void* collective, void* data, size_t bytes,
                                       const gpu::DmaBuffer& of) override {
    void* memory = nullptr;
    if ((memory_kinds_ & abi::kDmaBuffers) != 0 && table_.register_dma_buffer != nullptr &&
        parameters::dmabuf_enable() != 0)
      TRY(check("regMrDmaBuf",
                table_.register_dma_buffer(collective, data, bytes, abi::kDeviceMemory, of.offset,
                                           of.descriptor.get(), &memory)));
    else
      TRY(check("regMr",
                table_.register_memory(collective, data,
                                       static_cast<typename abi::Signatures<V>::MemorySize>(bytes),
                                       abi::kDeviceMemory, &memory)));
    return memory;
  }
  void deregister_memory(void* collective, void* memory) override {
    static_cast<void>(table_.deregister_memory(collective, memory));
  }

  Result<void*> all_reduce(void* collective, const CollectivePiece& send,
                           const CollectivePiece& receive, size_t count, DataType type,
                           ReduceOp operation) override {
    void* request = nullptr;
    TRY(check("iallreduce",
              table_.all_reduce(collective, send.data, receive.data,
                                static_cast<typename abi::CollectiveTable<V>::Count>(count),
                                static_cast<int>(type), static_cast<int>(operation), send.memory,
                                receive.memory, &request)));
    return request;
  }
  Result<void*> gather([[maybe_unused]] void* collective,
                       [[maybe_unused]] const CollectivePiece& send,
                       [[maybe_unused]] const CollectivePiece& receive,
                       [[maybe_unused]] size_t bytes, [[maybe_unused]] int place) override {
    void* request = nullptr;
    if constexpr (V >= 8) {
      abi::Piece<V> piece = piece_of(receive, bytes);
      TRY(check("iallgather", table_.gatherings.gather(collective, send.data, 1, &piece, bytes,
                                                       bytes * static_cast<size_t>(place), bytes,
                                                       send.memory, &request)));
    }
    return request;
  }
  Result<void*> reduce_to([[maybe_unused]] void* collective,
                          [[maybe_unused]] const CollectivePiece& send,
                          [[maybe_unused]] const CollectivePiece& receive,
                          [[maybe_unused]] size_t bytes, [[maybe_unused]] int place,
                          [[maybe_unused]] DataType type,
                          [[maybe_unused]] ReduceOp operation) override {
    void* request = nullptr;
    if constexpr (V >= 8) {
      abi::Piece<V> piece = piece_of(send, bytes);
      TRY(check(
          "ireducescatter",
          table_.gatherings.reduce_scatter(
              collective, 1, &piece, receive.data, bytes, bytes * static_cast<size_t>(place), bytes,
              static_cast<int>(type), static_cast<int>(operation), receive.memory, &request)));
    }
    return request;
  }
  Result<bool> test(void* request) override {
    int is_done = 0;
    int size = 0;  // which not every plug-in tells
    TRY(check("test", table_.test(request, &is_done, &size)));
    return is_done != 0;
  }
  void close(void* collective) override { static_cast<void>(table_.close(collective)); }
  void close_listener(void* listener) override {
    static_cast<void>(table_.close_listener(listener));
  }

 private:
  CollectivePlugin(std::shared_ptr<PluginLibrary> library, const abi::CollectiveTable<V>& table)
      : library_(std::move(library)), table_(table) {
    name_ = table.name != nullptr ? table.name : "without a name";
    origin_ = fmt::format("{}, ncclCollNetPlugin_v{}", library_->file(), V);
  }

  template <typename... Args>
  Status broken(fmt::format_string<Args...> format, Args&&... args) const {
    return Status::system_error(
        "CollNet plug-in {} ({}){}: {}; use another build of it, or NCCL_COLLNET_ENABLE=0", name_,
        origin_, device_.empty() ? "" : fmt::format(", device {}", device_),
        fmt::format(format, std::forward<Args>(args)...));
  }
  Status check(const char* call, abi::Outcome result) const {
    if (result == abi::kSuccess) return {};
    return broken("{} failed with result {} (NCCL_DEBUG=INFO shows what it says)", call,
                  static_cast<int>(result));
  }

  static abi::Piece<V> piece_of(const CollectivePiece& of, size_t bytes) {
    return {.memory = of.memory,
            .address = of.data,
            .bytes = static_cast<decltype(abi::Piece<V>::bytes)>(bytes)};
  }

  Status init([[maybe_unused]] uint64_t communicator) {
    abi::Outcome result = abi::kSuccess;
    if constexpr (V >= 11) {
      result = table_.init(&context_, communicator, PluginLibrary::kLogger);
    } else {
      result = PluginLibrary::init_once(&table_, library_,
                                        [&] { return table_.init(PluginLibrary::kLogger); });
    }
    is_initialized_ = result == abi::kSuccess;
    return check("init", result);
  }

  Status check_table() const {
    const std::pair<const char*, bool> members[] = {
        {"devices", table_.devices != nullptr},
        {"getProperties", table_.get_properties != nullptr},
        {"listen", table_.listen != nullptr},
        {"connect", table_.connect != nullptr},
        {"reduceSupport", table_.reduce_support != nullptr},
        {"regMr", table_.register_memory != nullptr},
        {"deregMr", table_.deregister_memory != nullptr},
        {"iallreduce", table_.all_reduce != nullptr},
        {"test", table_.test != nullptr},
        {"closeColl", table_.close != nullptr},
        {"closeListen", table_.close_listener != nullptr}};
    for (const auto& [member, is_there] : members)
      if (!is_there) return broken("its table has no {}", member);
    return {};
  }

  // Checks the plug-in's description of itself before it is used.
  Status inspect() {
    int count = 0;
    TRY(check("devices", table_.devices(&count)));
    if (count <= 0) return broken("devices finds {} devices that reduce", count);
    abi::Properties<V> of{};
    TRY(check("getProperties", table_.get_properties(0, &of)));
    device_ = of.name != nullptr ? of.name : name_;
    if ((of.memory & abi::kHostMemory) == 0)
      return broken("getProperties: it cannot reduce from host memory (ptrSupport 0x{:x})",
                    of.memory);
    memory_kinds_ = of.memory;
    most_bytes_ = kMostOldBytes;
    if constexpr (V >= 9) {
      most_bytes_ = of.most_collective_bytes;
      if (most_bytes_ < kLeastBytes || most_bytes_ > abi::kMostBytes)
        return broken("getProperties: maxCollBytes is {}", most_bytes_);
    }
    return {};
  }

  const pid_t process_ = getpid();  // a child made by fork() ends nothing of its parent's
  const std::shared_ptr<PluginLibrary> library_;
  const abi::CollectiveTable<V>& table_;
  void* context_ = nullptr;
  bool is_initialized_ = false;
  int memory_kinds_ = 0;
};

template <int V = abi::kNewest>
Result<std::shared_ptr<CollectiveNetwork>> open_table(const std::shared_ptr<PluginLibrary>& library,
                                                      uint64_t communicator) {
  if constexpr (V < abi::kOldest) {
    return Status::invalid_usage(
        "network plug-in {} has no CollNet table (ncclCollNetPlugin_v{} "
        "to _v{})",
        library->file(), abi::kOldest, abi::kNewest);
  } else {
    const void* symbol = library->find(fmt::format("ncclCollNetPlugin_v{}", V));
    if (symbol == nullptr) return open_table<V - 1>(library, communicator);
    return CollectivePlugin<V>::open(library, *static_cast<const abi::CollectiveTable<V>*>(symbol),
                                     communicator);
  }
}

}  // namespace

Result<std::shared_ptr<CollectiveNetwork>> CollectiveNetwork::open(
    const std::shared_ptr<PluginLibrary>& library, uint64_t communicator) {
  static std::mutex mutex;  // plug-ins expect one init at a time
  std::lock_guard lock(mutex);
  return open_table(library, communicator);
}

}  // namespace niccolite::transport::net
