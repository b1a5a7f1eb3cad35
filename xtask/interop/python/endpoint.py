"""Endpoint on Python's ssl module. The contract is in ../README.md."""

import socket
import ssl
import sys

# Of OpenSSL; the module does not name them all.
NO_EXTENDED_MASTER_SECRET = 1 << 0
NO_ENCRYPT_THEN_MAC = 1 << 19
CURVES = {"P-256": "prime256v1", "P-384": "secp384r1"}

role = sys.argv[1]
is_server = role == "server"
arguments = dict(argument.split("=", 1) for argument in sys.argv[2:])


def number(name, otherwise=0):
    return int(arguments.get(name, otherwise))


def make_context():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    old = arguments["version"] == "1.2"
    version = ssl.TLSVersion.TLSv1_2 if old else ssl.TLSVersion.TLSv1_3
    context.minimum_version = context.maximum_version = version
    context.check_hostname = False
    context.load_verify_locations(arguments["ca"])
    context.verify_mode = ssl.CERT_NONE
    # The suites of TLS 1.3 cannot be chosen here.
    if "suite" in arguments and old:
        context.set_ciphers(arguments["suite"] + ":@SECLEVEL=0")
    if "groups" in arguments:
        context.set_ecdh_curve(CURVES[arguments["groups"]])
    if "cert" in arguments:
        context.load_cert_chain(arguments["cert"], arguments["key"])
    if is_server and number("auth"):
        context.verify_mode = ssl.CERT_REQUIRED
    if number("pha"):
        context.post_handshake_auth = True
        if is_server:
            context.verify_mode = ssl.CERT_REQUIRED
    if arguments.get("resume") == "id":
        context.options |= ssl.OP_NO_TICKET
    if number("ems", 1) == 0:
        context.options |= NO_EXTENDED_MASTER_SECRET
    if number("etm", 1) == 0:
        context.options |= NO_ENCRYPT_THEN_MAC
    if "keylog" in arguments:
        context.keylog_filename = arguments["keylog"]
    return context


class Connection:
    def __init__(self, tls, index):
        self.tls = tls
        self.received = open(f"{arguments['received']}.{index}", "wb")
        self.length = 0
        with open(f"{arguments['send']}.{index}", "rb") as file:
            self.payload = file.read()

    def read(self):
        data = self.tls.recv(1 << 16)
        self.received.write(data)
        self.length += len(data)
        return data

    def send_part(self, round, rounds):
        part = self.payload[len(self.payload) * round // rounds : len(self.payload) * (round + 1) // rounds]
        chunk = number("chunk") or len(part)
        for at in range(0, len(part), max(chunk, 1)):
            self.tls.sendall(part[at : at + chunk])

    def receive_part(self, round, rounds):
        expected = number("expect") * (round + 1) // rounds
        while self.length < expected:
            if not self.read():
                sys.exit(f"{role}: the peer ended after {self.length} bytes")

    def exchange(self):
        rounds = number("rounds", 1)
        for round in range(rounds):
            if is_server:
                self.receive_part(round, rounds)
                if round > 0 and number("pha"):
                    self.tls.verify_client_post_handshake()
            self.send_part(round, rounds)
            if not is_server:
                self.receive_part(round, rounds)
        if not is_server:
            # Asked now: tickets have come, and after unwrap() there is no session any more.
            self.session, self.session_reused = self.tls.session, self.tls.session_reused
            # The module's unwrap() also waits for the peer's close_notify.
            self.tls.unwrap()
        elif self.read():
            sys.exit("server: more bytes than expected")
        self.received.close()


def main():
    context = make_context()
    address = (arguments["host"], number("port"))
    connections = number("connections", 1)
    if is_server:
        listener = socket.create_server(address)
        print("ready", flush=True)
        for index in range(connections):
            raw, _ = listener.accept()
            with context.wrap_socket(raw, server_side=True, suppress_ragged_eofs=False) as tls:
                Connection(tls, index).exchange()
                try:
                    tls.unwrap()
                except (ssl.SSLError, OSError):
                    pass  # The client may be gone; it was the first to close.
        return
    session = None
    for index in range(connections):
        raw = socket.create_connection(address)
        raw.settimeout(40)
        reused = session if "resume" in arguments else None
        with context.wrap_socket(raw, server_hostname="server.test", session=reused) as tls:
            connection = Connection(tls, index)
            connection.exchange()
            if reused and not connection.session_reused:
                sys.exit("client: not resumed")
            session = connection.session


if role == "version":
    print(f"Python {sys.version.split()[0]}, {ssl.OPENSSL_VERSION}")
else:
    main()
