"""Let `rappor audit --command` test L-SUE ("basic RAPPOR") of the package multi-freq-ldpy.

Reads one category, a letter from a to h, from each line of standard input. Writes a line with the
eight noisy bits that a new device reports for it. Needs `pip install multi-freq-ldpy`. Run:

    rappor audit twice --registry rappor/examples/audits/metrics.toml --trials 20000 \
      --command "python rappor/examples/audits/multi_freq_ldpy_bits.py"
"""

import os
import sys

os.environ["NUMBA_DISABLE_JIT"] = "1"  # compiling takes longer than the audit
from multi_freq_ldpy.long_freq_est.L_SUE import L_SUE_Client

for line in sys.stdin:
    letter = "abcdefgh".index(line.rstrip("\n"))
    # 8 categories; epsilon of the permanent response 4; epsilon of one report 2. The metric
    # `twice` in metrics.toml promises the same two losses.
    noisy = L_SUE_Client(letter, 8, 4.0, 2.0)
    print("".join("1" if bit else "0" for bit in noisy))
