#!/bin/bash
# test_runs.sh DSV: tests small runs: standard streams, the summary, text conditioning, and models that dsv
# cannot use.
set -uo pipefail
dsv=$1
work=$(mktemp -d /tmp/dsv-test-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work"
failures=0

complain()
{
    echo "FAILED: $1"
    sed 's/^/    /' said
    failures=$((failures + 1))
}

# wants STATUS COMMAND...: runs the command, expects this exit status, and keeps the output in `said`.
wants()
{
    local expected=$1 status=0
    shift
    "$@" >said 2>&1 || status=$?
    [ "$status" = "$expected" ] || complain "$*: exit status $status, expected $expected"
}

# says WORDS / silent WORDS: expects that a line of the last output contains / no line contains the words.
says()
{
    grep -qF -- "$1" said || complain "expected: $1"
}
silent()
{
    ! grep -qF -- "$1" said || complain "not expected: $1"
}

mkdir clips
ffmpeg -v error -f lavfi -i "testsrc=size=64x64:rate=8:duration=3" clips/a.mp4
cat >run.yaml <<'END'
num_frames: 5
height: 16
width: 16
fps: 8
max_train_steps: 3
threads: 1
validation_at_end: false
num_inference_steps: 2
data.path: clips
model: {num_layers: 1, num_attention_heads: 1, attention_head_dim: 32, ffn_dim: 32}
sparse: {enabled: false, measure_cost: false}
END
train=("$dsv" train run.yaml)

# Closed standard streams: nothing that is printed gets into a file of the run, which then resumes.
wants 0 bash -c '"$@" output_dir=closed >&- 2>&-' sh "${train[@]}"
wants 0 "${train[@]}" output_dir=closed resume_from_checkpoint=latest max_train_steps=4
wants 0 bash -c '"$@" output_dir=all_closed <&- >&- 2>&-' sh "${train[@]}"
wants 0 "$dsv" report all_closed
[ "$(wc -l <all_closed/metrics.jsonl)" = 3 ] || complain "metrics of a run with closed streams"
grep -q 'parameters' all_closed/*.jsonl all_closed/lock && complain "log lines in the run's files"

# If the reader of the output ends, the run still succeeds.
wants 0 bash -c '"$@" output_dir=head | true; exit ${PIPESTATUS[0]}' sh "${train[@]}"
[ "$(cat head/latest)" = checkpoint-3 ] || complain "a run whose reader has gone"
[ ! -w /dev/full ] || wants 1 bash -c '"$@" output_dir=full >/dev/full' sh "${train[@]}"

# A limit on file sizes is named instead of a death by SIGXFSZ.
wants 1 bash -c 'ulimit -f 60; "$@" output_dir=limited' sh "${train[@]}"
says 'File too large'

# The summary of a short run has one mean loss.
wants 0 "${train[@]}" output_dir=short
says 'over all 3 steps'
silent 'over the first'
wants 0 "$dsv" inspect short
says 'short: run, 3 steps; mean loss '
wants 0 "${train[@]}" output_dir=shorter max_train_steps=1
says 'shorter: step 1 in '
says 'clips: 1 clip'
silent '1 clips'

# Names of files cannot send control characters to the terminal.
name=$(printf 'clips/b\033[2J\nforged.mp4')
echo "no video" >"$name"
wants 0 "${train[@]}" output_dir=names
says 'b\x1b[2J\x0aforged.mp4'
wants 1 "$dsv" inspect "$name"
says 'b\x1b[2J\x0aforged.mp4'
rm "$name"

# Text: dsv reports text that has no effect.
cp clips/a.mp4 clips/b.mp4
printf 'path,text\nclips/a.mp4,a cat\nclips/b.mp4,\n' >list.csv
wants 0 "${train[@]}" data.path=list.csv output_dir=captioned
says '1 of 2 clips have captions, which are not used'
[ "$(grep -c captions said)" = 1 ] || complain "captions told more than once"
wants 0 "${train[@]}" output_dir=guided guidance_scale=7 validation_at_end=true
says 'guidance_scale has no effect without text'
wants 0 "${train[@]}" output_dir=plain
silent 'captions'
silent 'guidance_scale'
wants 0 "$dsv" sample plain guided.mp4 guidance_scale=7
says 'guidance_scale has no effect without text'
wants 0 "$dsv" sample plain unguided.mp4
silent 'guidance_scale'
cmp -s guided.mp4 unguided.mp4 || complain "guidance changes a sample without text"
python3 - <<'END'
import json, struct
header = json.dumps({"encoder_hidden_states": {"dtype": "F32", "shape": [4, 32], "data_offsets": [0, 512]}})
rows = struct.pack("<128f", *[0.5] * 128)
open("text.safetensors", "wb").write(struct.pack("<Q", len(header)) + header.encode() + rows)
END
wants 0 "$dsv" sample plain text.mp4 --text text.safetensors guidance_scale=2
says 'was trained without text'
silent 'guidance_scale has no effect'

# A published Wan folder, as far as its files tell what it is.
mkdir -p wan/transformer wan/vae wan/text_encoder wan/scheduler wan/tokenizer
echo '{"_class_name": "WanPipeline"}' >wan/model_index.json
cp plain/checkpoint-3/transformer/* wan/transformer
sed -i 's/\("\(in\|out\)_channels":[^0-9]*\)[0-9]*/\116/' wan/transformer/config.json
echo '{"_class_name": "AutoencoderKLWan", "z_dim": 16}' >wan/vae/config.json
echo '{"architectures": ["UMT5EncoderModel"], "model_type": "umt5"}' >wan/text_encoder/config.json
echo '{"_class_name": "UniPCMultistepScheduler"}' >wan/scheduler/scheduler_config.json
echo '{"tokenizer_class": "T5Tokenizer"}' >wan/tokenizer/tokenizer_config.json
wants 1 "$dsv" sample wan wan.mp4 num_frames=5 height=16 width=16
says 'scheduler_config.json: prediction_type is "epsilon" because the key is absent'
cat >wan/scheduler/scheduler_config.json <<'END'
{"_class_name": "UniPCMultistepScheduler", "prediction_type": "flow_prediction", "use_flow_sigmas": true}
END
wants 2 "$dsv" sample wan wan.mp4 num_frames=5 height=16 width=16
says 'wan: a published model needs a prompt'
wants 1 "$dsv" sample wan wan.mp4 --prompt cat num_frames=5 height=24 width=16
says 'height=24: expected a multiple of 16; the nearest is 16'
wants 1 "${train[@]}" model.path=wan output_dir=from_wan
says 'model.path=wan: the model needs the Wan VAE'
[ ! -e from_wan ] || complain "a refused start leaves a folder"
wants 1 "$dsv" inspect wan/vae
says 'wan/vae: the VAE (AutoencoderKLWan) of a published pipeline'
wants 1 "$dsv" inspect wan/text_encoder
says 'the text encoder (UMT5EncoderModel)'
wants 0 "$dsv" inspect wan/scheduler
says 'the scheduler (UniPCMultistepScheduler)'
says 'sampler=unipc flow_shift=1'
wants 1 "$dsv" inspect wan/tokenizer
says 'the tokenizer'
wants 1 "$dsv" sample wan/text_encoder wan.mp4
says 'the text encoder (UMT5EncoderModel)'
wants 1 "$dsv" inspect wan # it has no weights but a transformer's of another shape
says 'wan: a published Wan model, laid out as diffusers'
says 'VAE is NOT usable'
says 'scheduler is sound'
says 'wan: 4 of its 5 parts cannot be used'
wants 2 "$dsv" sample plain clip.gif
says 'clip.gif: expected a name that ends with .mp4'
wants 2 "$dsv" sample plain prompt.mp4 --prompt cat
says 'plain: prompts, pictures, noise, latents and a sparse state need a published Wan model'

mkdir -p bare/transformer
wants 1 "$dsv" sample bare clip.mp4
says 'bare/transformer/config.json: no such file'

# Weights in a single file, and pickles.
cp plain/checkpoint-3/transformer/*.safetensors single.safetensors
wants 1 "$dsv" sample single.safetensors single.mp4
says 'single.safetensors: the width is 32, expected a multiple of the head size of published models, 128'
says "put the model's config.json beside the file"
wants 0 "$dsv" inspect single.safetensors
touch Wan2.1_VAE.pth
wants 1 "$dsv" sample Wan2.1_VAE.pth pickle.mp4
says 'Wan2.1_VAE.pth: .pth files are Python pickles'
wants 1 "$dsv" inspect Wan2.1_VAE.pth
says 'Wan2.1_VAE.pth: .pth files are Python pickles'
silent 'video'

# Folders and lists of clips.
wants 0 "$dsv" inspect clips
says 'clips: 2 clips, 6.0 s in all, 0 with a caption'
wants 0 "$dsv" inspect list.csv
says 'list.csv: 2 clips, 6.0 s in all, 1 with a caption'
mkdir nothing
wants 1 "$dsv" inspect nothing
says 'nothing: neither a run, a checkpoint, a model, a latent cache nor a folder of clips'

# Combinations of options are checked before a clip is opened or a folder is made.
wants 2 "${train[@]}" output_dir=early data.path=nowhere sparse.enabled=true sparse.group=16 sparse.chunk=5
says 'sparse.chunk, 5, does not divide sparse.group, 16'
wants 1 "${train[@]}" output_dir=early data.path=nowhere height=20
says 'height'
[ ! -e early ] || complain "a refused start leaves a folder"

# --dry-run prints the memory that the run would plan, and changes no file.
wants 0 "${train[@]}" --dry-run output_dir=dry
[ ! -e dry ] || complain "--dry-run makes a folder"
says 'it fits: '
says 'an epoch of 2 samples with dense attention: '
planned=$(grep -o 'weights [^,]*, gradients [^,]*, optimizer [^,]*, activations [^,]*, scratch [^,]*' said)
wants 0 "${train[@]}" output_dir=wet
[ -n "$planned" ] && says "$planned"
# A dry run reads the data: a missing folder is named, and sources show their shares, which a run has, too.
wants 1 "${train[@]}" --dry-run data.path=nowhere
says 'nowhere: no such file or folder'
mkdir more
ffmpeg -v error -f lavfi -i "testsrc=size=64x64:rate=8:duration=2" more/b.mp4
wants 0 "${train[@]}" --dry-run data.path=clips:0.75,more:0.25
says 'source clips: 2 clips, weight 0.75, 6 samples an epoch, 75.0 % of all'
says 'source more: 1 clips, weight 0.25, 2 samples an epoch, 25.0 % of all'
wants 2 "${train[@]}" --dry-run data.path=clips:0,more:1
says "clips:0: the weight is '0', expected a number above 0"
sed 's/^data.path.*/data: {path: ["clips:0.75", "more:0.25"]}/' run.yaml >listed.yaml
wants 0 "$dsv" train listed.yaml output_dir=listed
says 'source clips: 2 clips, weight 0.75, 6 samples an epoch, 75.0 % of all'
wants 0 "$dsv" train listed/config.yaml output_dir=listed resume_from_checkpoint=latest max_train_steps=4
# offload=auto prints what was compared and keeps it in the run folder.
wants 0 "${train[@]}" --dry-run offload=auto
says '| chosen'
wants 0 "${train[@]}" output_dir=planned offload=auto
says '| chosen'
grep -q '| chosen' planned/decisions.jsonl || complain "the plan of memory is not in decisions.jsonl"
wants 0 "$dsv" plan memory planned/config.yaml --memory-gib 2
says '| chosen'
# A model that is far too large is refused soon, also after all choices of offload=auto were compared.
for offload in none auto; do
    wants 1 timeout 60 "${train[@]}" --dry-run model.num_layers=300 model.num_attention_heads=80 \
        model.attention_head_dim=128 model.ffn_dim=13824 offload=$offload
    says 'bytes are missing'
done

# A card that is not there.
wants 0 "${train[@]}" --dry-run --card rtx4090
says ' of 22.9 GiB'
wants 2 "${train[@]}" --dry-run --card rtx4091
says 'rtx4091 is no card that dsv knows, expected one of rtx3090, rtx4090'
wants 2 "${train[@]}" --card rtx4090
says '--card rtx4090: expected --dry-run with it'
wants 2 "$dsv" plan memory run.yaml --card h100 --device-table gpu.json
says 'expected one of them'

# The plan is that of one rank, but what the ranks that the options name would refuse is refused.
wants 1 "${train[@]}" --dry-run mixed_precision=bf16 offload=weights dp_size=2 zero_stage=2
says 'offload is weights and each of 2 ranks keeps all weights, expected zero_stage=3, one rank, or a LoRA'
wants 0 "${train[@]}" --dry-run mixed_precision=bf16 offload=weights dp_size=2 zero_stage=3
wants 2 "${train[@]}" --dry-run offload_update=host
says 'offload_update is host and offload is none, expected states, weights or auto'

# Sizes that differ from the preset are reported; the command line cannot mix a file's sizes with another
# preset.
wants 0 "${train[@]}" output_dir=sizes
says 'model.preset=demo, changed by model.num_layers=1 model.num_attention_heads=1 model.attention_head_dim'
wants 2 "${train[@]}" --dry-run model.preset=wan1.3b
says 'model.preset=wan1.3b: the file sets model.num_layers=1, model.num_attention_heads=1'
wants 0 "${train[@]}" --dry-run model.preset=wan1.3b model.num_layers=1 model.num_attention_heads=1 \
    model.attention_head_dim=32 model.ffn_dim=32
says 'model.preset=wan1.3b, changed by model.num_layers=1'
wants 0 "${train[@]}" --dry-run model.preset=demo

[ "$failures" = 0 ] || { echo "$failures failures"; exit 1; }
echo "runs and models are told as they should be"
