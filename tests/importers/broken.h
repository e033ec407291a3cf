// Broken files, for tests of importers: texts in which one piece is another.
#pragma once

#include <gtest/gtest.h>

#include <string>

namespace niccolite::importers {

struct Broken {
  const char* old;
  const char* replacement;
  const char* reason;  // that the importer gives
};

inline std::string broken(std::string text, const Broken& how) {
  const size_t at = text.find(how.old);
  if (at == std::string::npos) {
    ADD_FAILURE() << "the text has no " << how.old;
    return text;
  }
  return text.replace(at, std::string(how.old).size(), how.replacement);
}

}  // namespace niccolite::importers
