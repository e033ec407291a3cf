"""`gpu-check --python`: the Python package with tensors on GPUs, beside nccl4py on this library and on NVIDIA's."""

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import time

PROGRAMS = pathlib.Path(__file__).resolve().parent / "programs"
FRAMEWORKS = {"PyTorch": "torch", "CuPy": "cupy"}


def configurations(site, nccl4py, other):
    """(name, what PYTHONPATH begins with, what is preloaded): ours; NVIDIA's package on our library, and on NVIDIA's."""
    found = [("niccolite", [site, site / "niccolite" / "site"], None)]
    if nccl4py:
        found.append(("nccl4py on niccolite", [nccl4py], site / "niccolite" / "lib" / "libnccl.so.2"))
        if other:
            found.append(("nccl4py on NVIDIA's", [nccl4py], other))
    return found


def run(framework, ranks, paths, preload, limit):
    environment = {**os.environ, "NCCL_NVLS_ENABLE": "0", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1",
                   "PYTHONPATH": os.pathsep.join(map(str, [*paths, PROGRAMS]))}
    if ranks > 1:
        environment["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    if preload:
        environment["LD_PRELOAD"] = str(preload)
    command = [sys.executable, str(PROGRAMS / "python_program.py"), framework, str(ranks)]
    try:
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=limit, check=False)
        return done.returncode, done.stdout
    except subprocess.TimeoutExpired as ended:
        return None, (ended.stdout or b"").decode(errors="replace")


def check(site, ranks, output, seconds, nccl4py, other):
    """Runs the program with every framework and every configuration. `site`: the folder that the package lies in."""
    deadline, results = time.monotonic() + seconds, []
    frameworks = [name for name, module in FRAMEWORKS.items() if importlib.util.find_spec(module)] or ["NumPy"]
    for framework in frameworks:
        for name, paths, preload in configurations(site, nccl4py, other):
            begin = time.monotonic()
            if deadline - begin < 10:
                print(f"no time left for {framework} with {name}", flush=True)
                continue
            status, text = run(framework, ranks, paths, preload, min(120, deadline - begin))
            cases = [json.loads(line[5:]) for line in text.splitlines() if line.startswith("CASE ")]
            library = re.search(r"^LIBRARY (\S+) (\S+)", text, re.MULTILINE)
            result = {"framework": framework, "with": name, "ranks": ranks, "library": library and library[1],
                      "right": status == 0 and bool(cases), "seconds": round(time.monotonic() - begin, 1), "cases": cases}
            results.append(result)
            print(f"{'ok    ' if result['right'] else 'FAILED'} {framework:<8} {name:<22} NCCL {result['library']}  "
                  f"{sum(case['right'] for case in cases)} cases {result['seconds']:>6.1f} s", flush=True)
            for case in cases:
                if case["problem"] or "skipped" in case:
                    print(f"       {case['case']}: {case['problem'] or 'skipped: ' + case['skipped']}")
                for what, cost in case.get("call_us", {}).items():
                    print(f"       {cost:7.2f} us a call, {what}")
                if case["case"] == "windows_and_puts" and not case.get("puts", True):
                    print(f"       window: {case['window']}, puts: {case['puts']}")
            if not result["right"]:
                print("".join(f"       {line[:220]}\n" for line in text.splitlines()[-12:] if not line.startswith("CASE ")), end="", flush=True)
    (pathlib.Path(output) / "python.json").write_text(json.dumps(results, indent=1) + "\n")
    ours = [result for result in results if result["with"] != "nccl4py on NVIDIA's"]
    print(f"{sum(result['right'] for result in ours)} passed, {sum(not result['right'] for result in ours)} failed")
    return bool(ours) and all(result["right"] for result in ours)
