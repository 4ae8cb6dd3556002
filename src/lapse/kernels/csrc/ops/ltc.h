// The LTC: synapses from every source to every unit, and its semi-implicit sub-step.
#pragma once

#include "operation.h"

namespace lapse {

// Σ_i a_ij E_ij and Σ_i a_ij with a_ij = w_ij σ(γ_ij (v_i − μ_ij)). There are as many σ as synapses, so that the backward pass
// computes them again: the tape has no room for them.
struct Synapses {
  enum { V, PULL, SUM };
  static constexpr auto operands = Operands(3).makes(PULL, SUM).writes(V).reads(V);
  enum { WEIGHT, SLOPE, THRESHOLD, REVERSAL };

  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    const long width = s.width(op.reg[PULL]), source_width = s.width(op.reg[V]);
    const T* v = s.value(op.reg[V]);
    T *pull = s.value(op.reg[PULL]), *sum = s.value(op.reg[SUM]);
    each_vector<T>(s, op, [&](long unit, long place, long step, long sources) {
      const Weights<T> w(s, op, place);
      for (long r = 0; r < s.rows; ++r) {
        Vec<T> pulled{}, all{};
        for (long i = 0; i < sources; ++i) {
          const long k = i * step;
          const Vec<T> a = load(w.weight + k) * vrate(load(w.slope + k) * (v[r * source_width + i] - load(w.threshold + k)));
          pulled += a * load(w.reversal + k), all += a;
        }
        store(pull + r * width + unit, pulled), store(sum + r * width + unit, all);
      }
    });
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const long width = s.width(op.reg[PULL]), source_width = s.width(op.reg[V]);
    const T *v = s.value(op.reg[V]), *d_pull = s.adjoint(op.reg[PULL]), *d_sum = s.adjoint(op.reg[SUM]);
    T* dv = s.adjoint(op.reg[V]);
    if (!op.add[V]) std::fill_n(dv, s.rows * source_width, T(0));
    each_vector<T>(s, op, [&](long unit, long place, long step, long sources) {
      const Weights<T> w(s, op, place);
      for (long i = 0; i < sources; ++i) {
        const Vec<T> weight = load(w.weight + i * step), slope = load(w.slope + i * step);
        const Vec<T> threshold = load(w.threshold + i * step), reversal = load(w.reversal + i * step);
        Vec<T> d_weight{}, d_slope{}, d_threshold{}, d_reversal{};
        for (long r = 0; r < s.rows; ++r) {
          const Vec<T> away = v[r * source_width + i] - threshold, q = vrate(slope * away);
          const Vec<T> g = load(d_pull + r * width + unit), da = g * reversal + load(d_sum + r * width + unit);
          const Vec<T> dx = da * weight * q * (1 - q);
          d_weight += da * q, d_slope += dx * away, d_threshold -= dx * slope, d_reversal += g * weight * q;
          dv[r * source_width + i] += total<T>(dx * slope);
        }
        const long k = i * width + unit;
        increase(s.gradient(op.par[WEIGHT]) + k, d_weight), increase(s.gradient(op.par[SLOPE]) + k, d_slope);
        increase(s.gradient(op.par[THRESHOLD]) + k, d_threshold), increase(s.gradient(op.par[REVERSAL]) + k, d_reversal);
      }
    });
  }

 private:
  // For each vector of units: body(unit, place, step, sources), where the packed weights of its first source lie at `place` and
  // those of the next one a `step` further (they are packed in panels, see gemm.h).
  template <class T, class Body>
  static void each_vector(const Step<T>& s, const Op& op, Body body) {
    constexpr long L = kLanes<T>;
    const long width = s.width(op.reg[PULL]), sources = s.plan->parameters[op.par[WEIGHT]].columns;
    for (long unit = 0; unit < width; unit += L) {
      const long panel = unit / (2 * L) * (2 * L);
      body(unit, panel * sources + unit - panel, std::min(2 * L, width - panel), sources);
    }
  }

  template <class T>
  struct Weights {
    const T *weight, *slope, *threshold, *reversal;
    Weights(const Step<T>& s, const Op& op, long place)
        : weight(s.parameter(op.par[WEIGHT]) + place), slope(s.parameter(op.par[SLOPE]) + place),
          threshold(s.parameter(op.par[THRESHOLD]) + place), reversal(s.parameter(op.par[REVERSAL]) + place) {}
  };
};

// One semi-implicit sub-step: y = (c y₀ + h P) / (c + h Q), P = Σ aE + Σ aE (of the input) + g y_l, Q = Σ a + Σ a + g.
struct LTCStep {
  enum { PULL, SUM, INPUT_PULL, INPUT_SUM, Y0, Y };
  static constexpr auto operands =
      Operands(6).makes(Y).writes(PULL, SUM, INPUT_PULL, INPUT_SUM, Y0).reads(PULL, SUM, INPUT_PULL, INPUT_SUM, Y0, Y);
  enum { LEAK, RESTING, CAPACITANCE };

  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    T *y = s.value(op.reg[Y]), h = 0;
    const T* y0 = s.value(op.reg[Y0]);
    const Terms<T> terms(s, op);
    each_row<T>(
        s.rows, s.width(op.reg[Y]), [&](long r) { h = s.spans[r] / T(op.num[0]); },
        [&](long j, long i) {
          const Vec<T> c = terms.capacity(j);
          store(y + i, (c * load(y0 + i) + h * terms.pull(i, j)) / (c + h * terms.sum(i, j)));
        },
        [](long) {});
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T *y = s.value(op.reg[Y]), *y0 = s.value(op.reg[Y0]), *dy = s.adjoint(op.reg[Y]);
    T *d_leak = s.gradient(op.par[LEAK]), *d_resting = s.gradient(op.par[RESTING]), *d_c = s.gradient(op.par[CAPACITANCE]);
    const Share<T> d_pull(s, op, PULL), d_sum(s, op, SUM), di_pull(s, op, INPUT_PULL), di_sum(s, op, INPUT_SUM), dy0(s, op, Y0);
    const Terms<T> terms(s, op);
    T h = 0;
    Vec<T> along{};
    each_row<T>(
        s.rows, s.width(op.reg[Y]), [&](long r) { h = s.spans[r] / T(op.num[0]), along = Vec<T>{}; },
        [&](long j, long i) {
          const Vec<T> c = terms.capacity(j), p = terms.pull(i, j), q = terms.sum(i, j);
          const Vec<T> top = load(dy + i) / (c + h * q), bottom = -top * load(y + i);  // of numerator and denominator
          along += top * p + bottom * q;
          d_pull.put(i, top * h), di_pull.put(i, top * h);
          d_sum.put(i, bottom * h), di_sum.put(i, bottom * h);
          dy0.put(i, top * c);
          increase(d_leak + j, (top * load(terms.resting + j) + bottom) * h);
          increase(d_resting + j, top * h * load(terms.leak + j));
          increase(d_c + j, top * load(y0 + i) + bottom);
        },
        [&](long r) { s.span_gradients[r] += total<T>(along) / T(op.num[0]); });
  }

 private:
  template <class T>
  struct Terms {
    const T *of_units, *of_input, *sum_units, *sum_input, *leak, *resting, *c;
    Terms(const Step<T>& s, const Op& op)
        : of_units(s.value(op.reg[PULL])), of_input(s.value(op.reg[INPUT_PULL])), sum_units(s.value(op.reg[SUM])),
          sum_input(s.value(op.reg[INPUT_SUM])), leak(s.parameter(op.par[LEAK])), resting(s.parameter(op.par[RESTING])),
          c(s.parameter(op.par[CAPACITANCE])) {}
    Vec<T> pull(long i, long j) const { return load(of_units + i) + load(of_input + i) + load(leak + j) * load(resting + j); }
    Vec<T> sum(long i, long j) const { return load(sum_units + i) + load(sum_input + i) + load(leak + j); }
    Vec<T> capacity(long j) const {
      const Vec<T> found = load(c + j);
      return found == 0 ? 1 - Vec<T>{} : found;  // padded units have none
    }
  };
};

}  // namespace lapse
