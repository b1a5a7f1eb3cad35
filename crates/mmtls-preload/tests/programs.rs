//! Unmodified programs with the library preloaded, over loopback.

mod common;

use std::collections::HashMap;
use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use common::{Got, Place, as_key_log, installed, key_log};
use mmtls_keyshare::agent::{Role, SecretKind};

fn curl(command: &mut Command, url: &str) -> Output {
    command.args(["-sS", "--cacert", "cert.pem", "--noproxy", "*", url]).output().unwrap()
}

#[test]
fn accepts_curl_and_keeps_its_own_key_log() {
    let place = Place::new();
    let agent = place.agent();
    let server = place.server("-www");
    for (n, suite) in [
        (0, "TLS_AES_128_GCM_SHA256"),
        (1, "TLS_AES_256_GCM_SHA384"),
        (2, "TLS_CHACHA20_POLY1305_SHA256"),
    ] {
        let mut command = place.preloaded("curl");
        command.env("SSLKEYLOGFILE", place.path("log")).args(["--tls13-ciphers", suite]);
        let output = curl(&mut command, &server.url());
        assert!(output.status.success(), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
        let got = agent.wait(2 * (n + 1));
        assert_eq!(got.len(), 2 * (n + 1));
        for got in &got[2 * n..] {
            let Got::Secret { role, version, cipher_suite, server_name, .. } = got else {
                panic!("{got:?}");
            };
            let expected = [0x1301, 0x1302, 0x1303][n];
            assert_eq!((*role, *version, *cipher_suite), (Role::Client, 0x0304, expected));
            assert_eq!(server_name, "localhost");
        }
    }
    assert_eq!(as_key_log(&agent.got()), key_log(&place.path("log")));
}

#[test]
fn accepts_key_updates_in_both_directions() {
    let place = Place::new();
    let agent = place.agent();
    let mut server = place.server("");
    let mut client = place
        .preloaded("openssl")
        .args(["s_client", "-keylogfile", "log", "-servername", "a.example", "-connect"])
        .arg(format!("127.0.0.1:{}", server.port))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    agent.wait(2);
    let mut input = client.stdin.take().unwrap();
    // "k": update this side; "K": both, and the other one does so before it sends again.
    for (command, count) in [("k\n", 3), ("K\n", 4)] {
        std::thread::sleep(Duration::from_millis(100));
        input.write_all(command.as_bytes()).unwrap();
        agent.wait(count);
    }
    std::thread::sleep(Duration::from_millis(100));
    server.say("hello\n");
    agent.wait(5);
    input.write_all(b"Q\n").unwrap();
    assert!(client.wait().unwrap().success());
    let got = agent.got();
    let count = |kind| got.iter().filter(|got| got.kind() == Some(kind)).count();
    assert_eq!(count(SecretKind::ClientTrafficN), 2);
    assert_eq!(count(SecretKind::ServerTrafficN), 1);
    assert_eq!(as_key_log(&got), key_log(&place.path("log")));
    // s_client uses a plain socket, so the flow is known.
    for got in &got {
        let Got::Secret { flow: Some(flow), server_name, .. } = got else {
            panic!("{got:?}");
        };
        assert_eq!((flow.server().port(), server_name.as_str()), (server.port, "a.example"));
    }
}

#[test]
fn accepts_tls_1_2_as_its_own_kind() {
    let place = Place::new();
    let agent = place.agent();
    let server = place.server("-www -tls1_2");
    let output = curl(&mut place.preloaded("curl"), &server.url());
    assert!(output.status.success(), "{output:?}");
    let got = agent.wait(1);
    let [Got::Secret { kind: SecretKind::Tls12Master, version: 0x0303, secret, .. }] = &got[..]
    else {
        panic!("{got:?}");
    };
    assert_eq!(secret.len(), 96);
}

const PYTHON: &str = r#"
import os, socket, ssl, sys
port, log = int(sys.argv[1]), sys.argv[2]
def connect():
    context = ssl.create_default_context(cafile="cert.pem")
    context.keylog_filename = log
    with socket.create_connection(("127.0.0.1", port)) as plain:
        with context.wrap_socket(plain, server_hostname="localhost") as tls:
            tls.sendall(b"GET / HTTP/1.0\r\n\r\n")
            while tls.recv(65536): pass
connect()
# The host closes what it does not know, and reuses the numbers.
os.closerange(3, 4096)
victim = os.open("victim", os.O_RDWR | os.O_CREAT)
for number in range(500, 540): os.dup2(victim, number)
connect()
for number in range(500, 540): os.fstat(number)
assert os.fstat(victim).st_size == 0, "wrote into a file of the host"
child = os.fork()
connect()
if child:
    assert os.waitpid(child, 0)[1] == 0
"#;

#[test]
fn accepts_python_which_closes_descriptors_and_forks() {
    if !installed("python3") {
        return;
    }
    let place = Place::new();
    let agent = place.agent();
    let server = place.server("-www");
    let output = place
        .preloaded("python3")
        .args(["-c", PYTHON, &server.port.to_string(), "log"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    let got = agent.wait(8);
    assert_eq!(got.len(), 8);
    assert_eq!(as_key_log(&got), key_log(&place.path("log")));
}

const THREADS: &str = r#"
import socket, ssl, sys, threading
port = int(sys.argv[1])
def work():
    for _ in range(10):
        context = ssl.create_default_context(cafile="cert.pem")
        with socket.create_connection(("127.0.0.1", port)) as plain:
            with context.wrap_socket(plain, server_hostname="localhost") as tls:
                tls.sendall(b"GET / HTTP/1.0\r\n\r\n")
                while tls.recv(65536): pass
threads = [threading.Thread(target=work) for _ in range(20)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"#;

#[test]
fn accepts_threads_that_share_at_once() {
    if !installed("python3") {
        return;
    }
    let place = Place::new();
    let agent = place.agent();
    let server = place.server("-www");
    let output = place
        .preloaded("python3")
        .args(["-c", THREADS, &server.port.to_string()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(agent.wait(400).len(), 400);
}

#[test]
fn accepts_many_connections_of_ab() {
    if !installed("ab") {
        return;
    }
    let place = Place::new();
    let agent = place.agent();
    let server = place.server("-www");
    let output = place
        .preloaded("ab")
        .args(["-q", "-n", "200", "-c", "50", &server.url()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let got = agent.wait(400);
    let mut sessions = HashMap::<&str, usize>::new();
    for got in &got {
        *sessions.entry(got.client_random()).or_default() += 1;
    }
    assert_eq!(sessions.len(), 200);
    assert!(sessions.values().all(|&count| count == 2));
}

#[test]
fn refuses_to_share_exempt_sessions() {
    let place = Place::new();
    let agent = place.agent();
    let server = place.server("-www");
    let mut command = place.preloaded("curl");
    command.env("MMTLS_EXEMPT", "*.example:LOCALHOST").env("SSLKEYLOGFILE", place.path("log"));
    let output = curl(&mut command, &server.url());
    assert!(output.status.success(), "{output:?}");
    let got = agent.wait(1);
    let [Got::Exempt { client_random }] = &got[..] else {
        panic!("{got:?}");
    };
    // The host's own key log is the host's own affair.
    assert!(key_log(&place.path("log")).iter().all(|line| line.contains(client_random)));
    // Another name is not exempt.
    let mut command = place.preloaded("curl");
    command.env("MMTLS_EXEMPT", "other.example");
    assert!(curl(&mut command, &server.url()).status.success());
    assert_eq!(agent.wait(3).len(), 3);
    // A list that cannot be read might have named this server.
    let mut command = place.preloaded("curl");
    command.env("MMTLS_EXEMPT", "*");
    assert!(curl(&mut command, &server.url()).status.success());
    assert_eq!(agent.wait(3).len(), 3);
}

#[test]
fn refuses_to_share_server_sessions_unless_asked() {
    let place = Place::new();
    let agent = place.agent();
    let quiet = place.server_of(place.preloaded("openssl"), "-www");
    assert!(curl(&mut place.plain("curl"), &quiet.url()).status.success());
    drop(quiet);
    let mut command = place.preloaded("openssl");
    command.env("MMTLS_SHARE_SERVER", "1");
    let sharing = place.server_of(command, "-www");
    assert!(curl(&mut place.plain("curl"), &sharing.url()).status.success());
    let got = agent.wait(2);
    assert_eq!(got.len(), 2);
    for got in got {
        let Got::Secret { role, flow: Some(flow), .. } = got else {
            panic!("{got:?}");
        };
        assert_eq!((role, flow.server().port()), (Role::Server, sharing.port));
    }
}

#[test]
fn refuses_to_change_what_the_host_does() {
    let place = Place::new();
    let server = place.server("-www");
    let closed = "https://localhost:1/";
    for url in [closed, &server.url()] {
        for verify in [true, false] {
            let run = |mut command: Command| {
                command.args(["-sS", "--noproxy", "*", "-o", "/dev/null"]);
                if !verify {
                    command.arg("-k");
                }
                let output = command.arg(url).output().unwrap();
                // curl says how many milliseconds it tried.
                let mut said = String::from_utf8(output.stderr).unwrap();
                said.retain(|letter| !letter.is_ascii_digit());
                (output.status.code(), output.stdout, said)
            };
            // No agent listens at that path, and nobody ever does.
            let plain = run(place.plain("curl"));
            assert_eq!(run(place.preloaded("curl")), plain, "{url} {verify}");
            let mut unset = place.preloaded("curl");
            unset.env_remove("MMTLS_AGENT");
            assert_eq!(run(unset), plain, "{url} {verify}");
        }
    }
}

#[test]
fn accepts_an_agent_that_starts_late() {
    let place = Place::new();
    let server = place.server("");
    let mut client = place
        .preloaded("openssl")
        .args(["s_client", "-connect", &format!("127.0.0.1:{}", server.port)])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = client.stdin.take().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let agent = place.agent();
    // The next callback delivers what waited.
    input.write_all(b"k\n").unwrap();
    let kinds: Vec<_> = agent.wait(3).iter().map(Got::kind).collect();
    let expected =
        [SecretKind::ServerTraffic0, SecretKind::ClientTraffic0, SecretKind::ClientTrafficN];
    assert_eq!(kinds, expected.map(Some));
    input.write_all(b"Q\n").unwrap();
    assert!(client.wait().unwrap().success());
}

#[test]
fn refuses_to_hide_the_hosts_callback() {
    if !installed("cc") {
        return;
    }
    let place = Place::new();
    let _agent = place.agent();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/host.c");
    let built = place
        .plain("cc")
        .args(["-O1", "-Wall", "-o", "host", source, "-l:libssl.so.3", "-l:libcrypto.so.3"])
        .output()
        .unwrap();
    if !built.status.success() {
        eprintln!("SKIPPED: cannot link with libssl.so.3: {built:?}");
        return;
    }
    let program = place.path("host");
    let output = place.preloaded(program.to_str().unwrap()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    // Where the dynamic linker found libssl, for a second copy of it.
    let maps = place.plain("ldd").arg(&program).output().unwrap();
    let maps = String::from_utf8_lossy(&maps.stdout).into_owned();
    let line = maps.lines().find(|line| line.contains("libssl.so.3 =>")).unwrap();
    // One more, and then more than there are slots for.
    for count in [1, 4] {
        let mut command = place.preloaded(program.to_str().unwrap());
        for number in 0..count {
            let copy = place.path(&format!("libssl.so.3.{number}"));
            std::fs::copy(line.split_whitespace().nth(2).unwrap(), &copy).unwrap();
            command.arg(&copy);
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

/// Compiles a C program or library; `false` without a compiler.
fn compiled(place: &Place, source: &str, arguments: &str) -> bool {
    if !installed("cc") {
        return false;
    }
    std::fs::write(place.path("source.c"), source).unwrap();
    let mut command = place.plain("cc");
    let output = command.arg("source.c").args(arguments.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    true
}

#[test]
fn accepts_a_relative_of_openssl_without_sharing_its_keys() {
    let place = Place::new();
    let agent = place.agent();
    // As AWS-LC has it: all the names that sharing needs, but the index is asked for with a
    // pointer to a class, which is written to.
    let mut library = String::from(
        "static int method, context;
         const void *TLS_method(void) { return &method; }
         void *SSL_CTX_new(const void *m) { return m == &method ? &context : 0; }
         const char *OpenSSL_version(int which) { return \"AWS-LC 1.0 (like OpenSSL 1.1.1)\"; }
         int CRYPTO_get_ex_new_index(int *class, int *out) { return *out = ++*class; }\n",
    );
    for name in "SSL_CTX_set_keylog_callback SSL_CTX_get_keylog_callback SSL_get_server_random \
                 SSL_get_pending_cipher SSL_get_current_cipher SSL_CIPHER_get_id SSL_version \
                 SSL_get_servername SSL_get_rfd SSL_get_SSL_CTX SSL_is_server SSL_CTX_get_ex_data \
                 SSL_CTX_set_ex_data SSL_session_reused SSL_get_rbio"
        .split_whitespace()
    {
        library.push_str(&format!("void *{name}(void) {{ return 0; }}\n"));
    }
    let program = "const void *TLS_method(void); void *SSL_CTX_new(const void *);
                   int main(void) { return SSL_CTX_new(TLS_method()) ? 7 : 1; }";
    if !compiled(&place, &library, "-shared -fPIC -w -o librelative.so")
        || !compiled(&place, program, "-o program -L. -lrelative -Wl,-rpath,$ORIGIN")
    {
        return;
    }
    let path = place.path("program");
    let status = place.preloaded(path.to_str().unwrap()).status().unwrap();
    assert_eq!(status.code(), Some(7), "{status:?}");
    assert!(agent.wait(0).is_empty());
}

#[test]
fn accepts_word_of_freed_contexts_where_nothing_is_shared() {
    let place = Place::new();
    let library = "static int method, context, watched;
         const void *TLS_method(void) { return &method; }
         void *SSL_CTX_new(const void *m) { return m == &method ? &context : 0; }
         const char *OpenSSL_version(int which) { return \"OpenSSL 1.1.0\"; }
         int CRYPTO_get_ex_new_index(int a, long b, void *c, void *d, void *e, void *f) {
             return watched += f && a == 1;
         }
         int times_watched(void) { return watched; }\n";
    // The contexts of the first library are not noted: it is left alone.
    let program = "#include <dlfcn.h>
         const void *TLS_method(void); void *SSL_CTX_new(const void *); int times_watched(void);
         int main(void) {
             void *other = dlopen(\"./libother.so\", RTLD_NOW | RTLD_LOCAL);
             if (!other) return 1;
             const void *(*method)(void) = (const void *(*)(void))dlsym(other, \"TLS_method\");
             int (*watched)(void) = (int (*)(void))dlsym(other, \"times_watched\");
             for (int round = 0; round < 3; round++)
                 if (!SSL_CTX_new(TLS_method()) || !SSL_CTX_new(method())) return 2;
             return 10 + 10 * times_watched() + watched();
         }";
    if !compiled(&place, library, "-shared -fPIC -w -o libfirst.so")
        || !compiled(&place, library, "-shared -fPIC -w -o libother.so")
        || !compiled(&place, program, "-w -o program -L. -lfirst -ldl -Wl,-rpath,$ORIGIN")
    {
        return;
    }
    let mut command = place.preloaded(place.path("program").to_str().unwrap());
    let status = command.current_dir(place.path(".")).status().unwrap();
    assert_eq!(status.code(), Some(11), "{status:?}");
}

/// A libssl that shares one secret whenever it is told to.
const FAKE_LIBSSL: &str = r#"
    #include <stdio.h>
    #include <stdlib.h>
    #include <string.h>
    typedef void (*keylog)(const void *, const char *);
    static int method, context, bio, fd;
    static keylog callback;
    static void *extra;
    const void *TLS_method(void) { return &method; }
    void *SSL_CTX_new(const void *m) { return m == &method ? &context : 0; }
    const char *OpenSSL_version(int which) { return "OpenSSL 3.9.9"; }
    int CRYPTO_get_ex_new_index(int a, long b, void *c, void *d, void *e, void *f) { return 1; }
    int SSL_CTX_set_ex_data(void *c, int index, void *data) { extra = data; return 1; }
    void *SSL_CTX_get_ex_data(const void *c, int index) { return extra; }
    void SSL_CTX_set_keylog_callback(void *c, keylog k) { callback = k; }
    keylog SSL_CTX_get_keylog_callback(const void *c) { return callback; }
    size_t SSL_get_server_random(const void *s, unsigned char *out, size_t size) {
        memset(out, 2, 32);
        return 32;
    }
    const void *SSL_get_pending_cipher(const void *s) { return &method; }
    const void *SSL_get_current_cipher(const void *s) { return &method; }
    unsigned SSL_CIPHER_get_id(const void *c) { return 0x03001301; }
    int SSL_version(const void *s) { return 0x0304; }
    const char *SSL_get_servername(const void *s, int type) { return 0; }
    void *SSL_get_rbio(const void *s) { return fd < 0 ? 0 : &bio; }
    /* As OpenSSL's, it is not to be called without a BIO: it would leave an error behind. */
    int SSL_get_rfd(const void *s) { if (fd < 0) abort(); return fd; }
    const void *SSL_get_SSL_CTX(const void *s) { return &context; }
    int SSL_is_server(const void *s) { return 0; }
    int SSL_session_reused(const void *s) { return 0; }
    void share(int number, int descriptor) {
        char line[256];
        fd = descriptor;
        sprintf(line, "CLIENT_TRAFFIC_SECRET_0 %064x %064x", number, 7);
        callback(&context, line);
    }"#;

#[test]
fn accepts_sessions_without_a_descriptor_and_refuses_those_of_datagrams() {
    let place = Place::new();
    let agent = place.agent();
    let program = "#include <sys/socket.h>
        const void *TLS_method(void); void *SSL_CTX_new(const void *); void share(int, int);
        int main(void) {
            SSL_CTX_new(TLS_method());
            share(1, -1);
            share(2, socket(AF_INET, SOCK_DGRAM, 0));
            share(3, socket(AF_INET, SOCK_STREAM, 0));
            return 7;
        }";
    if !compiled(&place, FAKE_LIBSSL, "-shared -fPIC -w -o libfake.so")
        || !compiled(&place, program, "-o program -L. -lfake -Wl,-rpath,$ORIGIN")
    {
        return;
    }
    let path = place.path("program");
    let status = place.preloaded(path.to_str().unwrap()).status().unwrap();
    assert_eq!(status.code(), Some(7), "{status:?}");
    let got = agent.wait(2);
    let shared: Vec<_> = got.iter().map(|got| &got.client_random()[63..]).collect();
    assert_eq!(shared, ["1", "3"]);
}

#[test]
fn accepts_a_context_of_a_constructor_that_runs_first() {
    let place = Place::new();
    let agent = place.agent();
    // The loader runs a dependency's constructors before those of a preloaded library.
    let early = "const void *TLS_method(void); void *SSL_CTX_new(const void *);
        __attribute__((constructor)) static void make(void) { SSL_CTX_new(TLS_method()); }
        void early(void) {}";
    let program = "void early(void), share(int, int);
        int main(void) { early(); share(1, -1); return 7; }";
    let link = "-L. -lfake -Wl,-rpath,$ORIGIN";
    if !compiled(&place, FAKE_LIBSSL, "-shared -fPIC -w -o libfake.so")
        || !compiled(&place, early, &format!("-shared -fPIC -o libearly.so {link}"))
        || !compiled(&place, program, &format!("-o program -L. -learly {link}"))
    {
        return;
    }
    let path = place.path("program");
    let status = place.preloaded(path.to_str().unwrap()).status().unwrap();
    assert_eq!(status.code(), Some(7), "{status:?}");
    assert_eq!(agent.wait(1).len(), 1);
}

#[test]
fn refuses_to_share_resumed_sessions_that_hide_an_exempt_name() {
    let place = Place::new();
    let agent = place.agent();
    let mut command = place.preloaded("openssl");
    command.env("MMTLS_SHARE_SERVER", "1").env("MMTLS_EXEMPT", "private.example");
    // Without a callback for names the server does not acknowledge any.
    let server = place.server_of(command, "-www");
    for session in ["-sess_out", "-sess_in"] {
        let output = place
            .plain("openssl")
            .args(["s_client", "-tls1_2", "-servername", "private.example", session, "session"])
            .args(["-connect", &format!("127.0.0.1:{}", server.port)])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said.contains("Reused, TLSv1.2"), session == "-sess_in", "{said}");
    }
    let got = agent.wait(2);
    assert!(matches!(&got[..], [Got::Exempt { .. }, Got::Exempt { .. }]), "{got:?}");
}

#[test]
fn accepts_threads_that_are_cancelled_in_a_handshake() {
    let place = Place::new();
    let agent = place.agent();
    // Both ends in memory: nothing in there is a cancellation point, but for our socket.
    let program = r#"
        #include <pthread.h>
        #include <stdio.h>
        void *SSL_CTX_new(const void *), *SSL_new(void *);
        const void *TLS_client_method(void), *TLS_server_method(void);
        int SSL_CTX_use_certificate_file(void *, const char *, int);
        int SSL_CTX_use_PrivateKey_file(void *, const char *, int);
        int BIO_new_bio_pair(void **, long, void **, long);
        void SSL_set_bio(void *, void *, void *), SSL_set_connect_state(void *);
        void SSL_set_accept_state(void *);
        int SSL_do_handshake(void *);
        static void *run(void *unused) {
            void *client = SSL_new(SSL_CTX_new(TLS_client_method())), *a, *b;
            void *context = SSL_CTX_new(TLS_server_method());
            SSL_CTX_use_certificate_file(context, "cert.pem", 1);
            SSL_CTX_use_PrivateKey_file(context, "key.pem", 1);
            void *server = SSL_new(context);
            BIO_new_bio_pair(&a, 0, &b, 0);
            SSL_set_bio(client, a, a);
            SSL_set_bio(server, b, b);
            SSL_set_connect_state(client);
            SSL_set_accept_state(server);
            pthread_cancel(pthread_self());
            for (int i = 0; i < 10; i++) { SSL_do_handshake(client); SSL_do_handshake(server); }
            pthread_testcancel();
            return 0;
        }
        int main(void) {
            pthread_t thread;
            void *result;
            pthread_create(&thread, 0, run, 0);
            pthread_join(thread, &result);
            return result == PTHREAD_CANCELED ? 7 : 1;
        }"#;
    if !compiled(&place, program, "-w -o program -pthread -l:libssl.so.3 -l:libcrypto.so.3") {
        return;
    }
    let path = place.path("program");
    let plain = place.plain(path.to_str().unwrap()).status().unwrap();
    assert_eq!(plain.code(), Some(7), "without the library: {plain:?}");
    let status = place.preloaded(path.to_str().unwrap()).status().unwrap();
    assert_eq!(status.code(), Some(7), "{status:?}");
    // The client's two secrets were shared, by a thread that was to end.
    assert_eq!(agent.wait(2).len(), 2);
}
