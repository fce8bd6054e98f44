// What launchers of several processes say in the environment.
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "core/check.h"
#include "strata/collectives.h"

namespace strata {
namespace {

// Names of a launcher's variables; null: it has none.
struct Launcher {
  const char *rank, *size, *local_rank;
};
constexpr Launcher kLaunchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK"},                                            // torchrun
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},  // Open MPI
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},                                     // MPICH, Intel MPI
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"},                       // srun
};

const char* variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

int64_t number(const char* name, int64_t low, int64_t high) {
  const char* const text = variable(name);
  require(text != nullptr, "{}: expected a number, as another variable of the launcher is set, is not set", name);
  const std::string_view all = text;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(all.data(), all.data() + all.size(), value);
  require(error == std::errc() && end == all.data() + all.size() && value >= low && value <= high, "{}: expected {} to {}, is '{}'", name,
          low, high, text);
  return value;
}

// The first of Slurm's list: "node[03-05,9],other" is node03.
std::string first_host(std::string_view list) {
  const std::string_view first = list.substr(0, list.find_first_of("[,"));
  if (first.size() == list.size() || list[first.size()] == ',') return std::string(first);
  const std::string_view numbers = list.substr(first.size() + 1);
  return std::string(first) + std::string(numbers.substr(0, numbers.find_first_of("-,]")));
}

std::string rendezvous_of_launcher() {
  if (const char* text = variable("STRATA_RENDEZVOUS")) return text;
  constexpr int64_t kPorts = 65535;
  if (const char* host = variable("MASTER_ADDR")) return fmt::format("tcp:{}:{}", host, number("MASTER_PORT", 1, kPorts - 1) + 1);
  if (const char* hosts = variable("SLURM_STEP_NODELIST")) {
    constexpr int64_t kFirstPort = 20000, kSpread = 10000;
    const int64_t job = number("SLURM_JOB_ID", 0, INT64_MAX / 16), step = number("SLURM_STEP_ID", 0, INT64_MAX / 2);
    return fmt::format("tcp:{}:{}", first_host(hosts), kFirstPort + (job * 7 + step) % kSpread);
  }
  return "";
}

}  // namespace

std::optional<LaunchedProcess> launched_process() {
  for (const Launcher& launcher : kLaunchers) {
    if (variable(launcher.rank) == nullptr) continue;
    constexpr int64_t kMost = 1 << 20;
    LaunchedProcess launch;
    launch.size = static_cast<int>(number(launcher.size, 1, kMost));
    launch.rank = static_cast<int>(number(launcher.rank, 0, launch.size - 1));
    // One process a host where nothing else is said.
    if (variable(launcher.local_rank) != nullptr) launch.local_rank = static_cast<int>(number(launcher.local_rank, 0, launch.size - 1));
    if (launch.size > 1) launch.rendezvous = rendezvous_of_launcher();
    return launch;
  }
  return std::nullopt;
}

}  // namespace strata
