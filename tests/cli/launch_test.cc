// What launchers and --hosts say about the processes of a run.
#include "cli/perf/launch.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <map>

#include "cli/perf/hosts.h"

namespace niccolite::perf {
namespace {

using ::testing::HasSubstr;

Result<std::optional<Launch>> find(const std::map<std::string, std::string>& variables) {
  return find_launch([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(Launches, AreFoundInTheVariablesOfEachLauncher) {
  struct Case {
    std::map<std::string, std::string> variables;
    int process, processes, local;
    const char* meeting;
  };
  for (const Case& c : {
           Case{{{"RANK", "3"},
                 {"WORLD_SIZE", "8"},
                 {"LOCAL_RANK", "1"},
                 {"MASTER_ADDR", "a12"},
                 {"MASTER_PORT", "29500"},
                 {"TORCHELASTIC_RUN_ID", "x"}},
                3,
                8,
                1,
                "a12:29501"},
           Case{{{"RANK", "0"},
                 {"WORLD_SIZE", "2"},
                 {"LOCAL_RANK", "0"},
                 {"MASTER_ADDR", "fd00::7"},
                 {"MASTER_PORT", "4000"}},
                0,
                2,
                0,
                "[fd00::7]:4000"},
           Case{{{"SLURM_PROCID", "5"},
                 {"SLURM_NTASKS", "6"},
                 {"SLURM_LOCALID", "2"},
                 {"SLURM_NODELIST", "gpu[07-08,12]"}},
                5,
                6,
                2,
                "gpu07:29519"},
           Case{{{"SLURM_PROCID", "1"},
                 {"SLURM_NTASKS", "64"},
                 {"SLURM_STEP_NUM_TASKS", "2"},
                 {"SLURM_STEP_ID", "0"},
                 {"SLURM_JOB_ID", "123456"},
                 {"SLURM_LOCALID", "0"},
                 {"SLURM_STEP_NODELIST", "b3,c[1-2]"},
                 {"SLURM_NODELIST", "a1"}},
                1,
                2,
                0,
                "b3:23456"},
           Case{{{"OMPI_COMM_WORLD_RANK", "1"},
                 {"OMPI_COMM_WORLD_SIZE", "2"},
                 {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
                1,
                2,
                1,
                "127.0.0.1:29519"},
           Case{{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MASTER_ADDR", "a"}}, 1, 2, 0, "a:29519"},
       }) {
    SCOPED_TRACE(c.meeting);
    const Result<std::optional<Launch>> found = find(c.variables);
    ASSERT_TRUE(found.is_ok()) << found.status().message();
    ASSERT_TRUE(found.value().has_value());
    const Launch& launch = *found.value();
    EXPECT_EQ(launch.process, c.process);
    EXPECT_EQ(launch.processes, c.processes);
    EXPECT_EQ(launch.local_process, c.local);
    EXPECT_EQ(launch.meeting, c.meeting);
  }
}

TEST(Launches, OfOneProcessAreNone) {
  using Variables = std::map<std::string, std::string>;
  for (const Variables& variables :
       {Variables{}, Variables{{"RANK", "1"}}, Variables{{"RANK", "0"}, {"WORLD_SIZE", "1"}},
        // A batch script, which is none of the tasks that it will start.
        Variables{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "7"}}}) {
    const Result<std::optional<Launch>> found = find(variables);
    ASSERT_TRUE(found.is_ok()) << found.status().message();
    EXPECT_FALSE(found.value().has_value());
  }
}

TEST(Launches, ThatMakeNoSenseAreRefused) {
  EXPECT_THAT(find({{"RANK", "x"}, {"WORLD_SIZE", "2"}}).status().message(),
              HasSubstr("RANK=x is no number"));
  EXPECT_THAT(find({{"RANK", "2"}, {"WORLD_SIZE", "2"}}).status().message(),
              HasSubstr("RANK=2 and WORLD_SIZE=2 contradict"));
  EXPECT_THAT(
      find({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}}).status().message(),
      HasSubstr("MASTER_ADDR"));
}

TEST(Hosts, AreReadFromTheCommandLineAndFromFiles) {
  const std::string path = ::testing::TempDir() + "/hosts_" + std::to_string(getpid());
  std::ofstream(path) << "a   # the first\n\n  me@b:4\n[fe80::1]:2\nfe80::2\n";
  for (const std::string& text : {std::string("a,me@b:4,[fe80::1]:2,fe80::2"), "@" + path}) {
    const Result<std::vector<Host>> hosts = parse_hosts(text);
    ASSERT_TRUE(hosts.is_ok()) << hosts.status().message();
    std::string all;
    for (const Host& host : hosts.value()) all += fmt::format("{} {};", host.name, host.threads);
    EXPECT_EQ(all, "a 0;me@b 4;fe80::1 2;fe80::2 0;");
  }
  std::remove(path.c_str());
}

TEST(Hosts, ThatAreNoneAreRefused) {
  for (const char* text :
       {"", ",", "@/nowhere", ":4", "a:0", "a:x", "a:4x", "-oProxyCommand=x", "a,b,a", "a:2,a:3"}) {
    SCOPED_TRACE(text);
    EXPECT_THAT(parse_hosts(text).status().message(), HasSubstr("--hosts"));
  }
}

TEST(Hosts, GetTheVariablesThatMatter) {
  const char* const environment[] = {"HOME=/home/me",     "NCCL_DEBUG=INFO", "NCCL_HOSTID=one",
                                     "NICCOLITE_X=it's;", "NCCL_ALGO=",      nullptr};
  EXPECT_EQ(make_script({"/bin/niccolite", "perf", "a b"}, "/some where", environment),
            "cd '/some where' 2>/dev/null\n"
            "export NCCL_DEBUG='INFO'\n"
            "export NICCOLITE_X='it'\\''s;'\n"
            "export NCCL_ALGO=''\n"
            "exec '/bin/niccolite' 'perf' 'a b'\n");
}

}  // namespace
}  // namespace niccolite::perf
