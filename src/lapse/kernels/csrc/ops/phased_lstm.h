// The Phased LSTM: a clock, the phase of each unit, and gates that open at a phase.
#pragma once

#include "operation.h"

namespace lapse {

// A clock of two units: the time as T rounds it, and what the rounding took away.
template <class T>
inline double time_on(const T* clock) {
  return double(clock[0]) + double(clock[1]);
}

// The clock after the gap. The time is the sum of both units, so either of the old ones has its derivative; of the new ones
// only the first does.
struct Clock {
  enum { CLOCK, CLOCK0 };
  static constexpr auto operands = Operands(2).makes(CLOCK).writes(CLOCK0);

  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    const long width = s.width(op.reg[CLOCK]);
    T* clock = s.value(op.reg[CLOCK]);
    const T* clock0 = s.value(op.reg[CLOCK0]);
    for (long r = 0; r < s.rows; ++r, clock += width, clock0 += width) {
      const double time = time_on(clock0) + double(s.spans[r]);
      put(clock, width, T(time), T(time - double(T(time))));
    }
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const long width = s.width(op.reg[CLOCK]);
    const T* d = s.adjoint(op.reg[CLOCK]);
    T* d0 = s.adjoint(op.reg[CLOCK0]);
    for (long r = 0; r < s.rows; ++r, d += width, d0 += width) {
      if (op.add[CLOCK0])
        d0[0] += d[0], d0[1] += d[0];
      else
        put(d0, width, d[0], d[0]);
      s.span_gradients[r] += d[0];
    }
  }

 private:
  // Both units of a clock, and zeros behind them.
  template <class T>
  static void put(T* clock, long width, T first, T second) {
    Vec<T> both{};
    both[0] = first, both[1] = second;
    store(clock, both);
    for (long u = kLanes<T>; u < width; u += kLanes<T>) store(clock + u, Vec<T>{});
  }
};

// φ = ((t − s) mod τ) / τ. The number of turns may be far beyond the digits of a float, hence double; τ comes in two parts.
struct Phase {
  enum { PHASE, CLOCK };
  static constexpr auto operands = Operands(2).makes(PHASE).reads(CLOCK);
  enum { PERIOD, SHIFT };

  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    const T *period = s.parameter(op.par[PERIOD]), *rest = s.companions(op.par[PERIOD]), *shift = s.parameter(op.par[SHIFT]);
    const long width = s.width(op.reg[PHASE]), clock_width = s.width(op.reg[CLOCK]);
    const T* clock = s.value(op.reg[CLOCK]);
    T* phase = s.value(op.reg[PHASE]);
    // Unit by unit, because a period is divided by once for all rows then.
    for (long u = 0; u < width; u += kLanes<double>) {
      const D shifted = widen(shift + u), turn = some(widen(period + u) + widen(rest + u)), per_turn = 1 / turn;
      for (long r = 0; r < s.rows; ++r)
        narrow(phase + r * width + u, turned(time_on(clock + r * clock_width) - shifted, turn, per_turn));
    }
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T *period = s.parameter(op.par[PERIOD]), *shift = s.parameter(op.par[SHIFT]), *clock = s.value(op.reg[CLOCK]);
    const T* d = s.adjoint(op.reg[PHASE]);
    T *d_period = s.gradient(op.par[PERIOD]), *d_shift = s.gradient(op.par[SHIFT]), *d_clock = s.adjoint(op.reg[CLOCK]);
    const long width = s.width(op.reg[PHASE]), clock_width = s.width(op.reg[CLOCK]);
    // As in the forward pass; the sums over rows stay out of memory too.
    for (long u = 0; u < width; u += kLanes<T>) {
      const Vec<T> per_period = 1 / some(load(period + u)), shifted = load(shift + u);
      Vec<T> along{}, away{};
      for (long r = 0; r < s.rows; ++r) {
        const Vec<T> d_time = load(d + r * width + u) * per_period;
        along += d_time;
        away += d_time * (T(time_on(clock + r * clock_width)) - shifted);
        d_clock[r * clock_width] += total<T>(d_time);
      }
      increase(d_shift + u, -along);
      increase(d_period + u, -away * per_period);
    }
  }

 private:
  template <class V>
  static V some(V period) {
    return period == 0 ? 1 - V{} : period;  // padded units have none
  }
  // Which part of its present turn a unit is through, `since` after its shift.
  static D turned(D since, D turn, D per_turn) {
    D rest = since - vfloor(since * per_turn) * turn;
    // The quotient may have been rounded up to a whole number, or down from one.
    rest += rest < 0 ? turn : rest >= turn ? -turn : D{};
    // Beyond 2^52 turns no digit of the phase is left, and the product may be rounded by more than a period. A NaN
    // is neither, so that it shows.
    return (rest < 0) | (rest >= turn) ? D{} : rest * per_turn;
  }
};

// c and h move from their old values to the LSTM's proposal as far as the gate is open at the phase.
struct PhasedBlend {
  enum { PHASE, C0, H0, C1, H1, C, H };
  static constexpr auto operands = Operands(7).makes(C, H).writes(PHASE, C0, H0, C1, H1).reads(PHASE, C0, H0, C1, H1);

  // How far gates are open, and how that changes with the phase. The numbers of the operation are looked at once, because
  // the compiler cannot know that no store changes them.
  template <class T>
  struct Openness {
    const T ratio, leak, steep;
    explicit Openness(const Op& op) : ratio(T(op.num[0])), leak(T(op.num[1])), steep(2 / ratio) {}

    Vec<T> at(Vec<T> phase) const {
      const Vec<T> rising = phase * steep;
      return phase < ratio ? (rising < 1 ? rising : 2 - rising) : leak * phase;
    }
    Vec<T> slope(Vec<T> phase) const {
      return phase < ratio ? (phase * steep < 1 ? fill(steep) : fill(-steep)) : fill(leak);
    }
  };

  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    const T *phase = s.value(op.reg[PHASE]), *c0 = s.value(op.reg[C0]), *h0 = s.value(op.reg[H0]);
    const T *c1 = s.value(op.reg[C1]), *h1 = s.value(op.reg[H1]);
    T *c = s.value(op.reg[C]), *h = s.value(op.reg[H]);
    const Openness<T> openness(op);
    each<T>(s.rows * s.width(op.reg[C]), [&](long i) {
      const Vec<T> k = openness.at(load(phase + i)), old_c = load(c0 + i), old_h = load(h0 + i);
      store(c + i, old_c + k * (load(c1 + i) - old_c));
      store(h + i, old_h + k * (load(h1 + i) - old_h));
    });
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T *phase = s.value(op.reg[PHASE]), *c0 = s.value(op.reg[C0]), *h0 = s.value(op.reg[H0]);
    const T *c1 = s.value(op.reg[C1]), *h1 = s.value(op.reg[H1]);
    const T *dc = s.adjoint(op.reg[C]), *dh = s.adjoint(op.reg[H]);
    const Share<T> dphase(s, op, PHASE), dc0(s, op, C0), dh0(s, op, H0), dc1(s, op, C1), dh1(s, op, H1);
    const Openness<T> openness(op);
    each<T>(s.rows * s.width(op.reg[C]), [&](long i) {
      const Vec<T> at = load(phase + i), k = openness.at(at), gc = load(dc + i), gh = load(dh + i);
      dphase.put(i, (gc * (load(c1 + i) - load(c0 + i)) + gh * (load(h1 + i) - load(h0 + i))) * openness.slope(at));
      dc1.put(i, gc * k), dh1.put(i, gh * k);
      dc0.put(i, gc * (1 - k)), dh0.put(i, gh * (1 - k));
    });
  }
};

}  // namespace lapse
