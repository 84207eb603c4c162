from ezpz.compat.module_names import get_console as get_console, is_interactive as is_interactive
from ezpz.compat.module_names import use_colored_logs as use_colored_logs
from rich.console import Console as Console
