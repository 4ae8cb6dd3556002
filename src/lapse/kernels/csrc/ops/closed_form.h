// The CfC: the activations of its backbone, and the state at the end of a gap in closed form.
#pragma once

#include "operation.h"

namespace lapse {

// y = 1.7159 tanh(0.666 u)
struct LeCunTanh {
  enum { Y, U };
  static constexpr auto operands = Operands(2).makes(Y).writes(U).reads(Y);
  static constexpr double kHeight = 1.7159, kSlope = 0.666;

  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    T* y = s.value(op.reg[Y]);
    const T* u = s.value(op.reg[U]);
    each<T>(s.rows * s.width(op.reg[Y]), [&](long i) { store(y + i, T(kHeight) * vtanh(T(kSlope) * load(u + i))); });
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T *y = s.value(op.reg[Y]), *dy = s.adjoint(op.reg[Y]);
    const Share<T> du(s, op, U);
    each<T>(s.rows * s.width(op.reg[Y]), [&](long i) {
      const Vec<T> t = load(y + i) * T(1 / kHeight);
      du.put(i, load(dy + i) * T(kHeight * kSlope) * (1 - t * t));
    });
  }
};

// y = u σ(u)
struct SiLU {
  enum { Y, U };
  static constexpr auto operands = Operands(2).makes(Y).writes(U).reads(U);

  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    T* y = s.value(op.reg[Y]);
    const T* u = s.value(op.reg[U]);
    each<T>(s.rows * s.width(op.reg[Y]), [&](long i) { store(y + i, load(u + i) * vrate(load(u + i))); });
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T *u = s.value(op.reg[U]), *dy = s.adjoint(op.reg[Y]);
    const Share<T> du(s, op, U);
    each<T>(s.rows * s.width(op.reg[Y]), [&](long i) {
      const Vec<T> x = load(u + i), r = vrate(x);
      du.put(i, load(dy + i) * r * (1 + x * (1 - r)));
    });
  }
};

// y = (1 − γ s) g + s k with s = σ(a Δ + b), g and k = tanh, all in place; γ = num[0] is 1 with the gate on g, 0 without it.
struct ClosedForm {
  enum { G, K, A, B, Y };
  static constexpr auto operands = Operands(5).makes(Y).writes(G, K, A, B).reads(G, K, A, B);

  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    T *pg = s.value(op.reg[G]), *pk = s.value(op.reg[K]), *pb = s.value(op.reg[B]), *y = s.value(op.reg[Y]);
    const T *pa = s.value(op.reg[A]), gate = T(op.num[0]);
    T span = 0;
    each_row<T>(
        s.rows, s.width(op.reg[Y]), [&](long r) { span = s.spans[r]; },
        [&](long, long i) {
          const Vec<T> g = vtanh(load(pg + i)), k = vtanh(load(pk + i));
          const Vec<T> share = vrate(load(pa + i) * span + load(pb + i));  // its digits matter: they meet the gap
          store(pg + i, g), store(pk + i, k), store(pb + i, share);
          store(y + i, g + share * (k - gate * g));
        },
        [](long) {});
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T *pg = s.value(op.reg[G]), *pk = s.value(op.reg[K]), *pa = s.value(op.reg[A]), *pb = s.value(op.reg[B]);
    const T *dy = s.adjoint(op.reg[Y]), gate = T(op.num[0]);
    T *dg = s.adjoint(op.reg[G]), *dk = s.adjoint(op.reg[K]), *da = s.adjoint(op.reg[A]), *db = s.adjoint(op.reg[B]);
    T span = 0;
    Vec<T> along{};
    each_row<T>(
        s.rows, s.width(op.reg[Y]), [&](long r) { span = s.spans[r], along = Vec<T>{}; },
        [&](long, long i) {
          const Vec<T> g = load(pg + i), k = load(pk + i), share = load(pb + i), d = load(dy + i);
          const Vec<T> inner = d * (k - gate * g) * share * (1 - share);
          along += inner * load(pa + i);
          store(dg + i, d * (1 - gate * share) * (1 - g * g));
          store(dk + i, d * share * (1 - k * k));
          store(da + i, inner * span);
          store(db + i, inner);
        },
        [&](long r) { s.span_gradients[r] += total<T>(along); });
  }
};

// y = A (1 − f e^{−(τ + |f|) Δ})
struct PureSolution {
  enum { U, Y };
  static constexpr auto operands = Operands(2).makes(Y).writes(U).reads(U);
  enum { RATE, LEVEL };

  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    const T *u = s.value(op.reg[U]), *rate = s.parameter(op.par[RATE]), *level = s.parameter(op.par[LEVEL]);
    T *y = s.value(op.reg[Y]), span = 0;
    each_row<T>(
        s.rows, s.width(op.reg[Y]), [&](long r) { span = s.spans[r]; },
        [&](long j, long i) {
          const Vec<T> f = load(u + i), e = vexp(-(load(rate + j) + size_of(f)) * span);
          store(y + i, load(level + j) * (1 - f * e));
        },
        [](long) {});
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T *u = s.value(op.reg[U]), *rate = s.parameter(op.par[RATE]), *level = s.parameter(op.par[LEVEL]);
    const T* dy = s.adjoint(op.reg[Y]);
    T *d_rate = s.gradient(op.par[RATE]), *d_level = s.gradient(op.par[LEVEL]), span = 0;
    const Share<T> du(s, op, U);
    Vec<T> along{};
    each_row<T>(
        s.rows, s.width(op.reg[Y]), [&](long r) { span = s.spans[r], along = Vec<T>{}; },
        [&](long j, long i) {
          const Vec<T> f = load(u + i), z = load(rate + j) + size_of(f), e = vexp(-z * span), d = load(dy + i);
          const Vec<T> pull = d * load(level + j) * e, dz = pull * f, zero{};  // dz, of the exponent over the gap
          along += dz * z;
          increase(d_rate + j, dz * span);
          increase(d_level + j, d * (1 - f * e));
          du.put(i, (f < 0 ? -dz : f > 0 ? dz : zero) * span - pull);
        },
        [&](long r) { s.span_gradients[r] += total<T>(along); });
  }

 private:
  template <class V>
  static V size_of(V f) {
    return f < 0 ? -f : f;
  }
};

}  // namespace lapse
