// Endpoint on Java's JSSE. The contract is in ../README.md. JSSE has no key log.

import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.Security;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import javax.net.ssl.KeyManager;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SNIHostName;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLServerSocket;
import javax.net.ssl.SSLSocket;
import javax.net.ssl.TrustManager;
import javax.net.ssl.X509TrustManager;

public final class Endpoint {
    private static boolean isServer;
    private static final Map<String, String> arguments = new HashMap<>();

    private static int number(String name, int otherwise) {
        String value = arguments.get(name);
        return value == null ? otherwise : Integer.parseInt(value);
    }

    private static RuntimeException fail(String text) {
        System.err.println((isServer ? "server: " : "client: ") + text);
        System.exit(1);
        return new RuntimeException(text);
    }

    /** Trusts everybody: the certificates are the testbed's. */
    private static final class Everybody implements X509TrustManager {
        public void checkClientTrusted(X509Certificate[] chain, String type) {}

        public void checkServerTrusted(X509Certificate[] chain, String type) {}

        public X509Certificate[] getAcceptedIssuers() {
            return new X509Certificate[0];
        }
    }

    private static KeyManager[] keys() throws Exception {
        if (!arguments.containsKey("cert")) {
            return null;
        }
        Certificate certificate;
        try (InputStream in = Files.newInputStream(Path.of(arguments.get("cert")))) {
            certificate = CertificateFactory.getInstance("X.509").generateCertificate(in);
        }
        String pem = Files.readString(Path.of(arguments.get("key")));
        byte[] der = Base64.getMimeDecoder().decode(pem.replaceAll("-----[^-]*-----", ""));
        String algorithm = certificate.getPublicKey().getAlgorithm();
        PrivateKey key =
                KeyFactory.getInstance(algorithm).generatePrivate(new PKCS8EncodedKeySpec(der));
        KeyStore store = KeyStore.getInstance("PKCS12");
        store.load(null, null);
        store.setKeyEntry("own", key, new char[0], new Certificate[] {certificate});
        KeyManagerFactory factory = KeyManagerFactory.getInstance("PKIX");
        factory.init(store, new char[0]);
        return factory.getKeyManagers();
    }

    private static SSLParameters parameters(SSLParameters parameters) {
        parameters.setProtocols(new String[] {"TLSv" + arguments.get("version")});
        if (arguments.containsKey("suite")) {
            parameters.setCipherSuites(new String[] {arguments.get("suite")});
        }
        if (isServer && number("auth", 0) != 0) {
            parameters.setNeedClientAuth(true);
        }
        if (!isServer) {
            parameters.setServerNames(List.of(new SNIHostName("server.test")));
        }
        if (number("mfl", 0) > 0) {
            parameters.setMaximumPacketSize(number("mfl", 0) + 5);
        }
        return parameters;
    }

    private static byte[] part(byte[] all, int round, int rounds) {
        int from = (int) ((long) all.length * round / rounds);
        int to = (int) ((long) all.length * (round + 1) / rounds);
        return java.util.Arrays.copyOfRange(all, from, to);
    }

    private static void send(OutputStream out, byte[] part) throws Exception {
        int chunk = number("chunk", 0) > 0 ? number("chunk", 0) : Math.max(part.length, 1);
        for (int at = 0; at < part.length; at += chunk) {
            out.write(part, at, Math.min(chunk, part.length - at));
            out.flush();
        }
    }

    private static void receive(InputStream in, ByteArrayOutputStream received, int length)
            throws Exception {
        byte[] buffer = new byte[1 << 16];
        while (received.size() < length) {
            int count = in.read(buffer);
            if (count < 0) {
                throw fail("the peer ended after " + received.size() + " bytes");
            }
            received.write(buffer, 0, count);
        }
    }

    private static void exchange(SSLSocket socket, int index) throws Exception {
        socket.setSoTimeout(40000);
        byte[] payload = Files.readAllBytes(Path.of(arguments.get("send") + "." + index));
        socket.startHandshake();
        int expected = number("expect", 0);
        int rounds = number("rounds", 1);
        ByteArrayOutputStream received = new ByteArrayOutputStream();
        InputStream in = socket.getInputStream();
        OutputStream out = socket.getOutputStream();
        for (int round = 0; round < rounds; round++) {
            int due = (int) ((long) expected * (round + 1) / rounds);
            if (isServer) {
                receive(in, received, due);
            }
            if (!isServer && round > 0 && number("reneg", 0) != 0) {
                socket.startHandshake();
            }
            send(out, part(payload, round, rounds));
            if (!isServer) {
                receive(in, received, due);
            }
        }
        // The client closes first, and each side reads to the end.
        if (!isServer) {
            socket.shutdownOutput();
        }
        if (in.read() >= 0) {
            throw fail("more bytes than expected");
        }
        socket.close();
        Files.write(Path.of(arguments.get("received") + "." + index), received.toByteArray());
    }

    /** Takes connections until it is ended, all at a time. One that fails is nobody else's concern. */
    private static void serveForever(SSLServerSocket listener) throws Exception {
        byte[] payload = Files.readAllBytes(Path.of(arguments.get("send") + ".0"));
        while (true) {
            SSLSocket socket = (SSLSocket) listener.accept();
            Thread thread =
                    new Thread(
                            () -> {
                                try (socket) {
                                    socket.setSoTimeout(90000);
                                    byte[] buffer = new byte[4096];
                                    int count = socket.getInputStream().read(buffer);
                                    if (count > 0) {
                                        String text = new String(buffer, 0, count, "US-ASCII");
                                        System.out.println("request " + text.split("\r")[0]);
                                        socket.getOutputStream().write(payload);
                                        socket.getOutputStream().flush();
                                    }
                                } catch (Exception error) {
                                    // The peer's doing, and what the peer sees of it is what counts.
                                }
                            });
            thread.start();
        }
    }

    public static void main(String[] values) throws Exception {
        if (values[0].equals("version")) {
            System.out.println(
                    System.getProperty("java.vm.name") + " " + System.getProperty("java.vm.version"));
            return;
        }
        isServer = values[0].equals("server");
        for (int i = 1; i < values.length; i++) {
            String[] pair = values[i].split("=", 2);
            arguments.put(pair[0], pair[1]);
        }
        // Old suites are part of the matrix. All of this must be set before JSSE is loaded.
        Security.setProperty("jdk.tls.disabledAlgorithms", "");
        // JSSE's own updates always ask for the peer's too.
        if ("request".equals(arguments.get("keyupdate"))) {
            Security.setProperty(
                    "jdk.tls.keyLimits",
                    "AES/GCM/NoPadding KeyUpdate 4096, ChaCha20-Poly1305 KeyUpdate 4096");
        }
        if (arguments.containsKey("groups")) {
            System.setProperty(
                    "jdk.tls.namedGroups",
                    arguments.get("groups").replace("P-256", "secp256r1")
                            .replace("P-384", "secp384r1").replace(':', ','));
        }
        if ("id".equals(arguments.get("resume"))) {
            System.setProperty("jdk.tls.client.enableSessionTicketExtension", "false");
            System.setProperty("jdk.tls.server.enableSessionTicketExtension", "false");
        }
        if (number("ems", 1) == 0) {
            System.setProperty("jdk.tls.useExtendedMasterSecret", "false");
        }
        if (number("mfl", 0) > 0) {
            System.setProperty("jsse.enableMFLNExtension", "true");
        }
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(keys(), new TrustManager[] {new Everybody()}, null);
        int connections = number("connections", 1);
        int port = number("port", 0);
        String host = arguments.get("host");
        if (isServer) {
            InetAddress address = InetAddress.getByName(host);
            SSLServerSocket listener = (SSLServerSocket)
                    context.getServerSocketFactory().createServerSocket(port, number("forever", 0) != 0 ? 4096 : 8, address);
            listener.setSSLParameters(parameters(listener.getSSLParameters()));
            System.out.println("ready");
            if (number("forever", 0) != 0) {
                serveForever(listener);
            }
            for (int i = 0; i < connections; i++) {
                exchange((SSLSocket) listener.accept(), i);
            }
            return;
        }
        for (int i = 0; i < connections; i++) {
            SSLSocket socket = (SSLSocket) context.getSocketFactory().createSocket(host, port);
            socket.setSSLParameters(parameters(socket.getSSLParameters()));
            exchange(socket, i);
        }
    }
}
