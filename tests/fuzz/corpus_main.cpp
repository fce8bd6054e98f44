// Runs a fuzz target without libFuzzer: every file of a corpus, some random bytes, and mutations of both that are the same in every run.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr int kRandomInputs = 32;
constexpr size_t kRandomLength = 400;
constexpr int kMutations = 200;              // of each input
constexpr std::chrono::seconds kBudget{10};  // of all mutations together, for slow builds

void run(const std::string& input) { LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size()); }

// One to four edits: another byte, a byte less, a byte twice, the end cut off.
std::string mutate(std::string input, std::minstd_rand& random) {
  for (auto edits = 1 + random() % 4; edits > 0 && !input.empty(); --edits) {
    const size_t at = random() % input.size();
    switch (random() % 8) {
      case 0: input.erase(at, 1); break;
      case 1: input.insert(at, 1, input[at]); break;
      case 2: input.resize(at); break;
      default: input[at] = static_cast<char>(random() % 256); break;
    }
  }
  return input;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> inputs{""};
  for (int i = 1; i < argc; ++i) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(argv[i], error)) {
      std::ifstream in(entry.path(), std::ios::binary);
      inputs.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    }
    if (error) {
      std::fprintf(stderr, "%s: expected a corpus directory: %s\n", argv[i], error.message().c_str());
      return 2;
    }
  }
  // The order of a directory is not defined.
  std::sort(inputs.begin(), inputs.end());
  std::minstd_rand random(1);
  for (int i = 0; i < kRandomInputs; ++i) {
    std::string& input = inputs.emplace_back(1 + random() % kRandomLength, '\0');
    for (char& c : input) c = static_cast<char>(random() % 256);
  }
  for (const std::string& input : inputs) run(input);
  const auto end = std::chrono::steady_clock::now() + kBudget;
  int mutations = 0;
  for (int round = 0; round < kMutations && std::chrono::steady_clock::now() < end; ++round) {
    for (const std::string& input : inputs) {
      run(mutate(input, random));
      ++mutations;
    }
  }
  std::printf("%zu inputs, %d mutations\n", inputs.size(), mutations);
  return 0;
}
