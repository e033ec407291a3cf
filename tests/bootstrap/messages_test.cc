// Every message survives its bytes, and no bytes crash a decoder.
#include "bootstrap/messages.h"

#include <random>

#include "ranks.h"

namespace niccolite::bootstrap {
namespace {

using testing::HasSubstr;

Address sample_address() { return Address::parse("10.1.2.3:40123").value(); }

struct Sample {
  const char* name;
  Bytes bytes;  // with the type
  Status (*decode)(Reader&);
};

template <typename Message>
Status decode_only(Reader& reader) {
  return Message::decode(reader).status();
}

std::vector<Sample> samples() {
  using namespace messages;
  static const Bytes content = pattern(3, 40);
  const Origin origin{.process = {.number = 4711, .kernel = 1, .pid_namespace = 2, .started = 3},
                      .host = "a12"};
  const Failed failed{.code = Code::InvalidUsage, .peer = 3, .text = "wrong"};
  return {
      {"Join",
       Join{.rank = 1,
            .nranks = 4,
            .milliseconds_left = 5000,
            .session = sample_address(),
            .number = 77,
            .origin = origin}
           .encode(),
       decode_only<Join>},
      {"Place",
       Assignment{.process = 1,
                  .nprocesses = 3,
                  .nranks = 5,
                  .neighbors = {{.process = 0, .number = 9, .address = sample_address()},
                                {.process = 2, .number = 8, .address = sample_address()}}}
           .encode(),
       decode_only<Assignment>},
      {"Refused",
       Refused{.code = Code::RemoteError, .peer = 5, .text = "late", .missing = {5, 6}}.encode(),
       decode_only<Refused>},
      {"Failed", failed.encode(), decode_only<Failed>},
      {"Gather", Gather{.sequence = 3, .process = 2, .content = content}.encode(),
       decode_only<Gather>},
      {"GatherAbsent", GatherAbsent{.sequence = 3, .process = 2, .rank = 4, .why = "left"}.encode(),
       decode_only<GatherAbsent>},
      {"Data", Data{.from = 1, .to = 2, .tag = 3, .content = content}.encode(), decode_only<Data>},
      {"Request", Request{.from = 1, .to = 2, .call = 3, .content = content}.encode(),
       decode_only<Request>},
      {"Response",
       Response{.call = 3, .succeeded = true, .failure = {}, .content = content}.encode(),
       decode_only<Response>},
      {"ResponseFailed",
       Response{.call = 3, .succeeded = false, .failure = failed, .content = {}}.encode(),
       decode_only<Response>},
      {"Host", Host{.origin = origin, .ranks = {0, 3}}.encode(), decode_only<Host>},
      {"Awaited", Awaited{.why = Awaited::Why::Stopped, .ranks = {2, 3}, .origin = origin}.encode(),
       decode_only<Awaited>},
      {"Survive",
       Survive{.number = 2,
               .process = 1,
               .excluded = {3, 5},
               .failure = {.code = Code::Ok, .peer = -1, .text = {}},
               .content = content}
           .encode(),
       decode_only<Survive>},
      {"SurviveFailed",
       Survive{.number = 2, .process = 1, .excluded = {3}, .failure = failed, .content = {}}
           .encode(),
       decode_only<Survive>},
      {"InGroup", InGroup{.group = 77, .frame = content}.encode(), decode_only<InGroup>},
      {"Left", Left{.ranks = {1, 2}}.encode(), decode_only<Left>},
      {"Lost", Lost{.process = 2, .rank = 3, .who = "rank 3", .why = "gone"}.encode(),
       decode_only<Lost>},
  };
}

Status decode(const Sample& sample, std::span<const std::byte> bytes) {
  Reader reader(bytes, "rank 7");
  reader.u8();
  return sample.decode(reader);
}

TEST(Messages, SurviveTheirBytes) {
  for (const Sample& sample : samples()) {
    const Status status = decode(sample, sample.bytes);
    EXPECT_TRUE(status.is_ok()) << sample.name << ": " << status.message();
  }
  const Bytes place = samples()[1].bytes;
  Reader again(std::span<const std::byte>(place).subspan(1), "root");
  const auto decoded = messages::Assignment::decode(again);
  ASSERT_TRUE(decoded.is_ok());
  EXPECT_EQ(decoded.value().process, 1u);
  EXPECT_EQ(decoded.value().nranks, 5);
  ASSERT_EQ(decoded.value().neighbors.size(), 2u);
  EXPECT_EQ(decoded.value().neighbors[1].number, 8u);
  EXPECT_EQ(decoded.value().neighbors[1].address, sample_address());
}

TEST(Messages, NameTheSenderWhenCutShortOrTooLong) {
  for (const Sample& sample : samples()) {
    const std::string name = sample.name;
    const bool open_end = name == "Gather" || name == "Data" || name == "Request" ||
                          name == "Response" || name == "InGroup" || name == "Survive";
    const size_t fixed = open_end ? sample.bytes.size() - 40 : sample.bytes.size();
    for (size_t length = 1; length < fixed; ++length) {
      const Status status = decode(sample, std::span(sample.bytes).first(length));
      ASSERT_FALSE(status.is_ok()) << name << " of " << length << " bytes";
      EXPECT_THAT(status.message(), HasSubstr("from rank 7"));
    }
    Bytes longer = sample.bytes;
    longer.push_back(std::byte{0});
    EXPECT_EQ(decode(sample, longer).is_ok(), open_end) << name;
  }
}

TEST(Messages, NeverCrashOnMutatedOrRandomBytes) {
  std::mt19937 random(20261121);
  for (const Sample& sample : samples()) {
    for (int i = 0; i < 3000; ++i) {
      Bytes bytes = sample.bytes;
      if (i % 2 == 0) bytes.resize(random() % (bytes.size() + 20) + 1);
      for (size_t changes = random() % 6 + 1; changes > 0; --changes)
        bytes[random() % bytes.size()] = static_cast<std::byte>(random());
      decode(sample, bytes).ignore("any outcome but a crash");
      Reader reader(bytes, "rank 7");
      messages::ProcessEntry::decode(reader).ignore("any outcome but a crash");
      Reader contributions(bytes, "rank 7");
      messages::decode_contributions(contributions).ignore("any outcome but a crash");
    }
  }
}

TEST(Messages, CountsBeyondTheBytesAreRefusedBeforeMemoryIsTaken) {
  Writer writer;
  writer.u32(kMaxRanks);  // a million ranks, and nothing behind
  Reader reader(writer.bytes(), "rank 7");
  EXPECT_FALSE(messages::Left::decode(reader).is_ok());
}

TEST(Contributions, SurviveTheirBytes) {
  const Bytes a = pattern(1, 30), b = pattern(5, 0);
  const std::vector<messages::Contribution> mine = {{.rank = 1, .bytes = a},
                                                    {.rank = 5, .bytes = b}};
  const Bytes bytes = messages::encode_contributions(mine);
  Reader reader(bytes, "rank 7");
  const auto decoded = messages::decode_contributions(reader);
  ASSERT_TRUE(decoded.is_ok());
  ASSERT_EQ(decoded.value().size(), 2u);
  EXPECT_TRUE(same(decoded.value()[0].bytes, a));
  EXPECT_EQ(decoded.value()[1].rank, 5);
}

TEST(DescribeRanks, SumsUpRuns) {
  const struct {
    std::vector<int32_t> ranks;
    const char* text;
  } cases[] = {{{5}, "rank 5"},
               {{5, 6}, "ranks 5, 6"},
               {{1, 2, 3, 7}, "ranks 1-3, 7"},
               {{0, 2, 4, 5, 6, 7}, "ranks 0, 2, 4-7"}};
  for (const auto& c : cases) EXPECT_EQ(describe_ranks(c.ranks), c.text);
  std::vector<int32_t> many;
  for (int i = 0; i < 100; ++i) many.push_back(2 * i);
  EXPECT_THAT(describe_ranks(many), HasSubstr("30 and 84 more"));
}

}  // namespace
}  // namespace niccolite::bootstrap
