// A rank's buffer on its device, and those of the other ranks as this device sees them.
#pragma once

#include <memory>
#include <vector>

#include "backends/cuda/all_reduce/call.h"
#include "strata/collectives.h"

namespace strata::cuda::all_reduce {

// Device memory of a rank, zero at first.
class Buffer {
 public:
  Buffer(int device, size_t bytes);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  std::byte* data() const { return data_; }

 private:
  int device_;
  std::byte* data_ = nullptr;
};

class PeerBuffers {
 public:
  // Every rank of `host` calls it, with equal capacity. Throws unsupported, on every rank, where a device cannot reach another's memory.
  PeerBuffers(Collectives& host, int device, size_t capacity);
  ~PeerBuffers();
  PeerBuffers(const PeerBuffers&) = delete;
  PeerBuffers& operator=(const PeerBuffers&) = delete;

  std::byte* of(int rank) const { return mapped_[static_cast<size_t>(rank)]; }

 private:
  int device_;
  std::vector<std::shared_ptr<Buffer>> held_;  // this rank's, and those of ranks of this process
  std::vector<std::byte*> opened_;             // of other processes
  std::vector<std::byte*> mapped_;             // by rank
};

}  // namespace strata::cuda::all_reduce
