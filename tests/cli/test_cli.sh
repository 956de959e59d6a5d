#!/bin/sh
# test_cli.sh DSV [--rewrite]: checks output and exit status of dsv in cases that need no training.
# --rewrite stores the present output in the .txt files next to this script as the expected output.
set -u
dsv=$1
rewrite=${2:-}
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
failures=0

complain()
{
    echo "dsv $called: $1"
    failures=$((failures + 1))
}

# call STATUS ARGUMENT...: runs dsv, keeps out, err and their names, checks the exit status.
call()
{
    expected=$1
    shift
    called=$*
    "$dsv" "$@" >out 2>err
    status=$?
    [ "$status" = "$expected" ] || complain "exit status $status, expected $expected; it said: $(cat out err)"
}

# refuses STATUS SENTENCE ARGUMENT...: expects exactly this sentence on stderr and nothing on stdout.
refuses()
{
    sentence=$2
    status=$1
    shift 2
    call "$status" "$@"
    [ "$(cat err)" = "dsv: $sentence." ] || complain "said '$(cat err)', expected 'dsv: $sentence.'"
    [ ! -s out ] || complain "said on stdout: $(cat out)"
}

# complains STATUS WORDS ARGUMENT...: one line on stderr, the library's, with these words in it.
complains()
{
    words=$2
    status=$1
    shift 2
    call "$status" "$@"
    [ "$(wc -l <err)" = 1 ] || complain "expected one line on stderr, got: $(cat err)"
    case $(cat err) in
    "dsv: "*"$words"*.) ;;
    *) complain "said '$(cat err)', expected '$words' in it" ;;
    esac
}

# shows PAGE ARGUMENT...: expects exactly this page on stdout and nothing on stderr.
shows()
{
    page=$here/$1
    shift
    call 0 "$@"
    [ ! -s err ] || complain "said on stderr: $(cat err)"
    sed 's/^dsv [0-9.]*:/dsv VERSION:/' out >said
    [ "$rewrite" != --rewrite ] || cp said "$page"
    diff -u "$page" said || complain "not the page $page"
}

# tells TEXT ARGUMENT...: expects exactly this text on stdout.
tells()
{
    text=$1
    shift
    call 0 "$@"
    [ "$(cat out)" = "$text" ] || complain "said '$(cat out)', expected '$text'"
}

echo "max_train_steps: 1" >run.yaml
echo "max_train_step: 1" >unknown.yaml
printf 'lr: "1\n' >broken.yaml

# pages
shows overview.txt help
shows overview.txt --help
shows overview.txt -h
shows help_train.txt help train
shows help_train.txt train --help
shows help_train.txt train run.yaml lr=1 -h
shows help_sample.txt help sample
shows help_encode.txt help encode
shows help_bench.txt help bench
shows help_setting.txt help sparse.group
call 0 help bench step
grep -q '^usage: dsv bench step' out || complain "not the page of bench step"
call 0 help plan memory
grep -q '^  h200     139.7 GiB  NVIDIA H200, speeds measured$' out || complain "lacks the cards"
call 0 help options
grep -q '^  sparse.min_mass=0.3  (number, 0 to 1)$' out || complain "lacks sparse.min_mass"
grep -q '^  sparse.min_head_mass=0.1  (number, 0 to 1)$' out || complain "lacks sparse.min_head_mass"
[ "$(awk 'length > 80' out)" = "" ] || complain "has lines of more than 80 columns"
call 0 help sparse
[ "$(head -1 out)" = "Sparse attention" ] || complain "not the section"
keys=$("$dsv" help options | grep -c '^  sparse\.')
[ "$(grep -c '^  sparse\.' out)" = "$keys" ] || complain "not all of it"
grep -q '^  lr=' out && complain "more than the section"
call 0 help optimization
grep -q '^  lr=' out || complain "not the section of a title"
refuses 2 "help: no verb or option learning_rate: dsv calls it lr" help learning_rate
refuses 2 "plan: run.yaml and --config run.yaml: expected one of them" plan run.yaml --config run.yaml
complains 2 "cp_size" plan run.yaml
complains 1 "nowhere.yaml" plan nowhere.yaml
for verb in encode text forward inspect report plan help version; do
    call 0 help $verb
    grep -q "^usage: dsv $verb" out || complain "not the page of $verb"
done
tells "$("$dsv" version)" --version
tells "$("$dsv" version)" -V

call 0 help --man
grep -q '^\.TH DSV 1' out || complain "not the manual page"
refuses 2 "help: --man is one page about everything, expected nothing else with it" help train --man

# a stack of 64 KiB
called="bench attention under ulimit -s 64"
(ulimit -s 64 &&
    "$dsv" bench attention --tokens 512 --heads 2 --head-dim 128 --density 0.2 --repeats 1 threads=2) \
    >out 2>err || complain "exit status $?; it said: $(cat err)"

# misuse
call 2
[ "$(cat err)" = "$("$dsv" help)" ] || complain "expected the overview on stderr"
refuses 2 "no verb trian, the nearest is train" trian run.yaml
refuses 2 "no verb banana; dsv help lists all verbs" banana
refuses 2 "bench needs attention or context or part or step after it" bench
refuses 2 "bench needs attention or context or part or step after it" bench memory
refuses 2 "train: no flag --verbos, the nearest is --verbose" train run.yaml --verbos
refuses 2 "train: no flag -x; dsv help train lists all flags" train run.yaml -x
refuses 2 "train: no flag --max-train-steps; options are written max_train_steps=5" train --max-train-steps=5
refuses 2 "train: no flag --lr; options are written lr=VALUE" train --lr 1e-3
refuses 2 "train: no flag --learning-rate: dsv calls it lr" train --learning-rate 1e-3
refuses 2 "train: no flag --prompt: dsv sample takes a prompt as --prompt TEXT" train --prompt "a cat"
refuses 1 "model: no such model folder or file" sample model clip.mp4 --prompt "a cat"
refuses 2 "train: b.yaml is one argument too many, expected [CONFIG.yaml]" train run.yaml b.yaml
refuses 2 "train: no CONFIG named, and there is no configs/demo.yaml here" train
refuses 2 "train: no clips to train on: data.path is empty" train run.yaml
refuses 2 "sample: expected MODEL OUT" sample model
refuses 2 "sample: --text needs FILE after it" sample model clip.mp4 --text
refuses 2 "sample: --image needs FILE after it" sample model clip.mp4 --image
refuses 1 "model: no such model folder or file" sample model clip.mp4 --image a.png --last-image b.png
refuses 2 "encode: expected DATA OUT" encode
refuses 2 "decode: expected MODEL LATENTS OUT" decode model latents
complains 1 "model" decode model latents clip.mp4
refuses 2 "encode: no --config given, and there is no configs/demo.yaml here" encode clips latents
complains 1 "nowhere" encode clips latents --model nowhere
mkdir configs clips
echo "num_frames: 9" >configs/demo.yaml
complains 1 "clips: no usable clip in it" encode clips latents
echo "num_frame: 9" >configs/demo.yaml
complains 2 "num_frame" encode clips latents
rm -r configs clips
refuses 2 "text: expected MODEL PROMPTS OUT" text model prompts.txt
complains 1 "nowhere.txt" text model nowhere.txt out.safetensors
printf 'a\377\n' >prompts.txt
complains 1 "prompts.txt: line 1 is not UTF-8" text model prompts.txt out.safetensors
printf 'a\n' >prompts.txt
complains 1 "model: no such folder or file" text model prompts.txt out.safetensors
[ ! -e out.safetensors ] || complain "left a file"
refuses 2 "lora merge: no LoRA, expected LORA, --lora-high or --lora-low" lora merge model out
refuses 2 "lora merge: --lora-low a,: expected a file before and after each comma" \
    lora merge model out --lora-low a,
refuses 2 "lora merge: --scale 2: expected LORA with it" lora merge model out --scale 2 --lora-high h
refuses 2 "forward: --grad takes no value" forward model in out --grad=1
refuses 2 "inspect: expected PATH" inspect
refuses 2 "report: expected RUN_DIR" report
refuses 2 "report: -o needs FILE after it" report run -o
refuses 2 "plan: --ranks 1: expected 2 or more" plan --ranks 1
refuses 2 "plan: --ranks two: expected an integer" plan --ranks two
refuses 2 "plan memory: --memory-gib 0: expected a number above 0" plan memory --memory-gib 0
refuses 2 "plan memory: run.yaml and --config run.yaml: expected one of them" \
    plan memory run.yaml --config run.yaml
complains 2 "the memory of the device is not given" plan memory
refuses 2 "version: x is one argument too many, expected none" version x
refuses 2 "bench attention: no flag --densty, the nearest is --density" bench attention --densty 0.1
refuses 2 "bench attention: --tokens 8k: expected an integer" bench attention --tokens 8k
refuses 2 "bench attention: --density nan: expected a number" bench attention --density nan
refuses 2 "bench context: --density and --head-sparsity: expected one of them" \
    bench context --density 0.1 --head-sparsity 0.9
refuses 2 "help: no verb or option sparse.grup, the nearest is sparse.group" help sparse.grup
refuses 2 "help: no verb or option xyzzy" help xyzzy

# options: a message of the library is shown to the user as one sentence
complains 2 "max_train_steps" train run.yaml max_train_step=5
complains 2 "max_train_steps" train run.yaml max-train-steps=5
complains 2 "lr" train run.yaml lr=fast
complains 2 "sparse.min_mass" train run.yaml sparse.min_mass=2
complains 2 "unipc" bench attention sampler=ddim
refuses 2 "tokens -1, expected none below 0" bench attention --tokens -1
refuses 2 "heads -2, expected none below 0" bench attention --heads -2
refuses 2 "head size -3, expected none below 0" bench attention --head-dim -3
refuses 2 "repeats 0, expected 1 to 64" bench attention --repeats 0
refuses 2 "rows 0, expected 1 to 65536" bench part . --rows 0
refuses 1 ".: no VAE and no text encoder of a published model" bench part .
call 0 bench part "$here/../golden/vae_a" num_frames=5 height=8 width=8 threads=1
grep -q '^decode_ms' out || complain "no decode_ms in: $(cat out)"
call 0 bench part "$here/../golden/umt5" --rows 7 --prompts 2 --repeats 1 threads=1
grep -q '^prompt_ms' out || complain "no prompt_ms in: $(cat out)"
refuses 2 "repeats 65, expected 1 to 64" bench attention --repeats 65
refuses 2 "density 2, expected above 0, at most 1" bench attention --density 2
refuses 2 "selector predictor, expected projection, pooled or window: the predictor needs hidden states, and \
the benchmark has none" bench attention --selector predictor
# options whose value a flag sets
for verb in attention context; do
    for pair in dtype:mixed_precision=no heads:model.num_attention_heads=12 \
        head-dim:model.attention_head_dim=128; do
        refuses 2 "bench $verb: ${pair#*:}: expected the flag --${pair%%:*} instead" bench $verb "${pair#*:}"
    done
    for case in "group 64 sparse.group=32" "grain 8 sparse.grain=4" "selector pooled sparse.selector=window" \
        "density 0.1 sparse.target_density=0.5" "density 0.1 sparse.min_keys=5"; do
        set -- $case
        refuses 2 "bench $verb: $3 and --$1: expected one of them" bench $verb "--$1" "$2" "$3"
    done
    for flag in group grain density; do
        refuses 2 "bench $verb: --$flag 0: expected a number above 0" bench $verb --$flag 0
    done
done
refuses 2 "group -1, expected none below 0" bench attention --group -1
refuses 2 "bench attention: --tokens 0: expected a number above 0" bench attention --tokens 0
refuses 2 "bench attention: --density and --target-mass: expected one of them" \
    bench attention --density 0.1 --target-mass 0.9
refuses 2 "target mass 0.5 with sparse.rule=topk, expected sparse.rule=threshold" \
    bench attention --target-mass 0.5 sparse.rule=topk
refuses 2 "bench attention: sparse.target_mass=0.9: expected the flag --target-mass instead" \
    bench attention --density 0.2 sparse.tail=key sparse.target_mass=0.9
refuses 2 "bench context: sparse.target_mass=0.9: expected the flag --density instead" \
    bench context sparse.target_mass=0.9
refuses 2 "1 rank, expected at least 2 that share a clip" bench context
refuses 2 "attention over lists, and sparse.enabled is false" bench context sparse.enabled=false
refuses 2 "attention over lists, and sparse.enabled is false" bench attention sparse.enabled=false
refuses 2 "sparse.time_choices is true, expected false: what it measures goes to a run's log" \
    bench step sparse.time_choices=true
complains 2 "max_train_steps" train unknown.yaml
complains 1 "nowhere.yaml" train nowhere.yaml
complains 1 "broken.yaml" train broken.yaml
complains 1 "nowhere" sample nowhere clip.mp4
complains 1 "nowhere" inspect nowhere
complains 2 "cp_size" plan
complains 2 "0 is no density" plan --ranks 2 --densities 0
complains 1 "nowhere.json" plan --ranks 2 --table nowhere.json
complains 1 "nowhere: no such folder" report nowhere
complains 1 ".: no metrics.jsonl there" report .
complains 1 "nowhere" inspect -- nowhere
complains 1 "./a=b" inspect ./a=b
complains 1 "nowhere" train run.yaml data.path=nowhere output_dir=run

# a start that is refused leaves no folder; a checkpoint's path in a file is not followed, and it is said so
[ ! -e run ] || complain "left the folder run"
echo "resume_from_checkpoint: old/checkpoint-2" >stored.yaml
call 1 train stored.yaml data.path=nowhere output_dir=run
grep -q "^warning: stored.yaml: resume_from_checkpoint=old/checkpoint-2 is ignored: " err ||
    complain "said: $(cat err)"
grep -q "^dsv: nowhere: no such file or folder.$" err || complain "said: $(cat err)"
[ ! -e run ] || complain "left the folder run"
call 1 train stored.yaml data.path=nowhere output_dir=run resume_from_checkpoint=other
grep -q "is ignored" err && complain "said: $(cat err)"
grep -q "resume_from_checkpoint=other: no such folder" err || complain "said: $(cat err)"
echo "resume_from_checkpoint: latest" >latest.yaml
call 1 train latest.yaml data.path=nowhere output_dir=run
grep -q "run holds no checkpoint: starting afresh" err || complain "said: $(cat err)"

# figures of lists are those of the lists that were attended over
small="--tokens 256 --heads 1 --head-dim 32 --group 32 --repeats 1"
call 0 bench attention $small --density 0.25 sparse.offload_lists=true
grep -q '^density  *0\.2[0-9]*$' out || complain "expected a density near 0.25, it said: $(cat out)"
complains 1 "memory_gib allows 1073741, of which 1073741 are left" \
    bench attention --tokens 2048 memory_gib=0.001
# without flags lists are those of training, and options change them
call 0 bench attention --tokens 2048 --heads 1 --head-dim 32 --repeats 1
for figure in 'group  *64' 'grain  *8' 'density  *0\.2[0-9]*'; do
    grep -q "^$figure$" out || complain "expected $figure, it said: $(cat out)"
done
call 0 bench attention --tokens 2048 --heads 1 --head-dim 32 --repeats 1 sparse.group=128 sparse.min_keys=1024
for figure in 'group  *128' 'density  *0\.[45][0-9]*'; do
    grep -q "^$figure$" out || complain "expected $figure, it said: $(cat out)"
done

# a page about a run that has just begun
mkdir begun
echo '{"step": 1, "loss": 1.5}' >begun/metrics.jsonl
call 0 report begun
[ "$(cut -d, -f1 out)" = "begun/report.html: 1 step" ] || complain "said '$(cat out)'"
tail -1 begun/report.html | grep -q '^</html>$' || complain "the page is not whole"
call 0 report begun -o page.html
cmp page.html begun/report.html || complain "-o changes the page"
echo '{"step": 1' >>begun/metrics.jsonl
complains 1 "begun/metrics.jsonl:2: not a JSON object" report begun

# -v prints the functions that forwarded an error
call 2 train run.yaml lr=fast -v
grep -q 'config.*\.c:[0-9]' err || complain "-v shows no trail: $(cat err)"

# results that cannot be written are an error
if [ -w /dev/full ]; then
    called="help >/dev/full"
    "$dsv" help >/dev/full 2>err
    status=$?
    [ "$status" = 1 ] || complain "exit status $status, expected 1"
    grep -q 'standard output cannot be written' err || complain "said '$(cat err)'"
fi

[ "$failures" = 0 ] || { echo "$failures complaints"; exit 1; }
echo "the program says what it should"
