// What `niccolite tune` makes of measurements: constants, choices, files.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/grammar/file.h"
#include "cli/tune/calibrate.h"
#include "cli/tune/check.h"
#include "cli/tune/fit.h"
#include "cli/tune/fit_properties.h"
#include "cli/tune/jobs.h"
#include "cli/tune/tuning_file.h"
#include "planner/choice/choice.h"

namespace niccolite::tune {
namespace {

using executor::Protocol;
using planner::Cost;
using planner::CostLine;
using ::testing::HasSubstr;

const CostLine kOneShot{planner::find_form(Collective::AllReduce, "one_shot"),
                        Protocol::LL,
                        {2.2, 0.4, 0.01, 150, 190, 9, 0.4, 0.2, 0.8}};
const CostLine kTwoShot{planner::find_form(Collective::AllReduce, "two_shot_workers"),
                        Protocol::Simple,
                        {7, 0.6, 0.02, 320, 330, 12, 1.1, 0.5, 0.3}};
constexpr size_t kSlot = 128 << 10;

Candidate at_most(int channels) {
  return [channels](const Point& point) { return point.variant.channels <= channels; };
}

/// What a machine that obeys the model exactly would show of `line`.
std::vector<Point> points_of(const CostLine& line, double factor = 1) {
  std::vector<Point> points;
  for (const int nranks : {2, 4})
    for (const int channels : {24, 12, 4})
      for (const int parts : {1, 2})
        for (size_t bytes = 8; bytes <= size_t{1} << 30; bytes *= 4) {
          Point point{.work = {line.form->collective, nranks, bytes},
                      .variant = {line.form, line.protocol, channels, parts},
                      .chunk_bytes = kSlot / static_cast<size_t>(parts)};
          point.microseconds = factor * planner::predict(gpu::Kind::Cuda, line.cost, point.work,
                                                         point.variant, point.chunk_bytes);
          points.push_back(point);
        }
  return points;
}

planner::Tuning tuning_of(std::span<const CostLine> lines) {
  planner::Tuning tuning;
  for (const CostLine& line : lines) tuning.set(line);
  return tuning;
}

Measurements measurements_of(std::initializer_list<CostLine> lines) {
  Measurements measurements{.machine = gpu::Kind::Cuda,
                            .devices = "4 x Test GPU",
                            .date = "2026-01-02T03:04:05Z",
                            .points = {},
                            .own = {},
                            .failures = {}};
  for (const CostLine& line : lines)
    for (const Point& point : points_of(line)) measurements.points.push_back(point);
  return measurements;
}

double worst_error(const CostLine& truth, const Cost& fitted) {
  double worst = 0;
  for (const Point& point : points_of(truth)) {
    const double predicted =
        planner::predict(gpu::Kind::Cuda, fitted, point.work, point.variant, point.chunk_bytes);
    worst = std::max(worst, std::abs(predicted / point.microseconds - 1));
  }
  return worst;
}

TEST(Fit, FindsConstantsThatItWasNotTold) {
  const Cost far{5, 1, 0.1, 50, 50, 40, 3, 1, 0.1};
  for (const CostLine& truth : {kOneShot, kTwoShot}) {
    std::vector<Sample> samples;
    for (const Point& point : points_of(truth)) samples.push_back({point});
    const Cost found = fit(gpu::Kind::Cuda, far, samples);
    EXPECT_LT(worst_error(truth, found), 0.01);
    EXPECT_NEAR(found.link_two_ranks / truth.cost.link_two_ranks, 1, 0.02);
    EXPECT_NEAR(found.link_more_ranks / truth.cost.link_more_ranks, 1, 0.02);
    EXPECT_NEAR(found.channel_gigabytes / truth.cost.channel_gigabytes, 1, 0.05);
  }
}

TEST(Fit, LeavesALinkThatNobodyMeasuredAsItWas) {
  CostLine crowded = kTwoShot;
  crowded.cost.crowd = 0.05;
  std::vector<Sample> samples;
  for (const Point& point : points_of(crowded))
    if (point.work.nranks == 2) samples.push_back({point});
  const Cost found = fit(gpu::Kind::Cuda, kTwoShot.cost, samples);
  EXPECT_GT(found.crowd, 0.01);
  constexpr int kChannels = 24;
  EXPECT_NEAR(found.link_more_ranks / (1 + found.crowd * kChannels), kTwoShot.cost.link_more_ranks,
              1e-6);
}

TEST(Fit, IsNotLedAstrayByAFewOutliers) {
  std::vector<Sample> samples;
  size_t i = 0;
  for (Point point : points_of(kTwoShot)) {
    if (++i % 15 == 0) point.microseconds *= 3;
    samples.push_back({point});
  }
  EXPECT_LT(worst_error(kTwoShot, fit(gpu::Kind::Cuda, kTwoShot.cost, samples)), 0.03);
}

TEST(Calibrate, LeavesWhatNobodyMeasuredAsItWas) {
  const std::vector<CostLine> known{kOneShot, kTwoShot};
  Measurements measurements = measurements_of({kOneShot});
  for (Point& point : measurements.points) point.microseconds *= 2;
  const std::vector<CostLine> lines = calibrate(measurements, tuning_of(known), at_most(24));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].form, kOneShot.form);
  EXPECT_GT(lines[0].cost.fixed, 1.5 * kOneShot.cost.fixed);
  EXPECT_EQ(lines[1].form, kTwoShot.form);
  EXPECT_EQ(lines[1].cost.link_more_ranks, kTwoShot.cost.link_more_ranks);
}

TEST(Calibrate, ChoosesRightOnAMachineThatItKnewNothingOf) {
  const Measurements measurements = measurements_of({kOneShot, kTwoShot});
  std::vector<CostLine> known{kOneShot, kTwoShot};
  for (CostLine& line : known) line.cost = {5, 1, 0.1, 50, 50, 40, 3, 1, 0.1};
  const std::vector<CostLine> lines = calibrate(measurements, tuning_of(known), at_most(24));
  const std::vector<CheckedPoint> points =
      check(measurements, by_lines(measurements.machine, lines), at_most(24));
  EXPECT_EQ(summarise(points).right, points.size());
}

/// What a machine that obeys the derived model exactly would show of all algorithms.
Measurements derived_measurements(const planner::Tuning& machine) {
  Measurements measurements = measurements_of({});
  for (const int nranks : {2, 4})
    for (const Form& algorithm : planner::forms())
      for (int p = 0; p < executor::kProtocols; ++p)
        for (size_t bytes = 64; bytes <= size_t{64} << 20; bytes *= 16)
          measurements.points.push_back(
              {.work = {algorithm.collective, nranks, bytes},
               .variant = {&algorithm, static_cast<Protocol>(p), bytes > 4096 ? 24 : 6, 1},
               .chunk_bytes = kSlot,
               .microseconds = 1});
  const Predictor truth = by_properties(measurements, machine.properties);
  for (Point& point : measurements.points) point.microseconds = *truth(point);
  return measurements;
}

// The properties themselves need not come back: others may give the same times.
TEST(FitProperties, PredictsEveryAlgorithmOfAMachineThatItKnewNothingOf) {
  planner::Tuning machine;
  for (planner::Properties& each : machine.properties)
    each = {.fixed = 3,
            .slot_hop = 1.2,
            .put_hop = 2.5,
            .get_hop = 1.7,
            .work = 0.3,
            .round = 0.7,
            .link_two_ranks = 350,
            .link_more_ranks = 300,
            .slot_copy = 60,
            .slot_reduction = 45,
            .fill = 0.2,
            .direct_fill = 0.4,
            .overlap = 0.2};
  const Measurements measurements = derived_measurements(machine);
  planner::Tuning found;
  found.properties = fit_properties(measurements, {}, at_most(24));
  const Predictor predict = by_properties(measurements, found.properties);
  double sum = 0;
  for (const Point& point : measurements.points)
    sum += std::abs(*predict(point) / point.microseconds - 1);
  EXPECT_LT(sum / static_cast<double>(measurements.points.size()), 0.05);
}

// What a message costs beside the hops shows in algorithms that send many at once.
TEST(FitProperties, FindWhatTheNetworkDoes) {
  planner::Tuning machine;
  for (planner::Properties& each : machine.properties)
    each = {.fixed = 12,
            .between_hop = 40,
            .message = 17,
            .machine_work = 0.5,
            .rail = 0.8,
            .machine_engine = 12};
  Measurements measurements;
  measurements.machine = gpu::Kind::Virtual;
  measurements.path = DataPath::Network;
  for (const int nranks : {2, 3, 6})
    for (const Form& algorithm : planner::forms()) {
      if (!planner::is_possible(gpu::Kind::Virtual, nranks, algorithm, Protocol::Simple, nranks))
        continue;
      for (size_t bytes = 8; bytes <= size_t{4} << 20; bytes *= 8)
        measurements.points.push_back({.work = {algorithm.collective, nranks, bytes},
                                       .variant = {&algorithm, Protocol::Simple, 1, 1},
                                       .chunk_bytes = 512 << 10,
                                       .microseconds = 1});
    }
  const Predictor truth = by_properties(measurements, machine.properties);
  for (Point& point : measurements.points) point.microseconds = *truth(point);
  const PropertiesByProtocol of_all = fit_properties(measurements, {}, at_most(24));
  const planner::Properties& found = of_all[static_cast<size_t>(Protocol::Simple)];
  EXPECT_NEAR(found.message, 17, 2);
  EXPECT_NEAR(found.between_hop, 40, 6);
  EXPECT_EQ(found.link_two_ranks, planner::Properties().link_two_ranks);
}

// Of protocols and links that were not measured.
TEST(FitProperties, KeepsWhatTheMeasurementsSayNothingAbout) {
  planner::Tuning machine;
  for (planner::Properties& each : machine.properties) each.link_two_ranks = 200;
  Measurements measurements = derived_measurements(machine);
  std::erase_if(measurements.points, [](const Point& point) {
    return point.variant.protocol == Protocol::LL || point.work.nranks > 2;
  });
  PropertiesByProtocol known{};
  for (planner::Properties& each : known) {
    each.link_two_ranks = each.link_more_ranks = 77;
    each.rail = 5;
    each.fixed = 99;
  }
  const PropertiesByProtocol found = fit_properties(measurements, known, at_most(24));
  const auto& ll = found[static_cast<size_t>(Protocol::LL)];
  const auto& simple = found[static_cast<size_t>(Protocol::Simple)];
  EXPECT_EQ(ll.fixed, 99);
  EXPECT_EQ(ll.link_two_ranks, 77);
  EXPECT_NE(simple.fixed, 99);
  EXPECT_NE(simple.link_two_ranks, 77);
  EXPECT_EQ(simple.link_more_ranks, 77);
  EXPECT_EQ(simple.rail, 5);
}

TEST(Check, FindsNothingWrongWithAModelThatIsRight) {
  const Measurements measurements = measurements_of({kOneShot, kTwoShot});
  const std::vector<CostLine> lines{kOneShot, kTwoShot};
  const std::vector<CheckedPoint> points =
      check(measurements, by_lines(measurements.machine, lines), at_most(24));
  const Summary summary = summarise(points);
  EXPECT_EQ(summary.points, 28u);  // 14 sizes of two rank counts
  EXPECT_EQ(summary.right, summary.points);
  EXPECT_LE(summary.worst->loss(), 0.01);
  EXPECT_LT(summary.median_error, 1e-9);
  EXPECT_THAT(describe(points), HasSubstr("within 5 %: 28 of 28 points; worst"));
}

TEST(Check, CountsTheChoicesOfAWrongModel) {
  const Measurements measurements = measurements_of({kOneShot, kTwoShot});
  CostLine slow = kOneShot;
  slow.cost.fixed = 1000;  // so that two-shot seems faster everywhere
  const std::vector<CostLine> lines{slow, kTwoShot};
  const std::vector<CheckedPoint> points =
      check(measurements, by_lines(measurements.machine, lines), at_most(24));
  const Summary summary = summarise(points);
  EXPECT_LT(summary.right, summary.points);
  EXPECT_GT(summary.worst->loss(), 1);
  EXPECT_EQ(summary.worst->chosen.variant.form, kTwoShot.form);
  EXPECT_EQ(summary.worst->best.variant.form, kOneShot.form);
}

TEST(Check, LooksAtNoVariantWithMoreChannelsThanTheLibraryTakes) {
  const Measurements measurements = measurements_of({kOneShot, kTwoShot});
  const std::vector<CostLine> lines{kOneShot, kTwoShot};
  for (const CheckedPoint& point :
       check(measurements, by_lines(measurements.machine, lines), at_most(12))) {
    EXPECT_LE(point.best.variant.channels, 12);
    EXPECT_LE(point.chosen.variant.channels, 12);
  }
}

TEST(Check, MeasuresTheLibraryByTheFastestVariant) {
  Measurements measurements = measurements_of({kOneShot, kTwoShot});
  const Point& first = measurements.points[0];
  measurements.own = {{first.work, first.microseconds * 1.5, first.microseconds * 1.2},
                      {{Collective::Reduce, 4, 8}, 3, 3.3}};  // nothing to compare it with
  const std::vector<CheckedOwn> points = check_own(measurements, at_most(24));
  ASSERT_EQ(points.size(), 2u);
  EXPECT_GE(points[0].loss(), 0.499);
  EXPECT_NEAR(points[0].error(), -0.2, 1e-9);
  EXPECT_EQ(points[1].loss(), 0);
  EXPECT_THAT(describe(points), HasSubstr("within 5 %: 1 of 2 points; worst"));
  EXPECT_EQ(describe(std::vector<CheckedOwn>{}), "");
}

// Into /dev/stdout, by links, and beside what others have there.
TEST(JsonFile, ReplacesFilesAlone) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("json_file_test_" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  const std::string pipe = folder / "pipe", link = folder / "link", file = folder / "file";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int reader = open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  EXPECT_TRUE(grammar::check_writable(pipe).is_ok());
  EXPECT_TRUE(grammar::write_json(pipe, {{"a", 1}}).is_ok());
  std::string text(64, '\0');
  text.resize(static_cast<size_t>(std::max<ssize_t>(::read(reader, text.data(), 64), 0)));
  EXPECT_THAT(text, HasSubstr("\"a\": 1"));
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  close(reader);
  EXPECT_FALSE(grammar::write_json(pipe, {{"a", 1}}).is_ok()) << "nobody reads";

  std::filesystem::create_symlink("file", link);
  std::ofstream(file + ".partial") << "a user's";
  EXPECT_TRUE(grammar::check_writable(link).is_ok());
  EXPECT_FALSE(std::filesystem::exists(file));
  EXPECT_TRUE(grammar::write_json(link, {{"a", 2}}).is_ok());
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_TRUE(std::filesystem::is_regular_file(file));
  EXPECT_TRUE(std::filesystem::exists(file + ".partial"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 4);
  std::filesystem::remove_all(folder);
}

TEST(Measurements, SurviveTheirFile) {
  const std::string path =
      std::filesystem::temp_directory_path() / ("tune_test_" + std::to_string(getpid()) + ".json");
  Measurements written = measurements_of({kTwoShot});
  written.failures = {"one did not run"};
  written.own = {{{Collective::AllToAll, 4, 1000}, 7.5, 7}};
  ASSERT_TRUE(grammar::write_json(path, to_json(written)).is_ok());
  Measurements got;
  ASSERT_TRUE(read(path, got).is_ok());
  EXPECT_EQ(got.devices, written.devices);
  EXPECT_EQ(got.failures, written.failures);
  ASSERT_EQ(got.own.size(), 1u);
  EXPECT_EQ(got.own[0].work, written.own[0].work);
  EXPECT_EQ(got.own[0].predicted, 7);
  ASSERT_EQ(got.points.size(), written.points.size());
  for (size_t i = 0; i < got.points.size(); ++i) {
    EXPECT_EQ(got.points[i].variant, written.points[i].variant);
    EXPECT_EQ(got.points[i].work.bytes, written.points[i].work.bytes);
    EXPECT_EQ(got.points[i].microseconds, written.points[i].microseconds);
  }
  // Data through slots are another class, of which a file says so.
  Measurements slots = written;
  slots.path = DataPath::Slots;
  std::ofstream(path) << to_json(slots).dump();
  EXPECT_FALSE(read(path, got).is_ok());
  Measurements read_slots;
  ASSERT_TRUE(read(path, read_slots).is_ok());
  EXPECT_EQ(read_slots.machine_class(), planner::MachineClass::CudaSlots);
  // So are data through the network.
  Measurements sockets = written;
  sockets.path = DataPath::Network;
  std::ofstream(path) << to_json(sockets).dump();
  EXPECT_FALSE(read(path, got).is_ok());
  Measurements read_sockets;
  ASSERT_TRUE(read(path, read_sockets).is_ok());
  EXPECT_EQ(read_sockets.machine_class(), planner::MachineClass::CudaSockets);
  // And through host memory.
  Measurements host_memory = written;
  host_memory.path = DataPath::HostMemory;
  std::ofstream(path) << to_json(host_memory).dump();
  EXPECT_FALSE(read(path, got).is_ok());
  Measurements read_host_memory;
  ASSERT_TRUE(read(path, read_host_memory).is_ok());
  EXPECT_EQ(read_host_memory.machine_class(), planner::MachineClass::CudaHostMemory);
  // As are those of two ranks.
  for (Point& point : slots.points) point.work.nranks = 2;
  for (OwnTime& time : slots.own) time.work.nranks = 2;
  std::ofstream(path) << to_json(slots).dump();
  EXPECT_FALSE(read(path, read_slots).is_ok());
  // By two ways at once nothing can have been measured.
  nlohmann::json both = to_json(host_memory);
  both["slots"] = true;
  std::ofstream(path) << both.dump();
  Measurements none;
  EXPECT_EQ(read(path, none).code(), Code::InvalidArgument);
  std::ofstream(path) << to_json(written).dump();
  // A second file adds to the first.
  ASSERT_TRUE(read(path, got).is_ok());
  EXPECT_EQ(got.points.size(), 2 * written.points.size());

  std::ofstream(path) << "{\"schema\": \"niccolite-perf-2\"}";
  const Status other = read(path, got);
  EXPECT_THAT(std::string(other.message()), HasSubstr("niccolite-tune-1"));
  std::ofstream(path) << "[1, 2";
  EXPECT_FALSE(read(path, got).is_ok());
  std::filesystem::remove(path);
  EXPECT_FALSE(read(path, got).is_ok());
}

// What is written is what the library reads, with what is known of variants that were not measured.
TEST(TuningFile, IsReadAsItWasWritten) {
  const planner::Tuning& known = planner::tuning_of(planner::MachineClass::Cuda, "");
  const planner::Tuning tuning =
      tuning_from(measurements_of({}), known, std::vector{kOneShot, kTwoShot});
  EXPECT_EQ(tuning.about, "4 x Test GPU, 2026-01-02: niccolite tune");
  EXPECT_EQ(tuning.gpu, "Test GPU");
  const planner::Tuning read = planner::parse_tuning(text_of(tuning), "x.json").value();
  EXPECT_EQ(text_of(read), text_of(tuning));
  EXPECT_EQ(read.about, tuning.about);
  EXPECT_EQ(read.gpu, tuning.gpu);
  EXPECT_EQ(read.costs().size(), known.costs().size());
  for (const CostLine& line : known.costs()) {
    const planner::Cost* const cost = read.find(*line.form, line.protocol);
    ASSERT_NE(cost, nullptr) << line.form->name;
    const bool is_one_shot = line.form == kOneShot.form && line.protocol == kOneShot.protocol;
    const bool is_two_shot = line.form == kTwoShot.form && line.protocol == kTwoShot.protocol;
    const planner::Cost& expected = is_one_shot   ? kOneShot.cost
                                    : is_two_shot ? kTwoShot.cost
                                                  : line.cost;
    EXPECT_EQ(cost->fixed, expected.fixed);
    EXPECT_EQ(cost->link_two_ranks, expected.link_two_ranks);
    EXPECT_EQ(cost->crowd, expected.crowd);
  }
  for (size_t protocol = 0; protocol < known.properties.size(); ++protocol)
    EXPECT_EQ(read.properties[protocol].link_more_ranks,
              known.properties[protocol].link_more_ranks);
}

TEST(TuningFile, IsForTheClassThatWasMeasured) {
  Measurements slots = measurements_of({});
  slots.path = DataPath::Slots;
  for (const auto& [nranks, machine] : {std::pair(2, planner::MachineClass::CudaSlotsOfTwo),
                                        {4, planner::MachineClass::CudaSlots}}) {
    Point point;
    point.work.nranks = nranks;
    slots.points.push_back(point);
    EXPECT_EQ(tuning_from(slots, tuning_in_force(slots), {}).machine, machine);
  }
  slots.devices = "1 x Test GPU, 1 x Other GPU";
  EXPECT_EQ(tuning_from(slots, tuning_in_force(slots), {}).gpu, "");
}

TEST(TuningFile, IsForTheNetworkWhereThatWasMeasured) {
  Measurements measurements = measurements_of({kTwoShot});
  measurements.path = DataPath::Network;
  EXPECT_EQ(measurements.machine_class(), planner::MachineClass::CudaSockets);
  measurements.machine = gpu::Kind::Virtual;
  EXPECT_EQ(measurements.machine_class(), planner::MachineClass::Sockets);
}

TEST(TuningFile, HasNoLinesOfCollectivesOfVirtualGpusByTheNetwork) {
  const planner::Tuning& known = planner::tuning_of(planner::MachineClass::Sockets, "");
  Measurements measurements = measurements_of({kTwoShot});
  measurements.path = DataPath::Network;
  measurements.machine = gpu::Kind::Virtual;
  const std::vector<CostLine> lines{kOneShot, kTwoShot};
  EXPECT_EQ(tuning_from(measurements, known, lines).costs().size(), known.costs().size());
  measurements.machine = gpu::Kind::Cuda;
  EXPECT_GT(tuning_from(measurements, known, lines).costs().size(), known.costs().size());
}

// What costs nothing must not break ties.
TEST(FitProperties, LeavesAtZeroWhatIsZero) {
  planner::Tuning machine;
  for (planner::Properties& each : machine.properties) each.work = each.round_instruction = 0;
  const Measurements measurements = derived_measurements(machine);
  const auto found = fit_properties(measurements, machine.properties, at_most(24));
  EXPECT_EQ(found[static_cast<size_t>(Protocol::Simple)].work, 0);
  EXPECT_EQ(found[static_cast<size_t>(Protocol::Simple)].round_instruction, 0);
}

TEST(TuningFile, IsForHostMemoryWhereThatWasMeasured) {
  Measurements measurements = measurements_of({kTwoShot});
  measurements.path = DataPath::HostMemory;
  EXPECT_EQ(measurements.machine_class(), planner::MachineClass::CudaHostMemory);
  EXPECT_EQ(tuning_from(measurements, tuning_in_force(measurements), {}).machine,
            planner::MachineClass::CudaHostMemory);
}

TEST(Jobs, GoByHostMemoryAloneWhenAsked) {
  const Request request{.ranks = {2},
                        .collectives = {Collective::AllReduce},
                        .sizes = {8, 1 << 20},
                        .channels = {},
                        .path = DataPath::HostMemory};
  bool has_ll = false;
  const std::vector<Job> jobs = make_jobs(gpu::Kind::Cuda, request).value();
  for (const Job& job : jobs) {
    EXPECT_EQ(job.environment().at("NCCL_P2P_DISABLE"), "1");
    EXPECT_EQ(job.environment().count("NCCL_SHM_DISABLE"), 0u);
    if (job.is_free) continue;
    EXPECT_NE(job.protocol, Protocol::LL128);  // its lines may tear there
    has_ll |= job.protocol == Protocol::LL;
  }
  EXPECT_TRUE(has_ll);
  EXPECT_FALSE(make_jobs(gpu::Kind::Virtual, request).is_ok());
}

TEST(Jobs, KeepToTheProtocolsThatAreNamed) {
  const Request request{.ranks = {2},
                        .collectives = {Collective::AllReduce, Collective::Broadcast},
                        .sizes = {8, 1 << 20},
                        .channels = {},
                        .protocols = {Protocol::LL}};
  size_t forced = 0;
  const std::vector<Job> jobs = make_jobs(gpu::Kind::Cuda, request).value();
  for (const Job& job : jobs) {
    if (job.is_free) continue;
    EXPECT_EQ(job.protocol, Protocol::LL);
    ++forced;
  }
  EXPECT_GT(forced, 0u);
}

TEST(Jobs, GoByTheNetworkAloneWhenAsked) {
  const Request request{.ranks = {2, 4},
                        .collectives = {Collective::AllReduce},
                        .sizes = {8, 1 << 20},
                        .channels = {},
                        .path = DataPath::Network};
  const std::vector<Job> jobs = make_jobs(gpu::Kind::Virtual, request).value();
  std::set<Protocol> of_small;
  bool has_hierarchical = false;
  for (const Job& job : jobs) {
    EXPECT_EQ(job.environment().at("NCCL_P2P_DISABLE"), "1");
    EXPECT_EQ(job.environment().at("NCCL_SHM_DISABLE"), "1");
    if (job.is_free) continue;
    EXPECT_NE(job.protocol, Protocol::LL128) << "which needs memory that both ends see";
    if (job.sizes.front() == 8) of_small.insert(job.protocol);
    for (const auto& [collective, algorithm] : job.variants)
      has_hierarchical |= algorithm->family() == "hierarchical";
  }
  EXPECT_EQ(of_small, (std::set{Protocol::LL, Protocol::Simple}));
  EXPECT_TRUE(has_hierarchical);
}

TEST(Jobs, KeepDataInSlotsWhenAsked) {
  for (const DataPath path : {DataPath::Best, DataPath::Slots}) {
    const Request request{.ranks = {2},
                          .collectives = {Collective::AllReduce},
                          .sizes = {1 << 20},
                          .channels = {},
                          .path = path};
    const std::vector<Job> jobs = make_jobs(gpu::Kind::Cuda, request).value();
    for (const Job& job : jobs)
      EXPECT_EQ(job.environment().at("NCCL_P2P_DIRECT_DISABLE"),
                path == DataPath::Slots ? "1" : "0");
  }
}

// Those of several peers are smaller where data go from buffer to buffer.
TEST(Jobs, KnowTheSlotsOfWhatTheyMeasure) {
  for (const DataPath path : {DataPath::Best, DataPath::Slots}) {
    const Request request{.ranks = {4},
                          .collectives = {Collective::AllReduce},
                          .sizes = {64 << 20},
                          .channels = {},
                          .path = path};
    planner::Settings settings = planner::make_settings(gpu::Kind::Cuda, 4, {}).value();
    planner::set_reach(settings, path == DataPath::Best);
    const executor::FifoShape& simple = settings.shapes[static_cast<size_t>(Protocol::Simple)];
    const std::vector<Job> jobs = make_jobs(gpu::Kind::Cuda, request).value();
    for (const Job& job : jobs) {
      if (job.is_free || job.protocol != Protocol::Simple) continue;
      EXPECT_EQ(job.chunk_bytes * static_cast<size_t>(job.parts), simple.slot_bytes);
    }
  }
}

// Through slots, two ranks and more are two tables.
TEST(Jobs, AreOfOneTable) {
  Request request{
      .ranks = {2, 4}, .collectives = {Collective::AllReduce}, .sizes = {1 << 20}, .channels = {}};
  EXPECT_TRUE(make_jobs(gpu::Kind::Cuda, request).is_ok());
  request.path = DataPath::Slots;
  EXPECT_FALSE(make_jobs(gpu::Kind::Cuda, request).is_ok());
  request.ranks = {3, 4};
  EXPECT_TRUE(make_jobs(gpu::Kind::Cuda, request).is_ok());
}

TEST(Jobs, ForceEveryPossibleVariantOnce) {
  Request request{
      .ranks = {4}, .collectives = {}, .sizes = {8, 64 << 10, 16 << 20}, .channels = {}};
  for (int c = 0; c < schedule::kCollectives; ++c)
    request.collectives.push_back(static_cast<Collective>(c));
  for (const gpu::Kind machine : {gpu::Kind::Cuda, gpu::Kind::Virtual}) {
    const std::vector<Job> jobs = make_jobs(machine, request).value();
    const auto shapes = planner::make_settings(machine, 4, {}).value().shapes;
    for (const Collective collective : request.collectives)
      for (const Form& algorithm : planner::forms_of(collective))
        for (int p = 0; p < executor::kProtocols; ++p) {
          const auto protocol = static_cast<Protocol>(p);
          // At 64 KiB every protocol is measured, with all of its channels and whole slots.
          const auto most = static_cast<int>(shapes[static_cast<size_t>(p)].channels);
          int runs = 0;
          for (const Job& job : jobs)
            for (const auto& variant : job.variants)
              runs += !job.is_free && variant == std::pair(collective, &algorithm) &&
                      job.protocol == protocol && job.parts == 1 && job.channels == most &&
                      std::count(job.sizes.begin(), job.sizes.end(), 64 << 10) == 1;
          EXPECT_EQ(runs, planner::is_possible(machine, 4, algorithm, protocol))
              << name_of(collective) << " " << algorithm.name << " " << executor::name_of(protocol);
        }
  }
}

TEST(Jobs, LeaveTheLibraryNoOtherChoice) {
  const Job job{
      .nranks = 4,
      .protocol = Protocol::LL128,
      .channels = 12,
      .variants = {{Collective::AllReduce, planner::find_form(Collective::AllReduce, "two_shot")},
                   {Collective::AllToAll,
                    planner::find_form(Collective::AllToAll, "direct_workers")}},
      .sizes = {8, 32}};
  const auto environment = job.environment();
  EXPECT_EQ(environment.at("NCCL_ALGO"), "AllReduce:two_shot_plain;AlltoAll:direct_workers");
  EXPECT_EQ(environment.at("NCCL_PROTO"), "LL128");
  EXPECT_EQ(environment.at("NCCL_MIN_CTAS"), "12");
  EXPECT_EQ(environment.at("NCCL_MAX_CTAS"), "12");
  const auto arguments = job.arguments("x.json");
  EXPECT_EQ(arguments[1], "all_reduce,alltoall");
  // Whoever measures may itself be a process of several: its jobs are not.
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "PMI_RANK", "PMI_SIZE",
                           "SLURM_PROCID", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"})
    EXPECT_EQ(environment.at(name), "") << name;
}

}  // namespace
}  // namespace niccolite::tune
