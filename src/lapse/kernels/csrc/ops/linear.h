// Linear maps of registers.
#pragma once

#include "../gemm.h"
#include "operation.h"

namespace lapse {

// y = base + b + Σ W x over up to three x, for `segments` registers y side by side; base and bias are optional.
struct Linear {
  enum { Y, BASE, X };
  static constexpr auto operands = Operands(5).makes(Y).writes(BASE, X, X + 1, X + 2).reads(X, X + 1, X + 2).may_lack(BASE, X + 1, X + 2);
  enum { BIAS, WEIGHT };

  static int sources(const Op& op) {
    int count = 1;
    while (count < kMostSources && op.reg[X + count] != kNone) ++count;
    return count;
  }

  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    const long width = s.width(op.reg[Y]), segments = s.plan->parameters[op.par[WEIGHT]].segments;
    for (long g = 0; g < segments; ++g) {
      Factor<T> factors[kMostSources];
      int count = 0;
      for (int i = 0; i < sources(op); ++i) {
        if (s.fresh && (op.reg[X + i] & kBefore)) continue;
        const long depth = s.plan->parameters[op.par[WEIGHT + i]].columns;
        factors[count++] = {depth, s.value(op.reg[X + i]), s.width(op.reg[X + i]), 1,
                            s.parameter(op.par[WEIGHT + i]) + g * depth * width};
      }
      Product<T> p{factors, count, s.value(op.reg[Y] + g), width};
      if (op.reg[BASE] != kNone)
        p.init = s.value(op.reg[BASE] + g), p.init_row = width;
      else if (op.par[BIAS] != kNone)
        p.init = s.parameter(op.par[BIAS]) + g * width;
      if (s.rows == 1)
        multiply_row(p, width);
      else
        multiply(p, s.rows, width);
    }
  }

  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const long width = s.width(op.reg[Y]), segments = s.plan->parameters[op.par[WEIGHT]].segments;
    for (long g = 0; g < segments; ++g) {
      const T* dy = s.adjoint(op.reg[Y] + g);
      if (op.reg[BASE] != kNone) {
        T* base = s.adjoint(op.reg[BASE] + g);
        each<T>(s.rows * width, [&](long i) { store(base + i, op.add[BASE] ? load(base + i) + load(dy + i) : load(dy + i)); });
      }
      if (op.par[BIAS] != kNone) {
        const T one = 1;
        T* db = s.gradient(op.par[BIAS]) + g * width;
        const Factor<T> sum{s.rows, &one, 0, 0, dy, width};
        multiply(Product<T>{&sum, 1, db, width, db, width}, 1, width);
      }
    }
    for (int i = 0; i < sources(op); ++i) {
      const Parameter& w = s.plan->parameters[op.par[WEIGHT + i]];
      const int32_t x = op.reg[X + i];
      const long x_width = s.width(x);
      const bool fresh = s.fresh && (x & kBefore);
      Factor<T> factors[kMostSegments];
      for (long g = 0; g < segments; ++g) {
        const T* dy = s.adjoint(op.reg[Y] + g);
        T* dw = s.gradient(op.par[WEIGHT + i]) + g * w.columns * width;
        const Factor<T> outer{s.rows, s.value(x), 1, x_width, dy, width};
        if (!fresh) multiply(Product<T>{&outer, 1, dw, width, dw, width}, w.columns, width);
        factors[g] = {w.rows, dy, width, 1, s.packed + s.plan->backward_pack[op.par[WEIGHT + i]] + g * w.rows * x_width};
      }
      if (s.plan->is_input(x) ? !s.input_gradient : fresh && !s.state_gradient) continue;
      T* dx = s.adjoint(x);
      Product<T> p{factors, int(segments), dx, x_width, op.add[X + i] ? dx : nullptr, x_width};
      if (s.ahead < s.ahead_end)
        p.ahead = s.ahead, s.ahead = multiply(p, s.rows, x_width);
      else
        multiply(p, s.rows, x_width);
    }
  }
};

}  // namespace lapse
