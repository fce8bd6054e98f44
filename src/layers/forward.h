// What every layer's forward is around its own work.
#pragma once

#include "layers/op_runner.h"

namespace strata {

// run(runner): the layer's work, whose sum over the ranks `args.out` has in the end. The arguments are checked.
template <class Run>
void run_forward(const ForwardArgs& args, Device& device, const OpSet& ops, Lanes* lanes, Communicator* communicator, Run&& run) {
  if (args.batch == nullptr) {  // dummy run: nothing is attended to, so the output is zero whatever the weights
    device.fill(args.out.data, 0, args.out.bytes(), args.stream);
  } else {
    Arena arena(device.id(), args.workspace);
    OpRunner runner(device, args.stream, ops, arena, lanes);
    run(runner);
  }
  if (communicator != nullptr) communicator->all_reduce_sum(args.out, device, args.stream);
}

}  // namespace strata
