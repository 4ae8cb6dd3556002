// A stream: the frozen weights of a whole model, and events of many sequences taken one at a time, in one call.
//
// What is kept of a sequence is a row of an arena that the caller owns: the states of all layers first, then what pooling and
// summaries keep of the past, as lapse/streaming/native.py lays it out. A row changes only if its event was taken.
#pragma once

#include <cmath>
#include <cstdlib>
#include <memory>
#include <new>

#include "denormals.h"
#include "ops.h"
#include "weights.h"

namespace lapse {

enum Status : int32_t { kTaken, kLate, kBadTime, kBadValue, kDiverged };
enum LatePolicy : int64_t { kRefuse, kDrop, kClamp };
enum PoolKind : int64_t { kLast, kMean, kMax };

// A model as lapse/streaming/native.py describes it. A place is where something begins in a row of the arena; -1 if it is not
// there. Weights of the readout's maps are outputs x inputs.
struct StreamModel {
  int64_t features, outputs, row;  // values of an event, raw outputs, elements of a row of the arena
  int64_t missing;                 // whether flags say which values were observed
  int64_t input;                   // the width of what the first layer takes: the values, and maybe flags behind them
  const void *fill, *shift, *scale;
  double clip, time_unit;
  int64_t layers;
  void* const* plans;
  const void* const* const* parameters;  // per layer
  int64_t pools;
  const int64_t *pool_kinds, *pool_places;
  int64_t events, static_place, static_size, sees_inputs, summaries, offset;
  int64_t latest, latest_count;  // of the features that outputs are counted from
  const int64_t* latest_columns;
  const double* certain;  // outputs x (1 + latest_count): a constant, then a factor per feature
  int64_t maps;
  const int64_t* map_sizes;  // maps + 1
  const void *const *map_weights, *const *map_biases;
};

// The arguments of one call: `count` events in their order, and what becomes of them.
struct StreamCall {
  void* arena;
  double* times;     // of the last event of each row of the arena; NaN before the first
  int64_t capacity;  // rows of the arena
  int64_t count, late;
  const int64_t* slots;  // the rows of the arena
  const double* when;
  const void* values;  // count x features; NaN where nothing was observed
  void* output;        // count x outputs
  int32_t* status;     // what became of each event
};

template <class T>
struct Aligned {
  explicit Aligned(int64_t size) : data(static_cast<T*>(std::aligned_alloc(64, size_t((size * sizeof(T) + 127) / 64 * 64)))) {
    if (!data) throw std::bad_alloc();
    std::fill_n(data.get(), size, T(0));
  }
  T* get() const { return data.get(); }
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T, Free> data;
};

template <class T>
class Stream {
 public:
  explicit Stream(const StreamModel& m)
      : features_(m.features), outputs_(m.outputs), row_(m.row), missing_(m.missing), input_(m.input), clip_(T(m.clip)),
        time_unit_(T(m.time_unit)), events_(m.events), static_(m.static_place), static_size_(m.static_size),
        sees_inputs_(m.sees_inputs), summaries_(m.summaries), offset_(m.offset), latest_(m.latest),
        fill_(copy<T>(m.fill, m.features)), shift_(copy<T>(m.shift, m.features)), scale_(copy<T>(m.scale, m.features)),
        columns_(copy<int64_t>(m.latest_columns, m.latest_count)),
        certain_(copy<double>(m.certain, m.latest_count ? m.outputs * (1 + m.latest_count) : 0)),
        pool_kinds_(copy<int64_t>(m.pool_kinds, m.pools)), pool_places_(copy<int64_t>(m.pool_places, m.pools)) {
    for (int64_t i = 0; i < m.layers; ++i) layers_.emplace_back(static_cast<const Plan<T>*>(m.plans[i]), m.parameters[i]);
    for (int64_t i = 0; i < m.maps; ++i)
      maps_.emplace_back(m.map_sizes[i], m.map_sizes[i + 1], static_cast<const T*>(m.map_weights[i]),
                         static_cast<const T*>(m.map_biases[i]));
    top_ = 0;
    for (size_t i = 0; i + 1 < layers_.size(); ++i) top_ += layers_[i].states;
    const Plan<T>& last = *layers_.back().plan;
    hidden_ = last.registers[last.states[0].reg].size;
    long widest = std::max(input_, hidden_);
    for (const Layer& l : layers_) widest = std::max({widest, l.plan->record_width, l.plan->temporary_width});
    for (const Map& map : maps_) widest = std::max({widest, map.inputs, map.wide});
    for (Aligned<T>* buffer : {&x_, &before_, &now_, &temporaries_, &seen_, &next_}) *buffer = Aligned<T>(kBlock * widest);
    work_ = Aligned<T>(kBlock * row_);
    spans_ = Aligned<T>(kBlock);
  }

  // Take the events; none of them if one is refused. Whether they were.
  bool take(const StreamCall& call) {
    const FlushDenormals flush;
    const bool fine = schedule(call);
    for (int64_t k = 0; k < call.count; ++k) track_[call.slots[k]] = Track{};
    if (!fine) return false;
    for (int64_t first = 0; first < int64_t(order_.size());) {
      long rows = 1;  // events of one wave are about different sequences
      const int64_t most = std::min<int64_t>(kBlock, int64_t(order_.size()) - first);
      while (rows < most && wave_[order_[first + rows]] == wave_[order_[first]]) ++rows;
      block(call, order_.data() + first, rows);
      first += rows;
    }
    for (const int64_t k : order_) track_[call.slots[k]].failed = false;
    return true;
  }

 private:
  static constexpr long kBlock = 64;  // rows that go through all operations together

  struct Layer {
    Layer(const Plan<T>* plan, const void* const* parameters) : plan(plan), packed(plan->packed_size) {
      Call call{};
      call.threads = 1, call.parameters = parameters, call.packed = packed.get();
      Weights<T>(*plan, call).pack();
      for (const Port& port : plan->states) states += port.row_stride;
    }
    const Plan<T>* plan;
    Aligned<T> packed;
    long states = 0;  // elements of a row that its states take
  };
  struct Map {
    Map(long inputs, long outputs, const T* weights, const T* bias)
        : inputs(inputs), wide(padded<T>(outputs)), weight(inputs * wide), bias(wide) {
      pack(weight.get(), weights, inputs, outputs, 1, inputs, wide);
      std::copy_n(bias, outputs, this->bias.get());
    }
    long inputs, wide;
    Aligned<T> weight, bias;
  };
  struct Track {  // of one sequence during one call
    double newest = 0;
    int32_t events = 0;
    bool failed = false;
  };

  template <class U>
  static std::vector<U> copy(const void* from, int64_t count) {
    const U* first = static_cast<const U*>(from);
    return std::vector<U>(first, first + count);
  }

  // Find the gap before each event, and the order in which events are taken: the first ones of all sequences, then the second
  // ones, and so on. Whether none is refused.
  bool schedule(const StreamCall& call) {
    if (int64_t(track_.size()) < call.capacity) track_.resize(size_t(call.capacity));
    gaps_.resize(size_t(call.count)), effective_.resize(size_t(call.count)), wave_.resize(size_t(call.count));
    bool fine = true;
    int32_t waves = 0;
    for (int64_t k = 0; k < call.count; ++k) {
      call.status[k] = judge(call, k);
      waves = std::max(waves, wave_[k] + 1);
      if (call.status[k] != kTaken && !(call.status[k] == kLate && call.late == kDrop)) fine = false;
    }
    sort(waves);
    return fine;
  }

  // The events that are taken, wave after wave, each in the order of the call.
  void sort(int32_t waves) {
    std::vector<int64_t>& next = next_of_wave_;
    next.assign(size_t(waves) + 1, 0);
    for (const int32_t w : wave_)
      if (w >= 0) ++next[w + 1];
    for (int32_t w = 0; w < waves; ++w) next[w + 1] += next[w];
    order_.resize(size_t(next[waves]));
    for (size_t k = 0; k < wave_.size(); ++k)
      if (wave_[k] >= 0) order_[next[wave_[k]]++] = int64_t(k);
  }

  Status judge(const StreamCall& call, int64_t k) {
    wave_[k] = -1;
    if (!std::isfinite(call.when[k])) return kBadTime;
    const T* values = static_cast<const T*>(call.values) + k * features_;
    for (long i = 0; i < features_; ++i)
      if (std::isinf(values[i])) return kBadValue;
    Track& t = track_[call.slots[k]];
    if (t.events == 0) t.newest = call.times[call.slots[k]];
    double when = call.when[k];
    if (when < t.newest) {
      if (call.late != kClamp) return kLate;
      when = t.newest;
    }
    gaps_[k] = std::isnan(t.newest) ? 0.0f : float(when - t.newest);  // in float, as in sequences
    if (!std::isfinite(T(gaps_[k]) / time_unit_)) return kBadTime;
    effective_[k] = t.newest = when;
    wave_[k] = t.events++;
    return kTaken;
  }

  // Events of different sequences, all layers and the readout.
  void block(const StreamCall& call, const int64_t* events, long rows) {
    T* arena = static_cast<T*>(call.arena);
    for (long r = 0; r < rows; ++r) {
      std::copy_n(arena + call.slots[events[r]] * row_, row_, work_.get() + r * row_);
      spans_.get()[r] = T(gaps_[events[r]]) / time_unit_;
      preprocess(static_cast<const T*>(call.values) + events[r] * features_, x_.get() + r * input_);
    }
    if (!encode(rows) && rows > 1) {  // one by one, to find those that failed
      for (long r = 0; r < rows; ++r) block(call, events + r, 1);
      return;
    }
    const T* output = read_out(call, events, rows);
    for (long r = 0; r < rows; ++r) {
      const int64_t k = events[r], slot = call.slots[k];
      T* to = static_cast<T*>(call.output) + k * outputs_;
      finish(work_.get() + r * row_, output + r * maps_.back().wide, to);
      if (track_[slot].failed || !finite(to)) {
        track_[slot].failed = true, call.status[k] = kDiverged;
        continue;
      }
      std::copy_n(work_.get() + r * row_, row_, arena + slot * row_);
      call.times[slot] = effective_[k];
    }
  }

  bool finite(const T* output) const {
    return !diverged_ && std::all_of(output, output + outputs_, [](T x) { return std::isfinite(x); });
  }

  // (x − shift) / scale within ±clip, filled where nothing was observed, and flags behind it if the layer takes them.
  void preprocess(const T* values, T* to) const {
    for (long i = 0; i < features_; ++i) {
      const bool seen = !std::isnan(values[i]);
      const T scaled = ((seen ? values[i] : fill_[i]) - shift_[i]) / scale_[i];
      to[i] = std::min(std::max(scaled, -clip_), clip_);
      if (input_ > features_) to[features_ + i] = seen || !missing_;
    }
  }

  // Every layer's step, from the inputs in x_ to its states in the rows of work_; whether all solves were finite.
  bool encode(long rows) {
    long place = 0;
    diverged_ = false;
    for (size_t i = 0; i < layers_.size(); ++i) {
      const Layer& layer = layers_[i];
      const Plan<T>& plan = *layer.plan;
      Step<T> s{};
      s.plan = &plan, s.packed = layer.packed.get(), s.rows = s.block = s.before_rows = rows, s.failed_row = -1;
      s.now = now_.get(), s.before = before_.get(), s.temporaries = temporaries_.get(), s.spans = spans_.get();
      long at = place;
      for (const Port& port : plan.states) {
        spread(s, port, work_.get() + at, row_, s.before + rows * plan.column[port.reg]);
        at += port.row_stride;
      }
      const T* input = i ? work_.get() + place - layers_[i - 1].states : x_.get();
      spread(s, plan.input, input, i ? row_ : input_, s.value(plan.input.reg));
      for (const Op& op : plan.ops) lapse::forward(s, op);
      at = place;
      for (const Port& port : plan.states) {
        gather(s, port, s.value(port.reg), work_.get() + at);
        at += port.row_stride;
      }
      place = at;
      if (s.failed_row >= 0) return !(diverged_ = true);
    }
    return true;
  }

  // From rows of elements to the registers of a port, and back.
  void spread(const Step<T>& s, const Port& port, const T* from, long stride, T* to) const {
    const long width = s.plan->width[port.reg], size = s.plan->registers[port.reg].size;
    for (int g = 0; g < port.segments; ++g)
      for (long r = 0; r < s.rows; ++r) {
        const T* src = from + r * stride + g * port.segment_stride;
        T* dst = to + (g * s.rows + r) * width;
        for (long u = 0; u < size; ++u) dst[u] = src[u * port.unit_stride];
        std::fill(dst + size, dst + width, T(0));
      }
  }
  void gather(const Step<T>& s, const Port& port, const T* from, T* to) const {
    const long width = s.plan->width[port.reg], size = s.plan->registers[port.reg].size;
    for (int g = 0; g < port.segments; ++g)
      for (long r = 0; r < s.rows; ++r) {
        const T* src = from + (g * s.rows + r) * width;
        T* dst = to + r * row_ + g * port.segment_stride;
        for (long u = 0; u < size; ++u) dst[u * port.unit_stride] = src[u];
      }
  }

  // What the readout sees, and its maps with SiLU between them; the raw outputs before anything is added.
  const T* read_out(const StreamCall& call, const int64_t* events, long rows) {
    for (long r = 0; r < rows; ++r) {
      T *row = work_.get() + r * row_, *to = seen_.get() + r * maps_[0].inputs;
      to = pool(row, to);
      if (static_ >= 0) to = std::copy_n(row + static_, static_size_, to);
      const T* values = static_cast<const T*>(call.values) + events[r] * features_;
      if (sees_inputs_) to = inputs(values, x_.get() + r * input_, to);
      if (summaries_ >= 0) summarise(row, values, x_.get() + r * input_, to);
      for (size_t i = 0; i < columns_.size(); ++i)
        if (!std::isnan(values[columns_[i]])) row[latest_ + long(i)] = values[columns_[i]];
      row[events_] += 1;
    }
    T *from = seen_.get(), *to = next_.get();
    for (size_t i = 0; i < maps_.size(); ++i) {
      const Map& map = maps_[i];
      const long stride = i ? maps_[i - 1].wide : map.inputs;
      if (i) each<T>(rows * stride, [&](long k) { store(from + k, load(from + k) * vsigmoid(load(from + k))); });
      const Factor<T> factor{map.inputs, from, stride, 1, map.weight.get()};
      const Product<T> product{&factor, 1, to, map.wide, map.bias.get(), 0};
      rows == 1 ? multiply_row(product, map.wide) : (void)multiply(product, rows, map.wide);
      std::swap(from, to);
    }
    return from;
  }

  // The features of the sequence, by all pools side by side.
  T* pool(T* row, T* to) const {
    const T* h = row + top_;
    for (size_t i = 0; i < pool_kinds_.size(); ++i, to += hidden_) {
      T* kept = row + pool_places_[i];
      if (pool_kinds_[i] == kMean) kept[hidden_] += 1;
      for (long u = 0; u < hidden_; ++u) {
        if (pool_kinds_[i] == kLast) to[u] = h[u];
        if (pool_kinds_[i] == kMean) to[u] = (kept[u] += h[u]) / kept[hidden_];
        if (pool_kinds_[i] == kMax) to[u] = kept[u] = std::max(kept[u], h[u]);
      }
    }
    return to;
  }

  T* inputs(const T* values, const T* x, T* to) const {
    to = std::copy_n(x, features_, to);
    for (long i = 0; missing_ && i < features_; ++i) *to++ = !std::isnan(values[i]);
    return to;
  }

  // Last, mean, least and largest value of each feature, then log(1 + number) of each.
  void summarise(T* row, const T* values, const T* x, T* to) const {
    T *last = row + summaries_, *total = last + features_, *least = total + features_, *largest = least + features_,
      *count = largest + features_;
    for (long i = 0; i < features_; ++i) {
      if (!missing_ || !std::isnan(values[i])) {
        last[i] = x[i], total[i] += x[i], count[i] += 1;
        least[i] = std::min(least[i], x[i]), largest[i] = std::max(largest[i], x[i]);
      }
      const bool any = count[i] > 0;
      T* four = to + 4 * i;
      four[0] = any ? last[i] : 0, four[1] = any ? total[i] / count[i] : 0;
      four[2] = any ? least[i] : 0, four[3] = any ? largest[i] : 0;
      to[4 * features_ + i] = std::log1p(count[i]);
    }
  }

  // The raw outputs of a row: with what its static features add, and counted from its latest values.
  void finish(const T* row, const T* output, T* to) const {
    for (long i = 0; i < outputs_; ++i) {
      double sum = output[i];
      if (offset_ >= 0) sum += row[offset_ + i];
      const double* certain = certain_.data() + i * long(1 + columns_.size());
      if (!columns_.empty()) sum += *certain++;
      for (size_t c = 0; c < columns_.size(); ++c) sum += certain[c] * row[latest_ + long(c)];
      to[i] = T(sum);
    }
  }

  long features_, outputs_, row_;
  bool missing_;
  long input_;
  T clip_, time_unit_;
  long events_, static_, static_size_;
  bool sees_inputs_;
  long summaries_, offset_, latest_;
  std::vector<T> fill_, shift_, scale_;
  std::vector<int64_t> columns_;
  std::vector<double> certain_;
  std::vector<int64_t> pool_kinds_, pool_places_;
  std::vector<Layer> layers_;
  std::vector<Map> maps_;
  long top_, hidden_;  // where the states of the top layer begin, and the width of its output
  Aligned<T> x_{0}, before_{0}, now_{0}, temporaries_{0}, seen_{0}, next_{0}, work_{0}, spans_{0};
  bool diverged_ = false;

  std::vector<Track> track_;  // per row of the arena
  std::vector<float> gaps_;
  std::vector<double> effective_;
  std::vector<int32_t> wave_;
  std::vector<int64_t> order_, next_of_wave_;
};

}  // namespace lapse
