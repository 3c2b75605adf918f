"""Let `rappor audit --command` test the randomized response of bit vectors of the package OpenDP.

Reads one category, a letter from a to h, from each line of standard input. Writes a line with its
eight noisy bits. Needs `pip install opendp`. Run:

    rappor audit letter --registry rappor/examples/audits/metrics.toml --trials 4000 \
      --command "python rappor/examples/audits/opendp_bits.py"
"""

import sys

import opendp.prelude as dp

dp.enable_features("contrib")  # OpenDP refuses contributed mechanisms without it
# A vector has at most one bit that is 1 (max_weight). A bit is replaced by a fair coin with
# probability f, as in the metric `letter` in metrics.toml.
randomize = dp.m.make_randomized_response_bitvec(
    dp.bitvector_domain(max_weight=1), dp.discrete_distance(), f=0.5
)
for line in sys.stdin:
    truth = 1 << "abcdefgh".index(line.rstrip("\n"))
    noisy = int.from_bytes(randomize(truth.to_bytes(1, "little")), "little")
    # Bit 0, the lowest of the number, is the first of the line.
    print(f"{noisy:08b}"[::-1])
