#compdef ezpz launch
# Completion of `ezpz` and `launch` for zsh (5.8 or newer), which never starts Python:  eval "$(ezpz completion zsh)"
# `make completion` writes this file from tests/lab/completion.zsh.in and the parsers of all verbs.

_ezpz_verbs() {
  local -a verbs=(
    'init:write a job script and a training to start from into this folder'
    'launch:start a command once per rank'
    'submit:write a job file for this machine and queue it'
    'test:launch the smoke test, ezpz.test_dist'
    'simulate:run a script as one rank of a world of N: does it fit?'
    'fetch:bring data sets for trainers to this machine, or list them'
    'kill:end a running launch of yours, or list them'
    'status:show your jobs and launches: what waits, runs and ended'
    'logs:print what ranks wrote, and follow it'
    'runs:list runs: what ran, what runs, what died and why'
    'open:show the report of a run in a browser, or print its path'
    'watch:follow a run'\''s metrics until it ends'
    'plot:draw a run'\''s metrics as plots made of characters'
    'report:write a run as one HTML page'
    'export:write the HDF5 file or a CSV of a run, whatever became of it'
    'startup:show where the time to the first step went, and who held up whom'
    'stacks:show where every rank of a running launch is now'
    'why:say why a launch ended as it did, and what to try'
    'checkpoint:verify checkpoints, or export the weights of one'
    'compare:show what runs have set differently, and where their curves part'
    'benchmark:run the trainers one after another and show what each reached'
    'where:show scheduler, hosts, devices and site, each with its source'
    'doctor:look at this host, or all hosts of a job: what is wrong?'
    'sites:show the machines that ezpz knows, or all facts of one'
    'shell:print the line that brings ezpz'\''s functions into a shell'
    'completion:print what lets TAB complete ezpz in bash or zsh'
    'help:show the help of a verb'
  )
  _describe -t verbs verb verbs
}

_ezpz_arguments() { # VERB
  case $1 in
  init)
    specs=(
      '(-h --help)-h[show this help message and exit]'
      '(-h --help)--help[show this help message and exit]'
      '*:init:_ezpz_offer sites'
    )
    ;;
  launch)
    specs=(
      '(-h --help)-h[show this help message and exit]'
      '(-h --help)--help[show this help message and exit]'
      '(-n --np -np)-n[ranks in total]:n: '
      '(-n --np -np)--np[ranks in total]:n: '
      '(-n --np -np)-np[ranks in total]:n: '
      '(--ppn -ppn)--ppn[ranks per host]:ppn: '
      '(--ppn -ppn)-ppn[ranks per host]:ppn: '
      '(--devices-per-host)--devices-per-host[devices of each host instead of the counted ones]:devices-per-host: '
      '(--devices)--devices[these of each host'\''s devices\: 0,1 or 2-3, counted among the …]:devices: '
      '(--oversubscribe)--oversubscribe[allow more ranks on a host than devices or slots]'
      '(--nhosts)--nhosts[the first N hosts]:nhosts: '
      '(--hosts)--hosts[these hosts, in this order]:hosts:_ezpz_offer hosts'
      '(--exclude)--exclude[all but these]:exclude:_ezpz_offer hosts'
      '(--hostfile)--hostfile[hosts of a file\: n01, n01\:4 or n01 slots=4 a line]:hostfile:_files'
      '(--flavour)--flavour[kind of launcher instead of the one found]:flavour:(local impi openmpi5 openmpi4 pals mpich srun flux torchrun pbs_tmrsh ssh)'
      '(--mpi)--mpi[no\: ranks start no MPI, and one agent per host forks them (site\: …]:mpi:(yes no site)'
      '(--cpu-bind)--cpu-bind[CPUs of each rank instead of the planned ones]:cpu-bind:(none depth list)'
      '(--depth)--depth[N CPUs for each rank, in order]:depth: '
      '(--launcher-args)--launcher-args[more words for mpiexec or srun, quoted as one]:launcher-args: '
      '(--comm-env)--comm-env[the site'\''s communication variables (default), or none]:comm-env:(site none)'
      '*--unset[variables that ranks shall not see]:unset: '
      '*--env[a variable of the ranks'\'' own]:env: '
      '(--master-addr)--master-addr[where the ranks meet]:master-addr: '
      '(--master-port)--master-port[at which port]:master-port: '
      '(-m --module)-m[python3 -m MODULE]:m: '
      '(-m --module)--module[python3 -m MODULE]:m: '
      '(--label)--label[begin each line of output with its rank]'
      '(--log-dir)--log-dir[a file per rank, and run.json, in DIR]:log-dir:_files -/'
      '(--attempts)--attempts[start again after a failure, N starts in all (1)]:attempts: '
      '(--check)--check[look at each host before its ranks begin (fast)]:check:(fast full off)'
      '(--start-timeout)--start-timeout[all ranks must be up by then (10m)]:start-timeout: '
      '(--timeout)--timeout[the run must have ended by then]:timeout: '
      '(--idle-timeout)--idle-timeout[no rank may be without a heartbeat for longer]:idle-timeout: '
      '(--exit-timeout)--exit-timeout[when one rank has ended with 0, the others must follow]:exit-timeout: '
      '(--no-save-at-end)--no-save-at-end[ask the ranks neither to save and to end before the job ends, …]'
      '(--dry-run)--dry-run[the line that would run, to paste by hand]'
      '(--explain)--explain[every flag and variable with value and origin]'
      '(--json)--json[both for machines]'
      '(--verbose)--verbose[what --explain shows, on stderr, and then run]'
      '(-)1:command:_command_names -e'
      '*::arguments:_normal'
    )
    ;;
  submit)
    specs=(
      '(-h --help)-h[show this help message and exit]'
      '(-h --help)--help[show this help message and exit]'
      '(--nhosts)--nhosts[how many hosts]:nhosts: '
      '(--time)--time[its longest time\: 30m, 6h, 1d, HH\:MM\:SS, 1-12\:00\:00]:time: '
      '(-A --account)-A[account that is charged]:A: '
      '(-A --account)--account[account that is charged]:A: '
      '(-q --queue)-q[queue, partition or QOS, as the site calls it]:q: '
      '(-q --queue)--queue[queue, partition or QOS, as the site calls it]:q: '
      '(--filesystems)--filesystems[file systems that the job needs, where the site asks for them\: …]:filesystems: '
      '(--name)--name[its name]:name: '
      '(-O --option)-O[one more option of the scheduler'\''s, as a job file has it\: …]:O: '
      '(-O --option)--option[one more option of the scheduler'\''s, as a job file has it\: …]:O: '
      '(--jobs)--jobs[at most N jobs, one after the other]:jobs: '
      '(--until-done)--until-done[queue further jobs until the training is done\: at most --jobs, …]'
      '(--node-hours)--node-hours[all jobs together ask for at most so many hosts times hours]:node-hours: '
      '(--output)--output[folder for the job file and the job'\''s output]:output:_files -/'
      '(--venv)--venv[virtual environment of the job]:venv:_files -/'
      '(--site)--site[write it for this site of `ezpz sites`]:site:_ezpz_offer sites'
      '(--scheduler)--scheduler[write it for this scheduler, on no site]:scheduler:(slurm pbs none)'
      '(--force)--force[submit what is refused for a limit, a folder or a chain]'
      '(--json)--json[print path, ids and folder as one JSON object]'
      '(--dry-run)--dry-run[print the job file]'
      '(-)1:command:_command_names -e'
      '*::arguments:_normal'
    )
    ;;
  test)
    specs=(
      '(-h --help)-h[show this help message and exit]'
      '(-h --help)--help[show this help message and exit]'
      '(--train-iters)--train-iters[steps to train (100)]:train-iters: '
      '(--batch-size)--batch-size[samples per rank and step (64)]:batch-size: '
      '(--dataset)--dataset[handwritten digits, or random vectors]:dataset:(digits random)'
      '(--input-size)--input-size[width of the input (64 for digits, else 128)]:input-size: '
      '(--output-size)--output-size[width of the output (10 for digits, else 128)]:output-size: '
      '(--layer-sizes)--layer-sizes[hidden layers (1024,512,256,128)]:layer-sizes: '
      '(--dtype)--dtype[precision of the forward pass (float32)]:dtype:(float32 fp32 bfloat16 bf16 float16 fp16)'
      '(--lr)--lr[learning rate of Adam (0.001)]:lr: '
      '(--print-freq --log-freq)--print-freq[print every N-th step (10)]:print-freq: '
      '(--print-freq --log-freq)--log-freq[print every N-th step (10)]:print-freq: '
      '(--warmup)--warmup[steps at the start to mark, and to leave out of the timing]:warmup: '
      '(--seed)--seed[seed of weights and of the order of samples (42)]:seed: '
      '(--strategy)--strategy[how ranks share the model (ddp]:strategy:(ddp fsdp zero1 deepspeed)'
      '(--tp)--tp[ranks that share every pair of layers (1)]:tp: '
      '(--backend)--backend[collective backend, such as gloo (the device'\''s own)]:backend: '
      '(--compile)--compile[compile the network (warns where there is no compiler)]'
      '(--ds-config)--ds-config[DeepSpeed'\''s configuration, for --strategy deepspeed (generated)]:ds-config:_files'
      '(--profile)--profile[py (with --profile alone), torch, mem, joined by '\''+'\'', each with …]:profile: '
      '(--on-nan)--on-nan[when the loss is no number\: go on, stop on all ranks, or stop …]:on-nan:(go-on stop dump)'
      '(--no-plots)--no-plots[draw nothing]'
      '(--outdir)--outdir[the run'\''s folder (outputs/<name>/<time>)]:outdir:_files -/'
      '(--name)--name[name of the run (test_dist)]:name: '
    )
    ;;
  simulate)
    specs=(
      '(-h --help)-h[show this help message and exit]'
      '(-h --help)--help[show this help message and exit]'
      '(-n --np -np)-n[size of the world]:n: '
      '(-n --np -np)--np[size of the world]:n: '
      '(-n --np -np)-np[size of the world]:n: '
      '(--ppn -ppn)--ppn[ranks per host]:ppn: '
      '(--ppn -ppn)-ppn[ranks per host]:ppn: '
      '(--rank)--rank[which rank to be]:rank: '
      '(--memory)--memory[ask whether SIZE per rank is enough\: 40GB, 64GiB]:memory: '
      '(--no-data)--no-data[tensors have shapes and no memory\: any model fits here, and …]'
      '(--timeout)--timeout[the script must have ended by then\: 90, 90s, 10m, 1h30m]:timeout: '
      '(--json)--json[print the answer as one JSON object]'
      '(-)1:command:_command_names -e'
      '*::arguments:_normal'
    )
    ;;
  fetch)
    specs=(
      '(-h --help)-h[show this help message and exit]'
      '(-h --help)--help[show this help message and exit]'
      '(--folder)--folder[where they are kept]:folder:_files -/'
      '(--list)--list[show the data sets that have a name of their own]'
      '*:fetch:(mnist fashion_mnist cifar10 c4 c4_test)'
    )
    ;;
  kill)
    specs=(
      '(-h --help)-h[show this help message and exit]'
      '(-h --help)--help[show this help message and exit]'
      '(--all)--all[all launches of that list]'
      '(--hosts)--hosts[end what is left of ID on these hosts too\: for a launch whose …]:hosts:_ezpz_offer hosts'
      '(--job)--job[the same on every host of the job]'
      '(--now)--now[SIGKILL at once]'
      '*:kill:_ezpz_offer launches'
    )
    ;;
  status)
    specs=(
      '(-h --help)-h[show this help message and exit]'
      '(-h --help)--help[show this help message and exit]'
      '(--json)--json[one JSON object\: rows, and what did not answer]'
      '*:status:_ezpz_offer runs'
    )
    ;;
  logs)
    specs=(
      '(-h --help)-h[show this help message and exit]'
      '(-h --help)--help[show this help message and exit]'
      '(-f --follow)-f[go on until the launch has ended]'
      '(-f --follow)--follow[go on until the launch has ended]'
      '(--rank)--rank[of this rank alone, from its log]:rank: '
      '*:logs:_ezpz_offer runs'
    )
    ;;
  runs)
    specs=(
      '(-h --help)-h[show this help message and exit]'
      '(-h --help)--help[show this help message and exit]'
      '(--goodput)--goodput[where the granted seconds of a run went (the newest below outputs)]'
      '(--json)--json[print a JSON list]'
      '(--all)--all[all runs, where a terminal shows the newest 50]'
      '(--state)--state[only runs of this state\: running, finished, exited, failed, …]:state:(running finished exited failed stopped died)'
      '*:runs:_ezpz_offer runs'
    )
    ;;
  open)
    specs=(
      '(-h --help)-h[show this help message and exit]'
      '(-h --help)--help[show this help message and exit]'
      '(--path)--path[print the path of the page, and open nothing]'
      '*:open:_ezpz_offer runs'
    )
    ;;
  watch)
    specs=(
      '(-h --help)-h[show this help message and exit]'
      '(-h --help)--help[show this help message and exit]'
      '(--interval)--interval[seconds between two looks]:interval: '
      '(--once)--once[look once]'
      '*:watch:_ezpz_offer runs'
    )
    ;;
  plot)
    specs=(
      '(-h --help)-h[show this help message and exit]'
      '(-h --help)--help[show this help message and exit]'
      '*-k[a metric, also where a folder has that name]:k: '
      '*--key[a metric, also where a folder has that name]:k: '
      '(--overlay)--overlay[draw all metrics that were named into one plot]'
      '*--ranks[draw what each rank recorded, as shades over steps]:ranks: '
      '(--log)--log[a logarithmic axis]'
      '(--last)--last[only the last N rows]:last: '
      '(--pictures)--pictures[draw PNG and SVG into plots/mplot of the run folder instead\: a …]'
      '(--list)--list[list the metrics instead\: count, first, last, min, max]'
      '(--width)--width[columns]:width: '
      '(--height)--height[lines of each plot]:height: '
      '*:plot:_ezpz_offer runs'
    )
    ;;
  report)
    specs=(
      '(-h --help)-h[show this help message and exit]'
      '(-h --help)--help[show this help message and exit]'
      '(-o --output)-o[the page, - for standard output (default\: report.html in the run …]:o:_files'
      '(-o --output)--output[the page, - for standard output (default\: report.html in the run …]:o:_files'
      '(--public)--public[leave out hosts, paths, users and arguments (default file\: …]'
      '*:report:_ezpz_offer runs'
    )
    ;;
  export)
    specs=(
      '(-h --help)-h[show this help message and exit]'
      '(-h --help)--help[show this help message and exit]'
      '(--csv)--csv[comma-separated values, a line per row]'
      '(--nc)--nc[the HDF5 file under the name of netCDF files]'
      '(-o --output)-o[where to write, - for standard output (in the run folder, named …]:o:_files'
      '(-o --output)--output[where to write, - for standard output (in the run folder, named …]:o:_files'
      '*:export:_ezpz_offer runs'
    )
    ;;
  startup)
    specs=(
      '(-h --help)-h[show this help message and exit]'
      '(-h --help)--help[show this help message and exit]'
      '(--last)--last[the last N launches of this user on this machine, as a table]:last: '
      '(--json)--json[print a JSON list]'
      '*:startup:_ezpz_offer runs'
    )
    ;;
  stacks)
    specs=(
      '(-h --help)-h[show this help message and exit]'
      '(-h --help)--help[show this help message and exit]'
      '(-v --verbose)-v[the Python stack of every rank]'
      '(-v --verbose)--verbose[the Python stack of every rank]'
      '(--json)--json[one JSON object\: summary, why, and per rank rank, host, pid, …]'
      '*:stacks:_ezpz_offer launches'
    )
    ;;
  why)
    specs=(
      '(-h --help)-h[show this help message and exit]'
      '(-h --help)--help[show this help message and exit]'
      '(--logs)--logs[of a launch that ezpz did not start\: what its ranks and …]:logs:_files'
      '(--json)--json[one JSON object\: launch, state, causes, and what was seen]'
      '*:why:_ezpz_offer runs'
    )
    ;;
  checkpoint)
    specs=(
      '(-h --help)-h[show this help message and exit]'
      '(-h --help)--help[show this help message and exit]'
      '(--to)--to[FILE.safetensors, FILE.pt, or a folder that Hugging Face'\''s …]:to:_files'
      '(--ema)--ema[the moving average of the weights in their place]'
      '(--overwrite)--overwrite[replace what is there]'
      '*:checkpoint:(verify export)'
    )
    ;;
  compare)
    specs=(
      '(-h --help)-h[show this help message and exit]'
      '(-h --help)--help[show this help message and exit]'
      '(--metric)--metric[what to compare (default\: the loss)]:metric: '
      '(--json)--json[print one JSON object]'
      '(--width)--width[columns, 40 or more (default\: the terminal'\''s, 40 to 120]:width: '
      '(--no-picture)--no-picture[draw no overlay]'
      '(-o --output)-o[folder for overlay.png and overlay.svg (default on a terminal\: …]:o:_files -/'
      '(-o --output)--output[folder for overlay.png and overlay.svg (default on a terminal\: …]:o:_files -/'
      '*:compare:_ezpz_offer runs'
    )
    ;;
  benchmark)
    specs=(
      '(-h --help)-h[show this help message and exit]'
      '(-h --help)--help[show this help message and exit]'
      '(--run)--run[these trainers, in this order (test_dist, fsdp, fsdp_tp, vit, …]:run:(test_dist fsdp fsdp_tp vit llm gpt)'
      '(--preset)--preset[the preset of all]:preset: '
      '(--max-iters --max_iters)--max-iters[train N steps]:max-iters: '
      '(--max-iters --max_iters)--max_iters[train N steps]:max-iters: '
      '(--outdir)--outdir[a new or empty folder (outputs/benchmark/<time>)]:outdir:_files -/'
      '(--list)--list[show trainers and presets, and run nothing]'
      '(--dry-run)--dry-run[show the command lines, and run nothing]'
    )
    ;;
  where)
    specs=(
      '(-h --help)-h[show this help message and exit]'
      '(-h --help)--help[show this help message and exit]'
      '(--json)--json[print one JSON object\: every fact with its source]'
    )
    ;;
  doctor)
    specs=(
      '(-h --help)-h[show this help message and exit]'
      '(-h --help)--help[show this help message and exit]'
      '(--hosts)--hosts[these hosts, as for `launch`\: n01,n\[03-05\]]:hosts:_ezpz_offer hosts'
      '(--job)--job[all hosts of the job that this shell is in]'
      '(--outdir)--outdir[where the run will write (outputs)]:outdir:_files -/'
      '(--full)--full[also compute on each device, and compare with the CPU]'
      '(--json)--json[print one JSON object\: hosts, findings, facts]'
      '(--bundle)--bundle[also write a zip for a support ticket, without secrets]:bundle:_files'
      '*:doctor:_files'
    )
    ;;
  sites)
    specs=(
      '(-h --help)-h[show this help message and exit]'
      '(-h --help)--help[show this help message and exit]'
      '(--json)--json[print JSON]'
      '(--sh)--sh[print your own sites as the functions that utils.sh reads]'
      '*:sites:_ezpz_offer sites'
    )
    ;;
  shell)
    specs=(
      '(-h --help)-h[show this help message and exit]'
      '(-h --help)--help[show this help message and exit]'
    )
    ;;
  completion)
    specs=(
      '(-h --help)-h[show this help message and exit]'
      '(-h --help)--help[show this help message and exit]'
      '*:completion:(bash zsh)'
    )
    ;;
  esac
}

_ezpz_sites() {
  ezpz_words=''
  ezpz_words+=' alps andes aurora crux frontera frontier lonestar6 lumi perlmutter polaris sophia stampede3 vista'
}

# Offers what a kind of word takes: runs below outputs/, running launches of this user, hosts of the job, known sites.
_ezpz_offer() { # ... KIND; _arguments puts options of compadd before it
  local kind=${@[-1]} file
  local -a found
  case $kind in
    runs)
      # the names where there are several, then the runs of one; there may be hundreds, so none is looked at twice
      local typed=${(Q)PREFIX}
      if [[ $typed == outputs/*/* ]]; then
        found=(${typed%/*}/*/metrics.jsonl(NoN:h))
      elif [[ $typed == outputs/* || outputs/ == $typed* ]]; then
        found=(outputs/*(N-/))
        if (( ${#found} > 1 )); then
          compadd -S / -q -- $found && return
        elif (( ${#found} )); then
          found=($found/metrics.jsonl(N:h) $found/*/metrics.jsonl(NoN:h))
        fi
      fi
      if (( ${#found} )); then
        compadd -- $found && return
      fi
      _files -/
      ;;
    launches)
      # by the names of their sockets
      if [[ -r /proc/net/unix ]]; then
        found=(${(M)${(f)"$(</proc/net/unix)"}:#* @ezpz-launch-$UID-*})
        found=(${(u)${found##* @ezpz-launch-$UID-}#*-})
      else
        found=(${TMPDIR:-/tmp}/ezpz-$UID/sockets/launch-*.sock(N:t:r))
        found=(${found#launch-})
      fi
      compadd -- ${found//+//}
      ;;
    hosts)
      file=${PBS_NODEFILE:-${HOSTFILE:-}}
      if [[ -r $file ]]; then
        found=(${(u)${(f)"$(<$file)"}%%[[:space:]:]*})
        _values -s , host $found
      fi
      ;;
    sites)
      local ezpz_words
      _ezpz_sites
      compadd -- ${=ezpz_words}
      ;;
  esac
}

# Offers the options of a verb where the word under the cursor begins one: _arguments takes more than 20 ms to do so.
# Elsewhere it returns 1.
_ezpz_dashed() { # VERB
  local name spec index
  local -a options names values used shown found
  [[ $words[CURRENT] == -* ]] || return 1
  options=(${(M)specs:#*\[*})
  names=(${${options#(\(*\)|\*)}%%\[*})
  values=(${(M)options:#*\]:*})
  values=(${${values#(\(*\)|\*)}%%\[*})
  for (( index = 2; index < CURRENT; index++ )); do
    name=$words[index]
    if [[ $name == -- || $name != -* ]]; then
      [[ $1 == (launch|simulate) || $name == -- ]] && return 1 # options of a command
      continue
    fi
    used+=($name)
    if (( ${values[(Ie)$name]} && ++index >= CURRENT )); then return 1; fi # the value of an option
  done
  for spec name in ${options:^names}; do
    if [[ $spec != \** ]] && (( ${used[(Ie)$name]} )); then continue; fi
    spec=${${${spec#*\[}%%\]*}//\\:/:}
    found+=($name)
    shown+=("${(r:24:)name} -- $spec")
  done
  compadd -V options -l -d shown -M 'r:|[_-]=* r:|=*' -a found
}

_ezpz() {
  local curcontext=$curcontext ret=1
  local -a specs state line
  local -A opt_args
  if [[ ${service:-$words[1]} == launch ]]; then
    _ezpz_arguments launch
    _ezpz_dashed launch && return
    _arguments -S : $specs
    return
  fi
  if (( CURRENT == 2 )); then
    if [[ $words[2] == -* ]]; then
      _arguments '--help[show all verbs]' '--version[show the version]'
    else
      _ezpz_verbs
    fi
    return
  fi
  local verb=$words[2]
  if [[ $verb == help ]]; then
    _ezpz_verbs
    return
  fi
  _ezpz_arguments $verb
  (( ${#specs} )) || return 1
  shift words
  (( CURRENT-- ))
  _ezpz_dashed $verb && return
  _arguments -S : $specs
}

if [[ ${funcstack[1]} == _ezpz ]]; then
  _ezpz "$@"
else
  (( ${+functions[compdef]} )) || { autoload -Uz compinit && compinit -D; }
  compdef _ezpz ezpz launch
fi
