"""FlashMLA's module by Strata: strata_attention.flash_mla under the name that FlashMLA's users import."""

from strata_attention import __version__, flash_mla
from strata_attention.flash_mla import *  # noqa: F403
from strata_attention.flash_mla import __strata__

__all__ = [*flash_mla.__all__, "__strata__", "__version__"]
