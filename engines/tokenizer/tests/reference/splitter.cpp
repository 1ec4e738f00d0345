// Cuts texts into words with llama.cpp's unicode_regex_split, see make_fixtures.py:
//   g++ -O1 -std=c++17 -I LLAMA/src splitter.cpp LLAMA/src/unicode.cpp LLAMA/src/unicode-data.cpp -o splitter
// Arguments: the patterns. Standard input: texts, each a little-endian u32 length and its bytes. Standard output: a line
// a text, the words in hexadecimal.
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "unicode.h"

int main(int argc, char ** argv) {
    const std::vector<std::string> patterns(argv + 1, argv + argc);
    uint32_t length;
    while (fread(&length, sizeof length, 1, stdin) == 1) {
        std::string text(length, '\0');
        if (fread(&text[0], 1, length, stdin) != length) {
            return 1;
        }
        const char * between = "";
        for (const auto & word : unicode_regex_split(text, patterns, false)) {
            fputs(between, stdout);
            between = " ";
            for (const unsigned char byte : word) {
                printf("%02x", byte);
            }
        }
        putchar('\n');
    }
}
