// The operations that cells are made of: each a forward and a hand-written backward over a block of rows.
//
// Values live in registers (matrices of rows x padded units, see plan.h). An operation that turns a pre-activation into an
// activation does so in place, and its backward leaves the adjoint of the pre-activation there. Padded units hold finite
// numbers that meet zero weights only.
#pragma once

#include "gemm.h"
#include "plan.h"

namespace lapse {

// An adjoint that is written first by one operation and added to by the others.
template <class T>
struct Share {
  T* to;
  bool add;
  Share(const Step<T>& s, const Op& op, int i) : to(s.adjoint(op.reg[i])), add(op.add[i]) {}
  void put(long i, Vec<T> v) const { store(to + i, add ? load(to + i) + v : v); }
};

template <class T, class Body>
inline void each(long count, Body body) {
  for (long i = 0; i < count; i += kLanes<T>) body(i);
}

// Rows and units: body(row, unit, place); a row's own constants come from start(row), its sums go to finish(row).
template <class T, class Start, class Body, class Finish>
inline void each_row(long rows, long width, Start start, Body body, Finish finish) {
  for (long r = 0; r < rows; ++r) {
    start(r);
    for (long u = 0; u < width; u += kLanes<T>) body(u, r * width + u);
    finish(r);
  }
}
template <class T>
inline void increase(T* to, Vec<T> v) {
  store(to, load(to) + v);
}

// f(u), in place; when a step is replayed, what is in place already.
template <class T, class Function>
LAPSE_INLINE Vec<T> activate(bool replaying, T* u, Function f) {
  Vec<T> y = load(u);
  if (replaying) return y;
  y = f(y);
  store(u, y);
  return y;
}
template <class T>
LAPSE_INLINE Vec<T> activate_tanh(bool replaying, T* u) {
  return activate(replaying, u, [](Vec<T> x) { return vtanh(x); });
}

// y = base + b + Σ W x over up to three x, for `segments` registers y side by side; base and bias are optional.
struct Linear {
  enum { Y, BASE, X };
  enum { BIAS, WEIGHT };

  static int sources(const Op& op) {
    int count = 1;
    while (count < kMostSources && op.reg[X + count] != kNone) ++count;
    return count;
  }

  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    const long width = s.width(op.reg[Y]), segments = s.plan->parameters[op.par[WEIGHT]].segments;
    for (long g = 0; g < segments; ++g) {
      Factor<T> factors[kMostSources];
      int count = 0;
      for (int i = 0; i < sources(op); ++i) {
        if (s.fresh && (op.reg[X + i] & kBefore)) continue;
        const long depth = s.plan->parameters[op.par[WEIGHT + i]].columns;
        factors[count++] = {depth, s.value(op.reg[X + i]), s.width(op.reg[X + i]), 1,
                            s.parameter(op.par[WEIGHT + i]) + g * depth * width};
      }
      Product<T> p{factors, count, s.value(op.reg[Y] + g), width};
      if (op.reg[BASE] != kNone)
        p.init = s.value(op.reg[BASE] + g), p.init_row = width;
      else if (op.par[BIAS] != kNone)
        p.init = s.parameter(op.par[BIAS]) + g * width;
      if (s.rows == 1)
        multiply_row(p, width);
      else
        multiply(p, s.rows, width);
    }
  }

  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const long width = s.width(op.reg[Y]), segments = s.plan->parameters[op.par[WEIGHT]].segments;
    for (long g = 0; g < segments; ++g) {
      const T* dy = s.adjoint(op.reg[Y] + g);
      if (op.reg[BASE] != kNone) {
        T* base = s.adjoint(op.reg[BASE] + g);
        each<T>(s.rows * width, [&](long i) { store(base + i, op.add[BASE] ? load(base + i) + load(dy + i) : load(dy + i)); });
      }
      if (op.par[BIAS] != kNone) {
        const T one = 1;
        T* db = s.gradient(op.par[BIAS]) + g * width;
        const Factor<T> sum{s.rows, &one, 0, 0, dy, width};
        multiply(Product<T>{&sum, 1, db, width, db, width}, 1, width);
      }
    }
    for (int i = 0; i < sources(op); ++i) {
      const Parameter& w = s.plan->parameters[op.par[WEIGHT + i]];
      const int32_t x = op.reg[X + i];
      const long x_width = s.width(x);
      const bool fresh = s.fresh && (x & kBefore);
      Factor<T> factors[kMostSegments];
      for (long g = 0; g < segments; ++g) {
        const T* dy = s.adjoint(op.reg[Y] + g);
        T* dw = s.gradient(op.par[WEIGHT + i]) + g * w.columns * width;
        const Factor<T> outer{s.rows, s.value(x), 1, x_width, dy, width};
        if (!fresh) multiply(Product<T>{&outer, 1, dw, width, dw, width}, w.columns, width);
        factors[g] = {w.rows, dy, width, 1, s.packed + s.plan->backward_pack[op.par[WEIGHT + i]] + g * w.rows * x_width};
      }
      if (s.plan->is_input(x) ? !s.input_gradient : fresh && !s.state_gradient) continue;
      T* dx = s.adjoint(x);
      Product<T> p{factors, int(segments), dx, x_width, op.add[X + i] ? dx : nullptr, x_width};
      if (s.ahead < s.ahead_end)
        p.ahead = s.ahead, s.ahead = multiply(p, s.rows, x_width);
      else
        multiply(p, s.rows, x_width);
    }
  }
};

// Eqs. 2–7 of the paper from pre-activations i, f, z, o: c = σ(f) c₀ + σ(i) tanh(z), h = σ(o) tanh(c).
struct LSTM {
  enum { I, F, Z, O, C0, C, H, TANH };

  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    T *pi = s.value(op.reg[I]), *pf = s.value(op.reg[F]), *pz = s.value(op.reg[Z]), *po = s.value(op.reg[O]);
    const T* c0 = s.value(op.reg[C0]);
    T *pc = s.value(op.reg[C]), *ph = s.value(op.reg[H]), *pt = s.value(op.reg[TANH]);
    if (s.replaying)
      return each<T>(s.rows * s.width(op.reg[I]), [&](long k) {
        const Vec<T> t = vtanh(load(pc + k));
        store(pt + k, t), store(ph + k, load(po + k) * t);
      });
    each<T>(s.rows * s.width(op.reg[I]), [&](long k) {
      const Vec<T> i = vsigmoid(load(pi + k)), f = vsigmoid(load(pf + k)), z = vtanh(load(pz + k)),
                   o = vsigmoid(load(po + k));
      const Vec<T> c = f * load(c0 + k) + i * z;
      store(pi + k, i), store(pf + k, f), store(pz + k, z), store(po + k, o);
      store(pc + k, c), store(ph + k, o * vtanh(c));
    });
  }

  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T *pi = s.value(op.reg[I]), *pf = s.value(op.reg[F]), *pz = s.value(op.reg[Z]), *po = s.value(op.reg[O]);
    const T *c0 = s.value(op.reg[C0]), *pt = s.value(op.reg[TANH]);
    const T *dc = s.adjoint(op.reg[C]), *dh = s.adjoint(op.reg[H]);
    T *di = s.adjoint(op.reg[I]), *df = s.adjoint(op.reg[F]), *dz = s.adjoint(op.reg[Z]), *d_o = s.adjoint(op.reg[O]);
    const Share<T> dc0(s, op, C0);
    each<T>(s.rows * s.width(op.reg[I]), [&](long k) {
      const Vec<T> i = load(pi + k), f = load(pf + k), z = load(pz + k), o = load(po + k);
      const Vec<T> t = load(pt + k), g = load(dh + k);
      const Vec<T> d = load(dc + k) + g * o * (1 - t * t);
      store(di + k, d * z * i * (1 - i));
      store(df + k, d * load(c0 + k) * f * (1 - f));
      store(dz + k, d * i * (1 - z * z));
      store(d_o + k, g * t * o * (1 - o));
      dc0.put(k, d * f);
    });
  }
};

// y = tanh(u)
struct Tanh {
  enum { Y, U };
  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    T* y = s.value(op.reg[Y]);
    const T* u = s.value(op.reg[U]);
    each<T>(s.rows * s.width(op.reg[Y]), [&](long i) { store(y + i, vtanh(load(u + i))); });
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T *y = s.value(op.reg[Y]), *dy = s.adjoint(op.reg[Y]);
    const Share<T> du(s, op, U);
    each<T>(s.rows * s.width(op.reg[Y]), [&](long i) {
      const Vec<T> t = load(y + i);
      du.put(i, load(dy + i) * (1 - t * t));
    });
  }
};

// y = a + b
struct Add {
  enum { Y, A, B };
  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    T* y = s.value(op.reg[Y]);
    const T *a = s.value(op.reg[A]), *b = s.value(op.reg[B]);
    each<T>(s.rows * s.width(op.reg[Y]), [&](long i) { store(y + i, load(a + i) + load(b + i)); });
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T* dy = s.adjoint(op.reg[Y]);
    const Share<T> da(s, op, A), db(s, op, B);
    each<T>(s.rows * s.width(op.reg[Y]), [&](long i) { da.put(i, load(dy + i)), db.put(i, load(dy + i)); });
  }
};

// A state that is not finite ends the block: the first bad row is reported.
struct Check {
  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    const T* y = s.value(op.reg[0]);
    const long width = s.width(op.reg[0]), size = s.plan->registers[op.reg[0] & ~kBefore].size;
    Vec<T> sum{};
    each<T>(s.rows * width, [&](long i) { sum += load(y + i) * 0; });
    if (total<T>(sum) == 0) return;
    for (long r = 0; r < s.rows && s.failed_row < 0; ++r)
      for (long u = 0; u < size; ++u)
        if (!std::isfinite(y[r * width + u])) s.failed_row = r;
  }
  template <class T>
  static void backward(Step<T>&, const Op&) {}
};

// --- Solvers ------------------------------------------------------------------------------------------------------------
// A sub-step is h = span / num[0]. A slope's adjoint is kept without its factor h until the slope's own backward, which
// has the value of the slope at hand for the gradient of the span; so slopes need not be saved.

// Σ wᵢ kᵢ over reg[2..], the weights in num[1..], and its share of the adjoints.
template <class T>
struct Terms {
  int count = 0;
  const T* k[8];
  T *dk[8], w[8];
  bool add[8];
  Terms(const Step<T>& s, const Op& op) {
    for (; op.reg[2 + count] != kNone; ++count) {
      k[count] = s.value(op.reg[2 + count]), dk[count] = s.adjoint(op.reg[2 + count]);
      w[count] = T(op.num[1 + count]), add[count] = op.add[2 + count];
    }
  }
  Vec<T> sum(long i) const {
    Vec<T> y = load(k[0] + i) * w[0];
    for (int j = 1; j < count; ++j) y += load(k[j] + i) * w[j];
    return y;
  }
  void put(long i, Vec<T> g) const {
    for (int j = 0; j < count; ++j) store(dk[j] + i, add[j] ? load(dk[j] + i) + g * w[j] : g * w[j]);
  }
};

// y = y₀ + h Σ wᵢ kᵢ
struct Combine {
  enum { Y, Y0, K };
  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    T *y = s.value(op.reg[Y]), h = 0;
    const T* y0 = s.value(op.reg[Y0]);
    const Terms<T> terms(s, op);
    each_row<T>(
        s.rows, s.width(op.reg[Y]), [&](long r) { h = s.spans[r] / T(op.num[0]); },
        [&](long, long i) { store(y + i, load(y0 + i) + h * terms.sum(i)); }, [](long) {});
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T* d = s.adjoint(op.reg[Y]);
    const Share<T> d0(s, op, Y0);
    const Terms<T> terms(s, op);
    each<T>(s.rows * s.width(op.reg[Y]), [&](long i) {
      const Vec<T> g = load(d + i);
      d0.put(i, g);
      terms.put(i, g);
    });
  }
};

// y = y₀ + h Σ wᵢ kᵢ of values that are no slopes: the factor h and the gradient of the span are settled here. y₀ may be none.
struct Integrate {
  enum { Y, Y0, K };
  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    T *y = s.value(op.reg[Y]), h = 0;
    const T* y0 = op.reg[Y0] == kNone ? nullptr : s.value(op.reg[Y0]);
    const Terms<T> terms(s, op);
    each_row<T>(
        s.rows, s.width(op.reg[Y]), [&](long r) { h = s.spans[r] / T(op.num[0]); },
        [&](long, long i) { store(y + i, y0 ? load(y0 + i) + h * terms.sum(i) : h * terms.sum(i)); }, [](long) {});
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T* d = s.adjoint(op.reg[Y]);
    T *d0 = op.reg[Y0] == kNone ? nullptr : s.adjoint(op.reg[Y0]), h = 0;
    const Terms<T> terms(s, op);
    Vec<T> along{};
    each_row<T>(
        s.rows, s.width(op.reg[Y]), [&](long r) { h = s.spans[r] / T(op.num[0]), along = Vec<T>{}; },
        [&](long, long i) {
          const Vec<T> g = load(d + i);
          if (d0) store(d0 + i, op.add[Y0] ? load(d0 + i) + g : g);
          terms.put(i, g * h);
          along += g * terms.sum(i);
        },
        [&](long r) { s.span_gradients[r] += total<T>(along) / T(op.num[0]); });
  }
};

// k = s tanh(u) − τ y; without τ if par[RATE] is none.
struct TanhSlope {
  enum { U, Y, K };
  enum { SCALE, RATE };
  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    const bool replaying = s.replaying;
    T *u = s.value(op.reg[U]), *k = s.value(op.reg[K]);
    const T* y = s.value(op.reg[Y]);
    const T* scale = s.parameter(op.par[SCALE]);
    const T* rate = op.par[RATE] == kNone ? nullptr : s.parameter(op.par[RATE]);
    each_row<T>(
        s.rows, s.width(op.reg[U]), [](long) {},
        [&](long j, long i) {
          const Vec<T> t = activate_tanh(replaying, u + i);
          Vec<T> slope = load(scale + j) * t;
          if (rate) slope -= load(rate + j) * load(y + i);
          store(k + i, slope);
        },
        [](long) {});
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T *u = s.value(op.reg[U]), *y = s.value(op.reg[Y]), *dk = s.adjoint(op.reg[K]);
    const T* scale = s.parameter(op.par[SCALE]);
    const T* rate = op.par[RATE] == kNone ? nullptr : s.parameter(op.par[RATE]);
    T* d_scale = s.gradient(op.par[SCALE]);
    T* d_rate = rate ? s.gradient(op.par[RATE]) : nullptr;
    T *du = s.adjoint(op.reg[U]), h = 0;
    const Share<T> dy(s, op, Y);
    Vec<T> along{};
    each_row<T>(
        s.rows, s.width(op.reg[U]), [&](long r) { h = s.spans[r] / T(op.num[0]), along = Vec<T>{}; },
        [&](long j, long i) {
          const Vec<T> t = load(u + i), a = load(scale + j), d = load(dk + i), dh = d * h;
          Vec<T> slope = a * t;
          increase(d_scale + j, dh * t);
          store(du + i, dh * a * (1 - t * t));
          if (rate) {
            const Vec<T> q = load(rate + j), state = load(y + i);
            slope -= q * state;
            increase(d_rate + j, -dh * state);
            dy.put(i, -dh * q);
          }
          along += d * slope;
        },
        [&](long r) { s.span_gradients[r] += total<T>(along) / T(op.num[0]); });
  }
};

// The slope k as it is: only the factor h of its adjoint, and the span's gradient.
struct PlainSlope {
  template <class T>
  static void forward(Step<T>&, const Op&) {}
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T* k = s.value(op.reg[0]);
    T *dk = s.adjoint(op.reg[0]), h = 0;
    Vec<T> along{};
    each_row<T>(
        s.rows, s.width(op.reg[0]), [&](long r) { h = s.spans[r] / T(op.num[0]), along = Vec<T>{}; },
        [&](long, long i) {
          const Vec<T> d = load(dk + i);
          along += d * load(k + i);
          store(dk + i, d * h);
        },
        [&](long r) { s.span_gradients[r] += total<T>(along) / T(op.num[0]); });
  }
};

// e^{−z} and s h φ(z) with z = τ h and φ(z) = (1 − e^{−z}) / z: the same for all sub-steps of a gap.
struct Damping {
  enum { E, P };
  enum { RATE, SCALE };
  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    T *e = s.value(op.reg[E]), *p = s.value(op.reg[P]), h = 0;
    const T *rate = s.parameter(op.par[RATE]), *scale = s.parameter(op.par[SCALE]), *inverse = s.companions(op.par[RATE]);
    const T fastest = largest(rate, s.width(op.reg[E]));
    each_row<T>(
        s.rows, s.width(op.reg[E]), [&](long r) { h = s.spans[r] / T(op.num[0]); },
        [&](long u, long i) {
          Vec<T> decay, lost;
          const Vec<T> z = load(rate + u) * h;
          damping(z, fastest * h, decay, lost);
          // h φ = (1 − e^{−z}) / τ, and h itself where z has no digits left
          const Vec<T> time = z > kSmall<T> ? lost * load(inverse + u) : fill(h);
          store(e + i, decay), store(p + i, load(scale + u) * time);
        },
        [](long) {});
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T *e = s.value(op.reg[E]), *de = s.adjoint(op.reg[E]), *dp = s.adjoint(op.reg[P]);
    const T *rate = s.parameter(op.par[RATE]), *scale = s.parameter(op.par[SCALE]), *inverse = s.companions(op.par[RATE]);
    T *d_rate = s.gradient(op.par[RATE]), *d_scale = s.gradient(op.par[SCALE]), h = 0, per_h = 0;
    const T fastest = largest(rate, s.width(op.reg[E]));
    Vec<T> along{};
    each_row<T>(
        s.rows, s.width(op.reg[E]),
        [&](long r) { h = s.spans[r] / T(op.num[0]), per_h = h > kSmall<T> ? 1 / h : T(0), along = Vec<T>{}; },
        [&](long u, long i) {
          const Vec<T> tau = load(rate + u), z = tau * h, decay = load(e + i), g = load(dp + i);
          const Vec<T> slope = phi_slope<T>(z, fastest * h, load(inverse + u) * per_h, decay);
          const Vec<T> phi = decay - z * slope;  // φ' = (e^{−z} − φ) / z
          const Vec<T> gp = g * load(scale + u), dz = gp * h * slope - load(de + i) * decay;
          along += gp * phi;
          along += dz * tau;
          increase(d_rate + u, dz * h);
          increase(d_scale + u, g * h * phi);
        },
        [&](long r) { s.span_gradients[r] += total<T>(along) / T(op.num[0]); });
  }
};

// One exponential sub-step of order 1: y = e^{−z} y₀ + s h φ tanh(u).
struct TanhExponential {
  enum { U, Y0, Y, E, P };
  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    const bool replaying = s.replaying;
    T *u = s.value(op.reg[U]), *y = s.value(op.reg[Y]);
    const T *y0 = s.value(op.reg[Y0]), *e = s.value(op.reg[E]), *p = s.value(op.reg[P]);
    each<T>(s.rows * s.width(op.reg[U]), [&](long i) {
      store(y + i, load(e + i) * load(y0 + i) + load(p + i) * activate_tanh(replaying, u + i));
    });
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T *u = s.value(op.reg[U]), *y0 = s.value(op.reg[Y0]), *e = s.value(op.reg[E]), *p = s.value(op.reg[P]);
    const T* dy = s.adjoint(op.reg[Y]);
    T* du = s.adjoint(op.reg[U]);
    const Share<T> dy0(s, op, Y0), de(s, op, E), dp(s, op, P);
    const bool more = op.add[U];  // a second-order step looked at tanh(u) too
    each<T>(s.rows * s.width(op.reg[U]), [&](long i) {
      const Vec<T> t = load(u + i), d = load(dy + i);
      de.put(i, d * load(y0 + i));
      dp.put(i, d * t);
      dy0.put(i, d * load(e + i));
      Vec<T> g = d * load(p + i);
      if (more) g += load(du + i);
      store(du + i, g * (1 - t * t));
    });
  }
};

// The correction of order 2: y = y₁ + s h φ (tanh(u) − tanh(u₀)) / 2, u₀ activated already.
struct TanhCorrection {
  enum { U, Y1, Y, U0, P };
  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    const bool replaying = s.replaying;
    T *u = s.value(op.reg[U]), *y = s.value(op.reg[Y]);
    const T *y1 = s.value(op.reg[Y1]), *u0 = s.value(op.reg[U0]), *p = s.value(op.reg[P]);
    each<T>(s.rows * s.width(op.reg[U]), [&](long i) {
      store(y + i, load(y1 + i) + load(p + i) * T(0.5) * (activate_tanh(replaying, u + i) - load(u0 + i)));
    });
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T *u = s.value(op.reg[U]), *u0 = s.value(op.reg[U0]), *p = s.value(op.reg[P]), *dy = s.adjoint(op.reg[Y]);
    T* du = s.adjoint(op.reg[U]);
    const Share<T> dy1(s, op, Y1), du0(s, op, U0), dp(s, op, P);
    each<T>(s.rows * s.width(op.reg[U]), [&](long i) {
      const Vec<T> t = load(u + i), half = load(dy + i) * T(0.5), g = half * load(p + i);
      dy1.put(i, load(dy + i));
      dp.put(i, half * (t - load(u0 + i)));
      store(du + i, g * (1 - t * t));
      du0.put(i, -g);
    });
  }
};

// --- GRUs ---------------------------------------------------------------------------------------------------------------

// r = σ(u) in place, and r ⊙ y.
struct Reset {
  enum { U, Y, RY };
  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    const bool replaying = s.replaying;
    T *u = s.value(op.reg[U]), *ry = s.value(op.reg[RY]);
    const T* y = s.value(op.reg[Y]);
    each<T>(s.rows * s.width(op.reg[U]), [&](long i) {
      const Vec<T> r = activate(replaying, u + i, [](Vec<T> x) { return vsigmoid(x); });
      store(ry + i, r * load(y + i));
    });
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T *u = s.value(op.reg[U]), *y = s.value(op.reg[Y]), *d = s.adjoint(op.reg[RY]);
    T* du = s.adjoint(op.reg[U]);
    const Share<T> dy(s, op, Y);
    each<T>(s.rows * s.width(op.reg[U]), [&](long i) {
      const Vec<T> r = load(u + i), g = load(d + i);
      store(du + i, g * load(y + i) * r * (1 - r));
      dy.put(i, g * r);
    });
  }
};

// GRU-ODE's slope k = ρ (g − y), ρ = σ(−u), g = tanh(v), both in place.
struct GRUSlope {
  enum { U, V, Y, K };
  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    const bool replaying = s.replaying;
    T *u = s.value(op.reg[U]), *v = s.value(op.reg[V]), *k = s.value(op.reg[K]);
    const T* y = s.value(op.reg[Y]);
    each<T>(s.rows * s.width(op.reg[U]), [&](long i) {
      const Vec<T> rate = activate(replaying, u + i, [](Vec<T> x) { return vrate(-x); }), g = activate_tanh(replaying, v + i);
      store(k + i, rate * (g - load(y + i)));
    });
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T *u = s.value(op.reg[U]), *v = s.value(op.reg[V]), *y = s.value(op.reg[Y]), *dk = s.adjoint(op.reg[K]);
    T *du = s.adjoint(op.reg[U]), *dv = s.adjoint(op.reg[V]), h = 0;
    const Share<T> dy(s, op, Y);
    Vec<T> along{};
    each_row<T>(
        s.rows, s.width(op.reg[U]), [&](long r) { h = s.spans[r] / T(op.num[0]), along = Vec<T>{}; },
        [&](long, long i) {
          const Vec<T> rate = load(u + i), g = load(v + i), gap = g - load(y + i), d = load(dk + i), dh = d * h;
          along += d * rate * gap;
          store(du + i, -dh * gap * rate * (1 - rate));
          store(dv + i, dh * rate * (1 - g * g));
          dy.put(i, -dh * rate);
        },
        [&](long r) { s.span_gradients[r] += total<T>(along) / T(op.num[0]); });
  }
};

// GRU-ODE's exponential sub-step: h φ₁(ρh) ρ is 1 − e^{−ρh}, so y = y₀ + (1 − e^{−ρh}) (g − y₀).
struct GRUExponential {
  enum { U, V, Y0, Y };
  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    T *u = s.value(op.reg[U]), *v = s.value(op.reg[V]), *y = s.value(op.reg[Y]), h = 0;
    const T* y0 = s.value(op.reg[Y0]);
    each_row<T>(
        s.rows, s.width(op.reg[U]), [&](long r) { h = s.spans[r] / T(op.num[0]); },
        [&](long, long i) {
          const Vec<T> rate = vrate(-load(u + i)), g = vtanh(load(v + i)), old = load(y0 + i);
          Vec<T> e, lost;
          damping(rate * h, h, e, lost);
          store(u + i, rate), store(v + i, g), store(y + i, old + lost * (g - old));
        },
        [](long) {});
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T *u = s.value(op.reg[U]), *v = s.value(op.reg[V]), *y0 = s.value(op.reg[Y0]), *dy = s.adjoint(op.reg[Y]);
    T *du = s.adjoint(op.reg[U]), *dv = s.adjoint(op.reg[V]), h = 0;
    const Share<T> dy0(s, op, Y0);
    Vec<T> along{};
    each_row<T>(
        s.rows, s.width(op.reg[U]), [&](long r) { h = s.spans[r] / T(op.num[0]), along = Vec<T>{}; },
        [&](long, long i) {
          const Vec<T> rate = load(u + i), g = load(v + i), d = load(dy + i);
          Vec<T> e, lost;
          damping(rate * h, h, e, lost);
          const Vec<T> dz = -d * (load(y0 + i) - g) * e;  // of the exponent ρh
          along += dz * rate;
          store(du + i, -dz * h * rate * (1 - rate));
          store(dv + i, d * lost * (1 - g * g));
          dy0.put(i, d * e);
        },
        [&](long r) { s.span_gradients[r] += total<T>(along) / T(op.num[0]); });
  }
};

// GRU-D's update y = y₀ + z (g − y₀), z = σ(u), g = tanh(v), both in place.
struct Blend {
  enum { U, V, Y0, Y };
  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    T *u = s.value(op.reg[U]), *v = s.value(op.reg[V]), *y = s.value(op.reg[Y]);
    const T* y0 = s.value(op.reg[Y0]);
    each<T>(s.rows * s.width(op.reg[U]), [&](long i) {
      const Vec<T> z = vsigmoid(load(u + i)), g = vtanh(load(v + i)), old = load(y0 + i);
      store(u + i, z), store(v + i, g), store(y + i, old + z * (g - old));
    });
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T *u = s.value(op.reg[U]), *v = s.value(op.reg[V]), *y0 = s.value(op.reg[Y0]), *dy = s.adjoint(op.reg[Y]);
    T *du = s.adjoint(op.reg[U]), *dv = s.adjoint(op.reg[V]);
    const Share<T> dy0(s, op, Y0);
    each<T>(s.rows * s.width(op.reg[U]), [&](long i) {
      const Vec<T> z = load(u + i), g = load(v + i), d = load(dy + i);
      store(du + i, d * (g - load(y0 + i)) * z * (1 - z));
      store(dv + i, d * z * (1 - g * g));
      dy0.put(i, d * (1 - z));
    });
  }
};

// GRU-D's fading state: y = y₀ exp(−max(0, v)).
struct Fade {
  enum { V, Y0, Y };
  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    T* y = s.value(op.reg[Y]);
    const T *v = s.value(op.reg[V]), *y0 = s.value(op.reg[Y0]);
    each<T>(s.rows * s.width(op.reg[V]), [&](long i) { store(y + i, load(y0 + i) * vexp(-vpositive(load(v + i)))); });
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T *v = s.value(op.reg[V]), *y = s.value(op.reg[Y]), *dy = s.adjoint(op.reg[Y]);
    T* dv = s.adjoint(op.reg[V]);
    const Share<T> dy0(s, op, Y0);
    each<T>(s.rows * s.width(op.reg[V]), [&](long i) {
      const Vec<T> a = load(v + i), d = load(dy + i), zero{};
      store(dv + i, a > 0 ? -d * load(y + i) : zero);
      dy0.put(i, d * vexp(-vpositive(a)));
    });
  }
};

// y = y₀ + Δ for every unit: clocks.
struct Tick {
  enum { Y, Y0 };
  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    T* y = s.value(op.reg[Y]);
    const T* y0 = s.value(op.reg[Y0]);
    T span = 0;
    each_row<T>(
        s.rows, s.width(op.reg[Y]), [&](long r) { span = s.spans[r]; },
        [&](long, long i) { store(y + i, load(y0 + i) + span); }, [](long) {});
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T* dy = s.adjoint(op.reg[Y]);
    const Share<T> dy0(s, op, Y0);
    const long width = s.width(op.reg[Y]), size = s.plan->registers[op.reg[Y]].size;
    each<T>(s.rows * width, [&](long i) { dy0.put(i, load(dy + i)); });
    for (long r = 0; r < s.rows; ++r)
      for (long u = 0; u < size; ++u) s.span_gradients[r] += dy[r * width + u];
  }
};

// y = Δ for every unit: the gap as an input.
struct Gap {
  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    const long width = s.width(op.reg[0]);
    T* y = s.value(op.reg[0]);
    for (long r = 0; r < s.rows; ++r) std::fill_n(y + r * width, width, s.spans[r]);
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const long width = s.width(op.reg[0]), size = s.plan->registers[op.reg[0]].size;
    const T* dy = s.adjoint(op.reg[0]);
    for (long r = 0; r < s.rows; ++r)
      for (long u = 0; u < size; ++u) s.span_gradients[r] += dy[r * width + u];
  }
};

// GRU-D's inputs: a missing one fades from its last value to its mean.
struct Impute {
  enum { X, M, SINCE1, LAST0, XHAT, LAST, SINCE };
  enum { WEIGHT, BIAS, MEAN };
  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    const T *x = s.value(op.reg[X]), *m = s.value(op.reg[M]), *since1 = s.value(op.reg[SINCE1]);
    const T *last0 = s.value(op.reg[LAST0]), *w = s.parameter(op.par[WEIGHT]), *b = s.parameter(op.par[BIAS]);
    const T* mean = s.parameter(op.par[MEAN]);
    T *x_hat = s.value(op.reg[XHAT]), *last = s.value(op.reg[LAST]), *since = s.value(op.reg[SINCE]);
    each_row<T>(
        s.rows, s.width(op.reg[X]), [](long) {},
        [&](long u, long i) {
          const Vec<T> seen = load(m + i), old = load(last0 + i), age = load(since1 + i), mu = load(mean + u);
          const Vec<T> fading = vexp(-vpositive(load(w + u) * age + load(b + u)));
          store(x_hat + i, seen * load(x + i) + (1 - seen) * (mu + fading * (old - mu)));
          store(last + i, old + seen * (load(x + i) - old));
          store(since + i, (1 - seen) * age);
        },
        [](long) {});
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T *x = s.value(op.reg[X]), *m = s.value(op.reg[M]), *since1 = s.value(op.reg[SINCE1]);
    const T *last0 = s.value(op.reg[LAST0]), *w = s.parameter(op.par[WEIGHT]), *b = s.parameter(op.par[BIAS]);
    const T* mean = s.parameter(op.par[MEAN]);
    const T *dx_hat = s.adjoint(op.reg[XHAT]), *dlast = s.adjoint(op.reg[LAST]), *dsince = s.adjoint(op.reg[SINCE]);
    T *dw = s.gradient(op.par[WEIGHT]), *db = s.gradient(op.par[BIAS]);
    const Share<T> dx(s, op, X), dm(s, op, M), dsince1(s, op, SINCE1), dlast0(s, op, LAST0);
    each_row<T>(
        s.rows, s.width(op.reg[X]), [](long) {},
        [&](long u, long i) {
          const Vec<T> seen = load(m + i), old = load(last0 + i), age = load(since1 + i), mu = load(mean + u);
          const Vec<T> now = load(x + i), weight = load(w + u), a = weight * age + load(b + u), zero{};
          const Vec<T> fading = vexp(-vpositive(a));
          const Vec<T> g = load(dx_hat + i), g_last = load(dlast + i), g_since = load(dsince + i);
          const Vec<T> filled = g * (1 - seen), da = a > 0 ? -fading * filled * (old - mu) : zero;
          increase(dw + u, da * age), increase(db + u, da);
          dx.put(i, (g + g_last) * seen);
          dm.put(i, g * (now - (mu + fading * (old - mu))) + g_last * (now - old) - g_since * age);
          dlast0.put(i, filled * fading + g_last * (1 - seen));
          dsince1.put(i, da * weight + g_since * (1 - seen));
        },
        [](long) {});
  }
};

// RNN-Decay: y = y₀ e^{−τΔ}.
struct Decay {
  enum { Y0, Y };
  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    T *y = s.value(op.reg[Y]), span = 0;
    const T *y0 = s.value(op.reg[Y0]), *rate = s.parameter(op.par[0]);
    each_row<T>(
        s.rows, s.width(op.reg[Y]), [&](long r) { span = s.spans[r]; },
        [&](long u, long i) { store(y + i, load(y0 + i) * vexp(-load(rate + u) * span)); }, [](long) {});
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T *y = s.value(op.reg[Y]), *rate = s.parameter(op.par[0]), *dy = s.adjoint(op.reg[Y]);
    T *d_rate = s.gradient(op.par[0]), span = 0;
    const Share<T> dy0(s, op, Y0);
    Vec<T> along{};
    each_row<T>(
        s.rows, s.width(op.reg[Y]), [&](long r) { span = s.spans[r], along = Vec<T>{}; },
        [&](long u, long i) {
          const Vec<T> d = load(dy + i), tau = load(rate + u), dz = -d * load(y + i);
          increase(d_rate + u, dz * span);
          along += dz * tau;
          dy0.put(i, d * vexp(-tau * span));
        },
        [&](long r) { s.span_gradients[r] += total<T>(along); });
  }
};

// --- CT-LSTM ------------------------------------------------------------------------------------------------------------

// c = c̄₀ + (c₀ − c̄₀) e^{−δ₀Δ}, h = o₀ tanh(c)
struct MemoryDecay {
  enum { C0, TARGET0, RATE0, GATE0, C, H };
  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    const T *c0 = s.value(op.reg[C0]), *target = s.value(op.reg[TARGET0]), *rate = s.value(op.reg[RATE0]);
    const T* gate = s.value(op.reg[GATE0]);
    T *pc = s.value(op.reg[C]), *ph = s.value(op.reg[H]), span = 0;
    each_row<T>(
        s.rows, s.width(op.reg[C]), [&](long r) { span = s.spans[r]; },
        [&](long, long i) {
          const Vec<T> aim = load(target + i), c = aim + (load(c0 + i) - aim) * vexp(-load(rate + i) * span);
          store(pc + i, c), store(ph + i, load(gate + i) * vtanh(c));
        },
        [](long) {});
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T *c0 = s.value(op.reg[C0]), *target = s.value(op.reg[TARGET0]), *rate = s.value(op.reg[RATE0]);
    const T *gate = s.value(op.reg[GATE0]), *pc = s.value(op.reg[C]);
    const T *dc = s.adjoint(op.reg[C]), *dh = s.adjoint(op.reg[H]);
    const Share<T> dc0(s, op, C0), dtarget(s, op, TARGET0), drate(s, op, RATE0), dgate(s, op, GATE0);
    T span = 0;
    Vec<T> along{};
    each_row<T>(
        s.rows, s.width(op.reg[C]), [&](long r) { span = s.spans[r], along = Vec<T>{}; },
        [&](long, long i) {
          const Vec<T> t = vtanh(load(pc + i)), g = load(dh + i), q = load(rate + i), e = vexp(-q * span);
          const Vec<T> d = load(dc + i) + g * load(gate + i) * (1 - t * t);
          const Vec<T> dz = -d * (load(c0 + i) - load(target + i)) * e;
          dgate.put(i, g * t);
          dc0.put(i, d * e);
          dtarget.put(i, d * (1 - e));
          drate.put(i, dz * span);
          along += dz * q;
        },
        [&](long r) { s.span_gradients[r] += total<T>(along); });
  }
};

// The seven gates of Mei & Eisner, from the decayed memory c₁.
struct MemoryUpdate {
  enum { I, F, Z, O, I2, F2, U, C1, TARGET0, H, C, TARGET, RATE, GATE };
  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    T* g[7];
    for (int j = 0; j < 7; ++j) g[j] = s.value(op.reg[I + j]);
    const T *c1 = s.value(op.reg[C1]), *target0 = s.value(op.reg[TARGET0]);
    T *h = s.value(op.reg[H]), *pc = s.value(op.reg[C]), *target = s.value(op.reg[TARGET]), *rate = s.value(op.reg[RATE]);
    T* gate = s.value(op.reg[GATE]);
    each<T>(s.rows * s.width(op.reg[I]), [&](long k) {
      const Vec<T> i = vsigmoid(load(g[I] + k)), f = vsigmoid(load(g[F] + k)), z = vtanh(load(g[Z] + k)),
                   o = vsigmoid(load(g[O] + k)), i2 = vsigmoid(load(g[I2] + k)), f2 = vsigmoid(load(g[F2] + k));
      const Vec<T> c = f * load(c1 + k) + i * z;
      store(g[I] + k, i), store(g[F] + k, f), store(g[Z] + k, z), store(g[I2] + k, i2), store(g[F2] + k, f2);
      store(pc + k, c), store(h + k, o * vtanh(c)), store(gate + k, o);
      store(target + k, f2 * load(target0 + k) + i2 * z);
      store(rate + k, vsoftplus(load(g[U] + k)));
    });
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T* g[7];
    T* d[7];
    for (int j = 0; j < 7; ++j) g[j] = s.value(op.reg[I + j]), d[j] = s.adjoint(op.reg[I + j]);
    const T *c1 = s.value(op.reg[C1]), *target0 = s.value(op.reg[TARGET0]), *pc = s.value(op.reg[C]);
    const T* gate = s.value(op.reg[GATE]);
    const T *dh = s.adjoint(op.reg[H]), *dc = s.adjoint(op.reg[C]), *dtarget = s.adjoint(op.reg[TARGET]);
    const T *drate = s.adjoint(op.reg[RATE]), *dgate = s.adjoint(op.reg[GATE]);
    const Share<T> dc1(s, op, C1), dtarget0(s, op, TARGET0);
    each<T>(s.rows * s.width(op.reg[I]), [&](long k) {
      const Vec<T> i = load(g[I] + k), f = load(g[F] + k), z = load(g[Z] + k), o = load(gate + k), i2 = load(g[I2] + k),
                   f2 = load(g[F2] + k), t = vtanh(load(pc + k));
      const Vec<T> gh = load(dh + k), gt = load(dtarget + k), gc = load(dc + k) + gh * o * (1 - t * t);
      store(d[I] + k, gc * z * i * (1 - i));
      store(d[F] + k, gc * load(c1 + k) * f * (1 - f));
      store(d[Z] + k, (gc * i + gt * i2) * (1 - z * z));
      store(d[O] + k, (load(dgate + k) + gh * t) * o * (1 - o));
      store(d[I2] + k, gt * z * i2 * (1 - i2));
      store(d[F2] + k, gt * load(target0 + k) * f2 * (1 - f2));
      store(d[U] + k, load(drate + k) * vsoftplus_slope(load(g[U] + k)));
      dc1.put(k, gc * f);
      dtarget0.put(k, gt * f2);
    });
  }
};

// --- Phased LSTM --------------------------------------------------------------------------------------------------------

// A clock of two units: the time as T rounds it, and what the rounding took away.
template <class T>
inline double time_on(const T* clock) {
  return double(clock[0]) + double(clock[1]);
}

// The clock after the gap. The time is the sum of both units, so either of the old ones has its derivative; of the new ones
// only the first does.
struct Clock {
  enum { CLOCK, CLOCK0 };
  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    const long width = s.width(op.reg[CLOCK]);
    T* clock = s.value(op.reg[CLOCK]);
    const T* clock0 = s.value(op.reg[CLOCK0]);
    for (long r = 0; r < s.rows; ++r, clock += width, clock0 += width) {
      const double time = time_on(clock0) + double(s.spans[r]);
      clock[0] = T(time), clock[1] = T(time - double(clock[0]));
      std::fill(clock + 2, clock + width, T(0));
    }
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const long width = s.width(op.reg[CLOCK]);
    const T* d = s.adjoint(op.reg[CLOCK]);
    T* d0 = s.adjoint(op.reg[CLOCK0]);
    for (long r = 0; r < s.rows; ++r, d += width, d0 += width) {
      if (!op.add[CLOCK0]) std::fill(d0, d0 + width, T(0));
      d0[0] += d[0], d0[1] += d[0];
      s.span_gradients[r] += d[0];
    }
  }
};

// φ = ((t − s) mod τ) / τ. The number of turns may be far beyond the digits of a float, hence double; τ comes in two parts.
struct Phase {
  enum { PHASE, CLOCK };
  enum { PERIOD, SHIFT };
  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    const T *period = s.parameter(op.par[PERIOD]), *rest = s.companions(op.par[PERIOD]), *shift = s.parameter(op.par[SHIFT]);
    const long width = s.width(op.reg[PHASE]), clock_width = s.width(op.reg[CLOCK]);
    const T* clock = s.value(op.reg[CLOCK]);
    T* phase = s.value(op.reg[PHASE]);
    for (long r = 0; r < s.rows; ++r, phase += width, clock += clock_width) {
      const double time = time_on(clock);
      for (long u = 0; u < width; u += kLanes<double>)
        narrow(phase + u, remainder(time - widen(shift + u), widen(period + u) + widen(rest + u)));
    }
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T *period = s.parameter(op.par[PERIOD]), *shift = s.parameter(op.par[SHIFT]), *clock = s.value(op.reg[CLOCK]);
    const T* d = s.adjoint(op.reg[PHASE]);
    T *d_period = s.gradient(op.par[PERIOD]), *d_shift = s.gradient(op.par[SHIFT]), *d_clock = s.adjoint(op.reg[CLOCK]);
    const long clock_width = s.width(op.reg[CLOCK]);
    T time = 0;
    Vec<T> along{};
    each_row<T>(
        s.rows, s.width(op.reg[PHASE]), [&](long r) { time = T(time_on(clock + r * clock_width)), along = Vec<T>{}; },
        [&](long u, long i) {
          const Vec<T> per_period = 1 / some(load(period + u)), d_time = load(d + i) * per_period;
          along += d_time;
          increase(d_shift + u, -d_time);
          increase(d_period + u, -d_time * (time - load(shift + u)) * per_period);
        },
        [&](long r) { d_clock[r * clock_width] += total<T>(along); });
  }

 private:
  template <class V>
  static V some(V period) {
    return period == 0 ? 1 - V{} : period;  // padded units have none
  }
  static D remainder(D since, D period) {
    period = some(period);
    const D inverse = 1 / period;
    D rest = since - vfloor(since * inverse) * period;
    // The quotient may have been rounded up to a whole number, or down from one.
    rest += rest < 0 ? period : rest >= period ? -period : D{};
    return rest * inverse;
  }
};

// c and h move from their old values to the LSTM's proposal as far as the gate is open at the phase.
struct PhasedBlend {
  enum { PHASE, C0, H0, C1, H1, C, H };

  // How far gates are open, and how that changes with the phase.
  template <class T>
  struct Openness {
    Vec<T> k, slope;
    Openness(Vec<T> phase, T ratio, T leak) {
      const Vec<T> rising = 2 * phase / ratio;
      const auto open = phase < ratio, up = rising < 1;
      k = open ? (up ? rising : 2 - rising) : leak * phase;
      slope = open ? (up ? fill(2 / ratio) : fill(-2 / ratio)) : fill(leak);
    }
  };

  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    const T *phase = s.value(op.reg[PHASE]), *c0 = s.value(op.reg[C0]), *h0 = s.value(op.reg[H0]);
    const T *c1 = s.value(op.reg[C1]), *h1 = s.value(op.reg[H1]);
    T *c = s.value(op.reg[C]), *h = s.value(op.reg[H]);
    each<T>(s.rows * s.width(op.reg[C]), [&](long i) {
      const Openness<T> at(load(phase + i), T(op.num[0]), T(op.num[1]));
      const Vec<T> old_c = load(c0 + i), old_h = load(h0 + i);
      store(c + i, old_c + at.k * (load(c1 + i) - old_c));
      store(h + i, old_h + at.k * (load(h1 + i) - old_h));
    });
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const T *phase = s.value(op.reg[PHASE]), *c0 = s.value(op.reg[C0]), *h0 = s.value(op.reg[H0]);
    const T *c1 = s.value(op.reg[C1]), *h1 = s.value(op.reg[H1]);
    const T *dc = s.adjoint(op.reg[C]), *dh = s.adjoint(op.reg[H]);
    const Share<T> dphase(s, op, PHASE), dc0(s, op, C0), dh0(s, op, H0), dc1(s, op, C1), dh1(s, op, H1);
    each<T>(s.rows * s.width(op.reg[C]), [&](long i) {
      const Openness<T> at(load(phase + i), T(op.num[0]), T(op.num[1]));
      const Vec<T> gc = load(dc + i), gh = load(dh + i);
      dphase.put(i, (gc * (load(c1 + i) - load(c0 + i)) + gh * (load(h1 + i) - load(h0 + i))) * at.slope);
      dc1.put(i, gc * at.k), dh1.put(i, gh * at.k);
      dc0.put(i, gc * (1 - at.k)), dh0.put(i, gh * (1 - at.k));
    });
  }
};

// --- CT-GRU -------------------------------------------------------------------------------------------------------------
// Traces are `count` registers side by side, num[0] of them; par[0] holds ln τ_m.

// ĥ_m = ĥ_m⁰ e^{−Δ/τ_m}, h = Σ ĥ_m
struct TraceDecay {
  enum { TRACES0, TRACES, H };
  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    const long width = s.width(op.reg[H]), count = long(op.num[0]);
    const T* scales = s.parameter(op.par[0]);
    T* h = s.value(op.reg[H]);
    for (long m = 0; m < count; ++m) {
      const T* old = s.value(op.reg[TRACES0] + int32_t(m));
      T *now = s.value(op.reg[TRACES] + int32_t(m)), e = 0;
      each_row<T>(
          s.rows, width, [&](long r) { e = std::exp(-s.spans[r] * std::exp(-scales[m])); },
          [&](long, long i) {
            const Vec<T> trace = load(old + i) * e;
            store(now + i, trace);
            store(h + i, m ? load(h + i) + trace : trace);
          },
          [](long) {});
    }
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const long width = s.width(op.reg[H]), count = long(op.num[0]);
    const T *scales = s.parameter(op.par[0]), *dh = s.adjoint(op.reg[H]);
    for (long m = 0; m < count; ++m) {
      const T *now = s.value(op.reg[TRACES] + int32_t(m)), *d = s.adjoint(op.reg[TRACES] + int32_t(m));
      T *old = s.adjoint(op.reg[TRACES0] + int32_t(m)), e = 0;
      const T rate = std::exp(-scales[m]);
      Vec<T> along{};
      each_row<T>(
          s.rows, width, [&](long r) { e = std::exp(-s.spans[r] * rate), along = Vec<T>{}; },
          [&](long, long i) {
            const Vec<T> g = load(d + i) + load(dh + i);
            along += g * load(now + i);
            store(old + i, op.add[TRACES0] ? load(old + i) + g * e : g * e);
          },
          [&](long r) { s.span_gradients[r] -= total<T>(along) * rate; });
    }
  }
};

constexpr int kMostScales = 32;

// Softmax over scales of −(u − ln τ_m)².
template <class T>
struct Choice {
  Vec<T> weight[kMostScales];
  Choice(Vec<T> u, const T* scales, long count) {
    Vec<T> sum{}, top{};
    for (long m = 0; m < count; ++m) {
      const Vec<T> away = u - scales[m];
      weight[m] = -away * away;
      top = m == 0 ? weight[m] : weight[m] > top ? weight[m] : top;
    }
    for (long m = 0; m < count; ++m) weight[m] = vexp(weight[m] - top), sum += weight[m];
    for (long m = 0; m < count; ++m) weight[m] /= sum;
  }
  // The adjoint of u, given those of the weights.
  Vec<T> pull(Vec<T> u, const T* scales, long count, const Vec<T>* d) const {
    Vec<T> mean{}, du{};
    for (long m = 0; m < count; ++m) mean += weight[m] * d[m];
    for (long m = 0; m < count; ++m) du -= 2 * (u - scales[m]) * weight[m] * (d[m] - mean);
    return du;
  }
};

// y = Σ_m r_m(u) ĥ_m
struct TraceRead {
  enum { U, TRACES, Y };
  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    const long size = s.rows * s.width(op.reg[Y]), count = long(op.num[0]);
    const T *scales = s.parameter(op.par[0]), *u = s.value(op.reg[U]);
    const T* trace[kMostScales];
    for (long m = 0; m < count; ++m) trace[m] = s.value(op.reg[TRACES] + int32_t(m));
    T* y = s.value(op.reg[Y]);
    each<T>(size, [&](long i) {
      const Choice<T> choice(load(u + i), scales, count);
      Vec<T> sum{};
      for (long m = 0; m < count; ++m) sum += choice.weight[m] * load(trace[m] + i);
      store(y + i, sum);
    });
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const long size = s.rows * s.width(op.reg[Y]), count = long(op.num[0]);
    const T *scales = s.parameter(op.par[0]), *u = s.value(op.reg[U]), *dy = s.adjoint(op.reg[Y]);
    const T* trace[kMostScales];
    T *dtrace[kMostScales], *du = s.adjoint(op.reg[U]);
    for (long m = 0; m < count; ++m)
      trace[m] = s.value(op.reg[TRACES] + int32_t(m)), dtrace[m] = s.adjoint(op.reg[TRACES] + int32_t(m));
    each<T>(size, [&](long i) {
      const Vec<T> at = load(u + i), g = load(dy + i);
      const Choice<T> choice(at, scales, count);
      Vec<T> d[kMostScales];
      for (long m = 0; m < count; ++m) {
        d[m] = g * load(trace[m] + i);
        const Vec<T> share = g * choice.weight[m];
        store(dtrace[m] + i, op.add[TRACES] ? load(dtrace[m] + i) + share : share);
      }
      store(du + i, choice.pull(at, scales, count, d));
    });
  }
};

// ĥ_m = ĥ_m¹ + s_m(u) (q − ĥ_m¹), h = Σ ĥ_m
struct TraceStore {
  enum { U, Q, TRACES1, TRACES, H };
  template <class T>
  static void forward(Step<T>& s, const Op& op) {
    const long size = s.rows * s.width(op.reg[H]), count = long(op.num[0]);
    const T *scales = s.parameter(op.par[0]), *u = s.value(op.reg[U]), *pq = s.value(op.reg[Q]);
    const T* old[kMostScales];
    T *trace[kMostScales], *h = s.value(op.reg[H]);
    for (long m = 0; m < count; ++m)
      old[m] = s.value(op.reg[TRACES1] + int32_t(m)), trace[m] = s.value(op.reg[TRACES] + int32_t(m));
    each<T>(size, [&](long i) {
      const Choice<T> choice(load(u + i), scales, count);
      const Vec<T> q = load(pq + i);
      Vec<T> sum{};
      for (long m = 0; m < count; ++m) {
        const Vec<T> before = load(old[m] + i), now = before + choice.weight[m] * (q - before);
        store(trace[m] + i, now);
        sum += now;
      }
      store(h + i, sum);
    });
  }
  template <class T>
  static void backward(Step<T>& s, const Op& op) {
    const long size = s.rows * s.width(op.reg[H]), count = long(op.num[0]);
    const T *scales = s.parameter(op.par[0]), *u = s.value(op.reg[U]), *pq = s.value(op.reg[Q]);
    const T *old[kMostScales], *d_now[kMostScales], *dh = s.adjoint(op.reg[H]);
    T *d_old[kMostScales], *du = s.adjoint(op.reg[U]), *dq = s.adjoint(op.reg[Q]);
    for (long m = 0; m < count; ++m) {
      old[m] = s.value(op.reg[TRACES1] + int32_t(m)), d_old[m] = s.adjoint(op.reg[TRACES1] + int32_t(m));
      d_now[m] = s.adjoint(op.reg[TRACES] + int32_t(m));
    }
    each<T>(size, [&](long i) {
      const Vec<T> at = load(u + i), q = load(pq + i), gh = load(dh + i);
      const Choice<T> choice(at, scales, count);
      Vec<T> d[kMostScales], g_q{};
      for (long m = 0; m < count; ++m) {
        const Vec<T> g = load(d_now[m] + i) + gh, share = g * (1 - choice.weight[m]);
        d[m] = g * (q - load(old[m] + i));
        g_q += g * choice.weight[m];
        store(d_old[m] + i, op.add[TRACES1] ? load(d_old[m] + i) + share : share);
      }
      store(dq + i, g_q);
      store(du + i, choice.pull(at, scales, count, d));
    });
  }
};

// The table of operations, in the order of lapse/kernels/program.py.
#define LAPSE_OPS(X)                                                                                                   \
  X(Linear) X(LSTM) X(Tanh) X(Add) X(Check) X(Combine) X(Integrate) X(TanhSlope) X(PlainSlope) X(Damping) X(TanhExponential)        \
  X(TanhCorrection) X(Reset) X(GRUSlope) X(GRUExponential) X(Blend) X(Fade) X(Tick) X(Gap) X(Impute) X(Decay)          \
  X(MemoryDecay) X(MemoryUpdate) X(Clock) X(Phase) X(PhasedBlend) X(TraceDecay) X(TraceRead) X(TraceStore)

enum Code : int32_t {
#define LAPSE_CODE(name) k##name,
  LAPSE_OPS(LAPSE_CODE)
#undef LAPSE_CODE
};

template <class T>
inline void forward(Step<T>& s, const Op& op) {
  switch (op.code) {
#define LAPSE_CASE(name) \
  case k##name: return name::forward(s, op);
    LAPSE_OPS(LAPSE_CASE)
#undef LAPSE_CASE
  }
}

template <class T>
inline void backward(Step<T>& s, const Op& op) {
  switch (op.code) {
#define LAPSE_CASE(name) \
  case k##name: return name::backward(s, op);
    LAPSE_OPS(LAPSE_CASE)
#undef LAPSE_CASE
  }
}

}  // namespace lapse
