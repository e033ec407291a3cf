"""Pickles functions and classes of the program's main module by their contents, because another process
cannot import that module. A function is sent with the names that it uses."""

from __future__ import annotations

import builtins
import dataclasses
import dis
import enum
import importlib
import io
import marshal
import pickle
import sys
import types
from collections.abc import Iterator
from typing import Any

_MAIN = "__main__"
_OF_THE_MODULE = ("__package__", "__file__")  # relative imports and paths use them
_OF_THE_CLASS = {"__dict__", "__weakref__", "__slots__"}
# Types that their own module does not have under their name, by the name that they have in `types`.
_NAMELESS = {kind: name for name, kind in vars(types).items()
             if isinstance(kind, type) and kind.__module__ == "builtins" and not hasattr(builtins, kind.__name__)}


def dumps(value: Any) -> bytes:
    """pickle.dumps(), for a process of this interpreter which has none of the program."""
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, types.FunctionType):
            return NotImplemented if _is_importable(value) else _reduce_function(value)
        if isinstance(value, type):
            if value in _NAMELESS:
                return getattr, (types, _NAMELESS[value])
            is_local = value.__module__ == _MAIN or "<locals>" in value.__qualname__
            return _reduce_class(value) if is_local else NotImplemented
        if isinstance(value, types.ModuleType):
            return importlib.import_module, (value.__name__,)
        if isinstance(value, types.CellType):
            return types.CellType, (), _contents(value), None, None, _fill_cell
        if isinstance(value, types.MappingProxyType):
            return types.MappingProxyType, (dict(value),)
        if isinstance(value, (staticmethod, classmethod)):
            return type(value), (value.__func__,)
        if isinstance(value, property):
            return property, (value.fget, value.fset, value.fdel, value.__doc__)
        if isinstance(value, type(dataclasses._FIELD)):  # type: ignore[attr-defined]
            return getattr, (dataclasses, value.name)  # compared by identity, as is the next
        if value is dataclasses.MISSING:
            return getattr, (dataclasses, "MISSING")
        return NotImplemented


def _is_importable(value: types.FunctionType) -> bool:
    if value.__module__ == _MAIN:
        return False
    found: Any = sys.modules.get(value.__module__)
    for name in value.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is value


def _contents(cell: types.CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # empty
        return ()


def _fill_cell(cell: types.CellType, contents: tuple[Any, ...]) -> None:
    if contents:
        cell.cell_contents = contents[0]


def _globals_of(code: types.CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _globals_of(constant)


def _reduce_function(function: types.FunctionType) -> tuple[Any, ...]:
    used: dict[str, Any] = {}
    module = function.__globals__["__name__"]  # not __module__, which functools.wraps() copies
    if module == _MAIN:
        names = {*_globals_of(function.__code__), *_OF_THE_MODULE}
        used = {name: function.__globals__[name] for name in names if name in function.__globals__}
    attributes = {name: getattr(function, name) for name in
                  ("__defaults__", "__kwdefaults__", "__annotations__", "__dict__", "__qualname__", "__doc__",
                   "__module__")}
    made = (marshal.dumps(function.__code__), module, function.__name__, function.__closure__)
    return _make_function, made, (used, attributes), None, None, _complete_function


def _make_function(code: bytes, module: str, name: str, closure: Any) -> types.FunctionType:
    scope = importlib.import_module(module).__dict__
    return types.FunctionType(marshal.loads(code), scope, name, None, closure)


def _complete_function(function: types.FunctionType, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    used, attributes = state
    function.__globals__.update(used)
    for name, value in attributes.items():
        setattr(function, name, value)


def _reduce_class(kind: Any) -> tuple[Any, ...]:
    if issubclass(kind, enum.Enum):
        base = next(base for base in kind.__mro__[1:] if issubclass(base, enum.Enum))
        members = [(name, getattr(kind, name).value) for name in kind.__members__]
        methods = {name: value for name, value in kind.__dict__.items() if not name.startswith("_")
                   and isinstance(value, (types.FunctionType, property, staticmethod, classmethod))}
        made = (base, kind.__name__, members, kind.__module__, kind.__qualname__)
        return _make_enum, made, methods, None, None, _complete_class
    slots = kind.__dict__.get("__slots__")
    made_by_slots = (types.MemberDescriptorType, types.GetSetDescriptorType)
    attributes = {name: value for name, value in kind.__dict__.items()
                  if name not in _OF_THE_CLASS and not isinstance(value, made_by_slots)}
    of_the_class = (type(kind), kind.__name__, kind.__bases__, slots, kind.__module__, kind.__qualname__)
    return _make_class, of_the_class, attributes, None, None, _complete_class


def _make_enum(base: Any, name: str, members: list[Any], module: str, qualname: str) -> Any:
    made = base(name, members, module=module, qualname=qualname)
    _publish(made)
    return made


def _make_class(meta: Any, name: str, bases: Any, slots: Any, module: str, qualname: str) -> Any:
    body: dict[str, Any] = {"__module__": module, "__qualname__": qualname}
    if slots is not None:
        body["__slots__"] = slots
    made = meta(name, bases, body)
    _publish(made)
    return made


def _publish(kind: type) -> None:
    """A result of this class is found under its name when it is sent back."""
    if kind.__module__ == _MAIN and "." not in kind.__qualname__:
        setattr(sys.modules[_MAIN], kind.__name__, kind)


def _complete_class(kind: type, attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        if name not in ("__module__", "__qualname__"):
            setattr(kind, name, value)
