// The loop over time: blocks of rows run a plan's operations step after step, forward and backward, on several threads.
//
// Rows do not meet except in the gradients of parameters, so a block goes through all its steps alone, with its state in
// the cache. Blocks are dealt out to threads in a fixed way and every thread sums its own gradients, which are added up in
// the threads' order: the same number of threads gives the same bits.
#include <atomic>
#include <limits>
#include <thread>

#include "ops.h"

namespace lapse {

using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);  // GOMP_parallel, if torch has loaded it

// One call, as lapse/kernels/native.py lays it out. Tensors are contiguous; `rows` is the batch, `block` rows a block.
// Step t of row r lies at place at_step[t] + at_row[r] of input, spans, output and their gradients. `width` is how many
// steps those have room for, if more than rows' lengths (padding comes back as zeros); 0 if they are packed. A gradient
// that is not there is zero if it is an argument, and not wanted if it is a result; without `states` all rows start from
// zeros. `finite` says that all weights are.
struct Call {
  int64_t steps, rows, block, threads, every, width, finite;
  const int64_t *batch_sizes, *at_step, *at_row;
  const void *input, *spans;
  void* output;
  void **states, **final_states;
  void *packed, *tape, *scratch;
  const void* d_output;
  void** d_final_states;
  void *d_input, *d_spans;
  void **d_states, **d_parameters;
  Parallel parallel;
  int64_t failed_step, failed_row;
};

template <class Body>
void in_parallel(Parallel parallel, int64_t threads, Body body) {
  struct Shared {
    Body* body;
    std::atomic<int64_t> next;
    int64_t threads;
  } shared{&body, {0}, threads};
  auto work = [](void* p) {
    Shared& s = *static_cast<Shared*>(p);
    for (int64_t i; (i = s.next++) < s.threads;) (*s.body)(i);
  };
  if (threads <= 1) return work(&shared);
  if (parallel) return parallel(work, &shared, unsigned(threads), 0);
  std::vector<std::thread> others;
  try {
    for (int64_t i = 1; i < threads; ++i) others.emplace_back(work, &shared);
  } catch (const std::exception&) {
    // No more threads to be had: those that are there take the rest.
  }
  work(&shared);
  for (std::thread& t : others) t.join();
}

// A block of rows and what it needs of the tape: one record a step and one for the initial state.
struct Block {
  int64_t first, rows, steps, tape_rows, tape_begin, kept_begin;
};

template <class T>
class Run {
 public:
  Run(const Plan<T>& plan, Call& call) : plan_(plan), call_(call) {
    int64_t tape = 0, kept = 0;
    for (int64_t first = 0; first < call.rows; first += call.block) {
      Block b{first, std::min(call.block, call.rows - first), 0, 0, tape, kept};
      b.tape_rows = b.rows;
      for (; b.steps < call.steps && alive(b, b.steps) > 0; ++b.steps) {
        b.tape_rows += alive(b, b.steps);
        if (call.every && b.steps % call.every == 0) kept += alive(b, b.steps);
      }
      tape += b.tape_rows;
      blocks_.push_back(b);
    }
    tape_rows_ = call.every ? kept : tape;
    deal();
  }

  int64_t tape_size() const { return tape_rows_ * (call_.every ? plan_.state_width : plan_.record_width); }
  int64_t scratch_size(bool backward) const { return call_.threads * scratch_per_thread(backward); }

  void forward() {
    std::vector<std::pair<int64_t, int64_t>> failed(call_.threads, {std::numeric_limits<int64_t>::max(), 0});
    in_parallel(call_.parallel, call_.threads, [&](int64_t thread) {
      for (const Block& b : dealt_[thread]) failed[thread] = std::min(failed[thread], forward(b, scratch(thread, false)));
    });
    const auto first = *std::min_element(failed.begin(), failed.end());
    call_.failed_step = first.first == std::numeric_limits<int64_t>::max() ? -1 : first.first;
    call_.failed_row = first.second;
  }

  void backward() {
    in_parallel(call_.parallel, call_.threads, [&](int64_t thread) {
      T* mine = scratch(thread, true);
      std::fill(mine, mine + plan_.gradient_size, T(0));
      for (const Block& b : dealt_[thread]) backward(b, mine);
    });
    for (int64_t thread = 1; thread < call_.threads; ++thread) {
      T *sum = scratch(0, true), *more = scratch(thread, true);
      for (long i = 0; i < plan_.gradient_size; i += kLanes<T>) store(sum + i, load(sum + i) + load(more + i));
    }
    write_gradients(scratch(0, true));
  }

 private:
  int64_t alive(const Block& b, int64_t step) const {
    return std::clamp<int64_t>(call_.batch_sizes[step] - b.first, 0, b.rows);
  }

  // The longest blocks come first, each to the thread with the least to do.
  void deal() {
    dealt_.resize(call_.threads);
    std::vector<int64_t> load(call_.threads, 0);
    for (const Block& b : blocks_) {
      const size_t least = std::min_element(load.begin(), load.end()) - load.begin();
      dealt_[least].push_back(b);
      load[least] += b.tape_rows;
    }
  }

  int64_t scratch_per_thread(bool backward) const {
    int64_t size = call_.block * plan_.temporary_width + padded<T>(call_.block);
    if (backward)
      size += plan_.gradient_size + call_.block * (plan_.adjoint_width + 2 * plan_.state_width) +
              (call_.every ? (call_.every + 1) * call_.block * plan_.record_width : 0) + padded<T>(call_.block);
    else
      size += 2 * call_.block * plan_.record_width;
    return size + 64 / int64_t(sizeof(T));
  }
  T* scratch(int64_t thread, bool backward) const {
    return static_cast<T*>(call_.scratch) + thread * scratch_per_thread(backward);
  }

  // Where the rows of a block lie in a tensor outside: states one after the other, inputs and outputs at their places.
  struct Places {
    int64_t base;
    const int64_t* rows;
    int64_t operator[](long r) const { return base + (rows ? rows[r] : r); }
  };
  Places places(const Block& b, int64_t t) const { return {call_.at_step[t], call_.at_row + b.first}; }
  static Places rows_from(int64_t first) { return {first, nullptr}; }

  // Copies between tensors outside and registers.
  void read(const Port& port, const void* tensor, Places at, long rows, T* to, long segment_stride) const {
    const long width = plan_.width[port.reg], size = plan_.registers[port.reg].size;
    for (int g = 0; g < port.segments; ++g)
      for (long r = 0; r < rows; ++r) {
        const T* from = static_cast<const T*>(tensor) + at[r] * port.row_stride + g * port.segment_stride;
        T* dst = to + g * segment_stride + r * width;
        if (port.unit_stride == 1)
          std::copy(from, from + size, dst);
        else
          for (long u = 0; u < size; ++u) dst[u] = from[u * port.unit_stride];
        for (long u = size; u < width; ++u) dst[u] = 0;
      }
  }
  void write(const Port& port, void* tensor, Places at, long rows, const T* from, long segment_stride) const {
    const long width = plan_.width[port.reg], size = plan_.registers[port.reg].size;
    for (int g = 0; g < port.segments; ++g)
      for (long r = 0; r < rows; ++r) {
        T* dst = static_cast<T*>(tensor) + at[r] * port.row_stride + g * port.segment_stride;
        const T* src = from + g * segment_stride + r * width;
        if (port.unit_stride == 1)
          std::copy(src, src + size, dst);
        else
          for (long u = 0; u < size; ++u) dst[u * port.unit_stride] = src[u];
      }
  }
  void clear_padding(const Block& b, void* tensor, long row_stride) const {
    for (int64_t t = 0; t < call_.width; ++t) {
      const Places at = places(b, t);
      for (long r = t < call_.steps ? alive(b, t) : 0; r < b.rows; ++r)
        std::fill_n(static_cast<T*>(tensor) + at[r] * row_stride, row_stride, T(0));
    }
  }
  void read_spans(const Block& b, Step<T>& s, int64_t t) const {
    const Places at = places(b, t);
    for (long r = 0; r < s.rows; ++r) s.spans[r] = static_cast<const T*>(call_.spans)[at[r]];
  }

  Step<T> step_of(const Block& b, T* spans, T* temporaries) const {
    Step<T> s{};
    s.plan = &plan_;
    s.packed = static_cast<const T*>(call_.packed);
    s.block = b.rows;
    s.spans = spans;
    s.temporaries = temporaries;
    s.input_gradient = call_.d_input != nullptr;
    s.state_gradient = call_.d_states != nullptr;
    s.failed_row = -1;
    return s;
  }

  // Whether rows start from zeros, as most do; if so, and if weights are finite, products with them are zeros.
  bool fresh(int64_t t, const T* record, long rows) const {
    if (t > 0 || !call_.finite) return false;
    for (const Port& port : plan_.states) {
      const T* first = record + rows * plan_.column[port.reg];
      const T* last = first + rows * port.segments * plan_.width[port.reg];
      if (std::any_of(first, last, [](T x) { return x != 0; })) return false;
    }
    return true;
  }

  // One step forward into s.now, from s.before.
  void advance(const Block& b, Step<T>& s, int64_t t) const {
    s.fresh = fresh(t, s.before, s.before_rows);
    s.rows = alive(b, t);
    read_spans(b, s, t);
    read(plan_.input, call_.input, places(b, t), s.rows, s.value(plan_.input.reg), s.rows * plan_.width[plan_.input.reg]);
    for (const Op& op : plan_.ops) lapse::forward(s, op);
  }

  void finish_rows(const Block& b, const T* record, long record_rows, long from, long to) const {
    for (size_t i = 0; i < plan_.states.size(); ++i) {
      const Port& port = plan_.states[i];
      const long width = plan_.width[port.reg];
      write(port, call_.final_states[i], rows_from(b.first + from), to - from,
            record + record_rows * plan_.column[port.reg] + from * width, record_rows * width);
    }
  }

  std::pair<int64_t, int64_t> forward(const Block& b, T* scratch) const {
    const bool taped = call_.tape && !call_.every;
    T* spans = scratch + 2 * call_.block * plan_.record_width;
    Step<T> s = step_of(b, spans, spans + padded<T>(call_.block));
    s.now = taped ? static_cast<T*>(call_.tape) + b.tape_begin * plan_.record_width : scratch;
    T* kept = call_.tape && call_.every ? static_cast<T*>(call_.tape) + b.kept_begin * plan_.state_width : nullptr;
    for (size_t i = 0; i < plan_.states.size(); ++i) {
      const Port& port = plan_.states[i];
      const long size = b.rows * plan_.width[port.reg];
      T* to = s.now + b.rows * plan_.column[port.reg];
      if (call_.states)
        read(port, call_.states[i], rows_from(b.first), b.rows, to, size);
      else
        std::fill_n(to, port.segments * size, T(0));
    }
    s.rows = b.rows;
    for (int64_t t = 0; t < b.steps; ++t) {
      const long next = alive(b, t);
      if (next < s.rows) finish_rows(b, s.now, s.rows, next, s.rows);
      s.before = s.now;
      s.before_rows = s.rows;
      s.now = taped ? s.now + s.rows * plan_.record_width
                    : scratch + ((t + 1) % 2) * call_.block * plan_.record_width;
      if (kept && t % call_.every == 0) kept = keep(s, next, kept);
      advance(b, s, t);
      if (s.failed_row >= 0) return {t, b.first + s.failed_row};
      const Port& h = plan_.states[0];
      write(h, call_.output, places(b, t), s.rows, s.value(h.reg), 0);
    }
    finish_rows(b, s.now, s.rows, 0, s.rows);
    clear_padding(b, call_.output, plan_.states[0].row_stride);
    return {std::numeric_limits<int64_t>::max(), 0};
  }

  T* keep(const Step<T>& s, long rows, T* to) const {
    for (const Port& port : plan_.states)
      for (int g = 0; g < port.segments; ++g) {
        const T* from = s.before + s.before_rows * plan_.column[port.reg + g];
        to = std::copy(from, from + rows * plan_.width[port.reg], to);
      }
    return to;
  }
  void restore(const T* kept, long rows, T* record) const {
    for (const Port& port : plan_.states)
      for (int g = 0; g < port.segments; ++g) {
        const long count = rows * plan_.width[port.reg];
        std::copy(kept, kept + count, record + rows * plan_.column[port.reg + g]);
        kept += count;
      }
  }

  void backward(const Block& b, T* scratch) const {
    T* states = scratch + plan_.gradient_size;
    T* states_before = states + call_.block * plan_.state_width;
    T* adjoints = states_before + call_.block * plan_.state_width;
    T* temporaries = adjoints + call_.block * plan_.adjoint_width;
    T* spans = temporaries + call_.block * plan_.temporary_width;
    T* span_gradients = spans + padded<T>(call_.block);
    T* records = span_gradients + padded<T>(call_.block);
    Step<T> s = step_of(b, spans, temporaries);
    s.gradients = scratch;
    s.adjoints = adjoints;
    s.states = states;
    s.states_before = states_before;
    s.span_gradients = span_gradients;
    const int64_t stride = call_.every ? call_.every : b.steps;
    int64_t kept = b.kept_begin;
    for (int64_t t = 0; t < b.steps; t += stride) kept += call_.every ? alive(b, t) : 0;
    long known = 0;  // rows whose adjoints the step after has left
    for (int64_t begin = (b.steps - 1) / stride * stride; begin >= 0; begin -= stride) {
      const int64_t end = std::min(begin + stride, b.steps);
      T* record = call_.every ? records : static_cast<T*>(call_.tape) + b.tape_begin * plan_.record_width;
      long rows = call_.every ? alive(b, begin) : b.rows;
      if (call_.every) {
        kept -= rows;
        restore(static_cast<const T*>(call_.tape) + kept * plan_.state_width, rows, record);
      }
      for (int64_t t = begin; t < end; ++t) {
        s.before = record, s.before_rows = rows;
        s.now = record += rows * plan_.record_width;
        if (call_.every) advance(b, s, t);
        rows = alive(b, t);
      }
      for (int64_t t = end - 1; t >= begin; --t) {
        s.rows = alive(b, t);
        s.now = record;
        s.before_rows = t > begin ? alive(b, t - 1) : call_.every ? s.rows : b.rows;
        s.before = record -= s.before_rows * plan_.record_width;
        retreat(b, s, t, known);
        known = s.rows;
      }
    }
    for (size_t i = 0; s.state_gradient && i < plan_.states.size(); ++i)
      if (call_.d_states[i])
        write(plan_.states[i], call_.d_states[i], rows_from(b.first), b.rows, s.adjoint(plan_.states[i].reg),
              b.rows * plan_.width[plan_.states[i].reg]);
    if (call_.d_spans) clear_padding(b, call_.d_spans, 1);
    if (s.input_gradient) clear_padding(b, call_.d_input, plan_.input.row_stride);
  }

  // One step backward: from the adjoints of the states after it to those of the states before it.
  void retreat(const Block& b, Step<T>& s, int64_t t, long known) const {
    const Places at = places(b, t);
    for (size_t i = 0; i < plan_.states.size(); ++i) {
      const Port& port = plan_.states[i];
      const long width = plan_.width[port.reg];
      T* to = s.adjoint(port.reg) + known * width;
      if (call_.d_final_states[i])
        read(port, call_.d_final_states[i], rows_from(b.first + known), s.rows - known, to, b.rows * width);
      else
        for (int g = 0; g < port.segments; ++g) std::fill_n(to + g * b.rows * width, (s.rows - known) * width, T(0));
    }
    const Port& h = plan_.states[0];
    const long width = plan_.width[h.reg], size = plan_.registers[h.reg].size;
    T* dh = s.adjoint(h.reg);
    for (long r = 0; call_.d_output && r < s.rows; ++r) {
      const T* d_output = static_cast<const T*>(call_.d_output) + at[r] * h.row_stride;
      for (long u = 0; u < size; ++u) dh[r * width + u] += d_output[u];
    }
    s.fresh = fresh(t, s.before, s.before_rows);
    read_spans(b, s, t);
    std::fill(s.span_gradients, s.span_gradients + s.rows, T(0));
    for (const int32_t reg : plan_.unread) {
      T* d = s.adjoint(reg | kBefore);
      std::fill(d, d + s.rows * plan_.width[reg], T(0));
    }
    s.replaying = true;
    for (const Op& op : plan_.ops)
      if (op.replay) lapse::forward(s, op);
    s.replaying = false;
    for (auto op = plan_.ops.rbegin(); op != plan_.ops.rend(); ++op) lapse::backward(s, *op);
    for (long r = 0; call_.d_spans && r < s.rows; ++r) static_cast<T*>(call_.d_spans)[at[r]] = s.span_gradients[r];
    if (s.input_gradient)
      write(plan_.input, call_.d_input, at, s.rows, s.adjoint(plan_.input.reg), b.rows * plan_.width[plan_.input.reg]);
    std::swap(s.states, s.states_before);
  }

  void write_gradients(const T* sums) const {
    for (size_t i = 0; i < plan_.parameters.size(); ++i) {
      const Parameter& p = plan_.parameters[i];
      T* to = static_cast<T*>(call_.d_parameters[p.tensor]);
      if (!to) continue;
      const T* from = sums + plan_.gradient[i];
      const long columns = std::max(1, p.columns), wide = padded<T>(p.rows);
      for (long g = 0; g < p.segments; ++g)
        for (long r = 0; r < p.rows; ++r)
          for (long k = 0; k < columns; ++k)
            to[p.offset + (g * p.rows + r) * p.stride + k] = from[(g * columns + k) * wide + r];
    }
  }

  const Plan<T>& plan_;
  Call& call_;
  std::vector<Block> blocks_;
  std::vector<std::vector<Block>> dealt_;
  int64_t tape_rows_ = 0;
};

// Lay parameters out as the operations read them. Whether all of them are finite.
template <class T>
bool pack_parameters(const Plan<T>& plan, void* const* tensors, T* packed, bool backward) {
  for (size_t i = 0; i < plan.parameters.size(); ++i) {
    const Parameter& p = plan.parameters[i];
    const T* from = static_cast<const T*>(tensors[p.tensor]) + p.offset;
    const long wide = padded<T>(p.rows);
    T* to = packed + plan.forward_pack[i];
    if (!p.columns) {
      for (long g = 0; g < p.segments; ++g)
        for (long r = 0; r < wide; ++r) *to++ = r < p.rows ? from[(g * p.rows + r) * p.stride] : T(0);
      // Zeros of zeros: what is packed is looked through for values that are not finite.
      std::transform(to - p.segments * wide, to, to,
                     [](T x) { return std::abs(x) < std::numeric_limits<T>::min() ? T(0) : 1 / x; });
      continue;
    }
    T* back = packed + plan.backward_pack[i];
    for (long g = 0; g < p.segments; ++g, from += long(p.rows) * p.stride) {
      pack(to, from, p.columns, p.rows, 1, p.stride, wide);
      to += p.columns * wide;
      if (!backward) continue;
      pack(back, from, p.rows, p.columns, p.stride, 1, padded<T>(p.columns));
      back += p.rows * padded<T>(p.columns);
    }
  }
  Vec<T> sum{};
  for (long i = 0; i < plan.forward_size; i += kLanes<T>) sum += load(packed + i) * 0;
  return total<T>(sum) == 0;
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
    plan->arrange();                                                                                                   \
    return plan;                                                                                                       \
  }                                                                                                                    \
  void lapse_free_##suffix(void* plan) { delete static_cast<Plan<T>*>(plan); }                                         \
  int64_t lapse_packed_size_##suffix(void* plan) { return static_cast<Plan<T>*>(plan)->packed_size; }                  \
  int32_t lapse_pack_##suffix(void* plan, void** tensors, void* packed, int32_t backward) {                            \
    return pack_parameters(*static_cast<Plan<T>*>(plan), tensors, static_cast<T*>(packed), backward != 0);             \
  }                                                                                                                    \
  void lapse_sizes_##suffix(void* plan, Call* call, int64_t* sizes) {                                                  \
    const Run<T> run(*static_cast<Plan<T>*>(plan), *call);                                                             \
    sizes[0] = run.tape_size(), sizes[1] = run.scratch_size(false), sizes[2] = run.scratch_size(true);                 \
  }                                                                                                                    \
  void lapse_forward_##suffix(void* plan, Call* call) { Run<T>(*static_cast<Plan<T>*>(plan), *call).forward(); }       \
  void lapse_backward_##suffix(void* plan, Call* call) { Run<T>(*static_cast<Plan<T>*>(plan), *call).backward(); }     \
  void lapse_apply_##suffix(int32_t function, const T* from, T* to, int64_t count) {                                   \
    for (int64_t i = 0; i < count; i += kLanes<T>) {                                                                   \
      const Vec<T> x = load(from + i);                                                                                 \
      store(to + i, function == 0 ? vexp(x) : function == 1 ? vtanh(x) : function == 2 ? vsigmoid(x) : vsoftplus(x));  \
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
}
