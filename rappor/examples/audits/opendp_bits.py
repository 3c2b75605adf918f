"""OpenDP's randomized response of bit vectors, as `rappor audit --command` asks it.

Each line of standard input is one of eight categories; the answer is its eight noisy bits.
Needs `pip install opendp`. Run:

    rappor audit letter --registry rappor/examples/audits/metrics.toml --trials 4000 \
      --command "python rappor/examples/audits/opendp_bits.py"
"""

import sys

import opendp.prelude as dp

dp.enable_features("contrib")
randomize = dp.m.make_randomized_response_bitvec(
    dp.bitvector_domain(max_weight=1), dp.discrete_distance(), f=0.5
)
for line in sys.stdin:
    truth = 1 << "abcdefgh".index(line.rstrip("\n"))
    noisy = int.from_bytes(randomize(truth.to_bytes(1, "little")), "little")
    print(f"{noisy:08b}"[::-1])
