// The arguments of one run of a program, as lapse/kernels/native.py lays them out.
#pragma once

#include "rows.h"
#include "threads.h"

namespace lapse {

// Tensors are contiguous. `rows` says where the steps of the batch lie in input, spans, output and their gradients, in which
// padding comes back as zeros; states have one row per row of the batch. `block` rows go through all their steps together.
// A gradient that is not there is zero if it is an argument, and not wanted if it is a result; without `states` all rows
// start from zeros. `parameters` are to be packed first; without them `packed` is as it should be. `finite` says that all
// weights are; packing sets it. `failed_step` comes back as -1 if no solve failed, otherwise it is the step as it is walked,
// and `failed_row` the row of the batch.
struct Call {
  RowsArgument rows;
  int64_t block, threads, every, finite;
  const void *input, *spans;
  void* output;
  void **states, **final_states;
  const void* const* parameters;
  void *packed, *tape;
  const void* d_output;
  void** d_final_states;
  void *d_input, *d_spans;
  void **d_states, **d_parameters;
  Parallel parallel;
  int64_t failed_step, failed_row;
};

}  // namespace lapse
