// The step of a cell as data: registers, parameters and a list of operations. lapse/kernels/program.py writes it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "vector.h"

namespace lapse {

// One operation on whole blocks of rows. `add[i]` says that the adjoint of reg[i] already holds a share when the backward
// pass comes here, so that nothing needs to be zeroed first.
struct Op {
  int32_t code;
  int32_t reg[14];
  int32_t add[14];
  int32_t par[4];
  int32_t replay;  // run again before the backward of a step, for values that the tape does not hold
  double num[8];
};

constexpr int32_t kBefore = 1 << 30;  // a register as the previous step left it
constexpr int32_t kNone = -1;
constexpr int kMostSources = 3;   // of a Linear
constexpr int kMostSegments = 8;  // of a matrix
constexpr long kFewRows = 4;       // in a block: the products of several steps for a gradient are done together
constexpr long kMostWaiting = 16;  // rows of all these steps
constexpr long kWideInput = 32;    // columns from which on this pays for the inputs of a single row in the forward pass

struct Register {
  int32_t size;
  int32_t saved;  // on the tape
  int32_t home;   // the register whose place its adjoint shares, maybe itself
};

// A parameter: `segments` matrices of rows x columns one below the other (columns = 0: vectors), as they lie in tensor
// `tensor` from `offset` on, `stride` from row to row. Operations take a transformed vector as what it stands for: a rate
// is positive, a period is kept as its logarithm.
struct Parameter {
  int32_t tensor, segments, rows, columns, stride, offset, transform;
};
enum Transform : int32_t { kPlain, kSoftplus, kExp };

// How a tensor outside is spread over registers: element (row, segment, unit).
struct Port {
  int32_t reg, segments, row_stride, segment_stride, unit_stride;
};

template <class T>
inline long padded(long size) {
  return (size + kLanes<T> - 1) / kLanes<T> * kLanes<T>;
}

template <class T>
struct Plan {
  std::vector<Op> ops;
  std::vector<Register> registers;
  std::vector<Parameter> parameters;
  std::vector<Port> states;
  Port input;
  std::vector<int32_t> unread;  // states whose old value no operation reads: their adjoints are zero

  std::vector<long> width;   // of each register's rows, padded
  std::vector<long> column;  // where it begins, in elements per row: of a record if saved, of the temporaries otherwise
  std::vector<long> place;   // the same for adjoints: among the states' if it is one, among the others' otherwise
  std::vector<bool> is_state;
  long record_width = 0, temporary_width = 0, adjoint_width = 0, state_width = 0;
  std::vector<long> forward_pack, backward_pack, gradient;  // where each parameter begins
  long packed_size = 0, forward_size = 0, gradient_size = 0;  // what the forward pass needs of the packed comes first
  std::vector<long> waiting;  // where what waits for its products begins, by operation, in elements per row; -1 if none does
  long waiting_width = 0;
  std::vector<long> begun;  // the same for what is begun with the inputs of later steps, in the forward pass
  long begun_width = 0;

  bool is_input(int32_t reg) const { return reg >= input.reg && reg < input.reg + input.segments; }

  void arrange() {
    is_state.resize(registers.size());
    for (const Port& s : states)
      for (int32_t g = 0; g < s.segments; ++g) is_state[s.reg + g] = true;
    for (size_t i = 0; i < registers.size(); ++i) {
      const long w = padded<T>(registers[i].size);
      width.push_back(w);
      if (size_t(registers[i].home) == i) {
        long& adjoint = is_state[i] ? state_width : adjoint_width;
        place.push_back(adjoint);
        adjoint += w;
      } else {
        place.push_back(-1);
      }
      long& end = registers[i].saved ? record_width : temporary_width;
      column.push_back(end);
      end += w;
    }
    for (size_t i = 0; i < registers.size(); ++i) place[i] = place[registers[i].home];
    for (const Parameter& p : parameters) {
      const long wide = padded<T>(p.rows);
      forward_pack.push_back(packed_size);
      packed_size += p.columns ? p.segments * p.columns * wide : 2 * p.segments * wide;  // a vector's companions follow
      gradient.push_back(gradient_size);
      gradient_size += p.segments * std::max(1, p.columns) * wide;  // transposed: a row for each column
    }
    forward_size = packed_size;
    for (const Parameter& p : parameters) {
      backward_pack.push_back(packed_size);
      packed_size += p.columns ? p.segments * p.rows * padded<T>(p.columns) : 0;
    }
    packed_size = (packed_size + 63) / 64 * 64;  // the tape lies behind it, on a line of its own
  }
};

// Everything an operation sees: the rows that are alive at one step of one block.
template <class T>
struct Step {
  const Plan<T>* plan;
  const T* packed;
  T* gradients;
  long rows;         // alive now
  long block;        // the most that this block ever had: the stride of temporaries and adjoints
  T* now;            // this step's record, and the previous one's
  T* before;
  long before_rows;
  const char *ahead, *ahead_end;  // what is not in the cache yet of the record before, which comes next when going backward
  T* temporaries;
  T* adjoints;        // of all registers but the states
  T* states;          // of the states after this step, and before it: only these pass from step to step
  T* states_before;
  T* spans;
  T* span_gradients;
  bool input_gradient, state_gradient;  // whether anyone asks for those of the input, of the initial state
  T* waiting;      // of `waits` rows, whose products are done together; nullptr if each step does its own
  long waits;
  T* begun;        // sums of `begun_row` and later rows, with the inputs' products done; nullptr if each step does its own
  long begun_row;
  bool fresh;      // the state before is all zeros, with which nothing needs to be multiplied
  bool replaying;  // activations are in place already
  long failed_row;

  long width(int32_t ref) const { return plan->width[ref & ~kBefore]; }
  T* value(int32_t ref) const {
    const int32_t r = ref & ~kBefore;
    if (ref & kBefore) return before + before_rows * plan->column[r];
    return plan->registers[r].saved ? now + rows * plan->column[r] : temporaries + block * plan->column[r];
  }
  T* adjoint(int32_t ref) const {
    const int32_t r = ref & ~kBefore;
    return (ref & kBefore ? states_before : plan->is_state[r] ? states : adjoints) + block * plan->place[r];
  }
  const T* parameter(int32_t p) const { return packed + plan->forward_pack[p]; }
  // Beside every element of a vector: its reciprocal, or what rounding took away if it is an exponential.
  const T* companions(int32_t p) const {
    const Parameter& v = plan->parameters[p];
    return parameter(p) + v.segments * padded<T>(v.rows);
  }
  T* gradient(int32_t p) const { return gradients + plan->gradient[p]; }
};

}  // namespace lapse
