"""A client of `xtask soak`: fetches until a file says stop, checks all content by its hash, and writes a line of JSON for
each transfer to the file of results, with its error if there was one.

Refuses to try again: what fails is told, with the connection's own end. What should not be possible ends the program
with status 1.
"""

import hashlib
import json
import os
import random
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import traceback

settings = json.loads(sys.argv[1])
kind, source, server, stop = (settings[name] for name in ("kind", "source", "server", "stop"))
# Of each name served: bytes, SHA-256, and how often it is asked for.
objects = settings["objects"]
PORT = 443
# Of each operation: a monitor that is away is back sooner, and TCP has repeated itself by then.
LIMIT = 60
# Of programs: what is longer is done by more of them.
LONGEST_FETCH = 150
# What TLS says where bytes are not those that were sent: no reset, loss or pause makes it say so.
DAMAGE = ("bad record mac", "bad_record_mac", "record layer failure", "decryption failed", "decrypt error",
          "wrong version number", "certificate verify failed")

results = os.open(settings["results"], os.O_WRONLY | os.O_APPEND)


def stopping():
    return os.path.exists(stop)


def rest(seconds):
    end = time.time() + seconds
    while time.time() < end and not stopping():
        time.sleep(0.1)


def tell(begun, end, what, count, error=None, corrupt=False, **more):
    """`end` is of the connection: its address and port, and when it began. `corrupt` is what no end of a connection
    explains."""
    local, connected = end
    line = {"kind": kind, "connected": connected, "begun": begun, "ended": time.time(), "local": local, "what": what,
            "bytes": count, "corrupt": corrupt}
    line.update(more, error=error)
    # Appended in one piece.
    os.write(results, (json.dumps(line) + "\n").encode())


def is_damage(said):
    return any(it in said.lower() for it in DAMAGE)


def choose():
    weights = [entry["weight"] for entry in objects.values()]
    return random.choices(list(objects), weights)[0]


class Connection:
    def __init__(self):
        context = ssl.create_default_context(cafile=settings["ca"])
        if random.random() < 0.4:
            context.maximum_version = ssl.TLSVersion.TLSv1_2
        self.local, self.held, self.connected = source + ":0", b"", time.time()
        self.raw = socket.socket()
        try:
            self.raw.settimeout(LIMIT)
            # Tells the port before anybody answers; the kernel could share one between sources otherwise.
            self.raw.bind((source, 0))
            self.local = "%s:%d" % self.raw.getsockname()
            self.raw.connect((server, PORT))
            self.raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.tls = context.wrap_socket(self.raw, server_hostname="server.test")
        except (OSError, ValueError) as error:
            self.raw.close()
            raise Failure(self.end(), error) from error

    def end(self):
        return self.local, self.connected

    def receive(self):
        data = self.tls.recv(65536)
        if not data:
            raise OSError("closed before the end")
        return data

    def head(self):
        while b"\r\n\r\n" not in self.held:
            self.held += self.receive()
        head, self.held = self.held.split(b"\r\n\r\n", 1)
        return head.decode("latin-1").lower()

    def exactly(self, count):
        while len(self.held) < count:
            self.held += self.receive()
        data, self.held = self.held[:count], self.held[count:]
        return data

    def body(self, head, rate=None, at_most=None):
        """The hash of a body whose length is stated."""
        length = int(head.split("content-length:")[1].split("\r\n")[0])
        digest, left = hashlib.sha256(), length
        while left and (at_most is None or length - left < at_most):
            data = (self.held or self.receive())[:left]
            self.held = self.held[len(data):]
            digest.update(data)
            left -= len(data)
            if rate:
                time.sleep(len(data) / rate)
        return length - left, digest.hexdigest()

    def close(self, abort=False):
        if abort:
            # A RST in place of a FIN.
            self.raw = None
            self.tls.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.tls.close()


class Failure(Exception):
    """A connection that did not come about."""

    def __init__(self, end, error):
        super().__init__(f"{type(error).__name__}: {error}")
        self.end = end


def request(name, method="GET", more=""):
    return f"{method} /{name} HTTP/1.1\r\nHost: server.test\r\n{more}\r\n".encode()


def get(connection, name, **how):
    begun, count = time.time(), 0
    try:
        connection.tls.sendall(request(name))
        head = connection.head()
        count, digest = connection.body(head, **how)
        if how.get("at_most") is None and (" 200 " not in head or digest != objects[name]["sha256"]):
            raise ValueError("other content: " + head.split("\r\n")[0])
        tell(begun, connection.end(), name, count, version=connection.tls.version())
        return "connection: close" not in head
    except (OSError, ValueError, IndexError) as error:
        raise Failed(begun, connection.end(), name, count, error) from error


class Failed(Exception):
    """A transfer that has begun."""

    def tell(self):
        begun, end, what, count, error = self.args
        # A connection that is cut gives an OSError; the others are raised for an answer that is not the server's.
        corrupt = not isinstance(error, OSError) or is_damage(str(error))
        tell(begun, end, what, count, f"{type(error).__name__}: {error}", corrupt)


def post(connection, size):
    """Bytes to the server, which answers with their hash."""
    begun, data = time.time(), os.urandom(size)
    try:
        more = f"Content-Length: {size}\r\nContent-Type: application/octet-stream\r\n"
        connection.tls.sendall(request("hash", "POST", more))
        connection.tls.sendall(data)
        head = connection.head()
        length = int(head.split("content-length:")[1].split("\r\n")[0])
        if connection.exactly(length).decode() != hashlib.sha256(data).hexdigest():
            raise ValueError("the server got other content: " + head.split("\r\n")[0])
        tell(begun, connection.end(), "upload", size, version=connection.tls.version())
    except (OSError, ValueError, IndexError) as error:
        raise Failed(begun, connection.end(), "upload", size, error) from error


def short():
    """A connection for each transfer."""
    connection = Connection()
    draw = random.random()
    if draw < 0.03:
        get(connection, "10m", at_most=random.randrange(2_000_000))
        return connection.close(abort=True)
    if draw < 0.15:
        post(connection, random.choice([1000, 20_000, 300_000, 2_000_000]))
    else:
        get(connection, choose())
    connection.close()
    rest(random.random() * settings["pause"])


def persistent():
    """Many transfers, and pauses, on one connection."""
    connection = Connection()
    for _ in range(random.randrange(20, 300)):
        if stopping():
            break
        if random.random() < 0.1:
            post(connection, random.choice([1000, 50_000]))
        elif not get(connection, choose()):
            break
        rest(random.random() * settings["pause"] * random.choice([1, 1, 1, 10]))
    connection.close()


def long():
    """Ten megabytes in about a minute: what a slow client does not take waits in the server."""
    connection = Connection()
    get(connection, "10m", rate=objects["10m"]["bytes"] / 55)
    connection.close()


def websocket():
    """Messages that come back, for about a minute."""
    connection = Connection()
    begun, count = time.time(), 0
    try:
        more = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n" \
               "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        connection.tls.sendall(request("websocket", more=more))
        head = connection.head()
        if " 101 " not in head:
            raise ValueError(head.split("\r\n")[0])
        end = begun + random.randrange(50, 80)
        while time.time() < end and not stopping():
            data = os.urandom(random.choice([10, 100, 1000, 30_000]))
            connection.tls.sendall(frame(2, data))
            if answer(connection) != data:
                raise ValueError("another message came back")
            count += len(data)
            rest(0.3)
        connection.tls.sendall(frame(8, struct.pack(">H", 1000)))
        answer(connection)
        tell(begun, connection.end(), "websocket", count, version=connection.tls.version())
    except (OSError, ValueError) as error:
        raise Failed(begun, connection.end(), "websocket", count, error) from error
    connection.close()


def frame(opcode, data):
    mask = os.urandom(4)
    if len(data) < 126:
        head = struct.pack(">BB", 0x80 | opcode, 0x80 | len(data))
    else:
        head = struct.pack(">BBH", 0x80 | opcode, 0x80 | 126, len(data))
    mask_all = (mask * (len(data) // 4 + 1))[:len(data)]
    number = int.from_bytes(data, "big") ^ int.from_bytes(mask_all, "big")
    return head + mask + number.to_bytes(len(data), "big")


def answer(connection):
    length = connection.exactly(2)[1] & 0x7F
    if length == 126:
        length = struct.unpack(">H", connection.exactly(2))[0]
    return connection.exactly(length)


def http2():
    """Several transfers at a time on one connection, by curl."""
    names = [choose() for _ in range(random.randrange(2, 12))]
    begun = time.time()
    command = ["curl", "--http2", "-sS", "-Z", "--parallel-max", "6", "--interface", source, "--cacert",
               settings["ca"], "--resolve", f"server.test:{PORT}:{server}", "--max-time", str(LONGEST_FETCH),
               "-w", "%{json}\\n", *(["--tls-max", "1.2"] if random.random() < 0.4 else [])]
    # A directory of its own for what comes.
    place = f"{stop}.{threading.get_ident()}"
    os.makedirs(place, exist_ok=True)
    for number, name in enumerate(names):
        command += ["-o", f"{place}/{number}", f"https://server.test/{name}?{number}"]
    done = subprocess.run(command, capture_output=True, text=True)
    told = set()
    for line in done.stdout.splitlines():
        try:
            it = json.loads(line)
        except ValueError:
            continue
        name, number = it["url"].rsplit("/", 1)[1].split("?")
        told.add(int(number))
        path, error = f"{place}/{number}", it.get("errormsg")
        corrupt = is_damage(error or "")
        if not error:
            with open(path, "rb") as file:
                if hashlib.sha256(file.read()).hexdigest() != objects[name]["sha256"]:
                    error, corrupt = f"other content: status {it['response_code']}", True
        end = f"{source}:{it['local_port']}", begun
        tell(begun, end, name, it["size_download"], error, corrupt, version="HTTP/" + it["http_version"])
    for number in set(range(len(names))) - told:
        error = f"curl: status {done.returncode}: {done.stderr.strip()}"
        tell(begun, (source + ":0", begun), names[number], 0, error, is_damage(error))
    for number in range(len(names)):
        if os.path.exists(f"{place}/{number}"):
            os.remove(f"{place}/{number}")
    os.rmdir(place)
    if any(line for line in done.stderr.splitlines()):
        time.sleep(0.5)
    rest(random.random() * settings["pause"])


ACTIONS = {"short": short, "persistent": persistent, "long": long, "websocket": websocket, "http2": http2}


def work():
    while not stopping():
        begun = time.time()
        try:
            ACTIONS[kind]()
        except Failed as failed:
            failed.tell()
            time.sleep(0.5)
        except Failure as failure:
            tell(begun, failure.end, "connect", 0, str(failure), is_damage(str(failure)))
            time.sleep(0.5)
        except Exception as error:
            # A thread that ends alone would leave the load of the others.
            try:
                traceback.print_exc()
                sys.stderr.flush()
                tell(begun, (source + ":0", begun), "program", 0, f"{type(error).__name__}: {error}", True)
            finally:
                os._exit(1)


def main():
    threads = [threading.Thread(target=work) for _ in range(settings["threads"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
