// The gates of GRU-ODE and GRU-D, and how GRU-D fills in missing inputs.
#pragma once

#include "operation.h"

namespace lapse {

// r = σ(u) in place, and r ⊙ y.
struct Reset {
  enum { U, Y, RY };
  static constexpr auto operands = Operands(3).makes(RY).writes(U, Y).reads(U, Y).replays(RY);

  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    const bool replaying = s.replaying;
    T *u = s.value(op.reg[U]), *ry = s.value(op.reg[RY]);
    const T* y = s.value(op.reg[Y]);
    each<T>(s.rows * s.width(op.reg[U]), [&](long i) {
      const Vec<T> r = activate(replaying, u + i, [](Vec<T> x) { return vsigmoid(x); });
      store(ry + i, r * load(y + i));
    });
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T *u = s.value(op.reg[U]), *y = s.value(op.reg[Y]), *d = s.adjoint(op.reg[RY]);
    T* du = s.adjoint(op.reg[U]);
    const Share<T> dy(s, op, Y);
    each<T>(s.rows * s.width(op.reg[U]), [&](long i) {
      const Vec<T> r = load(u + i), g = load(d + i);
      store(du + i, g * load(y + i) * r * (1 - r));
      dy.put(i, g * r);
    });
  }
};

// GRU-ODE's slope k = ρ (g − y), ρ = σ(−u), g = tanh(v), both in place.
struct GRUSlope {
  enum { U, V, Y, K };
  static constexpr auto operands = Operands(4).makes(K).writes(U, V, Y).reads(U, V, Y).replays(K);

  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    const bool replaying = s.replaying;
    T *u = s.value(op.reg[U]), *v = s.value(op.reg[V]), *k = s.value(op.reg[K]);
    const T* y = s.value(op.reg[Y]);
    each<T>(s.rows * s.width(op.reg[U]), [&](long i) {
      const Vec<T> rate = activate(replaying, u + i, [](Vec<T> x) { return vrate(-x); }), g = activate_tanh(replaying, v + i);
      store(k + i, rate * (g - load(y + i)));
    });
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T *u = s.value(op.reg[U]), *v = s.value(op.reg[V]), *y = s.value(op.reg[Y]), *dk = s.adjoint(op.reg[K]);
    T *du = s.adjoint(op.reg[U]), *dv = s.adjoint(op.reg[V]), h = 0;
    const Share<T> dy(s, op, Y);
    Vec<T> along{};
    each_row<T>(
        s.rows, s.width(op.reg[U]), [&](long r) { h = s.spans[r] / T(op.num[0]), along = Vec<T>{}; },
        [&](long, long i) {
          const Vec<T> rate = load(u + i), g = load(v + i), gap = g - load(y + i), d = load(dk + i), dh = d * h;
          along += d * rate * gap;
          store(du + i, -dh * gap * rate * (1 - rate));
          store(dv + i, dh * rate * (1 - g * g));
          dy.put(i, -dh * rate);
        },
        [&](long r) { s.span_gradients[r] += total<T>(along) / T(op.num[0]); });
  }
};

// GRU-ODE's exponential sub-step: h φ₁(ρh) ρ is 1 − e^{−ρh}, so y = y₀ + (1 − e^{−ρh}) (g − y₀).
struct GRUExponential {
  enum { U, V, Y0, Y };
  static constexpr auto operands = Operands(4).makes(Y).writes(U, V, Y0).reads(U, V, Y0);

  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    T *u = s.value(op.reg[U]), *v = s.value(op.reg[V]), *y = s.value(op.reg[Y]), h = 0;
    const T* y0 = s.value(op.reg[Y0]);
    each_row<T>(
        s.rows, s.width(op.reg[U]), [&](long r) { h = s.spans[r] / T(op.num[0]); },
        [&](long, long i) {
          const Vec<T> rate = vrate(-load(u + i)), g = vtanh(load(v + i)), old = load(y0 + i);
          Vec<T> e, lost;
          damping(rate * h, h, e, lost);
          store(u + i, rate), store(v + i, g), store(y + i, old + lost * (g - old));
        },
        [](long) {});
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T *u = s.value(op.reg[U]), *v = s.value(op.reg[V]), *y0 = s.value(op.reg[Y0]), *dy = s.adjoint(op.reg[Y]);
    T *du = s.adjoint(op.reg[U]), *dv = s.adjoint(op.reg[V]), h = 0;
    const Share<T> dy0(s, op, Y0);
    Vec<T> along{};
    each_row<T>(
        s.rows, s.width(op.reg[U]), [&](long r) { h = s.spans[r] / T(op.num[0]), along = Vec<T>{}; },
        [&](long, long i) {
          const Vec<T> rate = load(u + i), g = load(v + i), d = load(dy + i);
          Vec<T> e, lost;
          damping(rate * h, h, e, lost);
          const Vec<T> dz = -d * (load(y0 + i) - g) * e;  // of the exponent ρh
          along += dz * rate;
          store(du + i, -dz * h * rate * (1 - rate));
          store(dv + i, d * lost * (1 - g * g));
          dy0.put(i, d * e);
        },
        [&](long r) { s.span_gradients[r] += total<T>(along) / T(op.num[0]); });
  }
};

// GRU-D's update y = y₀ + z (g − y₀), z = σ(u), g = tanh(v), both in place.
struct Blend {
  enum { U, V, Y0, Y };
  static constexpr auto operands = Operands(4).makes(Y).writes(U, V, Y0).reads(U, V, Y0);

  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    T *u = s.value(op.reg[U]), *v = s.value(op.reg[V]), *y = s.value(op.reg[Y]);
    const T* y0 = s.value(op.reg[Y0]);
    each<T>(s.rows * s.width(op.reg[U]), [&](long i) {
      const Vec<T> z = vsigmoid(load(u + i)), g = vtanh(load(v + i)), old = load(y0 + i);
      store(u + i, z), store(v + i, g), store(y + i, old + z * (g - old));
    });
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T *u = s.value(op.reg[U]), *v = s.value(op.reg[V]), *y0 = s.value(op.reg[Y0]), *dy = s.adjoint(op.reg[Y]);
    T *du = s.adjoint(op.reg[U]), *dv = s.adjoint(op.reg[V]);
    const Share<T> dy0(s, op, Y0);
    each<T>(s.rows * s.width(op.reg[U]), [&](long i) {
      const Vec<T> z = load(u + i), g = load(v + i), d = load(dy + i);
      store(du + i, d * (g - load(y0 + i)) * z * (1 - z));
      store(dv + i, d * z * (1 - g * g));
      dy0.put(i, d * (1 - z));
    });
  }
};

// GRU-D's fading state: y = y₀ exp(−max(0, v)).
struct Fade {
  enum { V, Y0, Y };
  static constexpr auto operands = Operands(3).makes(Y).writes(V, Y0).reads(V, Y);

  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    T* y = s.value(op.reg[Y]);
    const T *v = s.value(op.reg[V]), *y0 = s.value(op.reg[Y0]);
    each<T>(s.rows * s.width(op.reg[V]), [&](long i) { store(y + i, load(y0 + i) * vexp(-vpositive(load(v + i)))); });
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T *v = s.value(op.reg[V]), *y = s.value(op.reg[Y]), *dy = s.adjoint(op.reg[Y]);
    T* dv = s.adjoint(op.reg[V]);
    const Share<T> dy0(s, op, Y0);
    each<T>(s.rows * s.width(op.reg[V]), [&](long i) {
      const Vec<T> a = load(v + i), d = load(dy + i), zero{};
      store(dv + i, a > 0 ? -d * load(y + i) : zero);
      dy0.put(i, d * vexp(-vpositive(a)));
    });
  }
};

// GRU-D's inputs: a missing one fades from its last value to its mean.
struct Impute {
  enum { X, M, SINCE1, LAST0, XHAT, LAST, SINCE };
  static constexpr auto operands = Operands(7).makes(XHAT, LAST, SINCE).writes(X, M, SINCE1, LAST0).reads(X, M, SINCE1, LAST0);
  enum { WEIGHT, BIAS, MEAN };

  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    const T *x = s.value(op.reg[X]), *m = s.value(op.reg[M]), *since1 = s.value(op.reg[SINCE1]);
    const T *last0 = s.value(op.reg[LAST0]), *w = s.parameter(op.par[WEIGHT]), *b = s.parameter(op.par[BIAS]);
    const T* mean = s.parameter(op.par[MEAN]);
    T *x_hat = s.value(op.reg[XHAT]), *last = s.value(op.reg[LAST]), *since = s.value(op.reg[SINCE]);
    each_row<T>(
        s.rows, s.width(op.reg[X]), [](long) {},
        [&](long u, long i) {
          const Vec<T> seen = load(m + i), old = load(last0 + i), age = load(since1 + i), mu = load(mean + u);
          const Vec<T> fading = vexp(-vpositive(load(w + u) * age + load(b + u)));
          store(x_hat + i, seen * load(x + i) + (1 - seen) * (mu + fading * (old - mu)));
          store(last + i, old + seen * (load(x + i) - old));
          store(since + i, (1 - seen) * age);
        },
        [](long) {});
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T *x = s.value(op.reg[X]), *m = s.value(op.reg[M]), *since1 = s.value(op.reg[SINCE1]);
    const T *last0 = s.value(op.reg[LAST0]), *w = s.parameter(op.par[WEIGHT]), *b = s.parameter(op.par[BIAS]);
    const T* mean = s.parameter(op.par[MEAN]);
    const T *dx_hat = s.adjoint(op.reg[XHAT]), *dlast = s.adjoint(op.reg[LAST]), *dsince = s.adjoint(op.reg[SINCE]);
    T *dw = s.gradient(op.par[WEIGHT]), *db = s.gradient(op.par[BIAS]);
    const Share<T> dx(s, op, X), dm(s, op, M), dsince1(s, op, SINCE1), dlast0(s, op, LAST0);
    each_row<T>(
        s.rows, s.width(op.reg[X]), [](long) {},
        [&](long u, long i) {
          const Vec<T> seen = load(m + i), old = load(last0 + i), age = load(since1 + i), mu = load(mean + u);
          const Vec<T> now = load(x + i), weight = load(w + u), a = weight * age + load(b + u), zero{};
          const Vec<T> fading = vexp(-vpositive(a));
          const Vec<T> g = load(dx_hat + i), g_last = load(dlast + i), g_since = load(dsince + i);
          const Vec<T> filled = g * (1 - seen), da = a > 0 ? -fading * filled * (old - mu) : zero;
          increase(dw + u, da * age), increase(db + u, da);
          dx.put(i, (g + g_last) * seen);
          dm.put(i, g * (now - (mu + fading * (old - mu))) + g_last * (now - old) - g_since * age);
          dlast0.put(i, filled * fading + g_last * (1 - seen));
          dsince1.put(i, da * weight + g_since * (1 - seen));
        },
        [](long) {});
  }
};

}  // namespace lapse
