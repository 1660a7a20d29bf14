#!/usr/bin/env bash
# Configurations written here become programs through examples/build_preset.sh: they have their
# parameters and train; an edited one builds the run alone; layouts of several ranks build and run;
# what cannot be honoured is one sentence and leaves an earlier program as it is.
#   build_preset.sh SOURCE WORK
set -euo pipefail
export LC_ALL=C

source=$1 work=$2
rm -rf -- "$work"
mkdir -p "$work/downloaded" "$work/examples"
cd "$work"
unset MEGACPP_TESTS_COMPLETE # the tests of README's build are not run, and have no fixtures
. "$source/tests/slow/documented.sh"
fail() {
  echo "FAILED: $1" >&2
  exit 1
}
build() { "$source/examples/build_preset.sh" "$@" --no-install --build "$work/build"; }
# What README calls: the same, without installing and in that build folder.
printf '#!/bin/sh\nexec "%s/examples/build_preset.sh" "$@" --no-install --build "%s/build"\n' \
  "$source" "$PWD" >examples/build_preset.sh
chmod +x examples/build_preset.sh
# What README says to do in the folder of the sources is done here, as if they lay here.
ln -s "$source"/{CMakeLists.txt,CMakePresets.json,bench,cmake,include,src,tests} .
for file in "$source"/examples/*; do [ -e "examples/$(basename "$file")" ] || ln -s "$file" examples; done
# refused CODE WORDS COMMAND...: exit code, and one line on stderr with the words.
refused() {
  local code=$1 words=$2 got=0
  shift 2
  "$@" >out 2>err || got=$?
  [ "$got" = "$code" ] || { cat out err && fail "$*: exit code $got, not $code"; }
  [ "$(wc -l <err)" = 1 ] && grep -q -- "$words" err || { cat err && fail "$*: not one line with '$words'"; }
}
# trains PROGRAM PARAMETERS: as described, and its loss falls from that of an even guess.
trains() {
  "./$1" describe >described
  grep -Eq "^ *parameters +$2\$" described || { grep parameters described && fail "$1 has not $2 parameters"; }
  "./$1" train --data-path text --split 100,0,0 --train-iters 30 --lr 1e-2 --log-interval 1 --threads 2 \
    --tokenizer-type byte --save "model-$1" >trained
  awk '/^step 1\// { split($0, a, "loss: "); first = a[2] + 0 }
       /^step 30\// && /loss: / && !n++ { split($0, a, "loss: "); last = a[2] + 0 }
       END { exit !(first > 5.4 && first < 5.9 && last < first - 0.5) }' trained ||
    { cat trained && fail "$1 does not learn"; }
}
for n in $(seq 400); do echo "$n green bottles hanging on the wall, and if $((n % 7)) should fall"; done >text

cat >gpt2.json <<'END'
{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 2, "n_embd": 30, "n_head": 3,
 "n_inner": 50, "n_positions": 32, "vocab_size": 256, "attn_pdrop": 0.0, "embd_pdrop": 0.1,
 "resid_pdrop": 0.1, "tie_word_embeddings": false, "transformers_version": "4.51.3"}
END
cat >downloaded/config.json <<'END'
{"model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": 24, "num_attention_heads": 4,
 "num_key_value_heads": 1, "head_dim": 10, "intermediate_size": 40, "vocab_size": 300,
 "max_position_embeddings": 256, "rope_parameters": {"rope_theta": 5000.0, "rope_type": "yarn",
 "factor": 4.0, "original_max_position_embeddings": 64},
 "layer_types": ["full_attention", "full_attention"], "dtype": "float32",
 "tie_word_embeddings": true, "transformers_version": "5.23.0"}
END

refused 2 'unknown key micro' build downloaded/config.json program micro=2
refused 2 'needs a folder' "$source/examples/build_preset.sh" downloaded/config.json program --build --no-install
refused 2 'such as 80,90a' "$source/examples/build_preset.sh" downloaded/config.json program --cuda-architectures 'a;b'
refused 5 'there is no folder none' build downloaded/config.json program --precompiled none
refused 2 'tp must be' build downloaded/config.json program tp=two
refused 2 'device must be cpu or cuda' build downloaded/config.json program device=gpu
refused 2 'tp is given twice' build downloaded/config.json program tp=2 tp=2
refused 2 'a=\]==\] is no key' build downloaded/config.json program 'a=]==]'
refused 2 'tp must be' build downloaded/config.json program tp=9999999999
refused 5 'no.json is not' build no.json program
[ ! -e program ] || fail 'a refused command left a program'

# GPT-2: 2 x (2 norms, attention, network), two tables of 256, positions, the last norm.
build gpt2.json gpt precision=fp32 sequence=32 packed=1
grep -q '\.packed = true' build/tree/gpt_run.run/run.hpp || fail 'packed=1 changes nothing'
trains gpt $((2 * (4 * 30 + 30 * 90 + 90 + 30 * 30 + 30 + 2 * 30 * 50 + 50 + 30) + 2 * 256 * 30 + 32 * 30 + 60))

build downloaded/config.json my-qwen precision=bf16_mixed micro-batch=4 sequence=256
block=$((2 * 24 + 2 * 24 * 40 + 2 * 24 * 10 + 2 * 10 + 3 * 24 * 40))
trains my-qwen $((2 * block + 300 * 24 + 24))
./my-qwen eval --load model-my-qwen --data-path text --tokenizer-type byte --split 0,100,0 >/dev/null

# What the pages say to do with a model that was downloaded.
./my-qwen export --load model-my-qwen --save exported >/dev/null
cp exported/model.safetensors downloaded
cp text book.txt
python3 "$source/examples/small_tokenizer.py" downloaded book.txt --vocabulary 300 >/dev/null
python3 -c 'import array; array.array("i", list(open("text", "rb").read()) * 3).tofile(open("book.i32", "wb"))'
PATH=$PWD:$PATH
documented README.md hugging-face
rm -r model
documented docs/hugging-face.md build
documented docs/hugging-face.md train
documented docs/hugging-face.md export
mv model-my-qwen model-old

# An edited configuration builds the unit of the run alone.
sed -i 's/"num_hidden_layers": 2/"num_hidden_layers": 3/; s/\["full_attention"/["full_attention", "full_attention"/' downloaded/config.json
build downloaded/config.json my-qwen precision=bf16_mixed micro-batch=4 sequence=256
grep -q 'run\.cpp' build/build.log || fail 'the run was not built again'
if grep -Eq '(main|commands|kernels)\.cpp' build/build.log; then fail 'what no run shapes was built again'; fi
trains my-qwen $((3 * block + 300 * 24 + 24))
refused 5 'num_hidden_layers is 2 there and 3 in the program' \
  ./my-qwen eval --load model-old --data-path text --tokenizer-type byte

# Refused by the field's name; the program stays.
before=$(cksum <my-qwen)
sed -i 's/"dtype"/"attention_bias": true, "dtype"/' downloaded/config.json
refused 5 'field "attention_bias" is true' build downloaded/config.json my-qwen sequence=32
[ "$(cksum <my-qwen)" = "$before" ] || fail 'a refused configuration changed the program'
sed -i 's/"attention_bias": true, //' downloaded/config.json

# A layout is one line, and no other unit is built for it; what one has saved goes on under another.
sed -i 's/"num_key_value_heads": 1/"num_key_value_heads": 2/; s/"num_hidden_layers": 3/"num_hidden_layers": 4/
  s/"layer_types": \[/&"full_attention", /' downloaded/config.json
build downloaded/config.json my-qwen precision=fp32 sequence=256 tp=2
cp build/CMakeLists.txt of-tp-2
documented docs/parallelism.md another-layout
diff of-tp-2 build/CMakeLists.txt >changed || true
[ "$(grep -c '^>' changed)" = 1 ] || fail 'a layout is more than one line'
grep -q '^> .*tp=4.*pp=2' changed || fail 'a layout is not in that line'
if grep -Eq '(main|commands|kernels)\.cpp' build/build.log; then fail 'what no layout shapes was built again'; fi
[ -d model-of-2/iter_0000040 ] || fail 'the run did not go on'

# Several ranks, the fewest that the layout has: built, described, and run.
build downloaded/config.json many precision=fp32 sequence=32 tp=2 sp=1 cp=2 pp=3 stage-layers=1,2,1
./many describe >/dev/null
./many train --data-path text --tokenizer-type byte --train-iters 2 --save model-many >ran
grep -q ': .* 12 ranks, each micro-batch' ran || { cat ran && fail 'many does not tell of 12 ranks'; }
refused 3 'must be a multiple of 12' ./many train --data-path text --tokenizer-type byte --train-iters 1 --ranks 18
./many generate --load model-many --tokenizer-type byte --prompt green --max-new-tokens 4 --json >said
grep -q '"prompt":"green"' said || { cat said && fail 'ranks of 3 stages do not write'; }
refused 2 'schedule must be 1f1b or gpipe' build downloaded/config.json many schedule=2f1b
refused 2 'stage-layers must be numbers of layers' build downloaded/config.json many stage-layers=1,,1
refused 2 'count-loss must be 0 or 1' build downloaded/config.json many count-loss=2
refused 3 'MEGA-S001 .*heads 4 over 3 ranks' build downloaded/config.json many precision=fp32 sequence=32 tp=3
if grep -Eq '/(run|generation)\.cpp' build/build.log; then fail 'a wrong layout was found after its kernels were compiled'; fi
refused 3 'MEGA-C002 .*experts' build downloaded/config.json many precision=fp32 sequence=32 ep=2
refused 3 "MEGA-C003 .*the model's positions" build downloaded/config.json many precision=fp32 sequence=257

# Experts in one layer of two.
cat >moe.json <<'END'
{"model_type": "qwen3_moe", "num_hidden_layers": 2, "hidden_size": 24, "num_attention_heads": 4,
 "num_key_value_heads": 2, "head_dim": 10, "intermediate_size": 40, "moe_intermediate_size": 16,
 "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": true, "decoder_sparse_step": 1,
 "mlp_only_layers": [0], "vocab_size": 256, "max_position_embeddings": 64, "rope_theta": 10000.0,
 "rope_scaling": {"type": "linear", "factor": 2.0},
 "tie_word_embeddings": false, "transformers_version": "4.51.0"}
END
build moe.json moe precision=fp32 sequence=32 recompute=selective
attention=$((2 * 24 + 2 * 24 * 40 + 2 * 24 * 20 + 2 * 10))
trains moe $((2 * attention + 3 * 24 * 40 + 4 * 24 + 4 * 3 * 24 * 16 + 2 * 256 * 24 + 24))
echo 'built, trained and refused as told'
