// The LSTM, and the memory of the CT-LSTM.
#pragma once

#include "operation.h"

namespace lapse {

// Eqs. 2–7 of the paper from pre-activations i, f, z, o: c = σ(f) c₀ + σ(i) tanh(z), h = σ(o) tanh(c).
struct LSTM {
  enum { I, F, Z, O, C0, C, H, TANH };
  static constexpr auto operands = Operands(8).makes(C, H).writes(I, F, Z, O, C0).reads(I, F, Z, O, C0, TANH).replays(H, TANH);

  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    T *pi = s.value(op.reg[I]), *pf = s.value(op.reg[F]), *pz = s.value(op.reg[Z]), *po = s.value(op.reg[O]);
    const T* c0 = s.value(op.reg[C0]);
    T *pc = s.value(op.reg[C]), *ph = s.value(op.reg[H]), *pt = s.value(op.reg[TANH]);
    if (s.replaying)
      return each<T>(s.rows * s.width(op.reg[I]), [&](long k) {
        const Vec<T> t = vtanh(load(pc + k));
        store(pt + k, t), store(ph + k, load(po + k) * t);
      });
    each<T>(s.rows * s.width(op.reg[I]), [&](long k) {
      const Vec<T> i = vsigmoid(load(pi + k)), f = vsigmoid(load(pf + k)), z = vtanh(load(pz + k)),
                   o = vsigmoid(load(po + k));
      const Vec<T> c = f * load(c0 + k) + i * z;
      store(pi + k, i), store(pf + k, f), store(pz + k, z), store(po + k, o);
      store(pc + k, c), store(ph + k, o * vtanh(c));
    });
  }

  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T *pi = s.value(op.reg[I]), *pf = s.value(op.reg[F]), *pz = s.value(op.reg[Z]), *po = s.value(op.reg[O]);
    const T *c0 = s.value(op.reg[C0]), *pt = s.value(op.reg[TANH]);
    const T *dc = s.adjoint(op.reg[C]), *dh = s.adjoint(op.reg[H]);
    T *di = s.adjoint(op.reg[I]), *df = s.adjoint(op.reg[F]), *dz = s.adjoint(op.reg[Z]), *d_o = s.adjoint(op.reg[O]);
    const Share<T> dc0(s, op, C0);
    each<T>(s.rows * s.width(op.reg[I]), [&](long k) {
      const Vec<T> i = load(pi + k), f = load(pf + k), z = load(pz + k), o = load(po + k);
      const Vec<T> t = load(pt + k), g = load(dh + k);
      const Vec<T> d = load(dc + k) + g * o * (1 - t * t);
      store(di + k, d * z * i * (1 - i));
      store(df + k, d * load(c0 + k) * f * (1 - f));
      store(dz + k, d * i * (1 - z * z));
      store(d_o + k, g * t * o * (1 - o));
      dc0.put(k, d * f);
    });
  }
};

// c = c̄₀ + (c₀ − c̄₀) e^{−δ₀Δ}, h = o₀ tanh(c)
struct MemoryDecay {
  enum { C0, TARGET0, RATE0, GATE0, C, H };
  static constexpr auto operands = Operands(6).makes(C, H).writes(C0, TARGET0, RATE0, GATE0).reads(C0, TARGET0, RATE0, GATE0, C);

  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    const T *c0 = s.value(op.reg[C0]), *target = s.value(op.reg[TARGET0]), *rate = s.value(op.reg[RATE0]);
    const T* gate = s.value(op.reg[GATE0]);
    T *pc = s.value(op.reg[C]), *ph = s.value(op.reg[H]), span = 0;
    each_row<T>(
        s.rows, s.width(op.reg[C]), [&](long r) { span = s.spans[r]; },
        [&](long, long i) {
          const Vec<T> aim = load(target + i), c = aim + (load(c0 + i) - aim) * vexp(-load(rate + i) * span);
          store(pc + i, c), store(ph + i, load(gate + i) * vtanh(c));
        },
        [](long) {});
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T *c0 = s.value(op.reg[C0]), *target = s.value(op.reg[TARGET0]), *rate = s.value(op.reg[RATE0]);
    const T *gate = s.value(op.reg[GATE0]), *pc = s.value(op.reg[C]);
    const T *dc = s.adjoint(op.reg[C]), *dh = s.adjoint(op.reg[H]);
    const Share<T> dc0(s, op, C0), dtarget(s, op, TARGET0), drate(s, op, RATE0), dgate(s, op, GATE0);
    T span = 0;
    Vec<T> along{};
    each_row<T>(
        s.rows, s.width(op.reg[C]), [&](long r) { span = s.spans[r], along = Vec<T>{}; },
        [&](long, long i) {
          const Vec<T> t = vtanh(load(pc + i)), g = load(dh + i), q = load(rate + i), e = vexp(-q * span);
          const Vec<T> d = load(dc + i) + g * load(gate + i) * (1 - t * t);
          const Vec<T> dz = -d * (load(c0 + i) - load(target + i)) * e;
          dgate.put(i, g * t);
          dc0.put(i, d * e);
          dtarget.put(i, d * (1 - e));
          drate.put(i, dz * span);
          along += dz * q;
        },
        [&](long r) { s.span_gradients[r] += total<T>(along); });
  }
};

// The seven gates of Mei & Eisner, from the decayed memory c₁.
struct MemoryUpdate {
  enum { I, F, Z, O, I2, F2, U, C1, TARGET0, H, C, TARGET, RATE, GATE };
  static constexpr auto operands = Operands(14)
                                       .makes(H, C, TARGET, RATE, GATE)
                                       .writes(I, F, Z, O, I2, F2, U, C1, TARGET0)
                                       .reads(I, F, Z, I2, F2, U, C1, TARGET0, C, GATE);

  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    T* g[7];
    for (int j = 0; j < 7; ++j) g[j] = s.value(op.reg[I + j]);
    const T *c1 = s.value(op.reg[C1]), *target0 = s.value(op.reg[TARGET0]);
    T *h = s.value(op.reg[H]), *pc = s.value(op.reg[C]), *target = s.value(op.reg[TARGET]), *rate = s.value(op.reg[RATE]);
    T* gate = s.value(op.reg[GATE]);
    each<T>(s.rows * s.width(op.reg[I]), [&](long k) {
      const Vec<T> i = vsigmoid(load(g[I] + k)), f = vsigmoid(load(g[F] + k)), z = vtanh(load(g[Z] + k)),
                   o = vsigmoid(load(g[O] + k)), i2 = vsigmoid(load(g[I2] + k)), f2 = vsigmoid(load(g[F2] + k));
      const Vec<T> c = f * load(c1 + k) + i * z;
      store(g[I] + k, i), store(g[F] + k, f), store(g[Z] + k, z), store(g[I2] + k, i2), store(g[F2] + k, f2);
      store(pc + k, c), store(h + k, o * vtanh(c)), store(gate + k, o);
      store(target + k, f2 * load(target0 + k) + i2 * z);
      store(rate + k, vsoftplus(load(g[U] + k)));
    });
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T* g[7];
    T* d[7];
    for (int j = 0; j < 7; ++j) g[j] = s.value(op.reg[I + j]), d[j] = s.adjoint(op.reg[I + j]);
    const T *c1 = s.value(op.reg[C1]), *target0 = s.value(op.reg[TARGET0]), *pc = s.value(op.reg[C]);
    const T* gate = s.value(op.reg[GATE]);
    const T *dh = s.adjoint(op.reg[H]), *dc = s.adjoint(op.reg[C]), *dtarget = s.adjoint(op.reg[TARGET]);
    const T *drate = s.adjoint(op.reg[RATE]), *dgate = s.adjoint(op.reg[GATE]);
    const Share<T> dc1(s, op, C1), dtarget0(s, op, TARGET0);
    each<T>(s.rows * s.width(op.reg[I]), [&](long k) {
      const Vec<T> i = load(g[I] + k), f = load(g[F] + k), z = load(g[Z] + k), o = load(gate + k), i2 = load(g[I2] + k),
                   f2 = load(g[F2] + k), t = vtanh(load(pc + k));
      const Vec<T> gh = load(dh + k), gt = load(dtarget + k), gc = load(dc + k) + gh * o * (1 - t * t);
      store(d[I] + k, gc * z * i * (1 - i));
      store(d[F] + k, gc * load(c1 + k) * f * (1 - f));
      store(d[Z] + k, (gc * i + gt * i2) * (1 - z * z));
      store(d[O] + k, (load(dgate + k) + gh * t) * o * (1 - o));
      store(d[I2] + k, gt * z * i2 * (1 - i2));
      store(d[F2] + k, gt * load(target0 + k) * f2 * (1 - f2));
      store(d[U] + k, load(drate + k) * vsoftplus_slope(load(g[U] + k)));
      dc1.put(k, gc * f);
      dtarget0.put(k, gt * f2);
    });
  }
};

}  // namespace lapse
