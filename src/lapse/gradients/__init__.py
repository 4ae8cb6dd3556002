"""Gradient flow in continuous-time RNNs: the paper's theory made runnable, and a diagnostic for any model.

``error_flow(model, batch)`` and `ErrorFlowCallback` look at a model of yours; the rest shows what the theory
says about the models of the library. ``lapse gradients -o DIR`` draws all of it; docs/theory.md tells it in order.
"""

from typing import TYPE_CHECKING, Any

from lapse.gradients.flow import ErrorFlow as ErrorFlow
from lapse.gradients.flow import StateRecorder as StateRecorder
from lapse.gradients.flow import error_flow as error_flow
from lapse.gradients.jacobians import Verdict as Verdict
from lapse.gradients.jacobians import euler_jacobian as euler_jacobian
from lapse.gradients.jacobians import field_jacobian as field_jacobian
from lapse.gradients.jacobians import held_stages_jacobian as held_stages_jacobian
from lapse.gradients.jacobians import judge as judge
from lapse.gradients.jacobians import log_product_norms as log_product_norms
from lapse.gradients.jacobians import runge_kutta_jacobian as runge_kutta_jacobian
from lapse.gradients.jacobians import state_jacobian as state_jacobian
from lapse.gradients.surfaces import Surface as Surface
from lapse.gradients.surfaces import loss_surface as loss_surface
from lapse.gradients.theorems import forget_bias_for as forget_bias_for

if TYPE_CHECKING:
    from lapse.gradients.callback import ErrorFlowCallback as ErrorFlowCallback
    from lapse.gradients.callback import ErrorFlowWarning as ErrorFlowWarning


def __getattr__(name: str) -> Any:
    # Lightning takes seconds to import, and only the callback needs it.
    if name in ("ErrorFlowCallback", "ErrorFlowWarning"):
        from lapse.gradients import callback

        return getattr(callback, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
