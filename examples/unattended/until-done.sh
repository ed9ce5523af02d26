#!/usr/bin/env bash
# Runs a config, and runs it again after a passing cause, as a service manager would; for tmux and nohup:
#
#   tmux new-session -d -s articles './until-done.sh articles.yaml'
#   nohup ./until-done.sh articles.yaml > articles.log 2>&1 < /dev/null &
#
# SIGTERM and SIGINT are passed to the run, which saves or finishes the chunks in progress. docs/how-to/unattended.md says more.

set -u
config=${1:?"usage: until-done.sh CONFIG [OPTION...]"}
shift
chunkvisor=${CHUNKVISOR:-chunkvisor}       # CHUNKVISOR=/path/to/venv/bin/chunkvisor where it is not on PATH
pause_s=${PAUSE_S:-120}
most_tries=${MOST_TRIES:-20}

stop=
pause=
trap 'stop=143; kill -TERM $(jobs -p) 2>/dev/null' TERM
trap 'stop=130; kill $pause 2>/dev/null' INT   # a terminal sends it to the run as well
trap '' HUP                                # a terminal that is closed

finish() { # wait for a child, whatever signals come meanwhile; returns its exit code
  wait "$1"
  while kill -0 "$1" 2>/dev/null; do
    wait "$1"
  done
  wait "$1"
}

for ((try = 1; ; try++)); do
  "$chunkvisor" run "$config" "$@" &
  finish $!
  code=$?
  # 137: the run was killed, usually by the kernel, for lack of memory; the same command continues.
  if ((code != 75 && code != 137 || try >= most_tries)) || [[ -n $stop ]]; then
    exit "$code"
  fi
  sleep "$pause_s" &                       # in the background, so that a signal is heeded at once
  pause=$!
  [[ -z $stop ]] || kill "$pause"          # a signal that came before there was a pause to end
  echo "chunkvisor ended with $code; again in $pause_s s" >&2
  wait "$pause"
  pause=
  [[ -z $stop ]] || exit "$stop"
done
