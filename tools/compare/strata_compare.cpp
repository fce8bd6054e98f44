// Runs and times ops of Strata on tensors of safetensors files, for tools/compare/run: strata_compare DEVICE
// Prints {"device": TEXT, "version": TEXT}. Then each line of standard input is a command, and gets one line as its answer:
//   {"do": "load", "op": NAME, "file": PATH}     {"implementation": NAME, "copies": N}: the call that op_call.h describes
//   {"do": "run", "file": PATH}                  {}: runs the call once on copy 0, and writes its outputs to the file
//   {"do": "time", "min_time": SECONDS}          {"median_s": SECONDS, "graph": true}: as strata bench times the call
// The answer is {"error": TEXT} where a command failed. Exit codes: 0 end of the input; 2 no such device.
#include <fmt/format.h>

#include <cstddef>
#include <cstdio>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "op_call.h"
#include "strata/checkpoint.h"
#include "testkit/bench/timing.h"
#include "version.h"

namespace strata::compare {
namespace {

using Json = nlohmann::ordered_json;

void print_line(const Json& value) {
  fmt::print("{}\n", value.dump());
  std::fflush(stdout);
}

class Session {
 public:
  explicit Session(std::shared_ptr<Device> device) : device_(std::move(device)) {}

  Json answer(const Json& command) {
    const auto what = command.at("do").get<std::string>();
    if (what == "load") return load(command.at("op"), command.at("file"));
    if (!call_) throw Error(ErrorCode::invalid_argument, "no call is loaded");
    if (what == "run") return run(command.at("file"));
    if (what == "time") return time(command.at("min_time"));
    throw Error(ErrorCode::invalid_argument, "expected load, run or time, is '" + what + "'");
  }

 private:
  Json load(const std::string& op, const std::string& file) {
    call_.reset();  // its memory first
    call_ = load_call(ops_, device_, op, file);
    return {{"implementation", call_->work.implementation}, {"copies", call_->work.copies}};
  }

  Json run(const std::string& file) const {
    call_->work.call(0, {});
    device_->synchronize({});
    std::vector<std::vector<std::byte>> memory;
    std::vector<StoredTensor> tensors;
    for (const auto& [name, view] : call_->outputs) {
      const std::vector<std::byte>& bytes = memory.emplace_back(static_cast<size_t>(view.bytes()));
      device_->copy_to_host(memory.back().data(), view.data, view.bytes(), {});
      tensors.push_back({name, view.dtype, {view.shape.begin(), view.shape.begin() + view.rank}, bytes.data(), bytes.size()});
    }
    device_->synchronize({});
    write_safetensors(file, tensors);
    return Json::object();
  }

  Json time(double min_time) const {
    const testkit::Timing timing = testkit::measure(call_->work, device_, {.min_time = min_time});
    return {{"median_s", timing.median}, {"graph", timing.graph}};
  }

  std::shared_ptr<Device> device_;
  OpSet ops_ = default_ops();
  std::optional<OpCall> call_;
};

int run(const std::string& device_name) {
  std::shared_ptr<Device> device;
  try {
    device = open_device(parse_device_id(device_name), Config::from_environment());
  } catch (const std::exception& error) {
    fmt::print(stderr, "strata_compare: {}\n", error.what());
    return 2;
  }
  print_line({{"device", device->description()}, {"version", cli::version_text()}});
  Session session(device);
  for (std::string line; std::getline(std::cin, line);) {
    try {
      print_line(session.answer(Json::parse(line)));
    } catch (const std::exception& error) {
      print_line({{"error", error.what()}});
    }
  }
  return 0;
}

}  // namespace
}  // namespace strata::compare

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: strata_compare DEVICE\n");
    return 2;
  }
  return strata::compare::run(argv[1]);
}
