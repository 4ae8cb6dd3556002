// The C interface of the library, which lapse/kernels/native.py calls.
#include <new>

#include "run.h"
#include "stream.h"

namespace lapse {

constexpr int64_t kNoMemory = -2, kNoPlace = -3;  // a failed_step

template <class T, class Pass>
void run(void* plan, Call* call, Pass pass) {
  try {
    const Rows rows(call->rows);
    if (!rows.valid) {
      call->failed_step = kNoPlace;
      return;
    }
    Run<T> r(*static_cast<Plan<T>*>(plan), rows, *call);
    pass(r);
  } catch (const std::bad_alloc&) {
    call->failed_step = kNoMemory;
  }
}

}  // namespace lapse

using namespace lapse;

#define LAPSE_EXPORTS(T, suffix)                                                                                       \
  void* lapse_plan_##suffix(const Op* ops, int32_t op_count, const Register* registers, int32_t register_count,        \
                            const Parameter* parameters, int32_t parameter_count, const Port* states,                  \
                            int32_t state_count, const Port* input, const int32_t* unread, int32_t unread_count) {     \
    auto* plan = new Plan<T>;                                                                                          \
    plan->ops.assign(ops, ops + op_count);                                                                             \
    plan->registers.assign(registers, registers + register_count);                                                     \
    plan->parameters.assign(parameters, parameters + parameter_count);                                                 \
    plan->states.assign(states, states + state_count);                                                                 \
    plan->input = *input;                                                                                              \
    plan->unread.assign(unread, unread + unread_count);                                                                \
    arrange(*plan);                                                                                                    \
    return plan;                                                                                                       \
  }                                                                                                                    \
  void lapse_free_##suffix(void* plan) { delete static_cast<Plan<T>*>(plan); }                                         \
  void lapse_sizes_##suffix(void* plan, int64_t* sizes) {                                                              \
    const auto& p = *static_cast<Plan<T>*>(plan);                                                                      \
    sizes[0] = p.packed_size, sizes[1] = p.record_width, sizes[2] = p.state_width;                                     \
  }                                                                                                                    \
  void lapse_forward_##suffix(void* plan, Call* call) {                                                                \
    run<T>(plan, call, [](Run<T>& r) { r.forward(); });                                                                \
  }                                                                                                                    \
  void lapse_backward_##suffix(void* plan, Call* call) {                                                               \
    run<T>(plan, call, [](Run<T>& r) { r.backward(); });                                                               \
  }                                                                                                                    \
  void lapse_apply_##suffix(int32_t function, const T* from, T* to, int64_t count) {                                   \
    for (int64_t i = 0; i < count; i += kLanes<T>) {                                                                   \
      const Vec<T> x = load(from + i);                                                                                 \
      store(to + i, function == 0 ? vexp(x) : function == 1 ? vtanh(x) : function == 2 ? vsigmoid(x) : vsoftplus(x));  \
    }                                                                                                                  \
  }                                                                                                                    \
  void* lapse_stream_##suffix(const StreamModel* model) {                                                              \
    try {                                                                                                              \
      return new Stream<T>(*model);                                                                                    \
    } catch (const std::bad_alloc&) {                                                                                  \
      return nullptr;                                                                                                  \
    }                                                                                                                  \
  }                                                                                                                    \
  void lapse_end_stream_##suffix(void* stream) { delete static_cast<Stream<T>*>(stream); }                             \
  int32_t lapse_take_##suffix(void* stream, const StreamCall* call) {                                                  \
    try {                                                                                                              \
      return static_cast<Stream<T>*>(stream)->take(*call);                                                             \
    } catch (const std::bad_alloc&) {                                                                                  \
      return -1;                                                                                                       \
    }                                                                                                                  \
  }

extern "C" {
LAPSE_EXPORTS(float, f32)
LAPSE_EXPORTS(double, f64)
int32_t lapse_same(const void* const* now, const void* const* then, const int64_t* bytes, int32_t count) {
  for (int32_t i = 0; i < count; ++i)
    if (std::memcmp(now[i], then[i], size_t(bytes[i]))) return 0;
  return 1;
}
int32_t lapse_vector_bytes() { return kVectorBytes; }
const Operation* lapse_operations(int32_t* count) {
  *count = int32_t(sizeof(kOperations) / sizeof(kOperations[0]));
  return kOperations;
}
// What lapse/kernels/native.py must agree with.
void lapse_layout(int64_t* layout) {
  for (const size_t size : {sizeof(Op), sizeof(Call), sizeof(Register), sizeof(Parameter), sizeof(Port), sizeof(Operation),
                            sizeof(StreamModel), sizeof(StreamCall)})
    *layout++ = int64_t(size);
  for (const int32_t number : {kBefore, kMostSources, kMostSegments, kMostScales}) *layout++ = number;
}
}
