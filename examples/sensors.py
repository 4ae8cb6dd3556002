"""What is the machine doing? One answer per reading, from sensors that report now and then."""

import numpy as np
import pandas as pd
import torch

import lapse
from lapse.training import SeesTheFuture, TrainConfig, evaluate, fit

STATES = np.array(["idle", "running", "worn"])
torch.manual_seed(0)  # decides the first weights
random = np.random.default_rng(0)


def readings(machine: int, count: int = 60) -> pd.DataFrame:
    """One machine's readings, each from one of two sensors; the machine changes its state now and then."""
    minute = np.cumsum(random.exponential(2.0, count))
    state = np.repeat(random.integers(0, 3, count), random.integers(5, 20, count))[:count]
    vibration = random.normal(np.array([0.0, 1.0, 1.6])[state], 0.5)
    heat = random.normal(np.array([20.0, 40.0, 45.0])[state], 5.0)
    of_vibration = random.random(count) < 0.5
    return pd.DataFrame(
        {
            "machine": machine,
            "minute": minute,
            "vibration": np.where(of_vibration, vibration, np.nan),  # NaN: this sensor did not report
            "heat": np.where(of_vibration, np.nan, heat),
            "state": STATES[state],
        }
    )


table = pd.concat([readings(machine) for machine in range(120)])
data = lapse.Sequences.from_frame(
    table,
    id="machine",
    time="minute",
    values=["vibration", "heat"],
    target="state",
    per_step=True,  # one target per reading
    unit="min",
)
train, validation, test = data.split_by_sequence((0.7, 0.15, 0.15), seed=0)

model = lapse.SequenceModel.for_data(train, model="gru-d", hidden_size=16)
fit(model, train, validation, TrainConfig(epochs=15, batch_size=16), progress=False)
print(f"accuracy {evaluate(model, test)['accuracy']:.3f}")
print(f"always the commonest state {model.head.baseline(train, test)['accuracy']:.3f}")
print(model.predict(test).frame(id="machine", time="minute").head(3).round(2).to_string(index=False))

# A model that also reads backward answers each reading with the help of later ones. In use there are none.
both_ways = lapse.SequenceModel.for_data(train, model="gru-d", options={"bidirectional": True})
try:
    fit(both_ways, train, validation, TrainConfig(epochs=1), progress=False)
except SeesTheFuture as error:
    print("refused:", str(error).split(",")[0])
