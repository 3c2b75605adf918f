from rappor.decoding.decoder import decode as decode
from rappor.decoding.estimates import Estimates as Estimates
