// Questions to the node that the page came from.
import { token } from './token.js';

const patience = 4000; // milliseconds
const longPatience = 30000; // for what may be megabytes

// Failure is an answer that tells an error, or none at all (status 0).
export class Failure extends Error {
  constructor(status, code, text) {
    super(text);
    this.status = status;
    this.code = code;
  }
}

async function ask(path, { headers, ...options }) {
  const carried = token.text;
  if (carried) headers = { ...headers, Authorization: `Bearer ${carried}` };
  let answer;
  try {
    answer = await fetch(`../${path}`, { cache: 'no-store', credentials: 'same-origin', signal: AbortSignal.timeout(patience), headers, ...options });
  } catch {
    throw new Failure(0, 'no-answer', 'The node does not answer.');
  }
  if (answer.status === 401) token.refused(carried);
  let body;
  try {
    body = await answer.json();
  } catch {
    throw new Failure(answer.status, 'unreadable', `The node’s answer (${answer.status}) can’t be read.`);
  }
  if (!answer.ok) throw new Failure(answer.status, body.code ?? '', body.detail ?? body.title ?? `The node answers ${answer.status}.`);
  return body;
}

const json = { Accept: 'application/json' };

export const get = (path) => ask(path, { headers: json });
export const getLarge = (path) => ask(path, { headers: json, signal: AbortSignal.timeout(longPatience) });

export const post = (path, body) => ask(path, { method: 'POST', headers: { 'Content-Type': 'application/json', 'Rlnode-Dashboard': '1' }, body: JSON.stringify(body) });

// subject writes rule and key as a query has them: the value of one key attribute, or an array of several.
export function subject(rule, key) {
  const q = new URLSearchParams({ rule });
  if (key.length === 1) q.set('key', key[0]);
  else if (key.length > 1) q.set('key', JSON.stringify(key));
  return q.toString();
}
