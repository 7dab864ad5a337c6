"""The hard cases of a source-rewriting engine, as declarations: `ROWS`."""

from __future__ import annotations

from .callables import ROWS as _CALLABLES
from .objects import ROWS as _OBJECTS
from .row import Row
from .syntax import ROWS as _SYNTAX
from .upstream import ROWS as _UPSTREAM
from .whole import ROWS as _WHOLE

ROWS: tuple[Row, ...] = (*_CALLABLES, *_OBJECTS, *_SYNTAX, *_UPSTREAM, *_WHOLE)
