// Small dense products: C = init + A B with rows of A in a block, and B packed in panels.
#pragma once

#include <algorithm>

#include "vector.h"

namespace lapse {

// What a tile reads and writes. A holds `segments` matrices side by side (the gates), each `depth` deep: element
// (row, k) of segment s is a[row * a_row + k * a_depth + s * a_segment]. B has `b_row` between two k's, all segments on end.
template <class T>
struct Product {
  long segments, depth;
  const T* a;
  long a_row, a_depth, a_segment;
  const T* b;
  long b_row;
  T* c;
  long c_row;
  const T* init;  // nullptr: zeros. A row apart by init_row: 0 for a bias, the row of C to accumulate.
  long init_row;
};

template <class T, int ROWS, int VECTORS>
inline void tile(const Product<T>& p) {
  constexpr int L = kLanes<T>;
  Vec<T> sum[ROWS][VECTORS];
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
    for (int v = 0; v < VECTORS; ++v)
      sum[r][v] = p.init ? load(p.init + r * p.init_row + v * L) : Vec<T>{};
  const T* b = p.b;
  const long b_row = p.b_row, a_row = p.a_row, a_depth = p.a_depth;
  for (long s = 0; s < p.segments; ++s) {
    const T* a = p.a + s * p.a_segment;
    for (long k = 0; k < p.depth; ++k) {
      Vec<T> column[VECTORS];
#pragma GCC unroll 16
      for (int v = 0; v < VECTORS; ++v) column[v] = load(b + v * L);
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; ++r) {
        const Vec<T> x = fill(a[r * a_row]);
#pragma GCC unroll 16
        for (int v = 0; v < VECTORS; ++v) sum[r][v] += x * column[v];
      }
      a += a_depth;
      b += b_row;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
    for (int v = 0; v < VECTORS; ++v) store(p.c + r * p.c_row + v * L, sum[r][v]);
}

template <class T, int VECTORS>
inline void tile(const Product<T>& p, int rows) {
  static_assert(kTileRows <= 8, "a case for every height");
  switch (rows) {
    case 1: return tile<T, 1, VECTORS>(p);
    case 2: return tile<T, 2, VECTORS>(p);
    case 3: return tile<T, 3, VECTORS>(p);
    case 4: return tile<T, 4, VECTORS>(p);
    case 5: return tile<T, kTileRows >= 5 ? 5 : 1, VECTORS>(p);
    case 6: return tile<T, kTileRows >= 6 ? 6 : 1, VECTORS>(p);
    case 7: return tile<T, kTileRows >= 7 ? 7 : 1, VECTORS>(p);
    default: return tile<T, kTileRows >= 8 ? 8 : 1, VECTORS>(p);
  }
}

// One panel of columns against all rows, in tiles of nearly equal height.
template <class T, int VECTORS>
inline void panel(Product<T> p, long rows) {
  long left = rows;
  for (long tiles = (rows + kTileRows - 1) / kTileRows; tiles > 0; --tiles) {
    const long height = (left + tiles - 1) / tiles;
    tile<T, VECTORS>(p, int(height));
    p.a += height * p.a_row;
    p.c += height * p.c_row;
    if (p.init) p.init += height * p.init_row;
    left -= height;
  }
}

// A panel is two vectors wide; the last one may be a single vector. `b_panel` is the way from one panel's B to the next
// per column: depth · segments for packed weights (panels on end), 1 for a matrix as it lies.
template <class T>
inline void multiply(Product<T> p, long rows, long columns, long b_column, bool packed) {
  constexpr long L = kLanes<T>;
  for (long j = 0; j < columns;) {
    const long width = std::min(2 * L, columns - j);
    if (packed) p.b_row = width;
    if (width == 2 * L)
      panel<T, 2>(p, rows);
    else
      panel<T, 1>(p, rows);
    p.b += width * b_column;
    p.c += width;
    if (p.init) p.init += width;
    j += width;
  }
}

// One row: four panels at once, or the additions would wait for each other. Each sum runs in the same order as above.
template <class T>
inline void multiply_row(Product<T> p, long columns) {
  constexpr long L = kLanes<T>;
  const long depth = p.depth * p.segments, four = 8 * L;
  while (columns >= four && p.segments == 1) {
    Vec<T> sum[8];
#pragma GCC unroll 16
    for (int v = 0; v < 8; ++v) sum[v] = p.init ? load(p.init + v * L) : Vec<T>{};
    for (long k = 0; k < depth; ++k) {
      const Vec<T> x = fill(p.a[k * p.a_depth]);
      const T* b = p.b + k * 2 * L;
#pragma GCC unroll 16
      for (int v = 0; v < 8; ++v) sum[v] += x * load(b + (v / 2) * depth * 2 * L + (v % 2) * L);
    }
#pragma GCC unroll 16
    for (int v = 0; v < 8; ++v) store(p.c + v * L, sum[v]);
    p.b += four * depth;
    p.c += four;
    if (p.init) p.init += four;
    columns -= four;
  }
  if (columns) multiply(p, 1, columns, depth, true);
}

// Pack B (segments x depth x columns, by strides) into panels; columns past the last are zeros.
template <class T>
inline void pack(T* to, const T* from, long segments, long depth, long columns, long segment_stride,
                 long depth_stride, long column_stride, long padded) {
  constexpr long L = kLanes<T>;
  for (long j = 0; j < padded;) {
    const long width = std::min(2 * L, padded - j);
    for (long s = 0; s < segments; ++s)
      for (long k = 0; k < depth; ++k)
        for (long i = 0; i < width; ++i)
          *to++ = j + i < columns ? from[s * segment_stride + k * depth_stride + (j + i) * column_stride] : T(0);
    j += width;
  }
}

}  // namespace lapse
