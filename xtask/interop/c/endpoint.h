/* The part of a C endpoint that does not depend on its TLS library.
 *
 *   PROGRAM version
 *   PROGRAM server|client host=ADDRESS port=N send=PREFIX expect=N received=PREFIX [NAME=VALUE…]
 *
 * Connection i (from 0) sends the file PREFIX.i and writes what it received to PREFIX.i. The
 * exchange has `rounds` rounds: the client sends its next part, then the server. See README.md
 * beside this directory for every NAME. A library's file defines the functions below, then
 * includes this one. Anything unexpected ends the program with a line that says what. */
#include <arpa/inet.h>
#include <netdb.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef ENDPOINT_FIRST
#define ENDPOINT_FIRST

static int argument_count;
static char **arguments;
static int is_server;
/* Number of the current connection, from 0. */
static int connection;
/* Early data: what the client may send before the handshake, and what the server got then. */
static unsigned char *early;
static size_t early_length, early_done;

static void fail(const char *format, ...) {
    va_list list;
    va_start(list, format);
    fprintf(stderr, "%s: connection %d: ", is_server ? "server" : "client", connection);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    exit(1);
}

__attribute__((unused)) static void note(const char *text) {
    fprintf(stderr, "%s: connection %d: %s\n", is_server ? "server" : "client", connection, text);
}

/* The value of NAME=VALUE, or NULL. */
static const char *text(const char *name) {
    size_t length = strlen(name);
    for (int i = 2; i < argument_count; i++)
        if (!strncmp(arguments[i], name, length) && arguments[i][length] == '=')
            return arguments[i] + length + 1;
    return NULL;
}

static long number(const char *name, long otherwise) {
    const char *value = text(name);
    return value ? atol(value) : otherwise;
}

static int is(const char *name, const char *value) {
    const char *found = text(name);
    return found && !strcmp(found, value);
}

static const char *required(const char *name) {
    const char *value = text(name);
    if (!value)
        fail("%s= is missing", name);
    return value;
}

/* Bytes of a hexadecimal value. Not every library's file needs it. */
__attribute__((unused)) static size_t hex(const char *value, unsigned char *out, size_t room) {
    size_t length = 0;
    unsigned byte;
    while (length < room && sscanf(value + 2 * length, "%2x", &byte) == 1)
        out[length++] = (unsigned char)byte;
    return length;
}

#else

/* What the library's file defines before. */
static const char *version(void);
static void setup(void);
static void *open_session(int fd);
/* Bytes read, 0 at the end of the peer's stream. */
static long read_some(void *session, unsigned char *buffer, size_t room);
static void write_all(void *session, const unsigned char *bytes, size_t length);
/* Between two rounds: key update, renegotiation, authentication, as the arguments say. */
static void between_rounds(void *session);
/* Sends the alert close_notify. */
static void close_stream(void *session);
static void free_session(void *session);

static FILE *open_file(const char *prefix, const char *mode) {
    char path[4096];
    snprintf(path, sizeof path, "%s.%d", prefix, connection);
    FILE *file = fopen(path, mode);
    if (!file)
        fail("cannot open %s", path);
    return file;
}

static unsigned char *load(size_t *length) {
    FILE *file = open_file(required("send"), "rb");
    fseek(file, 0, SEEK_END);
    *length = (size_t)ftell(file);
    rewind(file);
    unsigned char *bytes = malloc(*length + 1);
    if (fread(bytes, 1, *length, file) != *length)
        fail("cannot read the payload");
    fclose(file);
    return bytes;
}

static size_t part_end(size_t length, long round, long rounds) {
    return length * (size_t)(round + 1) / (size_t)rounds;
}

/* In pieces of `chunk` bytes, so that records are small, and all of it at once otherwise. */
static void send_part(void *session, const unsigned char *bytes, size_t length) {
    size_t chunk = (size_t)number("chunk", 0);
    while (length > 0) {
        size_t piece = chunk && chunk < length ? chunk : length;
        write_all(session, bytes, piece);
        bytes += piece;
        length -= piece;
    }
}

static size_t received_length;
static int request_ended;

static int receive_some(void *session, FILE *out) {
    static unsigned char buffer[1 << 16];
    static unsigned char last[4];
    long count = read_some(session, buffer, sizeof buffer);
    if (count <= 0)
        return 0;
    fwrite(buffer, 1, (size_t)count, out);
    received_length += (size_t)count;
    for (long i = 0; i < count; i++) {
        memmove(last, last + 1, 3);
        last[3] = buffer[i];
        if (!memcmp(last, "\r\n\r\n", 4))
            request_ended = 1;
    }
    if (number("forever", 0) && received_length == (size_t)count)
        printf("request %.*s\n", (int)strcspn((char *)buffer, "\r"), buffer);
    return 1;
}

static void receive_part(void *session, FILE *out, long round, long rounds) {
    if (is("expect", "eof")) {
        while (receive_some(session, out))
            ;
        return;
    }
    if (is("expect", "http")) {
        while (!request_ended && receive_some(session, out))
            ;
        return;
    }
    size_t end = part_end((size_t)number("expect", 0), round, rounds);
    while (received_length < end)
        if (!receive_some(session, out))
            fail("the peer ended after %zu bytes", received_length);
    if (received_length > end)
        fail("%zu bytes instead of %zu", received_length, end);
}

static void serve(int fd) {
    size_t length, sent = 0;
    unsigned char *payload = load(&length);
    FILE *out = open_file(required("received"), "wb");
    long rounds = number("rounds", 1);
    received_length = 0;
    request_ended = 0;
    early_done = 0;
    early_length = 0;
    if (!is_server && connection > 0) {
        early = payload;
        early_length = (size_t)number("early", 0);
    }
    void *session = open_session(fd);
    if (is_server && early_done) {
        fwrite(early, 1, early_done, out);
        received_length += early_done;
    } else {
        sent = early_done;
    }
    for (long round = 0; round < rounds; round++) {
        size_t end = part_end(length, round, rounds);
        if (is_server)
            receive_part(session, out, round, rounds);
        /* While the peer waits for data, and sends none. */
        if (round > 0)
            between_rounds(session);
        send_part(session, payload + sent, end - sent);
        sent = end;
        if (!is_server)
            receive_part(session, out, round, rounds);
    }
    /* The client closes first, and each side reads to the end: tickets and alerts arrive. */
    if (!is_server || is("expect", "http"))
        close_stream(session);
    while (receive_some(session, out))
        if (!is("expect", "eof"))
            fail("more bytes than expected");
    if (is_server && !is("expect", "http"))
        close_stream(session);
    free_session(session);
    fclose(out);
    free(payload);
}

static int connect_to(void) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    if (getaddrinfo(required("host"), required("port"), &hints, &found))
        fail("bad address");
    int fd = socket(found->ai_family, SOCK_STREAM, 0);
    int on = 1;
    if (is_server) {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(fd, found->ai_addr, found->ai_addrlen) ||
            listen(fd, number("forever", 0) ? 4096 : 8))
            fail("cannot listen");
        printf("ready\n");
        fflush(stdout);
    } else if (connect(fd, found->ai_addr, found->ai_addrlen)) {
        fail("cannot connect");
    }
    freeaddrinfo(found);
    return fd;
}

int main(int count, char **values) {
    argument_count = count;
    arguments = values;
    if (count < 2)
        fail("usage: %s server|client NAME=VALUE…", values[0]);
    if (!strcmp(values[1], "version")) {
        puts(version());
        return 0;
    }
    is_server = !strcmp(values[1], "server");
    signal(SIGPIPE, SIG_IGN);
    alarm(60);
    setup();
    long connections = number("connections", 1);
    int listener = is_server ? connect_to() : -1;
    /* Whatever happens to one connection, the others go on: each has a process of its own. */
    if (is_server && number("forever", 0)) {
        signal(SIGCHLD, SIG_IGN);
        alarm(0);
        for (;;) {
            int fd = accept(listener, NULL, NULL);
            if (fd >= 0 && fork() == 0) {
                close(listener);
                alarm(90);
                serve(fd);
                return 0;
            }
            close(fd);
        }
    }
    for (connection = 0; connection < connections; connection++) {
        int fd = is_server ? accept(listener, NULL, NULL) : connect_to();
        if (fd < 0)
            fail("no connection");
        serve(fd);
        close(fd);
    }
    return 0;
}

#endif
