#include "planner/choice/message_choice.h"

#include <algorithm>

#include "planner/choice/channel_counts.h"
#include "planner/choice/eligibility.h"

namespace niccolite::planner {

using executor::Protocol;

Choice choose_for_message(const Settings& settings, Protocol protocol, size_t bytes) {
  const Workload work{
      .collective = Collective::PointToPoint, .nranks = settings.nranks, .bytes = bytes};
  const std::vector<Choice> forms =
      choices_of(settings, work, {.form = &form_of_messages(), .protocol = protocol});
  Choice choice = pick(forms, settings.policy, settings.nranks);
  choice.channels = channels_for_alignment(settings, bytes, choice);
  return choice;
}

namespace {

// True if CTAs copy by bulk copies, for which threads need not wait.
bool has_bulk_copies(const Settings& settings, Protocol protocol) {
  return settings.machine == gpu::Kind::Cuda && publishes_chunks(protocol);
}

}  // namespace

Choice choose_for_copy(const Settings& settings, Protocol protocol, size_t bytes) {
  constexpr size_t kLeastBytesOfChannel = 64 << 10;  // two microseconds of a CTA
  Choice choice = choose_for_message(settings, protocol, bytes);
  if (settings.policy != CtaPolicy::Default || !has_bulk_copies(settings, protocol)) return choice;
  const auto most = static_cast<size_t>(most_channels(settings, protocol));
  const auto channels = static_cast<int>(std::min(bytes / kLeastBytesOfChannel, most));
  choice.channels = std::max(choice.channels, channels);
  return choice;
}

double predict_copy(const Settings& settings, Protocol protocol, size_t bytes) {
  constexpr double kGigabytesPerSecond = 30;  // of a CTA, which also sends: H100
  const Choice choice = choose_for_copy(settings, protocol, bytes);
  if (has_bulk_copies(settings, protocol))
    return static_cast<double>(bytes) / (kGigabytesPerSecond * 1e3 * choice.channels);
  return choice.microseconds - choose_for_copy(settings, protocol, 1).microseconds;
}

Protocol protocol_of_copy(const Settings& settings, Protocol of_messages, size_t bytes) {
  constexpr Protocol kSimple = Protocol::Simple;
  if (!is_allowed(settings, {.form = &form_of_messages(), .protocol = kSimple})) return of_messages;
  const auto time_of = [&](Protocol protocol) {
    return choose_for_message(settings, protocol, 1).microseconds +
           predict_copy(settings, protocol, bytes);
  };
  return time_of(kSimple) < time_of(of_messages) ? kSimple : of_messages;
}

}  // namespace niccolite::planner
