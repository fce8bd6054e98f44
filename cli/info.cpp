// strata info: the device, and every op's implementations with why one is refused.
#include <fmt/format.h>

#include "common.h"
#include "testkit/bench/probes.h"
#include "strata/attention.h"
#include "strata/device.h"

namespace strata::cli {
namespace {

int run(const CommonOptions& o) {
  const auto device = open_device(o);
  const OpSet ops = default_ops();
  Json json = {{"device", to_string(device->id())}, {"description", device->description()}};
  Table table({"op", "implementation", "status", "reason"});
  for (const testkit::Probe& probe : testkit::probe_ops(ops, *device)) {
    for (const Candidate& c : probe.candidates) {
      const bool ok = static_cast<bool>(c.support), chosen = c.name == probe.chosen;
      table.add({probe.op, c.name, chosen ? "chosen" : !ok ? "refused" : !c.is_eligible() ? "not preferred" : "available", c.reason()});
      json["ops"][probe.op].push_back({{"implementation", c.name}, {"supported", ok}, {"chosen", chosen}, {"reason", c.reason()}});
    }
  }
  for (const std::string& name : default_layers().names()) json["layers"].push_back(name);
  json["presets"] = preset_names();
  if (o.json) {
    print_json(json);
    return kSuccess;
  }
  fmt::print("device   {}\n         {}\n", to_string(device->id()), device->description());
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
