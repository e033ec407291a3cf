#include "cli/grammar/completion.h"

#include <fmt/format.h>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "cli/grammar/names.h"
#include "cli/grammar/options.h"

namespace niccolite::grammar {
namespace {

/// One option or positional, as shells need it.
struct Entry {
  std::vector<std::string> shorts, longs;  // with their dashes; both empty: a positional
  std::string about;
  std::string kind;  // of its value; empty: a flag
  std::vector<std::string> words;
  bool takes_file() const { return kind == kFile; }
  std::vector<std::string> names() const {
    std::vector<std::string> all = shorts;
    all.insert(all.end(), longs.begin(), longs.end());
    return all;
  }
};

std::vector<Entry> entries_of(const CLI::App& app, const Words& words) {
  std::vector<Entry> entries;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    Entry entry;
    for (const std::string& name : option->get_snames()) entry.shorts.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) entry.longs.push_back("--" + name);
    entry.about = option->get_description();
    if (option->get_items_expected_max() > 0) entry.kind = option->get_type_name();
    if (const auto found = words.find(entry.kind); found != words.end())
      entry.words = found->second;
    entries.push_back(std::move(entry));
  }
  return entries;
}

std::string joined(const std::vector<std::string>& parts, const char* separator) {
  return fmt::format("{}", fmt::join(parts, separator));
}

std::vector<std::string> names_of(const std::vector<Entry>& entries) {
  std::vector<std::string> all;
  for (const Entry& entry : entries)
    for (std::string& name : entry.names()) all.push_back(std::move(name));
  return all;
}

/// In single quotes of a shell.
std::string quoted(const std::string& text) {
  std::string inside;
  for (const char c : text) inside += c == '\'' ? "'\\''" : std::string(1, c);
  return "'" + inside + "'";
}

// ---- bash

std::string bash_cases(const std::vector<Entry>& entries) {
  std::string text;
  std::string otherwise = "words=\"$options\"";
  for (const Entry& entry : entries) {
    const std::string files = "COMPREPLY=($(compgen -f -- \"$word\"))";
    const std::string names = quoted(joined(entry.words, " "));
    if (entry.names().empty())
      otherwise += entry.takes_file() ? "; " + files : "\" \"" + names;
    else if (!entry.kind.empty())
      text += fmt::format("      {}) {};;\n", joined(entry.names(), "|"),
                          entry.takes_file() ? files : "words=" + names);
  }
  return fmt::format("    options={}\n    case $before in\n{}      *) {};;\n    esac\n",
                     quoted(joined(names_of(entries), " ")), text, otherwise);
}

std::string for_bash(const CLI::App& app, const Words& words) {
  std::string subcommands, cases;
  for (const CLI::App* each : app.get_subcommands({})) {
    subcommands += each->get_name() + " ";
    cases +=
        fmt::format("  {})\n{}    ;;\n", each->get_name(), bash_cases(entries_of(*each, words)));
  }
  return fmt::format(
      "# Completion of niccolite for bash.\n_niccolite() {{\n"
      "  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} options "
      "words\n"
      "  COMPREPLY=()\n"
      "  case $COMP_CWORD in\n  1) words='{}{}';;\n  *)\n  case ${{COMP_WORDS[1]}} in\n{}  esac;;\n"
      "  esac\n  COMPREPLY+=($(compgen -W \"$words\" -- \"$word\"))\n}}\n"
      "complete -o filenames -F _niccolite niccolite\n",
      subcommands, joined(names_of(entries_of(app, words)), " "), cases);
}

// ---- zsh

/// Inside the brackets of _arguments.
std::string zsh_text(const std::string& text) {
  std::string safe;
  for (const char c : text)
    safe += (c == '[' || c == ']' || c == ':' ? "\\" : "") + std::string(1, c);
  return safe;
}

std::string zsh_argument(const Entry& entry) {
  std::string value;
  if (!entry.kind.empty())
    value = fmt::format(":{}:{}", zsh_text(entry.kind),
                        entry.takes_file()    ? "_files"
                        : entry.words.empty() ? " "
                                              : "(" + joined(entry.words, " ") + ")");
  const std::vector<std::string> names = entry.names();
  if (names.empty()) return " " + quoted(value.empty() ? "::" : ":" + value);
  std::string text;
  for (const std::string& name : names)
    text += " " + quoted(fmt::format("({}){}[{}]{}", joined(names, " "), name,
                                     zsh_text(entry.about), value));
  return text;
}

std::string for_zsh(const CLI::App& app, const Words& words) {
  std::string subcommands, cases;
  for (const CLI::App* each : app.get_subcommands({})) {
    subcommands += " " + quoted(each->get_name() + ":" + each->get_description());
    cases += fmt::format("    {}) _arguments", each->get_name());
    for (const Entry& entry : entries_of(*each, words)) cases += " \\\n     " + zsh_argument(entry);
    cases += ";;\n";
  }
  std::string own;
  for (const Entry& entry : entries_of(app, words)) own += " \\\n   " + zsh_argument(entry);
  return fmt::format(
      "#compdef niccolite\n_niccolite() {{\n  local context state line\n"
      "  _arguments -C{} \\\n    '1: :->subcommand' '*:: :->rest'\n  case $state in\n"
      "  subcommand)\n    local -a subcommands=({})\n    _describe subcommand subcommands;;\n"
      "  rest)\n    case $line[1] in\n{}    esac;;\n  esac\n}}\n"
      // Installed, the file is read at the first TAB, as the body of _niccolite, and must complete.
      "if [[ $funcstack[1] == _niccolite ]]; then _niccolite \"$@\"; else compdef _niccolite "
      "niccolite; fi\n",
      own, subcommands, cases);
}

// ---- fish

std::string fish_lines(const std::vector<Entry>& entries, const std::string& condition) {
  std::string text;
  for (const Entry& entry : entries) {
    std::string line = "complete -c niccolite -n " + quoted(condition);
    for (const std::string& name : entry.shorts) line += " -s " + name.substr(1);
    for (const std::string& name : entry.longs) line += " -l " + name.substr(2);
    const std::string found = entry.words.empty() ? "" : " -a " + quoted(joined(entry.words, " "));
    if (entry.names().empty())
      line += entry.takes_file() ? " -F" : found;
    else if (!entry.kind.empty())
      line += entry.takes_file() ? " -r -F" : " -x" + found;
    text += line + " -d " + quoted(entry.about) + "\n";
  }
  return text;
}

std::string for_fish(const CLI::App& app, const Words& words) {
  std::string text = "# Completion of niccolite for fish.\ncomplete -c niccolite -f\n";
  text += fish_lines(entries_of(app, words), "__fish_use_subcommand");
  for (const CLI::App* each : app.get_subcommands({})) {
    text += fmt::format("complete -c niccolite -n __fish_use_subcommand -a {} -d {}\n",
                        each->get_name(), quoted(each->get_description()));
    text += fish_lines(entries_of(*each, words), "__fish_seen_subcommand_from " + each->get_name());
  }
  return text;
}

}  // namespace

Result<std::string> completion_for(const std::string& shell, const CLI::App& app,
                                   const Words& words) {
  if (shell == "bash") return for_bash(app, words);
  if (shell == "zsh") return for_zsh(app, words);
  if (shell == "fish") return for_fish(app, words);
  return unknown_name("--completion", shell, {"bash", "zsh", "fish"});
}

}  // namespace niccolite::grammar
