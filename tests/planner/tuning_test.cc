// Tuning files: what is built in, what a user gives, and what is said of files that are wrong.
#include "planner/prices/tuning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <string>

#include "planner/form.h"
#include "planner/prices/model.h"
#include "planner/prices/tunings.h"
#include "planner/settings.h"

namespace niccolite::planner {
namespace {

using executor::Protocol;
using testing::AllOf;
using testing::HasSubstr;

std::string text_of_built_in(std::string_view name) {
  for (const BuiltInTuning& each : built_in_tunings())
    if (each.name == name) return std::string(each.text);
  return {};
}

/// `text` with one thing in it replaced, which must be there.
std::string with(std::string text, const std::string& before, const std::string& after) {
  const size_t at = text.find(before);
  EXPECT_NE(at, std::string::npos) << before;
  return at == std::string::npos ? text : text.replace(at, before.size(), after);
}

class TuningFiles : public testing::Test {
 protected:
  TuningFiles() { std::filesystem::create_directory(folder_); }
  ~TuningFiles() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }
  std::string folder() const { return folder_.string(); }

 private:
  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / fmt::format("niccolite_tuning_{}", getpid());
};

TEST(BuiltInTunings, AreAllReadAndEachClassHasOneForAnyGpu) {
  std::set<MachineClass> of_any;
  std::set<std::string> names;
  for (const BuiltInTuning& each : built_in_tunings()) {
    const Result<Tuning> tuning = parse_tuning(each.text, each.name);
    ASSERT_TRUE(tuning.is_ok()) << tuning.status().message();
    EXPECT_STREQ(name_of(tuning.value().machine), each.machine_class);
    EXPECT_EQ(tuning.value().gpu, each.gpu);
    EXPECT_FALSE(tuning.value().about.empty()) << each.name << " does not say where it is from";
    EXPECT_GT(tuning.value().costs().size(), 0u);
    EXPECT_TRUE(tuning.value().slots) << each.name << " has no shapes of connections";
    if (tuning.value().gpu.empty()) {
      EXPECT_TRUE(of_any.insert(tuning.value().machine).second) << each.name;
    }
  }
  EXPECT_EQ(of_any.size(), kMachineClasses);
}

// Also of algorithms that do not say themselves what they send.
TEST(BuiltInTunings, PriceWhatLinksCarry) {
  for (const BuiltInTuning& each : built_in_tunings()) {
    const Tuning tuning = parse_tuning(each.text, each.name).take();
    for (const Form& algorithm : forms()) {
      for (const Protocol protocol : {Protocol::LL, Protocol::LL128, Protocol::Simple}) {
        if (tuning.find(algorithm, protocol) == nullptr) continue;
        for (const int nranks : {2, 4}) {
          if (nranks < algorithm.min_ranks || nranks > algorithm.max_ranks) continue;
          const algorithms::Load load = fitted_load_of(algorithm, nranks);
          EXPECT_GE(load.sent, 0.5) << each.name << ", " << algorithm.name << " of " << nranks;
          EXPECT_GE(load.steps, 1);
        }
      }
    }
  }
}

// What is found is what the file says, by the names of its columns.
TEST(Tuning, HasTheNumbersOfItsFile) {
  // Of each property and protocol another number, from 0.001 on.
  const auto properties = [] {
    std::string text;
    int number = 0;
    for (const PropertyField& each : property_fields()) {
      text += fmt::format("{}\"{}\": {{\"Simple\": {}, \"LL\": {}, \"LL128\": {}}}",
                          text.empty() ? "{" : ",\n", each.name, (number + 1) / 1e3,
                          (number + 2) / 1e3, (number + 3) / 1e3);
      number += executor::kProtocols;
    }
    return text + "}";
  };
  const Tuning tuning = parse_tuning(R"({
    "schema": "niccolite-tuning-1", "class": "cuda_slots", "gpu": "NVIDIA X", "about": "a test",
    "slots": {"Simple": {"channels": 3, "depth": 8, "bytes": 640},
      "LL": {"bytes": 512, "depth": 2, "channels": 1},
      "LL128": {"channels": 64, "depth": 4, "bytes": 67108864}},
    "properties": )" + properties() +
                                         R"(,
    "columns": ["crowd", "overlap", "fixed_us", "step_us", "channel_us", "link_two_ranks_gbs",
      "link_more_ranks_gbs", "channel_gbs", "round_us", "fill_chunks"],
    "costs": {"all_gather": {"ring": {"LL128": [0.5, 0.25, 1, 2, 3, 4, 5, 6, 7, 8]}}}})",
                                     "test.json")
                            .value();
  EXPECT_EQ(tuning.machine, MachineClass::CudaSlots);
  EXPECT_EQ(tuning.gpu, "NVIDIA X");
  int number = 0;
  for (const PropertyField& each : property_fields())
    for (const Protocol protocol : {Protocol::Simple, Protocol::LL, Protocol::LL128})
      EXPECT_EQ(tuning.properties[static_cast<size_t>(protocol)].*each.field, ++number / 1e3)
          << each.name;
  const auto slots_by = [&](Protocol protocol) {
    return tuning.slots.value()[static_cast<size_t>(protocol)];
  };
  EXPECT_EQ(slots_by(Protocol::LL), (executor::FifoShape{1, 2, 512}));
  EXPECT_EQ(slots_by(Protocol::LL128), (executor::FifoShape{64, 4, 64 << 20}));
  EXPECT_EQ(slots_by(Protocol::Simple), (executor::FifoShape{3, 8, 640}));
  EXPECT_FALSE(tuning.slots_of_two);
  const Form& ring = *find_form(Collective::AllGather, "ring");
  const Cost* const cost = tuning.find(ring, Protocol::LL128);
  ASSERT_NE(cost, nullptr);
  EXPECT_EQ(cost->crowd, 0.5);
  EXPECT_EQ(cost->overlap, 0.25);
  EXPECT_EQ(cost->fixed, 1);
  EXPECT_EQ(cost->fill, 8);
  EXPECT_EQ(tuning.find(ring, Protocol::LL), nullptr);
}

/// The file that was built in for `name`, with so many channels of each protocol.
std::string with_channels(std::string_view name, int channels) {
  return std::regex_replace(text_of_built_in(name), std::regex("\"channels\": [0-9]+"),
                            fmt::format("\"channels\": {}", channels));
}

/// The most channels of a protocol in the file that was built in for `name`.
int most_of_built_in(std::string_view name) {
  int most = 0;
  const Tuning tuning = parse_tuning(text_of_built_in(name), std::string(name)).take();
  for (const executor::FifoShape& shape : tuning.slots.value())
    most = std::max(most, static_cast<int>(shape.channels));
  return most;
}

// A process reads NICCOLITE_TUNING once: this one is there for that.
[[noreturn]] void look_at_channels(const std::string& folder) {
  setenv("NICCOLITE_TUNING", folder.c_str(), 1);
  bool is_right = true;
  const auto expect = [&is_right](Settings settings, int channels, const char* of) {
    Writer writer;
    write(writer, settings);
    Reader reader(writer.bytes(), "settings");
    Settings received = read_settings(reader, settings.machine, settings.nranks);
    received.gpu = settings.gpu;
    set_reach(received, settings.reaches_users);
    set_shares_host(received, settings.shares_host);
    if (settings.spans_machines) span_machines(received, settings.machines);
    for (const Settings& each : {settings, received})
      if (most_channels(each) != channels)
        std::fprintf(stderr, "%s: %d channels, not %d\n", of, most_channels(each), channels);
    is_right &= most_channels(settings) == channels && received == settings;
  };
  Settings settings = make_settings(gpu::Kind::Cuda, 4, {}).value();
  expect(settings, 8, "any GPU");
  settings.gpu = "NVIDIA H200";
  set_reach(settings, true);
  expect(settings, 32, "GPUs with a file of their own");
  set_reach(settings, false);
  expect(settings, most_of_built_in("cuda_slots.json"), "slots");
  set_reach(settings, true);
  set_shares_host(settings, true);
  expect(settings, most_of_built_in("cuda_host_memory.json"), "host memory");
  settings = make_settings(gpu::Kind::Virtual, 4, {}).value();
  expect(settings, 1, "virtual GPUs");
  span_machines(settings, {0, 0, 1, 1});
  expect(settings, 4, "sockets");
  settings = make_settings(gpu::Kind::Virtual, 4, {.max_ctas = 3}).value();
  span_machines(settings, {0, 0, 1, 1});
  expect(settings, 3, "a maximum of the user's");
  std::filesystem::remove_all(folder);
  std::exit(is_right ? 0 : 1);
}

// How ranks reach each other and which GPUs they have is known when they have met.
TEST_F(TuningFiles, GiveTheChannelsOfTheirClassAndGpuAlone) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  write("any.json", with_channels("cuda.json", 8));
  write("h200.json", with(with_channels("cuda.json", 32), "\"class\": \"cuda\",",
                          "\"class\": \"cuda\", \"gpu\": \"NVIDIA H200\","));
  write("sockets.json", with_channels("sockets.json", 4));
  EXPECT_EXIT(look_at_channels(folder()), testing::ExitedWithCode(0), "");
}

TEST(Slots, AreThoseOfTheRanksAndTheirTuning) {
  const Tuning cuda = parse_tuning(text_of_built_in("cuda.json"), "cuda.json").take();
  ASSERT_TRUE(cuda.slots_of_two);
  EXPECT_NE(cuda.slots_of_two, cuda.slots);
  EXPECT_EQ(slots_of(MachineClass::Cuda, "", 2), *cuda.slots_of_two);
  EXPECT_EQ(slots_of(MachineClass::Cuda, "", 3), *cuda.slots);
  const Tuning sockets = parse_tuning(text_of_built_in("sockets.json"), "sockets.json").take();
  EXPECT_EQ(slots_of(MachineClass::Sockets, "", 2), sockets.slots_of_two.value_or(*sockets.slots));
}

// Written by a `niccolite tune` that did not know of messages.
TEST(Tuning, OfAnOlderFileHasWhatItKnew) {
  const std::string line = "    \"message_us\": {\"LL\": 20, \"LL128\": 20, \"Simple\": 20},\n";
  const std::string older = with(text_of_built_in("sockets.json"), line, "");
  const Result<Tuning> tuning = parse_tuning(older, "older.json");
  ASSERT_TRUE(tuning.is_ok()) << tuning.status().message();
  const Tuning newer = parse_tuning(text_of_built_in("sockets.json"), "newer.json").take();
  for (const Protocol protocol : {Protocol::Simple, Protocol::LL, Protocol::LL128})
    for (const PropertyField& each : property_fields()) {
      const auto at = static_cast<size_t>(protocol);
      EXPECT_EQ(tuning.value().properties[at].*each.field,
                each.if_missing ? *each.if_missing : newer.properties[at].*each.field)
          << each.name;
    }
}

TEST(Tuning, RefusesWithFileLineAndField) {
  const std::string good = text_of_built_in("virtual.json");
  const struct {
    const char* before;
    const char* after;
    const char* message;
  } cases[] = {
      {"niccolite-tuning-1", "niccolite-tuning-9", "line 2: schema is not \"niccolite-tuning-1\""},
      {"\"class\": \"virtual\"", "\"class\": \"h300\"", "class is \"h300\", which is none of"},
      {"\"depth\": 4", "\"depth\": 3", "slots.LL.depth is 3, no power of two"},
      {"\"bytes\": 16384", "\"bytes\": 16385", "slots.LL.bytes is 16385, no multiple of 128"},
      {"\"channels\": 1", "\"channels\": 0", "slots.LL.channels is 0, and must be from 1 to 64"},
      {"\"channels\": 1", "\"channels\": 1.5", "slots.LL.channels is 1.5, no whole number"},
      {"\"channels\": 1,", "", "slots.LL lacks \"channels\""},
      {"{\"LL\": 2,", "{\"LL\": \"2\",", "properties.fixed_us.LL is a text, not a number"},
      {"{\"LL\": 2,", "{\"LL\": -2,", "properties.fixed_us.LL is -2, and must be from 0"},
      {"\"LL\": 2, ", "", "properties.fixed_us lacks \"LL\""},
      {"\"fixed_us\": {", "\"fixed\": {", "unknown field \"fixed\"; known are fixed_us"},
      {"\"LL128\": 2,", "\"LL129\": 2,", "unknown field \"LL129\""},
      {"\"overlap\", \"crowd\"]", "\"lap\", \"crowd\"]", "columns has \"lap\" which is unknown"},
      {"\"overlap\", \"crowd\"]", "\"crowd\", \"crowd\"]", "columns has \"crowd\" twice"},
      {"\"overlap\", \"crowd\"]", "\"crowd\"]", "columns are not all of"},
      {"\"all_reduce\"", "\"all_increase\"", "names \"all_increase\", which is none of"},
      {"\"two_shot\"", "\"four_shot\"", "names \"four_shot\", which is none of ring, one_shot"},
      {"\"LL\": [2,", "\"LX\": [2,", "costs.all_reduce.ring names \"LX\""},
      {"\"LL\": [2,", "\"LL\": [", "costs.all_reduce.ring.LL has 9 numbers for 10 columns"},
      {"\"LL\": [2,", "\"LL\": [1e30,", "costs.all_reduce.ring.LL, fixed_us is 1e+30"},
      {"\"costs\": {", "\"costs\": {,", "a name in quotes is missing"},
  };
  for (const auto& c : cases) {
    const Result<Tuning> tuning = parse_tuning(with(good, c.before, c.after), "mine.json");
    ASSERT_FALSE(tuning.is_ok()) << c.after;
    EXPECT_THAT(tuning.status().message(),
                AllOf(HasSubstr("mine.json: line "), HasSubstr(c.message)));
  }
}

TEST_F(TuningFiles, OfAUserAreFoundByClassAndGpu) {
  const std::string text = text_of_built_in("cuda.json");
  const auto for_gpu = [&](const std::string& gpu) {
    return with(text, "\"about\"", fmt::format("\"gpu\": \"{}\", \"about\"", gpu));
  };
  write("any.json", text);
  write("a.json", for_gpu("NVIDIA A"));
  write("a100.json", for_gpu("NVIDIA A100"));
  write("not.txt", "{");
  const Tunings tunings = Tunings::read(folder()).value();
  EXPECT_EQ(tunings.all().size(), 3u);
  const auto origin = [&](const char* gpu) {
    return std::filesystem::path(tunings.find(MachineClass::Cuda, gpu)->origin).filename();
  };
  EXPECT_EQ(origin("NVIDIA A100-SXM4-80GB"), "a100.json");
  EXPECT_EQ(origin("NVIDIA A40"), "a.json");
  EXPECT_EQ(origin("NVIDIA H200"), "any.json");
  EXPECT_EQ(origin(""), "any.json");
  EXPECT_EQ(tunings.find(MachineClass::CudaSlots, "NVIDIA A100"), nullptr);

  write("again.json", for_gpu("NVIDIA A"));
  EXPECT_THAT(std::string(Tunings::read(folder()).status().message()),
              HasSubstr("again.json are both for class cuda and GPUs \"NVIDIA A\""));
}

// Ranks compare ids: what does not change choices does not count.
TEST_F(TuningFiles, HaveAnIdOfWhatChoicesDependOn) {
  const std::string text = text_of_built_in("virtual.json");
  const auto id_of = [&](const std::string& changed) {
    return Tunings::read(write("x.json", changed)).value().id();
  };
  const uint64_t id = id_of(text);
  EXPECT_NE(id, 0u);
  EXPECT_EQ(Tunings().id(), 0u);
  EXPECT_EQ(id_of(with(text, "\"about\": \"", "\"about\": \"Not ")), id);
  EXPECT_EQ(id_of(with(text, "{\"LL\": 2,", "{\n\"LL\": 2.0,")), id);
  EXPECT_NE(id_of(with(text, "{\"LL\": 2,", "{\"LL\": 2.1,")), id);
  EXPECT_NE(id_of(with(text, "\"LL\": [2,", "\"LL\": [2.5,")), id);
  EXPECT_NE(id_of(with(text, "\"bytes\": 16384", "\"bytes\": 8192")), id);
  EXPECT_NE(id_of(with(text, "\"about\"", "\"gpu\": \"V\", \"about\"")), id);
}

TEST_F(TuningFiles, ThatCannotBeReadAreRefusedWithTheRemedy) {
  EXPECT_THAT(std::string(Tunings::read(folder() + "/none.json").status().message()),
              HasSubstr("none.json: No such file"));
  EXPECT_THAT(std::string(Tunings::read(folder()).status().message()),
              HasSubstr("has no file *.json"));
  const Status bad = Tunings::read(write("bad.json", "{\n\"schema\": 1}")).status();
  EXPECT_EQ(bad.code(), Code::InvalidUsage);
  EXPECT_THAT(std::string(bad.message()), AllOf(HasSubstr("bad.json: line 2: schema is not"),
                                                HasSubstr("write it anew with `niccolite tune`")));
  EXPECT_FALSE(Tunings::read(write("big.json", std::string(2 << 20, ' '))).is_ok());
}

}  // namespace
}  // namespace niccolite::planner
