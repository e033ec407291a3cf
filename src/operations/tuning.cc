#include "operations/tuning.h"

#include <bit>

namespace niccolite::operations {
namespace {

using planner::Choice;
using planner::Collective;
using planner::Settings;

constexpr size_t kMostName = 64;
constexpr uint8_t kAnyType = 0xff;

Bytes encode_question(const Settings& settings, Collective collective, size_t bytes,
                      int most_channels) {
  Writer writer;
  writer.u8(static_cast<uint8_t>(collective));
  writer.u64(bytes);
  writer.i32(most_channels);
  writer.u8(settings.reaches_users ? 1 : 0);
  writer.u8(settings.type ? static_cast<uint8_t>(*settings.type) : kAnyType);
  return std::move(writer).take();
}

Bytes encode(const Choice& choice) {
  Writer writer;
  writer.text(choice.form->name);
  writer.u8(static_cast<uint8_t>(choice.protocol));
  writer.i32(choice.channels);
  writer.i32(choice.parts);
  writer.u64(std::bit_cast<uint64_t>(choice.microseconds));
  return std::move(writer).take();
}

// Accepts only choices that this rank could have made by itself.
Result<Choice> decode(std::span<const std::byte> bytes, const Settings& settings,
                      Collective collective, size_t size) {
  Reader reader(bytes, "rank 0's choice");
  const std::string name = reader.text(kMostName);
  Choice choice;
  const uint8_t protocol = reader.u8();
  choice.channels = reader.i32();
  choice.parts = reader.i32();
  choice.microseconds = std::bit_cast<double>(reader.u64());
  for (const planner::Option& option : planner::survey(settings, collective, size))
    if (option.obstacle.empty() && name == option.form->name &&
        protocol == static_cast<uint8_t>(option.protocol)) {
      choice.form = option.form;
      choice.protocol = option.protocol;
    }
  if (choice.form == nullptr) {
    reader.reject("an algorithm and protocol that there are not");
  } else {
    const auto most =
        static_cast<int>(planner::shape_of(settings, collective, choice.protocol).channels);
    const bool is_part = choice.parts == 1 || choice.parts == 2 || choice.parts == 4;
    if (choice.channels < 1 || choice.channels > most || !is_part ||
        choice.parts > planner::most_parts(choice.protocol))
      reader.reject("channels or chunks that there are not");
  }
  TRY(reader.finish());
  return choice;
}

}  // namespace

Result<Choice> Tuning::choose_here(const Settings& settings, Collective collective, size_t bytes,
                                   int most_channels) {
  if (tuner_ != nullptr) return tuner_->choose(settings, collective, bytes, most_channels);
  Choice choice = TRY(planner::choose(settings, collective, bytes, most_channels));
  return choice;
}

Result<Choice> Tuning::choose(const Settings& settings, Collective collective, size_t bytes,
                              int most_channels) {
  if (ask_first_ == nullptr) return choose_here(settings, collective, bytes, most_channels);
  const Bytes question = encode_question(settings, collective, bytes, most_channels);
  Result<Bytes> answer = ask_first_(question);
  TRY(answer.status().copy().with_context(
      "asking rank 0, which has a tuner plug-in, how to carry out {} of {} bytes",
      planner::function_name(collective), bytes));
  return decode(answer.value(), settings, collective, bytes);
}

Result<Bytes> Tuning::answer(std::span<const std::byte> question) {
  Reader reader(question, "a question about a plan");
  const uint8_t kind = reader.u8();
  const uint64_t bytes = reader.u64();
  const int most_channels = reader.i32();
  const bool reaches_users = reader.u8() != 0;
  const uint8_t type = reader.u8();
  if (kind >= schedule::kCollectives || most_channels < 0 ||
      most_channels > planner::kMostChannels ||
      !planner::Tuner::decides(static_cast<Collective>(kind)) ||
      (type >= executor::kDataTypes && type != kAnyType))
    reader.reject("an operation that there is not");
  TRY(reader.finish());
  Settings settings = settings_;
  settings.reaches_users = reaches_users;
  if (type != kAnyType) settings.type = static_cast<executor::DataType>(type);
  return encode(TRY(choose_here(settings, static_cast<Collective>(kind), bytes, most_channels)));
}

}  // namespace niccolite::operations
