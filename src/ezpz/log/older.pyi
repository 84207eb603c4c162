from ezpz.compat.module_names import STYLES as STYLES, get_console as get_console, get_file_logger as get_file_logger
from ezpz.compat.module_names import get_rich_logger as get_rich_logger, silence_noisy_loggers as silence_noisy_loggers
from logging import getLogger as getLogger
from rich.console import Console as Console
from rich.logging import RichHandler as RichHandler
