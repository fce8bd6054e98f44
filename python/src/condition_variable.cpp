// std::condition_variable::wait, which libstdc++ 12 exports at a version that manylinux_2_34 does not have (GLIBCXX_3.4.30). The linker
// puts this function in its place (--wrap).
#include <pthread.h>

#include <condition_variable>
#include <mutex>

extern "C" void
__wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(  // NOLINT(bugprone-reserved-identifier): the linker's name
    std::condition_variable* self, std::unique_lock<std::mutex>* lock) noexcept;

extern "C" void __wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(std::condition_variable* self,
                                                                                 std::unique_lock<std::mutex>* lock) noexcept {
  pthread_cond_wait(self->native_handle(), lock->mutex()->native_handle());
}
