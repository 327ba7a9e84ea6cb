# Sourced by the other scripts: paths, checks of requirements, and one-line errors with a remedy.
# The scripts write only inside of the clone, except temporary files if its path is long, caches of package managers,
# what build_go_program, scripts/kubernetes, scripts/kind-node and the e2e scripts build, in ~/.cache/gantry (or
# XDG_CACHE_HOME), and /run/gantry-cluster, in which a cluster of the e2e scripts claims the machine.
set -eu
ROOT=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cd "$ROOT"
VENV=$ROOT/.venv
export PYTHONNOUSERSITE=1
# Compiled modules are kept: the tests start hundreds of programs, and each would compile all modules again.
unset PYTHONDONTWRITEBYTECODE
# Temporary files are in the clone. If its path is long they are in /tmp, since the path of a socket is limited to 107
# bytes.
TMPDIR=$ROOT/.gantry/tmp
if [ ${#ROOT} -gt 14 ]; then
    TMPDIR=/tmp/gantry-$(id -u)-$(printf %s "$ROOT" | cksum | cut -d' ' -f1)
fi
export TMPDIR
mkdir -p "$ROOT/.gantry" "$TMPDIR"
[ -O "$TMPDIR" ] && [ ! -L "$TMPDIR" ] || {
    printf '%s is not a directory that you own; remove it, or move the clone to a path of at most 14 characters\n' "$TMPDIR" >&2
    exit 2
}
chmod 700 "$TMPDIR"
# Java encodes file names by the locale, and cannot open names with accents in the locale C.
case ${LC_ALL:-${LC_CTYPE:-${LANG:-}}} in *[Uu][Tt][Ff]*) ;; *) export LC_ALL=C.UTF-8 ;; esac

refuse() { # refuse WHAT REMEDY
    printf '%s: %s -- %s\n' "$(basename "$0")" "$1" "$2" >&2
    exit 2
}

need_command() { # need_command NAME REMEDY
    command -v "$1" >/dev/null 2>&1 || refuse "$1 is missing" "$2"
}

need_root() {
    [ "$(id -u)" = 0 ] || refuse "this needs root" "run it again with: sudo"
}

need_java() {
    for tool in java javac mvn; do
        need_command "$tool" "on Debian: apt-get install openjdk-17-jdk-headless maven"
    done
}

need_go() {
    remedy="on Debian 12: apt-get install -t bookworm-backports golang-go"
    need_command go "$remedy"
    # GOTOOLCHAIN=local prevents an old Go from downloading a newer toolchain.
    case $(GOTOOLCHAIN=local go env GOVERSION) in
        go1.2[2-9]* | go1.[3-9][0-9]* | go[2-9]*) ;;
        *) refuse "Go 1.22 or newer is missing" "$remedy" ;;
    esac
}

build_go_program() { # build_go_program NAME MODULE PACKAGE [BUILD OPTION...]: builds it once, and prints its path
    name=$1 module=$2 package=$3
    shift 3
    sources=$(cd "$module" && cat go.mod go.sum $(ls *.go 2>/dev/null | grep -v _test) | sha256sum | cut -c1-16)
    folder=${XDG_CACHE_HOME:-$HOME/.cache}/gantry/$name/$sources
    case $package in .) program=$folder/$name ;; *) program=$folder/${package##*/} ;; esac
    if [ ! -x "$program" ]; then
        need_go
        mkdir -p "$folder"
        draft=$(mktemp "$folder/building.XXXXXX")
        trap 'rm -f "$draft"' EXIT
        for attempt in 1 2 3; do # a download may fail temporarily
            CGO_ENABLED=0 GOFLAGS="${GOFLAGS:-} -mod=readonly -trimpath" nice -n 19 \
                go -C "$module" build "$@" -o "$draft" "$package" >&2 && break
            [ "$attempt" != 3 ] || refuse "the program $name could not be built" "see the error above"
        done
        chmod 755 "$draft"
        mv "$draft" "$program"
    fi
    printf '%s\n' "$program"
}

find_python() { # prints the path of a Python 3.11 or newer; PYTHON replaces the list of candidates
    for candidate in ${PYTHON:-python3.11 python3 python3.12 python3.13 python3.14}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    refuse "Python 3.11 or newer is missing" "on Debian 12: apt-get install python3.11 python3.11-venv"
}
