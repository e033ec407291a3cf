// Shareable: memory of this process that ranks of other processes may map. It is known by a random
// token, and found by it in the process's table, by ranks of the same process and by the
// DescriptorServer. Thread safety: any thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "base/fd.h"
#include "base/status.h"
#include "base/wire.h"

namespace niccolite::transport {

/// A random name of memory: whoever knows it may map the memory.
using Token = std::array<uint8_t, 16>;

Result<Token> draw_token();
Token read_token(Reader& reader);

class Shareable {
 public:
  virtual ~Shareable();
  Shareable(const Shareable&) = delete;
  /// The live one of this process with this token, or null.
  static std::shared_ptr<Shareable> find(const Token& token);

  const Token& token() const { return token_; }
  virtual Result<Fd> export_descriptor() const = 0;

 protected:
  explicit Shareable(const Token& token) : token_(token) {}
  /// Enters it in the table, which it leaves when it ends.
  static void publish(const std::shared_ptr<Shareable>& object);

 private:
  const Token token_;
};

}  // namespace niccolite::transport
