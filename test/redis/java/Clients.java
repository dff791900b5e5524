// Jedis and Lettuce against a node: see clients_test.go, which says what a client has to show.

import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisFuture;
import io.lettuce.core.RedisURI;
import io.lettuce.core.SslOptions;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.CommandOutput;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import io.lettuce.core.protocol.ProtocolVersion;
import java.io.File;
import java.io.FileInputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.TimeUnit;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.Connection;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.util.KeyValue;
import redis.clients.jedis.Pipeline;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.Response;
import redis.clients.jedis.commands.ProtocolCommand;
import redis.clients.jedis.util.SafeEncoder;

public class Clients {
	/** Library is a client: a command is its words. */
	interface Library extends AutoCloseable {
		Object call(Object... words) throws Exception;

		List<Object> pipeline(List<Object[]> list) throws Exception;

		void close();
	}

	static String host(String kind) {
		String address = System.getenv(kind);
		return address.substring(0, address.lastIndexOf(':'));
	}

	static int port(String kind) {
		String address = System.getenv(kind);
		return Integer.parseInt(address.substring(address.lastIndexOf(':') + 1));
	}

	static String[] texts(Object[] words, int from) {
		String[] list = new String[words.length - from];
		for (int i = from; i < words.length; i++) list[i - from] = String.valueOf(words[i]);
		return list;
	}

	/** plain turns bytes into text, and maps into maps, wherever they are. */
	static Object plain(Object reply) {
		if (reply instanceof byte[] b) return SafeEncoder.encode(b);
		if (reply instanceof ByteBuffer b) return StandardCharsets.UTF_8.decode(b).toString();
		if (reply instanceof List<?> list) {
			if (!list.isEmpty() && list.get(0) instanceof KeyValue) {
				Map<Object, Object> map = new HashMap<>();
				for (Object one : list) map.put(plain(((KeyValue<?, ?>) one).getKey()), plain(((KeyValue<?, ?>) one).getValue()));
				return map;
			}
			List<Object> out = new ArrayList<>();
			for (Object one : list) out.add(plain(one));
			return out;
		}
		return reply;
	}

	static class OfJedis implements Library {
		final Jedis jedis;

		OfJedis(String kind, int protocol, String password) throws Exception {
			DefaultJedisClientConfig.Builder config = DefaultJedisClientConfig.builder()
				.protocol(protocol == 3 ? RedisProtocol.RESP3 : RedisProtocol.RESP2).timeoutMillis(10_000);
			if (kind.equals("SECURE")) {
				config.password(password).ssl(true).sslSocketFactory(trusting(System.getenv("CA")).getSocketFactory());
			}
			jedis = new Jedis(new HostAndPort(host(kind), port(kind)), config.build());
			jedis.connect();
		}

		static ProtocolCommand named(Object name) {
			return () -> SafeEncoder.encode(String.valueOf(name));
		}

		public Object call(Object... words) {
			return plain(jedis.sendCommand(named(words[0]), texts(words, 1)));
		}

		public List<Object> pipeline(List<Object[]> list) {
			List<Response<Object>> replies = new ArrayList<>();
			Pipeline pipeline = jedis.pipelined();
			for (Object[] words : list) {
				CommandArguments arguments = new CommandArguments(named(words[0]));
				for (String text : texts(words, 1)) arguments.add(text);
				replies.add(pipeline.executeCommand(new redis.clients.jedis.CommandObject<>(arguments, redis.clients.jedis.BuilderFactory.RAW_OBJECT)));
			}
			pipeline.sync();
			List<Object> out = new ArrayList<>();
			for (Response<Object> one : replies) out.add(plain(one.get()));
			return out;
		}

		public void close() {
			jedis.close();
		}
	}

	static SSLContext trusting(String ca) throws Exception {
		KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
		store.load(null);
		try (FileInputStream in = new FileInputStream(ca)) {
			store.setCertificateEntry("ca", CertificateFactory.getInstance("X.509").generateCertificate(in));
		}
		TrustManagerFactory managers = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
		managers.init(store);
		SSLContext context = SSLContext.getInstance("TLS");
		context.init(null, managers.getTrustManagers(), null);
		return context;
	}

	/** Anything is a reply of any kind: Lettuce's own outputs know no booleans within others. A map becomes names and values in turn. */
	static class Anything extends CommandOutput<String, String, Object> {
		private final Deque<List<Object>> open = new ArrayDeque<>();

		Anything() {
			super(StringCodec.UTF8, null);
		}

		private void put(Object value) {
			if (open.isEmpty()) output = value;
			else open.peek().add(value);
		}

		public void set(ByteBuffer bytes) {
			put(bytes == null ? null : StandardCharsets.UTF_8.decode(bytes).toString());
		}

		public void set(long number) {
			put(number);
		}

		public void set(boolean value) {
			put(value);
		}

		public void multi(int count) {
			List<Object> list = new ArrayList<>();
			put(list);
			open.push(list);
		}

		public void complete(int depth) {
			while (open.size() > depth && !open.isEmpty()) open.pop();
		}
	}

	static class OfLettuce implements Library {
		final RedisClient client;
		final StatefulRedisConnection<String, String> connection;

		OfLettuce(String kind, int protocol, String password) {
			RedisURI.Builder uri = RedisURI.builder().withHost(host(kind)).withPort(port(kind)).withTimeout(Duration.ofSeconds(10));
			ClientOptions.Builder options = ClientOptions.builder().protocolVersion(protocol == 3 ? ProtocolVersion.RESP3 : ProtocolVersion.RESP2);
			if (kind.equals("SECURE")) {
				uri.withSsl(true).withPassword(password.toCharArray());
				options.sslOptions(SslOptions.builder().trustManager(new File(System.getenv("CA"))).build());
			}
			if (kind.equals("ROLLING")) options.disconnectedBehavior(ClientOptions.DisconnectedBehavior.REJECT_COMMANDS);
			client = RedisClient.create(uri.build());
			client.setOptions(options.build());
			connection = client.connect();
		}

		RedisFuture<Object> begin(Object... words) {
			CommandArgs<String, String> args = new CommandArgs<>(StringCodec.UTF8);
			for (String text : texts(words, 1)) args.add(text);
			ProtocolKeyword name = new ProtocolKeyword() {
				public byte[] getBytes() {
					return String.valueOf(words[0]).getBytes(StandardCharsets.US_ASCII);
				}

				public String toString() {
					return String.valueOf(words[0]);
				}
			};
			return connection.async().dispatch(name, new Anything(), args);
		}

		static Object await(RedisFuture<Object> future) throws Exception {
			return plain(future.get(10, TimeUnit.SECONDS));
		}

		public Object call(Object... words) throws Exception {
			return await(begin(words));
		}

		public List<Object> pipeline(List<Object[]> list) throws Exception {
			connection.setAutoFlushCommands(false);
			List<RedisFuture<Object>> futures = new ArrayList<>();
			for (Object[] words : list) futures.add(begin(words));
			connection.flushCommands();
			connection.setAutoFlushCommands(true);
			List<Object> out = new ArrayList<>();
			for (RedisFuture<Object> one : futures) out.add(await(one));
			return out;
		}

		public void close() {
			client.shutdown(0, 0, TimeUnit.SECONDS);
		}
	}

	static Library open(String library, String kind, int protocol, String password) throws Exception {
		return library.equals("jedis") ? new OfJedis(kind, protocol, password) : new OfLettuce(kind, protocol, password);
	}

	static void expect(String what, Object have, Object want) {
		if (!Objects.equals(String.valueOf(have), String.valueOf(want))) throw new AssertionError(what + ": have " + have + ", want " + want);
	}

	@SuppressWarnings("unchecked")
	static void show(String library, String kind, int protocol) throws Exception {
		String key = library + "-" + kind + "-" + protocol, token = System.getenv("TOKEN");
		try (Library r = open(library, kind, protocol, token)) {
			expect("ping", r.call("PING"), "PONG");
			for (int i = 0; i < 5; i++) expect("throttle", ((List<Object>) r.call("CL.THROTTLE", key, 4, 5, 18000)).subList(0, 4), List.of(0, 5, 4 - i, -1));
			expect("throttle", ((List<Object>) r.call("CL.THROTTLE", key, 4, 5, 18000)).subList(0, 3), List.of(1, 5, 0));

			List<Object[]> list = new ArrayList<>();
			for (int i = 0; i < 100; i++) list.add(new Object[] {"CL.THROTTLE", key + "-pipe", 49, 1, 36000});
			List<Object> replies = r.pipeline(list);
			for (int i = 0; i < 100; i++) expect("pipeline " + i, ((List<Object>) replies.get(i)).get(0), i < 50 ? 0 : 1);

			for (List<Integer> want : List.of(List.of(1, 1), List.of(2, 1), List.of(2, 0))) {
				expect("increx", r.call("INCREX", key, "UBOUND", 2, "EX", 3600, "ENX"), want);
			}
			long ttl = (long) r.call("TTL", key);
			if (ttl <= 17000 || ttl > 18000) throw new AssertionError("TTL is " + ttl);
			expect("exists", r.call("EXISTS", key, key + "-none"), 1);

			String check = String.valueOf(r.call("RL.CHECK", "plan", key)).replace("=", ", ");
			if (!check.contains("limit, 10") || !check.contains("remaining, 9")) throw new AssertionError("check: " + check);

			try {
				r.call("GET", key);
				throw new AssertionError("GET was answered");
			} catch (Exception e) {
				if (!String.valueOf(e).contains("rlnode limits rates")) throw e;
			}
			expect("del", r.call("DEL", key, key + "-none"), 1);
			expect("ttl", r.call("TTL", key), -2);
		}
		if (!kind.equals("SECURE")) return;
		try (Library r = open(library, kind, protocol, "wrong")) {
			r.call("PING");
		} catch (Exception e) {
			return;
		}
		throw new AssertionError("a wrong token was accepted");
	}

	/** drop closes a client whose connection is broken, which Jedis reports once more. */
	static void drop(Library r) {
		try {
			r.close();
		} catch (Exception e) {
			// it is closed all the same
		}
	}

	static volatile boolean over;

	static void loop(String library) throws Exception {
		Thread reader = new Thread(() -> {
			try {
				while (System.in.read() >= 0) { }
			} catch (IOException e) {
				// the same as its end
			}
			over = true;
		});
		reader.setDaemon(true);
		reader.start();
		Library r = null;
		long ok = 0, failed = 0, last = System.nanoTime();
		while (!over) {
			try {
				if (r == null) r = open(library, "ROLLING", 3, null);
				r.call("CL.THROTTLE", "loop-" + library, 1000000, 1000000, 60);
				ok++;
				last = System.nanoTime();
			} catch (Exception e) {
				failed++;
				if (r instanceof OfJedis) { // which leaves it to a pool to connect again
					drop(r);
					r = null;
				}
			}
			Thread.sleep(20);
		}
		System.out.printf("{\"ok\":%d,\"failed\":%d,\"silent_ms\":%d}%n", ok, failed, (System.nanoTime() - last) / 1_000_000);
		System.out.flush();
		System.exit(0);
	}

	public static void main(String[] args) throws Exception {
		if (args[1].equals("loop")) {
			loop(args[0]);
			return;
		}
		for (String kind : List.of("PLAIN", "SECURE")) {
			for (int protocol : new int[] {2, 3}) show(args[0], kind, protocol);
		}
		System.out.println("ok");
		System.exit(0);
	}
}
