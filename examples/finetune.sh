#!/usr/bin/env bash
# Fine-tunes a chat model on conversations, from what it reads to what serves it, in three to four
# minutes on two cores, half of which is compiling: makes conversations about numbers and a tokenizer,
# compiles a small Qwen3 into a program, makes a base, trains it on what the assistant says, asks it
# what it has not seen, and exports a folder for transformers and vLLM.
#
#   examples/finetune.sh [--lora | --qlora] [--no-install] [--epochs N] [--answers-at-least SHARE]
#                        [--program FILE] [--adapter-program FILE] [--out DIR]
#
#   --lora         the base learns to answer two kinds of questions, and an adapter beside it the third
#                  kind; the adapter is exported, too, for PEFT and vLLM. One more program is compiled
#   --qlora        the same beside a base in NF4
#   --no-install   install nothing; whatever is missing is named
#   --epochs N     how often all conversations are seen, by default 6
#   --answers-at-least SHARE   fail where fewer of the held-out questions are answered exactly, by
#                  default 0
#   --program FILE a small-model that was compiled before, and is copied
#   --adapter-program FILE  the same of the program that trains an adapter
#   --out DIR      where everything is written, by default build/finetune
#
# docs/chat.md has the same way for a model that was downloaded, docs/fine-tuning.md that of adapters.
set -euo pipefail
export LC_ALL=C # decimal points

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/examples/small_model.sh"
lora= qlora= epochs=6 answers_at_least=0 program= adapter_program= out=$root/build/finetune
read_flags 'lora? qlora? epochs answers-at-least program adapter-program out' "$@"
[ -z "$lora" ] || [ -z "$qlora" ] || fail '--lora and --qlora contradict each other' 2
adapter=$lora$qlora
[ -n "$adapter" ] || [ -z "$adapter_program" ] || fail '--adapter-program needs --lora or --qlora' 2
[[ $epochs =~ ^[1-9][0-9]{0,5}$ ]] || fail "--epochs must be a positive number, not $epochs" 2
[[ $answers_at_least =~ ^(0|1|0?\.[0-9]+|1\.0+)$ ]] ||
  fail "--answers-at-least must be from 0 to 1, not $answers_at_least" 2
install_tools
mkdir -p "$out"
cd "$out"
rm -rf tokenizer base model exported adapter

step 'Making conversations and a tokenizer'
make() { run python3 "$root/examples/small_conversations.py" "$@"; }
if [ -n "$adapter" ]; then
  make . --tasks sort
  make base --tasks backwards,repeat
  texts=(conversations.jsonl base/conversations.jsonl)
else
  make .
  texts=(conversations.jsonl)
fi
head -qn 2 "${texts[@]}"
run python3 "$root/examples/small_tokenizer.py" tokenizer "${texts[@]}" --vocabulary 512

small_model small-model "$program"
tuned=./small-model
if [ -n "$adapter" ]; then
  tuned=./small-lora
  small_model small-lora "$adapter_program" lora=16 lora-alpha=32 ${qlora:+base=nf4}
fi

flags=(--data-type chat --split 98,2,0 --lr 3e-3 --lr-decay-style cosine
  --lr-warmup-iters 20 --adam-beta2 0.99 --weight-decay 0.1)

step 'Making a base'
# What others download: a folder of a model that has read, but not learned to answer. Every token of
# the conversations is learned, once. An adapter's base answers what is not asked below.
learned=(--data-path conversations.jsonl --chat-loss all --epochs 1)
[ -z "$adapter" ] || learned=(--data-path base/conversations.jsonl --epochs "$epochs")
run ./small-model train "${flags[@]}" --tokenizer-model tokenizer "${learned[@]}" --save base/run ||
  fail 'training failed; its message is above'
run ./small-model export --load base/run --save base/model
ls base/model

step 'Fine-tuning'
run "$tuned" train --load base/model "${flags[@]}" --data-path conversations.jsonl \
  --epochs "$epochs" --save model --loss-curve loss.svg || fail 'training failed; its message is above'

step 'Asking what it has not seen'
# The state has the tokenizer and the template, too.
run "$tuned" eval --load model --data-type chat --data-path held-out.jsonl
run "$tuned" generate --load model --chat --greedy --max-new-tokens 16 --batch-size 64 \
  --prompts-file questions.txt --json >answers.jsonl 2>answers.log ||
  { cat answers.log >&2 && fail 'generation failed; its message is above'; }
python3 - "$answers_at_least" <<'END' || fail "fewer than $answers_at_least of the answers are right"
import json, sys

asked, expected = (open(name).read().splitlines() for name in ["questions.txt", "answers.txt"])
said = [json.loads(line)["text"] for line in open("answers.jsonl")]
assert len(said) == len(asked) == len(expected)
for question, answer in list(zip(asked, said))[:5]:
    print(f"  {question} -> {answer}")
share = sum(a == b for a, b in zip(said, expected)) / len(asked)
print(f"{share:.1%} of {len(asked)} held-out questions are answered exactly")
sys.exit(share < float(sys.argv[1]))
END

step 'Exporting for transformers and vLLM'
[ -z "$adapter" ] || run "$tuned" export --load model --save adapter
run "$tuned" export --load model --save exported ${adapter:+--merge}
ls exported ${adapter:+adapter}

step 'Done'
printf 'talk to it:  cd %q && %s generate --load model --chat --greedy\n' "$out" "$tuned"
printf 'serve it:    vllm serve %q\n' "$PWD/exported"
echo "total time: $SECONDS s"
