"""Which pump is about to fail? Readings arrive one by one, and alarms are shown live in the terminal."""

import sys
import time

import numpy as np
import pandas as pd
import torch
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

import lapse
from lapse.training import TrainConfig, fit

PUMPS, MINUTES, WARNING = 8, 90, 15.0  # a pump is failing in the last 15 minutes before it stops
torch.manual_seed(0)  # decides the first weights
random = np.random.default_rng(0)


def readings(pump: str) -> pd.DataFrame:
    """One pump until it stops, or for 90 minutes: each reading is of one of two sensors."""
    minute = np.cumsum(random.exponential(1.5, 200))
    stops = random.uniform(30, 150)
    minute = minute[minute < min(stops, MINUTES)]
    wear = np.clip(1 - (stops - minute) / WARNING, 0, 1)  # 0 while all is well, 1 when it stops
    of_vibration = random.random(len(minute)) < 0.5
    return pd.DataFrame(
        {
            "pump": pump,
            "minute": minute,
            "vibration": np.where(of_vibration, random.normal(1 + 2 * wear, 0.4), np.nan),
            "heat": np.where(of_vibration, np.nan, random.normal(40 + 15 * wear, 4.0)),
            "state": np.where(wear > 0, "failing", "fine"),
        }
    )


def trained() -> lapse.SequenceModel:
    """A model of the state at every reading. A gru-d can be asked between readings, too."""
    table = pd.concat([readings(f"old {k}") for k in range(200)])
    data = lapse.Sequences.from_frame(
        table,
        id="pump",
        time="minute",
        values=["vibration", "heat"],
        target="state",
        per_step=True,
        unit="min",
    )
    train, validation = data.split_by_sequence((0.8, 0.2), seed=0)
    model = lapse.SequenceModel.for_data(train, model="gru-d", hidden_size=16)
    fit(model, train, validation, TrainConfig(epochs=8, batch_size=16), progress=False)
    return model


def shown(minute: int, beliefs: dict[str, float], heard: dict[str, float], alarms: list[str]) -> Group:
    table = Table(title=f"minute {minute}", width=60)
    for column in ("pump", "silent for", "failing?", ""):
        table.add_column(column)
    for pump, p in beliefs.items():
        silent = f"{minute - heard[pump]:.0f} min"
        colour = "red" if p > 0.9 else "yellow" if p > 0.5 else "green"
        table.add_row(pump, silent, f"{p:.0%}", f"[{colour}]{'█' * round(20 * p)}[/]")
    return Group(table, *alarms[-5:])


model = trained()
stream = lapse.Stream(model, late="drop")
events = pd.concat([readings(f"pump {k}") for k in range(PUMPS)]).sort_values("minute")
alarms: dict[str, str] = {}
heard: dict[str, float] = {}
live = sys.stdout.isatty() and "--fast" not in sys.argv
with Live(console=Console(), auto_refresh=False) if live else Live(console=Console(quiet=True)) as screen:
    for now in range(1, MINUTES + 1):
        for event in events[(events.minute > now - 1) & (events.minute <= now)].itertuples():
            answer = stream.push(event.pump, event.minute, {"vibration": event.vibration, "heat": event.heat})
            heard[event.pump] = event.minute
            if answer is not None and answer["p_failing"] > 0.9 and event.pump not in alarms:
                alarms[event.pump] = (
                    f"{event.minute:5.1f} min: {event.pump} is failing ({answer['p_failing']:.0%})"
                )
        asked = sorted(heard)  # what is believed of each now, without another reading
        beliefs = dict(zip(asked, stream.ask_many(asked, now).columns()["p_failing"], strict=True))
        screen.update(shown(now, beliefs, heard, list(alarms.values())), refresh=live)
        time.sleep(0.2 if live else 0)

failing = events[events.state == "failing"].groupby("pump").minute.agg(["first", "last"])
print(*alarms.values(), sep="\n")
right = [pump for pump in alarms if pump in failing.index]
print(f"{len(right)} of {len(failing)} failing pumps found, {len(alarms) - len(right)} false alarms")
