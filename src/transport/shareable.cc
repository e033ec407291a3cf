#include "transport/shareable.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <mutex>
#include <span>

#include "base/thread_annotations.h"

namespace niccolite::transport {
namespace {

struct Table {
  std::mutex mutex;
  std::map<Token, std::weak_ptr<Shareable>> objects GUARDED_BY(mutex);
};

// Never destroyed: communicators may outlive static destruction.
Table& table() {
  static Table* const instance = new Table;
  return *instance;
}

}  // namespace

Result<Token> draw_token() {
  Token token;
  if (getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size()))
    return Status::from_errno(errno, "cannot draw a random token (getrandom)");
  return token;
}

Token read_token(Reader& reader) {
  Token token{};
  std::ranges::copy(reader.raw(token.size()), std::as_writable_bytes(std::span(token)).begin());
  return token;
}

Shareable::~Shareable() {
  std::lock_guard lock(table().mutex);
  table().objects.erase(token_);
}

std::shared_ptr<Shareable> Shareable::find(const Token& token) {
  std::lock_guard lock(table().mutex);
  const auto found = table().objects.find(token);
  return found == table().objects.end() ? nullptr : found->second.lock();
}

void Shareable::publish(const std::shared_ptr<Shareable>& object) {
  std::lock_guard lock(table().mutex);
  table().objects.emplace(object->token(), object);
}

}  // namespace niccolite::transport
