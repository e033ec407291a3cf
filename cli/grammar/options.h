// The options that several subcommands have. An option of one name takes the same kind of value and
// means the same in each of them. --help, error messages and shell completion are made from the
// options that subcommands add here or by themselves.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

namespace niccolite::grammar {

// Kinds of values, as --help shows them. Completion offers file names for kFile and kDumps, and
// the words that main.cc lists for kinds of names.
inline constexpr const char* kBytes = "SIZE";
inline constexpr const char* kSizeList = "SIZE,...";
inline constexpr const char* kNumber = "N";
inline constexpr const char* kNumberList = "N,...";
inline constexpr const char* kSeconds = "SECONDS";
inline constexpr const char* kFile = "FILE";
inline constexpr const char* kCollective = "COLLECTIVE";
inline constexpr const char* kCollectiveList = "COLLECTIVE,...";
inline constexpr const char* kType = "TYPE";
inline constexpr const char* kTypeList = "TYPE,...";
inline constexpr const char* kMachineList = "MACHINESxRANKS";

/// An option with a value, or a flag if `value` is empty.
struct SharedOption {
  const char* name;   // "--ranks"
  const char* value;  // one of the kinds above
  const char* about;
};

inline constexpr SharedOption kJsonFlag{"--json", "", "Print JSON"};
inline constexpr SharedOption kSvgFile{"--svg", kFile, "Draw into this file (-: standard output)"};
inline constexpr SharedOption kOutputFile{"--output", kFile,
                                          "Write JSON into this file (-: standard output)"};
inline constexpr SharedOption kRanks{"--ranks", kNumber, "Number of ranks"};
inline constexpr SharedOption kMachines{"--machines", kMachineList,
                                        "Machines and their ranks: 2x4, or 3,1"};
inline constexpr SharedOption kRoot{"--root", kNumber, "Root, of collectives that have one"};
inline constexpr SharedOption kDatatype{"--datatype", kType, "Type of the elements"};
inline constexpr SharedOption kMinBytes{"--minbytes", kBytes, "First size"};
inline constexpr SharedOption kMaxBytes{"--maxbytes", kBytes, "Last size"};
inline constexpr SharedOption kStepFactor{"--stepfactor", "FACTOR", "Factor from size to size"};
inline constexpr SharedOption kSizes{"--sizes", kSizeList,
                                     "Sizes, instead of a first and a last one"};
inline constexpr SharedOption kTopologyFile{"--topology", kFile,
                                            "A topology file, as NCCL_TOPO_DUMP_FILE writes it"};
inline constexpr SharedOption kLibrary{
    "--lib", kFile, "The libnccl (default: ../lib/libnccl.so.2 beside this command)"};

/// Gives `app` the option. `shorts`: other names that this subcommand has for it ("-n").
/// `more`: the end of its description in this subcommand.
template <typename Variable>
CLI::Option* add(CLI::App& app, const SharedOption& shared, Variable& variable,
                 const std::string& shorts = "", const std::string& more = "") {
  return app
      .add_option((shorts.empty() ? "" : shorts + ",") + shared.name, variable, shared.about + more)
      ->type_name(shared.value);
}
inline CLI::Option* add_flag(CLI::App& app, const SharedOption& shared, bool& variable,
                             const std::string& more = "") {
  return app.add_flag(shared.name, variable, shared.about + more);
}

/// Returns the words with long options as `app` and its subcommands spell them: "--warmup-iters"
/// becomes "--warmup_iters". Words behind "--" stay as they are. `words` begin behind the name of
/// the command.
std::vector<std::string> spell_options(const CLI::App& app, std::vector<std::string> words);

/// Describes wrong usage in one line that names the subcommand, the word and the nearest right one.
std::string describe(const CLI::App& app, const CLI::ParseError& error);

}  // namespace niccolite::grammar
