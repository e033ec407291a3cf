#include "gpu/virtual/handle_table.h"

#include <gtest/gtest.h>

#include <set>

namespace niccolite::gpu::virtual_ {
namespace {

using Table = HandleTable<int, HandleKind::Stream>;

TEST(HandleTable, FindsWhatWasInserted) {
  Table table;
  std::set<void*> handles;
  for (int i = 0; i < 100; ++i) handles.insert(table.insert(std::make_shared<int>(i)));
  EXPECT_EQ(handles.size(), 100u);
  std::set<int> found;
  for (void* handle : handles) found.insert(*table.find(handle));
  EXPECT_EQ(found.size(), 100u);
}

TEST(HandleTable, NeverGivesCudasSpecialHandles) {
  Table table;
  for (int i = 0; i < 10; ++i)
    EXPECT_GT(reinterpret_cast<uintptr_t>(table.insert(std::make_shared<int>(i))), 2u);
}

TEST(HandleTable, AStaleHandleStaysInvalidWhenItsSlotIsUsedAgain) {
  Table table;
  void* first = table.insert(std::make_shared<int>(1));
  ASSERT_NE(table.remove(first), nullptr);
  for (int i = 0; i < 1000; ++i) {
    void* next = table.insert(std::make_shared<int>(2));
    EXPECT_NE(next, first);
    EXPECT_EQ(table.find(first), nullptr);
    EXPECT_EQ(table.remove(first), nullptr);
    table.remove(next);
  }
}

TEST(HandleTable, RefusesForeignHandles) {
  Table table;
  HandleTable<int, HandleKind::Event> events;
  void* event = events.insert(std::make_shared<int>(1));
  table.insert(std::make_shared<int>(1));
  int local = 0;
  for (void* handle : {event, static_cast<void*>(nullptr), static_cast<void*>(&local),
                       reinterpret_cast<void*>(~uintptr_t{0}), reinterpret_cast<void*>(2)})
    EXPECT_EQ(table.find(handle), nullptr) << handle;
}

}  // namespace
}  // namespace niccolite::gpu::virtual_
