"""ODE solvers that take one time span per row.

A solver is called as `solver(field, y0, timespans, *drive)`: every row of `y0` (B, H) lives through its own
span of `timespans` (B,) under dy/dt = field(y, *drive). `drive` are tensors with one row per row of `y0` that
stay constant during the solve (the held input of a cell).

Which one:

- `FixedStep(RK4, steps=3)`: the same number of sub-steps for every row; cheap, explicit.
- `Exponential(steps=4)`: for damped fields; the linear part is exact, so no gap is too long.
- `SemiImplicit(steps=6)`: for damped fields; no gap is too long, and no exponential is needed. The LTC's.
- `Adaptive(DOPRI5)`: its own step size for every row, to a tolerance.
- `Adjoint(solver)`: a solver with gradients by the adjoint method: constant memory, lossy.

Each can be stored as a word, `solver.word`, which `find` turns back into the solver.
"""

from lapse.solvers.adaptive import Adaptive as Adaptive
from lapse.solvers.adjoint import Adjoint as Adjoint
from lapse.solvers.base import Solver as Solver
from lapse.solvers.base import SolverError as SolverError
from lapse.solvers.base import not_finite as not_finite
from lapse.solvers.exponential import Exponential as Exponential
from lapse.solvers.fixed import FixedStep as FixedStep
from lapse.solvers.semi_implicit import SemiImplicit as SemiImplicit
from lapse.solvers.tableaux import DOPRI5 as DOPRI5
from lapse.solvers.tableaux import EULER as EULER
from lapse.solvers.tableaux import HEUN as HEUN
from lapse.solvers.tableaux import RK4 as RK4
from lapse.solvers.tableaux import Tableau as Tableau
from lapse.solvers.words import SOLVERS as SOLVERS
from lapse.solvers.words import as_solver as as_solver
from lapse.solvers.words import find as find
