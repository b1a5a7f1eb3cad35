//! Wrong calls, and agents that are away or take nothing: the documented codes, and nothing else happens to the program.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use mmtls_keyshare::Flow;
use mmtls_keyshare::agent::SecretKind;
use mmtls_keyshare::agent::socket::{AgentListener, Users};

use crate::common::{Agent, Got, Place, installed};
use crate::stage::{can_compile, compile, pkg_config, prefix, succeed};

fn program(more: &[&str]) -> Option<Place> {
    program_of("misuse", more)
}

fn program_of(name: &str, more: &[&str]) -> Option<Place> {
    if !can_compile() {
        return None;
    }
    let place = Place::new();
    compile(&format!("{name}.c"), &place.path(name), more);
    Some(place)
}

#[test]
fn refuses_misuse_with_the_documented_codes() {
    // AddressSanitizer has the program whole, and sees the library's calls of the C library; valgrind sees both.
    let valgrind = ["valgrind", "-q", "--error-exitcode=9", "--leak-check=full"];
    for (more, with) in [
        (&[][..], &[][..]),
        (&["-fsanitize=address,undefined"], &[]),
        (&[], if installed("valgrind") { &valgrind } else { &[] }),
    ] {
        let Some(place) = program(more) else {
            return;
        };
        let agent = place.agent();
        let path = place.path("misuse");
        let words = [with, &[path.to_str().unwrap()]].concat();
        let mut command = place.plain(words[0]);
        let output = succeed(command.args(&words[1..]).arg("calls").arg(place.path("agent")));
        assert!(output.stdout.is_empty(), "{output:?}");
        let got = agent.wait(5);
        let flow = Flow::new("192.0.2.1:40000".parse().unwrap(), "192.0.2.2:443".parse().unwrap());
        let [
            Got::Secret { kind: SecretKind::ServerTrafficN, secret, server_name, flow: of, .. },
            Got::Exempt { .. },
            Got::Exempt { .. },
            Got::Exempt { .. },
            Got::Secret { kind: SecretKind::Tls12Master, flow: None, .. },
        ] = &got[..]
        else {
            panic!("{got:?}");
        };
        assert_eq!(*secret, format!("07{}", "00".repeat(63)));
        assert_eq!((server_name.as_str(), *of), ("a.example", flow));
        assert!(got.iter().all(|got| got.client_random() == "ab".repeat(32)));
    }
}

fn numbers(agent: &Agent, count: usize) -> Vec<u8> {
    let got = agent.wait(count);
    got.iter().map(|got| u8::from_str_radix(&got.client_random()[..2], 16).unwrap()).collect()
}

#[test]
fn accepts_agents_that_come_and_go() {
    let Some(place) = program(&[]) else {
        return;
    };
    let mut command = place.plain(place.path("misuse").to_str().unwrap());
    command.arg("away").arg(place.path("agent")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::inherit()).spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let mut input = child.stdin.take().unwrap();
    let mut agent = None;
    let mut waited = Vec::new();
    for comes in [true, false, true, false] {
        let mut word = String::new();
        said.read_line(&mut word).unwrap();
        assert_eq!(word, "now\n", "it has failed");
        if let Some(agent) = agent.take() {
            waited.push(numbers(&agent, if waited.is_empty() { 65 } else { 2 }));
        }
        agent = comes.then(|| place.agent());
        input.write_all(b"go on\n").unwrap();
    }
    assert!(child.wait().unwrap().success());
    // Of a hundred the latest 64 waited, and what was given while none was there came with the next.
    let first: Vec<u8> = (36..100).chain([200]).collect();
    assert_eq!(waited, [first, vec![201, 202]]);
}

#[test]
fn refuses_to_wait_for_an_agent_that_takes_nothing() {
    let Some(place) = program(&[]) else {
        return;
    };
    let _listener = AgentListener::bind(&place.path("agent"), Users::Own).unwrap();
    let mut command = place.plain(place.path("misuse").to_str().unwrap());
    succeed(command.arg("full").arg(place.path("agent")));
}

#[test]
fn refuses_to_keep_secrets_that_are_sent_or_given_up() {
    let Some(place) = program_of("wiped", &[]) else {
        return;
    };
    let mut command = place.plain(place.path("wiped").to_str().unwrap());
    command.arg(place.path("agent")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::inherit()).spawn().unwrap();
    let mut word = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut word).unwrap();
    assert_eq!(word, "now\n", "it has failed");
    let agent = place.agent();
    child.stdin.take().unwrap().write_all(b"go on\n").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(agent.wait(2).len(), 2);
}

#[test]
fn accepts_the_header_in_c_and_cpp_before_and_behind_others() {
    if !can_compile() {
        return;
    }
    let place = Place::new();
    let source = "#include <mmtls_share.h>\n#include <mmtls_share.h>\n\
        int main(void) { mmtls_share_t share; mmtls_share_secret secret; (void)secret;\n\
        return mmtls_share_open(\"/nonexistent/agent\", 0, 0, &share) || mmtls_share_close(share)\n\
        || mmtls_share_version()[0] != '0'; }\n";
    for (name, compiler) in [("plain.c", "cc"), ("plain.cpp", "c++")] {
        std::fs::write(place.path(name), source).unwrap();
        let mut command = place.plain(compiler);
        command.args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-o", "plain", name]);
        succeed(command.args(pkg_config(&["--cflags", "--libs"])));
        let mut plain = place.plain(place.path("plain").to_str().unwrap());
        succeed(plain.env("LD_LIBRARY_PATH", prefix().join("lib")));
    }
    let version = pkg_config(&["--modversion"]);
    assert_eq!(version, [env!("CARGO_PKG_VERSION")]);
}
