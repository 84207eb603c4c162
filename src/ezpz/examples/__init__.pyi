from ezpz.compat.module_names import get_example_outdir as get_example_outdir
