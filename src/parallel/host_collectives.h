// Collective operations over a board.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "parallel/board.h"
#include "strata/collectives.h"

namespace strata::parallel {

class HostCollectives final : public Collectives {
 public:
  // memory: keeps the board's memory.
  HostCollectives(std::shared_ptr<void> memory, std::unique_ptr<Board> board) : memory_(std::move(memory)), board_(std::move(board)) {}

  int rank() const override { return board_->rank(); }
  int size() const override { return board_->size(); }
  void all_reduce_sum(const TensorView& tensor, Device& device, Stream stream) override;
  void all_gather(const TensorView& in, const TensorView& out, Device& device, Stream stream) override;
  void reduce_scatter_sum(const TensorView& in, const TensorView& out, Device& device, Stream stream) override;
  void barrier(Device& device, Stream stream) override;
  void abort(const std::string& reason) noexcept override;
  void check() override { board_->check(); }

 private:
  // The view's bytes on the host: its own memory on a CPU, otherwise a copy in `buffer`, filled from the device if `read`.
  std::byte* on_host(const TensorView& view, bool read, std::vector<std::byte>& buffer, Device& device, Stream stream) const;
  // Brings the host's bytes back to a device that has memory of its own.
  void to_device(const TensorView& view, const std::byte* bytes, Device& device, Stream stream) const;

  std::shared_ptr<void> memory_;
  std::mutex one_call_;
  std::vector<std::byte> in_, out_;  // of devices with memory of their own
  std::unique_ptr<Board> board_;
};

}  // namespace strata::parallel
