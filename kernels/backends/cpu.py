"""Placeholder until this backend is written."""

from __future__ import annotations


def unavailable() -> str | None:
    return None
