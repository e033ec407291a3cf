// Shell completion of `niccolite`, made from its options.
#pragma once

#include <CLI/App.hpp>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"

namespace niccolite::grammar {

/// The words for each kind of value (options.h) that is a name.
using Words = std::map<std::string, std::vector<std::string>>;

/// Returns a script for `shell`: bash, zsh or fish. InvalidArgument for others.
Result<std::string> completion_for(const std::string& shell, const CLI::App& app,
                                   const Words& words);

}  // namespace niccolite::grammar
