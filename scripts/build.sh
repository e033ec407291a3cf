# shellcheck shell=bash
# Sourced by ./run, ./test and .ci/run: configure and build a preset, saying how long each took.

export DEBIAN_FRONTEND=noninteractive
jobs=$(nproc)
tests_at_once=$((jobs < 8 ? jobs + 1 : 8))  # many wait: for time-outs, for processes that end

# configure <preset> <build directory> [cmake options]: quiet unless it fails or is the first time.
configure() {
  local preset=$1 directory=$2
  shift 2
  mkdir -p "$directory"
  if ! cmake --preset "$preset" -B "$directory" "$@" >"$directory/configure.log" 2>&1 </dev/null; then
    cat "$directory/configure.log" >&2
    echo "configuring $directory failed" >&2
    return 1
  fi
}

# build <build directory> [targets]: ninja's one-line progress on a terminal, a line now and then elsewhere.
build() {
  local directory=$1 start=$SECONDS
  shift
  local arguments=(--build "$directory" -j "$jobs")
  [[ $# -eq 0 ]] || arguments+=(--target "$@")
  if [[ -t 1 ]]; then
    cmake "${arguments[@]}" </dev/null || return 1
  else
    # [17/120] Building …: keep every tenth, and all that is no progress line (warnings, errors).
    cmake "${arguments[@]}" </dev/null 2>&1 | awk '!/^\[[0-9]+\/[0-9]+\] / || ++steps % 10 == 1 {print; fflush()}' || return 1
  fi
  echo "built $directory in $((SECONDS - start)) s"
}

# python_of <minor version>: prints an interpreter of Python 3.<minor> that works, of the PATH or of pyenv (whose command on the PATH works
# only for versions that are chosen); fails where there is none.
python_of() {
  local found
  for found in "$(command -v "python3.$1")" "${PYENV_ROOT:-$HOME/.pyenv}/versions/3.$1".*/bin/"python3.$1"; do
    if "$found" -c '' 2>/dev/null; then
      echo "$found"
      return
    fi
  done
  return 1
}
