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

struct data_program_flags {
  BOOST_HANA_DEFINE_STRUCT(data_program_flags, (texts_flag, input), (text_flag, tokenizer),
                           (text_flag, tokenizer_type), (text_flag, tiktoken_pattern),
                           (texts_flag, special_tokens), (text_flag, vocab_file),
                           (text_flag, merge_file), (texts_flag, json_keys),
                           (text_flag, output_prefix), (switch_flag, append_eod),
                           (text_flag, eod_token), (whole_flag, vocab_size),
                           (switch_flag, add_special_tokens), (switch_flag, skip_special_tokens),
                           (text_flag, invalid_utf8), (whole_flag, workers), (text_flag, chat_loss),
                           (switch_flag, json));
  data_program_flags() {
    const command of_texts = command::encode | command::count | command::prepare,
                  of_lines = of_texts | command::decode | command::chat,
                  of_files = of_texts | command::decode | command::inspect | command::verify,
                  of_sets = command::merge | command::inspect | command::verify;
    input
        .is({},
            "what to read, one after the other. For encode, count and prepare files of JSON lines, "
            "each a text in quotes or an object with one (count and prepare take a file whose name "
            "ends in .txt as one document); for decode lists of ids; for chat conversations; for "
            "merge, inspect and verify the names of indexed data sets, without .bin and .idx",
            "the standard input; of data sets none")
        .many()
        .of(of_lines | of_sets);
    tokenizer
        .is("",
            "folder of a Hugging Face model, or a tokenizer.json, or a .tiktoken file; chat needs "
            "the folder, for its template")
        .of(of_files | command::chat);
    tokenizer_type
        .is("",
            "Megatron-LM's name for what the tokenizer must be: of --tokenizer, of --vocab-file "
            "and --merge-file, or of a .tiktoken file. With HuggingFaceTokenizer the eos_token of "
            "tokenizer_config.json ends documents, unless --eod-token names another",
            "any")
        .one_of("HuggingFaceTokenizer|GPT2BPETokenizer|TikTokenizer")
        .of(of_files | command::chat);
    tiktoken_pattern
        .is("",
            "how a .tiktoken file cuts texts into words, and its special tokens: gpt2, r50k, p50k, "
            "p50k_edit, cl100k, o200k, llama3, llama3_1 (and later) or qwen2; or regex: and an "
            "expression",
            "what belongs to the name of the file")
        .of(of_files);
    special_tokens
        .is({}, "special tokens of a .tiktoken file, which get the ids behind its own",
            "what belongs to --tiktoken-pattern")
        .many()
        .of(of_files);
    vocab_file.is("", "GPT-2's vocab.json, with --merge-file instead of --tokenizer").of(of_files);
    merge_file.is("", "GPT-2's merges.txt").of(of_files);
    json_keys
        .is({}, "the fields of an object that hold a text; prepare writes a data set for each",
            "text")
        .many()
        .of(of_texts);
    output_prefix
        .is("",
            "where to write: prepare adds _KEY_document, .bin and .idx, and merge .bin and .idx")
        .of(command::prepare | command::merge);
    append_eod.is(false, "put the token --eod-token behind each document").of(command::prepare);
    eod_token
        .is("", "the token that ends a document",
            "<|endoftext|>, <|end_of_text|> or </s>, the first that there is")
        .of(command::prepare);
    vocab_size.is(0, "instead of --tokenizer: ids must be below it", "any id is taken")
        .within(1, std::int64_t{1} << 31)
        .of(command::verify);
    add_special_tokens
        .is(true,
            "put the ids around each text that tokenizer.json asks for, such as Llama 3's begin")
        .of(of_texts);
    skip_special_tokens.is(false, "leave special tokens out of the texts").of(command::decode);
    invalid_utf8
        .is("refuse",
            "what happens to bytes that are not UTF-8, and to halves of surrogate pairs. refuse: "
            "the input is refused at the first; replace: each becomes U+FFFD, and they are counted")
        .one_of("refuse|replace")
        .of(of_texts);
    workers.is(0, "threads; 0: all cores, or the quota of a container. Results do not depend on it")
        .within(0, 1024)
        .of(of_lines);
    chat_loss.is("assistant", "what is learned: what the assistant says, or every token")
        .one_of("assistant|all")
        .of(command::chat);
    json.is(false, "print one JSON object instead of text")
        .of(command::count | command::inspect | command::verify);
  }
};

inline std::vector<named_flag> flags_of(data_program_flags& f) {
  std::vector<named_flag> list;
  detail::append_flags(list, "Flags", f, false);
  return list;
}

} // namespace mc
