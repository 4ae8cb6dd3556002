// All operations that programs are made of, each a forward and a hand-written backward over a block of rows.
//
// A new operation is a struct in one of the files in ops/, by family, and its name in the list below.
#pragma once

#include "ops/closed_form.h"
#include "ops/ct_gru.h"
#include "ops/elementwise.h"
#include "ops/exponential.h"
#include "ops/gaps.h"
#include "ops/gru.h"
#include "ops/linear.h"
#include "ops/lstm.h"
#include "ops/ltc.h"
#include "ops/phased_lstm.h"
#include "ops/slopes.h"

namespace lapse {

#define LAPSE_OPS(X)                                                                                                   \
  X(Linear) X(Tanh) X(Add) X(Check)                                                                                    \
  X(Gap) X(Tick) X(Decay)                                                                                              \
  X(Combine) X(Integrate) X(TanhSlope) X(PlainSlope)                                                                   \
  X(Damping) X(TanhExponential) X(TanhCorrection)                                                                      \
  X(LSTM) X(MemoryDecay) X(MemoryUpdate)                                                                               \
  X(Reset) X(GRUSlope) X(GRUExponential) X(Blend) X(Fade) X(Impute)                                                    \
  X(Clock) X(Phase) X(PhasedBlend)                                                                                     \
  X(TraceDecay) X(TraceRead) X(TraceStore)                                                                             \
  X(LeCunTanh) X(SiLU) X(ClosedForm) X(PureSolution)                                                                   \
  X(Synapses) X(LTCStep)

enum Code : int32_t {
#define LAPSE_CODE(name) k##name,
  LAPSE_OPS(LAPSE_CODE)
#undef LAPSE_CODE
};

// The table that lapse/kernels/native.py reads: the code of an operation is its place.
struct Operation {
  const char* name;
  Operands operands;
};
constexpr Operation kOperations[] = {
#define LAPSE_OPERATION(name) {#name, name::operands},
    LAPSE_OPS(LAPSE_OPERATION)
#undef LAPSE_OPERATION
};

template <class T>
inline void forward(Step<T>& s, const Op& op) {
  switch (op.code) {
#define LAPSE_CASE(name) \
  case k##name: return name::forward(s, op);
    LAPSE_OPS(LAPSE_CASE)
#undef LAPSE_CASE
  }
}

template <class T>
inline void backward(Step<T>& s, const Op& op) {
  switch (op.code) {
#define LAPSE_CASE(name) \
  case k##name: return name::backward(s, op);
    LAPSE_OPS(LAPSE_CASE)
#undef LAPSE_CASE
  }
}

// Make a plan ready whose parts are all in place.
template <class T>
inline void arrange(Plan<T>& plan) {
  plan.arrange();
  for (const Op& op : plan.ops) {
    const long waiting = op.code == kLinear ? Linear::waiting_width(plan, op) : 0;
    plan.waiting.push_back(waiting ? plan.waiting_width : -1);
    plan.waiting_width += waiting;
    const long begun = op.code == kLinear ? Linear::begun_width(plan, op) : 0;
    plan.begun.push_back(begun ? plan.begun_width : -1);
    plan.begun_width += begun;
  }
}

// Begin the sums of these rows of inputs.
template <class T>
inline void begin(Step<T>& s, const T* inputs, long rows) {
  for (size_t i = 0; i < s.plan->ops.size(); ++i)
    if (s.plan->begun[i] >= 0) Linear::begin(s, s.plan->ops[i], inputs, rows);
}

// Add what has waited to the gradients.
template <class T>
inline void settle(Step<T>& s) {
  s.fresh = false;
  for (size_t i = 0; s.waits && i < s.plan->ops.size(); ++i)
    if (s.plan->waiting[i] >= 0) Linear::settle(s, s.plan->ops[i]);
  s.waits = 0;
}

}  // namespace lapse
