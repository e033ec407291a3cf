#include "cli/grammar/names.h"

#include <algorithm>

namespace niccolite::grammar {
namespace {

/// Returns the distance of Damerau and Levenshtein between strings that are aligned once.
size_t distance(std::string_view from, std::string_view to) {
  const size_t width = to.size() + 1;
  std::vector<size_t> table((from.size() + 1) * width);
  const auto cell = [&](size_t i, size_t k) -> size_t& { return table[i * width + k]; };
  for (size_t i = 0; i <= from.size(); ++i)
    for (size_t k = 0; k <= to.size(); ++k) {
      if (i == 0 || k == 0) {
        cell(i, k) = i + k;
        continue;
      }
      const size_t replaced = cell(i - 1, k - 1) + (from[i - 1] == to[k - 1] ? 0 : 1);
      cell(i, k) = std::min({cell(i - 1, k) + 1, cell(i, k - 1) + 1, replaced});
      if (i > 1 && k > 1 && from[i - 1] == to[k - 2] && from[i - 2] == to[k - 1])
        cell(i, k) = std::min(cell(i, k), cell(i - 2, k - 2) + 1);
    }
  return table.back();
}

}  // namespace

std::string letters_of(std::string_view name) {
  std::string letters;
  for (const char c : name)
    if (c >= 'A' && c <= 'Z')
      letters += static_cast<char>(c - 'A' + 'a');
    else if (c != '_' && c != '-')
      letters += c;
  return letters;
}

std::string letters_of_collective(std::string_view name) {
  constexpr std::string_view kPrefix = "nccl";
  std::string letters = letters_of(name);
  if (letters.starts_with(kPrefix)) letters.erase(0, kPrefix.size());
  return letters == "pointtopoint" ? "sendrecv" : letters;
}

std::string nearest(std::string_view word, const std::vector<std::string>& names) {
  std::string best;
  size_t least = word.size() / 2 + 1;
  for (const std::string& name : names)
    if (const size_t changes = distance(word, name); changes < least) {
      best = name;
      least = changes;
    }
  return best;
}

Status unknown_name(std::string_view what, std::string_view word,
                    const std::vector<std::string>& names) {
  std::string known;
  for (const std::string& name : names) known += (known.empty() ? "" : ", ") + name;
  const std::string meant = nearest(word, names);
  return Status::invalid_argument("{}{}\"{}\" is none of {}{}", what, what.empty() ? "" : ": ",
                                  word, known,
                                  meant.empty() ? "" : fmt::format("; did you mean {}?", meant));
}

}  // namespace niccolite::grammar
