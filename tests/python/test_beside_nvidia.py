"""Where NVIDIA's nccl4py comes first, the error of ``import nccl.virtual`` says what to do."""

import os
import pathlib
import shutil
import subprocess
import sys

import nccl


def run(other: pathlib.Path, program: str) -> subprocess.CompletedProcess[str]:
    site = pathlib.Path(nccl.__path__[0]).parent
    path = os.pathsep.join([str(other), str(site), str(site.parent.parent), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )


def test_virtual_beside_a_package_without_init_names_the_remedy(tmp_path: pathlib.Path) -> None:
    (tmp_path / "nccl" / "core").mkdir(parents=True)
    (tmp_path / "nccl" / "core" / "__init__.py").write_text("owner = 'other'\n")
    assert run(tmp_path, "import nccl.core; print(nccl.core.owner)").stdout == "other\n"
    failed = run(tmp_path, "import nccl.core; from nccl.virtual import run")
    last = failed.stderr.splitlines()[-1]
    assert "ImportError: nccl.virtual is Niccolite's: begin the program with `import niccolite; niccolite.use()`" in last
    assert str(tmp_path) in last
    assert run(tmp_path, "import niccolite; niccolite.use(); from nccl.virtual import run").stderr == ""


def test_virtual_beside_a_package_with_init_names_the_remedy(tmp_path: pathlib.Path) -> None:
    """The folder that pip fills for nccl4py up to 0.3 and for us: nccl/virtual.py alone is ours."""
    installed = pathlib.Path(nccl.__path__[0]).parent.parent.parent / "nccl" / "virtual.py"
    (tmp_path / "nccl" / "core").mkdir(parents=True)
    shutil.copy(installed, tmp_path / "nccl")
    alone = run(tmp_path, "import nccl; print(nccl.__version__); from nccl.virtual import run; print(run.__module__)")
    assert alone.stdout == f"{nccl.__version__}\nnccl.virtual\n", alone.stderr
    (tmp_path / "nccl" / "__init__.py").write_text("")
    (tmp_path / "nccl" / "core" / "__init__.py").write_text("owner = 'other'\n")
    assert run(tmp_path, "import nccl.core; print(nccl.core.owner)").stdout == "other\n"
    last = run(tmp_path, "from nccl.virtual import run").stderr.splitlines()[-1]
    assert "ImportError: nccl.virtual is Niccolite's: begin the program with `import niccolite; niccolite.use()`" in last
    assert str(tmp_path) in last
    assert run(tmp_path, "import niccolite; niccolite.use(); from nccl.virtual import run").stderr == ""
