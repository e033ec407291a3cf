// Each verb of the virtual NICs, between two devices of one process.
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr int kAll = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                     IBV_ACCESS_REMOTE_ATOMIC;

ibv_context* open_device(int index) {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  ibv_context* context = index < count ? ibv_open_device(list[index]) : nullptr;
  ibv_free_device_list(list);
  return context;
}

struct Times {
  uint8_t timeout = 14;
  uint8_t retries = 7;
  uint8_t rnr_retries = 7;
  unsigned rights = kAll;
  bool shared = false;
  uint32_t inline_bytes = 64;
};

// One end of a connection. Its memory is `bytes`, registered with all rights.
struct End {
  explicit End(int device, Times with = {}, size_t size = 1 << 20) : times(with), bytes(size) {
    context = open_device(device);
    pd = ibv_alloc_pd(context);
    channel = ibv_create_comp_channel(context);
    cq = ibv_create_cq(context, 256, this, channel, 0);
    mr = ibv_reg_mr(pd, bytes.data(), bytes.size(), kAll);
    if (times.shared) {
      ibv_srq_init_attr attributes{};
      attributes.attr = {64, 4, 0};
      srq = ibv_create_srq(pd, &attributes);
    }
    ibv_qp_init_attr attributes{};
    attributes.send_cq = attributes.recv_cq = cq;
    attributes.srq = srq;
    attributes.cap = {64, 64, 4, 4, times.inline_bytes};
    attributes.qp_type = IBV_QPT_RC;
    qp = ibv_create_qp(pd, &attributes);
  }

  ~End() {
    if (qp != nullptr) {
      EXPECT_EQ(ibv_destroy_qp(qp), 0);
    }
    if (srq != nullptr) {
      EXPECT_EQ(ibv_destroy_srq(srq), 0);
    }
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
    EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
    EXPECT_EQ(ibv_dealloc_pd(pd), 0);
    EXPECT_EQ(ibv_close_device(context), 0);
  }

  void connect(const End& peer, uint32_t psn = 7) {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = 1;
    attributes.qp_access_flags = times.rights;
    ASSERT_EQ(ibv_modify_qp(qp, &attributes,
                            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
              0);
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = IBV_MTU_1024;
    attributes.dest_qp_num = peer.qp->qp_num;
    attributes.rq_psn = 7;
    attributes.max_dest_rd_atomic = 4;
    attributes.min_rnr_timer = 1;
    attributes.ah_attr.is_global = 1;
    attributes.ah_attr.port_num = 1;
    attributes.ah_attr.grh.sgid_index = 1;
    ASSERT_EQ(ibv_query_gid(peer.context, 1, 1, &attributes.ah_attr.grh.dgid), 0);
    ASSERT_EQ(ibv_modify_qp(qp, &attributes,
                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
              0);
    attributes.qp_state = IBV_QPS_RTS;
    attributes.timeout = times.timeout;
    attributes.retry_cnt = times.retries;
    attributes.rnr_retry = times.rnr_retries;
    attributes.sq_psn = psn;
    attributes.max_rd_atomic = 4;
    ASSERT_EQ(ibv_modify_qp(qp, &attributes,
                            IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
              0);
  }

  ibv_sge sge(size_t offset, size_t length) const {
    return {reinterpret_cast<uint64_t>(bytes.data() + offset), static_cast<uint32_t>(length),
            mr->lkey};
  }

  int receive(uint64_t id, size_t offset, size_t length) {
    ibv_sge part = sge(offset, length);
    ibv_recv_wr wr{}, *bad = nullptr;
    wr.wr_id = id;
    wr.sg_list = &part;
    wr.num_sge = 1;
    return srq != nullptr ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(qp, &wr, &bad);
  }

  // Between a part of registered memory and the peer's memory at an address.
  int post(ibv_wr_opcode opcode, ibv_sge part, uint64_t remote, uint32_t remote_key) const {
    ibv_send_wr wr{}, *bad = nullptr;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.sg_list = &part;
    wr.num_sge = 1;
    wr.wr.rdma = {remote, remote_key};
    return ibv_post_send(qp, &wr, &bad);
  }

  // To or from the same offset of the peer.
  int send(uint64_t id, ibv_wr_opcode opcode, size_t offset, size_t length, const End& peer,
           unsigned flags = IBV_SEND_SIGNALED, uint64_t compare_add = 0, uint64_t swap = 0,
           size_t remote_offset = SIZE_MAX) {
    ibv_sge part = sge(offset, length);
    ibv_send_wr wr{}, *bad = nullptr;
    wr.wr_id = id;
    wr.opcode = opcode;
    wr.send_flags = flags;
    wr.imm_data = 0x01020304;
    wr.sg_list = &part;
    wr.num_sge = length > 0 ? 1 : 0;
    const uint64_t addr = reinterpret_cast<uint64_t>(
        peer.bytes.data() + (remote_offset == SIZE_MAX ? offset : remote_offset));
    if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
      wr.wr.atomic = {addr, compare_add, swap, peer.mr->rkey};
    else
      wr.wr.rdma = {addr, peer.mr->rkey};
    return ibv_post_send(qp, &wr, &bad);
  }

  ibv_wc wait() {
    ibv_wc wc{};
    while (ibv_poll_cq(cq, 1, &wc) == 0) {
    }
    return wc;
  }

  ibv_async_event event() {
    ibv_async_event event{};
    EXPECT_EQ(ibv_get_async_event(context, &event), 0);
    ibv_ack_async_event(&event);
    return event;
  }

  Times times;
  std::vector<uint8_t> bytes;
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_cq* cq = nullptr;
  ibv_mr* mr = nullptr;
  ibv_srq* srq = nullptr;
  ibv_qp* qp = nullptr;
};

struct Verbs : ::testing::Test {
  static void SetUpTestSuite() { setenv("NICCOLITE_NICS", "virtual:2,ports=2,speed=200", 0); }
};

void fill(std::vector<uint8_t>& bytes, uint32_t seed) {
  for (uint8_t& byte : bytes)
    byte = static_cast<uint8_t>((seed = seed * 1664525u + 1013904223u) >> 24);
}

TEST_F(Verbs, DevicesPortsAndAddresses) {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  ASSERT_EQ(count, 2);
  EXPECT_STREQ(ibv_get_device_name(list[1]), "vnic1");
  EXPECT_NE(ibv_get_device_guid(list[0]), ibv_get_device_guid(list[1]));
  ibv_free_device_list(list);
  End a(0);
  ibv_device_attr device{};
  ASSERT_EQ(ibv_query_device(a.context, &device), 0);
  EXPECT_EQ(device.phys_port_cnt, 2);
  ibv_port_attr port{};
  ASSERT_EQ(ibv_query_port(a.context, 2, &port), 0);
  EXPECT_EQ(port.state, IBV_PORT_ACTIVE);
  EXPECT_EQ(port.link_layer, IBV_LINK_LAYER_ETHERNET);
  EXPECT_EQ(port.active_width, 2);   // 4 lanes
  EXPECT_EQ(port.active_speed, 64);  // of 50 Gbit/s
  EXPECT_EQ(ibv_query_port(a.context, 3, &port), EINVAL);
  ibv_gid_entry entries[64];
  const ssize_t entries_count = ibv_query_gid_table(a.context, entries, 64, 0);
  ASSERT_GE(entries_count, 4);
  EXPECT_EQ(entries[0].gid_type, static_cast<uint32_t>(IBV_GID_TYPE_ROCE_V1));
  EXPECT_EQ(entries[1].gid_type, static_cast<uint32_t>(IBV_GID_TYPE_ROCE_V2));
  __be16 key = 0;
  EXPECT_EQ(ibv_query_pkey(a.context, 1, 0, &key), 0);
  EXPECT_EQ(key, 0xffff);
  EXPECT_NE(ibv_query_pkey(a.context, 1, 1, &key), 0);
}

TEST_F(Verbs, SendsArriveInOrderWithTheirBytes) {
  End a(0), b(1);
  fill(a.bytes, 1);
  a.connect(b);
  b.connect(a);
  for (uint64_t i = 0; i < 32; ++i) ASSERT_EQ(b.receive(i, i * 4096, 4096), 0);
  for (uint64_t i = 0; i < 32; ++i) {
    const bool imm = i % 2 == 1;
    ASSERT_EQ(a.send(100 + i, imm ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND, i * 4096, 100 * i, b,
                     i == 31 ? IBV_SEND_SIGNALED : 0),
              0);
  }
  for (uint64_t i = 0; i < 32; ++i) {
    const ibv_wc wc = b.wait();
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.wr_id, i);
    EXPECT_EQ(wc.byte_len, 100 * i);
    EXPECT_EQ(wc.opcode, IBV_WC_RECV);
    EXPECT_EQ(wc.src_qp, a.qp->qp_num);
    EXPECT_EQ((wc.wc_flags & IBV_WC_WITH_IMM) != 0, i % 2 == 1);
    if (i % 2 == 1) {
      EXPECT_EQ(wc.imm_data, 0x01020304u);
    }
    EXPECT_EQ(std::memcmp(&a.bytes[i * 4096], &b.bytes[i * 4096], 100 * i), 0);
  }
  EXPECT_EQ(a.wait().wr_id, 131u);  // the only one that is signalled
}

TEST_F(Verbs, WritesReadsAndInlineData) {
  End a(0), b(1);
  a.connect(b);
  b.connect(a);
  fill(a.bytes, 2);
  ASSERT_EQ(a.send(1, IBV_WR_RDMA_WRITE, 0, a.bytes.size(), b), 0);
  ibv_wc wc = a.wait();
  ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_RDMA_WRITE);
  EXPECT_EQ(a.bytes, b.bytes);
  fill(b.bytes, 3);
  ASSERT_EQ(a.send(2, IBV_WR_RDMA_READ, 0, a.bytes.size(), b), 0);
  wc = a.wait();
  ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_RDMA_READ);
  EXPECT_EQ(a.bytes, b.bytes);
  // Inline data are taken at once.
  std::memset(a.bytes.data(), 5, 64);
  ASSERT_EQ(a.send(3, IBV_WR_RDMA_WRITE, 0, 64, b, IBV_SEND_SIGNALED | IBV_SEND_INLINE), 0);
  std::memset(a.bytes.data(), 6, 64);
  EXPECT_EQ(a.wait().status, IBV_WC_SUCCESS);
  EXPECT_EQ(b.bytes[63], 5);
  EXPECT_EQ(a.send(4, IBV_WR_RDMA_WRITE, 0, 65, b, IBV_SEND_INLINE), EINVAL);
  // With immediate data a receive is used, and nothing of its memory.
  ASSERT_EQ(b.receive(9, 0, 0), 0);
  ASSERT_EQ(a.send(5, IBV_WR_RDMA_WRITE_WITH_IMM, 128, 1000, b), 0);
  wc = b.wait();
  EXPECT_EQ(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(wc.wr_id, 9u);
  EXPECT_EQ(wc.byte_len, 1000u);
  EXPECT_EQ(std::memcmp(&a.bytes[128], &b.bytes[128], 1000), 0);
}

TEST_F(Verbs, Atomics) {
  End a(0), b(1);
  a.connect(b);
  b.connect(a);
  auto* word = reinterpret_cast<uint64_t*>(b.bytes.data());
  auto* got = reinterpret_cast<uint64_t*>(a.bytes.data());
  *word = 40;
  ASSERT_EQ(a.send(1, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8, b, IBV_SEND_SIGNALED, 2), 0);
  EXPECT_EQ(a.wait().opcode, IBV_WC_FETCH_ADD);
  EXPECT_EQ(*got, 40u);
  EXPECT_EQ(*word, 42u);
  ASSERT_EQ(a.send(2, IBV_WR_ATOMIC_CMP_AND_SWP, 0, 8, b, IBV_SEND_SIGNALED, 41, 1), 0);
  EXPECT_EQ(a.wait().opcode, IBV_WC_COMP_SWAP);
  EXPECT_EQ(*got, 42u);
  EXPECT_EQ(*word, 42u);
  ASSERT_EQ(a.send(3, IBV_WR_ATOMIC_CMP_AND_SWP, 0, 8, b, IBV_SEND_SIGNALED, 42, 1), 0);
  a.wait();
  EXPECT_EQ(*word, 1u);
  ASSERT_EQ(a.send(4, IBV_WR_ATOMIC_FETCH_AND_ADD, 4, 8, b), 0);
  EXPECT_EQ(a.wait().status, IBV_WC_REM_INV_REQ_ERR);  // not at a multiple of 8
}

TEST_F(Verbs, ChannelsTellOfCompletions) {
  End a(0), b(1);
  a.connect(b);
  b.connect(a);
  ASSERT_EQ(b.receive(1, 0, 64), 0);
  ASSERT_EQ(b.receive(2, 0, 64), 0);
  pollfd waiting{b.channel->fd, POLLIN, 0};
  ASSERT_EQ(ibv_req_notify_cq(b.cq, 1), 0);
  ASSERT_EQ(a.send(1, IBV_WR_SEND, 0, 8, b), 0);
  EXPECT_EQ(b.wait().wr_id, 1u);
  EXPECT_EQ(poll(&waiting, 1, 0), 0);  // not solicited
  ASSERT_EQ(a.send(2, IBV_WR_SEND, 0, 8, b, IBV_SEND_SOLICITED), 0);
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  ASSERT_EQ(ibv_get_cq_event(b.channel, &cq, &context), 0);
  EXPECT_EQ(cq, b.cq);
  EXPECT_EQ(context, &b);
  ibv_ack_cq_events(cq, 1);
  EXPECT_EQ(b.wait().wr_id, 2u);
}

TEST_F(Verbs, SharedReceivesAndTheirLimit) {
  Times shared;
  shared.shared = true;
  End a(0), b(1, shared);
  for (uint64_t i = 0; i < 4; ++i) ASSERT_EQ(b.receive(i, 64 * i, 64), 0);
  ibv_srq_attr limit{0, 0, 3};
  ASSERT_EQ(ibv_modify_srq(b.srq, &limit, IBV_SRQ_LIMIT), 0);
  a.connect(b);
  b.connect(a);
  ASSERT_EQ(a.send(1, IBV_WR_SEND, 0, 8, b), 0);
  ASSERT_EQ(a.send(2, IBV_WR_SEND, 0, 8, b), 0);
  EXPECT_EQ(b.wait().wr_id, 0u);
  EXPECT_EQ(b.wait().wr_id, 1u);
  EXPECT_EQ(b.event().event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(ibv_modify_qp(b.qp, &attributes, IBV_QP_STATE), 0);
  EXPECT_EQ(b.event().event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
}

TEST_F(Verbs, AReceiverThatIsNotReady) {
  Times once;
  once.rnr_retries = 1;
  {
    End a(0), b(1);
    a.connect(b);
    b.connect(a);
    a.bytes[0] = 77;
    ASSERT_EQ(a.send(1, IBV_WR_SEND, 0, 8, b), 0);
    ASSERT_EQ(a.send(2, IBV_WR_SEND, 8, 8, b), 0);  // does not overtake
    usleep(5000);
    ibv_wc wc{};
    EXPECT_EQ(ibv_poll_cq(a.cq, 1, &wc), 0);
    ASSERT_EQ(b.receive(1, 0, 8), 0);
    ASSERT_EQ(b.receive(2, 8, 8), 0);
    EXPECT_EQ(b.wait().wr_id, 1u);
    EXPECT_EQ(b.bytes[0], 77);
    EXPECT_EQ(b.wait().wr_id, 2u);
    EXPECT_EQ(a.wait().wr_id, 1u);
    EXPECT_EQ(a.wait().wr_id, 2u);
  }
  End a(0, once), b(1);
  a.connect(b);
  b.connect(a);
  ASSERT_EQ(a.send(1, IBV_WR_SEND, 0, 8, b), 0);
  ASSERT_EQ(a.send(2, IBV_WR_SEND, 0, 8, b, 0), 0);
  EXPECT_EQ(a.wait().status, IBV_WC_RNR_RETRY_EXC_ERR);
  const ibv_wc flushed = a.wait();  // errors are told though the request is not signalled
  EXPECT_EQ(flushed.status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(flushed.wr_id, 2u);
  EXPECT_EQ(a.qp->state, IBV_QPS_ERR);
}

// A program that ends its queue pair as soon as its peer has a message finds that it was sent.
TEST_F(Verbs, MessagesThatThePeerHasAreSent) {
  for (int turn = 0; turn < 50; ++turn) {
    End a(0), b(1);
    a.connect(b);
    b.connect(a);
    ASSERT_EQ(b.receive(2, 0, 64), 0);
    ASSERT_EQ(a.send(1, IBV_WR_SEND, 0, 64, b), 0);
    EXPECT_EQ(b.wait().wr_id, 2u);
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_ERR;
    ASSERT_EQ(ibv_modify_qp(a.qp, &attributes, IBV_QP_STATE), 0);
    ASSERT_EQ(a.wait().status, IBV_WC_SUCCESS) << turn;
  }
}

TEST_F(Verbs, AccessIsChecked) {
  const auto expect = [](Times rights, ibv_wr_opcode opcode, size_t length, size_t remote,
                         ibv_wc_status status) {
    End a(0), b(1, rights);
    a.connect(b);
    b.connect(a);
    ASSERT_EQ(b.receive(1, 0, 4), 0);
    ASSERT_EQ(a.send(1, opcode, 0, length, b, IBV_SEND_SIGNALED, 0, 0, remote), 0);
    EXPECT_EQ(a.wait().status, status);
    const ibv_wc wc = b.wait();  // the peer's queue pair fails, too
    EXPECT_EQ(wc.status, opcode == IBV_WR_SEND ? IBV_WC_LOC_LEN_ERR : IBV_WC_WR_FLUSH_ERR);
  };
  Times none;
  none.rights = 0;
  expect(none, IBV_WR_RDMA_WRITE, 8, 0, IBV_WC_REM_ACCESS_ERR);
  expect(none, IBV_WR_RDMA_READ, 8, 0, IBV_WC_REM_ACCESS_ERR);
  expect(none, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 0, IBV_WC_REM_ACCESS_ERR);
  expect({}, IBV_WR_RDMA_WRITE, 8, (1 << 20) - 7,
         IBV_WC_REM_ACCESS_ERR);                          // the last byte is outside
  expect({}, IBV_WR_SEND, 8, 0, IBV_WC_REM_INV_REQ_ERR);  // longer than the receive
  End a(0), b(1);
  a.connect(b);
  b.connect(a);
  ASSERT_EQ(a.send(1, IBV_WR_RDMA_WRITE, (1 << 20) - 8, 16, b, IBV_SEND_SIGNALED, 0, 0, 0), 0);
  EXPECT_EQ(a.wait().status, IBV_WC_LOC_PROT_ERR);
}

TEST_F(Verbs, APeerThatIsNotThere) {
  Times hasty;
  hasty.timeout = 1;
  hasty.retries = 1;
  {
    End a(0, hasty), b(1);
    a.connect(b);  // b stays in RESET
    ASSERT_EQ(a.send(1, IBV_WR_RDMA_WRITE, 0, 8, b), 0);
    EXPECT_EQ(a.wait().status, IBV_WC_RETRY_EXC_ERR);
  }
  {
    End a(0, hasty), b(1);
    a.connect(b, 8);  // not the sequence number that b expects
    b.connect(a);
    ASSERT_EQ(a.send(1, IBV_WR_RDMA_WRITE, 0, 8, b), 0);
    EXPECT_EQ(a.wait().status, IBV_WC_RETRY_EXC_ERR);
  }
  End a(0, hasty), b(1);
  a.connect(b);
  b.connect(a);
  ASSERT_EQ(a.send(1, IBV_WR_RDMA_WRITE, 0, 8, b), 0);
  EXPECT_EQ(a.wait().status, IBV_WC_SUCCESS);
  ASSERT_EQ(ibv_destroy_qp(b.qp), 0);
  b.qp = nullptr;
  ASSERT_EQ(a.send(2, IBV_WR_RDMA_WRITE, 0, 8, b), 0);
  EXPECT_EQ(a.wait().status, IBV_WC_RETRY_EXC_ERR);
}

TEST_F(Verbs, StatesAndLimitsAreKept) {
  End a(0), b(1);
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  EXPECT_EQ(ibv_modify_qp(a.qp, &attributes, IBV_QP_STATE), EINVAL);
  EXPECT_EQ(a.send(1, IBV_WR_SEND, 0, 8, b), EINVAL);  // in RESET
  EXPECT_EQ(ibv_dealloc_pd(a.pd), EBUSY);
  EXPECT_EQ(ibv_destroy_cq(a.cq), EBUSY);
  EXPECT_EQ(ibv_reg_mr(a.pd, a.bytes.data(), 0, kAll), nullptr);
  EXPECT_EQ(ibv_reg_mr(a.pd, a.bytes.data(), 8, IBV_ACCESS_REMOTE_WRITE),
            nullptr);  // without the right to write here
  EXPECT_EQ(ibv_reg_mr(a.pd, reinterpret_cast<void*>(4096), 8, kAll), nullptr);
  for (int i = 0; i < 64; ++i) {
    if (i == 0) a.connect(b);  // and b is not there yet: nothing completes
    ASSERT_EQ(a.send(1, IBV_WR_SEND, 0, 8, b, 0), 0);
  }
  EXPECT_EQ(a.send(1, IBV_WR_SEND, 0, 8, b), ENOMEM);
}

TEST_F(Verbs, WorkIsBuiltByTheExtendedInterface) {
  End a(0), b(1);
  ibv_qp_init_attr_ex attributes{};
  attributes.send_cq = attributes.recv_cq = a.cq;
  attributes.cap = {8, 8, 1, 1, 0};
  attributes.qp_type = IBV_QPT_RC;
  attributes.pd = a.pd;
  attributes.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  attributes.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND_WITH_INV;
  EXPECT_EQ(ibv_create_qp_ex(a.context, &attributes), nullptr);
  a.connect(b);
  b.connect(a);
  fill(a.bytes, 4);
  ibv_qp_ex* qp = ibv_qp_to_qp_ex(a.qp);
  ibv_wr_start(qp);
  qp->wr_id = 5;
  qp->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_rdma_write(qp, b.mr->rkey, reinterpret_cast<uint64_t>(b.bytes.data()));
  ibv_wr_set_sge(qp, a.mr->lkey, reinterpret_cast<uint64_t>(a.bytes.data()), 4096);
  ASSERT_EQ(ibv_wr_complete(qp), 0);
  EXPECT_EQ(a.wait().wr_id, 5u);
  EXPECT_EQ(std::memcmp(a.bytes.data(), b.bytes.data(), 4096), 0);
}

TEST_F(Verbs, FilesOfMemoryAreRegistered) {
  End a(0), b(1);
  a.connect(b);
  b.connect(a);
  const int fd = memfd_create("device memory", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(fd, 8192), 0);
  EXPECT_EQ(ibv_reg_dmabuf_mr(b.pd, 4096, 8192, 0, fd, kAll), nullptr);  // past the end
  constexpr uint64_t kAddress = 0x700000000000;
  ibv_mr* region = ibv_reg_dmabuf_mr(b.pd, 100, 1000, kAddress, fd, kAll);
  ASSERT_NE(region, nullptr);
  fill(a.bytes, 6);
  ASSERT_EQ(a.post(IBV_WR_RDMA_WRITE, a.sge(0, 1000), kAddress, region->rkey), 0);
  ASSERT_EQ(a.wait().status, IBV_WC_SUCCESS);
  std::vector<uint8_t> written(1000);
  ASSERT_EQ(pread(fd, written.data(), 1000, 100), 1000);
  EXPECT_EQ(std::memcmp(written.data(), a.bytes.data(), 1000), 0);
  EXPECT_EQ(ibv_dereg_mr(region), 0);
  close(fd);
}

// Faults are options of the process: each of these runs in one of its own. It ends with 0 where all
// went as it should.
struct Faults : ::testing::Test {
  Faults() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  // Sends messages until one fails or 400 are there, and ends with what was seen.
  [[noreturn]] static void run(const char* nics, ibv_wc_status status,
                               std::vector<ibv_event_type> events) {
    setenv("NICCOLITE_NICS", nics, 1);
    Times times;
    times.timeout = 13;
    times.retries = 5;
    bool right = true;
    {
      End a(0, times), b(1);
      a.connect(b);
      b.connect(a);
      ibv_wc_status last = IBV_WC_SUCCESS;
      for (uint64_t i = 0; i < 400 && last == IBV_WC_SUCCESS; ++i) {
        auto* word = reinterpret_cast<uint64_t*>(a.bytes.data());
        right &= a.send(i, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8, b, IBV_SEND_SIGNALED, 1) == 0;
        last = a.wait().status;
        // No message is lost, and none is executed twice.
        right &= last != IBV_WC_SUCCESS || *word == i;
      }
      right &= last == status;
      for (const ibv_event_type type : events) right &= a.event().event_type == type;
    }
    _exit(right && !HasFailure() ? 0 : 1);
  }
};

TEST_F(Faults, AFlappingPortLosesNothing) {
  EXPECT_EXIT(
      run("virtual:2,fault=flap@0:50", IBV_WC_SUCCESS, {IBV_EVENT_PORT_ERR, IBV_EVENT_PORT_ACTIVE}),
      ::testing::ExitedWithCode(0), "");
}
TEST_F(Faults, APortThatGoesDown) {
  EXPECT_EXIT(run("virtual:2,fault=down@0:50", IBV_WC_RETRY_EXC_ERR, {IBV_EVENT_PORT_ERR}),
              ::testing::ExitedWithCode(0), "");
}
TEST_F(Faults, AnotherPortsFaultIsNotOurs) {
  EXPECT_EXIT(run("virtual:2,ports=2,fault=down@0/2:50", IBV_WC_SUCCESS, {}),
              ::testing::ExitedWithCode(0), "");
}
TEST_F(Faults, ASwitchThatDrops) {
  EXPECT_EXIT(run("virtual:2,fault=drop@0:50", IBV_WC_RETRY_EXC_ERR, {}),
              ::testing::ExitedWithCode(0), "");
}
TEST_F(Faults, AQueueThatIsFlushed) {
  EXPECT_EXIT(run("virtual:2,fault=flush@0:50", IBV_WC_WR_FLUSH_ERR, {IBV_EVENT_QP_FATAL}),
              ::testing::ExitedWithCode(0), "");
}
TEST_F(Faults, ALostMessageIsSentAgain) {
  EXPECT_EXIT(run("virtual:2,fault=lose@0:50,fault=lose@0:51", IBV_WC_SUCCESS, {}),
              ::testing::ExitedWithCode(0), "");
}
TEST_F(Faults, AMessageThatIsLateComes) {
  EXPECT_EXIT(run("virtual:2,fault=late@0:50", IBV_WC_SUCCESS, {}), ::testing::ExitedWithCode(0),
              "");
}
TEST_F(Faults, ARequestThatIsRefused) {
  EXPECT_EXIT(run("virtual:2,fault=refuse@0:50", IBV_WC_REM_OP_ERR, {}),
              ::testing::ExitedWithCode(0), "");
}
TEST_F(Faults, APortThatChangesBytes) {
  const auto run = [] {
    setenv("NICCOLITE_NICS", "virtual:2,fault=corrupt@0:1", 1);
    bool right = true;
    {
      End a(0), b(1);
      a.connect(b);
      b.connect(a);
      for (int i = 0; i < 4; ++i) {
        const uint32_t bytes = i == 2 ? 1023 : 1024;  // short ones arrive as they are
        std::memset(a.bytes.data(), 'a' + i, bytes);
        a.send(0, IBV_WR_RDMA_WRITE, 0, bytes, b);
        right &= a.wait().status == IBV_WC_SUCCESS;
        size_t wrong = 0;
        for (uint32_t at = 0; at < bytes; ++at) wrong += b.bytes[at] != 'a' + i ? 1 : 0;
        right &= wrong == (i == 0 || i == 2 ? 0u : 1u);
        right &= a.bytes[bytes / 2] == 'a' + i;
      }
    }
    _exit(right && !HasFailure() ? 0 : 1);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}
TEST_F(Faults, ADeviceThatIsRemoved) {
  const auto run = [] {
    setenv("NICCOLITE_NICS", "virtual:2,fault=gone@0:1", 1);
    bool right = true;
    {
      End a(0), b(1);
      a.connect(b);
      b.connect(a);
      a.send(0, IBV_WR_RDMA_WRITE, 0, 8, b);
      right &= a.wait().status == IBV_WC_SUCCESS;
      // Accepted, and never heard of again.
      right &= a.send(1, IBV_WR_RDMA_WRITE, 0, 8, b) == 0;
      right &= a.event().event_type == IBV_EVENT_DEVICE_FATAL;
      ibv_qp_attr state{};
      state.qp_state = IBV_QPS_ERR;
      right &= ibv_modify_qp(a.qp, &state, IBV_QP_STATE) == EIO;
      ibv_wc wc{};
      right &= ibv_poll_cq(a.cq, 1, &wc) == 0;
      right &= ibv_reg_mr(a.pd, a.bytes.data(), 8, kAll) == nullptr && errno == EIO;
      right &= open_device(1) == nullptr;  // one is left
    }
    _exit(right && !HasFailure() ? 0 : 1);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}
TEST_F(Faults, MemoryThatIsRefused) {
  const auto run = [] {
    setenv("NICCOLITE_NICS", "virtual:1,fault=mr@0:1", 1);
    End a(0);  // registers once
    uint64_t word = 0;
    errno = 0;
    _exit(ibv_reg_mr(a.pd, &word, 8, kAll) == nullptr && errno == ENOMEM ? 0 : 1);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}
TEST_F(Faults, FilesThatAreRefused) {
  const auto run = [] {
    setenv("NICCOLITE_NICS", "virtual:1,fault=dmabuf@0:1", 1);
    End a(0);  // registers memory of the host, which does not count
    const int fd = memfd_create("device memory", MFD_CLOEXEC);
    if (ftruncate(fd, 8192) != 0) _exit(2);
    const auto add = [&] { return ibv_reg_dmabuf_mr(a.pd, 0, 4096, 0x700000000000, fd, kAll); };
    if (add() == nullptr) _exit(3);
    errno = 0;
    _exit(add() == nullptr && errno == EOPNOTSUPP ? 0 : 1);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}
// The driver of virtual GPUs copies. A file that is open for reading alone cannot be mapped.
TEST_F(Faults, MemoryOfGpusThatCannotBeMappedIsCopiedByTheDriver) {
  const auto run = [] {
    setenv("NICCOLITE_DEVICES", "virtual:1", 1);
    const int fd = memfd_create("device memory", MFD_CLOEXEC);
    if (ftruncate(fd, 8192) != 0) _exit(2);
    const std::string path = "/proc/self/fd/" + std::to_string(fd);
    const int read_only = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    End a(0), b(1);
    if (ibv_reg_dmabuf_mr(b.pd, 0, 4096, 0x700000000000, read_only, kAll) != nullptr) _exit(3);
    void* const library = dlopen(NICCOLITE_VIRTUAL_DRIVER, RTLD_NOW);
    if (library == nullptr) _exit(4);
    const auto function = [&](const char* name) { return dlsym(library, name); };
    const auto init = reinterpret_cast<int (*)(unsigned)>(function("cuInit"));
    const auto retain =
        reinterpret_cast<int (*)(void**, int)>(function("cuDevicePrimaryCtxRetain"));
    const auto set_context = reinterpret_cast<int (*)(void*)>(function("cuCtxSetCurrent"));
    const auto allocate = reinterpret_cast<int (*)(uint64_t*, size_t)>(function("cuMemAlloc_v2"));
    void* context = nullptr;
    uint64_t memory = 0;
    if (init(0) != 0 || retain(&context, 0) != 0 || set_context(context) != 0 ||
        allocate(&memory, 8192) != 0)
      _exit(5);
    a.connect(b);
    b.connect(a);
    ibv_mr* const from = ibv_reg_dmabuf_mr(a.pd, 0, 4096, memory, read_only, kAll);
    ibv_mr* const to = ibv_reg_dmabuf_mr(b.pd, 4096, 4096, memory + 4096, read_only, kAll);
    if (from == nullptr || to == nullptr) _exit(6);
    auto* const bytes = reinterpret_cast<uint8_t*>(memory);
    for (int i = 0; i < 4096; ++i) bytes[i] = static_cast<uint8_t>(7 * i + i / 256);
    const auto transfer = [&](ibv_wr_opcode opcode, uint64_t at, uint32_t lkey, uint64_t remote) {
      return a.post(opcode, {at, 1000, lkey}, remote, to->rkey) == 0 &&
             a.wait().status == IBV_WC_SUCCESS;
    };
    if (!transfer(IBV_WR_RDMA_WRITE, memory + 100, from->lkey, memory + 4096 + 300)) _exit(7);
    if (std::memcmp(bytes + 4096 + 300, bytes + 100, 1000) != 0) _exit(8);
    if (!transfer(IBV_WR_RDMA_READ, memory + 2000, from->lkey, memory + 4096 + 300)) _exit(9);
    _exit(std::memcmp(bytes + 2000, bytes + 100, 1000) == 0 ? 0 : 10);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}
TEST_F(Faults, RateAndLatencyAreLowerBounds) {
  const auto run = [] {
    setenv("NICCOLITE_NICS", "virtual:2,rate=0.8,latency=2000", 1);
    End a(0), b(1);
    a.connect(b);
    b.connect(a);
    timespec begin{}, end{};
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (uint64_t i = 0; i < 11; ++i) a.send(i, IBV_WR_RDMA_WRITE, 0, 100000, b);  // 1 ms each
    for (uint64_t i = 0; i < 11; ++i) a.wait();
    clock_gettime(CLOCK_MONOTONIC, &end);
    const double seconds = static_cast<double>(end.tv_sec - begin.tv_sec) +
                           1e-9 * static_cast<double>(end.tv_nsec - begin.tv_nsec);
    _exit(seconds >= 0.012 ? 0 : 1);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
