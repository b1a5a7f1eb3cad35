/*
 * Forwarding in the kernel for as long as no monitor runs.
 *
 * `mmtls_guard` runs at the ingress hook of both interfaces, behind every other program there. Its links are pinned, so it is
 * there whether a process is or not. The workers of a monitor each renew a deadline in memory that they have mapped. While
 * every deadline is still to come, frames are left to the monitor's packet sockets, which have seen them before this hook.
 * Once one has passed, each frame goes out of the other interface.
 */
#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))
#define MAP_TYPE(number) int(*type)[number]
#define MAP_ENTRIES(number) int(*max_entries)[number]
#define MAP_FLAGS(number) int(*map_flags)[number]

#define MAX_WORKERS 128

/* The next program's turn, and the stack's. */
#define NEXT -1

static void *(*lookup)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static __u64 (*monotonic_ns)(void) = (void *)BPF_FUNC_ktime_get_ns;
static long (*redirect_to)(__u32 interface, __u64 flags) = (void *)BPF_FUNC_redirect;

/* Each in a cache line of its own, as its writers are. */
struct passed {
    __u64 frames;
    __u64 bytes;
    __u64 unused[6];
};

struct slot {
    /* CLOCK_MONOTONIC in nanoseconds. */
    __u64 deadline;
    __u64 unused[7];
};

/* As `lease.rs` has it. */
struct lease {
    __u32 version;
    /* How many slots count; 0: there is no monitor. */
    __u32 workers;
    __u64 holder;
    __u64 netns;
    __u64 lease_ns;
    __u32 interfaces[2];
    __u64 names[4];
    __u64 unused[7];
    /* What came in by each interface, and was forwarded here. */
    struct passed passed[2];
    struct slot slots[MAX_WORKERS];
};

struct {
    MAP_TYPE(BPF_MAP_TYPE_ARRAY);
    MAP_ENTRIES(1);
    MAP_FLAGS(BPF_F_MMAPABLE);
    __u32 *key;
    struct lease *value;
} leases SEC(".maps");

/* Interface numbers. */
volatile const __u32 LEFT = 0;
volatile const __u32 RIGHT = 0;

static __attribute__((always_inline)) int is_held(struct lease *lease) {
    __u32 workers = *(volatile __u32 *)&lease->workers;
    __u64 now = monotonic_ns();
    if (!workers)
        return 0;
    for (__u32 at = 0; at < MAX_WORKERS; at++) {
        if (at >= workers)
            break;
        /* All of them: which worker's frame this is, only the packet sockets know. */
        if (*(volatile __u64 *)&lease->slots[at].deadline <= now)
            return 0;
    }
    return 1;
}

SEC("classifier")
int mmtls_guard(struct __sk_buff *skb) {
    __u32 zero = 0;
    struct lease *lease = lookup(&leases, &zero);
    if (!lease || is_held(lease))
        return NEXT;
    __u32 port = skb->ifindex == RIGHT;
    __sync_fetch_and_add(&lease->passed[port].frames, 1);
    __sync_fetch_and_add(&lease->passed[port].bytes, skb->len);
    return redirect_to(port ? LEFT : RIGHT, 0);
}

/* No helper asks for another one. */
char LICENSE[] SEC("license") = "Apache-2.0 OR MIT";
