"""`gpu-check --clients`: PyTorch, JAX and CuPy with this build's library in the place of NVIDIA's, and nothing else changed."""

import importlib.util
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time

PROGRAMS = pathlib.Path(__file__).resolve().parent / "programs"
TORCH_PARTS = ("collectives", "training", "groups", "memory", "registered", "nonblocking", "symmetric", "shrink")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_ranks(program, arguments, count, library, limit, log, variables=None):
    """`count` processes of a program; each one's (status, output), None as status when it was ended at the limit. What their
    libraries say at init goes to files in the folder `log`. `variables` are added to the environment."""
    environment = {**os.environ, "NCCL_NVLS_ENABLE": "0", "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT",
                   "NCCL_DEBUG_FILE": f"{log}/%h.%p", "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": str(free_port()), "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(PROGRAMS),
                   **(variables or {})}
    if library:
        environment["LD_PRELOAD"] = str(library)
    outputs = [subprocess.Popen([sys.executable, str(PROGRAMS / program), *arguments],
                                env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for rank in range(count)]
    deadline, results = time.monotonic() + limit, []
    for process in outputs:
        try:
            text, _ = process.communicate(timeout=max(1.0, deadline - time.monotonic()))
            results.append((process.returncode, text))
            if "EADDRINUSE" in text:
                deadline = time.monotonic()  # nobody else will meet
        except subprocess.TimeoutExpired:
            for other in outputs:
                other.kill()
            results.append((None, process.communicate()[0]))
    return results


def cases_of(results):
    lines = [line[5:] for _, text in results for line in text.splitlines() if line.startswith("CASE ")]
    return [json.loads(line) for line in lines]


def libraries_of(log):
    """What has made communicators, by the lines of init: the files of Niccolite, and the versions of others."""
    found = set()
    for path in pathlib.Path(log).iterdir():
        text = path.read_text(errors="replace")
        files = re.findall(r"Niccolite [^/]+ loaded from (.+), on ", text)
        found.update(files or re.findall(r"NCCL version \S+", text))
    return sorted(found)


def run_program(name, program, arguments, count, library, limit):
    begin = time.monotonic()
    for _ in range(2):  # another program may take the port of the rendezvous first
        with tempfile.TemporaryDirectory() as log:
            results = run_ranks(program, arguments, count, library, limit - (time.monotonic() - begin), log)
            libraries = libraries_of(log)
        if not any("EADDRINUSE" in text for _, text in results):
            break
    cases = cases_of(results)
    is_right = all(status == 0 for status, _ in results) and bool(cases) and all(case["right"] for case in cases)
    if library and libraries != [str(pathlib.Path(library).resolve())]:
        is_right = False
    tails = None if is_right else [text.splitlines()[-12:] for _, text in results]
    return {"program": name, "right": is_right, "cases": cases, "libraries": libraries, "seconds": round(time.monotonic() - begin, 1),
            "statuses": [status for status, _ in results], "tails": tails}


def programs(gpus):
    found = []
    if importlib.util.find_spec("torch"):
        found += [(f"PyTorch {part}", "torch_program.py", [part], gpus) for part in TORCH_PARTS]
    if importlib.util.find_spec("jax"):
        found.append(("JAX", "jax_program.py", [], 1))
    if importlib.util.find_spec("cupy"):
        found.append(("CuPy", "cupy_program.py", [], 1))
    return found


def check(library, gpus, output, seconds, beside=False):
    """Runs every client on `library`, and on NVIDIA's library, too, when `beside`: what a case that fails with both is worth."""
    deadline, results = time.monotonic() + seconds, []
    for name, program, arguments, count in programs(gpus):
        for used in (library, None) if beside else (library,):
            left = deadline - time.monotonic()
            if left < 10:
                print(f"no time left for {name}", flush=True)
                continue
            result = run_program(name, program, arguments, count, used, min(left, 120))
            result["with"] = "niccolite" if used else "nvidia"
            results.append(result)
            right = sum(case["right"] for case in result["cases"])
            print(f"{'ok    ' if result['right'] else 'FAILED'} {name:<22} {result['with']:<10} {right} of {len(result['cases'])} cases "
                  f"{result['seconds']:>6.1f} s", flush=True)
            for case in result["cases"]:
                if not case["right"] or "skipped" in case:
                    print(f"       {case['case']} (rank {case['rank']}): {case['problem'] or 'skipped: ' + case['skipped']}")
            if used and result["libraries"] != [str(used)]:
                print(f"       its communicators were made by {result['libraries']}, not by {used}")
            for rank, tail in enumerate(result["tails"] or []):
                print("".join(f"       rank {rank}: {line[:220]}\n" for line in tail[-6:]), end="", flush=True)
    (pathlib.Path(output) / "clients.json").write_text(json.dumps(results, indent=1) + "\n")
    ours = [result for result in results if result["with"] == "niccolite"]
    print(f"{sum(result['right'] for result in ours)} passed, {sum(not result['right'] for result in ours)} failed")
    return bool(ours) and all(result["right"] for result in ours)
