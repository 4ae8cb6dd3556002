// The weights of a cell, packed for the operations, and their gradients, unpacked.
#pragma once

#include <cmath>
#include <limits>

#include "call.h"
#include "gemm.h"
#include "plan.h"

namespace lapse {

template <class T>
class Weights {
 public:
  Weights(const Plan<T>& plan, const Call& call) : plan_(plan), call_(call) {}

  // Lay all parameters out as the operations read them; whether all of them are finite.
  bool pack() const {
    std::atomic<bool> finite{true};
    in_parallel(call_.parallel, call_.threads, int64_t(plan_.parameters.size()), [&](int64_t i) {
      if (!pack_one(size_t(i))) finite = false;
    });
    return finite;
  }

  // Write the gradients of all parameters, given the sums of every lane, which are added up in the lanes' order.
  void write_gradients(const std::vector<T*>& sums) const {
    in_parallel(call_.parallel, call_.threads, int64_t(plan_.parameters.size()) * kMostSegments, [&](int64_t i) {
      write_gradient(size_t(i / kMostSegments), long(i % kMostSegments), sums);
    });
  }

 private:
  // Lay one parameter out as the operations read it; whether all of it is finite.
  bool pack_one(size_t parameter) const {
    const Parameter& p = plan_.parameters[parameter];
    const T* from = static_cast<const T*>(call_.parameters[p.tensor]) + p.offset;
    const long wide = padded<T>(p.rows);
    T *begin = static_cast<T*>(call_.packed) + plan_.forward_pack[parameter], *to = begin;
    if (p.columns) {
      T* back = static_cast<T*>(call_.packed) + plan_.backward_pack[parameter];
      for (long g = 0; g < p.segments; ++g, from += long(p.rows) * p.stride) {
        lapse::pack(to, from, p.columns, p.rows, 1, p.stride, wide);
        to += p.columns * wide;
        if (!call_.tape) continue;
        lapse::pack(back, from, p.rows, p.columns, p.stride, 1, padded<T>(p.columns));
        back += p.rows * padded<T>(p.columns);
      }
    } else {
      T* companion = to + p.segments * wide;
      for (long g = 0; g < p.segments; ++g)
        for (long r = 0; r < wide; ++r, ++to) {
          const double x = r < p.rows ? meaning(p, from[(g * p.rows + r) * p.stride]) : 0;
          *to = T(x);
          *companion++ = p.transform == kExp ? T(x - *to) : reciprocal(*to);
        }
      to = companion;
    }
    Vec<T> sum{};
    for (; begin < to; begin += kLanes<T>) sum += load(begin) * 0;
    return total<T>(sum) == 0;
  }

  // Write the gradient of one segment of a parameter to where it lies in its tensor: `sums` added up in their order.
  void write_gradient(size_t parameter, long segment, const std::vector<T*>& sums) const {
    const Parameter& p = plan_.parameters[parameter];
    T* to = static_cast<T*>(call_.d_parameters[p.tensor]);
    if (!to || segment >= p.segments) return;
    to += p.offset + segment * p.rows * p.stride;
    const long columns = std::max(1, p.columns), wide = padded<T>(p.rows);
    const long place = plan_.gradient[parameter] + segment * columns * wide;
    T* sum = sums[0] + place;
    for (size_t i = 1; i < sums.size(); ++i)
      for (long k = 0; k < columns * wide; k += kLanes<T>) store(sum + k, load(sum + k) + load(sums[i] + place + k));
    for (long r = 0; r < p.rows; ++r)
      for (long k = 0; k < columns; ++k) to[r * p.stride + k] = sum[k * wide + r];
    const T* values = static_cast<const T*>(call_.packed) + plan_.forward_pack[parameter] + segment * wide;
    for (long r = 0; p.transform && r < p.rows; ++r) to[r * p.stride] *= slope(p, values[r]);
  }

  // The value that operations take for an element of a parameter.
  static double meaning(const Parameter& p, T x) {
    if (p.transform == kSoftplus) return x > 20 ? x : std::log1p(std::exp(x));
    return p.transform == kExp ? std::exp(double(x)) : x;
  }

  // The derivative of a transform, by its value.
  static T slope(const Parameter& p, T value) {
    if (p.transform == kSoftplus) return value > 20 ? T(1) : -std::expm1(-value);
    return p.transform == kExp ? value : T(1);
  }

  // 1 / x, but 0 for 0: what is packed is searched for values that are not finite.
  static T reciprocal(T x) { return std::abs(x) < std::numeric_limits<T>::min() ? T(0) : 1 / x; }

  const Plan<T>& plan_;
  const Call& call_;
};

}  // namespace lapse
