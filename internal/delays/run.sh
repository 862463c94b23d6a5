#!/bin/sh
# Runs a command that builds and runs the copies with pauses.
# usage: build/delays/run SEED COMMAND...
# The program baton of the copies is build/delays/baton, built by make test-delays.
here=$(cd "$(dirname "$0")" && pwd)
export BATON_DELAYS="$1"
shift
export GOFLAGS="-overlay=$here/overlay.json -vet=off"
export BATON_BINARY="$here/baton"
export RUSTC_WRAPPER="$here/rustc" CARGO_TARGET_DIR="$here/target" CARGO_INCREMENTAL=0
exec "$@"
