"""scikit-learn's face: classifiers, a labeller, a regressor and a forecaster for irregularly-sampled sequences.

Needs the extra `lapse[estimators]`.
"""

from lapse.estimators.base import IrregularEstimator as IrregularEstimator
from lapse.estimators.classifiers import IrregularClassifier as IrregularClassifier
from lapse.estimators.classifiers import IrregularLabeller as IrregularLabeller
from lapse.estimators.classifiers import IrregularMultiLabelClassifier as IrregularMultiLabelClassifier
from lapse.estimators.ensemble import Ensemble as Ensemble
from lapse.estimators.forecasters import IrregularForecaster as IrregularForecaster
from lapse.estimators.regressors import IrregularRegressor as IrregularRegressor
