#include "planner/plugins/tuner.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/parameters.h"
#include "planner/plugins/tuner_table.h"

namespace niccolite::planner {
namespace {

/// Compares byte for byte, because a plug-in may have written a value that is no number.
template <typename T>
bool is_same(const T& before, const T& after) {
  const auto a = std::as_bytes(std::span(&before, 1)), b = std::as_bytes(std::span(&after, 1));
  return std::equal(a.begin(), a.end(), b.begin());
}

// The most remembered answers of one communicator. A plug-in's answer holds for all ranks, whenever
// they ask, so none is forgotten; after this many the cost model chooses.
constexpr size_t kMostAnswers = 1 << 16;

template <int V>
class Plugin final : public Tuner {
 public:
  Plugin(std::shared_ptr<PluginLibrary> library, const abi::Table<V>& table, const Communicator& of)
      : library_(std::move(library)), table_(table) {
    const char* const name = table.name != nullptr ? table.name : "without a name";
    origin_ = fmt::format("{} ({}, ncclTunerPlugin_v{})", name, library_->file(), V);
    is_open_ = init(of);
  }
  ~Plugin() override {
    if (!is_open_ || table_.finalize == nullptr) return;
    try {
      table_.finalize(context_);
    } catch (...) {
      complain("its finalize threw an exception");
    }
  }
  bool is_open() const { return is_open_; }

 protected:
  Choice advise(const Settings& settings, Collective collective, size_t bytes,
                std::span<const Option> options, const Choice& own) override {
    abi::CostTable before;
    for (int row = 0; row < abi::kRows; ++row)
      for (int column = 0; column < abi::kColumns; ++column) {
        const Choice* const best = abi::best_of(options, {row, column});
        before[row][column] =
            best == nullptr ? abi::kUnavailable : static_cast<float>(best->microseconds);
      }
    abi::CostTable after;
    std::memcpy(after, before, sizeof after);
    int channels = 0;
    const int function = function_number(collective);
    if (!ask(function, bytes, settings.reaches_users, before, after, channels)) return own;
    Choice choice = own;
    if (!is_same(before, after)) {
      const std::optional<abi::Cell> cell = cheapest(before, after);
      if (!cell) return own;
      std::vector<Choice> candidates;
      for (const Option& option : options)
        if (abi::cell_of(*option.form, option.protocol) == *cell)
          candidates.insert(candidates.end(), option.choices.begin(), option.choices.end());
      choice = pick(candidates, settings.policy, settings.nranks);
    }
    if (channels != 0) choose_channels(settings, collective, options, choice, channels);
    if constexpr (V >= 6) choose_chunk(settings, collective, bytes, options, choice);
    LOG(Info, Tuning, "{} of {} bytes: tuner plug-in {} has {} where the cost model has {}",
        function_name(collective), bytes, origin_, describe(choice), describe(own));
    return choice;
  }

 private:
  bool init(const Communicator& of) {
    if (table_.init == nullptr) {
      complain("its table has no init");
      return false;
    }
    const abi::Domains domains = abi::domains_of(of);
    const auto ranks = static_cast<size_t>(of.ranks), nodes = static_cast<size_t>(domains.count);
    int result = 0;
    try {
      if constexpr (V >= 5) {
        abi::Domains told = domains;
        const abi::Constants before = abi::default_constants();
        constants_ = before;
        result =
            table_.init(&context_, of.id, ranks, nodes, PluginLibrary::kLogger, &told, &constants_);
        if (!is_same(before, constants_))
          LOG(Info, Tuning,
              "tuner plug-in {} has changed constants of NCCL's cost model, which is not this "
              "library's: they change nothing. niccolite tune measures this library's",
              origin_);
      } else {
        result = table_.init(ranks, nodes, PluginLibrary::kLogger, &context_);
      }
    } catch (...) {
      complain("its init threw an exception");
      return false;
    }
    if (result != 0) {
      complain(fmt::format("its init failed with result {}", result));
      return false;
    }
    // Some plug-ins complete their table there.
    if (table_.choose == nullptr) {
      complain("its table has no getCollInfo");
      return false;
    }
    LOG(Info, Tuning, "TUNER/Plugin: {} tunes communicator 0x{:x}", origin_, of.id);
    return true;
  }

  // False: the cost model's choice holds.
  bool ask(int function, size_t bytes, bool is_registered, const abi::CostTable& before,
           abi::CostTable& after, int& channels) {
    int result = 0;
    auto* const costs = reinterpret_cast<float**>(&after[0][0]);  // the interface's type lies
    try {
      if constexpr (V >= 4) {
        result = table_.choose(context_, function, bytes, /*operations=*/1, costs, abi::kRows,
                               abi::kColumns, is_registered ? 1 : 0, &channels);
      } else if constexpr (V == 3) {
        result = table_.choose(context_, function, bytes, /*operations=*/1, costs, abi::kRows,
                               abi::kColumns, &channels);
      } else {
        int row = -1, column = -1;
        const auto has = [&](int of) { return before[of][abi::kSimple] >= 0 ? 1 : 0; };
        const int has_nvls = std::max(has(abi::kNvls), has(abi::kNvlsTree));
        result = table_.choose(context_, function, bytes, has(abi::kCollnetChain), has_nvls,
                               /*operations=*/1, &row, &column, &channels);
        const bool is_cell = row >= 0 && row < abi::kRows && column >= 0 && column < abi::kColumns;
        if (result == 0 && is_cell && before[row][column] >= 0) after[row][column] = 0;
      }
    } catch (...) {
      complain("its getCollInfo threw an exception");
      return false;
    }
    if (result == 0) return true;
    complain(fmt::format("its getCollInfo failed with result {}", result));
    return false;
  }

  std::optional<abi::Cell> cheapest(const abi::CostTable& before, const abi::CostTable& after) {
    std::optional<abi::Cell> best;
    for (int row = 0; row < abi::kRows; ++row)
      for (int column = 0; column < abi::kColumns; ++column) {
        const float cost = after[row][column];
        if (before[row][column] < 0) {
          if (cost >= 0)
            complain(fmt::format("it wants {} with {}, which is not available here",
                                 abi::name_of_row(row), abi::name_of_column(column)));
          continue;
        }
        if (!(cost >= 0)) continue;  // NaN, too
        if (!best || cost < after[best->row][best->column]) best = abi::Cell{row, column};
      }
    if (!best) complain("it leaves no algorithm and protocol");
    return best;
  }

  void choose_channels(const Settings& settings, Collective collective,
                       std::span<const Option> options, Choice& choice, int channels) {
    const auto most = static_cast<int>(shape_of(settings, collective, choice.protocol).channels);
    if (channels < 0) {
      complain(fmt::format("it asks for {} channels", channels));
      return;
    }
    // Predicted as the nearest count that the cost model has.
    const int wanted = std::min(channels, most);
    const Choice* nearest = nullptr;
    for (const Option& option : options) {
      if (option.form != choice.form || option.protocol != choice.protocol) continue;
      for (const Choice& other : option.choices)
        if (other.parts == choice.parts &&
            (nearest == nullptr ||
             std::abs(other.channels - wanted) < std::abs(nearest->channels - wanted)))
          nearest = &other;
    }
    if (nearest != nullptr) choice = *nearest;
    choice.channels = wanted;
  }

  // A chunk fills a slot or a part of one: the largest that is no larger than the answer.
  void choose_chunk(const Settings& settings, Collective collective, size_t bytes,
                    std::span<const Option> options, Choice& choice) {
    if constexpr (V >= 6) {
      if (table_.chunk == nullptr) return;
      const abi::Cell cell = abi::cell_of(*choice.form, choice.protocol);
      const size_t own = chunk_bytes(settings, collective, choice);
      size_t wanted = own;
      int result = 0;
      try {
        result = table_.chunk(context_, function_number(collective), bytes, cell.row, cell.column,
                              choice.channels, &wanted);
      } catch (...) {
        complain("its getChunkSize threw an exception");
        return;
      }
      if (result != 0) {
        complain(fmt::format("its getChunkSize failed with result {}", result));
        return;
      }
      if (wanted == own) return;
      Variant variant = choice;
      variant.parts = 1;
      const int most = most_parts(choice.protocol);
      while (variant.parts < most && chunk_bytes(settings, collective, variant) > wanted)
        variant.parts *= 2;
      for (const Option& option : options)
        for (const Choice& other : option.choices)
          if (static_cast<const Variant&>(other) == variant)
            choice.microseconds = other.microseconds;
      choice.parts = variant.parts;
    }
  }

  void complain(const std::string& what) {
    if (std::exchange(has_complained_, true)) return;
    LOG(Warn, Tuning,
        "tuner plug-in {}: {}; where it gives no answer that serves, the cost model chooses. Use "
        "another build or configuration of it, or unset NCCL_TUNER_PLUGIN",
        origin_, what);
  }

  const std::shared_ptr<PluginLibrary> library_;
  const abi::Table<V>& table_;
  std::string origin_;
  void* context_ = nullptr;
  abi::Constants constants_{};  // the plug-in may keep its address
  bool is_open_ = false;
  bool has_complained_ = false;  // once for a communicator
};

constexpr char kPrefix[] = "libnccl-tuner";

template <int V = abi::kNewest>
std::shared_ptr<Tuner> open_table(const std::shared_ptr<PluginLibrary>& library,
                                  const Tuner::Communicator& of) {
  if constexpr (V < abi::kOldest) {
    return nullptr;
  } else {
    const void* const symbol = library->find(fmt::format("ncclTunerPlugin_v{}", V));
    if (symbol == nullptr) return open_table<V - 1>(library, of);
    auto plugin =
        std::make_shared<Plugin<V>>(library, *static_cast<const abi::Table<V>*>(symbol), of);
    return plugin->is_open() ? std::shared_ptr<Tuner>(std::move(plugin)) : nullptr;
  }
}

bool has_table(const PluginLibrary& library) {
  for (int version = abi::kNewest; version >= abi::kOldest; --version)
    if (library.find(fmt::format("ncclTunerPlugin_v{}", version)) != nullptr) return true;
  return false;
}

// Finds the library once per process: the tuner's own, or the library of the network plug-in.
std::shared_ptr<PluginLibrary> find_library() {
  const std::string& name = parameters::tuner_plugin();
  if (PluginLibrary::is_none(name)) return nullptr;
  std::string why;
  if (auto library = PluginLibrary::open(kPrefix, name, why)) {
    if (has_table(*library)) return library;
    why = fmt::format("it has none of the symbols ncclTunerPlugin_v{} to ncclTunerPlugin_v{}",
                      abi::kOldest, abi::kNewest);
  }
  if (auto library = PluginLibrary::open_of_network())
    if (has_table(*library)) return library;
  if (!why.empty())
    LOG(Warn, Tuning, "tuner plug-in {}: {}; the cost model chooses by itself",
        PluginLibrary::describe(kPrefix, name, "NCCL_TUNER_PLUGIN"), why);
  return nullptr;
}

const std::shared_ptr<PluginLibrary>& library() {
  // Never destroyed: threads may end after main().
  static auto* const found = new std::shared_ptr<PluginLibrary>(find_library());
  return *found;
}

}  // namespace

bool Tuner::is_there() { return library() != nullptr; }

// A plug-in decides about the first five functions of ncclFunc_t.
bool Tuner::decides(Collective collective) {
  constexpr int kAllReduce = 4;
  return function_number(collective) <= kAllReduce;
}

std::shared_ptr<Tuner> Tuner::open(const Communicator& of) {
  if (!is_there()) return nullptr;
  static auto* const mutex = new std::mutex;  // plug-ins expect one init at a time
  std::lock_guard lock(*mutex);
  return open_table(library(), of);
}

Result<Choice> Tuner::choose(const Settings& settings, Collective collective, size_t bytes,
                             int most_channels) {
  std::lock_guard lock(mutex_);
  const auto key =
      std::tuple(collective, bytes, most_channels, settings.reaches_users, settings.type);
  if (const auto found = choices_.find(key); found != choices_.end()) return found->second;
  const std::vector<Option> options = survey(settings, collective, bytes);
  Choice choice = TRY(planner::choose(settings, collective, bytes, options, most_channels));
  if (choices_.size() >= kMostAnswers) return choice;
  choice = advise(settings, collective, bytes, options, choice);
  if (most_channels > 0) choice.channels = std::min(choice.channels, most_channels);
  choices_.emplace(key, choice);
  return choice;
}

}  // namespace niccolite::planner
