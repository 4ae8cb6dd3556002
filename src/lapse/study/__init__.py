"""Studies: many runs in their folders, resumable, on this machine or on a Ray cluster."""

from lapse.study.grid import Grid as Grid
from lapse.study.local import LocalWorkers as LocalWorkers
from lapse.study.schedule import Outcome as Outcome
from lapse.study.schedule import Workers as Workers
from lapse.study.schedule import study as study
