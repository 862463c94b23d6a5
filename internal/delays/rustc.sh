#!/bin/sh
# As RUSTC_WRAPPER: has rustc build the copies beside this file for the sources of the crate baton.
here=$(dirname "$0")
for a; do
  shift
  case ${CARGO_PKG_NAME-}:$a in
  baton:src/lib.rs | baton:*/rust/src/lib.rs) a=$here/rust/src/lib.rs ;;
  esac
  set -- "$@" "$a"
done
exec "$@"
