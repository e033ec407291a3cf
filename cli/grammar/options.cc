#include "cli/grammar/options.h"

#include <fmt/core.h>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>

#include "cli/grammar/names.h"

namespace niccolite::grammar {
namespace {

std::vector<std::string> long_options_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    if (!option->get_group().empty())  // else it is hidden
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

/// Returns the subcommand that was parsed, or `app` itself.
const CLI::App& innermost(const CLI::App& app) {
  const std::vector<CLI::App*> parsed = app.get_subcommands();
  return parsed.empty() ? app : *parsed.front();
}

/// Returns the text of an error in our words: "--iters takes N, not x", "--iters needs a value: N".
std::string reword(const CLI::App& app, const std::string& text) {
  constexpr std::string_view kConversion = "Could not convert: ", kEquals = " = ";
  if (const size_t equals = text.find(kEquals);
      text.starts_with(kConversion) && equals != std::string::npos) {
    const std::string name = text.substr(kConversion.size(), equals - kConversion.size());
    const CLI::Option* const option = app.get_option_no_throw(name);
    if (option != nullptr)
      return fmt::format("{} takes {}, not {}", name, option->get_type_name(),
                         text.substr(equals + kEquals.size()));
  }
  constexpr std::string_view kMissing = ": 1 required ", kEnd = " missing";
  if (const size_t missing = text.find(kMissing);
      missing != std::string::npos && text.ends_with(kEnd)) {
    const size_t kind = missing + kMissing.size();
    return fmt::format("{} needs a value: {}", text.substr(0, missing),
                       text.substr(kind, text.size() - kEnd.size() - kind));
  }
  return text;
}

}  // namespace

std::vector<std::string> spell_options(const CLI::App& app, std::vector<std::string> words) {
  const CLI::App* current = &app;
  for (std::string& word : words) {
    if (word == "--") break;
    if (!word.starts_with("--")) {
      for (const CLI::App* each : app.get_subcommands({}))
        if (current == &app && each->get_name() == word) current = each;
      continue;
    }
    const std::string name = word.substr(0, word.find('='));
    for (const std::string& known : long_options_of(*current))
      if (name != known && letters_of(name) == letters_of(known))
        word.replace(0, name.size(), known);
  }
  return words;
}

std::string describe(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& used = innermost(app);
  const std::string command =
      &used == &app ? app.get_name() : app.get_name() + " " + used.get_name();
  std::vector<std::string> extras = used.remaining();
  if (extras.empty()) extras = app.remaining();
  // An unknown option explains more than the error that it led to.
  std::stable_partition(extras.begin(), extras.end(),
                        [](const std::string& word) { return word.starts_with("-"); });
  if (extras.empty())
    return fmt::format("{}: {}; see {} --help", command, reword(used, error.what()), command);
  const std::string word = extras.front().substr(0, extras.front().find('='));
  if (!word.starts_with("-"))
    return fmt::format("{}: \"{}\" is one word too many; see {} --help", command, word, command);
  const std::string meant = nearest(word, long_options_of(used));
  return fmt::format("{}: there is no option {}{}; see {} --help", command, word,
                     meant.empty() ? "" : fmt::format("; did you mean {}?", meant), command);
}

}  // namespace niccolite::grammar
