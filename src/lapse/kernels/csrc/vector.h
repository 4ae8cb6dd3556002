// Vectors of the widest registers that the compiler may use, and the elementary functions on them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

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
inline T total(Vec<T> v) {
  T sum = 0;
  for (int i = 0; i < kLanes<T>; ++i) sum += v[i];
  return sum;
}

using F = Vec<float>;
using D = Vec<double>;

// float, for x in [-87, 88]: e^x = 2^n e^r with r in ±ln(2)/2; `scale` is 2^n and `rest` is e^r − 1 by its Taylor polynomial
// of degree 7. NaN goes through to `rest`.
LAPSE_INLINE void split_exp(F x, F& scale, F& rest) {
  using I = VectorOf<float>::bits;
  const float magic = 12582912.0f;  // 1.5 · 2^23: adding it rounds to a whole number in the low bits
  const F shifted = x * 1.44269504088896341f + magic;
  const F n = shifted - magic;
  const F r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  F p = fill(1.0f / 5040);
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  rest = p * r * r + r;
  I bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits << 23) + 0x3f800000;  // the magic number's own bits are shifted out
  std::memcpy(&scale, &bits, sizeof bits);
}

// float: relative error 2e-7 at most. Results are kept among the normal numbers, so e^{-100} is 3e-38 rather than 0.
LAPSE_INLINE F vexp(F x) {
  x = x < -86.5f ? fill(-86.5f) : x;
  x = x > 88.0f ? fill(88.0f) : x;
  F scale, rest;
  split_exp(x, scale, rest);
  return scale * rest + scale;
}

// float: −m / (m + 2) with m = e^{−2|x|} − 1, which does not cancel: absolute error 1e-7 at most, relative 4e-7.
LAPSE_INLINE F vtanh(F x) {
  using I = VectorOf<float>::bits;
  I bits;
  std::memcpy(&bits, &x, sizeof bits);
  const I sign = bits & I(I{} + INT32_MIN);
  bits |= I(I{} + INT32_MIN);
  F a;
  std::memcpy(&a, &bits, sizeof a);
  a = a < -10.0f ? fill(-10.0f) : a;
  F scale, rest;
  split_exp(a + a, scale, rest);
  const F m = scale * rest + (scale - 1);
  const F y = m / (m + 2);
  std::memcpy(&bits, &y, sizeof bits);
  bits ^= ~sign & I(I{} + INT32_MIN);
  std::memcpy(&a, &bits, sizeof a);
  return a;
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

// float: absolute error 1e-7 at most; 0 and 1 are never reached.
LAPSE_INLINE F vsigmoid(F x) {
  x = x < -80.0f ? fill(-80.0f) : x;
  x = x > 80.0f ? fill(80.0f) : x;
  F scale, rest;
  split_exp(-x, scale, rest);
  return 1 / (scale * rest + (scale + 1));
}
inline D vsigmoid(D x) {
  return lanes(x, [](double v) { return v >= 0 ? 1 / (1 + std::exp(-v)) : std::exp(v) / (1 + std::exp(v)); });
}

template <class V>
LAPSE_INLINE V vpositive(V x) {
  return x < 0 ? V{} : x;  // NaN stays NaN
}

template <class V>
LAPSE_INLINE V vsoftplus(V x) {
  V magnitude = x < 0 ? -x : x;
  return vpositive(x) + vlog1p_unit(vexp(-magnitude));
}

inline F vfloor(F x) {
  F y;
  for (int i = 0; i < kLanes<float>; ++i) y[i] = std::floor(x[i]);
  return y;
}
inline D vfloor(D x) {
  return lanes(x, [](double v) { return std::floor(v); });
}

// φ(z) = (1 − e^{−z}) / z = Σ_j (−z)^j / (j + 1)! and its derivative, for z ≥ 0.
// Below 0.75 the series, which does not cancel; above it the closed forms.
template <class T>
inline void phi_series(Vec<T> z, Vec<T>& value, Vec<T>& slope) {
  constexpr int terms = sizeof(T) == 4 ? 10 : 18;
  double factorial = 1;
  for (int j = 2; j <= terms + 1; ++j) factorial *= j;
  value = fill(T((terms % 2 ? -1 : 1) / factorial));
  slope = Vec<T>{};
  for (int j = terms - 1; j >= 0; --j) {
    factorial /= j + 2;
    slope = slope * z + value;
    value = value * z + T((j % 2 ? -1 : 1) / factorial);
  }
}

// The coefficients of an exponential step: e^{−z}, φ(z) = (1 − e^{−z}) / z and its derivative.
template <class T>
struct Phi {
  Vec<T> e, one, one_slope;

  explicit Phi(Vec<T> z) {
    e = vexp(-z);
    Vec<T> large = z > T(0.75) ? z : fill(T(1));
    Vec<T> far_one = (1 - e) / large, far_one_slope = (e - far_one) / large;
    Vec<T> near = z > T(0.75) ? Vec<T>{} : z;
    phi_series<T>(near, one, one_slope);
    auto far = z > T(0.75);
    one = far ? far_one : one;
    one_slope = far ? far_one_slope : one_slope;
  }
};

}  // namespace lapse
