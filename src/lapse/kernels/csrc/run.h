// The loop over time: blocks of rows run a plan's operations step after step, forward and backward, on several threads.
//
// Rows do not meet except in the gradients of parameters, so a block goes through all its steps alone, with its state in
// the cache. Blocks are dealt out to lanes in a fixed way and every lane sums its own gradients, which are added up in the
// lanes' order: the same number of threads gives the same bits, whichever thread runs which steps of a lane.
#pragma once

#include <atomic>
#include <limits>
#include <vector>

#include "call.h"
#include "ops.h"
#include "weights.h"

namespace lapse {

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
  int64_t begun = 0;  // the first step whose sums are not begun
  Step<T> s;
  T *record, *kept;
  long known;  // rows whose adjoints the step after has left
  std::pair<int64_t, int64_t> failed{std::numeric_limits<int64_t>::max(), 0};
};

template <class T>
class Run {
 public:
  Run(const Plan<T>& plan, const Rows& rows, Call& call) : plan_(plan), rows_(rows), call_(call), weights_(plan, call) {
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
    if (call_.parameters) call_.finite = weights_.pack();
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
    std::vector<T*> sums;
    for (const Lane<T>& lane : lanes_) sums.push_back(lane.memory);
    weights_.write_gradients(sums);
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
    if (backward) size += plan_.gradient_size;
    if (backward && few_rows()) size += kMostWaiting * plan_.waiting_width;
    if (!backward && begins()) size += kMostWaiting * (plan_.begun_width + plan_.width[plan_.input.reg]);
    return lines(size);
  }
  int64_t thread_size(bool backward) const {
    int64_t width = plan_.temporary_width;
    if (backward) width += plan_.adjoint_width + (call_.every ? (call_.every + 1) * plan_.record_width : 0);
    return lines(call_.block * width + 2 * padded<T>(call_.block));
  }
  bool few_rows() const { return call_.block <= kFewRows; }
  bool begins() const { return call_.block == 1 && plan_.begun_width && steps() > 1; }
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
      if (s.begun && lane.t == lane.begun) begin(lane, b);
      advance(b, s, lane.t);
      s.begun_row += next;
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

  // The sums of as many steps as there is room for, as far as they can be begun with the inputs alone.
  void begin(Lane<T>& lane, const Block& b) const {
    Step<T>& s = lane.s;
    const long width = plan_.width[plan_.input.reg];
    T* inputs = s.begun + kMostWaiting * plan_.begun_width;
    long count = 0;
    for (; lane.begun < b.steps && count + alive(b, lane.begun) <= kMostWaiting; ++lane.begun) {
      const long rows = alive(b, lane.begun);
      read(plan_.input, call_.input, places(b, lane.begun), rows, inputs + count * width, 0);
      count += rows;
    }
    lapse::begin(s, inputs, count);
    s.begun_row = 0;
  }

  // A block's initial state into the first record.
  void start(Lane<T>& lane, const Block& b, bool taped) const {
    Step<T>& s = lane.s = step_of(b);
    lane.t = lane.begun = 0;
    if (begins()) s.begun = lane.memory + 2 * call_.block * plan_.record_width;
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
        if (few_rows()) s.waiting = s.states_before + call_.block * plan_.state_width;
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
      settle(s);
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
    const bool starts = fresh(t, s.before, s.before_rows);
    if (starts || s.waits + s.rows > kMostWaiting) settle(s);
    s.fresh = starts;
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
    if (s.waiting && !s.fresh) s.waits += s.rows;
    for (long r = 0; call_.d_spans && r < s.rows; ++r) static_cast<T*>(call_.d_spans)[at(r)] = s.span_gradients[r];
    if (s.input_gradient)
      write(plan_.input, call_.d_input, at, s.rows, s.adjoint(plan_.input.reg), b.rows * plan_.width[plan_.input.reg]);
    std::swap(s.states, s.states_before);
  }

  const Plan<T>& plan_;
  const Rows& rows_;
  Call& call_;
  const Weights<T> weights_;
  std::vector<Block> blocks_;
  std::vector<Lane<T>> lanes_;
};

}  // namespace lapse
