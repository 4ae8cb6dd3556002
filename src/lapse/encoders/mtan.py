"""Multi-time attention: what was observed around a time, weighted by how alike learned embeddings of the times are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from lapse.encoders.encoder import Encoder, Features, Observations
from lapse.palette import DOTTED, Look


class TimeEmbedding(nn.Module):
    """φ(t) = (w₀ t + a₀, sin(w₁ t + a₁), …, sin(w_E t + a_E)): one part that grows with time and many that return.

    Args:
        size: The number of parts, E + 1.
    """

    # Of the slowest and the fastest part at the start, per unit of time; a unit is a median gap by default.
    RATES: ClassVar[tuple[float, float]] = (1e-3, 1.0)

    def __init__(self, size: int) -> None:
        super().__init__()
        slow, fast = map(math.log, self.RATES)
        self.rate = nn.Parameter(torch.empty(size).uniform_(slow, fast).exp())
        self.phase = nn.Parameter(torch.empty(size).uniform_(0, 2 * math.pi))

    def forward(self, times: Tensor) -> Tensor:
        """(..., size) from times (...)."""
        angle = times.unsqueeze(-1) * self.rate + self.phase
        return torch.cat([angle[..., :1], torch.sin(angle[..., 1:])], -1)


class TimeAttention(nn.Module):
    """Each feature at the times that are asked, as a mean of its observations, weighted by the likeness of the times.

    A feature that is missing at an event takes no part there, so each feature has weights of its own. All weights
    depend on times alone.

    Args:
        embedding_size: The width of the embeddings of times.
        heads: How many ways of weighting there are.
    """

    def __init__(self, embedding_size: int, heads: int) -> None:
        super().__init__()
        if embedding_size % heads:
            raise ValueError(f"embedding_size must be a multiple of heads = {heads}, got {embedding_size}")
        self.heads = heads
        self.query = nn.Linear(embedding_size, embedding_size)
        self.key = nn.Linear(embedding_size, embedding_size)

    def forward(self, asked: Tensor, known: Tensor, values: Tensor, observed: Tensor, sees: Tensor) -> Tensor:
        """(B, Q, heads · F): 0 for a feature of which nothing is seen.

        Args:
            asked: (B, Q, E), embeddings of the times that are asked.
            known: (B, T, E), embeddings of the times of the events.
            values: (B, T, F).
            observed: (B, T, F) of 0 and 1; 0 beyond the end of a sequence.
            sees: (B, Q, T) bool, which events each question may use.
        """
        q, k = (part.unflatten(-1, (self.heads, -1)) for part in (self.query(asked), self.key(known)))
        likeness = torch.einsum("bqhe,bkhe->bhqk", q, k) / math.sqrt(q.shape[-1])
        likeness = likeness.masked_fill(~sees.unsqueeze(1), -torch.inf)
        highest = likeness.amax(-1, keepdim=True).clamp(
            min=torch.finfo(likeness.dtype).min
        )  # a row may see nothing
        weight = torch.exp(likeness - highest)
        total = torch.einsum("bhqk,bkf->bqhf", weight, observed)
        mean = torch.einsum("bhqk,bkf->bqhf", weight, observed * values) / total.clamp(min=1e-12)
        return mean.flatten(-2)


class MTAN(Encoder):
    """Multi-time attention followed by a GRU: no ODE, no decay; time acts through attention.

        φ(t) = (w₀ t + a₀, sin(w₁ t + a₁), …, sin(w_E t + a_E))
        α_j(t) ∝ exp((Q φ(t)) · (K φ(t_j)) / √d),            over the events j at which the feature f was observed
        x̂_f(t) = Σ_j α_j(t) x_{jf},    (h_i) = GRU(W x̂(t_i));                                         y_i = h_i

    In the form "causal" every event asks for its own time, and sees the events up to it; there are features after each
    event. In the form "reference", which is the authors', a fixed number of times is asked, evenly spread from the
    start of a sequence to its last event, and all events are seen; there are features of whole sequences only.

    Source: Shukla & Marlin (2021), Eqs. 2–5, mTAND-Enc.

    Args:
        input_size: The number of features of an event.
        hidden_size: The width of the GRU.
        num_layers: How many layers the GRU has.
        missing: Whether features may be missing.
        static_size: The width of the static features, which are added to what the GRU is given; 0 for none.
        form: "causal" or "reference".
        embedding_size: The width of the embeddings of times.
        heads: How many ways of weighting there are.
        references: How many times are asked in the form "reference".
    """

    takes_missing: ClassVar[bool] = True
    label: ClassVar[str] = "mTAN"
    look: ClassVar[Look] = Look("#2f6f9f", "#7fb7e0", DOTTED)
    forms: ClassVar[Mapping[str, Any]] = {"causal": "events ask", "reference": "evenly spread times ask"}

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        missing: bool = False,
        static_size: int = 0,
        form: Literal["causal", "reference"] = "causal",
        embedding_size: int = 32,
        heads: int = 1,
        references: int = 32,
    ) -> None:
        super().__init__()
        if form not in self.forms:
            raise ValueError(f"form must be one of {', '.join(self.forms)}, got {form!r}")
        self.causal, self.references = form == "causal", references
        self.embedding = TimeEmbedding(embedding_size)
        self.attention = TimeAttention(embedding_size, heads)
        self.enter = nn.Linear(heads * input_size, hidden_size)
        self.static = nn.Linear(static_size, hidden_size) if static_size else None
        self.gru = nn.GRU(hidden_size, hidden_size, num_layers, batch_first=True)
        self.output_size = hidden_size

    def forward(self, observations: Observations) -> Features:
        rows = observations.rows
        times, mask = rows.pad(observations.times), rows.mask.to(observations.values.device)
        asked, sees = self._asked(times, mask)
        output: Tensor = self.gru(self._attend(observations, times, asked, sees))[0]
        if not self.causal:
            return Features(None, output[:, -1])
        steps = rows.unpad(output)
        return Features(steps, steps.index_select(0, rows.last.to(steps.device)))

    def _asked(self, times: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The times that are asked, (B, Q), and which events each of them may use, (B, Q, T)."""
        count, steps = times.shape
        if self.causal:
            earlier = torch.ones(steps, steps, dtype=torch.bool, device=times.device).tril()
            return times, earlier & mask.unsqueeze(1)
        ends = times.masked_fill(~mask, 0.0).amax(1, keepdim=True)
        share = torch.linspace(0, 1, self.references, dtype=times.dtype, device=times.device)
        return ends * share, mask.unsqueeze(1).expand(count, self.references, steps)

    def _attend(self, observations: Observations, times: Tensor, asked: Tensor, sees: Tensor) -> Tensor:
        """What the GRU is given, (B, Q, hidden_size)."""
        values, observed = observations.values, observations.observed
        observed = torch.ones_like(values) if observed is None else observed
        parts = (observations.rows.pad(part) for part in (values, observed))
        found = self.enter(self.attention(self.embedding(asked), self.embedding(times), *parts, sees))
        if self.static is not None:
            found = found + self.static(observations.static).unsqueeze(1)
        given: Tensor = found
        return given
