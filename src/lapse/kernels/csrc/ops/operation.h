// What operations are made of: the declaration of their operands, loops over a block of rows, adjoints.
//
// Values live in registers (matrices of rows x padded units, see plan.h). An operation that turns a pre-activation into an
// activation does so in place, and its backward leaves the adjoint of the pre-activation there. Padded units hold finite
// numbers that meet zero weights only.
#pragma once

#include "../plan.h"

namespace lapse {

// What an operation does with its operands, the registers op.reg[0], op.reg[1] and so on, as sets of bits. Every operation
// declares it beside its passes, and nothing else says it: the library exports the table (see ops.h), from which
// lapse/kernels/backward.py works out how the operations of a program share adjoints and what the tape holds.
struct Operands {
  int32_t count;          // how many there are
  uint32_t made = 0;      // those that the forward pass computes; the others are arguments
  uint32_t written = 0;   // those whose adjoints the backward pass writes
  uint32_t read = 0;      // those whose values the backward pass reads
  uint32_t replayed = 0;  // those that the backward pass can compute again, for less than a place on the tape costs
  uint32_t optional = 0;  // those that may be kNone

  explicit constexpr Operands(int32_t count) : count(count) {}
  template <class... I>
  constexpr Operands makes(I... i) const {
    return with(&Operands::made, i...);
  }
  template <class... I>
  constexpr Operands writes(I... i) const {
    return with(&Operands::written, i...);
  }
  template <class... I>
  constexpr Operands reads(I... i) const {
    return with(&Operands::read, i...);
  }
  template <class... I>
  constexpr Operands replays(I... i) const {
    return with(&Operands::replayed, i...);
  }
  template <class... I>
  constexpr Operands may_lack(I... i) const {
    return with(&Operands::optional, i...);
  }

 private:
  template <class... I>
  constexpr Operands with(uint32_t Operands::*set, I... i) const {
    Operands changed = *this;
    changed.*set |= ((1u << i) | ...);
    return changed;
  }
};

// An adjoint that is written first by one operation and added to by the others.
template <class T>
struct Share {
  T* to;
  bool add;
  Share(const Step<T>& s, const Op& op, int i) : to(s.adjoint(op.reg[i])), add(op.add[i]) {}
  void put(long i, Vec<T> v) const { store(to + i, add ? load(to + i) + v : v); }
};

template <class T, class Body>
inline void each(long count, Body body) {
  for (long i = 0; i < count; i += kLanes<T>) body(i);
}

// Rows and units: body(row, unit, place); a row's own constants come from start(row), its sums go to finish(row).
template <class T, class Start, class Body, class Finish>
inline void each_row(long rows, long width, Start start, Body body, Finish finish) {
  for (long r = 0; r < rows; ++r) {
    start(r);
    for (long u = 0; u < width; u += kLanes<T>) body(u, r * width + u);
    finish(r);
  }
}
template <class T>
inline void increase(T* to, Vec<T> v) {
  store(to, load(to) + v);
}

// f(u), in place; when a step is replayed, what is in place already.
template <class T, class Function>
LAPSE_INLINE Vec<T> activate(bool replaying, T* u, Function f) {
  Vec<T> y = load(u);
  if (replaying) return y;
  y = f(y);
  store(u, y);
  return y;
}
template <class T>
LAPSE_INLINE Vec<T> activate_tanh(bool replaying, T* u) {
  return activate(replaying, u, [](Vec<T> x) { return vtanh(x); });
}

}  // namespace lapse
