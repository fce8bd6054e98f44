#include "case_run.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <utility>

#include "testkit/harness/on_threads.h"

namespace strata::cli {
namespace {

using namespace std::chrono_literals;
constexpr auto kPoll = 50ms;    // between looks at the signal
constexpr auto kGrace = 400ms;  // that a case has to end by itself

}  // namespace

CaseRun::CaseRun(std::string command, std::function<void()> report)
    : command_(std::move(command)), report_(std::move(report)), watcher_([this] { watch(); }) {}

CaseRun::~CaseRun() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  end_.notify_all();
  watcher_.join();
}

void CaseRun::watch() {
  std::unique_lock lock(mutex_);
  while (!interrupt_.received()) {
    if (end_.wait_for(lock, kPoll, [this] { return ended_; })) return;
  }
  if (end_.wait_for(lock, kGrace, [this] { return ended_; })) return;
  clear_bar();
  try {
    report_();
  } catch (const std::exception& error) {
    fmt::print(stderr, "strata {}: {}\n", command_, error.what());
  }
  fmt::print(stderr, "strata {}: interrupted after {} of {} cases\n", command_, num_done_.load(), num_selected_.load());
  std::fflush(stdout);
  std::_Exit(kFailed);  // the case that runs holds threads and a device: nothing waits for it
}

void CaseRun::for_each(const std::vector<const testkit::AnyCase*>& selected, bool quiet,
                       const std::function<void(const testkit::AnyCase&)>& run) {
  const auto one = [&](size_t i) {
    run(*selected[i]);
    return true;
  };
  for_each_number(selected.size(), 1, quiet, one, [&](size_t i) { return selected[i]->op() + " " + selected[i]->name(); });
}

void CaseRun::for_each_number(size_t count, int threads, bool quiet, const std::function<bool(size_t)>& run,
                              const std::function<std::string(size_t)>& name) {
  Progress progress(command_, static_cast<double>(count), quiet);
  num_selected_ = count;
  std::atomic<size_t> next = 0;
  std::atomic<bool> more = true;
  std::exception_ptr error;
  {
    const std::lock_guard lock(mutex_);
    bar_ = &progress;
  }
  const auto work = [&](int) {
    try {
      for (size_t i = 0; more && !interrupt_.received() && (i = next++) < count;) {
        if (name) {
          const std::lock_guard lock(mutex_);
          progress.update(static_cast<double>(num_done_), name(i));
        }
        if (!run(i)) more = false;
        const std::lock_guard lock(mutex_);
        progress.update(static_cast<double>(++num_done_), name ? name(i) : "");
      }
    } catch (...) {
      more = false;
      const std::lock_guard lock(mutex_);
      if (!error) error = std::current_exception();
    }
  };
  try {
    testkit::on_threads(threads, work);
  } catch (...) {
    error = std::current_exception();
  }
  {
    const std::lock_guard lock(mutex_);
    bar_ = nullptr;
    ended_ = true;  // the command reports from here on, whatever the watcher has seen
  }
  if (error) std::rethrow_exception(error);
  if (!more) num_selected_ = num_done_.load();
}

void CaseRun::clear_bar() {
  if (bar_ != nullptr) bar_->clear();
}

int CaseRun::finish(int code) const {
  if (!interrupted()) return code;
  fmt::print(stderr, "strata {}: interrupted after {} of {} cases\n", command_, num_done_.load(), num_selected_.load());
  return kFailed;
}

}  // namespace strata::cli
