#include "strata/c/communicator.h"

#include "c_api/convert.h"
#include "c_api/objects.h"
#include "c_api/structs.h"
#include "strata/parallel.h"

namespace strata::c_api {

STRATA_STRUCT(strata_communicator_callbacks, 40);

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
