// Explicit solvers: slopes, and sums of slopes.
//
// A sub-step is h = span / num[0]. A slope's adjoint is kept without its factor h until the slope's own backward, which
// has the value of the slope at hand for the gradient of the span; so slopes need not be saved.
#pragma once

#include "operation.h"

namespace lapse {

// Σ wᵢ kᵢ over reg[2..], the weights in num[1..], and its share of the adjoints.
template <class T>
struct Terms {
  int count = 0;
  const T* k[8];
  T *dk[8], w[8];
  bool add[8];
  Terms(const Step<T>& s, const Op& op) {
    for (; op.reg[2 + count] != kNone; ++count) {
      k[count] = s.value(op.reg[2 + count]), dk[count] = s.adjoint(op.reg[2 + count]);
      w[count] = T(op.num[1 + count]), add[count] = op.add[2 + count];
    }
  }
  Vec<T> sum(long i) const {
    Vec<T> y = load(k[0] + i) * w[0];
    for (int j = 1; j < count; ++j) y += load(k[j] + i) * w[j];
    return y;
  }
  void put(long i, Vec<T> g) const {
    for (int j = 0; j < count; ++j) store(dk[j] + i, add[j] ? load(dk[j] + i) + g * w[j] : g * w[j]);
  }
};

// The operands of a sum over up to seven slopes.
struct Sum {
  enum { Y, Y0, K };
  static constexpr auto operands = Operands(9)
                                       .makes(Y)
                                       .writes(Y0, K, K + 1, K + 2, K + 3, K + 4, K + 5, K + 6)
                                       .replays(Y)
                                       .may_lack(K + 1, K + 2, K + 3, K + 4, K + 5, K + 6);
};

// y = y₀ + h Σ wᵢ kᵢ
struct Combine : Sum {
  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    T *y = s.value(op.reg[Y]), h = 0;
    const T* y0 = s.value(op.reg[Y0]);
    const Terms<T> terms(s, op);
    each_row<T>(
        s.rows, s.width(op.reg[Y]), [&](long r) { h = s.spans[r] / T(op.num[0]); },
        [&](long, long i) { store(y + i, load(y0 + i) + h * terms.sum(i)); }, [](long) {});
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T* d = s.adjoint(op.reg[Y]);
    const Share<T> d0(s, op, Y0);
    const Terms<T> terms(s, op);
    each<T>(s.rows * s.width(op.reg[Y]), [&](long i) {
      const Vec<T> g = load(d + i);
      d0.put(i, g);
      terms.put(i, g);
    });
  }
};

// y = y₀ + h Σ wᵢ kᵢ of values that are no slopes: the factor h and the gradient of the span are settled here. y₀ may be none.
struct Integrate : Sum {
  static constexpr auto operands = Sum::operands.reads(K, K + 1, K + 2, K + 3, K + 4, K + 5, K + 6).may_lack(Y0);

  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    T *y = s.value(op.reg[Y]), h = 0;
    const T* y0 = op.reg[Y0] == kNone ? nullptr : s.value(op.reg[Y0]);
    const Terms<T> terms(s, op);
    each_row<T>(
        s.rows, s.width(op.reg[Y]), [&](long r) { h = s.spans[r] / T(op.num[0]); },
        [&](long, long i) { store(y + i, y0 ? load(y0 + i) + h * terms.sum(i) : h * terms.sum(i)); }, [](long) {});
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T* d = s.adjoint(op.reg[Y]);
    T *d0 = op.reg[Y0] == kNone ? nullptr : s.adjoint(op.reg[Y0]), h = 0;
    const Terms<T> terms(s, op);
    Vec<T> along{};
    each_row<T>(
        s.rows, s.width(op.reg[Y]), [&](long r) { h = s.spans[r] / T(op.num[0]), along = Vec<T>{}; },
        [&](long, long i) {
          const Vec<T> g = load(d + i);
          if (d0) store(d0 + i, op.add[Y0] ? load(d0 + i) + g : g);
          terms.put(i, g * h);
          along += g * terms.sum(i);
        },
        [&](long r) { s.span_gradients[r] += total<T>(along) / T(op.num[0]); });
  }
};

// k = s tanh(u) − τ y; without τ if par[RATE] is none.
struct TanhSlope {
  enum { U, Y, K };
  static constexpr auto operands = Operands(3).makes(K).writes(U, Y).reads(U, Y).replays(K);
  enum { SCALE, RATE };

  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    const bool replaying = s.replaying;
    T *u = s.value(op.reg[U]), *k = s.value(op.reg[K]);
    const T* y = s.value(op.reg[Y]);
    const T* scale = s.parameter(op.par[SCALE]);
    const T* rate = op.par[RATE] == kNone ? nullptr : s.parameter(op.par[RATE]);
    each_row<T>(
        s.rows, s.width(op.reg[U]), [](long) {},
        [&](long j, long i) {
          const Vec<T> t = activate_tanh(replaying, u + i);
          Vec<T> slope = load(scale + j) * t;
          if (rate) slope -= load(rate + j) * load(y + i);
          store(k + i, slope);
        },
        [](long) {});
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T *u = s.value(op.reg[U]), *y = s.value(op.reg[Y]), *dk = s.adjoint(op.reg[K]);
    const T* scale = s.parameter(op.par[SCALE]);
    const T* rate = op.par[RATE] == kNone ? nullptr : s.parameter(op.par[RATE]);
    T* d_scale = s.gradient(op.par[SCALE]);
    T* d_rate = rate ? s.gradient(op.par[RATE]) : nullptr;
    T *du = s.adjoint(op.reg[U]), h = 0;
    const Share<T> dy(s, op, Y);
    Vec<T> along{};
    each_row<T>(
        s.rows, s.width(op.reg[U]), [&](long r) { h = s.spans[r] / T(op.num[0]), along = Vec<T>{}; },
        [&](long j, long i) {
          const Vec<T> t = load(u + i), a = load(scale + j), d = load(dk + i), dh = d * h;
          Vec<T> slope = a * t;
          increase(d_scale + j, dh * t);
          store(du + i, dh * a * (1 - t * t));
          if (rate) {
            const Vec<T> q = load(rate + j), state = load(y + i);
            slope -= q * state;
            increase(d_rate + j, -dh * state);
            dy.put(i, -dh * q);
          }
          along += d * slope;
        },
        [&](long r) { s.span_gradients[r] += total<T>(along) / T(op.num[0]); });
  }
};

// The slope k as it is: only the factor h of its adjoint, and the span's gradient.
struct PlainSlope {
  enum { K };
  static constexpr auto operands = Operands(1).reads(K);

  template <class T>
  static void forward(Step<T>&, const Op&) {}
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T* k = s.value(op.reg[K]);
    T *dk = s.adjoint(op.reg[K]), h = 0;
    Vec<T> along{};
    each_row<T>(
        s.rows, s.width(op.reg[K]), [&](long r) { h = s.spans[r] / T(op.num[0]), along = Vec<T>{}; },
        [&](long, long i) {
          const Vec<T> d = load(dk + i);
          along += d * load(k + i);
          store(dk + i, d * h);
        },
        [&](long r) { s.span_gradients[r] += total<T>(along) / T(op.num[0]); });
  }
};

}  // namespace lapse
