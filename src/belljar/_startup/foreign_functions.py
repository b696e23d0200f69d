"""The part of `ctypes` that calls the C library, under the same names.

The standard module makes types for all there is in C, in either order of bytes, when it is imported: a millisecond of
every start. To mypy this *is* the standard one.
"""

from __future__ import annotations

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from ctypes import *  # noqa: F403
else:
    import _ctypes
    from _ctypes import CFuncPtr, Structure, _SimpleCData, byref, get_errno, sizeof  # noqa: F401 the same names

    def _simple(name, code):
        """A type for one value, by its letter."""
        return type(_SimpleCData)(name, (_SimpleCData,), {"_type_": code, "__module__": __name__})

    c_int, c_uint, c_long = _simple("c_int", "i"), _simple("c_uint", "I"), _simple("c_long", "l")
    c_ulong = c_size_t = _simple("c_ulong", "L")
    c_uint16, c_uint64 = _simple("c_uint16", "H"), _simple("c_uint64", "Q")
    c_char_p = _simple("c_char_p", "z")

    class CDLL:
        """The functions of a library, each made when it is first asked for."""

        _flags = _ctypes.FUNCFLAG_CDECL

        def __init__(self, name, *, use_errno=False):
            flags = self._flags | (_ctypes.FUNCFLAG_USE_ERRNO if use_errno else 0)
            self._handle = _ctypes.dlopen(name, 0)
            self._function = type(CFuncPtr)("_Function", (CFuncPtr,), {"_flags_": flags, "_restype_": c_int})

        def __getattr__(self, name):
            function = self._function((name, self))
            setattr(self, name, function)
            return function

    class PyDLL(CDLL):
        """The same, called with Python's lock held."""

        _flags = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_PYTHONAPI

    pythonapi = PyDLL(None)
