"""`dataclass` as belljar uses it (frozen, with slots), without its price at start-up.

The standard one imports `inspect` and compiles source for each class, about 10 ms and then half a millisecond each; on
the way of a plain run that is more than everything else together. This one closes over a list of names. To mypy it *is*
the standard one, and `dataclasses.replace`, `asdict` and `fields` work on what it makes.

`typing` is another 4 ms, and at run time good for nothing but `NamedTuple`; `enum` is one more, for `StrEnum`. Both are
here too. So the modules that a plain run imports say `TYPE_CHECKING = False`, which type checkers take for true, and
import `typing` beneath it only.
"""

from __future__ import annotations

from _collections import _tuplegetter  # type: ignore[import-not-found] # what `collections.namedtuple` has for a field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MISSING: Any = object()


class _Field:
    """What a class body says about one field."""

    __slots__ = ("compare", "default", "default_factory", "repr")

    def __init__(self, default: Any, default_factory: Any, *, compare: bool, repr_: bool) -> None:
        self.default = default
        self.default_factory = default_factory
        self.compare = compare
        self.repr = repr_


def _field(*, default: Any = _MISSING, default_factory: Any = _MISSING, compare: bool = True, repr: bool = True) -> Any:  # noqa: A002 the standard's own name
    """As `dataclasses.field`."""
    return _Field(default, default_factory, compare=compare, repr_=repr)


def _dataclass(*, frozen: bool, slots: bool) -> Any:
    """As `dataclasses.dataclass(frozen=True, slots=True)`, the only form there is here."""
    if not (frozen and slots):
        raise TypeError("a record is frozen and has slots")
    return _record


def _record(cls: type) -> type:
    if cls.__bases__ != (object,):
        raise TypeError("a record has no base")
    fields: dict[str, _Field] = {}
    body = dict(cls.__dict__)
    for name in cls.__annotations__:
        default = body.pop(name, _MISSING)
        fields[name] = default if isinstance(default, _Field) else _Field(default, _MISSING, compare=True, repr_=True)
    for name in ("__dict__", "__weakref__"):
        body.pop(name, None)
    body["__slots__"] = body["__match_args__"] = tuple(fields)
    body["__dataclass_fields__"] = _Standard(cls.__name__, fields)
    for name, method in _methods(fields, post="__post_init__" in body).items():
        body.setdefault(name, method)
    body["__hash__"] = _hash(fields) if body.get("__hash__") is None else body["__hash__"]
    made = type(cls)(cls.__name__, cls.__bases__, body)
    made.__qualname__ = cls.__qualname__
    return made


def _methods(fields: dict[str, _Field], *, post: bool) -> dict[str, Any]:
    names = tuple(fields)
    defaults = [(name, entry.default, entry.default_factory) for name, entry in fields.items()]
    put = object.__setattr__

    def init(self: Any, *values: Any, **named: Any) -> None:
        if not named and len(values) == len(names) and not post:
            for name, value in zip(names, values, strict=True):
                put(self, name, value)
            return
        if len(values) > len(names):
            raise TypeError(f"{type(self).__name__} takes {len(names)} values, not {len(values)}")
        for name, value in zip(names, values, strict=False):
            if name in named:
                raise TypeError(f"{type(self).__name__} got two values for {name!r}")
            put(self, name, value)
        for name, default, factory in defaults[len(values) :]:
            if name in named:
                put(self, name, named.pop(name))
            elif default is not _MISSING:
                put(self, name, default)
            elif factory is not _MISSING:
                put(self, name, factory())
            else:
                raise TypeError(f"{type(self).__name__} is missing {name!r}")
        if named:
            raise TypeError(f"{type(self).__name__} has no field {next(iter(named))!r}")
        if post:
            self.__post_init__()

    def show(self: Any) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in names if fields[name].repr)
        return f"{type(self).__qualname__}({shown})"

    def equal(self: Any, other: object) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in names if fields[name].compare)

    def refuse(self: Any, name: str, *_value: Any) -> None:
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"{type(self).__name__} is frozen: {name!r} stays as it is")

    def state(self: Any) -> list[Any]:
        return [getattr(self, name) for name in names]

    def restore(self: Any, values: list[Any]) -> None:
        for name, value in zip(names, values, strict=True):
            put(self, name, value)

    return {
        "__init__": init,
        "__repr__": show,
        "__eq__": equal,
        "__setattr__": refuse,
        "__delattr__": refuse,
        "__getstate__": state,
        "__setstate__": restore,
    }


def _hash(fields: dict[str, _Field]) -> Any:
    names = tuple(name for name, entry in fields.items() if entry.compare)
    return lambda self: hash(tuple(getattr(self, name) for name in names))


class _Standard:
    """`__dataclass_fields__`, made by the standard library when someone asks for it."""

    def __init__(self, name: str, own: dict[str, _Field]) -> None:
        self.name = name
        self.own = own
        self.made: Any = None

    def __get__(self, _instance: object, _owner: type) -> Any:
        if self.made is None:
            import dataclasses

            options = {"default", "default_factory"}
            entries = []
            for name, entry in self.own.items():
                given = {key: value for key in options if (value := getattr(entry, key)) is not _MISSING}
                entries.append((name, object, dataclasses.field(compare=entry.compare, repr=entry.repr, **given)))
            made: Any = dataclasses.make_dataclass(self.name, entries, kw_only=True)
            self.made = made.__dataclass_fields__
        return self.made


class _NamedTupleMeta(type):
    """Makes a named tuple of a class body, as `typing.NamedTuple` does; `collections` compiles source for each."""

    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> Any:
        if not bases:
            return super().__new__(cls, name, bases, body)
        fields = tuple(body.get("__annotations__", ()))
        defaults = {field: body.pop(field) for field in fields if field in body}
        getters = {field: _tuplegetter(at, "") for at, field in enumerate(fields)}
        about = {"__slots__": (), "__match_args__": fields, "_fields": fields, "_field_defaults": defaults}
        return type(name, (tuple,), {**_tuple_methods(fields, defaults), **getters, **about, **body})


def _tuple_methods(fields: tuple[str, ...], defaults: dict[str, Any]) -> dict[str, Any]:
    count, make = len(fields), tuple.__new__

    def new(cls: Any, /, *values: Any, **named: Any) -> Any:
        if named or len(values) != count:
            rest = {**defaults, **named}
            if len(values) > count or not named.keys() <= set(fields[len(values) :]):
                raise TypeError(f"{cls.__name__} takes {', '.join(fields)}, each once")
            if missing := [name for name in fields[len(values) :] if name not in rest]:
                raise TypeError(f"{cls.__name__} is missing {missing[0]!r}")
            values = (*values, *(rest[name] for name in fields[len(values) :]))
        return make(cls, values)

    def of(cls: Any, values: Any) -> Any:
        made = make(cls, values)
        if len(made) != count:
            raise TypeError(f"{cls.__name__} takes {count} values, not {len(made)}")
        return made

    def replace(self: Any, /, **named: Any) -> Any:
        made = of(type(self), map(named.pop, fields, self))
        if named:
            raise ValueError(f"{type(self).__name__} has no field {next(iter(named))!r}")
        return made

    def show(self: Any) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in zip(fields, self, strict=True))
        return f"{type(self).__name__}({shown})"

    return {
        "__new__": new,
        "__repr__": show,
        "__getnewargs__": lambda self: (*self,),
        "_make": classmethod(of),
        "_replace": replace,
        "_asdict": lambda self: dict(zip(fields, self, strict=True)),
    }


class _StrEnumMeta(type):
    """Makes words of a class body's strings, as `enum.StrEnum` does: each one object, found by its name or its text."""

    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> Any:
        words = {key: value for key, value in body.items() if not key.startswith("_") and isinstance(value, str)}
        known: dict[str, Any] = {}
        made: Any = super().__new__(cls, name, bases, {**body, "_words": known})
        for key, value in words.items():
            word = known[value] = str.__new__(made, value)
            word.name, word.value = key, value
            setattr(made, key, word)
        return made

    def __call__(cls, value: str) -> Any:
        try:
            return cls._words[value]  # type: ignore[attr-defined]
        except KeyError:
            raise ValueError(f"{value!r} is not a valid {cls.__name__}") from None

    def __getitem__(cls, name: str) -> Any:
        return {word.name: word for word in cls}[name]

    def __iter__(cls) -> Any:
        return iter(cls._words.values())  # type: ignore[attr-defined]

    def __len__(cls) -> int:
        return len(cls._words)  # type: ignore[attr-defined]


def _word_methods() -> dict[str, Any]:
    return {
        "__repr__": lambda self: f"<{type(self).__name__}.{self.name}: {self.value!r}>",
        "__str__": lambda self: self.value,
        "__format__": lambda self, form: format(self.value, form),
        "__reduce__": lambda self: (type(self), (self.value,)),
    }


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 what mypy sees
    from dataclasses import field as field  # noqa: PLC0414
    from enum import StrEnum as StrEnum  # noqa: PLC0414
    from typing import NamedTuple as NamedTuple  # noqa: PLC0414
    from typing import Protocol as Protocol  # noqa: PLC0414
else:
    dataclass = _dataclass
    field = _field
    NamedTuple = _NamedTupleMeta("NamedTuple", (), {})
    Protocol = object
    StrEnum = _StrEnumMeta("StrEnum", (str,), _word_methods())
