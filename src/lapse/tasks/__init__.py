"""The tasks by name: the paper's five, a small one without download, and a clinical one."""

from lapse.tasks import digits, mnist, person, physionet, walker, xor
from lapse.tasks.base import Metric as Metric
from lapse.tasks.base import PaperSettings as PaperSettings
from lapse.tasks.base import Score as Score
from lapse.tasks.base import Splits as Splits
from lapse.tasks.base import Task as Task
from lapse.tasks.files import DataFileError as DataFileError

TASKS: dict[str, Task] = {
    "xor-dense": xor.DENSE,
    "xor-event": xor.EVENT,
    "mnist-event": mnist.TASK,
    "person": person.TASK,
    "walker": walker.TASK,
    "mini-digits": digits.TASK,
    "physionet2012": physionet.TASK,
}
