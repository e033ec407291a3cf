// Parameters: every environment variable that the library reads. parameters.def declares each once,
// with kind, default, range and meaning, and also NCCL's variables that have no use in this
// library. Sources in order of precedence: an environment plug-in (alone, if there is one:
// environment.h), the process environment, the file NCCL_CONF_FILE (or ~/.nccl.conf without it),
// /etc/nccl.conf. Values are read once per process and reported at INFO, subsystem ENV, at their
// first use. A value that its kind does not take counts as unset; one warning names the variable,
// the value and its replacement.
//   if (parameters::buffsize() > 0) ...   generated: a function per entry, named like the variable
// Thread safety: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace niccolite::parameters {

// Kinds. A default of INT64_MIN means "unset".
//   INTEGER(function, "NAME", default, minimum, maximum, "meaning")
//     a number, with C's prefixes 0x and 0
//   BYTES(function, "NAME", default, minimum, maximum, "meaning")
//     a number, which may end in K, M or G (1024s)
//   FLAG(function, "NAME", default, "meaning")
//     0, 1, no, yes, false, true, off, on, n, y, f, t
//   CHOICE(function, "NAME", "ONE|OTHER", "meaning")
//     one of these in any case, given as written here; empty: unset
//   TEXT(function, "NAME", "meaning")
//     its reader knows its syntax; empty when unset
// Variables of NCCL that do nothing here are no parameters. If one of the variable's values asks
// for behaviour that is always on, the reason begins with this value: "as 1: ...".
//   WITHOUT_EFFECT("NAME", "reason")
enum class Kind { Integer, Bytes, Flag, Choice, Text };

#define INTEGER(function, name, value, minimum, maximum, meaning) int64_t function();
#define BYTES(function, name, value, minimum, maximum, meaning) int64_t function();
#define FLAG(function, name, value, meaning) int64_t function();
#define CHOICE(function, name, names, meaning) const std::string& function();
#define TEXT(function, name, meaning) const std::string& function();
#include "base/parameters.def"

/// An entry of parameters.def.
struct Declaration {
  const char* name;
  Kind kind;
  int64_t value = INT64_MIN;  // the default
  int64_t minimum = 0;        // of numbers
  int64_t maximum = 0;
  const char* names = "";  // of a choice
  const char* meaning;
};

/// All entries, in the order of parameters.def.
std::span<const Declaration> declarations();

/// A line WITHOUT_EFFECT of parameters.def.
struct WithoutEffect {
  const char* name;
  const char* reason;  // and the replacement, if there is one
};

/// All of these, in the order of parameters.def.
std::span<const WithoutEffect> without_effect();

/// Logs for each set variable of this list that it does nothing, and why (INFO, subsystem ENV), so
/// that users do not rely on it. To be called once per process.
void tell_of_those_without_effect();

/// The value that a text has as an entry's.
struct Reading {
  int64_t number = INT64_MIN;
  std::string text;     // of a choice or text
  std::string refusal;  // why the text is not taken; the rest is then the default
};
Reading read(const Declaration& declaration, std::string_view text);

/// The source of a variable's value.
enum class Source { Default, Environment, File };
Source source_of(const char* name);
/// Names the place of a value, for "NAME set by ... to VALUE": "environment", a file, or a plug-in.
std::string origin_of(const char* name);

/// True when the variable was set (by environment or file) to something that is not empty.
bool is_set(const char* name);
/// The text of any variable, read now: for the few that are read at each use (NCCL_ALGO,
/// NCCL_PROTO, NCCL_COMM_ID).
std::optional<std::string> read_now(const char* name);

/// Reads the configuration files into the environment, and opens the environment plug-in; called by
/// the first read of any parameter.
void load_files();

}  // namespace niccolite::parameters
