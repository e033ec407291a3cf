// The connection manager of the virtual NICs: both ends in one process, unless one has to die.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

extern char** environ;

namespace {

// Takes the next event of the channel, copies it and acknowledges it.
struct Seen {
  explicit Seen(rdma_event_channel* channel) {
    rdma_cm_event* event = nullptr;
    if (rdma_get_cm_event(channel, &event) != 0) {
      ADD_FAILURE() << "rdma_get_cm_event: " << strerror(errno);
      return;
    }
    type = event->event;
    status = event->status;
    id = event->id;
    conn = event->param.conn;
    ud = event->param.ud;
    const bool datagram = id != nullptr && id->ps == RDMA_PS_UDP;
    const void* data = datagram ? ud.private_data : conn.private_data;
    const size_t bytes = datagram ? ud.private_data_len : conn.private_data_len;
    if (data != nullptr) text.assign(static_cast<const char*>(data), bytes);
    EXPECT_EQ(rdma_ack_cm_event(event), 0);
  }
  bool starts_with(const std::string& begin) const {
    return text.compare(0, begin.size(), begin) == 0;
  }

  rdma_cm_event_type type = RDMA_CM_EVENT_DEVICE_REMOVAL;
  int status = 0;
  rdma_cm_id* id = nullptr;
  rdma_conn_param conn{};
  rdma_ud_param ud{};
  std::string text;
};

#define EXPECT_EVENT(channel, wanted)                 \
  do {                                                \
    const Seen seen(channel);                         \
    EXPECT_STREQ(rdma_event_str(seen.type), #wanted); \
    EXPECT_EQ(seen.status, 0);                        \
  } while (false)

// An IPv4 address of the first NIC, with no port.
sockaddr_in address_of_nic() {
  ibv_context** list = rdma_get_devices(nullptr);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  ibv_gid gid{};
  for (int i = 0; ibv_query_gid(list[0], 1, i, &gid) == 0; ++i)
    if (gid.raw[10] == 0xff && gid.raw[11] == 0xff) std::memcpy(&address.sin_addr, gid.raw + 12, 4);
  rdma_free_devices(list);
  return address;
}

struct Connections : ::testing::Test {
  static void SetUpTestSuite() { setenv("NICCOLITE_NICS", "virtual:2", 0); }

  Connections() {
    server = rdma_create_event_channel();
    client = rdma_create_event_channel();
  }
  ~Connections() override {
    rdma_destroy_event_channel(server);
    rdma_destroy_event_channel(client);
  }

  // A listener at the NIC's address, or at the given one.
  rdma_cm_id* listen(sockaddr* at = nullptr, rdma_port_space space = RDMA_PS_TCP) {
    rdma_cm_id* id = nullptr;
    EXPECT_EQ(rdma_create_id(server, &id, this, space), 0);
    sockaddr_in address = address_of_nic();
    EXPECT_EQ(rdma_bind_addr(id, at != nullptr ? at : reinterpret_cast<sockaddr*>(&address)), 0);
    EXPECT_EQ(rdma_listen(id, 8), 0);
    EXPECT_NE(rdma_get_src_port(id), 0);
    return id;
  }

  // An identifier that only has to connect.
  rdma_cm_id* reach(__be16 port, rdma_port_space space = RDMA_PS_TCP, in_addr_t to = INADDR_NONE) {
    rdma_cm_id* id = nullptr;
    EXPECT_EQ(rdma_create_id(client, &id, nullptr, space), 0);
    sockaddr_in address = address_of_nic();
    address.sin_port = port;
    if (to != INADDR_NONE) address.sin_addr.s_addr = to;
    EXPECT_EQ(rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&address), 2000), 0);
    EXPECT_EVENT(client, RDMA_CM_EVENT_ADDR_RESOLVED);
    EXPECT_NE(id->verbs, nullptr);
    EXPECT_EQ(rdma_resolve_route(id, 2000), 0);
    EXPECT_EVENT(client, RDMA_CM_EVENT_ROUTE_RESOLVED);
    EXPECT_EQ(id->route.num_paths, 1);
    return id;
  }

  static int make_pair(rdma_cm_id* id) {
    ibv_qp_init_attr attributes{};
    attributes.cap = {8, 8, 1, 1, 64};
    attributes.qp_type = id->qp_type;
    attributes.sq_sig_all = 1;
    return rdma_create_qp(id, nullptr, &attributes);
  }

  static void end(rdma_cm_id* id) {
    if (id->qp != nullptr) rdma_destroy_qp(id);
    EXPECT_EQ(rdma_destroy_id(id), 0);
  }

  static rdma_conn_param say(const char* text) {
    rdma_conn_param parameters{};
    parameters.private_data = text;
    parameters.private_data_len = static_cast<uint8_t>(std::strlen(text));
    parameters.responder_resources = 3;
    parameters.initiator_depth = 2;
    parameters.retry_count = parameters.rnr_retry_count = 7;
    return parameters;
  }

  rdma_event_channel* server = nullptr;
  rdma_event_channel* client = nullptr;
};

// Sends a word from one to the other.
void exchange(rdma_cm_id* from, rdma_cm_id* to) {
  uint64_t words[2] = {0x0123456789abcdef, 0};
  ibv_mr* const mine = rdma_reg_msgs(from, &words[0], 8);
  ibv_mr* const other = rdma_reg_msgs(to, &words[1], 8);
  ASSERT_EQ(rdma_post_recv(to, nullptr, &words[1], 8, other), 0);
  ASSERT_EQ(rdma_post_send(from, nullptr, &words[0], 8, mine, 0), 0);
  ibv_wc wc{};
  while (ibv_poll_cq(to->recv_cq, 1, &wc) == 0) {
  }
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  while (ibv_poll_cq(from->send_cq, 1, &wc) == 0) {
  }
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(words[1], words[0]);
  EXPECT_EQ(rdma_dereg_mr(mine), 0);
  EXPECT_EQ(rdma_dereg_mr(other), 0);
}

TEST_F(Connections, AreMadeUsedAndEnded) {
  rdma_cm_id* const listener = listen();
  rdma_cm_id* const a = reach(rdma_get_src_port(listener));
  ASSERT_EQ(make_pair(a), 0);
  rdma_conn_param parameters = say("who is there");
  ASSERT_EQ(rdma_connect(a, &parameters), 0);
  const Seen request(server);
  ASSERT_EQ(request.type, RDMA_CM_EVENT_CONNECT_REQUEST);
  EXPECT_TRUE(request.starts_with("who is there"));
  EXPECT_EQ(request.text.size(), 56u);
  EXPECT_EQ(request.conn.responder_resources, 2);
  EXPECT_EQ(request.conn.initiator_depth, 3);
  EXPECT_EQ(request.conn.qp_num, a->qp->qp_num);
  rdma_cm_id* const b = request.id;
  EXPECT_EQ(b->context, this);  // as the listener's
  EXPECT_EQ(b->verbs, listener->verbs);
  EXPECT_EQ(rdma_get_src_port(b), rdma_get_src_port(listener));
  EXPECT_EQ(rdma_get_dst_port(b), rdma_get_src_port(a));
  EXPECT_EQ(rdma_get_dst_port(a), rdma_get_src_port(b));
  EXPECT_EQ(std::memcmp(rdma_get_peer_addr(b), rdma_get_local_addr(a), sizeof(sockaddr_in)), 0);
  ASSERT_EQ(make_pair(b), 0);
  parameters = say("a friend");
  ASSERT_EQ(rdma_accept(b, &parameters), 0);
  EXPECT_EVENT(client, RDMA_CM_EVENT_ESTABLISHED);
  EXPECT_EVENT(server, RDMA_CM_EVENT_ESTABLISHED);
  exchange(a, b);
  exchange(b, a);
  ASSERT_EQ(rdma_disconnect(a), 0);
  EXPECT_EVENT(server, RDMA_CM_EVENT_DISCONNECTED);
  EXPECT_EVENT(client, RDMA_CM_EVENT_DISCONNECTED);
  EXPECT_EQ(a->qp->state, IBV_QPS_ERR);
  EXPECT_EQ(rdma_disconnect(b), 0);
  EXPECT_EQ(b->qp->state, IBV_QPS_ERR);
  end(a);
  end(b);
  end(listener);
}

// A program that looks for events, when they come, and for completions in turn, and had no core
// when both came.
TEST_F(Connections, EndBehindTheirCompletions) {
  rdma_cm_id* const listener = listen();
  rdma_cm_id* const a = reach(rdma_get_src_port(listener));
  ASSERT_EQ(make_pair(a), 0);
  rdma_conn_param parameters = say("");
  ASSERT_EQ(rdma_connect(a, &parameters), 0);
  rdma_cm_id* const b = Seen(server).id;
  ASSERT_EQ(make_pair(b), 0);
  ASSERT_EQ(rdma_accept(b, &parameters), 0);
  EXPECT_EVENT(client, RDMA_CM_EVENT_ESTABLISHED);
  EXPECT_EVENT(server, RDMA_CM_EVENT_ESTABLISHED);
  uint64_t word = 0;
  ibv_mr* const memory = rdma_reg_msgs(a, &word, sizeof word);
  ASSERT_EQ(rdma_post_recv(b, nullptr, &word, 0, memory), 0);
  ASSERT_EQ(rdma_post_send(a, nullptr, &word, 0, memory, 0), 0);
  ibv_wc wc{};
  while (ibv_poll_cq(b->recv_cq, 1, &wc) == 0) continue;
  ASSERT_EQ(rdma_disconnect(b), 0);
  ASSERT_EQ(fcntl(client->fd, F_SETFL, O_NONBLOCK), 0);
  const int edges = epoll_create1(EPOLL_CLOEXEC);
  epoll_event ready{.events = EPOLLIN | EPOLLET, .data = {}};
  ASSERT_EQ(epoll_ctl(edges, EPOLL_CTL_ADD, client->fd, &ready), 0);
  bool is_sent = false;
  rdma_cm_event* event = nullptr;
  for (;;) {
    ASSERT_EQ(epoll_wait(edges, &ready, 1, 30'000), 1);
    if (rdma_get_cm_event(client, &event) == 0) break;
    ASSERT_EQ(errno, EAGAIN);
    is_sent |= ibv_poll_cq(a->send_cq, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS;
  }
  close(edges);
  EXPECT_EQ(event->event, RDMA_CM_EVENT_DISCONNECTED);
  EXPECT_TRUE(is_sent);
  EXPECT_EQ(rdma_ack_cm_event(event), 0);
  EXPECT_EVENT(server, RDMA_CM_EVENT_DISCONNECTED);
  EXPECT_EQ(rdma_dereg_mr(memory), 0);
  end(a);
  end(b);
  end(listener);
}

TEST_F(Connections, OfQueuePairsThatProgramsMake) {
  rdma_cm_id* const listener = listen();
  rdma_cm_id* const a = reach(rdma_get_src_port(listener));
  ibv_cq* const cq = ibv_create_cq(a->verbs, 8, nullptr, nullptr, 0);
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = cq;
  wanted.cap = {8, 8, 1, 1, 0};
  wanted.qp_type = IBV_QPT_RC;
  ibv_qp* const qp = ibv_create_qp(a->pd, &wanted);
  const auto move = [&](ibv_qp_state state) {
    ibv_qp_attr attributes{};
    attributes.qp_state = state;
    int mask = 0;
    return rdma_init_qp_attr(a, &attributes, &mask) == 0 ? ibv_modify_qp(qp, &attributes, mask)
                                                         : errno;
  };
  EXPECT_EQ(move(IBV_QPS_INIT), 0);
  EXPECT_EQ(move(IBV_QPS_RTR), EINVAL);  // to whom?
  rdma_conn_param parameters = say("");
  parameters.qp_num = qp->qp_num;
  ASSERT_EQ(rdma_connect(a, &parameters), 0);
  const Seen request(server);
  EXPECT_EQ(request.conn.qp_num, qp->qp_num);
  ASSERT_EQ(make_pair(request.id), 0);
  parameters = say("a friend");
  ASSERT_EQ(rdma_accept(request.id, &parameters), 0);
  const Seen reply(client);
  EXPECT_EQ(reply.type, RDMA_CM_EVENT_CONNECT_RESPONSE);
  EXPECT_TRUE(reply.starts_with("a friend"));
  EXPECT_EQ(reply.text.size(), 196u);
  EXPECT_EQ(reply.conn.qp_num, request.id->qp->qp_num);
  EXPECT_EQ(move(IBV_QPS_RTR), 0);
  EXPECT_EQ(move(IBV_QPS_RTS), 0);
  ASSERT_EQ(rdma_establish(a), 0);
  EXPECT_EVENT(server, RDMA_CM_EVENT_ESTABLISHED);
  end(a);
  EXPECT_EVENT(server, RDMA_CM_EVENT_DISCONNECTED);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
  end(request.id);
  end(listener);
}

TEST_F(Connections, AreRejected) {
  rdma_cm_id* const listener = listen();
  rdma_cm_id* const a = reach(rdma_get_src_port(listener));
  ASSERT_EQ(make_pair(a), 0);
  rdma_conn_param parameters = say("who is there");
  ASSERT_EQ(rdma_connect(a, &parameters), 0);
  const Seen request(server);
  ASSERT_EQ(rdma_reject(request.id, "no", 2), 0);
  end(request.id);
  const Seen answer(client);
  EXPECT_EQ(answer.type, RDMA_CM_EVENT_REJECTED);
  EXPECT_EQ(answer.status, 28);  // by the program
  EXPECT_TRUE(answer.starts_with("no"));
  EXPECT_EQ(answer.text.size(), 148u);
  end(a);
  // Whoever does not answer any more rejects, too.
  rdma_cm_id* const b = reach(rdma_get_src_port(listener));
  ASSERT_EQ(rdma_connect(b, nullptr), 0);
  const Seen second(server);
  end(second.id);
  const Seen silence(client);
  EXPECT_EQ(silence.type, RDMA_CM_EVENT_REJECTED);
  EXPECT_EQ(silence.status, 28);
  EXPECT_EQ(silence.text, "");
  end(b);
  end(listener);
}

TEST_F(Connections, ToNobodyAreRejected) {
  rdma_cm_id* const listener = listen();
  const __be16 port = rdma_get_src_port(listener);
  end(listener);
  rdma_cm_id* const a = reach(port);
  ASSERT_EQ(rdma_connect(a, nullptr), 0);
  const Seen answer(client);
  EXPECT_EQ(answer.type, RDMA_CM_EVENT_REJECTED);
  EXPECT_EQ(answer.status, 8);  // no such service
  end(a);
}

TEST_F(Connections, OfAnotherPortSpaceAreRejected) {
  rdma_cm_id* const listener = listen(nullptr, RDMA_PS_UDP);
  rdma_cm_id* const a = reach(rdma_get_src_port(listener));
  ASSERT_EQ(rdma_connect(a, nullptr), 0);
  EXPECT_EQ(Seen(client).type, RDMA_CM_EVENT_REJECTED);
  end(a);
  end(listener);
}

TEST_F(Connections, OverTheLoopbackInterfaceToAWildcard) {
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  rdma_cm_id* const listener = listen(reinterpret_cast<sockaddr*>(&any));
  EXPECT_EQ(listener->verbs, nullptr);
  EXPECT_EQ(make_pair(listener), -1);
  rdma_cm_id* const a = reach(rdma_get_src_port(listener), RDMA_PS_TCP, htonl(INADDR_LOOPBACK));
  ASSERT_EQ(make_pair(a), 0);
  ASSERT_EQ(rdma_connect(a, nullptr), 0);
  const Seen request(server);
  ASSERT_EQ(make_pair(request.id), 0);
  EXPECT_EQ(rdma_get_local_addr(request.id)->sa_family, AF_INET);
  ASSERT_EQ(rdma_accept(request.id, nullptr), 0);
  EXPECT_EVENT(client, RDMA_CM_EVENT_ESTABLISHED);
  EXPECT_EVENT(server, RDMA_CM_EVENT_ESTABLISHED);
  exchange(a, request.id);
  end(a);
  EXPECT_EVENT(server, RDMA_CM_EVENT_DISCONNECTED);
  end(request.id);
  end(listener);
}

TEST_F(Connections, OfDatagramsTellNumberKeyAndWay) {
  rdma_cm_id* const listener = listen(nullptr, RDMA_PS_UDP);
  rdma_cm_id* const a = reach(rdma_get_src_port(listener), RDMA_PS_UDP);
  ASSERT_EQ(make_pair(a), 0);
  EXPECT_EQ(a->qp->state, IBV_QPS_RTS);
  rdma_conn_param parameters = say("who is there");
  ASSERT_EQ(rdma_connect(a, &parameters), 0);
  const Seen request(server);
  EXPECT_TRUE(request.starts_with("who is there"));
  rdma_cm_id* const b = request.id;
  ASSERT_EQ(make_pair(b), 0);
  parameters = say("a friend");
  ASSERT_EQ(rdma_accept(b, &parameters), 0);
  const Seen answer(client);
  ASSERT_EQ(answer.type, RDMA_CM_EVENT_ESTABLISHED);
  EXPECT_TRUE(answer.starts_with("a friend"));
  EXPECT_EQ(answer.ud.qp_num, b->qp->qp_num);
  EXPECT_EQ(answer.ud.qkey, static_cast<uint32_t>(RDMA_UDP_QKEY));
  ibv_ah_attr way = answer.ud.ah_attr;
  ibv_ah* const ah = ibv_create_ah(a->pd, &way);
  ASSERT_NE(ah, nullptr);
  uint8_t bytes[128] = {1, 2, 3};
  ibv_mr* const mine = rdma_reg_msgs(a, bytes, 3);
  ibv_mr* const other = rdma_reg_msgs(b, bytes + 64, 64);
  ASSERT_EQ(rdma_post_recv(b, nullptr, bytes + 64, 64, other), 0);
  ASSERT_EQ(rdma_post_ud_send(a, nullptr, bytes, 3, mine, 0, ah, answer.ud.qp_num), 0);
  ibv_wc wc{};
  while (ibv_poll_cq(b->recv_cq, 1, &wc) == 0) {
  }
  EXPECT_EQ(wc.byte_len, 43u);
  EXPECT_EQ(bytes[64 + 40 + 2], 3);
  EXPECT_EQ(ibv_destroy_ah(ah), 0);
  EXPECT_EQ(rdma_dereg_mr(mine), 0);
  EXPECT_EQ(rdma_dereg_mr(other), 0);
  end(a);
  end(b);
  end(listener);
}

TEST_F(Connections, OfEndpointsWaitForTheirEvents) {
  const sockaddr_in address = address_of_nic();
  char node[INET_ADDRSTRLEN];
  inet_ntop(AF_INET, &address.sin_addr, node, sizeof node);
  rdma_addrinfo hints{}, *found = nullptr;
  hints.ai_port_space = RDMA_PS_TCP;
  hints.ai_flags = RAI_PASSIVE;
  ASSERT_EQ(rdma_getaddrinfo(node, "0", &hints, &found), 0);
  ibv_qp_init_attr attributes{};
  attributes.cap = {8, 8, 1, 1, 64};
  attributes.sq_sig_all = 1;
  rdma_cm_id* listener = nullptr;
  ASSERT_EQ(rdma_create_ep(&listener, found, nullptr, &attributes), 0);
  rdma_freeaddrinfo(found);
  ASSERT_EQ(rdma_listen(listener, 0), 0);
  const std::string port = std::to_string(ntohs(rdma_get_src_port(listener)));
  hints.ai_flags = RAI_NUMERICHOST;
  ASSERT_EQ(rdma_getaddrinfo(node, port.c_str(), &hints, &found), 0);
  rdma_cm_id* a = nullptr;
  rdma_cm_id* b = nullptr;
  std::thread passive([&] {
    EXPECT_EQ(rdma_get_request(listener, &b), 0);
    EXPECT_EQ(rdma_accept(b, nullptr), 0);
    EXPECT_EQ(b->event->event, RDMA_CM_EVENT_ESTABLISHED);
  });
  ibv_qp_init_attr again = attributes;
  again.send_cq = again.recv_cq = nullptr;
  EXPECT_EQ(rdma_create_ep(&a, found, nullptr, &again), 0);
  EXPECT_EQ(rdma_connect(a, nullptr), 0);
  EXPECT_EQ(a->event->event, RDMA_CM_EVENT_ESTABLISHED);
  passive.join();
  exchange(a, b);
  std::thread other([&] { EXPECT_EQ(rdma_disconnect(b), 0); });
  EXPECT_EQ(rdma_disconnect(a), 0);
  other.join();
  rdma_destroy_ep(a);
  rdma_destroy_ep(b);
  rdma_destroy_ep(listener);
  // Now nobody listens there.
  again.send_cq = again.recv_cq = nullptr;
  ASSERT_EQ(rdma_create_ep(&a, found, nullptr, &again), 0);
  EXPECT_EQ(rdma_connect(a, nullptr), -1);
  EXPECT_EQ(errno, ECONNREFUSED);
  rdma_destroy_ep(a);
  rdma_freeaddrinfo(found);
}

TEST_F(Connections, MoveToOtherChannelsWithTheirEvents) {
  rdma_cm_id* const listener = listen();
  rdma_cm_id* const a = reach(rdma_get_src_port(listener));
  ASSERT_EQ(rdma_connect(a, nullptr), 0);
  const Seen request(server);
  end(request.id);
  pollfd wait{client->fd, POLLIN, 0};
  ASSERT_EQ(poll(&wait, 1, -1), 1);  // the rejection is there
  rdma_event_channel* const other = rdma_create_event_channel();
  ASSERT_EQ(rdma_migrate_id(a, other), 0);
  EXPECT_EQ(a->channel, other);
  EXPECT_EQ(Seen(other).type, RDMA_CM_EVENT_REJECTED);
  ASSERT_EQ(fcntl(client->fd, F_SETFL, O_NONBLOCK), 0);
  rdma_cm_event* event = nullptr;
  EXPECT_EQ(rdma_get_cm_event(client, &event), -1);
  EXPECT_EQ(errno, EAGAIN);
  end(a);
  rdma_destroy_event_channel(other);
  end(listener);
}

TEST_F(Connections, ThatWaitAtAListenerEndWithIt) {
  rdma_cm_id* const listener = listen();
  rdma_cm_id* const a = reach(rdma_get_src_port(listener));
  ASSERT_EQ(rdma_connect(a, nullptr), 0);
  pollfd wait{server->fd, POLLIN, 0};
  ASSERT_EQ(poll(&wait, 1, -1), 1);
  end(listener);
  const Seen answer(client);
  EXPECT_EQ(answer.type, RDMA_CM_EVENT_REJECTED);
  EXPECT_EQ(answer.status, 28);
  end(a);
}

TEST_F(Connections, WrongCallsAreRefused) {
  rdma_cm_id* const listener = listen();
  rdma_cm_id* id = nullptr;
  EXPECT_EQ(rdma_create_id(client, &id, nullptr, RDMA_PS_IPOIB), -1);
  EXPECT_EQ(errno, EPROTONOSUPPORT);
  ASSERT_EQ(rdma_create_id(client, &id, nullptr, RDMA_PS_TCP), 0);
  EXPECT_EQ(rdma_bind_addr(id, &listener->route.addr.src_addr), -1);
  EXPECT_EQ(errno, EADDRINUSE);
  sockaddr_in nobodys{};
  nobodys.sin_family = AF_INET;
  nobodys.sin_addr.s_addr = htonl(0xc0000201);  // 192.0.2.1, of the documentation
  if (nobodys.sin_addr.s_addr != address_of_nic().sin_addr.s_addr) {
    EXPECT_EQ(rdma_bind_addr(id, reinterpret_cast<sockaddr*>(&nobodys)), -1);
    EXPECT_EQ(errno, EADDRNOTAVAIL);
  }
  EXPECT_EQ(rdma_resolve_route(id, 100), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(rdma_connect(id, nullptr), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(rdma_accept(id, nullptr), -1);
  EXPECT_EQ(rdma_disconnect(id), -1);
  end(id);
  id = reach(rdma_get_src_port(listener));
  rdma_conn_param parameters = say("");
  parameters.private_data = "";
  parameters.private_data_len = 57;
  EXPECT_EQ(rdma_connect(id, &parameters), -1);
  EXPECT_EQ(errno, EINVAL);
  parameters.private_data_len = 0;
  parameters.initiator_depth = 17;  // more than the NIC has
  EXPECT_EQ(rdma_connect(id, &parameters), -1);
  EXPECT_EQ(errno, EINVAL);
  end(id);
  end(listener);
  EXPECT_EQ(rdma_join_multicast(nullptr, nullptr, nullptr), -1);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

// Not a test by itself: the other process of the next one. It connects, and waits to be killed.
TEST_F(Connections, DISABLED_Dies) {
  const char* const port = std::getenv("NICCOLITE_TEST_PORT");
  if (port == nullptr) GTEST_SKIP() << "only the next test starts it";
  rdma_cm_id* const a = reach(htons(static_cast<uint16_t>(std::atoi(port))));
  ASSERT_EQ(make_pair(a), 0);
  ASSERT_EQ(rdma_connect(a, nullptr), 0);
  EXPECT_EVENT(client, RDMA_CM_EVENT_ESTABLISHED);
  for (;;) pause();
}

TEST_F(Connections, OfAPeerThatDiesAreDisconnected) {
  rdma_cm_id* const listener = listen();
  const std::string port = std::to_string(ntohs(rdma_get_src_port(listener)));
  for (const bool accepted : {false, true}) {
    SCOPED_TRACE(accepted);
    setenv("NICCOLITE_TEST_PORT", port.c_str(), 1);
    std::string arguments[] = {"/proc/self/exe", "--gtest_filter=Connections.DISABLED_Dies",
                               "--gtest_also_run_disabled_tests"};
    char* argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(), nullptr};
    pid_t child = 0;
    ASSERT_EQ(posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, argv, environ), 0);
    const Seen request(server);
    ASSERT_EQ(request.type, RDMA_CM_EVENT_CONNECT_REQUEST);
    ASSERT_EQ(make_pair(request.id), 0);
    if (accepted) {
      ASSERT_EQ(rdma_accept(request.id, nullptr), 0);
      EXPECT_EVENT(server, RDMA_CM_EVENT_ESTABLISHED);
    }
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const Seen last(server);
    EXPECT_EQ(last.type, accepted ? RDMA_CM_EVENT_DISCONNECTED : RDMA_CM_EVENT_REJECTED);
    EXPECT_EQ(last.status, accepted ? 0 : 4);  // a request that timed out
    EXPECT_EQ(rdma_disconnect(request.id), 0);
    end(request.id);
  }
  end(listener);
}

}  // namespace
