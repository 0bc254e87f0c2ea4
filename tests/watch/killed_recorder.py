"""Records until it is killed: `killed_recorder.py PATH`. It prints how many events were written."""

import sys

from lifecycle.observe import ObservedTable
from lifecycle.recorder import Recorder


def main():
    recorder = Recorder(sys.argv[1], max_bytes=200_000, compress="gzip", flush_every=0.01)
    table = ObservedTable([recorder], keep_done=100)
    number = 0
    while True:
        number += 1
        rid = f"r{number}"
        table.submit(rid)
        table.fire(rid, "admit", pages=4)
        table.fire(rid, "prefill_finished")
        table.fire(rid, "transfer_succeeded")
        if number % 500 == 0:
            sys.stdout.write(f"{recorder.written}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
