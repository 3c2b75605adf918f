from rappor.decoding.decoder import decode as decode
from rappor.decoding.estimates import Estimates as Estimates
from rappor.decoding.suggestions import Suggestions as Suggestions
from rappor.decoding.suggestions import suggest as suggest
