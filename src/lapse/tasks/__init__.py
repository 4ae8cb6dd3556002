"""The tasks by name: the paper's five, a small one without download, a clinical one, biological systems."""

import dataclasses

from lapse.references import known, resolve
from lapse.tasks import digits, mnist, person, physiome, physionet, walker, xor
from lapse.tasks.base import PaperSettings as PaperSettings
from lapse.tasks.base import Score as Score
from lapse.tasks.base import Splits as Splits
from lapse.tasks.base import Task as Task
from lapse.tasks.files import DataFileError as DataFileError
from lapse.tasks.questions import Ahead as Ahead
from lapse.tasks.questions import Question as Question
from lapse.tasks.questions import Seen as Seen

TASKS: dict[str, Task] = {
    "xor-dense": xor.DENSE,
    "xor-event": xor.EVENT,
    "mnist-event": mnist.TASK,
    "person": person.TASK,
    "walker": walker.TASK,
    "mini-digits": digits.TASK,
    "physionet2012": physionet.TASK,
    **physiome.TASKS,
}


def find(name: str) -> Task:
    """A task by one of the names in `TASKS`, or as `package.module:NAME`, which is then its name.

    Args:
        name: the name or reference; ValueError if there is no such task.
    """
    own: Task | None = known(name, TASKS, "task", "package.module:NAME")
    if own is not None:
        return own
    found = resolve(name)
    if not isinstance(found, Task):
        raise ValueError(f"{name!r} is {found!r}, expected a lapse.Task")
    return dataclasses.replace(found, name=name)
