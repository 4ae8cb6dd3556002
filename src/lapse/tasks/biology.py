"""Published models of biology as ordinary differential equations, with the parameters that their sources print.

A system is its equations as a function of the states and the constants, and a literal table of both beside the source.
States start where the source starts them, or near the rest or the cycle of the system where it says nothing. How far
constants and states are moved from instance to instance, and for how long a system is watched, is ours: a few of its
periods, with `constants_spread` and `states_spread` of those that Physiome-ODE chooses from (0.05, 0.1 or 0.3; 0.1, 0.3
or 0.5), so small that the system keeps its kind of motion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Field = Callable[..., tuple[Tensor, ...]]


@dataclass(frozen=True)
class System:
    """A system of ordinary differential equations.

    Args:
        summary: what it is a model of.
        source: where equations and constants were published.
        field: the derivatives, one per state, from the states in their order and the constants by their names.
        states: the states with their values at time 0.
        constants: the constants with their published values.
        unit: the unit of time, as it is said of a number of them.
        duration: how long an instance is watched.
        constants_spread: by which share of its value a constant is moved at most.
        states_spread: by which share of its value a state is moved at most at time 0.
        period: the period that the source gives for these constants, or that follows from them; None without a cycle.
    """

    summary: str
    source: str
    field: Field
    states: Mapping[str, float]
    constants: Mapping[str, float]
    unit: str
    duration: float
    constants_spread: float = 0.05
    states_spread: float = 0.3
    period: float | None = None

    def derivative(self, states: Tensor, constants: Tensor) -> Tensor:
        """dy/dt (B, H) of states (B, H) with constants (B, C), as a solver asks for it."""
        named = dict(zip(self.constants, constants.unbind(1), strict=True))
        return torch.stack(self.field(*states.unbind(1), **named), 1)


def fitzhugh_nagumo(x: Tensor, y: Tensor, *, a: Any, b: Any, c: Any, z: Any) -> tuple[Tensor, ...]:
    return c * (y + x - x**3 / 3 + z), -(x - a + b * y) / c


def _linear_over_exponential(u: Tensor) -> Tensor:
    """u / (exp(u) − 1), which is 1 at 0."""
    near = u.abs() < 1e-6
    safe = torch.where(near, 1.0, u)
    return torch.where(near, 1 - u / 2, safe / torch.expm1(safe))


def hodgkin_huxley(
    v: Tensor, m: Tensor, h: Tensor, n: Tensor,
    *, C: Any, current: Any, g_Na: Any, g_K: Any, g_l: Any, V_Na: Any, V_K: Any, V_l: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    a_m, b_m = _linear_over_exponential((25 - v) / 10), 4 * torch.exp(-v / 18)
    a_h, b_h = 0.07 * torch.exp(-v / 20), 1 / (torch.exp((30 - v) / 10) + 1)
    a_n, b_n = 0.1 * _linear_over_exponential((10 - v) / 10), 0.125 * torch.exp(-v / 80)
    ionic = g_Na * m**3 * h * (v - V_Na) + g_K * n**4 * (v - V_K) + g_l * (v - V_l)
    return (
        (current - ionic) / C,
        a_m * (1 - m) - b_m * m,
        a_h * (1 - h) - b_h * h,
        a_n * (1 - n) - b_n * n,
    )


def morris_lecar(
    v: Tensor, w: Tensor,
    *, C: Any, current: Any, g_Ca: Any, g_K: Any, g_L: Any, V_Ca: Any, V_K: Any, V_L: Any,
    V1: Any, V2: Any, V3: Any, V4: Any, phi: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    open_calcium = 0.5 * (1 + torch.tanh((v - V1) / V2))
    open_potassium = 0.5 * (1 + torch.tanh((v - V3) / V4))
    ionic = g_Ca * open_calcium * (v - V_Ca) + g_K * w * (v - V_K) + g_L * (v - V_L)
    return (current - ionic) / C, phi * (open_potassium - w) * torch.cosh((v - V3) / (2 * V4))


def lotka_volterra(
    prey: Tensor, predators: Tensor, *, alpha: Any, beta: Any, gamma: Any, delta: Any
) -> tuple[Tensor, ...]:
    return (alpha - beta * predators) * prey, (delta * prey - gamma) * predators


def goodwin(
    x: Tensor, y: Tensor, z: Tensor,
    *, v1: Any, K1: Any, n: Any, v2: Any, K2: Any, k3: Any, v4: Any, K4: Any, k5: Any, v6: Any, K6: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    return (
        v1 * K1**n / (K1**n + z**n) - v2 * x / (K2 + x),
        k3 * x - v4 * y / (K4 + y),
        k5 * y - v6 * z / (K6 + z),
    )


def repressilator(
    m1: Tensor, m2: Tensor, m3: Tensor, p1: Tensor, p2: Tensor, p3: Tensor,
    *, alpha: Any, alpha0: Any, beta: Any, n: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    def transcript(m: Tensor, repressor: Tensor) -> Tensor:
        change: Tensor = alpha / (1 + repressor**n) + alpha0 - m
        return change

    return (
        transcript(m1, p3),
        transcript(m2, p1),
        transcript(m3, p2),
        beta * (m1 - p1),
        beta * (m2 - p2),
        beta * (m3 - p3),
    )


def circadian(
    M: Tensor, P0: Tensor, P1: Tensor, P2: Tensor, PN: Tensor,
    *, v_s: Any, v_m: Any, K_m: Any, k_s: Any, v_d: Any, k1: Any, k2: Any, K_I: Any, K_d: Any, n: Any,
    K1: Any, K2: Any, K3: Any, K4: Any, V1: Any, V2: Any, V3: Any, V4: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    once, back = V1 * P0 / (K1 + P0), V2 * P1 / (K2 + P1)
    twice, back_again = V3 * P1 / (K3 + P1), V4 * P2 / (K4 + P2)
    return (
        v_s * K_I**n / (K_I**n + PN**n) - v_m * M / (K_m + M),
        k_s * M - once + back,
        once - back - twice + back_again,
        twice - back_again - k1 * P2 + k2 * PN - v_d * P2 / (K_d + P2),
        k1 * P2 - k2 * PN,
    )


def mitosis(
    C: Tensor, M: Tensor, X: Tensor,
    *, v_i: Any, v_d: Any, K_d: Any, k_d: Any, V_M1: Any, K_c: Any, V2: Any, V_M3: Any, V4: Any,
    K1: Any, K2: Any, K3: Any, K4: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    V1, V3 = V_M1 * C / (K_c + C), V_M3 * M
    return (
        v_i - v_d * X * C / (K_d + C) - k_d * C,
        V1 * (1 - M) / (K1 + 1 - M) - V2 * M / (K2 + M),
        V3 * (1 - X) / (K3 + 1 - X) - V4 * X / (K4 + X),
    )


def cell_cycle(u: Tensor, v: Tensor, *, kappa: Any, k4: Any, k4_base: Any, k6: Any) -> tuple[Tensor, ...]:
    return (v - u) * (k4_base + k4 * u**2) - k6 * u, kappa - k6 * u


def calcium(
    Z: Tensor, Y: Tensor,
    *, v0: Any, v1: Any, beta: Any, V_M2: Any, V_M3: Any, K2: Any, K_R: Any, K_A: Any, k_f: Any, k: Any,
    n: Any, m: Any, p: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    uptake = V_M2 * Z**n / (K2**n + Z**n)
    release = V_M3 * Y**m / (K_R**m + Y**m) * Z**p / (K_A**p + Z**p) + k_f * Y
    return v0 + v1 * beta - uptake + release - k * Z, uptake - release


def glycolysis(
    S1: Tensor, S2: Tensor, S3: Tensor, S4: Tensor, N2: Tensor, A3: Tensor, S4ex: Tensor,
    *, J0: Any, k1: Any, k2: Any, k3: Any, k4: Any, k5: Any, k6: Any, k: Any, kappa: Any, q: Any, K1: Any,
    psi: Any, N: Any, A: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    v1, v2 = k1 * S1 * A3 / (1 + (A3 / K1) ** q), k2 * S2 * (N - N2)
    v3, v4, v6 = k3 * S3 * (A - A3), k4 * S4 * N2, k6 * S2 * N2
    out = kappa * (S4 - S4ex)
    return (
        J0 - v1,
        2 * v1 - v2 - v6,
        v2 - v3,
        v3 - v4 - out,
        v2 - v4 - v6,
        2 * v3 - 2 * v1 - k5 * A3,
        psi * out - k * S4ex,
    )


def hes1(
    x: Tensor, y: Tensor, z: Tensor, *, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any
) -> tuple[Tensor, ...]:
    repressed = 1 / (1 + x**2)
    return b * y - (a * z + c) * x, e * repressed - d * y, f * repressed - (a * x + g) * z


def mapk(
    KKK: Tensor, KKKp: Tensor, KK: Tensor, KKp: Tensor, KKpp: Tensor, K: Tensor, Kp: Tensor, Kpp: Tensor,
    *, V1: Any, n: Any, K_I: Any, K1: Any, V2: Any, K2: Any, k3: Any, K3: Any, k4: Any, K4: Any, V5: Any,
    K5: Any, V6: Any, K6: Any, k7: Any, K7: Any, k8: Any, K8: Any, V9: Any, K9: Any, V10: Any, K10: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    v1 = V1 * KKK / ((1 + (Kpp / K_I) ** n) * (K1 + KKK))
    v2 = V2 * KKKp / (K2 + KKKp)
    v3, v4 = k3 * KKKp * KK / (K3 + KK), k4 * KKKp * KKp / (K4 + KKp)
    v5, v6 = V5 * KKpp / (K5 + KKpp), V6 * KKp / (K6 + KKp)
    v7, v8 = k7 * KKpp * K / (K7 + K), k8 * KKpp * Kp / (K8 + Kp)
    v9, v10 = V9 * Kpp / (K9 + Kpp), V10 * Kp / (K10 + Kp)
    return (
        v2 - v1, v1 - v2,
        v6 - v3, v3 + v5 - v4 - v6, v4 - v5,
        v10 - v7, v7 + v9 - v8 - v10, v8 - v9,
    )  # fmt: skip


def epidemic(
    susceptible: Tensor, infected: Tensor, recovered: Tensor, *, r: Any, a: Any
) -> tuple[Tensor, ...]:
    infections, recoveries = r * susceptible * infected, a * infected
    return -infections, infections - recoveries, recoveries


SYSTEMS: dict[str, System] = {
    "fitzhugh-nagumo": System(
        summary="an excitable nerve membrane in two variables, firing",
        source="FitzHugh, Biophys. J. 1:445 (1961), with z = -0.4, where it fires without end",
        field=fitzhugh_nagumo,
        states={"x": 1.2, "y": -0.625},
        constants={"a": 0.7, "b": 0.8, "c": 3.0, "z": -0.4},
        unit="dimensionless units",
        duration=40.0,
    ),
    "hodgkin-huxley": System(
        summary="the membrane of the squid's giant axon under a constant current",
        source="Hodgkin and Huxley, J. Physiol. 117:500 (1952), depolarisation counted upward; the current is ours",
        field=hodgkin_huxley,
        states={"v": 10.0, "m": 0.053, "h": 0.596, "n": 0.318},
        constants={
            "C": 1.0, "current": 10.0, "g_Na": 120.0, "g_K": 36.0, "g_l": 0.3, "V_Na": 115.0, "V_K": -12.0,
            "V_l": 10.613,
        },
        unit="ms",
        duration=50.0,
    ),
    "morris-lecar": System(
        summary="voltage oscillations of the barnacle's giant muscle fibre",
        source="Morris and Lecar, Biophys. J. 35:193 (1981); constants of Rinzel and Ermentrout, in Koch and Segev, "
        "Methods in Neuronal Modeling (1998), Hopf regime; the current is ours",
        field=morris_lecar,
        states={"v": -26.0, "w": 0.11},
        constants={
            "C": 20.0, "current": 120.0, "g_Ca": 4.4, "g_K": 8.0, "g_L": 2.0, "V_Ca": 120.0, "V_K": -84.0, "V_L": -60.0,
            "V1": -1.2, "V2": 18.0, "V3": 2.0, "V4": 30.0, "phi": 0.04,
        },
        unit="ms",
        duration=300.0,
    ),
    "lotka-volterra": System(
        summary="hares and lynxes of the Hudson's Bay Company",
        source="Lotka (1925), Volterra (1926); constants and first counts (thousands of pelts) are the posterior means "
        "of Carpenter, Predator-Prey Population Dynamics, a case study for Stan (2018)",
        field=lotka_volterra,
        states={"hares": 33.96, "lynxes": 5.95},
        constants={"alpha": 0.55, "beta": 0.028, "gamma": 0.80, "delta": 0.024},
        unit="years",
        duration=20.0,
    ),
    "goodwin": System(
        summary="a gene that represses itself through two steps: a circadian clock",
        source="Goodwin, Adv. Enzyme Regul. 3:425 (1965), with the kinetics and constants of Gonze et al., Biophys. J. "
        "89:120 (2005), for a cell without neighbours",
        field=goodwin,
        states={"x": 0.1, "y": 0.25, "z": 2.5},
        constants={
            "v1": 0.7, "K1": 1.0, "n": 4.0, "v2": 0.35, "K2": 1.0, "k3": 0.7, "v4": 0.35, "K4": 1.0, "k5": 0.7,
            "v6": 0.35, "K6": 1.0,
        },
        unit="h",
        duration=96.0,
        period=23.5,
    ),
    "repressilator": System(
        summary="three genes that repress each other in a ring",
        source="Elowitz and Leibler, Nature 403:335 (2000): 0.5 and 5e-4 transcripts per second, 20 proteins per "
        "transcript, half-lives of 2 and 10 min, 40 monomers for half repression",
        field=repressilator,
        states={"m1": 5.0, "m2": 1.0, "m3": 15.0, "p1": 10.0, "p2": 5.0, "p3": 30.0},
        constants={"alpha": 216.4, "alpha0": 0.2164, "beta": 0.2, "n": 2.0},
        unit="lifetimes of a transcript (2.89 min)",
        duration=150.0,
    ),
    "circadian": System(
        summary="the PER protein of the fruit fly: a circadian clock",
        source="Goldbeter, Proc. R. Soc. Lond. B 261:319 (1995)",
        field=circadian,
        states={"M": 0.1, "P0": 0.25, "P1": 0.25, "P2": 0.25, "PN": 0.25},
        constants={
            "v_s": 0.76, "v_m": 0.65, "K_m": 0.5, "k_s": 0.38, "v_d": 0.95, "k1": 1.9, "k2": 1.3, "K_I": 1.0,
            "K_d": 0.2, "n": 4.0, "K1": 2.0, "K2": 2.0, "K3": 2.0, "K4": 2.0, "V1": 3.2, "V2": 1.58, "V3": 5.0,
            "V4": 2.5,
        },
        unit="h",
        duration=96.0,
        period=23.6,
    ),
    "mitosis": System(
        summary="cyclin, cdc2 kinase and cyclin protease: a mitotic oscillator",
        source="Goldbeter, Proc. Natl. Acad. Sci. USA 88:9107 (1991)",
        field=mitosis,
        states={"C": 0.01, "M": 0.01, "X": 0.01},
        constants={
            "v_i": 0.025, "v_d": 0.25, "K_d": 0.02, "k_d": 0.01, "V_M1": 3.0, "K_c": 0.5, "V2": 1.5, "V_M3": 1.0,
            "V4": 0.5, "K1": 0.005, "K2": 0.005, "K3": 0.005, "K4": 0.005,
        },
        unit="min",
        duration=75.0,
    ),
    "cell-cycle": System(
        summary="cyclin and the maturation-promoting factor in two variables",
        source="Tyson, Proc. Natl. Acad. Sci. USA 88:7328 (1991), the system in two variables",
        field=cell_cycle,
        states={"u": 0.02, "v": 0.3},
        constants={"kappa": 0.015, "k4": 180.0, "k4_base": 0.018, "k6": 1.0},
        unit="min",
        duration=120.0,
        period=35.0,
    ),
    "calcium": System(
        summary="calcium of the cytosol and of its store: oscillations after a signal",
        source="Goldbeter, Dupont and Berridge, Proc. Natl. Acad. Sci. USA 87:1461 (1990); beta, the strength of the "
        "signal, is ours",
        field=calcium,
        states={"Z": 0.3, "Y": 1.6},
        constants={
            "v0": 1.0, "v1": 7.3, "beta": 0.4, "V_M2": 65.0, "V_M3": 500.0, "K2": 1.0, "K_R": 2.0, "K_A": 0.9,
            "k_f": 1.0, "k": 10.0, "n": 2.0, "m": 2.0, "p": 4.0,
        },
        unit="s",
        duration=3.0,
    ),
    "glycolysis": System(
        summary="glycolytic oscillations in yeast",
        source="Wolf and Heinrich, Biochem. J. 345:321 (2000), with the constants of Ruoff et al., Biophys. Chem. "
        "106:179 (2003)",
        field=glycolysis,
        states={"S1": 1.19, "S2": 1.16, "S3": 0.12, "S4": 0.2, "N2": 0.19, "A3": 2.4, "S4ex": 0.09},
        constants={
            "J0": 2.5, "k1": 100.0, "k2": 6.0, "k3": 16.0, "k4": 100.0, "k5": 1.28, "k6": 12.0, "k": 1.8, "kappa": 13.0,
            "q": 4.0, "K1": 0.52, "psi": 0.1, "N": 1.0, "A": 4.0,
        },
        unit="min",
        duration=5.0,
    ),
    "hes1": System(
        summary="the Hes1 protein, its messenger and a factor that removes it",
        source="Hirata et al., Science 298:840 (2002), supporting text",
        field=hes1,
        states={"x": 1.0, "y": 1.0, "z": 10.0},
        constants={"a": 0.022, "b": 0.3, "c": 0.031, "d": 0.028, "e": 0.5, "f": 20.0, "g": 0.3},
        unit="min",
        duration=480.0,
        period=120.0,
    ),
    "mapk": System(
        summary="a cascade of kinases with negative feedback",
        source="Kholodenko, Eur. J. Biochem. 267:1583 (2000)",
        field=mapk,
        states={
            "KKK": 90.0, "KKKp": 10.0, "KK": 280.0, "KKp": 10.0, "KKpp": 10.0, "K": 280.0, "Kp": 10.0, "Kpp": 10.0,
        },
        constants={
            "V1": 2.5, "n": 1.0, "K_I": 9.0, "K1": 10.0, "V2": 0.25, "K2": 8.0, "k3": 0.025, "K3": 15.0, "k4": 0.025,
            "K4": 15.0, "V5": 0.75, "K5": 15.0, "V6": 0.75, "K6": 15.0, "k7": 0.025, "K7": 15.0, "k8": 0.025,
            "K8": 15.0, "V9": 0.5, "K9": 15.0, "V10": 0.5, "K10": 15.0,
        },
        unit="s",
        duration=5000.0,
        states_spread=0.1,
    ),
    "epidemic": System(
        summary="influenza in an English boarding school, 1978: susceptible, infected, recovered",
        source="Kermack and McKendrick, Proc. R. Soc. Lond. A 115:700 (1927); constants of Murray, Mathematical "
        "Biology (1989), chapter 19",
        field=epidemic,
        states={"susceptible": 762.0, "infected": 1.0, "recovered": 0.0},
        constants={"r": 2.18e-3, "a": 0.4404},
        unit="days",
        duration=14.0,
        constants_spread=0.1,
        states_spread=0.1,
    ),
}  # fmt: skip
