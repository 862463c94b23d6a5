"""The C++ part of train.py, which starts it: serves the kernel in kernel.cc by the name that it has in tvm-ffi."""

import sys
from pathlib import Path

import baton.tvm_ffi
import tvm_ffi.cpp


def main():
    (name,) = sys.argv[1:]
    source = Path(__file__).with_name("kernel.cc").read_text()
    tvm_ffi.cpp.load_inline("baton_example", cpp_sources=source)  # compiled once, and kept by tvm-ffi
    # Idempotent: of a kernel that has ended another begins its call again.
    with baton.tvm_ffi.serve("kernel.*", prefix=name, idempotent=True) as served:
        print("serves", *served.names, flush=True)
        sys.stdin.read()  # until the trainer has ended, in whichever way


if __name__ == "__main__":
    main()
