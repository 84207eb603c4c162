# utils.sh: obtain a Python that runs ezpz, say where this shell is, and start ranks.
# For bash (4.2 or newer; 3.2 as far as it goes) and zsh (5.8 or newer):
#
#     source src/ezpz/bin/utils.sh            # or: source <(curl -fsSL URL), with EZPZ_SOURCE set
#     ezpz_setup_env [VENV]                   # ezpz_setup_python, then ezpz_setup_job
#     launch python3 -m ezpz.test_dist        # every rank on every device of the job
#
# reads     EZPZ_PYTHON EZPZ_VENV_DIR EZPZ_TORCH EZPZ_SOURCE EZPZ_CONSTRAINTS EZPZ_NGPU_PER_HOST EZPZ_SITE EZPZ_MODULES
#           VIRTUAL_ENV CONDA_PREFIX CONDA_EXE LOADEDMODULES MODULEPATH MODULESHOME LMOD_PKG XDG_CONFIG_HOME HOME
#           PBS_* SLURM_* FLUX_* LSB_* *_proxy TMPDIR USER, the variables of the site block, and whatever pip reads
# sets      EZPZ_UTILS (this file, when it has a path), EZPZ_READY (the python3 known to import ezpz),
#           EZPZ_SETTLED (the site, environment and modules that are set up already)
# exports   EZPZ_SCHEDULER EZPZ_JOBID EZPZ_SITE EZPZ_HOSTS EZPZ_NRANKS NHOSTS NGPU_PER_HOST NGPUS HOSTFILE DIST_LAUNCH
#           LAUNCH WORLD_SIZE EZPZ_WORLD_SIZE (the WORLD_SIZE that is ours and no wish of the user's);
#           on a site with a proxy http_proxy https_proxy no_proxy
# returns   2: something that the user named is wrong; 125: the machine, the index or the scheduler;
#           130: interrupted; otherwise the code of the command that ran. Nothing here exits a shell.
#
# Rules for whoever edits this file:
# - Functions are written `function name {`, because `name() {` breaks where `name` is an alias; programs run through
#   `command`, because aliases are expanded while this file is read.
# - Public functions begin with `emulate -L sh`, so that zsh splits words as bash does. Only what both shells know is
#   used: no arrays, no [[ ]].
# - A command that may fail is in `if` or before `||`, because the user's `set -e` is in force here too. `local` and
#   `$( )` are on two lines: together they hide the exit code.
# - A function that answers with more than one word sets variables that its public caller has declared local; the
#   comment above the function names them.

# shellcheck disable=SC1090,SC1091,SC2034,SC2254  # files of others; patterns in variables; locals that callees set
# This much any shell can read; dash, the sh of Debian and Ubuntu, would say "function: not found". ksh93 reads the
# whole file first, and so does fish, which then shows the line that it does not know: the next one.
if [ -z "${BASH_VERSION:-}${ZSH_VERSION:-}" ]; then # ezpz is for bash and zsh: in fish, type bash first
  printf '%s%s\n' "[ezpz] error: utils.sh was sourced by a shell that is neither bash nor zsh ($0);" \
    " expected one of them. Begin the script with #!/bin/bash, or type bash first." >&2
  return 2
fi

{ # A download that was cut short is a syntax error here, and then defines nothing.

# ---- messages and paths ---------------------------------------------------------------------------------------------
function ezpz__log { printf '[ezpz] %s\n' "$*" >&2; }

# ezpz__err CODE PART…: prints the one line of a failure and returns CODE. Used as `ezpz__err 2 "…" "…" || return`.
function ezpz__err {
  local code="$1"
  shift
  ezpz__log "error: $*"
  return "$code"
}

# Prints the program that PATH leads to; `command -v` would answer with aliases and functions.
function ezpz__which { if [ -n "${ZSH_VERSION:-}" ]; then whence -p "$1"; else type -P "$1"; fi; }

# Prints the last line of a text that is not blank: of a traceback, that is its cause.
function ezpz__last_line { printf '%s\n' "$1" | command awk 'NF { last = $0 } END { print last }'; }

# Prints an absolute path, free of symbolic links where the folder exists; of a file that is a link, what it leads to.
# In place of `readlink -f`, which macOS has since 12.3 only.
function ezpz__real {
  local file="$1" to="" left=40 # as many links as Linux follows
  case "$file" in
    /*) ;;
    *) file="$PWD/$file" ;;
  esac
  while [ "$left" -gt 0 ] && [ -L "$file" ] && [ ! -d "$file" ] && to="$(command readlink "$file" 2>/dev/null)"; do
    case "$to" in
      /*) file="$to" ;;
      *) file="${file%/*}/$to" ;;
    esac
    left=$((left - 1))
  done
  if [ -d "$file" ]; then
    (builtin cd -P "$file" >/dev/null 2>&1 && builtin pwd -P) && return
  elif to="$(builtin cd -P "${file%/*}/" >/dev/null 2>&1 && builtin pwd -P)" && [ "${file##*/}" != "" ]; then
    printf '%s/%s\n' "${to%/}" "${file##*/}" && return
  fi
  printf '%s\n' "${file%/}"
}

# ---- site: which machine this is ------------------------------------------------------------------------------------
# >>> sites: made by `make sites` from cluster/sites.toml; do not edit >>>
# ezpz__match_site variables | names NAME...
# Sets site and site_from, or site_clash where variables of two sites are set.
# shellcheck disable=SC2034  # the caller has declared what is set here
function ezpz__match_site {
  local name
  site='' site_from='' site_clash=''
  if [ "${1:-}" = variables ]; then
    set --
    case "${PBS_JOBID:-}" in *.aurora-pbs-*) set -- "$@" aurora "PBS_JOBID=$PBS_JOBID" ;; esac
    case "${PBS_O_HOST:-}" in aurora-*) set -- "$@" aurora "PBS_O_HOST=$PBS_O_HOST" ;; esac
    case "${PBS_JOBID:-}" in *.polaris-pbs-*) set -- "$@" polaris "PBS_JOBID=$PBS_JOBID" ;; esac
    case "${PBS_O_HOST:-}" in polaris-*) set -- "$@" polaris "PBS_O_HOST=$PBS_O_HOST" ;; esac
    case "${PBS_JOBID:-}" in *.sophia-pbs-*) set -- "$@" sophia "PBS_JOBID=$PBS_JOBID" ;; esac
    case "${PBS_O_HOST:-}" in sophia-*) set -- "$@" sophia "PBS_O_HOST=$PBS_O_HOST" ;; esac
    case "${PBS_JOBID:-}" in *.crux-pbs-*) set -- "$@" crux "PBS_JOBID=$PBS_JOBID" ;; esac
    case "${PBS_O_HOST:-}" in crux-*) set -- "$@" crux "PBS_O_HOST=$PBS_O_HOST" ;; esac
    case "${NERSC_HOST:-}" in perlmutter) set -- "$@" perlmutter "NERSC_HOST=$NERSC_HOST" ;; esac
    case "${LMOD_SYSTEM_NAME:-}" in perlmutter) set -- "$@" perlmutter "LMOD_SYSTEM_NAME=$LMOD_SYSTEM_NAME" ;; esac
    case "${SLURM_CLUSTER_NAME:-}" in \
      perlmutter) set -- "$@" perlmutter "SLURM_CLUSTER_NAME=$SLURM_CLUSTER_NAME" ;; esac
    case "${LMOD_SYSTEM_NAME:-}" in frontier) set -- "$@" frontier "LMOD_SYSTEM_NAME=$LMOD_SYSTEM_NAME" ;; esac
    case "${SLURM_CLUSTER_NAME:-}" in frontier) set -- "$@" frontier "SLURM_CLUSTER_NAME=$SLURM_CLUSTER_NAME" ;; esac
    case "${SLURM_CLUSTER_NAME:-}" in lumi) set -- "$@" lumi "SLURM_CLUSTER_NAME=$SLURM_CLUSTER_NAME" ;; esac
    case "${CLUSTER_NAME:-}" in daint | clariden | santis) set -- "$@" alps "CLUSTER_NAME=$CLUSTER_NAME" ;; esac
    case "${TACC_SYSTEM:-}" in vista) set -- "$@" vista "TACC_SYSTEM=$TACC_SYSTEM" ;; esac
    case "${TACC_SYSTEM:-}" in ls6) set -- "$@" lonestar6 "TACC_SYSTEM=$TACC_SYSTEM" ;; esac
    case "${TACC_SYSTEM:-}" in frontera) set -- "$@" frontera "TACC_SYSTEM=$TACC_SYSTEM" ;; esac
    case "${TACC_SYSTEM:-}" in stampede3) set -- "$@" stampede3 "TACC_SYSTEM=$TACC_SYSTEM" ;; esac
    while [ "$#" -gt 1 ]; do
      if [ -z "$site" ]; then
        site="$1" site_from="$2"
      elif [ "$site" != "$1" ] && [ -z "$site_clash" ]; then
        site_clash="$site (from $site_from) and $1 (from $2)"
      fi
      shift 2
    done
    if [ -n "$site_clash" ]; then site='' site_from=''; fi
    return 0
  fi
  if [ "$#" -gt 0 ]; then shift; fi
  for name in "$@"; do
    case "$name" in
      *.*) ;;
      *) continue ;;
    esac
    case "$name" in
      *.aurora.alcf.anl.gov) site=aurora ;;
      *.polaris.alcf.anl.gov) site=polaris ;;
      *.sophia.alcf.anl.gov | sophia-*.lab.alcf.anl.gov) site=sophia ;;
      *.crux.alcf.anl.gov) site=crux ;;
      *.perlmutter.nersc.gov) site=perlmutter ;;
      *.frontier.olcf.ornl.gov | *.frontier) site=frontier ;;
      andes*.olcf.ornl.gov) site=andes ;;
      *.lumi.csc.fi | lumi-uan*.csc.fi) site=lumi ;;
      daint*.alps.cscs.ch | clariden*.alps.cscs.ch | santis*.alps.cscs.ch) site=alps ;;
      *.vista.tacc.utexas.edu) site=vista ;;
      *.ls6.tacc.utexas.edu) site=lonestar6 ;;
      *.frontera.tacc.utexas.edu) site=frontera ;;
      *.stampede3.tacc.utexas.edu) site=stampede3 ;;
    esac
    if [ -n "$site" ]; then
      site_from="the host name $name"
      return 0
    fi
  done
  name="${1:-}"
  case "${name%%.*}" in
    aurora-uan-[0-9]* | x4[0-9][0-9][0-9]c[0-9]s[0-9]b0n0) site=aurora ;;
    polaris-login-[0-9]* | x300[1-9]c0s[0-9]*b[01]n0 | x301[0-6]c0s[0-9]*b[01]n0 | x310[1-9]c0s[0-9]*b[01]n0 | \
      x311[0-2]c0s[0-9]*b[01]n0 | x320[1-9]c0s[0-9]*b[01]n0 | x321[0-2]c0s[0-9]*b[01]n0) site=polaris ;;
    sophia-login-[0-9]* | sophia-gpu-[0-9]*) site=sophia ;;
    crux-login-[0-9]* | x1000c[0-9]s[0-9]b[01]n[01]) site=crux ;;
    frontier[0-9][0-9][0-9][0-9][0-9]) site=frontier ;;
    andes-login[0-9]* | andes[0-9]*) site=andes ;;
    lumi-uan[0-9]*) site=lumi ;;
    daint-ln[0-9]* | clariden-ln[0-9]* | santis-ln[0-9]*) site=alps ;;
  esac
  if [ -n "$site" ]; then site_from="the host name $name"; fi
}

# ezpz__site_facts NAME
# Sets what a shell needs to know of a site: words, and in site_modules alternatives of one step joined by |.
# shellcheck disable=SC2034  # the caller has declared what is set here
function ezpz__site_facts {
  site_scheduler='' site_module_use='' site_modules='' site_conda='' site_python='' site_torch='' site_prepend_from=''
  site_proxy='' site_no_proxy='' site_proxy_skip=''
  case "${1:-}" in
    aurora)
      site_scheduler='pbs'
      site_modules='frameworks|frameworks/2026.1.0|frameworks/2025.3.1'
      site_python='modules'
      site_torch='xpu'
      site_proxy='http://proxy.alcf.anl.gov:3128'
      site_no_proxy='admin,*.hostmgmt.cm.aurora.alcf.anl.gov,*.alcf.anl.gov,localhost'
      site_proxy_skip='aurora-uan-*'
      ;;
    polaris)
      site_scheduler='pbs'
      site_module_use='/soft/modulefiles'
      site_modules='conda'
      site_conda='base'
      site_python='modules-or-own'
      site_torch='cuda'
      site_proxy='http://proxy.alcf.anl.gov:3128'
      site_no_proxy='admin,polaris-adminvm-01,localhost,*.cm.polaris.alcf.anl.gov,polaris-*,'
      site_no_proxy+='*.polaris.alcf.anl.gov,*.alcf.anl.gov'
      ;;
    sophia)
      site_scheduler='pbs'
      site_module_use='/soft/modulefiles'
      site_modules='conda'
      site_conda='base'
      site_python='modules'
      site_torch='cuda'
      site_proxy='http://proxy.alcf.anl.gov:3128'
      ;;
    crux)
      site_scheduler='pbs'
      site_python='own'
      site_torch='cpu'
      site_proxy='http://proxy.alcf.anl.gov:3128'
      ;;
    perlmutter)
      site_scheduler='slurm'
      site_modules='pytorch'
      site_python='modules'
      site_torch='cuda'
      case ":${SLURM_JOB_PARTITION:-}" in :*milan*) site_torch='cpu' ;; esac
      ;;
    frontier)
      site_scheduler='slurm'
      site_modules='PrgEnv-gnu/8.7.0|PrgEnv-gnu cpe/26.03|cpe miniforge3/23.11.0-0|miniforge3 '
      site_modules+='rocm/7.1.1|rocm rccl-net-plugin craype-accel-amd-gfx90a'
      site_python='own'
      site_torch='https://download.pytorch.org/whl/rocm7.1'
      site_prepend_from='LD_LIBRARY_PATH=CRAY_LD_LIBRARY_PATH'
      site_proxy='http://proxy.ccs.ornl.gov:3128/'
      site_no_proxy='localhost,127.0.0.0/8,*.ccs.ornl.gov'
      ;;
    andes)
      site_scheduler='slurm'
      site_modules='miniforge3/24.11.3-2|miniforge3'
      site_python='own'
      site_torch='cpu'
      ;;
    lumi)
      site_scheduler='slurm'
      site_python='container'
      case ":${SLURM_JOB_PARTITION:-}" in :standard-g) site_torch='cpu' ;; esac
      ;;
    alps)
      site_scheduler='slurm'
      site_python='container'
      site_torch='cuda'
      ;;
    vista)
      site_scheduler='slurm'
      site_modules='gcc|gcc/15.1.0 cuda python3|python3/3.11.8'
      site_python='own'
      site_torch='https://download.pytorch.org/whl/cu129'
      ;;
    lonestar6)
      site_scheduler='slurm'
      site_python='own'
      case ":${SLURM_JOB_PARTITION:-}" in :gpu-a100 | :gpu-a100-dev) site_torch='cuda' ;; esac
      case ":${SLURM_JOB_PARTITION:-}" in :gpu-a100-small) site_torch='cuda' ;; esac
      case ":${SLURM_JOB_PARTITION:-}" in :gpu-h100) site_torch='cuda' ;; esac
      ;;
    frontera)
      site_scheduler='slurm'
      site_python='own'
      site_torch='https://download.pytorch.org/whl/cu124'
      ;;
    stampede3)
      site_scheduler='slurm'
      site_modules='python'
      site_python='own'
      case ":${SLURM_JOB_PARTITION:-}" in :h100) site_torch='cuda' ;; esac
      case ":${SLURM_JOB_PARTITION:-}" in :pvc) site_conda='pytorch' site_python='modules' site_torch='xpu' ;; esac
      ;;
    *) return 1 ;;
  esac
}
# <<< sites <<<

# Prints what this host is called, lower case, its own name first, without asking a network or a scheduler.
function ezpz__host_names {
  command cat /etc/hosts /etc/resolv.conf 2>/dev/null | command awk -v node="$(command uname -n 2>/dev/null)" '
    BEGIN { node = tolower(node) }
    { $0 = tolower($0); sub(/#.*/, "") }
    !known { for (i = 2; i <= NF; i++) if ($i == node) known = $2 }
    !domain && ($1 == "domain" || $1 == "search") { domain = $2 }
    END {
      print node
      if (node ~ /[.]/) exit
      if (known) print known
      if (domain) print node "." domain
    }'
}

# Sets the site_* facts of the site $1, the user's own before the packaged ones; returns 1 where neither knows it.
function ezpz__facts {
  if typeset -f ezpz__user_site_facts >/dev/null && ezpz__user_site_facts "$1"; then return 0; fi
  ezpz__site_facts "$1"
}

# Prints the names of all sites, each after a blank: the labels of the `case` in the functions that hold the facts.
function ezpz__site_names {
  { typeset -f ezpz__user_site_facts ezpz__site_facts || :; } | command awk '
    $1 ~ /^[(]?[a-z0-9_-]+[)]$/ { gsub(/[()]/, "", $1); names = names " " $1 }
    END { print names }'
}

# Defines the functions of the user's own sites, if there are any.
function ezpz__read_user_sites {
  local file="${XDG_CONFIG_HOME:-${HOME:-}/.config}/ezpz/sites"
  if [ -r "$file.sh" ]; then
    . "$file.sh" || ezpz__err 2 "cannot use $file.sh; expected the functions of your own sites." \
      "Type: ezpz sites --sh >'$file.sh'" || return
  fi
  if [ -r "$file.toml" ] && { [ ! -e "$file.sh" ] || [ "$file.toml" -nt "$file.sh" ]; }; then
    ezpz__log "$file.toml is newer than the shell's copy; type: ezpz sites --sh >'$file.sh'"
  fi
}

# Sets site and site_from, or site_clash: from variables that one machine sets, else from the names of this host.
function ezpz__recognise_site {
  local kind match names=''
  for kind in variables names; do
    if [ "$kind" = names ] && [ -z "$site$site_clash" ]; then names="$(ezpz__host_names)" || :; fi
    for match in ezpz__match_user_site ezpz__match_site; do
      if [ -n "$site$site_clash" ]; then return 0; fi
      # shellcheck disable=SC2086  # the names of the host are words
      if typeset -f "$match" >/dev/null; then "$match" "$kind" $names; fi
    done
  done
}

# ezpz__site [JOBID]: sets site (empty where it is unknown) and site_from, where that comes from.
function ezpz__site {
  local site_clash=''
  site='' site_from=''
  ezpz__read_user_sites || return
  # An EZPZ_SITE that ezpz_setup_job exported for another job counts only where nothing else names the site.
  if [ -z "${EZPZ_SITE:-}" ] || [ "${EZPZ_JOBID-${1:-}}" != "${1:-}" ]; then ezpz__recognise_site; fi
  if [ -n "$site" ]; then return 0; fi
  site="${EZPZ_SITE:-}" site_from="${EZPZ_SITE:+EZPZ_SITE}"
  case " $site_clash" in
    " " | *" ${site:-?} (from "*) ;;
    *) ezpz__err 125 "two sites at once: $site_clash; expected one. Type: export EZPZ_SITE=NAME" || return ;;
  esac
  if [ -z "$site" ] || (ezpz__facts "$site"); then return 0; fi
  ezpz__err 2 "unknown site: $site (from EZPZ_SITE); expected one of:$(ezpz__site_names)." \
    "Correct or unset EZPZ_SITE."
}

# Exports the site's proxy, where the user set none: compute hosts reach nothing without it, some login hosts nothing
# with it.
function ezpz__set_proxy {
  local name
  if [ -z "$site_proxy" ]; then return 0; fi
  if [ -n "${http_proxy+1}${https_proxy+1}${all_proxy+1}${HTTP_PROXY+1}${HTTPS_PROXY+1}${ALL_PROXY+1}" ]; then
    return 0
  fi
  for name in ${site_proxy_skip:+$(ezpz__host_names)}; do
    case "$name" in $site_proxy_skip) return 0 ;; esac
  done
  export http_proxy="$site_proxy" https_proxy="$site_proxy" HTTP_PROXY="$site_proxy" HTTPS_PROXY="$site_proxy"
  if [ -n "$site_no_proxy" ] && [ -z "${no_proxy:-}${NO_PROXY:-}" ]; then
    export no_proxy="$site_no_proxy" NO_PROXY="$site_no_proxy"
  fi
  ezpz__log "proxy: $site_proxy, of the site $site"
}

# ---- modules: loading what a site's Python needs --------------------------------------------------------------------
# Runs what the site brings (module, conda) without -e, -u and pipefail, which such code seldom survives. What it prints
# is written to the file $output, which ezpz__enter_site has made.
function ezpz__foreign {
  local options=":${SHELLOPTS:-}:" code=0 option IFS=$' \t\n'
  if [ -n "${ZSH_VERSION:-}" ]; then emulate -L zsh; fi # as it was written for; these options end with this function
  set +eu +o pipefail
  "$@" >|"$output" 2>&1 </dev/null || code=$?
  for option in errexit nounset pipefail; do
    case "$options" in *":$option:"*) set -o "$option" ;; esac
  done
  return "$code"
}

# Defines the function `module`, which a shell that is no login shell often lacks.
function ezpz__init_module {
  local file kind=bash
  if [ -n "${ZSH_VERSION:-}" ]; then kind=zsh; fi
  for file in \
    "${LMOD_PKG:-}/init/$kind" \
    "${MODULESHOME:-}/init/$kind" \
    /etc/profile.d/z00_lmod.sh \
    /etc/profile.d/lmod.sh \
    /etc/profile.d/modules.sh \
    "/usr/share/lmod/lmod/init/$kind" \
    "/opt/cray/pe/lmod/lmod/init/$kind" \
    "/opt/apps/lmod/lmod/init/$kind" \
    "/usr/share/Modules/init/$kind" \
    "/usr/share/modules/init/$kind" \
    "/opt/cray/pe/modules/default/init/$kind"; do
    if typeset -f module >/dev/null; then return 0; fi
    if [ -f "$file" ] && [ -r "$file" ]; then ezpz__foreign . "$file" || :; fi
  done
  if typeset -f module >/dev/null; then return 0; fi
  ezpz__err 125 "no module command: neither LMOD_PKG, MODULESHOME, /etc/profile.d nor the usual folders define it" \
    "(for the modules $modules_from); expected Lmod or Environment Modules." \
    "Start a login shell (bash -l), or set EZPZ_MODULES=none or EZPZ_PYTHON=/path/to/python3."
}

# True when the module $1, or a version of it, is loaded. Sets have, its full name.
function ezpz__is_loaded {
  local IFS=:
  for have in ${LOADEDMODULES:-}; do
    case "$have" in "$1" | "$1"/*) return 0 ;; esac
  done
  return 1
}

# Prints the newest version of the module $1, from the output of `module -t avail`.
function ezpz__newest_version {
  command awk -v at="$1/" '{ sub(/[(<].*/, "") } index($0, at) == 1 && !/[:\/]$/' "$output" |
    command sort -V | command tail -n 1
}

# Prints why `module load` loaded nothing: the first line of its output that speaks of an error, else the first line.
function ezpz__load_cause {
  command awk '
    { is_error = /rror|ERROR|nable|nknown|annot/; sub(/^.*(following error:|ERROR:) */, "") }
    !any && /[a-z]/ { any = $0 }
    !error && is_error { error = $0 }
    END { print error ? error : any ? any : "module load loaded nothing and did not say why" }' "$output"
}

# ezpz__load STEP: loads one of "NAME|NAME/VERSION", else the default or the newest version of one of them. Only
# LOADEDMODULES is believed, because `module load` may load nothing and return 0. Adds the full name to loaded. Fails
# with is_own=1 where the site is known to work without its modules.
function ezpz__load {
  local name plain want how have='' tried='' cause='' IFS=$' \t\n|'
  for how in already named default newest; do
    for name in $1; do
      plain="${name%/[0-9]*}"
      want="$plain"
      if [ "$how" = named ]; then want="$name"; fi
      if [ "$how" = newest ]; then
        ezpz__foreign module -t avail "$plain" || :
        want="$(ezpz__newest_version "$plain")" || :
      fi
      case "|$tried||" in *"|$want|"*) continue ;; esac # also where there is no newest version
      if [ "$how" != already ]; then ezpz__foreign module load "$want" || :; fi
      if ezpz__is_loaded "$want"; then
        ezpz__report_load
        return 0
      fi
      if [ "$how" != already ]; then
        cause="${cause:-$(ezpz__load_cause)}" tried="${tried:+$tried|}$want"
      fi
    done
  done
  if [ "$site_python" = modules-or-own ] && [ "$modules_from" = "of the site $site" ]; then
    ezpz__log "  WITHOUT the site's modules: ${tried//|/ or } does not load: $cause"
    ezpz__log "  python3 of PATH is taken instead, and a torch from the package index where the environment has none;" \
      "to try the modules again in a new environment: ezpz_setup_env OTHER_FOLDER"
    is_own=1
    return 1
  fi
  ezpz__err 125 "cannot load the module ${tried//|/ or } ($modules_from): $cause; expected it in LOADEDMODULES." \
    "Look: module avail or module spider $plain;" \
    "then set EZPZ_MODULES='NAME…' or none, or EZPZ_PYTHON=/path/to/python3."
}

# Reports the module that ezpz__load has in have, with what it printed and with what it was taken instead of.
function ezpz__report_load {
  loaded="${loaded:+$loaded }$have"
  if [ "$how" = already ]; then
    ezpz__log "  $have is loaded already and stays"
    return 0
  fi
  command awk -v at="$want" 'NF { print "[ezpz]   " at " says: " $0 }' "$output" >&2
  ezpz__log "  loaded $have${tried:+, INSTEAD OF ${tried//|/, }: $cause}"
}

# Activates the conda environment $site_conda, unless its python3 is on PATH already.
function ezpz__activate_conda {
  local script
  if [ "$(ezpz__which python3)" = "${CONDA_PREFIX:-}/bin/python3" ]; then return 0; fi
  script="${CONDA_EXE:-$(ezpz__which conda)}" || script=''
  script="${script%/*/*}/etc/profile.d/conda.sh"
  if ! typeset -f conda >/dev/null && [ -r "$script" ]; then ezpz__foreign . "$script" || :; fi
  ezpz__foreign conda activate "$site_conda" || :
  if [ "$(ezpz__which python3)" != "${CONDA_PREFIX:-}/bin/python3" ]; then
    ezpz__err 125 "cannot activate the conda environment $site_conda (of the site $site):" \
      "$(ezpz__last_line "$(command cat "$output")"); expected its python3 on PATH." \
      "Try: conda activate $site_conda; or set EZPZ_MODULES=none or EZPZ_PYTHON=/path/to/python3." || return
  fi
  ezpz__log "  activated conda's $site_conda"
}

# Prepends variables to others, as in LD_LIBRARY_PATH=CRAY_LD_LIBRARY_PATH of $site_prepend_from.
function ezpz__prepend_variables {
  local pair target addition value
  for pair in $site_prepend_from; do
    target="${pair%%=*}"
    addition="$(command printenv "${pair#*=}")" || continue
    value="$(command printenv "$target")" || value=''
    case "$value:" in
      "$addition:"*) ;;
      *) export "$target=$addition${value:+:$value}" ;;
    esac
  done
}

# Loads the words of site_modules and does what belongs to them. Sets loaded: the modules below the environment.
function ezpz__load_modules {
  local word
  ezpz__init_module || return
  for word in $site_module_use; do
    case ":${MODULEPATH:-}:" in
      *":$word:"*) ;;
      *) ezpz__foreign module use "$word" || : ;;
    esac
  done
  for word in $site_modules; do ezpz__load "$word" || return; done
  if [ -n "${EZPZ_MODULES:-}" ] && ! typeset -f conda >/dev/null && ! ezpz__which conda >/dev/null; then
    site_conda='' # the user's modules bring no conda
  fi
  if [ -n "$site_conda" ]; then ezpz__activate_conda || return; fi
  ezpz__prepend_variables
}

# True when the environment $venv imports torch as it is, without modules.
function ezpz__has_torch {
  [ -x "$venv/bin/python3" ] || return
  ezpz__run -c 'import torch' >/dev/null 2>&1
}

# Decides which modules the environment $venv needs. Sets site_modules (empty for none) and modules_from.
function ezpz__choose_modules {
  local record
  record="$(command cat "$venv/.ezpz-modules" 2>/dev/null)" || record=''
  modules_from="of the site $site"
  if [ "${EZPZ_MODULES:-}" = none ]; then
    site_modules='' modules_from="because EZPZ_MODULES=none"
  elif [ -n "${EZPZ_MODULES:-}" ]; then
    site_modules="$EZPZ_MODULES" modules_from="from EZPZ_MODULES"
  elif [ "${record#"$site "}" != "$record" ]; then
    site_modules="${record#* }" modules_from="on which $venv was made"
  elif [ -n "$site_modules" ] && [ -n "${EZPZ_PYTHON:-}" ]; then
    site_modules='' modules_from="because EZPZ_PYTHON is set"
  elif [ -n "$site_modules" ] && ezpz__has_torch; then
    site_modules='' modules_from="because $venv imports torch without them"
  fi
}

# Loads the modules on which the environment $venv is, or will be, made. Sets loaded.
function ezpz__enter_site {
  local modules_from output is_own=0 code=0
  ezpz__choose_modules
  ezpz__log "site: ${site:-unknown}${site_from:+ (from $site_from)}; modules: ${site_modules:-none} ($modules_from)"
  if [ -z "$site_modules" ]; then return 0; fi
  output="$(command mktemp 2>/dev/null)" ||
    ezpz__err 125 "cannot write into ${TMPDIR:-/tmp} (from TMPDIR); expected a folder that you may write." \
      "Set TMPDIR to one." || return
  ezpz__load_modules || code=$?
  command rm -f "$output"
  if [ "$is_own" = 1 ]; then return 0; fi
  return "$code"
}

# ---- python: what is asked for --------------------------------------------------------------------------------------
# Sets src (what pip installs, or empty), src_from and pins (its constraints, or empty).
function ezpz__find_source {
  src="${EZPZ_SOURCE:-}" src_from=EZPZ_SOURCE pins="${EZPZ_CONSTRAINTS:-}"
  case "$src" in
    '') ezpz__find_checkout ;;
    git+* | *://*) ;;
    *)
      src="$(ezpz__real "$src")"
      [ -f "$src" ] || [ -f "$src/pyproject.toml" ] ||
        ezpz__err 2 "no ezpz to install: $EZPZ_SOURCE (from EZPZ_SOURCE); expected a checkout, a wheel or a" \
          "git+https:// address. Set EZPZ_SOURCE to one of them." || return
      ;;
  esac
  if [ -z "$pins" ] && [ -n "$src" ] && [ -f "$src/constraints.txt" ]; then pins="$src/constraints.txt"; fi
  [ -z "$pins" ] || [ -f "$pins" ] ||
    ezpz__err 2 "no constraints file: $pins (from EZPZ_CONSTRAINTS); expected a file of pip." \
      "Correct or unset EZPZ_CONSTRAINTS."
}

# Sets src and src_from where this file belongs to a checkout.
function ezpz__find_checkout {
  local file="${EZPZ_UTILS:-}"
  if [ -z "$file" ]; then return 0; fi
  file="$(ezpz__real "$file")" # the user may source a link from ~/bin
  if [ -f "${file%/*}/../../../pyproject.toml" ]; then
    src="$(ezpz__real "${file%/*}/../../..")" src_from="the checkout of this utils.sh"
  fi
}

# True when the active conda environment is a place to install into. One that the user may not write, or that a module
# brought, is a base instead.
function ezpz__is_in_own_conda {
  [ -z "${VIRTUAL_ENV:-}$loaded" ] && [ -n "${CONDA_PREFIX:-}" ] && [ -w "$CONDA_PREFIX" ] &&
    [ "$(ezpz__which python3)" = "$CONDA_PREFIX/bin/python3" ]
}

# ezpz__choose_env [VENV]: sets venv (the environment's folder), venv_from, and active=1 where the shell is in it.
function ezpz__choose_env {
  local now="${VIRTUAL_ENV:-}" now_from="active, VIRTUAL_ENV"
  if [ -n "$now" ] && [ ! -x "$now/bin/python3" ]; then
    ezpz__log "VIRTUAL_ENV is not used: $now has no bin/python3 that runs"
    now=''
  fi
  if ezpz__is_in_own_conda; then now="$CONDA_PREFIX" now_from="active, CONDA_PREFIX"; fi
  venv="$(ezpz__real "${1:-${EZPZ_VENV_DIR:-.venv}}")" venv_from="the current folder" active=0
  if [ -n "$1" ]; then venv_from="the VENV argument"; elif [ -n "${EZPZ_VENV_DIR:-}" ]; then venv_from=EZPZ_VENV_DIR; fi
  if [ -n "$now" ] && [ -z "$1" ] && [ "$(ezpz__copied_from "$venv")" -ef "$now" ]; then
    ezpz__log "VIRTUAL_ENV is not used: $now belongs to another folder, of which $venv is a copy"
    now=''
  fi
  if [ -n "$now" ] && { [ -z "$1" ] || [ "$venv" = "$(ezpz__real "$now")" ]; }; then
    venv="$now" venv_from="$now_from" active=1
  elif [ -z "$1${EZPZ_VENV_DIR:-}${EZPZ_PYTHON:-}" ] && ! ezpz__is_begun "$venv" && ezpz__is_beside; then
    venv="$src/.venv" venv_from="beside this utils.sh"
  fi
}

# ezpz__is_begun FOLDER: true for a virtual environment, and for one of ours that was cut short.
function ezpz__is_begun { [ -e "$1/pyvenv.cfg" ] || [ -e "$1/.ezpz-stamp" ]; }

# True where an environment stands beside this utils.sh that will do as it is, or can be completed: a second one would
# take another gigabyte.
function ezpz__is_beside {
  [ "$src_from" = "the checkout of this utils.sh" ] && ezpz__is_begun "$src/.venv" || return
  case "${EZPZ_TORCH:-}" in
    '') ;;
    *) [ "$(ezpz__without_login "$EZPZ_TORCH")" = "$(command cat "$src/.venv/.ezpz-torch" 2>/dev/null)" ] || return ;;
  esac
  [ -w "$src/.venv" ] || { ezpz__probe "$src/.venv/bin/python3" && [ -n "$p_torch" ] && [ -n "$p_ezpz" ]; }
}

# ezpz__copied_from FOLDER: prints the other folder that an environment's activate script names, and nothing for none:
# the environment was copied, or moved.
function ezpz__copied_from {
  local named
  named="$(command sed -n -E "s#^[ \t]*(export )?VIRTUAL_ENV=[\"']?(/[^\"']*).*#\2#p" "$1/bin/activate" 2>/dev/null |
    command awk 'END { print }')" || named=''
  if [ -n "$named" ] && [ ! "$named" -ef "$1" ]; then printf '%s' "$named"; fi
}

# ezpz__python PYTHON -c CODE | -m MODULE [WORD…]: runs a Python of ours, which imports nothing from the current folder:
# that may hold a json.py. Python 3.10 knows no -P, a variable would reach the ranks, and -I would drop PYTHONPATH.
# With ezpz__by=exec it takes the place of this shell.
function ezpz__python {
  local python="$1" way="$2" what="$3"
  shift 3
  if [ "$way" = -m ]; then
    set -- "$what" "$@"
    what='del sys.argv[0]; import runpy; runpy.run_module(sys.argv[0], None, "__main__", True)'
  fi
  "${ezpz__by:-command}" "$python" -c "import sys; sys.path[:] = [p for p in sys.path if p]; $what" "$@"
}

# ezpz__probe PYTHON: asks an interpreter about itself. Sets p_version, p_exe (empty below 3.10), p_in_venv and
# p_ensurepip (0 or 1), p_torch and p_ezpz (a file, or empty), p_lib (where it installs), p_paths (its package folders).
# The question must parse in Python 2 too.
function ezpz__probe {
  local out newline=$'\n' IFS='|' question='
import sys
facts = ["%d.%d.%d" % sys.version_info[:3]]
if sys.version_info >= (3, 10):
    import importlib.util, sysconfig
    def file_of(name): return getattr(importlib.util.find_spec(name), "origin", None) or ""
    facts += [sys.executable, str(int(sys.prefix != sys.base_prefix))]
    facts += [file_of("torch"), str(int(bool(file_of("ensurepip")))), file_of("ezpz")]
    facts += [sysconfig.get_path("purelib")]
    facts += ["\t".join(p for p in sys.path if p.endswith(("site-packages", "dist-packages")))]
sys.stdout.write("|".join(facts))'
  # PYTHONHOME of a loaded module would send an environment back to that module's own packages.
  if out="$(if [ "${1#"$venv"/}" != "$1" ]; then unset PYTHONHOME; fi && ezpz__python "$1" -c "$question" 2>&1)"; then
    # shellcheck disable=SC2086  # split at each |; a site's start-up files may have printed the lines before
    set -- 1 ${out##*"$newline"}
  else
    set -- 0 "$(ezpz__last_line "$out")"
  fi
  p_version="${2:-}" p_exe="${3:-}" p_in_venv="${4:-0}" p_torch="${5:-}" p_ensurepip="${6:-0}"
  p_ezpz="${7:-}" p_lib="${8:-}" p_paths="${9:-}"
  [ "$1" = 1 ]
}

# Prints the last of the loaded modules that is likely to have brought python3.
function ezpz__python_module {
  printf '%s:' "${LOADEDMODULES:-}" | command awk '
    BEGIN { RS = ":" }
    tolower($0) ~ /python|conda|frameworks|torch|miniforge|mambaforge/ { last = $0 }
    END { print last }'
}

# Prints uv or micromamba where one of them is to bring the Python: EZPZ_PYTHON names it, or python3 of PATH is missing,
# too old or without ensurepip.
function ezpz__base_tool {
  local python tool
  case "${EZPZ_PYTHON:-}" in
    uv | micromamba) printf '%s' "$EZPZ_PYTHON" && return ;;
    ?*) return 1 ;;
  esac
  if python="$(ezpz__which python3)" && ezpz__probe "$python" && [ "$p_ensurepip" = 1 ]; then return 1; fi
  for tool in uv micromamba; do
    if ezpz__which "$tool" >/dev/null; then printf '%s' "$tool" && return; fi
  done
  return 1
}

# ezpz__fetch_base uv|micromamba: has it bring a Python. Sets base.
function ezpz__fetch_base {
  local exe out folder="$venv.python"
  exe="$(ezpz__which "$1")" || exe="${MAMBA_EXE:-}"
  [ -x "$exe" ] || ezpz__err 2 "no such program: $1 (from EZPZ_PYTHON); expected it on PATH." \
    "Install it, or set EZPZ_PYTHON=/path/to/python3." || return
  if [ "$1" = uv ]; then
    ezpz__log "$exe brings Python 3.12: about 30 MB to fetch, into its own folder;" \
      "another: EZPZ_PYTHON=/path/to/python3"
    out="$(command "$exe" python install 3.12 2>&1)" && base="$(command "$exe" python find 3.12 2>/dev/null)" || base=''
  else
    ezpz__log "$exe makes $folder with Python 3.12: about 40 MB to fetch, 200 MB on disk;" \
      "another: EZPZ_PYTHON=/path/to/python3"
    base="$folder/bin/python3"
    if [ ! -x "$base" ]; then
      out="$(command "$exe" create --yes --quiet --prefix "$folder" python=3.12 2>&1 </dev/null)" || base=''
    fi
  fi
  [ -x "$base" ] || ezpz__err 125 "$1 brought no Python: $(ezpz__last_line "${out:-}") (from $exe);" \
    "expected Python 3.12. Set EZPZ_PYTHON=/path/to/python3, or see what it says by itself."
}

# Sets base and base_from: the interpreter on which a venv is made, checked to be able to.
function ezpz__find_base {
  local module tool code=125 named='' advice="Set EZPZ_PYTHON=/path/to/python3."
  base_from=PATH
  if [ -n "${EZPZ_PYTHON:-}" ]; then base_from=EZPZ_PYTHON code=2 named='such '; fi
  if tool="$(ezpz__base_tool)"; then
    ezpz__fetch_base "$tool" || return
    base_from="$tool" named="$tool"
  else
    base="$(ezpz__which "${EZPZ_PYTHON:-python3}")" ||
      ezpz__err "$code" "no ${named}Python: ${EZPZ_PYTHON:-python3} (from $base_from); expected Python 3.10 or newer." \
        "Install it, load its module, or set EZPZ_PYTHON=/path/to/python3." || return
  fi
  if [ -z "$named" ]; then
    module="$(ezpz__python_module)"
    base_from="python3 on PATH${module:+, of the loaded module $module}"
  fi
  ezpz__probe "$base" ||
    ezpz__err "$code" "Python does not run: $base (from $base_from) says: $p_version;" \
      "expected Python 3.10 or newer. $advice" || return
  [ -n "$p_exe" ] ||
    ezpz__err 2 "Python is too old: $p_version (from $base_from, $base); expected 3.10 or newer. $advice" || return
  base="$p_exe"
  [ "$p_ensurepip" = 1 ] ||
    ezpz__err 125 "cannot make a virtual environment: $base (from $base_from) has no ensurepip;" \
      "expected the whole standard library. Install the package python3-venv (python${p_version%.*}-venv)," \
      "or set EZPZ_PYTHON=/path/to/python3."
}

# ---- python: making the environment ---------------------------------------------------------------------------------
# Prints what is wrong with the disk, from what a program printed about it.
function ezpz__disk_cause {
  printf '%s\n' "$1" | command awk '
    NF { last = $0 }
    /No space left|Errno 28/ { known = "no space left on the device" }
    /quota exceeded|Errno 122/ { known = "the disk quota is exceeded" }
    /Read-only file system/ { known = "the file system is read-only" }
    /Permission denied|Operation not permitted/ { known = "permission denied" }
    END { print known ? known : last }'
}

# ezpz__disk_err WHAT OUTPUT: the one line for what a program printed about the disk.
function ezpz__disk_err {
  ezpz__err 125 "$1: $venv (from $venv_from): $(ezpz__disk_cause "$2");" \
    "expected a folder with about 1.5 GB free that you may write." \
    "Make room there, or choose another: ezpz_setup_env FOLDER"
}

function ezpz__no_source_err {
  ezpz__err 2 "no ezpz to install: this utils.sh was not sourced from a checkout and EZPZ_SOURCE is empty;" \
    "expected a source. Set EZPZ_SOURCE to a checkout or to git+https://ADDRESS, then call this again."
}

# Runs the environment's interpreter as activation will; a pip configured for --user refuses to work in a venv.
function ezpz__run { (unset PYTHONHOME && export PIP_USER=0 && ezpz__python "$venv/bin/python3" "$@"); }

# True when $venv is whole: its Python runs, and it was neither moved nor copied; that is 2 in one that the user made.
function ezpz__is_whole {
  local from
  if [ ! -e "$venv/pyvenv.cfg" ] || ! ezpz__probe "$venv/bin/python3"; then return 1; fi
  from="$(ezpz__copied_from "$venv")"
  if command grep -q 'made by ezpz' "$venv/.ezpz-stamp" 2>/dev/null; then
    [ -z "$from" ] && [ -e "$venv/bin/activate" ]
  else
    [ -z "$from" ] ||
      ezpz__err 2 "a copied environment: $venv (from $venv_from): its activate and pip lead to $from; expected one" \
        "that was made where it is. Make one: ezpz_setup_env OTHER_FOLDER, or remove $venv and call this again." ||
      return
  fi
}

# ezpz__lead_home FROM: lets the programs of an environment that was made in the folder FROM start the Python of $venv:
# pip would install into FROM. Says which packages are still those of the project that was copied.
function ezpz__lead_home {
  local name folder copy
  ezpz__run -c 'import json, pathlib
from importlib import metadata
from urllib.parse import unquote
old, new = map(pathlib.Path, sys.argv[1:])
for file in [file for file in (new / "bin").iterdir() if file.is_file() and not file.is_symlink()]:
    lines = file.read_bytes().split(b"\n", 2)
    head = [line.replace(b"%s/bin/" % bytes(old), b"%s/bin/" % bytes(new)) for line in lines[:2]]
    if lines[0][:2] == b"#!" and head != lines[:2]:
        if head[0][2:].startswith(bytes(new)) and (b" " in head[0] or len(head[0]) > 127): # as pip writes it then
            exec_line = b"\047\047\047exec\047 \"%s\" \"\0440\" \"\044@\"" % head[0][2:]
            head[:1] = [b"#!/bin/sh", exec_line, b"\047 \047\047\047"]
        file.write_bytes(b"\n".join(head + lines[2:]))
for package in metadata.distributions():
    url = json.loads(package.read_text("direct_url.json") or "{}")
    folder = pathlib.Path(unquote(url.get("url", "")).replace("file://", "", 1))
    if url.get("dir_info", {}).get("editable") and old.parent in (folder, *folder.parents):
        print(package.metadata["Name"], folder, new.parent / folder.relative_to(old.parent), sep="\t")' \
    "$1" "$venv" 2>/dev/null |
    while IFS=$'\t' read -r name folder copy; do
      [ "$copy" = "$src" ] || ezpz__log "  $name is still imported from $folder; for the copy: pip install -e $copy"
    done
}

# Makes the folder $venv, resolves its path, and marks it as ours before anything else is in it: whatever is cut short
# from here on is known and is completed by the next call.
function ezpz__make_folder {
  local out
  if ! out="$(command mkdir -p "$venv" 2>&1)"; then
    case "$out" in
      *'Not a directory'* | *'File exists'*)
        ezpz__err 2 "not a folder: a part of $venv (from $venv_from) is a file; expected a folder." \
          "Call: ezpz_setup_env OTHER_FOLDER" || return
        ;;
      *) ezpz__disk_err "cannot make the folder" "$out" || return ;;
    esac
  fi
  venv="$(ezpz__real "$venv")"
  out="$({ printf 'incomplete\nmade by ezpz\n' >"$venv/.ezpz-stamp"; } 2>&1)" ||
    ezpz__disk_err "cannot write into" "$out"
}

# ezpz__create_venv [OPTION]: makes or mends the virtual environment in the folder $venv with the Python $base.
function ezpz__create_venv {
  local link out room="$venv/.ezpz-room"
  for link in "$venv"/bin/python*; do # a link that leads nowhere would be kept
    if [ -L "$link" ] && [ ! -e "$link" ]; then command rm -f "$link"; fi
  done
  if ! out="$(ezpz__python "$base" -m venv "$@" "$venv" 2>&1)"; then
    # venv does not pass on why ensurepip failed, so ask the disk for 20 MiB.
    out="$(command dd if=/dev/zero of="$room" bs=1048576 count=20 2>&1 && printf '%s\n' "$out")" || :
    command rm -f "$room"
    ezpz__disk_err "cannot make the virtual environment" "$out" || return
  fi
  ezpz__probe "$venv/bin/python3" ||
    ezpz__err 125 "the new virtual environment does not run: $venv/bin/python3 says: $p_version; expected a Python." \
      "Set EZPZ_PYTHON to another one."
}

# Makes the venv, or mends one that was cut short, whose base Python was removed, or that is ours and was moved. Never
# takes over a folder that holds something else.
function ezpz__make_venv {
  local base_torch base_paths from code=0
  if [ -d "$venv" ] && [ ! -e "$venv/pyvenv.cfg" ] && [ ! -e "$venv/.ezpz-stamp" ] &&
    [ -n "$(command ls -A "$venv" 2>/dev/null)" ]; then
    ezpz__err 2 "not a virtual environment: $venv (from $venv_from); expected one, or a new or empty folder." \
      "Call: ezpz_setup_env OTHER_FOLDER" || return
  fi
  ezpz__is_whole || code=$?
  if [ "$code" != 1 ]; then return "$code"; fi
  from="$(ezpz__copied_from "$venv")"
  ezpz__find_base || return
  if [ -z "$src$p_ezpz" ]; then ezpz__no_source_err || return; fi
  ezpz__log "making a virtual environment in $venv ($venv_from) on $base ($base_from, Python $p_version)"
  if [ -n "$p_torch" ] && [ -z "$p_ezpz" ]; then
    ezpz__log "  that Python imports torch and not ezpz: the environment sees its packages, and only ezpz is" \
      "installed into it; nothing is written into the Python itself"
  fi
  ezpz__make_folder || return
  if [ -n "$from" ]; then ezpz__log "  $venv was made in $from, and copied or moved: it is made anew where it is"; fi
  base_torch="${p_torch:+$p_in_venv}" base_paths="$p_paths"
  case "$base_torch" in
    '') ezpz__create_venv ;;
    0) ezpz__create_venv --system-site-packages ;;
    1) # that option would show the base of the base, which is itself in a venv
      ezpz__create_venv || return
      printf '%s\n' "$base_paths" | command tr '\t' '\n' 2>/dev/null >"$p_lib/ezpz-base.pth" ||
        ezpz__disk_err "cannot write into" 'No space left' || return
      ezpz__probe "$venv/bin/python3" || :
      ;;
  esac || return
  if [ -n "$from" ]; then ezpz__lead_home "$from"; fi
}

# ---- python: installing ---------------------------------------------------------------------------------------------
# Mends a pip that is missing (a venv of uv) or was cut short. Sets pip_conf, what pip is configured to read.
function ezpz__ensure_pip {
  local out="pip is missing and $p_lib cannot be written"
  if pip_conf="$(ezpz__run -m pip config list 2>/dev/null)"; then return 0; fi
  if ezpz__run -m pip --isolated --version >/dev/null 2>&1; then return 0; fi
  [ "$p_ensurepip" = 1 ] ||
    ezpz__err 125 "no pip in the environment: $venv (from $venv_from), whose Python has no ensurepip;" \
      "expected one of them. Install the package python3-venv (python${p_version%.*}-venv)," \
      "or give it a pip: uv pip install pip." || return
  if [ -w "$p_lib" ] && command rm -rf "$p_lib/pip" "$p_lib"/pip-*.dist-info &&
    out="$(cd "$venv" && ezpz__run -m ensurepip --upgrade --default-pip 2>&1)" && # it starts a Python of its own
    pip_conf="$(ezpz__run -m pip config list 2>/dev/null)"; then
    return 0
  fi
  ezpz__disk_err "cannot give pip to the environment" "$out"
}

# Prints the package index that pip is configured for, without the passwords that such addresses may hold.
function ezpz__index {
  printf '%s\n' "$pip_conf" | command awk -F"'" '
    { sub(/^.*[.]/, "", $1); gsub(/\/\/[^\/@ ]*@/, "//", $2); value[$1] = $2 }
    END {
      index_name = "the public package index"
      if (value["index-url="]) index_name = value["index-url="]
      if (value["no-index="] ~ /^(1|true|yes|on)$/) index_name = "no index"
      if (value["extra-index-url="]) index_name = index_name " and " value["extra-index-url="]
      if (value["find-links="]) index_name = index_name " and the folder " value["find-links="]
      print index_name
    }'
}

# Copies the constraints without the packages that the environment has from elsewhere: a base that brings torch was
# built against its own numpy, and an environment that the user made is not ours to up- or downgrade.
function ezpz__own_pins {
  ezpz__run -c '
import importlib.metadata as metadata, re, sys
pins, out, lib, ours = sys.argv[1:]
def plain(name): return re.sub(r"[-_.]+", "-", name).lower()
def is_ours(package): return ours == "1" and str(package.locate_file("")).startswith(lib)
have = {plain(package.metadata["Name"] or "") for package in metadata.distributions() if not is_ours(package)}
with open(pins) as text, open(out, "w") as kept:
    for line in text:
        if plain(re.match(r"[\w.-]*", line.strip()).group()) not in have:
            kept.write(line)
' "$pins" "$venv/ezpz-constraints.txt" "$p_lib" "$ours" 2>/dev/null
}

# ezpz__missing_wheel LOG: prints the package for which pip had no wheel. A pinned package that no index offers reads as
# a conflict with its own pin.
function ezpz__missing_wheel {
  command sed -n -e 's/.*No matching distribution found for \([^ ;(]*\).*/\1/p' \
    -e 's/.*The user requested (constraint) //p' "$1" | command awk 'END { print }'
}

# ezpz__pip_cause LOG: prints why pip failed. A failed build shows its traceback first and then, as pip's own error,
# only the name of the step.
function ezpz__pip_cause {
  command awk '
    /[A-Za-z](Error|Exception): / { cause = $0 }
    /(ERROR|error): / { error = $0 }
    NF { last = $0 }
    END {
      line = cause ? cause : error ? error : last
      sub(/^.*(ERROR|error): */, "", line)
      sub(/^[-0-9T:, ]+/, "", line)
      print line ? line : "it printed nothing"
    }' "$1"
}

# ezpz__pip_err LOG: the one line for a pip that failed.
function ezpz__pip_err {
  local missing disk again="then call this again: it continues where it stopped."
  missing="$(ezpz__missing_wheel "$1")"
  disk="$(command grep -E 'Permission denied|Read-only file system|Operation not permitted' "$1")" || disk=''
  case "$(command cat "$1")" in
    *'Operation cancelled by user'*)
      ezpz__err 130 "interrupted: $venv is incomplete; expected pip to end." \
        "Call this again: it continues where it stopped." || return
      ;;
    *'No space left on device'* | *'quota exceeded'*)
      ezpz__disk_err "pip cannot install" 'No space left' || return
      ;;
    *NewConnectionError* | *Connect*Timeout* | *ReadTimeout* | *ProxyError* | *SSLError* | *'Max retries exceeded'* | \
      *'name resolution'* | *'Network is unreachable'* | *'Connection refused'* | *'Could not resolve host'*)
      ezpz__err 125 "no network: pip could not reach $(ezpz__index)${missing:+ and found no wheel of $missing};" \
        "expected an index that answers. Set the proxy or PIP_INDEX_URL, or PIP_FIND_LINKS and PIP_NO_INDEX=1 for" \
        "a folder of wheels, $again Log: $1" || return
      ;;
  esac
  [ -z "$missing" ] ||
    ezpz__err 125 "no matching package: $missing (from $(ezpz__index)); expected a wheel for" \
      "Python ${p_version%.*} on this machine, from an index that answers. Add it to the index or folder," \
      "or set EZPZ_PYTHON to another Python, $again Log: $1" || return
  [ -z "$disk" ] || ezpz__disk_err "pip cannot install" "$disk" || return
  ezpz__err 125 "pip failed: $(ezpz__pip_cause "$1") (from pip install into $venv); expected it to end with 0." \
    "Read $1, $again"
}

# Prints the title of a scheduler whose job this is, or that answers here: what is installed here runs elsewhere.
function ezpz__scheduler_here {
  local name title variable lists daemons hides id granted
  for name in $(ezpz__schedulers); do
    ezpz__know "$name"
    if [ -n "$id" ] || "ezpz__$name" answers >/dev/null; then printf '%s' "$title" && return; fi
  done
  return 1
}

# Prints text without the passwords that addresses in it may hold.
function ezpz__without_login { printf '%s\n' "$1" | command sed 's#//[^/@ ]*@#//#g'; }

# Sets torch_build, torch_from and torch_changed (1 where another one was begun): which of torch's builds is taken, by
# where it will run. On a known site, and where a scheduler answers, this host's driver says nothing: login hosts have
# none.
function ezpz__choose_torch {
  local begun around=''
  begun="$(command cat "$venv/.ezpz-torch" 2>/dev/null)" || begun=''
  torch_build="${EZPZ_TORCH:-}" torch_from=EZPZ_TORCH
  if [ -n "$torch_build" ]; then
    :
  elif [ -n "$begun" ]; then
    torch_build="$begun" torch_from="as this environment was begun"
  elif [ -n "$p_torch" ]; then
    torch_build=default torch_from="what this environment has"
  elif printf '%s\n' "$pip_conf" | command grep -qE "no-index='?(1|[Tt]rue|[Yy]es|on)|extra-index-url=.*/whl/"; then
    torch_build=default torch_from="the index that pip is configured for decides"
  elif [ -n "$site" ]; then
    around="this is the site $site" torch_build="$site_torch" torch_from="of the site $site"
  elif around="$(ezpz__scheduler_here)"; then
    around="$around answers here"
  elif [ "$(command uname -s)" != Linux ]; then
    torch_build=default torch_from="the one build for this system"
  elif ezpz__limited 5 nvidia-smi -L | command grep -q '^GPU'; then
    torch_build=cuda torch_from="a driver of NVIDIA is here, and no scheduler"
  elif [ -e /dev/kfd ]; then
    around="/dev/kfd shows an AMD device, of which the version of ROCm is not known"
  else
    torch_build=cpu torch_from="no driver of a GPU here, and no scheduler"
  fi
  if [ -z "$torch_build" ]; then ezpz__ask_torch || return; fi
  if [ -n "$begun" ] && [ "$(ezpz__without_login "$torch_build")" != "$begun" ]; then torch_changed=1; fi
  case "$torch_build" in
    cpu | cuda | xpu | default | cu[1-9][0-9]* | rocm[1-9]* | http://* | https://* | file://*) ;;
    *)
      ezpz__err 2 "no build of torch: $torch_build (from $torch_from); expected cpu, cuda, cu128, rocm7.1, xpu," \
        "default or the address of an index. Correct or unset EZPZ_TORCH." || return
      ;;
  esac
}

# Asks at a terminal for torch_build; else stops with the lines to choose from. Wants around, why it is not known.
function ezpz__ask_torch {
  local why="which torch is not known: $around, and ranks may run on hosts with other devices than this one"
  torch_from="the answer"
  if [ -t 0 ] && [ -t 2 ]; then
    ezpz__log "$why"
    ezpz__log "type cuda (NVIDIA GPUs, about 5 GB), cpu (no GPUs, about 1 GB), rocm7.1, xpu, cu128," \
      "or an index's address:"
    IFS= read -r torch_build || torch_build=''
    if [ -n "$torch_build" ]; then return 0; fi
  fi
  ezpz__err 2 "$why (from EZPZ_TORCH, which is not set); expected one of these lines, and then the same call again:" ||
    :
  ezpz__log "  export EZPZ_TORCH=cuda    # NVIDIA GPUs: about 5 GB on disk (AMD: rocm7.1; Intel: xpu)"
  ezpz__log "  export EZPZ_TORCH=cpu     # no GPUs: about 1 GB on disk"
  return 2
}

# Tells whether a folder that pip is configured to look into (find-links) holds torch's wheel of a build.
# Then no index is asked for it: one that cannot be reached would hold up every package for minutes.
function ezpz__has_wheel { # BUILD
  printf '%s\n' "$pip_conf" | command sed -n "s/^[^=]*[.]find-links='\(.*\)'$/\1/p" |
    command sed 's/\\n/ /g; s#file://##g' | command tr ' ' '\n' |
    while IFS= read -r folder; do command ls "$folder" 2>/dev/null; done |
    command grep -qE "^torch-[^-]*([+]|%2B)$1-"
}

# Sets torch_want (what pip is asked for) and torch_index (an index beside pip's own, or empty) for torch_build.
function ezpz__want_torch {
  local pin word="${torch_build%/}"
  torch_want=torch torch_index=''
  case "$torch_build" in
    cuda | default) ;;
    *://*) torch_index="$torch_build" ;;
    *) if ! ezpz__has_wheel "$torch_build"; then torch_index="https://download.pytorch.org/whl/$torch_build"; fi ;;
  esac
  word="${word##*/}"
  pin="$(command awk '/^torch *==/ { sub(/;.*/, ""); gsub(/ /, ""); print; exit }' "${pins:-/dev/null}")"
  case "$word" in
    cuda | default)
      if [ -n "$pin" ] && [ "$torch_changed" = 1 ]; then torch_want="torch===${pin#torch==}"; fi # 2.8.0+cpu is ==2.8.0
      ;;
    cpu | xpu | cu[1-9]* | rocm[1-9]*) if [ -n "$pin" ]; then torch_want="$pin+$word"; fi ;;
  esac
}

# Says which torch, why, how large, and how to have another.
function ezpz__announce_torch {
  local size what="${torch_want}"
  case "$torch_build" in
    cpu) size="about 200 MB to fetch and 800 MB on disk" what="$what, the CPU build" ;;
    cuda | cu[1-9]*) size="about 3 GB to fetch and 5 GB on disk" what="$what, a CUDA build" ;;
    rocm*) size="about 5 GB to fetch and 15 GB on disk" what="$what, a ROCm build" ;;
    xpu) size="several GB" what="$what, the build for Intel GPUs" ;;
    *) size="about 200 MB to fetch and 800 MB on disk for a CPU build, several GB for a GPU build" ;;
  esac
  if [ "$torch_want" = torch ]; then
    what="$(command awk '/^torch *[=~<>]/ { print $1; exit }' "${pins:-/dev/null}")${what#torch}"
    if [ "$what" = "${what#torch}" ]; then what="torch (the newest that the index offers)$what"; fi
  fi
  ezpz__log "  $what ($torch_from): $size"
  ezpz__log "  for another: EZPZ_TORCH=cpu, cuda, cu128, rocm7.1, xpu or the address of an index"
}

# Says what will be installed, how large it is, and from where.
function ezpz__announce_install {
  ezpz__log "installing into $venv (Python $p_version):"
  if [ "$need_ezpz" = 1 ]; then
    ezpz__log "  ezpz from $src ($src_from)," \
      "with rich, numpy, xarray, h5py, h5netcdf, plotext, matplotlib, filelock: about 250 MB"
  fi
  if [ "$need_torch" = 0 ]; then
    ezpz__log "  torch is there already and stays as it is"
  else
    ezpz__announce_torch
  fi
  ezpz__log "  packages from $(ezpz__index)$(ezpz__without_login "${torch_index:+ and $torch_index}");" \
    "pip's own words in $log"
}

# True where one line of the terminal can be drawn anew.
function ezpz__has_live_line { [ -t 2 ] && case "${TERM:-dumb}" in dumb) false ;; esac; }

# ezpz__tick WHAT LOG: says what is going on, until it is ended or its shell is gone: on a terminal every second in one
# line that it draws anew, else every 15 s.
function ezpz__tick {
  local waited=0 every=15 last columns
  if ezpz__has_live_line; then every=1; fi
  while command sleep "$every" >/dev/null 2>&1 && command kill -0 "$$" 2>/dev/null; do
    waited=$((waited + every))
    last="$(command awk '{ sub(/^ */, "") }
      /^Progress [0-9]+ of [0-9]+/ { if ($4 > 0) part = sprintf(" %d %%", 100 * $2 / $4) }
      /^(Collecting|Downloading|Building|Getting|Installing|Using cached|Obtaining|Preparing)/ { line = $0; part = "" }
      END { print substr(line, 1, 90) part }' "$2" 2>/dev/null)" || last=''
    last="$1 for $waited s$(ezpz__without_login "${last:+: $last}")"
    if [ "$every" = 15 ]; then ezpz__log "$last" && continue; fi
    columns="$(command stty size <&2 2>/dev/null)" || columns='50 80'
    printf '\r\033[K%.*s' "$((${columns#* } - 1))" "[ezpz] $last" >&2
  done
}

# Ends the process $ticker and takes its line from the terminal.
function ezpz__end_tick {
  command kill "$ticker" 2>/dev/null || :
  wait "$ticker" 2>/dev/null || :
  if ezpz__has_live_line; then printf '\r\033[K' >&2; fi
}

# ezpz__speaking WHAT LOG COMMAND…: runs a command of this file and says meanwhile that it works. What speaks is in the
# background, because what is there ignores Ctrl-C; it holds no pipe that the command's reader waits for.
function ezpz__speaking {
  local what="$1" file="$2"
  shift 2
  (
    set +m # zsh would tell that the one in the background has ended
    code=0
    ezpz__tick "$what" "$file" </dev/null >/dev/null &
    ticker=$!
    trap 'ezpz__end_tick; exit 130' INT
    trap 'ezpz__end_tick; exit 143' TERM
    "$@" || code=$?
    ezpz__end_tick
    exit "$code"
  )
}

# True for a pip that prints its progress as numbers also where it has no terminal: 24.1 and newer.
function ezpz__pip_counts {
  local file
  for file in "$p_lib"/pip-*.dist-info; do
    case "${file##*/pip-}" in 24.[1-9]* | 2[5-9].* | [3-9][0-9].*) return 0 ;; esac
  done
  return 1
}

# Runs pip into the file $log. torch's own index is told in the environment, because command lines can be read by
# everybody and its address may hold a password.
function ezpz__pip {
  local more
  if [ -n "$torch_index" ]; then
    more="$(printf '%s\n' "$pip_conf" | command sed -n "s/^[^=]*[.]extra-index-url='\(.*\)'$/\1/p")" || more=''
    export PIP_EXTRA_INDEX_URL="${PIP_EXTRA_INDEX_URL:-$more} $torch_index"
  fi
  if ezpz__has_live_line && ezpz__pip_counts; then export PIP_PROGRESS_BAR=raw; fi
  ezpz__run "$@" >"$log" 2>&1
}

# Installs what need_ezpz and need_torch name.
function ezpz__run_pip {
  local code=0
  set -- -m pip install --disable-pip-version-check --no-input
  if [ -n "$pins" ]; then
    ezpz__own_pins || ezpz__err 125 "cannot read the constraints: $pins; expected lines like torch==2.8.0." \
      "Correct that file." || return
    set -- "$@" -c "$venv/ezpz-constraints.txt"
  fi
  if [ "$need_torch" = 1 ]; then
    set -- "$@" "$torch_want"
    ezpz__without_login "$torch_build" >"$venv/.ezpz-torch" || :
  fi
  if [ "$need_ezpz" = 1 ] && [ -d "$src" ]; then set -- "$@" -e; fi
  if [ "$need_ezpz" = 1 ]; then set -- "$@" "$src"; fi
  command rm -f "$log"
  ezpz__speaking "pip has worked" "$log" ezpz__pip "$@" || code=$?
  if [ "$code" = 130 ]; then printf 'Operation cancelled by user\n' >>"$log"; fi
  [ "$code" = 0 ] || ezpz__pip_err "$log"
}

# Installs what is missing, if anything; a failure leaves the environment to be completed by the next call.
function ezpz__install {
  local need_ezpz=1 need_torch=0 pip_conf='' log="$venv/ezpz-install.log"
  local torch_build='' torch_from='' torch_want='' torch_index='' torch_changed=0
  # Editable in the user's own environment, or brought by the base, from where we would take it: nothing to do.
  if [ -n "$p_ezpz" ]; then
    if [ -z "$src" ]; then need_ezpz=0; fi
    if [ -z "$stamp" ] && [ "${p_ezpz#"$src"/}" != "$p_ezpz" ]; then need_ezpz=0; fi
  fi
  # A torch in a venv of ours may be the half of one whose unpacking was cut: pip knows, the interpreter does not.
  if [ -z "$p_torch" ]; then need_torch=1; fi
  if [ "$ours" = 1 ] && [ "${p_torch#"$venv"/}" != "$p_torch" ]; then need_torch=1; fi
  if [ "$need_ezpz$need_torch" = 00 ]; then return 0; fi
  if [ "$need_ezpz" = 1 ] && [ -z "$src" ]; then ezpz__no_source_err || return; fi
  if [ ! -w "$p_lib" ] || [ ! -w "$venv" ]; then
    if [ -n "$p_torch" ] && [ -n "$p_ezpz" ]; then # a group's environment, for all who may read it
      ezpz__log "$venv may not be written and is used as it is: its ezpz is" \
        "${p_ezpz%/*}${src:+, not $src ($src_from); for that one: ezpz_setup_env FOLDER}"
      return 0
    fi
    ezpz__err 125 "cannot install into $venv (from $venv_from): permission denied for $p_lib;" \
      "expected an environment that you may write. Make one on top of it: ezpz_setup_env FOLDER" || return
  fi
  ezpz__ensure_pip || return
  if [ "$need_torch" = 1 ]; then
    ezpz__choose_torch || return
    ezpz__want_torch
  fi
  ezpz__announce_install
  ezpz__run_pip
}

# Reads the stamp, what the environment was made from. Sets stamp, ours (1 when we made it) and stamp_now; true while
# there is nothing to do.
function ezpz__is_stamped {
  local sums kind=used
  stamp="$(command cat "$venv/.ezpz-stamp" 2>/dev/null)" || stamp=''
  case "$stamp" in *'made by ezpz'*) ours=1 kind=made ;; esac
  sums="$({ command cat "$src/pyproject.toml" || command cat "$src" || :; command cat "$pins" || :; } 2>/dev/null |
    command cksum)"
  stamp_now="$(printf 'stamp 1\n%s by ezpz\nvenv %s\nsource %s\nfiles %s\npython %s\n' \
    "$kind" "$venv" "$src" "$sums" "$p_version")"
  if [ -z "$p_torch" ] || [ -z "$p_ezpz" ]; then return 1; fi
  if [ -n "$loaded" ] && [ "$site $loaded" != "$(command cat "$venv/.ezpz-modules" 2>/dev/null)" ]; then
    return 1 # the imports were proved on other modules
  fi
  if [ -n "${EZPZ_TORCH:-}" ] && [ "$ours" = 1 ] && [ -e "$venv/.ezpz-torch" ] &&
    [ "$(ezpz__without_login "$EZPZ_TORCH")" != "$(command cat "$venv/.ezpz-torch")" ]; then
    return 1 # another build of torch is wanted
  fi
  if [ -z "$src" ] && [ "${stamp#stamp 1}" != "$stamp" ]; then return 0; fi # nothing else could be installed
  [ "$stamp" = "$stamp_now" ]
}

# Really imports both, because a package that is only present may still not load, and stamps the environment if it may.
# The public index has another ezpz, which has no ezpz.launch.
function ezpz__prove {
  local out
  ezpz__log "importing torch and ezpz, to prove them: seconds, on a shared file system up to minutes"
  out="$(ezpz__run -c '
import ezpz, torch, ezpz.launch
print("Python %d.%d.%d" % sys.version_info[:3], "torch " + torch.__version__, "ezpz " + ezpz.__version__, sep=", ")
' 2>&1)" ||
    ezpz__err 125 "ezpz and torch do not import: $(ezpz__last_line "$out") (from $venv/bin/python3); expected both." \
      "See it whole: $venv/bin/python3 -c 'import ezpz, torch'" || return
  {
    if [ -n "$loaded" ]; then printf '%s\n' "$site $loaded" >"$venv/.ezpz-modules"; fi &&
      printf '%s\n' "$stamp_now" >"$venv/.ezpz-stamp"
  } 2>/dev/null || :
  ezpz__log "proved: $(ezpz__last_line "$out")"
}

# Makes python3 the environment's own; the last step, so that a failure before it leaves the shell as it was.
function ezpz__activate {
  local old_path="$PATH" left="${VIRTUAL_ENV:-}/bin:" now
  now="$(ezpz__which python3)" || now=/
  # An active venv that is left puts back the PATH of before: without the modules that were loaded since.
  if [ -n "$loaded" ] && [ -n "${VIRTUAL_ENV:+${_OLD_VIRTUAL_PATH:-}}" ]; then
    _OLD_VIRTUAL_PATH="${PATH/"$left"/}"
  fi
  if [ ! "${now%/*}" -ef "$venv/bin" ] && [ -r "$venv/bin/activate" ]; then . "$venv/bin/activate" || :; fi
  now="$(ezpz__which python3)" || now=/
  if [ ! "${now%/*}" -ef "$venv/bin" ]; then
    PATH="$old_path"
    ezpz__err 125 "cannot activate $venv (from $venv_from): python3 is still $now; expected $venv/bin/python3." \
      "Try: source $venv/bin/activate" || return
  fi
  EZPZ_READY="$now" EZPZ_SETTLED="$site|$venv|${EZPZ_MODULES:-}|${LOADEDMODULES:-}"
  ezpz__log "python3 is $now ($venv_from)"
  if [ "$venv_from" = "beside this utils.sh" ]; then
    ezpz__log "  for an environment of this folder: ezpz_setup_env .venv"
  fi
}

# ezpz__use_path VENV: takes python3 of PATH as it is where it imports torch and ezpz (a container, a venv that is not
# active), and nothing else was asked for. Nothing is written.
function ezpz__use_path {
  local python out
  if [ -n "$1${EZPZ_VENV_DIR:-}${EZPZ_PYTHON:-}" ] || [ "$active" = 1 ] ||
    { [ "$venv_from" != "beside this utils.sh" ] && ezpz__is_begun "$venv"; }; then
    return 1
  fi
  python="$(ezpz__which python3)" && ezpz__probe "$python" && [ -n "$p_torch" ] && [ -n "$p_ezpz" ] || return
  ezpz__log "importing torch and ezpz of $python: seconds, on a shared file system up to minutes"
  if ! out="$(ezpz__python "$python" -c '
import ezpz, torch, ezpz.launch
print("Python %d.%d.%d" % sys.version_info[:3], "torch " + torch.__version__, "ezpz " + ezpz.__version__, sep=", ")
' 2>&1)"; then
    ezpz__log "$python has both and imports them not: $(ezpz__last_line "$out"); an environment is made"
    return 1
  fi
  EZPZ_READY="$python" EZPZ_SETTLED="$site|$venv|${EZPZ_MODULES:-}|${LOADEDMODULES:-}"
  ezpz__log "python3 is $python (on PATH), used as it is, nothing is written: $(ezpz__last_line "$out")"
  if [ -n "$src" ] && [ "${p_ezpz#"$src"/}" = "$p_ezpz" ]; then
    ezpz__log "  its ezpz is ${p_ezpz%/*}, not $src ($src_from); for that one: ezpz_setup_env FOLDER"
  fi
}

# Makes the environment usable: makes it where it is missing, checks its Python, installs and proves what is missing.
function ezpz__complete_env {
  if [ "$active" = 0 ]; then
    ezpz__make_venv || return
  else
    ezpz__probe "$venv/bin/python3" ||
      ezpz__err 125 "Python does not run: $venv/bin/python3 (from $venv_from) says: $p_version;" \
        "expected a working environment. Leave it, or call: ezpz_setup_env FOLDER" || return
  fi
  if [ -n "${EZPZ_PYTHON:-}" ] && [ -z "$base" ]; then
    ezpz__log "EZPZ_PYTHON is not used: $venv is there already ($venv_from)"
  fi
  [ -n "$p_exe" ] ||
    ezpz__err 2 "Python is too old: $p_version (from $venv, $venv_from); expected 3.10 or newer." \
      "Set EZPZ_PYTHON and call: ezpz_setup_env OTHER_FOLDER" || return
  ezpz__is_stamped || { ezpz__install && ezpz__prove; }
}

# ezpz_setup_python [VENV]: a python3 that imports ezpz and torch. See docs/shell.md.
function ezpz_setup_python {
  if [ -n "${ZSH_VERSION:-}" ]; then emulate -L sh; fi
  local IFS=$' \t\n' src='' src_from='' pins='' base='' base_from='' stamp='' stamp_now='' ours=0 loaded=''
  local venv='' venv_from='' active=0 site='' site_from='' site_scheduler='' site_module_use='' site_modules=''
  local site_conda='' site_python='' site_prepend_from='' site_proxy='' site_no_proxy='' site_proxy_skip=''
  local site_torch='' p_version='' p_exe='' p_in_venv='' p_torch='' p_ensurepip='' p_ezpz='' p_lib='' p_paths=''
  case "$#${1:-}" in
    0 | 1[!-]*) ;;
    *)
      ezpz__err 2 "unknown argument: ${2:-${1:-the empty word}} (from the call); expected a folder or nothing." \
        "Call: ezpz_setup_env [VENV]" || return
      ;;
  esac
  ezpz__find_source || return
  ezpz__choose_env "${1:-}"
  ezpz__site "$(ezpz__id)" || return
  if [ -n "$site" ] && ezpz__facts "$site"; then ezpz__set_proxy; fi
  if [ -n "$site${EZPZ_MODULES:-}" ] &&
    [ "${EZPZ_SETTLED:-}" != "$site|$venv|${EZPZ_MODULES:-}|${LOADEDMODULES:-}" ]; then
    ezpz__enter_site || return
  fi
  if [ -n "$loaded" ]; then ezpz__choose_env "${1:-}"; fi # the modules may have brought another python3
  if ezpz__use_path "${1:-}"; then return 0; fi
  ezpz__complete_env || return
  ezpz__activate
}

# ---- job: asking programs -------------------------------------------------------------------------------------------
# True when python3 imports ezpz. The answer is kept per interpreter, so that launch starts no second Python each time.
function ezpz__importable {
  local now question='import importlib.util as u, sys; s = u.find_spec("ezpz.launch"); sys.exit(not (s and s.origin))'
  now="$(ezpz__which python3)" || return
  if [ "${EZPZ_READY:-}" = "$now" ]; then return 0; fi
  ezpz__python "$now" -c "$question" >/dev/null 2>&1 && EZPZ_READY="$now"
}

# ezpz__limited SECONDS PROGRAM ARG…: runs a program that may be missing or hang, for so long at most where there is a
# `timeout`.
function ezpz__limited {
  local seconds="$1" limit
  shift
  if ! ezpz__which "$1" >/dev/null; then return 1; fi
  if limit="$(ezpz__which timeout)"; then set -- "$limit" -k 1 "$seconds" "$@"; fi
  command "$@" </dev/null 2>/dev/null
}

# True for the codes of a program whose time was over (143: BusyBox).
function ezpz__is_late { case "$1" in 124 | 137 | 143) ;; *) return 1 ;; esac; }

# Prints the code of a scheduler's command in a line of its own, then its answer. One that fails is asked twice.
function ezpz__answer {
  local out code=0
  out="$(ezpz__limited 2 "$@")" || code=$?
  if [ "$code" -ne 0 ] && ! ezpz__is_late "$code"; then
    code=0
    out="$(ezpz__limited 2 "$@")" || code=$?
  fi
  printf '%s\n' "$code" "$out"
}

# ezpz__waiting NAMES: passes on what it reads, a line at least; after a second without one, it says for whom it waits.
function ezpz__waiting {
  local begun='' first=''
  IFS= read -r -t 1 begun || {
    ezpz__log "waiting for an answer of $1, for 2 s at most"
    IFS= read -r first || :
  }
  printf '%s\n' "$begun$first"
  command cat
}

# Prints a scheduler's answer; the code tells whether it failed or was late.
function ezpz__ask {
  local out newline=$'\n'
  if ! ezpz__which "$1" >/dev/null; then return 1; fi
  out="$(ezpz__answer "$@" | ezpz__waiting "$1")"
  if [ "${out%%"$newline"*}" != 0 ]; then return "${out%%"$newline"*}"; fi
  case "$out" in *"$newline"*) printf '%s\n' "${out#*"$newline"}" ;; esac
}

# ---- job: lists of hosts --------------------------------------------------------------------------------------------
# ezpz__expand_hosts FORMAT [COUNTS]: reads hosts and prints "SLOTS HOSTS NAME,NAME,…", each name once, or "!WORD" for a
# word that is no host name.
# FORMAT: lines (n01, one per rank) or expression (r[1-2]n[01-02]-ib,n7).
# COUNTS: SLURM_TASKS_PER_NODE; "2(x3),1" are 7 slots.
function ezpz__expand_hosts {
  command awk -v format="$1" -v counts="${2:-}" '
    function fail(word) { gsub(/[^ -~]/, "?", word); print "!" word; failed = 1; exit }
    function add(host) {
      if (host !~ /^[A-Za-z0-9][A-Za-z0-9._-]*$/ || n >= 1000000) fail(host)
      if (!(host in seen)) { seen[host]; order[++n] = host }
    }
    function expand(done, text,   at, end, k, i, j, part, ends) { # the last bracket group runs fastest
      at = index(text, "[")
      if (!at) { add(done text); return }
      end = index(text, "]")
      k = split(substr(text, at + 1, end - at - 1), part, ",")
      if (!k) fail(text)
      for (i = 1; i <= k; i++) {
        split(part[i] "-" part[i], ends, "-") # 7 is 7-7
        if (part[i] !~ /^[0-9]+(-[0-9]+)?$/ || ends[2] - ends[1] < 0 || ends[2] - ends[1] > 1000000) fail(text)
        for (j = ends[1] + 0; j <= ends[2] + 0; j++)
          expand(done substr(text, 1, at - 1) sprintf("%0" length(ends[1]) "d", j), substr(text, end + 1))
      }
    }
    { gsub(/^[ \t]+|[ \t\r]+$/, "") }
    format == "lines" && $0 != "" { add($0); slots++ }
    format == "expression" {
      k = split($0, word, ",")
      for (i = 1; i <= k; i++) { # a comma in brackets parts no names
        item = item (item == "" ? "" : ",") word[i]
        if (item !~ /\[[^]]*$/ || i == k) { expand("", item); item = "" }
      }
    }
    END {
      if (failed) exit
      k = split(counts, word, ",")
      for (i = 1; i <= k; i++) { split(word[i], part, /[(x)]+/); slots += part[1] * (part[2] == "" ? 1 : part[2]) }
      for (i = 1; i <= n; i++) printf "%s%s", (i > 1 ? "," : slots + 0 " " n " "), order[i]
    }'
}

# ezpz__take_hosts FORMAT TEXT ORIGIN [COUNTS]: sets list (checked host names, comma separated), nhosts and slots.
function ezpz__take_hosts {
  local out
  out="$(printf '%s\n' "$2" | ezpz__expand_hosts "$1" "${4:-}")" || return
  case "$out" in
    '!'*)
      ezpz__err 125 "not a host name: '${out#!}' (from $3); expected letters, digits, '.', '_', '-', and in a host" \
        "expression brackets such as [01-10]. Correct it, or start a shell inside the job." || return
      ;;
  esac
  slots="${out%% *}"
  out="${out#* }" # not out##: bash takes seconds for long texts
  nhosts="${out%% *}" list="${out#* }"
}

# ---- job: schedulers ------------------------------------------------------------------------------------------------
# All that this file knows, in the order of detection; each is a function ezpz__NAME QUESTION, and what it depends on:
#     facts      sets title, variable (that holds a job's id), id (by variables alone), and where there are any: lists
#                (the program that lists jobs), daemons (programs above a job's processes, a regular expression), hides
#                (why its job is the inner one of several), granted (devices of this host)
#     instance   sets id by other means, to "instance" for a job without one
#     hosts      sets text, from, format, tasks (counts of ranks) and, where there is one, file, of $job
#     line       sets line, what starts $ranks ranks on $nhosts hosts
#     answers    is true where it answers on this host
#     jobs HOST USER    prints `NAME JOB` for each running job there, `NAME/more JOB` for those that count where there
#                       is no such line, or `late PROGRAM`
function ezpz__schedulers { printf '%s\n' flux slurm pbs lsf; }

# ezpz__know NAME: sets the facts of a scheduler, empty for none.
function ezpz__know {
  title='' variable='' lists='' daemons='' hides='' id='' granted=''
  if [ "$1" != none ]; then "ezpz__$1" facts; fi
}

# Prints the job around this shell, as far as variables tell.
function ezpz__id {
  local name title variable lists daemons hides id granted
  for name in $(ezpz__schedulers); do
    ezpz__know "$name"
    if [ -n "$id" ]; then printf '%s' "$id" && return; fi
  done
}

# A task of a job, or the shell of an instance; none runs in the system's own, to which login hosts speak.
function ezpz__flux {
  local code=0
  case "$1" in
    facts)
      title=Flux variable=FLUX_JOB_ID id="${FLUX_JOB_ID:-}" hides="Flux hides the schedulers around it"
      ;;
    answers) ezpz__limited 2 flux getattr size ;;
    line) line="flux run -N $nhosts -n $ranks" ;;
    instance)
      if [ -z "${FLUX_URI:-}" ]; then return 0; fi
      id="$(ezpz__ask flux getattr jobid)" || code=$?
      if ezpz__is_late "$code"; then
        late=flux
      elif [ "$code" -ne 0 ] && [ "$(ezpz__limited 2 flux getattr security.owner || :)" = "$UID" ]; then
        id=instance
      fi
      ;;
    hosts)
      if [ -n "${FLUX_JOB_ID:-}" ]; then set -- hostlist "$job"; else set -- getattr hostlist; fi
      from="flux $*"
      text="$(ezpz__ask flux "$@")" || text=''
      ;;
  esac
}

function ezpz__slurm {
  case "$1" in
    facts)
      title=Slurm variable=SLURM_JOB_ID id="${SLURM_JOB_ID:-${SLURM_JOBID:-}}" daemons='slurmstepd|salloc|srun'
      lists=squeue granted="${SLURM_GPUS_ON_NODE:-}"
      ;;
    line) line="srun$via -N $nhosts -n $ranks" ;;
    answers) ezpz__limited 2 sinfo --noheader ;;
    hosts) ezpz__slurm_hosts ;;
    jobs) # a component 4|3+1|n02 is known by its first, 3
      set -- squeue --noheader --states=RUNNING --user="$3" --nodelist="$2" --format='%A|%i|%N'
      ezpz__answer "$@" | command awk -F'|' '
        NR == 1 && ($1 == 124 || $1 == 137 || $1 == 143) { print "late squeue" }
        /^[0-9]+\|[0-9]+([_+][^ |]*)?\|[^ |]+$/ {
          job = sub(/\+.*/, "", $2) ? $2 : $1
          if (!seen[job]++) print "slurm", job
        }'
      ;;
  esac
}

# Step ids from 4294967280 on are Slurm's own (batch, interactive): a shell that sees one host of the job's.
function ezpz__slurm_hosts {
  from=SLURM_JOB_NODELIST text="${SLURM_JOB_NODELIST:-${SLURM_NODELIST:-}}" tasks="${SLURM_TASKS_PER_NODE:-}"
  if [ -n "${SLURM_STEP_NODELIST:-}" ] && [ "${SLURM_STEP_ID:-0}" -lt 4294967280 ] 2>/dev/null; then
    from=SLURM_STEP_NODELIST text="$SLURM_STEP_NODELIST" tasks="${SLURM_STEP_TASKS_PER_NODE:-$tasks}"
  elif [ -n "${SLURM_HET_SIZE:-}" ] && [ -n "${SLURM_JOB_NODELIST_HET_GROUP_0:-}" ]; then
    from=SLURM_JOB_NODELIST_HET_GROUP_0 text="$SLURM_JOB_NODELIST_HET_GROUP_0"
    tasks="${SLURM_TASKS_PER_NODE_HET_GROUP_0:-}" job="${SLURM_JOB_ID_HET_GROUP_0:-$job}"
  elif [ -z "$text" ]; then
    from="SLURM_JOB_NODELIST and scontrol show job $job"
    text="$(ezpz__ask scontrol show job "$job" | command awk -v job="JobId=$job" '
      /^JobId=/ { mine = $1 == job }
      mine && sub(/^ *NodeList=/, "") { hosts = $1 }
      mine && match($0, / NumTasks=[0-9]+/) { print hosts, substr($0, RSTART + 10, RLENGTH - 10) }')" || text=''
    tasks="${text#* }" text="${text%% *}"
  fi
}

function ezpz__pbs {
  case "$1" in
    facts) title=PBS variable=PBS_JOBID id="${PBS_JOBID:-}" daemons='pbs_mom|pbs_demux|palsd' lists='qstat' ;;
    answers) ezpz__limited 2 qstat -B ;;
    hosts) ezpz__pbs_hosts ;;
    jobs) # those of an array are only listed where they are asked for
      ezpz__pbs_jobs_on "$2" "$3" pbs &
      ezpz__pbs_jobs_on "$2" "$3" pbs/more -t &
      wait
      ;;
  esac
}

# ezpz__pbs_jobs_on HOST USER KIND [-t]: prints a line `KIND JOB` for each running job, or `late qstat`.
function ezpz__pbs_jobs_on {
  ezpz__answer qstat ${4:+"$4"} -u "$2" -n1rw | command awk -v here="$1" -v kind="$3" '
    NR == 1 && ($1 == 124 || $1 == 137 || $1 == 143) { print "late qstat" }
    NF > 10 && $(NF - 2) == "R" && $1 ~ /^[A-Za-z0-9][][A-Za-z0-9._@-]*$/ {
      k = split($NF, word, "+")
      for (i = 1; i <= k; i++) {
        sub(/[.\/].*/, "", word[i])
        if (word[i] == here) { print kind, $1; next }
      }
    }'
}

function ezpz__pbs_hosts {
  local candidate copy="${PBS_HOME:-/var/spool/pbs}/aux/$job"
  format=lines
  for candidate in "${PBS_NODEFILE:-}" "$copy"; do
    if [ -z "$text" ] && [ -f "$candidate" ] && [ -r "$candidate" ]; then
      file="$candidate" text="$(command cat "$candidate")"
    fi
  done
  from="${file:-PBS_NODEFILE=${PBS_NODEFILE:-}, $copy and qstat -f $job}"
  if [ -z "$text" ]; then
    file=''
    text="$(ezpz__ask qstat -f "$job" | ezpz__qstat_hosts)" || text=''
  fi
}

# Prints the hosts in the answer of qstat -f, each as often as its chunk has ranks; a line that begins with a tab
# continues the last:
#     exec_host = n01/0*2+n02/0*2        Resource_List.select = 2:ncpus=2:mpiprocs=2
function ezpz__qstat_hosts {
  command awk '
    /^\t/ { value[key] = value[key] substr($0, 2); next }
    { key = $1; value[key] = substr($0, index($0, "=") + 2) }
    function ranks_of(request) {
      if (match(request, /mpiprocs=[0-9]+/)) return substr(request, RSTART + 9, RLENGTH - 9)
      return request !~ /ncpus=0(:|$)/
    }
    END {
      k = split(value["Resource_List.select"], chunk, "+")
      for (i = 1; i <= k; i++)
        for (j = chunk[i] + 0 ? chunk[i] + 0 : 1; j > 0; j--) ranks[++n] = ranks_of(chunk[i])
      k = split(value["exec_host"], host, "+")
      for (i = 1; i <= k; i++) {
        sub(/\/.*/, "", host[i])
        for (j = n == k ? ranks[i] : 1; j > 0; j--) print host[i]
      }
    }'
}

function ezpz__lsf {
  case "$1" in
    facts) title=LSF variable=LSB_JOBID id="${LSB_JOBID:-}" daemons=sbatchd ;;
    answers) ezpz__limited 2 lsid ;;
    hosts)
      format=lines from=LSB_DJOB_HOSTFILE
      if [ -f "${LSB_DJOB_HOSTFILE:-}" ] && [ -r "$LSB_DJOB_HOSTFILE" ]; then
        file="$LSB_DJOB_HOSTFILE" text="$(command cat "$file")"
      fi
      if [ -n "$text" ]; then return 0; fi
      from="LSB_DJOB_HOSTFILE, LSB_MCPU_HOSTS and LSB_HOSTS" file=''
      text="$(printf '%s\n' "${LSB_MCPU_HOSTS:-}" | command awk '
        function slots(word) { return word ~ /^[0-9]+$/ ? substr(word, 1, 6) : 0 }
        { for (i = 1; i < NF; i += 2) for (j = slots($(i + 1)); j > 0; j--) print $i }')"
      if [ -z "$text" ]; then text="$(printf '%s\n' "${LSB_HOSTS:-}" | command tr ' ' '\n')"; fi
      ;;
  esac
}

# ---- job: hosts -----------------------------------------------------------------------------------------------------
# Sets list, nhosts and slots of the job, and file where PBS wrote the list of hosts.
function ezpz__find_hosts {
  local text='' tasks='' from='' format=expression
  list='' nhosts=0 slots=0 file=''
  if [ "$scheduler" = none ]; then
    list="$here" nhosts=1
    return 0
  fi
  "ezpz__$scheduler" hosts
  if [ -z "$text" ] && [ "${EZPZ_SCHEDULER:-} ${EZPZ_JOBID:-}" = "$scheduler $job" ]; then
    format=expression from=EZPZ_HOSTS text="${EZPZ_HOSTS:-}"
  fi
  ezpz__take_hosts "$format" "$text" "$from" "$tasks" || return
  [ -n "$list" ] ||
    ezpz__err 125 "no hosts of job $job: none is named (from $from); expected host names." \
      "Run this on the first host of the job, or start a shell inside it."
}

# ---- job: which one this shell is in --------------------------------------------------------------------------------
# ezpz__scheduler_above NAME=PROGRAMS…: prints the name whose programs are the nearest above this shell, if any.
function ezpz__scheduler_above {
  command ps -A -o pid=,ppid=,comm= 2>/dev/null | command awk -v pid="$$" -v known="$*" '
    BEGIN { for (i = split(known, pair, " "); i; i--) { split(pair[i], part, "="); programs[part[1]] = part[2] } }
    { parent[$1] = $2; sub(/.*\//, "", $3) }
    { for (name in programs) if ($3 ~ "^(" programs[name] ")") daemon[$1] = name }
    END { while (pid > 1 && daemon[pid] == "") pid = parent[pid]; print daemon[pid] }'
}

# ezpz__job_is_here SCHEDULER JOB: true when the job's hosts include this one. In its subshell both are only tried.
function ezpz__job_is_here {
  local short=",${here%%.*}" # by first labels: schedulers and kernels differ about the rest
  (
    # shellcheck disable=SC2030,SC2031  # only for this subshell
    scheduler="$1" job="$2"
    ezpz__find_hosts || exit
    case ",$list," in
      *"$short,"* | *"$short."*) ;;
      *) exit 1 ;;
    esac
  ) 2>/dev/null
}

# ezpz__choose_inner NAME…: sets scheduler and why: that of the nearest daemon above this shell, else that whose job
# holds this host.
function ezpz__choose_inner {
  local name title variable lists daemons hides id granted known='' holding=''
  why="its daemon is the nearest above this shell"
  for name in "$@"; do
    ezpz__know "$name"
    known="$known $name=$daemons"
  done
  scheduler="$(ezpz__scheduler_above "$known")" || :
  if [ -n "$scheduler" ]; then return 0; fi
  for name in "$@"; do
    ezpz__know "$name"
    if ezpz__job_is_here "$name" "$id"; then holding="$holding${holding:+ }$name"; fi
  done
  case "$holding" in
    '' | *' '*) scheduler="$1" why="no sign which is the inner one" ;;
    *) scheduler="$holding" why="only its job holds this host" ;;
  esac
}

# Sets here (this host), scheduler, job, via (the option that srun needs outside its job) and late (programs that gave
# no answer in time): by the variables of this shell, else by the host's name.
function ezpz__find_job {
  local name title variable lists daemons hides id granted told='' why='' choose=''
  here="$(command uname -n)" scheduler='' via='' job='' late=''
  set --
  for name in $(ezpz__schedulers); do
    ezpz__know "$name"
    if [ -z "$id" ]; then "ezpz__$name" instance; fi
    choose="$choose${lists:+${choose:+, or }$variable=ID}"
    if [ -z "$id" ]; then continue; fi
    if [ -z "$scheduler" ]; then scheduler="$name" job="${id#instance}" why="$hides"; fi
    told="$told${told:+, }$title '$id'"
    set -- "$@" "$name"
  done
  if [ "$#" = 0 ]; then
    ezpz__find_job_by_host || return
  elif [ "$#" -gt 1 ] && [ -z "$why" ]; then
    ezpz__choose_inner "$@"
    ezpz__know "$scheduler"
    job="$id"
  fi
  case "$job" in
    *[[:space:][:cntrl:]\;\&\|\$\`\<\>\(\)\'\"\\/]*)
      ezpz__err 125 "not a job id: '$job' (from the variables of $scheduler);" \
        "expected one such as 1234, 4[2].head or f2Xk. Unset it." || return
      ;;
  esac
  if [ "$#" -gt 1 ]; then ezpz__log "several schedulers at once: $told; taking $scheduler: $why"; fi
  case "$late/$scheduler" in
    /*) ;;
    */none)
      ezpz__log "$late gave no answer in time: whether this shell is in a job is not known, this host alone is used;" \
        "in a job, call: export $choose"
      ;;
    *) ezpz__log "$late gave no answer in time: $scheduler job $job is used" ;;
  esac
}

# ezpz__jobs_on HOST USER PROGRAMS: asks all at once and prints `LATE|SCHEDULER|JOB JOB…` of the first that knows a job.
function ezpz__jobs_on {
  local out name
  {
    out="$(
      for name in $(ezpz__schedulers); do "ezpz__$name" jobs "$1" "$2" & done
      wait
    )"
    printf '%s\n' "$out"
  } | ezpz__waiting "$3" | command awk -v names="$(ezpz__schedulers | command tr '\n' ' ')" -v programs="$3" '
    $1 != "late" { jobs[$1] = jobs[$1] (jobs[$1] == "" ? "" : " ") $2 }
    $1 == "late" { silent[$2] }
    END {
      k = split(programs, program, " and ")
      for (i = 1; i <= k; i++) if (program[i] in silent) late = late (late == "" ? "" : " and ") program[i]
      k = split(names, name, " ")
      for (i = 1; i <= k && found == ""; i++) {
        found = jobs[name[i]] != "" ? jobs[name[i]] : jobs[name[i] "/more"]
        scheduler = found == "" ? "none" : name[i]
      }
      print late "|" scheduler "|" found
    }'
}

# The job of a shell that ssh opened on one of its hosts. Sets scheduler, job and via, and adds to late.
function ezpz__find_job_by_host {
  local jobs name title variable lists daemons hides id granted programs=''
  for name in $(ezpz__schedulers); do
    ezpz__know "$name"
    if [ -n "$lists" ] && ezpz__which "$lists" >/dev/null; then programs="$programs${programs:+ and }$lists"; fi
  done
  scheduler=none
  if [ -z "$programs" ]; then return 0; fi # no process is started in vain
  jobs="$(ezpz__jobs_on "${here%%.*}" "${USER:-${LOGNAME:-}}" "$programs")"
  if [ -n "${jobs%%|*}" ]; then late="$late${late:+ and }${jobs%%|*}"; fi
  jobs="${jobs#*|}"
  scheduler="${jobs%%|*}" jobs="${jobs#*|}"
  case "$jobs" in
    '') return 0 ;;
    *' '*)
      ezpz__know "$scheduler"
      ezpz__err 125 "several jobs of yours run on this host: $jobs (found by its name, $here); expected one." \
        "Choose: export $variable=${jobs%% *}" || return
      ;;
  esac
  job="$jobs" via=" --jobid=$jobs"
  ezpz__log "no variables of a job here; taking $scheduler job $job, which runs on this host ($here)"
}

# ---- job: devices, the host file and the launch line ----------------------------------------------------------------
# Sets devices, those of this host. A count that an earlier job left behind in the shell is not believed.
function ezpz__count_devices {
  local title variable lists daemons hides id granted
  devices="${EZPZ_NGPU_PER_HOST:-}"
  case "$devices" in
    *[!0-9]*)
      ezpz__err 2 "not a number of devices: $devices (from EZPZ_NGPU_PER_HOST); expected 0 or more." \
        "Correct or unset it." || return
      ;;
  esac
  if [ -z "$devices" ] && [ -n "$job" ] && [ "${EZPZ_JOBID:-}" = "$job" ]; then devices="${NGPU_PER_HOST:-}"; fi
  ezpz__know "$scheduler"
  if [ -z "$devices" ]; then devices="$granted"; fi
  if [ -z "$devices" ]; then
    devices="$(ezpz__limited 5 nvidia-smi -L | command awk '/^GPU/ { n++ } END { print n + 0 }')" || :
  fi
  case "$devices" in '' | *[!0-9]*) devices=0 ;; esac
}

# Sets ranks: one per device, else one per granted slot, else one per host; on a single host half the cores, at least 2
# and at most 4, which is enough to see that they work together.
function ezpz__count_ranks {
  local cores
  cores="$(command nproc 2>/dev/null || command getconf _NPROCESSORS_ONLN 2>/dev/null || printf 4)"
  if [ "$devices" -gt 0 ]; then
    ranks=$((devices * nhosts))
  elif [ "$slots" -gt 0 ]; then
    ranks="$slots"
  elif [ "$nhosts" -gt 1 ]; then
    ranks="$nhosts"
  else
    ranks=$((cores < 4 ? 2 : cores > 8 ? 4 : cores / 2))
  fi
}

# Sets hostfile: PBS's own when it names each host once and is a plain word of DIST_LAUNCH, else one in a folder that
# only this user may write.
function ezpz__choose_hostfile {
  local dir="${TMPDIR:-/tmp}" tag="${job:-$here}"
  case "$file" in
    '' | *[!A-Za-z0-9._/@:+=,-]*) ;;
    *)
      if [ "$slots" = "$nhosts" ]; then
        hostfile="$file"
        return 0
      fi
      ;;
  esac
  case "$dir" in *[!A-Za-z0-9._/@:+=,-]*) dir=/tmp ;; esac
  dir="${dir%/}/ezpz-$UID-${tag//[!A-Za-z0-9._-]/_}"
  command mkdir -m 700 "$dir" 2>/dev/null ||
    { [ ! -L "$dir" ] && [ -d "$dir" ] && [ -O "$dir" ] && command chmod 700 "$dir"; } ||
    ezpz__err 125 "cannot make a private folder: $dir (from TMPDIR); expected a new folder or one of yours." \
      "Set TMPDIR to a folder that you may write." || return
  hostfile="$dir/hostfile" # renamed into place, because another shell of the same job may be reading it
  { printf '%s\n' "$list" | command tr ',' '\n' >|"$hostfile.$$" &&
    command mv -f "$hostfile.$$" "$hostfile"; } 2>/dev/null ||
    ezpz__err 125 "cannot write the host file: $hostfile (from TMPDIR); expected space and permission." \
      "Set TMPDIR to another folder."
}

# Sets line, what starts the ranks, from scheduler, via, nhosts, ranks and hostfile.
function ezpz__choose_line {
  line=''
  if [ "$scheduler" != none ]; then "ezpz__$scheduler" line; fi
  if [ -z "$line" ] && ezpz__which mpiexec >/dev/null; then
    line="mpiexec -n $ranks"
    if [ "$nhosts" -gt 1 ]; then line="$line --hostfile $hostfile"; fi
  fi
  [ -n "$line" ] ||
    ezpz__log "no launcher: mpiexec is not on PATH; DIST_LAUNCH stays empty." \
      "With ezpz installed (ezpz_setup_python), launch starts ranks itself."
}

# Linux grants an exported variable 128 KiB: a longer list of hosts stays a variable of the shell.
function ezpz__set_hosts {
  unset EZPZ_HOSTS
  EZPZ_HOSTS="$1"
  if [ "${#1}" -lt 65536 ]; then export EZPZ_HOSTS; fi
}

# Exports the answer of a shell whose python3 does not import ezpz.
function ezpz__small_answer {
  # shellcheck disable=SC2034  # ezpz__site sets site_from
  local here scheduler job via late list nhosts slots file devices ranks hostfile line site='' site_from=''
  ezpz__find_job || return
  ezpz__find_hosts || return
  ezpz__site "$job" || return
  ezpz__count_devices || return
  ezpz__choose_hostfile || return
  ezpz__count_ranks
  ezpz__choose_line
  case "$scheduler/$late" in none/?*) scheduler='' ;; esac # nobody knows: "none" would settle it for launches to come
  export EZPZ_SCHEDULER="$scheduler" EZPZ_JOBID="$job" EZPZ_SITE="$site" EZPZ_NRANKS="$ranks"
  export NHOSTS="$nhosts" NGPU_PER_HOST="$devices" NGPUS="$((devices * nhosts))"
  export HOSTFILE="$hostfile" DIST_LAUNCH="$line" LAUNCH="$line"
  if [ -z "${RANK:-}" ]; then export WORLD_SIZE="$ranks" EZPZ_WORLD_SIZE="$ranks"; fi
  ezpz__set_hosts "$list"
}

# ---- job: what users call -------------------------------------------------------------------------------------------
# Prints the three blocks on stdout: everything else that this file prints is on stderr.
function ezpz__print_job {
  printf '\n[HOSTS]\n    • MACHINE=%s\n' "${EZPZ_SITE:-$(command uname -n)}"
  printf '%s\n' "${EZPZ_HOSTS:-}" | command tr ',' '\n' | command awk '
    { host[NR - 1] = $0 }
    END {
      for (i = 0; i < NR; i++)
        if (NR <= 16 || i < 8 || i == NR - 1) print "    • [host:" i "] - " host[i]
        else if (i == 8) print "    • … " NR - 9 " more"
    }'
  printf '\n[DIST INFO]\n'
  printf '    • %s\n' "NGPUS=${NGPUS:-}" "NHOSTS=${NHOSTS:-}" "NGPU_PER_HOST=${NGPU_PER_HOST:-}" \
    "EZPZ_NRANKS=${EZPZ_NRANKS:-}" "HOSTFILE=${HOSTFILE:-}" "DIST_LAUNCH=${DIST_LAUNCH:-}"
  printf '\n[LAUNCH]:\n    • To start %s ranks on %s host(s), use: launch COMMAND\n\n      launch = %s\n\n' \
    "${EZPZ_NRANKS:-?}" "${NHOSTS:-?}" "${DIST_LAUNCH:-(none was found)}"
}

# ezpz__full_answer PYTHON ARG…: one Python prints the line `ezpz is importable` and then the job in shell words;
# nothing where it does not import ezpz, and until then nothing on stderr either.
function ezpz__full_answer {
  local python="$1" what='
import os
try: import ezpz.launch as found
except BaseException: found = None
if not getattr(found, "__file__", None): sys.exit(1)
os.dup2(3, 2)
os.close(3)
sys.stdout.write("ezpz is importable\n")
sys.stdout.flush()
import ezpz.cluster.__main__'
  shift
  ezpz__python "$python" -c "$what" --sh "$@" 3>&2 2>/dev/null
}

# ezpz_setup_job: exports and prints scheduler, hosts, devices and the launch line of this shell, and keeps them for a
# second shell.
function ezpz_setup_job {
  if [ -n "${ZSH_VERSION:-}" ]; then emulate -L sh; fi
  local IFS=$' \t\n' out='' code=0 python newline=$'\n'
  if python="$(ezpz__which python3)"; then out="$(ezpz__full_answer "$python" "$@")" || code=$?; fi
  case "$newline$out$newline" in
    *"${newline}ezpz is importable$newline"*)
      EZPZ_READY="$python" out="${out#*ezpz is importable}"
      out="${out#"$newline"}"
      if [ "$code" -ne 0 ] && [ -z "$out" ]; then return "$code"; fi
      case "$out" in
        'export '*) eval "$out" ;; # quoted by shlex.quote in our own Python: the one home of the full answer
        *)
          ezpz__err 125 "no answer about the job: '$(ezpz__last_line "$out")' (from python3 -m ezpz.cluster --sh);" \
            "expected lines that begin with export. Call: ezpz_setup_python" || return
          ;;
      esac
      ;;
    *)
      code=0
      if [ "${1:-}" = --second ]; then
        ezpz__log "what the first shell of the job kept is read by ezpz; for that, call ezpz_setup_python before this"
      fi
      ezpz__small_answer || return
      ;;
  esac
  if alias launch >/dev/null 2>&1; then ezpz__log "an alias hides the function launch; type: unalias launch"; fi
  ezpz__print_job
  return "$code" # not 0 where only the launch line is missing
}

# ezpz_setup_env [VENV]: a Python that works, and what it is to start on.
# shellcheck disable=SC2120  # users pass the folder
function ezpz_setup_env { ezpz_setup_python "$@" && ezpz_setup_job; }

# ezpz_get_job_env: the same in a second shell of a job, with what the first one kept. A shell that cannot read that
# looks for the job.
function ezpz_get_job_env { ezpz_setup_job --second; }

# ezpz_print_hosts: the hosts of this shell's job on stdout, one per line, for scripts.
function ezpz_print_hosts {
  if [ -n "${ZSH_VERSION:-}" ]; then emulate -L sh; fi
  local IFS=$' \t\n' here scheduler job via late list nhosts slots file
  ezpz__find_job && ezpz__find_hosts && printf '%s\n' "$list" | command tr ',' '\n'
}

# True in the shell that Slurm runs a batch script in: the one process of the script that it signals.
function ezpz__in_batch_script {
  local parent=''
  [ -n "${SLURM_JOB_ID:-}" ] && [ -n "${BASH_VERSION:-}" ] && [ "${BASHPID:-}" = "$$" ] &&
    { read -r parent <"/proc/$PPID/comm"; } 2>/dev/null && [ "$parent" = slurmstepd ]
}

# Runs launch in a batch script of Slurm and passes on what Slurm sends to the script: a shell that ended of SIGTERM, as
# it would at once, would take all ranks along before they could save. It ends of it when they have ended. Signals that
# the script traps itself are left to it.
function ezpz__launch_in_script {
  local pid='' came='' caught='' code name ours=''
  for name in TERM HUP INT USR1 USR2; do
    if [ -z "$(trap -p "$name")" ]; then
      ours="$ours $name"
      # shellcheck disable=SC2064  # the name is this one
      trap "caught=$name; ezpz__pass_on $name" "$name"
    fi
  done
  (ezpz__by='exec' ezpz__python python3 -m ezpz.launch "$@") <&0 &
  pid=$!
  if [ -n "$came" ]; then ezpz__pass_on "$came"; fi
  while true; do # a signal ends each wait
    caught='' code=0
    wait "$pid" || code=$?
    [ -n "$caught" ] || command kill -0 "$pid" 2>/dev/null || break
  done
  # shellcheck disable=SC2086  # names of signals
  if [ -n "$ours" ]; then trap - $ours; fi
  case "$came" in TERM | HUP | INT) command kill "-$came" "$$" ;; esac
  return "$code"
}

# Passes a signal on to the launch above. It ignores SIGINT, as all that a script starts in its background does. A
# warning waits until launch can take it: a Python that only starts would end of it.
function ezpz__pass_on {
  came="$1"
  if [ "$1" = INT ]; then set -- TERM; fi
  if [ -z "$pid" ]; then return 0; fi
  if [ "$1" = USR1 ] || [ "$1" = USR2 ]; then
    while command kill -0 "$pid" 2>/dev/null && ! ezpz__takes "$pid" "$1"; do command sleep 0.05; done
  fi
  command kill "-$1" "$pid" 2>/dev/null || :
}

# ezpz__takes PID SIGNAL: true when a program that this shell has started has a handler for USR1 or USR2, or keeps it
# for later. Until it has become that program it is a copy of this shell, with this shell's handlers.
function ezpz__takes {
  local own='' name='' value bit=512 # 1 << (SIGUSR1 - 1)
  if [ "$2" = USR2 ]; then bit=2048; fi
  { read -r own <"/proc/$$/comm" && read -r name <"/proc/$1/comm"; } 2>/dev/null || return 1
  if [ "$name" = "$own" ]; then return 1; fi
  while read -r name value; do
    case "$name" in SigBlk: | SigCgt:) if [ $((0x$value & bit)) -ne 0 ]; then return 0; fi ;; esac
  done 2>/dev/null <"/proc/$1/status"
  return 1
}

# launch [OPTION…] [--] COMMAND…: starts COMMAND on every rank; alone, it prints its help, and returns 2.
function launch {
  if [ -n "${ZSH_VERSION:-}" ]; then emulate -L sh; fi
  local IFS=$' \t\n'
  if ezpz__importable; then
    if ezpz__in_batch_script; then ezpz__launch_in_script "$@"; else ezpz__python python3 -m ezpz.launch "$@"; fi
    return
  fi
  [ -n "${DIST_LAUNCH:-}" ] ||
    ezpz__err 125 "cannot launch: ezpz is not importable by python3 and DIST_LAUNCH is empty; expected one of them." \
      "Call: ezpz_setup_env" || return
  if [ "$#" = 0 ]; then
    printf '%s\n' 'usage: launch COMMAND [ARG ...]' '' "Runs: $DIST_LAUNCH COMMAND [ARG ...]" \
      '(from DIST_LAUNCH; with ezpz in this environment, launch has options: ezpz_setup_env)' >&2
    return 2
  fi
  # A subshell, so that noglob stays inside: job ids such as 4[2] are in file names. The prefix is split into words.
  # shellcheck disable=SC2086
  (set -o noglob && exec ${DIST_LAUNCH} "$@")
}

# ---- names that older job scripts call ------------------------------------------------------------------------------
# ezpz__older NAME WORD…: does what an older name did, or names its successor. docs/older-scripts.md has the same table.
function ezpz__older {
  local name="$1" IFS=$' \t\n'
  if [ -n "${ZSH_VERSION:-}" ]; then emulate -L sh; fi
  shift
  case "$name" in
    ezpz_setup | ezpz_setup_install | ezpz_setup_env_pt2[0-9]_aurora | ezpz_setup_pt2[0-9])
      ezpz_setup_env "$@"
      ;;
    ezpz_install_and_setup_micromamba | ezpz_activate_or_create_micromamba_env) ezpz__by_setup "$name" micromamba ;;
    ezpz_install_* | ezpz_ensure_*) ezpz__by_setup "$name" uv ;;
    ezpz_setup_alcf | setup_alcf | ezpz_setup_host* | setupHost | ezpz_setup_job_* | *savejobenv_main | \
      ezpz_setup_srun | setupSrun) ezpz_setup_job ;;
    *getjobenv_main | *get_pbs_env | *get_slurm_env | get_job_env) ezpz_get_job_env ;;
    ezpz_activate_venv | ezpz_setup_new_uv_venv | ezpz_setup_uv_venv) ezpz_setup_python "$@" ;;
    ezpz_install | *setup_conda* | *setup_venv_from_* | setup_python | ezpz_setup_python_* | ezpz_setup_xpu | \
      *_load_*modules*) ezpz_setup_python ;;
    ezpz_launch) launch "$@" ;;
    *kill_mpi | *check_and_kill_if_running) ezpz__python python3 -m ezpz kill --all ;;
    *print_job_env | ezpz_show_env) ezpz__print_job ;;
    printHosts | print_hosts) ezpz_print_hosts ;;
    *_write_job_info* | writeJobInfo | *save_pbs_env | *save_slurm_env)
      ezpz__log "$name is not needed: ezpz_setup_job keeps the job for a second shell" ;;
    *save_ds_env | *save_deepspeed_env | saveDeepSpeedEnv)
      ezpz__log "$name is not needed: launch gives every rank on every host the whole environment" ;;
    *save_dotenv) ezpz__log "$name is not needed: run.json of each run keeps its environment, without secrets" ;;
    *qsme_running) command qstat -u "${USER:-}" -n1rw ;;
    utils_main | ezpz_is_sourced) return 0 ;;
    ezpz_timeit | ezpz_has | ezpz_require_file | ezpz_realpath | join_by | log_* | ezpz_get_tstamp | \
      ezpz_get_shell_name | *_working_dir* | whereAmI) ezpz__older_word "$name" "$@" ;;
    *_cpu_bind_* | *_jobenv_file) ezpz__is_gone "$name" ;;
    *get_* | getNum* | ezpz_parse_hostfile | ezpz_set_proxy_alcf | ezpz_make_slurm_nodefile)
      ezpz__older_answer "$name" "$@" ;;
    *) ezpz__is_gone "$name" ;;
  esac
}

# Names what stands in for an older name that is gone.
function ezpz__is_gone {
  local now
  case "$1" in
    *_nodefile) now="launch --nhosts N, or --exclude HOST" ;;
    *cpu_*) now="launch --cpu-bind SPEC, where the site's own binding is not enough" ;;
    *reset*) now="a new shell" ;;
    *jobenv_file) now="ezpz_get_job_env in a second shell" ;;
    *build*) now="EZPZ_SOURCE=git+https://ADDRESS and ezpz_setup_python" ;;
    *) now="one of ezpz_setup_env, ezpz_setup_python, ezpz_setup_job, launch" ;;
  esac
  ezpz__err 2 "$1 is gone (from an older script); expected $now."
}

# ezpz__by_setup NAME PROGRAM: says what installs nothing any more.
function ezpz__by_setup {
  ezpz__log "$1 installs nothing: ezpz_setup_python makes the environment on EZPZ_PYTHON, micromamba or python3 of PATH"
}

# Small tools of older scripts.
function ezpz__older_word {
  local name="$1" begun="$SECONDS" code=0 separator
  shift
  case "$name" in
    ezpz_has) command -v "${1:-}" >/dev/null 2>&1 ;;
    ezpz_realpath) ezpz__real "${1:-.}" ;;
    ezpz_require_file)
      [ -f "${1:-}" ] || ezpz__err 2 "${2:-file} not found: ${1:-} (from the call); expected a file."
      ;;
    ezpz_timeit)
      "$@" || code=$?
      ezpz__log "$1 took $((SECONDS - begun)) s and ended with $code"
      return "$code"
      ;;
    join_by)
      separator="${1:-}"
      if [ "$#" -gt 1 ]; then printf '%s' "$2" && shift 2; fi
      for code in "$@"; do printf '%s' "$separator$code"; done
      ;;
    log_*)
      if [ "$name" = log_message ] && [ "$#" -gt 1 ]; then shift; fi
      printf '[ezpz] %b\n' "$*" >&2
      ;;
    ezpz_get_tstamp) command date '+%Y-%m-%d-%H%M%S' ;;
    ezpz_get_shell_name) if [ -n "${ZSH_VERSION:-}" ]; then printf 'zsh\n'; else printf 'bash\n'; fi ;;
    whereAmI | ezpz_get_working_dir) builtin pwd ;;
    *) export WORKING_DIR="${PBS_O_WORKDIR:-${SLURM_SUBMIT_DIR:-$PWD}}" ;;
  esac
}

# Prints one fact about this shell's job.
function ezpz__older_answer {
  local name="$1" site='' site_from='' here scheduler job via late list nhosts slots file devices
  local site_scheduler='' site_module_use='' site_modules='' site_conda='' site_python='' site_prepend_from=''
  local site_proxy='' site_no_proxy='' site_proxy_skip='' site_torch=''
  shift
  case "$name" in
    *_nodefile | *_nodefile_from_hostname | ezpz_get_dist_launch_cmd)
      if [ -z "${HOSTFILE:-}" ]; then ezpz_setup_job >/dev/null || return; fi
      if [ "$name" = ezpz_get_dist_launch_cmd ]; then set -- "${DIST_LAUNCH:-}"; else set -- "${HOSTFILE:-}"; fi
      printf '%s\n' "$1"
      return
      ;;
    *python_root | *python_prefix*) ezpz__python python3 -c 'print(sys.prefix)' && return ;;
    *venv_dir) printf '%s\n' "${VIRTUAL_ENV:-${CONDA_PREFIX:-}}" && return ;;
  esac
  ezpz__find_job || return
  case "$name" in
    *machine_name | *proxy_alcf) ezpz__site "$job" || return ;;
    *) ezpz__find_hosts && ezpz__count_devices || return ;;
  esac
  if [ -n "${1:-}" ]; then
    nhosts="$(command awk 'NF && !seen[$1]++ { n++ } END { print n + 0 }' "$1")" || return
  fi
  case "$name" in
    *machine_name) printf '%s\n' "${site:-$here}" ;;
    *proxy_alcf) if [ -n "$site" ] && ezpz__facts "$site"; then ezpz__set_proxy; fi ;;
    *jobid*) printf '%s\n' "$job" ;;
    *scheduler_type) if [ "$scheduler" = none ]; then printf 'unknown\n'; else printf '%s\n' "$scheduler"; fi ;;
    *nodelist) printf '%s\n' "$list" ;;
    *num_hosts) printf '%s\n' "$nhosts" ;;
    *gpus_total) printf '%s\n' "$((nhosts * devices))" ;;
    ezpz_parse_hostfile) printf '%s\n' "$nhosts $devices $((nhosts * devices))" ;;
    *) printf '%s\n' "$devices" ;;
  esac
}

# Defines the older names, each as a call of ezpz__older: 3 ms for all. A function of the user's own that has one of the
# names without ezpz_ stays.
function ezpz__define_older {
  local name IFS=$' \t\n'
  if [ -n "${ZSH_VERSION:-}" ]; then emulate -L sh; fi
  for name in $1; do eval "function ezpz_$name { ezpz__older ezpz_$name \"\$@\"; }"; done
  for name in $2; do
    if ! typeset -f "$name" >/dev/null; then eval "function $name { ezpz__older $name \"\$@\"; }"; fi
  done
}

ezpz__define_older "activate_or_create_micromamba_env activate_venv assert_python_env_active
  build_bdist_wheel_from_github_repo check_and_kill_if_running check_if_already_built check_working_dir
  check_working_dir_pbs check_working_dir_slurm ensure_micromamba_hook ensure_uv generate_cpu_ranges
  get_cpu_bind_aurora get_dist_launch_cmd get_jobenv_file get_jobid_from_hostname get_machine_name
  get_num_gpus_nvidia get_num_gpus_per_host get_num_gpus_total get_num_hosts get_num_xpus get_pbs_env get_pbs_jobid
  get_pbs_jobid_from_nodefile get_pbs_nodefile_from_hostname get_python_prefix_nersc get_python_root
  get_scheduler_type get_shell_name get_slurm_env get_slurm_running_jobid get_slurm_running_nodelist get_tstamp
  get_venv_dir get_working_dir getjobenv_main has head_n_from_pbs_nodefile install install_and_setup_micromamba
  install_micromamba install_uv is_sourced kill_mpi launch link_dotvenv load_modules load_modules_aurora
  load_modules_polaris load_modules_sunspot load_new_pt_modules load_new_pt_modules_aurora
  load_python_modules_nersc make_slurm_nodefile parse_hostfile prepare_repo_in_build_dir print_job_env
  qsme_running realpath require_file reset reset_pbs_vars save_deepspeed_env save_dotenv save_ds_env save_pbs_env
  save_slurm_env savejobenv_main set_proxy_alcf setup setup_alcf setup_conda setup_conda_aurora
  setup_conda_frontier setup_conda_perlmutter setup_conda_polaris setup_conda_sirius setup_conda_sophia
  setup_conda_sunspot setup_env_pt28_aurora setup_env_pt29_aurora setup_host setup_host_old setup_host_pbs
  setup_host_slurm setup_install setup_job_alcf setup_job_slurm setup_new_uv_venv setup_pt27 setup_pt28
  setup_python_alcf setup_python_nersc setup_python_pt28_aurora setup_python_pt29_aurora
  setup_python_pt_new_aurora setup_srun setup_uv_venv setup_venv_from_conda setup_venv_from_pythonuserbase
  setup_xpu show_env tail_n_from_pbs_nodefile timeit write_job_info write_job_info_slurm" \
  "check_and_kill_if_running getNumGPUsNVIDIA getNumXPUs get_job_env get_jobid_from_hostname get_machine_name
  get_num_gpus_per_host get_num_gpus_total get_num_hosts get_pbs_env get_slurm_env getjobenv_main join_by log_error
  log_info log_message log_warn printHosts print_job_env qsme_running saveDeepSpeedEnv save_dotenv save_ds_env
  save_pbs_env save_slurm_env savejobenv_main setupHost setupSrun setup_alcf setup_conda setup_conda_aurora
  setup_conda_polaris setup_conda_sirius setup_conda_sunspot setup_python setup_venv_from_conda utils_main
  whereAmI writeJobInfo"

# ---- this file ------------------------------------------------------------------------------------------------------
# Only a regular file can lead to a checkout; under `source <(…)` there is none, whatever the shell calls it.
# shellcheck disable=SC2296  # %x: the file that zsh is reading
if [ -n "${ZSH_VERSION:-}" ]; then EZPZ_UTILS="${(%):-%x}"; else EZPZ_UTILS="${BASH_SOURCE[0]:-}"; fi
if [ ! -f "$EZPZ_UTILS" ]; then EZPZ_UTILS=''; fi
case "$EZPZ_UTILS" in
  '' | /*) ;;
  *) EZPZ_UTILS="$PWD/$EZPZ_UTILS" ;;
esac
}
