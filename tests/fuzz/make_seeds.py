#!/usr/bin/env python3
"""make_seeds.py [FOLDER]: writes the seeds that fuzzing starts from, FOLDER/<reader>/<name>; beside this file
unless a folder is named.

A name that begins with "good" is an input its reader must take, "bad" one that it must refuse (replay.c).
An input for several files holds them one after the other, with @@@@ and a line end between two. What fuzzing
has found is kept here too, so that it is tried for ever. Running this again gives the same bytes."""
import json
import math
import pathlib
import struct
import sys

BETWEEN = b"@@@@\n"
ZERO_LATENT_XXH3 = "d0a66a65c7528968"  # XXH3 of sixteen zero bytes


def parts(*files):
    return BETWEEN.join(part if isinstance(part, bytes) else part.encode() for part in files)


def safetensors(tensors, metadata=None, blanks=0):
    """tensors: (name, dtype, shape, bytes)."""
    header, data = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, dtype, shape, raw in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode() + b" " * blanks
    return struct.pack("<Q", len(text)) + text + data


def raw_header(text):
    return struct.pack("<Q", len(text)) + text


def safetensors_seeds():
    yield "good_dtypes", safetensors(
        [("a", "F32", [2, 2], b"\0\0\x80?" * 4), ("b", "BF16", [3], b"\x80?" * 3),
         ("c", "I64", [1], b"\1" * 8), ("d", "U8", [0], b"")], {"format": "pt", "xxh3": "00"})
    yield "good_unaligned", safetensors(
        [("h", "F16", [5], b"\0" * 10), ("i", "I32", [1], b"\2" * 4), ("g", "F64", [], b"\0" * 8)], blanks=3)
    yield "good_empty", safetensors([])
    yield "bad_short", b"\2\0\0\0\0\0\0\0{"
    yield "bad_claims_2_40", raw_header(
        b'{"a":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}')
    yield "bad_header_size", b"\xff" * 8 + b"{}"
    yield "bad_overlap", raw_header(b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},'
                                    b'"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}') + b"\0" * 6
    yield "bad_depth", raw_header(b'{"a":' + b"[" * 2000)


def config_seeds():
    yield "good_lines", "num_frames: 5\nlr: 1.0e-3\nmixed_precision: bf16\ndata.path: \"a b\\u00e9\"\n"
    yield "good_groups", ("model:\n  preset: demo\n  num_layers: 2\nsparse: {group: 16, chunk: 4}\n"
                          "codec.spatial_levels: 1\noutput_dir: ~\n")
    yield "good_empty", "# nothing\n"
    yield "bad_arguments", "sparse.group=64\nlr=1e-3\ndata.path=a b\nseed=9007199254740992\n"
    yield "bad_alias", "a: &x 1\nb: *x\n"
    yield "bad_twice", "lr: 1\nlr: 2\n"
    yield "bad_range", "lr: 1e400\nnum_frames: 99999999999999999999\n"
    yield "bad_depth", "{" * 500
    yield "bad_utf8", b"data.path: \xff\n"


DIFFUSERS = {"_class_name": "WanTransformer3DModel", "num_layers": 2, "num_attention_heads": 2,
             "attention_head_dim": 32, "ffn_dim": 64, "freq_dim": 256, "text_dim": 32, "in_channels": 3,
             "out_channels": 3, "patch_size": [1, 2, 2], "eps": 1e-6, "rope_max_seq_len": 1024,
             "qk_norm": "rms_norm_across_heads", "cross_attn_norm": True, "dsv_text_len": 4}


def dit_config_seeds():
    yield "good_diffusers", json.dumps(DIFFUSERS)
    yield "good_original", ('{"model_type":"t2v","dim":1536,"num_heads":12,"ffn_dim":8960,"freq_dim":256,'
                            '"in_dim":16,"out_dim":16,"num_layers":30,"text_len":512,"eps":1e-6,'
                            '"window_size":[-1,-1]}')
    yield "bad_image", json.dumps(DIFFUSERS | {"image_dim": 1280})
    yield "bad_number", json.dumps(DIFFUSERS | {"ffn_dim": 1e300})
    yield "bad_type", json.dumps(DIFFUSERS | {"patch_size": "122"})


UMT5 = {"model_type": "umt5", "vocab_size": 2, "d_model": 1, "d_kv": 8, "num_heads": 1, "d_ff": 1,
        "num_layers": 1, "relative_attention_num_buckets": 4}


def umt5_tensors(dtype, one):
    """A model of the width 1 with the names of the Wan repository; `one` is the number 1 in `dtype`."""
    shapes = {"token_embedding": [2, 1], "norm": [1], "blocks.0.norm1": [1], "blocks.0.norm2": [1],
              "blocks.0.attn.q": [8, 1], "blocks.0.attn.k": [8, 1], "blocks.0.attn.v": [8, 1],
              "blocks.0.attn.o": [1, 8], "blocks.0.pos_embedding.embedding": [4, 1],
              "blocks.0.ffn.gate.0": [1, 1], "blocks.0.ffn.fc1": [1, 1], "blocks.0.ffn.fc2": [1, 1]}
    return [(f"{name}.weight", dtype, shape, one * (shape[0] * shape[-1] if len(shape) > 1 else 1))
            for name, shape in shapes.items()]


def umt5_seeds():
    config, f32 = json.dumps(UMT5), umt5_tensors("F32", b"\0\0\x80?")
    f8 = umt5_tensors("F8_E4M3", b"\x38")
    scale = ("blocks.0.attn.q.scale_weight", "F32", [1], b"\0\0\0?")
    yield "good_f32", parts(config, safetensors(f32))
    yield "good_f8_scaled", parts(config, safetensors([scale] + f8 + [("scaled_fp8", "F8_E4M3", [0], b"")]))
    yield "bad_two_scales", parts(config, safetensors([(*scale[:2], [2], b"\0\0\0?" * 2)] + f8))
    yield "bad_missing", parts(config, safetensors(f32[:-1]))
    yield "bad_other_model", parts(json.dumps(UMT5 | {"model_type": "t5"}), safetensors(f32[1:]))
    yield "bad_number", parts(json.dumps(UMT5 | {"d_ff": 1e300}), "")


def prompts_seeds():
    yield "good_lines", "a cat\n\n\u00e9\r\nrain"
    yield "good_newline", "\n"
    yield "bad_empty", ""
    yield "bad_utf8", b"a\nb\xff\n"
    yield "bad_zero", b"a\nb\0c\n"


def clip_seeds():
    """Those of codecs are files of FFmpeg 5.1, which are kept as they are: good_h264.mp4 and good_vp8.mkv, of
    `ffmpeg -f lavfi -i testsrc=size=16x16:rate=8:duration=0.5 -pix_fmt yuv420p`."""
    frame = b"FRAME\n" + bytes(range(64)) + b"\x80" * 32
    yield "bad_container", b"YUV4MPEG2 W8 H8 F8:1 Ip A1:1 C420jpeg\n" + frame * 3
    yield "bad_text", "no clip\n"
    yield "bad_boxes", struct.pack(">I4s4sI", 20, b"ftyp", b"isom", 512) + struct.pack(">I4s", 2**31, b"moov")


def csv_seeds():
    yield "good_quotes", 'path,text\na.mp4,"x, ""y""\nz"\r\nb.mp4,\n'
    yield "good_mark", "\ufeffvideo,caption,path\n1,2,3\n\"a\",\"b\",\"c\"\n"
    yield "good_end", "file_name\na"
    yield "bad_open", 'path\n"a'
    yield "bad_columns", "path,text\na\n"
    yield "bad_zero", b"path\na\0b\n"
    yield "bad_no_path", "a,b\n1,2\n"


def jsonl_seeds():
    yield "good_keys", '{"path":"a.mp4","text":"x"}\n\n{"video":"b","caption":null}\n{"file_name":"\\u00e9"}'
    yield "bad_type", '{"path":1}\n'
    yield "bad_depth", "[" * 2000
    yield "bad_trailing", '{"path":"a"} x\n'


TEXT_KEY = "0" * 32


def caption_seeds():
    yield "good_text", "  a dog,\n running \r\n"
    yield "good_mark", b"\xef\xbb\xbf\xc3\xa9"
    yield "bad_blank", " \n\t"
    yield "bad_empty", ""
    yield "bad_latin", b"caf\xe9"
    yield "bad_utf16", "a dog".encode("utf-16")


def cache_index(**changes):
    item = {"source": "/fuzz/a.mp4", "source_bytes": 7, "source_modified": 1.5, "start": 0, "crop_x": 0.5,
            "crop_y": 0.5, "file": "a.safetensors", "xxh3": ZERO_LATENT_XXH3, "shape": [1, 1, 2, 2]}
    settings = {"codec.name": "haar", "num_frames": 17, "height": 128, "width": 128, "fps": 12,
                "codec.spatial_levels": 2, "codec.temporal_levels": 2}
    return json.dumps({"format": "dsv-latent-cache", "version": 1, "settings": settings,
                       "items": [item | changes, item | {"start": 1, "text": "caption"}]})


LATENT = safetensors([("latent", "F32", [1, 1, 2, 2], b"\0" * 16)],
                     {"format": "pt", "xxh3": ZERO_LATENT_XXH3})


def caption_index(captions, content=TEXT_KEY, **changes):
    """An index of version 2 with one window."""
    index = json.loads(cache_index(source_xxh3=content, captions=captions))
    del index["items"][1]
    model = {"vae": TEXT_KEY, "vae_type": "BF16", "text_encoder": TEXT_KEY, "text_type": "F32", "text_dim": 2,
             "empty": TEXT_KEY}
    return json.dumps(index | {"version": 2, "model": model | changes})


STATES = safetensors([("states", "F32", [2, 2], b"\0" * 16)],
                     {"format": "pt", "xxh3": ZERO_LATENT_XXH3, "key": TEXT_KEY})


def latent_cache_seeds():
    captions = [{"text": "a dog", "states": TEXT_KEY}, {"text": "a cat"}]
    yield "good_captions", parts(caption_index(captions), LATENT, STATES)
    yield "bad_captions", parts(caption_index({"text": "a dog"}), LATENT, STATES)
    yield "bad_caption_text", parts(caption_index([{"states": TEXT_KEY}]), LATENT, STATES[:-1] + b"\1")
    yield "bad_caption_key", parts(caption_index([{"text": "a", "states": "0"}]), LATENT, STATES[:-9])
    yield "bad_content", parts(caption_index(captions, content="0"), LATENT, b"")
    yield "bad_text_dim", parts(caption_index(captions, text_dim=-1), LATENT, STATES[:-1])
    yield "bad_vae_type", parts(caption_index(captions, vae_type="I64"), LATENT, STATES)
    yield "good_two", parts(cache_index(), LATENT)
    yield "good_damaged_file", parts(cache_index(), LATENT[:-1] + b"\1")
    yield "good_no_stamps", parts(cache_index(source_bytes=None), LATENT)
    yield "bad_leads_out", parts(cache_index(file="../a"), LATENT)
    yield "bad_shape", parts(cache_index(shape=[1, 1, 1e300, 2]), LATENT)
    yield "bad_hex", parts(cache_index(xxh3="0"), LATENT)
    yield "bad_source_bytes", parts(cache_index(source_bytes=-7), LATENT)
    yield "bad_source_bytes_huge", parts(cache_index(source_bytes=7.77778e120), LATENT)


STATE = '{"format": 1, "step": 7, "sample": 14, "seed": 0, "clips": 2, "clips_hash": "00ff00ff00ff00ff"}\n'


def checkpoint_seeds():
    manifest = '{"files": [%s], "format": 1}'
    yield "good_empty_list", parts(manifest % "", STATE, "checkpoint-7\n")
    yield "good_old_state", parts(manifest % "", '{"format":1,"step":7,"sample":14,"seed":0}', "checkpoint-7")
    entry = '{"path": "%s", "bytes": %s, "xxh3": "%016x"}'
    yield "bad_checksum", parts(manifest % entry % ("state.json", len(STATE), 0), STATE, "checkpoint-7\n")
    yield "bad_leads_out", parts(manifest % entry % ("../latest", 1, 0), STATE, "checkpoint-7\n")
    yield "bad_step", parts(manifest % "", STATE.replace("7", "9e33"), "checkpoint-99999999999999999999\n")


def sparse_state(selector, tensors):
    traits = {"selector": selector, "rank": "4", "blocks": "2", "heads": "1", "head_dim": "32"}
    sizes = {"F64": 8, "F32": 4, "I64": 8, "I32": 4}
    filled = []
    for name, dtype, shape in tensors:
        count = 1
        for length in shape:
            count *= length
        filled.append((name, dtype, shape, b"\0" * (count * sizes[dtype])))
    return safetensors(filled, {"format": "pt"} | traits)


RECORD = [("dispatch.changes", "I64", [2]), ("dispatch.break_even", "F64", [1]),
          ("profile.captured", "F64", [2]), ("profile.listed", "F64", [2]),
          ("profile.share90", "F64", [2]), ("lists.missed", "F64", [2]),
          ("lists.density", "F64", [2]), ("lists.estimated_mass", "F64", [2]),
          ("profile.head_captured", "F32", [2, 1]), ("profile.head_share90", "F32", [2, 1]),
          ("profile.head_listed", "F32", [2, 1]), ("dispatch.sparse", "I32", [2])]
PROJECTION = [("projection.query_second", "F64", [2, 1, 32, 32]),
              ("projection.key_second", "F64", [2, 1, 32, 32]),
              ("projection.key_mean", "F64", [2, 1, 32]), ("projection.gathered", "I64", [2]),
              ("projection.query", "F32", [2, 1, 32, 4]), ("projection.key", "F32", [2, 1, 32, 4])]


def sparse_state_seeds():
    yield "good_projection", sparse_state("projection", PROJECTION + RECORD)
    yield "good_none", sparse_state("none", [])
    yield "bad_missing", sparse_state("projection", PROJECTION[1:] + RECORD)
    yield "bad_predictor", sparse_state("predictor", RECORD)


def metrics_seeds():
    line = ('{"step": %d, "loss": 1.25, "grad_norm": null, "lr": 0.001, "loss_bins": [null, 1.5], '
            '"step_ms": 2.5, "memory_bytes": 70000000}\n')
    yield "good_lines", "".join(line % step for step in range(1, 7))
    yield "good_torn", line % 1 + line % 2 + '{"st'
    yield "good_empty", ""
    yield "bad_line", "{}\n"
    yield "bad_step_9e33", '{"step": 9e33, "loss": 1}\n'  # once converted to a whole number it does not fit
    yield "bad_step_negative", '{"step": -1, "loss": 1}\n'
    yield "bad_step_part", '{"step": 1.5, "loss": 1}\n'


def report_seeds():
    steps = "".join('{"step": %d, "loss": %.1f, "grad_norm": 1, "step_ms": 5, "density": 0.5, '
                    '"memory_bytes": 1000000}\n' % (step, 9 - step) for step in range(1, 5))
    block = ('{"step": %d, "block": %d, "sparse": true, "density": 0.25, "captured_mass": 0.5, '
             '"share90": 0.1, "head_captured": [0.5, null], "head_share90": [0.1, 0.2]}\n')
    blocks = "".join(block % (step, number) for step in (1, 3) for number in (0, 1))
    validation = '{"step": 2, "loss": 1, "bins": [{"sigma": 0.1, "loss": 1}, {"sigma": 0.9, "loss": 2}]}\n'
    facts = '{"dsv": "0.1.0", "device": "<fuzz>", "parameters": 1000, "memory_bytes": {"<fuzz>": 5, "b": 6}}'
    yield "good_all", parts(steps, blocks, '{"step": 1, "reason": "<fuzz> & \\"x\\""}\n', validation, facts,
                            "output_dir: \"<fuzz>\"\n")
    yield "good_settings_unknown", parts(steps, "", "", "", "{}", "no_such_key: <fuzz>\n")
    yield "good_no_steps", parts("", "", "", "", "{}", "")
    yield "bad_order", parts(steps + steps, "", "", "", "{}", "")
    yield "bad_block", parts(steps, block % (1, 5000), "", "", "{}", "")
    yield "bad_facts", parts(steps, "", "", "", "[]", "")


def weights_seeds():
    index = '{"weight_map": {"x": "a.safetensors"}}'
    own = [("patch_embedding.weight", "F32", [2, 2], b"\0\0\x80?" * 4),
           ("blocks.0.attn1.to_qkv.weight", "BF16", [6, 2], b"\x80?" * 12),
           ("blocks.0.norm2.weight", "F16", [2], b"\0<" * 2),
           ("scale_shift_table", "F64", [1, 2], b"\0" * 16)]
    yield "good_fused", parts(index, safetensors(own))
    renamed = [("model.diffusion_model." + name, *rest) for name, *rest in own]
    yield "good_prefixed", parts(index, safetensors(renamed))
    yield "bad_missing", parts(index, safetensors(own[1:]))
    yield "bad_shape", parts(index, safetensors(own[:3] + [("scale_shift_table", "F64", [2, 2], b"\0" * 32)]))
    yield "bad_dtype", parts(index, safetensors(own[:3] + [("scale_shift_table", "I64", [1, 2], b"\0" * 16)]))
    yield "bad_leads_out", parts('{"weight_map": {"x": "../a.safetensors"}}', safetensors(own))
    yield "bad_moments", parts(index, safetensors([("exp_avg." + own[0][0], *own[0][1:])]))


def lora_seeds():
    a, b = b"\0\0\x80?" * 4, b"\0\0\0@" * 2
    layer = "blocks.0.self_attn.q"
    comfy = [("diffusion_model." + layer + ".lora_A.weight", "F32", [1, 4], a),
             ("diffusion_model." + layer + ".lora_B.weight", "F32", [2, 1], b)]
    alpha = ("diffusion_model." + layer + ".alpha", "BF16", [], b"\0@")
    yield "good_comfy", safetensors(comfy + [alpha])
    yield "good_kohya", safetensors([("lora_unet_blocks_0_self_attn_q.lora_down.weight", "F32", [1, 4], a),
                                     ("lora_unet_blocks_0_self_attn_q.lora_up.weight", "F32", [2, 1], b)])
    yield "good_diffusers", safetensors([("transformer.blocks.0.attn1.to_q.lora_A.weight", "F32", [1, 4], a),
                                         ("transformer.blocks.0.attn1.to_q.lora_B.weight", "F32", [2, 1], b)])
    yield "good_diff", safetensors([(layer + ".diff", "F32", [2, 4], a + a),
                                    (layer + ".diff_b", "F32", [2], b)])
    yield "bad_key", safetensors([("lora_te_x.lora_down.weight", "F32", [1, 4], a)])
    yield "bad_half", safetensors(comfy[:1])
    yield "bad_rank", safetensors([comfy[0], (comfy[1][0], "F32", [1, 2], b)])
    yield "bad_alpha", safetensors([alpha])


def link_costs_seeds():
    costs = {"about": "a machine", "transfers_beside_kernels": True, "memory_ps": 0.25,
             "attention": {"call_us": [20, 40], "dense_ps": [0.79, 2.36], "select_ps": 0.07,
                           "lists_forward_ps": [[0.05, 0.05], [0.1, 0.1]], "lists_backward_ps": []},
             "links": [{"ranks": 2, "head_exchange_us": [[0, 20], [3e8, 1020]],
                        "sequence_exchange_us": [[0, 30]], "sequence_swap_us": []}]}
    yield "good_one_link", json.dumps(costs)
    yield "bad_falling", json.dumps(costs | {"links": [{"ranks": 2, "head_exchange_us": [[5, 1], [4, 1]]}]})
    yield "bad_ranks", json.dumps(costs | {"links": [{"ranks": 1e300}]})
    yield "bad_links", json.dumps(costs | {"links": [{}] * 40})


def densities_seeds():
    yield "good_mixed", "[0.5, [0.1, 1], null]"
    yield "bad_number", "0.25"
    yield "bad_size", "[0.5]"
    yield "bad_value", "[0.5, [0.1, 2], 0]"
    yield "bad_text", "[0.5,\n x"


def tcp_seeds():
    """The first byte: 0 to a listener, 1 to a caller, 2 frames, 3 an end; 0x80 more: with the job's seal."""
    def frame(kind, data=b""):
        return struct.pack("<4sIQ", kind, 0, len(data)) + data
    numbers = struct.pack("<4q", 2, 3, 1, 4000)
    yield "good_hello", b"\x80" + numbers
    yield "good_hello_other_size", b"\x80" + struct.pack("<4q", 2, 10**9, 1, -1)
    yield "bad_hello_other_rank", b"\x80" + struct.pack("<4q", -5, 3, 7, 1 << 40)
    yield "bad_hello_forged", b"\0dsv-job2" + numbers + bytes(64)
    yield "bad_hello_http", b"\0GET / HTTP/1.0\r\n\r\n"
    yield "bad_hello_half", b"\0dsv-job2" + numbers
    yield "good_answer", b"\x81" + struct.pack("<4q", 0, 3, 0, 0)
    yield "bad_answer_twice", b"\x81" + struct.pack("<4q", 3, 3, 0, 0)
    yield "bad_answer_forged", b"\1dsv-job2" + bytes(32) + b"dsv-job2" + bytes(48)
    yield "good_failure", b"\2" + frame(b"liaf", b"rank 1 has failed")
    yield "good_failure_claims_2_63", b"\2" + struct.pack("<4sIQ", b"liaf", 0, 2**63) + b"a"
    yield "good_farewell", b"\3" + frame(b"atad", b"x") + frame(b"!eyb")
    yield "bad_frames", b"\2" + frame(b"atad", bytes(20)) + frame(b"ogog") + b"x"


def text_seeds():
    yield "good_short", "0.1"
    yield "good_least", "-4.9406564584124654e-324"
    yield "good_long", "1" * 100
    yield "bad_two_four", "\u00e9\u20ac\U0001f600"
    yield "bad_overlong", b"\xc0\x80"
    yield "bad_surrogate", b"\xed\xa0\x80"
    yield "bad_huge", "1e999"


def inspect_seeds():
    run = '{"step": 1, "loss": 1.5}\n'
    yield "good_all", parts(LATENT, cache_index(), run, STATE, '{"files": [], "format": 1}')
    yield "bad_not_finite", parts(safetensors([("a", "F32", [1], b"\0\0\x80\x7f")]), "{}", run, "{}", "{}")


def control_group_seeds():
    yield "good_second", parts("0::/a\n", "150000 100000\n", "1000000\n", "", "", "")
    yield "good_first", parts("3:cpu,cpuacct:/a\n2:memory:/a\n", "", "", "50000\n", "100000\n", "4096\n")
    yield "bad_unlimited", parts("0::/a\n", "max 100000\n", "max\n", "", "", "")
    yield "bad_values", parts("0::/a\n", "-5 0\n", "99999999999999999999999\n", "", "", "")
    yield "bad_negative", parts("0::/a\n3:memory:/a\n", "-4 0\n", "-5\n", "", "", "-6\n")


ADDED = {"id": 1, "content": "</s>", "lstrip": True, "rstrip": True}
METASPACE = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
UNIGRAM = {"type": "Unigram", "unk_id": 0, "byte_fallback": False,
           "vocab": [["<unk>", 0], ["</s>", 0], ["\u2581", -2.5], ["\u2581a", -3], ["a", -3.25],
                     ["aa", -4e0]]}


def tokenizer_json_seeds():
    def tokenizer(**changes):
        return json.dumps({"added_tokens": [ADDED], "normalizer": None, "pre_tokenizer": METASPACE,
                           "model": UNIGRAM} | changes)
    yield "good_metaspace", tokenizer()
    yield "good_split", tokenizer(pre_tokenizer={"type": "Sequence", "pretokenizers": [
        {"type": "WhitespaceSplit"}, {"type": "Metaspace", "replacement": "\u2581"}]})
    yield "good_normalizer", tokenizer(normalizer={"type": "Sequence", "normalizers": [
        {"type": "Precompiled", "precompiled_charsmap": ""},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]})
    yield "bad_twice", tokenizer(model=UNIGRAM | {"vocab": UNIGRAM["vocab"] * 2})
    yield "bad_score", tokenizer(model=UNIGRAM | {"vocab": [["a", "b"]]})
    yield "bad_type", tokenizer(model=UNIGRAM | {"type": "BPE"})
    yield "bad_depth", '{"model":' + "[" * 2000
    cut = tokenizer(added_tokens=[ADDED, {"id": 6, "content": "aaX"}]).encode()
    yield "bad_added", cut.replace(b"aaX", b"aa\xe2")  # cuts the text's next character


def tokenizer_spiece_seeds():
    def piece(text, score=0.0, kind=1):
        body = b"\n" + bytes([len(text)]) + text
        body += b"\x15" + struct.pack("<f", score) + b"\x18" + bytes([kind])
        return b"\n" + bytes([len(body)]) + body
    pieces = piece(b"<unk>", kind=2) + piece(b"</s>", kind=3)
    pieces += piece(b"\xe2\x96\x81a", -2.5) + piece(b"a", -9.7)
    end = b"\x12\0\x1a\0"
    yield "good_pieces", pieces + end
    yield "good_trainer", pieces + b"\x12\x05\x18\1\xc0\2\0\x1a\0"
    yield "good_extra", pieces + piece(b"<extra_id_0>", kind=4) + end
    yield "good_zero_byte", piece(b"<\0nk>", kind=2) + pieces[16:] + end
    yield "bad_no_end", pieces
    yield "bad_charsmap", pieces + b"\x1a\3\x12\1z"
    yield "bad_twice", pieces + piece(b"a")
    yield "bad_cut", pieces[:-3]
    yield "bad_no_end", piece(b"<unk>", kind=2)


UNIPC = {"_class_name": "UniPCMultistepScheduler", "prediction_type": "flow_prediction",
         "use_flow_sigmas": True, "flow_shift": 3.0, "solver_order": 2, "disable_corrector": [],
         "solver_p": None, "use_karras_sigmas": False}


def scheduler_seeds():
    yield "good_unipc", json.dumps(UNIPC)
    yield "good_euler", '{"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 5}'
    yield "bad_order", json.dumps(UNIPC | {"solver_order": 3})
    yield "bad_switch", json.dumps(UNIPC | {"use_beta_sigmas": "yes"})
    yield "bad_shift", json.dumps(UNIPC | {"flow_shift": 1e300})
    yield "bad_absent", '{"_class_name": "UniPCMultistepScheduler"}'


WAN_INDEX = {"_class_name": "WanPipeline", "transformer_2": [None, None],
             "vae": ["diffusers", "AutoencoderKLWan"]}
WAN_SIZES = DIFFUSERS | {"in_channels": 16, "out_channels": 16}


def wan_folder_seeds():
    def single(width):
        shapes = {"patch_embedding.weight": [width, 16, 1, 2, 2], "text_embedding.0.weight": [width, 4],
                  "time_embedding.0.weight": [width, 4], "blocks.0.ffn.0.weight": [2, width],
                  "head.head.weight": [64, width]}
        return safetensors([(f"model.diffusion_model.{name}", "U8", shape, bytes(math.prod(shape)))
                            for name, shape in shapes.items()])
    yield "good_diffusers", parts(json.dumps(WAN_INDEX), json.dumps(WAN_SIZES), '{"z_dim": 16}', single(128))
    yield "bad_class", parts(json.dumps(WAN_INDEX | {"_class_name": "WanVACEPipeline"}),
                             json.dumps(WAN_SIZES))
    yield "bad_experts", parts(json.dumps(WAN_INDEX | {"boundary_ratio": 0.9}), json.dumps(WAN_SIZES))
    yield "bad_vae", parts(json.dumps(WAN_INDEX | {"vae": ["diffusers", "AutoencoderKL"]}),
                           json.dumps(WAN_SIZES), '{"z_dim": 16}', single(100))
    yield "bad_index", parts("[]", json.dumps(WAN_SIZES), "{")


def prompt_seeds():
    yield "good_words", "a cat &amp; \u201cquotes\u201d \uff21\u3000 </s> aaaa \ufb01 e\u0301\u0323"
    yield "good_entities", "&EACUTE; &notit; &#65&#x1F600;&#0; \x1b[1;31m <b> &amp;amp;amp;"
    yield "good_mojibake", "\u00e2\u20ac\u0153caf\u00c3\u00a9\u00e2\u20ac\u009d \u5c71 \u00c7\u00a6"
    yield "bad_utf8", b"a\xff"
    yield "bad_nested", "&" + "amp;" * 200


VAE = {"_class_name": "AutoencoderKLWan", "base_dim": 4, "z_dim": 2, "dim_mult": [1, 2],
       "num_res_blocks": 1, "temperal_downsample": [True],
       "attn_scales": [0.5], "latents_mean": [0, 1.5], "latents_std": [1, 2e-3]}


def vae_config_seeds():
    yield "good_small", json.dumps(VAE)
    yield "good_published", "{}"
    yield "good_one_level", json.dumps(VAE | {"dim_mult": [1], "temperal_downsample": []})
    yield "good_residual", json.dumps({"is_residual": True, "z_dim": 2, "latents_mean": [0, 1.5],
                                       "latents_std": [1, 2e-3]})
    yield "bad_wan22", json.dumps(VAE | {"is_residual": True, "patch_size": 2})
    yield "bad_number", json.dumps(VAE | {"base_dim": 1e300})
    yield "bad_levels", json.dumps(VAE | {"dim_mult": [1] * 9, "temperal_downsample": [True] * 8})
    yield "bad_std", json.dumps(VAE | {"latents_std": [1, 0]})


VIT = {"model_type": "clip_vision_model", "hidden_size": 2, "num_attention_heads": 1, "intermediate_size": 1,
       "num_hidden_layers": 1, "image_size": 2, "patch_size": 2, "hidden_act": "gelu"}


def vit_tensors():
    """A model of the width 2 for pictures of one patch."""
    layer = "encoder.layers.0."
    linear = {f"{layer}self_attn.{name}_proj": [2, 2] for name in ("q", "k", "v", "out")}
    linear |= {f"{layer}mlp.fc1": [1, 2], f"{layer}mlp.fc2": [2, 1]}
    norms = [f"{layer}layer_norm1", f"{layer}layer_norm2", "pre_layrnorm", "post_layernorm"]
    shapes = {"embeddings.class_embedding": [2], "embeddings.patch_embedding.weight": [2, 3, 2, 2],
              "embeddings.position_embedding.weight": [2, 2]}
    for name, shape in linear.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    for name in norms:
        shapes |= {f"{name}.weight": [2], f"{name}.bias": [2]}
    return [(f"vision_model.{name}", "F16", shape, b"\0<" * math.prod(shape))
            for name, shape in shapes.items()]


def vit_seeds():
    config, tensors = json.dumps(VIT), vit_tensors()
    small = '{"size": {"shortest_edge": 3}, "crop_size": {"height": 2, "width": 2}}'
    yield "good_small", parts(config, small, safetensors(tensors))
    yield "good_defaults", parts(config, "{}", safetensors(tensors))
    yield "bad_missing", parts(config, "{}", safetensors(tensors[:-1]))
    yield "bad_number", parts(json.dumps(VIT | {"image_size": 1e300}), "{}", safetensors(tensors))
    yield "bad_size", parts(config, '{"size": 0}', safetensors(tensors))
    yield "bad_std", parts(config, '{"image_std": [0, 1, 1]}', safetensors(tensors))


ENDING = "_seeds"  # <reader>_seeds above makes those of a reader
READERS = {name.removesuffix(ENDING): make for name, make in list(globals().items()) if name.endswith(ENDING)}


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "seeds")
    for reader, seeds in READERS.items():
        (root / reader).mkdir(parents=True, exist_ok=True)
        for name, data in seeds():
            (root / reader / name).write_bytes(data if isinstance(data, bytes) else data.encode())


main()
