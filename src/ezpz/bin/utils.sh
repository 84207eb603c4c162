# utils.sh: obtain a Python that runs ezpz, say where this shell is, and start ranks.
# For bash (4.2 or newer; 3.2 as far as it goes) and zsh (5.8 or newer):
#
#     source src/ezpz/bin/utils.sh            # or: source <(curl -fsSL URL), with EZPZ_SOURCE set
#     ezpz_setup_env [VENV]                   # ezpz_setup_python, then ezpz_setup_job
#     launch python3 -m ezpz.test_dist        # every rank on every device of the job
#
# reads     EZPZ_PYTHON EZPZ_VENV_DIR EZPZ_SOURCE EZPZ_CONSTRAINTS EZPZ_NGPU_PER_HOST
#           VIRTUAL_ENV CONDA_PREFIX LOADEDMODULES PBS_* SLURM_* TMPDIR, and whatever pip reads
# sets      EZPZ_UTILS (this file, when it has a path), EZPZ_READY (the python3 known to import ezpz)
# exports   EZPZ_SCHEDULER EZPZ_JOBID EZPZ_SITE EZPZ_HOSTS EZPZ_NRANKS
#           NHOSTS NGPU_PER_HOST NGPUS HOSTFILE DIST_LAUNCH
# returns   2: something that the user named is wrong; 125: the machine, the index or the scheduler;
#           130: interrupted; otherwise the code of the command that ran. Nothing here exits a shell.
#
# Rules for whoever edits this file. Functions are written `function name {`, because `name() {` breaks where
# `name` is an alias; programs run through `command`, because aliases are expanded while this file is read.
# Public functions begin with `emulate -L sh`, so that zsh splits words as bash does. Only what both shells
# know is used: no arrays, no [[ ]]. A probe that may fail stands in `if` or before `||`, because the user's
# `set -e` holds in here too. `local` and `$( )` stand on two lines: together they hide the exit code.

{ # A download that was cut short is a syntax error here, and then defines nothing.

# ---- words ---------------------------------------------------------------------------------------------------------

function ezpz__log { printf '[ezpz] %s\n' "$*" >&2; }

# ezpz__err CODE TEXT: the one line of a failure. Used as `ezpz__err 2 "…" || return`.
function ezpz__err {
  printf '[ezpz] error: %s\n' "$2" >&2
  return "$1"
}

# The program that PATH leads to; `command -v` would answer with aliases and functions.
function ezpz__which {
  if [ -n "${ZSH_VERSION:-}" ]; then whence -p "$1"; else type -P "$1"; fi
}

# An absolute path, free of symbolic links where the folder exists.
function ezpz__real {
  local where="$1"
  case "$where" in /*) ;; *) where="$PWD/$where" ;; esac
  (builtin cd -P "$where" >/dev/null 2>&1 && builtin pwd -P) || printf '%s\n' "${where%/}"
}

# The last line of a text that says something: of a traceback, that is its cause.
function ezpz__last_line { printf '%s\n' "$1" | command awk 'NF { last = $0 } END { print last }'; }

# ---- python: what is asked for -------------------------------------------------------------------------------------

# Sets src (what pip installs, or empty), src_from and pins (its constraints, or empty).
function ezpz__find_source {
  local root
  if [ -n "${EZPZ_SOURCE:-}" ]; then
    src_from=EZPZ_SOURCE
    case "$EZPZ_SOURCE" in
      git+* | *://*) src="$EZPZ_SOURCE" ;;
      *)
        src="$(ezpz__real "$EZPZ_SOURCE")"
        [ -f "$src" ] || [ -f "$src/pyproject.toml" ] ||
          ezpz__err 2 "no ezpz to install: $EZPZ_SOURCE (from EZPZ_SOURCE); expected a checkout, a wheel or a git+https:// address. Set EZPZ_SOURCE to one of them." || return
        ;;
    esac
  elif [ -n "${EZPZ_UTILS:-}" ]; then
    # readlink: the user may source a link that stands in ~/bin.
    root="$(command readlink -f "$EZPZ_UTILS" 2>/dev/null)" || root="$EZPZ_UTILS"
    root="${root%/*}/../../.."
    if [ -f "$root/pyproject.toml" ]; then
      src="$(ezpz__real "$root")" src_from="the checkout of this utils.sh"
    fi
  fi
  if [ -n "${EZPZ_CONSTRAINTS:-}" ]; then
    pins="$EZPZ_CONSTRAINTS"
    [ -f "$pins" ] || ezpz__err 2 "no constraints file: $pins (from EZPZ_CONSTRAINTS); expected a file of pip. Correct or unset EZPZ_CONSTRAINTS." || return
  elif [ -n "$src" ] && [ -f "$src/constraints.txt" ]; then
    pins="$src/constraints.txt"
  fi
}

# Sets venv (the environment's folder), venv_from, and active=1 where the shell is already in it.
function ezpz__choose_env {
  local now='' now_from=''
  if [ -n "${VIRTUAL_ENV:-}" ] && [ ! -x "$VIRTUAL_ENV/bin/python3" ]; then
    ezpz__log "VIRTUAL_ENV is not used: $VIRTUAL_ENV has no bin/python3 that runs"
  elif [ -n "${VIRTUAL_ENV:-}" ]; then
    now="$VIRTUAL_ENV" now_from="active, VIRTUAL_ENV"
  elif [ -n "${CONDA_PREFIX:-}" ] && [ "$(ezpz__which python3)" = "$CONDA_PREFIX/bin/python3" ]; then
    now="$CONDA_PREFIX" now_from="active, CONDA_PREFIX"
  fi
  if [ -n "$1" ]; then
    venv="$(ezpz__real "$1")" venv_from="the VENV argument"
    if [ -z "$now" ] || [ "$venv" != "$(ezpz__real "$now")" ]; then return 0; fi
  elif [ -z "$now" ]; then
    venv="$(ezpz__real "${EZPZ_VENV_DIR:-.venv}")" venv_from="the current folder"
    if [ -n "${EZPZ_VENV_DIR:-}" ]; then venv_from=EZPZ_VENV_DIR; fi
    return 0
  fi
  venv="$now" venv_from="$now_from" active=1
}

# Asks the interpreter $1 about itself without importing anything heavy. Sets p_version, p_exe, p_in_venv (0/1),
# p_torch and p_ezpz (file or empty), p_ensurepip (0/1), p_lib (where it installs), p_paths (its package folders).
# A Python below 3.10 leaves p_exe empty. The question must parse in Python 2 as well.
function ezpz__probe {
  local out nl=$'\n' ask='
import sys
said = ["%d.%d.%d" % sys.version_info[:3]]
if sys.version_info >= (3, 10):
    import importlib.util, sysconfig
    sys.path[:] = [p for p in sys.path if p]  # the current folder may hold a folder "torch" or "ezpz"
    def at(name):
        spec = importlib.util.find_spec(name)
        return (spec.origin or "") if spec else ""
    paths = [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))]
    said += [sys.executable, str(int(sys.prefix != sys.base_prefix)), at("torch")]
    said += [str(int(bool(at("ensurepip")))), at("ezpz"), sysconfig.get_path("purelib"), "\t".join(paths)]
sys.stdout.write("|".join(said + [""]))
'
  p_version='' p_exe='' p_in_venv=0 p_torch='' p_ensurepip=0 p_ezpz='' p_lib='' p_paths=''
  # PYTHONHOME of a loaded module would send an environment back to that module's own packages.
  if ! out="$(if [ "${1#"$venv"/}" != "$1" ]; then unset PYTHONHOME; fi && "$1" -c "$ask" 2>&1)"; then
    p_version="$(ezpz__last_line "$out")"
    return 1
  fi
  out="${out##*"$nl"}" # a site's start-up files may have spoken first
  p_version="${out%%|*}" out="${out#*|}"
  case "$out" in *'|'*) ;; *) return 0 ;; esac
  p_exe="${out%%|*}" out="${out#*|}"
  p_in_venv="${out%%|*}" out="${out#*|}"
  p_torch="${out%%|*}" out="${out#*|}"
  p_ensurepip="${out%%|*}" out="${out#*|}"
  p_ezpz="${out%%|*}" out="${out#*|}"
  p_lib="${out%%|*}" out="${out#*|}"
  p_paths="${out%%|*}"
}

# Sets base and base_from: the interpreter on which a venv is made, checked to be able to.
function ezpz__find_base {
  local other='' seen='' module='' code=125
  if [ -n "${EZPZ_PYTHON:-}" ]; then
    base_from=EZPZ_PYTHON code=2
    base="$(ezpz__which "$EZPZ_PYTHON")" ||
      ezpz__err 2 "no such Python: $EZPZ_PYTHON (from EZPZ_PYTHON); expected a program. Set EZPZ_PYTHON to a Python 3.10 or newer, or unset it." || return
  else
    base="$(ezpz__which python3)" ||
      ezpz__err 125 "no Python: python3 (from PATH); expected Python 3.10 or newer. Install it, load its module, or set EZPZ_PYTHON=/path/to/python3." || return
    module="$(printf '%s\n' "${LOADEDMODULES:-}" | command tr ':' '\n' |
      command awk 'tolower($0) ~ /python|conda|frameworks|torch|miniforge|mambaforge/ { last = $0 } END { print last }')"
    base_from="python3 on PATH${module:+, of the loaded module $module}"
  fi
  ezpz__probe "$base" ||
    ezpz__err "$code" "Python does not run: $base (from $base_from) says: $p_version; expected Python 3.10 or newer. Set EZPZ_PYTHON=/path/to/python3." || return
  if [ -z "$p_exe" ]; then
    for other in python3.13 python3.12 python3.11 python3.10; do
      if [ -z "$seen" ] && seen="$(ezpz__which "$other")" && ! "$seen" -c pass >/dev/null 2>&1; then seen=''; fi
    done
    ezpz__err 2 "Python is too old: $p_version (from $base_from, $base); expected 3.10 or newer. Set EZPZ_PYTHON=${seen:-/path/to/python3}." || return
  fi
  base="$p_exe"
  [ "$p_ensurepip" = 1 ] ||
    ezpz__err 125 "cannot make a virtual environment: $base (from $base_from) has no ensurepip; expected the whole standard library. Install the package python3-venv (python${p_version%.*}-venv), or set EZPZ_PYTHON=/path/to/python3."
}

# ---- python: making the environment --------------------------------------------------------------------------------

# Is the folder a venv, or may it become one? Never takes over a folder that holds something else.
function ezpz__check_folder {
  [ ! -e "$venv" ] || [ -d "$venv" ] ||
    ezpz__err 2 "not a folder: $venv (from $venv_from); expected a virtual environment or a new folder. Remove that file or call: ezpz_setup_env OTHER_FOLDER" || return
  [ -e "$venv/pyvenv.cfg" ] || [ -e "$venv/.ezpz-stamp" ] || [ -z "$(command ls -A "$venv" 2>/dev/null)" ] ||
    ezpz__err 2 "not a virtual environment: $venv (from $venv_from); expected one, or a new or empty folder. Call: ezpz_setup_env OTHER_FOLDER"
}

# ezpz__disk_err WHAT OUTPUT: turns what a program said about the disk into one line.
function ezpz__disk_err {
  local why hint="Choose another folder: ezpz_setup_env FOLDER"
  case "$2" in
    *'No space left'* | *'Errno 28'*) why="no space left on the device" hint="Free some space or choose another folder: ezpz_setup_env FOLDER" ;;
    *'quota exceeded'* | *'Errno 122'*) why="the disk quota is exceeded" ;;
    *'Read-only file system'*) why="the file system is read-only" ;;
    *'Permission denied'* | *'Operation not permitted'*) why="permission denied" ;;
    *) why="$(ezpz__last_line "$2")" ;;
  esac
  ezpz__err 125 "$1: $venv (from $venv_from): $why; expected a folder with about 1.5 GB free that you may write. $hint"
}

# Makes the venv, or mends one whose making was cut short or whose base Python went away.
function ezpz__make_venv {
  local out='' link torch paths in_venv
  ezpz__check_folder || return
  # One of ours that was moved is made again in its place: its activate script still names the old folder.
  if [ -e "$venv/pyvenv.cfg" ] && ezpz__probe "$venv/bin/python3" && {
    command grep -qF "$venv" "$venv/bin/activate" || ! command grep -q 'made by ezpz' "$venv/.ezpz-stamp"
  } 2>/dev/null; then return 0; fi
  ezpz__find_base || return
  if [ -z "$src" ] && [ -z "$p_ezpz" ]; then ezpz__no_source || return; fi
  torch="$p_torch" paths="$p_paths" in_venv="$p_in_venv"
  ezpz__log "making a virtual environment in $venv ($venv_from) on $base ($base_from, Python $p_version)"
  if ! out="$(command mkdir -p "$venv" 2>&1)"; then
    case "$out" in *'Not a directory'* | *'File exists'*) ezpz__err 2 "not a folder: a part of $venv (from $venv_from) is a file; expected a folder. Call: ezpz_setup_env OTHER_FOLDER" || return ;; esac
    ezpz__disk_err "cannot make the folder" "$out" || return
  fi
  venv="$(ezpz__real "$venv")" # it exists now, so links and dots in its path can be resolved
  # The mark comes first: whatever is cut from here on is known as ours, and is completed.
  out="$({ printf 'incomplete\nmade by ezpz\n' >"$venv/.ezpz-stamp"; } 2>&1)" || ezpz__disk_err "cannot write into" "$out" || return
  for link in "$venv"/bin/python*; do # python -m venv keeps a link that leads nowhere
    if [ -L "$link" ] && [ ! -e "$link" ]; then command rm -f "$link"; fi
  done
  set -- -m venv
  if [ -n "$torch" ] && [ "$in_venv" = 0 ]; then set -- "$@" --system-site-packages; fi
  if ! out="$("$base" "$@" "$venv" 2>&1)"; then
    # venv keeps to itself why its ensurepip failed: ask the disk.
    out="$(command dd if=/dev/zero of="$venv/.ezpz-room" bs=1048576 count=20 2>&1 && printf '%s\n' "$out")" || :
    command rm -f "$venv/.ezpz-room"
    ezpz__disk_err "cannot make the virtual environment" "$out" || return
  fi
  ezpz__probe "$venv/bin/python3" || ezpz__err 125 "the new virtual environment does not run: $venv/bin/python3 says: $p_version; expected a Python. Set EZPZ_PYTHON to another one." || return
  if [ -n "$torch" ] && [ "$in_venv" = 1 ]; then
    # --system-site-packages of a Python that stands in a venv shows the packages of that venv's base, not its own.
    printf '%s\n' "$paths" | command tr '\t' '\n' 2>/dev/null >"$p_lib/ezpz-base.pth" || ezpz__disk_err "cannot write into" 'No space left' || return
    ezpz__probe "$venv/bin/python3" || :
  fi
}

# pip may be missing (a venv of uv) or half there (its making was cut): both are mended by ensurepip.
# Sets pip_conf, what pip is configured to read.
function ezpz__ensure_pip {
  local out=''
  if pip_conf="$(ezpz__run -m pip config list 2>/dev/null)"; then return 0; fi
  if ezpz__run -m pip --isolated --version >/dev/null 2>&1; then return 0; fi # its configuration is at fault: pip says so
  if [ "$p_ensurepip" = 1 ] && [ -w "$p_lib" ]; then
    command rm -rf "$p_lib/pip" "$p_lib"/pip-*.dist-info
    if out="$(ezpz__run -m ensurepip --upgrade --default-pip 2>&1)" && pip_conf="$(ezpz__run -m pip config list 2>/dev/null)"; then return 0; fi
  fi
  ezpz__disk_err "cannot give pip to the environment" "${out:-pip is missing and ensurepip cannot be used}"
}

# Runs the environment's interpreter as activation will.
function ezpz__run { (
  unset PYTHONHOME
  PIP_USER=0 "$venv/bin/python3" "$@" # a pip configured for --user refuses to work in a venv
); }

# ---- python: installing --------------------------------------------------------------------------------------------

function ezpz__no_source { ezpz__err 2 "no ezpz to install: this utils.sh was not sourced from a checkout and EZPZ_SOURCE is empty; expected a source. Set EZPZ_SOURCE to a checkout or to git+https://ADDRESS, then call this again."; }

# The package index that pip is configured for, without the passwords that such addresses may hold.
function ezpz__index {
  printf '%s\n' "$pip_conf" | command awk '
    { key = $0; sub(/=.*/, "", key); sub(/^.*\./, "", key); val = substr($0, index($0, "=") + 1)
      gsub(/^.|.$/, "", val); gsub(/\/\/[^\/@ ]*@/, "//", val); said[key] = val }
    END { at = ("index-url" in said) ? said["index-url"] : "the public package index"
      if (said["no-index"] ~ /^(1|true|yes|on)$/) at = "no index"
      if (said["extra-index-url"] != "") at = at " and " said["extra-index-url"]
      if (said["find-links"] != "") at = at " and the folder " said["find-links"]
      print at }'
}

# Says what, how large, from where and into which folder, before anything is fetched.
function ezpz__announce {
  local torch=''
  ezpz__log "installing into $venv (Python $p_version):"
  if [ "$need_ezpz" = 1 ]; then
    ezpz__log "  ezpz from $src ($src_from), with rich, numpy, xarray, h5py, h5netcdf, plotext, matplotlib: about 250 MB"
  fi
  if [ "$need_torch" = 0 ]; then
    ezpz__log "  torch is there already and stays as it is"
  else
    if [ -n "$pins" ]; then torch="$(command awk '/^torch *[=~<>]/ { print $1; exit }' "$pins")"; fi
    ezpz__log "  ${torch:-torch (the newest that the index offers)}: about 200 MB to fetch and 800 MB on disk for a CPU build, several GB for a GPU build"
  fi
  ezpz__log "  packages from $(ezpz__index); pip's own words in $venv/ezpz-install.log"
}

# Copies the constraints without the packages that the environment already has from elsewhere: a base that brings
# torch was built against its own numpy, and an environment that the user made is not ours to up- or downgrade.
function ezpz__own_pins {
  ezpz__run -c '
import importlib.metadata, re, sys
pins, out, lib, ours = sys.argv[1:]
def plain(name): return re.sub(r"[-_.]+", "-", name).lower()
have = {plain(d.metadata["Name"] or "") for d in importlib.metadata.distributions()
        if ours == "0" or not str(d.locate_file("")).startswith(lib)}
with open(pins) as text, open(out, "w") as kept:
    kept.writelines(x for x in text if plain(re.match(r"[\w.-]*", x.strip()).group()) not in have)
' "$pins" "$venv/ezpz-constraints.txt" "$p_lib" "$ours" 2>/dev/null
}

# ezpz__pip_err LOG: why pip failed, in one line.
function ezpz__pip_err {
  local log="$1" missing='' said='' again="then call this again: it goes on where it stopped"
  if command grep -q 'Operation cancelled by user' "$log" 2>/dev/null; then
    ezpz__err 130 "interrupted: $venv is incomplete; expected pip to end. Call this again: it goes on where it stopped." || return
  fi
  # A pinned package that nobody offers reads as a conflict with its own pin.
  missing="$(command sed -n -e 's/.*No matching distribution found for \([^ ;(]*\).*/\1/p' -e 's/.*The user requested (constraint) //p' "$log" | command awk 'END { print }')"
  if command grep -qE 'No space left on device|quota exceeded' "$log"; then
    ezpz__disk_err "pip cannot install" 'No space left' || return
  elif command grep -qE 'NewConnectionError|Connect(ion)?Timeout|ReadTimeout|ProxyError|SSLError|Max retries exceeded|name resolution|Network is unreachable|Connection refused|Could not resolve host' "$log"; then
    ezpz__err 125 "no network: pip could not reach $(ezpz__index)${missing:+ and found no wheel of $missing}; expected an index that answers. Set the proxy or PIP_INDEX_URL, or PIP_FIND_LINKS and PIP_NO_INDEX=1 for a folder of wheels, $again. Log: $log" || return
  elif [ -n "$missing" ]; then
    ezpz__err 125 "no matching package: $missing (from $(ezpz__index)); expected a wheel for Python ${p_version%.*} on this machine, from an index that answers. Add it to the index or folder, or set EZPZ_PYTHON to another Python, $again. Log: $log" || return
  elif command grep -qE 'Permission denied|Read-only file system|Operation not permitted' "$log"; then
    ezpz__disk_err "pip cannot install" "$(command grep -E 'Permission denied|Read-only file system|Operation not permitted' "$log" | command tail -n 1)" || return
  fi
  # A failed build shows its traceback first and then, as pip's own error, only the name of the step.
  said="$(command awk '/[A-Za-z](Error|Exception): / { cause = $0 } /(ERROR|error): / { last = $0 } NF { any = $0 }
    END { said = cause ? cause : last ? last : any; sub(/^.*(ERROR|error): */, "", said); sub(/^[-0-9T:, ]+/, "", said); print said }' "$log")"
  ezpz__err 125 "pip failed: ${said:-it said nothing} (from pip install into $venv); expected it to end with 0. Read $log, $again."
}

# Installs what is missing, if anything. Sets nothing; a failure leaves the environment to be completed by the next call.
function ezpz__install {
  local need_ezpz=1 need_torch=0 pip_conf='' log="$venv/ezpz-install.log" rc=0
  # Editable in the user's own environment, or brought by the base, from where we would take it: nothing to do.
  if [ -n "$p_ezpz" ] && { [ -z "$src" ] || { [ -z "$stamp" ] && [ "${p_ezpz#"$src"/}" != "$p_ezpz" ]; }; }; then need_ezpz=0; fi
  # A torch in a venv of ours may be the half of one whose unpacking was cut: pip knows, the interpreter does not.
  if [ -z "$p_torch" ] || { [ "$ours" = 1 ] && [ "${p_torch#"$venv"/}" != "$p_torch" ]; }; then need_torch=1; fi
  if [ "$need_ezpz" = 0 ] && [ "$need_torch" = 0 ]; then return 0; fi
  if [ "$need_ezpz" = 1 ] && [ -z "$src" ]; then ezpz__no_source || return; fi
  { [ -w "$p_lib" ] && [ -w "$venv" ]; } ||
    ezpz__err 125 "cannot install into $venv (from $venv_from): permission denied for $p_lib; expected an environment that you may write. Make one on top of it: ezpz_setup_env FOLDER" || return
  ezpz__ensure_pip || return
  ezpz__announce
  set -- -m pip install --disable-pip-version-check --no-input
  if [ -n "$pins" ]; then
    ezpz__own_pins || ezpz__err 125 "cannot read the constraints: $pins; expected lines like torch==2.8.0. Correct that file." || return
    set -- "$@" -c "$venv/ezpz-constraints.txt"
  fi
  if [ "$need_torch" = 1 ]; then set -- "$@" torch; fi
  if [ "$need_ezpz" = 1 ] && [ -d "$src" ]; then set -- "$@" -e; fi
  if [ "$need_ezpz" = 1 ]; then set -- "$@" "$src"; fi
  command rm -f "$log"
  if [ -t 2 ]; then ezpz__run "$@" --log "$log" >&2 || rc=$?; else ezpz__run "$@" >"$log" 2>&1 || rc=$?; fi
  if [ "$rc" = 0 ]; then return 0; fi
  if [ "$rc" = 130 ]; then printf 'Operation cancelled by user\n' >>"$log"; fi
  ezpz__pip_err "$log"
}

# What the environment was made from: while this text stays the same there is nothing to install.
function ezpz__stamp {
  local sums=''
  sums="$({ command cat "$src/pyproject.toml" || command cat "$src" || :; command cat "$pins" || :; } 2>/dev/null | command cksum)"
  printf 'stamp 1\n%s by ezpz\nvenv %s\nsource %s\nfiles %s\npython %s\n' \
    "$([ "$ours" = 1 ] && printf made || printf used)" "$venv" "$src" "$sums" "$p_version"
}

# Reads the stamp into stamp and ours; true when nothing has to be done.
function ezpz__is_stamped {
  stamp="$(command cat "$venv/.ezpz-stamp" 2>/dev/null)" || stamp=''
  case "$stamp" in *'made by ezpz'*) ours=1 ;; esac
  if [ -z "$p_torch" ] || [ -z "$p_ezpz" ]; then return 1; fi
  if [ -z "$src" ] && [ "${stamp#stamp 1}" != "$stamp" ]; then return 0; fi # nothing else is wanted
  [ "$stamp" = "$(ezpz__stamp)" ]
}

# Really imports both, in one run: a package that is only present may still not load.
function ezpz__prove {
  local out
  out="$(ezpz__run -c '
import sys
sys.path[:] = [p for p in sys.path if p]
import ezpz, torch, ezpz.launch  # the public index has another ezpz, without a launcher
print("Python %d.%d.%d" % sys.version_info[:3], "torch " + torch.__version__, "ezpz " + ezpz.__version__, sep=", ")' 2>&1)" ||
    ezpz__err 125 "ezpz and torch do not import: $(ezpz__last_line "$out") (from $venv/bin/python3); expected both. See it whole: $venv/bin/python3 -c 'import ezpz, torch'" || return
  ezpz__probe "$venv/bin/python3" || :
  (ezpz__stamp >"$venv/.ezpz-stamp") 2>/dev/null || : # read-only: the proof is then repeated in the next shell
  ezpz__log "proved: $(ezpz__last_line "$out")"
}

# Makes python3 the environment's own; the last step, so that a failure before it leaves the shell as it was.
function ezpz__activate {
  local was="$PATH" now=''
  now="$(ezpz__which python3)" || now=/
  if [ ! "${now%/*}" -ef "$venv/bin" ]; then
    # shellcheck disable=SC1091  # it comes with the environment
    if [ -r "$venv/bin/activate" ]; then . "$venv/bin/activate" || :; fi
    now="$(ezpz__which python3)" || now=/
    if [ ! "${now%/*}" -ef "$venv/bin" ]; then
      PATH="$was"
      ezpz__err 125 "cannot activate $venv (from $venv_from): python3 is still $now; expected $venv/bin/python3. Try: source $venv/bin/activate" || return
    fi
  fi
  EZPZ_READY="$now"
  ezpz__log "python3 is $now ($venv_from)"
}

# ezpz_setup_python [VENV]: a python3 that imports ezpz and torch. See docs/shell.md.
function ezpz_setup_python {
  if [ -n "${ZSH_VERSION:-}" ]; then emulate -L sh; fi
  local IFS=$' \t\n' src='' src_from='' pins='' venv='' venv_from='' active=0 base='' base_from='' stamp='' ours=0
  local p_version='' p_exe='' p_in_venv='' p_torch='' p_ensurepip='' p_ezpz='' p_lib='' p_paths=''
  case "$#${1:-}" in 0 | 1[!-]*) ;; *)
    ezpz__err 2 "unknown argument: ${2:-${1:-the empty word}} (from the call); expected a folder or nothing. Call: ezpz_setup_env [VENV]" || return ;;
  esac
  ezpz__find_source || return
  ezpz__choose_env "${1:-}" || return
  if [ "$active" = 0 ]; then ezpz__make_venv || return; fi
  if [ "$active" = 1 ]; then
    ezpz__probe "$venv/bin/python3" ||
      ezpz__err 125 "Python does not run: $venv/bin/python3 (from $venv_from) says: $p_version; expected a working environment. Leave it, or call: ezpz_setup_env FOLDER" || return
  fi
  if [ -n "${EZPZ_PYTHON:-}" ] && [ -z "$base" ]; then ezpz__log "EZPZ_PYTHON is not used: $venv is there already ($venv_from)"; fi
  [ -n "$p_exe" ] ||
    ezpz__err 2 "Python is too old: $p_version (from $venv, $venv_from); expected 3.10 or newer. Set EZPZ_PYTHON and call: ezpz_setup_env OTHER_FOLDER" || return
  ezpz__is_stamped || { ezpz__install && ezpz__prove; } || return
  ezpz__activate
}

# ---- job: where this shell is --------------------------------------------------------------------------------------

# True when python3 imports ezpz. The answer is kept per interpreter, so that launch starts no second Python each time.
function ezpz__importable {
  local now
  now="$(ezpz__which python3)" || return 1
  if [ "${EZPZ_READY:-}" = "$now" ]; then return 0; fi
  "$now" -c 'import importlib.util as u, sys; s = u.find_spec("ezpz.launch"); sys.exit(not (s and s.origin))' >/dev/null 2>&1 || return 1
  EZPZ_READY="$now"
}

# Sets hosts and slots of a PBS job. PBS_NODEFILE has a line per rank, so a host that grants two stands there twice.
function ezpz__pbs_hosts {
  local file="${PBS_NODEFILE:-}"
  [ -r "$file" ] ||
    ezpz__err 125 "no host list: ${file:-PBS_NODEFILE is not set} (from PBS_NODEFILE of job $PBS_JOBID); expected a readable file. Run this on the first host of the job." || return
  hosts="$(command awk '{ sub(/\r$/, "") } NF && !seen[$1]++ { print $1 }' "$file")"
  slots="$(command awk 'NF { n++ } END { print n + 0 }' "$file")"
  [ -n "$hosts" ] ||
    ezpz__err 125 "no hosts: $file is empty (from PBS_NODEFILE of job $PBS_JOBID); expected one host per line. Ask for ncpus of at least 1 per chunk."
}

# Sets hosts and slots of a Slurm job. Step ids from 4294967280 on are Slurm's own (batch, interactive): such a step
# names one host, while the job has them all.
function ezpz__slurm_hosts {
  local list="${SLURM_JOB_NODELIST:-${SLURM_NODELIST:-}}" tasks="${SLURM_TASKS_PER_NODE:-}" from=SLURM_JOB_NODELIST
  if [ -n "${SLURM_STEP_NODELIST:-}" ] && [ "${SLURM_STEP_ID:-0}" -lt 4294967280 ] 2>/dev/null; then
    list="$SLURM_STEP_NODELIST" tasks="${SLURM_STEP_TASKS_PER_NODE:-$tasks}" from=SLURM_STEP_NODELIST
  fi
  if [ -n "$list" ] && ezpz__which scontrol >/dev/null; then
    hosts="$(command scontrol show hostnames "$list" 2>/dev/null)" || hosts=''
  fi
  if [ -z "$hosts" ]; then
    case "$list" in
      '' | *'['* | *']'*) ezpz__err 125 "cannot read the host list: '$list' (from $from of job $job); expected scontrol on PATH to expand it. Add Slurm's bin folder to PATH, or run ezpz_setup_python first." || return ;;
    esac
    hosts="$(printf '%s\n' "$list" | command tr ',' '\n')"
  fi
  # SLURM_TASKS_PER_NODE is a list of COUNT or COUNT(xHOSTS): "2(x3),1" grants 7.
  slots="$(printf '%s\n' "$tasks" | command tr ',' '\n' | command awk -F'[(x)]+' '{ n += $1 * (NF > 1 ? $2 : 1) } END { print n + 0 }')"
}

# Sets devices, those of this host. A count that an earlier job left behind in the shell is not believed.
function ezpz__devices {
  local smi
  if [ -n "${EZPZ_NGPU_PER_HOST:-}" ]; then
    case "$EZPZ_NGPU_PER_HOST" in *[!0-9]*)
      ezpz__err 2 "not a number of devices: $EZPZ_NGPU_PER_HOST (from EZPZ_NGPU_PER_HOST); expected 0 or more. Correct or unset it." || return ;;
    esac
    devices="$EZPZ_NGPU_PER_HOST"
  elif [ -n "$job" ] && [ "${EZPZ_JOBID:-}" = "$job" ]; then
    devices="${NGPU_PER_HOST:-}"
  fi
  if [ -z "$devices" ] && [ "$scheduler" = slurm ]; then devices="${SLURM_GPUS_ON_NODE:-}"; fi
  if [ -z "$devices" ] && smi="$(ezpz__which nvidia-smi)"; then
    devices="$("$smi" -L 2>/dev/null | command awk '/^GPU/ { n++ } END { print n + 0 }')" || devices=0
  fi
  case "$devices" in '' | *[!0-9]*) devices=0 ;; esac
}

# Half the cores of this host, at least 2 and at most 4: enough to see that ranks work together.
function ezpz__few_ranks {
  local cores
  cores="$(command nproc 2>/dev/null)" || cores="$(command getconf _NPROCESSORS_ONLN 2>/dev/null)" || cores=4
  cores=$((cores / 2))
  printf '%s\n' "$((cores < 2 ? 2 : cores > 4 ? 4 : cores))"
}

# Sets hostfile: the scheduler's own when it names each host once, else one in a folder that only this user can enter.
# A path with blanks or brackets would not survive as a word of DIST_LAUNCH.
function ezpz__hostfile {
  local dir="${TMPDIR:-/tmp}" tag="${job:-$(command uname -n)}" file="${PBS_NODEFILE:-}"
  if [ "$scheduler" = pbs ] && [ "$(command cat "$file")" = "$hosts" ]; then
    case "$file" in *[!A-Za-z0-9._/@:+=,-]*) ;; *) hostfile="$file"; return 0 ;; esac
  fi
  case "$dir" in *[!A-Za-z0-9._/@:+=,-]*) dir=/tmp ;; esac
  dir="${dir%/}/ezpz-$UID-${tag//[!A-Za-z0-9._-]/_}"
  if ! command mkdir -m 700 "$dir" 2>/dev/null && { [ -L "$dir" ] || [ ! -d "$dir" ] || [ ! -O "$dir" ]; }; then
    ezpz__err 125 "cannot make a private folder: $dir (from TMPDIR); expected a new folder or one of yours. Set TMPDIR to a folder that you may write." || return
  fi
  hostfile="$dir/hostfile"
  # Renamed into place, because another shell of the same job may be reading it.
  { printf '%s\n' "$hosts" >"$hostfile.$$" && command mv -f "$hostfile.$$" "$hostfile"; } 2>/dev/null ||
    ezpz__err 125 "cannot write the host file: $hostfile (from TMPDIR); expected space and permission. Set TMPDIR to another folder." || return
}

# The small answer, for a shell whose python3 does not import ezpz: exports what `python3 -m ezpz.cluster --sh` would.
function ezpz__small_answer {
  local scheduler job hosts='' slots=0 devices='' hostfile='' nhosts ranks line=''
  # Job variables decide, never a host name: login hosts have schedulers too.
  scheduler=none job="${SLURM_JOB_ID:-${SLURM_JOBID:-${PBS_JOBID:-}}}"
  if [ -n "$job" ]; then scheduler=pbs; fi
  if [ -n "${SLURM_JOB_ID:-${SLURM_JOBID:-}}" ]; then scheduler=slurm; fi
  case "$scheduler" in
    pbs) ezpz__pbs_hosts || return ;;
    slurm) ezpz__slurm_hosts || return ;;
    none) hosts="$(command uname -n)" ;;
  esac
  ezpz__devices || return
  ezpz__hostfile || return
  nhosts="$(printf '%s\n' "$hosts" | command awk 'END { print NR }')"
  ranks=$((devices * nhosts))
  if [ "$ranks" = 0 ]; then ranks="$slots"; fi
  if [ "$ranks" = 0 ]; then ranks="$(ezpz__few_ranks)"; fi
  if [ "$scheduler" = slurm ]; then
    line="srun -N $nhosts -n $ranks"
  elif ezpz__which mpiexec >/dev/null; then
    line="mpiexec -n $ranks"
    if [ "$nhosts" -gt 1 ]; then line="$line --hostfile $hostfile"; fi
  else
    ezpz__log "no launcher: mpiexec is not on PATH; DIST_LAUNCH stays empty. With ezpz installed (ezpz_setup_python), launch starts ranks itself."
  fi
  export EZPZ_SCHEDULER="$scheduler" EZPZ_JOBID="$job" EZPZ_SITE="${EZPZ_SITE:-}" EZPZ_NRANKS="$ranks"
  export NHOSTS="$nhosts" NGPU_PER_HOST="$devices" NGPUS="$((devices * nhosts))" HOSTFILE="$hostfile" DIST_LAUNCH="$line"
  EZPZ_HOSTS="$(printf '%s\n' "$hosts" | command awk 'NR > 1 { printf "," } { printf "%s", $0 } END { print "" }')"
  export EZPZ_HOSTS
}

# The three blocks on stdout: everything else that this file says goes to stderr.
function ezpz__print_job {
  local rest="${EZPZ_HOSTS:-}" i=0 last="${NHOSTS:-0}" shown=8
  if [ "$last" -le 16 ]; then shown="$last"; fi
  printf '\n[HOSTS]\n'
  while [ "$i" -lt "$shown" ] && [ -n "$rest" ]; do
    printf '    • [host:%s] - %s\n' "$i" "${rest%%,*}"
    rest="${rest#*,}" i=$((i + 1))
  done
  if [ "$last" -gt "$shown" ]; then
    printf '    • … %s more\n    • [host:%s] - %s\n' "$((last - shown - 1))" "$((last - 1))" "${EZPZ_HOSTS##*,}"
  fi
  printf '\n[DIST INFO]\n'
  printf '    • %s\n' "NGPUS=${NGPUS:-}" "NHOSTS=${NHOSTS:-}" "NGPU_PER_HOST=${NGPU_PER_HOST:-}" \
    "EZPZ_NRANKS=${EZPZ_NRANKS:-}" "HOSTFILE=${HOSTFILE:-}" "DIST_LAUNCH=${DIST_LAUNCH:-}"
  printf '\n[LAUNCH]:\n    • To start %s ranks on %s host(s), use: launch COMMAND\n\n      launch = %s\n\n' \
    "${EZPZ_NRANKS:-?}" "${NHOSTS:-?}" "${DIST_LAUNCH:-(none was found)}"
}

# ezpz_setup_job: exports and prints scheduler, hosts, devices and the launch line of this shell.
function ezpz_setup_job {
  if [ -n "${ZSH_VERSION:-}" ]; then emulate -L sh; fi
  local IFS=$' \t\n' out
  if ezpz__importable; then
    out="$(command python3 -m ezpz.cluster --sh)" || return
    case "$out" in
      'export '*) eval "$out" ;; # quoted by shlex.quote in our own Python: the one home of the full answer
      *) ezpz__err 125 "no answer about the job: '$(ezpz__last_line "$out")' (from python3 -m ezpz.cluster --sh); expected lines that begin with export. Call: ezpz_setup_python" || return ;;
    esac
  else
    ezpz__small_answer || return
  fi
  if alias launch >/dev/null 2>&1; then ezpz__log "an alias hides the function launch; type: unalias launch"; fi
  ezpz__print_job
}

function ezpz_setup_env { ezpz_setup_python "$@" && ezpz_setup_job; }

# ---- launch --------------------------------------------------------------------------------------------------------

# launch [OPTION…] [--] COMMAND…: starts COMMAND on every rank; alone, it prints the line that it would run.
function launch {
  if [ -n "${ZSH_VERSION:-}" ]; then emulate -L sh; fi
  local IFS=$' \t\n'
  if ezpz__importable; then
    command python3 -m ezpz.launch "$@"
    return
  fi
  [ -n "${DIST_LAUNCH:-}" ] ||
    ezpz__err 125 "cannot launch: ezpz is not importable by python3 and DIST_LAUNCH is empty; expected one of them. Call: ezpz_setup_env" || return
  if [ "$#" = 0 ]; then
    printf '%s\n' "$DIST_LAUNCH"
    return
  fi
  # A subshell, so that noglob stays inside: job ids such as 4[2] stand in file names. The prefix is split into words.
  # shellcheck disable=SC2086
  (set -o noglob && exec ${DIST_LAUNCH} "$@")
}

# ---- this file -----------------------------------------------------------------------------------------------------

# Only a regular file can lead to a checkout; under `source <(…)` there is none, whatever the shell calls it.
if [ -n "${ZSH_VERSION:-}" ]; then
  # shellcheck disable=SC2296  # %x: the file that zsh is reading
  EZPZ_UTILS="${(%):-%x}"
else
  EZPZ_UTILS="${BASH_SOURCE[0]:-}"
fi
if [ ! -f "$EZPZ_UTILS" ]; then EZPZ_UTILS=''; fi
case "$EZPZ_UTILS" in '' | /*) ;; *) EZPZ_UTILS="$PWD/$EZPZ_UTILS" ;; esac

}
