#include "strata/c/communicator.h"

#include <algorithm>
#include <vector>

#include "c_api/convert.h"
#include "c_api/device.h"
#include "c_api/objects.h"
#include "c_api/structs.h"
#include "strata/collectives.h"

namespace strata::c_api {

STRATA_STRUCT(strata_communicator_callbacks, 40);
STRATA_STRUCT(strata_rank_options, 32);

namespace {

// The caller's functions.
class CallbackCommunicator final : public Communicator {
 public:
  explicit CallbackCommunicator(const strata_communicator_callbacks& callbacks) : callbacks_(callbacks) {}
  ~CallbackCommunicator() override {
    if (callbacks_.destroy != nullptr) callbacks_.destroy(callbacks_.user);
  }
  CallbackCommunicator(const CallbackCommunicator&) = delete;
  CallbackCommunicator& operator=(const CallbackCommunicator&) = delete;

  // Not called where making the handle fails, so it is set afterwards.
  void set_destroy(void (*destroy)(void* user)) { callbacks_.destroy = destroy; }
  int rank() const override { return callbacks_.rank; }
  int size() const override { return callbacks_.size; }
  void all_reduce_sum(const TensorView& tensor, Device& device, Stream stream) override {
    const strata_tensor_view view = from_view(tensor);
    run_callback("all_reduce_sum",
                 [&] { return callbacks_.all_reduce_sum(callbacks_.user, &view, from_device_id(device.id()), stream.handle); });
  }

 private:
  strata_communicator_callbacks callbacks_;
};

// A communicator that has more than a layer needs.
std::shared_ptr<Collectives> find_collectives(strata_communicator handle) {
  auto found = std::dynamic_pointer_cast<Collectives>(find(handle));
  require(found != nullptr, "communicator: expected one of strata_communicator_threads or strata_communicator_local, is another");
  return found;
}

// call(communicator, device, stream) of a collective operation.
template <class Call>
strata_status collective(strata_communicator communicator, strata_device device, strata_stream stream, Call&& call) noexcept {
  return guarded([&] {
    const auto of = find_collectives(communicator);
    const auto on = find(device);
    const StreamUse use(stream, *on);
    call(*of, *on, use);
  });
}

TensorView given_view(const strata_tensor_view* view, const char* field) {
  require(view != nullptr, "{}: expected a view, is null", field);
  return to_view(*view, field);
}

}  // namespace
}  // namespace strata::c_api

using namespace strata;
using namespace strata::c_api;

strata_status strata_communicator_create(const strata_communicator_callbacks* callbacks, strata_communicator* communicator) noexcept {
  return guarded([&] {
    strata_communicator& out = result(communicator, "communicator");
    strata_communicator_callbacks c = read_struct(callbacks, "callbacks");
    require(c.size >= 1, "callbacks.size: expected at least 1, is {}", c.size);
    require(c.rank >= 0 && c.rank < c.size, "callbacks.rank: expected 0 to {}, is {}", c.size - 1, c.rank);
    require(c.all_reduce_sum != nullptr, "callbacks.all_reduce_sum: expected a function, is null");
    const auto destroy = std::exchange(c.destroy, nullptr);
    const auto made = std::make_shared<CallbackCommunicator>(c);
    out = make_handle<strata_communicator>(made);
    made->set_destroy(destroy);
  });
}
strata_status strata_communicator_single(strata_communicator* communicator) noexcept {
  return guarded([&] {
    strata_communicator& out = result(communicator, "communicator");
    out = make_handle<strata_communicator>(std::make_shared<SingleProcessCommunicator>());
  });
}
strata_status strata_communicator_threads(int32_t size, double timeout_seconds, strata_communicator* communicators) noexcept {
  return guarded([&] {
    require(communicators != nullptr, "communicators: expected a pointer, is null");
    const auto made = make_thread_communicators(size, timeout_seconds);
    std::vector<strata_communicator> handles;
    try {
      for (const auto& each : made) handles.push_back(make_handle<strata_communicator>(each));
    } catch (...) {
      for (const strata_communicator handle : handles) static_cast<void>(destroy(handle));
      throw;
    }
    std::copy(handles.begin(), handles.end(), communicators);
  });
}
strata_status strata_communicator_local(const strata_rank_options* options, strata_communicator* communicator) noexcept {
  return guarded([&] {
    strata_communicator& out = result(communicator, "communicator");
    const strata_rank_options o = read_struct(options, "options");
    RankOptions rank{.rank = o.rank, .size = o.size, .rendezvous = optional_text(o.rendezvous)};
    if (o.timeout_seconds != 0) rank.timeout_seconds = o.timeout_seconds;
    out = make_handle<strata_communicator>(make_local_communicator(rank));
  });
}
strata_status strata_communicator_all_reduce_sum(strata_communicator communicator, const strata_tensor_view* tensor, strata_device device,
                                                 strata_stream stream) noexcept {
  return collective(communicator, device, stream,
                    [&](Collectives& of, Device& on, Stream use) { of.all_reduce_sum(given_view(tensor, "tensor"), on, use); });
}
strata_status strata_communicator_all_gather(strata_communicator communicator, const strata_tensor_view* in, const strata_tensor_view* out,
                                             strata_device device, strata_stream stream) noexcept {
  return collective(communicator, device, stream,
                    [&](Collectives& of, Device& on, Stream use) { of.all_gather(given_view(in, "in"), given_view(out, "out"), on, use); });
}
strata_status strata_communicator_reduce_scatter_sum(strata_communicator communicator, const strata_tensor_view* in,
                                                     const strata_tensor_view* out, strata_device device, strata_stream stream) noexcept {
  return collective(communicator, device, stream, [&](Collectives& of, Device& on, Stream use) {
    of.reduce_scatter_sum(given_view(in, "in"), given_view(out, "out"), on, use);
  });
}
strata_status strata_communicator_barrier(strata_communicator communicator, strata_device device, strata_stream stream) noexcept {
  return collective(communicator, device, stream, [](Collectives& of, Device& on, Stream use) { of.barrier(on, use); });
}
strata_status strata_communicator_abort(strata_communicator communicator, const char* reason) noexcept {
  return guarded([&] { find_collectives(communicator)->abort(std::string(to_text(reason, "reason"))); });
}
strata_status strata_communicator_rank(strata_communicator communicator, int32_t* rank) noexcept {
  return guarded([&] {
    int32_t& out = result(rank, "rank");
    out = find(communicator)->rank();
  });
}
strata_status strata_communicator_size(strata_communicator communicator, int32_t* size) noexcept {
  return guarded([&] {
    int32_t& out = result(size, "size");
    out = find(communicator)->size();
  });
}
strata_status strata_communicator_destroy(strata_communicator communicator) noexcept { return destroy(communicator); }
