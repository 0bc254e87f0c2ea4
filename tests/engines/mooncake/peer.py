"""The receiving process: prints where to write, then answers each line with the sum of its first bytes' values."""

from __future__ import annotations

import sys

import numpy as np
from mooncake.engine import TransferEngine

SIZE = int(sys.argv[1])
engine = TransferEngine()
assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
memory = np.zeros(SIZE, dtype=np.uint8)
assert engine.register_memory(memory.ctypes.data, SIZE) == 0
sys.stdout.write(f"peer {engine.get_rpc_port()} {memory.ctypes.data}\n")
sys.stdout.flush()
for line in sys.stdin:
    sys.stdout.write(f"count {int((memory == int(line)).sum())}\n")
    sys.stdout.flush()
