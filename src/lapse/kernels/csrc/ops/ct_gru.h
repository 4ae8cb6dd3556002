// The CT-GRU. Traces are `count` registers side by side, num[0] of them; par[0] holds ln τ_m.
#pragma once

#include "operation.h"

namespace lapse {

// ĥ_m = ĥ_m⁰ e^{−Δ/τ_m}, h = Σ ĥ_m
struct TraceDecay {
  enum { TRACES0, TRACES, H };
  static constexpr auto operands = Operands(3).makes(TRACES, H).writes(TRACES0).reads(TRACES).replays(TRACES, H);

  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    const long width = s.width(op.reg[H]), count = long(op.num[0]);
    const T* scales = s.parameter(op.par[0]);
    T* h = s.value(op.reg[H]);
    for (long m = 0; m < count; ++m) {
      const T* old = s.value(op.reg[TRACES0] + int32_t(m));
      T *now = s.value(op.reg[TRACES] + int32_t(m)), e = 0;
      each_row<T>(
          s.rows, width, [&](long r) { e = std::exp(-s.spans[r] * std::exp(-scales[m])); },
          [&](long, long i) {
            const Vec<T> trace = load(old + i) * e;
            store(now + i, trace);
            store(h + i, m ? load(h + i) + trace : trace);
          },
          [](long) {});
    }
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const long width = s.width(op.reg[H]), count = long(op.num[0]);
    const T *scales = s.parameter(op.par[0]), *dh = s.adjoint(op.reg[H]);
    for (long m = 0; m < count; ++m) {
      const T *now = s.value(op.reg[TRACES] + int32_t(m)), *d = s.adjoint(op.reg[TRACES] + int32_t(m));
      T *old = s.adjoint(op.reg[TRACES0] + int32_t(m)), e = 0;
      const T rate = std::exp(-scales[m]);
      Vec<T> along{};
      each_row<T>(
          s.rows, width, [&](long r) { e = std::exp(-s.spans[r] * rate), along = Vec<T>{}; },
          [&](long, long i) {
            const Vec<T> g = load(d + i) + load(dh + i);
            along += g * load(now + i);
            store(old + i, op.add[TRACES0] ? load(old + i) + g * e : g * e);
          },
          [&](long r) { s.span_gradients[r] -= total<T>(along) * rate; });
    }
  }
};

constexpr int kMostScales = 32;

// Softmax over scales of −(u − ln τ_m)².
template <class T>
struct Choice {
  Vec<T> weight[kMostScales];
  Choice(Vec<T> u, const T* scales, long count) {
    Vec<T> sum{}, top{};
    for (long m = 0; m < count; ++m) {
      const Vec<T> away = u - scales[m];
      weight[m] = -away * away;
      top = m == 0 ? weight[m] : weight[m] > top ? weight[m] : top;
    }
    for (long m = 0; m < count; ++m) weight[m] = vexp(weight[m] - top), sum += weight[m];
    for (long m = 0; m < count; ++m) weight[m] /= sum;
  }
  // The adjoint of u, given those of the weights.
  Vec<T> pull(Vec<T> u, const T* scales, long count, const Vec<T>* d) const {
    Vec<T> mean{}, du{};
    for (long m = 0; m < count; ++m) mean += weight[m] * d[m];
    for (long m = 0; m < count; ++m) du -= 2 * (u - scales[m]) * weight[m] * (d[m] - mean);
    return du;
  }
};

// y = Σ_m r_m(u) ĥ_m
struct TraceRead {
  enum { U, TRACES, Y };
  static constexpr auto operands = Operands(3).makes(Y).writes(U, TRACES).reads(U, TRACES);

  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    const long size = s.rows * s.width(op.reg[Y]), count = long(op.num[0]);
    const T *scales = s.parameter(op.par[0]), *u = s.value(op.reg[U]);
    const T* trace[kMostScales];
    for (long m = 0; m < count; ++m) trace[m] = s.value(op.reg[TRACES] + int32_t(m));
    T* y = s.value(op.reg[Y]);
    each<T>(size, [&](long i) {
      const Choice<T> choice(load(u + i), scales, count);
      Vec<T> sum{};
      for (long m = 0; m < count; ++m) sum += choice.weight[m] * load(trace[m] + i);
      store(y + i, sum);
    });
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const long size = s.rows * s.width(op.reg[Y]), count = long(op.num[0]);
    const T *scales = s.parameter(op.par[0]), *u = s.value(op.reg[U]), *dy = s.adjoint(op.reg[Y]);
    const T* trace[kMostScales];
    T *dtrace[kMostScales], *du = s.adjoint(op.reg[U]);
    for (long m = 0; m < count; ++m)
      trace[m] = s.value(op.reg[TRACES] + int32_t(m)), dtrace[m] = s.adjoint(op.reg[TRACES] + int32_t(m));
    each<T>(size, [&](long i) {
      const Vec<T> at = load(u + i), g = load(dy + i);
      const Choice<T> choice(at, scales, count);
      Vec<T> d[kMostScales];
      for (long m = 0; m < count; ++m) {
        d[m] = g * load(trace[m] + i);
        const Vec<T> share = g * choice.weight[m];
        store(dtrace[m] + i, op.add[TRACES] ? load(dtrace[m] + i) + share : share);
      }
      store(du + i, choice.pull(at, scales, count, d));
    });
  }
};

// ĥ_m = ĥ_m¹ + s_m(u) (q − ĥ_m¹), h = Σ ĥ_m
struct TraceStore {
  enum { U, Q, TRACES1, TRACES, H };
  static constexpr auto operands = Operands(5).makes(TRACES, H).writes(U, Q, TRACES1).reads(U, Q, TRACES1);

  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    const long size = s.rows * s.width(op.reg[H]), count = long(op.num[0]);
    const T *scales = s.parameter(op.par[0]), *u = s.value(op.reg[U]), *pq = s.value(op.reg[Q]);
    const T* old[kMostScales];
    T *trace[kMostScales], *h = s.value(op.reg[H]);
    for (long m = 0; m < count; ++m)
      old[m] = s.value(op.reg[TRACES1] + int32_t(m)), trace[m] = s.value(op.reg[TRACES] + int32_t(m));
    each<T>(size, [&](long i) {
      const Choice<T> choice(load(u + i), scales, count);
      const Vec<T> q = load(pq + i);
      Vec<T> sum{};
      for (long m = 0; m < count; ++m) {
        const Vec<T> before = load(old[m] + i), now = before + choice.weight[m] * (q - before);
        store(trace[m] + i, now);
        sum += now;
      }
      store(h + i, sum);
    });
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const long size = s.rows * s.width(op.reg[H]), count = long(op.num[0]);
    const T *scales = s.parameter(op.par[0]), *u = s.value(op.reg[U]), *pq = s.value(op.reg[Q]);
    const T *old[kMostScales], *d_now[kMostScales], *dh = s.adjoint(op.reg[H]);
    T *d_old[kMostScales], *du = s.adjoint(op.reg[U]), *dq = s.adjoint(op.reg[Q]);
    for (long m = 0; m < count; ++m) {
      old[m] = s.value(op.reg[TRACES1] + int32_t(m)), d_old[m] = s.adjoint(op.reg[TRACES1] + int32_t(m));
      d_now[m] = s.adjoint(op.reg[TRACES] + int32_t(m));
    }
    each<T>(size, [&](long i) {
      const Vec<T> at = load(u + i), q = load(pq + i), gh = load(dh + i);
      const Choice<T> choice(at, scales, count);
      Vec<T> d[kMostScales], g_q{};
      for (long m = 0; m < count; ++m) {
        const Vec<T> g = load(d_now[m] + i) + gh, share = g * (1 - choice.weight[m]);
        d[m] = g * (q - load(old[m] + i));
        g_q += g * choice.weight[m];
        store(d_old[m] + i, op.add[TRACES1] ? load(d_old[m] + i) + share : share);
      }
      store(dq + i, g_q);
      store(du + i, choice.pull(at, scales, count, d));
    });
  }
};

}  // namespace lapse
