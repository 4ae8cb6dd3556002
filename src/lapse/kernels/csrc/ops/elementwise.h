// Operations that belong to no family of cells.
#pragma once

#include "operation.h"

namespace lapse {

// y = tanh(u)
struct Tanh {
  enum { Y, U };
  static constexpr auto operands = Operands(2).makes(Y).writes(U).reads(Y);

  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    T* y = s.value(op.reg[Y]);
    const T* u = s.value(op.reg[U]);
    each<T>(s.rows * s.width(op.reg[Y]), [&](long i) { store(y + i, vtanh(load(u + i))); });
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T *y = s.value(op.reg[Y]), *dy = s.adjoint(op.reg[Y]);
    const Share<T> du(s, op, U);
    each<T>(s.rows * s.width(op.reg[Y]), [&](long i) {
      const Vec<T> t = load(y + i);
      du.put(i, load(dy + i) * (1 - t * t));
    });
  }
};

// y = a + b
struct Add {
  enum { Y, A, B };
  static constexpr auto operands = Operands(3).makes(Y).writes(A, B);

  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    T* y = s.value(op.reg[Y]);
    const T *a = s.value(op.reg[A]), *b = s.value(op.reg[B]);
    each<T>(s.rows * s.width(op.reg[Y]), [&](long i) { store(y + i, load(a + i) + load(b + i)); });
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T* dy = s.adjoint(op.reg[Y]);
    const Share<T> da(s, op, A), db(s, op, B);
    each<T>(s.rows * s.width(op.reg[Y]), [&](long i) { da.put(i, load(dy + i)), db.put(i, load(dy + i)); });
  }
};

// A state that is not finite ends the block: the first bad row is reported.
struct Check {
  enum { Y };
  static constexpr auto operands = Operands(1);

  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    const T* y = s.value(op.reg[Y]);
    const long width = s.width(op.reg[Y]), size = s.plan->registers[op.reg[Y] & ~kBefore].size;
    Vec<T> sum{};
    each<T>(s.rows * width, [&](long i) { sum += load(y + i) * 0; });
    if (total<T>(sum) == 0) return;
    for (long r = 0; r < s.rows && s.failed_row < 0; ++r)
      for (long u = 0; u < size; ++u)
        if (!std::isfinite(y[r * width + u])) s.failed_row = r;
  }
  template <class T>
  static void backward(Step<T>&, const Op&) {}
};

}  // namespace lapse
