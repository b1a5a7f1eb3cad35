/* What a host sees through SSL_CTX_{set,get}_keylog_callback, and its errno. Declared by hand, so
 * that no OpenSSL headers are needed. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>

typedef void (*keylog)(const void *ssl, const char *line);
const void *TLS_method(void);
void *SSL_CTX_new(const void *method);
void SSL_CTX_free(void *context);
void SSL_CTX_set_keylog_callback(void *context, keylog callback);
keylog SSL_CTX_get_keylog_callback(const void *context);

static void first(const void *ssl, const char *line) { (void)ssl; (void)line; }
static void second(const void *ssl, const char *line) { (void)ssl; (void)line; }

#define CHECK(what) if (!(what)) { fprintf(stderr, "line %d: %s\n", __LINE__, #what); return 1; }

int main(void)
{
    for (int round = 0; round < 1000; round++) {
        void *context = SSL_CTX_new(TLS_method());
        CHECK(context != NULL);
        errno = 4242;
        CHECK(SSL_CTX_get_keylog_callback(context) == NULL);
        SSL_CTX_set_keylog_callback(context, first);
        CHECK(SSL_CTX_get_keylog_callback(context) == first);
        SSL_CTX_set_keylog_callback(context, second);
        CHECK(SSL_CTX_get_keylog_callback(context) == second);
        SSL_CTX_set_keylog_callback(context, NULL);
        CHECK(SSL_CTX_get_keylog_callback(context) == NULL);
        CHECK(errno == 4242);
        SSL_CTX_free(context);
    }
    CHECK(SSL_CTX_new(NULL) == NULL);
    return 0;
}
