"""`physionet2012`: does a patient die in hospital? From the first 48 hours in intensive care.

Source: PhysioNet/CinC Challenge 2012, set A: 4,000 stays, 554 deaths. 37 variables, each measured when it
was, as a long table; Age, Gender, Height, ICUType and admission Weight are static features, where −1 means
missing. Time is in hours since admission. Every stay has a first event at hour 0 with the admission weight,
or with nothing observed, so that also the few stays without a single measurement are kept. The split is 64
/ 16 / 20 by stay (a stay is a patient), with equal shares of deaths.
"""

from __future__ import annotations

import io
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lapse.heads import Classes
from lapse.sequences import Sequences
from lapse.tasks.base import Splits, Task
from lapse.tasks.files import DataFile, DataFileError, Members, read, read_archive
from lapse.tasks.prepared import prepared

RECORDS = DataFile(
    path="physionet2012/set-a.tar.gz",
    url="https://physionet.org/files/challenge-2012/1.0.0/set-a.tar.gz",
    digests=("sha256:ac8a8d13105cefc873b69a70581d156575b4c9de6d2a0c7307b14ced9954621b",),
    size=6_550_958,
)
OUTCOMES = DataFile(
    path="physionet2012/Outcomes-a.txt",
    url="https://physionet.org/files/challenge-2012/1.0.0/Outcomes-a.txt",
    digests=("sha256:2613ea60ccda29f87571a7d6b09ad130858a8ccd66325bd073365925026883c2",),
    size=79_219,
)
DESCRIPTORS = ("Age", "Gender", "Height", "ICUType", "Weight")
VARIABLES = (
    "Albumin", "ALP", "ALT", "AST", "Bilirubin", "BUN", "Cholesterol", "Creatinine", "DiasABP",
    "FiO2", "GCS", "Glucose", "HCO3", "HCT", "HR", "K", "Lactate", "MAP", "MechVent", "Mg", "Na",
    "NIDiasABP", "NIMAP", "NISysABP", "PaCO2", "PaO2", "pH", "Platelets", "RespRate", "SaO2",
    "SysABP", "Temp", "TroponinI", "TroponinT", "Urine", "WBC", "Weight",
)  # fmt: skip
DEATH = "In-hospital_death"


def load(data_dir: str | Path | None = None, *, seed: int = 0) -> Splits:
    members, records = read_archive(RECORDS, data_dir)
    outcomes, labels = read(OUTCOMES, data_dir)

    def prepare() -> Splits:
        stays = read_stays(members, outcomes)
        parts = stays.split_by_sequence((0.64, 0.16, 0.2), seed=seed, stratify=True)
        return Splits(*parts, notes=_notes(stays))

    return prepared("physionet2012", (records, labels), {"seed": seed}, prepare)


def read_stays(members: Members, outcomes: bytes) -> Sequences:
    table = _measurements(members)
    at_admission = (table["hour"] == 0) & table["name"].isin(["RecordID", *DESCRIPTORS])
    described = table[at_admission].pivot_table(index="stay", columns="name", values="value", aggfunc="first")
    described = described.reindex(columns=list(DESCRIPTORS)).where(lambda column: column != -1)
    deaths = _outcomes(outcomes)
    per_stay = described.join(deaths, how="left").reset_index()
    _check_outcomes(per_stay)
    measured = table[~at_admission | (table["name"] == "Weight")]
    stays = Sequences.from_long(
        measured.assign(value=measured["value"].where(measured["value"] != -1)),
        id="stay",
        time="hour",
        variable="name",
        value="value",
        variables=VARIABLES,
        target=DEATH,
        static=DESCRIPTORS,
        per_id=per_stay.astype({DEATH: "int64"}),
        unit="h",
    )
    return replace(stays, classes=("survived", "died"))


def _measurements(members: Members) -> Any:
    """All records as one table: stay, hour, name, value."""
    import pandas as pd

    bodies, stays, counts = [], [], []
    for name in sorted(name for name in members if name.endswith(".txt")):
        header, _, body = members[name].partition(b"\n")
        if header.strip() != b"Time,Parameter,Value":
            raise DataFileError(
                f"{name} in {RECORDS.path} begins {header[:40]!r}, expected Time,Parameter,Value"
            )
        bodies.append(body if body.endswith(b"\n") else body + b"\n")
        stays.append(int(name.removesuffix(".txt")))
        counts.append(bodies[-1].count(b"\n"))
    table = pd.read_csv(io.BytesIO(b"".join(bodies)), header=None, names=["clock", "name", "value"])
    if len(table) != sum(counts):
        raise DataFileError(
            f"{RECORDS.path} has blank or broken lines: {len(table)} rows of {sum(counts)} lines"
        )
    table["stay"] = np.repeat(stays, counts)
    table["hour"] = _hours(table["clock"])
    return table


def _hours(clock: Any) -> Any:
    """ "HH:MM" as hours; there are only 48 * 60 different ones, so each is read once."""
    import pandas as pd

    codes, words = pd.factorize(clock)
    parts = pd.Series(words).str.extract(r"^(\d+):(\d\d)$").astype(float)
    if (bad := np.flatnonzero(parts.isna().any(axis=1))).size:
        raise DataFileError(f"{RECORDS.path} has time {words[bad[0]]!r}, expected HH:MM")
    return (parts[0] + parts[1] / 60).to_numpy()[codes]


def _outcomes(content: bytes) -> Any:
    import pandas as pd

    table = pd.read_csv(io.BytesIO(content))
    if missing := {"RecordID", DEATH} - set(table.columns):
        raise DataFileError(
            f"{OUTCOMES.path} has no column {sorted(missing)[0]!r}; it has {list(table.columns)}"
        )
    return table.set_index("RecordID")[[DEATH]]


def _check_outcomes(per_stay: Any) -> None:
    unknown = per_stay.loc[per_stay[DEATH].isna(), "stay"]
    if len(unknown):
        raise DataFileError(
            f"stay {unknown.iloc[0]} has no row in {OUTCOMES.path} ({len(unknown)} such stays)"
        )


def _notes(stays: Sequences) -> tuple[str, ...]:
    assert stays.observed is not None
    empty = np.count_nonzero(np.add.reduceat(stays.observed.any(axis=1), stays.offsets[:-1]) == 0)
    same_time = np.count_nonzero(stays.gaps == 0)
    return (
        f"{empty} of {len(stays):,} stays have no measurement; each is one event with nothing observed",
        f"{same_time:,} events share the time of the one before: a variable written twice then",
    )


TASK = Task(
    name="physionet2012",
    summary="in-hospital death, from the first 48 hours in intensive care",
    loader=load,
    head=partial(Classes, ("survived", "died"), metrics=("auroc", "auprc")),
    input_size=len(VARIABLES),
    time_unit="one hour",
    source="PhysioNet/CinC Challenge 2012, set A, https://physionet.org/content/challenge-2012/1.0.0/",
    licence="ODC-By 1.0",
    differences="not in the paper: the practitioner's case",
    caveats=("missing: sets B and C of the challenge, so results are not comparable with its ranking",),
    standardize=True,
)
