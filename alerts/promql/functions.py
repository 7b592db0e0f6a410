"""The table of functions: name to what it does with its unevaluated arguments."""

from __future__ import annotations

from alerts.promql.functions_labels import LABEL_FUNCTIONS
from alerts.promql.functions_math import MATH_FUNCTIONS
from alerts.promql.functions_over_time import OVER_TIME_FUNCTIONS
from alerts.promql.functions_rate import RATE_FUNCTIONS
from alerts.promql.functions_time import TIME_FUNCTIONS
from alerts.promql.histogram import HISTOGRAM_FUNCTIONS
from alerts.promql.signature import Function

FUNCTIONS: dict[str, Function] = {
    **RATE_FUNCTIONS,
    **OVER_TIME_FUNCTIONS,
    **MATH_FUNCTIONS,
    **TIME_FUNCTIONS,
    **LABEL_FUNCTIONS,
    **HISTOGRAM_FUNCTIONS,
}
