// Numbers too small for their exponent, which the processor computes in microcode, many times more slowly.
#pragma once

#include <cstdint>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace lapse {

// While it lives, the thread takes denormal numbers for zero. Gradients that vanish over thousands of steps pass through that
// range, and a training step would take ten times as long, depending on no more than the weights it begins with.
class FlushDenormals {
 public:
  FlushDenormals() : before_(get()) { set(before_ | kFlush); }
  ~FlushDenormals() { set(before_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
#if defined(__SSE2__)
  static constexpr uint64_t kFlush = 0x8040;  // flush to zero, denormals are zeros
  static uint64_t get() { return _mm_getcsr(); }
  static void set(uint64_t state) { _mm_setcsr(uint32_t(state)); }
#elif defined(__aarch64__)
  static constexpr uint64_t kFlush = 1 << 24;  // FZ
  static uint64_t get() {
    uint64_t state;
    asm volatile("mrs %0, fpcr" : "=r"(state));
    return state;
  }
  static void set(uint64_t state) { asm volatile("msr fpcr, %0" ::"r"(state)); }
#else
  static constexpr uint64_t kFlush = 0;
  static uint64_t get() { return 0; }
  static void set(uint64_t) {}
#endif
  uint64_t before_;
};

}  // namespace lapse
