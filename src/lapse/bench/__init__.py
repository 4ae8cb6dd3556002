"""Speed against peers: every line a ratio of two sides timed in turn in one run, after checking that they agree.

A machine's clock, its neighbours and its caches change from minute to minute, so a time means little beside a time of
another day; the ratio of two times taken turn by turn does. `ratio` is the median of the turns' ratios and
`spread` their quartiles; `cpu` is the same ratio of processor time over all threads, which a busy machine bends
less. Where the rival computes another function (`nn.LSTM`, CfC) there is nothing to agree on, and the line says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from lapse.bench.authors import against_authors
from lapse.bench.compiled import compiled, exported
from lapse.bench.layers import against_lstm, against_reference
from lapse.bench.peers import against_cfc, against_torchdiffeq
from lapse.bench.race import Line as Line
from lapse.bench.race import Settings as Settings
from lapse.bench.small import small
from lapse.bench.streams import against_stepping
from lapse.bench.tables import markdown as markdown
from lapse.bench.tables import record as record
from lapse.bench.workloads import against_loop, growth, latency, memory, ragged, roofline
from lapse.kernels import native
from lapse.threads import threads

SECTIONS: dict[str, Callable[[Settings], Iterator[Line]]] = {
    "lstm": against_lstm,
    "reference": against_reference,
    "authors": against_authors,
    "cfc": against_cfc,
    "torchdiffeq": against_torchdiffeq,
    "ragged": ragged,
    "roofline": roofline,
    "latency": latency,
    "small": small,
    "growth": growth,
    "scan": against_loop,
    "memory": memory,
    "compile": compiled,
    "export": exported,
    "stream": against_stepping,
}


def bench(sections: list[str], settings: Settings) -> Iterator[Line]:
    """Run the named sections, a line at a time."""
    if native.library() is None:
        raise RuntimeError("the fused kernels are not available here, so there is nothing to compare")
    torch.manual_seed(0)
    with threads(settings.threads):
        for name in sections:
            yield from SECTIONS[name](settings)
