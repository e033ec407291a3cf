// Net plug-ins: how they are found, which of them serves, and how tables of all versions become one
// Network.
#include <strings.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/parameters.h"
#include "base/plugin_library.h"
#include "transport/net/network.h"
#include "transport/net/plugin_abi.h"
#include "transport/net/verbs/verbs.h"

namespace niccolite::transport::net {
namespace {

constexpr char kPrefix[] = "libnccl-net";
constexpr size_t kLeastBytes = 4096;   // of a message: less would be frames without data
constexpr int kFastest = 100'000'000;  // Mbit/s; more means that the plug-in uses another unit

bool equal_names(std::string_view a, std::string_view b) {
  return a.size() == b.size() && strncasecmp(a.data(), b.data(), a.size()) == 0;
}

std::atomic<Network::EventSink> event_sink{nullptr};

// The function that plug-ins call. A profiler's failure is no error of the plug-in.
abi::Outcome pass_event_on(void** event, int type, void* of, int64_t layout, void* data) {
  // acquire: pairs with tell_events_to().
  if (const Network::EventSink sink = event_sink.load(std::memory_order_acquire))
    static_cast<void>(sink(event, type, of, layout, data));
  return abi::kSuccess;
}

template <int V>
class Plugin final : public Network {
 public:
  static Result<std::shared_ptr<Network>> open(std::shared_ptr<PluginLibrary> library,
                                               const abi::Table<V>& table, const Wish& wish) {
    std::shared_ptr<Plugin> plugin(new Plugin(std::move(library), table, wish));
    TRY(plugin->check_start());
    TRY(plugin->init());
    // Some plug-ins complete their table there.
    TRY(plugin->check_table());
    TRY(plugin->inspect());
    return std::shared_ptr<Network>(std::move(plugin));
  }
  ~Plugin() override {
    if constexpr (V >= 11)
      if (is_initialized_ && table_.rest.finalize != nullptr && process_ == getpid())
        static_cast<void>(table_.rest.finalize(context_));  // nothing depends on it any more
  }

  std::shared_ptr<PluginLibrary> library() const override { return library_; }

  Result<void*> listen(Handle& handle, const std::string& /*peer*/) override {
    void* listener = nullptr;
    abi::Outcome result;
    if constexpr (V >= 11)
      result = table_.listen(context_, 0, handle.data(), &listener);
    else
      result = table_.listen(0, handle.data(), &listener);
    TRY(check("listen", result));
    if (listener == nullptr) return broken("listen gave no listener");
    return listener;
  }
  Result<void*> connect(void* /*listener*/, Handle& handle) override {
    void* connection = nullptr;
    [[maybe_unused]] void* offload = nullptr;
    abi::Outcome result;
    if constexpr (V >= 11)
      result = table_.connect(context_, 0, handle.data(), &connection, &offload);
    else if constexpr (V >= 10)
      result = table_.connect(0, &config_, handle.data(), &connection, &offload);
    else if constexpr (V >= 7)
      result = table_.connect(0, handle.data(), &connection, &offload);
    else
      result = table_.connect(0, handle.data(), &connection);
    TRY(check("connect", result));
    return connection;
  }
  Result<void*> accept(void* listener) override {
    void* connection = nullptr;
    [[maybe_unused]] void* offload = nullptr;
    abi::Outcome result;
    if constexpr (V >= 7)
      result = table_.accept(listener, &connection, &offload);
    else
      result = table_.accept(listener, &connection);
    TRY(check("accept", result));
    return connection;
  }
  Result<void*> register_memory(void* connection, void* data, size_t bytes) override {
    void* memory = nullptr;
    TRY(check("regMr",
              table_.register_memory(connection, data, static_cast<typename S::MemorySize>(bytes),
                                     abi::kHostMemory, &memory)));
    return memory;
  }
  void deregister_memory(void* connection, void* memory) override {
    static_cast<void>(table_.deregister_memory(connection, memory));  // the connection ends
  }
  Result<void*> send(void* connection, void* data, size_t bytes, int tag, void* memory,
                     [[maybe_unused]] void* event) override {
    void* request = nullptr;
    const auto size = static_cast<typename S::Size>(bytes);
    abi::Outcome result;
    if constexpr (V >= 10)
      result = table_.send(connection, data, size, tag, memory, event, &request);
    else
      result = table_.send(connection, data, size, tag, memory, &request);
    TRY(check("isend", result));
    return request;
  }
  Result<void*> receive(void* connection, void* data, size_t bytes, int tag,
                        void* memory) override {
    void* request = nullptr;
    auto size = static_cast<typename S::Size>(bytes);
    abi::Outcome result;
    if constexpr (V >= 10) {
      void* event = nullptr;
      result = table_.receive(connection, 1, &data, &size, &tag, &memory, &event, &request);
    } else {
      result = table_.receive(connection, 1, &data, &size, &tag, &memory, &request);
    }
    TRY(check("irecv", result));
    return request;
  }
  Result<bool> test(void* request) override {
    int is_done = 0;
    int size = 0;  // which not every plug-in tells
    TRY(check("test", table_.test(request, &is_done, &size)));
    return is_done != 0;
  }
  void close_send(void* connection) override { static_cast<void>(table_.close_send(connection)); }
  void close_receive(void* connection) override {
    static_cast<void>(table_.close_receive(connection));
  }
  void close_listener(void* listener) override {
    static_cast<void>(table_.close_listener(listener));
  }

 private:
  using S = abi::Signatures<V>;

  Plugin(std::shared_ptr<PluginLibrary> library, const abi::Table<V>& table, const Wish& wish)
      : library_(std::move(library)),
        table_(table),
        config_{.traffic_class = wish.traffic_class},
        communicator_(wish.communicator) {
    name_ = table.name != nullptr ? table.name : "";
    origin_ = fmt::format("{}, ncclNetPlugin_v{}", library_->file(), V);
  }

  template <typename... Args>
  Status broken(fmt::format_string<Args...> format, Args&&... args) const {
    return Status::system_error(
        "network plug-in {}: {}; use another build of it, or NCCL_NET_PLUGIN=none", origin_,
        fmt::format(format, std::forward<Args>(args)...));
  }
  Status check(const char* call, abi::Outcome result) const {
    if (result == abi::kSuccess) return {};
    return broken("{} failed with result {} (NCCL_DEBUG=INFO shows what it says)", call,
                  static_cast<int>(result));
  }

  Status check_start() const {
    if (name_.empty()) return broken("its table has no name");
    return table_.init == nullptr ? broken("its table has no init") : Status();
  }
  Status check_table() const {
    const std::pair<const char*, bool> members[] = {
        {"devices", table_.devices != nullptr},
        {"getProperties", table_.get_properties != nullptr},
        {"listen", table_.listen != nullptr},
        {"connect", table_.connect != nullptr},
        {"accept", table_.accept != nullptr},
        {"regMr", table_.register_memory != nullptr},
        {"deregMr", table_.deregister_memory != nullptr},
        {"isend", table_.send != nullptr},
        {"irecv", table_.receive != nullptr},
        {"test", table_.test != nullptr},
        {"closeSend", table_.close_send != nullptr},
        {"closeRecv", table_.close_receive != nullptr},
        {"closeListen", table_.close_listener != nullptr}};
    for (const auto& [member, is_there] : members)
      if (!is_there) return broken("its table has no {}", member);
    return {};
  }

  Status init() {
    abi::Outcome result = abi::kSuccess;
    if constexpr (V >= 11) {
      result =
          table_.init(&context_, communicator_, &config_, PluginLibrary::kLogger, pass_event_on);
    } else {
      result = PluginLibrary::init_once(&table_, library_, [&] {
        if constexpr (V >= 10)
          return table_.init(PluginLibrary::kLogger, pass_event_on);
        else
          return table_.init(PluginLibrary::kLogger);
      });
    }
    is_initialized_ = result == abi::kSuccess;
    return check("init", result);
  }

  // Checks the plug-in's description of itself before it is used.
  Status inspect() {
    int count = 0;
    TRY(check("devices", table_.devices(&count)));
    if (count <= 0) return broken("devices finds {} network devices", count);
    abi::Properties<V> of{};
    TRY(check("getProperties", table_.get_properties(0, &of)));
    properties_.device = of.name != nullptr ? of.name : name_;
    properties_.speed = of.speed;
    properties_.most_bytes = abi::kMostOld;
    const std::string& device = properties_.device;
    if ((of.memory & abi::kHostMemory) == 0)
      return broken("getProperties: device {} cannot send host memory (ptrSupport 0x{:x})", device,
                    of.memory);
    if (of.speed < 0 || of.speed > kFastest)
      return broken("getProperties: device {} has a speed of {} Mbit/s", device, of.speed);
    if (of.most_connections <= 0)
      return broken("getProperties: device {} has maxComms {}", device, of.most_connections);
    if (of.most_receives <= 0)
      return broken("getProperties: device {} has maxRecvs {}", device, of.most_receives);
    if constexpr (V >= 7)
      if (of.driver != abi::kDriverOnHost)
        return broken("getProperties: device {} is driven by the GPU (type {}), which is not known",
                      device, of.driver);
    if constexpr (V >= 9) {
      properties_.most_bytes = of.most_bytes;
      if (of.most_bytes < kLeastBytes || of.most_bytes > abi::kMostBytes)
        return broken("getProperties: device {} has maxP2pBytes {}", device, of.most_bytes);
    }
    return {};
  }

  const pid_t process_ = getpid();  // a child made by fork() ends nothing of its parent's
  const std::shared_ptr<PluginLibrary> library_;
  const abi::Table<V>& table_;
  void* context_ = nullptr;
  abi::Config config_;
  const uint64_t communicator_;
  bool is_initialized_ = false;
};

// Null where no file opens; `tried` then says why, if somebody asked for it.
std::shared_ptr<PluginLibrary> open_library(const std::string& name,
                                            std::vector<std::string>& tried) {
  std::string why;
  std::shared_ptr<PluginLibrary> library = PluginLibrary::open(kPrefix, name, why);
  if (library == nullptr && !why.empty())
    tried.push_back(fmt::format("network plug-in {}: dlopen cannot open it: {}. {}",
                                PluginLibrary::describe(kPrefix, name, "NCCL_NET_PLUGIN"), why,
                                name.empty()
                                    ? "Install what it needs, or set NCCL_NET_PLUGIN=none"
                                    : "Give its full path, or add its folder to LD_LIBRARY_PATH"));
  return library;
}

template <int V = abi::kNewest>
Result<std::shared_ptr<Network>> open_table(const std::shared_ptr<PluginLibrary>& library,
                                            const Network::Wish& wish) {
  if constexpr (V < abi::kOldest) {
    return Status::system_error(
        "network plug-in {}: it has none of the symbols ncclNetPlugin_v{} to ncclNetPlugin_v{}; "
        "use "
        "a build of it for those",
        library->file(), abi::kOldest, abi::kNewest);
  } else {
    const void* symbol = library->find(fmt::format("ncclNetPlugin_v{}", V));
    if (symbol == nullptr) return open_table<V - 1>(library, wish);
    const auto& table = *static_cast<const abi::Table<V>*>(symbol);
    if (!wish.name.empty() && table.name != nullptr && !equal_names(wish.name, table.name))
      return Status::invalid_usage("network plug-in {}: its name is {}, and {} is asked for",
                                   library->file(), table.name, wish.name);
    return Plugin<V>::open(library, table, wish);
  }
}

/// Says `why` once in a process, not for each communicator. The caller is in Network::choose.
void warn_once(const std::string& why) {
  static std::set<std::string> told;
  if (told.insert(why).second) LOG(Warn, Net, "{}", why);
}

}  // namespace

void Network::tell_events_to(EventSink sink) { event_sink.store(sink, std::memory_order_release); }

Result<std::shared_ptr<Network>> Network::choose(const Wish& wish) {
  static std::mutex mutex;  // plug-ins expect one init at a time
  std::lock_guard lock(mutex);
  const bool is_configured = parameters::net().empty();
  Wish wished = wish;
  if (!is_configured) wished.name = parameters::net();
  const std::string& wanted = wished.name;
  std::vector<std::string> tried;
  for (const std::string& name : PluginLibrary::network_names()) {
    const std::shared_ptr<PluginLibrary> library = open_library(name, tried);
    if (library == nullptr) continue;
    Result<std::shared_ptr<Network>> network = open_table(library, wished);
    if (network.is_ok()) return network;
    const bool is_passed_over =
        equal_names(wanted, "Socket") && network.status().code() == Code::InvalidUsage;
    if (!is_passed_over) tried.push_back(network.status().message());
  }
  const bool is_socket = wanted.empty() || equal_names(wanted, "Socket");
  const bool is_verbs = equal_names(wanted, verbs::kName);
  if (is_verbs || wanted.empty()) {
    // They have never carried anything over real NICs, so that those have to be asked for.
    const std::vector<verbs::PortState> ports =
        is_verbs ? std::vector<verbs::PortState>() : verbs::port_states();
    std::string active;
    bool is_virtual = !ports.empty();
    for (const verbs::PortState& port : ports) {
      is_virtual &= port.is_virtual;
      if (port.is_active) active += fmt::format("{}{}", active.empty() ? "" : ", ", port.name);
    }
    if (is_verbs || is_virtual) {
      Result<std::shared_ptr<Network>> network = verbs::open(wished);
      if (network.is_ok()) return network;
      tried.push_back(network.status().message());
    } else if (!active.empty()) {
      warn_once(
          fmt::format("InfiniBand or RoCE ports are active ({}) and not used: data go to other "
                      "machines by TCP, with less bandwidth and more time on cores. NCCL_NET=IB "
                      "uses them (it has not been tried on real NICs); NCCL_NET=Socket is silent",
                      active));
    }
  }
  std::string all;
  for (const std::string& why : tried) {
    if (is_socket)
      warn_once(fmt::format("{}; sockets serve instead: TCP, without that network", why));
    all += fmt::format("; {}", why);
  }
  if (is_socket) return std::shared_ptr<Network>();
  const char* const variable = is_configured ? "config.netName" : "NCCL_NET";
  if (is_verbs) return Status::invalid_usage("{}='{}'{}", variable, wanted, all);
  return Status::invalid_usage(
      "{}='{}': no network of that name. There are 'Socket', 'IB' (InfiniBand and RoCE) and what "
      "NCCL_NET_PLUGIN names{}",
      variable, wanted, all);
}

}  // namespace niccolite::transport::net
