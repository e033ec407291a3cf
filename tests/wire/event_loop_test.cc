#include "wire/event_loop.h"

#include <gtest/gtest.h>

namespace niccolite::wire {
namespace {

struct PostsAtItsEnd {
  PostsAtItsEnd(EventLoop& loop_, int& ended_) : loop(loop_), ended(ended_) {}
  ~PostsAtItsEnd() {
    loop.post([] {});
    ++ended;
  }
  EventLoop& loop;
  int& ended;
};

// An acceptor does: it buries the strangers that it still has.
TEST(EventLoop, EndsWithATaskWhoseEndPostsAnother) {
  int ended = 0;
  auto loop = EventLoop::create().take();
  loop->post([kept = std::make_shared<PostsAtItsEnd>(*loop, ended)] {});
  loop.reset();
  EXPECT_EQ(ended, 1);
}

}  // namespace
}  // namespace niccolite::wire
