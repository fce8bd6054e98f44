// What every layer's forward is around its own work.
#pragma once

#include <string>

#include "layers/op_runner.h"

namespace strata {

// The message with "layer 3 (c4): " before it; of a step whose requests have ids "layer 3 (c4), requests 7, 9: ". `batch` may be null.
std::string message_of_layer(const AttentionLayer& layer, const Batch* batch, const char* message);

// f(), which names the layer in what the library throws.
template <class F>
void in_layer(const AttentionLayer& layer, const Batch* batch, F&& f) {
  try {
    f();
  } catch (const Error& error) {
    throw Error(error.code(), message_of_layer(layer, batch, error.what()));
  }
}

// check(): throws before anything is written, naming the request where an argument is of one. run(runner): the layer's work, whose sum over
// the ranks `args.out` has in the end.
template <class Check, class Run>
void run_forward(const AttentionLayer& layer, const ForwardArgs& args, Device& device, const OpSet& ops, const SideStreams* side_streams,
                 Communicator* communicator, Check&& check, Run&& run) {
  in_layer(layer, nullptr, check);
  in_layer(layer, args.batch, [&] {
    if (args.dummy_run) {  // nothing is attended to, so the output is zero whatever the weights
      device.fill(args.out.data, 0, args.out.bytes(), args.stream);
    } else {
      Arena arena(device.id(), args.workspace);
      run(OpRunner{ops, device, arena, args.stream, side_streams});
    }
  });
  if (communicator != nullptr) communicator->all_reduce_sum(args.out, device, args.stream);
}

}  // namespace strata
