//! To which place of the work a sample of `perf record` belongs: by the object that its innermost frame is in and, in the
//! kernel, by what called it, since the same functions serve sockets, files and the scheduler.
//!
//! Refuses to tell record protection from handshakes in a library without symbols: which of them it is, the load says.

/// Where time goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Sockets, TCP/IP, packet sockets, links, and interrupts of the network.
    Network,
    /// Bytes moved, or set to zero, by the kernel.
    Copies,
    /// The rest of the kernel: system calls, scheduling, memory.
    Kernel,
    /// libssl and libcrypto, or the cryptography inside mmTLS.
    Tls,
    /// The program itself.
    Program,
    /// The C library, and whatever else is loaded.
    Libraries,
}

impl Place {
    pub const ALL: [Self; 6] =
        [Self::Network, Self::Copies, Self::Kernel, Self::Tls, Self::Program, Self::Libraries];

    /// As figures name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Network => "kernel: network",
            Self::Copies => "kernel: copies",
            Self::Kernel => "kernel: rest",
            Self::Tls => "TLS, cryptography",
            Self::Program => "the program itself",
            Self::Libraries => "other libraries",
        }
    }
}

/// Samples by place, in the order of [`Place::ALL`].
pub type Counts = [u32; Place::ALL.len()];

/// Beginnings of names of kernel functions: whatever runs below one of them is the network's.
const NETWORK: [&str; 28] = [
    "tcp_",
    "__tcp_",
    "ip_",
    "__ip_",
    "ip6_",
    "ipv6_",
    "inet_",
    "inet6_",
    "sock_",
    "__sock_",
    "sk_",
    "skb_",
    "__skb_",
    "dev_",
    "__dev_",
    "net_rx_action",
    "net_tx_action",
    "netif_",
    "__netif_",
    "__napi_poll",
    "process_backlog",
    "veth_",
    "br_",
    "packet_",
    "tpacket_",
    "__sys_send",
    "__sys_recv",
    "napi_",
];

/// Beginnings of names of kernel functions that move bytes themselves.
const COPIES: [&str; 12] = [
    "rep_movs",
    "rep_stos",
    "copy_user",
    "_copy_to_iter",
    "_copy_from_iter",
    "copy_page",
    "clear_page",
    "memcpy",
    "__memcpy",
    "memset",
    "__memset",
    "csum_partial",
];

/// Beginnings of names of functions of mmTLS that protect records, without underlines before them: those of aws-lc, of which only
/// what other files call has its prefix.
const CRYPTOGRAPHY: [&str; 14] = [
    "aws_lc", "aead_", "aes", "vpaes", "gcm_", "ghash", "chacha20", "ChaCha20", "poly1305",
    "CRYPTO_", "EVP_", "HMAC_", "sha256_", "sha512_",
];

/// A function, and the file or kernel that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    symbol: &'a str,
    object: &'a str,
}

impl<'a> Frame<'a> {
    /// A line of `perf script -F ip,sym,dso`: `ffffffff81e34e4e lock_sock_nested ([kernel.kallsyms])`.
    fn parse(line: &'a str) -> Option<Self> {
        let (_, rest) = line.trim().split_once(' ')?;
        let (symbol, object) = rest.strip_suffix(')')?.rsplit_once('(')?;
        Some(Self { symbol: symbol.trim(), object })
    }

    /// The kernel, or one of its modules; not what it lends to programs.
    fn is_kernel(&self) -> bool {
        self.object.starts_with('[') && !matches!(self.object, "[vdso]" | "[unknown]")
            || self.object.ends_with(".ko")
    }
}

/// Of the frames of a sample, the innermost one first, in a process of this program.
pub fn place(stack: &[Frame<'_>], program: &str) -> Option<Place> {
    let inner = stack.first()?;
    let begins =
        |names: &[&str], frame: &Frame<'_>| names.iter().any(|name| frame.symbol.starts_with(name));
    if inner.is_kernel() {
        let mut kernel = stack.iter().take_while(|frame| frame.is_kernel());
        return Some(match () {
            () if begins(&COPIES, inner) => Place::Copies,
            () if kernel.any(|frame| begins(&NETWORK, frame)) => Place::Network,
            () => Place::Kernel,
        });
    }
    let file = inner.object.rsplit('/').next().unwrap_or_default();
    Some(match file {
        _ if file.starts_with("libssl") || file.starts_with("libcrypto") => Place::Tls,
        _ if file == program && is_cryptography(inner.symbol) => Place::Tls,
        _ if file == program => Place::Program,
        _ => Place::Libraries,
    })
}

fn is_cryptography(symbol: &str) -> bool {
    let symbol = symbol.trim_start_matches(['_', '<']);
    CRYPTOGRAPHY.iter().any(|name| symbol.starts_with(name))
}

/// The samples of each place, in the order of [`Place::ALL`], of what `perf script` prints.
pub fn count(text: &str, program: &str) -> Counts {
    let mut counts = [0; Place::ALL.len()];
    // Samples have an empty line behind them.
    for sample in text.split("\n\n") {
        let stack: Vec<Frame<'_>> = sample.lines().filter_map(Frame::parse).collect();
        if let Some(place) = place(&stack, program) {
            counts[place as usize] += 1;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As perf prints it, samples of an nginx.
    const SAMPLES: &str = "
	ffffffff82200eab _raw_spin_lock_bh ([kernel.kallsyms])
	ffffffff81e34e4e lock_sock_nested ([kernel.kallsyms])
	ffffffff82007f5b tcp_sendmsg ([kernel.kallsyms])
	ffffffff821ecc51 do_syscall_64 ([kernel.kallsyms])
	          1098d9 __write (/usr/lib/x86_64-linux-gnu/libc.so.6)

	ffffffff82100000 rep_movs_alternative ([kernel.kallsyms])
	ffffffff82007f5b tcp_recvmsg_locked ([kernel.kallsyms])

	ffffffff813a87a0 try_to_wake_up ([kernel.kallsyms])
	ffffffff8143eb7a futex_wake ([kernel.kallsyms])
	          1098d9 tcp_is_no_kernel_here (/usr/sbin/nginx)

	          1c0ffe [unknown] (/usr/lib/x86_64-linux-gnu/libcrypto.so.3)

	           30aee ngx_http_upstream_process_header (/usr/sbin/nginx)

	           16052 __memmove_avx_unaligned_erms (/usr/lib/x86_64-linux-gnu/libc.so.6)
	           30aee ngx_palloc (/usr/sbin/nginx)
";

    #[test]
    fn accepts_what_perf_prints() {
        assert_eq!(count(SAMPLES, "nginx"), [1; 6]);
        assert_eq!(count("\n", "nginx"), [0; 6]);
        let frame = Frame::parse("  55d0 <a::B as c::D>::e (f(g)) (/a b/mmtls)").unwrap();
        assert_eq!((frame.symbol, frame.object), ("<a::B as c::D>::e (f(g))", "/a b/mmtls"));
    }

    #[test]
    fn accepts_the_cryptography_inside_mmtls() {
        let of = |symbol| place(&[Frame { symbol, object: "/target/mmtls" }], "mmtls").unwrap();
        assert_eq!(of("aws_lc_0_47_0_aes_gcm_dec_update_vaes_avx512"), Place::Tls);
        assert_eq!(of("_aesni_ctr32_ghash_6x"), Place::Tls);
        assert_eq!(of("aead_aes_gcm_open_gather"), Place::Tls);
        assert_eq!(of("<aws_lc_rs::aead::LessSafeKey>::open_separate_gather"), Place::Tls);
        assert_eq!(of("mmtls_engine::driver::Driver::handle_frame"), Place::Program);
    }

    #[test]
    fn accepts_interrupts_of_the_network_and_modules() {
        let kernel = |symbol, object| Frame { symbol, object };
        let stack = [
            kernel("kmem_cache_alloc", "[kernel.kallsyms]"),
            kernel("veth_poll", "[veth]"),
            kernel("handle_softirqs", "[kernel.kallsyms]"),
        ];
        assert_eq!(place(&stack, "mmtls"), Some(Place::Network));
        assert_eq!(place(&stack[..1], "mmtls"), Some(Place::Kernel));
        let vdso = Frame { symbol: "__vdso_clock_gettime", object: "[vdso]" };
        assert_eq!(place(&[vdso], "mmtls"), Some(Place::Libraries));
    }

    #[test]
    fn places_stand_in_their_order() {
        for (at, place) in Place::ALL.into_iter().enumerate() {
            assert_eq!(place as usize, at, "{}", place.name());
        }
    }
}
