// Questions to the node that the page came from.

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

async function ask(path, options) {
  let answer;
  try {
    answer = await fetch(`../${path}`, { cache: 'no-store', credentials: 'same-origin', signal: AbortSignal.timeout(patience), ...options });
  } catch {
    throw new Failure(0, 'no-answer', 'The node does not answer.');
  }
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

// post sends the token along when there is one. It is kept nowhere but in the form.
export function post(path, body, token) {
  const headers = { 'Content-Type': 'application/json' };
  if (token) headers.Authorization = `Bearer ${token}`;
  return ask(path, { method: 'POST', headers, body: JSON.stringify(body) });
}

// subject writes rule and key as a query has them: the value of one key attribute, or an array of several.
export function subject(rule, key) {
  const q = new URLSearchParams({ rule });
  if (key.length === 1) q.set('key', key[0]);
  else if (key.length > 1) q.set('key', JSON.stringify(key));
  return q.toString();
}
