// The rows of a batch as a pass walks them: the longest first, so that those that have ended are the last ones.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace lapse {

// As lapse/rows.py describes them: step t of row i lies at place starts[i] + t * stride of tensors with `size` places. A
// stride of 0 means that they are packed: after starts[i] come the steps before t of all rows. `room` is how many steps
// each row has room for if there is padding. Going `backward`, rows are walked from their last step to their first.
struct RowsArgument {
  int64_t count, stride, size, room, backward;
  const int64_t *lengths, *starts;
};

class Rows {
 public:
  explicit Rows(const RowsArgument& rows) : room_(rows.room), backward_(rows.backward) {
    if (!lengths_fit(rows)) return;
    sort(rows);
    const int64_t steps = int64_t(alive.size());
    before_.resize(size_t(std::max(steps, room_)));
    for (int64_t t = 1; t < int64_t(before_.size()); ++t)
      before_[t] = rows.stride ? t * rows.stride : before_[t - 1] + alive[t - 1];
    for (size_t i = 0; i < order.size(); ++i) {
      start_.push_back(rows.starts[order[i]]), length_.push_back(rows.lengths[order[i]]);
      const int64_t last = std::max(length_[i], room_) - 1;
      if (start_[i] < 0 || start_[i] > rows.size - 1 - before_[last]) return;
    }
    valid = true;
  }

  bool valid = false;          // whether every step has its place
  std::vector<int64_t> order;  // the caller's row that is walked i-th
  std::vector<int64_t> alive;  // how many rows have each step

  int64_t room() const { return room_; }
  // Of the i-th row's step t as it is walked, and of its step t as the caller counts.
  int64_t place(int64_t i, int64_t t) const { return at(i, backward_ ? length_[i] - 1 - t : t); }
  int64_t at(int64_t i, int64_t t) const { return start_[i] + before_[t]; }

 private:
  static bool lengths_fit(const RowsArgument& rows) {
    return rows.count > 0 && rows.stride >= 0 && std::all_of(rows.lengths, rows.lengths + rows.count, [&](int64_t n) {
             return n > 0 && n <= (rows.room ? rows.room : rows.size);
           });
  }

  // By falling length, rows of equal length as they come.
  void sort(const RowsArgument& rows) {
    alive.resize(size_t(*std::max_element(rows.lengths, rows.lengths + rows.count)));
    for (int64_t i = 0; i < rows.count; ++i) ++alive[rows.lengths[i] - 1];
    for (size_t t = alive.size() - 1; t-- > 0;) alive[t] += alive[t + 1];
    // Rows of length n come after the alive[n] that are longer.
    std::vector<int64_t> next(alive.begin() + 1, alive.end());
    next.push_back(0);
    order.resize(size_t(rows.count));
    for (int64_t i = 0; i < rows.count; ++i) order[next[rows.lengths[i] - 1]++] = i;
  }

  int64_t room_;
  bool backward_;
  std::vector<int64_t> start_, length_, before_;
};

}  // namespace lapse
