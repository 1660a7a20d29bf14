// The subcommands and flags of megacpp-data.
#pragma once

#include <megacpp/cli/help.hpp>
#include <megacpp/options/options.hpp>

namespace mc {

inline constexpr command_text data_commands[] = {
    {"encode", command::encode,
     "read JSON lines (texts, or objects with one) and write the token ids of each as a list",
     "encode --tokenizer gpt2/tokenizer.json --input texts.jsonl"},
    {"decode", command::decode, "read lists of token ids, one a line, and write their texts",
     "decode --tokenizer gpt2/tokenizer.json --input ids.jsonl"},
    {"count", command::count, "count the documents, bytes and tokens of texts",
     "count --tokenizer gpt2/tokenizer.json --input texts.jsonl"},
    {"prepare", command::prepare,
     "write the tokens of texts as Megatron-LM's indexed data set, PREFIX_text_document.bin and "
     ".idx",
     "prepare --tokenizer gpt2/tokenizer.json --input a.jsonl b.jsonl --output-prefix data/web "
     "--append-eod"},
    {"merge", command::merge, "write several indexed data sets as one",
     "merge --input data/a_text_document data/b_text_document --output-prefix data/all"},
    {"inspect", command::inspect,
     "show what an indexed data set holds: documents, tokens, lengths, a text",
     "inspect --input data/web_text_document --tokenizer gpt2/tokenizer.json"},
    {"verify", command::verify,
     "read an indexed data set whole, and compare it with its checksums and a vocabulary",
     "verify --input data/web_text_document --tokenizer gpt2/tokenizer.json"},
    {"chat", command::chat,
     "read conversations, one a line, and write their token ids with what is learned of them",
     "chat --tokenizer downloaded --input conversations.jsonl"}};

// The macro is as in options/compiled_flags.hpp.
#define MEGACPP_FLAG(kind, name, ...) \
  kind##_flag name { this, #name, __VA_ARGS__ }

struct data_program_flags : flag_group {
  static constexpr command of_texts = encode | count | prepare, of_lines = of_texts | decode | chat,
                           of_files = of_texts | decode | inspect | verify,
                           of_sets = merge | inspect | verify;
  data_program_flags() : flag_group("Flags", all, undecided) {}
  MEGACPP_FLAG(
      texts, input,
      none().many().of(of_lines | of_sets).shown("the standard input; of data sets none"),
      "what to read, one after the other. For encode, count and prepare files of JSON lines, each "
      "a text in quotes or an object with one (count and prepare take a file whose name ends in "
      ".txt as one document); for decode lists of ids; for chat conversations; for merge, inspect "
      "and verify the names of indexed data sets, without .bin and .idx");
  MEGACPP_FLAG(text, tokenizer, is("").of(of_files | chat),
               "folder of a Hugging Face model, or a tokenizer.json, or a .tiktoken file; chat "
               "needs the folder, for its template");
  MEGACPP_FLAG(text, tokenizer_type,
               is("")
                   .one_of("HuggingFaceTokenizer|GPT2BPETokenizer|TikTokenizer")
                   .of(of_files | chat)
                   .shown("any"),
               "Megatron-LM's name for what the tokenizer must be: of --tokenizer, of --vocab-file "
               "and --merge-file, or of a .tiktoken file. With HuggingFaceTokenizer the eos_token "
               "of tokenizer_config.json ends documents, unless --eod-token names another");
  MEGACPP_FLAG(text, tiktoken_pattern,
               is("").of(of_files).shown("what belongs to the name of the file"),
               "how a .tiktoken file cuts texts into words, and its special tokens: gpt2, r50k, "
               "p50k, p50k_edit, cl100k, o200k, llama3, llama3_1 (and later) or qwen2; or regex: "
               "and an expression");
  MEGACPP_FLAG(texts, special_tokens,
               none().many().of(of_files).shown("what belongs to --tiktoken-pattern"),
               "special tokens of a .tiktoken file, which get the ids behind its own");
  MEGACPP_FLAG(text, vocab_file, is("").of(of_files),
               "GPT-2's vocab.json, with --merge-file instead of --tokenizer");
  MEGACPP_FLAG(text, merge_file, is("").of(of_files), "GPT-2's merges.txt");
  MEGACPP_FLAG(texts, json_keys, none().many().of(of_texts).shown("text"),
               "the fields of an object that hold a text; prepare writes a data set for each");
  MEGACPP_FLAG(
      text, output_prefix, is("").of(prepare | merge),
      "where to write: prepare adds _KEY_document, .bin and .idx, and merge .bin and .idx");
  MEGACPP_FLAG(switch, append_eod, is(false).of(prepare),
               "put the token --eod-token behind each document");
  MEGACPP_FLAG(
      text, eod_token,
      is("").of(prepare).shown("<|endoftext|>, <|end_of_text|> or </s>, the first that there is"),
      "the token that ends a document");
  MEGACPP_FLAG(whole, vocab_size,
               is(0).within(1, std::int64_t{1} << 31).of(verify).shown("any id is taken"),
               "instead of --tokenizer: ids must be below it");
  MEGACPP_FLAG(
      switch, add_special_tokens, is(true).of(of_texts),
      "put the ids around each text that tokenizer.json asks for, such as Llama 3's begin");
  MEGACPP_FLAG(switch, skip_special_tokens, is(false).of(decode),
               "leave special tokens out of the texts");
  MEGACPP_FLAG(
      text, invalid_utf8, is("refuse").one_of("refuse|replace").of(of_texts),
      "what happens to bytes that are not UTF-8, and to halves of surrogate pairs. refuse: the "
      "input is refused at the first; replace: each becomes U+FFFD, and they are counted");
  MEGACPP_FLAG(whole, workers, is(0).within(0, 1024).of(of_lines),
               "threads; 0: all cores, or the quota of a container. Results do not depend on it");
  MEGACPP_FLAG(text, chat_loss, is("assistant").one_of("assistant|all").of(chat),
               "what is learned: what the assistant says, or every token");
  MEGACPP_FLAG(text, chat_keys, is("").of(chat).shown(""),
               "the fields of lines that are no lists of messages, such as "
               "system=system_prompt,user=question,assistant=response; system may be left out");
  MEGACPP_FLAG(switch, json, is(false).of(count | inspect | verify),
               "print one JSON object instead of text");
};

#undef MEGACPP_FLAG

inline std::vector<named_flag> flags_of(data_program_flags& f) {
  std::vector<named_flag> list;
  append_flags(list, f);
  return list;
}

} // namespace mc
