"""When will the tank be empty? Levels that are read now and then, forecast with fans of quantiles, as a picture."""

import matplotlib

matplotlib.use("Agg")  # a file, no window
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from lapse.estimators import IrregularForecaster
from lapse.estimators.forecast_trial import run_forecast_trial

random = np.random.default_rng(0)


def readings(tank: int, hours: float = 24.0) -> pd.DataFrame:
    """One tank: it is drained at a rate of its own and filled up when it is low; readings come every hour or so."""
    hour = np.arange(0.0, hours, 0.05)
    level, drain, now = np.empty(len(hour)), random.uniform(0.4, 1.0), random.uniform(3.0, 9.0)
    for i in range(len(hour)):
        now = random.uniform(8.0, 9.0) if now < 1.0 else now - 0.05 * drain * random.gamma(2.0, 0.5)
        level[i] = now
    read = np.sort(random.choice(len(hour), 30, replace=False))
    return pd.DataFrame(
        {"tank": tank, "hour": hour[read], "level": level[read] + random.normal(0, 0.1, len(read))}
    )


forecaster = IrregularForecaster(
    "ct-lstm",  # its state flows through a gap without a reading
    hidden_size=32,
    horizon="8h",
    levels=(0.05, 0.25, 0.5, 0.75, 0.95),
    cuts=8,
    epochs=12,
    batch_size=32,
    learning_rate=0.01,
    id="tank",
    time="hour",
    unit="h",
)
table = pd.concat([readings(tank) for tank in range(250)])
trial = run_forecast_trial(forecaster, forecaster.sequences(table))  # a fifth of the tanks is held out
for name, figures in trial.figures.items():
    print(f"{name:12}" + "".join(f"{figure:>16} {value:.2f}" for figure, value in figures.items()))

# Four more tanks: what is known up to hour 14, and what is asked about the eight hours after the last reading.
later = pd.concat([readings(tank) for tank in range(250, 254)])
history = later[later["hour"] <= 14.0]
ahead = np.arange(0.0, 8.01, 0.25)
fans = forecaster.quantiles(history, ahead=ahead).reshape(4, len(ahead), 5)

figure, axes = plt.subplots(2, 2, figsize=(9, 5), sharex=True, sharey=True, layout="constrained")
for axis, (tank, past), fan in zip(axes.flat, history.groupby("tank"), fans, strict=True):
    truth = later[(later["tank"] == tank) & (later["hour"] > 14.0)]
    times = past["hour"].max() + ahead
    axis.fill_between(times, fan[:, 0], fan[:, 4], color="#4477AA", alpha=0.2, label="90 %", linewidth=0)
    axis.fill_between(times, fan[:, 1], fan[:, 3], color="#4477AA", alpha=0.35, label="50 %", linewidth=0)
    axis.plot(times, fan[:, 2], color="#4477AA", label="median")
    axis.plot(past["hour"], past["level"], "o", color="black", markersize=3, label="known")
    axis.plot(truth["hour"], truth["level"], "o", color="#EE6677", markersize=3, label="what came")
    axis.set_title(f"tank {tank}", loc="left", fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
figure.supxlabel("hour")
figure.supylabel("level")
figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper right", ncols=5, frameon=False)
figure.savefig("forecast.png", dpi=110)
