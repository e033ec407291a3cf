#include "comm/shared_log.h"

#include <gtest/gtest.h>

namespace niccolite::comm {
namespace {

TEST(SharedLog, HasNothingBeforeItIsOpen) {
  SharedLog log("ncclCommSplit");
  EXPECT_FALSE(log.is_open());
  EXPECT_EQ(log.share(), nullptr);
  EXPECT_STREQ(log.last_function(), "ncclCommSplit");
  log.note(observe::EventKind::Ready);  // nowhere
}

TEST(SharedLog, StaysForItsReaderWhenItIsClosed) {
  SharedLog log("ncclCommSplit");
  log.open(2);
  EXPECT_TRUE(log.is_open());
  const std::shared_ptr<calls::CallLog> reader = log.share();
  ASSERT_NE(reader, nullptr);
  EXPECT_EQ(reader.get(), log.get());
  log.close();
  EXPECT_EQ(log.share(), nullptr);
  EXPECT_EQ(reader.use_count(), 1) << "the reader alone keeps it";
}

TEST(SharedLog, RecordsEventsOfTheCommunicator) {
  SharedLog log("ncclCommSplit");
  log.open(2);
  const auto count = [&](observe::EventKind kind) {
    size_t found = 0;
    for (const observe::Event& event : log->recorder()->events()) found += event.kind == kind;
    return found;
  };
  EXPECT_EQ(count(observe::EventKind::Failed), 0u);
  log.note(observe::EventKind::Failed);
  EXPECT_EQ(count(observe::EventKind::Failed), 1u);
}

}  // namespace
}  // namespace niccolite::comm
