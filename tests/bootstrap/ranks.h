// Ranks as threads of the test's process, and what tests of bootstrap share.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/member.h"
#include "bootstrap/root.h"

namespace niccolite::bootstrap {

using namespace std::chrono_literals;

inline Deadline soon() { return Deadline::after(20s); }

/// Bytes that depend on rank, position and salt.
inline Bytes pattern(int rank, size_t bytes, int salt = 0) {
  Bytes content(bytes);
  for (size_t i = 0; i < bytes; ++i)
    content[i] = static_cast<std::byte>(static_cast<size_t>(rank) * 131 + i * 7 +
                                        static_cast<size_t>(salt) * 29 + 1);
  return content;
}

inline Bytes to_bytes(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

inline std::string to_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline bool same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

/// Runs `body(rank)` for all `ranks`, one thread each, and waits for all.
inline void on_threads(const std::vector<int>& ranks, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank : ranks) threads.emplace_back([&body, rank] { body(rank); });
  for (auto& thread : threads) thread.join();
}

inline std::vector<int> first_ranks(int n) {
  std::vector<int> ranks(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) ranks[static_cast<size_t>(i)] = i;
  return ranks;
}

/// Joins all ranks of one communicator in this process.
inline std::vector<std::unique_ptr<Member>> join_all(const UniqueId& id, int nranks) {
  std::vector<std::unique_ptr<Member>> members(static_cast<size_t>(nranks));
  on_threads(first_ranks(nranks), [&](int rank) {
    auto member = Member::join({.id = id, .nranks = nranks, .rank = rank, .deadline = soon()});
    ASSERT_TRUE(member.is_ok()) << member.status().message();
    members[static_cast<size_t>(rank)] = std::move(member.value());
  });
  return members;
}

/// An id whose root listens on the loopback interface of this process.
inline UniqueId loopback_id() {
  const auto loopback = Address::parse("127.0.0.1:1");
  return std::move(Root::start(loopback.value()).value());
}

}  // namespace niccolite::bootstrap
