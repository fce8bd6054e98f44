// What every layer's forward does besides the layer's own work.
#pragma once

#include <string>

#include "layers/op_runner.h"

namespace strata {

// The message prefixed with "layer 3 (c4): ", or with "layer 3 (c4), requests 7, 9: " if the step's requests have ids. `batch` may be null.
std::string message_of_layer(const AttentionLayer& layer, const Batch* batch, const char* message);

// Calls f(), and adds the layer's name to what the library throws.
template <class F>
void in_layer(const AttentionLayer& layer, const Batch* batch, F&& f) {
  try {
    f();
  } catch (const Error& error) {
    throw Error(error.code(), message_of_layer(layer, batch, error.what()));
  }
}

// check() throws before anything is written, naming the request that an argument belongs to. run(runner) is the layer's work; afterwards
// args.out is summed over the ranks.
template <class Check, class Run>
void run_forward(const AttentionLayer& layer, const ForwardArgs& args, Device& device, const OpSet& ops, const SideStreams* side_streams,
                 Communicator* communicator, Check&& check, Run&& run) {
  in_layer(layer, nullptr, check);
  in_layer(layer, args.batch, [&] {
    if (args.dummy_run) {  // nothing is attended to, so the output is zero for any weights
      device.fill(args.out.data, 0, args.out.bytes(), args.stream);
    } else {
      Arena arena(device.id(), args.workspace);
      run(OpRunner{ops, device, arena, args.stream, side_streams});
    }
  });
  if (communicator != nullptr) communicator->all_reduce_sum(args.out, device, args.stream);
}

}  // namespace strata
