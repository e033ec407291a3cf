"""Compares `nccl.core` of nccl4py with Niccolite's: python nvidia_surface.py, where both are installed.

Every name of nccl4py's must be here, an enumeration with its members, a dataclass with its fields and defaults, a class with its
public attributes, and a function or method with its parameters.
"""

import dataclasses
import enum
import inspect
import json
import subprocess
import sys

import nccl.core

# Where 0.3.1, whose version we tell, and 0.6.0 differ: there all is as in 0.3.1.
AS_IN_0_3 = {"LibraryInfo", "VersionInfo", "get_version", "__version__"}


def parameters_of(function: object) -> list[str]:
    kept = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    return [str(one.replace(annotation=inspect.Parameter.empty)) for one in kept]


def describe(name: str) -> object:
    found = getattr(nccl.core, name)
    if inspect.isfunction(found):
        return parameters_of(found)
    if not isinstance(found, type):
        return str(found) if isinstance(found, enum.Enum) else ""
    if issubclass(found, enum.Enum):
        return {member: int(value) for member, value in found.__members__.items()}
    described: dict[str, object] = {member: "" for member in dir(found) if not member.startswith("_")}
    if dataclasses.is_dataclass(found):
        fields = dataclasses.fields(found)
        described |= {one.name: "required" if one.default is dataclasses.MISSING else repr(one.default) for one in fields}
        described["__init__"] = parameters_of(found.__init__)
    described |= {member: parameters_of(value) for member, value in inspect.getmembers(found, inspect.isfunction)
                  if not member.startswith("_")}
    return described


def differences(theirs: dict, ours: dict) -> list[str]:
    found = []
    for name, description in theirs.items():
        if name not in ours:
            found.append(f"{name} is missing")
        elif isinstance(description, dict) and isinstance(ours[name], dict):
            found += [f"{name}.{member}: {value!r}, ours {ours[name].get(member)!r}" for member, value in description.items()
                      if ours[name].get(member) != value]
        elif description != ours[name]:
            found.append(f"{name}: {description!r}, ours {ours[name]!r}")
    return found


if sys.argv[1:] == ["describe"]:
    print(json.dumps({name: describe(name) for name in nccl.core.__all__ if name not in AS_IN_0_3}))
else:
    program = f"import sys, niccolite; niccolite.use(); sys.argv = ['', 'describe']; exec(open({__file__!r}).read())"
    texts = [subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
             for command in ([sys.executable, __file__, "describe"], [sys.executable, "-c", program])]
    theirs, ours = map(json.loads, texts)
    assert "GinBarrierHandle" in theirs, "this is no nccl4py 0.6"
    wrong = differences(theirs, ours)
    print("\n".join(wrong) or f"{len(theirs)} names of nccl4py are here, as they are there")
    sys.exit(bool(wrong))
