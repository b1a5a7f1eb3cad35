//! C programs against the installed library: the examples, and the figures of the paper.

use std::fs;
use std::process::Command;

use crate::common::{
    WORD, body_with, can_compile, compile, compile_as, directory, install, installed, number,
    replayed, root, succeed, text,
};
use mmtls_testkit::captures::{Conversation, http_exchange};
use mmtls_testkit::files;
use mmtls_testkit::synthesis::{EarlyFate, EarlyScript};

#[test]
fn refuses_configurations_that_cannot_run_and_says_why() {
    if !can_compile() {
        return;
    }
    let program = compile_as("c", &root().join("examples/c/cipherstat.c"));
    let wrong = directory().join("wrong.toml");
    let fails = |text: &str, why: &str| {
        fs::write(&wrong, text).unwrap();
        let output = Command::new(&program).arg(&wrong).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.starts_with("cipherstat: ") && said.contains(why), "{text}: {said}");
        output.status.success()
    };
    assert!(!fails("[offline]\nkeylog = \"keys\"\n", "line 2: unknown field `keylog`"));
    assert!(!fails("", "inline.interfaces"));
    // What only a start finds out is told by `mmtls_app_join`, and the program fails all the same.
    assert!(!fails("[offline]\ncapture_file = \"/nonexistent/capture\"\n", "/nonexistent/capture"));
    let live = "[inline]\ninterfaces = [\"nowhere0\", \"nowhere1\"]\n[keys]\nlisten = \"[::1]:0\"\n\
                certificate_file = \"/nonexistent/c\"\nkey_file = \"/nonexistent/k\"\n\
                [policies]\nmissing_keys = \"reset\"\n";
    assert!(!fails(live, "nowhere0"));
}

/// Three kinds of sessions, one over IPv6.
fn kinds() -> Vec<Conversation> {
    let of = |version, suite, v6| {
        let exchanges = [http_exchange("/", &files::pattern_bytes(5000, 1))];
        Conversation { version, suite, v6, ..Conversation::new(&exchanges) }
    };
    vec![
        of(0x0304, 0x1301, false),
        of(0x0304, 0x1302, true),
        of(0x0304, 0x1301, false),
        of(0x0303, 0xc02f, false),
    ]
}

#[test]
fn accepts_installing_below_a_staging_directory() {
    if !can_compile() {
        return;
    }
    let stage = directory().join("stage");
    install(&["PREFIX=/usr", &format!("DESTDIR={}", stage.display())]);
    for name in [
        "bin/mmtls",
        "lib/libmmtls_preload.so",
        "lib/libmmtls.a",
        "include/mmtls.h",
        "lib/libmmtls-share.so.0",
        "lib/pkgconfig/mmtls-share.pc",
    ] {
        assert!(stage.join("usr").join(name).is_file(), "{name}");
    }
    let library = fs::canonicalize(stage.join("usr/lib/libmmtls.so")).unwrap();
    assert!(library.to_str().unwrap().ends_with(concat!(".so.", env!("CARGO_PKG_VERSION"))));
    let settings = fs::read_to_string(stage.join("usr/lib/pkgconfig/mmtls.pc")).unwrap();
    assert!(settings.starts_with("prefix=/usr\n"), "{settings}");
    assert!(settings.contains(concat!("Version: ", env!("CARGO_PKG_VERSION"))), "{settings}");
}

#[test]
fn accepts_a_static_library_and_a_header_without_short_names() {
    if !can_compile() {
        return;
    }
    let source = directory().join("plain.c");
    let text_of_it = "#define MMTLS_NO_SHORT_NAMES\n#define VERSION \"1.0\"\n#define SNI 5\n\
        typedef char event_t;\n#include <mmtls.h>\n#include <mmtls.h>\n\
        int main(void) { mmtls_session_info info; mmtls_cb cb = 0; event_t e = 0; (void)e;\n\
        return mmtls_get_tls_info(0, 1, &info, MMTLS_INFO_SNI) != MMTLS_ERR_CONTEXT\n\
        || mmtls_register_callback(0, ON_TLS_KEYS, cb) != MMTLS_ERR_ARGUMENT; }\n";
    fs::write(&source, text_of_it).unwrap();
    for program in compile(&source) {
        succeed(&mut Command::new(program));
    }
    let settings = fs::read_to_string(installed().join("lib/pkgconfig/mmtls.pc")).unwrap();
    let needs = settings.lines().find_map(|line| line.strip_prefix("Libs.private: ")).unwrap();
    let program = directory().join("plain-static");
    let mut cc = Command::new("cc");
    cc.arg("-I").arg(installed().join("include")).arg("-o").arg(&program).arg(&source);
    cc.arg(installed().join("lib/libmmtls.a")).args(needs.split(' '));
    succeed(&mut cc);
    succeed(&mut Command::new(program));
}

#[test]
fn accepts_cipherstat_with_a_complete_log() {
    if !can_compile() {
        return;
    }
    let config = replayed("kinds", &kinds());
    for program in compile(&root().join("examples/c/cipherstat.c")) {
        let printed = text(&succeed(Command::new(program).arg(&config).arg("2")));
        let mut lines: Vec<&str> = printed.lines().collect();
        lines.sort_unstable();
        assert_eq!(
            lines,
            [
                "cpu 0: TLS 1.2, cipher suite 0xc02f: 1 sessions",
                "cpu 0: TLS 1.3, cipher suite 0x1301: 2 sessions",
                "cpu 0: TLS 1.3, cipher suite 0x1302: 1 sessions",
                "server name:server.test version:771 cipher:49199",
                "server name:server.test version:772 cipher:4865",
                "server name:server.test version:772 cipher:4865",
                "server name:server.test version:772 cipher:4866",
            ]
        );
    }
}

/// A session of TLS 1.2 whose client sends an alert within the first response; then comes this exchange.
fn with_alert(next: (Vec<u8>, Vec<u8>)) -> Conversation {
    let mut all = Conversation::new(&[http_exchange("/alert", &[b'x'; 20_000]), next]);
    let (server, response) = &mut all.turns[1];
    let rest = (*server, response.split_off(10_000));
    all.turns.insert(2, rest);
    Conversation { version: 0x0303, suite: 0xc02f, alert_behind: Some(2), ..all }
}

#[test]
fn accepts_ips_that_resets_on_a_match_and_skips_the_rest() {
    if !can_compile() {
        return;
    }
    let clean = |len| http_exchange("/clean", &files::pattern_bytes(len, 4));
    let found = |at, len| http_exchange("/found", &body_with(WORD, at, len));
    let session = |exchanges: &[_]| Conversation::new(exchanges);
    let patterns = directory().join("patterns");
    fs::write(&patterns, "# none of these\nnothing-like-this\nEICAR-STANDARD-AN\n").unwrap();
    let config = replayed(
        "ips",
        &[
            // After a megabyte that is skipped.
            session(&[clean(1 << 20), found(9000, 100_000), clean(100_000)]),
            // Behind the limit, and then in front of it.
            session(&[found(65_540, 200_000), clean(3000)]),
            // Over the edge of two records.
            session(&[clean(500), found(16_370 - 50, 20_000)]),
            Conversation { version: 0x0303, suite: 0xc02f, ..session(&[clean(400_000)]) },
            with_alert(found(66_000, 200_000)),
        ],
    );
    let skipped = [1 << 20, 200_000, 400_000, 200_000].map(|len| len - (64 << 10));
    let at_least: u64 = skipped.iter().map(|bytes| bytes / 16384 - 1).sum();
    for program in compile(&root().join("examples/c/ips.c")) {
        let printed = text(&succeed(Command::new(program).args([&config, &patterns])));
        let resets = printed.lines().filter(|line| line.contains("pattern of line 3 found: reset"));
        assert_eq!(resets.count(), 2, "{printed}");
        assert_eq!(number(&printed, "sessions"), 5);
        // Opened are five records of each long response, short responses, tickets, and what might
        // be a KeyUpdate: records as short as a request.
        let [seen, opened, paused] =
            ["records_seen", "records_opened", "records_paused"].map(|it| number(&printed, it));
        assert!(paused >= at_least, "{printed}");
        assert!(opened <= 5 * 5 + 20 && seen >= opened + at_least, "{printed}");
    }
}

#[test]
fn accepts_sessiondump_byte_for_byte() {
    if !can_compile() {
        return;
    }
    let conversations = kinds();
    let config = replayed("dumped", &conversations);
    for program in compile(&root().join("examples/c/sessiondump.c")) {
        let out = program.with_extension("out");
        fs::create_dir_all(&out).unwrap();
        succeed(Command::new(program).args([&config, &out]));
        for (at, conversation) in conversations.iter().enumerate() {
            for (side, (_, said)) in ["to_server", "to_client"].iter().zip(&conversation.turns) {
                let written = fs::read(out.join(format!("0-{}-{side}", at + 1))).unwrap();
                assert!(written == *said, "session {at} {side}");
            }
        }
        assert_eq!(fs::read_dir(&out).unwrap().count(), 2 * conversations.len());
    }
}

#[test]
fn tells_what_becomes_of_early_data() {
    if !can_compile() {
        return;
    }
    for (fate, code) in [(EarlyFate::Accepted, 2), (EarlyFate::RefusedByRetry, 3)] {
        let early = Some(EarlyScript { fate, before: vec![vec![b'x'; 300]; 2], after: vec![] });
        let all = Conversation { early, ..Conversation::new(&[http_exchange("/", b"body")]) };
        let config = replayed("early", &[all]);
        for program in compile(&root().join("crates/mmtls-capi/tests/c/early.c")) {
            let printed = text(&succeed(Command::new(program).arg(&config)));
            let expected =
                format!("session 1: early data {code}, 2 records before, mid stream 0\n");
            assert_eq!(printed, expected);
        }
    }
}

#[test]
fn tells_what_operators_should_know() {
    if !can_compile() {
        return;
    }
    let config = replayed("messages", &[]);
    // Classic pcap: one Ethernet packet, of which 14 of 1,000 bytes are there.
    let words = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1, 0, 0, 14, 1000];
    let mut capture: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    capture.extend_from_slice(&[0; 14]);
    fs::write(config.with_extension("pcapng"), capture).unwrap();
    for program in compile(&root().join("crates/mmtls-capi/tests/c/messages.c")) {
        let output = succeed(Command::new(program).args([config.to_str().unwrap(), "warning: "]));
        assert_eq!(text(&output), "1 told, 0 wrong\n");
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(errors.starts_with("mmtls: warning: ") && errors.lines().count() == 1, "{errors}");
    }
}

#[test]
fn accepts_figure_9_as_it_is_printed() {
    if !can_compile() {
        return;
    }
    let word = std::str::from_utf8(WORD).unwrap();
    let found = |at, len| http_exchange("/found", &body_with(WORD, at, len));
    let session =
        |exchanges: &[_]| Conversation { record_len: 4000, ..Conversation::new(exchanges) };
    let config = replayed(
        "figure9",
        &[
            // Behind the first 10 KB, and in them.
            session(&[found(50_000, 100_000), found(7000, 50_000)]),
            session(&[found(30_000, 80_000), found(30_000, 80_000)]),
            Conversation { record_len: 4000, ..with_alert(http_exchange("/", &[b'x'; 500])) },
        ],
    );
    // As printed it is C, not C++: `void *` becomes `uctx *` without a cast.
    let source = root().join("crates/mmtls-capi/tests/c/figure9.c");
    let program = compile_as("c", &source);
    let printed = text(&succeed(Command::new(program).args([config.to_str().unwrap(), word])));
    // 100,000 bytes are 26 records, of which the first three are opened, and so on.
    assert!(printed.starts_with("found 1, paused 4 times: "), "{printed}");
    let [opened, paused] = ["times: ", "opened, "].map(|before| {
        let rest = printed.split(before).nth(1).unwrap();
        rest.split(' ').next().unwrap().parse::<u32>().unwrap()
    });
    assert!(opened <= 4 * 5 + 10 && paused >= 3 * 15, "{printed}");
}
