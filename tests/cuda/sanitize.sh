#!/bin/sh
# sanitize.sh BUILD [SECONDS [JOBS]]: runs the GPU tests of dsv's kernels under compute-sanitizer, which finds
# races in shared memory, reads of uninitialised memory, invalid accesses and invalid barriers. Tests run with
# DSV_TEST_SMALL. Kernels of cuBLASLt and cuDNN are not checked: only dsv's kernels have the name of a .cu
# file or of dsv's namespace in their name. The script ends after at most SECONDS (default: no limit), runs
# JOBS tests at a time (default: 5 per GPU), distributes them over all GPUs (CUDA_VISIBLE_DEVICES), and prints
# a line when a test ends. Exit status 1: a tool found an error, or a test did not end.
set -u

# One test under one tool: sanitize.sh --one BUILD FOLDER TOOL PROGRAM TEST MODE. Creates a file *.failed in
# FOLDER if the tool found an error or the test did not end. SLOT: number of this job among the running jobs.
if [ "$1" = --one ]; then
    name="$5 $6 $7, $4"
    log="$3/$5.$6.$7.$4"
    begin=$(date +%s)
    seconds=$((END > begin ? END - begin : 1))
    CUDA_VISIBLE_DEVICES=$(echo "$GPUS" | cut -d, -f $((SLOT % COUNT + 1)))
    export DSV_TEST_SMALL=1 CUDA_VISIBLE_DEVICES
    timeout -k 5 "$seconds" compute-sanitizer --tool "$4" --kernel-name kns=_cu_ --kernel-name kns=N4dsvi \
        --error-exitcode 9 --print-limit 20 "$2/tests/cuda/test_cuda_$5" "$6" "$7" >"$log" 2>&1
    status=$?
    passed=$(grep -c ' OK ]' "$log")
    seconds=$(($(date +%s) - begin))
    if [ "$status" = 0 ] && [ "$passed" -gt 0 ] && grep -q 'SUMMARY: 0 \(errors\|hazards\)' "$log"; then
        echo "$name: nothing found, $passed passed, $seconds s"
    else
        [ "$status" = 124 ] && status="124: no more time"
        echo "$name: exit status $status, $passed passed, $seconds s"
        grep -v '^\[\|^$' "$log" | head -20
        touch "$log.failed"
    fi
    exit 0
fi

# Prints lines TOOL PROGRAM TEST MODE, the slowest first. Only attention and conv depend on the mode.
# Two tools do not work with cuBLASLt: racecheck makes its kernels fail, and initcheck reports their results
# as uninitialised. The test too_much_memory is left out, because memcheck reports its failing allocation as
# an error.
list()
{
    for tool in racecheck initcheck memcheck synccheck; do
        for mode in default deterministic; do
            echo "$tool attention portable_lists $mode"
            echo "$tool sparse attention_lists $mode"
            echo "$tool sparse attention_tail $mode"
            for test in query_tails_agree_with_reference key_tails_agree_with_reference hopper_serves_tails \
                hopper_serves_key_tails_up_to_its_limits key_tails_take_any_layout \
                large_scores_stay_finite; do
                echo "$tool tail $test $mode"
            done
        done
        for mode in default deterministic; do
            for test in hopper_serves_lists cudnn_serves portable_dense; do
                echo "$tool attention $test $mode"
            done
            echo "$tool sparse attention_dense $mode"
        done
        echo "$tool attention the_same_bits_fifty_times deterministic"
        for test in select_threshold select_lists select_coarse select_features profile list_exchange \
            predictor_loss select_part; do
            echo "$tool sparse $test default"
        done
        for test in test_layer_norm test_rms_norm_rope test_gate_residual test_activation test_add \
            test_optim test_flow test_patch test_col_sum test_attention_merge test_heads_move \
            test_add_rows test_channel_norm test_frames_move test_rms_norm test_gelu_product test_softmax \
            test_bias_attention; do
            echo "$tool dense $test default"
        done
        echo "$tool dense test_conv deterministic"
        echo "$tool conv ways_agree deterministic"
        echo "$tool gemm plain_product default"
        case $tool in memcheck | synccheck)
            echo "$tool dense test_gemm default"
            echo "$tool gemm test_* default" ;;
        esac
        for test in copies streams_that_follow doubles_are_added; do
            echo "$tool device $test default"
        done
    done
}

GPUS=${CUDA_VISIBLE_DEVICES:-$(nvidia-smi --query-gpu=index --format=csv,noheader | paste -sd,)}
COUNT=$(echo "$GPUS" | tr , '\n' | wc -l)
END=$(($(date +%s) + ${2:-1000000}))
export GPUS COUNT END
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
list | xargs -P "${3:-$((5 * COUNT))}" -L 1 --process-slot-var=SLOT sh "$0" --one "$1" "$folder"
[ -z "$(find "$folder" -name '*.failed')" ]
