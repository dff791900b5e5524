// The options of a store in a suite: a client of the node, which says what time it is in the test, and a namespace that
// no other store has.
const { randomUUID } = require("node:crypto");
const { RlnodeClient } = require("rlnode");

const { fetch } = globalThis;

const client = new RlnodeClient({
  nodes: process.env.SUITE_NODE,
  timeoutMs: 20_000,
  fetch: (url, init) => fetch(url, { ...init, headers: { ...init.headers, "suite-clock": String(Date.now()) } }),
});

exports.options = (more) => ({ client, namespace: randomUUID(), ...more });
