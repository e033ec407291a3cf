// Datagrams of the virtual NICs, between two devices of one process.
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <netinet/ip.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

extern char** environ;

namespace {

constexpr uint32_t kKey = 0x11111111;
constexpr size_t kHeader = 40;
constexpr size_t kMtu = 4096;

// A queue pair for datagrams that is ready to send; its memory is `bytes`.
struct Station {
  explicit Station(int device, bool with_shared = false, bool ready = true) : bytes(1 << 18) {
    int count = 0;
    ibv_device** list = ibv_get_device_list(&count);
    context = ibv_open_device(list[device]);
    ibv_free_device_list(list);
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 4096, nullptr, nullptr, 0);
    mr = ibv_reg_mr(pd, bytes.data(), bytes.size(), IBV_ACCESS_LOCAL_WRITE);
    if (with_shared) {
      ibv_srq_init_attr attributes{};
      attributes.attr = {64, 4, 0};
      shared = ibv_create_srq(pd, &attributes);
    }
    qp = make();
    if (ready) {
      EXPECT_EQ(bring_up(qp), 0);
    }
  }

  ~Station() {
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
    if (shared != nullptr) {
      EXPECT_EQ(ibv_destroy_srq(shared), 0);
    }
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
    EXPECT_EQ(ibv_dealloc_pd(pd), 0);
    EXPECT_EQ(ibv_close_device(context), 0);
  }

  ibv_qp* make() const {
    ibv_qp_init_attr attributes{};
    attributes.send_cq = attributes.recv_cq = cq;
    attributes.srq = shared;
    attributes.cap = {64, 64, 4, 4, 64};
    attributes.qp_type = IBV_QPT_UD;
    attributes.sq_sig_all = 1;
    return ibv_create_qp(pd, &attributes);
  }

  static int bring_up(ibv_qp* qp) {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = 1;
    attributes.qkey = kKey;
    int error = ibv_modify_qp(qp, &attributes,
                              IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
    attributes.qp_state = IBV_QPS_RTR;
    if (error == 0) error = ibv_modify_qp(qp, &attributes, IBV_QP_STATE);
    attributes.qp_state = IBV_QPS_RTS;
    if (error == 0) error = ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_SQ_PSN);
    return error;
  }

  // The way to the peer, from the GID with this number to the peer's.
  ibv_ah* to(const Station& peer, int gid = 1) const {
    ibv_ah_attr attributes{};
    attributes.is_global = 1;
    attributes.port_num = 1;
    attributes.sl = 3;
    attributes.grh.sgid_index = static_cast<uint8_t>(gid);
    attributes.grh.hop_limit = 9;
    attributes.grh.traffic_class = 0x40;
    EXPECT_EQ(ibv_query_gid(peer.context, 1, gid, &attributes.grh.dgid), 0);
    return ibv_create_ah(pd, &attributes);
  }

  int receive(uint64_t id, size_t offset, size_t length) const {
    ibv_sge part = sge(offset, length);
    ibv_recv_wr wr{}, *bad = nullptr;
    wr.wr_id = id;
    wr.sg_list = &part;
    wr.num_sge = 1;
    return shared != nullptr ? ibv_post_srq_recv(shared, &wr, &bad) : ibv_post_recv(qp, &wr, &bad);
  }

  int send(ibv_ah* ah, uint32_t number, size_t offset, size_t length, uint32_t key = kKey,
           ibv_wr_opcode opcode = IBV_WR_SEND, unsigned flags = 0) const {
    ibv_sge part = sge(offset, length);
    ibv_send_wr wr{}, *bad = nullptr;
    wr.opcode = opcode;
    wr.send_flags = flags;
    wr.imm_data = 0x01020304;
    wr.sg_list = &part;
    wr.num_sge = 1;
    wr.wr.ud = {ah, number, key};
    return ibv_post_send(qp, &wr, &bad);
  }

  ibv_sge sge(size_t offset, size_t length) const {
    return {reinterpret_cast<uint64_t>(bytes.data() + offset), static_cast<uint32_t>(length),
            mr->lkey};
  }

  ibv_wc wait() const {
    ibv_wc wc{};
    while (ibv_poll_cq(cq, 1, &wc) == 0) {
    }
    return wc;
  }

  std::vector<uint8_t> bytes;
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_cq* cq = nullptr;
  ibv_mr* mr = nullptr;
  ibv_srq* shared = nullptr;
  ibv_qp* qp = nullptr;
};

struct Datagrams : ::testing::Test {
  static void SetUpTestSuite() { setenv("NICCOLITE_NICS", "virtual:2", 0); }
};

TEST_F(Datagrams, ArriveWithTheirSenderFromEachAddress) {
  Station a(0), b(0);  // the same addresses
  for (size_t i = 0; i < a.bytes.size(); ++i) a.bytes[i] = static_cast<uint8_t>(i * 7 + i / 256);
  ibv_gid_entry entries[64];
  const ssize_t count = ibv_query_gid_table(a.context, entries, 64, 0);
  ASSERT_GE(count, 2);
  for (int gid = 0; gid < count && entries[gid].port_num == 1; ++gid) {
    SCOPED_TRACE(gid);
    ibv_gid to{};
    ASSERT_EQ(ibv_query_gid(b.context, 1, gid, &to), 0);
    ibv_ah* const way = a.to(b, gid);
    ASSERT_NE(way, nullptr);
    for (const size_t length : {size_t{0}, size_t{1}, size_t{1000}, kMtu}) {
      std::memset(b.bytes.data(), 0xee, kHeader + kMtu + 1);
      ASSERT_EQ(b.receive(77, 0, kHeader + kMtu), 0);
      ASSERT_EQ(a.send(way, b.qp->qp_num, 5, length, kKey,
                       length == 1 ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND),
                0);
      EXPECT_EQ(a.wait().status, IBV_WC_SUCCESS);
      ibv_wc wc = b.wait();
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
      EXPECT_EQ(wc.wr_id, 77u);
      EXPECT_EQ(wc.opcode, IBV_WC_RECV);
      EXPECT_EQ(wc.byte_len, kHeader + length);
      EXPECT_EQ(wc.src_qp, a.qp->qp_num);
      EXPECT_EQ(wc.qp_num, b.qp->qp_num);
      EXPECT_EQ(wc.sl, 3);
      EXPECT_EQ(wc.wc_flags,
                IBV_WC_GRH | (length == 1 ? static_cast<unsigned>(IBV_WC_WITH_IMM) : 0u));
      if (length == 1) {
        EXPECT_EQ(wc.imm_data, 0x01020304u);
      }
      EXPECT_EQ(std::memcmp(&b.bytes[kHeader], &a.bytes[5], length), 0);
      EXPECT_EQ(b.bytes[kHeader + length], 0xee);
      // Before the data comes the header; one of IPv4 is at the end of its room.
      ibv_grh header{};
      std::memcpy(&header, b.bytes.data(), sizeof header);
      const bool four = to.raw[10] == 0xff && entries[gid].gid_type == IBV_GID_TYPE_ROCE_V2;
      if (four) {
        iphdr ip{};
        std::memcpy(&ip, b.bytes.data() + 20, sizeof ip);
        EXPECT_EQ(ip.version, 4);
        EXPECT_EQ(std::memcmp(&ip.daddr, to.raw + 12, 4), 0);
        EXPECT_EQ(ip.tos, 0x40);
      } else {
        EXPECT_EQ(be32toh(header.version_tclass_flow), 0x64000000u);
        EXPECT_EQ(std::memcmp(&header.dgid, &to, sizeof to), 0);
        EXPECT_EQ(header.hop_limit, 9);
      }
      // The answer finds its way by what came.
      ibv_ah_attr back{};
      ASSERT_EQ(ibv_init_ah_from_wc(b.context, 1, &wc, &header, &back), 0);
      EXPECT_EQ(back.grh.sgid_index, gid);
      ibv_ah* const answer = ibv_create_ah_from_wc(b.pd, &wc, &header, 1);
      ASSERT_NE(answer, nullptr);
      ASSERT_EQ(a.receive(1, 10000, kHeader + 8), 0);
      ASSERT_EQ(b.send(answer, wc.src_qp, 0, 8), 0);
      EXPECT_EQ(b.wait().status, IBV_WC_SUCCESS);
      wc = a.wait();
      EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
      EXPECT_EQ(wc.src_qp, b.qp->qp_num);
      EXPECT_EQ(ibv_destroy_ah(answer), 0);
    }
    EXPECT_EQ(ibv_destroy_ah(way), 0);
  }
}

TEST_F(Datagrams, WithAWrongKeyAreLost) {
  Station a(0), b(1);
  ibv_ah* const way = a.to(b);
  ASSERT_EQ(b.receive(1, 0, 1000), 0);
  ASSERT_EQ(b.receive(2, 1000, 1000), 0);
  ASSERT_EQ(a.send(way, b.qp->qp_num, 0, 100, kKey + 1), 0);
  EXPECT_EQ(a.wait().status, IBV_WC_SUCCESS);
  ASSERT_EQ(a.send(way, b.qp->qp_num, 0, 101), 0);
  EXPECT_EQ(a.wait().status, IBV_WC_SUCCESS);
  ibv_wc wc = b.wait();
  EXPECT_EQ(wc.wr_id, 1u);
  EXPECT_EQ(wc.byte_len, kHeader + 101);
  // A key with the upper bit stands for the sender's own.
  ASSERT_EQ(a.send(way, b.qp->qp_num, 0, 102, 0x80000000u), 0);
  EXPECT_EQ(a.wait().status, IBV_WC_SUCCESS);
  EXPECT_EQ(b.wait().byte_len, kHeader + 102);
  EXPECT_EQ(ibv_destroy_ah(way), 0);
}

TEST_F(Datagrams, WithoutAReceiveAreLost) {
  Station a(0), b(1);
  ibv_ah* const way = a.to(b);
  ibv_qp* const other = b.make();
  ASSERT_EQ(Station::bring_up(other), 0);
  ibv_sge part = b.sge(0, 1000);
  ibv_recv_wr wr{}, *bad = nullptr;
  wr.sg_list = &part;
  wr.num_sge = 1;
  ASSERT_EQ(ibv_post_recv(other, &wr, &bad), 0);
  ASSERT_EQ(a.send(way, b.qp->qp_num, 0, 100), 0);
  ASSERT_EQ(a.send(way, other->qp_num, 0, 101), 0);
  EXPECT_EQ(a.wait().status, IBV_WC_SUCCESS);
  EXPECT_EQ(a.wait().status, IBV_WC_SUCCESS);
  // The second has arrived, so nobody waits for the first any more.
  ibv_wc wc = b.wait();
  EXPECT_EQ(wc.qp_num, other->qp_num);
  ASSERT_EQ(b.receive(1, 0, 1000), 0);
  ASSERT_EQ(a.send(way, b.qp->qp_num, 0, 102), 0);
  EXPECT_EQ(b.wait().byte_len, kHeader + 102);
  EXPECT_EQ(ibv_destroy_qp(other), 0);
  EXPECT_EQ(ibv_destroy_ah(way), 0);
}

TEST_F(Datagrams, LongerThanThePacketStopTheSendQueue) {
  Station a(0), b(1);
  ibv_ah* const way = a.to(b);
  ASSERT_EQ(b.receive(1, 0, 2 * kMtu), 0);
  ASSERT_EQ(a.send(way, b.qp->qp_num, 0, kMtu + 1), 0);
  EXPECT_EQ(a.wait().status, IBV_WC_LOC_LEN_ERR);
  EXPECT_EQ(a.qp->state, IBV_QPS_SQE);
  ASSERT_EQ(a.send(way, b.qp->qp_num, 0, 10), 0);
  EXPECT_EQ(a.wait().status, IBV_WC_WR_FLUSH_ERR);
  // It goes on when it is told to.
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTS;
  ASSERT_EQ(ibv_modify_qp(a.qp, &attributes, IBV_QP_STATE), 0);
  ASSERT_EQ(a.send(way, b.qp->qp_num, 0, kMtu), 0);
  EXPECT_EQ(a.wait().status, IBV_WC_SUCCESS);
  EXPECT_EQ(b.wait().byte_len, kHeader + kMtu);
  // Memory that is not registered does the same, and so does a handle of another domain.
  ibv_sge part{reinterpret_cast<uint64_t>(a.bytes.data()), 8, a.mr->lkey + 1};
  ibv_send_wr wr{}, *bad = nullptr;
  wr.opcode = IBV_WR_SEND;
  wr.sg_list = &part;
  wr.num_sge = 1;
  wr.wr.ud = {way, b.qp->qp_num, kKey};
  ASSERT_EQ(ibv_post_send(a.qp, &wr, &bad), 0);
  EXPECT_EQ(a.wait().status, IBV_WC_LOC_PROT_ERR);
  ASSERT_EQ(ibv_modify_qp(a.qp, &attributes, IBV_QP_STATE), 0);
  ibv_ah* const foreign = b.to(b);
  ASSERT_EQ(a.send(foreign, b.qp->qp_num, 0, 8), 0);
  EXPECT_EQ(a.wait().status, IBV_WC_LOC_QP_OP_ERR);
  EXPECT_EQ(ibv_destroy_ah(foreign), 0);
  EXPECT_EQ(ibv_destroy_ah(way), 0);
}

TEST_F(Datagrams, LongerThanTheReceiveFailTheReceiver) {
  Station a(0), b(1);
  ibv_ah* const way = a.to(b);
  ASSERT_EQ(b.receive(1, 0, kHeader + 99), 0);
  ASSERT_EQ(b.receive(2, 1000, 1000), 0);
  ASSERT_EQ(a.send(way, b.qp->qp_num, 0, 100), 0);
  EXPECT_EQ(a.wait().status, IBV_WC_SUCCESS);
  EXPECT_EQ(b.wait().status, IBV_WC_LOC_LEN_ERR);
  const ibv_wc wc = b.wait();
  EXPECT_EQ(wc.wr_id, 2u);
  EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(ibv_destroy_ah(way), 0);
}

TEST_F(Datagrams, ToNobodyAreLost) {
  Station a(0);
  ibv_ah* way = nullptr;
  uint32_t number = 0;
  {
    const Station b(1);
    way = a.to(b);
    number = b.qp->qp_num;
  }
  // Nobody listens there; then somebody does, who is not ready.
  for (int i = 0; i < 300; ++i) {
    ASSERT_EQ(a.send(way, number, 0, 100), 0);
    EXPECT_EQ(a.wait().status, IBV_WC_SUCCESS);
  }
  EXPECT_EQ(ibv_destroy_ah(way), 0);
  Station b(1, false, false);
  way = a.to(b);
  ASSERT_EQ(a.send(way, b.qp->qp_num, 0, 100), 0);
  EXPECT_EQ(a.wait().status, IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_destroy_ah(way), 0);
}

// Not a test by itself: the other process of the next one. It ends as soon as its work is complete.
TEST_F(Datagrams, DISABLED_SendsAndEnds) {
  const char* const number = std::getenv("NICCOLITE_TEST_NUMBER");
  if (number == nullptr) GTEST_SKIP() << "only the next test starts it";
  Station a(0);
  ibv_ah* const way = a.to(a);
  for (uint8_t i = 0; i < 10; ++i) {
    a.bytes[0] = i;
    ASSERT_EQ(a.send(way, static_cast<uint32_t>(std::atoi(number)), 0, kMtu), 0);
    ASSERT_EQ(a.wait().status, IBV_WC_SUCCESS);
  }
  _exit(0);
}

TEST_F(Datagrams, OfAProcessThatHasEndedArrive) {
  Station b(0);
  for (uint64_t i = 0; i < 10; ++i) ASSERT_EQ(b.receive(i, i * 8192, 8192), 0);
  setenv("NICCOLITE_TEST_NUMBER", std::to_string(b.qp->qp_num).c_str(), 1);
  std::string arguments[] = {"/proc/self/exe", "--gtest_filter=Datagrams.DISABLED_SendsAndEnds",
                             "--gtest_also_run_disabled_tests"};
  char* argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(), nullptr};
  pid_t child = 0;
  ASSERT_EQ(posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, argv, environ), 0);
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_EQ(status, 0);
  for (uint8_t i = 0; i < 10; ++i) {
    EXPECT_EQ(b.wait().byte_len, kHeader + kMtu);
    EXPECT_EQ(b.bytes[i * 8192 + kHeader], i);
  }
}

TEST_F(Datagrams, ManyAreReceivedInOrderFromASharedQueue) {
  Station a(0), c(0), b(1, true);
  ibv_ah* const ways[] = {a.to(b), c.to(b)};
  const Station* const senders[] = {&a, &c};
  constexpr uint32_t kSlots = 64, kRounds = 500;
  for (uint64_t i = 0; i < kSlots; ++i) ASSERT_EQ(b.receive(i, i * 64, 64), 0);
  uint32_t sent[2] = {}, seen[2] = {};
  while (seen[0] + seen[1] < 2 * kRounds) {
    for (const size_t which : {0u, 1u})
      // No more on their way than there are receives.
      if (sent[which] < kRounds && sent[which] - seen[which] < kSlots / 2) {
        const_cast<Station*>(senders[which])->bytes[0] = static_cast<uint8_t>(sent[which]);
        ASSERT_EQ(senders[which]->send(ways[which], b.qp->qp_num, 0, 1, kKey, IBV_WR_SEND,
                                       IBV_SEND_INLINE),
                  0);
        ASSERT_EQ(senders[which]->wait().status, IBV_WC_SUCCESS);
        ++sent[which];
      }
    ibv_wc wc{};
    if (ibv_poll_cq(b.cq, 1, &wc) == 0) continue;
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    const size_t which = wc.src_qp == a.qp->qp_num ? 0 : 1;
    ASSERT_EQ(b.bytes[wc.wr_id * 64 + kHeader], static_cast<uint8_t>(seen[which]++));
    ASSERT_EQ(b.receive(wc.wr_id, wc.wr_id * 64, 64), 0);
  }
  for (ibv_ah* const way : ways) EXPECT_EQ(ibv_destroy_ah(way), 0);
}

TEST_F(Datagrams, StatesAndKindsOfWorkAreChecked) {
  Station a(0, false, false);
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = 1;
  EXPECT_EQ(ibv_modify_qp(a.qp, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT),
            EINVAL);
  EXPECT_EQ(ibv_modify_qp(
                a.qp, &attributes,
                IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY | IBV_QP_ACCESS_FLAGS),
            EINVAL);
  ASSERT_EQ(Station::bring_up(a.qp), 0);
  ibv_ah* const way = a.to(a);
  EXPECT_EQ(a.send(way, a.qp->qp_num, 0, 8, kKey, IBV_WR_RDMA_WRITE), EINVAL);
  EXPECT_EQ(a.send(nullptr, a.qp->qp_num, 0, 8), EINVAL);
  EXPECT_EQ(ibv_dealloc_pd(a.pd), EBUSY);
  EXPECT_EQ(ibv_destroy_ah(way), 0);
  ibv_ah_attr local{};
  local.port_num = 1;
  local.dlid = 1;
  errno = 0;
  EXPECT_EQ(ibv_create_ah(a.pd, &local), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(Datagrams, ToOneselfByTheExtendedInterface) {
  Station a(0);
  ibv_qp_init_attr_ex attributes{};
  attributes.send_cq = attributes.recv_cq = a.cq;
  attributes.cap = {64, 64, 4, 4, 64};
  attributes.qp_type = IBV_QPT_UD;
  attributes.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  attributes.pd = a.pd;
  attributes.send_ops_flags = IBV_QP_EX_WITH_SEND;
  ibv_qp* const qp = ibv_create_qp_ex(a.context, &attributes);
  ASSERT_NE(qp, nullptr);
  ASSERT_EQ(Station::bring_up(qp), 0);
  ibv_ah* const way = a.to(a);
  ASSERT_EQ(a.receive(5, 1000, 100), 0);
  ibv_qp_ex* const builder = ibv_qp_to_qp_ex(qp);
  ibv_wr_start(builder);
  builder->wr_id = 9;
  builder->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_send(builder);
  ibv_wr_set_ud_addr(builder, way, a.qp->qp_num, kKey);
  ibv_wr_set_sge(builder, a.mr->lkey, reinterpret_cast<uint64_t>(a.bytes.data()), 60);
  ASSERT_EQ(ibv_wr_complete(builder), 0);
  ibv_wc wc = a.wait();
  EXPECT_EQ(wc.wr_id, 9u);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  wc = a.wait();
  EXPECT_EQ(wc.wr_id, 5u);
  EXPECT_EQ(wc.byte_len, kHeader + 60);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_ah(way), 0);
}

// Sends datagrams of 1 to 20 * 100 bytes over a port with a fault; ends with 0 where the receiver
// sees the datagrams that `arrive` numbers.
[[noreturn]] void run_with(const char* nics, const std::vector<uint32_t>& arrive, bool corrupt) {
  setenv("NICCOLITE_NICS", nics, 1);
  bool right = true;
  {
    Station a(0), b(1), last(0);
    ibv_ah* const way = a.to(b);
    ibv_ah* const end = last.to(b);
    for (uint64_t i = 0; i < 21; ++i) b.receive(i, i * 4096, 4096);
    for (uint32_t i = 1; i <= 20; ++i) {
      right &= a.send(way, b.qp->qp_num, 0, i * 100) == 0;
      right &= a.wait().status == IBV_WC_SUCCESS;
    }
    for (const uint32_t which : arrive) right &= b.wait().byte_len == kHeader + which * 100;
    // Faults count by context: this one goes another way.
    last.send(end, b.qp->qp_num, 0, 7);
    right &= b.wait().byte_len == kHeader + 7;
    if (corrupt)
      for (uint32_t i = 1; i <= 20; ++i) {
        size_t wrong = 0;
        for (size_t at = 0; at < i * 100; ++at)
          wrong += b.bytes[(i - 1) * 4096 + kHeader + at] != a.bytes[at] ? 1 : 0;
        right &= wrong == (i >= 11 ? 1u : 0u);
      }
    ibv_destroy_ah(way);
    ibv_destroy_ah(end);
  }
  _exit(right && !::testing::Test::HasFailure() ? 0 : 1);
}

struct DatagramFaults : ::testing::Test {
  DatagramFaults() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(DatagramFaults, ALostDatagramIsNotSentAgain) {
  EXPECT_EXIT(run_with("virtual:2,fault=lose@0:2",
                       {1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}, false),
              ::testing::ExitedWithCode(0), "");
}
TEST_F(DatagramFaults, APortThatDropsLosesAllBehind) {
  EXPECT_EXIT(run_with("virtual:2,fault=drop@0:4", {1, 2, 3, 4}, false),
              ::testing::ExitedWithCode(0), "");
}
TEST_F(DatagramFaults, ALateDatagramKeepsItsPlace) {
  EXPECT_EXIT(
      run_with("virtual:2,fault=late@0:3",
               {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}, false),
      ::testing::ExitedWithCode(0), "");
}
TEST_F(DatagramFaults, APortThatChangesBytes) {
  EXPECT_EXIT(
      run_with("virtual:2,fault=corrupt@0:10",
               {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}, true),
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
