"""Numbers as people read them."""

from __future__ import annotations

_DECIMAL = ("", " k", " M", " G", " T", " P", " E", " Z")
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def count(number: float) -> str:
    """A number with separators; from a million on with three digits and a decimal prefix."""
    if abs(number) < 1e6:
        return f"{number:,.0f}"
    return _scaled(number, 1000.0, _DECIMAL)


def nbytes(number: float) -> str:
    """Bytes with a binary prefix."""
    return _scaled(number, 1024.0, tuple(f" {unit}" for unit in _BINARY))


def flops(number: float) -> str:
    """Floating-point operations with a decimal prefix."""
    return f"{_scaled(number, 1000.0, _DECIMAL)}FLOP" if abs(number) >= 1000 else f"{number:.0f} FLOP"


def flops_per_s(number: float) -> str:
    """A rate of floating-point operations with a decimal prefix."""
    return f"{_scaled(number, 1000.0, _DECIMAL)}FLOP/s"


def decimal_bytes(number: float) -> str:
    """Bytes as datasheets count them."""
    return f"{_scaled(number, 1000.0, _DECIMAL)}B"


def bytes_per_s(number: float) -> str:
    """A bandwidth, decimal as links are."""
    return f"{decimal_bytes(number)}/s"


def seconds(number: float) -> str:
    """A time, from microseconds to seconds."""
    for scale, unit in ((1e-6, "µs"), (1e-3, "ms")):
        if number < 1000 * scale:
            return f"{number / scale:.3g} {unit}"
    return f"{number:.3g} s" if number < 1000 else f"{number:,.0f} s"


def percent(share: float) -> str:
    """A share, never rounded up to a whole that it is not."""
    shown = f"{100 * share:.2f} %"
    return "100 %" if share == 1 else ("< 100 %" if share < 1 and shown.startswith("100") else shown)


def _scaled(number: float, base: float, units: tuple[str, ...]) -> str:
    power = 0
    while abs(number) >= base and power < len(units) - 1:
        number /= base
        power += 1
    digits = 0 if power == 0 else max(0, 2 - len(str(int(abs(number)))) + 1)
    return f"{number:,.{digits}f}{units[power]}"
