#include "api/call_configuration.h"

#include "api/arguments.h"
#include "base/log.h"

namespace niccolite::api {
namespace {

/// A bound of CTAs; 0: not set, or no operation could keep it.
int bound_of(const char* name, int value) {
  if (value == NCCL_CONFIG_UNDEF_INT) return 0;
  if (value >= 1 && value <= planner::kMostChannels) return value;
  LOG(Info, Env, "Config {}={} is ignored because value out of bound min/max=[1, {}]", name, value,
      planner::kMostChannels);
  return 0;
}

Status check(const char* function, const ncclCollConfig_t& config) {
  if (config.magic != NCCL_API_MAGIC)
    return Status::invalid_argument(
        "{} : ncclCollConfig_t argument not initialized via NCCL_COLLCONFIG_INITIALIZER", function);
  if (config.forceAlgSelection != 0 && config.forceAlgSelection != 1)
    return Status::invalid_argument("{} : config->forceAlgSelection is {}: allowed are 0 and 1",
                                    function, config.forceAlgSelection);
  if (config.CTAPolicy != NCCL_CONFIG_UNDEF_INT && (config.CTAPolicy < 0 || config.CTAPolicy > 3))
    return Status::invalid_argument("{} : config->CTAPolicy is {}: allowed are 0 to 3", function,
                                    config.CTAPolicy);
  return {};
}

}  // namespace

Result<CallConfiguration> resolve(const char* function, schedule::Collective collective,
                                  const ncclCollConfig_t* config) {
  if (config == nullptr) return CallConfiguration{};
  const ncclCollConfig_t copy =
      copy_versioned<ncclCollConfig_t>(config, NCCL_COLLCONFIG_INITIALIZER);
  TRY(check(function, copy));
  planner::CallSettings own{.min_ctas = bound_of("minCTAs", copy.minCTAs),
                            .max_ctas = bound_of("maxCTAs", copy.maxCTAs)};
  if (copy.CTAPolicy != NCCL_CONFIG_UNDEF_INT)
    own.policy = planner::policy_of(copy.CTAPolicy, "config->CTAPolicy");
  if (copy.algSelection != nullptr && *copy.algSelection != '\0') {
    const planner::Selection selection =
        planner::find_call_selection(collective, copy.algSelection);
    own.must_select = copy.forceAlgSelection == 1;
    const bool is_empty = planner::is_empty(selection);
    if (is_empty && own.must_select)
      return Status::invalid_argument(
          "{} : config->algSelection \"{}\" cannot be honored for {}: no algorithm of this library "
          "is called so (`niccolite explain` lists them)",
          function, copy.algSelection, planner::function_name(collective));
    if (is_empty) {
      LOG(Info, Tuning, "config->algSelection \"{}\" has nothing for {}: the cost model decides",
          copy.algSelection, planner::function_name(collective));
    } else {
      own.selection = selection;
      own.selection_text = copy.algSelection;
    }
  }
  CallConfiguration result{.settings = nullptr, .launched = copy.launchCompletionEvent};
  if (!own.are_set()) return result;
  result.settings = planner::intern(own);
  LOG(Info, Coll, "{}: config {:04x} is {}", function, planner::tag_of(own),
      planner::describe(own));
  return result;
}

}  // namespace niccolite::api
