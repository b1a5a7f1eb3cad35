/* What a host sees through SSL_CTX_{new,set_keylog_callback,get_keylog_callback}, and its errno.
 * With an argument, a second copy of libssl at that path is used in turn with the first one.
 * Of the copies after that the fourth has no slot in our library: nothing of it is shared, and it works as without us.
 * Declared by hand, so that no OpenSSL headers are needed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>

typedef void (*keylog)(const void *ssl, const char *line);
typedef const void *(*method_function)(void);
typedef void (*free_function)(void *context);
const void *TLS_method(void);
void *SSL_CTX_new(const void *method);
void SSL_CTX_free(void *context);
void SSL_CTX_set_keylog_callback(void *context, keylog callback);
keylog SSL_CTX_get_keylog_callback(const void *context);

static void first(const void *ssl, const char *line) { (void)ssl; (void)line; }
static void second(const void *ssl, const char *line) { (void)ssl; (void)line; }

#define CHECK(what) if (!(what)) { fprintf(stderr, "line %d: %s\n", __LINE__, #what); return 1; }

static int check(void *context)
{
    errno = 4242;
    CHECK(SSL_CTX_get_keylog_callback(context) == NULL);
    SSL_CTX_set_keylog_callback(context, first);
    CHECK(SSL_CTX_get_keylog_callback(context) == first);
    SSL_CTX_set_keylog_callback(context, second);
    CHECK(SSL_CTX_get_keylog_callback(context) == second);
    SSL_CTX_set_keylog_callback(context, NULL);
    CHECK(SSL_CTX_get_keylog_callback(context) == NULL);
    SSL_CTX_set_keylog_callback(context, first);
    CHECK(errno == 4242);
    return 0;
}

int main(int count, char **arguments)
{
    method_function other_method = NULL;
    free_function other_free = NULL;
    keylog (*other_get)(const void *) = NULL;
    if (count > 1) {
        void *library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
        CHECK(library != NULL);
        other_method = (method_function)dlsym(library, "TLS_method");
        other_free = (free_function)dlsym(library, "SSL_CTX_free");
        other_get = (keylog (*)(const void *))dlsym(library, "SSL_CTX_get_keylog_callback");
        CHECK(other_method != NULL && other_free != NULL && other_get != NULL);
        CHECK(other_method() != TLS_method());
    }
    for (int number = 2; number < count; number++) {
        void *library = dlopen(arguments[number], RTLD_NOW | RTLD_LOCAL);
        CHECK(library != NULL);
        method_function method = (method_function)dlsym(library, "TLS_method");
        keylog (*get)(const void *) =
            (keylog (*)(const void *))dlsym(library, "SSL_CTX_get_keylog_callback");
        CHECK(method != NULL && get != NULL && method() != TLS_method());
        /* All slots are to be taken in the order of the copies. */
        CHECK(SSL_CTX_new(TLS_method()) != NULL && SSL_CTX_new(other_method()) != NULL);
        void *context = SSL_CTX_new(method());
        CHECK(context != NULL);
        /* Made by its own library, so without our callback where that has no slot. */
        CHECK((get(context) != NULL) == (number < 4));
        CHECK(check(context) == 0);
        CHECK((get(context) == first) == (number >= 4));
    }
    /* Enough rounds to run out of room, if freed contexts were not forgotten. */
    for (int round = 0; round < 6000; round++) {
        void *context = SSL_CTX_new(TLS_method());
        CHECK(context != NULL && check(context) == 0);
        if (other_method) {
            void *other = SSL_CTX_new(other_method());
            CHECK(other != NULL && check(other) == 0);
            /* The other library has our callback, not the host's. */
            CHECK(other_get(other) != NULL && other_get(other) != first);
            other_free(other);
        }
        SSL_CTX_free(context);
    }
    /* More that live at once than there is room for at first. */
    for (int number = 0; other_method && number < 4200; number++) {
        void *other = SSL_CTX_new(other_method());
        CHECK(other != NULL);
        if (number % 100 == 0) {
            void *context = SSL_CTX_new(TLS_method());
            CHECK(context != NULL && check(context) == 0 && check(other) == 0);
            CHECK(other_get(other) != NULL && other_get(other) != first);
        }
    }
    CHECK(SSL_CTX_new(NULL) == NULL);
    return 0;
}
