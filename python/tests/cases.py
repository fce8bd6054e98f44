"""Small calls of every op with what they must write: inputs, and a check of the outputs against oracle.py. One file for each subject."""

from __future__ import annotations

import cases_attention  # noqa: F401
import cases_caches  # noqa: F401
import cases_indexer  # noqa: F401
import cases_indices  # noqa: F401
import cases_linear  # noqa: F401
import cases_mla  # noqa: F401
from case import CASES, Case, bf16, i32, i64

__all__ = ["CASES", "Case", "bf16", "i32", "i64"]
