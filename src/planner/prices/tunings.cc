#include "planner/prices/tunings.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <iterator>
#include <memory>
#include <mutex>
#include <system_error>
#include <utility>

#include "base/files.h"
#include "base/log.h"
#include "base/parameters.h"
#include "planner/hash.h"

namespace niccolite::planner {
namespace {

constexpr size_t kMostBytes = 1 << 20;  // a hundred times the size for all algorithms

/// Finds a tuning for which is_of_class() is true and whose GPU's name is a prefix of `gpu`: the
/// one with the longest prefix; the end: there is none.
template <typename Range, typename Predicate>
auto find_best(const Range& tunings, std::string_view gpu, Predicate is_of_class) {
  const auto named = [](const auto& tuning) { return std::string_view(tuning.gpu); };
  auto best = std::end(tunings);
  for (auto each = std::begin(tunings); each != std::end(tunings); ++each)
    if (is_of_class(*each) && gpu.starts_with(named(*each)) &&
        (best == std::end(tunings) || named(*each).size() > named(*best).size()))
      best = each;
  return best;
}

Result<std::vector<std::string>> files_at(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return std::vector{path};
  std::vector<std::string> files = TRY(json_files_in(path));
  if (files.empty()) return Status::invalid_usage("the folder {} has no file *.json", path);
  return files;
}

void add(Hash& hash, const Tuning& tuning) {
  hash.add(tuning.machine);
  hash.add(std::string_view(tuning.gpu));
  for (const Properties& properties : tuning.properties)
    for (const PropertyField& each : property_fields()) hash.add(properties.*each.field);
  for (const std::optional<Shapes>& slots : {tuning.slots, tuning.slots_of_two}) {
    hash.add(int{slots.has_value()});
    for (const executor::FifoShape& shape : slots.value_or(Shapes{}))
      for (const uint32_t each : {shape.channels, shape.depth, shape.slot_bytes})
        hash.add(uint64_t{each});
  }
  for (const CostLine& line : tuning.costs()) {
    hash.add(line.form->collective);
    hash.add(std::string_view(line.form->name));
    hash.add(line.protocol);
    for (const CostField& each : cost_fields()) hash.add(line.cost.*each.field);
  }
}

/// The tunings that NICCOLITE_TUNING names.
struct Users {
  Tunings tunings;
  Status failure;
};

Users read_users() {
  const std::string& path = parameters::tuning();
  if (path.empty()) return {};
  Result<Tunings> tunings = Tunings::read(path);
  if (!tunings.is_ok())
    return {.tunings = {}, .failure = std::move(tunings).status().with_context("NICCOLITE_TUNING")};
  for (const Tuning& tuning : tunings->all())
    LOG(Info, Tuning, "Cost model of {}{}{} from {}: {}", name_of(tuning.machine),
        tuning.gpu.empty() ? "" : ", GPUs ", tuning.gpu, tuning.origin, tuning.about);
  return {.tunings = std::move(tunings).take(), .failure = {}};
}

const Users& users() {
  // Never destroyed: communicators may outlive main().
  static const Users& known = *new Users(read_users());
  return known;
}

/// The built-in one at `index`, parsed when it is first asked for.
const Tuning& built_in(size_t index) {
  static auto& mutex = *new std::mutex;
  static auto& known = *new std::vector<std::atomic<const Tuning*>>(built_in_tunings().size());
  if (const Tuning* const found = known[index].load(std::memory_order_acquire)) return *found;
  const std::lock_guard lock(mutex);
  if (const Tuning* const found = known[index].load(std::memory_order_relaxed)) return *found;
  const BuiltInTuning& source = built_in_tunings()[index];
  Result<Tuning> parsed = parse_tuning(source.text, source.name);
  auto tuning = std::make_unique<Tuning>();
  if (parsed.is_ok())
    *tuning = std::move(parsed).take();
  else  // tests/planner/tuning_test.cc parses each
    LOG(Warn, Tuning, "{}: this library was built wrong", parsed.status().message());
  tuning->origin = "built in";
  LOG(Info, Tuning, "Cost model of {}{}{}, built in: {}", source.machine_class,
      tuning->gpu.empty() ? "" : ", GPUs ", tuning->gpu, tuning->about);
  const Tuning* const result = tuning.release();
  known[index].store(result, std::memory_order_release);  // pairs with the load above
  return *result;
}

const Tuning& built_in_for(MachineClass machine, std::string_view gpu) {
  const std::span<const BuiltInTuning> all = built_in_tunings();
  const auto best =
      find_best(all, gpu, [name = std::string_view(name_of(machine))](const BuiltInTuning& each) {
        return each.machine_class == name;
      });
  if (best != all.end()) return built_in(static_cast<size_t>(best - all.begin()));
  static const Tuning& none = *new Tuning;  // tests/planner/tuning_test.cc: each class has one
  return none;
}

}  // namespace

Status Tunings::add(Tuning tuning) {
  for (const Tuning& known : tunings_)
    if (known.machine == tuning.machine && known.gpu == tuning.gpu)
      return Status::invalid_usage("{} and {} are both for class {} and GPUs \"{}\": leave one",
                                   known.origin, tuning.origin, name_of(tuning.machine),
                                   tuning.gpu);
  tunings_.push_back(std::move(tuning));
  return {};
}

Result<Tunings> Tunings::read(const std::string& path) {
  Tunings tunings;
  for (const std::string& file : TRY(files_at(path))) {
    const std::string text = TRY(read_text_file(file, kMostBytes));
    Result<Tuning> tuning = parse_tuning(text, file);
    if (!tuning.is_ok())
      return Status::invalid_usage("{}. Mend it, or write it anew with `niccolite tune`",
                                   tuning.status().message());
    TRY(tunings.add(std::move(tuning).take()));
  }
  // Whatever the files' names are.
  const auto comes_first = [](const Tuning& a, const Tuning& b) {
    return std::pair(a.machine, std::string_view(a.gpu)) <
           std::pair(b.machine, std::string_view(b.gpu));
  };
  std::ranges::sort(tunings.tunings_, comes_first);
  Hash hash;
  for (const Tuning& tuning : tunings.tunings_) planner::add(hash, tuning);
  tunings.id_ = hash.value() | 1;
  return tunings;
}

const Tuning* Tunings::find(MachineClass machine, std::string_view gpu) const {
  const auto best = find_best(
      tunings_, gpu, [machine](const Tuning& tuning) { return tuning.machine == machine; });
  return best == tunings_.end() ? nullptr : &*best;
}

Status check_tunings() { return users().failure.copy(); }
uint64_t tunings_id() { return users().tunings.id(); }

const Tuning& tuning_of(MachineClass machine, std::string_view gpu) {
  const Tuning* const found = users().tunings.find(machine, gpu);
  return found != nullptr ? *found : built_in_for(machine, gpu);
}

const Shapes& slots_of(MachineClass machine, std::string_view gpu, int nranks) {
  const std::optional<Shapes>& found = tuning_of(machine, gpu).slots_for(nranks);
  return found ? *found : built_in_for(machine, gpu).slots_for(nranks).value();
}

}  // namespace niccolite::planner
