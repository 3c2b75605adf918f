"""multi-freq-ldpy's L-SUE ("basic RAPPOR"), as `rappor audit --command` asks it.

Each line of standard input is one of eight categories; the answer is its eight noisy bits, of a new
device. Needs `pip install multi-freq-ldpy`. Run:

    rappor audit twice --registry rappor/examples/audits/metrics.toml --trials 20000 \
      --command "python rappor/examples/audits/multi_freq_ldpy_bits.py"
"""

import os
import sys

os.environ["NUMBA_DISABLE_JIT"] = "1"  # compiling takes longer than the audit
from multi_freq_ldpy.long_freq_est.L_SUE import L_SUE_Client

for line in sys.stdin:
    letter = "abcdefgh".index(line.rstrip("\n"))
    noisy = L_SUE_Client(letter, 8, 4.0, 2.0)  # domain, eps_perm, eps_1
    print("".join("1" if bit else "0" for bit in noisy))
