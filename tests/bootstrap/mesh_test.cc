// One mesh, and a peer whose every byte the test sends itself.
#include "bootstrap/mesh.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>

#include <deque>
#include <string>

#include "ranks.h"
#include "tests/base/full_descriptors.h"
#include "tests/wire/loops.h"

namespace niccolite::bootstrap {

using namespace wire;
namespace {

using testing::HasSubstr;

/// Process 0 of two, with number 1; the test is the other one, with number 2.
class MeshOfTwo : public testing::Test, private Mesh::Events {
 protected:
  MeshOfTwo() {
    EXPECT_TRUE(authentication::initialize().is_ok());
    mesh.emplace(*loop, authentication::Identity{.key = {}, .number = 1},
                 static_cast<Mesh::Events&>(*this));
    EXPECT_TRUE(mesh->listen(any_loopback_port()).is_ok());
    mesh->place({.process = 0, .nprocesses = 2, .nranks = 2, .neighbors = {}});
    mesh->introduce(1, listener.local_address().value(), 2);
  }
  // The mesh calls this object from the loop's thread, and so neither while it is made nor while it
  // ends.
  void SetUp() override { loop.start(); }
  void TearDown() override { loop.stop(); }

  wire::RawLink accept() { return {accept_one(listener), 2}; }
  static Mesh::Frame frame_of(uint8_t byte) {
    return std::make_shared<const Bytes>(Bytes{std::byte{200}, std::byte{byte}});
  }

  wire::RunningLoop loop;
  Socket listener = Socket::listen(any_loopback_port()).take();
  std::optional<Mesh> mesh;
  int linked = 0, departed = 0, lost = 0, unreachable = 0, over = 0;
  std::string why_unreachable;

 private:
  void mesh_linked(uint32_t) override { ++linked; }
  void mesh_frame(uint32_t, std::span<const std::byte>) override {}
  void mesh_departed(uint32_t) override { ++departed; }
  void mesh_lost(uint32_t, Status) override { ++lost; }
  void mesh_unreachable(uint32_t, Status why) override {
    why_unreachable = why.message();
    ++unreachable;
  }
  void mesh_exhausted(const Status&) override {}
  void mesh_over() override { ++over; }
};

// The peer has let this process in, and takes the end of the link for its death.
TEST_F(MeshOfTwo, SaysGoodbyeOnALinkThatIsOpenForThePeerOnly) {
  loop.use([&] { mesh->probe(1); });
  wire::RawLink peer = accept();
  peer.let_in();
  loop.use([&] { mesh->farewell(5s, 5s); });
  peer.say({});  // the confirmation
  const std::optional<Bytes> word = peer.hear();
  ASSERT_TRUE(word.has_value()) << "it closes without a word";
  EXPECT_EQ(*word, messages::encode_type(MessageType::Goodbye));
}

TEST_F(MeshOfTwo, TakesItsOwnWantOfDescriptorsForNobodysDeath) {
  {
    const test::FullDescriptors shortage;
    loop.use([&] { mesh->send(1, frame_of(7)); });
    std::this_thread::sleep_for(500ms);
    loop.use([&] { EXPECT_EQ(unreachable, 0); });
  }
  wire::RawLink peer = accept();
  peer.let_in();
  peer.say({});
  EXPECT_EQ(peer.hear(), *frame_of(7));
}

TEST_F(MeshOfTwo, NamesAWantOfDescriptorsThatLasts) {
  const test::FullDescriptors shortage;
  loop.use([&] { mesh->send(1, frame_of(7)); });
  ASSERT_TRUE(loop.becomes([&] { return unreachable == 1; }));
  EXPECT_THAT(why_unreachable, HasSubstr("(limit: ulimit -n): Too many open files"));
}

TEST_F(MeshOfTwo, SaysThatItHasNoDescriptorForWhoComes) {
  Socket socket;
  std::optional<test::FullDescriptors> shortage;
  loop.use([&] {
    socket = connect_to_listener(mesh->address());
    shortage.emplace();
  });
  wire::RawLink refused(std::move(socket), 2);
  const std::optional<Bytes> answer = refused.ask_in(1);
  shortage.reset();
  ASSERT_TRUE(answer.has_value());
  EXPECT_THAT(to_text(*answer), HasSubstr("has no file descriptor left"));
  wire::RawLink peer(connect_to_listener(mesh->address()), 2);
  peer.get_in(1);
  EXPECT_TRUE(loop.becomes([&] { return linked == 1; }));
}

TEST_F(MeshOfTwo, NamesAPeerThatHasNoDescriptorForIt) {
  loop.use([&] { mesh->send(1, frame_of(7)); });
  const auto is_over = [&] {
    bool over = false;
    loop.use([&] { over = unreachable == 1; });
    return over;
  };
  std::deque<wire::RawLink> turned_away;
  while (!is_over()) {
    pollfd waiting{.fd = listener.fd(), .events = POLLIN, .revents = 0};
    if (poll(&waiting, 1, 100) == 0) continue;
    wire::RawLink& peer = turned_away.emplace_back(accept());
    peer.let_in();
    peer.say(to_bytes("it has no descriptor"));
  }
  EXPECT_THAT(why_unreachable, HasSubstr("it has no descriptor"));
}

TEST_F(MeshOfTwo, AnswersWhoCouldNotBeReachedAndComesItself) {
  listener.close();
  loop.use([&] { mesh->probe(1); });
  ASSERT_TRUE(loop.becomes([&] { return unreachable == 1; }));
  wire::RawLink peer(connect_to_listener(mesh->address()), 2);
  peer.get_in(1);
  ASSERT_TRUE(loop.becomes([&] { return linked == 1; }));
  loop.use([&] { mesh->send(1, frame_of(8)); });
  EXPECT_EQ(peer.hear(), *frame_of(8));
}

}  // namespace
}  // namespace niccolite::bootstrap
