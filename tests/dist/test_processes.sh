#!/bin/bash
# test_processes.sh BUILD mpi|tcp: ranks that are processes, started by mpirun or in the way of torchrun.
# Compares the program on two ranks with one rank, and checks how a rank reacts when the other is killed or
# asked to stop; with MPI also compares every call of DsviComm with plain loops.
set -euo pipefail
build=$1
way=$2
library=$build/libdsv_mpi.so
rank=$build/tests/dist/comm_under_mpi
dsv=$build/dsv

if [ "$way" = mpi ] && { ! command -v mpirun >/dev/null || [ ! -e "$library" ]; }; then
    echo "SKIPPED: no mpirun here, or dsv was built without MPI"
    exit 77
fi

work=$(mktemp -d /tmp/dsv-test-XXXXXX)
trap 'rm -rf "$work"' EXIT

# Leaks that a sanitizer would report are Open MPI's. All ranks run on this machine, so no ssh is needed.
export ASAN_OPTIONS="detect_leaks=0:${ASAN_OPTIONS:-}"
# A sanitizer's runtime loads libraries in place of libdsv.so, and does not search the folder of libdsv.so.
export LD_LIBRARY_PATH="$build${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Containers often forbid the system call with which Open MPI copies between processes (CMA).
export OMPI_MCA_btl_vader_single_copy_mechanism=none
mpi_start=(mpirun --oversubscribe --bind-to none --mca plm isolated)

fail()
{
    echo "FAILED: $1"
    [ $# -lt 2 ] || sed 's/^/    /' "$2"
    exit 1
}

# start N COMMAND...: runs the command on N ranks. Writes the process id of rank R to $work/rank.R.
start()
{
    local n=$1 noting='echo $$ >"$0.${OMPI_COMM_WORLD_RANK:-$RANK}"; exec "$@"'
    shift
    rm -f "$work"/rank.*
    if [ "$way" = mpi ]; then
        timeout 120 "${mpi_start[@]}" -n "$n" sh -c "$noting" "$work/rank" "$@"
        return
    fi
    local r jobs=() outcome=0 port=$((20000 + RANDOM % 12000))
    for ((r = 0; r < n; r++)); do
        RANK=$r WORLD_SIZE=$n MASTER_ADDR=localhost MASTER_PORT=$port \
            timeout 120 sh -c "$noting" "$work/rank" "$@" &
        jobs+=($!)
    done
    for r in "${jobs[@]}"; do
        wait "$r" || outcome=$?
    done
    return $outcome
}

# ends SECONDS SENTENCE COMMAND...: checks that the command fails in time and prints the sentence once.
ends()
{
    local seconds=$1 sentence=$2 begin=$SECONDS
    shift 2
    ! "$@" >"$work/said" 2>&1 || fail "$*: did not fail" "$work/said"
    [ $((SECONDS - begin)) -lt "$seconds" ] || fail "$*: took $((SECONDS - begin)) s" "$work/said"
    [ "$(grep -c "$sentence" "$work/said")" = 1 ] || fail "$*: expected once: $sentence" "$work/said"
}

if [ "$way" = mpi ]; then
    echo "every call, on 2, 3 and 4 ranks"
    for n in 2 3 4; do
        start $n "$rank" "$library" cases >"$work/said" 2>&1 || fail "$n ranks" "$work/said"
        [ "$(grep -c " on $n ranks" "$work/said")" = 10 ] || fail "$n ranks: not all cases" "$work/said"
    done

    echo "what ends one ends all"
    ends 20 '^rank 1: the disk is full$' start 3 "$rank" "$library" fails
    ends 20 '^rank 1 has not come to barrier for 1 s$' start 3 "$rank" "$library" late
    ends 20 '^rank 1 has ended, and others wait for it in barrier$' start 3 "$rank" "$library" killed
    echo "without rank 0 the others say why"
    ! start 3 "$rank" "$library" first >"$work/said" 2>&1 || fail "it went on without rank 0" "$work/said"
    grep -q '^rank 0 has ended, and others wait for it in barrier$' "$work/said" ||
        fail "no cause" "$work/said"
fi

echo "two ranks train what one trains with a batch of two"
for i in 1 2 3; do
    ffmpeg -v error -f lavfi -i "testsrc=size=64x64:rate=8:duration=3,hue=h=$((i * 60))" "$work/$i.mp4"
done
small=(model.num_layers=2 model.num_attention_heads=2 model.attention_head_dim=32 model.ffn_dim=64
    num_frames=5 height=32 width=32 fps=8 lr=1e-3 ema_decay=0.9 mixed_precision=no threads=1
    validation_at_end=false sparse.measure_cost=false "data.path=$work")
printf 'seed: 5\n' >"$work/empty.yaml"
train=("$dsv" train "$work/empty.yaml" "${small[@]}")
"${train[@]}" sparse.enabled=false max_train_steps=5 train_batch_size=2 "output_dir=$work/one" \
    >"$work/said" 2>&1 || fail "one" "$work/said"
weights=checkpoint-5/transformer/diffusion_pytorch_model.safetensors
for stage in 1 2 3; do
    start 2 "${train[@]}" sparse.enabled=false max_train_steps=5 zero_stage=$stage \
        "output_dir=$work/two$stage" >"$work/said" 2>&1 || fail "two at stage $stage" "$work/said"
    [ "$(grep -c 'steps 1 to 5' "$work/said")" = 1 ] || fail "not one summary" "$work/said"
    cmp "$work/two1/$weights" "$work/two$stage/$weights" || fail "stage $stage differs"
done

# equal RUN RUN: checks that losses and gradients are equal except for rounding.
equal()
{
    python3 - "$work" "$@" <<'PYTHON' || fail "the losses of $1 and $2 differ"
import json, sys
def lines(run):
    return [json.loads(line) for line in open(f"{sys.argv[1]}/{run}/metrics.jsonl")]
one, other = lines(sys.argv[2]), lines(sys.argv[3])
assert len(one) == len(other) == 5
for a, b in zip(one, other):
    for name in "loss", "grad_norm":
        assert abs(b[name] / a[name] - 1) < 1e-5, (a["step"], name, a[name], b[name])
PYTHON
}
equal one two1

echo "ranks that share clips train what one rank does that has them alone"
share=("${train[@]}" sparse.enabled=false sparse.group=16 max_train_steps=5)
start 2 "${share[@]}" train_batch_size=2 cp_size=2 "output_dir=$work/shared" >"$work/said" 2>&1 ||
    fail "two share" "$work/said"
grep -q "2 ranks, 2 to each clip: a step trains on 2 clips, 2 in a batch" "$work/said" ||
    fail "not told" "$work/said"
grep -q "tokens      16 to      47 of each clip: rank    1" "$work/said" || fail "no picture" "$work/said"
equal one shared
start 4 "${share[@]}" cp_size=2 zero_stage=3 "output_dir=$work/four" >"$work/said" 2>&1 ||
    fail "two and two share" "$work/said"
equal one four

echo "lists with a tail, on ranks that divide tokens or heads"
tail=("${train[@]}" sparse.group=16 sparse.chunk=16 sparse.max_error=9 sparse.max_head_error=9
    sparse.target_density=0.3 sparse.min_keys=0 sparse.tail_chunk=16 max_train_steps=5)
for kind in query key both; do
    "${tail[@]}" sparse.tail=$kind train_batch_size=2 "output_dir=$work/$kind" >"$work/said" 2>&1 ||
        fail "tail $kind" "$work/said"
    grep -q '"sparse_blocks": *2' "$work/$kind/metrics.jsonl" || fail "no block is sparse with tail $kind"
    for heads in 1 2; do
        start 2 "${tail[@]}" sparse.tail=$kind train_batch_size=2 cp_size=2 cp_heads=$heads \
            "output_dir=$work/$kind$heads" >"$work/said" 2>&1 || fail "two share, tail $kind" "$work/said"
        equal $kind $kind$heads
    done
done

echo "a step is timed on ranks that share a clip"
bench=("$dsv" bench step --config "$work/empty.yaml" "${small[@]}" sparse.group=16 sparse.grain=1)
start 2 "${bench[@]}" cp_size=2 --json "$work/step.json" >"$work/said" 2>&1 || fail "bench step" "$work/said"
[ "$(grep -c '^step_ms ' "$work/said")" = 1 ] || fail "not told once" "$work/said"
python3 - "$work/step.json" <<'PYTHON' || fail "bench step told wrong" "$work/step.json"
import json, sys
figures = json.load(open(sys.argv[1]))
assert figures["ranks"] == 2 and figures["tokens"] == 48 and figures["step_ms"] > 0
PYTHON
ends 20 'cp_size' start 2 "${bench[@]}" cp_size=3

echo "a step is timed with lists of prescribed densities"
echo '[null, [0.3, 0.1]]' >"$work/densities.json"
start 2 "${bench[@]}" cp_size=2 --densities "$work/densities.json" --repeats 1 --json "$work/step.json" \
    >"$work/said" 2>&1 || fail "bench step with densities" "$work/said"
python3 - "$work/step.json" <<'PYTHON' || fail "bench step told wrong of densities" "$work/step.json"
import json, sys
figures = json.load(open(sys.argv[1]))
assert figures["sparse_blocks"] == 1 and abs(figures["density"] - 0.6) < 0.02
PYTHON
# Lists larger than sparse.list_memory and sparse.max_density allow: the benchmark must allocate more.
echo '[[0.8, 0.7], [0.7, 0.8]]' >"$work/dense.json"
for heads in 1 2; do
    start 2 "${bench[@]}" cp_size=2 cp_heads=$heads --densities "$work/dense.json" --repeats 1 \
        sparse.list_memory=0.05 sparse.max_density=0.1 --json "$work/step.json" >"$work/said" 2>&1 ||
        fail "bench step with dense lists" "$work/said"
    python3 - "$work/step.json" <<'PYTHON' || fail "bench step made no room" "$work/step.json"
import json, sys
figures = json.load(open(sys.argv[1]))
assert figures["sparse_blocks"] == 2 and abs(figures["density"] - 0.75) < 0.05
PYTHON
done
ends 20 'expected a JSON array of 2 blocks' start 2 "${bench[@]}" cp_size=2 --densities "$work/step.json"

echo "attention is timed by every way of sharing it out"
for case in "2 none" "4 none" "2 query"; do
    read -r n tail <<<"$case"
    # Heads are placed by measured times, which say nothing while other programs take the cores: three tries.
    for try in 1 2 3; do
        start $n "$dsv" bench context --tokens 256 --heads 6 --head-dim 32 --group 16 --grain 1 --repeats 1 \
            --head-sparsity 0.5*2,0.9..0.95*4 --dtype f32 threads=1 sparse.tail=$tail \
            --json "$work/context.json" >"$work/said" 2>&1 || fail "bench context on $n ranks" "$work/said"
        status=0
        python3 - "$work/context.json" $n $tail <<'PYTHON' || status=$?
import json, sys
figures, ranks, tail = json.load(open(sys.argv[1])), int(sys.argv[2]), sys.argv[3]
assert figures["ranks"] == ranks and 0 <= figures["density"] - 1.3 / 6 < 1 / figures["tokens"] # whole keys
for way in "naive_heads", "naive_keys", "heads", "keys", "planned":
    assert figures[way + "_ms"] > figures[way + "_attention_ms"] > 0 and figures[way + "_off"] < 1e-5, way
own = 256 // ranks * 6 * 32 * 4 * 2 / 2**20 # keys and values in F32
assert abs(figures["gather_mib"] / (own * (ranks - 1)) - 1) < 1e-9
assert 0 < figures["fetch_mib"] <= figures["gather_mib"]
assert tail != "none" or 0 < figures["named_share"] <= 1 # with a tail all keys are sent, named or not
sys.exit(0 if figures["heads_uneven"] <= figures["naive_heads_uneven"] else 3)
PYTHON
        [ $status = 3 ] || break
    done
    [ $status = 0 ] || fail "bench context told wrong" "$work/context.json"
done
start 2 "$dsv" bench context --tokens 250 --heads 3 --head-dim 32 --group 16 --grain 1 --transfers-only \
    --repeats 1 threads=1 --json "$work/context.json" >"$work/said" 2>&1 || fail "transfers" "$work/said"
! grep -q naive_heads_ms "$work/context.json" || fail "more than transfers" "$work/context.json"
ends 20 'expected one of all heads, or of 4' start 2 "$dsv" bench context --head-sparsity 0.5,0.6

if [ "$way" = tcp ]; then
    echo "started as Slurm starts them"
    for r in 1 0; do
        SLURM_PROCID=$r SLURM_STEP_NUM_TASKS=2 SLURM_JOB_ID=$$ SLURM_STEP_ID=0 SLURM_STEP_NODELIST=localhost \
            timeout 60 "${train[@]}" max_train_steps=2 "output_dir=$work/slurm" >"$work/said.$r" 2>&1 &
    done
    wait
    grep -q "2 ranks: " "$work/said.0" || fail "slurm" "$work/said.0"
    grep -q "steps 1 to 2" "$work/said.0" || fail "slurm" "$work/said.0"
    echo "told too little"
    ends 5 'RANK should be a number, and it is not set' env WORLD_SIZE=2 "${train[@]}"
    ends 5 'MASTER_ADDR should name' env WORLD_SIZE=2 RANK=0 MASTER_PORT=9 "${train[@]}"
    ends 5 'SLURM_STEP_NUM_TASKS is set, but not' env SLURM_STEP_NUM_TASKS=2 "${train[@]}"
    told=(env RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500)
    ends 5 'MASTER_PORT is 0, expected 1 to 65535' "${told[@]}" MASTER_PORT=0 "${train[@]}"
    ends 5 'MASTER_PORT is 99999, expected 1 to 65535' "${told[@]}" MASTER_PORT=99999 "${train[@]}"
    ends 5 'MASTER_PORT is 65535, expected 1 to 65534' "${told[@]}" MASTER_PORT=65535 \
        TORCHELASTIC_USE_AGENT_STORE=True "${train[@]}"
    ends 5 '1000000000 ranks: expected 1 to 16384' "${told[@]}" WORLD_SIZE=1000000000 "${train[@]}"
    ends 5 'there is no rank 7 of 2' "${told[@]}" RANK=7 "${train[@]}"
    ends 5 'cannot listen at 198.51.100.1:29500, which is no address of its machine' \
        "${told[@]}" MASTER_ADDR=198.51.100.1 "${train[@]}"
    ends 5 'DSV_JOB_KEY and the launcher' "${told[@]}" DSV_JOB_KEY="$(printf '%0600d' 0)" "${train[@]}"
    (
        ulimit -n 64
        ends 5 'rank 0 may open 64 files at once (ulimit -n), and 2 ranks need 66' "${told[@]}" "${train[@]}"
    )

    echo "a rank that cannot begin tells the others"
    port=$((20000 + RANDOM % 12000))
    for r in 0 1; do
        RANK=$r WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port timeout 60 "${train[@]}" \
            $([ $r = 0 ] || echo nosuch=1) "output_dir=$work/none" >"$work/said.$r" 2>&1 &
    done
    wait
    grep -q '^dsv: rank 1: unknown key nosuch' "$work/said.0" || fail "rank 0 was not told" "$work/said.0"

    echo "ranks with other job words do not meet" # rank 0 still listens when rank 1 gives up
    port=$((20000 + RANDOM % 12000))
    for r in 0 1; do
        DSV_JOB_KEY=word$r RANK=$r WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
            timeout 60 "${train[@]}" "rank_timeout=$((9 - 6 * r))" "output_dir=$work/none" \
            >"$work/said.$r" 2>&1 &
    done
    wait
    grep -q 'rank 0 dropped a call from 127.0.0.1:.*another job key' "$work/said.0" ||
        fail "rank 0 took another job" "$work/said.0"
    grep -q '^dsv: rank 1 gave up after 3 s: .*another job key' "$work/said.1" ||
        fail "rank 1 gave no cause" "$work/said.1"
    ! grep -h word[01] "$work/said.0" "$work/said.1" || fail "the word was printed"
fi

long=("${train[@]}" max_train_steps=1000000 checkpointing_steps=5 "output_dir=$work/killed")
# killed RANK SIGNAL: starts or resumes the long run, and sends the signal to the rank after a checkpoint was
# written.
killed()
{
    : >"$work/said" # the messages of the previous run do not count
    start 2 "${long[@]}" resume_from_checkpoint=latest >"$work/said" 2>&1 &
    local job=$!
    for _ in $(seq 600); do
        ! grep -q saved "$work/said" || break
        sleep 0.1
    done
    local begin=$SECONDS
    kill "-$2" "$(cat "$work/rank.$1")"
    ! wait $job || fail "it went on without rank $1" "$work/said"
    [ $((SECONDS - begin)) -lt 30 ] || fail "took $((SECONDS - begin)) s to end" "$work/said"
}
echo "a rank that is killed"
killed 1 KILL
grep -q "training stopped, .*checkpoint-[0-9]* is whole: step [0-9]*: rank 1 has ended" "$work/said" ||
    fail "nothing said of rank 1" "$work/said"

echo "rank 0 is killed"
killed 0 KILL
[ "$way" = mpi ] || # mpirun ends the other ranks, perhaps before they print
    grep -q "^dsv: rank 1: .*rank 0 has ended, and others wait for it in" "$work/said" ||
    fail "rank 1 said nothing" "$work/said"

echo "a rank that is asked to stop"
killed 1 TERM
grep -q "to resume:" "$work/said" || fail "no orderly end" "$work/said"

echo "one rank goes on where two have stopped"
last=$(sed 's/[^0-9]//g' "$work/killed/latest")
"${train[@]}" "output_dir=$work/killed" resume_from_checkpoint=latest max_train_steps=$((last + 2)) \
    >"$work/said" 2>&1 || fail "one rank alone" "$work/said"
echo "all well"
