#include "planner/fingerprint.h"

#include <string_view>

#include "algorithms/loaded.h"
#include "algorithms/workers.h"
#include "executor/program.h"
#include "planner/hash.h"
#include "planner/prices/model.h"

namespace niccolite::planner {
namespace {

/// Hashes results of the cost model, because a compiler that contracts operations may give other
/// times for the same constants.
uint64_t hash_arithmetic() {
  constexpr Cost kAnyCost{.fixed = 2.963,
                          .step = 1.89,
                          .channel = 0.0166,
                          .link_two_ranks = 144.7,
                          .link_more_ranks = 127.5,
                          .channel_gigabytes = 4.796,
                          .round = 2.4,
                          .fill = 0.147,
                          .overlap = 0.995,
                          .crowd = 1.1e-05};
  Hash hash;
  for (const Form& form : forms()) {
    if (form.traits().load == nullptr) continue;  // a schedule would have to be looked at
    for (const gpu::Kind machine : {gpu::Kind::Cuda, gpu::Kind::Virtual})
      for (const size_t bytes : {size_t{1000}, size_t{1} << 20, size_t{77} << 20}) {
        const Variant variant{.form = &form, .channels = 7};
        hash.add(predict(machine, kAnyCost, {form.collective, 5, bytes}, variant, 48'000));
      }
  }
  return hash.value();
}

uint64_t hash_limits() {
  Hash hash;
  for (const int limit :
       {executor::kMaxWorks, executor::kMaxWorkers, algorithms::kMaxDirectRanks,
        algorithms::kMaxForwardingRanks, algorithms::kMaxRingRanks, algorithms::kMaxWorkersRanks,
        schedule::kCollectives, executor::kProtocols})
    hash.add(limit);
  hash.add(uint64_t{sizeof(executor::ControlBlock)});
  hash.add(uint64_t{executor::kMostPulls});
  hash.add(uint64_t{executor::kMostListWorks});
  for (const Form& form : forms()) {
    if (form.loaded() != nullptr) continue;  // hash_files()
    hash.add(std::string_view(form.name));
    hash.add(form.collective);
    hash.add(form.min_ranks);
    hash.add(form.max_ranks);
    hash.add(int{form.counts_ranks_of_machine});
    hash.add(form.family());
    hash.add(form.traits().suits);
    hash.add(int{form.traits().connects_all});
    hash.add(int{form.traits().is_one_step});
  }
  for (const gpu::Kind machine : {gpu::Kind::Cuda, gpu::Kind::Virtual})
    hash.add(most_direct_ranks(machine));
  return hash.value();
}

uint64_t hash_files() {
  Hash hash;
  for (const Algorithm& algorithm : algorithms::all())
    if (const algorithms::Loaded* const loaded = algorithm.build.loaded())
      for (const auto& [nranks, of_ranks] : loaded->by_ranks)
        hash.add(std::string_view(to_file(of_ranks.file.schedule, of_ranks.file.use)));
  return hash.value();
}

}  // namespace

const Fingerprint& fingerprint() {
  static const Fingerprint known{.build = source_id(),
                                 .arithmetic = hash_arithmetic(),
                                 .limits = hash_limits(),
                                 .tuning = tunings_id(),
                                 .algorithms = hash_files()};
  return known;
}

}  // namespace niccolite::planner
