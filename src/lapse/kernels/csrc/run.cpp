// The loop over time: blocks of rows run a plan's operations step after step, forward and backward, on several threads.
//
// Rows do not meet except in the gradients of parameters, so a block goes through all its steps alone, with its state in
// the cache. Blocks are dealt out to lanes in a fixed way and every lane sums its own gradients, which are added up in the
// lanes' order: the same number of threads gives the same bits, whichever thread runs which steps of a lane.
#include <atomic>
#include <limits>
#include <memory>
#include <new>
#include <thread>

#include "denormals.h"
#include "ops.h"
#include "rows.h"

namespace lapse {

using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);  // GOMP_parallel, if torch has loaded it

// One call, as lapse/kernels/native.py lays it out. Tensors are contiguous. `rows` says where the steps of the batch lie in
// input, spans, output and their gradients, in which padding comes back as zeros; states have one row per row of the batch.
// `block` rows go through all their steps together. A gradient that is not there is zero if it is an argument, and not
// wanted if it is a result; without `states` all rows start from zeros. `parameters` are to be packed first; without them
// `packed` is as it should be. `finite` says that all weights are; packing sets it. `failed_step` comes back as -1 if no
// solve failed, otherwise it is the step as it is walked, and `failed_row` the row of the batch.
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

// body(i) for every i below `count`, by this thread and up to `threads` - 1 others.
template <class Body>
void in_parallel(Parallel parallel, int64_t threads, int64_t count, Body body) {
  struct Shared {
    Body* body;
    std::atomic<int64_t> next;
    int64_t count;
  } shared{&body, {0}, count};
  auto work = [](void* p) {
    const FlushDenormals flush;
    Shared& s = *static_cast<Shared*>(p);
    for (int64_t i; (i = s.next++) < s.count;) (*s.body)(i);
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

// Memory for a call, left to the next one of the same thread: a fresh page costs a fault. Much of it is given back.
template <class T>
class Scratch {
 public:
  explicit Scratch(int64_t size) {
    Memory& m = mine();
    if (m.size < size + kLine) {
      m.data.reset(), m.size = 0;  // before there is more
      m.data.reset(new T[size_t(size + kLine)]), m.size = size + kLine;
    }
    begin = reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(m.data.get()) + 63) / 64 * 64);
#ifdef LAPSE_POISON  // for tests: whatever is read before it is written shows
    std::fill_n(m.data.get(), m.size, std::numeric_limits<T>::quiet_NaN());
#endif
  }
  ~Scratch() {
    if (mine().size * int64_t(sizeof(T)) > kMostIdle) mine().data.reset(), mine().size = 0;
  }
  T* begin;

 private:
  static constexpr int64_t kLine = 64 / sizeof(T), kMostIdle = 256 << 20;
  struct Memory {
    std::unique_ptr<T[]> data;
    int64_t size = 0;
  };
  static Memory& mine() {
    thread_local Memory memory;
    return memory;
  }
};

// A block of rows and what it needs of the tape: one record a step and one for the initial state.
struct Block {
  int64_t first, rows, steps, tape_rows, tape_begin, kept_begin;
};

// Blocks that go one after the other, through the same memory and into the same sums of gradients. One thread at a time
// works on a lane, for some steps.
template <class T>
struct Lane {
  std::vector<Block> blocks;
  T* memory;
  std::atomic<bool> taken{false};
  std::atomic<int64_t> left{0};  // steps of rows

  // Where it is: the block and its step that come next, and what passes from step to step.
  size_t block = 0;
  int64_t t = -1;
  Step<T> s;
  T *record, *kept;
  long known;  // rows whose adjoints the step after has left
  std::pair<int64_t, int64_t> failed{std::numeric_limits<int64_t>::max(), 0};
};

template <class T>
class Run {
 public:
  Run(const Plan<T>& plan, const Rows& rows, Call& call) : plan_(plan), rows_(rows), call_(call) {
    int64_t tape = 0, kept = 0;
    for (int64_t first = 0; first < call.rows.count; first += call.block) {
      Block b{first, std::min(call.block, call.rows.count - first), 0, 0, tape, kept};
      b.tape_rows = b.rows;
      for (; b.steps < steps() && alive(b, b.steps) > 0; ++b.steps) {
        b.tape_rows += alive(b, b.steps);
        if (call.every && b.steps % call.every == 0) kept += alive(b, b.steps);
      }
      tape += b.tape_rows;
      blocks_.push_back(b);
    }
    // Two a thread, so that one can be handed over.
    lanes_ = std::vector<Lane<T>>(call.threads == 1 ? 1 : std::min<size_t>(blocks_.size(), 2 * call.threads));
  }

  void forward() {
    if (call_.parameters) pack_parameters();
    const Scratch<T> scratch(deal(false));
    share(&Run::forward, false, scratch.begin);
    auto first = lanes_[0].failed;
    for (const Lane<T>& lane : lanes_) first = std::min(first, lane.failed);
    call_.failed_step = first.first == std::numeric_limits<int64_t>::max() ? -1 : first.first;
    call_.failed_row = rows_.order[first.second];
  }

  void backward() {
    const Scratch<T> scratch(deal(true));
    share(&Run::backward, true, scratch.begin);
    in_parallel(call_.parallel, call_.threads, int64_t(plan_.parameters.size()) * kMostSegments, [&](int64_t i) {
      write_gradient(size_t(i / kMostSegments), long(i % kMostSegments));
    });
  }

 private:
  int64_t steps() const { return int64_t(rows_.alive.size()); }
  int64_t alive(const Block& b, int64_t step) const {
    return std::clamp<int64_t>(rows_.alive[step] - b.first, 0, b.rows);
  }

  // The longest blocks come first, each to the lane with the least to do: in the same way for the same number of threads.
  // How much memory they need.
  int64_t deal(bool backward) {
    for (const Block& b : blocks_) {
      Lane<T>& least = *std::min_element(lanes_.begin(), lanes_.end(), [](auto& a, auto& b) { return a.left < b.left; });
      least.blocks.push_back(b);
      least.left += b.tape_rows - b.rows;
    }
    return int64_t(lanes_.size()) * lane_size(backward) + call_.threads * thread_size(backward);
  }

  // All lanes to their ends. A thread keeps to its own lanes, half of what is left of the longer one at a time, and helps
  // with those of others at the end: a processor that is slow for a moment, which is common where machines are shared,
  // would keep all others waiting. Who ran what does not show in the results. Where records are made again they belong to
  // the thread, to save memory, so that it goes on to the lane's end.
  void share(void (Run::*go)(Lane<T>&, int64_t, T*) const, bool backward, T* scratch) {
    for (Lane<T>& lane : lanes_) lane.memory = scratch, scratch += lane_size(backward);
    in_parallel(call_.parallel, call_.threads, call_.threads, [&](int64_t thread) {
      T* memory = scratch + thread * thread_size(backward);
      while (Lane<T>* lane = take(thread)) {
        const int64_t left = lane->left;
        (this->*go)(*lane, call_.threads == 1 || call_.every ? left : std::max<int64_t>(left / 2, 1), memory);
        lane->taken.store(false, std::memory_order_release);
      }
    });
  }

  // The longest lane that nobody works on, one of the thread's own if there is any.
  Lane<T>* take(int64_t thread) {
    for (;;) {
      Lane<T>* best = nullptr;
      std::pair<bool, int64_t> most{false, 0};
      for (size_t i = 0; i < lanes_.size(); ++i) {
        const std::pair<bool, int64_t> here{int64_t(i) % call_.threads == thread, lanes_[i].left};
        if (lanes_[i].taken || here.second == 0 || here <= most) continue;
        best = &lanes_[i], most = here;
      }
      if (!best || !best->taken.exchange(true, std::memory_order_acquire)) return best;
    }
  }

  // What a lane keeps from step to step, and what a thread needs for one step.
  int64_t lane_size(bool backward) const {
    int64_t size = 2 * call_.block * (backward ? plan_.state_width : plan_.record_width);
    return lines(backward ? size + plan_.gradient_size : size);
  }
  int64_t thread_size(bool backward) const {
    int64_t width = plan_.temporary_width;
    if (backward) width += plan_.adjoint_width + (call_.every ? (call_.every + 1) * plan_.record_width : 0);
    return lines(call_.block * width + 2 * padded<T>(call_.block));
  }
  static int64_t lines(int64_t size) { return (size + 31) / 16 * 16; }  // none shared by two of them

  // Where rows that are walked from the `first` on lie in a tensor outside: at a step, and in a state.
  auto places(const Block& b, int64_t t) const {
    return [this, first = b.first, t](long r) { return rows_.place(first + r, t); };
  }
  auto rows_from(int64_t first) const {
    return [order = rows_.order.data() + first](long r) { return order[r]; };
  }

  // Copies between tensors outside and registers.
  template <class At>
  void read(const Port& port, const void* tensor, At at, long rows, T* to, long segment_stride) const {
    const long width = plan_.width[port.reg], size = plan_.registers[port.reg].size;
    for (int g = 0; g < port.segments; ++g)
      for (long r = 0; r < rows; ++r) {
        const T* from = static_cast<const T*>(tensor) + at(r) * port.row_stride + g * port.segment_stride;
        T* dst = to + g * segment_stride + r * width;
        if (port.unit_stride == 1)
          std::copy(from, from + size, dst);
        else
          for (long u = 0; u < size; ++u) dst[u] = from[u * port.unit_stride];
        for (long u = size; u < width; ++u) dst[u] = 0;
      }
  }
  template <class At>
  void write(const Port& port, void* tensor, At at, long rows, const T* from, long segment_stride) const {
    const long width = plan_.width[port.reg], size = plan_.registers[port.reg].size;
    for (int g = 0; g < port.segments; ++g)
      for (long r = 0; r < rows; ++r) {
        T* dst = static_cast<T*>(tensor) + at(r) * port.row_stride + g * port.segment_stride;
        const T* src = from + g * segment_stride + r * width;
        if (port.unit_stride == 1)
          std::copy(src, src + size, dst);
        else
          for (long u = 0; u < size; ++u) dst[u * port.unit_stride] = src[u];
      }
  }
  void clear_padding(const Block& b, void* tensor, long row_stride) const {
    for (int64_t t = 0; t < rows_.room(); ++t)
      for (long r = t < steps() ? alive(b, t) : 0; r < b.rows; ++r)
        std::fill_n(static_cast<T*>(tensor) + rows_.at(b.first + r, t) * row_stride, row_stride, T(0));
  }
  void read_spans(const Block& b, Step<T>& s, int64_t t) const {
    const auto at = places(b, t);
    for (long r = 0; r < s.rows; ++r) s.spans[r] = static_cast<const T*>(call_.spans)[at(r)];
  }

  Step<T> step_of(const Block& b) const {
    Step<T> s{};
    s.plan = &plan_;
    s.packed = static_cast<const T*>(call_.packed);
    s.block = b.rows;
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

  // A lane's next `count` steps of rows, rounded up to whole steps.
  void forward(Lane<T>& lane, int64_t count, T* memory) const {
    const bool taped = call_.tape && !call_.every;
    const Port& h = plan_.states[0];
    Step<T>& s = lane.s;
    while (lane.left > 0 && count > 0) {
      const Block& b = lane.blocks[lane.block];
      if (lane.t < 0) start(lane, b, taped);
      s.spans = memory, s.temporaries = memory + padded<T>(call_.block);
      const long next = alive(b, lane.t);
      if (next < s.rows) finish_rows(b, s.now, s.rows, next, s.rows);
      s.before = s.now;
      s.before_rows = s.rows;
      s.now = taped ? s.now + s.rows * plan_.record_width
                    : lane.memory + ((lane.t + 1) % 2) * call_.block * plan_.record_width;
      if (lane.kept && lane.t % call_.every == 0) lane.kept = keep(s, next, lane.kept);
      advance(b, s, lane.t);
      write(h, call_.output, places(b, lane.t), s.rows, s.value(h.reg), 0);
      count -= next, lane.left -= next;
      if (s.failed_row >= 0) {
        lane.failed = std::min(lane.failed, {lane.t, b.first + s.failed_row});
        while (++lane.t < b.steps) lane.left -= alive(b, lane.t);
      } else if (++lane.t < b.steps) {
        continue;
      }
      finish_rows(b, s.now, s.rows, 0, s.rows);
      clear_padding(b, call_.output, h.row_stride);
      ++lane.block, lane.t = -1;
    }
  }

  // A block's initial state into the first record.
  void start(Lane<T>& lane, const Block& b, bool taped) const {
    Step<T>& s = lane.s = step_of(b);
    lane.t = 0;
    s.now = taped ? static_cast<T*>(call_.tape) + b.tape_begin * plan_.record_width : lane.memory;
    s.rows = b.rows;
    lane.kept = call_.tape && call_.every ? static_cast<T*>(call_.tape) + b.kept_begin * plan_.state_width : nullptr;
    for (size_t i = 0; i < plan_.states.size(); ++i) {
      const Port& port = plan_.states[i];
      const long size = b.rows * plan_.width[port.reg];
      T* to = s.now + b.rows * plan_.column[port.reg];
      if (call_.states)
        read(port, call_.states[i], rows_from(b.first), b.rows, to, size);
      else
        std::fill_n(to, port.segments * size, T(0));
    }
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

  void backward(Lane<T>& lane, int64_t count, T* memory) const {
    Step<T>& s = lane.s;
    while (lane.left > 0 && count > 0) {
      const Block& b = lane.blocks[lane.block];
      if (lane.t < 0) {
        if (lane.block == 0) std::fill_n(lane.memory, plan_.gradient_size, T(0));
        s = step_of(b);
        s.gradients = lane.memory;
        s.states = lane.memory + plan_.gradient_size;
        s.states_before = s.states + call_.block * plan_.state_width;
        lane.t = b.steps - 1, lane.known = 0, lane.record = nullptr;
        lane.kept = static_cast<T*>(call_.tape) + b.kept_begin * plan_.state_width;
        for (int64_t t = 0; call_.every && t < b.steps; t += call_.every) lane.kept += alive(b, t) * plan_.state_width;
      }
      s.spans = memory, s.span_gradients = s.spans + padded<T>(call_.block);
      s.adjoints = s.span_gradients + padded<T>(call_.block);
      s.temporaries = s.adjoints + call_.block * plan_.adjoint_width;
      const int64_t begin = call_.every ? lane.t / call_.every * call_.every : 0;
      if (!lane.record) lane.record = record_of(lane, b, begin);
      s.rows = alive(b, lane.t);
      s.now = lane.record;
      s.before_rows = lane.t > begin ? alive(b, lane.t - 1) : call_.every ? s.rows : b.rows;
      s.before = lane.record -= s.before_rows * plan_.record_width;
      retreat(b, s, lane.t, lane.known);
      lane.known = s.rows, count -= s.rows, lane.left -= s.rows;
      if (lane.t-- > begin) continue;
      lane.record = nullptr;
      if (lane.t >= 0) continue;
      for (size_t i = 0; s.state_gradient && i < plan_.states.size(); ++i)
        if (call_.d_states[i])
          write(plan_.states[i], call_.d_states[i], rows_from(b.first), b.rows, s.adjoint(plan_.states[i].reg),
                b.rows * plan_.width[plan_.states[i].reg]);
      if (call_.d_spans) clear_padding(b, call_.d_spans, 1);
      if (s.input_gradient) clear_padding(b, call_.d_input, plan_.input.row_stride);
      ++lane.block;
    }
  }

  // The record of the lane's step; where the tape has only some states, all from step `begin` on are made again.
  T* record_of(Lane<T>& lane, const Block& b, int64_t begin) const {
    Step<T>& s = lane.s;
    T* record = static_cast<T*>(call_.tape) + b.tape_begin * plan_.record_width;
    long rows = b.rows;
    if (call_.every) {
      rows = alive(b, begin);
      record = s.temporaries + call_.block * plan_.temporary_width;
      restore(lane.kept -= rows * plan_.state_width, rows, record);
    }
    for (int64_t t = begin; t <= lane.t; ++t) {
      s.before = record, s.before_rows = rows;
      s.now = record += rows * plan_.record_width;
      if (call_.every) advance(b, s, t);
      rows = alive(b, t);
    }
    return record;
  }

  // One step backward: from the adjoints of the states after it to those of the states before it.
  void retreat(const Block& b, Step<T>& s, int64_t t, long known) const {
    const auto at = places(b, t);
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
      const T* d_output = static_cast<const T*>(call_.d_output) + at(r) * h.row_stride;
      for (long u = 0; u < size; ++u) dh[r * width + u] += d_output[u];
    }
    s.fresh = fresh(t, s.before, s.before_rows);
    read_spans(b, s, t);
    std::fill(s.span_gradients, s.span_gradients + s.rows, T(0));
    for (const int32_t reg : plan_.unread) {
      T* d = s.adjoint(reg | kBefore);
      std::fill(d, d + s.rows * plan_.width[reg], T(0));
    }
    s.ahead = reinterpret_cast<const char*>(s.before);
    s.ahead_end = reinterpret_cast<const char*>(s.before + s.before_rows * plan_.record_width);
    s.replaying = true;
    for (const Op& op : plan_.ops)
      if (op.replay) lapse::forward(s, op);
    s.replaying = false;
    for (auto op = plan_.ops.rbegin(); op != plan_.ops.rend(); ++op) lapse::backward(s, *op);
    for (long r = 0; call_.d_spans && r < s.rows; ++r) static_cast<T*>(call_.d_spans)[at(r)] = s.span_gradients[r];
    if (s.input_gradient)
      write(plan_.input, call_.d_input, at, s.rows, s.adjoint(plan_.input.reg), b.rows * plan_.width[plan_.input.reg]);
    std::swap(s.states, s.states_before);
  }

  void pack_parameters() {
    std::atomic<bool> finite{true};
    in_parallel(call_.parallel, call_.threads, int64_t(plan_.parameters.size()), [&](int64_t i) {
      if (!pack_parameter(size_t(i))) finite = false;
    });
    call_.finite = finite;
  }

  // Lay a parameter out as the operations read it. Whether all of it is finite.
  bool pack_parameter(size_t parameter) const {
    const Parameter& p = plan_.parameters[parameter];
    const T* from = static_cast<const T*>(call_.parameters[p.tensor]) + p.offset;
    const long wide = padded<T>(p.rows);
    T *begin = static_cast<T*>(call_.packed) + plan_.forward_pack[parameter], *to = begin;
    if (p.columns) {
      T* back = static_cast<T*>(call_.packed) + plan_.backward_pack[parameter];
      for (long g = 0; g < p.segments; ++g, from += long(p.rows) * p.stride) {
        pack(to, from, p.columns, p.rows, 1, p.stride, wide);
        to += p.columns * wide;
        if (!call_.tape) continue;
        pack(back, from, p.rows, p.columns, p.stride, 1, padded<T>(p.columns));
        back += p.rows * padded<T>(p.columns);
      }
    } else {
      T* companion = to + p.segments * wide;
      for (long g = 0; g < p.segments; ++g)
        for (long r = 0; r < wide; ++r, ++to) {
          const double x = r < p.rows ? meaning(p, from[(g * p.rows + r) * p.stride]) : 0;
          *to = T(x);
          *companion++ = p.transform == kExp ? T(x - *to) : reciprocal(*to);
        }
      to = companion;
    }
    Vec<T> sum{};
    for (; begin < to; begin += kLanes<T>) sum += load(begin) * 0;
    return total<T>(sum) == 0;
  }
  static double meaning(const Parameter& p, T x) {
    if (p.transform == kSoftplus) return x > 20 ? x : std::log1p(std::exp(x));
    return p.transform == kExp ? std::exp(double(x)) : x;
  }
  // The derivative of a transform, by its value.
  static T slope(const Parameter& p, T value) {
    if (p.transform == kSoftplus) return value > 20 ? T(1) : -std::expm1(-value);
    return p.transform == kExp ? value : T(1);
  }
  // Zero of zero: what is packed is looked through for values that are not finite.
  static T reciprocal(T x) { return std::abs(x) < std::numeric_limits<T>::min() ? T(0) : 1 / x; }

  // One segment's, to where it lies in its tensor: the lanes' sums, added up in their order.
  void write_gradient(size_t parameter, long segment) const {
    const Parameter& p = plan_.parameters[parameter];
    T* to = static_cast<T*>(call_.d_parameters[p.tensor]);
    if (!to || segment >= p.segments) return;
    to += p.offset + segment * p.rows * p.stride;
    const long columns = std::max(1, p.columns), wide = padded<T>(p.rows);
    const long place = plan_.gradient[parameter] + segment * columns * wide;
    T* sum = lanes_[0].memory + place;
    for (size_t i = 1; i < lanes_.size(); ++i)
      for (long k = 0; k < columns * wide; k += kLanes<T>) increase(sum + k, load(lanes_[i].memory + place + k));
    for (long r = 0; r < p.rows; ++r)
      for (long k = 0; k < columns; ++k) to[r * p.stride + k] = sum[k * wide + r];
    const T* values = static_cast<const T*>(call_.packed) + plan_.forward_pack[parameter] + segment * wide;
    for (long r = 0; p.transform && r < p.rows; ++r) to[r * p.stride] *= slope(p, values[r]);
  }

  const Plan<T>& plan_;
  const Rows& rows_;
  Call& call_;
  std::vector<Block> blocks_;
  std::vector<Lane<T>> lanes_;
};

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
    plan->arrange();                                                                                                   \
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
// What lapse/kernels/native.py must agree with.
void lapse_layout(int64_t* layout) {
  for (const size_t size : {sizeof(Op), sizeof(Call), sizeof(Register), sizeof(Parameter), sizeof(Port)})
    *layout++ = int64_t(size);
  for (const int32_t number : {kBefore, kMostSources, kMostSegments}) *layout++ = number;
}
}
