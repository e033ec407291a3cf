// One mesh, and a peer whose every byte the test sends itself.
#include "bootstrap/mesh.h"

#include <gtest/gtest.h>

#include "loops.h"

namespace niccolite::bootstrap {
namespace {

using namespace std::chrono_literals;

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
    loop.start();
  }
  ~MeshOfTwo() override { loop.stop(); }

  RawLink accept() { return {accept_one(listener), 2}; }

  RunningLoop loop;
  Socket listener = Socket::listen(any_loopback_port()).take();
  std::optional<Mesh> mesh;
  int linked = 0, departed = 0, lost = 0, unreachable = 0, over = 0;

 private:
  void mesh_linked(uint32_t) override { ++linked; }
  void mesh_frame(uint32_t, std::span<const std::byte>) override {}
  void mesh_departed(uint32_t) override { ++departed; }
  void mesh_lost(uint32_t, Status) override { ++lost; }
  void mesh_unreachable(uint32_t, Status) override { ++unreachable; }
  void mesh_over() override { ++over; }
};

// The peer has let this process in, and takes the end of the link for its death.
TEST_F(MeshOfTwo, SaysGoodbyeOnALinkThatIsOpenForThePeerOnly) {
  loop.use([&] { mesh->probe(1); });
  RawLink peer = accept();
  peer.let_in();
  loop.use([&] { mesh->farewell(5s, 5s); });
  peer.say({});  // the confirmation
  const std::optional<Bytes> word = peer.hear();
  ASSERT_TRUE(word.has_value()) << "it closes without a word";
  EXPECT_EQ(*word, messages::encode_type(MessageType::Goodbye));
}

}  // namespace
}  // namespace niccolite::bootstrap
