/* After each call the secret is nowhere in this process but where the program itself has it: of one that was sent, of one that
 * waited, and of one that was given up.
 *
 *     wiped PATH     nobody listens at PATH; the agent comes by a line on stdin */
#define _GNU_SOURCE
#include <mmtls_share.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "line %d: %s\n", __LINE__, #what); exit(1); } } while (0)

/* Kept with all bits turned round, so that the program has it once: while it is given. */
static uint8_t turned[48], plain[48];

static void turn(void)
{
    for (int i = 0; i < 48; i++)
        plain[i] = (uint8_t)~turned[i];
}

static int is_there(const uint8_t *at)
{
    for (int i = 0; i < 48; i++)
        if ((at[i] ^ turned[i]) != 0xff)
            return 0;
    return 1;
}

/* How often it is in memory that can be written. */
static int copies(void)
{
    static char line[4096];
    static uint8_t chunk[1 << 16];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "r"), *memory = fopen("/proc/self/mem", "r");
    CHECK(maps != NULL && memory != NULL);
    setvbuf(memory, NULL, _IONBF, 0);
    while (fgets(line, sizeof line, maps) != NULL) {
        unsigned long from, to;
        char rights[5];
        CHECK(sscanf(line, "%lx-%lx %4s", &from, &to, rights) == 3);
        if (rights[0] != 'r' || rights[1] != 'w')
            continue;
        for (; from < to; from += sizeof chunk - 48) {
            size_t length = to - from < sizeof chunk ? to - from : sizeof chunk;
            if (fseeko(memory, (off_t)from, SEEK_SET) != 0 || fread(chunk, 1, length, memory) != length)
                break;
            for (size_t at = 0; at + 48 <= length; at++)
                /* Not what was just read into here. */
                if (is_there(chunk + at) && (from + at < (unsigned long)chunk || from + at >= (unsigned long)(chunk + sizeof chunk)))
                    count++;
            memset(chunk, 0, sizeof chunk);
        }
    }
    fclose(maps);
    fclose(memory);
    return count;
}

static void give(mmtls_share_t share, int expected)
{
    mmtls_share_secret secret;
    memset(&secret, 0, sizeof secret);
    secret.kind = MMTLS_SHARE_CLIENT_TRAFFIC;
    secret.version = 0x0304;
    secret.cipher_suite = 0x1302;
    secret.secret = plain;
    secret.secret_len = 48;
    turn();
    CHECK(copies() == 1);
    CHECK(mmtls_share_give(share, &secret) == expected);
    memset(plain, 0, sizeof plain);
    __asm__ volatile("" ::: "memory");
}

int main(int count, char **arguments)
{
    mmtls_share_t share;
    char line[16];
    FILE *source = fopen("/dev/urandom", "r");
    CHECK(count == 2 && source != NULL);
    setvbuf(source, NULL, _IONBF, 0);
    CHECK(fread(turned, 1, 48, source) == 48);
    CHECK(mmtls_share_open(arguments[1], NULL, 0, &share) == 0);
    give(share, MMTLS_SHARE_ERR_AGENT);
    /* It waits. */
    CHECK(copies() == 1);
    CHECK(mmtls_share_close(share) == 0);
    CHECK(copies() == 0);
    CHECK(mmtls_share_open(arguments[1], NULL, 0, &share) == 0);
    give(share, MMTLS_SHARE_ERR_AGENT);
    CHECK(copies() == 1);
    puts("now");
    fflush(stdout);
    CHECK(fgets(line, sizeof line, stdin) != NULL);
    usleep(150000);
    CHECK(mmtls_share_connect(share) == 0);
    CHECK(copies() == 0);
    give(share, 0);
    CHECK(copies() == 0);
    CHECK(mmtls_share_close(share) == 0);
    return 0;
}
