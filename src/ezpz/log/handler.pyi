from ezpz.compat.module_names import EzpzHandler as EzpzHandler, OriginalRichHandler as OriginalRichHandler
from rich.logging import RichHandler as RichHandler
