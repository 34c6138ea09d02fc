// What the interface to llama.cpp looks like from outside, without a model: the next token of token t at position p in
// sequence s is t + p + 1000 s, and every call is written down for the test to read.
#include <stdint.h>
#include <string.h>

static int opened[9], calls, removed[64], room = 1 << 30;

void *wc_load(const char *path, int repack) { return strstr(path, "missing") ? 0 : (void *)(intptr_t)(repack + 1); }
void *wc_open(void *model, int a, int b, int c, int d, int e, int f, int g, int h, int i) {
    int values[9] = {a, b, c, d, e, f, g, h, i};
    memcpy(opened, values, sizeof opened);
    return a > room ? 0 : (void *)opened;
}
int wc_decode(void *handle, int n, const int32_t *tokens, const int32_t *positions, const int32_t *sequences,
              const int8_t *wanted, int32_t *chosen) {
    int found = 0;
    calls++;
    if (n > opened[1]) return -100;
    for (int i = 0; i < n; ++i) {
        if (tokens[i] == 666) return 1;
        if (wanted[i]) chosen[found++] = tokens[i] + positions[i] + 1000 * sequences[i];
    }
    return 0;
}
int wc_remove(void *handle, int sequence) { return removed[sequence]++ ? 0 : 0; }
int wc_number(void *handle, int which) { return which < 6 ? opened[which == 1 ? 0 : which == 0 ? 0 : which - 1] : 77; }
const char *wc_system(void) { return "no processor"; }
void wc_describe(void *model, char *text, int size) { strncpy(text, "fake", size); }
int wc_test_opened(int which) { return opened[which]; }
int wc_test_removed(int sequence) { return removed[sequence]; }
