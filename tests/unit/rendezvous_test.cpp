// Where processes of a job meet: files, TCP, two hosts, and what launchers say.
#include <gmock/gmock.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstdlib>
#include <fstream>
#include <map>

#include "ranks.h"

namespace strata {
namespace {

using test::ChildProcess;
using test::new_rendezvous_path;
using testing::HasSubstr;

// A port of this address that is free now.
int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(fd);
  return ntohs(address.sin_port);
}

// share_bytes by ranks that are processes: what each has received. sizes: of each rank.
std::vector<std::string> shared(const std::string& rendezvous, const std::vector<int>& ranks, const std::vector<int>& sizes,
                                double timeout_seconds = 20) {
  std::vector<ChildProcess> children;
  for (size_t i = 0; i < ranks.size(); ++i) {
    children.emplace_back([&, i] {
      const std::string own = "bytes of rank " + std::to_string(ranks[i]);
      const auto got = share_bytes({.rank = ranks[i], .size = sizes[i], .rendezvous = rendezvous, .timeout_seconds = timeout_seconds},
                                   {own.begin(), own.end()});
      return std::string(got.begin(), got.end());
    });
  }
  std::vector<std::string> results;
  for (ChildProcess& child : children) results.push_back(child.wait());
  return results;
}

TEST(Rendezvous, FilesAndTcpGiveTheBytesOfRank0) {
  for (const std::string& rendezvous :
       {"file:" + new_rendezvous_path(), "tcp:127.0.0.1:" + std::to_string(free_port()), "tcp:localhost:" + std::to_string(free_port())}) {
    EXPECT_THAT(shared(rendezvous, {2, 0, 1, 3}, {4, 4, 4, 4}), testing::Each("bytes of rank 0")) << rendezvous;
  }
}

TEST(Rendezvous, AFileOfAnEarlierJobIsPassedOver) {
  const std::string path = new_rendezvous_path();
  std::ofstream(path) << "strata 0123456789abcdef 2\nof the earlier job";
  std::vector<ChildProcess> children;
  for (const int rank : {1, 0}) {  // rank 1 reads the old file first
    children.emplace_back([&, rank] {
      if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
      const auto got = share_bytes({.rank = rank, .size = 2, .rendezvous = "file:" + path, .timeout_seconds = 20}, {'n', 'e', 'w'});
      return std::string(got.begin(), got.end());
    });
  }
  for (ChildProcess& child : children) EXPECT_EQ(child.wait(), "new");
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_FALSE(std::filesystem::exists(path + ".1"));
}

TEST(Rendezvous, MissingRanksAreNamedInTime) {
  for (const std::string& rendezvous : {"file:" + new_rendezvous_path(), "tcp:127.0.0.1:" + std::to_string(free_port())}) {
    const auto results = shared(rendezvous, {0, 1}, {3, 3}, 1.5);
    EXPECT_THAT(results[0], HasSubstr("rank 0 of 3: joining at " + rendezvous + ": rank 2 has not arrived within 1.5 s"));
    EXPECT_THAT(results[1], HasSubstr("rank 1 of 3: joining at " + rendezvous));
    EXPECT_THAT(shared(rendezvous, {1}, {2}, 0.3)[0], HasSubstr("rank 0 has not arrived")) << rendezvous;
  }
}

TEST(Rendezvous, SizesMustAgree) {
  const std::string tcp = "tcp:127.0.0.1:" + std::to_string(free_port());
  auto results = shared(tcp, {0, 1}, {2, 3}, 5);
  EXPECT_THAT(results[0], HasSubstr("expected ranks 1 to 1 of 2, rank 1 of 3 arrived"));
  EXPECT_THAT(results[1], HasSubstr("expected rank 0's number of ranks, 2"));
  results = shared("file:" + new_rendezvous_path(), {0, 1}, {2, 3}, 1.5);
  EXPECT_THAT(results[1], HasSubstr("expected rank 0's number of ranks, 2"));
}

TEST(Rendezvous, WrongTexts) {
  const auto text_of = [](const RankOptions& options) {
    return test::result_of([&] { return static_cast<void>(share_bytes(options, {})), std::string("none"); });
  };
  EXPECT_THAT(text_of({.rank = 0, .size = 2, .rendezvous = "here"}), HasSubstr("file:PATH or tcp:HOST:PORT, is 'here'"));
  EXPECT_THAT(text_of({.rank = 0, .size = 2, .rendezvous = "tcp:5000"}), HasSubstr("tcp:HOST:PORT, is 'tcp:5000'"));
  EXPECT_THAT(text_of({.rank = 0, .size = 2, .rendezvous = "tcp:127.0.0.1:port"}), HasSubstr("expected a host and a port number"));
  EXPECT_THAT(text_of({.rank = 2, .size = 2, .rendezvous = "file:x"}), HasSubstr("rank must be in [0, 2), is 2"));
  EXPECT_THAT(text_of({.rank = 0, .size = 2, .rendezvous = "file:/no/such/folder/x", .timeout_seconds = 1}),
              HasSubstr("expected a file that can be written"));
  EXPECT_EQ(text_of({}), "none") << "one rank alone meets nobody";
}

// Rank 0 in a network namespace of its own: two hosts, between which there is no route. The rank on the other one says so in time.
TEST(Rendezvous, AHostWithoutARouteIsAnErrorInTime) {
  const std::string rendezvous = "tcp:127.0.0.1:" + std::to_string(free_port());
  ChildProcess other([&]() -> std::string {
    if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return "no namespaces";
    const auto got = share_bytes({.rank = 0, .size = 2, .rendezvous = rendezvous, .timeout_seconds = 0.5}, {'x'});
    return std::string(got.begin(), got.end());
  });
  const std::string here = shared(rendezvous, {1}, {2}, 0.5)[0], there = other.wait();
  if (there == "no namespaces") GTEST_SKIP() << "this machine has no network namespaces for its users";
  EXPECT_THAT(here, HasSubstr("rank 0 has not arrived"));
  EXPECT_THAT(there, HasSubstr("error: "));
}

class LaunchVariables : public testing::Test {
 protected:
  // The launch of these variables alone.
  std::string launch(const std::map<std::string, std::string>& variables) {
    for (const char* name :
         {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
          "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
          "SLURM_STEP_NODELIST", "SLURM_JOB_ID", "SLURM_STEP_ID", "STRATA_RENDEZVOUS"}) {
      unsetenv(name);
    }
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    return test::result_of([]() -> std::string {
      const auto launch = launched_process();
      if (!launch) return "none";
      return std::to_string(launch->rank) + " of " + std::to_string(launch->size) + ", local " + std::to_string(launch->local_rank) + ", " +
             launch->rendezvous;
    });
  }
};

TEST_F(LaunchVariables, OfEachLauncher) {
  EXPECT_EQ(launch({}), "none");
  EXPECT_EQ(launch({{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"}}),
            "3 of 8, local 1, tcp:10.0.0.1:29501");
  EXPECT_EQ(launch({{"OMPI_COMM_WORLD_RANK", "1"},
                    {"OMPI_COMM_WORLD_SIZE", "2"},
                    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                    {"STRATA_RENDEZVOUS", "file:/shared/job"}}),
            "1 of 2, local 1, file:/shared/job");
  EXPECT_EQ(launch({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}), "0 of 2, local 0, ");
  EXPECT_EQ(launch({{"SLURM_PROCID", "5"},
                    {"SLURM_STEP_NUM_TASKS", "16"},
                    {"SLURM_LOCALID", "1"},
                    {"SLURM_STEP_NODELIST", "gpu[03-05,9],x"},
                    {"SLURM_JOB_ID", "1000"},
                    {"SLURM_STEP_ID", "2"}}),
            "5 of 16, local 1, tcp:gpu03:27002");
  EXPECT_EQ(launch({{"SLURM_PROCID", "0"},
                    {"SLURM_STEP_NUM_TASKS", "2"},
                    {"SLURM_STEP_NODELIST", "one,two"},
                    {"SLURM_JOB_ID", "0"},
                    {"SLURM_STEP_ID", "0"}}),
            "0 of 2, local 0, tcp:one:20000");
}

TEST_F(LaunchVariables, WrongValues) {
  EXPECT_THAT(launch({{"RANK", "1"}}), HasSubstr("WORLD_SIZE: expected a number"));
  EXPECT_THAT(launch({{"RANK", "2"}, {"WORLD_SIZE", "2"}}), HasSubstr("RANK: expected 0 to 1, is '2'"));
  EXPECT_THAT(launch({{"RANK", "0"}, {"WORLD_SIZE", "two"}}), HasSubstr("WORLD_SIZE: expected 1 to 1048576, is 'two'"));
  EXPECT_THAT(launch({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}), HasSubstr("MASTER_PORT: expected a number"));
}

}  // namespace
}  // namespace strata
