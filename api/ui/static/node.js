// Questions to the node that the page came from, and changes there.
import { token } from './token.js';

const patience = 4000; // milliseconds
const longPatience = 30000; // for what may be megabytes
const writePatience = 65000; // a change of members may take a minute

// Failure is an answer that tells an error, or none at all (status 0).
export class Failure extends Error {
  constructor(status, code, text, mistakes = []) {
    super(text);
    this.status = status;
    this.code = code;
    this.mistakes = mistakes; // of a rules document: where and what
  }
}

// ask returns the answer, whatever it says.
async function ask(path, milliseconds, { headers, ...options }) {
  const carried = token.text;
  if (carried) headers = { ...headers, Authorization: `Bearer ${carried}` };
  let answer;
  try {
    answer = await fetch(`../${path}`, { cache: 'no-store', credentials: 'same-origin', signal: AbortSignal.timeout(milliseconds), headers, ...options });
  } catch {
    throw new Failure(0, 'no-answer', 'The node does not answer.');
  }
  if (answer.status === 401) token.refused(carried);
  if (!answer.ok) throw await failure(answer);
  return answer;
}

async function failure(answer) {
  let body = {};
  try {
    body = await answer.json();
  } catch {
    // A proxy in front may answer with anything.
  }
  return new Failure(answer.status, body.code ?? '', body.detail || body.title || `The node answers ${answer.status}.`, body.errors ?? []);
}

async function read(answer) {
  try {
    return await answer.json();
  } catch {
    throw new Failure(answer.status, 'unreadable', `The node’s answer (${answer.status}) can’t be read.`);
  }
}

const json = { Accept: 'application/json' };

export const get = (path) => ask(path, patience, { headers: json }).then(read);
export const getLarge = (path) => ask(path, longPatience, { headers: json }).then(read);

// getText returns a text, and the version that it has.
export async function getText(path) {
  const answer = await ask(path, longPatience, { headers: { Accept: 'application/yaml' } });
  return { text: await answer.text(), version: answer.headers.get('ETag') };
}

// getFigures returns the node's metrics.
export const getFigures = () => ask('metrics', patience, { headers: {} }).then((answer) => answer.text());

// getFile returns a file as it is.
export const getFile = (path) => ask(path, writePatience, { headers: {} }).then((answer) => answer.blob());

// send asks or writes with a body: a text is YAML, all else is JSON. version is the one that must be in force; empty: any.
export function send(method, path, body, version) {
  const headers = { 'Content-Type': typeof body === 'string' ? 'application/yaml' : 'application/json', 'Rlnode-Dashboard': '1' };
  if (version) headers['If-Match'] = version;
  if (body !== undefined && typeof body !== 'string') body = JSON.stringify(body);
  return ask(path, writePatience, { method, headers, body }).then(read);
}

export const post = (path, body) => send('POST', path, body);

// subject writes rule and key as a query has them: the value of one key attribute, or an array of several.
export function subject(rule, key) {
  const q = new URLSearchParams({ rule });
  if (key.length === 1) q.set('key', key[0]);
  else if (key.length > 1) q.set('key', JSON.stringify(key));
  return q.toString();
}

// target writes rule and key as a body has them.
export function target(rule, key) {
  if (!key.length) return { rule };
  return { rule, key: key.length === 1 ? key[0] : key };
}
