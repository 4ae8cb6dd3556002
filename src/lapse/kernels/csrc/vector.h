// Vectors of the widest registers that the compiler may use, and the elementary functions on them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#define LAPSE_INLINE inline __attribute__((always_inline))  // the compiler finds polynomials too long to inline

namespace lapse {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
constexpr int kTileRows = 8;  // 8 x 2 accumulators of 32 registers
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
constexpr int kTileRows = 6;  // 6 x 2 accumulators of 16 registers
#elif defined(__aarch64__)
constexpr int kVectorBytes = 16;
constexpr int kTileRows = 8;
#else
constexpr int kVectorBytes = 16;
constexpr int kTileRows = 4;  // without three-operand instructions a product needs a register of its own
#endif

template <class T>
struct VectorOf;
template <>
struct VectorOf<float> {
  typedef float type __attribute__((vector_size(kVectorBytes)));
  typedef float loose __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));
  typedef int32_t bits __attribute__((vector_size(kVectorBytes)));
};
template <>
struct VectorOf<double> {
  typedef double type __attribute__((vector_size(kVectorBytes)));
  typedef double loose __attribute__((vector_size(kVectorBytes), aligned(8), may_alias));
  typedef int64_t bits __attribute__((vector_size(kVectorBytes)));
};

template <class T>
using Vec = typename VectorOf<T>::type;
template <class T>
constexpr int kLanes = kVectorBytes / int(sizeof(T));

template <class T>
inline Vec<T> load(const T* p) {
  return *reinterpret_cast<const typename VectorOf<T>::loose*>(p);
}
template <class T>
inline void store(T* p, Vec<T> v) {
  *reinterpret_cast<typename VectorOf<T>::loose*>(p) = v;
}
template <class T>
inline Vec<T> fill(T x) {
  return x - Vec<T>{};  // not 0 + x, which has to make a 0 of -0 and so costs an addition
}
template <class T>
inline T largest(const T* values, long count) {
  return *std::max_element(values, values + count);
}
// The sum of all lanes, half by half: lane after lane, each addition would wait for the one before it.
template <int N, class T>
LAPSE_INLINE T folded(T* lanes) {
  for (int i = 0; i < N / 2; ++i) lanes[i] += lanes[i + N / 2];
  if constexpr (N > 2) return folded<N / 2>(lanes);
  return lanes[0];
}
template <class T>
inline T total(Vec<T> v) {
  T lanes[kLanes<T>];
  store(lanes, v);
  return folded<kLanes<T>>(lanes);
}

using F = Vec<float>;
using D = Vec<double>;

// x, but no less than `least` or no more than `most`. NaN goes through. The compiler makes two instructions of a comparison
// and a choice, as it does not see that the processor's own treat NaN the same way.
#if defined(__AVX512F__)
LAPSE_INLINE F at_least(F x, float least) { return _mm512_max_ps(fill(least), x); }
LAPSE_INLINE F at_most(F x, float most) { return _mm512_min_ps(fill(most), x); }
#elif defined(__AVX__)
LAPSE_INLINE F at_least(F x, float least) { return _mm256_max_ps(fill(least), x); }
LAPSE_INLINE F at_most(F x, float most) { return _mm256_min_ps(fill(most), x); }
#elif defined(__SSE2__)
LAPSE_INLINE F at_least(F x, float least) { return _mm_max_ps(fill(least), x); }
LAPSE_INLINE F at_most(F x, float most) { return _mm_min_ps(fill(most), x); }
#else
LAPSE_INLINE F at_least(F x, float least) { return x < least ? fill(least) : x; }
LAPSE_INLINE F at_most(F x, float most) { return x > most ? fill(most) : x; }
#endif

// float: e^r − 1 for r in ±ln(2)/2 by a fitted polynomial, 3e-9 of e^r off at most before rounding.
LAPSE_INLINE F exp_less_one(F r) {
  F p = fill(0.00138146020f);
  p = p * r + 0.00836871534f;
  p = p * r + 0.0416683879f;
  p = p * r + 0.166665206f;
  p = p * r + 0.499999934f;
  return p * r * r + r;
}

// float, for x in [-87, 88]: e^x = 2^n e^r with r in ±ln(2)/2; `scale` is 2^n and `rest` is e^r − 1. NaN goes through to
// `rest`.
LAPSE_INLINE void split_exp(F x, F& scale, F& rest) {
  using I = VectorOf<float>::bits;
  const float magic = 12582912.0f;  // 1.5 · 2^23: adding it rounds to a whole number in the low bits
  const F shifted = x * 1.44269504088896341f + magic;
  const F n = shifted - magic;
  rest = exp_less_one((x - n * 0.693359375f) + n * 2.12194440e-4f);
  I bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits << 23) + 0x3f800000;  // the magic number's own bits are shifted out
  std::memcpy(&scale, &bits, sizeof bits);
}

// float: relative error 2e-7 at most. Results are kept among the normal numbers, so e^{-100} is 3e-38 rather than 0.
LAPSE_INLINE F vexp(F x) {
  x = at_most(at_least(x, -86.5f), 88.0f);
  F scale, rest;
  split_exp(x, scale, rest);
  return scale * rest + scale;
}

// float: x/2 = artanh(a / q) by a rational function of |x| ≤ 9 whose error is small beside rounding. Half the argument is
// what keeps rounding small: tanh(x) = 2aq / (a² + q²) hardly changes with a / q near 1. Of `unit` x, so that a sigmoid need
// not halve its argument first.
LAPSE_INLINE void split_tanh(F x, F& a, F& q, float unit = 1) {
  x = at_most(at_least(x, -9 / unit), 9 / unit);
  const float unit2 = unit * unit;
  const F s = x * x;
  F p = fill(5.70057709e-05f * unit2 * unit2 * unit);
  p = p * s + 0.0148808723f * unit2 * unit;
  p = p * s + 0.5f * unit;
  q = fill(1.22436199e-06f * unit2 * unit2 * unit2);
  q = q * s + 0.0012053122f * unit2 * unit2;
  q = q * s + 0.113095015f * unit2;
  q = q * s + 1.0f;
  a = x * p;
}

// float: absolute error 2e-7 at most, relative 4e-7. NaN goes through.
LAPSE_INLINE F vtanh(F x) {
  F a, q;
  split_tanh(x, a, q);
  return (a + a) * q / (q * q + a * a);
}

// float: ln(1 + y) for y in [0, 1] by a fitted polynomial, absolute error 2e-7 at most with rounding.
LAPSE_INLINE F vlog1p_unit(F y) {
  F p = fill(-0.0032563784824558685f);
  p = p * y + 0.019907160967660428f;
  p = p * y - 0.0570642008371652f;
  p = p * y + 0.10614264694521301f;
  p = p * y - 0.1531186310654033f;
  p = p * y + 0.19678117257854233f;
  p = p * y - 0.24954558871384117f;
  p = p * y + 0.3333000403525295f;
  p = p * y - 0.4999990399276527f;
  p = p * y + 0.999999995384853f;
  return p * y;
}

// double is for gradient checks and oracles: the standard library, lane by lane.
template <class Function>
inline D lanes(D x, Function f) {
  D y;
  for (int i = 0; i < kLanes<double>; ++i) y[i] = f(x[i]);
  return y;
}
inline D vexp(D x) {
  return lanes(x, [](double v) { return std::exp(v); });
}
inline D vtanh(D x) {
  return lanes(x, [](double v) { return std::tanh(v); });
}
inline D vlog1p_unit(D x) {
  return lanes(x, [](double v) { return std::log1p(v); });
}

// float: (1 + tanh(x/2)) / 2, absolute error 2e-7 at most.
LAPSE_INLINE F vsigmoid(F x) {
  F a, q;
  split_tanh(x, a, q, 0.5f);
  return a * q / (q * q + a * a) + 0.5f;
}
inline D vsigmoid(D x) {
  return lanes(x, [](double v) { return v >= 0 ? 1 / (1 + std::exp(-v)) : std::exp(v) / (1 + std::exp(v)); });
}

// σ(x) with all its digits, also where it is small: for rates, which a long gap makes large again. Float: relative error
// 4e-7 at most, down to x = -88.
LAPSE_INLINE F vrate(F x) { return 1 / (1 + vexp(-x)); }
inline D vrate(D x) { return vsigmoid(x); }

template <class V>
LAPSE_INLINE V vpositive(V x) {
  return x < 0 ? V{} : x;  // NaN stays NaN
}

// As torch has it: x itself above 20, where the rest is lost in float.
template <class V>
LAPSE_INLINE V vsoftplus(V x) {
  V magnitude = x < 0 ? -x : x;
  return x > 20 ? x : vpositive(x) + vlog1p_unit(vexp(-magnitude));
}
template <class V>
LAPSE_INLINE V vsoftplus_slope(V x) {
  return x > 20 ? 1 - V{} : vrate(x);
}

inline D vfloor(D x) {
  return lanes(x, [](double v) { return std::floor(v); });
}

// As many doubles as a vector holds, from or to numbers of another type.
template <class T>
struct Beside {
  typedef T loose __attribute__((vector_size(sizeof(T) * kLanes<double>), aligned(sizeof(T)), may_alias));
};
template <class T>
LAPSE_INLINE D widen(const T* p) {
  return __builtin_convertvector(*reinterpret_cast<const typename Beside<T>::loose*>(p), D);
}
template <class T>
LAPSE_INLINE void narrow(T* p, D v) {
  *reinterpret_cast<typename Beside<T>::loose*>(p) = __builtin_convertvector(v, typename Beside<T>::loose);
}

// Of an exponential step, for z ≥ 0: e^{−z} and 1 − e^{−z}, the latter without cancellation. `most` is no less than any z:
// where it is small, as it mostly is, there is nothing to split; the bits are the same.
LAPSE_INLINE void damping(F z, float most, F& e, F& lost) {
  if (most < 0.34f) {
    const F rest = exp_less_one(-z);
    e = 1 + rest, lost = -rest;
    return;
  }
  F scale, rest;
  split_exp(at_least(-z, -86.5f), scale, rest);
  e = scale * rest + scale;
  lost = (1 - scale) - scale * rest;
}
inline void damping(D z, double, D& e, D& lost) {
  e = vexp(-z);
  lost = -lanes(-z, [](double v) { return std::expm1(v); });
}

template <class T>
constexpr T kSmall = sizeof(T) == 4 ? T(1e-30) : T(1e-290);  // far from where reciprocals end

// φ'(z) for φ(z) = (1 − e^{−z}) / z, given 1/z and e^{−z}: below 0.75 the series Σ_j (−1)^j j z^{j−1} / (j + 1)!, which does not
// cancel, above it (e^{−z} − φ) / z. `most` is no less than any z.
template <class T>
LAPSE_INLINE Vec<T> phi_series(Vec<T> z) {
  constexpr int terms = sizeof(T) == 4 ? 9 : 17;
  double factorial = 1;
  for (int j = 2; j <= terms + 1; ++j) factorial *= j;
  Vec<T> series{};
#pragma GCC unroll 20
  for (int j = terms; j >= 1; --j) {
    series = series * z + T((j % 2 ? -j : j) / factorial);
    factorial /= j + 1;
  }
  return series;
}
template <class T>
LAPSE_INLINE Vec<T> phi_slope(Vec<T> z, T most, Vec<T> per_z, Vec<T> e) {
  if (most < T(0.75)) return phi_series<T>(z);
  const auto far = z > T(0.75);
  return far ? (e - (1 - e) * per_z) * per_z : phi_series<T>(far ? Vec<T>{} : z);
}

}  // namespace lapse
