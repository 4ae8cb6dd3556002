// The gap itself: as an input, on a clock, as the time of a decay.
#pragma once

#include "operation.h"

namespace lapse {

// y = Δ for every unit: the gap as an input.
struct Gap {
  enum { Y };
  static constexpr auto operands = Operands(1).makes(Y).replays(Y);

  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    const long width = s.width(op.reg[Y]);
    T* y = s.value(op.reg[Y]);
    for (long r = 0; r < s.rows; ++r) std::fill_n(y + r * width, width, s.spans[r]);
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const long width = s.width(op.reg[Y]), size = s.plan->registers[op.reg[Y]].size;
    const T* dy = s.adjoint(op.reg[Y]);
    for (long r = 0; r < s.rows; ++r)
      for (long u = 0; u < size; ++u) s.span_gradients[r] += dy[r * width + u];
  }
};

// y = y₀ + Δ for every unit: clocks.
struct Tick {
  enum { Y, Y0 };
  static constexpr auto operands = Operands(2).makes(Y).writes(Y0).replays(Y);

  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    T* y = s.value(op.reg[Y]);
    const T* y0 = s.value(op.reg[Y0]);
    T span = 0;
    each_row<T>(
        s.rows, s.width(op.reg[Y]), [&](long r) { span = s.spans[r]; },
        [&](long, long i) { store(y + i, load(y0 + i) + span); }, [](long) {});
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T* dy = s.adjoint(op.reg[Y]);
    const Share<T> dy0(s, op, Y0);
    const long width = s.width(op.reg[Y]), size = s.plan->registers[op.reg[Y]].size;
    each<T>(s.rows * width, [&](long i) { dy0.put(i, load(dy + i)); });
    for (long r = 0; r < s.rows; ++r)
      for (long u = 0; u < size; ++u) s.span_gradients[r] += dy[r * width + u];
  }
};

// RNN-Decay: y = y₀ e^{−τΔ}.
struct Decay {
  enum { Y0, Y };
  static constexpr auto operands = Operands(2).makes(Y).writes(Y0).reads(Y);

  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    T *y = s.value(op.reg[Y]), span = 0;
    const T *y0 = s.value(op.reg[Y0]), *rate = s.parameter(op.par[0]);
    each_row<T>(
        s.rows, s.width(op.reg[Y]), [&](long r) { span = s.spans[r]; },
        [&](long u, long i) { store(y + i, load(y0 + i) * vexp(-load(rate + u) * span)); }, [](long) {});
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T *y = s.value(op.reg[Y]), *rate = s.parameter(op.par[0]), *dy = s.adjoint(op.reg[Y]);
    T *d_rate = s.gradient(op.par[0]), span = 0;
    const Share<T> dy0(s, op, Y0);
    Vec<T> along{};
    each_row<T>(
        s.rows, s.width(op.reg[Y]), [&](long r) { span = s.spans[r], along = Vec<T>{}; },
        [&](long u, long i) {
          const Vec<T> d = load(dy + i), tau = load(rate + u), dz = -d * load(y + i);
          increase(d_rate + u, dz * span);
          along += dz * tau;
          dy0.put(i, d * vexp(-tau * span));
        },
        [&](long r) { s.span_gradients[r] += total<T>(along); });
  }
};

}  // namespace lapse
