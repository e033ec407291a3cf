#include "cli/schedule/command.h"

#include <fmt/core.h>
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "algorithms/point_to_point.h"
#include "cli/grammar/collective.h"
#include "cli/grammar/exit_code.h"
#include "cli/grammar/file.h"
#include "cli/grammar/machines.h"
#include "cli/grammar/names.h"
#include "cli/grammar/options.h"
#include "cli/schedule/animate.h"
#include "importers/import.h"
#include "lowering/check.h"
#include "lowering/demand.h"
#include "lowering/draw.h"
#include "planner/form.h"
#include "schedule/check.h"
#include "schedule/check_form.h"
#include "schedule/draw.h"
#include "schedule/draw_style.h"
#include "schedule/draw_svg.h"
#include "schedule/file.h"
#include "schedule/load.h"
#include "schedule/timeline.h"

namespace niccolite::schedule_command {
namespace {

using grammar::kExitFailed;
using grammar::kExitFine;
using grammar::kExitUsage;
using grammar::kExitWrong;
using schedule::Collective;
using schedule::Schedule;

constexpr int kMaxRanks = 1024;  // whole schedules grow with the square

constexpr const char* kFooter =
    R"(Prints what every rank does, unless the picture goes to a file, and what it costs: steps of the longest chain of
instructions, network latencies of the longest chain of chunks, instructions and data sent per rank.

Examples:
  niccolite schedule --list                                    what there is
  niccolite schedule all_reduce                                the first algorithm listed, for four ranks
  niccolite schedule broadcast --algorithm scatter_gather --ranks 8 --root 3 --check
  niccolite schedule all_gather --algorithm pat --ranks 8 --svg pat.svg
  niccolite schedule all_gather --algorithm pat --ranks 8 --animate pat.html     a page that plays it
  niccolite schedule all_reduce --algorithm hierarchical --machines 2x4 --check
  niccolite schedule all_reduce --algorithm two_shot_workers --lowered   how the bytes go where buffers are reached
  niccolite schedule all_reduce --algorithm two_shot --lowered --team    where a switch multicasts and reduces (NVLS)
  niccolite schedule all_reduce -a two_shot_workers --lowered --team --windows      the same of buffers in windows, without slots
  niccolite schedule point_to_point --ranks 3 --messages 0:1,1:2,2:2
  niccolite schedule all_reduce -a ring -n 8 -o ring8.json     as a file, which --import and NICCOLITE_ALGORITHMS read
  niccolite schedule --import ring8.json                       what it is, its proof, and the FIFOs that it needs
  niccolite schedule --import theirs.xml -a theirs -o theirs.json   an algorithm in MSCCL's XML, or MSCCL++'s plan, under another name
  niccolite schedule all_reduce --import trees.xml -a trees -o trees.json   ForestColl's trees, up and down

Exit status: 0 fine; 1 the schedule is wrong; 2 wrong usage, or a file that cannot be read; 3 a file cannot be written.)";

int fail(const Status& status, int exit_code) {
  fmt::print(stderr, "niccolite schedule: {}\n", status.message());
  return exit_code;
}

std::vector<std::string> names_of_algorithms(Collective collective) {
  std::vector<std::string> names;
  for (const planner::Form& form : planner::forms())
    if (form.collective == collective) names.push_back(form.name);
  return names;
}

int list(bool wants_json) {
  nlohmann::json all = nlohmann::json::object();
  for (int i = 0; i < schedule::kCollectives; ++i) {
    const auto collective = static_cast<Collective>(i);
    const std::vector<std::string> names = names_of_algorithms(collective);
    all[name_of(collective)] = names;
    if (!wants_json)
      fmt::print("{:<16}{}\n", name_of(collective),
                 collective == Collective::PointToPoint
                     ? "of --messages"
                     : fmt::format("{}", fmt::join(names, ", ")));
  }
  if (wants_json) fmt::print("{}\n", all.dump(2));
  return kExitFine;
}

std::vector<algorithms::Envelope> everyone_to_everyone(int ranks) {
  std::vector<algorithms::Envelope> messages;
  for (int sender = 0; sender < ranks; ++sender)
    for (int receiver = 0; receiver < ranks; ++receiver) messages.push_back({sender, receiver});
  return messages;
}

/// "0:1,1:2" as messages.
Result<std::vector<algorithms::Envelope>> parse_messages(const std::string& text) {
  std::vector<algorithms::Envelope> messages;
  const char *next = text.data(), *const end = next + text.size();
  while (true) {
    algorithms::Envelope message{};
    const auto [colon, sender_error] = std::from_chars(next, end, message.sender);
    const bool has_colon = sender_error == std::errc() && colon < end && *colon == ':';
    const auto [comma, receiver_error] =
        std::from_chars(has_colon ? colon + 1 : end, end, message.receiver);
    if (receiver_error != std::errc() || (comma < end && *comma != ','))
      return Status::invalid_argument(
          "--messages: \"{}\" is no list of SENDER:RECEIVER, such as 0:1,1:0", text);
    messages.push_back(message);
    if (comma == end) return messages;
    next = comma + 1;
  }
}

/// Refuses options that say what a file says.
Status check_import(const Options& options, std::string_view text) {
  const bool may_name_collective = importers::says_no_collective(text);
  if ((!options.collective.empty() && !may_name_collective) || !options.messages.empty() ||
      options.root != 0)
    return Status::invalid_argument(
        "--import: the file says collective, root and messages; leave them out");
  return {};
}

/// A schedule that was read, and a line about its source.
using Read = importers::Foreign;

Result<Read> read_schedule(const Options& options, std::string_view text) {
  if (importers::is_foreign(text)) {
    std::optional<Collective> collective;
    if (!options.collective.empty())
      collective = TRY(grammar::parse_collective("", options.collective));
    return importers::import(text, collective);
  }
  return Read{.file = TRY(schedule::read_file(text)), .about = {}};
}

Result<Read> import_file(const Options& options) {
  const std::string text = TRY(grammar::read_text(options.import_path));
  TRY(check_import(options, text));
  Result<Read> read = read_schedule(options, text);
  if (!read.is_ok()) return std::move(read).status().with_context("{}", options.import_path);
  if (!options.algorithm.empty()) read->file.schedule.algorithm = options.algorithm;
  return read;
}

Result<Schedule> build(const Options& options) {
  const Collective collective = TRY(grammar::parse_collective("", options.collective));
  if (options.ranks > kMaxRanks)
    return Status::invalid_argument("--ranks: {} are too many to show; {} are the most",
                                    options.ranks, kMaxRanks);
  if (collective == Collective::PointToPoint) {
    if (options.messages.empty())
      return algorithms::point_to_point(options.ranks, everyone_to_everyone(options.ranks));
    const std::vector<algorithms::Envelope> messages = TRY(parse_messages(options.messages));
    return algorithms::point_to_point(options.ranks, messages);
  }
  if (!options.messages.empty())
    return Status::invalid_argument("--messages are for point_to_point, not {}",
                                    options.collective);
  if (options.root != 0 && !has_root(collective))
    return Status::invalid_argument("--root: {} has none", options.collective);
  algorithms::Options built{.root = options.root, .window = options.depth};
  int ranks = options.ranks;
  if (!options.machines.empty()) {
    built.machines = TRY(grammar::parse_machines(options.machines));
    ranks = static_cast<int>(built.machines.size());
    if (ranks > kMaxRanks)
      return Status::invalid_argument("--machines: {} ranks are too many to show; {} are the most",
                                      ranks, kMaxRanks);
  }
  for (const planner::Form& form : planner::forms_of(collective))
    if (options.algorithm.empty() ||
        grammar::letters_of(options.algorithm) == grammar::letters_of(form.name))
      return form.build(ranks, built);
  return grammar::unknown_name("--algorithm", options.algorithm, names_of_algorithms(collective));
}

/// "7 instructions per rank", "1 to 4 instructions per rank".
std::string describe_instructions(const Schedule& schedule) {
  std::vector<size_t> counts;
  for (const std::vector<schedule::Channel>& channels : schedule.ranks) {
    size_t count = 0;
    for (const schedule::Channel& channel : channels)
      for (const schedule::Worker& worker : channel.workers) count += worker.instructions.size();
    counts.push_back(count);
  }
  const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
  const std::string range =
      *least == *most ? std::to_string(*most) : fmt::format("{} to {}", *least, *most);
  return fmt::format("{} instruction{} per rank", range, *most == 1 ? "" : "s");
}

/// Prints the traffic between machines and inside them.
void print_traffic(const Schedule& schedule, const std::vector<int>& machines) {
  const schedule::Load load = load_of(schedule, machines);
  fmt::print(
      "of {}: {:.3g} times over the wires of the busiest machine, {:.3g} between machines and "
      "{:.3g} inside one by the busiest rank\n",
      cuts_one_buffer(schedule.collective) ? "the data" : "a block", load.wire, load.rail,
      load.link);
}

Status write_svg(const Schedule& schedule, const std::string& path) {
  const std::string picture = TRY(draw_svg(schedule));
  return grammar::write_text(path, picture);
}

Status write_page(const Schedule& schedule, const std::string& path) {
  const std::string page = TRY(animate(schedule));
  return grammar::write_text(path, page);
}

/// --check: exit status 1 and the reason if the schedule is wrong.
int prove(const Schedule& schedule, const Options& options, const std::vector<int>& machines,
          bool is_silent) {
  if (const Status status = check(schedule, {.depth = options.depth}); !status.is_ok())
    return fail(status, kExitWrong);
  if (!is_silent)
    fmt::print(
        "proved right for any data and timing, in place too where that exists, with FIFOs of "
        "{} slot{} or more\n",
        options.depth, options.depth == 1 ? "" : "s");
  if (!options.wants_lowered) return kExitFine;
  constexpr int kMostAborted = 4;  // the proof of aborts grows with the square of the steps
  const bool with_aborts = schedule.nranks <= kMostAborted;
  if (const Status status = lowering::check_all(
          schedule, {.depth = options.depth, .with_aborts = with_aborts, .machines = machines});
      !status.is_ok())
    return fail(status, kExitWrong);
  if (!is_silent)
    fmt::print("proved right lowered, too, whichever buffers are reached{}\n",
               with_aborts ? ", and whenever a rank is aborted" : "");
  return kExitFine;
}

/// The proof of a file's schedule, with the fewest slots that suffice.
int judge_import(const Schedule& schedule, const Options& options, bool is_silent) {
  Result<int> depth = schedule::least_depth(schedule);
  if (!depth.is_ok())
    return fail(std::move(depth).status().with_context("{}", options.import_path), kExitWrong);
  if (!is_silent)
    fmt::print(
        "proved right for any data and timing, in place too where that exists, with FIFOs of "
        "{} slot{} or more\n",
        depth.value(), depth.value() == 1 ? "" : "s");
  return kExitFine;
}

}  // namespace

void add_options(CLI::App& app, Options& options) {
  using namespace grammar;
  app.footer(kFooter);
  app.add_option("collective", options.collective, "all_reduce, broadcast, ...; see --list")
      ->type_name(kCollective);
  app.add_option("-a,--algorithm", options.algorithm, "Algorithm (default: the first listed)")
      ->type_name("ALGORITHM");
  add(app, kRanks, options.ranks, "-n")->capture_default_str();
  add(app, kMachines, options.machines, "-M", " (default: all ranks are on one)");
  add(app, kRoot, options.root, "-r")->capture_default_str();
  app.add_option("-m,--messages", options.messages,
                 "Messages of point_to_point (default: everyone to everyone)")
      ->type_name("SENDER:RECEIVER,...");
  app.add_option("-d,--depth", options.depth,
                 "Slots of each FIFO: --check assumes no more, and pat uses as many")
      ->type_name(kNumber)
      ->capture_default_str();
  add(app, kSvgFile, options.svg_path, "", " instead of printing");
  app.add_option("-A,--animate", options.page_path,
                 "Write a page into this file that plays the schedule step by step (-: standard "
                 "output)")
      ->type_name(kFile);
  add(app, kOutputFile, options.output_path, "-o", ": the schedule (docs/schedule-file.md)");
  app.add_option("-i,--import", options.import_path,
                 "Read the schedule from this file (its JSON, MSCCL's XML, MSCCL++'s plan, "
                 "ForestColl's trees, or TE-CCL's solution), and prove it with the fewest FIFO "
                 "slots; --algorithm renames it")
      ->type_name(kFile);
  add_flag(app, kJsonFlag, options.wants_json, " instead of text: the file that -o writes");
  app.add_flag("-c,--check", options.wants_proof,
               "Prove that results are right and nothing deadlocks or races");
  app.add_flag(
      "-L,--lowered", options.wants_lowered,
      "Print each worker's steps as they run, with direct gets and puts; --check proves these too");
  app.add_flag("--team", options.has_team,
               "With --lowered: the ranks of each machine have a multicast team (NVLS)");
  app.add_flag("--words", options.is_of_words,
               "With --lowered: by LL, whose words bring flags, so that nothing is direct");
  app.add_flag("--windows", options.has_windows,
               "With --team: all buffers lie in symmetric windows, which the team reaches");
  app.add_flag("-l,--list", options.wants_list, "List collectives and their algorithms");
}

int run(const Options& options) {
  if (options.wants_list) return list(options.wants_json);
  const bool is_import = !options.import_path.empty();
  if (options.collective.empty() && !is_import)
    return fail(Status::invalid_argument("which collective? See niccolite schedule --help"),
                kExitUsage);
  if (options.wants_json && options.wants_lowered)
    return fail(
        Status::invalid_argument("--json has no form of --lowered steps; print them as text"),
        kExitUsage);
  if (options.has_team && !options.wants_lowered)
    return fail(Status::invalid_argument("--team is about --lowered steps: add --lowered"),
                kExitUsage);
  if (options.has_windows && !options.has_team)
    return fail(Status::invalid_argument("--windows is about what a team reaches: add --team"),
                kExitUsage);
  if (options.is_of_words && (!options.wants_lowered || options.has_windows))
    return fail(
        Status::invalid_argument("--words is about --lowered steps without --windows: words "
                                 "go to slots"),
        kExitUsage);
  schedule::File file;
  std::string about;
  if (is_import) {
    Result<Read> read = import_file(options);
    if (!read.is_ok())
      return fail(read.status(),
                  read.status().code() == Code::InvalidUsage ? kExitWrong : kExitUsage);
    file = std::move(read->file);
    about = std::move(read->about);
  } else {
    Result<Schedule> built = build(options);
    if (!built.is_ok()) return fail(built.status(), kExitUsage);
    file.schedule = std::move(built).take();
  }
  const Schedule& schedule = file.schedule;
  if (is_import) {
    Result<std::vector<schedule::Ends>> form = schedule::check_form(schedule);
    if (!form.is_ok())
      return fail(std::move(form).status().with_context("{}", options.import_path), kExitWrong);
  }

  std::vector<int> machines;
  if (!options.machines.empty())
    machines = grammar::parse_machines(options.machines).take();  // build() has checked it
  if (options.wants_lowered) {
    lowering::Capabilities capabilities{
        .machines = machines, .has_team = options.has_team, .has_windows = options.has_windows};
    if (options.is_of_words) capabilities.facilities = {.publishes_chunks = false};
    const Result<lowering::AccessPlan> plan = lowering::lower(schedule, capabilities);
    if (!plan.is_ok()) return fail(plan.status(), kExitWrong);
    fmt::print("{}\n", draw_text(plan.value()));
    if (options.has_team) {
      Result<lowering::Demand> demand = lowering::demand_of(plan.value(), machines);
      if (!demand.is_ok()) return fail(demand.status(), kExitWrong);
      fmt::print(
          "the busiest link carries each way, for each byte of the operation: {:.4g} by the team, "
          "{:.4g} from rank to rank\n",
          demand->load.team, demand->load.link);
    }
  }
  if (!options.svg_path.empty()) {
    if (const Status status = write_svg(schedule, options.svg_path); !status.is_ok())
      return fail(status, kExitFailed);
  } else if (!options.page_path.empty()) {
    if (const Status status = write_page(schedule, options.page_path); !status.is_ok())
      return fail(status, kExitFailed);
  } else if (!options.wants_json && !options.wants_lowered && options.output_path.empty()) {
    fmt::print("{}\n", draw_text(schedule));
  }
  const Result<schedule::Timeline> events = timeline(schedule);
  if (!events.is_ok()) return fail(events.status(), kExitWrong);
  // Standard output has one document.
  const bool is_silent = options.wants_json || options.svg_path == grammar::kStandardOutput ||
                         options.output_path == grammar::kStandardOutput ||
                         options.page_path == grammar::kStandardOutput;
  if (options.wants_json) fmt::print("{}", to_file(schedule, file.use));
  if (!is_silent) {
    if (!about.empty()) fmt::print("{}\n", about);
    fmt::print("{} {}: {}; {}\n", name_of(schedule.collective), schedule.algorithm,
               describe_cost(schedule, events.value()), describe_instructions(schedule));
    if (!machines.empty()) print_traffic(schedule, machines);
  }
  const int exit_code = is_import             ? judge_import(schedule, options, is_silent)
                        : options.wants_proof ? prove(schedule, options, machines, is_silent)
                                              : kExitFine;
  if (exit_code != kExitFine || options.output_path.empty()) return exit_code;
  const Status written = grammar::write_text(options.output_path, to_file(schedule, file.use));
  return written.is_ok() ? kExitFine : fail(written, kExitFailed);
}

}  // namespace niccolite::schedule_command
