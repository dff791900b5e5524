// ioredis and node-redis against a node: see clients_test.go, which says what a client has to show.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { Redis } from "ioredis";
import { createClient } from "redis";

const [, , library, mode] = process.argv;

function settings(kind) {
	const at = process.env[kind].lastIndexOf(":");
	const secure = kind === "SECURE";
	return {
		host: process.env[kind].slice(0, at),
		port: Number(process.env[kind].slice(at + 1)),
		password: secure ? process.env.TOKEN : undefined,
		ca: secure ? readFileSync(process.env.CA) : undefined,
	};
}

// Each library as: call(words), pipeline(list of words), close().
const libraries = {
	async ioredis(kind, protocol, password) {
		const s = settings(kind);
		const redis = new Redis({
			host: s.host, port: s.port, password: password ?? s.password, tls: s.ca && { ca: s.ca }, protocol,
			retryStrategy: password ? () => null : () => 100,
			maxRetriesPerRequest: 1,
		});
		redis.on("error", () => {});
		return {
			call: (...words) => redis.call(...words),
			pipeline: async (list) => {
				const pipeline = redis.pipeline();
				for (const words of list) pipeline.call(...words);
				return (await pipeline.exec()).map(([error, reply]) => error ?? reply);
			},
			close: () => redis.disconnect(),
		};
	},
	async "node-redis"(kind, protocol, password) {
		const s = settings(kind);
		const client = createClient({
			RESP: protocol, password: password ?? s.password, disableOfflineQueue: mode === "loop",
			socket: { host: s.host, port: s.port, tls: Boolean(s.ca), ca: s.ca, reconnectStrategy: password ? false : 100 },
		});
		client.on("error", () => {});
		await client.connect();
		return {
			call: (...words) => client.sendCommand(words.map(String)),
			pipeline: (list) => Promise.all(list.map((words) => client.sendCommand(words.map(String)))),
			close: () => client.destroy(),
		};
	},
};

// fields returns a map's fields, whichever way the library has it: an object, a Map, or a flat list, as in RESP2.
function fields(reply) {
	if (reply instanceof Map) return Object.fromEntries(reply);
	if (!Array.isArray(reply)) return reply;
	const list = Array.isArray(reply[0]) ? reply : Array.from({ length: reply.length / 2 }, (_, i) => reply.slice(2 * i, 2 * i + 2));
	return Object.fromEntries(list);
}

async function show(kind, protocol) {
	const key = `${library}-${kind}-${protocol}`;
	const r = await libraries[library](kind, protocol);
	assert.equal(await r.call("PING"), "PONG");
	for (let i = 0; i < 5; i++) assert.deepEqual((await r.call("CL.THROTTLE", key, 4, 5, 18000)).slice(0, 4), [0, 5, 4 - i, -1]);
	assert.deepEqual((await r.call("CL.THROTTLE", key, 4, 5, 18000)).slice(0, 3), [1, 5, 0]);

	const many = await r.pipeline(Array.from({ length: 100 }, () => ["CL.THROTTLE", `${key}-pipe`, 49, 1, 36000]));
	assert.deepEqual(many.map((one) => one[0]), Array.from({ length: 100 }, (_, i) => (i < 50 ? 0 : 1)));

	for (const want of [[1, 1], [2, 1], [2, 0]]) assert.deepEqual(await r.call("INCREX", key, "UBOUND", 2, "EX", 3600, "ENX"), want);
	const ttl = await r.call("TTL", key);
	assert.ok(ttl > 17000 && ttl <= 18000, `TTL is ${ttl}`);
	assert.equal(await r.call("EXISTS", key, `${key}-none`), 1);

	const check = fields(await r.call("RL.CHECK", "plan", key));
	assert.deepEqual([Boolean(check.allowed), check.limit, check.remaining], [true, 10, 9]);

	await assert.rejects(r.call("GET", key), /rlnode limits rates/);
	assert.equal(await r.call("DEL", key, `${key}-none`), 1);
	assert.equal(await r.call("TTL", key), -2);
	r.close();

	if (kind === "SECURE") {
		await assert.rejects(async () => {
			const other = await libraries[library](kind, protocol, "wrong");
			try {
				await other.call("PING");
			} finally {
				other.close();
			}
		});
	}
}

async function loop() {
	const r = await libraries[library]("ROLLING", 3);
	let over = false, ok = 0, failed = 0, last = performance.now();
	process.stdin.on("end", () => (over = true)).resume();
	while (!over) {
		try {
			await Promise.race([r.call("CL.THROTTLE", `loop-${library}`, 1000000, 1000000, 60), sleep(5000).then(() => Promise.reject(new Error("late")))]);
			ok++;
			last = performance.now();
		} catch {
			failed++;
		}
		await sleep(20);
	}
	console.log(JSON.stringify({ ok, failed, silent_ms: Math.round(performance.now() - last) }));
	process.exit(0);
}

if (mode === "loop") {
	await loop();
} else {
	for (const kind of ["PLAIN", "SECURE"]) for (const protocol of [2, 3]) await show(kind, protocol);
	console.log("ok");
	process.exit(0);
}
