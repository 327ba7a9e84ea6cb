# Sourced after common.sh by scripts/setup: the compiled hot path. It is compiled if there are a C compiler, Python's
# headers and Cython, and again when its sources or the compiler change. Without them Gantry runs the Python path.
speedups_facts() { # print everything that decides about the result of a build
    for compiler in "${CC:-cc}" gcc clang; do command -v "${compiler%% *}" || true; done
    printf '%s\n' "${GANTRY_SPEEDUPS:-auto}" "${CFLAGS-}" "${LDFLAGS-}"
    find broker/src/gantry_speedups -name '*.[ph]*' ! -name '*.py[co]' -exec cksum {} + | LC_ALL=C sort
    cksum hatch_build.py requirements/build.txt "$VENV/pyvenv.cfg"
}

build_speedups() { # build if something has changed, and print in one line which path is installed
    stamp=$VENV/gantry-speedups.stamp
    facts=$(speedups_facts | cksum)
    [ "$(cat "$stamp" 2>/dev/null)" != "$facts" ] || [ ! -f broker/src/gantry_speedups/build.txt ] || return 0
    "$VENV/bin/python" hatch_build.py
    # With `off` nothing is built, and the stamp of the module that is there stays.
    [ "${GANTRY_SPEEDUPS:-auto}" = off ] || printf '%s\n' "$facts" >"$stamp"
}
