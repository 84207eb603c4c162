"""Module systems that play their part: shell functions which evaluate what a program prints, as the real ones do.

The program reads a folder of modulefiles, MODULEPATH/NAME/VERSION, each a shell script that tells what its load does:

    echo words for the user >&2          what a real modulefile writes
    prepend PATH /folder                 prepend-path
    setenv NAME VALUE                    setenv
    alone                                it loads nothing, and the load still ends with 0
    fail                                 it loads nothing, and the load ends with 1

Both notes each call in $FAKE_LOG. Like their patterns they use unset variables and commands that fail, so that a caller
with `set -euo pipefail` does not survive them unprotected.
"""

# Lmod 8: errors on stderr, 1 for an unknown module; `-t avail` on stderr with the folders between the modules.
# https://lmod.readthedocs.io/en/latest/010_user.html
LMOD_UNKNOWN = 'Lmod has detected the following error:  The following module(s) are unknown: "%s"'
# Environment Modules 3.2: the same on stderr, and 0. https://modules.readthedocs.io/en/stable/module.html
TCL_UNKNOWN = "ModuleCmd_Load.c(213):ERROR:105: Unable to locate a modulefile for '%s'"

MODULECMD = r"""#!/bin/bash
printf 'module %s\n' "$*" >>"$FAKE_LOG"
find_file() { # sets full and file: NAME/VERSION, or NAME with the version that .default names or the only one
  local dir IFS=:
  file=''
  for dir in $MODULEPATH; do
    if [ -f "$dir/$1" ]; then full="$1" file="$dir/$1"; return; fi
    if [ -f "$dir/$1/.default" ]; then full="$1/$(cat "$dir/$1/.default")" file="$dir/$full"; return; fi
  done
}
prepend() { printf 'export %s="%s${%s:+:$%s}";\n' "$1" "$2" "$1" "$1"; }
setenv() { printf 'export %s="%s";\n' "$1" "$2"; }
alone() { printf 'true;\n'; exit 0; }
fail() { echo "$full: this module is broken" >&2; echo false; exit 0; }
case "$1" in
  use) prepend MODULEPATH "$2" ;;
  load)
    find_file "$2"
    if [ -z "$file" ]; then
      printf "$UNKNOWN\n" "$2" >&2
      if [ "$STRICT" = 1 ]; then echo false; fi
      exit 0
    fi
    . "$file"
    printf 'export LOADEDMODULES="${LOADEDMODULES:+$LOADEDMODULES:}%s";\n' "$full" ;;
  -t)
    IFS=:
    for dir in $MODULEPATH; do
      printf '%s:\n' "$dir"
      (cd "$dir" && find . -type f ! -name '.default' | sed 's,^\./,,' | grep "$3" | sort -r | sed '1s/$/(default)/')
    done >&2 ;;
esac
"""

# Sourced in both shells. `$unset_variable` and `false` are what `set -eu` trips over.
INIT = r"""
module() {
  false
  if [ -n "$MODULES_SILENT_SHELL" ]; then echo; fi
  eval "$(UNKNOWN="%s" STRICT="%s" '%s' "$@")"
}
"""

# conda.sh of a conda: `conda activate` works only through the function.
CONDA = r"""
conda() {
  false
  if [ -n "$CONDA_SHLVL_UNSET" ]; then echo; fi
  if [ "$1 $2" != "activate base" ]; then echo "EnvironmentNameNotFound: $2" >&2; return 1; fi
  export CONDA_PREFIX='%s' PATH='%s/bin':"$PATH" CONDA_DEFAULT_ENV=base
}
"""


class Modules:
    """A module system in a folder: `lmod` or `tcl`."""

    def __init__(self, root, kind):
        self.root, self.files = root, root / "files"
        self.files.mkdir(parents=True)
        self.program = root / "modulecmd"
        self.program.write_text(MODULECMD)
        self.program.chmod(0o755)
        said, code = (LMOD_UNKNOWN.replace('"', r"\""), 1) if kind == "lmod" else (TCL_UNKNOWN, 0)
        text = INIT % (said, code, self.program)
        (root / "init").mkdir()
        for shell in ("bash", "zsh"):
            (root / "init" / shell).write_text(text)
        variable = "LMOD_PKG" if kind == "lmod" else "MODULESHOME"
        self.env = {variable: str(root), "MODULEPATH": str(self.files)}
        self.init = root / "init"

    def add(self, name, text="", default=False):
        """Write the modulefile NAME/VERSION; ``default``: a load of NAME takes it."""
        path = self.files / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
        if default:
            (path.parent / ".default").write_text(path.name)
        return path
