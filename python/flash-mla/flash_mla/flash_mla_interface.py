"""The functions by FlashMLA's other path, flash_mla.flash_mla_interface."""

from strata_attention.flash_mla import *  # noqa: F403
from strata_attention.flash_mla import __all__ as __all__
