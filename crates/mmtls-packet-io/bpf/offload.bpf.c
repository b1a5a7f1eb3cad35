/*
 * Forwarding in the kernel of connections that nobody reads, and of those parts of others that are not read.
 *
 * Each received frame meets two programs, one right behind the other, on the same processor. `admit` is the filter of the
 * packet sockets: it decides whether user space gets the frame. Of a connection in `flows` it takes plain segments: they go no
 * further than the note that it leaves in `noted`. `redirect` runs at the interface's ingress hook and sends a noted frame out of
 * the other port. So one program decides, the other one carries out, and no frame goes both ways or neither.
 *
 * An entry begins with the segment that stands exactly where user space has left off, so that nothing is overtaken. SYN, FIN,
 * RST and URG, fragments, IP options, extension headers and VLAN tags always go to user space.
 *
 * Of a connection in `pauses` one direction has records that are not read. Only what stands exactly where the last segment ended is
 * taken, and only as far as each record in it is one that may pass: the receiver is to count the same ones. Of the other
 * direction only acknowledgments are taken, of both nothing that could begin another connection by a SYN cookie. What has become
 * of it is in a slot, in memory that user space has mapped: closing a slot under its lock is the one way to know for certain where
 * the kernel has stopped.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>

#define SEC(name) __attribute__((section(name), used))
#define MAP_TYPE(number) int(*type)[number]
#define MAP_ENTRIES(number) int(*max_entries)[number]
#define MAP_FLAGS(number) int(*map_flags)[number]

#define ENTRIES 131072
#define RULES 4096
#define SLOTS 4096

/* Records of a pause whose lengths are known: a power of two. */
#define LENGTHS 2048
/* Fragments of records that may pass: in shorter ones user space looks for key updates, and there are not to be too many in a
 * frame; longer ones than TLS 1.3 has are illegal (RFC 8446, section 5.2). */
#define MIN_FRAGMENT 1024
#define MAX_FRAGMENT (16384 + 256)
#define RECORD_HEADER 5
#define MAX_HEADERS 64
/* Bytes that may be under way: a sender must not run so far ahead of its receiver that sequence numbers come round. */
#define MAX_FLIGHT (1 << 25)

/* As `COOKIE_SLACK` in `offload.rs`. */
#define COOKIE_SLACK 3

/* The next program's turn, and the stack's: -1 at every kind of ingress hook. */
#define NEXT -1
#define WHOLE_FRAME -1

#define APPLICATION_DATA 23

/* <linux/if_packet.h> */
#define OUTGOING 4

#define TCP 6
#define FIN 0x01
#define SYN 0x02
#define RST 0x04
#define ACK 0x10
#define URG 0x20

static void *(*lookup)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*load_bytes)(const void *skb, __u32 offset, void *to, __u32 len) = (void *)BPF_FUNC_skb_load_bytes;
static long (*redirect_to)(__u32 interface, __u64 flags) = (void *)BPF_FUNC_redirect;

static inline __u16 host16(__u16 it) { return __builtin_bswap16(it); }
static inline __u32 host32(__u32 it) { return __builtin_bswap32(it); }

/* Addresses and ports are in network order; IPv4 addresses are mapped ones (RFC 4291, section 2.5.5.2). */
struct key {
    __u32 ingress;
    __u16 source_port;
    __u16 destination_port;
    __u8 source[16];
    __u8 destination[16];
};

struct flow {
    /* Stream offset of the next byte, and the sequence number of offset 0. */
    __u64 position;
    /* Frames that were taken, and bytes of TCP payload in them. */
    __u64 frames;
    __u64 payload_bytes;
    __u32 initial;
    /* A frame has been taken. */
    __u32 begun;
};

/* Which slot a direction of a paused connection goes by; it is another connection's if the generation differs. */
struct pause {
    __u32 slot;
    __u32 generation;
    /* Only acknowledgments are taken. */
    __u32 is_other;
    __u32 unused;
};

/* As `pause_slots.rs` has it. */
struct slot {
    /* 1 while somebody changes it, or reads it for the last time. */
    __u32 lock;
    /* 0: closed. */
    __u32 generation;
    /* Of the direction whose records pass: stream offset of the next byte, and of the next record's header. */
    __u64 position;
    __u64 next;
    /* Bytes of content that may still pass. */
    __u64 content;
    __u64 frames;
    __u64 payload_bytes;
    __u64 records;
    /* Of the other direction: frames; the latest acknowledgment number, with bit 32 set where there is one. */
    __u64 other_frames;
    __u64 acknowledgment;
    /* The first record that the receiver may not have yet: its stream offset, and its number. */
    __u64 tail;
    __u64 tail_record;
    /* Sequence number of stream offset 0. */
    __u32 initial;
    /* What of a fragment is not content. */
    __u32 overhead;
    /* Sequence number of the other direction's stream offset 0. */
    __u32 peer_initial;
    __u32 unused;
    /* Of the fragments of the latest records, at their number modulo LENGTHS. */
    __u16 lengths[LENGTHS];
};

/* Prefixes begin with the family, so that no rule for all of IPv6 is one for IPv4. */
struct rule {
    __u32 prefix_len;
    __u8 family[4];
    __u8 address[16];
};

struct note {
    /* 0: none. */
    __u32 egress;
    __u32 len;
};

/* What was taken at a port. */
struct totals {
    __u64 frames;
    __u64 frame_bytes;
};

struct {
    MAP_TYPE(BPF_MAP_TYPE_HASH);
    MAP_ENTRIES(ENTRIES);
    MAP_FLAGS(BPF_F_NO_PREALLOC);
    struct key *key;
    struct flow *value;
} flows SEC(".maps");

struct {
    MAP_TYPE(BPF_MAP_TYPE_HASH);
    MAP_ENTRIES(SLOTS * 2);
    MAP_FLAGS(BPF_F_NO_PREALLOC);
    struct key *key;
    struct pause *value;
} pauses SEC(".maps");

struct {
    MAP_TYPE(BPF_MAP_TYPE_ARRAY);
    MAP_ENTRIES(SLOTS);
    MAP_FLAGS(BPF_F_MMAPABLE);
    __u32 *key;
    struct slot *value;
} slots SEC(".maps");

/* Addresses that are left alone, whatever is sent from or to them. */
struct {
    MAP_TYPE(BPF_MAP_TYPE_LPM_TRIE);
    MAP_ENTRIES(RULES);
    MAP_FLAGS(BPF_F_NO_PREALLOC);
    struct rule *key;
    __u32 *value;
} rules SEC(".maps");

struct {
    MAP_TYPE(BPF_MAP_TYPE_PERCPU_ARRAY);
    MAP_ENTRIES(1);
    __u32 *key;
    struct note *value;
} noted SEC(".maps");

/* By port, left first. */
struct {
    MAP_TYPE(BPF_MAP_TYPE_PERCPU_ARRAY);
    MAP_ENTRIES(2);
    __u32 *key;
    struct totals *value;
} taken SEC(".maps");

/* Interface numbers, and whether there are rules. */
volatile const __u32 LEFT = 0;
volatile const __u32 RIGHT = 0;
volatile const __u32 HAS_RULES = 0;

/* How far ahead of the position a segment may stand and still move it: whoever has not seen the connection is not to move it
 * far. */
#define MAX_AHEAD (1 << 26)

/* What of a segment decides. */
struct segment {
    struct key key;
    __u8 family;
    __u32 sequence;
    __u32 acknowledgment;
    __u32 payload;
    /* Where that begins in the frame. */
    __u32 payload_at;
};

struct ports_and_more {
    __u16 source, destination;
    __u32 sequence, acknowledgment;
    __u8 offset, flags;
};

/* Whether an IPv6 address is a mapped IPv4 address, which no packet has on the wire. */
static __attribute__((always_inline)) int is_mapped(const __u8 *address) {
    __u8 any = 0;
    for (int at = 0; at < 10; at++)
        any |= address[at];
    return !any && address[10] == 0xff && address[11] == 0xff;
}

/* Reads a plain segment; 0 where it is anything else. */
static __attribute__((always_inline)) int plain_segment(struct __sk_buff *skb, struct segment *of) {
    struct ports_and_more tcp;
    __u32 at, ip_payload;
    if (skb->vlan_present)
        return 0;
    if (skb->protocol == host16(ETH_P_IP)) {
        __u8 ip[20];
        if (load_bytes(skb, ETH_HLEN, ip, sizeof ip))
            return 0;
        /* Without options; more fragments, or an offset; the length of a frame beyond 64 KiB is 0. */
        __u32 total = ip[2] << 8 | ip[3];
        if (ip[0] != 0x45 || (ip[6] & 0x3f) || ip[7] || ip[9] != TCP || total < sizeof ip)
            return 0;
        ip_payload = total - sizeof ip;
        at = ETH_HLEN + sizeof ip;
        of->family = 4;
        of->key.source[10] = of->key.source[11] = 0xff;
        of->key.destination[10] = of->key.destination[11] = 0xff;
        __builtin_memcpy(of->key.source + 12, ip + 12, 4);
        __builtin_memcpy(of->key.destination + 12, ip + 16, 4);
    } else if (skb->protocol == host16(ETH_P_IPV6)) {
        __u8 ip[40];
        if (load_bytes(skb, ETH_HLEN, ip, sizeof ip))
            return 0;
        ip_payload = ip[4] << 8 | ip[5];
        if (ip[0] >> 4 != 6 || ip[6] != TCP || !ip_payload)
            return 0;
        at = ETH_HLEN + sizeof ip;
        of->family = 6;
        __builtin_memcpy(of->key.source, ip + 8, 16);
        __builtin_memcpy(of->key.destination, ip + 24, 16);
        /* IPv4's own keys. */
        if (is_mapped(of->key.source) || is_mapped(of->key.destination))
            return 0;
    } else {
        return 0;
    }
    if (load_bytes(skb, at, &tcp, 14))
        return 0;
    __u32 header = (tcp.offset >> 4) * 4;
    if ((tcp.flags & (FIN | SYN | RST | URG)) || !(tcp.flags & ACK))
        return 0;
    if (header < 20 || header > ip_payload || at + ip_payload > skb->len)
        return 0;
    of->key.ingress = skb->ifindex;
    of->key.source_port = tcp.source;
    of->key.destination_port = tcp.destination;
    of->sequence = host32(tcp.sequence);
    of->acknowledgment = host32(tcp.acknowledgment);
    of->payload = ip_payload - header;
    of->payload_at = at + header;
    return 1;
}

/* Whether the kernel forwards a segment of a connection that user space has left to it. */
static __attribute__((always_inline)) int is_taken(struct segment *segment) {
    struct flow *flow = lookup(&flows, &segment->key);
    if (!flow)
        return 0;
    __s32 ahead = segment->sequence - (flow->initial + (__u32)flow->position);
    if (!flow->begun) {
        if (ahead)
            return 0;
        flow->begun = 1;
    }
    /* Sequence numbers are modulo 2^32 (RFC 9293, section 3.4). */
    __s32 end = ahead + segment->payload;
    if (end > 0 && ahead < MAX_AHEAD)
        flow->position += end;
    __sync_fetch_and_add(&flow->frames, 1);
    __sync_fetch_and_add(&flow->payload_bytes, segment->payload);
    return 1;
}

/* Moves the tail to where the receiver is. */
static __attribute__((always_inline)) void move_tail(struct slot *slot) {
    __u64 latest = slot->acknowledgment;
    __u32 missing = slot->initial + (__u32)slot->position - (__u32)latest;
    if (!latest || missing > MAX_FLIGHT || missing > slot->position)
        return;
    __u64 arrived = slot->position - missing;
    for (int count = 0; count < MAX_HEADERS && slot->tail_record < slot->records; count++) {
        __u64 behind = slot->tail + RECORD_HEADER + slot->lengths[slot->tail_record & (LENGTHS - 1)];
        if (behind > arrived)
            return;
        slot->tail = behind;
        slot->tail_record++;
    }
}

/* Whether a segment goes on exactly behind the last one, and every record that begins in it may pass. */
static __attribute__((always_inline)) int records_pass(struct __sk_buff *skb, struct segment *segment, struct slot *slot) {
    __u64 position = slot->position, end = position + segment->payload;
    __u64 next = slot->next, content = slot->content, records = slot->records;
    if (segment->sequence != slot->initial + (__u32)position)
        return 0;
    /* All headers that are under way are to be known. */
    move_tail(slot);
    if (records - slot->tail_record >= LENGTHS - 2 * MAX_HEADERS || end > slot->tail + MAX_FLIGHT)
        return 0;
    for (int count = 0; count < MAX_HEADERS && next < end; count++) {
        __u8 header[RECORD_HEADER];
        /* One that is cut is not read here: this fails. */
        if (end - next < sizeof header ||
            load_bytes(skb, segment->payload_at + (__u32)(next - position), header, sizeof header))
            return 0;
        __u32 fragment = header[3] << 8 | header[4];
        if (header[0] != APPLICATION_DATA || header[1] != 3 || header[2] != 3)
            return 0;
        if (fragment < MIN_FRAGMENT || fragment > MAX_FRAGMENT || fragment - slot->overhead > content)
            return 0;
        content -= fragment - slot->overhead;
        slot->lengths[records & (LENGTHS - 1)] = fragment;
        records++;
        next += sizeof header + fragment;
    }
    if (next < end)
        return 0;
    slot->position = end;
    slot->next = next;
    slot->content = content;
    slot->records = records;
    slot->payload_bytes += segment->payload;
    __sync_fetch_and_add(&slot->frames, 1);
    return 1;
}

/* Whether its receiver, had it lost the connection, could begin another one with a segment by a SYN cookie, which is to be looked at:
 * its numbers are as far from the beginnings of the two directions. */
static __attribute__((always_inline)) int fits_cookie(struct segment *segment, struct slot *slot, __u32 is_other) {
    __u32 sent = segment->sequence - (is_other ? slot->peer_initial : slot->initial);
    __u32 acknowledged = segment->acknowledgment - (is_other ? slot->initial : slot->peer_initial);
    return sent - acknowledged + COOKIE_SLACK <= 2 * COOKIE_SLACK;
}

/* Whether the kernel forwards a segment of a connection whose records are not read. */
static __attribute__((always_inline)) int is_paused(struct __sk_buff *skb, struct segment *segment) {
    struct pause *pause = lookup(&pauses, &segment->key);
    if (!pause)
        return 0;
    __u32 number = pause->slot;
    struct slot *slot = lookup(&slots, &number);
    if (!slot || slot->generation != pause->generation)
        return 0;
    if (fits_cookie(segment, slot, pause->is_other))
        return 0;
    if (!segment->payload) {
        /* What of these is counted beside others who count, or behind the end, does not matter. */
        if (pause->is_other) {
            __u64 latest = slot->acknowledgment;
            __u32 missing = slot->initial + (__u32)slot->position - segment->acknowledgment;
            /* Nobody acknowledges what was not sent. */
            if (missing <= MAX_FLIGHT && (!latest || (__s32)(segment->acknowledgment - (__u32)latest) > 0))
                slot->acknowledgment = 1ULL << 32 | segment->acknowledgment;
            __sync_fetch_and_add(&slot->other_frames, 1);
        } else {
            __sync_fetch_and_add(&slot->frames, 1);
        }
        return 1;
    }
    if (pause->is_other || __sync_val_compare_and_swap(&slot->lock, 0, 1))
        return 0;
    int passes = slot->generation == pause->generation && !fits_cookie(segment, slot, 0) && records_pass(skb, segment, slot);
    __sync_lock_test_and_set(&slot->lock, 0);
    return passes;
}

static __attribute__((always_inline)) int is_left_alone(struct segment *segment) {
    struct rule rule = {.prefix_len = 160};
    if (!HAS_RULES)
        return 0;
    rule.family[3] = segment->family;
    __builtin_memcpy(rule.address, segment->key.source, 16);
    if (!lookup(&rules, &rule)) {
        __builtin_memcpy(rule.address, segment->key.destination, 16);
        if (!lookup(&rules, &rule))
            return 0;
    }
    return 1;
}

SEC("socket")
int admit(struct __sk_buff *skb) {
    struct segment segment;
    __u32 zero = 0;
    /* What leaves by this interface comes by here, too, where several sockets share it; for it there is no hook to carry out a note. */
    if (skb->pkt_type == OUTGOING)
        return 0;
    struct note *note = lookup(&noted, &zero);
    if (!note)
        return WHOLE_FRAME;
    note->egress = 0;
    __builtin_memset(&segment, 0, sizeof segment);
    if (!plain_segment(skb, &segment))
        return WHOLE_FRAME;
    if (!is_taken(&segment) && !is_paused(skb, &segment) && !is_left_alone(&segment))
        return WHOLE_FRAME;
    __u32 port = skb->ifindex == RIGHT;
    struct totals *totals = lookup(&taken, &port);
    if (!totals)
        return WHOLE_FRAME;
    totals->frames++;
    totals->frame_bytes += skb->len;
    note->egress = port ? LEFT : RIGHT;
    note->len = skb->len;
    return 0;
}

SEC("classifier")
int redirect(struct __sk_buff *skb) {
    __u32 zero = 0;
    struct note *note = lookup(&noted, &zero);
    if (!note || !note->egress)
        return NEXT;
    __u32 egress = note->egress;
    note->egress = 0;
    if (note->len != skb->len)
        return NEXT;
    return redirect_to(egress, 0);
}

/* No helper asks for another one. */
char LICENSE[] SEC("license") = "Apache-2.0 OR MIT";
