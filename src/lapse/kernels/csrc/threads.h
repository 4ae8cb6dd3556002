// Work on several threads, and the memory that each of them keeps from call to call.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "denormals.h"

namespace lapse {

using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);  // GOMP_parallel, if torch has loaded it

// body(i) for every i below `count`, by this thread and up to `threads` - 1 others.
template <class Body>
void in_parallel(Parallel parallel, int64_t threads, int64_t count, Body body) {
  struct Shared {
    Body* body;
    std::atomic<int64_t> next;
    int64_t count;
  } shared{&body, {0}, count};
  auto work = [](void* p) {
    const FlushDenormals flush;
    Shared& s = *static_cast<Shared*>(p);
    for (int64_t i; (i = s.next++) < s.count;) (*s.body)(i);
  };
  if (threads <= 1) return work(&shared);
  if (parallel) return parallel(work, &shared, unsigned(threads), 0);
  std::vector<std::thread> others;
  try {
    for (int64_t i = 1; i < threads; ++i) others.emplace_back(work, &shared);
  } catch (const std::exception&) {
    // No more threads to be had: those that are there take the rest.
  }
  work(&shared);
  for (std::thread& t : others) t.join();
}

// Memory for a call, left to the next one of the same thread: a fresh page costs a fault. Much of it is given back.
template <class T>
class Scratch {
 public:
  explicit Scratch(int64_t size) {
    Memory& m = mine();
    if (m.size < size + kLine) {
      m.data.reset(), m.size = 0;  // before there is more
      m.data.reset(new T[size_t(size + kLine)]), m.size = size + kLine;
    }
    begin = reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(m.data.get()) + 63) / 64 * 64);
#ifdef LAPSE_POISON  // for tests: whatever is read before it is written shows
    std::fill_n(m.data.get(), m.size, std::numeric_limits<T>::quiet_NaN());
#endif
  }
  ~Scratch() {
    if (mine().size * int64_t(sizeof(T)) > kMostIdle) mine().data.reset(), mine().size = 0;
  }
  T* begin;

 private:
  static constexpr int64_t kLine = 64 / sizeof(T), kMostIdle = 256 << 20;
  struct Memory {
    std::unique_ptr<T[]> data;
    int64_t size = 0;
  };
  static Memory& mine() {
    thread_local Memory memory;
    return memory;
  }
};

}  // namespace lapse
