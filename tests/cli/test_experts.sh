#!/bin/bash
# test_experts.sh DSV GOLDEN: clips of validation.prompts while one of two experts trains, on one rank and on
# two that are started in the way of torchrun. At lr=0 the LoRA stays without effect, so that the clips do not
# depend on the number of ranks. Three prompts leave one rank without a prompt in the second round.
set -uo pipefail
dsv=$1
golden=$2
work=$(mktemp -d /tmp/dsv-test-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

fail()
{
    echo "FAILED: $1"
    sed 's/^/    /' said.*
    exit 1
}

mkdir model clips
ln -s "$golden"/pipe_experts/{transformer,transformer_2,scheduler,model_index.json} model
ln -s "$golden"/pipe_a/{vae,text_encoder,tokenizer} model
ffmpeg -v error -f lavfi -i "testsrc2=size=48x32:rate=8:duration=2" clips/a.mp4
printf 'rain\nsnow\na cat\n' >prompts.txt
cat >run.yaml <<'END'
codec.name: wan
num_frames: 5
height: 32
width: 32
fps: 8
mixed_precision: no
threads: 1
model: {path: model, expert: low}
data: {path: clips, cache: cache}
lora_rank: 2
lr: 0
max_train_steps: 2
validation_steps: 2
validation_at_end: false
validation.prompts: prompts.txt
num_inference_steps: 4
guidance_scale: 2
sparse.enabled: false
END

"$dsv" train run.yaml output_dir=one >said.0 2>&1 || fail "one rank"
port=$((20000 + RANDOM % 12000))
for rank in 0 1; do
    RANK=$rank WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=$port timeout 120 \
        "$dsv" train run.yaml output_dir=two >said.$rank 2>&1 &
    job[rank]=$!
done
wait "${job[0]}" && wait "${job[1]}" || fail "two ranks"
for prompt in 1 2 3; do
    cmp {one,two}/samples/prompt-00$prompt/step-000002.mp4 || fail "the clip of prompt $prompt"
done
cmp -s one/samples/prompt-00{1,2}/step-000002.mp4 && fail "equal clips of two prompts"
# The files of the lent expert vanish: the steps that are done are saved.
"$dsv" train run.yaml output_dir=gone max_train_steps=1000000 >said.0 2>&1 &
job[0]=$!
while [ ! -e gone/samples/prompt-003/step-000002.mp4 ] && kill -0 "${job[0]}" 2>/dev/null; do sleep 0.02; done
rm model/transformer
wait "${job[0]}" && fail "a run without its lent expert"
grep -q '^dsv: training stopped, gone/checkpoint-[0-9]* is whole: model/transformer: ' said.0 ||
    fail "its sentence"
[ -e "gone/$(cat gone/latest)/lora_low_noise.safetensors" ] || fail "nothing was saved"
echo "the clips of two ranks are those of one, and a run without its lent expert loses nothing"
