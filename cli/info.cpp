// strata info: the device, and every op's implementations with why one is refused.
#include <fmt/format.h>

#include "common.h"
#include "last_runs.h"
#include "testkit/bench/probes.h"
#include "strata/attention.h"
#include "strata/device.h"

namespace strata::cli {
namespace {

struct OtherDevice {
  std::string name;  // "opencl:0", or "opencl" where there is none
  std::string text;  // its description, or why there is none
};

// The accelerators that are not `own`.
std::vector<OtherDevice> other_devices(DeviceId own, const Config& config) {
  std::vector<OtherDevice> result;
  for (const DeviceKind kind : {DeviceKind::cuda, DeviceKind::opencl}) {
    for (int32_t index = 0;; ++index) {
      const DeviceId id{kind, index};
      if (id == own) continue;
      const std::string name = to_string(id);
      try {
        result.push_back({name, strata::open_device(id, config)->description()});
      } catch (const Error& error) {
        if (index == 0) result.push_back({name.substr(0, name.find(':')), error.what()});
        break;
      }
    }
  }
  return result;
}

int run(const CommonOptions& o) {
  const auto device = open_device(o);
  const OpSet ops = default_ops();
  Json json = {{"device", to_string(device->id())}, {"description", device->description()}};
  // Other devices' implementations are run wherever they are built.
  const bool has_runs = device->id().kind == DeviceKind::opencl;
  std::vector<std::string> columns = {"op", "implementation", "status", "reason"};
  if (has_runs) columns.emplace_back("last run");
  Table table(columns);
  for (const testkit::Probe& probe : testkit::probe_ops(ops, *device)) {
    for (const Candidate& c : probe.candidates) {
      const bool ok = static_cast<bool>(c.support), chosen = c.name == probe.chosen;
      std::vector<std::string> row = {probe.op, c.name,
                                      chosen             ? "chosen"
                                      : !ok              ? "refused"
                                      : !c.is_eligible() ? "not preferred"
                                                         : "available",
                                      c.reason()};
      Json entry = {{"implementation", c.name}, {"supported", ok}, {"chosen", chosen}, {"reason", c.reason()}};
      if (has_runs && c.name.starts_with("opencl/")) {
        const std::vector<LastRun> runs = last_runs(probe.op, c.name);
        row.push_back(to_string(runs));
        for (const LastRun& run : runs) {
          entry["last_runs"].push_back({{"device", run.device}, {"date", run.date}, {"commit", run.commit}, {"passed", run.passed}});
        }
      } else if (has_runs) {
        row.emplace_back();
      }
      table.add(row);
      json["ops"][probe.op].push_back(std::move(entry));
    }
  }
  const std::vector<OtherDevice> others = other_devices(device->id(), device->config());
  for (const OtherDevice& other : others) json["other_devices"][other.name] = other.text;
  for (const std::string& name : default_layers().names()) json["layers"].push_back(name);
  json["presets"] = preset_names();
  if (o.json) {
    print_json(json);
    return kSuccess;
  }
  fmt::print("device   {}\n         {}\n", to_string(device->id()), device->description());
  for (const OtherDevice& other : others) fmt::print("other    {}\n         {}\n", other.name, other.text);
  fmt::print("layers   {}\npresets  {}\n\nfor a typical V4-Flash call of every op:\n", fmt::join(default_layers().names(), ", "),
             fmt::join(preset_names(), ", "));
  table.print();
  return kSuccess;
}

}  // namespace

void add_info(CLI::App& app, int& code) {
  auto o = std::make_shared<CommonOptions>();
  CLI::App* sub = app.add_subcommand("info", "Devices, every op's implementations, and why one is refused");
  sub->footer("Exit codes: 0 success; 2 bad input.\nExample: strata info --device cpu --isa avx2");
  add_common(*sub, *o);
  sub->callback([o, &code] { code = run(*o); });
}

}  // namespace strata::cli
