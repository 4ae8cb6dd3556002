"""The equations of every cell once more, in NumPy: one row at a time, gaps as plain floats, no batch axis anywhere.

Written from the models' definitions, not from the package: what the two share is the names of the weights only.
A state is a tuple of vectors in the cell's own order, the output first. ``step`` takes an observation after a gap,
``flow`` lets a gap pass; both return the output and the state.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

Vector = np.ndarray
State = tuple[Vector, ...]
Parts = Callable[[Vector], tuple[Vector, Vector]]  # y -> source, rate of dy/dt = source − rate y
Solve = Callable[[Parts, Vector, float], Vector]


def sigmoid(x: Vector) -> Vector:
    return (1.0 + np.tanh(x / 2)) / 2


def softplus(x: Vector) -> Vector:
    return np.log(1.0 + np.exp(x))


def slope(parts: Parts, y: Vector) -> Vector:
    source, rate = parts(y)
    return source - rate * y


def euler(steps: int) -> Solve:
    def solve(parts: Parts, y: Vector, span: float) -> Vector:
        h = span / steps
        for _ in range(steps):
            y = y + h * slope(parts, y)
        return y

    return solve


def heun(steps: int) -> Solve:
    def solve(parts: Parts, y: Vector, span: float) -> Vector:
        h = span / steps
        for _ in range(steps):
            k1 = slope(parts, y)
            k2 = slope(parts, y + h * k1)
            y = y + h * (k1 + k2) / 2
        return y

    return solve


def rk4(steps: int) -> Solve:
    """The classical one of 1901, not the 3/8 rule."""

    def solve(parts: Parts, y: Vector, span: float) -> Vector:
        h = span / steps
        for _ in range(steps):
            k1 = slope(parts, y)
            k2 = slope(parts, y + h / 2 * k1)
            k3 = slope(parts, y + h / 2 * k2)
            k4 = slope(parts, y + h * k3)
            y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return y

    return solve


def exponential(steps: int) -> Solve:
    """Freeze source and rate for a sub-step and solve that linear equation in closed form."""

    def solve(parts: Parts, y: Vector, span: float) -> Vector:
        h = span / steps
        for _ in range(steps):
            source, rate = parts(y)
            rest = source / rate  # where the frozen equation comes to rest
            y = y * np.exp(-rate * h) - rest * np.expm1(-rate * h)
        return y

    return solve


class Oracle:
    """A cell's equations with its weights: vectors and matrices by their names in ``state_dict``."""

    def __init__(self, weights: dict[str, Vector], hidden_size: int, solve: Solve | None = None) -> None:
        self.w, self.n, self.solve = weights, hidden_size, solve

    def affine(self, name: str, index: int, x: Vector, h: Vector) -> Vector:
        """W x + R h + b of the gate at ``index`` in the stack ``name``."""
        rows = slice(index * self.n, (index + 1) * self.n)
        w_ih, w_hh = self.w[f"{name}.weight_ih"][rows], self.w[f"{name}.weight_hh"][rows]
        return w_ih @ x + w_hh @ h + self.w[f"{name}.bias"][rows]

    def initial(self) -> State:
        raise NotImplementedError

    def step(self, x: Vector, state: State, gap: float) -> tuple[Vector, State]:
        raise NotImplementedError

    def flow(self, state: State, gap: float) -> tuple[Vector, State]:
        raise NotImplementedError

    def no_input(self) -> Vector:
        return np.zeros(self.w["field.gates.weight_ih"].shape[1])


class CTRNN(Oracle):
    """dh/dt = s tanh(W x + R h + b) − τ h."""

    def initial(self) -> State:
        return (np.zeros(self.n),)

    def tau(self) -> Vector:
        return softplus(self.w["field.decay"])

    def follow(self, x: Vector, h: Vector, gap: float) -> Vector:
        def parts(y: Vector) -> tuple[Vector, Vector]:
            return self.w["field.scale"] * np.tanh(self.affine("field.gates", 0, x, y)), self.tau()

        return self.solve(parts, h, gap)

    def step(self, x: Vector, state: State, gap: float) -> tuple[Vector, State]:
        h = self.follow(x, state[0], gap)
        return h, (h,)

    def flow(self, state: State, gap: float) -> tuple[Vector, State]:
        return self.step(self.no_input(), state, gap)


class ODERNN(CTRNN):
    """dh/dt = s tanh(W x + R h + b)."""

    def tau(self) -> Vector:
        return np.zeros(self.n)


class GRUODE(Oracle):
    """dh/dt = (1 − z)(g − h)."""

    def initial(self) -> State:
        return (np.zeros(self.n),)

    def step(self, x: Vector, state: State, gap: float) -> tuple[Vector, State]:
        def parts(y: Vector) -> tuple[Vector, Vector]:
            r = sigmoid(self.affine("field.gates", 0, x, y))
            z = sigmoid(self.affine("field.gates", 1, x, y))
            g = np.tanh(self.affine("field.candidate", 0, x, r * y))
            return (1 - z) * g, 1 - z

        h = self.solve(parts, state[0], gap)
        return h, (h,)

    def flow(self, state: State, gap: float) -> tuple[Vector, State]:
        return self.step(self.no_input(), state, gap)


class MLPFlow(Oracle):
    """dh/dt = V tanh(U h + a) + b."""

    def follow(self, h: Vector, gap: float) -> Vector:
        def parts(y: Vector) -> tuple[Vector, Vector]:
            inner = np.tanh(self.w["field.inner.weight"] @ y + self.w["field.inner.bias"])
            return self.w["field.outer.weight"] @ inner + self.w["field.outer.bias"], np.zeros(self.n)

        return self.solve(parts, h, gap)


class JumpODERNN(MLPFlow):
    """h⁻ = ODESolve(f, h, Δ), h = tanh(W x + R h⁻ + b)."""

    def initial(self) -> State:
        return (np.zeros(self.n),)

    def step(self, x: Vector, state: State, gap: float) -> tuple[Vector, State]:
        h = np.tanh(self.affine("jump", 0, x, self.follow(state[0], gap)))
        return h, (h,)

    def flow(self, state: State, gap: float) -> tuple[Vector, State]:
        h = self.follow(state[0], gap)
        return h, (h,)


class RNNDecay(Oracle):
    """h⁻ = h exp(−τ Δ), h = tanh(W x + R h⁻ + b)."""

    def initial(self) -> State:
        return (np.zeros(self.n),)

    def flow(self, state: State, gap: float) -> tuple[Vector, State]:
        h = state[0] * np.exp(-softplus(self.w["decay"]) * gap)
        return h, (h,)

    def step(self, x: Vector, state: State, gap: float) -> tuple[Vector, State]:
        faded, _ = self.flow(state, gap)
        h = np.tanh(self.affine("gates", 0, x, faded))
        return h, (h,)


class LSTM(Oracle):
    """Eqs. 2–7. The forget gate's +1 is part of its bias."""

    def initial(self) -> State:
        return np.zeros(self.n), np.zeros(self.n)

    def lstm(self, x: Vector, h: Vector, c: Vector) -> tuple[Vector, Vector]:
        i = sigmoid(self.affine("gates", 0, x, h))
        f = sigmoid(self.affine("gates", 1, x, h))
        z = np.tanh(self.affine("gates", 2, x, h))
        o = sigmoid(self.affine("gates", 3, x, h))
        c = z * i + c * f
        return c, np.tanh(c) * o


class AugmentedLSTM(LSTM):
    """An LSTM on [x, Δ]; nothing happens in between."""

    def step(self, x: Vector, state: State, gap: float) -> tuple[Vector, State]:
        c, h = self.lstm(np.append(x, gap), *state)
        return h, (h, c)

    def flow(self, state: State, gap: float) -> tuple[Vector, State]:
        return state[0], state


class ODELSTM(LSTM, CTRNN):
    """(c, h') = LSTM(x, (c, h)); h follows the CT-RNN's equation, driven by h', from the old h."""

    def step(self, x: Vector, state: State, gap: float) -> tuple[Vector, State]:
        h, c = state
        c, proposal = self.lstm(x, h, c)
        h = self.follow(proposal, h, gap)
        return h, (h, c)

    def flow(self, state: State, gap: float) -> tuple[Vector, State]:
        h, c = state
        h = self.follow(np.zeros(self.n), h, gap)
        return h, (h, c)


class AutonomousODELSTM(LSTM, MLPFlow):
    """(c, h') = LSTM(x, (c, h)); h follows an autonomous equation from h'."""

    def step(self, x: Vector, state: State, gap: float) -> tuple[Vector, State]:
        h, c = state
        c, proposal = self.lstm(x, h, c)
        h = self.follow(proposal, gap)
        return h, (h, c)

    def flow(self, state: State, gap: float) -> tuple[Vector, State]:
        h = self.follow(state[0], gap)
        return h, (h, state[1])


class JumpODELSTM(LSTM, CTRNN):
    """h follows the CT-RNN's equation through the gap, driven by the memory c; then (c, h) = LSTM(x, (c, h))."""

    def step(self, x: Vector, state: State, gap: float) -> tuple[Vector, State]:
        flowed, (_, c) = self.flow(state, gap)
        c, h = self.lstm(x, flowed, c)
        return h, (h, c)

    def flow(self, state: State, gap: float) -> tuple[Vector, State]:
        h, c = state
        h = self.follow(c, h, gap)
        return h, (h, c)


class CoupledLSTMODERNN(LSTM, ODERNN):
    """An LSTM sees the ODE-RNN's previous output, the ODE-RNN the LSTM's; the outputs are summed."""

    def initial(self) -> State:
        return tuple(np.zeros(self.n) for _ in range(4))

    def step(self, x: Vector, state: State, gap: float) -> tuple[Vector, State]:
        _, c, lstm, ode = state
        c_next, lstm_next = self.lstm(np.concatenate([x, ode]), lstm, c)
        ode_next = self.follow(np.concatenate([x, lstm]), ode, gap)
        output = lstm_next + ode_next
        return output, (output, c_next, lstm_next, ode_next)

    def flow(self, state: State, gap: float) -> tuple[Vector, State]:
        _, c, lstm, ode = state
        nothing = np.zeros(len(self.no_input()) - self.n)
        ode = self.follow(np.concatenate([nothing, lstm]), ode, gap)
        return lstm + ode, (lstm + ode, c, lstm, ode)


class PhasedLSTM(LSTM):
    """The LSTM's proposal enters as far as each unit's gate is open at the absolute time."""

    ratio_on, leak = 0.05, 0.001

    def initial(self) -> State:
        return np.zeros(self.n), np.zeros(self.n), np.zeros(1)

    def openness(self, unit: int, time: float) -> float:
        period = math.exp(self.w["log_period"][unit])
        phase = math.fmod(time - self.w["shift"][unit], period) / period
        if phase < 0:
            phase += 1
        if phase < self.ratio_on / 2:
            return 2 * phase / self.ratio_on
        if phase < self.ratio_on:
            return 2 - 2 * phase / self.ratio_on
        return self.leak * phase

    def step(self, x: Vector, state: State, gap: float) -> tuple[Vector, State]:
        h, c, clock = state
        time = float(clock[0]) + gap
        k = np.array([self.openness(unit, time) for unit in range(self.n)])
        c_proposal, h_proposal = self.lstm(x, h, c)
        h, c = k * h_proposal + (1 - k) * h, k * c_proposal + (1 - k) * c
        return h, (h, c, np.array([time]))

    def flow(self, state: State, gap: float) -> tuple[Vector, State]:
        h, c, clock = state
        return h, (h, c, clock + gap)


class CTLSTM(Oracle):
    """Mei & Eisner: c decays from c_i toward c̄_i at the rate δ_i."""

    def initial(self) -> State:
        return tuple(np.zeros(self.n) for _ in range(5))

    def flow(self, state: State, gap: float) -> tuple[Vector, State]:
        _, c, target, rate, gate = state
        c = target + (c - target) * np.exp(-rate * gap)
        h = gate * np.tanh(c)
        return h, (h, c, target, rate, gate)

    def step(self, x: Vector, state: State, gap: float) -> tuple[Vector, State]:
        h, (_, c, target, _, _) = self.flow(state, gap)
        i, f, o = (sigmoid(self.affine("gates", k, x, h)) for k in (0, 1, 3))
        z = np.tanh(self.affine("gates", 2, x, h))
        i_target, f_target = (sigmoid(self.affine("gates", k, x, h)) for k in (4, 5))
        rate = softplus(self.affine("gates", 6, x, h))
        c, target = f * c + i * z, f_target * target + i_target * z
        h = o * np.tanh(c)
        return h, (h, c, target, rate, o)


class CTGRU(Oracle):
    """Mozer et al.: traces of every unit at the scales 10^{m/2}, m = 0 … 7."""

    scales = tuple(10 ** (m / 2) for m in range(8))

    def initial(self) -> State:
        return np.zeros(self.n), np.zeros(self.n * len(self.scales))

    def traces(self, state: State) -> Vector:
        return state[1].reshape(self.n, len(self.scales)).copy()

    def choose(self, log_scale: float) -> Vector:
        weights = np.array([math.exp(-((log_scale - math.log(tau)) ** 2)) for tau in self.scales])
        return weights / weights.sum()

    def flow(self, state: State, gap: float) -> tuple[Vector, State]:
        traces = self.traces(state)
        for m, tau in enumerate(self.scales):
            traces[:, m] *= math.exp(-gap / tau)
        h = traces.sum(axis=1)
        return h, (h, traces.ravel())

    def step(self, x: Vector, state: State, gap: float) -> tuple[Vector, State]:
        h, state = self.flow(state, gap)
        traces = self.traces(state)
        retrieve = self.affine("gates", 0, x, h)
        store = self.affine("gates", 1, x, h)
        read = np.array([self.choose(retrieve[k]) @ traces[k] for k in range(self.n)])
        q = np.tanh(self.affine("candidate", 0, x, read))
        for k in range(self.n):
            s = self.choose(store[k])
            traces[k] = (1 - s) * traces[k] + s * q[k]
        h = traces.sum(axis=1)
        return h, (h, traces.ravel())


class CfC(Oracle):
    """Hasani et al. (2022): h = (1 − s) g + s k with s = σ(a Δ + b), all four from a backbone on [x, h]."""

    activation = staticmethod(lambda u: 1.7159 * np.tanh(0.666 * u))

    def initial(self) -> State:
        return (np.zeros(self.n),)

    def inputs(self) -> int:
        first = self.w.get("backbone.weight_l0", self.w["heads.weight"])
        return first.shape[1] - self.n

    def heads(self, x: Vector, h: Vector) -> list[Vector]:
        v = np.concatenate([x, h])
        layer = 0
        while f"backbone.weight_l{layer}" in self.w:
            v = self.activation(self.w[f"backbone.weight_l{layer}"] @ v + self.w[f"backbone.bias_l{layer}"])
            layer += 1
        u = self.w["heads.weight"] @ v + self.w["heads.bias"]
        return [u[k : k + self.n] for k in range(0, len(u), self.n)]

    def close(self, heads: list[Vector], gap: float) -> Vector:
        g, k, a, b = heads
        s = sigmoid(a * gap + b)
        return (1 - s) * np.tanh(g) + s * np.tanh(k)

    def step(self, x: Vector, state: State, gap: float) -> tuple[Vector, State]:
        h = self.close(self.heads(x, state[0]), gap)
        return h, (h,)

    def flow(self, state: State, gap: float) -> tuple[Vector, State]:
        return self.step(np.zeros(self.inputs()), state, gap)


class SiLUCfC(CfC):
    activation = staticmethod(lambda u: u * sigmoid(u))


class NoGateCfC(CfC):
    """h = g + s k."""

    def close(self, heads: list[Vector], gap: float) -> Vector:
        g, k, a, b = heads
        return np.tanh(g) + sigmoid(a * gap + b) * np.tanh(k)


class PureCfC(CfC):
    """h = −A f e^{−(τ + |f|) Δ} + A."""

    def close(self, heads: list[Vector], gap: float) -> Vector:
        (f,) = heads
        level = self.w["level"]
        return -level * np.exp(-gap * (softplus(self.w["decay"]) + np.abs(f))) * f + level


class DrivenMemory(LSTM):
    """(c, h') = LSTM(x, (c, h)); another cell takes h' as its input."""

    other: type[Oracle] = CTRNN

    def flowing(self) -> Oracle:
        """The other cell, with its own weights under its own names."""
        own = {name.removeprefix("flowing."): w for name, w in self.w.items() if name.startswith("flowing.")}
        return self.other(own, self.n, self.solve)

    def step(self, x: Vector, state: State, gap: float) -> tuple[Vector, State]:
        h, c = state
        c, proposal = self.lstm(x, h, c)
        h, _ = self.flowing().step(proposal, (h,), gap)
        return h, (h, c)

    def flow(self, state: State, gap: float) -> tuple[Vector, State]:
        h, c = state
        h, _ = self.flowing().flow((h,), gap)
        return h, (h, c)


class CarriedMemory(DrivenMemory):
    """(c, h') = LSTM(x, (c, h)); another cell starts from h'."""

    def step(self, x: Vector, state: State, gap: float) -> tuple[Vector, State]:
        h, c = state
        c, proposal = self.lstm(x, h, c)
        h, _ = self.flowing().step(x, (proposal,), gap)
        return h, (h, c)


class JumpMemory(DrivenMemory):
    """Another cell takes c as its input over the gap; then (c, h) = LSTM(x, (c, h⁻))."""

    def flow(self, state: State, gap: float) -> tuple[Vector, State]:
        h, c = state
        h, _ = self.flowing().step(c, (h,), gap)
        return h, (h, c)

    def step(self, x: Vector, state: State, gap: float) -> tuple[Vector, State]:
        h, (_, c) = self.flow(state, gap)
        c, h = self.lstm(x, h, c)
        return h, (h, c)


class CfCMemory(DrivenMemory):
    other = CfC


class CarriedCfCMemory(CarriedMemory):
    other = CfC


class NeuralCDE(Oracle):
    """Kidger et al. (2020): h moves by F(h) dX along a path of corners: first time moves, then all values."""

    def initial(self) -> State:
        return np.zeros(self.n), np.zeros(self.w["field.outer.weight"].shape[0] // self.n - 1)

    def along(self, h: Vector, moved: Vector, length: float) -> Vector:
        """From h along a straight piece of the path whose speed is `moved`."""

        def parts(y: Vector) -> tuple[Vector, Vector]:
            inner = np.tanh(self.w["field.inner.weight"] @ y + self.w["field.inner.bias"])
            outer = np.tanh(self.w["field.outer.weight"] @ inner + self.w["field.outer.bias"])
            channels = len(moved)
            speed = [
                sum(outer[unit * channels + c] * moved[c] for c in range(channels)) for unit in range(self.n)
            ]
            return np.array(speed), np.zeros(self.n)

        return self.solve(parts, h, length)

    def step(self, x: Vector, state: State, gap: float) -> tuple[Vector, State]:
        _, (h, last) = self.flow(state, gap)
        values, mask = np.split(x, 2)
        now = np.where(mask == 1, values, last)
        h = self.along(h, np.concatenate([[0.0], now - last]), 1.0)
        return h, (h, now)

    def flow(self, state: State, gap: float) -> tuple[Vector, State]:
        h, last = state
        h = self.along(h, np.concatenate([[1.0], 0 * last]), gap)
        return h, (h, last)


class LTC(Oracle):
    """Hasani et al. (2021), Algorithm 1: c dh/dt = g_l (h_l − h) + Σ w σ(γ (v − μ)) (E − h), synapse by synapse."""

    unfolds = 6

    def initial(self) -> State:
        return (np.zeros(self.n),)

    def synapses(self, name: str, v: Vector, unit: int) -> tuple[float, float]:
        pull = conductance = 0.0
        for s in range(len(v)):
            w, slope, threshold, reversal = (
                self.w[f"field.{name}.{kind}"][unit, s]
                for kind in ("weight", "slope", "threshold", "reversal")
            )
            a = float(softplus(w) * sigmoid(slope * (v[s] - threshold)))
            pull, conductance = pull + a * reversal, conductance + a
        return pull, conductance

    def step(self, x: Vector, state: State, gap: float) -> tuple[Vector, State]:
        h, span = state[0], gap / self.unfolds
        leak, c = softplus(self.w["field.leak"]), softplus(self.w["field.capacitance"])
        for _ in range(self.unfolds):
            after = np.empty(self.n)
            for j in range(self.n):
                (pull, a), (pull_x, a_x) = self.synapses("recurrent", h, j), self.synapses("sensory", x, j)
                drawn = leak[j] * self.w["field.resting"][j] + pull + pull_x
                after[j] = (c[j] * h[j] + span * drawn) / (c[j] + span * (leak[j] + a + a_x))
            h = after
        return h, (h,)

    def flow(self, state: State, gap: float) -> tuple[Vector, State]:
        return self.step(np.zeros(self.w["field.sensory.weight"].shape[1]), state, gap)


class ExponentialLTC(LTC):
    """The same equation by any solver."""

    def step(self, x: Vector, state: State, gap: float) -> tuple[Vector, State]:
        leak, c = softplus(self.w["field.leak"]), softplus(self.w["field.capacitance"])

        def parts(y: Vector) -> tuple[Vector, Vector]:
            both = [
                np.add(self.synapses("recurrent", y, j), self.synapses("sensory", x, j))
                for j in range(self.n)
            ]
            pull, conductance = np.array(both).T
            return (leak * self.w["field.resting"] + pull) / c, (leak + conductance) / c

        h = self.solve(parts, state[0], gap)
        return h, (h,)


class GRUD(Oracle):
    """Che et al.: x is a pair of values and mask; a value is not looked at where the mask is 0."""

    def initial(self) -> State:
        features = len(self.w["input_mean"])
        return np.zeros(self.n), self.w["input_mean"].copy(), np.zeros(features)

    def faded(self, h: Vector, since: Vector) -> Vector:
        rate = self.w["hidden_decay.weight"] @ since + self.w["hidden_decay.bias"]
        return h * np.exp(-np.maximum(0, rate))

    def flow(self, state: State, gap: float) -> tuple[Vector, State]:
        h, last, since = state
        return self.faded(h, since + gap), (h, last, since + gap)

    def step(self, x: Vector, state: State, gap: float) -> tuple[Vector, State]:
        values, mask = np.split(x, 2)
        h, last, since = state
        last, since = last.copy(), since + gap
        faded = self.faded(h, since)
        filled = np.empty(len(values))
        for d in range(len(values)):
            if mask[d]:
                filled[d] = values[d]
                continue
            rate = max(0.0, self.w["input_decay_weight"][d] * since[d] + self.w["input_decay_bias"][d])
            gamma = math.exp(-rate)
            filled[d] = gamma * last[d] + (1 - gamma) * self.w["input_mean"][d]
        seen = np.concatenate([filled, mask])
        z = sigmoid(self.affine("gates", 0, seen, faded))
        r = sigmoid(self.affine("gates", 1, seen, faded))
        g = np.tanh(self.affine("candidate", 0, seen, r * faded))
        h = (1 - z) * faded + z * g
        for d in range(len(values)):
            if mask[d]:
                last[d], since[d] = values[d], 0.0
        return h, (h, last, since)
