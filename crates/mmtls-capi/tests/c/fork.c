/* A process that is forked while contexts run: nothing hangs in it, and the contexts go on. Usage: fork CONFIG */
#include <mmtls.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static atomic_int in_callback, go_on, sessions;

static void cb_start(mmctx_t mmctx, int cid, int side)
{
    (void)mmctx, (void)cid, (void)side;
    in_callback = 1;
    while (!go_on)
        usleep(1000);
    sessions++;
}

static void *join(void *mmctx)
{
    mmtls_app_join((mmctx_t)mmctx);
    return NULL;
}

static int child(const char *config, mmctx_t mmctx)
{
    uint64_t frames;
    alarm(20);
    if (mmtls_get_counter(mmctx, "frames", &frames) != MMTLS_ERR_RUN)
        return 2;
    mmtls_app_join(mmctx);
    if (mmtls_errno() != MMTLS_ERR_RUN || !strstr(mmtls_error_message(), "forked"))
        return 3;
    mmtls_get_uctx(mmctx, 1);
    if (mmtls_errno() != MMTLS_ERR_RUN || mmtls_init(config, 1) != MMTLS_ERR_RUN)
        return 4;
    if (mmtls_destroy() != 0)
        return 5;
    if (mmtls_destroy() != MMTLS_ERR_NOT_INITIALISED)
        return 6;
    /* From the beginning, with contexts of its own. */
    go_on = 1;
    if (mmtls_init(config, 1) != 0 || !(mmctx = mmtls_create_context(0)))
        return 7;
    mmtls_register_callback(mmctx, ON_TLS_SESSION_START, cb_start);
    mmtls_app_join(mmctx);
    if (mmtls_errno() != 0 || sessions != 1)
        return 8;
    return mmtls_destroy() == 0 ? 0 : 9;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    mmctx_t mmctx;
    uint64_t frames;
    pid_t pid;
    int status = -1;
    if (argc != 2 || mmtls_init(argv[1], 1) != 0 || !(mmctx = mmtls_create_context(0)))
        return 1;
    mmtls_register_callback(mmctx, ON_TLS_SESSION_START, cb_start);
    pthread_create(&thread, NULL, join, mmctx);
    while (!in_callback)
        usleep(1000);
    /* The callback runs while mmtls_app_join still starts contexts, inside the library, which a child could not leave: this
     * waits until that is over. */
    if (mmtls_get_counter(mmctx, "frames", &frames) != 0)
        return 1;
    pid = fork();
    if (pid == 0)
        _exit(child(argv[1], mmctx));
    waitpid(pid, &status, 0);
    go_on = 1;
    pthread_join(thread, NULL);
    if (status != 0)
        fprintf(stderr, "fork.c: the child's status is %d\n", status);
    return status != 0 || sessions != 1 || mmtls_destroy() != 0;
}
