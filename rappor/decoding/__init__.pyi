from rappor.decoding.comparison.compare import compare as compare
from rappor.decoding.comparison.comparison import Comparison as Comparison
from rappor.decoding.decoder import decode as decode
from rappor.decoding.estimates import Estimates as Estimates
from rappor.decoding.suggestions import Suggestions as Suggestions
from rappor.decoding.suggestions import suggest as suggest
from rappor.decoding.trends.over_time import trend as trend
from rappor.decoding.trends.trend import Trend as Trend
