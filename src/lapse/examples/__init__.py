"""Small real data that come with lapse, to try it on: see the README beside this file for where they come from."""

from __future__ import annotations

from importlib.resources import files
from io import BytesIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

LANDMARK = 2.0  # years of visits that a prediction may look at
HORIZON = 5.0  # years after the landmark for which death is asked


def pbc2_all() -> pd.DataFrame:
    """Every visit of the 312 patients, as published: one row per visit, outcome columns included."""
    import pandas as pd

    return pd.read_csv(BytesIO((files(__name__) / "pbc2.csv").read_bytes()))


def pbc2() -> pd.DataFrame:
    """Visits of the first two years, and whether the patient died within the five years after: `died`.

    One row per visit of the 205 patients for whom the answer is known: `id`, `year` since the first visit, the
    laboratory values and findings of the visit (NaN where they were not taken), `drug`, `age` and `sex` of the
    patient. Patients who died or left the study before the second year, and those whose follow-up ended without
    a death before the seventh, are left out.
    """
    visits = pbc2_all()
    died = (visits["status"] == "dead") & (visits["years"] <= LANDMARK + HORIZON)
    known = died | (visits["years"] > LANDMARK + HORIZON)
    asked = visits[known & (visits["years"] > LANDMARK) & (visits["year"] <= LANDMARK)]
    outcome = ["sno.", "years", "status", "status2"]  # columns that give the answer away, and a row number
    return asked.drop(columns=outcome).assign(died=died[asked.index]).reset_index(drop=True)
