# Completion of `ezpz` and `launch` for bash (3.2 or newer), which never starts Python:  eval "$(ezpz completion bash)"
# `make completion` writes this file from tests/lab/completion.bash.in and the parsers of all verbs.
# shellcheck disable=SC2086  # lists of words are split

_ezpz_verbs() {
  ezpz_words=''
  ezpz_words+=' init launch submit test simulate fetch kill status logs runs open watch plot report export startup'
  ezpz_words+=' stacks why checkpoint compare benchmark where doctor sites shell completion help'
}

_ezpz_options() { # VERB
  case $1 in
  init)
    ezpz_words=''
    ezpz_words+=' -h --help'
    ;;
  launch)
    ezpz_words=''
    ezpz_words+=' -h --help -n --np -np --ppn -ppn --devices-per-host --devices --oversubscribe --nhosts --hosts'
    ezpz_words+=' --exclude --hostfile --flavour --mpi --cpu-bind --depth --launcher-args --comm-env --unset --env'
    ezpz_words+=' --master-addr --master-port -m --module --label --log-dir --attempts --check --start-timeout'
    ezpz_words+=' --timeout --idle-timeout --exit-timeout --no-save-at-end --dry-run --explain --json --verbose'
    ;;
  submit)
    ezpz_words=''
    ezpz_words+=' -h --help --nhosts --time -A --account -q --queue --filesystems --name -O --option --jobs'
    ezpz_words+=' --until-done --node-hours --output --venv --site --scheduler --force --json --dry-run'
    ;;
  test)
    ezpz_words=''
    ezpz_words+=' -h --help --train-iters --batch-size --dataset --input-size --output-size --layer-sizes --dtype'
    ezpz_words+=' --lr --print-freq --log-freq --warmup --seed --strategy --tp --backend --compile --ds-config'
    ezpz_words+=' --profile --on-nan --no-plots --outdir --name'
    ;;
  simulate)
    ezpz_words=''
    ezpz_words+=' -h --help -n --np -np --ppn -ppn --rank --memory --no-data --timeout --json'
    ;;
  fetch)
    ezpz_words=''
    ezpz_words+=' -h --help --folder --list'
    ;;
  kill)
    ezpz_words=''
    ezpz_words+=' -h --help --all --hosts --job --now'
    ;;
  status)
    ezpz_words=''
    ezpz_words+=' -h --help --json'
    ;;
  logs)
    ezpz_words=''
    ezpz_words+=' -h --help -f --follow --rank'
    ;;
  runs)
    ezpz_words=''
    ezpz_words+=' -h --help --goodput --json --all --state'
    ;;
  open)
    ezpz_words=''
    ezpz_words+=' -h --help --path'
    ;;
  watch)
    ezpz_words=''
    ezpz_words+=' -h --help --interval --once'
    ;;
  plot)
    ezpz_words=''
    ezpz_words+=' -h --help -k --key --overlay --ranks --log --last --pictures --list --width --height'
    ;;
  report)
    ezpz_words=''
    ezpz_words+=' -h --help -o --output --public'
    ;;
  export)
    ezpz_words=''
    ezpz_words+=' -h --help --csv --nc -o --output'
    ;;
  startup)
    ezpz_words=''
    ezpz_words+=' -h --help --last --json'
    ;;
  stacks)
    ezpz_words=''
    ezpz_words+=' -h --help -v --verbose --json'
    ;;
  why)
    ezpz_words=''
    ezpz_words+=' -h --help --logs --json'
    ;;
  checkpoint)
    ezpz_words=''
    ezpz_words+=' -h --help --to --ema --overwrite'
    ;;
  compare)
    ezpz_words=''
    ezpz_words+=' -h --help --metric --json --width --no-picture -o --output'
    ;;
  benchmark)
    ezpz_words=''
    ezpz_words+=' -h --help --run --preset --max-iters --max_iters --outdir --list --dry-run'
    ;;
  where)
    ezpz_words=''
    ezpz_words+=' -h --help --json'
    ;;
  doctor)
    ezpz_words=''
    ezpz_words+=' -h --help --hosts --job --outdir --full --json --bundle'
    ;;
  sites)
    ezpz_words=''
    ezpz_words+=' -h --help --json --sh'
    ;;
  shell)
    ezpz_words=''
    ezpz_words+=' -h --help'
    ;;
  completion)
    ezpz_words=''
    ezpz_words+=' -h --help'
    ;;
  *) ezpz_words='--help --version' ;;
  esac
}

_ezpz_value() { # VERB:OPTION
  case $1 in
  launch:-n | launch:--np | launch:-np) ezpz_kind='nothing' ;;
  launch:--ppn | launch:-ppn) ezpz_kind='nothing' ;;
  launch:--devices-per-host) ezpz_kind='nothing' ;;
  launch:--devices) ezpz_kind='nothing' ;;
  launch:--nhosts) ezpz_kind='nothing' ;;
  launch:--hosts) ezpz_kind='hosts' ;;
  launch:--exclude) ezpz_kind='hosts' ;;
  launch:--hostfile) ezpz_kind='files' ;;
  launch:--flavour) ezpz_kind='words local impi openmpi5 openmpi4 pals mpich srun flux torchrun pbs_tmrsh ssh' ;;
  launch:--mpi) ezpz_kind='words yes no site' ;;
  launch:--cpu-bind) ezpz_kind='words none depth list' ;;
  launch:--depth) ezpz_kind='nothing' ;;
  launch:--launcher-args) ezpz_kind='nothing' ;;
  launch:--comm-env) ezpz_kind='words site none' ;;
  launch:--unset) ezpz_kind='nothing' ;;
  launch:--env) ezpz_kind='nothing' ;;
  launch:--master-addr) ezpz_kind='nothing' ;;
  launch:--master-port) ezpz_kind='nothing' ;;
  launch:-m | launch:--module) ezpz_kind='nothing' ;;
  launch:--log-dir) ezpz_kind='folders' ;;
  launch:--attempts) ezpz_kind='nothing' ;;
  launch:--check) ezpz_kind='words fast full off' ;;
  launch:--start-timeout) ezpz_kind='nothing' ;;
  launch:--timeout) ezpz_kind='nothing' ;;
  launch:--idle-timeout) ezpz_kind='nothing' ;;
  launch:--exit-timeout) ezpz_kind='nothing' ;;
  submit:--nhosts) ezpz_kind='nothing' ;;
  submit:--time) ezpz_kind='nothing' ;;
  submit:-A | submit:--account) ezpz_kind='nothing' ;;
  submit:-q | submit:--queue) ezpz_kind='nothing' ;;
  submit:--filesystems) ezpz_kind='nothing' ;;
  submit:--name) ezpz_kind='nothing' ;;
  submit:-O | submit:--option) ezpz_kind='nothing' ;;
  submit:--jobs) ezpz_kind='nothing' ;;
  submit:--node-hours) ezpz_kind='nothing' ;;
  submit:--output) ezpz_kind='folders' ;;
  submit:--venv) ezpz_kind='folders' ;;
  submit:--site) ezpz_kind='sites' ;;
  submit:--scheduler) ezpz_kind='words slurm pbs none' ;;
  test:--train-iters) ezpz_kind='nothing' ;;
  test:--batch-size) ezpz_kind='nothing' ;;
  test:--dataset) ezpz_kind='words digits random' ;;
  test:--input-size) ezpz_kind='nothing' ;;
  test:--output-size) ezpz_kind='nothing' ;;
  test:--layer-sizes) ezpz_kind='nothing' ;;
  test:--dtype) ezpz_kind='words float32 fp32 bfloat16 bf16 float16 fp16' ;;
  test:--lr) ezpz_kind='nothing' ;;
  test:--print-freq | test:--log-freq) ezpz_kind='nothing' ;;
  test:--warmup) ezpz_kind='nothing' ;;
  test:--seed) ezpz_kind='nothing' ;;
  test:--strategy) ezpz_kind='words ddp fsdp zero1 deepspeed' ;;
  test:--tp) ezpz_kind='nothing' ;;
  test:--backend) ezpz_kind='nothing' ;;
  test:--ds-config) ezpz_kind='files' ;;
  test:--profile) ezpz_kind='nothing' ;;
  test:--on-nan) ezpz_kind='words go-on stop dump' ;;
  test:--outdir) ezpz_kind='folders' ;;
  test:--name) ezpz_kind='nothing' ;;
  simulate:-n | simulate:--np | simulate:-np) ezpz_kind='nothing' ;;
  simulate:--ppn | simulate:-ppn) ezpz_kind='nothing' ;;
  simulate:--rank) ezpz_kind='nothing' ;;
  simulate:--memory) ezpz_kind='nothing' ;;
  simulate:--timeout) ezpz_kind='nothing' ;;
  fetch:--folder) ezpz_kind='folders' ;;
  kill:--hosts) ezpz_kind='hosts' ;;
  logs:--rank) ezpz_kind='nothing' ;;
  runs:--state) ezpz_kind='words running finished exited failed stopped died' ;;
  watch:--interval) ezpz_kind='nothing' ;;
  plot:-k | plot:--key) ezpz_kind='nothing' ;;
  plot:--ranks) ezpz_kind='nothing' ;;
  plot:--last) ezpz_kind='nothing' ;;
  plot:--width) ezpz_kind='nothing' ;;
  plot:--height) ezpz_kind='nothing' ;;
  report:-o | report:--output) ezpz_kind='files' ;;
  export:-o | export:--output) ezpz_kind='files' ;;
  startup:--last) ezpz_kind='nothing' ;;
  why:--logs) ezpz_kind='files' ;;
  checkpoint:--to) ezpz_kind='files' ;;
  compare:--metric) ezpz_kind='nothing' ;;
  compare:--width) ezpz_kind='nothing' ;;
  compare:-o | compare:--output) ezpz_kind='folders' ;;
  benchmark:--run) ezpz_kind='words test_dist fsdp fsdp_tp vit llm gpt' ;;
  benchmark:--preset) ezpz_kind='nothing' ;;
  benchmark:--max-iters | benchmark:--max_iters) ezpz_kind='nothing' ;;
  benchmark:--outdir) ezpz_kind='folders' ;;
  doctor:--hosts) ezpz_kind='hosts' ;;
  doctor:--outdir) ezpz_kind='folders' ;;
  doctor:--bundle) ezpz_kind='files' ;;
  *) ezpz_kind='' ;;
  esac
}

_ezpz_argument() { # VERB
  case $1 in
  init) ezpz_kind='sites' ;;
  launch) ezpz_kind='command' ;;
  submit) ezpz_kind='command' ;;
  simulate) ezpz_kind='command' ;;
  fetch) ezpz_kind='words mnist fashion_mnist cifar10 c4 c4_test' ;;
  kill) ezpz_kind='launches' ;;
  status) ezpz_kind='runs' ;;
  logs) ezpz_kind='runs' ;;
  runs) ezpz_kind='runs' ;;
  open) ezpz_kind='runs' ;;
  watch) ezpz_kind='runs' ;;
  plot) ezpz_kind='runs' ;;
  report) ezpz_kind='runs' ;;
  export) ezpz_kind='runs' ;;
  startup) ezpz_kind='runs' ;;
  stacks) ezpz_kind='launches' ;;
  why) ezpz_kind='runs' ;;
  checkpoint) ezpz_kind='words verify export' ;;
  compare) ezpz_kind='runs' ;;
  doctor) ezpz_kind='files' ;;
  sites) ezpz_kind='sites' ;;
  completion) ezpz_kind='words bash zsh' ;;
  *) ezpz_kind=nothing ;;
  esac
}

_ezpz_sites() {
  ezpz_words=''
  ezpz_words+=' alps andes aurora crux frontera frontier lonestar6 lumi perlmutter polaris sophia stampede3 vista'
}

# Offers what begins like the word under the cursor, out of the words that follow or lines of stdin.
_ezpz_offer() { # WORD ...
  local each
  COMPREPLY=()
  for each in "$@"; do
    if [[ $each == "$ezpz_cur"* ]]; then COMPREPLY+=("$each"); fi
  done
}

# Offers paths; readline adds slashes and quotes.
_ezpz_paths() { # -f or -d
  local each
  compopt -o filenames 2>/dev/null
  COMPREPLY=()
  while IFS= read -r each; do COMPREPLY+=("$each"); done < <(compgen "$1" -- "$ezpz_cur")
}

# Offers what is in outputs/: the names where there are several, then the folders of runs of one; else any folder.
# There may be hundreds: no program and no loop looks at them.
_ezpz_runs() {
  local names=() found=()
  COMPREPLY=()
  case $ezpz_cur in
  outputs/*/*) found=("$ezpz_cur"*/metrics.jsonl) ;;
  outputs/*) names=("$ezpz_cur"*/) ;;
  *) if [[ outputs/ == "$ezpz_cur"* ]]; then names=(outputs/*/); fi ;;
  esac
  if ((${#names[@]} > 1)); then
    COMPREPLY=("${names[@]%/}")
    compopt -o nospace -o filenames 2>/dev/null
    return
  elif ((${#names[@]})); then
    found=("${names[0]}metrics.jsonl")
    if [[ ! -e ${found[0]} ]]; then found=("${names[0]}"*/metrics.jsonl); fi
  fi
  if [[ -e ${found[0]-} ]]; then
    COMPREPLY=("${found[@]%/metrics.jsonl}")
    compopt -o filenames 2>/dev/null
  else
    _ezpz_paths -d
  fi
}

# Offers the ids of this user's running launches.
_ezpz_launches() {
  local each ids=()
  # by the names of their sockets on this host
  while IFS= read -r each; do
    case $each in
    *" @ezpz-launch-$UID-"*) each=${each##*" @ezpz-launch-$UID-"} each=${each#*-} ;;
    "${TMPDIR:-/tmp}/ezpz-$UID/sockets/launch-"*) each=${each##*/launch-} each=${each%.sock} ;;
    *) continue ;;
    esac
    ids+=("${each//+//}")
  done < <(cat /proc/net/unix 2>/dev/null || compgen -G "${TMPDIR:-/tmp}/ezpz-$UID/sockets/*.sock")
  _ezpz_offer ${ids[@]+"${ids[@]}"}
}

# Offers the hosts of the job, for the last name of a list.
_ezpz_hosts() {
  local each before='' hosts=() seen=' '
  local file=${PBS_NODEFILE:-${HOSTFILE:-}}
  if [[ $ezpz_cur == *,* ]]; then before=${ezpz_cur%,*},; fi
  if [[ -r $file ]]; then
    while IFS= read -r each || [[ $each ]]; do
      each=${each%%[[:space:]:]*}
      [[ $each && $seen != *" $each "* && ",$before" != *",$each,"* ]] || continue
      seen+="$each "
      hosts+=("$before$each")
    done <"$file"
  fi
  compopt -o nospace 2>/dev/null
  _ezpz_offer ${hosts[@]+"${hosts[@]}"}
}

# Offers what a kind of word takes.
_ezpz_kind() { # KIND [WORD ...]
  local kind=$1
  shift
  case $kind in
    files) _ezpz_paths -f ;;
    folders) _ezpz_paths -d ;;
    runs | launches | hosts) "_ezpz_$kind" ;;
    sites)
      _ezpz_sites
      _ezpz_offer $ezpz_words
      ;;
    words) _ezpz_offer "$@" ;;
  esac
}

# Completes the command that follows the options, as it would be completed without what stands before it.
_ezpz_command() { # INDEX of its first word
  local first=$1 each line name function
  if ((COMP_CWORD == first)); then
    compopt -o filenames 2>/dev/null
    COMPREPLY=()
    while IFS= read -r each; do COMPREPLY+=("$each"); done < <(compgen -A command -A file -- "$ezpz_cur" | sort -u)
    return
  fi
  if declare -F _comp_command_offset >/dev/null; then # bash-completion 2.12
    _comp_command_offset "$first"
    return
  elif declare -F _command_offset >/dev/null; then
    _command_offset "$first"
    return
  fi
  name=${COMP_WORDS[first]}
  function=$(complete -p -- "${name##*/}" 2>/dev/null | sed -n 's/.* -F \([^ ]*\) .*/\1/p')
  if [[ -z $function ]] || ! declare -F "$function" >/dev/null; then
    _ezpz_paths -f
    return
  fi
  line="${COMP_WORDS[*]:first}"
  COMP_WORDS=("${COMP_WORDS[@]:first}")
  COMP_CWORD=$((COMP_CWORD - first))
  COMP_LINE=$line
  COMP_POINT=${#line}
  "$function" "$name" "$ezpz_cur" "${COMP_WORDS[COMP_CWORD - 1]}"
}

_ezpz_complete() {
  local ezpz_cur=${COMP_WORDS[COMP_CWORD]} ezpz_words='' ezpz_kind='' verb='' option='' index=1 IFS=$' \t\n'
  COMPREPLY=()
  if [[ ${COMP_WORDS[0]##*/} == launch ]]; then
    verb=launch
  elif ((COMP_CWORD == 1)); then
    if [[ $ezpz_cur == -* ]]; then _ezpz_options ''; else _ezpz_verbs; fi
    _ezpz_offer $ezpz_words
    return
  else
    verb=${COMP_WORDS[1]}
    index=2
    if [[ $verb == help ]]; then
      _ezpz_verbs
      _ezpz_offer $ezpz_words
      return
    fi
  fi
  # Walk to the word under the cursor: an option may take the next word, and a command takes the rest. readline makes
  # three words of --name=value.
  for (( ; index < COMP_CWORD; index++)); do
    case ${COMP_WORDS[index]} in
      =) ;;
      --)
        _ezpz_argument "$verb"
        if [[ $ezpz_kind == command ]]; then _ezpz_command $((index + 1)); fi
        return
        ;;
      -*)
        _ezpz_value "$verb:${COMP_WORDS[index]}"
        option=$ezpz_kind
        [[ $option ]] || continue
        if [[ ${COMP_WORDS[index + 1]} == '=' ]]; then ((index++)); fi
        ((index++))
        if ((index >= COMP_CWORD)); then
          if [[ $ezpz_cur == '=' ]]; then ezpz_cur=''; fi
          _ezpz_kind $option
          return
        fi
        ;;
      *)
        _ezpz_argument "$verb"
        if [[ $ezpz_kind == command ]]; then
          _ezpz_command "$index"
          return
        fi
        ;;
    esac
  done
  if [[ $ezpz_cur == -* ]]; then
    _ezpz_options "$verb"
    _ezpz_offer $ezpz_words
    return
  fi
  _ezpz_argument "$verb"
  if [[ $ezpz_kind == command ]]; then _ezpz_command "$COMP_CWORD"; else _ezpz_kind $ezpz_kind; fi
}

complete -F _ezpz_complete ezpz launch
