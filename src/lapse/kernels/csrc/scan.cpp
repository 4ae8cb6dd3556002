// The linear recurrence x_k = a_k x_{k-1} + b_k of complex numbers along ragged rows, and its gradients.
//
// Channels do not meet, so threads share rows and slices of channels, and the work is linear in the number of steps.
// The order of operations on a number does not depend on the threads: the same arguments give the same bits.
#include "threads.h"

namespace lapse {

// As lapse/kernels/scan.py lays it out. Every tensor is (size, 2 * channels), real parts before imaginary parts; the steps
// of row i lie at starts[i], starts[i] + 1, and so on.
struct ScanCall {
  int64_t count, channels, threads;
  const int64_t *lengths, *starts;
  const void *a, *b;
  void* x;
  const void* d_x;
  void *d_a, *d_b;
  Parallel parallel;
};

constexpr int64_t kSlice = 32;  // channels whose state stays in the nearest cache

// body(first step, number of steps, first channel, number of channels) for all rows and slices.
template <class Body>
void over_slices(const ScanCall& call, Body body) {
  const int64_t slices = (call.channels + kSlice - 1) / kSlice;
  in_parallel(call.parallel, call.threads, call.count * slices, [&](int64_t i) {
    const int64_t first = i % slices * kSlice;
    body(call.starts[i / slices], call.lengths[i / slices], first, std::min(kSlice, call.channels - first));
  });
}

template <class T>
void scan(const ScanCall& call) {
  const int64_t channels = call.channels;
  over_slices(call, [&](int64_t start, int64_t length, int64_t first, int64_t width) {
    T state[2][kSlice] = {};
    for (int64_t k = start; k < start + length; ++k) {
      const int64_t at = 2 * channels * k + first;
      const T *a = static_cast<const T*>(call.a) + at, *b = static_cast<const T*>(call.b) + at;
      T* __restrict x = static_cast<T*>(call.x) + at;
      for (int64_t c = 0; c < width; ++c) {
        const T re = a[c] * state[0][c] - a[channels + c] * state[1][c] + b[c];
        const T im = a[c] * state[1][c] + a[channels + c] * state[0][c] + b[channels + c];
        x[c] = state[0][c] = re, x[channels + c] = state[1][c] = im;
      }
    }
  });
}

// The adjoint s_k = d_x_k + conj(a_{k+1}) s_{k+1}; then d_b_k = s_k and d_a_k = s_k conj(x_{k-1}).
template <class T>
void scan_backward(const ScanCall& call) {
  const int64_t channels = call.channels, step = 2 * channels;
  over_slices(call, [&](int64_t start, int64_t length, int64_t first, int64_t width) {
    T adjoint[2][kSlice] = {};  // conj(a_{k+1}) s_{k+1}
    const T zeros[kSlice] = {};
    for (int64_t k = start + length; k-- > start;) {
      const int64_t at = step * k + first;
      const T *a = static_cast<const T*>(call.a) + at, *d_x = static_cast<const T*>(call.d_x) + at;
      const T* before = static_cast<const T*>(call.x) + at - step;
      const T* re_before = k > start ? before : zeros;
      const T* im_before = k > start ? before + channels : zeros;
      T* __restrict d_a = static_cast<T*>(call.d_a) + at;
      T* __restrict d_b = static_cast<T*>(call.d_b) + at;
      for (int64_t c = 0; c < width; ++c) {
        const T re = d_x[c] + adjoint[0][c], im = d_x[channels + c] + adjoint[1][c];
        d_b[c] = re, d_b[channels + c] = im;
        d_a[c] = re * re_before[c] + im * im_before[c];
        d_a[channels + c] = im * re_before[c] - re * im_before[c];
        adjoint[0][c] = a[c] * re + a[channels + c] * im;
        adjoint[1][c] = a[c] * im - a[channels + c] * re;
      }
    }
  });
}

}  // namespace lapse

extern "C" {
void lapse_scan_f32(const lapse::ScanCall* call) { lapse::scan<float>(*call); }
void lapse_scan_f64(const lapse::ScanCall* call) { lapse::scan<double>(*call); }
void lapse_scan_backward_f32(const lapse::ScanCall* call) { lapse::scan_backward<float>(*call); }
void lapse_scan_backward_f64(const lapse::ScanCall* call) { lapse::scan_backward<double>(*call); }
int64_t lapse_scan_layout() { return sizeof(lapse::ScanCall); }
}
