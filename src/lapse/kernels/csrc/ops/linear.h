// Linear maps of registers.
#pragma once

#include <algorithm>
#include <iterator>

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
  static bool is_zero(const Step<T>& s, int32_t x) {
    return s.fresh && (x & kBefore);
  }

  // With its products inlined: where the compiler is free to choose, any other use of them changes its mind.
  template <class T>
  __attribute__((flatten)) static void forward(Step<T>& s, const Op& op) {
    const long width = s.width(op.reg[Y]), segments = s.plan->parameters[op.par[WEIGHT]].segments;
    for (long g = 0; g < segments; ++g) {
      const bool begun = s.begun && s.plan->begun[number(s, op)] >= 0;
      Factor<T> factors[kMostSources];
      int count = 0;
      for (int i = begun; i < sources(op); ++i)
        if (!is_zero(s, op.reg[X + i])) factors[count++] = factor(s, op, i, g, s.value(op.reg[X + i]));
      Product<T> p{factors, count, s.value(op.reg[Y] + g), width};
      if (begun)
        p.init = begun_y(s, op, g) + s.begun_row * width, p.init_row = width;
      else if (op.reg[BASE] != kNone)
        p.init = s.value(op.reg[BASE] + g), p.init_row = width;
      else if (op.par[BIAS] != kNone)
        p.init = s.parameter(op.par[BIAS]) + g * width;
      if (s.rows == 1)
        multiply_row(p, width);
      else
        multiply<T, true, false>(p, s.rows, width);
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
    }
    if (s.waiting && !s.fresh && s.plan->waiting[number(s, op)] >= 0)
      wait(s, op);
    else
      add_gradients(s, op, false);
    for (int i = 0; i < sources(op); ++i) {
      const Parameter& w = s.plan->parameters[op.par[WEIGHT + i]];
      const int32_t x = op.reg[X + i];
      const long x_width = s.width(x);
      Factor<T> factors[kMostSegments];
      const T* back = s.packed + s.plan->backward_pack[op.par[WEIGHT + i]];
      for (long g = 0; g < segments; ++g)
        factors[g] = {w.rows, s.adjoint(op.reg[Y] + g), width, 1, back + g * w.rows * x_width};
      if (s.plan->is_input(x) ? !s.input_gradient : is_zero(s, x) && !s.state_gradient) continue;
      T* dx = s.adjoint(x);
      Product<T> p{factors, int(segments), dx, x_width, op.add[X + i] ? dx : nullptr, x_width};
      if (s.ahead < s.ahead_end)
        p.ahead = s.ahead, s.ahead = multiply(p, s.rows, x_width);
      else
        multiply(p, s.rows, x_width);
    }
  }

  // What a row that waits takes: its adjoints of y and its x. Only sums that no other operation adds to can wait without a
  // change of their order.
  template <class T>
  static long waiting_width(const Plan<T>& plan, const Op& op) {
    long uses = 0, width = plan.parameters[op.par[WEIGHT]].segments * plan.width[op.reg[Y]];
    for (const Op& other : plan.ops)
      for (const int32_t p : other.par) uses += p != kNone && std::count(std::begin(op.par), std::end(op.par), p);
    for (int i = 0; i < sources(op); ++i) width += plan.width[op.reg[X + i] & ~kBefore];
    return uses == std::count_if(std::begin(op.par), std::end(op.par), [](int32_t p) { return p != kNone; }) ? width : 0;
  }

  // What a row takes whose sums are begun with its inputs, which come first: the order of a sum does not change.
  template <class T>
  static long begun_width(const Plan<T>& plan, const Op& op) {
    const Parameter& w = plan.parameters[op.par[WEIGHT]];
    const bool begins = op.reg[X] == plan.input.reg && plan.input.segments == 1 && op.reg[BASE] == kNone;
    return begins && w.columns >= kWideInput ? w.segments * plan.width[op.reg[Y]] : 0;
  }

  // Begin the sums of these rows of inputs. With a single row, a step would read the whole matrix for one product each.
  template <class T>
  static void begin(Step<T>& s, const Op& op, const T* inputs, long rows) {
    const long width = s.width(op.reg[Y]);
    for (long g = 0; g < s.plan->parameters[op.par[WEIGHT]].segments; ++g) {
      const Factor<T> f = factor(s, op, 0, g, inputs);
      Product<T> p{&f, 1, begun_y(s, op, g), width};
      if (op.par[BIAS] != kNone) p.init = s.parameter(op.par[BIAS]) + g * width;
      multiply(p, rows, width);
    }
  }

  // Add the products of all rows that have waited to the gradients of the parameters.
  template <class T>
  static void settle(Step<T>& s, const Op& op) {
    add_gradients(s, op, true);
  }

 private:
  template <class T>
  static long number(const Step<T>& s, const Op& op) {
    return &op - s.plan->ops.data();
  }
  template <class T>
  static Factor<T> factor(const Step<T>& s, const Op& op, int i, long g, const T* x) {
    const long depth = s.plan->parameters[op.par[WEIGHT + i]].columns;
    return {depth, x, s.width(op.reg[X + i]), 1, s.parameter(op.par[WEIGHT + i]) + g * depth * s.width(op.reg[Y])};
  }
  template <class T>
  static T* begun_y(const Step<T>& s, const Op& op, long g) {
    return s.begun + kMostWaiting * (s.plan->begun[number(s, op)] + g * s.width(op.reg[Y]));
  }
  template <class T>
  static T* waiting_y(const Step<T>& s, const Op& op, long g) {
    return s.waiting + kMostWaiting * (s.plan->waiting[number(s, op)] + g * s.width(op.reg[Y]));
  }
  template <class T>
  static T* waiting_x(const Step<T>& s, const Op& op, int i) {
    T* x = waiting_y(s, op, s.plan->parameters[op.par[WEIGHT]].segments);
    for (int before = 0; before < i; ++before) x += kMostWaiting * s.width(op.reg[X + before]);
    return x;
  }

  // With few rows, the products of a step would read and write all sums for a handful of terms. They wait until there are
  // more of them, in their order, so that no bit of a sum changes.
  template <class T>
  static void wait(Step<T>& s, const Op& op) {
    const long width = s.width(op.reg[Y]), segments = s.plan->parameters[op.par[WEIGHT]].segments;
    for (long g = 0; g < segments; ++g)
      std::copy_n(s.adjoint(op.reg[Y] + g), s.rows * width, waiting_y(s, op, g) + s.waits * width);
    for (int i = 0; i < sources(op); ++i) {
      const long x_width = s.width(op.reg[X + i]);
      std::copy_n(s.value(op.reg[X + i]), s.rows * x_width, waiting_x(s, op, i) + s.waits * x_width);
    }
  }

  // The products of the rows of this step, or of those that have waited.
  template <class T>
  static void add_gradients(Step<T>& s, const Op& op, bool waited) {
    const long width = s.width(op.reg[Y]), segments = s.plan->parameters[op.par[WEIGHT]].segments;
    const long rows = waited ? s.waits : s.rows;
    const auto adjoint = [&](long g) { return waited ? waiting_y(s, op, g) : s.adjoint(op.reg[Y] + g); };
    for (long g = 0; op.par[BIAS] != kNone && g < segments; ++g) {
      const T one = 1;
      T* db = s.gradient(op.par[BIAS]) + g * width;
      const Factor<T> sum{rows, &one, 0, 0, adjoint(g), width};
      multiply(Product<T>{&sum, 1, db, width, db, width}, 1, width);
    }
    for (int i = 0; i < sources(op); ++i) {
      if (is_zero(s, op.reg[X + i])) continue;
      const long columns = s.plan->parameters[op.par[WEIGHT + i]].columns;
      const T* x = waited ? waiting_x(s, op, i) : s.value(op.reg[X + i]);
      for (long g = 0; g < segments; ++g) {
        T* dw = s.gradient(op.par[WEIGHT + i]) + g * columns * width;
        const Factor<T> outer{rows, x, 1, s.width(op.reg[X + i]), adjoint(g), width};
        multiply(Product<T>{&outer, 1, dw, width, dw, width}, columns, width);
      }
    }
  }
};

}  // namespace lapse
