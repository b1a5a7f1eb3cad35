/* A search for many literal patterns at once (Aho-Corasick), over a stream: the state is one number,
 * so a match may lie in as many pieces as it likes. */
#ifndef LITERAL_H
#define LITERAL_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LITERAL_MAX_NODES = 65536, LITERAL_MAX_LINE = 1024 };

struct literal_node {
    int next[256]; /* 0 is the root */
    int fail;
    int found; /* 1 + the line of a pattern that ends here; 0 is none */
};

struct literals {
    struct literal_node *nodes;
    int count;
};

static int literals_add(struct literals *set, const unsigned char *text, size_t len, int line)
{
    int node = 0;
    for (size_t at = 0; at < len; at++) {
        int *next = &set->nodes[node].next[text[at]];
        if (*next == 0) {
            if (set->count == LITERAL_MAX_NODES)
                return -1;
            *next = set->count++;
        }
        node = *next;
    }
    set->nodes[node].found = line + 1;
    return 0;
}

/* Makes `next` complete, so that a byte is one step: breadth first, from the root. */
static int literals_finish(struct literals *set)
{
    int *queue = (int *)malloc(sizeof(int) * (size_t)set->count);
    int head = 0, tail = 0;
    if (queue == NULL)
        return -1;
    queue[tail++] = 0;
    while (head < tail) {
        int node = queue[head++];
        struct literal_node *this_node = &set->nodes[node];
        if (this_node->found == 0)
            this_node->found = set->nodes[this_node->fail].found;
        for (int byte = 0; byte < 256; byte++) {
            int next = this_node->next[byte];
            int other = node == 0 ? 0 : set->nodes[this_node->fail].next[byte];
            if (next == 0) {
                this_node->next[byte] = other;
            } else {
                set->nodes[next].fail = other;
                queue[tail++] = next;
            }
        }
    }
    free(queue);
    return 0;
}

/* One pattern a line; empty lines and lines that start with # are not. Returns how many there are,
 * or -1. */
static int literals_load(struct literals *set, const char *path)
{
    char line[LITERAL_MAX_LINE];
    int number = 0, patterns = 0;
    FILE *file = fopen(path, "r");
    set->count = 1;
    set->nodes = (struct literal_node *)calloc(LITERAL_MAX_NODES, sizeof(struct literal_node));
    if (file == NULL || set->nodes == NULL)
        return -1;
    while (fgets(line, sizeof line, file) != NULL) {
        size_t len = strcspn(line, "\r\n");
        number++;
        if (len == 0 || line[0] == '#')
            continue;
        if (literals_add(set, (const unsigned char *)line, len, number) < 0)
            return -1;
        patterns++;
    }
    fclose(file);
    return literals_finish(set) < 0 ? -1 : patterns;
}

/* Searches the next bytes of a stream whose state is `*state`, 0 at first. Returns the line of the
 * first pattern found, or 0. */
static int literals_scan(const struct literals *set, int *state, const char *bytes, size_t len)
{
    for (size_t at = 0; at < len; at++) {
        *state = set->nodes[*state].next[(unsigned char)bytes[at]];
        if (set->nodes[*state].found != 0)
            return set->nodes[*state].found - 1;
    }
    return 0;
}

#endif
