"""Who dies within five years? From the irregular visits of 205 patients to a model and its answers."""

import torch

import lapse
from lapse import heads
from lapse.examples import pbc2
from lapse.training import TrainConfig, evaluate, fit

torch.manual_seed(0)  # decides the first weights
visits = pbc2()  # one row per visit of the first two years; NaN where a value was not taken
blood = ["serBilir", "albumin", "alkaline", "SGOT", "platelets", "prothrombin", "serChol"]
data = lapse.Sequences.from_frame(
    visits,
    id="id",
    time="year",
    values=[*blood, "ascites", "edema"],  # words such as "Yes" become categories
    static=["drug", "age", "sex"],  # one value per patient
    target="died",
)
print(data)

# Whole patients go to one part. With few of them, the parts should have the same share of deaths.
train, validation, test = data.split_by_sequence((0.6, 0.2, 0.2), seed=0, stratify=True)

head = heads.for_data(train, metrics=("auroc", "accuracy"))  # the first metric chooses the best epoch
model = lapse.SequenceModel.for_data(
    train,
    head,
    model="gru-d",  # it has a rule of its own for missing values
    hidden_size=16,
    scaling="robust",  # medians and quartiles: a wild value has no effect on the scale
    clip=5.0,
    summaries=True,  # last, mean, least, largest and number of each value, beside the network's state
    state_dropout=0.3,
)
fit(model, train, validation, TrainConfig(epochs=40, batch_size=16, weight_decay=0.1), progress=False)

print("model      ", {name: round(value, 3) for name, value in evaluate(model, test).items()})
print("no features", {name: round(value, 3) for name, value in head.baseline(train, test).items()})

model.save("pbc2-model")  # a folder: weights, config with the schema of the table, model card
again = lapse.SequenceModel.load("pbc2-model")
print(again.predict(test).frame(id="patient").head(3).to_string(index=False))
