from ezpz.compat.module_names import NO_COLOR as NO_COLOR, STYLES as STYLES, use_colored_logs as use_colored_logs
