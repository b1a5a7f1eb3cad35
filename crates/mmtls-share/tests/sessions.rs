//! Real sessions of a C program on OpenSSL, over loopback: what its agent gets is what the program's own key log says.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use mmtls_keyshare::agent::{Role, SecretKind};

use crate::common::{Got, Place, TlsServer, as_key_log, library};
use crate::stage::{can_compile, compile, pkg_config, prefix, succeed};

const OPENSSL: [&str; 2] = ["-l:libssl.so.3", "-l:libcrypto.so.3"];
const SERVER: &str = "1";
const SERVER_AND_HANDSHAKE: &str = "3";

/// A directory with the client, compiled; `None` where that is not possible.
fn client() -> Option<Place> {
    if !can_compile() {
        return None;
    }
    let place = Place::new();
    compile("client.c", &place.path("client"), &OPENSSL);
    Some(place)
}

fn run(place: &Place, how: &str, server: &TlsServer, more: &[&str]) {
    succeed(&mut command(place, how, server.port, more));
}

fn command(place: &Place, how: &str, port: u16, more: &[&str]) -> Command {
    let mut command = place.plain(place.path("client").to_str().unwrap());
    command.env("MMTLS_AGENT", place.path("agent"));
    command.args([how, &format!("127.0.0.1:{port}"), "a.example", "log"]).args(more);
    command
}

/// What the program's own key log says, without exporters, and without handshake secrets where they are not shared.
fn own_log(path: &Path, handshake: bool) -> BTreeSet<String> {
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with("EXPORTER"));
    lines.filter(|line| handshake || !line.contains("HANDSHAKE")).map(str::to_owned).collect()
}

#[test]
fn accepts_sessions_of_tls_1_2_and_1_3_in_each_way() {
    let Some(place) = client() else {
        return;
    };
    for how in ["ctx", "line", "give", "late"] {
        for (arguments, version, count) in [("-www", 0x0304, 2), ("-www -tls1_2", 0x0303, 1)] {
            let server = place.server(arguments);
            let agent = place.agent();
            run(&place, how, &server, &[]);
            let got = agent.wait(count);
            assert_eq!(got.len(), count, "{how} {got:?}");
            for got in &got {
                let Got::Secret { role, version: of, server_name, flow: Some(flow), .. } = got
                else {
                    panic!("{how} {got:?}");
                };
                assert_eq!((*role, *of, &server_name[..]), (Role::Client, version, "a.example"));
                assert_eq!(flow.server().port(), server.port);
                assert!(flow.client().ip().is_loopback());
            }
            assert_eq!(as_key_log(&got), own_log(&place.path("log"), false), "{how}");
            std::fs::remove_file(place.path("log")).unwrap();
        }
    }
}

#[test]
fn accepts_suites_as_they_are_negotiated() {
    let Some(place) = client() else {
        return;
    };
    let agent = place.agent();
    let mut count = 0;
    for (arguments, suite, secrets) in [
        ("-www -ciphersuites TLS_AES_128_GCM_SHA256", 0x1301, 2),
        ("-www -ciphersuites TLS_CHACHA20_POLY1305_SHA256", 0x1303, 2),
        ("-www -tls1_2 -cipher ECDHE-ECDSA-AES256-GCM-SHA384", 0xc02c, 1),
    ] {
        for how in ["ctx", "quiet", "give"] {
            run(&place, how, &place.server(arguments), &[]);
            count += secrets;
            for got in &agent.wait(count)[count - secrets..] {
                assert!(
                    matches!(got, Got::Secret { cipher_suite, .. } if *cipher_suite == suite),
                    "{got:?}"
                );
            }
        }
    }
}

#[test]
fn accepts_threads_that_share_at_once() {
    let Some(place) = client() else {
        return;
    };
    let (agent, server) = (place.agent(), place.server("-www"));
    run(&place, "threads", &server, &[]);
    let got = agent.wait(160);
    assert_eq!(got.len(), 160);
    assert_eq!(as_key_log(&got), own_log(&place.path("log"), false));
}

#[test]
fn accepts_both_processes_after_a_fork() {
    let Some(place) = client() else {
        return;
    };
    let (agent, server) = (place.agent(), place.server("-www"));
    run(&place, "fork", &server, &[]);
    let got = agent.wait(8);
    assert_eq!(got.len(), 8);
    assert_eq!(as_key_log(&got), own_log(&place.path("log"), false));
}

#[test]
fn accepts_server_sessions_and_handshake_secrets_where_asked() {
    let Some(place) = client() else {
        return;
    };
    let agent = place.agent();
    succeed(&mut command(&place, "memory", 0, &[]));
    assert_eq!(agent.wait(2).len(), 2);
    succeed(&mut command(&place, "memory", 0, &[SERVER]));
    let got = agent.wait(6);
    assert_eq!(got.len(), 6);
    let servers = got.iter().filter(|got| matches!(got, Got::Secret { role: Role::Server, .. }));
    assert_eq!(servers.count(), 2);
    assert_eq!(as_key_log(&got), own_log(&place.path("log"), false));
    std::fs::remove_file(place.path("log")).unwrap();
    drop(agent);
    let agent = place.agent();
    succeed(&mut command(&place, "memory", 0, &[SERVER_AND_HANDSHAKE]));
    let got = agent.wait(8);
    assert_eq!(got.len(), 8);
    assert!(got.iter().any(|got| got.kind() == Some(SecretKind::ServerHandshake)));
    assert_eq!(as_key_log(&got), own_log(&place.path("log"), true));
}

#[test]
fn refuses_to_share_exempt_sessions() {
    let Some(place) = client() else {
        return;
    };
    let agent = place.agent();
    let mut count = 0;
    for arguments in ["-www", "-www -tls1_2"] {
        let server = place.server(arguments);
        run(&place, "ctx", &server, &["0", "other.example:A.Example"]);
        // That of the environment counts beside what is given.
        let mut by_variable = command(&place, "ctx", server.port, &["0", "other.example"]);
        succeed(by_variable.env("MMTLS_EXEMPT", "*.example"));
        count += 2;
        let got = agent.wait(count);
        assert_eq!(got.len(), count);
        assert!(got.iter().all(|got| matches!(got, Got::Exempt { .. })), "{got:?}");
        let log = own_log(&place.path("log"), false);
        let known = |got: &Got| log.iter().any(|line| line.contains(got.client_random()));
        assert!(got.iter().all(known));
    }
    for how in ["line", "give"] {
        run(&place, how, &place.server("-www"), &["0", "a.example"]);
        count += 1;
        assert!(matches!(agent.wait(count).last(), Some(Got::Exempt { .. })));
    }
    // Another name is not exempt.
    run(&place, "ctx", &place.server("-www"), &["0", "*.a.example"]);
    let got = agent.wait(count + 2);
    assert_eq!(as_key_log(&got).len(), 2);
}

/// A program under `mmtls exec` has both libraries: the agent gets everything twice, which it must accept.
#[test]
fn accepts_the_preload_library_beside_it() {
    let Some(place) = client() else {
        return;
    };
    let (agent, server) = (place.agent(), place.server("-www"));
    succeed(command(&place, "ctx", server.port, &[]).env("LD_PRELOAD", library()));
    let got = agent.wait(4);
    assert_eq!(got.len(), 4);
    assert_eq!(as_key_log(&got), own_log(&place.path("log"), false));
}

#[test]
fn accepts_openssl_linked_statically() {
    if !can_compile() {
        return;
    }
    let place = Place::new();
    let probe = "echo '#include <openssl/ssl.h>' | cc -E -xc - >/dev/null 2>&1 && \
                 test -f \"$(cc -print-file-name=libssl.a)\"";
    if !place.plain("sh").args(["-c", probe]).status().unwrap().success() {
        eprintln!("SKIPPED: there is no libssl.a with headers (libssl-dev)");
        return;
    }
    let (agent, server) = (place.agent(), place.server("-www"));
    // Ours shared, and ours static, too.
    let of_openssl = ["-DHEADERS", "-l:libssl.a", "-l:libcrypto.a"];
    let private = pkg_config(&["--static", "--libs-only-l", "--libs-only-other"]);
    let library = prefix().join("lib/libmmtls-share.a");
    let ours = [library.to_str().unwrap()];
    let system = private.iter().map(String::as_str).filter(|flag| *flag != "-lmmtls-share");
    for (at, more) in [vec![], ours.into_iter().chain(system).collect()].into_iter().enumerate() {
        let more: Vec<&str> = of_openssl.into_iter().chain(more).collect();
        if at == 0 {
            compile("client.c", &place.path("client"), &more);
        } else {
            let mut cc = Command::new("cc");
            cc.args(["-std=c11", "-pthread", "-I"]).arg(prefix().join("include"));
            cc.arg("-o").arg(place.path("client"));
            cc.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/client.c"));
            succeed(cc.args(more));
        }
        let needed = place.plain("ldd").arg(place.path("client")).output().unwrap();
        let needed = String::from_utf8_lossy(&needed.stdout).into_owned();
        assert!(!needed.contains("libssl"), "{needed}");
        assert_eq!(needed.contains("libmmtls-share"), at == 0, "{needed}");
        for how in ["ctx", "line", "late"] {
            run(&place, how, &server, &[]);
        }
    }
    let got = agent.wait(12);
    assert_eq!(got.len(), 12);
    assert!(own_log(&place.path("log"), false).is_subset(&as_key_log(&got)));
}
