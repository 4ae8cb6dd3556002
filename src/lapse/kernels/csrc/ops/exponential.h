// Exponential solvers of damped fields s tanh(u) − τ y.
#pragma once

#include "operation.h"

namespace lapse {

// e^{−z} and s h φ(z) with z = τ h and φ(z) = (1 − e^{−z}) / z: the same for all sub-steps of a gap.
struct Damping {
  enum { E, P };
  static constexpr auto operands = Operands(2).makes(E, P).reads(E).replays(E, P);
  enum { RATE, SCALE };

  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    T *e = s.value(op.reg[E]), *p = s.value(op.reg[P]), h = 0;
    const T *rate = s.parameter(op.par[RATE]), *scale = s.parameter(op.par[SCALE]), *inverse = s.companions(op.par[RATE]);
    const T fastest = largest(rate, s.width(op.reg[E]));
    each_row<T>(
        s.rows, s.width(op.reg[E]), [&](long r) { h = s.spans[r] / T(op.num[0]); },
        [&](long u, long i) {
          Vec<T> decay, lost;
          const Vec<T> z = load(rate + u) * h;
          damping(z, fastest * h, decay, lost);
          // h φ = (1 − e^{−z}) / τ, and h itself where z has no digits left
          const Vec<T> time = z > kSmall<T> ? lost * load(inverse + u) : fill(h);
          store(e + i, decay), store(p + i, load(scale + u) * time);
        },
        [](long) {});
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T *e = s.value(op.reg[E]), *de = s.adjoint(op.reg[E]), *dp = s.adjoint(op.reg[P]);
    const T *rate = s.parameter(op.par[RATE]), *scale = s.parameter(op.par[SCALE]), *inverse = s.companions(op.par[RATE]);
    T *d_rate = s.gradient(op.par[RATE]), *d_scale = s.gradient(op.par[SCALE]), h = 0, per_h = 0;
    const T fastest = largest(rate, s.width(op.reg[E]));
    Vec<T> along{};
    each_row<T>(
        s.rows, s.width(op.reg[E]),
        [&](long r) { h = s.spans[r] / T(op.num[0]), per_h = h > kSmall<T> ? 1 / h : T(0), along = Vec<T>{}; },
        [&](long u, long i) {
          const Vec<T> tau = load(rate + u), z = tau * h, decay = load(e + i), g = load(dp + i);
          const Vec<T> slope = phi_slope<T>(z, fastest * h, load(inverse + u) * per_h, decay);
          const Vec<T> phi = decay - z * slope;  // φ' = (e^{−z} − φ) / z
          const Vec<T> gp = g * load(scale + u), dz = gp * h * slope - load(de + i) * decay;
          along += gp * phi;
          along += dz * tau;
          increase(d_rate + u, dz * h);
          increase(d_scale + u, g * h * phi);
        },
        [&](long r) { s.span_gradients[r] += total<T>(along) / T(op.num[0]); });
  }
};

// One exponential sub-step of order 1: y = e^{−z} y₀ + s h φ tanh(u).
struct TanhExponential {
  enum { U, Y0, Y, E, P };
  static constexpr auto operands = Operands(5).makes(Y).writes(U, Y0, E, P).reads(U, Y0, E, P).replays(Y);

  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    const bool replaying = s.replaying;
    T *u = s.value(op.reg[U]), *y = s.value(op.reg[Y]);
    const T *y0 = s.value(op.reg[Y0]), *e = s.value(op.reg[E]), *p = s.value(op.reg[P]);
    each<T>(s.rows * s.width(op.reg[U]), [&](long i) {
      store(y + i, load(e + i) * load(y0 + i) + load(p + i) * activate_tanh(replaying, u + i));
    });
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T *u = s.value(op.reg[U]), *y0 = s.value(op.reg[Y0]), *e = s.value(op.reg[E]), *p = s.value(op.reg[P]);
    const T* dy = s.adjoint(op.reg[Y]);
    T* du = s.adjoint(op.reg[U]);
    const Share<T> dy0(s, op, Y0), de(s, op, E), dp(s, op, P);
    const bool more = op.add[U];  // a second-order step looked at tanh(u) too
    each<T>(s.rows * s.width(op.reg[U]), [&](long i) {
      const Vec<T> t = load(u + i), d = load(dy + i);
      de.put(i, d * load(y0 + i));
      dp.put(i, d * t);
      dy0.put(i, d * load(e + i));
      Vec<T> g = d * load(p + i);
      if (more) g += load(du + i);
      store(du + i, g * (1 - t * t));
    });
  }
};

// The correction of order 2: y = y₁ + s h φ (tanh(u) − tanh(u₀)) / 2, u₀ activated already.
struct TanhCorrection {
  enum { U, Y1, Y, U0, P };
  static constexpr auto operands = Operands(5).makes(Y).writes(U, Y1, U0, P).reads(U, U0, P).replays(Y);

  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    const bool replaying = s.replaying;
    T *u = s.value(op.reg[U]), *y = s.value(op.reg[Y]);
    const T *y1 = s.value(op.reg[Y1]), *u0 = s.value(op.reg[U0]), *p = s.value(op.reg[P]);
    each<T>(s.rows * s.width(op.reg[U]), [&](long i) {
      store(y + i, load(y1 + i) + load(p + i) * T(0.5) * (activate_tanh(replaying, u + i) - load(u0 + i)));
    });
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T *u = s.value(op.reg[U]), *u0 = s.value(op.reg[U0]), *p = s.value(op.reg[P]), *dy = s.adjoint(op.reg[Y]);
    T* du = s.adjoint(op.reg[U]);
    const Share<T> dy1(s, op, Y1), du0(s, op, U0), dp(s, op, P);
    each<T>(s.rows * s.width(op.reg[U]), [&](long i) {
      const Vec<T> t = load(u + i), half = load(dy + i) * T(0.5), g = half * load(p + i);
      dy1.put(i, load(dy + i));
      dp.put(i, half * (t - load(u0 + i)));
      store(du + i, g * (1 - t * t));
      du0.put(i, -g);
    });
  }
};

}  // namespace lapse
