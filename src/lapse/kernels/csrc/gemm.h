// Small dense products: C = init + A B with rows of A in a block, and B packed in panels.
#pragma once

#include <algorithm>

#include "vector.h"

namespace lapse {

constexpr long kFetched = 16;  // bytes a k: a line every four of them is no burden

// One term A B of a product: element (row, k) of A is a[row * a_row + k * a_depth]. B is packed in panels of two vectors'
// columns each (the last one may be a single vector). Or, with a `b_row`, B lies as it is, that far from one k to the next,
// and A beside it lies with its rows next to each other: a_row is 1, as in a sum of outer products.
template <class T>
struct Factor {
  long depth;
  const T* a;
  long a_row, a_depth;
  const T* b;
  long b_row = 0;
};

// C = init + the sum of `count` factors, in their order.
template <class T>
struct Product {
  const Factor<T>* factors;
  int count;
  T* c;
  long c_row;
  const T* init = nullptr;  // nullptr: zeros. A row apart by init_row: 0 for a bias, the row of C to accumulate.
  long init_row = 0;
  const char* ahead = nullptr;  // what will be read soon: with every k of every tile a little more of it is fetched
};

// By value: a store may alias anything, so what lies behind a reference would be loaded again after each of them. Returns
// what is still to be fetched, as do the functions below.
template <class T, bool PACKED, bool AHEAD, int ROWS, int VECTORS>
LAPSE_INLINE const char* tile(const Product<T> p, long row, long column) {
  constexpr int L = kLanes<T>;
  Vec<T> sum[ROWS][VECTORS];
  const T* init = p.init ? p.init + row * p.init_row + column : nullptr;
  T* c = p.c + row * p.c_row + column;
  for (int r = 0; r < ROWS; ++r) __builtin_prefetch(c + r * p.c_row, 1);  // a tape is new to the cache
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
    for (int v = 0; v < VECTORS; ++v)
      sum[r][v] = init ? load(init + r * p.init_row + v * L) : Vec<T>{};
  const char* ahead = p.ahead;
  for (int i = 0; i < p.count; ++i) {
    const Factor<T>& f = p.factors[i];
    const long a_row = PACKED ? f.a_row : 1, a_depth = f.a_depth, b_row = PACKED ? VECTORS * L : f.b_row;
    const T* a = f.a + row * a_row;
    const T* b = f.b + (PACKED ? column * f.depth : column);
    for (long k = 0; k < f.depth; ++k) {
      if (AHEAD) __builtin_prefetch(ahead, 0, 2), ahead += kFetched;
      Vec<T> columns[VECTORS];
#pragma GCC unroll 16
      for (int v = 0; v < VECTORS; ++v) columns[v] = load(b + v * L);
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; ++r) {
        const Vec<T> x = fill(a[r * a_row]);
#pragma GCC unroll 16
        for (int v = 0; v < VECTORS; ++v) sum[r][v] += x * columns[v];
      }
      a += a_depth;
      b += b_row;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
    for (int v = 0; v < VECTORS; ++v) store(c + r * p.c_row + v * L, sum[r][v]);
  return ahead;
}

template <class T, bool PACKED, bool AHEAD, int ROWS, int VECTORS>
inline const char* tiles(Product<T> p, long row, long column, long count) {
  for (; count > 0; --count, row += ROWS) p.ahead = tile<T, PACKED, AHEAD, ROWS, VECTORS>(p, row, column);
  return p.ahead;
}

// `count` tiles of `height` rows, one below the other.
template <class T, bool PACKED, bool AHEAD, int VECTORS>
inline const char* tiles(const Product<T>& p, long row, long column, long count, long height) {
  static_assert(kTileRows <= 8, "a case for every height");
  switch (height) {
    case 1: return tiles<T, PACKED, AHEAD, 1, VECTORS>(p, row, column, count);
    case 2: return tiles<T, PACKED, AHEAD, 2, VECTORS>(p, row, column, count);
    case 3: return tiles<T, PACKED, AHEAD, 3, VECTORS>(p, row, column, count);
    case 4: return tiles<T, PACKED, AHEAD, 4, VECTORS>(p, row, column, count);
    case 5: return tiles<T, PACKED, AHEAD, kTileRows >= 5 ? 5 : 1, VECTORS>(p, row, column, count);
    case 6: return tiles<T, PACKED, AHEAD, kTileRows >= 6 ? 6 : 1, VECTORS>(p, row, column, count);
    case 7: return tiles<T, PACKED, AHEAD, kTileRows >= 7 ? 7 : 1, VECTORS>(p, row, column, count);
    default: return tiles<T, PACKED, AHEAD, kTileRows >= 8 ? 8 : 1, VECTORS>(p, row, column, count);
  }
}

// A panel of columns against all rows, in tiles of nearly equal height.
template <class T, bool PACKED, bool AHEAD, int VECTORS>
inline void panel(Product<T>& p, long rows, long column) {
  const long count = (rows + kTileRows - 1) / kTileRows, height = rows / count, tall = rows % count;
  if (tall) p.ahead = tiles<T, PACKED, AHEAD, VECTORS>(p, 0, column, tall, height + 1);
  p.ahead = tiles<T, PACKED, AHEAD, VECTORS>(p, tall * (height + 1), column, count - tall, height);
}

template <class T, bool PACKED, bool AHEAD>
inline const char* multiply(Product<T> p, long rows, long columns) {
  constexpr long L = kLanes<T>;
  long column = 0;
  // Few rows would leave most sums' registers idle; a B that is not packed can be taken in wider panels.
  if (!PACKED && rows <= kTileRows / 2)
    for (; columns - column >= 4 * L; column += 4 * L) panel<T, PACKED, AHEAD, 4>(p, rows, column);
  for (; columns - column >= 2 * L; column += 2 * L) panel<T, PACKED, AHEAD, 2>(p, rows, column);
  if (column < columns) panel<T, PACKED, AHEAD, 1>(p, rows, column);
  return p.ahead;
}

template <class T>
inline const char* multiply(const Product<T>& p, long rows, long columns) {
  if (p.count && p.factors[0].b_row) return multiply<T, false, false>(p, rows, columns);
  return p.ahead ? multiply<T, true, true>(p, rows, columns) : multiply<T, true, false>(p, rows, columns);
}

// One row, B packed: four panels at once, or the additions would wait for each other. Each sum runs in the order above.
template <class T>
inline void multiply_row(Product<T> p, long columns) {
  constexpr long L = kLanes<T>, four = 8 * L;
  long column = 0;
  for (; columns - column >= four; column += four) {
    Vec<T> sum[8];
#pragma GCC unroll 16
    for (int v = 0; v < 8; ++v) sum[v] = p.init ? load(p.init + column + v * L) : Vec<T>{};
    for (int i = 0; i < p.count; ++i) {
      const Factor<T>& f = p.factors[i];
      for (long k = 0; k < f.depth; ++k) {
        const Vec<T> x = fill(f.a[k * f.a_depth]);
        const T* b = f.b + column * f.depth + k * 2 * L;
#pragma GCC unroll 16
        for (int v = 0; v < 8; ++v) sum[v] += x * load(b + (v / 2) * f.depth * 2 * L + (v % 2) * L);
      }
    }
#pragma GCC unroll 16
    for (int v = 0; v < 8; ++v) store(p.c + column + v * L, sum[v]);
  }
  for (; column < columns; column += 2 * L) {
    if (columns - column >= 2 * L)
      tile<T, true, false, 1, 2>(p, 0, column);
    else
      tile<T, true, false, 1, 1>(p, 0, column);
  }
}

// Pack B (depth x columns, by strides) into panels; columns past the last are zeros.
template <class T>
inline void pack(T* to, const T* from, long depth, long columns, long depth_stride, long column_stride, long padded) {
  constexpr long L = kLanes<T>;
  for (long j = 0; j < padded; j += 2 * L) {
    const long width = std::min(2 * L, padded - j), filled = std::clamp(columns - j, 0L, width);
    for (long k = 0; k < depth; ++k, to += width) {
      const T* row = from + k * depth_stride + j * column_stride;
      for (long i = 0; i < filled; ++i) to[i] = row[i * column_stride];
      std::fill(to + filled, to + width, T(0));
    }
  }
}

}  // namespace lapse
