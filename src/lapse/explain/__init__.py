"""What moved an answer: integrated gradients for single sequences, permutation importance for a table."""

from lapse.explain.explanation import Explanation as Explanation
from lapse.explain.integrated import integrated_gradients as integrated_gradients
from lapse.explain.permutation import Importance as Importance
from lapse.explain.permutation import permutation_importance as permutation_importance
